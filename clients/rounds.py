"""The rounds in which a client takes part: found open, and taken one after the other.

for turn in client.rounds(3):
    with turn:
        turn.submit(train(turn.round.model))
        result = turn.result()
"""

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.clients.journal import Journal
from securemedian.clients.member import Member
from securemedian.clients.sharing import REFUSED
from securemedian.clients.spent import UpdateSpent
from securemedian.clients.upload import Round
from securemedian.common.model_form import ModelForm
from securemedian.common.status import TRAINING
from securemedian.mpc.errors import (
    ConfigError,
    InputError,
    NotFinite,
    NotStored,
    PeerProtocolError,
    RoundClosed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
    quoted,
)
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams

if TYPE_CHECKING:
    from securemedian.clients.client import Client

# the errors that cost a client one round, and nothing beyond it
ROUND_LOST: tuple[type[SecureMedianError], ...] = (*REFUSED, NotStored, ServerUnreachable)


def ask_form(
    member: Member, round_id: str, params: RoundParams, own: str, timeout_s: float | None = None
) -> ModelForm | None:
    """Return the form of a round's models at S0; without one, `own` becomes the round's.

    `own` is the text of this client's form, or "". Raises PeerProtocolError.
    """
    fields = {"round": round_id, "model_form": own}
    text = member.ask("form", fields, timeout_s=timeout_s).fields.get("model_form")
    try:
        if not isinstance(text, str):
            raise InputError(f"not a text: {quoted(text)}; give a string")
        return ModelForm.parse(text, params.dim) if text else None
    except InputError as error:
        raise PeerProtocolError(f"S0 sent no form of round {round_id}: {error}") from error


class Lookup:
    """Asks S0 for rounds, and deletes from `journal` what was kept for rounds that have ended."""

    def __init__(self, member: Member, journal: Journal) -> None:
        self._member, self._journal = member, journal

    def new(self, seen: str) -> Round | None:
        """Return the open round if it is not `seen`, or has an upload that is still to be sent."""
        try:
            # without an answer the caller asks again
            found = self._member.latest(0.0)
            known = found["round"] == seen and not self._journal.submission(seen)
            if found["state"] != "open" or known:
                return None
            return self.round_of(found, 0.0)
        # there has been no round yet, or it has ended between the two requests
        except (UnknownRound, RoundClosed):
            return None

    def open_round(self, round_id: str = "", timeout_s: float | None = None) -> dict[str, Any]:
        """Return what S0 says about an open round, by default the latest. Raises RoundClosed."""
        found = self._member.latest(timeout_s)
        if found["round"] != (round_id or found["round"]):
            raise RoundClosed(
                f"round {round_id} takes no uploads: the latest round is {found['round']}; wait "
                "for the next one"
            )
        if found["state"] != "open":
            raise RoundClosed(
                f"round {found['round']} takes no uploads: it is {found['state']}; wait for the "
                "next one"
            )
        return found

    def round_of(
        self, found: dict[str, Any], timeout_s: float | None = None, trained: bool = False
    ) -> Round:
        """Return the round that S0 says; who has `trained` gets no model unless it is needed."""
        self._forget_ended(found["round"], timeout_s)
        submitted = bool(found.get("submitted"))
        kept = found["round"] in self._journal.rounds
        params = RoundParams.from_dict(found["params"])
        start, published = bytes.fromhex(found["start"]), Published(None)
        # otherwise the values lie around constants, and no model is published
        of_model = params.exchange.fixed is None
        if of_model and (params.form.uses_model or not trained):
            state = self._member.run_before(found["round"], start, timeout_s)
            published = state.published_for(params)
        return Round(
            found["round"],
            found["number"],
            params,
            found["index"],
            published.model,
            published.scale,
            published.policy,
            published.groups,
            start,
            self._form(found, params, timeout_s) if of_model else None,
            of_model and "model_form" in found,
            part=params.part_of(self._member.keys.public.decode()),
            submitted=submitted,
            dealing_lost=bool(found.get("dealt")) and not submitted and not kept,
        )

    def _form(
        self, found: dict[str, Any], params: RoundParams, timeout_s: float | None
    ) -> ModelForm | None:
        """Return the form of a round's models, if S0 has one. Raises PeerProtocolError."""
        if not (digest := found.get("model_form")):
            return None
        form = ask_form(self._member, found["round"], params, "", timeout_s)
        if form is None or form.digest != digest:
            raise PeerProtocolError(
                f"S0 sent another form of the model than the one that it says round "
                f"{found['round']} has: nothing was sent"
            )
        return form

    def _forget_ended(self, latest: str, timeout_s: float | None) -> None:
        """Delete what is kept for rounds before the latest, if they have ended."""
        for round_id in self._journal.rounds:
            if round_id == latest:
                continue
            try:
                state = self._member.status(round_id, timeout_s).state
            except UnknownRound:
                state = "forgotten"
            if state in ("published", "failed", "forgotten"):
                self._journal.forget(round_id)


class TrainingFailed(SecureMedianError):
    """The caller's training raised an exception."""

    code = TRAINING


class Turn:
    """One round of a client. As a context it reports an error that costs this round alone.

    A client that cannot submit declines the round, so that nobody waits for it: its update is not
    finite or was voted on before, or its training has failed.
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
        if isinstance(error, NotFinite | TrainingFailed | UpdateSpent):
            self._client.decline(self.round.round_id, error.code)
        elif not isinstance(error, self._lost):
            return False
        self._client.report(f"going on to the next round: {error}")
        return True

    def submit(self, update: Any, **options: Any) -> None:
        """Submit to this round, as `Client.submit`."""
        self._client.submit(update, self.round.round_id, **options)

    def result(self, **options: Any) -> Any:
        """Wait for the result of this round, as `Client.result`."""
        return self._client.result(self.round.round_id, **options)


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


def load_round(
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
