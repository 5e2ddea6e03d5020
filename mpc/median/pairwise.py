"""The exact median by all pairwise comparisons (the paper's Algorithm 2, the baseline; protocols.md 6, 7.2, 7.3).
Quadratic in the clients.

z_xy = 1{w_x > w_y} for x < y and z_yx = 1 - z_xy is a strict order even with equal values, so pos_i = sum_x z_ix is a
permutation of 0..n-1 and exactly one client has pos_i = k - 1. Its value is the element of rank k.

Selections: `oblivious` (default) computes sum_i 1{pos_i = k-1} w_i on shares and opens nothing. `opened` opens the n
bits 1{pos_i = k-1} of every coordinate, as the paper does: both servers learn *which client* holds the median of each
coordinate. It saves the multiplexers and is kept only to compare costs.

The returned shares are of the element itself; who gets them is the caller's choice (`reveal.open_ring` at the servers,
or sent to the clients).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpc import compare, equal, ring
from mpc.boolean import multiplex, multiplex_demand, to_ring, to_ring_demand
from mpc.median.reveal import open_bits
from mpc.party import Party
from mpc.preprocessing import Demand


def median(party: Party, values: NDArray[Any], bits: int, selection: str, rank: int | None = None) -> NDArray[Any]:
    """Shares of the element of rank k in each coordinate.

    `values`: shares of the inputs, shape (n, d), ring dtype of `bits`; inputs are signed and within [-2^(l-2),
    2^(l-2)); `selection`: "oblivious" or "opened".
    """
    clients, dim = values.shape
    rank = ring.median_rank(clients) if rank is None else rank
    if clients == 1:
        return values[0]
    positions = _positions(party, values, bits)
    small = ring.index_bits(clients)
    if party.id == 0:
        positions = ring.reduce(positions - ring.dtype(small).type(rank - 1), small)
    selected = equal.is_zero(party, positions.reshape(-1), small)
    if selection == "opened":
        holder = open_bits(party, selected, clients * dim).reshape(clients, dim).argmax(axis=0)
        return values[holder, np.arange(dim)]
    terms = multiplex(party, selected, values.reshape(-1), bits).reshape(clients, dim)
    return ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits)


def _positions(party: Party, values: NDArray[Any], bits: int) -> NDArray[Any]:
    """Shares of pos_i = number of clients before client i in the order, shape (n, d), in the ring that holds 0..n-1."""
    clients, dim = values.shape
    small = ring.index_bits(clients)
    first, second = np.triu_indices(clients, 1)
    bit = compare.greater(party, values[first].reshape(-1), values[second].reshape(-1), bits)
    after = to_ring(party, bit, first.size * dim, small).reshape(first.size, dim)  # shares of z_xy
    positions = np.zeros((clients, dim), after.dtype)
    np.add.at(positions, first, after)
    np.subtract.at(positions, second, after)
    if party.id == 0:  # z_yx = 1 - z_xy, for each of the `second` roles: client i has i of them
        positions += np.arange(clients, dtype=after.dtype)[:, None]
    return ring.reduce(positions, small)


def comparisons(clients: int) -> int:
    """Comparisons a coordinate, n (n-1) / 2."""
    return clients * (clients - 1) // 2


def demand(dim: int, clients: int, bits: int, selection: str) -> Demand:
    """Correlations of `median`."""
    if clients == 1:
        return Demand()
    small, pairs = ring.index_bits(clients), dim * comparisons(clients)
    total = compare.msb_demand(pairs, bits) + to_ring_demand(pairs, small) + equal.equal_demand(clients * dim, small)
    return total if selection == "opened" else total + multiplex_demand(clients * dim, bits)
