"""Signs of combinations of shared numbers that are too large for a ring of 64 bits.

A signed number v in Z_2^64 is known in Z_2^128 once the carry of its shares is. With z = v + 2^63,
z = z_0 + z_1 - 2^64 1{z_0 + z_1 >= 2^64}. Whole numbers of 128 bits are Python's: there are few.
"""

from collections.abc import Sequence

import numpy as np

from securemedian.mpc.arrays import RingPlanes, RingShare, XorBits
from securemedian.mpc.protocols import compare, millionaire, ring
from securemedian.mpc.protocols.boolean import to_ring, to_ring_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party

BITS = 64
WIDE_BITS = 128


def negative(party: Party, terms: RingShare, factors: Sequence[int], constant: int) -> XorBits:
    """Return shares of whether each sum_i f_i v_i + constant is below 0, n bits, packed.

    `terms` are shares in Z_2^64 of signed numbers v, shape (m, n); the m factors are public, and
    the sums within (-2^127, 2^127). Takes the rounds of a comparison of 64 bits, of one of 127, and
    of `to_ring`.
    """
    half = 1 << (BITS - 1) if party.number == 0 else 0
    shifted = terms + terms.dtype.type(half)
    carry = compare.carry(party, ring.split(shifted, BITS))
    above = to_ring(party, carry, terms.size, BITS).reshape(terms.shape)
    wide = shifted.astype(object) - (above.astype(object) << BITS) - half
    sums = sum(factor * row for factor, row in zip(factors, wide, strict=True))
    sums = sums + (constant if party.number == 0 else 0)
    halves = [(sums >> start & (1 << BITS) - 1).astype(np.uint64) for start in (0, BITS)]
    planes = np.concatenate([ring.split(half, BITS) for half in halves])
    return compare.msb_of_planes(party, RingPlanes(planes))


def negative_demand(terms: int, count: int) -> Demand:
    """Return the correlations of `negative` on terms (m, n)."""
    return (
        millionaire.greater_demand(terms * count, BITS)
        + to_ring_demand(terms * count, BITS)
        + compare.msb_demand(count, WIDE_BITS)
    )
