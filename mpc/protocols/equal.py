"""Equality of additively shared ring elements (CrypTFlow2, Section 3).

x = y exactly when (x - y)_0 = -(x - y)_1, which is an equality test on private inputs.
"""

import numpy as np

from securemedian.mpc.arrays import RingShare, XorBits
from securemedian.mpc.protocols import millionaire, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party


def is_zero(party: Party, shares: RingShare, bits: int) -> XorBits:
    """Return shares of 1{z = 0}, for z in Z_2^bits."""
    own = shares if party.number == 0 else ring.reduce(np.zeros_like(shares) - shares, bits)
    planes = ring.split(own, bits)
    sending, receiving = party.word_halves(planes.shape[1])
    halves = (np.ascontiguousarray(planes[:, half]) for half in (sending, receiving))
    return millionaire.equal(party, *halves)


def equal(party: Party, x: RingShare, y: RingShare, bits: int) -> XorBits:
    """Return shares of 1{x = y}."""
    return is_zero(party, RingShare(ring.reduce(x - y, bits)), bits)


def equal_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `equal` or `is_zero` on `count` elements."""
    return millionaire.equal_demand(count, bits)
