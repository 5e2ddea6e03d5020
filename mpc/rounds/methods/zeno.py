"""The sum of the clusters that agree with a validator (SHARE with Zeno++), at the cost of `krum`.

See `clustered`, the paper's Algorithm 2, and protocols.md section 6. One client, the *validator*,
is in no cluster. Its update D is a step of gradient descent on validation data. A cluster whose
mean is g_j = c / W S_j passes if eta <D, g_j> - rho |g_j|^2 >= -eta epsilon. A_r is the sum of the
sums of the clusters that pass. Products and lengths are those of sketches of k rows, y = R D and
y_j = R S_j, where E <y, y_j> = k/2 <D, S_j>. In whole numbers, of fixed point, that is

    T_j = 2 a <y, y_j> - 2 |y_j|^2 + k e >= 0,    2 <y, y_j> = |y + y_j|^2 - |y|^2 - |y_j|^2,
    a = round(eta W / (rho c)),    e = floor(eta epsilon / rho (2^s W / c)^2).

`survey` sketches the uploads, `judge` compares the T_j with 0, and `compute` selects whole sums
with the verdicts, which stay shared. sum_r A_r alone is opened, and nothing of D.

Clients whose rows are not in [-T, T) are left out beforehand (`bounded`), under the same coin. The
bound is so small that the squares of the rows of y + y_j fit into 63 bits. The T_j have 128.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare, UnpackedXorBits, XorBits
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import as_written, check_number, option
from securemedian.mpc.protocols.boolean import (
    invert,
    multiplex_rows,
    multiplex_rows_demand,
    unpack_bits,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.lengths import WIDE_BITS, negative, negative_demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Form, Published
from securemedian.mpc.rounds.methods.bounded import BITS, AlwaysBounded
from securemedian.mpc.rounds.methods.clustered import Clustered, summed
from securemedian.mpc.rounds.methods.norms import (
    LONGEST,
    SOUNDNESS,
    squared_lengths,
    squared_lengths_demand,
)
from securemedian.mpc.rounds.methods.reveal import open_ring

# of a sketch, as of the check of uploads
ROWS = SOUNDNESS.rows
# so many times heavier than one client a cluster may be: lengths then have 15 bits
HEAVIEST = 511


@dataclass(frozen=True, kw_only=True)
class Zeno(AlwaysBounded, Clustered):
    """The sum of the clusters that agree with a validator's update, over several reclusterings."""

    name = "zeno"
    summary = "the clusters that agree with a validator (Zeno++)"
    opened = "the sum of the clusters that pass in all reclusterings"

    validator: str = option(
        "",
        metavar="NAME",
        text="the client whose update is a step of gradient descent on validation data; it is in "
        "no cluster",
    )
    rho: float = option(
        1e-4,
        metavar="RHO",
        text="the weight of a cluster's squared length against it (default: 1e-4)",
    )
    epsilon: float = option(
        0.2, metavar="EPS", text="the tolerance for a cluster, times ETA (default: 0.2)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("rho", self.rho, 0, 1e6, "a number above 0 and at most 1e6")
        check_number("epsilon", self.epsilon, 0, 1e6, "a number above 0 and at most 1e6")
        if self.weights and self.validator not in self.weights:
            raise ConfigError(
                "the validator has no weight, and so could not upload: "
                f"{quoted(self.validator)}; name it in weights, where its number counts for "
                "nothing"
            )

    def check_round(self, max_clients: int) -> None:
        if self._heaviest > HEAVIEST:
            raise ConfigError(
                f"a cluster may weigh more than the {HEAVIEST} for which lengths have room: "
                f"{self._heaviest:,}; ask for smaller clusters"
            )
        super().check_round(max_clients)
        self.check_filled(max_clients - 1, "those besides the validator are at most")
        # the clusters' mean weight is no more than what the heaviest one weighs
        slope, start = self._line(Fraction(self._heaviest))
        if max(slope << BITS, ROWS * start) >= 1 << (WIDE_BITS - 3):
            raise ConfigError(
                f"eta / rho and epsilon are too much for scores of {WIDE_BITS} bits: "
                f"{self.eta / self.rho:,.3g} and {self.epsilon:g}; raise rho, or lower epsilon "
                "or fraction_bits"
            )

    def check_members(self, clients: Collection[str]) -> None:
        if self.validator not in clients:
            raise ConfigError(
                f"the validator is not a client of the round: {quoted(self.validator)}; name "
                "one with validator"
            )

    def single_clients(self, least: int) -> bool:
        """Return whether a cluster is one client, whose whole update is the sum if no other passes.

        `rho` and `epsilon` decide how many pass.
        """
        return self.clusters == 1

    # How long updates may be

    @property
    def most_length(self) -> int:
        # so short that the rows of a cluster's sum and the validator's together are in range
        return max(1, LONGEST >> self._heaviest.bit_length())

    @property
    def _heaviest(self) -> int:
        """Return the most that a cluster weighs, where nobody weighs more than 1."""
        return 2 * self.clusters - 1

    # The validator

    @property
    def counted(self) -> Mapping[str, int]:
        return {name: weight for name, weight in self.weights.items() if name != self.validator}

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of the clients that take part, in their order: the validator's is 0.

        Raises ConfigError if it takes no part, as if the others do not fill one cluster.
        """
        if self.validator not in clients:
            raise ConfigError(
                "the validator takes no part, and nothing can be judged without it: "
                f"{quoted(self.validator)}; wait for it, or name another"
            )
        others = super().weights_of([one for one in clients if one != self.validator])
        others.insert(list(clients).index(self.validator), 0)
        return others

    def _parted(self, weights: Sequence[int]) -> tuple[int, list[int]]:
        """Return the places of the validator (the last, if nobody weighs 0) and of the others."""
        place = list(weights).index(0) if 0 in weights else len(weights) - 1
        return place, [other for other in range(len(weights)) if other != place]

    # The protocol

    def _sums(self, party: Party, chunk: Chunk, rows: RingShare) -> RingShare:
        """Return shares of the clusters' sums of rows (n, d), shape (c R, d)."""
        _, others = self._parted(chunk.weights)
        sums = self.cluster_sums(party, RingShare(rows[others]), chunk.coin)
        return RingShare(sums.reshape(-1, rows.shape[1]))

    def form(self, dim: int, max_clients: int) -> Form:
        return replace(super().form(dim, max_clients), survey=self)

    def survey(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of what the chunk adds to the clients' sketches, shape (n k,)."""
        return self.norm_check.survey(party, chunk)

    def surveyed(self, clients: int) -> int:
        return clients * ROWS

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return shares of whether each cluster passes, c R bits, packed."""
        sketches = RingShare(surveyed.reshape(-1, ROWS))
        place, others = self._parted(chunk.weights)
        step, sums = sketches[place : place + 1], self._sums(party, chunk, sketches)
        vectors = RingShare(np.concatenate([sums + step, sums, step]))
        squared = squared_lengths(party, vectors)
        both, own = squared[:-1].reshape(2, -1)
        products = both - own - squared[-1]
        slope, start = self._line(self._mean_weight(sum(chunk.weights), len(others)))
        terms = RingShare(np.stack([products, own]))
        party.pool.reserve(negative_demand(*terms.shape))
        return invert(party, negative(party, terms, [slope, -2], ROWS * start))

    def _mean_weight(self, total: int, clients: int) -> Fraction:
        """Return what a cluster weighs on average, of so many clients that weigh `total`."""
        return Fraction(total, self.weighing.heaviest * self.clusters_among(clients))

    def _line(self, mean: Fraction) -> tuple[int, int]:
        """Return a and e of the score, for clusters of this mean weight."""
        eta, rho = as_written(self.eta), as_written(self.rho)
        start = eta * as_written(self.epsilon) / rho * (mean * (1 << self.fraction_bits)) ** 2
        return max(1, round(eta / rho * mean)), int(start)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        sums = self._sums(party, chunk, chunk.rows(party))
        assert chunk.verdicts is not None
        verdicts = UnpackedXorBits(unpack_bits(chunk.verdicts, len(sums)))
        kept = multiplex_rows(party, verdicts, sums, BITS)
        opened: PublicValues = open_ring(party, summed(kept, len(kept)), BITS)
        return opened

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return multiplex_rows_demand(self._sums_among(len(weights)))

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        count = self._sums_among(len(weights))
        return squared_lengths_demand(2 * count + 1, ROWS) + negative_demand(2, count)

    def at_once(self, clients: int) -> int:
        return clients + self._sums_among(clients)

    def _sums_among(self, clients: int) -> int:
        """Return c R of so many clients, of whom one is the validator."""
        return self.clusters_among(clients - 1) * self.reclusterings

    # The result

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self.model_after(self.numbers(values), total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        place, others = self._parted(clear.weights)
        coin = clear.published.coin
        whole = self.whole_differences(clear)
        total = sum(clear.weights[other] for other in others)
        sums = self.sums(whole[others], coin)
        sums = sums.reshape(-1, whole.shape[1])
        (step,) = self.norm_check.sketches(whole[place : place + 1], coin).astype(object)
        rows = self.norm_check.sketches(sums, coin).astype(object)
        slope, start = self._line(self._mean_weight(total, len(others)))
        scores = 2 * slope * rows.dot(step) - 2 * (rows * rows).sum(axis=1) + ROWS * start
        movement = sums[scores >= 0].sum(axis=0)[None] / 2.0**self.fraction_bits
        return self.model_after(movement, total, clear.published)

    @property
    def detail(self) -> str:
        return f"m={self.clusters} r={self.reclusterings}"
