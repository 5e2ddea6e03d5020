"""Correlations, made ahead of the inputs and handed out once.

Both parties make the same kinds in the same order, half of them in each direction, so that both do
the same work and both directions of the link carry the same bytes. `base` says what a kind is, each
kind has a module of its own, and `pool` makes, stocks and hands out what a computation demands:

    Tables(m, w)   random 1-of-2^m OT of w-bit messages, what a leaf of a comparison needs
    Triples(w)     random AND triples of one bit with w others, 64 to a word
    Quads(l)       random 1-of-4 OT of ring elements, what a step of the radix median needs
    RandomOts(l)   random 1-of-2 OT of ring elements, what a multiplexer needs
    DaBits(l)      a random bit shared over XOR and over Z_2^l, what turns a bit into a number
"""
