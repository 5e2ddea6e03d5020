"""The messages between the servers. Each is a dataclass: what a frame carries, and an event for `servers.session`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from securemedian.mpc import wire
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, FrameError


@dataclass(frozen=True)
class Hello:
    """Each second, both ways: alive, and configured like this. A new `instance` is a new process, without any round."""

    instance: str
    agreement: dict[str, Any]


@dataclass(frozen=True)
class Bye:
    """This server stops. Answered in kind, so that it knows its last words to have arrived."""


@dataclass(frozen=True)
class Open:
    """S0: take part in this round, with the base OTs of `session`, which are new or kept from earlier rounds."""

    round: str
    number: int
    params: dict[str, Any]
    session: bytes
    new_session: bool


@dataclass(frozen=True)
class Opened:
    """S1: yes. (No is `Failed`.)"""

    round: str


@dataclass(frozen=True)
class Uploaded:
    """Both: this client's upload is stored here."""

    round: str
    client: str


@dataclass(frozen=True)
class Close:
    """S0: no more uploads; these are held at S0."""

    round: str
    held: list[str]


@dataclass(frozen=True)
class Held:
    """S1: closed too; these are held at S1."""

    round: str
    held: list[str]


@dataclass(frozen=True)
class Run:
    """S0: run the protocol, if your clients and parameters have this digest too."""

    round: str
    digest: bytes


@dataclass(frozen=True)
class Ready:
    """S1: they have, and the lanes are open on this side."""

    round: str


@dataclass(frozen=True)
class Done:
    """Both: the protocol has ended here, with a result."""

    round: str


@dataclass(frozen=True)
class Failed:
    """Both: the round has failed here, so it has failed."""

    round: str
    code: str
    reason: str


RoundMessage = Open | Opened | Uploaded | Close | Held | Run | Ready | Done | Failed
Message = Hello | Bye | RoundMessage

_KINDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (Hello, Bye, Open, Opened, Uploaded, Close, Held, Run, Ready, Done, Failed)
}


def encode(message: Message) -> list[wire.Part]:
    return wire.pack(type(message).__name__.lower(), asdict(message))


def decode(parts: Sequence[wire.Part]) -> Message:
    """Raises FrameError for anything that is not exactly one of the messages."""
    message = wire.unpack(parts)
    if message.type not in _KINDS or message.arrays:
        raise FrameError(f"{message.type!r} is no message between servers")
    if not all(type(key) is str for key in message.fields.get("held", [])):
        raise FrameError("`held` lists something that is no key")
    try:
        return cast(Message, build(_KINDS[message.type], message.fields, message.type))
    except ConfigError as error:
        raise FrameError(str(error)) from error
