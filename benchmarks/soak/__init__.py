"""The soak: a small service under faults, for as long as one likes, with every result audited.

docs/soak.md says what strikes and what is counted.
"""
