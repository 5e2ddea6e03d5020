"""The sum of the clusters that agree with a validator (SHARE with Zeno++), linear in the clusters.

See `clustered`, the paper's Algorithm 2, and protocols.md section 6. One client, the *validator*,
is in no cluster. Its update D is a step of gradient descent on validation data. A cluster whose
mean is g_j = c / W S_j passes if eta <D, g_j> - rho |g_j|^2 >= -eta epsilon, and A_r is the sum of
the sums of the clusters that pass. In whole numbers, of fixed point, that is

    T_j = a <D, S_j> - |S_j|^2 + e >= 0,
    a = round(eta W / (rho c)),    e = floor(eta epsilon / rho (2^s W / c)^2).

The servers open D between them, so that <D, S_j> is linear. |S_j|^2 takes one secret square per
coordinate, cluster and reclustering (`square`). `survey` adds up what each chunk contributes to the
T_j, `judge` compares the sums with 0, and `compute` selects with the verdicts, which stay shared.
D and sum_r A_r alone are opened.

Differences have `whole_bits` bits before the point, so that all T_j fit into 64 bits: clients with
a larger value are left out beforehand (`bounds`), and D is checked once it is opened.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare, XorBits
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import as_written, check_number, check_whole, option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import (
    invert,
    multiplex,
    multiplex_demand,
    pack_bits,
    unpack_bits,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.square import square, square_demand
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published
from securemedian.mpc.rounds.methods.clustered import Clustered, summed
from securemedian.mpc.rounds.methods.reveal import open_ring

# of the ring: squares fit into no fewer
BITS = 64
# as many comparisons take the memory of one square, whose l - 1 OTs are of whole ring elements
COMPARISONS_PER_SQUARE = 16


@dataclass(frozen=True, kw_only=True)
class Zeno(Clustered):
    """The sum of the clusters that agree with a validator's update, over several reclusterings."""

    name = "zeno"
    summary = "the clusters that agree with a validator (SHARE with Zeno++), linear in the clusters"
    opened = "the validator's update, and the sum of the clusters that pass in all reclusterings"
    surveys = True

    validator: str = option(
        "",
        metavar="NAME",
        text="the client whose update is a step of gradient descent on validation data; it is in "
        "no cluster",
    )
    rho: float = option(
        1e-4,
        metavar="RHO",
        text="what a cluster's squared length counts against it (default: 1e-4)",
    )
    epsilon: float = option(
        0.2, metavar="EPS", text="what is forgiven a cluster, times ETA (default: 0.2)"
    )
    fraction_bits: int = option(14, text="s of the fixed point (default: 14)", metavar="S")
    whole_bits: int = option(
        4,
        metavar="B",
        text="differences to the global model are cut to below 2^B (default: 4)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rho", self.rho, 0, 1e6, "above 0 and at most 1e6")
        check_number("epsilon", self.epsilon, 0, 1e6, "above 0 and at most 1e6")
        check_whole("whole_bits", self.whole_bits, 1, 32)

    def check_round(self, max_clients: int) -> None:
        check_whole("fraction_bits", self.fraction_bits, 1, 24)
        super().check_round(max_clients)
        needed = super().headroom(max_clients)
        if needed > self.headroom(max_clients):
            raise ConfigError(
                f"sums of {max_clients} clients need {needed} bits beyond fraction_bits and "
                f"whole_bits, and {self.headroom(max_clients)} are left: lower one of them"
            )
        self.check_filled(max_clients - 1, "those besides the validator are at most")

    def check_dim(self, dim: int, max_clients: int) -> None:
        if self._most_squares(dim, max_clients) >= 1 << (BITS - 2):
            raise ConfigError(
                f"the squares of {dim:,} coordinates of {self.fraction_bits} + {self.whole_bits} "
                "bits do not fit into 64 bits: lower fraction_bits or whole_bits"
            )

    def check_members(self, clients: Collection[str]) -> None:
        if self.validator not in clients:
            raise ConfigError(
                f"the validator {quoted(self.validator)} is none of the clients: name one with "
                "validator"
            )

    def _most_squares(self, dim: int, max_clients: int) -> int:
        return dim * self._most_sum(max_clients) ** 2

    def _most_sum(self, max_clients: int) -> int:
        """Return what no sum of a cluster exceeds, in whole numbers of fixed point."""
        heaviest = sorted(self.weights.values() or [1] * max_clients, reverse=True)
        largest = 2 * self.clusters - 1
        return sum(heaviest[:largest]) << (self.fraction_bits + self.whole_bits)

    def headroom(self, max_clients: int) -> int:
        return BITS - 2 - self.fraction_bits - self.whole_bits

    # Who is the validator

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of the clients that take part, in their order: the validator's is 0.

        Raises ConfigError if it takes no part, as if the others do not fill one cluster.
        """
        if self.validator not in clients:
            raise ConfigError("the validator takes no part, and nobody can be judged without it")
        others = super().weights_of([one for one in clients if one != self.validator])
        others.insert(list(clients).index(self.validator), 0)
        return others

    def _parted(self, weights: Sequence[int]) -> tuple[int, list[int]]:
        """Return the places of the validator (the last, if nobody weighs 0) and of the others."""
        place = list(weights).index(0) if 0 in weights else len(weights) - 1
        return place, [other for other in range(len(weights)) if other != place]

    # The protocol

    def _sums(self, party: Party, chunk: Chunk, rows: RingShare) -> RingShare:
        """Return shares of the clusters' sums, shape (c, R, dim)."""
        _, others = self._parted(chunk.weights)
        weights = [chunk.weights[place] for place in others]
        return self.cluster_sums(party, RingShare(rows[others]), weights, chunk.coin)

    def survey(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of what the chunk adds to T_rj, shape (c R,), and of |D|_1 behind them."""
        rows = chunk.rows(party)
        place, others = self._parted(chunk.weights)
        step: PublicValues = open_ring(party, RingShare(rows[place]), BITS)
        sums = self._sums(party, chunk, rows)
        squares = square(party, RingShare(sums.reshape(-1)), BITS).reshape(sums.shape)
        slope, _ = self._line(sum(chunk.weights), len(others))
        products = sums * (step * step.dtype.type(slope % (1 << BITS)))
        terms = (products - squares).sum(axis=2, dtype=sums.dtype).reshape(-1)
        length = np.abs(ring.signed(step, BITS)).sum()
        known = length if party.number == 0 else 0
        return RingShare(np.append(terms, np.array([known], terms.dtype)))

    def surveyed(self, clients: int) -> int:
        return self._sums_among(clients) + 1

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return shares of whether each cluster passes, c R bits, packed."""
        length: PublicValues = open_ring(party, RingShare(surveyed[-1:]), BITS)
        self._check_length(int(length[0]), chunk)
        clusters = len(surveyed) - 1
        _, others = self._parted(chunk.weights)
        _, start = self._line(sum(chunk.weights), len(others))
        terms = surveyed[:-1] + surveyed.dtype.type(start if party.number == 0 else 0)
        assert clusters == self.clusters_among(len(others)) * self.reclusterings
        return invert(party, compare.msb(party, RingShare(terms), BITS))

    def _check_length(self, length: int, chunk: Chunk) -> None:
        """Raise ConfigError if a T_rj might not fit, for the validator's |D|_1."""
        _, others = self._parted(chunk.weights)
        slope, start = self._line(sum(chunk.weights), len(others))
        columns, most = chunk.layout.columns, self._most_sum(chunk.max_clients)
        whole = slope * length * most + self._most_squares(columns, chunk.max_clients) + start
        if whole >= 1 << (BITS - 1):
            raise ConfigError(
                "the validator's update is too long for scores of 64 bits: lower fraction_bits or "
                "whole_bits, or raise rho"
            )

    def _line(self, total: int, clients: int) -> tuple[int, int]:
        """Return a and e of the score, for clients that weigh `total`."""
        mean = Fraction(total, self.clusters_among(clients))
        ratio = as_written(self.eta) / as_written(self.rho)
        start = ratio * as_written(self.epsilon) * (mean * (1 << self.fraction_bits)) ** 2
        return max(1, round(ratio * mean)), int(start)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        sums = self._sums(party, chunk, chunk.rows(party))
        assert chunk.verdicts is not None
        verdicts = unpack_bits(chunk.verdicts, sums.shape[0] * sums.shape[1])
        each = XorBits(pack_bits(np.repeat(verdicts, chunk.dim)))
        kept = multiplex(party, each, RingShare(sums.reshape(-1)), BITS).reshape(sums.shape)
        aggregates = RingShare(kept.sum(axis=0, dtype=kept.dtype).reshape(-1))
        opened: PublicValues = open_ring(party, summed(aggregates, self.reclusterings), BITS)
        return opened

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return multiplex_demand(self._sums_among(len(weights)) * dim, BITS)

    def survey_demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return square_demand(self._sums_among(len(weights)) * dim, BITS)

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        return compare.msb_demand(self._sums_among(len(weights)), BITS)

    def at_once(self, clients: int) -> int:
        return COMPARISONS_PER_SQUARE * self._sums_among(clients)

    def _sums_among(self, clients: int) -> int:
        """Return c R of so many clients, of whom one is the validator."""
        return self.clusters_among(clients - 1) * self.reclusterings

    # The result

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.moved(self.numbers(values), total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        place, others = self._parted(clear.weights)
        total, own = sum(clear.weights), [clear.weights[other] for other in others]
        sums = self.sums_in_the_clear(replace(clear, updates=clear.updates[others], weights=own))
        moved = self.difference(clear.updates[place], clear.published)
        step = self.whole_numbers(moved, clear.max_clients)
        slope, start = self._line(total, len(others))
        exact = sums.astype(object)
        scores = slope * (exact * step.astype(object)).sum(axis=2) - (exact**2).sum(axis=2) + start
        passed = (scores >= 0).astype(np.int64)
        movement = (sums * passed[:, :, None]).sum(axis=(0, 1))
        return self.moved(movement[None] / 2.0**self.fraction_bits, total, clear.published)

    @classmethod
    def warm_up(cls) -> Sequence[Self]:
        return [cls(clusters=1)]

    @property
    def detail(self) -> str:
        return f"m={self.clusters} r={self.reclusterings}"
