"""The exact median by all pairwise comparisons, at a cost quadratic in the clients.

This is the paper's Algorithm 2, the baseline (protocols.md 6, 7.2, 7.3). `order` finds who holds
the element of a rank. Selection `hidden` computes sum_i 1{i holds it} w_i on shares and opens
nothing. `opened` opens the n bits 1{i holds it} of every coordinate, as the paper does: both
servers learn *which client* holds the median of each. It is kept only to compare costs.

Inputs must lie in [-2^(l-2), 2^(l-2)). Otherwise they have no order, and the sum of several values
may be chosen. The encoding saturates, and `fixed` finds clients that shared anything else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, PublicValues, Result, RingShare
from securemedian.mpc.options import option
from securemedian.mpc.protocols import order, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published, Weighted
from securemedian.mpc.rounds.methods.mixing import Mixing
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring


@dataclass(frozen=True, kw_only=True)
class Pairwise(Weighted, Mixing):
    """The exact median of fixed-point values, from all pairwise comparisons."""

    name = "pairwise"
    summary = "exact, quadratic in the clients"
    kind = "exact"

    selection: str = option(
        "hidden",
        choices=("hidden", "opened"),
        text="opened tells the servers whose each median is, and with neighbours who is near to "
        "whom (default: hidden)",
    )
    result_to: str = option(
        "servers",
        choices=("servers", "clients"),
        text="the receivers of the median (default: servers)",
    )

    def compute(self, party: Party, chunk: Chunk) -> Result:
        bits = chunk.form.ring_bits
        values, weights = self.inputs(party, chunk), chunk.weights
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
        choosing = demand(dim, self.value_bits, self.selection, weights)
        return choosing + self.mixing_demand(len(weights))

    @property
    def opened(self) -> str:
        value = (
            "the value of each median"
            if self.result_to == "servers"
            else "no value, since the clients put the medians together"
        )
        return value + (", and whose each is" if self.selection == "opened" else "")

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.unmixed(self.numbers(values), total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        whole = self.inputs_in_the_clear(clear)
        ranked = np.sort(np.repeat(whole, clear.weights, axis=0), axis=0)
        median = ranked[(len(ranked) - 1) // 2][None] / 2.0**self.fraction_bits
        return self.unmixed(median, len(whole), clear.published)


def median(
    party: Party,
    values: RingShare,
    bits: int,
    selection: str,
    weights: Sequence[int] | None = None,
    batch: int | None = None,
) -> RingShare:
    """Return shares of the lower median of each coordinate.

    `values` are shares of the inputs, shape (n, d), in the ring of `bits` bits. `selection` is
    "hidden" or "opened". `weights` are whole numbers >= 1, one per client, by default 1. `batch` is
    as in `order.positions`.
    """
    clients, dim = values.shape
    chosen_weights = [1] * clients if weights is None else list(weights)
    rank = ring.median_rank(sum(chosen_weights))
    if selection != "opened" or clients == 1:
        return order.element(party, values, bits, rank, chosen_weights, batch)
    selected = order.holders(party, values, bits, rank, chosen_weights, batch)
    opened: PublicBits = open_bits(party, selected, clients * dim)
    # the first, of several
    holder = opened.reshape(clients, dim).argmax(axis=0)
    return RingShare(values[holder, np.arange(dim)])


def demand(dim: int, bits: int, selection: str, weights: Sequence[int]) -> Demand:
    """Return the correlations of `median`."""
    if selection != "opened" or len(weights) == 1:
        return order.element_demand(dim, bits, weights)
    return order.holders_demand(dim, bits, weights)
