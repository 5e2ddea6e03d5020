"""The two server daemons.

Read the modules in dependency order: `policy`, `config`, `descriptors`, `logs`, `control`, `peer`,
`events`, `round_facts`, `round_state`, `database`, `training`, `results`, `store`, `memory`,
`transport`, `engine`, `engines`, `register`, `keeper`, `runner`, `peer_control`, `rounds`,
`requests`, `daemon`, `cli`.
"""
