"""The open round for which a client makes an update: found, and with the model to train from."""

from typing import Any

from securemedian.clients.journal import Journal
from securemedian.clients.outcomes import Outcomes
from securemedian.clients.service import Service
from securemedian.clients.upload import Round
from securemedian.mpc.errors import RoundClosed, UnknownRound
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams


class Lookup:
    """Asks S0 for rounds, and deletes from `journal` what was kept for rounds that have ended."""

    def __init__(self, service: Service, outcomes: Outcomes, journal: Journal) -> None:
        self._service, self._outcomes, self._journal = service, outcomes, journal

    def new(self, seen: str) -> Round | None:
        """Return the open round if it is not `seen`, or has an upload that is still to be sent."""
        try:
            # the caller asks again if there is no answer
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
                f"round {round_id} takes no uploads: the latest round is {found['round']}"
            )
        if found["state"] != "open":
            raise RoundClosed(f"round {found['round']} is {found['state']} and takes no uploads")
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
        # otherwise the values lie around constants, and there is no model
        of_model = params.exchange.fixed is None
        if of_model and (params.uses_model or not trained):
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
            part=params.part_of(self._service.keys.public.decode()),
            submitted=submitted,
            dealing_lost=bool(found.get("dealt")) and not submitted and not kept,
        )

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
