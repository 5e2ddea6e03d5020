"""Rogue servers: daemons that deviate from the protocol, and what they learn.

Such a server, `tests.rogue.serve`, replaces functions in its own process and then serves as
`securemedian serve CONFIG` does. It writes what it learns to `spoils.npz` next to CONFIG.
`scripts/rogue` measures all deviations. The product neither imports this package nor installs it.
"""
