"""The side of the clients: local models become shares, and results are fetched and checked.

`client` is the Python interface. Behind it `connection` asks the two servers, `lookup` finds the
open round, and `sharing` deals, makes and sends uploads. `journal` keeps them over a restart, and
`outcomes` fetches, checks and decodes results.
"""
