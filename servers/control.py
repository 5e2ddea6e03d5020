"""The messages between the servers.

Each is a dataclass: what a frame carries, and an event of `round_state`. `decode` is the one door
for what the peer sends: it checks types, round ids and lengths, so that behind it a message is well
formed. Whether it may come now is the table's to say.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from securemedian.mpc import wire
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import ConfigError, FrameError, cut, quoted
from securemedian.mpc.party import SESSION_BYTES

_ROUND_ID = re.compile(r"[1-9][0-9]{0,17}-[0-9a-f]{8}", re.ASCII)


def new_round_id(number: int) -> str:
    """Return an id for a round of this number that no other round has."""
    return f"{number}-{os.urandom(4).hex()}"


def is_round_id(text: str) -> bool:
    """Return whether `text` is NUMBER-HEX8. Round ids name folders, so nothing else is let in."""
    return _ROUND_ID.fullmatch(text) is not None


@dataclass(frozen=True)
class Hello:
    """Say each second, both ways: alive, and configured like this.

    A new `instance` is a new process, without any round.
    """

    instance: str
    agreement: dict[str, Any]

    def __post_init__(self) -> None:
        if not all(type(name) is str for name in self.agreement):
            raise ConfigError("`agreement` has a name that is no text")


@dataclass(frozen=True)
class Bye:
    """Say that this server stops.

    Answered in kind, so that it knows its last words to have arrived.
    """


@dataclass(frozen=True)
class RoundMessage:
    """The base of every message about one round."""

    round: str

    def __post_init__(self) -> None:
        if not is_round_id(self.round):
            raise ConfigError(f"{quoted(self.round)} is no round id (NUMBER-HEX8)")


@dataclass(frozen=True)
class Open(RoundMessage):
    """S0: take part in this round.

    The base OTs of `session` are new or kept from earlier rounds. `start_over`: the coordinator
    starts from another model or anew, so that no earlier attempt binds its clients.
    """

    number: int
    params: dict[str, Any]
    session: bytes
    new_session: bool
    start_over: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.round.startswith(f"{self.number}-"):
            raise ConfigError(f"round {self.round} cannot have the number {self.number}")
        if len(self.session) != SESSION_BYTES:
            raise ConfigError(f"`session` has {len(self.session)} bytes, not {SESSION_BYTES}")


@dataclass(frozen=True)
class Opened(RoundMessage):
    """S1: yes. (No is `Failed`.)"""


@dataclass(frozen=True)
class Uploaded(RoundMessage):
    """Both: this client's upload is stored here."""

    client: str


@dataclass(frozen=True)
class _Holding(RoundMessage):
    held: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(type(key) is str for key in self.held):
            raise ConfigError("`held` lists something that is no key")


@dataclass(frozen=True)
class Close(_Holding):
    """S0: no more uploads; these are held at S0."""


@dataclass(frozen=True)
class Held(_Holding):
    """S1: closed too; these are held at S1."""


@dataclass(frozen=True)
class Run(RoundMessage):
    """S0: run the protocol, if your clients and parameters have this digest too."""

    digest: bytes


@dataclass(frozen=True)
class Ready(RoundMessage):
    """S1: they have, and this side runs."""


@dataclass(frozen=True)
class Done(RoundMessage):
    """Both: the protocol has ended here, with a result."""


@dataclass(frozen=True)
class Failed(RoundMessage):
    """Both: the round has failed here, so it has failed."""

    code: str
    reason: str


Message = Hello | Bye | RoundMessage

_KINDS: dict[str, type] = {
    kind.__name__.lower(): kind
    for kind in (Hello, Bye, Open, Opened, Uploaded, Close, Held, Run, Ready, Done, Failed)
}


def encode(message: Message) -> list[wire.Part]:
    """Return the frame of one message."""
    return wire.pack(type(message).__name__.lower(), asdict(message))


def decode(parts: Sequence[wire.Part]) -> Message:
    """Return the message in a frame.

    Raises FrameError for anything that is not exactly one of the messages.
    """
    message = wire.unpack(parts)
    if message.type not in _KINDS or message.arrays:
        raise FrameError(f"{quoted(message.type)} is no message between servers")
    try:
        return cast(Message, build(_KINDS[message.type], message.fields, message.type))
    except ConfigError as error:
        raise FrameError(cut(str(error))) from error
