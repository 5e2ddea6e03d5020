"""The element of a rank bit by bit, with nothing opened, at a cost linear in the values.

It is `radix` on additive shares, for a result that stays shared. The values become XOR-shared words
(`convert`). From the top bit down the parties keep two XOR-shared flags per value: c_i, "agrees
with the result's prefix", and s_i, "is smaller than it". With zero_i = c_i & ~x_i[bit],

    m = 1{sum_i (s_i ^ zero_i) < k}

is the result's own bit. The flags s_i ^ zero_i are converted to a small ring, in which they are
added up and compared. m stays shared, and moves the flags, c_i = zero_i ^ m c_i and
s_i = s_i ^ m zero_i: ANDs that all have m in common, and so take one triple of many bits.

Each of the w bits takes 3 rounds and those of one comparison, after w - 1 rounds for the words. It
takes 5 OTs per value, of which 2 are the word's, and one comparison of counts.
"""

from math import ceil

import numpy as np

from securemedian.mpc.arrays import RingShare, XorBits
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import (
    conjunctions,
    invert,
    to_ring,
    to_ring_demand,
    words_of,
)
from securemedian.mpc.protocols.convert import from_bits, from_bits_demand, to_bits, to_bits_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import Triples
from securemedian.mpc.protocols.party import Party

# Bits of values whose correlations take as much memory as one comparison of pairs.
BITS_PER_COMPARISON = 12
# The most flags that m moves with one triple.
MOST_MOVED = 64


def element(party: Party, values: RingShare, width: int, bits: int, rank: int) -> RingShare:
    """Return shares in Z_2^bits of the element of rank k (1..n) in each coordinate, shape (d,).

    `values` are shares of signed numbers of `width` bits, 1 <= `width` <= `bits`, shape (n, d).
    """
    count, dim = values.shape
    words, small = words_of(dim), ring.signed_bits(count)
    # whole words of bits per value; the columns beyond `dim` are nobody's and never opened
    padded = np.pad(values, ((0, 0), (0, 64 * words - dim))).reshape(-1)
    zeros = invert(party, to_bits(party, RingShare(padded), width))
    # in offset binary, the top bit of a negative number is 0
    zeros[-1] = invert(party, XorBits(zeros[-1]))
    agrees = invert(party, XorBits(np.zeros_like(zeros[0])))
    smaller = XorBits(np.zeros_like(agrees))
    found = np.empty((width, words), np.uint64)
    for bit in reversed(range(width)):
        ((zero,),) = conjunctions(party, [(agrees, [XorBits(zeros[bit])])])
        flags = to_ring(party, XorBits(smaller ^ zero), 64 * zero.size, small)
        reached = flags.reshape(count, -1).sum(axis=0, dtype=flags.dtype)
        if party.number == 0:
            reached -= reached.dtype.type(rank)
        one = compare.msb(party, RingShare(ring.reduce(reached, small)), small)
        found[bit] = one
        if bit > 0:
            moved = _moved(party, one, XorBits(np.concatenate([agrees, zero])))
            agrees = XorBits(zero ^ moved[: zero.size])
            smaller = XorBits(smaller ^ moved[zero.size :])
    unsigned = from_bits(party, XorBits(found), dim, bits)
    offset = unsigned.dtype.type(1 << (width - 1) if party.number == 0 else 0)
    return RingShare(ring.reduce(unsigned - offset, bits))


def _moved(party: Party, one: XorBits, flags: XorBits) -> XorBits:
    """Return shares of m & f for all flags f (values words,), with m of one coordinate a bit."""
    each = [XorBits(row) for row in flags.reshape(-1, one.size)]
    groups = [each[first : first + MOST_MOVED] for first in range(0, len(each), MOST_MOVED)]
    products = conjunctions(party, [(one, group) for group in groups])
    return XorBits(np.concatenate([product for group in products for product in group]))


def demand(dim: int, count: int, width: int, bits: int) -> Demand:
    """Return the correlations of `element` of `count` values of `width` bits per coordinate."""
    words, small = words_of(dim), ring.signed_bits(count)
    flags = count * words
    step = (
        Demand({Triples(1): (flags, flags)})
        + to_ring_demand(64 * flags, small)
        + compare.msb_demand(64 * words, small)
    )
    moving = Demand()
    for first in range(0, 2 * count, MOST_MOVED):
        together = min(MOST_MOVED, 2 * count - first)
        moving = moving + Demand({Triples(together): (words, words)})
    total = step * width + moving * (width - 1)
    return total + to_bits_demand(64 * flags, width) + from_bits_demand(dim, width, bits)


def at_once(count: int, width: int) -> int:
    """Return how many comparisons of pairs take the memory of `element` per coordinate."""
    return ceil(width * count / BITS_PER_COMPARISON)
