"""The ways to combine updates: by a method of the servers, or by an aggregator in the clear.

A new aggregator is a function in `AGGREGATORS`; a new way to use the servers is a `Secure` in
`SECURE`. Among all their names, an experiment's `--methods` choose.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.protocols.dealing import MAX_BUCKETS
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds import clusters
from securemedian.mpc.rounds.aggregators import AGGREGATORS, mean, trimmed_mean
from securemedian.mpc.rounds.methods.reclustered import HIDDEN, MEDIAN, TRIMMED_MEAN
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.uneven import FollowRange, LogRange, Sizes
from securemedian.mpc.rounds.ranges.uniform import ConstantRange, CoordinateRange

# the policy of a method without buckets, on whose results it has no influence
CONSTANT = ConstantRange()


class FineRange(FollowRange):
    """The policy `follow` with 16 buckets that are narrower, and finer around the scale."""

    name = "follow-fine"

    def later(self, buckets: int) -> Sizes:
        return Sizes(
            edges=(0.125, 0.25, 0.5, 0.75, 1, 1.5, 2.5),
            values=(0.06, 0.19, 0.37, 0.62, 0.87, 1.25, 2, 2.5),
            factors=(0.35, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 4),
        )


# Cronus' practical variant drops points twice, half of the faulty fraction each time
PASSES = 2


def filtered_mean(
    predictions: NDArray[np.float32], f: int, classes: int, bound: float | None = None
) -> NDArray[np.float64]:
    """Return the robust mean (d,) of n clients' predictions (n, d), of which f may be faulty.

    This is the spectral filter (Diakonikolas et al., ICML 2017) of Chang et al., "Cronus" (2019),
    on a point in `classes` dimensions per client and sample. While the largest eigenvalue of the
    covariance is above `bound` (by default f / n), and twice at most, it drops ceil(f / 2) points.
    These are the farthest from the mean along the eigenvector. Raises InputError if no point would
    be left.
    """
    n, drop = len(predictions), ceil(f / 2)
    if n <= PASSES * drop:
        raise InputError(
            f"the spectral filter drops up to {PASSES * drop} points for f = {f} faulty "
            f"clients: {n} points; give more"
        )
    limit = f / n if bound is None else bound
    # (samples, clients, classes)
    points = predictions.reshape(n, -1, classes).transpose(1, 0, 2).astype(np.float64)
    kept = np.ones(points.shape[:2], np.bool_)
    for _ in range(PASSES if drop else 0):
        weights = kept / kept.sum(axis=1, keepdims=True)
        centred = points - np.einsum("sn,snc->sc", weights, points)[:, None]
        covariances = np.einsum("sn,sni,snj->sij", weights, centred, centred)
        values, vectors = np.linalg.eigh(covariances)
        # eigenvalues ascend
        along = np.abs(np.einsum("snc,sc->sn", centred, vectors[:, :, -1]))
        farthest = np.argsort(np.where(kept, -along, np.inf), axis=1, kind="stable")[:, :drop]
        dropped = np.zeros_like(kept)
        np.put_along_axis(dropped, farthest, True, axis=1)
        kept &= ~(dropped & (values[:, -1] > limit)[:, None])
    means = np.einsum("sn,snc->sc", kept / kept.sum(axis=1, keepdims=True), points)
    return np.asarray(means.reshape(-1))


@dataclass(frozen=True)
class Secure:
    """A way to use S0 and S1, with its label in plots.

    `options` are a method's name and those of its options that differ from their defaults, as in
    `RoundParams.from_dict`; some depend on how many of how many clients attack. `policy` sets the
    bucket range. `usual` says whether it is compared
    where an experiment is on all methods.
    """

    label: str
    options: Mapping[str, Any]
    policy: RangePolicy = field(default=CONSTANT)
    usual: bool = True
    # whether it combines predictions on a public set, and not parameters
    predictions: bool = False
    # options for the attackers that are expected, and the clients
    expecting: Callable[[int, int], Mapping[str, Any]] = lambda attackers, clients: {}

    def options_for(self, attackers: int, clients: int) -> dict[str, Any]:
        """Return all options where so many of the clients may attack."""
        return {**self.options, **self.expecting(attackers, clients)}


SECURE: dict[str, Secure] = {
    "radix": Secure("exact median (radix)", {"method": "radix"}),
    # its results are those of radix
    "pairwise": Secure("exact median (pairwise)", {"method": "pairwise"}, usual=False),
    "bucketed": Secure("bucketed median", {"method": "bucketed"}, FollowRange()),
    "bucketed-paper": Secure(
        "bucketed median, the paper's range",
        {"method": "bucketed", "buckets": 8},
        CoordinateRange(0.1, 0.1),
    ),
    **{
        f"{policy.name}-{buckets}": Secure(
            f"{policy.name}, b = {buckets}",
            # more are not dealt; the results are the same
            {"method": "bucketed", "buckets": buckets}
            | ({"uploads": "unverified"} if buckets > MAX_BUCKETS else {}),
            policy,
            usual=False,
        )
        for buckets, policy in (
            # so few buckets cannot reach as far
            (8, FollowRange(lowest=1e-3, highest=1e3)),
            (32, FollowRange()),
            (16, FineRange()),
            (32, LogRange(1e-5, 600.0)),
            (64, LogRange()),
        )
    },
    "cronus": Secure(
        "median of predictions (radix, 8 bits)",
        {"method": "radix", "encoding": "unit", "word_bits": 8},
        usual=False,
        predictions=True,
    ),
    "cronus-bucketed": Secure(
        "median of predictions (bucketed)", {"method": "bucketed"}, usual=False, predictions=True
    ),
}


def _expecting(label: str, method: str, name: str, trims: bool = False, **options: Any) -> Secure:
    """Return a method whose option `name` is how many attackers are expected."""

    def expecting(attackers: int, clients: int) -> dict[str, Any]:
        trim = {"trim": min(attackers / clients, 0.49)} if trims else {}
        return ({name: attackers} if name else {}) | trim

    return Secure(label, {"method": method} | options, usual=False, expecting=expecting)


# methods of the experiment on ByzFL's protocol, for the attackers that are expected
ROBUST = {
    "bounded-mean": _expecting("mean, norms bounded", "mean", ""),
    "trimmed-mean-service": _expecting("trimmed mean", "trimmed-mean", "", trims=True),
    "krum-service": _expecting("Krum", "krum", "faulty", chosen=1),
    "multi-krum-service": _expecting("Multi-Krum", "krum", "faulty"),
    "neighbours-trimmed-mean": _expecting(
        "neighbours, then trimmed mean", "trimmed-mean", "neighbours", trims=True
    ),
    "neighbours-median": _expecting("neighbours, then median", "pairwise", "neighbours"),
}
SECURE |= ROBUST

# clients with networks of their own, each without the others
ALONE = "alone"
# the ways to combine predictions (n, d) in the clear, by how many of them may be attackers' and the
# number of classes
PREDICTED: dict[str, Callable[[NDArray[np.float32], int, int], NDArray[Any]]] = {
    "predictions-mean": lambda sent, f, classes: sent.mean(axis=0, dtype=np.float64),
    "predictions-spectral": filtered_mean,
}


def _share(aggregator: str, size: int, reclusterings: int) -> tuple[str, Secure]:
    """Return SHARE with an aggregator on clusters of `size` clients, and its name."""
    options: dict[str, Any] = {
        "method": "reclustered",
        "aggregator": aggregator,
        "clusters": size,
        "reclusterings": reclusterings,
        # the paper's, which drops two thirds
        "trim": 0.34,
    }
    if aggregator == "zeno":
        # the first client is honest; its update stands for a step on validation data
        options = {
            "method": "zeno",
            "clusters": size,
            "reclusterings": reclusterings,
            "validator": "client-1",
            # honest clients of the digits are within, and sign flips beyond
            "rho": 0.1,
            "epsilon": 0.02,
        }
    elif aggregator not in HIDDEN:
        options |= {"clustering": "opened", "accept_leak": True, "faulty_clusters": 3}
    label = f"SHARE, {aggregator}, m = {size}, R = {reclusterings}"
    return f"share-{aggregator}-m{size}-r{reclusterings}", Secure(label, options, usual=False)


SHARE_BY_SIZE = dict(
    _share(aggregator, size, reclusterings)
    for aggregator in (MEDIAN, TRIMMED_MEAN, "krum", "zeno")
    for size, reclusterings in ((1, 1), (3, 4), (5, 4))
)
SHARE_BY_RECLUSTERINGS = dict(
    _share(aggregator, 3, reclusterings)
    for aggregator in (MEDIAN, TRIMMED_MEAN)
    for reclusterings in (1, 4, 10)
)
SECURE |= SHARE_BY_SIZE | SHARE_BY_RECLUSTERINGS


def _fixed(updates: NDArray[np.float32], f: int) -> NDArray[np.float32]:
    """Return the trimmed mean of the means of clusters of five that are the same in each round.

    It drops two thirds of the clusters, however many clients `f` are faulty (SHARE's Figure 9).
    """
    clients = len(updates)
    (members,) = clusters.draw(bytes(SEED_BYTES), clients, max(1, clients // 5), 1)
    means = np.stack([mean(updates[those], 0) for those in members])
    return trimmed_mean(means, (len(means) - 1) // 3)


# compared with SHARE alone, and in the clear
FIXED = {"fixed-trimmed-mean-m5": _fixed}

# those whose result is the exact median
EXACT = ("radix", "pairwise", "median")


def names() -> list[str]:
    clear = [name for name in AGGREGATORS if name not in SECURE]
    return [*SECURE, *clear, *FIXED, *PREDICTED, ALONE]


def usual() -> list[str]:
    """Return the names of those that an experiment on all methods compares."""
    return [
        name
        for name in names()
        if not is_of_predictions(name)
        and name not in FIXED
        and (name not in SECURE or SECURE[name].usual)
    ]


def label(name: str) -> str:
    """Return the label of a line in a plot, which says so if the servers never compute it."""
    return SECURE[name].label if name in SECURE else f"{name}, in the clear"


def is_of_predictions(name: str) -> bool:
    """Return whether clients have networks of their own in this way, and predict a public set."""
    return name in (*PREDICTED, ALONE) or (name in SECURE and SECURE[name].predictions)


def has_range(name: str) -> bool:
    """Return whether this way to combine updates depends on the bucket range."""
    secure = SECURE.get(name)
    if secure is None or secure.predictions:
        return False
    options = dict(secure.options)
    return METHODS[options.pop("method")](**options).form(1, 1 << 10).buckets > 0


def combine(
    name: str, updates: NDArray[np.float32], attackers: int, weights: Sequence[int] = ()
) -> NDArray[np.float32]:
    """Return an aggregator's result (d,) for updates (n, d), of which so many may be attackers'.

    With `weights`, which only the mean takes, it is FedAvg.
    """
    # an attack may overflow: `execution` then finds that the run has diverged
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "mean" and weights:
            return np.average(updates.astype(np.float64), 0, weights).astype(np.float32)
        return np.asarray((AGGREGATORS | FIXED)[name](updates, attackers), np.float32)


def check(name: str, clients: int, attackers: int) -> None:
    """Raise an error unless this way exists and takes so many attackers among so many clients.

    The error is a ConfigError for an unknown name, and an aggregator's InputError for its numbers.
    """
    if name not in names():
        raise ConfigError(f"unknown method: {name!r}; choose from {', '.join(names())}")
    if name in PREDICTED:
        PREDICTED[name](np.zeros((clients, 2), np.float32), attackers, 2)
    elif name not in (*SECURE, ALONE):
        combine(
            name, np.random.default_rng(0).normal(size=(clients, 2)).astype(np.float32), attackers
        )
