"""The loop of `Client.fit`: load a round's model, train it, submit, and load the result."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.clients.connection import Progress, Report
from securemedian.clients.sender import REFUSED
from securemedian.clients.upload import Round
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    InputError,
    NotStored,
    ServerUnreachable,
)

if TYPE_CHECKING:
    from securemedian.clients.client import Client

Metrics = Mapping[str, float]

# what costs a client one round, and nothing beyond it
_ROUND_LOST = (*REFUSED, NotStored, ServerUnreachable)


def fit(
    client: "Client",
    model: Any,
    train: Callable[[Any], object],
    rounds: int | None,
    timeout_s: float | None,
    report: Report,
    progress: Progress,
    public_metrics: Callable[[Any], Metrics] | None,
    loss: Callable[[Any], float] | None,
) -> int:
    """Take part in rounds as `Client.fit` says, and return in how many."""
    # whether `model` holds a result, which is known to the clients alone in some rounds
    trained = False
    done = 0
    while rounds is None or done < rounds:
        report("waiting for a round to open")
        try:
            current = client.wait_for_round(timeout_s)
        except ChannelTimeout as error:
            if rounds is not None:
                raise
            report(f"{error}: the training ends after {done} rounds")
            return done
        name = f"round {current.round_id}"
        if current.params.exchange.fixed is not None:
            raise ConfigError(
                f"{name} exchanges {current.params.exchange.name}, and fit() parameters: "
                "call wait_for_round(), submit() and result() in a loop of your own"
            )
        private = current.params.result_to == "clients"
        goes_on = private and trained and current.number > 1
        # the one that an upload from before a restart is for
        group = client.chosen_group(current.round_id)
        if group is None:
            group = _choose(current, model, loss)
        mine = current.of_group(group)
        if mine.model is not None and not goes_on:
            mine.load_into(model)
        start, _ = updates.flatten(model)
        try:
            if current.submitted:
                report(f"{name}: an upload of yours is stored already, waiting for the result")
            else:
                metrics: Metrics = {}
                if not current.dealing_lost:
                    report(f"{name}: training")
                    train(model)
                    metrics = public_metrics(model) if public_metrics else {}
                client.submit(model, current.round_id, progress, metrics, group)
                report(f"{name}: submitted, waiting for the result")
            result, _ = updates.flatten(client.result(current.round_id, group=group))
            updates.load(result, model)
        except _ROUND_LOST as error:
            updates.load(start, model)
            report(f"going on to the next round: {error}")
            continue
        trained = True
        done += 1
        stays = group in client.unchanged_groups(current.round_id)
        report(
            f"{name}: too few clients have chosen group {group}, its model stays"
            if stays
            else f"{name}: the result is loaded"
        )
    return done


def _choose(current: Round, model: Any, loss: Callable[[Any], float] | None) -> int:
    """Return the group whose model has the smallest loss, which `model` is used to compute."""
    if current.params.method.groups == 1:
        return 0
    if loss is None:
        raise InputError(
            f"round {current.round_id} has {current.params.method.groups} groups: give fit() the "
            "function `loss`, which says how well a model fits your data"
        )

    def loss_of(vector: NDArray[np.float32]) -> float:
        updates.load(vector, model)
        return loss(model)

    return current.choose(loss_of)
