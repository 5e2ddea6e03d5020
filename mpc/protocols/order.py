"""The position of each client in the order of a coordinate, and who holds the element of a rank.

It takes all pairwise comparisons (protocols.md section 6). It orders even equal values strictly, by
index: z_xy = 1{w_x > w_y} for x < y, with z_yx = 1 - z_xy. No two values may be 2^(l-1) or more
apart, or comparisons wrap, and then there may be no order.

The number of clients before client i, pos_i, is a permutation of 0..n-1, so exactly one client has
pos_i = k-1, and its value is the element of rank k. With public weights pos_i is the weight before
client i, and the client with pos_i < k <= pos_i + W_i holds it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import RingShare, XorBits
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import (
    multiplex,
    multiplex_demand,
    to_ring,
    to_ring_demand,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party


def positions(
    party: Party,
    values: RingShare,
    bits: int,
    weights: Sequence[int],
    position_bits: int,
    batch: int | None = None,
) -> RingShare:
    """Return shares of the weight of the clients before each client, pos_i = sum_x W_x z_ix.

    They have shape (n, d) and are in the ring of `position_bits` bits. `values` are shares of the
    inputs, shape (n, d), in the ring of `bits` bits. `weights` are public, one per client. `batch`
    is the most comparisons to run at once: more are cut into groups of pairs, which take their
    correlations one after another.
    """
    clients, dim = values.shape
    firsts, seconds = np.triu_indices(clients, 1)
    weight = np.asarray(weights, ring.dtype(position_bits))[:, None]
    before = np.zeros((clients, dim), weight.dtype)
    group = firsts.size if batch is None else max(1, batch // dim)
    for start in range(0, firsts.size, group):
        first, second = firsts[start : start + group], seconds[start : start + group]
        count = first.size * dim
        if group < firsts.size:
            party.pool.reserve(_pairs_demand(count, bits, position_bits))
        one, other = (RingShare(values[each].reshape(-1)) for each in (first, second))
        bit = compare.greater(party, one, other, bits)
        # shares of z_xy
        above = to_ring(party, bit, count, position_bits).reshape(first.size, dim)
        # row by row, because numpy adds to rows that may repeat element by element
        for x, y, bits_of in zip(first, second, above, strict=True):
            before[x] += bits_of * weight[y]
            before[y] -= bits_of * weight[x]
    # z_yx = 1 - z_xy, and client i is the second in its pairs with clients 0..i-1
    if party.number == 0:
        before += np.cumsum(weight, axis=0, dtype=weight.dtype) - weight
    return RingShare(ring.reduce(before, position_bits))


def within(
    party: Party,
    positions: RingShare,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    bits: int,
) -> XorBits:
    """Return shares of 1{low <= pos < high} = 1{pos < low} ^ 1{pos < high}, packed.

    low <= high are public, shape (n, 1). Takes the rounds of one comparison. The ring must hold the
    differences as signed values.
    """
    bounds = np.stack([np.broadcast_to(bound, positions.shape) for bound in (low, high)]).astype(
        positions.dtype
    )
    shifted = ring.reduce(
        positions[None] - bounds if party.number == 0 else np.stack([positions, positions]), bits
    )
    # each half is padded to whole words, so that the packed halves can be XORed
    flat = np.zeros((2, -(-positions.size // 64) * 64), positions.dtype)
    flat[:, : positions.size] = shifted.reshape(2, -1)
    below = compare.msb(party, RingShare(flat.reshape(-1)), bits).reshape(2, -1)
    return XorBits(below[0] ^ below[1])


def pairs(clients: int) -> int:
    """Return the number of comparisons per coordinate, n (n-1) / 2."""
    return clients * (clients - 1) // 2


def positions_demand(dim: int, clients: int, bits: int, position_bits: int) -> Demand:
    """Return the correlations of `positions`."""
    return _pairs_demand(dim * pairs(clients), bits, position_bits)


def _pairs_demand(count: int, bits: int, position_bits: int) -> Demand:
    return compare.msb_demand(count, bits) + to_ring_demand(count, position_bits)


def within_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `within` on `count` positions."""
    return compare.msb_demand(2 * (-(-count // 64) * 64), bits)


def holders(
    party: Party,
    values: RingShare,
    bits: int,
    rank: int,
    weights: Sequence[int],
    batch: int | None = None,
) -> XorBits:
    """Return shares of whether each client holds the element of rank k in each coordinate.

    There are n d bits, those of a client side by side. `rank` is 1..total weight; the other
    arguments are those of `positions`.
    """
    small = _position_bits(weights)
    found = positions(party, values, bits, weights, small, batch)
    if _equal_weights(weights):
        if party.number == 0:
            found = RingShare(ring.reduce(found - found.dtype.type(rank - 1), small))
        return compare.is_zero(party, RingShare(found.reshape(-1)), small)
    low = np.array([rank - weight for weight in weights], np.int64)[:, None]
    return within(party, found, low, np.full_like(low, rank), small)


def element(
    party: Party,
    values: RingShare,
    bits: int,
    rank: int,
    weights: Sequence[int],
    batch: int | None = None,
) -> RingShare:
    """Return shares of the element of rank k in each coordinate, shape (d,), with nothing opened.

    It is the sum over the clients of 1{i holds it} w_i. The arguments are those of `holders`.
    """
    if len(values) == 1:
        return RingShare(values[0])
    chosen = holders(party, values, bits, rank, weights, batch)
    terms = multiplex(party, chosen, RingShare(values.reshape(-1)), bits).reshape(values.shape)
    return RingShare(ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits))


def holders_demand(dim: int, bits: int, weights: Sequence[int]) -> Demand:
    """Return the correlations of `holders`."""
    small, clients = _position_bits(weights), len(weights)
    choice = compare.is_zero_demand if _equal_weights(weights) else within_demand
    return positions_demand(dim, clients, bits, small) + choice(clients * dim, small)


def element_demand(dim: int, bits: int, weights: Sequence[int]) -> Demand:
    """Return the correlations of `element`."""
    if len(weights) == 1:
        return Demand()
    return holders_demand(dim, bits, weights) + multiplex_demand(len(weights) * dim, bits)


def _equal_weights(weights: Sequence[int]) -> bool:
    """Return whether all weigh 1. Then one test for equality does, instead of two comparisons."""
    return max(weights) == 1


def _position_bits(weights: Sequence[int]) -> int:
    """Return the bits of the ring of positions or, with weights, of their signed differences."""
    return (
        ring.index_bits(len(weights)) if _equal_weights(weights) else ring.signed_bits(sum(weights))
    )
