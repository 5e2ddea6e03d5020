"""The two server daemons.

Read the modules in dependency order: `settings`, `config`, `descriptors`, `logs`, `control`,
`peer`, `session`, `training`, `store`, `transport`, `engine`, `rounds`, `requests`, `daemon`,
`cli`.
"""
