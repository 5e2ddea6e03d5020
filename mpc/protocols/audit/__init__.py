"""Proofs that the two servers have followed the protocol of a round.

`equality` is how all of them end: what must be the same at both parties is compared.
"""
