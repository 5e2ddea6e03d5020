"""The trimmed mean: the mean of each coordinate without its smallest and largest elements.

This is Definition 2 of Yin et al. (ICML 2018), which drops m = floor(beta n) elements at either
end. By default it drops one at least, of three clients or more: floor(n / 10) is 0 for nine. Client
i is kept if m <= pos_i < n - m (`order`): two comparisons in the small ring of positions, whose XOR
is the flag. Multiplexers then compute sum_i flag_i w_i obliviously. Positions of values in range
are a permutation, so exactly n - 2m clients are kept, ties or not.

The sum alone is opened, which is the mean times the public n - 2m: nothing tells who was dropped.
Values must leave headroom for the sum: clients with one that does not are left out beforehand
(`fixed`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import as_written, check_whole, option
from securemedian.mpc.protocols import order, ring
from securemedian.mpc.protocols.boolean import multiplex, multiplex_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Form, Grouped, Published
from securemedian.mpc.rounds.methods.mixing import Mixing
from securemedian.mpc.rounds.methods.reveal import open_ring

# the default share that is dropped, and its form in the options
TRIM, NOT_GIVEN = 0.1, -1.0


@dataclass(frozen=True, kw_only=True)
class TrimmedMean(Grouped, Mixing):
    """The mean of fixed-point values without the smallest and the largest."""

    name = "trimmed-mean"
    summary = "the mean without extremes, quadratic in the clients"
    kind = "mean"
    opened = "the value of each trimmed mean"

    trim: float = option(
        NOT_GIVEN,
        metavar="BETA",
        text=f"drop floor(BETA n) of the n clients at either end, which is nobody where n is below "
        f"1/BETA; 0 drops nobody (default: {TRIM}, and trim_least 1)",
    )
    trim_least: int = option(
        0,
        metavar="M",
        text="drop at least M clients at either end, as far as one remains (default: 1 without "
        "trim, 0 with it)",
        since=3,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trim == NOT_GIVEN:
            object.__setattr__(self, "trim", TRIM)
            object.__setattr__(self, "trim_least", self.trim_least or 1)
        check_trim(self.trim)
        check_whole("trim_least", self.trim_least, 0, 1 << 15)

    def dropped(self, clients: int) -> int:
        """Return how many of so many clients are dropped at either end."""
        return max(dropped(clients, self.trim), min(self.trim_least, (clients - 1) // 2))

    def headroom(self, max_clients: int) -> int:
        return (max_clients - 1).bit_length()

    def form(self, dim: int, max_clients: int) -> Form:
        return replace(super().form(dim, max_clients), most_results=self.groups)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits = chunk.form.ring_bits
        ends = self.dropped(len(chunk.weights))
        total = kept_sum(party, self.inputs(party, chunk), bits, ends, self.batch_limit(chunk))
        return open_ring(party, RingShare(total[None]), bits)

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        bits, ends = self.value_bits, self.dropped(len(weights))
        trimming = demand(dim, len(weights), bits, ends)
        return trimming + self.mixing_demand(len(weights))

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        means = self.numbers(values) / (total - 2 * self.dropped(total))
        return self.unmixed(means, total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        clients = len(clear.updates)
        ends = int(as_written(self.trim) * clients)
        # one remains at least
        while ends < self.trim_least and clients - 2 * ends > 2:
            ends += 1
        whole = np.sort(self.inputs_in_the_clear(clear), axis=0)
        kept = whole[ends : len(clear.updates) - ends]
        # summed as whole numbers, so that nothing is rounded before the division
        means = kept.sum(axis=0)[None] / 2.0**self.fraction_bits / len(kept)
        return self.unmixed(means, len(whole), clear.published)

    @property
    def detail(self) -> str:
        least = f" least={self.trim_least}" if self.trim_least > 1 else ""
        return f"{self.trim:g}{least}{self.grouping}{self.mixture}"


def check_trim(trim: object) -> None:
    """Raise ConfigError unless `trim` is a share of the values that leaves some."""
    if type(trim) not in (int, float) or not 0 <= trim < 0.5:  # type: ignore[operator]
        raise ConfigError(
            f"invalid trim: {quoted(trim)}; give at least 0 and below 0.5, for more would leave "
            "nothing"
        )


def dropped(clients: int, trim: float) -> int:
    """Return m = floor(beta n), how many are dropped at either end, with beta as it is written."""
    return floor(as_written(trim) * clients)


def kept_sum(
    party: Party, values: RingShare, bits: int, ends: int, batch: int | None = None
) -> RingShare:
    """Return shares of the sum of the n - 2m kept values in each coordinate, m = `ends` < n / 2.

    `values` are shares of the inputs, shape (n, d), in the ring of `bits` bits. `batch` is as in
    `order.positions`.
    """
    clients, dim = values.shape
    if ends == 0:
        return RingShare(ring.reduce(values.sum(axis=0, dtype=values.dtype), bits))
    small = ring.signed_bits(clients)
    positions = order.positions(party, values, bits, [1] * clients, small, batch)
    low = np.full((clients, 1), ends)
    kept = order.within(party, positions, low, clients - low, small)
    terms = multiplex(party, kept, RingShare(values.reshape(-1)), bits).reshape(clients, dim)
    return RingShare(ring.reduce(terms.sum(axis=0, dtype=terms.dtype), bits))


def demand(dim: int, clients: int, bits: int, ends: int) -> Demand:
    """Return the correlations of `kept_sum`."""
    if ends == 0:
        return Demand()
    small, count = ring.signed_bits(clients), clients * dim
    kept = order.within_demand(count, small) + multiplex_demand(count, bits)
    return order.positions_demand(dim, clients, bits, small) + kept
