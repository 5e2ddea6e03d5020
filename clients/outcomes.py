"""The receipts and results of rounds: waited for, checked and decoded.

Nothing is taken from one server alone. An answer about a round has its receipt with the signatures
of both. Its parameters, clients, start and opened values must fit the record in that receipt.
Clients decode the values themselves, and compute the next run state.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import upload
from securemedian.clients.connection import Limit, Service
from securemedian.clients.upload import number_of
from securemedian.common.receipts import (
    SERVICE,
    Receipt,
    Record,
    differences,
    digest_of,
    for_those_left,
)
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import (
    ConfigError,
    PeerProtocolError,
    ReceiptInvalid,
    RoundFailed,
    ServerUnreachable,
    TooFewClients,
    UnknownRound,
    quoted,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState, finish

# the start of a round, and the run after it
_RUNS_REMEMBERED = 2
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
        # the server that is asked for values, chosen by the key, so that both servers' links carry
        # the same load
        self._source = service.keys.public[-1] % 2
        # of the round whose results were fetched last, the groups without one
        self._unchanged_groups: tuple[str, list[int]] = "", []

    def run_before(self, round_id: str, digest: bytes, timeout_s: float | None = None) -> RunState:
        """Return the run with this digest. Raises ReceiptInvalid if S0 sends another one."""
        state = self._recent.find(digest)
        if state is None:
            answer = self._service.ask("model", {"round": round_id}, timeout_s=timeout_s)
            state = run_of(answer, round_id, digest)
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
        if params.method.result_to != "clients":
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
        opened = opened_of(answers[party], party, record, params)
        total = total_of(record, params)
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
            check_form(answer, party, round_id, params)
        receipt = agreed(answers, [config.s0.signing_key, config.s1.signing_key])
        check_record(receipt.record, config.cohort, round_id, params, *self._trained(round_id))
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
                f"S{party} has a result of round {round_id}, of which the other server says "
                f"otherwise: S{1 - party} says that it has failed; take nothing over, and ask "
                "both operators"
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


class RecentRuns:
    """Keeps the latest runs by their digests, so that none is downloaded twice."""

    def __init__(self) -> None:
        self._kept: dict[bytes, RunState] = {}

    def find(self, digest: bytes) -> RunState | None:
        return self._kept.get(digest)

    def keep(self, state: RunState) -> None:
        """Keep a run, whose arrays become read-only, and forget the oldest of too many."""
        for array in state.arrays.values():
            array.flags.writeable = False
        self._kept.pop(state.digest, None)
        self._kept[state.digest] = state
        while len(self._kept) > _RUNS_REMEMBERED:
            del self._kept[next(iter(self._kept))]


def run_of(answer: wire.Message, round_id: str, digest: bytes) -> RunState:
    """Return the run a round starts from. Raises ReceiptInvalid if it has another digest."""
    fields, arrays = answer.fields, answer.arrays
    try:
        state = RunState.of_arrays(
            policy_from(fields["policy"]),
            int(fields["number"]) - 1,
            optimiser_from(fields["optimiser"]),
            arrays,
        )
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise PeerProtocolError(f"S0 sent no model of round {round_id}: {error!r:.200}") from error
    if any(array.dtype != np.float32 for array in arrays.values()):
        raise PeerProtocolError(f"S0 sent a model of round {round_id} that is not float32")
    if state.digest != digest:
        raise ReceiptInvalid(
            "S0 sent another model or range than its record of the round starts from: "
            f"{round_id}; ask again, and do not use this one"
        )
    return state


def receipt_of(answer: wire.Message) -> Receipt:
    """Return the unchecked receipt in an answer. Raises ReceiptInvalid if there is none."""
    encoded, signatures = answer.fields.get("record"), answer.fields.get("signatures")
    if not isinstance(encoded, bytes) or not isinstance(signatures, dict):
        raise ReceiptInvalid(
            f"an answer without its receipt: {', '.join(answer.fields) or 'no fields'}; do not use "
            "this result, and ask again"
        )
    given = {str(name): bytes(one) for name, one in signatures.items() if isinstance(one, bytes)}
    return Receipt(encoded, given)


def check_form(answer: wire.Message, party: int, round_id: str, params: RoundParams) -> None:
    """Raise ReceiptInvalid unless an answer has the form that fits the parameters of its round."""
    form = "share" if params.method.result_to == "clients" else "opened"
    said = answer.fields.get("form")
    if said != form or not answer.arrays.keys() <= {form}:
        arrays = ", ".join(answer.arrays) or "none"
        raise ReceiptInvalid(
            f"S{party} gives the result of round {round_id} in another form than {form}: "
            f"{quoted(said)} with the arrays {quoted(arrays)}; do not use it, and ask the "
            "operator"
        )


def agreed(answers: Mapping[int, wire.Message], signing_keys: Sequence[str]) -> Receipt:
    """Return the receipt in the servers' answers. Raises ReceiptInvalid unless both signed one."""
    receipts: dict[int, Receipt] = {}
    for party, answer in answers.items():
        try:
            receipts[party] = receipt_of(answer)
            receipts[party].check(signing_keys)
        except ReceiptInvalid as error:
            raise ReceiptInvalid(f"S{party}'s receipt is invalid: {error}") from error
    if len(receipts) == 2 and receipts[0].encoded != receipts[1].encoded:
        differing = differences(receipts[0].record, receipts[1].record)
        raise ReceiptInvalid(
            f"both servers have signed two records of one round: {receipts[0].record.round}, "
            f"which differ in {differing}; do not use it, and ask both operators"
        )
    return next(iter(receipts.values()))


def check_record(
    record: Record,
    cohort: str,
    round_id: str,
    params: RoundParams,
    start: bytes | None,
    client: str,
) -> None:
    """Check that a record is of this round of this cohort, as this side knows it.

    `start` is the digest of the run that this client trained from, and `client` its public key, if
    it has submitted. Raises ReceiptInvalid if anything differs, and TooFewClients or ConfigError
    if too few clients took part.
    """
    about = record.service, record.round, record.number
    if about != (SERVICE, round_id, number_of(round_id)):
        raise ReceiptInvalid(
            f"the receipt is not that of round {round_id}: {quoted(record.round)}; ask for the "
            "right one"
        )
    if record.cohort != cohort:
        raise ReceiptInvalid(
            f"round {round_id} is not of the cohort {cohort}: {quoted(record.cohort)}; name the "
            "cohort in which you take part"
        )
    if record.params != params.to_dict():
        raise ReceiptInvalid(
            f"the servers vouch for other parameters than those that S0 gave: round {round_id}; "
            "do not use it, and ask both operators"
        )
    if start is not None and record.start != start:
        raise ReceiptInvalid(
            "the servers vouch for another model or range than S0 gave to train from: round "
            f"{round_id}; do not use it, and ask both operators"
        )
    if client and client not in record.included:
        _check_left_out(record, client)
    if params.weights and not params.weights.keys() >= set(record.included):
        raise ReceiptInvalid(
            f"the receipt includes a client that has no weight: round {round_id}; do not use "
            "it, and ask both operators"
        )
    if len(record.included) < params.min_clients:
        raise TooFewClients(
            f"round {round_id} includes fewer clients than the {params.min_clients} that its "
            f"parameters ask for: {len(record.included)}; do not use it, and ask both operators"
        )
    for_those_left(params, record.reasons).check_included(record.included)
    _check_groups(record, params)


def _check_groups(record: Record, params: RoundParams) -> None:
    """Raise ReceiptInvalid unless a record says the group of each client, if groups are visible."""
    expected = len(record.included) if params.method.visible else 0
    if len(record.groups) != expected or not {*record.groups} <= {*range(params.method.groups)}:
        raise ReceiptInvalid(
            "the receipt tells the group of too few or too many clients: round "
            f"{record.round} of {params.method.groups} groups; do not use it, and ask both "
            "operators"
        )


def _check_left_out(record: Record, client: str) -> None:
    """Raise ReceiptInvalid unless a record has a reason that fits an upload that both servers have.

    S1 has to take S0's word for what S0 holds, so that both may sign what the client knows better.
    """
    reasons = [why for why, keys in record.left_out.items() if client in keys]
    if not reasons or any(" reached " in why for why in reasons):
        said = f"says {quoted(reasons[0])}" if reasons else "does not say why"
        raise ReceiptInvalid(
            "the receipt leaves this client out, whose upload both servers have confirmed: "
            f"round {record.round} {said}; do not use it, and ask both operators"
        )


def opened_of(
    answer: wire.Message, party: int, record: Record, params: RoundParams
) -> PublicValues:
    """Return the opened values, which both servers vouch for. Raises ReceiptInvalid if not."""
    words = answer.arrays.get("opened", np.empty(0, np.uint64))
    if words.dtype != np.uint64 or words.ndim != 1 or digest_of(words) != record.opened:
        raise ReceiptInvalid(
            f"S{party} sent other values than both servers vouch for: the result of round "
            f"{record.round}; do not use it, and ask its operator"
        )
    return params.unpack_opened(words, total_of(record, params))


def total_of(record: Record, params: RoundParams) -> int:
    return sum(params.method.weights_of(record.included))
