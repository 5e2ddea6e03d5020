"""XOR-shared bits, 64 per uint64 word: AND, conversion to the ring, and multiplexers.

XOR and NOT are local. All functions work on whole batches. Packed bits beyond the count of a batch
are never looked at.
"""

from collections.abc import Sequence

import numpy as np

from securemedian.mpc.arrays import Bits, Blocks, Ring, RingShare, UnpackedXorBits, Words, XorBits
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import DaBits, RandomOts, Seeds, Triples
from securemedian.mpc.protocols.party import Party, half_counts
from securemedian.mpc.protocols.prg import expand


def words_of(count: int) -> int:
    """Return the number of words that hold `count` bits."""
    return ring.packed_words(count, 1)


def pack_bits(bits: Bits) -> Words:
    """Return bits, given as bytes 0 and 1, packed into words."""
    return ring.pack(bits, 1)


def unpack_bits(words: Words, count: int) -> Bits:
    """Return the first `count` bits of packed words, as bytes 0 and 1."""
    return ring.unpack(words, 1, count)


def invert(party: Party, shares: XorBits) -> XorBits:
    """Return shares of the complement: party 0 flips its bits."""
    return ~shares if party.number == 0 else shares


def conjunctions(
    party: Party, terms: Sequence[tuple[XorBits, Sequence[XorBits]]]
) -> list[list[XorBits]]:
    """Return, for each term (x, [y_1, y_2, ..]), shares of x & y_1, x & y_2, ..

    Takes one round for all terms together, and one triple per bit of x, whose width is the number
    of ys (Beaver, CRYPTO 1991). With d = x ^ a and e_k = y_k ^ b_k opened, both uniform,

        x y_k = c_k ^ d b_k ^ e_k a ^ d e_k,    where party 0 adds the last term.
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
    """Return additive shares over Z_2^bits of `count` XOR-shared bits (B2A).

    Takes one round and one bit per element each way, after 1 OT and `bits` bits ahead of it. With
    t = s ^ r opened, which the DaBit r makes uniform: [s] = t + [r] - 2 t [r].
    """
    random, in_ring = party.pool.take(DaBits(bits), *party.roles(count))
    masked = shares ^ pack_bits(random)
    opened = unpack_bits(masked ^ party.channel.exchange("b2a", masked), count)
    # t = 0: [r]; t = 1: 1 - [r], where party 0 holds the 1
    one = ring.dtype(bits).type(1 if party.number == 0 else 0)
    return RingShare(ring.reduce(np.where(opened.astype(bool), one - in_ring, in_ring), bits))


def to_ring_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `to_ring` on `count` bits."""
    return Demand({DaBits(bits): half_counts(count)})


def multiplex(party: Party, shares: XorBits, values: RingShare, bits: int) -> RingShare:
    """Return additive shares of s x, for XOR-shared bits s and additively shared ring elements x.

    Takes two rounds and 1 + `bits` bits per element each way, after one OT each way ahead of it.

        s x = sum over the parties j of  s_j x_j + s_{1-j} (1 - 2 s_j) x_j,

    in which each last product is a correlated OT, with party j as the sender of (1 - 2 s_j) x_j.
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
    """Return the correlations of `multiplex` on `count` elements."""
    return Demand({RandomOts(bits): (count, count)})


def multiplex_rows(party: Party, shares: UnpackedXorBits, rows: RingShare, bits: int) -> RingShare:
    """Return additive shares of s_i x_i, for XOR-shared bits s (n,) and shared rows x (n, d).

    It is `multiplex` with one OT each way per row, however long that is: the keys of an OT are
    seeds, expanded to as many ring elements. Takes two rounds.
    """
    count, dim = rows.shape
    keys0, keys1, choices, keys = party.pool.take(Seeds(), count, count)
    request = party.channel.exchange("rows.request", pack_bits(choices ^ shares))
    swap = unpack_bits(request, count).astype(bool)[:, None]
    native = party.native_aes
    pads0 = _expanded(np.where(swap, keys1, keys0), dim, bits, native)
    pads1 = _expanded(np.where(swap, keys0, keys1), dim, bits, native)
    chosen = shares.astype(bool)[:, None]
    deltas = np.where(chosen, np.zeros_like(rows) - rows, rows)
    reply = ring.pack(ring.reduce(deltas + pads0 - pads1, bits), bits)
    answered = ring.unpack(party.channel.exchange("rows.reply", reply), bits, rows.size)
    received = _expanded(keys, dim, bits, native)
    received += np.where(chosen, answered.reshape(rows.shape), 0).astype(received.dtype)
    total = np.where(chosen, rows, 0) + received - pads0
    return RingShare(ring.reduce(total, bits))


def multiplex_rows_demand(count: int) -> Demand:
    """Return the correlations of `multiplex_rows` on `count` rows."""
    return Demand({Seeds(): (count, count)})


def _expanded(seeds: Blocks, dim: int, bits: int, native_aes: bool) -> Ring:
    """Return `dim` pseudorandom elements of Z_2^bits per seed (count, 2), shape (count, dim)."""
    width = ring.dtype(bits)
    words = -(-dim * width.itemsize // 8)
    rows = [expand(seed.tobytes(), 0, words, native_aes).view(width)[:dim] for seed in seeds]
    return ring.reduce(np.stack(rows), bits)
