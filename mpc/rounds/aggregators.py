"""Aggregators of vectors in the clear, for sums that are opened, and to compare the median with.

Each takes the updates (n, d) of n clients, of which f may be faulty, and returns one vector (d,).
Those that do not depend on f ignore it. Each raises InputError if it needs more updates. A new one
is a function with its line in `AGGREGATORS`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import ring

Updates = NDArray[Any]
Vector = NDArray[np.float32]
Matrix = NDArray[np.float64]

# the step of the multiplicative weights, the largest for which their regret bound holds
_STEP = 0.5
# after so many, an update with the largest loss weighs e^-25 of one without any loss
_ROUNDS = 50
# weights that sum to 1 have converged when none changes by more
_ARRIVED = 1e-12
# rounds until they have, at most; in practice it takes hundreds
_LIMIT = 10_000


def mean(updates: Updates, f: int) -> Vector:
    """Return the average, which one faulty client can move at will."""
    _need(updates, f, 1, "the mean", "1")
    return np.asarray(updates.mean(axis=0, dtype=np.float64), np.float32)


def median(updates: Updates, f: int) -> Vector:
    """Return the median of each coordinate, as the service does: for an even n the lower one."""
    _need(updates, f, 1, "the median", "1")
    return np.asarray(np.sort(updates, axis=0)[ring.median_rank(len(updates)) - 1], np.float32)


def trimmed_mean(updates: Updates, f: int) -> Vector:
    """Return the mean of each coordinate without its f smallest and f largest values.

    See Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
    Statistical Rates" (ICML 2018).
    """
    n = _need(updates, f, 2 * f + 1, "the trimmed mean", "2 f + 1")
    return mean(np.sort(updates, axis=0)[f : n - f], f)


def krum(updates: Updates, f: int) -> Vector:
    """Return the update closest to its n - f - 2 nearest others, by the sum of squared distances.

    See Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries" (NeurIPS
    2017).
    """
    n = _need(updates, f, 2 * f + 3, "Krum", "2 f + 3")
    return np.asarray(
        updates[np.argmin(_scores(_squared_distances(updates), n - f - 2))], np.float32
    )


def multi_krum(updates: Updates, f: int) -> Vector:
    """Return the mean of the m = n - f - 2 updates with the smallest Krum scores.

    That is the largest m for which resilience is shown (Damaskinos et al., "AggregaThor", MLSys
    2019). With m = 1 this would be Krum.
    """
    n = _need(updates, f, 2 * f + 3, "Multi-Krum", "2 f + 3")
    scores = _scores(_squared_distances(updates), n - f - 2)
    return mean(updates[np.argsort(scores, kind="stable")[: n - f - 2]], f)


def bulyan(updates: Updates, f: int) -> Vector:
    """Return the aggregate of Bulyan with Krum.

    See El Mhamdi, Guerraoui and Rouault, "The Hidden Vulnerability of Distributed Learning in
    Byzantium" (ICML 2018). Krum selects an update theta = n - 2 f times, each time among those that
    are left. The result is, in each coordinate, the mean of the theta - 2 f selected values closest
    to the median of the selected values. Krum on r updates looks at r - f - 2 neighbours; where so
    few updates are left that this is none, it looks at the nearest one.
    """
    n = _need(updates, f, 4 * f + 3, "Bulyan", "4 f + 3")
    distances, left = _squared_distances(updates), list(range(n))
    for _ in range(n - 2 * f):
        scores = _scores(distances[np.ix_(left, left)], max(len(left) - f - 2, 1))
        left.pop(int(np.argmin(scores)))
    selected = np.sort(np.delete(np.asarray(updates), left, axis=0), axis=0)
    order = np.argsort(np.abs(selected - median(selected, f)), axis=0, kind="stable")
    return mean(np.take_along_axis(selected, order[: n - 4 * f], axis=0), f)


def weights_average(updates: Updates, f: int) -> Vector:
    """Return the weighted average under multiplicative weights.

    It is MWUAvg in the comparison of Chang et al., "Cronus" (2019). That is the multiplicative
    weights update (Arora, Hazan and Kale, Theory of Computing 2012) with the clients as experts. At
    first, all weigh the same. An update's loss is its distance from the weighted average, divided
    by the largest such distance, and its weight is multiplied by exp(-loss / 2). That is repeated
    50 times.
    """
    n, squared = _need(updates, f, 1, "the weighted average", "1"), _squared_distances(updates)
    weights = np.full(n, 1 / n)
    for _ in range(_ROUNDS):
        distances = np.sqrt(_from_average(squared, weights))
        if not distances.any():
            break
        weights *= np.exp(-_STEP * distances / distances.max())
        weights /= weights.sum()
    return _average(updates, weights)


def weights_optimisation(updates: Updates, f: int) -> Vector:
    """Return the weighted average whose weights are found by optimisation.

    It is MWUOpt in the same comparison, which is truth discovery (Li, Li, Gao, Zhao, Fan and Han,
    "Resolving Conflicts in Heterogeneous Data", SIGMOD 2014). The result x and the weights v
    minimise sum v_i |x_i - x|^2 such that sum exp(-v_i) = 1. Starting from the plain mean, each is
    computed from the other until the weights converge. For given weights, x is the weighted
    average. For given x, v_i = -log(|x_i - x|^2 / sum_j |x_j - x|^2).
    """
    n, squared = _need(updates, f, 1, "the weighted average", "1"), _squared_distances(updates)
    weights = np.full(n, 1 / n)
    for _ in range(_LIMIT):
        losses = _from_average(squared, weights)
        if not losses.any():
            break
        # without a floor, an update at x itself would have an infinite weight
        logs = -np.log(np.maximum(losses / losses.sum(), np.finfo(np.float64).eps))
        before, weights = weights, logs / logs.sum()
        if np.abs(weights - before).max() < _ARRIVED:
            break
    return _average(updates, weights)


AGGREGATORS: dict[str, Callable[[Updates, int], Vector]] = {
    "mean": mean,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "weights-average": weights_average,
    "weights-optimisation": weights_optimisation,
}


def _need(updates: Updates, f: int, least: int, name: str, formula: str) -> int:
    """Return the number of updates; raise InputError if it is below `least`, given by `formula`."""
    if f < 0:
        raise InputError(f"invalid number of faulty clients: {f}; give 0 or more")
    if len(updates) < least:
        number = formula if formula == f"{least}" else f"{formula} = {least}"
        raise InputError(
            f"too few updates for {name} with f = {f} faulty clients: {len(updates)}; give {number}"
        )
    return len(updates)


def _squared_distances(updates: Updates) -> Matrix:
    """Return the squared distances between all pairs of updates, (n, n).

    They are computed row by row, so that the memory stays at O(n d).
    """
    rows = np.asarray(updates, np.float64)
    squared = np.zeros((len(rows), len(rows)))
    for i in range(1, len(rows)):
        differences = rows[:i] - rows[i]
        squared[i, :i] = squared[:i, i] = np.einsum("ij,ij->i", differences, differences)
    return squared


def _scores(squared: Matrix, neighbours: int) -> NDArray[np.float64]:
    """Return each update's Krum score: the sum of its squared distances to its nearest others."""
    # the smallest distance of each row is that of the update to itself, 0
    return np.sort(squared, axis=1)[:, 1 : neighbours + 1].sum(axis=1)


def _from_average(squared: Matrix, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return each update's squared distance from the weighted average, for weights that sum to 1.

    It follows from the distances between the updates alone:
    |x_i - sum_j w_j x_j|^2 = sum_j w_j |x_i - x_j|^2 - sum_jk w_j w_k |x_j - x_k|^2 / 2.
    """
    from_all = squared @ weights
    return np.maximum(from_all - weights @ from_all / 2, 0.0)


def _average(updates: Updates, weights: NDArray[np.float64]) -> Vector:
    return np.asarray(weights @ np.asarray(updates, np.float64), np.float32)
