"""Byzantine-robust IFCA on a mixture of linear models, as in Section 6 of Tao, Yang and Kulkarni.

There are m clients, PER_GROUP for each of the k groups. Each has POINTS data points
y = <x, theta_j> + noise, with x from N(0, I_d), noise of variance NOISE, and theta_j from
Bernoulli(1/2) scaled to length 1.
A part ALPHA of them is faulty: the data of each follow a vector of its own, of length 3, and it
sends the gradient at 3 theta. The experiment measures dist, the mean over the groups of
|theta_hat_j - theta_j|.

All of it is computed in the clear: a round through S0 and S1 gives the same median of the same
updates (tests/test_group_rounds.py). The paper does not say how it starts. Here each theta_j begins
at a random point: NEAR times as far from the true one as the two nearest true ones are from each
other. The Three-Stage algorithm (Ghosh et al., 2019) descends from zeros.

An iteration ends with the projection on vectors of length up to LONGEST, which the paper does not
fix. A descent ends before its last iteration where it has SETTLED.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.experiments.runs import Design
from securemedian.laboratory.plots import Line, Panel, Picture
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.protocols.ring import median_rank
from securemedian.mpc.rounds.methods.trimmed_mean import dropped

PER_GROUP, POINTS = 40, 100
ALPHA, TRIM, NOISE = 0.05, 0.05, 0.2
NEAR = 0.4
# of gradient descent on |y - X theta|^2 / POINTS, whose Hessian has the mean 2 I
STEP = 0.1
# of the mixture's vectors, which are the faulty clients'
LONGEST = 3.0
# steps of the clustering of the Three-Stage algorithm, and the number of its starts
STAGE_TWO, RESTARTS = 100, 10
# no coordinate of a model moves farther in an iteration
SETTLED = 1e-5

Vectors = Float32s | NDArray[np.float64]
Indices = NDArray[np.int64]
Combine = Callable[[Vectors], Vectors]


@dataclass(frozen=True)
class Mixture:
    """The clients' data, and what they were drawn from."""

    # (k, d)
    truth: Float32s
    # (m, POINTS, d) and (m, POINTS)
    inputs: Float32s
    outputs: Float32s
    # the last of the clients
    faulty: int

    @classmethod
    def draw(cls, groups: int, dim: int, rng: np.random.Generator) -> "Mixture":
        clients = PER_GROUP * groups
        faulty = round(ALPHA * clients)
        truth = _directions(groups, dim, rng)
        own = truth[np.arange(clients) % groups]
        own[clients - faulty :] = LONGEST * _directions(faulty, dim, rng)
        inputs = rng.standard_normal((clients, POINTS, dim), np.float32)
        outputs = np.matmul(inputs, own[..., None])[..., 0]
        outputs += rng.normal(0, NOISE**0.5, outputs.shape).astype(np.float32)
        return cls(truth, inputs, outputs, faulty)

    @property
    def clients(self) -> int:
        return len(self.outputs)

    def near(self, rng: np.random.Generator) -> Float32s:
        """Return where the models start, (k, d)."""
        apart = np.linalg.norm(self.truth[:, None] - self.truth[None], axis=2)
        least = apart[~np.eye(len(apart), dtype=bool)].min()
        away = rng.normal(size=self.truth.shape)
        away *= NEAR * least / np.linalg.norm(away, axis=1, keepdims=True)
        return (self.truth + away).astype(np.float32)

    def predictions(self, models: Float32s) -> Float32s:
        """Return what each model (k, d) predicts of each data point, (m, POINTS, k)."""
        dim = self.inputs.shape[2]
        predicted = self.inputs.reshape(-1, dim) @ models.T
        return predicted.reshape(self.clients, POINTS, len(models))

    def chosen(self, predictions: Float32s) -> Indices:
        """Return which model has the smallest loss at each client, of all models' predictions."""
        errors = predictions - self.outputs[..., None]
        return np.asarray(np.einsum("cpk,cpk->ck", errors, errors).argmin(axis=1))

    def gradients(self, predictions: Float32s, chosen: Indices) -> Float32s:
        """Return what each client sends for the model that it chose, (m, d)."""
        errors = np.take_along_axis(predictions, chosen[:, None, None], axis=2)[..., 0]
        # theirs are those of a model 3 times as long
        errors[self.clients - self.faulty :] *= 3
        errors -= self.outputs
        sums = np.matmul(errors[:, None], self.inputs)[:, 0]
        return np.asarray(np.float32(2 / POINTS) * sums)

    def minimisers(self) -> NDArray[np.float64]:
        """Return the least-squares solution of each client, of least norm, (m, d)."""
        return np.stack([_solved(*own) for own in zip(self.inputs, self.outputs, strict=True)])

    def distance(self, models: Vectors) -> float:
        """Return dist of the models (k, d), matched with the true ones as fits best."""
        from scipy.optimize import linear_sum_assignment

        apart = np.linalg.norm(self.truth[:, None] - models[None], axis=2)
        return float(apart[linear_sum_assignment(apart)].mean())


def median(updates: Vectors) -> Vectors:
    return np.asarray(np.sort(updates, axis=0)[median_rank(len(updates)) - 1])


def trimmed_mean(updates: Vectors) -> Vectors:
    """Return the mean of each coordinate without the part TRIM of the updates at either end."""
    ends = dropped(len(updates), TRIM)
    return np.asarray(np.sort(updates, axis=0)[ends : len(updates) - ends].mean(axis=0))


def mean(updates: Vectors) -> Vectors:
    return np.asarray(updates.mean(axis=0))


def ifca(data: Mixture, start: Float32s, combine: Combine, iterations: int) -> Float32s:
    """Return the models (k, d) after so many iterations, before each of which clients choose."""
    return _descended(data, start, data.chosen, combine, iterations)


def three_stage(data: Mixture, iterations: int, rng: np.random.Generator) -> Float32s:
    """Return the models (k, d) of the Three-Stage algorithm: solve, cluster once, then descend."""
    clusters = trimmed_k_means(data.minimisers(), len(data.truth), rng)
    start = np.zeros_like(data.truth)
    return _descended(data, start, lambda _: clusters, trimmed_mean, iterations)


def trimmed_k_means(points: NDArray[np.float64], count: int, rng: np.random.Generator) -> Indices:
    """Return which of `count` clusters each point is in, where the farthest move no centre.

    The part ALPHA of the points that is farthest from its centre is left out of each step. It is
    begun at points drawn at random, RESTARTS times, and that with the nearest points is taken.
    """
    kept = len(points) - dropped(len(points), ALPHA)
    best, least = points[:count], np.inf
    for _ in range(RESTARTS):
        centres = points[rng.choice(len(points), count, replace=False)]
        for _ in range(STAGE_TWO):
            apart = _apart(points, centres)
            near = np.argsort(apart.min(axis=1), kind="stable")[:kept]
            own = apart.argmin(axis=1)[near]
            moved = np.stack(
                [
                    points[near][own == centre].mean(axis=0) if (own == centre).any() else old
                    for centre, old in enumerate(centres)
                ]
            )
            if np.array_equal(moved, centres):
                break
            centres = moved
        total = float(np.sort(_apart(points, centres).min(axis=1) ** 2)[:kept].sum())
        if total < least:
            best, least = centres, total
    return np.asarray(_apart(points, best).argmin(axis=1))


def find(design: Design) -> list[dict[str, Any]]:
    """Return per k and d the mean of dist over the seeds, and its standard error, by method."""
    found = []
    for groups in design.groups:
        for dim in design.dims:
            trials = [_trial(groups, dim, design.rounds, seed) for seed in design.seeds]
            row: dict[str, Any] = {"groups": groups, "clients": PER_GROUP * groups, "dim": dim}
            for name in trials[0]:
                values = np.array([trial[name] for trial in trials])
                error = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
                row[name] = {"dist": float(values.mean()), "error": float(error)}
            found.append(row)
    return found


def picture(design: Design, found: Sequence[dict[str, Any]]) -> Picture:
    panels = [
        _panel(
            f"k = {groups}, {PER_GROUP * groups} clients",
            "d",
            "dim",
            [row for row in found if row["groups"] == groups],
        )
        for groups in design.groups
    ]
    most = max(design.dims)
    panels.append(_panel(f"d = {most}", "k", "groups", [r for r in found if r["dim"] == most]))
    return panels


def _trial(groups: int, dim: int, iterations: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng((seed, groups, dim))
    data = Mixture.draw(groups, dim, rng)
    start = data.near(rng)
    found = {
        name: data.distance(ifca(data, start, combine, iterations))
        for name, combine in (("median", median), ("trimmed mean", trimmed_mean), ("mean", mean))
    }
    return found | {"three-stage": data.distance(three_stage(data, iterations, rng))}


def _descended(
    data: Mixture,
    start: Float32s,
    groups_of: Callable[[Float32s], Indices],
    combine: Combine,
    iterations: int,
) -> Float32s:
    """Return the models (k, d) after steps down the combined gradients of the clients of each.

    `groups_of` says which model each client's gradient is of, by all models' predictions.
    """
    models = start
    for _ in range(iterations):
        predictions = data.predictions(models)
        groups = groups_of(predictions)
        sent = data.gradients(predictions, groups)
        before, models = models, models.copy()
        for group in range(len(models)):
            if (groups == group).any():
                models[group] -= np.float32(STEP) * combine(sent[groups == group])
        lengths = np.linalg.norm(models, axis=1, keepdims=True)
        models *= np.float32(LONGEST) / np.maximum(lengths, np.float32(LONGEST))
        if np.abs(models - before).max() <= SETTLED:
            break
    return models


def _solved(inputs: Float32s, outputs: Float32s) -> NDArray[np.float64]:
    """Return the least-squares solution of least norm (d,) of inputs (points, d) of full rank."""
    x, y = inputs.astype(np.float64), outputs.astype(np.float64)
    points, dim = x.shape
    if dim <= points:
        return np.asarray(np.linalg.solve(x.T @ x, x.T @ y))
    return np.asarray(x.T @ np.linalg.solve(x @ x.T, y))


def _directions(count: int, dim: int, rng: np.random.Generator) -> Float32s:
    """Return vectors (count, dim) of 0 and 1, no two alike and none zero, scaled to length 1."""
    drawn = rng.integers(0, 2, (count, dim))
    while not drawn.any(axis=1).all() or len(np.unique(drawn, axis=0)) < count:
        drawn = rng.integers(0, 2, (count, dim))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def _apart(points: Vectors, centres: Vectors) -> Vectors:
    squares = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * points @ centres.T
    return np.asarray(np.sqrt(np.maximum(squares, 0)))


def _panel(title: str, label: str, key: str, rows: Sequence[dict[str, Any]]) -> Panel:
    lines = []
    for name in ("median", "trimmed mean", "mean", "three-stage"):
        points = [(row[key], row[name]["dist"], row[name]["error"]) for row in rows]
        x, y, error = zip(*points, strict=True)
        low = [value - wide for value, wide in zip(y, error, strict=True)]
        high = [value + wide for value, wide in zip(y, error, strict=True)]
        lines.append(Line(name, x, y, low, high))
    return Panel(title, label, "dist", lines, log_y=True)
