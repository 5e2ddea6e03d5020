"""The mean of the updates that lie closest to their neighbours (Krum, Multi-Krum).

See Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries" (NeurIPS 2017).
Of n clients, f may be faulty. With D_ij the squared distance of two updates,

    score_i = the sum of the n - f - 2 smallest D_ij, j != i,

and the m updates with the smallest scores are averaged, m = n - f by default. m = 1 is Krum. That
the result is robust is proved for n >= 2 f + 3, so f is floor((n - 3) / 2) by default. Others count
otherwise: ByzFL's score has one term more, and AggregaThor's m is n - f - 2. A client that a check
leaves out is one of the f that were asked for, so fewer are left among those who remain. A silent
client is not.

Distances are those of `sketch`: they take a number of OTs that does not grow with the updates. All
clients count once: with weights, the total weight of the chosen would have to be opened, which
tells who they are.

With selection `hidden` the sum of the chosen updates alone is opened: who was chosen stays shared,
and multiplexes whole updates. With `opened` both servers learn who was chosen, and add up locally.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import (
    PublicBits,
    PublicValues,
    RingShare,
    UnpackedXorBits,
    XorBits,
)
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.boolean import (
    multiplex_rows,
    multiplex_rows_demand,
    pack_bits,
    unpack_bits,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods import bounded, nearest
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Form, Published
from securemedian.mpc.rounds.methods.bounded import AlwaysBounded
from securemedian.mpc.rounds.methods.nearest import HIDDEN, OPENED, Tolerating
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring

# of the ring of sums of differences
SUM_BITS = 32


@dataclass(frozen=True, kw_only=True)
class Krum(Tolerating, AlwaysBounded):
    """The mean of the updates with the smallest Krum scores."""

    name = "krum"
    summary = "the mean of those closest to each other (Multi-Krum)"
    kind = "mean"
    tolerated = "faulty"
    most_faulty = 1 << 15

    faulty: int = option(
        0,
        metavar="F",
        text="how many of the clients may be faulty, those included that a check leaves out "
        "(default: as many as the n who remain allow, (n - 3) / 2)",
    )
    chosen: int = option(
        0,
        metavar="M",
        text="how many updates are averaged; 1 is Krum (default: all but F of those who take part)",
    )
    selection: str = option(
        HIDDEN,
        choices=(HIDDEN, OPENED),
        text="opened tells the servers who is chosen, and costs next to nothing (default: hidden)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("chosen", self.chosen, 0, self.most_faulty)

    def check_round(self, max_clients: int) -> None:
        check_whole("max_clients of krum", max_clients, 2, nearest.MOST_CLIENTS)
        self.check_count(max_clients, "max_clients is")
        super().check_round(max_clients)

    def check_count(self, clients: int, what: str) -> None:
        faulty = max(0, self.faulty)
        least = max(faulty + 3, 2 * faulty + 1)
        if clients < least:
            raise ConfigError(
                f"krum with {faulty} faulty clients needs at least {least}: {what} {clients}; "
                "lower faulty or have more clients"
            )
        if self.chosen > clients - self._faulty(clients):
            raise ConfigError(
                f"krum would average {self.chosen} clients: {what} {clients}, of whom "
                f"{self._faulty(clients)} may be faulty; lower chosen or have more clients"
            )

    def single_clients(self, least: int) -> bool:
        """Return whether one update is averaged, or two, of which who has one knows the other."""
        return 0 < self.chosen <= 2

    def settled(self, model: NDArray[np.float32] | None, bound: float | None = None) -> Self:
        return replace(super().settled(model, bound), counts_left_out=True)

    @property
    def most_length(self) -> int:
        return nearest.LONGEST

    def _faulty(self, clients: int) -> int:
        """Return f, how many of so many clients may be faulty."""
        return max(0, self.faulty or (clients - 3) // 2)

    def _averaged(self, clients: int) -> int:
        """Return m, how many of so many clients are averaged."""
        return self.chosen or clients - self._faulty(clients)

    def _neighbours(self, clients: int) -> int:
        """Return how many distances are in a score."""
        return clients - self._faulty(clients) - 2

    # The protocol

    def form(self, dim: int, max_clients: int) -> Form:
        form = replace(super().form(dim, max_clients), opened_bits=SUM_BITS, survey=self)
        fits = self.counts_left_out and self.longest == self.most_length
        return replace(form, fault=bounded.UNFIT) if fits else form

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return shares of whether each client is chosen, packed."""
        clients = len(chunk.weights)
        distances = nearest.distances(party, surveyed, clients)
        scores = nearest.scores(party, distances, self._neighbours(clients))
        chosen = nearest.smallest(party, scores, self._averaged(clients))
        return XorBits(pack_bits(chosen.reshape(-1)))

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        clients = len(weights)
        return (
            nearest.distances_demand(clients)
            + nearest.scores_demand(clients)
            + nearest.smallest_demand(clients, 1)
        )

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        # values that pass the check of lengths fit, and so do sums
        rows = RingShare(ring.reduce(chunk.rows(party), SUM_BITS))
        clients = len(chunk.weights)
        assert chunk.verdicts is not None
        if self.selection == OPENED:
            public: PublicBits = open_bits(party, chunk.verdicts, clients)
            total = RingShare(rows[public == 1].sum(axis=0, dtype=rows.dtype))
        else:
            chosen = UnpackedXorBits(unpack_bits(chunk.verdicts, clients))
            kept = multiplex_rows(party, chosen, rows, SUM_BITS)
            total = RingShare(kept.sum(axis=0, dtype=kept.dtype))
        opened: PublicValues = open_ring(party, RingShare(total[None]), SUM_BITS)
        return opened

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return Demand() if self.selection == OPENED else multiplex_rows_demand(len(weights))

    def at_once(self, clients: int) -> int:
        return clients

    # The result

    @property
    def opened(self) -> str:
        value = "the sum of the updates that are chosen"
        return value + (", and who is chosen" if self.selection == OPENED else "")

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        numbers = encode.from_fixed(values, SUM_BITS, self.fraction_bits)
        return self.moved(numbers / self._averaged(total), published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        updates, clients = np.asarray(clear.updates, np.float64), len(clear.updates)
        whole = np.stack([self.whole_difference(row, clear.published) for row in updates])
        distances = nearest.distances_in_the_clear(whole, clear.published.coin)
        scores = nearest.scores_in_the_clear(distances, self._neighbours(clients))
        chosen = np.argsort(scores, kind="stable")[: self._averaged(clients)]
        mean = whole[chosen].sum(axis=0)[None] / 2.0**self.fraction_bits / len(chosen)
        return self.moved(mean, clear.published)

    @property
    def detail(self) -> str:
        counts = [f"f={max(0, self.faulty)}"] * bool(self.faulty) + [f"m={self.chosen}"] * bool(
            self.chosen
        )
        return " ".join([*counts, *["opened"] * (self.selection == OPENED)])
