"""Conversion of whole numbers from additive to XOR shares, and back.

With a_i the bits of x_0 and b_i those of x_1, which one party each knows, a ripple-carry adder has
the bits of x = x_0 + x_1:

    x_i = a_i ^ b_i ^ k_i,    k_{i+1} = k_i ^ (a_i ^ k_i)(b_i ^ k_i),    k_0 = 0:

one AND, and one round, per bit but the last. The other way every bit is converted to the ring
(`boolean.to_ring`), and x = sum_i 2^i x_i is local.

Bits are in planes (bits, words), the lowest first: bit j of a plane's word i is of number 64 i + j.
"""

import numpy as np

from securemedian.mpc.arrays import RingShare, XorBits
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.boolean import conjunctions, to_ring, to_ring_demand, words_of
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import Triples
from securemedian.mpc.protocols.party import Party


def to_bits(party: Party, shares: RingShare, bits: int) -> XorBits:
    """Return XOR shares of the low `bits` bits of each element (count,), in planes (bits, words).

    Takes `bits` - 1 rounds and, per element and round, 2 bits each way after 2 OTs ahead of it.
    """
    own = ring.split(shares, bits)
    result, carry = np.empty_like(own), np.zeros_like(own[0])
    for bit, plane in enumerate(own):
        result[bit] = plane ^ carry
        if bit == bits - 1:
            break
        # shares of a_i ^ k_i and of b_i ^ k_i: party 0 has all of a_i, and party 1 all of b_i
        mine, theirs = XorBits(plane ^ carry), XorBits(carry)
        x, y = (mine, theirs) if party.number == 0 else (theirs, mine)
        ((product,),) = conjunctions(party, [(x, [y])])
        carry = carry ^ product
    return XorBits(result)


def to_bits_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `to_bits` on `count` elements."""
    words = words_of(count) * (bits - 1)
    return Demand({Triples(1): (words, words)} if words else {})


def from_bits(party: Party, planes: XorBits, count: int, bits: int) -> RingShare:
    """Return additive shares over Z_2^bits of `count` unsigned numbers, given in planes.

    Takes one round, and the OTs of `boolean.to_ring` for every bit.
    """
    width, words = planes.shape
    in_ring = to_ring(party, XorBits(planes.reshape(-1)), 64 * words * width, bits)
    powers = np.left_shift(np.uint64(1), np.arange(width, dtype=np.uint64))
    terms = in_ring.reshape(width, -1)[:, :count] * powers.astype(in_ring.dtype)[:, None]
    return RingShare(ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits))


def from_bits_demand(count: int, width: int, bits: int) -> Demand:
    """Return the correlations of `from_bits` on `count` numbers of `width` bits."""
    return to_ring_demand(64 * words_of(count) * width, bits)
