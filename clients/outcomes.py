"""The receipts and results of rounds: waited for, checked (`results`) and decoded."""

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import results, upload
from securemedian.clients.results import RecentRuns
from securemedian.clients.service import Limit, Service
from securemedian.common.receipts import Receipt, for_those_left
from securemedian.mpc.errors import ReceiptInvalid, RoundFailed, ServerUnreachable, UnknownRound
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState, finish

# Returns what the receipt of a round must fit: the digest of the run that this side trained from,
# and its public key if both servers have confirmed its upload. Each is empty otherwise.
Trained = Callable[[str], tuple[bytes | None, str]]


def untrained(round_id: str) -> tuple[bytes | None, str]:
    """Return what a receipt must fit where nobody trains: nothing."""
    return None, ""


class Outcomes:
    """Fetches receipts and results, and keeps the latest runs."""

    def __init__(self, service: Service, trained: Trained) -> None:
        self._service, self._trained = service, trained
        self._recent = RecentRuns()
        # which server is asked for values: one or the other, as the key has it, so that both
        # servers' links carry the same load
        self._source = service.keys.public[-1] % 2
        # of the round whose results were fetched last, the groups without one
        self._unchanged_groups: tuple[str, list[int]] = "", []

    def run_before(self, round_id: str, digest: bytes, timeout_s: float | None = None) -> RunState:
        """Return the run with this digest. Raises ReceiptInvalid if S0 sends another one."""
        state = self._recent.find(digest)
        if state is None:
            answer = self._service.ask("model", {"round": round_id}, timeout_s=timeout_s)
            state = results.run_of(answer, round_id, digest)
        self._recent.keep(state)
        return state

    def receipt(self, round_id: str, limit: Limit) -> Receipt:
        """Wait for a round's result and return its receipt."""
        answers = self._answers(round_id, limit, values=False)
        return self._checked(round_id, answers, self._service.params(round_id, limit.left_s))

    def fetch(
        self, round_id: str, limit: Limit, params: RoundParams
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """Wait for all results of a round and return them, checked, shape (results, d)."""
        if params.result_to != "clients":
            # the new model may be a part of them
            return self.finish(round_id, limit, params)[1].copy()
        answers = self._answers(round_id, limit, both=True)
        record = self._checked(round_id, answers, params).record
        if start := self._recent.find(record.start):
            self._recent.keep(start.counted())
        one, other = (answers[party].arrays.get("share", np.empty(0)) for party in (0, 1))
        return upload.combine(one, other, params)[None]

    def finish(
        self, round_id: str, limit: Limit, params: RoundParams
    ) -> tuple[RunState, NDArray[np.float32]]:
        """Wait for a round, and return the run after it and its results, shape (results, d)."""
        answers = self._answers(round_id, limit)
        record = self._checked(round_id, answers, params).record
        start = self.run_before(round_id, record.start, limit.left_s)
        party = next((party for party in answers if answers[party].arrays), 0)
        opened = results.opened_of(answers[party], party, record, params)
        total = results.total_of(record, params)
        computed = for_those_left(params, record.reasons)
        after, published = finish(start, computed, opened, total, record.groups)
        with_result = params.published_groups(opened, record.groups)
        every = range(params.method.groups)
        self._unchanged_groups = round_id, [group for group in every if group not in with_result]
        self._recent.keep(after)
        return after, published

    def unchanged_groups(self, round_id: str, limit: Limit) -> list[int]:
        """Wait for a round's results and return the groups, 0-based, without one."""
        if self._unchanged_groups[0] != round_id:
            self.fetch(round_id, limit, self._service.params(round_id, limit.left_s))
        return list(self._unchanged_groups[1])

    def _checked(
        self, round_id: str, answers: Mapping[int, wire.Message], params: RoundParams
    ) -> Receipt:
        """Return the receipt in the answers, which fits the round as this side knows it."""
        config = self._service.config
        for party, answer in answers.items():
            results.check_form(answer, party, round_id, params)
        receipt = results.agreed(answers, [config.s0.signing_key, config.s1.signing_key])
        results.check_record(
            receipt.record, config.cohort, round_id, params, *self._trained(round_id)
        )
        return receipt

    def _answers(
        self, round_id: str, limit: Limit, values: bool = True, both: bool = False
    ) -> dict[int, wire.Message]:
        """Return the answers by party once a round is published, of both servers if they are there.

        With `values` one of them has the values, with `both` each: then both servers must answer.
        Otherwise one is enough, because it has the signatures of both. Waits for S0, which leads,
        or for S1 if S0 is away. Raises RoundFailed, with the reason, if the round has failed.
        """
        what = f"round {round_id} was not published"

        def ask(party: int, wanted: bool) -> dict[int, wire.Message] | None:
            fields = {"round": round_id, "values": wanted}
            try:
                message = self._service.servers[party].ask("result", fields)
            except RoundFailed as error:
                raise RoundFailed(f"round {round_id} has no result: {error}") from None
            return None if message.fields.get("form") == "pending" else {party: message}

        def disagreement(party: int) -> ReceiptInvalid:
            return ReceiptInvalid(
                f"S{party} has a result of round {round_id}, and S{1 - party} says that the round "
                "has failed: nothing is taken over. Ask who runs the servers"
            )

        def first() -> dict[int, wire.Message] | None:
            try:
                return ask(0, both or (values and self._source == 0))
            except RoundFailed:
                with suppress(ServerUnreachable, UnknownRound, RoundFailed):
                    if ask(1, False):
                        raise disagreement(1) from None
                raise
            except (ServerUnreachable, UnknownRound) as error:
                try:
                    return ask(1, values)
                except (ServerUnreachable, UnknownRound):
                    raise error from None

        waiting = f"the result of round {round_id} from S0 and S1"
        answers = self._service.wait(0, first, limit, what, waiting)
        (party,) = answers

        def second() -> dict[int, wire.Message] | None:
            try:
                return ask(1 - party, both or (values and not answers[party].arrays))
            except RoundFailed:
                raise disagreement(party) from None
            except (ServerUnreachable, UnknownRound):
                if both:
                    raise
                return {}

        answers |= self._service.wait(1 - party, second, limit, what, waiting)
        if values and not any(answer.arrays for answer in answers.values()):
            answers |= ask(party, values) or {}
        return answers
