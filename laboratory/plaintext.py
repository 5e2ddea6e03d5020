"""What a round computes, in the clear, to compare results with; and the yardsticks of robustness."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.methods.base import Published
from securemedian.mpc.params import RoundParams


def published(
    updates: NDArray[Any],
    params: RoundParams,
    model: NDArray[np.float32] | None,
    width: NDArray[np.float32] | None,
    weights: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """Return the results (ranks, d) that a round must publish for the updates (n, d) of the
    included clients, which weigh `weights`, given the model and range it started from.
    """
    results = params.method.in_the_clear(
        updates, weights or [1] * len(updates), Published(model, width), params.max_clients
    )
    return np.asarray(results, np.float32)


def mean(updates: NDArray[Any]) -> NDArray[np.float32]:
    """Return the plain average, which one faulty client can move at will."""
    return np.asarray(updates.mean(axis=0, dtype=np.float64), np.float32)


def median(updates: NDArray[Any]) -> NDArray[np.float32]:
    """Return the exact lower median of each coordinate."""
    return np.asarray(np.sort(updates, axis=0)[ring.median_rank(len(updates)) - 1], np.float32)
