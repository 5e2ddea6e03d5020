"""The exact median by all pairwise comparisons, at a cost quadratic in the clients.

This is the paper's Algorithm 2, the baseline (protocols.md 6, 7.2, 7.3). The number of clients
before client i, pos_i (`order`), is a permutation of 0..n-1, so exactly one client has
pos_i = k-1, and its value is the element of rank k. With public weights pos_i is the weight before
client i, and the client with pos_i < k <= pos_i + W_i is chosen.

`oblivious` selection computes sum_i 1{i is chosen} w_i on shares and opens nothing. `opened` opens
the n bits 1{i is chosen} of every coordinate, as the paper does: both servers learn *which client*
holds the median of each. It is kept only to compare costs.

Inputs must lie in [-2^(l-2), 2^(l-2)), or there is no order, and the sum of several values may be
chosen. The encoding saturates, and `bounds` finds clients that shared anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, PublicValues, Result, RingShare
from securemedian.mpc.options import option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import multiplex, multiplex_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods import order
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published, SizedFixedPoint, Weighted
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring


@dataclass(frozen=True, kw_only=True)
class Pairwise(Weighted, SizedFixedPoint):
    """The exact median of fixed-point values, from all pairwise comparisons."""

    name = "pairwise"
    summary = "exact, quadratic in the clients"
    kind = "exact"
    splits = True
    checks_values = True

    selection: str = option(
        "oblivious",
        choices=("oblivious", "opened"),
        text="opened tells the servers whose each median is (default: oblivious)",
    )
    result_to: str = option(
        "servers",
        choices=("servers", "clients"),
        text="who learns the median (default: servers)",
    )

    def compute(self, party: Party, chunk: Chunk) -> Result:
        bits = self.bits_for(chunk.max_clients)
        values, weights = chunk.rows(party), chunk.weights
        element = median(
            party, values, bits, self.selection, weights=weights, batch=self.batch_limit(chunk)
        )
        shares = RingShare(element[None])
        if self.result_to == "clients":
            return shares
        # annotated, so that mypy sees it if the opening is missing: shares are a Result as well
        opened: PublicValues = open_ring(party, shares, bits)
        return opened

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return demand(dim, self.bits_for(max_clients), self.selection, weights)

    def at_once(self, clients: int) -> int:
        return order.pairs(clients)

    @property
    def opened(self) -> str:
        value = (
            "the value of each median"
            if self.result_to == "servers"
            else "no value, since the clients put the medians together"
        )
        return value + (", and whose each is" if self.selection == "opened" else "")

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.numbers(values)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        whole = self.whole_numbers(clear.updates, clear.max_clients)
        ranked = np.sort(np.repeat(whole, clear.weights, axis=0), axis=0)
        return ranked[(len(ranked) - 1) // 2][None] / 2.0**self.fraction_bits


def median(
    party: Party,
    values: RingShare,
    bits: int,
    selection: str,
    rank: int | None = None,
    weights: Sequence[int] | None = None,
    batch: int | None = None,
) -> RingShare:
    """Return shares of the element of rank k in each coordinate.

    `values` are shares of the inputs, shape (n, d), in the ring of `bits` bits. `selection` is
    "oblivious" or "opened". `rank` is 1..total weight, by default ceil(total / 2). `weights` are
    whole numbers >= 1, one per client, by default 1. `batch` is as in `order.positions`.
    """
    clients, dim = values.shape
    chosen_weights = [1] * clients if weights is None else list(weights)
    rank = ring.median_rank(sum(chosen_weights)) if rank is None else rank
    if clients == 1:
        return RingShare(values[0])
    small = _position_bits(chosen_weights)
    positions = order.positions(party, values, bits, chosen_weights, small, batch)
    if _equal_weights(chosen_weights):
        if party.number == 0:
            positions = RingShare(ring.reduce(positions - positions.dtype.type(rank - 1), small))
        selected = compare.is_zero(party, RingShare(positions.reshape(-1)), small)
    else:
        low = np.array([rank - weight for weight in chosen_weights], np.int64)[:, None]
        selected = order.within(party, positions, low, np.full_like(low, rank), small)
    if selection == "opened":
        holder = _holders(open_bits(party, selected, clients * dim), clients)
        return RingShare(values[holder, np.arange(dim)])
    terms = multiplex(party, selected, RingShare(values.reshape(-1)), bits).reshape(clients, dim)
    return RingShare(ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits))


def _holders(chosen: PublicBits, clients: int) -> NDArray[np.intp]:
    """Return the client that is chosen in each coordinate, or the first of several."""
    return chosen.reshape(clients, -1).argmax(axis=0)


def demand(dim: int, bits: int, selection: str, weights: Sequence[int]) -> Demand:
    """Return the correlations of `median`."""
    clients = len(weights)
    if clients == 1:
        return Demand()
    small, count = _position_bits(weights), clients * dim
    choice = (
        compare.is_zero_demand(count, small)
        if _equal_weights(weights)
        else order.within_demand(count, small)
    )
    total = order.positions_demand(dim, clients, bits, small) + choice
    return total if selection == "opened" else total + multiplex_demand(count, bits)


def _equal_weights(weights: Sequence[int]) -> bool:
    """Return whether all weigh 1. Then one test for equality does, instead of two comparisons."""
    return max(weights) == 1


def _position_bits(weights: Sequence[int]) -> int:
    """Return the bits of the ring of positions or, with weights, of their signed differences."""
    return (
        ring.index_bits(len(weights)) if _equal_weights(weights) else ring.signed_bits(sum(weights))
    )
