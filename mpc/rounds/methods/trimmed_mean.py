"""The trimmed mean: the mean of each coordinate without its smallest and largest elements.

This is Definition 2 of Yin et al. (ICML 2018), which drops m = floor(beta n) elements at either
end. Client i is kept if m <= pos_i < n - m (`order`): two comparisons in the small ring of
positions, whose XOR is the flag. Multiplexers then compute sum_i flag_i w_i obliviously. Positions
of values in range are a permutation, so exactly n - 2m clients are kept, ties or not.

The sum alone is opened, which is the mean times the public n - 2m: nothing tells who was dropped.
Values must leave headroom for the sum: clients with one that does not are left out beforehand
(`bounds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import as_written, option
from securemedian.mpc.protocols import order, ring
from securemedian.mpc.protocols.boolean import multiplex, multiplex_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published
from securemedian.mpc.rounds.methods.groups import Grouped
from securemedian.mpc.rounds.methods.mixing import Mixing
from securemedian.mpc.rounds.methods.reveal import open_ring


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Grouped, Mixing):
    """The mean of fixed-point values without the smallest and the largest."""

    name = "trimmed-mean"
    summary = "the mean without extremes, quadratic in the clients"
    kind = "mean"
    opened = "the value of each trimmed mean"
    splits = True
    checks_values = True

    trim: float = option(
        0.1,
        metavar="BETA",
        text="floor(BETA n) of the n clients are dropped at either end, which is nobody where n is "
        "below 1/BETA (default: 0.1)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_trim(self.trim)

    def headroom(self, max_clients: int) -> int:
        return (max_clients - 1).bit_length()

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits = self.bits_for(chunk.max_clients)
        total = kept_sum(party, self.inputs(party, chunk), bits, self.trim, self.batch_limit(chunk))
        return open_ring(party, RingShare(total[None]), bits)

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        trimming = demand(dim, len(weights), self.bits_for(max_clients), self.trim)
        return trimming + self.mixing_demand(len(weights))

    def at_once(self, clients: int) -> int:
        return order.pairs(clients) + self.rows_at_once(clients)

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        means = self.numbers(values) / (total - 2 * dropped(total, self.trim))
        return self.unmixed(means, total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        ends = int(as_written(self.trim) * len(clear.updates))
        whole = np.sort(self.inputs_in_the_clear(clear), axis=0)
        kept = whole[ends : len(clear.updates) - ends]
        # summed as whole numbers, so that nothing is rounded before the division
        means = kept.sum(axis=0)[None] / 2.0**self.fraction_bits / len(kept)
        return self.unmixed(means, len(whole), clear.published)

    @property
    def detail(self) -> str:
        return f"{self.trim:g}{self.grouping}{self.mixture}"


def check_trim(trim: object) -> None:
    """Raise ConfigError unless `trim` is a share of the values that leaves some."""
    if type(trim) not in (int, float) or not 0 <= trim < 0.5:  # type: ignore[operator]
        raise ConfigError(
            f"trim must be at least 0 and below 0.5, not {quoted(trim)}: more would leave nothing"
        )


def dropped(clients: int, trim: float) -> int:
    """Return m = floor(beta n), how many are dropped at either end, with beta as it is written."""
    return floor(as_written(trim) * clients)


def kept_sum(
    party: Party, values: RingShare, bits: int, trim: float, batch: int | None = None
) -> RingShare:
    """Return shares of the sum of the n - 2m kept values in each coordinate.

    `values` are shares of the inputs, shape (n, d), in the ring of `bits` bits. 0 <= `trim` < 1/2.
    `batch` is as in `order.positions`.
    """
    clients, dim = values.shape
    ends = dropped(clients, trim)
    if ends == 0:
        return RingShare(ring.reduce(values.sum(axis=0, dtype=values.dtype), bits))
    small = ring.signed_bits(clients)
    positions = order.positions(party, values, bits, [1] * clients, small, batch)
    low = np.full((clients, 1), ends)
    kept = order.within(party, positions, low, clients - low, small)
    terms = multiplex(party, kept, RingShare(values.reshape(-1)), bits).reshape(clients, dim)
    return RingShare(ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits))


def demand(dim: int, clients: int, bits: int, trim: float) -> Demand:
    """Return the correlations of `kept_sum`."""
    if dropped(clients, trim) == 0:
        return Demand()
    small, count = ring.signed_bits(clients), clients * dim
    kept = order.within_demand(count, small) + multiplex_demand(count, bits)
    return order.positions_demand(dim, clients, bits, small) + kept
