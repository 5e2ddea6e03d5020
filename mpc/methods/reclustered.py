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

Only sum_r A_r is opened. None of the c R sums ever is: from R = 4 on, with n = 60 and M = 3, every
client's update would follow from them by linear equations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.arrays import PublicValues, Ring, RingShare
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.dealing import Permutation
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.methods import order, pairwise, trimmed_mean
from securemedian.mpc.methods.base import Chunk, FixedPoint, Published, Weighted
from securemedian.mpc.methods.reveal import open_ring
from securemedian.mpc.options import check_number, check_whole, option
from securemedian.mpc.party import Party
from securemedian.mpc.prg import Stream

MEDIAN, TRIMMED_MEAN, MEAN = "median", "trimmed-mean", "mean"


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
    aggregator: str = option(
        MEDIAN,
        choices=(MEDIAN, TRIMMED_MEAN, MEAN),
        text="what combines the sums of the clusters (default: median)",
    )
    trim: float = option(
        0.1,
        metavar="BETA",
        text="with aggregator trimmed-mean: floor(BETA c) of the c clusters are dropped at either "
        "end (default: 0.1)",
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
        check_number("eta", self.eta, 0, 1e6, "above 0 and at most 1e6")

    def check_round(self, max_clients: int) -> None:
        self._check_clients(max_clients, "max_clients is")
        super().check_round(max_clients)

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
            return RingShare(_cluster_sums(weighted, self.members(chunk.coin, len(rows))))

    def members(self, coin: bytes, clients: int) -> list[list[NDArray[np.intp]]]:
        """Return who is in each cluster of each reclustering: [r][j] are the clients' places.

        They are drawn from `coin`, 16 bytes.
        """
        clusters = self.clusters_among(clients)
        orders = [
            Permutation.uniform(Stream(coin, nonce=number), clients).order.astype(np.intp)
            for number in range(self.reclusterings)
        ]
        return [[drawn[cluster::clusters] for cluster in range(clusters)] for drawn in orders]

    def _rescaled(self, opened: PublicValues, bits: int, clients: int) -> PublicValues:
        """Return opened sums of aggregates, `_scaled`."""
        scaled = self._scaled(ring.signed(opened, bits), clients)
        return PublicValues(ring.reduce(scaled, bits))

    def _scaled(self, opened: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
        """Return floor(c / k sum_r A_r), of aggregates that are sums of k clusters' sums.

        It is R W times the mean movement. Everybody who knows the weight W decodes it.
        """
        clusters = self.clusters_among(clients)
        return opened * clusters // self.averaged(clusters)

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        bits, clusters = self.bits_for(max_clients), self.clusters_among(len(weights))
        coordinates = self.reclusterings * dim
        if self.aggregator == MEDIAN:
            return pairwise.demand(coordinates, bits, "oblivious", [1] * clusters)
        return trimmed_mean.demand(coordinates, clusters, bits, self._trim)

    def at_once(self, clients: int) -> int:
        return self.reclusterings * order.pairs(self.clusters_among(clients))

    # The result

    @property
    def opened(self) -> str:
        return "the sum of the aggregates of all reclusterings"

    @property
    def kind(self) -> str:
        return "mean"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self._moved(self.numbers(values), total, published)

    def in_the_clear(
        self,
        updates: NDArray[Any],
        weights: Sequence[int],
        published: Published,
        max_clients: int,
    ) -> NDArray[Any]:
        whole = self.whole_numbers(_difference(updates, published), max_clients)
        weighted = whole * np.array(weights, np.int64)[:, None]
        sums = _cluster_sums(weighted, self.members(published.coin, len(updates)))
        clusters = len(sums)
        ranked = np.sort(sums, axis=0)
        if self.aggregator == MEDIAN:
            aggregates = ranked[(clusters - 1) // 2]
        else:
            dropped = self._dropped(clusters)
            aggregates = ranked[dropped : clusters - dropped].sum(axis=0)
        scaled = self._scaled(aggregates.sum(axis=0), len(updates))
        return self._moved(scaled[None] / 2.0**self.fraction_bits, sum(weights), published)

    def _moved(
        self, movement: NDArray[np.float64], total: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the model after a movement that is given as R W times its mean."""
        before = 0.0 if published.model is None else published.model.astype(np.float64)
        return before + self.eta * (movement / (self.reclusterings * total))

    @classmethod
    def warm_up(cls) -> Sequence[Self]:
        return [
            cls(ring_bits=bits, fraction_bits=0, clusters=1, aggregator=aggregator, trim=0.4)
            for bits in (8, 16, 32, 64)
            for aggregator in (MEDIAN, TRIMMED_MEAN)
        ]

    @property
    def detail(self) -> str:
        return f"{self.aggregator} m={self.clusters} r={self.reclusterings}"


def _difference(vectors: NDArray[Any], published: Published) -> NDArray[np.float64]:
    """Return the differences of vectors (.., d) to the global model, or to 0 if there is none."""
    values = np.asarray(vectors, np.float64)
    return values if published.model is None else values - published.model.astype(np.float64)


def _cluster_sums(
    rows: NDArray[Any], members: Sequence[Sequence[NDArray[np.intp]]]
) -> NDArray[Any]:
    """Return the sums of rows (n, d) over clusters, shape (c, R, d), modulo their dtype.

    `members` are those of each cluster of each reclustering.
    """
    return np.stack(
        [[rows[those].sum(axis=0, dtype=rows.dtype) for those in clusters] for clusters in members],
        axis=1,
    )
