"""The common part of methods on sums over random clusters of clients (SHARE).

See Velicheti, Xia and Koyejo, "Secure Byzantine-Robust Distributed Learning via Clustering",
Algorithm 1, and protocols.md section 6. A client's update is the difference of its vector to the
global model g, times its public weight w_i, at most 1, by which it scales what it shares
(`base.Weighted`). In each of R reclusterings the n clients are divided at random into
c = floor(n / M) clusters, the first n mod c of one client more:

    S_rj = sum of w_i Delta_i over cluster j,    A_r = aggregate of S_r1, .., S_rc,
    g' = g + eta c / (R W) sum_r A_r,            W = sum_i w_i.

c / W makes an average of the sums FedAvg's (the paper's Lemma 1). Clients upload once. When the
round is closed, the servers toss a coin (`dealing.toss`), from which all partitions are drawn, so
that nobody chooses his cluster. The sums are local.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, check_whole, option
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.clusters import Members, divisions, draw
from securemedian.mpc.rounds.methods.base import Form, Published, Weighted
from securemedian.mpc.rounds.methods.fixed import FixedPoint


@dataclass(frozen=True, kw_only=True)
class Clustered(Weighted, FixedPoint):
    """A method on the sums of the updates of random clusters, in several reclusterings."""

    kind = "mean"
    checks_values = True

    clusters: int = option(
        2,
        metavar="M",
        text="clients per cluster, up to one more where M does not divide their number "
        "(default: 2)",
    )
    reclusterings: int = option(
        1,
        metavar="R",
        text="random divisions into clusters, over which the result is averaged (default: 1)",
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
        check_number("eta", self.eta, 0, 1e6, "a number above 0 and at most 1e6")

    def check_round(self, max_clients: int) -> None:
        self.check_filled(max_clients, "max_clients is")
        super().check_round(max_clients)

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of the clients that take part, in their order.

        Raises ConfigError if they do not fill one cluster, or one weighs more than a third of all.
        """
        self.check_filled(len(clients), "those who take part are")
        return super().weights_of(clients)

    def check_filled(self, clients: int, what: str) -> None:
        """Raise ConfigError if so many clients do not fill one cluster; `what` names them.

        Also if there are so few divisions of them that some would be drawn again and again.
        SECURITY: how often each is drawn would be its weight in what is opened, and tell digits.
        """
        if clients < self.clusters:
            raise ConfigError(
                f"too few clients for a cluster of {self.clusters}: {what} {clients}; ask for "
                "smaller clusters or more clients"
            )
        count = divisions(clients, self.clusters_among(clients))
        if 1 < count < math.comb(self.reclusterings, 2):
            raise ConfigError(
                f"{what} {clients}, of whom there are too few divisions into clusters for "
                f"{self.reclusterings} reclusterings: {count}; ask for fewer, or have more "
                "clients"
            )

    def clusters_among(self, clients: int) -> int:
        """Return c, the clusters of each reclustering of so many clients."""
        return max(1, clients // self.clusters)

    def headroom(self, max_clients: int) -> int:
        most = max_clients * self.clusters_among(max_clients) * self.reclusterings
        return (most - 1).bit_length()

    def form(self, dim: int, max_clients: int) -> Form:
        form = super().form(dim, max_clients)
        assert form.value_range is not None
        differences = replace(form.value_range, differences=True)
        return replace(form, value_range=differences, differences=True, tosses=True)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        scaled = self.difference(vector, published) * published.part
        return super().encode(scaled, max_clients, published)

    def difference(self, vectors: NDArray[Any], published: Published) -> NDArray[np.float64]:
        """Return the differences of vectors (.., d) to the global model, to 0 if there is none."""
        values = np.asarray(vectors, np.float64)
        return values if published.model is None else values - published.model.astype(np.float64)

    def sums(self, rows: NDArray[Any], coin: bytes) -> NDArray[Any]:
        """Return the sums (c, R, d) of rows (n, d) over all clusters, modulo their dtype."""
        drawn = self.members(coin, len(rows))
        sums = [
            [rows[those].sum(axis=0, dtype=rows.dtype) for those in members] for members in drawn
        ]
        return np.stack(sums, axis=1)

    def members(self, coin: bytes, clients: int) -> list[Members]:
        """Return who is in each cluster: per reclustering and cluster, the clients' places."""
        return draw(coin, clients, self.clusters_among(clients), self.reclusterings)

    def cluster_sums(self, party: Party, rows: RingShare, coin: bytes) -> RingShare:
        """Return shares of what `sums` returns, from those of updates (n, d)."""
        with party.reading_uploads():
            return RingShare(self.sums(rows, coin))

    def model_after(
        self, movement: NDArray[np.float64], total: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the model after a movement that is given as R W times its mean.

        `total` is W times what the heaviest client weighs.
        """
        before = 0.0 if published.model is None else published.model.astype(np.float64)
        return before + self.eta * (movement / (self.reclusterings * self.weighing.scaled(total)))


def summed(found: RingShare, rows: int) -> RingShare:
    """Return shares of the sum of so many rows, taken from any shape, shape (1, d)."""
    by_row = found.reshape(rows, -1)
    return RingShare(by_row.sum(axis=0, dtype=found.dtype)[None])
