"""What servers and clients have in common: TOML files, addresses, names, states, keys, receipts.

It lies below both, so that neither has to import the other. Read the modules in dependency order:
`toml`, `addresses`, `trainings`, `states`, `durable`, `keys`, `receipts`.
"""
