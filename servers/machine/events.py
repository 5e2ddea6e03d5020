"""The events of a round, and what a server does at them.

`table` says which event does what in which state.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from securemedian.common.receipts import Receipt
from securemedian.common.status import POLICY
from securemedian.servers.network.control import (
    Again,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Held,
    Ready,
    RoundMessage,
    Uploaded,
    Verdicts,
)


class LocalEvent:
    """The base class of the events of this server itself; those of the peer are `control`'s."""


@dataclass(frozen=True)
class OpenAsked(LocalEvent):
    """The coordinator asks for the round."""


@dataclass(frozen=True)
class DealingStored(LocalEvent):
    """A client's whole dealing is stored here."""

    client: str
    # its SHA-256
    digest: bytes


@dataclass(frozen=True)
class Stored(LocalEvent):
    """A client's upload is stored here."""

    client: str
    # its `control.upload_digest`
    digest: bytes


@dataclass(frozen=True)
class Declined(LocalEvent):
    """A client takes no part in the round."""

    client: str
    # one of `status.DECLINED`
    reason: str = POLICY


@dataclass(frozen=True)
class Turn(LocalEvent):
    """It is this round's turn to do what it waits for, and the other server is linked."""

    # the session that the round uses next, and whether it is a new one
    session: bytes = field(repr=False)
    new_session: bool


@dataclass(frozen=True)
class Tossed(LocalEvent):
    """The servers have tossed for the check of dealings that is under way."""

    coin: bytes = field(repr=False)
    # the other server's `ServerRound.token` of each client that is checked, one after the other
    tokens: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class CheckEnded(LocalEvent):
    """Our check has its verdicts."""

    # the clients that were checked, and those of them that have failed
    clients: list[str]
    failed: list[str]
    # those of them that have failed because nothing came of them that could be checked
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CloseAsked(LocalEvent):
    """The coordinator closes the round."""


@dataclass(frozen=True)
class Computed(LocalEvent):
    """Our run of the protocol has a result."""

    # with the record of the round, and our signature of it
    receipt: Receipt


@dataclass(frozen=True)
class Interrupted(LocalEvent):
    """The work under way here has broken off, and can be tried again."""

    code: str
    reason: str


@dataclass(frozen=True)
class Unlinked(LocalEvent):
    """The link to the other server is broken, or this server has been started."""

    reason: str


@dataclass(frozen=True)
class Failure(LocalEvent):
    """The round cannot go on: there is an error here, or it is aborted."""

    code: str
    reason: str
    # this server's signed record if the other one has deviated (`common.deviations`)
    deviation: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Overdue(LocalEvent):
    """The present state has reached its time limit."""


Event = RoundMessage | LocalEvent


class Use(StrEnum):
    """A resource that one live round at a time uses."""

    # running the protocol, or checking values
    PROTOCOL = "protocol"
    # checking dealings, which may be beside another round's protocol
    CHECK = "check"
    # waiting for the folds of an audited round, likewise
    FOLDS = "folds"


class Effect(StrEnum):
    """An action of a line of the table at this server.

    `BEGIN`, `BIND` and `PUBLISH` are done when the transaction stores the round. If another effect
    fails, the round fails or is interrupted.
    """

    # Log the new state.
    LOG = "log"
    # Keep the run that the round starts from. If the coordinator starts over, lift the constraints
    # of an earlier attempt.
    BEGIN = "begin"
    # Open the lanes, make or keep the base OTs, and fill the pools.
    PREPARE = "prepare"
    # Restrict later attempts at this number to these clients: from here on values may be opened.
    BIND = "bind"
    # Check the clients of `under_check`, together with the other server. If they deal and
    # have no coin yet, toss for it first. If their dealings have passed, bind both servers and
    # compare the clients' folds.
    CHECK = "check"
    # Run the protocol on the uploads of `included`.
    START = "start"
    # Keep the run that the round ends with.
    PUBLISH = "publish"
    # Forget base OTs and pools, and end the running protocol and checks.
    DROP_SESSION = "drop session"
    # Delete the shares.
    DROP_UPLOADS = "drop uploads"
    # Tell the coordinator whether its round is open.
    ANSWER = "answer"


# The messages that are ignored on a new link until both servers have told their state.
OF_A_LINK = (Dealt, Uploaded, Check, Verdicts, Close, Held, Compute, Ready, Done, Again)

Action = RoundMessage | Effect
