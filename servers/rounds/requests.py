"""The requests of clients and the coordinator, who may make them, and their answers.

docs/site.py writes them as a table into docs/wire.md. A new request is a line of `OPS`, a method of
`Requests` whose docstring tells the answer, and a dataclass for its fields. These have their names
on the wire.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.model_form import digest_of
from securemedian.common.states import State
from securemedian.common.status import (
    DECLINED,
    DEFAULT_COHORT,
    POLICY,
    RoundStatus,
    check_public_metrics,
)
from securemedian.common.versions import own_versions
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import (
    BadUpload,
    ChannelTimeout,
    ConfigError,
    FrameError,
    NotAllowed,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    UnknownCohort,
    UnknownRound,
    cut,
    quoted,
)
from securemedian.mpc.options import check_one_of
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.privacy import told_epsilon
from securemedian.servers import logs
from securemedian.servers.computing.engine import Engines
from securemedian.servers.computing.folds import Folds
from securemedian.servers.config import ServerConfig
from securemedian.servers.machine import members
from securemedian.servers.machine.round import ServerRound
from securemedian.servers.network.control import is_round_id
from securemedian.servers.network.transport import DEFECT, error_frame, take_number
from securemedian.servers.rounds.register import Entry
from securemedian.servers.rounds.rounds import Rounds
from securemedian.servers.rounds.runs import Opening
from securemedian.servers.storage.spool import DEALING, Piece, kind_of

CLIENT, COORDINATOR = "client", "coordinator"
# how long a request `bound` may wait: less than a caller waits silently (`terminal.AFTER_S`)
HOLD_S = 2.5
Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class OneCohort:
    """The fields of a request about a cohort."""

    # its name
    cohort: str = DEFAULT_COHORT


@dataclass(frozen=True)
class AnyRound(OneCohort):
    """The fields of a request about a round, by default the latest of a cohort."""

    # the round's id, with which `cohort` says nothing; "" for the latest
    round: str = ""

    def __post_init__(self) -> None:
        if self.round:
            _check_round_id(self.round)


@dataclass(frozen=True)
class OneRound:
    """The fields of a request about one round."""

    # the round's id
    round: str

    def __post_init__(self) -> None:
        _check_round_id(self.round)


@dataclass(frozen=True)
class DeclineFields(OneRound):
    """The fields with which a client says that it takes no part in a round."""

    # policy, not-finite, training-failed or servers-differ
    reason: str = field(default=POLICY, metadata={"since": 3})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("reason", self.reason, list(DECLINED))


@dataclass(frozen=True)
class ResultFields(OneRound):
    """The fields with which the result of a round is asked for."""

    # whether the values are sent, or the receipt alone
    values: bool = True


@dataclass(frozen=True)
class ShareFields(OneRound):
    """The fields of a request with a share, which itself is an array."""

    # the digest of the parameters that it was made for (`RoundParams.digest`)
    params: bytes
    # the digest of the run state that the round starts from
    start: bytes
    # "seed" or "words", or of an upload where clients deal "rotations"
    form: str


@dataclass(frozen=True)
class UploadFields(ShareFields):
    """The fields of an upload."""

    # the group that the client chose, from 0 on, where groups are visible; 0 otherwise
    group: int = 0
    # of a later vote: its number, and the digest of the digits that the client was told, 32 bytes
    level: int = field(default=0, metadata={"since": 3})
    path: bytes = field(default=b"", metadata={"since": 3})


@dataclass(frozen=True)
class DealFields(ShareFields):
    """The fields of a piece of a dealing."""

    # the number of the piece, from 0 on, and how many there are
    piece: int
    pieces: int


@dataclass(frozen=True)
class CheckedFields(OneRound):
    """The fields with which a client asks for the verdict on its dealing."""

    # whether it takes an answer of a round that has failed, which has dropped what was opened
    failed: bool = field(default=False, metadata={"since": 3})


@dataclass(frozen=True)
class BoundFields(OneRound):
    """The fields with which a client asks what a round asks of it."""

    # of how many votes it knows the digits
    after: int = 0
    # whether the digits are sent, or the record of them alone
    values: bool = True


@dataclass(frozen=True)
class FoldedFields(OneRound):
    """The fields of a fold, which itself is an array."""

    # the id of the binding that it is for
    binding: bytes


@dataclass(frozen=True)
class FormFields(OneRound):
    """The fields with which a client asks for the form of a round's models."""

    # that of its own model (`common.model_form`), which becomes the round's if there is none
    model_form: str = ""


@dataclass(frozen=True)
class TellFields(OneRound):
    """The fields of a client's public metrics."""

    # at most 16 finite numbers by name
    metrics: dict[str, Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_public_metrics(self.metrics)


@dataclass(frozen=True)
class AbortFields(OneRound):
    """The fields with which the coordinator ends a round."""

    # why; everybody is told its first 1,000 characters
    reason: str


def _check_round_id(text: str) -> None:
    if not is_round_id(text):
        raise UnknownRound(
            f"invalid round id: {quoted(text)}; write it like 7-3fa9c1d2, a number and 8 hex digits"
        )


@dataclass(frozen=True)
class Call:
    """A request, and the caller, who is known by the connection's key."""

    # the address of the answer
    address: bytes
    key: str
    # the key itself and "" for a caller who is off the lists
    name: str
    role: str
    # the caller's own number for the request (`id` on the wire), which the answer repeats
    number: int = 0
    op: str = ""
    # an instance of the dataclass that `OPS` names for `op`
    fields: Any = field(default=None, repr=False)
    arrays: Arrays = field(default_factory=dict, repr=False)
    # until when it may be held
    until: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The content of an answer, which goes back under the request's own name."""

    fields: Mapping[str, Any] = field(default_factory=dict, repr=False)
    arrays: Arrays = field(default_factory=dict, repr=False)


class Requests:
    """The requests to a server, which one thread answers.

    `reply` sends a frame to a caller's address, and raises ChannelTimeout if the caller reads none.
    """

    def __init__(
        self,
        config: ServerConfig,
        rounds: Rounds,
        engines: Engines,
        reply: Callable[[bytes, Sequence[wire.Part]], None],
    ) -> None:
        self._rounds, self._engines, self._reply = rounds, engines, reply
        self.reload(config)
        self._log = logs.BoundedLog()
        # by client, the latest `bound` that waits for an answer
        self._held: dict[str, Call] = {}
        # how many requests were answered, by name and by "ok" or the code of the error
        self.answers: Counter[tuple[str, str]] = Counter()

    def reload(self, config: ServerConfig) -> None:
        """Use a new configuration. Callers who are not on its lists are refused from now on."""
        self._config = config
        self._callers = {caller.public_key: (caller.name, CLIENT) for caller in config.clients}
        self._callers |= {
            caller.public_key: (caller.name, COORDINATOR) for caller in config.coordinators
        }

    def request(self, address: bytes, key: str, parts: Sequence[wire.Part]) -> None:
        """Answer one request, now or, for `open`, once S1 has answered.

        A wrong request is answered with an error, and changes nothing. No request ends the server.
        """
        self._handle(Call(address, key, *self._callers.get(key, (key, ""))), parts)

    def _handle(self, call: Call, parts: Sequence[wire.Part] | None = None) -> None:
        """Answer a request, or one that was held and has no parts any more."""
        try:
            if parts is not None:
                message = wire.unpack(parts)
                call = replace(call, number=take_number(message), op=message.type)
                call = self._checked_call(call, message)
            if (answer := OPS[call.op].handler(self, call)) is not None:
                self._answer(call, answer)
        except SecureMedianError as error:
            self._refuse(call, error)
        except Exception as error:
            # a defect in this server
            self._log.event(
                "request-error", call.key, logging.ERROR, error, caller=call.name, op=call.op
            )
            self._refuse(call, DEFECT, logged=False)

    def tick(self) -> None:
        """Answer requests that have something to be asked or told, or have waited for long."""
        for call in list(self._held.values()):
            self._handle(call)

    def _checked_call(self, call: Call, message: wire.Message) -> Call:
        """Check that the caller may make a request and its fields, and return it with these.

        Raises FrameError, NotAllowed, UnknownRound or ConfigError if something is wrong.
        """
        # the connection is older than the lists
        if not call.role:
            raise NotAllowed(
                f"this key was taken off the list: {self._config.name}; ask its operator"
            )
        if call.op not in OPS:
            known = ", ".join(OPS)
            raise FrameError(f"no request is called {quoted(call.op)}; there are {known}")
        op = OPS[call.op]
        if call.role not in op.roles:
            who = " or a ".join(op.roles)
            raise NotAllowed(
                f"{call.op!r} is for a {who}: the key of {call.name!r} is a {call.role}'s; use "
                f"the {who}'s key"
            )
        if op.leader_only and self._config.party != 0:
            raise NotAllowed(f"only s0 answers this request: {call.op!r}; ask there")
        if not set(message.arrays) <= op.arrays:
            names = quoted(", ".join(message.arrays))
            raise FrameError(f"{call.op!r} has arrays that it does not take: {names}")
        fields: Any = build(op.fields, message.fields, call.op)
        return replace(call, fields=fields, arrays=message.arrays)

    def _answer(self, call: Call, answer: Answer) -> None:
        self.answers[call.op, "ok"] += 1
        self._send(call, wire.pack(call.op, {**answer.fields, "id": call.number}, answer.arrays))

    def _tell_how(self, call: Call, answer: Answer, error: SecureMedianError | None) -> None:
        """Answer a request once its share is stored, or refuse it with the error."""
        if error is None:
            self._answer(call, answer)
        else:
            self._refuse(call, error)

    def _send(self, call: Call, parts: Sequence[wire.Part]) -> None:
        try:
            self._reply(call.address, parts)
        except ChannelTimeout as error:
            self._log.event("answers-unread", call.key, caller=call.name, reason=str(error))

    def _refuse(self, call: Call, error: SecureMedianError, logged: bool = True) -> None:
        """Answer with an error.

        An answer that cannot be sent is only logged, since there is nobody left to tell.
        """
        known, reason = call.op in OPS, str(error)
        if logged and not (known and OPS[call.op].polled):
            told: dict[str, Any] = {"op": call.op, "code": error.code, "reason": reason}
            self._log.event("request-refused", call.key, caller=call.name, **told)
        # an invented name must not become a label
        self.answers[call.op if known else "unknown", error.code] += 1
        try:
            self._send(call, error_frame(call.number, error))
        except Exception as failed:
            self._log.event("answer-lost", call.key, logging.ERROR, failed, code=error.code)

    def _find(self, call: Call) -> Entry:
        return self._rounds.register.find(call.fields.round, call.key)

    def _listed(self, call: Call) -> Entry:
        """Return the round that a request names. Raises UnknownRound unless it has the caller."""
        entry = self._find(call)
        _check_listed(call, entry.server_round)
        return entry

    def _latest(self, call: Call) -> Entry | None:
        return self._rounds.register.latest(self._cohort(call))

    def _cohort(self, call: Call) -> str:
        """Return the cohort that a request names.

        Raises UnknownCohort if the caller takes no part in it, in the same words as for a cohort
        that does not exist.
        """
        name: str = call.fields.cohort
        theirs = self._cohorts_of(call.key)
        if name not in theirs:
            raise UnknownCohort(
                f"{self._config.name} has no such cohort for {call.name!r}: {quoted(name)}; set "
                f"`cohort` to one of {', '.join(theirs) or 'none'}"
            )
        return name

    def _cohorts_of(self, key: str) -> list[str]:
        return [name for name, members in self._config.members.items() if key in members]

    def _peer(self) -> dict[str, Any]:
        peer = self._rounds.peer
        problem = peer.problem if self._engines.ready else self._engines.problem
        return {"peer_linked": peer.linked, "peer_problem": problem}

    def _info(self, call: Call) -> Answer:
        """Tell of this server and the caller.

        `party`, `release` and `wire` (the versions that the server speaks), `time` (Unix seconds),
        `max_message_bytes`, `policy` (methods, allowed, at_most, at_least, and max_epsilon if it is
        limited). `role`, `name` and `cohorts` of the caller. `cohort`, `dim` (of S0's model, else
        of the latest round, else 0), `state` (idle, busy), `round` (the latest, or ""),
        `peer_linked`, `peer_problem`.
        """
        latest, cohort = self._latest(call), call.fields.cohort
        server = {
            "party": self._config.party,
            "time": time.time(),
            "max_message_bytes": self._config.max_message_bytes,
            "policy": self._config.policy.to_dict(),
        }
        caller = {
            "role": call.role,
            "name": call.name,
            "cohorts": self._cohorts_of(call.key),
        }
        now = {
            "cohort": cohort,
            "dim": self._rounds.dim(cohort),
            "state": "busy" if self._rounds.register.live_of(cohort) else "idle",
            "round": latest.server_round.round_id if latest else "",
        }
        return Answer(own_versions() | server | caller | now | self._peer())

    def _probe(self, call: Call) -> Answer:
        """Take a load, so that the caller can measure the time of its upload."""
        self._cohort(call)
        return Answer()

    def _link(self, call: Call) -> None:
        """Measure the link to S1, for 3 seconds at most.

        `sent` and `back`, bytes in messages of 64 kB to S1 and back, and `seconds`. Refused during
        a round (round-busy).
        """
        self._cohort(call)

        def told(sent: int, back: int, seconds: float) -> None:
            self._answer(call, Answer({"sent": sent, "back": back, "seconds": seconds}))

        self._rounds.measure_link(told)

    def _status(self, call: Call) -> Answer:
        """Tell the state of a round, as `RoundStatus` has it."""
        entry = self._find(call) if call.fields.round else self._latest(call)
        none = RoundStatus(cohort=call.fields.cohort)
        return Answer((self._status_of(entry) if entry else none).to_dict() | self._peer())

    def _status_of(self, entry: Entry) -> RoundStatus:
        here, result = entry.server_round, entry.result
        engine, (left_s, retry_in_s) = self._engines.of(here.cohort), self._rounds.waits(entry)
        return RoundStatus(
            round=here.round_id,
            cohort=here.cohort,
            number=here.number,
            state=here.state.value,
            params=here.params.to_dict(),
            reason=here.reason,
            opened=here.opened,
            start=here.asked.start,
            clients=here.whereabouts(),
            dealt=here.whereabouts_of_dealings(),
            one_malicious_server=here.asked.one_malicious_server,
            included=[here.names[key] for key in here.included],
            groups=here.groups,
            left_out=here.left_out,
            attempt=here.attempt,
            attempts_left=here.attempts_left,
            retry_in_s=retry_in_s,
            # the engine works for a live round: it fills the pools or runs the protocol
            phase=(engine.phase if self._engines.ready else "compiling") if here.live else "",
            progress=list(engine.progress) if here.live else [0, 0],
            cost=dict(result.cost) if result else {},
            outermost=result.outermost if result else 0,
            unchanged_groups=list(result.unchanged_groups) if result else [],
            coin=result.coin if result else "",
            epsilon=told_epsilon(here.spent_after),
            deviation=here.deviation,
            deadline_in_s=left_s,
            level=here.level + 1 if here.votes > 1 else 0,
            levels=here.votes if here.votes > 1 else 0,
            lacking=self._lacking(here),
            stored_bytes=entry.spool.stored_bytes,
        )

    def _lacking(self, here: ServerRound) -> list[str]:
        """Return the clients whose later votes, or whose folds, a round waits for."""
        if here.state is State.VOTING:
            return sorted(members.lacking(here))
        if not (folds := self._folds(here) if here.level else None):
            return []
        return sorted(here.names[key] for key in folds.clients if not folds.has(key))

    def _round(self, call: Call) -> Answer:
        """Tell a client of its cohort's latest round.

        `release` and `wire` (the versions with which one can take part), `round`, `cohort`,
        `number`, `params`, `index` (the caller's place in this server's list; S0's counts).
        `state`, `start` (as in `status`), `model_form` (the form's SHA-256 in hex digits, or "").
        `released` (whether others may take part than in an earlier attempt), `level`.
        `dealt` and `submitted` (whether the caller's whole dealing and its upload are here),
        `left_out` (why the caller is, or "").
        """
        entry = self._latest(call)
        if entry is None:
            raise UnknownRound(
                f"no round so far: {self._config.name}; wait for the coordinator to open one"
            )
        server_round = entry.server_round
        _check_listed(call, server_round)
        # a client that speaks none of these versions leaves the rest unread
        return Answer(
            own_versions(server_round.params.wire)
            | {
                "round": server_round.round_id,
                "cohort": server_round.cohort,
                "number": server_round.number,
                "params": server_round.params.to_dict(),
                "index": list(server_round.names).index(call.key),
                "state": server_round.state.value,
                "start": server_round.asked.start,
                "model_form": digest_of(server_round.asked.model_form),
                "released": server_round.asked.release,
                "level": server_round.level,
                "dealt": call.key in server_round.dealt_here,
                "submitted": call.key in server_round.here,
                "left_out": server_round.left_out.get(call.name, ""),
            }
        )

    def _model(self, call: Call) -> Answer:
        """Send the run state that a round starts from.

        `number`, `policy` and `optimiser` (name and options). Arrays `model` f4[d], `scale` f4[]
        or f4[d] of the buckets, `moments` f4[kept, d] of the optimiser, `bound` f4[2] (the next
        norm bound and its step). An array that does not exist yet is missing. Several groups have
        `model.0`, `scale.0`, `model.1` and so on.
        """
        entry = self._find(call)
        before = entry.before
        return Answer(
            {
                "number": before.number,
                "policy": before.policy.to_dict(),
                "optimiser": before.optimiser.to_dict(),
            },
            before.arrays,
        )

    def _form(self, call: Call) -> Answer:
        """Tell the form of a round's models, `model_form`.

        An open round without one takes the caller's. Refused if it is invalid or of another number
        of values (bad-input).
        """
        entry = self._listed(call)
        text = self._rounds.model_form(entry, call.key, call.fields.model_form)
        return Answer({"model_form": text})

    def _deal(self, call: Call) -> None:
        """Store a piece of a dealing, and tell whether it is `whole`.

        Pieces come in order; piece 0 begins again, also after a restart of the server.
        """
        entry, fields = self._find(call), call.fields
        share = _share_of(call, entry.server_round)
        answer = Answer({"whole": fields.piece + 1 == fields.pieces})
        piece = Piece(DEALING, fields.form, share, fields.piece, fields.pieces)
        self._rounds.put(entry, call.key, piece, partial(self._tell_how, call, answer))

    def _checked(self, call: Call) -> Answer:
        """Tell the `verdict` on the caller's dealing: passed, failed, or "" while it is unknown.

        Then also `coin` of the check, and `opened`: per part the SHA-256 of what this server has
        opened (guards as u8[W, 64], then turns, packed as in dealing.turns). The caller alone can
        judge it. `dealing` is the digest of what this server holds. Refused once the round takes no
        uploads (round-closed), unless it has `failed` and the caller knows.
        """
        entry, key = self._listed(call), call.key
        server_round = entry.server_round
        members.check_asked(server_round, key, call.fields.failed)
        member = server_round.members[key]
        if member.passed is None:
            return Answer({"verdict": "", "coin": b"", "opened": b""})
        verdict = "passed" if member.passed else "failed"
        opened = entry.spool.opened(key)
        said = {"verdict": verdict, "coin": member.coin or b"", "opened": opened}
        return Answer(said | {"dealing": server_round.dealt_here[key]})

    def _upload(self, call: Call) -> None:
        """Store an upload; another one than before is refused (duplicate-upload).

        A later vote is taken of a client of the first, while the round is `voting` at its level.
        """
        entry, fields = self._find(call), call.fields
        share = _share_of(call, entry.server_round)
        form, masks = fields.form, _masks_of(call, entry.server_round)
        group = members.group_named(entry.server_round, call.fields.group)
        self._warn_of_form(call, entry)
        kind, vote, path = kind_of(fields.level), fields.level, fields.path.hex()
        piece = Piece(kind, form, share, group=group, masks=masks, vote=vote, path=path)
        self._rounds.put(entry, call.key, piece, partial(self._tell_how, call, Answer()))

    def _warn_of_form(self, call: Call, entry: Entry) -> None:
        """Log that a client of release 1.0 uploads, whose values are matched by their number."""
        server_round = entry.server_round
        has_form = self._config.party == 0 and server_round.asked.model_form
        if has_form and call.key not in entry.informed:
            # once
            entry.informed.add(call.key)
            about = server_round.about
            self._log.event("no-model-form", call.key, logging.WARNING, **about, client=call.name)

    def _bound(self, call: Call) -> Answer | None:
        """Tell what a round asks of the caller next, a fold or a vote.

        A round of several votes holds it for 2.5 seconds at most, until it asks something or ends.
        `state`, and `level` (the votes before the one that is taken now). `folded` (whether the
        fold is here), and three that are empty unless it is asked for: `binding` (16 bytes, the id
        of the servers' binding), `coin` (16 bytes) and `set` (SHA-256 of the keys of the clients
        that it asks). Once the digits of more votes than `after` are told, while the round is
        `voting`: `record` of those votes as in a receipt, and `signature` of this server, which are
        empty otherwise. Array `digits` [d] is of the last of them, packed, unless `values` is
        false. A failed round is an error (round-failed). Clients that the round does not compute on
        are refused digits (not-allowed).
        """
        now, earlier = time.monotonic(), self._held.pop(call.key, None)
        if earlier and earlier is not call:
            self._handle(replace(earlier, until=now))
        call = call if call.until else replace(call, until=now + HOLD_S)
        entry, key = self._listed(call), call.key
        here, told, path = entry.server_round, entry.result, entry.path
        if here.state is State.FAILED:
            raise RoundFailed(here.reason)
        said: dict[str, Any] = {"state": here.state.value, "level": here.level, "folded": False}
        said |= dict.fromkeys(("binding", "coin", "set", "record", "signature"), b"")
        folds = self._folds(here)
        if folds and key in folds.clients and folds.binding:
            said |= {"binding": folds.binding, "coin": folds.coin, "set": folds.set}
            said["folded"] = folds.has(key)
        # SECURITY: a vote is told only once both servers can never run it again
        if here.state is not State.VOTING or not (told and path) or here.level <= call.fields.after:
            asked = said["binding"] and not said["folded"]
            if here.live and here.votes > 1 and not asked and now < call.until:
                self._held[key] = call
                return None
            return Answer(said)
        members.check_included(here, key)
        said["record"] = told.receipt.encoded
        said["signature"] = told.receipt.signatures[f"s{here.party}"]
        return Answer(said, {"digits": path.last} if call.fields.values else {})

    def _folds(self, server_round: ServerRound) -> Folds | None:
        """Return what clients of a round are asked for, if its folds are under check."""
        return self._engines.of(server_round.cohort).folds if server_round.folding else None

    def _folded(self, call: Call) -> Answer:
        """Store a fold for a binding; another one than before is refused (duplicate-upload).

        Refused unless this server asks the caller for it (round-closed).
        """
        server_round = self._listed(call).server_round
        if not server_round.audited:
            raise BadUpload(
                f"a fold for a round without security malicious: {server_round.round_id}; send none"
            )
        fold, folds = _array_of(call, "fold"), self._folds(server_round)
        if folds is None:
            raise RoundClosed(
                f"the round takes no folds now: {server_round.round_id}; wait for its result"
            )
        folds.put(call.key, call.fields.binding, fold)
        return Answer()

    def _decline(self, call: Call) -> Answer:
        """Leave the caller out of a round, for this reason.

        Refused once its upload is stored or the round is closed (round-closed).
        """
        self._rounds.decline(self._find(call), call.key, call.fields.reason)
        return Answer()

    def _tell(self, call: Call) -> Answer:
        """Take the caller's public metrics of a round, once."""
        entry, metrics = self._listed(call), check_public_metrics(call.fields.metrics)
        self._rounds.register.take_public_metrics(entry, call.key, metrics)
        return Answer()

    def _metrics(self, call: Call) -> Answer:
        """Send public metrics: array `metrics` u1, {client: {name: number}} in JSON, UTF-8."""
        entry = self._find(call)
        names = entry.server_round.names
        said = {names[key]: metrics for key, metrics in entry.public_metrics.items()}
        # with many clients this is too long for a header
        return Answer(arrays={"metrics": np.frombuffer(json.dumps(said).encode(), np.uint8)})

    def _result(self, call: Call) -> Answer:
        """Send the result of a round, and its receipt.

        `form` pending with `state`. Or `form` opened with array `opened` u8: [ranks or groups, d]
        values of `RoundParams.opened_bits` bits, packed; a group without a result is full of b. Or
        `form` share, for clients if `result_to` is clients, with array `share`, packed likewise:
        the result is the sum of both servers'. With the last two `record` and `signatures`
        {s0, s1}. A failed round is an error (round-failed).
        """
        entry = self._find(call)
        server_round = entry.server_round
        private = server_round.params.method.result_to == "clients"
        if private and call.fields.values and call.role != CLIENT:
            raise NotAllowed(
                f"the result is for the round's clients alone: {server_round.round_id}; ask a "
                "client"
            )
        if server_round.state is State.FAILED:
            raise RoundFailed(server_round.reason)
        result = entry.result
        if server_round.state is not State.PUBLISHED or result is None:
            return Answer({"form": "pending", "state": server_round.state.value})
        form = "share" if private else "opened"
        fields = {
            "form": form,
            "record": result.receipt.encoded,
            "signatures": dict(result.receipt.signatures),
        }
        return Answer(fields, {form: result.values} if call.fields.values else {})

    def _open(self, call: Call) -> None:
        """Open a round, and tell its `round` id and `number` once S1 has agreed.

        Array `model` f4[d] or f4[groups, d] starts a new run, or with `keep_range` continues it.
        """

        def when_opened(opened: ServerRound, error: SecureMedianError | None) -> None:
            if error:
                self._refuse(call, error, logged=False)
            else:
                self._answer(call, Answer({"round": opened.round_id, "number": opened.number}))

        cohort = self._cohort(call)
        params = RoundParams.from_dict(self._with_keys(cohort, call.fields.params))
        keys = self._keys(cohort, call.fields.participants, "participants").values()
        self._rounds.open(call.fields, params, keys, call.arrays.get("model"), when_opened)

    def _with_keys(self, cohort: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return parameters with keys instead of clients' names in `weights` and `validator`."""
        validator = params.get("validator")
        if isinstance(validator, str):
            # an unknown name is refused with the round
            key = self._key_of_each(cohort).get(validator, validator)
            params = params | {"validator": key}
        weights = params.get("weights")
        if not isinstance(weights, dict):
            return params
        keys = self._keys(cohort, weights, "weights")
        return params | {"weights": {keys[name]: weight for name, weight in weights.items()}}

    def _key_of_each(self, cohort: str) -> dict[str, str]:
        return {name: key for key, name in self._config.members[cohort].clients.items()}

    def _keys(self, cohort: str, names: Collection[str], where: str) -> dict[str, str]:
        """Return the keys of clients of a cohort by name. Raises ConfigError for unknown names."""
        keys = self._key_of_each(cohort)
        if unknown := [name for name in names if name not in keys]:
            listed = ", ".join(sorted({quoted(name) for name in unknown}))
            raise ConfigError(
                cut(
                    f"{where}: not clients of cohort {cohort} at {self._config.name}: {listed}; "
                    "correct the names"
                )
            )
        return {name: keys[name] for name in names}

    def _close(self, call: Call) -> Answer:
        """Close a round to uploads."""
        self._rounds.close(self._find(call))
        return Answer()

    def _abort(self, call: Call) -> Answer:
        """End a round; refused once the protocol has run (round-closed)."""
        self._rounds.abort(self._find(call), f"aborted by {call.name}: {call.fields.reason}")
        return Answer()


def _check_listed(call: Call, server_round: ServerRound) -> None:
    if call.key not in server_round.names:
        raise UnknownRound(members.why_not_for_you(server_round))


def _array_of(call: Call, name: str) -> NDArray[Any]:
    if name not in call.arrays:
        raise FrameError(f"{call.op!r} needs the array `{name}`")
    return call.arrays[name]


def _share_of(call: Call, server_round: ServerRound) -> NDArray[Any]:
    """Return the share in a request for this round.

    Raises BadUpload if it is for other parameters or another model than the round's.

    SECURITY: S0 alone hands out the model. One that gave some clients another model could read the
    update of the last, unless S1 compares `start`, which it was told with `open`.
    """
    if call.fields.params != server_round.params.digest:
        raise BadUpload(
            f"this {call.op!r} was made for other parameters than the round's: "
            f"{server_round.round_id}; ask for its parameters again"
        )
    if call.fields.start.hex() != server_round.asked.start:
        raise BadUpload(
            f"this {call.op!r} was made for another model or range than the round starts from: "
            f"{server_round.round_id}; ask both operators, for one server does not tell the "
            "truth"
        )
    return _array_of(call, "share")


def _masks_of(call: Call, server_round: ServerRound) -> bytes | None:
    """Return the seed of masks in an upload, which audited rounds need and others refuse."""
    masks, later = call.arrays.get("masks"), call.fields.level
    if not server_round.audited or later:
        if masks is not None:
            what = "a later vote" if later else "a round without security malicious"
            raise BadUpload(f"masks for {what}: {server_round.round_id}; leave out `masks`")
        return None
    if masks is None or masks.dtype != np.uint8 or masks.shape != (SEED_BYTES,):
        raise BadUpload(
            f"an upload with security malicious needs {SEED_BYTES} random bytes: "
            f"{server_round.round_id}; send them as the array `masks`"
        )
    return masks.tobytes()


@dataclass(frozen=True)
class Op:
    """A line of the table of requests."""

    # returns the answer, or None if it comes later
    handler: Callable[[Requests, Call], Answer | None]
    # the dataclass of the request's fields
    fields: type
    # the roles that may ask
    roles: tuple[str, ...] = (CLIENT, COORDINATOR)
    # the arrays that the request may have
    arrays: frozenset[str] = frozenset()
    # whether only S0 answers
    leader_only: bool = False
    # whether callers ask again and again, so that refusals are not logged
    polled: bool = False


OPS: dict[str, Op] = {
    "info": Op(Requests._info, OneCohort),
    "probe": Op(Requests._probe, OneCohort, arrays=frozenset({"load"})),
    "link": Op(Requests._link, OneCohort, (COORDINATOR,), leader_only=True),
    "status": Op(Requests._status, AnyRound, polled=True),
    "round": Op(Requests._round, OneCohort, (CLIENT,), polled=True),
    "model": Op(Requests._model, OneRound, leader_only=True),
    "form": Op(Requests._form, FormFields, (CLIENT,), leader_only=True),
    "deal": Op(Requests._deal, DealFields, (CLIENT,), frozenset({"share"})),
    "checked": Op(Requests._checked, CheckedFields, (CLIENT,), polled=True),
    "upload": Op(Requests._upload, UploadFields, (CLIENT,), frozenset({"share", "masks"})),
    "bound": Op(Requests._bound, BoundFields, (CLIENT,), polled=True),
    "folded": Op(Requests._folded, FoldedFields, (CLIENT,), frozenset({"fold"})),
    "decline": Op(Requests._decline, DeclineFields, (CLIENT,)),
    "tell": Op(Requests._tell, TellFields, (CLIENT,), leader_only=True),
    "metrics": Op(Requests._metrics, OneRound, leader_only=True),
    "result": Op(Requests._result, ResultFields, polled=True),
    "open": Op(Requests._open, Opening, (COORDINATOR,), frozenset({"model"}), leader_only=True),
    "close": Op(Requests._close, OneRound, (COORDINATOR,), leader_only=True),
    "abort": Op(Requests._abort, AbortFields, (COORDINATOR,), leader_only=True),
}
