"""A robust aggregate of sums over random clusters of clients, again and again (SHARE).

`clustered` draws the clusters. `pairwise.median` (fewer OTs for few clusters) or `descent.element`
(for many), and `trimmed_mean.kept_sum`, compute the R aggregates at once, as so many more
coordinates, and their sum over r is local.

With clustering `hidden` only sum_r A_r is opened. `opened` is the paper's, to compare with: all R c
sums are opened, and any aggregator then takes their means in the clear. From R = 4 on, with n = 60
and M = 3, every client's update follows from the sums by linear equations. If even one does
(`clusters.exposed`), the round is refused, before and after its toss, unless `accept_leak` is set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import order, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.share import SLICE_ALIGN
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from securemedian.mpc.rounds.clusters import exposed
from securemedian.mpc.rounds.methods import descent, pairwise, trimmed_mean
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Published
from securemedian.mpc.rounds.methods.clustered import Clustered, summed
from securemedian.mpc.rounds.methods.fixed import SizedFixedPoint
from securemedian.mpc.rounds.methods.reveal import open_ring

MEDIAN, TRIMMED_MEAN, MEAN = "median", "trimmed-mean", "mean"
# those that are computed on shares
HIDDEN = (MEDIAN, TRIMMED_MEAN, MEAN)
FEWEST, PAIRWISE, RADIX = "fewest-ots", "pairwise", "radix"
# the most clients whose sums are opened: who is exposed takes the eigenvalues of an n x n matrix
MOST_OPENED = 256


@dataclass(frozen=True, kw_only=True)
class Reclustered(Clustered, SizedFixedPoint):
    """A robust aggregate of sums over random clusters, averaged over several reclusterings."""

    name = "reclustered"
    summary = "a robust aggregate of sums over clusters (SHARE)"
    splits = True

    clustering: str = option(
        "hidden",
        choices=("hidden", "opened"),
        text="opened tells the servers the sum of every cluster, as in the paper (default: hidden)",
    )
    aggregator: str = option(
        MEDIAN,
        choices=tuple(dict.fromkeys((*HIDDEN, *AGGREGATORS))),
        text="the aggregator of the clusters' sums; others than median, trimmed-mean and mean "
        "need clustering opened (default: median)",
    )
    median_by: str = option(
        FEWEST,
        choices=(FEWEST, PAIRWISE, RADIX),
        text="how a hidden median is computed: by all pairs of clusters, by radix in more rounds, "
        "or in whichever way takes fewer OTs (default: fewest-ots)",
    )
    trim: float = option(
        0.1,
        metavar="BETA",
        text="with aggregator trimmed-mean: floor(BETA c) of the c clusters are dropped at either "
        "end (default: 0.1)",
    )
    faulty_clusters: int = option(
        1,
        metavar="F",
        text="with clustering opened: the faulty clusters that krum, multi-krum and bulyan expect "
        "(default: 1)",
    )
    accept_leak: bool = option(
        False,
        text="with clustering opened: go on even where clients' updates follow from the sums",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        trimmed_mean.check_trim(self.trim)
        check_whole("faulty_clusters", self.faulty_clusters, 0, 1 << 15)
        if not self._opens and self.aggregator not in HIDDEN:
            raise ConfigError(
                f"clustering hidden cannot compute this aggregator: {self.aggregator}; take "
                f"clustering opened, or one of {', '.join(HIDDEN)}"
            )
        if self._opens and self.weights:
            raise ConfigError(
                f"clustering opened takes no weights: {len(self.weights)} weights; leave them "
                "out, or use hidden"
            )

    @property
    def _opens(self) -> bool:
        return self.clustering == "opened"

    def check_round(self, max_clients: int) -> None:
        super().check_round(max_clients)
        if self._opens:
            check_whole("max_clients with clustering opened", max_clients, 2, MOST_OPENED)
            self._check_aggregator(max_clients)
            # as likely as any coin
            self._check_exposure(bytes(SEED_BYTES), max_clients)

    def check_total(self, total: int) -> None:
        super().check_total(total)
        if self._opens:
            self._check_aggregator(total)

    def _check_aggregator(self, clients: int) -> None:
        """Raise ConfigError if there are too few clusters for the aggregator in the clear."""
        try:
            self._in_the_clear(np.zeros((self.clusters_among(clients), 1)))
        except InputError as error:
            raise ConfigError(
                f"too few clusters, {self.clusters_among(clients)}, of {clients} clients: {error}"
            ) from error

    def _check_exposure(self, coin: bytes, clients: int) -> None:
        """Raise ConfigError if a client's update follows from the sums, unless that is accepted."""
        found = exposed(coin, clients, self.clusters_among(clients), self.reclusterings)
        if found.clients and not self.accept_leak:
            raise ConfigError(
                f"the opened sums of {self.reclusterings} reclusterings, whose matrix has rank "
                f"{found.rank}, tell updates: those of {len(found.clients)} of {clients} "
                "clients; ask for fewer reclusterings or clustering hidden, or accept_leak"
            )

    # The sizes of a round

    def _dropped(self, clusters: int) -> int:
        trims = self.aggregator == TRIMMED_MEAN
        return trimmed_mean.dropped(clusters, self.trim) if trims else 0

    # The protocol

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits, clients = self.value_bits, len(chunk.weights)
        sums = self.cluster_sums(party, chunk.rows(party), chunk.coin)
        if self._opens:
            self._check_exposure(chunk.coin, clients)
            by_cluster = RingShare(sums.transpose(1, 0, 2).reshape(-1, chunk.dim))
            sums_opened: PublicValues = open_ring(party, by_cluster, bits)
            return sums_opened
        # one more axis of coordinates for the reclusterings
        flat = RingShare(sums.reshape(len(sums), -1))
        if self._by_radix(clients):
            width = self._sum_bits(clients, chunk.max_clients)
            found = descent.element(party, flat, width, bits, ring.median_rank(len(flat)))
        elif self.aggregator == MEDIAN:
            found = pairwise.median(party, flat, bits, "hidden", batch=self.batch_limit(chunk))
        else:
            ends = self._dropped(len(flat))
            found = trimmed_mean.kept_sum(party, flat, bits, ends, self.batch_limit(chunk))
        opened: PublicValues = open_ring(party, summed(found, self.reclusterings), bits)
        return self._rescaled(opened, bits, clients)

    def _rescaled(self, opened: PublicValues, bits: int, clients: int) -> PublicValues:
        """Return opened sums of aggregates, `_scaled`."""
        return PublicValues(ring.reduce(self._scaled(ring.signed(opened, bits), clients), bits))

    def _scaled(self, opened: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
        """Return floor(c / k sum_r A_r), of aggregates that are sums of k clusters' sums.

        It is R W times the mean movement. Everybody who knows the weight W decodes it.
        """
        count = self.clusters_among(clients)
        averaged = 1 if self.aggregator == MEDIAN else count - 2 * self._dropped(count)
        return opened * count // averaged

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        bits, count = self.value_bits, self.clusters_among(len(weights))
        coordinates = self.reclusterings * dim
        if self._opens:
            return Demand()
        if self._by_radix(len(weights)):
            width = self._sum_bits(len(weights), max_clients)
            return descent.demand(coordinates, count, width, bits)
        if self.aggregator == MEDIAN:
            return pairwise.demand(coordinates, bits, "hidden", [1] * count)
        return trimmed_mean.demand(coordinates, count, bits, self._dropped(count))

    def at_once(self, clients: int) -> int:
        count = self.clusters_among(clients)
        if self._opens:
            return self.reclusterings * count
        if self._by_radix(clients):
            return self.reclusterings * descent.at_once(count, self.value_bits)
        return self.reclusterings * order.pairs(count)

    def _by_radix(self, clients: int) -> bool:
        """Return whether a median is computed by radix for so many clients."""
        if self._opens or self.aggregator != MEDIAN:
            return False
        if self.median_by != FEWEST:
            return self.median_by == RADIX
        count, bits = self.clusters_among(clients), self.value_bits
        by_pairs = pairwise.demand(SLICE_ALIGN, bits, "hidden", [1] * count)
        return descent.demand(SLICE_ALIGN, count, bits, bits).ots < by_pairs.ots

    def _sum_bits(self, clients: int, max_clients: int) -> int:
        """Return of how many bits the sum of every cluster of clients in range is.

        They are fewer than the ring's, which holds the sum of all clusters and reclusterings.
        """
        largest = -(-clients // self.clusters_among(clients))
        value = self.value_bits - 1 - self.headroom(max_clients)
        return value + (largest - 1).bit_length()

    def opened_rows(self, total: int) -> int:
        return self.reclusterings * self.clusters_among(total) if self._opens else 1

    # The result

    @property
    def opened(self) -> str:
        if self._opens:
            return "the sum of the updates of every cluster in every reclustering"
        return "the sum of the aggregates of all reclusterings"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        numbers = self.numbers(values)
        if self._opens:
            return self._combined(numbers, total, published)
        return self.model_after(numbers, total, published)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        moved = self.difference(clear.updates, clear.published)
        parts = np.array(self.weighing.parts(clear.weights))
        whole = self.whole_numbers(moved * parts[:, None], clear.max_clients)
        sums = self.sums(whole, clear.published.coin)
        if self._opens:
            in_order = np.concatenate(list(sums.transpose(1, 0, 2))) / 2.0**self.fraction_bits
            return self._combined(in_order, len(clear.updates), clear.published)
        ranked, count = np.sort(sums, axis=0), len(sums)
        if self.aggregator == MEDIAN:
            aggregates = ranked[(count - 1) // 2]
        else:
            dropped = self._dropped(count)
            aggregates = ranked[dropped : count - dropped].sum(axis=0)
        scaled = self._scaled(aggregates.sum(axis=0), len(clear.updates))
        movement = scaled[None] / 2.0**self.fraction_bits
        return self.model_after(movement, sum(clear.weights), clear.published)

    def _combined(
        self, sums: NDArray[np.float64], clients: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the model after a movement by the aggregates of opened sums (R c, d)."""
        by_reclustering = np.split(sums, self.reclusterings)
        # values that average to the mean of all clients, for clusters of any sizes
        scale = self.clusters_among(clients) / clients
        aggregates = [self._in_the_clear(each * scale) for each in by_reclustering]
        total = np.stack(aggregates).sum(axis=0, dtype=np.float64)
        return self.model_after(total[None] * clients, clients, published)

    def _in_the_clear(self, vectors: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the aggregate of the clusters' vectors (c, d). Raises InputError for too few."""
        trimmed = self.aggregator == TRIMMED_MEAN
        faulty = self._dropped(len(vectors)) if trimmed else self.faulty_clusters
        return AGGREGATORS[self.aggregator](vectors, faulty)

    @property
    def detail(self) -> str:
        sizes = f"m={self.clusters} r={self.reclusterings}"
        if self._opens:
            return f"{self.aggregator} {sizes} opened"
        if self.aggregator == MEDIAN and self.median_by != FEWEST:
            # `median_by` is of medians alone
            return f"{sizes} {self.median_by}"
        return f"{self.aggregator} {sizes}"
