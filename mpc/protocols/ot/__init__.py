"""Oblivious transfer, from the public key to the forms that the protocols use.

`base` is OT from public-key cryptography, and `ggm` makes trees of it. `extension` says what it
means to extend that to millions of OTs, `softspoken` and `ferret` do so, and `consistency` is
SoftSpokenOT's check. The forms that protocols use are `mpc.protocols.correlations.kinds`.

Sender and receiver are classes only here: their states and secrets differ, and the wrong role
should be impossible to build.
"""
