"""Correlations, which are made ahead of the inputs and handed out once.

Both parties make the same kinds in the same order, half of them in each direction. So both do the
same work, and both directions of the link carry the same bytes. `base` says what a kind is, `kinds`
has them all, and `pool` makes, stocks and hands out what a computation demands:

    Tables(m, w)   random 1-of-2^m OT of w-bit messages, for a leaf of a comparison
    Triples(w)     random AND triples of one bit with w others, 64 per word, for an AND
    PlaneOts(l)    random 1-of-2 OT of ring elements in bit planes, for a step of the radix median
    RandomOts(l)   random 1-of-2 OT of ring elements, for a multiplexer
    DaBits(l)      a random bit shared over XOR and over Z_2^l, to turn a bit into a number
"""
