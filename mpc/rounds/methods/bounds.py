"""Whether shared values lie in their range, opened as one bit per client.

A value v is signed, and in range if -2^t <= v < 2^t, with t = l - 2 - h and h the bits of headroom:
on the circle Z_2^l, if msb(v + 2^t) = 0 and msb(2^t - 1 - v) = 0. With h = 0 the first alone says
it. All bits of an honest client are 0, so opening them reveals nothing about it. Of any other
client both parties learn which values are out of range.
"""

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, RingShare
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.reveal import open_bits


def outside(party: Party, values: RingShare, bits: int, headroom: int) -> NDArray[np.bool_]:
    """Return which clients have a value out of range (n,), from shares (n, d) in Z_2^bits."""
    top = ring.dtype(bits).type(1 << (bits - 2 - headroom))
    # public, so that one party's share has them
    least, most = (top, top - 1) if party.number == 0 else (0, 0)
    both = np.stack([values + least, most - values])
    sides = ring.reduce(both[: comparisons(headroom)], bits)
    signs = compare.msb(party, RingShare(sides.reshape(-1)), bits)
    opened: PublicBits = open_bits(party, signs, sides.size)
    return opened.reshape(sides.shape).max(axis=(0, 2)).astype(np.bool_)


def comparisons(headroom: int) -> int:
    """Return the comparisons that `outside` makes for each value."""
    return 1 if headroom == 0 else 2


def demand(count: int, bits: int, headroom: int) -> Demand:
    """Return the correlations of `outside` on `count` values."""
    return compare.msb_demand(count * comparisons(headroom), bits)
