"""The messages between the servers.

Each message is a dataclass whose fields have the names that they have on the wire. A message about
a round is also one of its `events`. Whatever the peer sends goes through `decode`, which checks
types, round ids and lengths, so that every message that it returns is well formed. The
tables of `machine.table` decide whether a message may come now.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from securemedian.common.status import DEFAULT_COHORT, check_cohort
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import ConfigError, FrameError, cut, quoted
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES
from securemedian.servers.config import MOST_RUNS

_ROUND_ID = re.compile(r"[1-9][0-9]{0,17}-[0-9a-f]{8}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
SHA256_BYTES = 32
# of a piece with which the link is measured: many packets, and no wait for the hellos behind it
LOAD_BYTES = 1 << 16


def new_round_id(number: int) -> str:
    """Return a new round id with this number, which no other round has."""
    return f"{number}-{os.urandom(4).hex()}"


def is_round_id(text: str) -> bool:
    """Return whether `text` is NUMBER-HEX8. Round ids name folders, so nothing else may pass."""
    return _ROUND_ID.fullmatch(text) is not None


def _sorted(names: list[str]) -> bool:
    return names == sorted(set(names))


# the conditions of messages' fields, by name, in every message that has the field; `build` has
# checked the types
_CONDITIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "round": (is_round_id, "NUMBER-HEX8"),
    "session": (lambda session: len(session) == SESSION_BYTES, f"{SESSION_BYTES} bytes"),
    "start": (lambda start: bool(_DIGEST.fullmatch(start)), "64 hex digits"),
    "participants": (_sorted, "sorted, each once"),
    "clients": (lambda clients: bool(clients) and _sorted(clients), "one or more, sorted"),
    # neither negative nor NaN
    "spent": (lambda spent: spent >= 0, "0 or more"),
    "runs": (lambda runs: 1 <= runs <= MOST_RUNS, f"1 to {MOST_RUNS}"),
    "coin": (lambda coin: len(coin) in (0, SEED_BYTES), f"{SEED_BYTES} bytes or none"),
    "coins": (
        lambda coins: all(len(coin) == SEED_BYTES + SHA256_BYTES for coin in coins.values()),
        f"{SEED_BYTES + SHA256_BYTES} bytes each",
    ),
    "level": (lambda level: level >= 0, "0 or more"),
    "load": (lambda load: len(load) == LOAD_BYTES, f"{LOAD_BYTES} bytes"),
}


def _check_fields(message: Any) -> None:
    """Raise ConfigError for a field of a message that is not as `_CONDITIONS` says."""
    for name, (holds, what) in _CONDITIONS.items():
        if hasattr(message, name) and not holds(getattr(message, name)):
            raise ConfigError(f"`{name}` is not {what}")


@dataclass(frozen=True)
class Hello:
    """Both servers say each second that they are alive, and how they are configured.

    Every release can read it: what it does not know of it is ignored.

    A new `instance` begins a new link: the sender has been started, or has given the other server
    up, and forgets all that was under way between them.
    """

    # new for each process, and after each loss of the other server
    instance: str
    # the instance of the other server that the sender is linked with; "" if it is with none
    peer: str
    # how many messages about rounds this instance has sent
    sent: int
    # the ids of the rounds that are live at the sender
    rounds: list[str]
    # the parameters that both servers must have alike, `kind` and `shards` of `[engine]` among
    # them, and both public signing keys
    agreement: dict[str, Any]
    # the sender's release, and the lowest and highest wire version that it speaks; releases before
    # 1.0 say neither
    release: str = ""
    wire: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Bye:
    """A server says that it stops.

    The other one answers with `Bye` too, and so confirms that everything sent before has arrived.
    """


@dataclass(frozen=True)
class Load:
    """S0 measures the link with pieces of LOAD_BYTES, each of which S1 sends back as it is."""

    # of the measurement
    number: int
    # 64 kB
    load: bytes

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class RoundMessage:
    """The base class of every message about a round."""

    # the round's id
    round: str
    # how many messages about rounds the sender's instance has sent before, which shows lost ones
    sent: int = field(default=0, kw_only=True, compare=False)

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class Open(RoundMessage):
    """S0 asks S1 to take part in a round."""

    # its number in the run, and its parameters (`RoundParams.to_dict`)
    number: int
    params: dict[str, Any]
    # the id of the session whose base OTs the round uses
    session: bytes = field(repr=False)
    # whether these base OTs have to be made, and are not kept from an earlier round
    new_session: bool
    # whether the coordinator gives a model or resets, which lifts the constraints of an earlier
    # attempt at the number, if that started from another model
    start_over: bool
    # the digest of the run that the round starts from, in hex digits, for which both
    # servers vouch
    start: str
    # the name of the cohort
    cohort: str = DEFAULT_COHORT
    # the public keys of the clients that may take part, sorted; all of the cohort if it is empty
    participants: list[str] = field(default_factory=list)
    # whether the coordinator asks to lift these constraints in any case
    release: bool = False
    # the cost of the cohort's results for each client so far, as S0 knows it (`mpc.rounds.privacy`)
    spent: float = 0.0
    # whether both servers refuse what one of them could turn into more than a bounded leak
    one_malicious_server: bool = False
    # how often S0 runs the protocol for this round at most
    runs: int = MOST_RUNS
    # the text of the form of clients' models (`common.model_form`); "" if it is not known yet
    model_form: str = field(default="", metadata={"since": 3})

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.round.startswith(f"{self.number}-"):
            raise ConfigError(f"round {self.round} cannot have the number {self.number}")
        check_cohort(self.cohort)


@dataclass(frozen=True)
class Opened(RoundMessage):
    """S1 takes part; if it refuses, it answers with `Failed` instead."""

    # that of the `Open` which it answers
    session: bytes = field(repr=False)
    # the larger of what S0 knows to be spent and what S1 does
    spent: float = 0.0
    # the smaller of how often S0 runs the protocol at most and how often S1 does
    runs: int = MOST_RUNS


@dataclass(frozen=True)
class Resume(RoundMessage):
    """A server tells its state in a live round, on a new link.

    S0 asks S1 to go on, with a session for what comes, and S1 answers with that session and its own
    state. Both then go on from the earlier one.
    """

    # the id of the session for what comes, 16 bytes
    session: bytes = field(repr=False)
    # see `common.states.State`
    state: str
    # the number of the latest run of the protocol, and the sender's signature of its record if it
    # has its result; otherwise empty
    attempt: int
    signature: bytes
    # the uploads that the sender holds, by public key (see `Uploaded`)
    held: dict[str, bytes]
    # the clients whose whole dealings the sender holds, and those with verdicts
    dealt: list[str]
    passed: list[str]
    failed: list[str]
    # the coins of the check of these clients' dealings, and behind each coin the receiver's
    # `ServerRound.token` of it
    coins: dict[str, bytes] = field(repr=False)
    # in a round of several votes, the one that it takes or runs, from 0 on
    level: int = field(default=0, metadata={"since": 3})


@dataclass(frozen=True)
class Dealt(RoundMessage):
    """Either server has stored the whole dealing of `client`."""

    # its public key
    client: str


def upload_digest(sha256: bytes, group: int | None) -> bytes:
    """Return what tells one upload from another: its SHA-256, and a byte for a visible group."""
    return sha256 if group is None else sha256 + group.to_bytes(1, "little")


def group_of(digest: bytes) -> int:
    return digest[SHA256_BYTES]


@dataclass(frozen=True)
class Uploaded(RoundMessage):
    """Either server has stored an upload of `client`."""

    # its public key
    client: str
    # the SHA-256 of an upload that both servers get alike, and nothing for a share; then, where
    # groups are visible, a byte for the client's group
    digest: bytes = b""


@dataclass(frozen=True)
class _OfCheck(RoundMessage):
    """A message about a check, which lists the clients that are checked."""

    # public keys, one or more, sorted
    clients: list[str]


@dataclass(frozen=True)
class Check(_OfCheck):
    """S0 asks S1 to check with it what these clients have sent, and does so itself."""

    # the coin of an earlier check of their dealings, which broke off; otherwise empty
    coin: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Verdicts(_OfCheck):
    """S1 has checked these clients, and says which of them have failed."""

    # those of `clients` that have failed, sorted, too
    failed: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        named = set(self.failed)
        if self.failed != [key for key in self.clients if key in named]:
            raise ConfigError("`failed` is not a part of `clients`, in their order")


@dataclass(frozen=True)
class _Holding(RoundMessage):
    """A message that lists the clients whose uploads its sender holds."""

    # the digest of each upload, as in `uploaded`, by public key
    held: dict[str, bytes]


@dataclass(frozen=True)
class Close(_Holding):
    """S0 takes no more uploads, and says which it holds."""


@dataclass(frozen=True)
class Held(_Holding):
    """S1 takes no more uploads either, and says which it holds."""


@dataclass(frozen=True)
class Compute(RoundMessage):
    """S0 asks S1 to run the protocol, if S1 has the same clients, verdicts and parameters."""

    # see `ServerRound.digest`
    digest: bytes
    # the number of this run, from 1 on
    attempt: int
    # the session that it uses, and whether that is a new one
    session: bytes = field(repr=False)
    new_session: bool


@dataclass(frozen=True)
class _OfAttempt(RoundMessage):
    """A message about one run of the protocol."""

    # see `Compute`
    attempt: int


@dataclass(frozen=True)
class Ready(_OfAttempt):
    """S1 has the same clients, verdicts and parameters, and runs the protocol."""


@dataclass(frozen=True)
class Done(_OfAttempt):
    """Either server has its result, and vouches for it."""

    # of the record that both servers have of the round (`common.receipts`)
    signature: bytes


@dataclass(frozen=True)
class Again(_OfAttempt):
    """Work under way at either server has broken off, and can be tried again."""

    # of the error (`mpc.errors`), and its text
    code: str
    reason: str


@dataclass(frozen=True)
class Failed(RoundMessage):
    """The round has failed at either server, and therefore at both."""

    # of the error (`mpc.errors`), and its text
    code: str
    reason: str


Message = Hello | Bye | Load | RoundMessage

KINDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (
        Hello,
        Bye,
        Load,
        Open,
        Opened,
        Resume,
        Dealt,
        Uploaded,
        Check,
        Verdicts,
        Close,
        Held,
        Compute,
        Ready,
        Done,
        Again,
        Failed,
    )
}


def encode(message: Any) -> list[wire.Part]:
    """Return the frame of one message, which is a dataclass."""
    return wire.pack(type(message).__name__.lower(), flat(message))


def decode(parts: Sequence[wire.Part]) -> Message:
    """Return the message in a frame.

    Raises FrameError if the frame is not exactly one of the messages.
    """
    return cast(Message, decode_as(KINDS, parts, "between servers"))


def decode_as(kinds: Mapping[str, type], parts: Sequence[wire.Part], what: str) -> Any:
    """Return the message in a frame, which is one of `kinds`, by the names of their types.

    `what` follows "message" in the FrameError that this raises if it is not exactly one of them.
    """
    message = wire.unpack(parts)
    if message.type not in kinds or message.arrays:
        raise FrameError(f"{quoted(message.type)} is not a message {what}")
    kind, values = kinds[message.type], message.fields
    if kind is Hello:
        known = {each.name for each in fields(Hello)}
        values = {name: value for name, value in values.items() if name in known}
    try:
        return build(kind, values, message.type)
    except ConfigError as error:
        raise FrameError(cut(str(error))) from error
