"""The checks of what servers say of a round's end, before it is decoded.

Nothing is taken from one server alone. An answer about a round has its receipt with the signatures
of both. Its parameters, clients, start and opened values must fit the record in that receipt.
Clients decode the values themselves, and compute the next run state.
"""

from collections.abc import Mapping, Sequence

import numpy as np

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
    TooFewClients,
    quoted,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState

# the start of a round, and the run after it
_RUNS_REMEMBERED = 2


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
    answer: wire.Message, party: int, record: Record, params: RoundParams, total: int
) -> PublicValues:
    """Return the opened values, which both servers vouch for, of clients with this `total` weight.

    Raises ReceiptInvalid if they are others.
    """
    words = answer.arrays.get("opened", np.empty(0, np.uint64))
    if words.dtype != np.uint64 or words.ndim != 1 or digest_of(words) != record.opened:
        raise ReceiptInvalid(
            f"S{party} sent other values than both servers vouch for: the result of round "
            f"{record.round}; do not use it, and ask its operator"
        )
    return params.unpack_opened(words, total)
