"""One round as a table of states, without I/O: events in, actions out. Both servers' tables differ in who leads.

    opening --Opened--> open --Close--> closing --Held/Run--> running --Done twice--> published
                        any of these four --Failure/Failed/Overdue--> failed

opening    S0 only: S1 has been asked and has not answered
open       uploads are taken
closing    uploads are refused; the servers tell each other whose they hold
running    the protocol runs on the shares of the clients that both hold
published  the result can be fetched
failed     it cannot, and `reason` says why

An event that the table has no line for in the present state is late (the round has moved on): it does nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    NotAllowed,
    ParametersDiffer,
    RoundClosed,
    TooFewClients,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers.control import (
    Close,
    Done,
    Failed,
    Held,
    Opened,
    Ready,
    RoundMessage,
    Run,
    Uploaded,
)


class State(StrEnum):
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    RUNNING = "running"
    PUBLISHED = "published"
    FAILED = "failed"


LIVE = (State.OPENING, State.OPEN, State.CLOSING, State.RUNNING)


# Events of this server itself; the peer's are the messages of servers.control.


@dataclass(frozen=True)
class Stored:
    """This client's upload is on our disk."""

    client: str


@dataclass(frozen=True)
class CloseAsked:
    """The coordinator wants no more uploads."""


@dataclass(frozen=True)
class Computed:
    """Our run of the protocol has a result."""


@dataclass(frozen=True)
class Failure:
    """The round cannot go on: an error here, the peer lost, an abort."""

    code: str
    reason: str


@dataclass(frozen=True)
class Overdue:
    """The present state has reached its time limit."""


Event = RoundMessage | Stored | CloseAsked | Computed | Failure | Overdue


@dataclass(frozen=True)
class Start:
    """Open the lanes and run the protocol on the uploads of `included`."""


Action = RoundMessage | Start  # a message is sent to the peer


@dataclass
class Round:
    """One round at one server. Clients are their public keys; `names` gives this server's allow-list its names."""

    party: int
    id: str
    number: int
    params: RoundParams
    names: Mapping[str, str]
    floor: int  # this server's own least number of clients
    answer_s: float  # the limit for an answer of the peer
    run_s: float  # the limit for a run of the protocol
    now: float  # of the event in hand
    state: State = field(init=False)
    deadline: float = field(init=False)
    here: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    included: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    code: str = ""
    reason: str = ""
    computed_here: bool = False
    computed_there: bool = False

    def __post_init__(self) -> None:
        if self.floor > self.params.max_clients:
            raise ConfigError(
                f"max_clients is {self.params.max_clients}, and s{self.party} asks for at least {self.floor} clients"
            )
        self._enter(State.OPENING if self.party == 0 else State.OPEN)

    @property
    def live(self) -> bool:
        return self.state in LIVE

    @property
    def needed(self) -> int:
        """Fewer clients than this and we refuse."""
        return max(self.floor, self.params.min_clients)

    @property
    def digest(self) -> bytes:
        """What both servers must hold alike before they run."""
        return digest(self.id, self.number, self.params.to_dict(), self.included)

    def whereabouts(self) -> dict[str, str]:
        """Where each client's upload is, by name."""
        words = {
            (True, True): "both",
            (True, False): "here",
            (False, True): "there",
            (False, False): "none",
        }
        return {
            name: words[key in self.here, key in self.there] for key, name in self.names.items()
        }

    def check_upload(self, client: str) -> None:
        """Raise unless an upload of this client may be stored now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.id} is {self.state} and takes no uploads")
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(f"round {self.id} is weighted, and its coordinator gave you no weight")
        if client in self.here:
            raise DuplicateUpload(
                f"an upload of yours for round {self.id} is stored already; the first one counts"
            )

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; the actions are to be done in order."""
        self.now = now
        handler = TABLE[self.party].get((self.state, type(event)))
        return handler(self, event) if handler else []

    def _enter(self, state: State) -> None:
        self.state = state
        limits = {
            State.OPENING: self.answer_s,
            # S0 closes at the deadline; S1 fails the round if it hears nothing of that
            State.OPEN: self.params.deadline_s + self.party * self.answer_s,
            State.CLOSING: self.answer_s,
            State.RUNNING: self.run_s,
        }
        self.deadline = self.now + limits.get(state, float("inf"))

    def _opened(self, _: Opened) -> list[Action]:
        self._enter(State.OPEN)
        return []

    def _stored(self, event: Stored) -> list[Action]:
        self.here.add(event.client)
        return [Uploaded(self.id, event.client), *self._close_if_full()]

    def _uploaded(self, event: Uploaded) -> list[Action]:
        self.there.add(event.client)
        return self._close_if_full()

    def _close_if_full(self) -> list[Action]:
        full = len(self.here & self.there) >= self.params.max_clients
        return self._close() if full and self.party == 0 else []

    def _close(self, _: Any = None) -> list[Action]:
        self._enter(State.CLOSING)
        return [Close(self.id, sorted(self.here))]

    def _closed_there(self, event: Close) -> list[Action]:
        self._enter(State.CLOSING)
        self._choose(event.held)
        return [Held(self.id, sorted(self.here))]

    def _held_there(self, event: Held) -> list[Action]:
        self._choose(event.held)
        return self._enough() or self._run([Run(self.id, self.digest)])

    def _run_there(self, event: Run) -> list[Action]:
        if event.digest != self.digest:
            reason = f"the servers' digests of the clients and parameters of round {self.id} differ"
            return self._fail(Failure(ParametersDiffer.code, reason))
        return self._enough() or self._run([Start(), Ready(self.id)])

    def _run(self, actions: list[Action]) -> list[Action]:
        self._enter(State.RUNNING)
        return actions

    def _ready_there(self, _: Ready) -> list[Action]:
        return [Start()]

    def _choose(self, held_there: list[str]) -> None:
        """The clients that both servers hold, in one order for both; the others are left out by name."""
        self.there = set(held_there)
        complete = sorted(self.here & self.there)
        self.included = complete[: self.params.max_clients]
        reasons = {
            (
                True,
                True,
            ): f"complete, and beyond the round's max_clients ({self.params.max_clients})",
            (True, False): f"its upload reached only s{self.party}",
            (False, True): f"its upload reached only s{1 - self.party}",
            (False, False): "its upload reached neither server",
        }
        left_out = self.names.keys() - set(self.included)
        self.left_out = {
            name: reasons[key in self.here, key in self.there]
            for key, name in self.names.items()
            if key in left_out
        }

    def _enough(self) -> list[Action]:
        """Nothing if the clients suffice on our own account, the failure of the round if not."""
        if len(self.included) < self.needed:
            reason = f"{len(self.included)} complete uploads, and s{self.party} asks for at least {self.needed}"
            return self._fail(Failure(TooFewClients.code, reason))
        try:
            self.params.check_included(self.included)
        except ConfigError as error:
            return self._fail(Failure(error.code, str(error)))
        return []

    def _computed(self, _: Computed) -> list[Action]:
        self.computed_here = True
        self._publish_if_both()
        return [Done(self.id)]

    def _computed_there(self, _: Done) -> list[Action]:
        self.computed_there = True
        self._publish_if_both()
        return []

    def _publish_if_both(self) -> None:
        if self.computed_here and self.computed_there:
            self._enter(State.PUBLISHED)

    def _fail(self, event: Failure | Failed) -> list[Action]:
        self._enter(State.FAILED)
        self.code, self.reason = event.code, event.reason
        return [Failed(self.id, event.code, f"s{self.party}: {event.reason}")]

    def _failed_there(self, event: Failed) -> list[Action]:
        self._fail(event)
        return []

    def _overdue(self, _: Overdue) -> list[Action]:
        return self._fail(
            Failure(
                ChannelTimeout.code, f"round {self.id} was {self.state} for longer than its limit"
            )
        )


Table = dict[tuple[State, type], Callable[[Round, Any], list[Action]]]

_BOTH: Table = {
    (State.OPEN, Stored): Round._stored,
    (State.OPEN, Uploaded): Round._uploaded,
    (State.RUNNING, Computed): Round._computed,
    (State.RUNNING, Done): Round._computed_there,
    **{(state, Failure): Round._fail for state in LIVE},
    **{(state, Failed): Round._failed_there for state in LIVE},
    **{(state, Overdue): Round._overdue for state in LIVE},
}

_LEADER: Table = _BOTH | {
    (State.OPENING, Opened): Round._opened,
    (State.OPEN, CloseAsked): Round._close,
    (State.OPEN, Overdue): Round._close,
    (State.CLOSING, Held): Round._held_there,
    (State.RUNNING, Ready): Round._ready_there,
}

_FOLLOWER: Table = _BOTH | {
    (State.OPEN, Close): Round._closed_there,
    (State.CLOSING, Run): Round._run_there,
}

TABLE: tuple[Table, Table] = (_LEADER, _FOLLOWER)
