"""The side of the clients: local models become shares, and results are fetched and checked.

`client` is the Python interface. Behind it `service` asks the two servers, `lookup` finds the open
round, `sender` makes and sends uploads, `journal` keeps what a restart must not lose, and
`outcomes` fetches, checks and decodes what rounds come to.
"""
