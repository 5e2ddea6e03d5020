"""The mean of fixed-point values, weighted or not: the shares are added up and the sum is opened.

Each party adds its own shares, with no correlation, and in one round, to open. The sum alone is
opened, which is the mean times the number of clients. With weights each client scales its update
before it rounds it (`Weighted`), so that the sum is of one whole number per client all the same.

With a `norm_bound` (`bounded`) a client whose vector is longer than GAP times the bound passes
with a chance of at most 2^-40. So one of n clients that weigh the same moves the mean by at most
GAP B / n, and one that weighs w of W in all by at most GAP B w / W.

With a `noise_multiplier` z and a number for a bound, each party adds noise of its own to its share
of the sum before that is opened: the discrete Gaussian N_Z(0, (z (L + 1))^2) in every coordinate,
where the 1 is for what float64 rounds when a client cuts. `privacy` has what that gives.

Without a bound one faulty client moves the mean anywhere, and values are not checked, because even
one in range moves the sum of 64 bits as far as anyone may want. It is there to compare with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import as_written, check_number, option
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.noise import discrete_gaussian
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import privacy
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published, SizedFixedPoint, Weighted
from securemedian.mpc.rounds.methods.bounded import AUTO, Bounded
from securemedian.mpc.rounds.methods.reveal import open_ring

# what z is above, and the largest: the noise of both parties then has 42 bits, and no sum wraps
LEAST_NOISE, MOST_NOISE = 0.001, 1000
# z (L + 1) is rounded up to a multiple of one part in so many
NOISE_PARTS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class Mean(Weighted, Bounded, SizedFixedPoint):
    """The mean of all clients' fixed-point values, of whom none moves it far."""

    name = "mean"
    summary = "the mean, which no client moves far; next to no cost"
    kind = "mean"

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

    def check_round(self, max_clients: int) -> None:
        if self.noise_multiplier:
            self._check_noise()
        super().check_round(max_clients)

    def _check_noise(self) -> None:
        if isinstance(self.norm_bound, str):
            raise ConfigError(
                f"noise_multiplier {self.noise_multiplier:g} needs a number for norm_bound, not "
                f"{self.norm_bound}: what the noise hides is what one client can add"
            )
        if self.named_weights:
            raise ConfigError(
                "noise_multiplier takes no weights: the noise for the heaviest client would drown "
                "the others"
            )

    def headroom(self, max_clients: int) -> int:
        return (max_clients - 1).bit_length()

    # The protocol

    @property
    def zcdp_rho(self) -> float:
        return privacy.rho_of(self.noise_multiplier) if self.noise_multiplier else inf

    def noise_of(self, clients: int) -> float:
        return sqrt(2) * float(self.sigma) / 2.0**self.fraction_bits / clients

    @property
    def sigma(self) -> Fraction:
        """Return the standard deviation of one party's noise, in fixed point."""
        exact = as_written(self.noise_multiplier) * (self.longest + 1)
        return Fraction(ceil(exact * NOISE_PARTS), NOISE_PARTS)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        shares = chunk.plain_sum(party)
        if self.noise_multiplier:
            noise = discrete_gaussian(self.sigma, chunk.begin, chunk.end, chunk.noise)
            shares = RingShare(shares + noise.view(np.uint64))
        return open_ring(party, shares, self.bits_for(chunk.max_clients))

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return Demand()

    def at_once(self, clients: int) -> int:
        return 1

    # The result

    @property
    def opened(self) -> str:
        value = "the sum of the updates, each scaled by its weight if there are weights"
        return value + (", and whose are too long" if self.bounded else "")

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.moved(self.numbers(values) / self.scaled(total), published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        if self.bounded:
            whole = self.whole_differences(clear)
        else:
            parts = np.array(self.parts_of(clear.weights))
            whole = self.whole_numbers(clear.updates * parts[:, None], clear.max_clients)
        # summed as whole numbers, so that nothing is rounded before the division
        mean = whole.sum(axis=0)[None] / 2.0**self.fraction_bits / self.scaled(sum(clear.weights))
        return self.moved(mean, clear.published)

    @property
    def detail(self) -> str:
        bound = str(self.norm_bound) if self.norm_bound != AUTO else ""
        if isinstance(self.norm_bound, float):
            bound = f"B={self.norm_bound:g}"
        return f"{bound}, noise {self.noise_multiplier:g}" if self.noise_multiplier else bound
