"""The open round for which a client makes an update: found, and with the model to train from."""

from typing import Any

from securemedian.clients.connection import Service
from securemedian.clients.journal import Journal
from securemedian.clients.outcomes import Outcomes
from securemedian.clients.upload import Round
from securemedian.common.model_form import ModelForm
from securemedian.mpc.errors import (
    InputError,
    PeerProtocolError,
    RoundClosed,
    UnknownRound,
    quoted,
)
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams


def ask_form(
    service: Service, round_id: str, params: RoundParams, own: str, timeout_s: float | None = None
) -> ModelForm | None:
    """Return the form of a round's models at S0; without one, `own` becomes the round's.

    `own` is the text of this client's form, or "". Raises PeerProtocolError.
    """
    fields = {"round": round_id, "model_form": own}
    text = service.ask("form", fields, timeout_s=timeout_s).fields.get("model_form")
    try:
        if not isinstance(text, str):
            raise InputError(f"not a text: {quoted(text)}; give a string")
        return ModelForm.parse(text, params.dim) if text else None
    except InputError as error:
        raise PeerProtocolError(f"S0 sent no form of round {round_id}: {error}") from error


class Lookup:
    """Asks S0 for rounds, and deletes from `journal` what was kept for rounds that have ended."""

    def __init__(self, service: Service, outcomes: Outcomes, journal: Journal) -> None:
        self._service, self._outcomes, self._journal = service, outcomes, journal

    def new(self, seen: str) -> Round | None:
        """Return the open round if it is not `seen`, or has an upload that is still to be sent."""
        try:
            # without an answer the caller asks again
            found = self._service.latest(0.0)
            known = found["round"] == seen and not self._journal.submission(seen)
            if found["state"] != "open" or known:
                return None
            return self._round(found, 0.0)
        # there has been no round yet, or it has ended between the two requests
        except (UnknownRound, RoundClosed):
            return None

    def named(self, round_id: str) -> Round:
        """Return the round with this id. Raises RoundClosed if it is not open."""
        return self._round(self.open_round(round_id), trained=True)

    def open_round(self, round_id: str = "", timeout_s: float | None = None) -> dict[str, Any]:
        """Return what S0 says about an open round, by default the latest. Raises RoundClosed."""
        found = self._service.latest(timeout_s)
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

    def _round(
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
            state = self._outcomes.run_before(found["round"], start, timeout_s)
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
            part=params.part_of(self._service.keys.public.decode()),
            submitted=submitted,
            dealing_lost=bool(found.get("dealt")) and not submitted and not kept,
        )

    def _form(
        self, found: dict[str, Any], params: RoundParams, timeout_s: float | None
    ) -> ModelForm | None:
        """Return the form of a round's models, if S0 has one. Raises PeerProtocolError."""
        if not (digest := found.get("model_form")):
            return None
        form = ask_form(self._service, found["round"], params, "", timeout_s)
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
                state = self._service.status(round_id, timeout_s).state
            except UnknownRound:
                state = "forgotten"
            if state in ("published", "failed", "forgotten"):
                self._journal.forget(round_id)
