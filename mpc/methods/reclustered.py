"""A robust aggregate of sums over random clusters of clients, again and again (SHARE).

See Velicheti, Xia and Koyejo, "Secure Byzantine-Robust Distributed Learning via Clustering",
Algorithm 1, and protocols.md section 6. A client's update is the difference of its vector to the
global model g, times its public weight w_i. In each of R reclusterings the n clients are divided at
random into c = floor(n / M) clusters, and the aggregator takes the c sums for the updates. The
model moves by eta times the mean of the R aggregates:

    S_rj = sum of w_i Delta_i over cluster j,    A_r = aggregate of S_r1, .., S_rc,
    g' = g + eta c / (R W) sum_r A_r,            W = sum_i w_i.

c / W makes an average of the sums FedAvg's (the paper's Lemma 1). If n is no multiple of M the
first n mod c clusters have one more client, so that no cluster has fewer than M.

Clients upload once, whatever R is: additive shares of fixed point. Once the round is closed, the
servers toss a coin (`dealing.toss`), from which all partitions are drawn, so that nobody chooses
his cluster. The sums are local. `pairwise.median` and `trimmed_mean.kept_sum` compute all R
aggregates at once, as so many more coordinates, and their sum over r is local again.

With clustering `hidden` only sum_r A_r is opened. `opened` is the paper's: all R c sums are opened,
and any aggregator then takes their means in the clear. It is there to compare with: from R = 4 on,
with n = 60 and M = 3, every client's update follows from the sums by linear equations. Where even
one does (`clusters.exposed`), the round is refused, and with the coin of the round once more before
anything is opened, unless `accept_leak` is set.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.aggregators import AGGREGATORS
from securemedian.mpc.arrays import PublicValues, Ring, RingShare
from securemedian.mpc.clusters import Members, draw, exposed, sums_over
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.methods import order, pairwise, trimmed_mean
from securemedian.mpc.methods.base import Chunk, FixedPoint, Published, Weighted
from securemedian.mpc.methods.reveal import open_ring
from securemedian.mpc.options import check_number, check_whole, option
from securemedian.mpc.party import Party
from securemedian.mpc.prg import SEED_BYTES

MEDIAN, TRIMMED_MEAN, MEAN = "median", "trimmed-mean", "mean"
# those that are computed on shares
HIDDEN = (MEDIAN, TRIMMED_MEAN, MEAN)
# the most clients whose sums are opened: who is exposed takes the eigenvalues of an n x n matrix
MOST_OPENED = 256


@dataclass(frozen=True, kw_only=True)
class Reclustered(Weighted, FixedPoint):
    """A robust aggregate of sums over random clusters, averaged over several reclusterings."""

    name = "reclustered"
    summary = "a robust aggregate of sums over random clusters (SHARE), quadratic in the clusters"
    splits = True
    checks_values = True
    tosses = True

    clusters: int = option(
        2,
        metavar="M",
        text="clients per cluster, up to one more where M does not divide their "
        "number (default: 2)",
    )
    reclusterings: int = option(
        1,
        metavar="R",
        text="random divisions into clusters, over which the result is averaged (default: 1)",
    )
    clustering: str = option(
        "hidden",
        choices=("hidden", "opened"),
        text="opened tells the servers the sum of every cluster, as in the paper (default: hidden)",
    )
    aggregator: str = option(
        MEDIAN,
        choices=tuple(dict.fromkeys((*HIDDEN, *AGGREGATORS))),
        text="what combines the sums of the clusters; others than median, trimmed-mean and mean "
        "need clustering opened (default: median)",
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
    eta: float = option(
        1.0,
        metavar="ETA",
        text="the global learning rate: the model moves by so many times the result (default: 1)",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("clusters", self.clusters, 1, 1 << 15)
        check_whole("reclusterings", self.reclusterings, 1, 1 << 10)
        trimmed_mean.check_trim(self.trim)
        check_whole("faulty_clusters", self.faulty_clusters, 0, 1 << 15)
        check_number("eta", self.eta, 0, 1e6, "above 0 and at most 1e6")
        if not self._opens and self.aggregator not in HIDDEN:
            raise ConfigError(
                f"{self.aggregator} is computed in the clear: ask for clustering opened, or for "
                f"one of {', '.join(HIDDEN)}"
            )
        if self._opens and self.weights:
            raise ConfigError("clustering opened is without weights: leave them out, or use hidden")

    @property
    def _opens(self) -> bool:
        return self.clustering == "opened"

    def check_round(self, max_clients: int) -> None:
        self._check_clients(max_clients, "max_clients is")
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
                f"of {clients} clients there are {self.clusters_among(clients)} clusters: {error}"
            ) from error

    def _check_exposure(self, coin: bytes, clients: int) -> None:
        """Raise ConfigError if a client's update follows from the sums, unless that is accepted."""
        found = exposed(coin, clients, self.clusters_among(clients), self.reclusterings)
        if found.clients and not self.accept_leak:
            raise ConfigError(
                f"the updates of {len(found.clients)} of {clients} clients would follow from the "
                f"opened sums of {self.reclusterings} reclusterings, whose matrix has rank "
                f"{found.rank}: ask for fewer reclusterings or clustering hidden, or accept_leak"
            )

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of the clients that take part, in their order.

        Raises ConfigError if they do not fill one cluster, or one weighs more than the cap allows.
        """
        self._check_clients(len(clients), "those who take part are")
        return super().weights_of(clients)

    def _check_clients(self, clients: int, what: str) -> None:
        if clients < self.clusters:
            raise ConfigError(
                f"a cluster has {self.clusters} clients, and {what} {clients}: "
                "ask for smaller clusters or more clients"
            )

    # The sizes of a round

    def headroom(self, max_clients: int) -> int:
        most = self.max_total(max_clients) * self.clusters_among(max_clients) * self.reclusterings
        return (most - 1).bit_length()

    def clusters_among(self, clients: int) -> int:
        """Return c, the clusters of each reclustering of so many clients."""
        return max(1, clients // self.clusters)

    def averaged(self, clusters: int) -> int:
        """Return of how many clusters' sums the aggregate is the sum."""
        if self.aggregator == MEDIAN:
            return 1
        return clusters - 2 * self._dropped(clusters)

    def _dropped(self, clusters: int) -> int:
        return trimmed_mean.dropped(clusters, self._trim)

    @property
    def _trim(self) -> float:
        return self.trim if self.aggregator == TRIMMED_MEAN else 0.0

    # What clients share

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        return super().encode(_difference(vector, published), max_clients, published)

    # The protocol

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits, clients = self.bits_for(chunk.max_clients), len(chunk.weights)
        sums = self._sums(party, chunk)
        if self._opens:
            self._check_exposure(chunk.coin, clients)
            by_cluster = RingShare(sums.transpose(1, 0, 2).reshape(-1, chunk.dim))
            sums_opened: PublicValues = open_ring(party, by_cluster, bits)
            return sums_opened
        # one more axis of coordinates for the reclusterings
        flat = RingShare(sums.reshape(len(sums), -1))
        if self.aggregator == MEDIAN:
            found = pairwise.median(party, flat, bits, "oblivious", batch=self.group(chunk))
        else:
            found = trimmed_mean.kept_sum(party, flat, bits, self._trim, self.group(chunk))
        by_reclustering = found.reshape(self.reclusterings, chunk.dim)
        total = RingShare(ring.reduce(by_reclustering.sum(axis=0, dtype=found.dtype)[None], bits))
        opened: PublicValues = open_ring(party, total, bits)
        return self._rescaled(opened, bits, clients)

    def _sums(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of the clusters' sums in all reclusterings, shape (c, R, dim)."""
        rows = chunk.rows(party)
        with party.reading_uploads():
            weighted = rows * np.array(chunk.weights, np.uint64).astype(rows.dtype)[:, None]
            return RingShare(sums_over(weighted, self.members(chunk.coin, len(rows))))

    def members(self, coin: bytes, clients: int) -> list[Members]:
        """Return who is in each cluster of each reclustering: [r][j] are the clients' places."""
        return draw(coin, clients, self.clusters_among(clients), self.reclusterings)

    def _rescaled(self, opened: PublicValues, bits: int, clients: int) -> PublicValues:
        """Return opened sums of aggregates, `_scaled`."""
        scaled = self._scaled(ring.signed(opened, bits), clients)
        return PublicValues(ring.reduce(scaled, bits))

    def _scaled(self, opened: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
        """Return floor(c / k sum_r A_r), of aggregates that are sums of k clusters' sums.

        It is R W times the mean movement. Everybody who knows the weight W decodes it.
        """
        count = self.clusters_among(clients)
        return opened * count // self.averaged(count)

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        bits, count = self.bits_for(max_clients), self.clusters_among(len(weights))
        coordinates = self.reclusterings * dim
        if self._opens:
            return Demand()
        if self.aggregator == MEDIAN:
            return pairwise.demand(coordinates, bits, "oblivious", [1] * count)
        return trimmed_mean.demand(coordinates, count, bits, self._trim)

    def at_once(self, clients: int) -> int:
        count = self.clusters_among(clients)
        return self.reclusterings * (count if self._opens else order.pairs(count))

    def opened_rows(self, total: int) -> int:
        return self.reclusterings * self.clusters_among(total) if self._opens else 1

    # The result

    @property
    def opened(self) -> str:
        if self._opens:
            return "the sum of the updates of every cluster in every reclustering"
        return "the sum of the aggregates of all reclusterings"

    @property
    def kind(self) -> str:
        return "mean"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        numbers = self.numbers(values)
        if self._opens:
            return self._combined(numbers, total, published)
        return self._moved(numbers, total, published)

    def in_the_clear(
        self,
        updates: NDArray[Any],
        weights: Sequence[int],
        published: Published,
        max_clients: int,
    ) -> NDArray[Any]:
        whole = self.whole_numbers(_difference(updates, published), max_clients)
        weighted = whole * np.array(weights, np.int64)[:, None]
        sums = sums_over(weighted, self.members(published.coin, len(updates)))
        if self._opens:
            in_order = np.concatenate(list(sums.transpose(1, 0, 2))) / 2.0**self.fraction_bits
            return self._combined(in_order, len(updates), published)
        ranked, count = np.sort(sums, axis=0), len(sums)
        if self.aggregator == MEDIAN:
            aggregates = ranked[(count - 1) // 2]
        else:
            dropped = self._dropped(count)
            aggregates = ranked[dropped : count - dropped].sum(axis=0)
        scaled = self._scaled(aggregates.sum(axis=0), len(updates))
        return self._moved(scaled[None] / 2.0**self.fraction_bits, sum(weights), published)

    def _moved(
        self, movement: NDArray[np.float64], total: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the model after a movement that is given as R W times its mean."""
        before = 0.0 if published.model is None else published.model.astype(np.float64)
        return before + self.eta * (movement / (self.reclusterings * total))

    def _combined(
        self, sums: NDArray[np.float64], clients: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the model after a movement by the aggregates of opened sums (R c, d)."""
        by_reclustering = np.split(sums, self.reclusterings)
        # what averages to the mean of all clients, for clusters of any sizes
        scale = self.clusters_among(clients) / clients
        aggregates = [self._in_the_clear(each * scale) for each in by_reclustering]
        total = np.stack(aggregates).sum(axis=0, dtype=np.float64)
        return self._moved(total[None] * clients, clients, published)

    def _in_the_clear(self, vectors: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the aggregate of the clusters' vectors (c, d). Raises InputError for too few."""
        trimmed = self.aggregator == TRIMMED_MEAN
        faulty = self._dropped(len(vectors)) if trimmed else self.faulty_clusters
        return AGGREGATORS[self.aggregator](vectors, faulty)

    @classmethod
    def warm_up(cls) -> Sequence[Self]:
        return [
            cls(ring_bits=bits, fraction_bits=0, clusters=1, aggregator=aggregator, trim=0.4)
            for bits in (8, 16, 32, 64)
            for aggregator in (MEDIAN, TRIMMED_MEAN)
        ]

    @property
    def detail(self) -> str:
        opened = " opened" if self._opens else ""
        return f"{self.aggregator} m={self.clusters} r={self.reclusterings}{opened}"


def _difference(vectors: NDArray[Any], published: Published) -> NDArray[np.float64]:
    """Return the differences of vectors (.., d) to the global model, or to 0 if there is none."""
    values = np.asarray(vectors, np.float64)
    return values if published.model is None else values - published.model.astype(np.float64)
