"""The side of the clients and the coordinator: local models become shares, rounds are opened.

`client` and `coordinator` are the Python interface. Behind it `service` asks the two servers and
waits for them, `lookup` finds the open round, `sender` makes uploads and sends them, `journal`
keeps what a restart must not lose, and `outcomes` fetches, checks and decodes what rounds come to.
`fit` is the training loop.
"""
