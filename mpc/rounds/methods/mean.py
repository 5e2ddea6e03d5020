"""The mean of fixed-point values, weighted or not: the shares are added up and the sum is opened.

Each party adds its own shares, with no correlation, and in one round, to open. The sum alone is
opened, which is the mean times the public total weight.

One faulty client moves the mean anywhere, and values are not checked, because even one in range
moves the sum of 64 bits as far as anyone may want. It is here to compare with, and to build on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published, SizedFixedPoint, Weighted
from securemedian.mpc.rounds.methods.reveal import open_ring


@dataclass(frozen=True, kw_only=True)
class Mean(Weighted, SizedFixedPoint):
    """The mean of all clients' fixed-point values."""

    name = "mean"
    summary = "the plain mean, which one faulty client moves at will; next to no cost"
    kind = "mean"
    opened = "the sum of the updates, which is their mean times the total weight"

    def headroom(self, max_clients: int) -> int:
        return (self.max_total(max_clients) - 1).bit_length()

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        return open_ring(party, chunk.weighted_sum(party), self.bits_for(chunk.max_clients))

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return Demand()

    def at_once(self, clients: int) -> int:
        return 1

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.numbers(values) / total

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        whole = self.whole_numbers(clear.updates, clear.max_clients)
        weighted = whole * np.array(clear.weights, np.int64)[:, None]
        # summed as whole numbers, so that nothing is rounded before the division
        return weighted.sum(axis=0)[None] / 2.0**self.fraction_bits / sum(clear.weights)
