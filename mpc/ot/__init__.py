"""Oblivious transfer, from the public key to the forms that the protocols use.

`base` is public-key OT, `extension` says what extending it to millions of OTs promises,
`softspoken` and `ferret` do it, `one_of_two` and `one_of_n` make of them what the protocols use.

The only place where sender and receiver are classes: their states and secrets differ, and the wrong
role should be impossible to build.
"""
