"""The side of the clients and the coordinator: local models become shares, rounds are opened.

Read the modules in dependency order: `config`, `connection`, `files`, `public`, `update`,
`upload`, `memory`, `dealer`, `sender`, `results`, `client`, `start`, `flags`, `receipts`,
`progress`, `cli`.
"""
