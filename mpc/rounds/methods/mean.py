"""The mean of fixed-point values, weighted or not: the shares are added up and the sum is opened.

Each party adds its own shares, with no correlation, and in one round, to open. The sum alone is
opened, which is the mean times the number of clients. With weights each client scales its update
before it rounds it (`Weighted`), so that the sum is of one whole number per client all the same.

With a `norm_bound` (`bounded`) a client whose vector is longer than GAP times the bound passes
with a chance of at most 2^-40. So one of n clients that weigh the same moves the mean by at most
GAP B / n. With weights it moves it by at most GAP B w / W, with w its weight and W that of all.

With norm_bound `auto` S0 chooses the bound of each round before it opens it, and adapts it to the
clients (Andrew, Thakkar, McMahan and Ramaswamy, 2021). With a share c of the clients clipped, B <-
B exp(step (c - 1 + quantile)). In the long run this quantile is not clipped. Clients say so in the
lowest bit of their first value, which is even before. The lowest bits of two shares are XOR shares
of it, whatever a client shares: so each client has one vote. The parties turn them into shares of
the count and add it to the sum, far above its values.

With a `noise_multiplier` z and a number for a bound, each party adds noise of its own to its share
of the sum before that is opened. It is the discrete Gaussian N_Z(0, (z (L + 1))^2) in every
coordinate; the 1 covers the rounding of float64 when a client cuts. `privacy` has what that gives.

Without a bound one faulty client moves the mean anywhere. Values are not checked, because even one
in range moves the sum of 64 bits as far as anyone may want. It is there to compare with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, exp, sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, Ring, RingShare, XorBits
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import as_written, check_number, option
from securemedian.mpc.protocols.boolean import pack_bits, to_ring, to_ring_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.noise import discrete_gaussian
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import privacy
from securemedian.mpc.rounds.methods.base import (
    Adapting,
    Chunk,
    Clear,
    Form,
    Noise,
    Published,
    Weighted,
)
from securemedian.mpc.rounds.methods.bounded import (
    AUTO,
    AUTO_FRACTION,
    AUTO_REACH,
    MOST_FRACTION,
    Bounded,
    fitting,
)
from securemedian.mpc.rounds.methods.fixed import SizedFixedPoint
from securemedian.mpc.rounds.methods.norms import LONGEST
from securemedian.mpc.rounds.methods.reveal import open_ring

# the limit below z, and the largest z: the noise of both parties then has 42 bits, and no sum wraps
LEAST_NOISE, MOST_NOISE = 0.001, 1000
# of the clients whose updates need no clipping, with norm_bound auto
QUANTILE = 0.5
# the least bound
LEAST_BOUND = LONGEST / 2.0**MOST_FRACTION
# The count of those who were clipped begins at this bit of the first sum. As no value that passes
# the check reaches 2^28, the sum of 2^16 of them is below 2^44.
COUNT_AT = 46
# of the count
COUNT_BITS = 64 - COUNT_AT
# z (L + 1) is rounded up to a multiple of one part in so many
NOISE_PARTS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Mean(Weighted, Bounded, SizedFixedPoint):
    """The mean of all clients' fixed-point values, of whom none moves it far."""

    name = "mean"
    summary = "the mean, which no client moves far; next to no cost"
    kind = "mean"

    quantile: float = option(
        0.0,
        metavar="Q",
        text="adapt norm_bound from round to round so that this share of the clients, between 0 "
        f"and 1, need not shorten their updates (default: {QUANTILE} with auto, else 0, off)",
        since=3,
    )
    noise_multiplier: float = option(
        0.0,
        metavar="Z",
        text="each server adds noise of Z times norm_bound, a number, to the sum: differential "
        "privacy of each client against all but a server (default: 0, none)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_multiplier:
            limits = f"0 or a number above {LEAST_NOISE} and at most {MOST_NOISE}"
            check_number("noise_multiplier", self.noise_multiplier, LEAST_NOISE, MOST_NOISE, limits)

        if self.quantile:
            check_number("quantile", self.quantile, 0, 1, "0 or a number above 0 and below 1")

    def check_round(self, max_clients: int) -> None:
        if self.quantile and (not self.bounded or self.quantile == 1):
            raise ConfigError(
                f"quantile {self.quantile:g} has no bound to adapt: norm_bound "
                f"{self.norm_bound}; take a quantile below 1 with norm_bound auto or a number, "
                "or leave it out"
            )
        if self.noise_multiplier:
            self._check_noise()
        super().check_round(max_clients)

    def _check_noise(self) -> None:
        if isinstance(self.norm_bound, str):
            raise ConfigError(
                f"noise_multiplier {self.noise_multiplier:g} hides one client's most, which "
                f"norm_bound does not limit: {self.norm_bound}; give norm_bound a number"
            )
        if self.quantile:
            raise ConfigError(
                "noise_multiplier takes no quantile, because the count of clipped clients has "
                f"no noise: quantile {self.quantile:g}; leave quantile out"
            )
        if self.weights:
            raise ConfigError(
                "noise_multiplier takes no weights: the noise for the heaviest client would "
                "drown the others; leave weights out"
            )

    def headroom(self, max_clients: int) -> int:
        return (max_clients - 1).bit_length()

    # The bound

    @property
    def counts(self) -> bool:
        """Return whether the clients that were clipped are counted."""
        return self.quantile > 0 or self.norm_bound == AUTO

    def settled(self, model: NDArray[np.float32] | None, bound: float | None = None) -> Self:
        """Return the method with this bound, or a first one: 32, or the length of the model."""
        if self.norm_bound != AUTO:
            return self
        if bound is None:
            reach = AUTO_REACH << AUTO_FRACTION
            bound = reach / 2.0 ** fitting(model, reach, AUTO_FRACTION)
        # with as many fraction bits as have room
        quantile = self.quantile or QUANTILE
        return replace(self, norm_bound=bound, fraction_bits=-1, quantile=quantile)

    @property
    def adapts(self) -> Adapting | None:
        return self if self.counts else None

    def clipped(self, values: PublicValues) -> int:
        """Return the count that the servers added far above the first sum."""
        half = 1 << COUNT_AT - 1
        return (int(values[0, 0]) + half) % (1 << 64) >> COUNT_AT

    def next_bound(self, clipped: float, step: float) -> float:
        """Return the bound that less than `quantile` of the clients reach in the long run."""
        moved = float(self.norm_bound) * exp(step * (clipped - 1 + self.quantile))
        return min(max(moved, LEAST_BOUND), float(self.most_length))

    def whole_difference(
        self, vector: NDArray[np.float64], published: Published
    ) -> NDArray[np.int64]:
        """Return a vector's difference (d,) in fixed point, whose first value leaves a bit free."""
        whole = replace(self.cut, spare=int(self.counts)).whole(vector, published)
        if self.counts:
            whole[0] -= np.sign(whole[0]) * (abs(whole[0]) & 1)
        return whole

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        shared = super().encode(vector, max_clients, published)
        room = self.longest * published.part >= 1
        if self.counts and room and self.shortened(vector, published):
            shared[0, 0] |= shared.dtype.type(1)
        return shared

    # The protocol

    def form(self, dim: int, max_clients: int) -> Form:
        form = super().form(dim, max_clients)
        return replace(form, survey=self) if self.counts else form

    def survey(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of the clients' first values, shape (n,), or of 0 for a later chunk."""
        if chunk.begin:
            return RingShare(np.zeros(len(chunk.weights), np.uint64))
        return RingShare(replace(chunk, end=1).rows(party)[:, 0])

    def surveyed(self, clients: int) -> int:
        return clients

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return an additive share of how many lowest bits are 1, as one word."""
        lowest = pack_bits((surveyed & surveyed.dtype.type(1)).astype(np.uint8))
        votes = to_ring(party, XorBits(lowest), len(surveyed), COUNT_BITS)
        return XorBits(np.array([votes.sum(dtype=np.uint64)], np.uint64))

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        return to_ring_demand(len(weights), COUNT_BITS)

    @property
    def noise(self) -> Noise:
        if not self.noise_multiplier:
            return Noise()
        deviation = sqrt(2) * float(self.sigma) / 2.0**self.fraction_bits
        return Noise(privacy.rho_of(self.noise_multiplier), deviation)

    @property
    def sigma(self) -> Fraction:
        """Return the standard deviation of one party's noise, in fixed point."""
        exact = as_written(self.noise_multiplier) * (self.longest + 1)
        return Fraction(ceil(exact * NOISE_PARTS), NOISE_PARTS)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        shares = chunk.plain_sum(party)
        if self.counts and chunk.begin == 0:
            assert chunk.verdicts is not None
            # a slice, because numpy warns of a scalar that wraps
            shares[:1, :1] += chunk.verdicts[:1] << np.uint64(COUNT_AT)
        if self.noise_multiplier:
            noise = discrete_gaussian(self.sigma, chunk.begin, chunk.end, chunk.noise)
            shares = RingShare(shares + noise.view(np.uint64))
        return open_ring(party, shares, chunk.form.ring_bits)

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return Demand()

    def at_once(self, clients: int) -> int:
        return 1

    # The result

    @property
    def opened(self) -> str:
        value = "the sum of the updates, each scaled by its weight if there are weights"
        value += ", how many were clipped" * self.counts
        return value + (", and whose are too long" if self.bounded else "")

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        if self.counts:
            # each vote is the lowest bit of a first value, too
            votes = self.clipped(values) * (1 + (1 << COUNT_AT))
            values = PublicValues(values.copy())
            values[:1, :1] -= values.dtype.type(votes % (1 << 64))
        return self.moved(self.numbers(values) / self.weighing.scaled(total), published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        if self.bounded:
            whole = self.whole_differences(clear)
        else:
            parts = np.array(self.weighing.parts(clear.weights))
            whole = self.whole_numbers(clear.updates * parts[:, None], clear.max_clients)
        # summed as whole numbers, so that nothing is rounded before the division
        mean = (
            whole.sum(axis=0)[None]
            / 2.0**self.fraction_bits
            / self.weighing.scaled(sum(clear.weights))
        )
        return self.moved(mean, clear.published)

    @property
    def detail(self) -> str:
        bound = str(self.norm_bound) if self.norm_bound != AUTO else ""
        if isinstance(self.norm_bound, float):
            bound = f"B={self.norm_bound:g}"
        return f"{bound}, noise {self.noise_multiplier:g}" if self.noise_multiplier else bound
