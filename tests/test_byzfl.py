"""Krum and nearest neighbours in the clear, against ByzFL's own implementations.

ByzFL counts one neighbour more in a score than Blanchard et al. The tests therefore ask for it by
ByzFL's count, n - f - 1. ByzFL takes the mean of distances, which orders as their sum. If scores
tie, ByzFL takes any of those that tie; the test accepts each of theirs.
"""

import importlib
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.rounds.methods import nearest

# of whole numbers, so that distances are exact in float64
STEPS = 2.0**-10


@pytest.fixture(scope="module")
def byzfl() -> Iterator[Any]:
    """ByzFL's aggregators: its own first module asks for torchvision, seaborn and more."""
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    found = importlib.util.find_spec("byzfl")
    if found is None or found.origin is None:
        pytest.skip("byzfl is not installed")
    bare = ModuleType("byzfl")
    bare.__path__ = list(found.submodule_search_locations or [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl", bare)
        yield importlib.import_module("byzfl.aggregators")


def drawn(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return updates (n, 30): random ones, or few different ones, whose distances tie."""
    updates = rng.integers(-(2**12), 2**12, (n, 30)) * STEPS
    return updates[rng.integers(0, 3, n)] if kind == "tied" else updates


def squared(updates: np.ndarray) -> np.ndarray:
    whole = (updates / STEPS).astype(np.int64)
    return ((whole[:, None] - whole[None]) ** 2).sum(axis=2)


CASES = [(kind, n, f) for kind in ("random", "tied") for n, f in ((4, 1), (7, 2), (10, 3), (15, 7))]


@pytest.mark.parametrize(("kind", "n", "f"), CASES)
def test_multi_krum_averages_the_same_clients(byzfl: Any, kind: str, n: int, f: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(25):
        updates = drawn(kind, n, rng)
        scores = nearest.scores_in_the_clear(squared(updates), n - f - 1)
        got = byzfl.MultiKrum(f)(updates)
        assert any(np.allclose(got, mean) for mean in means(updates, scores, n - f))
        got = byzfl.Krum(f)(updates)
        assert any((got == updates[i]).all() for i in np.flatnonzero(scores == scores.min()))


def means(updates: np.ndarray, scores: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the mean of the updates with the smallest scores, for each choice among the last."""
    last = np.sort(scores)[count - 1]
    sure, tied = np.flatnonzero(scores < last), np.flatnonzero(scores == last)
    chosen = itertools.combinations(tied.tolist(), count - len(sure))
    # equal updates are as good as each other
    kinds = {tuple(sorted(map(tuple, updates[list(some)]))): some for some in chosen}
    return [updates[[*sure, *some]].mean(axis=0) for some in kinds.values()]


@pytest.mark.parametrize(("kind", "n", "f"), CASES)
def test_the_means_of_neighbours_are_the_same(byzfl: Any, kind: str, n: int, f: int) -> None:
    rng = np.random.default_rng(n)
    for _ in range(25):
        updates = drawn(kind, n, rng)
        apart = squared(updates)
        near = nearest.nearest_in_the_clear(apart, n - f)
        assert near.diagonal().all() and (near.sum(axis=1) == n - f).all()
        for i, got in enumerate(byzfl.NNM(f)(updates)):
            assert any(np.allclose(got, mean) for mean in means(updates, apart[i], n - f))
            ours = updates[near[i]].mean(axis=0)
            assert any(np.allclose(ours, mean) for mean in means(updates, apart[i], n - f))
