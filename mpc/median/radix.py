"""The exact median by radix selection on XOR-shared words, linear in the clients (protocols.md section 6; ours).

Clients share each value as a w-bit word whose unsigned order is the values' order. From the top bit down the parties
keep a shared flag c_i per client, "agrees with the result's prefix", and a shared count L of the weight of smaller
elements. At each bit, with zero_i = c_i & ~x_i[bit] and Z = sum_i W_i zero_i,

    m = 1{L + Z < k}     is the result's own bit: fewer than k elements lie at or below the prefix followed by 0,

and is opened; then c_i = zero_i if m = 0, else c_i = c_i ^ zero_i and L = L + Z. The weights W_i are public, 1 by
default, and L + Z - k is compared in the count ring of the total weight.

zero_i and its share in the ring come from one 1-of-4 OT of ring elements, indexed by the receiver's shares of both
bits: the low bit of an additive share is an XOR share. Opened are the w bits of the element of the rank asked for and
nothing else (for the midpoint of an even number both middle elements, though only their mean is published); any w-bit
word is a value, so no share is malformed: a client that sends rubbish is a client with rubbish values.

Rounds: 2 for the OTs, those of one comparison, and 1 to open, for each of the w bits. OTs: 2 a client and bit, and one
comparison a bit.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import compare, ring
from securemedian.mpc.arrays import Words
from securemedian.mpc.boolean import invert, pack_bits
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.correlations.quads import Quads
from securemedian.mpc.kernels import packing, quads
from securemedian.mpc.median.reveal import open_bits
from securemedian.mpc.party import Party, half_counts


def median(
    party: Party,
    shares: NDArray[Any],
    width: int,
    bits: int,
    rank: int | None = None,
    weights: Sequence[int] | None = None,
) -> NDArray[Any]:
    """The element of rank k in each coordinate, known to both parties.

    `shares`: XOR shares of the words, shape (n, d), the smallest dtype of `width` bits (1..64); `bits`: the count ring;
    `rank`: 1..total weight, by default ceil(total / 2); `weights`: one whole number >= 1 a client.
    """
    clients, dim = shares.shape
    counted = np.asarray(weights if weights is not None else [1] * clients, ring.dtype(bits))[
        :, None
    ]
    rank = ring.median_rank(int(counted.sum(dtype=np.uint64))) if rank is None else rank
    columns = -(-dim // 64) * 64  # whole words a client; the rest is nobody's and never opened
    values = np.zeros((clients, columns), shares.dtype)
    values[:, :dim] = shares
    flags = np.full(clients * columns // 64, ~np.uint64(0) if party.number == 0 else 0, np.uint64)
    below = np.zeros(columns, ring.dtype(bits))
    if party.number == 0:
        below = ring.reduce(below - below.dtype.type(rank), bits)  # L - k: one party takes k off
    result = np.zeros(dim, shares.dtype)
    plane = np.empty_like(flags)
    for bit in range(width - 1, -1, -1):
        packing.pack_plane(values.reshape(-1), bit, plane)
        in_ring = _conjunction(party, flags, invert(party, plane), bits)
        zero = np.empty_like(flags)
        packing.pack_plane(in_ring, 0, zero)
        reached = ring.reduce(
            below + (in_ring.reshape(clients, columns) * counted).sum(axis=0, dtype=below.dtype),
            bits,
        )
        result_bit = np.zeros(columns, np.uint8)
        result_bit[:dim] = open_bits(party, compare.msb(party, reached, bits), dim)
        ones = pack_bits(result_bit)
        flags = zero ^ (flags.reshape(clients, -1) & ones).reshape(-1)
        below = np.where(result_bit.astype(bool), reached, below)
        result |= result_bit[:dim].astype(result.dtype) << result.dtype.type(bit)
    return result


def _conjunction(party: Party, c: Words, z: Words, bits: int) -> NDArray[Any]:
    """Additive shares over Z_2^bits of c & z for packed XOR shares, all 64 bits of every word. Two rounds."""
    count = 64 * c.size
    sending, receiving = party.halves(count)
    sent, received = party.roles(count)
    (c_sent, z_sent), (c_received, z_received) = (
        (c[half.start // 64 : half.stop // 64], z[half.start // 64 : half.stop // 64])
        for half in (sending, receiving)
    )
    pads, choices, chosen = party.pool.take(Quads(bits), sent, received)
    mask = np.uint64((1 << bits) - 1)

    request = np.empty(received, np.uint8)
    quads.request(c_received, z_received, choices, request)
    asked = party.channel.exchange(
        "quad.request", ring.pack(request, 2), (ring.packed_words(sent, 2),)
    )

    shares = np.empty(count, ring.dtype(bits))
    messages = np.empty((3, sent), shares.dtype)
    quads.reply(c_sent, z_sent, pads, ring.unpack(asked, 2, sent), mask, messages, shares[sending])
    answered = party.channel.exchange(
        "quad.reply", ring.pack(messages, bits), (ring.packed_words(3 * received, bits),)
    )

    replies = ring.unpack(answered, bits, 3 * received).reshape(3, received)
    quads.finish(c_received, z_received, chosen, replies, mask, shares[receiving])
    return shares


def demand(dim: int, clients: int, width: int, bits: int) -> Demand:
    """Correlations of `median`."""
    columns = -(-dim // 64) * 64
    return (
        Demand({Quads(bits): half_counts(clients * columns)}) + compare.msb_demand(columns, bits)
    ) * width
