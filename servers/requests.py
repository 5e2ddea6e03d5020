"""What clients and the coordinator may ask, who may ask what, and the answers.

docs/wire.md has the table. A new request is a line of `OPS`, its method of `Desk` and a dataclass
for its fields.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

import securemedian
from securemedian.mpc import wire
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import (
    MAX_QUOTE,
    BadUpload,
    ConfigError,
    FrameError,
    LocalProtocolError,
    NotAllowed,
    RoundFailed,
    SecureMedianError,
    UnknownRound,
    cut,
    quoted,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers import logs
from securemedian.servers.config import ServerConfig
from securemedian.servers.control import is_round_id
from securemedian.servers.engine import Engine
from securemedian.servers.register import Entry
from securemedian.servers.round_state import ServerRound, State
from securemedian.servers.rounds import Rounds

CLIENT, COORDINATOR = "client", "coordinator"
NO_ROUND: dict[str, Any] = {
    "round": "",
    "number": 0,
    "state": "none",
    "params": {},
    "reason": "",
    "opened": "nothing",
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
    """Say it all by the request's name."""


@dataclass(frozen=True)
class AnyRound:
    """Name a round, or the latest by ""."""

    round: str = ""

    def __post_init__(self) -> None:
        if self.round:
            _check_round_id(self.round)


@dataclass(frozen=True)
class OneRound:
    """Name a round."""

    round: str

    def __post_init__(self) -> None:
        _check_round_id(self.round)


@dataclass(frozen=True)
class UploadFields(OneRound):
    """Name the round, the digest of the share's parameters, and the share's form."""

    params: bytes
    form: str


@dataclass(frozen=True)
class OpenFields:
    """Say what the coordinator wants to have computed, and from where."""

    params: dict[str, Any]
    range: dict[str, Any]
    reset: bool = False


@dataclass(frozen=True)
class AbortFields(OneRound):
    """Name the round, and say to everybody why it ends."""

    reason: str


def _check_round_id(text: str) -> None:
    if not is_round_id(text):
        raise UnknownRound(f"no round is called {quoted(text)}: an id is NUMBER-HEX8, 7-3fa9c1d2")


@dataclass(frozen=True)
class Call:
    """One request. Who asks was proved by the connection's key.

    The answer goes to `address` with the caller's number for it, `id`; `fields` are of the type
    that `OPS` names.
    """

    address: bytes
    id: int
    op: str
    key: str
    name: str
    role: str
    fields: Any
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
        """Answer one request, now or (`open`) when S1 has spoken.

        A wrong one is answered too, and changes nothing. Nothing that a request brings about ends
        the server.
        """
        number, op = 0, ""
        caller = self._callers[key][0]
        try:
            message = wire.unpack(parts)
            number, op = _take_id(message), message.type
            call = self._call(address, key, number, message)
            if (answer := OPS[op].handler(self, call)) is not None:
                self._answer(call, answer)
        except SecureMedianError as error:
            if op not in OPS or OPS[op].logged:
                logs.event(
                    "request-refused",
                    logging.WARNING,
                    caller=caller,
                    op=op,
                    code=error.code,
                    reason=str(error),
                )
            self._refuse(address, number, error)
        except Exception as error:
            # a defect that one request shows
            logs.event("request-error", logging.ERROR, error, caller=caller, op=op)
            defect = LocalProtocolError("a defect in this server: see its log")
            self._refuse(address, number, defect)

    def _call(self, address: bytes, key: str, number: int, message: wire.Message) -> Call:
        """A request with its fields checked, by somebody who may make it."""
        if message.type not in OPS:
            known = ", ".join(OPS)
            raise FrameError(f"no request is called {quoted(message.type)}; there are {known}")
        op = OPS[message.type]
        name, role = self._callers[key]
        if role not in op.roles:
            who = " or a ".join(op.roles)
            raise NotAllowed(
                f"{message.type!r} is for a {who}, and the key of {name!r} is a {role}'s"
            )
        if op.leader_only and self._config.party != 0:
            raise NotAllowed(f"s0 answers {message.type!r}: ask there")
        if not set(message.arrays) <= op.arrays:
            names = quoted(", ".join(message.arrays))
            raise FrameError(f"{message.type!r} comes with an array it does not take: {names}")
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
        """Answer with an error.

        A refusal that cannot be sent is logged: there is nobody left to tell.
        """
        fields = {"id": number, "code": error.code, "message": cut(str(error))}
        try:
            self._reply(address, wire.pack("error", fields))
        except Exception as failed:
            logs.event("answer-lost", logging.ERROR, failed, code=error.code)

    def _find(self, call: Call) -> Entry:
        return self._rounds.register.find(call.fields.round)

    def _peer(self) -> dict[str, Any]:
        return {"peer_linked": self._rounds.peer.linked, "peer_problem": self._rounds.peer.problem}

    def _info(self, call: Call) -> Answer:
        latest = self._rounds.register.latest
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
        entry = self._find(call) if call.fields.round else self._rounds.register.latest
        return Answer((self._status_of(entry) if entry else NO_ROUND) | self._peer())

    def _status_of(self, entry: Entry) -> dict[str, Any]:
        round_ = entry.round
        # the engine works for it: fills its pools, or runs it
        busy = round_.live
        return {
            "round": round_.id,
            "number": round_.number,
            "state": round_.state.value,
            "params": round_.params.to_dict(),
            "reason": round_.reason,
            "opened": round_.opened,
            "clients": round_.whereabouts(),
            "included": [round_.names[key] for key in round_.included],
            "left_out": round_.left_out,
            "phase": self._engine.phase if busy else "",
            "progress": list(self._engine.progress) if busy else [0, 0],
            "cost": entry.cost,
            "deadline_in_s": self._rounds.left_s(entry),
        }

    def _round(self, call: Call) -> Answer:
        entry = self._rounds.register.latest
        if entry is None:
            raise UnknownRound("there has been no round yet: wait for the coordinator to open one")
        round_ = entry.round
        return Answer(
            {
                "round": round_.id,
                "number": round_.number,
                "params": round_.params.to_dict(),
                "index": list(round_.names).index(call.key),
                "state": round_.state.value,
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
        round_ = entry.round
        if round_.params.result_to == "clients" and call.role != CLIENT:
            raise NotAllowed(f"the result of round {round_.id} is for its clients alone")
        if round_.state is State.FAILED:
            raise RoundFailed(round_.reason)
        if round_.state is not State.PUBLISHED:
            return Answer({"form": "pending", "state": round_.state.value})
        if entry.share is not None:
            return Answer({"form": "share"}, {"share": entry.share})
        if entry.results is None:
            raise NotAllowed("s0 publishes the model of this round: ask there")
        return Answer({"form": "model"}, {"results": entry.results})

    def _open(self, call: Call) -> None:
        def when_opened(opened: ServerRound, error: SecureMedianError | None) -> None:
            if error:
                self._refuse(call.address, call.id, error)
            else:
                self._answer(call, Answer({"round": opened.id, "number": opened.number}))

        params = RoundParams.from_dict(self._with_keys(call.fields.params))
        self._rounds.open(
            params, call.fields.range, call.fields.reset, call.arrays.get("model"), when_opened
        )

    def _with_keys(self, params: dict[str, Any]) -> dict[str, Any]:
        """The coordinator weighs clients by name, and the round by key."""
        weights = params.get("weights")
        if not isinstance(weights, dict):
            return params
        keys = {name: key for key, name in self._rounds.register.names.items()}
        unknown = sorted(str(name) for name in weights.keys() - keys.keys())
        if unknown:
            names = cut(", ".join(unknown), MAX_QUOTE)
            raise ConfigError(
                f"weights for {names}: no client of {self._config.name} has that name"
            )
        return params | {"weights": {keys[name]: weight for name, weight in weights.items()}}

    def _close(self, call: Call) -> Answer:
        self._rounds.close(self._find(call))
        return Answer()

    def _abort(self, call: Call) -> Answer:
        self._rounds.abort(self._find(call), f"aborted by {call.name}: {call.fields.reason}")
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
    # S0 alone answers
    leader_only: bool = False
    # when refused; what callers ask again and again is not
    logged: bool = True


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
