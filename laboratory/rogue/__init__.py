"""Rogue servers: daemons that deviate from the protocol, for the experiment `rogue-server`.

`python -m securemedian.laboratory.rogue DEVIATION CONFIG` replaces functions in its own process and
then serves as `securemedian serve CONFIG` does. What it learns it writes to `spoils.npz` next to
CONFIG. Nothing that serves imports this package, and no configuration reaches it.
"""
