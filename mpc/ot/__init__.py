"""Oblivious transfer: `base` (public key), `softspoken` (extension to millions), `one_of_two` and `one_of_n` (the forms
the protocols use).

The only place where sender and receiver are classes: their states and secrets differ, and the wrong role should be
impossible to build.
"""
