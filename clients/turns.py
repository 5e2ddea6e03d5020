"""The loop in which a client takes part in rounds: `Client.rounds` and, with a model, `Client.fit`.

for turn in client.rounds(3):
    with turn:
        turn.submit(train(turn.round.model))
        result = turn.result()
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.clients.sharing import REFUSED
from securemedian.clients.upload import Round
from securemedian.common.status import TRAINING
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    InputError,
    NotFinite,
    NotStored,
    PolicyRefused,
    SecureMedianError,
    ServerUnreachable,
)

if TYPE_CHECKING:
    from securemedian.clients.client import Client

# the errors that cost a client one round, and nothing beyond it
ROUND_LOST: tuple[type[SecureMedianError], ...] = (*REFUSED, NotStored, ServerUnreachable)


class TrainingFailed(SecureMedianError):
    """The caller's training raised an exception."""

    code = TRAINING


class Turn:
    """One round of a client. As a context it reports an error that costs this round alone.

    A client that cannot submit, because its update is not finite or its training has failed,
    declines the round, so that nobody waits for it.
    """

    def __init__(
        self, client: "Client", current: Round, lost: tuple[type[SecureMedianError], ...]
    ) -> None:
        self.round, self.done = current, False
        self._client, self._lost = client, lost

    def __enter__(self) -> "Turn":
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.done = error is None
        if isinstance(error, NotFinite | TrainingFailed):
            self._client.decline(self.round.round_id, error.code)
        elif not isinstance(error, self._lost):
            return False
        self._client.service.report(f"going on to the next round: {error}")
        return True

    def submit(self, update: Any, **options: Any) -> None:
        """Submit to this round, as `Client.submit`."""
        self._client.submit(update, self.round.round_id, **options)

    def result(self, **options: Any) -> Any:
        """Wait for the result of this round, as `Client.result`."""
        return self._client.result(self.round.round_id, **options)


def rounds(
    client: "Client",
    count: int | None,
    timeout_s: float | None,
    lost: tuple[type[SecureMedianError], ...],
    all_count: bool,
) -> Iterator[Turn]:
    """Yield the turns of a client (`Client.rounds`)."""
    done = 0
    while count is None or done < count:
        try:
            turn = Turn(client, client.wait_for_round(timeout_s), lost)
        except ChannelTimeout as error:
            if count is not None:
                raise
            client.service.report(f"{error}: the training ends after {done} rounds")
            return
        except PolicyRefused as error:
            client.service.report(f"going on to the next round: {error}")
            continue
        yield turn
        done += turn.done or all_count


def trained(
    model: Any,
    train: Callable[[Any], object],
    public_metrics: Callable[[Any], Mapping[str, float]] | None,
    on_error: str,
) -> Mapping[str, float]:
    """Train a model, and return its public metrics. Raises TrainingFailed if errors decline."""
    try:
        train(model)
        return public_metrics(model) if public_metrics else {}
    except Exception as error:
        if on_error == "raise":
            raise
        raise TrainingFailed(repr(error)) from error


def load(
    client: "Client",
    current: Round,
    model: Any,
    loss: Callable[[Any], float] | None,
    keep_local: Sequence[str],
    goes_on: bool,
) -> int:
    """Load the model of a round into `model`, and return the group that is trained.

    If the result is for clients alone, and the model holds the last one (`goes_on`), it stays.
    """
    exchange, method = current.params.exchange, current.params.method
    if exchange.fixed is not None:
        raise ConfigError(
            f"fit() exchanges parameters, and round {current.round_id} exchanges something "
            f"else: {exchange.name}; call wait_for_round(), submit() and result() in a loop of "
            "your own"
        )

    def loss_of(vector: NDArray[np.float32]) -> float:
        assert loss
        updates.load(vector, model, keep_local, current.form)
        return loss(model)

    # the one that an upload from before a restart is for
    group = client.chosen_group(current.round_id)
    if group is None and method.groups > 1:
        if loss is None:
            raise InputError(
                f"a round with {method.groups} groups: {current.round_id}; give fit() the "
                "function `loss`, which says how well a model fits your data"
            )
        group = current.choose(loss_of)
    mine = current.of_group(group or 0)
    private = current.params.method.result_to == "clients" and goes_on and current.number > 1
    if mine.model is not None and not private:
        mine.load_into(model, keep_local)
    return group or 0
