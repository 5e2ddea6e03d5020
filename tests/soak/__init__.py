"""The soak: a small service under faults, for as long as one likes, with every result audited.

`scripts/soak` starts it. docs/soak.md lists its faults and its figures.
"""
