"""The `securemedian` command and what belongs to no single party.

Read the modules in dependency order: `keygen`, `plaintext`, `processes`, `daemons`, `training_run`, `show`, `demo`,
`experiments`, `cli`.
"""
