"""The `securemedian` command and what belongs to no single party.

Read the modules in dependency order: `keygen`, `plaintext`, `processes`, `experiment`, `show`, `demo`, `cli`.
"""
