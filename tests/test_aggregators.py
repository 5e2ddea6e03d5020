"""The plain aggregators against their papers' definitions, written out slowly."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

# of the plaintext functionalities that they share
from securemedian.mpc.errors import InputError
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from tests.conftest import needs

needs("torch")

DIM = 40
ROBUST = [name for name in AGGREGATORS if name != "mean"]


def near(n: int, seed: int = 1, dim: int = DIM) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return (rng.normal(0, 1, dim) + rng.normal(0, 0.1, (n, dim))).astype(np.float32)


def squared(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def scores(vectors: list[list[float]], neighbours: int) -> list[float]:
    """Krum's, of each vector, by the definition."""
    return [
        sum(sorted(squared(x, y) for j, y in enumerate(vectors) if j != i)[:neighbours])
        for i, x in enumerate(vectors)
    ]


def average(vectors: list[list[float]], weights: list[float]) -> list[float]:
    return [
        sum(w * x for w, x in zip(weights, column, strict=True)) / sum(weights)
        for column in zip(*vectors, strict=True)
    ]


def lower_median(values: list[float]) -> float:
    return sorted(values)[math.ceil(len(values) / 2) - 1]


class Slow:
    """Each aggregator, by the definition; lists of Python floats, no matrix in sight."""

    @staticmethod
    def mean(vectors: list[list[float]], f: int) -> list[float]:
        return average(vectors, [1.0] * len(vectors))

    @staticmethod
    def median(vectors: list[list[float]], f: int) -> list[float]:
        return [lower_median(list(column)) for column in zip(*vectors, strict=True)]

    @staticmethod
    def trimmed_mean(vectors: list[list[float]], f: int) -> list[float]:
        kept = [sorted(column)[f : len(vectors) - f] for column in zip(*vectors, strict=True)]
        return [sum(values) / len(values) for values in kept]

    @staticmethod
    def krum(vectors: list[list[float]], f: int) -> list[float]:
        by_score = scores(vectors, len(vectors) - f - 2)
        return vectors[by_score.index(min(by_score))]

    @staticmethod
    def multi_krum(vectors: list[list[float]], f: int) -> list[float]:
        by_score, m = scores(vectors, len(vectors) - f - 2), len(vectors) - f - 2
        best = sorted(range(len(vectors)), key=lambda i: by_score[i])[:m]
        return average([vectors[i] for i in best], [1.0] * m)

    @staticmethod
    def bulyan(vectors: list[list[float]], f: int) -> list[float]:
        left, selected = list(vectors), []
        for _ in range(len(vectors) - 2 * f):
            by_score = scores(left, max(len(left) - f - 2, 1))
            selected.append(left.pop(by_score.index(min(by_score))))
        result = []
        for column in zip(*selected, strict=True):
            middle = lower_median(list(column))
            closest = sorted(column, key=lambda value: abs(value - middle))[: len(selected) - 2 * f]
            result.append(sum(closest) / len(closest))
        return result

    @staticmethod
    def weights_average(vectors: list[list[float]], f: int) -> list[float]:
        weights = [1.0] * len(vectors)
        for _ in range(50):
            center = average(vectors, weights)
            distances = [math.sqrt(squared(x, center)) for x in vectors]
            weights = [
                w * math.exp(-d / max(distances) / 2)
                for w, d in zip(weights, distances, strict=True)
            ]
        return average(vectors, weights)

    @staticmethod
    def weights_optimisation(vectors: list[list[float]], f: int) -> list[float]:
        weights, before = [1.0] * len(vectors), [0.0] * len(vectors)
        while squared(weights, before) > 1e-20:
            center = average(vectors, weights)
            losses = [squared(x, center) for x in vectors]
            weights, before = [-math.log(loss / sum(losses)) for loss in losses], weights
        assert sum(math.exp(-w) for w in weights) == pytest.approx(1)
        return average(vectors, weights)


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize(("n", "f"), [(3, 0), (5, 1), (8, 1), (11, 2)])
def test_against_the_definition(name: str, n: int, f: int) -> None:
    if name == "bulyan" and n < 4 * f + 3:
        n = 4 * f + 3
    slow = getattr(Slow, name.replace("-", "_"))
    for seed, outliers in itertools.product((1, 2), (0, f)):
        updates = near(n, seed)
        updates[:outliers] += (
            np.random.default_rng(seed).normal(0, 200, (outliers, DIM)).astype(np.float32)
        )
        result = AGGREGATORS[name](updates, f)
        assert result.dtype == np.float32
        assert result.shape == (DIM,)
        assert np.allclose(
            result, slow(updates.astype(np.float64).tolist(), f), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("name", AGGREGATORS)
def test_the_order_of_the_clients_does_not_matter(name: str) -> None:
    updates = near(11)
    updates[3] += 5
    kept = updates.copy()
    result = AGGREGATORS[name](updates, 2)
    assert np.array_equal(updates, kept)
    for seed in range(3):
        shuffled = np.random.default_rng(seed).permutation(updates)
        assert np.allclose(AGGREGATORS[name](shuffled, 2), result, atol=1e-6)


@pytest.mark.parametrize("name", ROBUST)
@pytest.mark.parametrize("size", [3.0, 1e3, 1e8])
def test_one_of_ten_does_no_harm(name: str, size: float) -> None:
    """The result stays within the honest updates' spread; the mean does not."""
    updates = near(10)
    updates[4] += np.float32(size)
    honest = np.delete(updates, 4, axis=0)
    harm = np.abs(AGGREGATORS[name](updates, 1) - honest.mean(axis=0)).max()
    assert harm <= np.abs(honest - honest.mean(axis=0)).max() + 1e-6
    assert np.abs(AGGREGATORS["mean"](updates, 1) - honest.mean(axis=0)).max() > 0.09 * size


@pytest.mark.parametrize("name", ["median", "trimmed-mean", "krum", "multi-krum", "bulyan"])
def test_f_colluding_do_no_harm(name: str) -> None:
    updates = near(11)
    # the same, so close to each other
    updates[:2] = updates[2:].mean(axis=0) + np.float32(50)
    harm = AGGREGATORS[name](updates, 2) - updates[2:].mean(axis=0)
    assert np.abs(harm).max() < 0.5


def test_what_fools_the_multiplicative_weights() -> None:
    """One far, one mean: an update at the mean of all seems to be the most reliable one."""
    updates = near(10)
    updates[0] = updates[2:].mean(axis=0) + np.float32(200)
    updates[1] = np.delete(updates, 1, axis=0).mean(axis=0)
    for name in ("weights-average", "weights-optimisation"):
        assert np.abs(AGGREGATORS[name](updates, 2) - updates[2:].mean(axis=0)).min() > 0.25
    assert np.abs(AGGREGATORS["median"](updates, 2) - updates[2:].mean(axis=0)).max() < 0.1


@pytest.mark.parametrize(
    ("name", "n", "f", "said"),
    [
        ("trimmed-mean", 4, 2, "with f = 2 faulty clients: 4; give 2 f + 1 = 5"),
        ("krum", 4, 1, "Krum with f = 1 faulty clients: 4; give 2 f + 3 = 5"),
        ("multi-krum", 6, 2, "2 f + 3 = 7"),
        ("bulyan", 6, 1, "Bulyan with f = 1 faulty clients: 6; give 4 f + 3 = 7"),
        ("krum", 5, -1, "-1; give 0 or more"),
        *((name, 0, 0, "updates") for name in AGGREGATORS),
    ],
)
def test_too_few_updates_are_refused(name: str, n: int, f: int, said: str) -> None:
    with pytest.raises(InputError) as caught:
        AGGREGATORS[name](near(n), f)
    assert said in str(caught.value)


def test_at_the_size_of_a_model() -> None:
    """Take honest updates as large as the MLP's: every result stays among them, none overflows."""
    updates = near(10, dim=199_210)
    for name, aggregate in AGGREGATORS.items():
        result = aggregate(updates, 1)
        assert (
            (result >= updates.min(axis=0) - 1e-6) & (result <= updates.max(axis=0) + 1e-6)
        ).all(), name
