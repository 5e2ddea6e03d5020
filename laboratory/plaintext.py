"""A round's result computed in the clear, to compare with, and two plain yardsticks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.rounds import aggregators
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.params import RoundParams


def published(
    updates: NDArray[Any],
    params: RoundParams,
    before: Published,
    weights: Sequence[int] | None = None,
    *,
    groups: Sequence[int] | None = None,
    coin: bytes = b"",
) -> NDArray[np.float32]:
    """Return the results that a round must publish, of shape (ranks, d).

    `updates` (n, d) are those of the included clients in the servers' order, `weights` their
    weights (1 each if None), and `before` is what was published for the round. In a round of
    several groups `groups` says which one each client chose; one of fewer than `min_clients` keeps
    its model. `coin` is what was tossed for it, for methods that toss.
    """
    if params.method.groups > 1:
        chosen = np.asarray(groups)
        return np.concatenate(
            [
                _of_group(updates[chosen == group], params, before.of_group(group))
                for group in range(params.method.groups)
            ]
        )
    weights, published = weights or [1] * len(updates), replace(before, coin=coin)
    clear = Clear(updates, weights, published, params.max_clients)
    results = params.method.in_the_clear(clear)
    return np.asarray(params.exchange.result(results), np.float32)


def _of_group(updates: NDArray[Any], params: RoundParams, before: Published) -> NDArray[np.float32]:
    if len(updates) >= params.min_clients:
        alone = [1] * len(updates)
        results = params.method.in_the_clear(Clear(updates, alone, before, params.max_clients))
        return np.asarray(results, np.float32)
    assert before.model is not None
    return before.model[None]


def mean(updates: NDArray[Any]) -> NDArray[np.float32]:
    """Return the mean of the updates (n, d), which one faulty client can move at will."""
    return aggregators.mean(updates, 0)


def median(updates: NDArray[Any]) -> NDArray[np.float32]:
    """Return the exact lower median of each coordinate of the updates (n, d)."""
    return aggregators.median(updates, 0)
