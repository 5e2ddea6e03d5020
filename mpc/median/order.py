"""Where each client stands in the order of a coordinate, by all pairwise comparisons (protocols.md section 6).

z_xy = 1{w_x > w_y} for x < y and z_yx = 1 - z_xy is a strict order even with equal values: ties are broken by index.
Values must lie in [-2^(l-2), 2^(l-2)), as the clients' encoding sees to; with one outside, which only a malformed share
holds, comparisons may wrap and there may be no order.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import compare, ring
from securemedian.mpc.boolean import to_ring, to_ring_demand
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.party import Party


def positions(
    party: Party, values: NDArray[Any], bits: int, weights: Sequence[int], position_bits: int
) -> NDArray[Any]:
    """Shares of pos_i = sum_x W_x z_ix, the weight of the clients before client i; shape (n, d), ring of
    `position_bits`.

    `values`: shares of the inputs, shape (n, d), ring dtype of `bits`; `weights`: public, one a client.
    """
    clients, dim = values.shape
    first, second = np.triu_indices(clients, 1)
    bit = compare.greater(party, values[first].reshape(-1), values[second].reshape(-1), bits)
    above = to_ring(party, bit, first.size * dim, position_bits).reshape(
        first.size, dim
    )  # shares of z_xy
    weight = np.asarray(weights, above.dtype)[:, None]
    before = np.zeros((clients, dim), above.dtype)
    np.add.at(before, first, above * weight[second])
    np.subtract.at(before, second, above * weight[first])
    if party.number == 0:  # z_yx = 1 - z_xy: client i is the second of the pairs with 0..i-1
        before += np.cumsum(weight, axis=0, dtype=above.dtype) - weight
    return ring.reduce(before, position_bits)


def within(
    party: Party, positions: NDArray[Any], low: NDArray[Any], high: NDArray[Any], bits: int
) -> NDArray[np.uint64]:
    """XOR shares of 1{low <= pos < high} = 1{pos < low} ^ 1{pos < high}, packed, for public low <= high of shape
    (n, 1). One comparison's rounds; the ring must hold the differences as signed values.
    """
    bounds = np.stack([np.broadcast_to(bound, positions.shape) for bound in (low, high)]).astype(
        positions.dtype
    )
    shifted = ring.reduce(
        positions[None] - bounds if party.number == 0 else np.stack([positions, positions]), bits
    )
    # each half is padded to whole words, so that the packed halves can be added
    flat = np.zeros((2, -(-positions.size // 64) * 64), positions.dtype)
    flat[:, : positions.size] = shifted.reshape(2, -1)
    below = compare.msb(party, flat.reshape(-1), bits).reshape(2, -1)
    return below[0] ^ below[1]


def pairs(clients: int) -> int:
    """Comparisons a coordinate, n (n-1) / 2."""
    return clients * (clients - 1) // 2


def positions_demand(dim: int, clients: int, bits: int, position_bits: int) -> Demand:
    """Correlations of `positions`."""
    count = dim * pairs(clients)
    return compare.msb_demand(count, bits) + to_ring_demand(count, position_bits)


def within_demand(count: int, bits: int) -> Demand:
    """Correlations of `within` on `count` positions."""
    return compare.msb_demand(2 * (-(-count // 64) * 64), bits)


def signed_bits(total: int) -> int:
    """The smallest ring that holds differences of two positions in 0..total with their sign."""
    return max(ring.MIN_BITS, total.bit_length() + 1)
