"""Oblivious transfer, from the public key to the forms that the protocols use.

`base` is OT from public-key cryptography, and `ggm` makes trees of it. `extension` says what it
means to extend that to millions of OTs, `softspoken` and `ferret` do so, and `consistency` is
SoftSpokenOT's check. `one_of_two` turns these OTs into forms that protocols
use; 1-of-N OT is a correlation (`mpc.protocols.correlations.kinds`).

Sender and receiver are classes only here: their states and secrets differ, and the wrong role
should be impossible to build.
"""
