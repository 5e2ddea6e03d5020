"""The element of a rank bit by bit, with nothing opened, at a cost linear in the values.

`smallest` finds which values are at most it.

It is `radix` on additive shares, for a result that stays shared. The values become XOR-shared words
(`convert`). From the top bit down the parties keep two XOR-shared flags per value: c_i, "agrees
with the result's prefix", and s_i, "is smaller than it". With zero_i = c_i & ~x_i[bit],

    m = 1{sum_i (s_i ^ zero_i) < k}

is the result's own bit. The flags s_i ^ zero_i are converted to a small ring, in which they are
added up and compared. The bit m stays shared, and moves the flags, c_i = zero_i ^ m c_i and s_i =
s_i ^ m zero_i. These ANDs all have m in common, and so take one triple of many bits.

Each of the w bits takes 3 rounds and those of one comparison, after w - 1 rounds for the words. It
takes 5 OTs per value, of which 2 are the word's, and one comparison of counts.
"""

from math import ceil

import numpy as np

from securemedian.mpc.arrays import RingShare, UnpackedXorBits, XorBits
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import (
    conjunctions,
    invert,
    to_ring,
    to_ring_demand,
    unpack_bits,
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
    found, _, _ = _descended(party, values, width, rank, flags=False)
    unsigned = from_bits(party, found, values.shape[1], bits)
    offset = unsigned.dtype.type(1 << (width - 1) if party.number == 0 else 0)
    return RingShare(ring.reduce(unsigned - offset, bits))


def smallest(party: Party, values: RingShare, width: int, count: int) -> UnpackedXorBits:
    """Return shares of whether each value is one of the `count` smallest of its coordinate, (n, d).

    Of equal values those of lower index are smaller. `values` are as in `element`. With t the
    element of rank `count`, they are the values below t, and as many of those at t, the first, as
    are missing.
    """
    n, dim = values.shape
    _, agrees, smaller = _descended(party, values, width, count, flags=True)
    small, size = ring.signed_bits(n), agrees.size
    both = to_ring(party, XorBits(np.concatenate([agrees, smaller])), 128 * size, small)
    at_it, below = both.reshape(2, n, -1)
    # how many are below t, or at it and before this one
    before = below.sum(axis=0, dtype=below.dtype) + np.cumsum(at_it, axis=0, dtype=at_it.dtype)
    before -= at_it
    if party.number == 0:
        before -= before.dtype.type(count)
    missing = compare.msb(party, RingShare(ring.reduce(before.reshape(-1), small)), small)
    ((first,),) = conjunctions(party, [(agrees, [missing])])
    chosen = unpack_bits(smaller ^ first, 64 * size).reshape(n, -1)[:, :dim]
    return UnpackedXorBits(chosen)


def _descended(
    party: Party, values: RingShare, width: int, rank: int, flags: bool
) -> tuple[XorBits, XorBits, XorBits]:
    """Return shares of the element's bits (width, words), in offset binary, and of all flags.

    The flags, of being equal to the element and of being smaller, are a row of words per value.
    They are those before the last bit unless `flags` is set.
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
        below = to_ring(party, XorBits(smaller ^ zero), 64 * zero.size, small)
        reached = below.reshape(count, -1).sum(axis=0, dtype=below.dtype)
        if party.number == 0:
            reached -= reached.dtype.type(rank)
        one = compare.msb(party, RingShare(ring.reduce(reached, small)), small)
        found[bit] = one
        if bit > 0 or flags:
            moved = _moved(party, one, XorBits(np.concatenate([agrees, zero])))
            agrees = XorBits(zero ^ moved[: zero.size])
            smaller = XorBits(smaller ^ moved[zero.size :])
    return XorBits(found), agrees, smaller


def _moved(party: Party, one: XorBits, flags: XorBits) -> XorBits:
    """Return shares of m & f for all flags f (values words,), with m of one coordinate a bit."""
    each = [XorBits(row) for row in flags.reshape(-1, one.size)]
    groups = [each[first : first + MOST_MOVED] for first in range(0, len(each), MOST_MOVED)]
    products = conjunctions(party, [(one, group) for group in groups])
    return XorBits(np.concatenate([product for group in products for product in group]))


def demand(dim: int, count: int, width: int, bits: int) -> Demand:
    """Return the correlations of `element` of `count` values of `width` bits per coordinate."""
    return _descended_demand(dim, count, width, width - 1) + from_bits_demand(dim, width, bits)


def smallest_demand(dim: int, count: int, width: int) -> Demand:
    """Return the correlations of `smallest` among `count` values of `width` bits per coordinate."""
    flags, small = count * words_of(dim), ring.signed_bits(count)
    missing = to_ring_demand(128 * flags, small) + compare.msb_demand(64 * flags, small)
    found = _descended_demand(dim, count, width, width)
    return found + missing + Demand({Triples(1): (flags, flags)})


def _descended_demand(dim: int, count: int, width: int, moves: int) -> Demand:
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
    return step * width + moving * moves + to_bits_demand(64 * flags, width)


def at_once(count: int, width: int) -> int:
    """Return how many comparisons of pairs take the memory of `element` per coordinate."""
    return ceil(width * count / BITS_PER_COMPARISON)
