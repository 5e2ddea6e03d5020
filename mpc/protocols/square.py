"""Squares of additively shared ring elements (Gilboa, CRYPTO 1999).

With x = x_0 + x_1, x^2 = x_0^2 + x_1^2 + 2 x_0 x_1. In the last product one party, with s = x_0 or
x_1, is the sender of l - 1 correlated OTs. The other is the receiver, whose choices are the bits
b_i of its share. 2 s sum_i b_i 2^i = sum_i b_i (2^(i+1) s) mod 2^l, i = 0..l-2, because the top bit
counts 2^l s = 0. Every batch is cut in halves, in which the roles are swapped. Takes two rounds,
and (l - 1) (1 + l) bits per element, in both directions together, after l - 1 OTs ahead of it.
"""

import numpy as np

from securemedian.mpc.arrays import Bits, Ring, RingShare
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import RandomOts
from securemedian.mpc.protocols.party import Party, half_counts


def square(party: Party, shares: RingShare, bits: int) -> RingShare:
    """Return shares of x^2 in Z_2^bits, for shares of x, shape (count,)."""
    sending, receiving = party.halves(shares.size)
    factors, chosen = shares[sending], _bits_of(shares[receiving], bits - 1)
    kind = RandomOts(bits)
    sender, receiver = party.pool.take(kind, (bits - 1) * factors.size, chosen.size)
    shape = (ring.packed_words((bits - 1) * factors.size, 1),)
    asked = party.channel.exchange("square.request", receiver.request(chosen), shape)
    doubled = np.concatenate([factors << factors.dtype.type(i + 1) for i in range(bits - 1)])
    reply, sent_share = sender.correlated(asked, ring.reduce(doubled, bits))
    shape = (ring.packed_words(chosen.size, bits),)
    answered = party.channel.exchange("square.reply", reply, shape)
    received_share = receiver.finish_correlated(chosen, answered)
    total = shares * shares
    for part, products in ((sending, sent_share), (receiving, received_share)):
        total[part] += products.reshape(bits - 1, -1).sum(axis=0, dtype=total.dtype)
    return RingShare(ring.reduce(total, bits))


def square_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `square` on `count` elements."""
    zero, one = half_counts(count)
    return Demand({RandomOts(bits): ((bits - 1) * zero, (bits - 1) * one)})


def _bits_of(values: Ring, count: int) -> Bits:
    """Return the low `count` bits of all values, the lowest of all first: shape (count values,)."""
    if not values.size:
        return np.empty(0, np.uint8)
    one = values.dtype.type(1)
    planes = [(values >> values.dtype.type(i) & one).astype(np.uint8) for i in range(count)]
    return np.concatenate(planes)
