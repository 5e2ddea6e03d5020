"""What clients and the coordinator may ask, who may ask what, and the answers. docs/wire.md has the table."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

import securemedian
from securemedian.mpc import wire
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    FrameError,
    LocalProtocolError,
    NotAllowed,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    UnknownRound,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers import logs
from securemedian.servers.config import ServerConfig
from securemedian.servers.engine import Engine
from securemedian.servers.rounds import Entry, Rounds
from securemedian.servers.session import CloseAsked, Failure, Round, State

CLIENT, COORDINATOR = "client", "coordinator"
NO_ROUND: dict[str, Any] = {
    "round": "",
    "number": 0,
    "state": "none",
    "params": {},
    "reason": "",
    "clients": {},
    "included": [],
    "left_out": {},
    "phase": "",
    "progress": [0, 0],
    "cost": {},
    "deadline_in_s": 0.0,
}

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class NoFields:
    """Of a request that says it all by its name."""


@dataclass(frozen=True)
class AnyRound:
    round: str = ""  # the latest


@dataclass(frozen=True)
class OneRound:
    round: str


@dataclass(frozen=True)
class UploadFields:
    round: str
    params: bytes  # the digest of those that the share was encoded with
    form: str


@dataclass(frozen=True)
class OpenFields:
    params: dict[str, Any]
    range: dict[str, Any]
    reset: bool = False


@dataclass(frozen=True)
class AbortFields:
    round: str
    reason: str


@dataclass(frozen=True)
class Call:
    """One request. Who asks was proved by the connection's key."""

    address: bytes  # where the answer goes
    id: int  # the caller's number for it
    op: str
    key: str
    name: str
    role: str
    fields: Any  # of the type that the table names
    arrays: Arrays = field(repr=False)


@dataclass(frozen=True)
class Answer:
    """What goes back under the request's own name."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict, repr=False)


class Desk:
    """Answers requests. `reply` sends a frame to a caller's address. Used by one thread."""

    def __init__(
        self,
        config: ServerConfig,
        rounds: Rounds,
        engine: Engine,
        reply: Callable[[bytes, Sequence[wire.Part]], None],
    ) -> None:
        self._config, self._rounds, self._engine, self._reply = config, rounds, engine, reply
        self._callers = {caller.public_key: (caller.name, CLIENT) for caller in config.clients}
        self._callers |= {
            caller.public_key: (caller.name, COORDINATOR) for caller in config.coordinators
        }

    def request(self, address: bytes, key: str, parts: Sequence[wire.Part]) -> None:
        """Answer one request, now or (`open`) when S1 has spoken. A wrong one is answered too, and changes nothing."""
        number, op = 0, ""
        try:
            message = wire.unpack(parts)
            number, op = _take_id(message), message.type
            call = self._call(address, key, number, message)
            if (answer := OPS[op].handler(self, call)) is not None:
                self._answer(call, answer)
        except SecureMedianError as error:
            self._refuse(address, number, error)
            if op not in OPS or OPS[op].logged:
                logs.event(
                    "request-refused",
                    logging.WARNING,
                    caller=self._callers[key][0],
                    op=op,
                    code=error.code,
                    reason=str(error),
                )
        except Exception as error:  # a defect that one request shows must not end the server
            self._refuse(
                address, number, LocalProtocolError("a defect in this server: see its log")
            )
            logs.event("request-error", logging.ERROR, error, caller=self._callers[key][0], op=op)

    def _call(self, address: bytes, key: str, number: int, message: wire.Message) -> Call:
        """A request with its fields checked, by somebody who may make it."""
        if message.type not in OPS:
            raise FrameError(f"no request is called {message.type!r}; there are {', '.join(OPS)}")
        op = OPS[message.type]
        name, role = self._callers[key]
        if role not in op.roles:
            raise NotAllowed(
                f"{message.type!r} is for a {' or a '.join(op.roles)}, and the key of {name!r} is a {role}'s"
            )
        if op.leader_only and self._config.party != 0:
            raise NotAllowed(f"s0 answers {message.type!r}: ask there")
        if not set(message.arrays) <= op.arrays:
            raise FrameError(
                f"{message.type!r} comes with an array it does not take: {', '.join(message.arrays)}"
            )
        return Call(
            address,
            number,
            message.type,
            key,
            name,
            role,
            build(op.fields, message.fields, message.type),
            message.arrays,
        )

    def _answer(self, call: Call, answer: Answer) -> None:
        self._reply(
            call.address, wire.pack(call.op, {**answer.fields, "id": call.id}, answer.arrays)
        )

    def _refuse(self, address: bytes, number: int, error: SecureMedianError) -> None:
        self._reply(
            address, wire.pack("error", {"id": number, "code": error.code, "message": str(error)})
        )

    def _find(self, call: Call) -> Entry:
        return self._rounds.find(call.fields.round)

    def _peer(self) -> dict[str, Any]:
        return {"peer_linked": self._rounds.peer.linked, "peer_problem": self._rounds.peer.problem}

    def _info(self, call: Call) -> Answer:
        latest = self._rounds.latest
        server = {
            "party": self._config.party,
            "release": securemedian.__version__,
            "max_message_bytes": self._config.max_message_bytes,
        }
        caller = {"role": call.role, "name": call.name}
        now = {
            "state": "busy" if self._rounds.live else "idle",
            "round": latest.round.id if latest else "",
        }
        return Answer(server | caller | now | self._peer())

    def _status(self, call: Call) -> Answer:
        entry = self._find(call) if call.fields.round else self._rounds.latest
        return Answer((self._status_of(entry) if entry else NO_ROUND) | self._peer())

    def _status_of(self, entry: Entry) -> dict[str, Any]:
        round = entry.round
        busy = round.live  # the engine works for it: fills its pools, or runs it
        return {
            "round": round.id,
            "number": round.number,
            "state": round.state.value,
            "params": round.params.to_dict(),
            "reason": round.reason,
            "clients": round.whereabouts(),
            "included": [round.names[key] for key in round.included],
            "left_out": round.left_out,
            "phase": self._engine.phase if busy else "",
            "progress": list(self._engine.progress) if busy else [0, 0],
            "cost": entry.cost,
            "deadline_in_s": self._rounds.left_s(entry),
        }

    def _round(self, call: Call) -> Answer:
        entry = self._rounds.latest
        if entry is None:
            raise UnknownRound("there has been no round yet: wait for the coordinator to open one")
        round = entry.round
        index = list(round.names).index(call.key)
        return Answer(
            {
                "round": round.id,
                "number": round.number,
                "params": round.params.to_dict(),
                "index": index,
                "state": round.state.value,
            }
        )

    def _model(self, call: Call) -> Answer:
        entry = self._find(call)
        arrays = {} if entry.before.model is None else {"model": entry.before.model}
        if entry.round.params.uses_range:
            arrays["range"] = entry.before.width
        return Answer(arrays=arrays)

    def _upload(self, call: Call) -> Answer:
        entry = self._find(call)
        if "share" not in call.arrays:
            raise FrameError("an upload needs the array `share`")
        if call.fields.params != entry.round.params.digest:
            raise BadUpload(
                f"this upload was encoded for other parameters than those of round {entry.round.id}"
            )
        self._rounds.upload(entry, call.key, call.fields.form, call.arrays["share"])
        return Answer()

    def _result(self, call: Call) -> Answer:
        entry = self._find(call)
        round = entry.round
        if round.params.result_to == "clients" and call.role != CLIENT:
            raise NotAllowed(f"the result of round {round.id} is for its clients alone")
        if round.state is State.FAILED:
            raise RoundFailed(round.reason)
        if round.state is not State.PUBLISHED:
            return Answer({"form": "pending", "state": round.state.value})
        if entry.share is not None:
            return Answer({"form": "share"}, {"share": entry.share})
        if entry.results is None:
            raise NotAllowed("s0 publishes the model of this round: ask there")
        return Answer({"form": "model"}, {"results": entry.results})

    def _open(self, call: Call) -> None:
        def when_opened(round: Round, error: SecureMedianError | None) -> None:
            if error:
                self._refuse(call.address, call.id, error)
            else:
                self._answer(call, Answer({"round": round.id, "number": round.number}))

        params = RoundParams.from_dict(self._with_keys(call.fields.params))
        self._rounds.open(
            params, call.fields.range, call.fields.reset, call.arrays.get("model"), when_opened
        )

    def _with_keys(self, params: dict[str, Any]) -> dict[str, Any]:
        """The coordinator weighs clients by name, and the round by key."""
        weights = params.get("weights")
        if not isinstance(weights, dict):
            return params
        keys = {name: key for key, name in self._rounds.names.items()}
        unknown = sorted(str(name) for name in weights.keys() - keys.keys())
        if unknown:
            raise ConfigError(
                f"weights for {', '.join(unknown)}: no client of {self._config.name} has that name"
            )
        return params | {"weights": {keys[name]: weight for name, weight in weights.items()}}

    def _close(self, call: Call) -> Answer:
        entry = self._find(call)
        if entry.round.state is not State.OPEN:
            raise RoundClosed(f"round {entry.round.id} is {entry.round.state} and cannot be closed")
        self._rounds.feed(entry, CloseAsked())
        return Answer()

    def _abort(self, call: Call) -> Answer:
        entry = self._find(call)
        if not entry.round.live:
            raise RoundClosed(f"round {entry.round.id} is {entry.round.state} already")
        self._rounds.feed(
            entry, Failure(RoundFailed.code, f"aborted by {call.name}: {call.fields.reason}")
        )
        return Answer()


def _take_id(message: wire.Message) -> int:
    """The caller's number for its request, taken out of the fields."""
    number = message.fields.pop("id", None)
    if type(number) is not int:
        raise FrameError("a request needs `id`, a whole number that its answer repeats")
    return number


@dataclass(frozen=True)
class Op:
    """A line of the table of requests."""

    handler: Callable[[Desk, Call], Answer | None]
    fields: type
    roles: tuple[str, ...] = (CLIENT, COORDINATOR)
    arrays: frozenset[str] = frozenset()
    leader_only: bool = False  # S0 alone answers
    logged: bool = True  # when refused; what callers ask again and again is not


OPS: dict[str, Op] = {
    "info": Op(Desk._info, NoFields),
    "status": Op(Desk._status, AnyRound, logged=False),
    "round": Op(Desk._round, NoFields, (CLIENT,), logged=False),
    "model": Op(Desk._model, OneRound, leader_only=True),
    "upload": Op(Desk._upload, UploadFields, (CLIENT,), frozenset({"share"})),
    "result": Op(Desk._result, OneRound, logged=False),
    "open": Op(Desk._open, OpenFields, (COORDINATOR,), frozenset({"model"}), leader_only=True),
    "close": Op(Desk._close, OneRound, (COORDINATOR,), leader_only=True),
    "abort": Op(Desk._abort, AbortFields, (COORDINATOR,), leader_only=True),
}
