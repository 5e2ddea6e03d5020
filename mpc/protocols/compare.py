"""Comparison of additively shared ring elements: their sign, and whether they are 0.

See CrypTFlow2, Section 3, and protocols.md section 5 with the errata in 7.3. The top bit of z is

    msb(z) = msb(z_0) ^ msb(z_1) ^ carry,
    carry = 1{y_0 + y_1 >= 2^(l-1)} = 1{y_1 > 2^(l-1) - 1 - y_0},    y_j = z_j mod 2^(l-1):

one instance of the millionaires' problem on l - 1 bits. It is symmetric in the parties, so either
may be the OT sender. And z = 0 exactly if z_0 = -z_1, an equality test on private inputs.
"""

import numpy as np

from securemedian.mpc.arrays import Ring, RingPlanes, RingShare, Words, XorBits
from securemedian.mpc.protocols import millionaire, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party


def msb(party: Party, shares: RingShare, bits: int) -> XorBits:
    """Return shares of the top bit of each ring element, which is its sign."""
    return msb_of_planes(party, RingPlanes(ring.split(shares, bits)))


def msb_of_planes(party: Party, shares: RingPlanes) -> XorBits:
    """Return shares of the top bit of ring elements that are given in bit planes, as `msb` does."""
    return XorBits(carry(party, shares[:-1]) ^ shares[-1])


def carry(party: Party, own: Words) -> XorBits:
    """Return shares of the carry out of the sum of what both parties hold, in bit planes."""
    sending, receiving = party.word_halves(own.shape[1])
    # y is less than 2^l, so that 2^l - 1 - y is its complement
    return millionaire.greater(party, np.ascontiguousarray(own[:, sending]), ~own[:, receiving])


def greater(party: Party, x: RingShare, y: RingShare, bits: int) -> XorBits:
    """Return shares of 1{x > y} = msb(y - x), for signed |x| + |y| < 2^(l-1) (Theorem C.1)."""
    return msb(party, RingShare(ring.reduce(y - x, bits)), bits)


def msb_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `msb` on `count` elements."""
    return millionaire.greater_demand(count, bits - 1)


def is_zero(party: Party, shares: RingShare, bits: int) -> XorBits:
    """Return shares of 1{z = 0}, for z in Z_2^bits."""
    return equal(party, ring.split(opposed(party, shares, bits), bits))


def opposed(party: Party, shares: RingShare, bits: int) -> Ring:
    """Return what is equal at both parties where ring elements are 0: party 1's with minus."""
    return shares if party.number == 0 else ring.reduce(np.zeros_like(shares) - shares, bits)


def equal(party: Party, own: Words) -> XorBits:
    """Return shares of whether both parties hold the same, in bit planes."""
    halves = (np.ascontiguousarray(own[:, half]) for half in party.word_halves(own.shape[1]))
    return millionaire.equal(party, *halves)


def is_zero_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `is_zero` on `count` elements."""
    return millionaire.equal_demand(count, bits)
