"""XOR-shared bits, 64 to a uint64 word: AND, conversion to the ring, multiplexing. XOR and NOT are local.

All functions work on whole batches; packed bits beyond a batch's count are never looked at.
"""

from collections.abc import Sequence

import numpy as np

from securemedian.mpc import ring
from securemedian.mpc.arrays import Bits, RingShare, Words, XorBits
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.correlations.dabits import DaBits
from securemedian.mpc.correlations.random_ots import RandomOts
from securemedian.mpc.correlations.triples import Triples
from securemedian.mpc.kernels import packing
from securemedian.mpc.party import Party, half_counts


def words_of(count: int) -> int:
    """Words that hold `count` bits."""
    return ring.packed_words(count, 1)


def pack_bits(bits: Bits) -> Words:
    """0/1 bytes to words."""
    words = np.empty(words_of(bits.size), np.uint64)
    packing.pack_bits(bits, words)
    return words


def unpack_bits(words: Words, count: int) -> Bits:
    """The first `count` bits as 0/1 bytes."""
    bits = np.empty(count, np.uint8)
    packing.unpack_bits(words, bits)
    return bits


def invert(party: Party, shares: XorBits) -> XorBits:
    """Shares of the complement: party 0 flips."""
    return ~shares if party.number == 0 else shares


def conjunctions(
    party: Party, terms: Sequence[tuple[XorBits, Sequence[XorBits]]]
) -> list[list[XorBits]]:
    """For each (x, [y_1, ..]) shares of x & y_1, ..: one round for all terms, one triple of that width for each bit
    (Beaver, CRYPTO 1991).

    With d = x ^ a and e_k = y_k ^ b_k opened, both uniform: x y_k = c_k ^ d b_k ^ e_k a ^ d e_k, the last term added by
    party 0.
    """
    triples, opened = [], []
    for x, ys in terms:
        a, b, c = party.pool.take(Triples(len(ys)), x.size, x.size)
        triples.append((a, b, c))
        opened += [x ^ a, *(y ^ b_k for y, b_k in zip(ys, b, strict=True))]
    mine = np.concatenate(opened)
    both = mine ^ party.channel.exchange("and", mine)
    results, at = [], 0
    for (x, ys), (a, b, c) in zip(terms, triples, strict=True):
        d, *es = both[at : at + x.size * (1 + len(ys))].reshape(1 + len(ys), x.size)
        at += x.size * (1 + len(ys))
        products = []
        for k, e in enumerate(es):
            z = c[k] ^ (d & b[k]) ^ (e & a)
            products.append(XorBits(z ^ (d & e) if party.number == 0 else z))
        results.append(products)
    return results


def to_ring(party: Party, shares: XorBits, count: int, bits: int) -> RingShare:
    """B2A: additive shares over Z_2^bits of `count` XOR-shared bits. One round, one bit each way; 1 OT and `bits` bits
    ahead of it.

    With t = s ^ r opened for the DaBit r, uniform: [s] = t + [r] - 2 t [r].
    """
    random, in_ring = party.pool.take(DaBits(bits), *party.roles(count))
    masked = shares ^ pack_bits(random)
    opened = unpack_bits(masked ^ party.channel.exchange("b2a", masked), count)
    # t = 0: [r]; t = 1: 1 - [r], where party 0 holds the 1
    one = ring.dtype(bits).type(1 if party.number == 0 else 0)
    return RingShare(ring.reduce(np.where(opened.astype(bool), one - in_ring, in_ring), bits))


def to_ring_demand(count: int, bits: int) -> Demand:
    return Demand({DaBits(bits): half_counts(count)})


def multiplex(party: Party, shares: XorBits, values: RingShare, bits: int) -> RingShare:
    """Additive shares of s x for XOR-shared bits s and additively shared ring elements x. Two rounds, 1 + bits bits
    each way; one OT each way ahead of it.

    s x = sum over parties j of s_j x_j + s_{1-j} (1 - 2 s_j) x_j: a correlated OT each way, in which party j is the
    sender of (1 - 2 s_j) x_j.
    """
    count = values.size
    own = unpack_bits(shares, count)
    kind = RandomOts(bits)
    sender, receiver = party.pool.take(kind, count, count)
    request = party.channel.exchange("mux.request", receiver.request(own))
    chosen = own.astype(bool)
    delta = np.where(chosen, np.zeros_like(values) - values, values)
    reply, sent_share = sender.correlated(request, delta)
    received_share = receiver.finish_correlated(own, party.channel.exchange("mux.reply", reply))
    total = np.where(chosen, values, 0) + sent_share + received_share
    return RingShare(ring.reduce(total, bits))


def multiplex_demand(count: int, bits: int) -> Demand:
    return Demand({RandomOts(bits): (count, count)})
