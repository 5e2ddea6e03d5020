"""A round's result computed in the clear, to compare with, and two plain yardsticks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.receipts import for_those_left
from securemedian.common.status import RoundStatus
from securemedian.mpc.protocols import ring
from securemedian.mpc.rounds import aggregators
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.norms import RangeCheck
from securemedian.mpc.rounds.params import RoundParams

# options that name clients, whom servers name by their keys
_NAMING = ("weights", "validator")


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


def computed(asked: RoundParams, status: RoundStatus) -> RoundParams:
    """Return what a round was computed with: as S0 opened it, for those who were not left out.

    Clients are named in it as in what was `asked`.
    """
    method = asked.method
    named = {name: getattr(method, name) for name in _NAMING if hasattr(method, name)}
    opened = RoundParams.from_dict(status.params | named)
    return for_those_left(opened, status.left_out.values())


def agrees(results: NDArray[Any], clear: NDArray[Any], params: RoundParams, clients: int) -> bool:
    """Return whether what a round has published is what it must publish, bit by bit.

    With noise it is whether the noise explains the difference, which it does not once in 10^40.
    """
    if noise := params.method.noise.deviation / clients:
        return bool(np.allclose(results, clear, rtol=1e-6, atol=15 * noise))
    return np.array_equal(results, clear)


def passed(
    updates: NDArray[Any],
    params: RoundParams,
    before: Published,
    coin: bytes,
    clients: Sequence[str] = (),
) -> list[bool]:
    """Return which updates (n, d) pass the check by sketches, where the round has one.

    Those that do not are left out of it. `coin` is what was tossed, and `clients` names whose the
    updates are, in a round with weights.
    """
    check = params.form.check
    if not isinstance(check, RangeCheck):
        return [True] * len(updates)
    method, most = params.method, params.max_clients
    weights = [method.weighing.one(client) for client in clients or [""] * len(updates)]
    each = zip(updates, method.weighing.parts(weights), strict=True)
    shared = [method.encode(one, most, replace(before, part=part)) for one, part in each]
    return check.passed(ring.signed(np.concatenate(shared), params.form.layout.bits), coin, weights)


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
