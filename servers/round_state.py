"""The states of a round, as a table and without I/O.

A state and an event give the next state and the actions to do, in order. Each server has its own
table (`TABLE[party]`), because S0 leads:

    S0:  new -> opening -> open -> closing -> starting -> running -> published
    S1:  new ------------> open -> closing -------------> running -> published
         any of these but new and published -> failed

Every pair of a state and an event is of one of three kinds:

- It has lines in `TABLE`. The first line whose condition holds is taken.
- It is in `LATE`, with the reason why the event may come after the round has moved on. It changes
  nothing.
- It is refused: `ServerRound.handle` raises, and the round stays as it was. For a message of the
  peer it raises PeerProtocolError, with which `runner` fails the round; for an event of our own
  LocalProtocolError.

docs/wire.md shows both tables. tests/test_round_state.py compares that page with these tables, and
tries every order of events that two honest servers can meet.

A new state is a member of `State` and its lines below; a new event is a class and its lines. The
actions of a line are members of `Effect`, which `runner` does, or messages of `control`, which go
to the peer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    DuplicateUpload,
    LocalProtocolError,
    NotAllowed,
    ParametersDiffer,
    PeerProtocolError,
    RoundClosed,
    TooFewClients,
    cut,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers.control import (
    Close,
    Done,
    Failed,
    Held,
    Open,
    Opened,
    Ready,
    RoundMessage,
    Run,
    Uploaded,
)


class State(StrEnum):
    """The state of a round at one server."""

    # The round is made, and nobody has been told of it; this state is never seen from outside.
    NEW = "new"
    # at S0: S1 has been asked to take part, and has not answered yet
    OPENING = "opening"
    # Uploads are taken.
    OPEN = "open"
    # Uploads are refused, and the servers tell each other which they hold.
    CLOSING = "closing"
    # at S0: S1 has been asked to run the protocol, and has not answered yet
    STARTING = "starting"
    # The protocol runs on the shares of the clients that both servers hold.
    RUNNING = "running"
    # The result can be fetched.
    PUBLISHED = "published"
    # There is no result, and `reason` says why.
    FAILED = "failed"


# the states of a round that has begun and not ended
LIVE = (State.OPENING, State.OPEN, State.CLOSING, State.STARTING, State.RUNNING)


# The events of this server itself. Those of the peer are the messages of `control`.


@dataclass(frozen=True)
class OpenAsked:
    """The coordinator asks for the round."""


@dataclass(frozen=True)
class Stored:
    """A client's upload is stored here."""

    client: str


@dataclass(frozen=True)
class CloseAsked:
    """The coordinator closes the round."""


@dataclass(frozen=True)
class Computed:
    """Our run of the protocol has a result."""


@dataclass(frozen=True)
class Failure:
    """The round cannot go on: there is an error here, the peer is lost, or it is aborted."""

    code: str
    reason: str


@dataclass(frozen=True)
class Overdue:
    """The present state has reached its time limit."""


LocalEvent = OpenAsked | Stored | CloseAsked | Computed | Failure | Overdue
Event = RoundMessage | LocalEvent


class Effect(StrEnum):
    """What a line of the table does at this server. If an effect fails, the round fails."""

    # Log the new state.
    LOG = "log"
    # Keep the training run that the round starts from. If the coordinator starts over, forget whom
    # an earlier attempt binds.
    BEGIN = "begin"
    # Open the lanes, make or keep the base OTs, and fill the pools.
    PREPARE = "prepare"
    # Remember that further attempts at this number are for these clients only: from here on values
    # may be opened.
    BIND = "bind"
    # Run the protocol on the uploads of `included`.
    START = "start"
    # Keep the training run that the round ends with.
    PUBLISH = "publish"
    # Forget base OTs and pools, and end the running protocol.
    DROP_SESSION = "drop session"
    # Delete the shares.
    DROP_UPLOADS = "drop uploads"
    # Tell the coordinator whether its round is open.
    ANSWER = "answer"


Action = RoundMessage | Effect


@dataclass
class ServerRound:
    """A round at one server. Its clients are known by their public keys."""

    party: int
    # the message with which S0 asks S1 to take part
    asked: Open
    params: RoundParams
    # the name of each client on this server's allow-list, by public key
    names: Mapping[str, str]
    # the fewest clients that this server ever computes with
    floor: int
    # the time limit for an answer of the peer
    answer_s: float
    # the time limit for a run of the protocol
    run_s: float
    # the clients of an earlier attempt at this number that may have opened values: only these may
    # take part again. Empty if there was no such attempt.
    repeats: frozenset[str] = frozenset()
    state: State = State.NEW
    # the time at which the present state has reached its limit
    deadline: float = float("inf")
    # the clients whose uploads are stored here, and at the other server
    here: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    # the clients that are computed on, in the order of their keys
    included: list[str] = field(default_factory=list)
    # the others, by name, and why they are left out
    left_out: dict[str, str] = field(default_factory=dict)
    # why the round has failed
    code: str = ""
    reason: str = ""
    computed_here: bool = False
    computed_there: bool = False
    # whether the round has ever been running here
    ran: bool = False

    def __post_init__(self) -> None:
        most = self.params.max_clients
        if self.floor > most:
            raise ConfigError(
                f"max_clients is {most}, and s{self.party} asks for at least {self.floor} clients"
            )
        if len(self.repeats) > most:
            raise ClientsDiffer(f"max_clients is {most}: {self._repeats_whom()}")

    @property
    def round_id(self) -> str:
        return self.asked.round

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def live(self) -> bool:
        """Whether the round has begun, and is neither published nor failed."""
        return self.state in LIVE

    @property
    def opened(self) -> str:
        """What the servers may have learned of values: "nothing", "maybe" or the "result".

        It is "maybe" from the moment that this server runs the protocol, which is rather too early
        than too late.
        """
        if self.state is State.PUBLISHED:
            return "result"
        return "maybe" if self.ran else "nothing"

    @property
    def needed(self) -> int:
        """The fewest clients that this server runs this round with."""
        return max(self.floor, self.params.min_clients)

    @property
    def digest(self) -> bytes:
        """The digest of what must be alike at both servers before they run."""
        return digest(self.round_id, self.number, self.params.to_dict(), self.included)

    def whereabouts(self) -> dict[str, str]:
        """Return by name where each client's upload is: "both", "here", "there" or "none"."""
        words = {
            (True, True): "both",
            (True, False): "here",
            (False, True): "there",
            (False, False): "none",
        }
        return {
            name: words[key in self.here, key in self.there] for key, name in self.names.items()
        }

    # Whether what is asked from outside may be done now

    def check_upload(self, client: str) -> None:
        """Check that an upload of this client may be stored now.

        Raises RoundClosed, NotAllowed or DuplicateUpload if it may not.
        """
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and takes no uploads")
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(
                f"round {self.round_id} is weighted, and its coordinator gave you no weight"
            )
        if self.repeats and client not in self.repeats:
            raise NotAllowed(
                f"round {self.round_id} takes no upload of yours: {self._repeats_whom()}"
            )
        if client in self.here:
            raise DuplicateUpload(
                f"an upload of yours for round {self.round_id} is stored already; "
                "the first one counts"
            )

    def check_close(self) -> None:
        """Raise RoundClosed unless the coordinator may close the round now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and cannot be closed")

    def check_abort(self) -> None:
        """Raise RoundClosed unless the coordinator may abort the round now.

        Once the round may have opened values, it may not.
        """
        if not self.live:
            raise RoundClosed(f"round {self.round_id} is {self.state} already")
        if self.state in (State.STARTING, State.RUNNING):
            raise RoundClosed(
                f"round {self.round_id} is {self.state} and may have opened values: "
                "wait for its end"
            )

    # One event

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event, and return the actions to do, in order.

        Raises PeerProtocolError or LocalProtocolError for an event that cannot come now; nothing
        has changed then.
        """
        pair = self.state, type(event)
        if pair in LATE[self.party]:
            return []
        if pair not in TABLE[self.party]:
            kind = type(event).__name__.lower()
            what = f"{kind!r} cannot come while round {self.round_id} is {self.state}"
            raise PeerProtocolError(what) if is_message(event) else LocalProtocolError(what)
        self._note(event)
        line = next(line for line in TABLE[self.party][pair] if line.when(self, event))
        if line.to is State.FAILED and (cause := self._obstacle(event)):
            self.code, self.reason = cut(cause.code), cut(cause.reason)
        if line.to is not self.state:
            self._enter(line.to, now)
        return [
            action if isinstance(action, Effect) else self._message(action, event)
            for action in line.actions
        ]

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.ran = self.ran or state is State.RUNNING
        limits = {
            State.OPENING: self.answer_s,
            # S0 closes the round at its deadline, and S1 fails it if it then hears nothing from S0
            State.OPEN: self.params.deadline_s + self.party * self.answer_s,
            State.CLOSING: self.answer_s,
            State.STARTING: self.answer_s,
            State.RUNNING: self.run_s,
        }
        self.deadline = now + limits.get(state, float("inf"))

    def _note(self, event: Event) -> None:
        """Note what an event says, before the conditions of the table are evaluated."""
        match event:
            case Stored():
                self.here.add(event.client)
            # of clients that this server lets in: others could be any number of any texts
            case Uploaded():
                self.there |= {event.client} & self.names.keys()
            case Close() | Held():
                self.there = set(event.held) & self.names.keys()
                self._choose()
            case Computed():
                self.computed_here = True
            case Done():
                self.computed_there = True

    def _message(self, kind: type[RoundMessage], event: Event) -> RoundMessage:
        """Return the message of this kind that this server sends at `event`."""
        if kind is Open:
            return self.asked
        if kind is Uploaded and isinstance(event, Stored):
            return Uploaded(self.round_id, event.client)
        if kind is Close or kind is Held:
            return kind(self.round_id, sorted(self.here))
        if kind is Run:
            return Run(self.round_id, self.digest)
        if kind is Failed:
            return Failed(self.round_id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.round_id)

    def _choose(self) -> None:
        """Choose whom to compute on: clients that both servers hold, in the same order at both."""
        complete = sorted(self.here & self.there)
        if self.repeats:
            complete = [client for client in complete if client in self.repeats]
        self.included = complete[: self.params.max_clients]
        reasons = {
            (True, False): f"its upload reached only s{self.party}",
            (False, True): f"its upload reached only s{1 - self.party}",
            (False, False): "its upload reached neither server",
        }
        most = f"its upload is complete, but max_clients is {self.params.max_clients}"
        self.left_out = {
            name: reasons.get((key in self.here, key in self.there), most)
            for key, name in self.names.items()
            if key not in self.included
        }

    # The conditions of the table. docs/wire.md shows what follows "Return whether".

    def full(self, _: Event) -> bool:
        """Return whether both servers hold the uploads of all clients that the round can take."""
        complete = self.here & self.there
        if self.repeats:
            return complete >= self.repeats
        return len(complete) >= self.params.max_clients

    def both_computed(self, _: Event) -> bool:
        """Return whether both servers have their result."""
        return self.computed_here and self.computed_there

    def obstructed(self, event: Event) -> bool:
        """Return whether the round cannot run with the chosen clients."""
        return self._obstacle(event) is not None

    def _obstacle(self, event: Event) -> Failure | None:
        """Return why the round fails at this event; None if it does not."""
        match event:
            case Failure() | Failed():
                return Failure(event.code, event.reason)
            case Overdue():
                reason = f"round {self.round_id} was {self.state} for longer than its limit"
                return Failure(ChannelTimeout.code, reason)
            case Run() if event.digest != self.digest:
                reason = (
                    f"the servers have different clients or parameters in round {self.round_id}"
                )
                return Failure(ParametersDiffer.code, reason)
        try:
            self._check_clients()
        except (ClientsDiffer, ConfigError, TooFewClients) as error:
            return Failure(error.code, str(error))
        return None

    def _check_clients(self) -> None:
        """Check the chosen clients by this server's own rules.

        Raises ClientsDiffer, TooFewClients or ConfigError.
        """
        if self.repeats and set(self.included) != self.repeats:
            raise ClientsDiffer(f"{len(self.included)} complete uploads: {self._repeats_whom()}")
        if len(self.included) < self.needed:
            raise TooFewClients(
                f"{len(self.included)} complete uploads, "
                f"and s{self.party} asks for at least {self.needed}"
            )
        # the method's own rules, for so many clients with these weights
        self.params.check_included(self.included)

    def whom_it_repeats(self) -> list[str]:
        """Return the names of the clients of the earlier attempt that may have opened values."""
        return sorted(self.names.get(client, "one that left the list") for client in self.repeats)

    def _repeats_whom(self) -> str:
        names = self.whom_it_repeats()
        return cut(
            f"an earlier attempt at number {self.number} may have opened values of {len(names)} "
            "clients. Only these may take part again, and all of them must, unless the coordinator "
            f"starts over with reset or a model: {', '.join(names)}"
        )


def is_message(event: Event) -> bool:
    """Return whether an event is a message of the peer."""
    return isinstance(event, RoundMessage)


# The table


def always(_: ServerRound, __: Event) -> bool:
    """Return True, for a line that has no condition."""
    return True


@dataclass(frozen=True)
class Transition:
    """A line of the table: if `when` holds, the round goes to `to` and `actions` are done.

    A message class among the actions means that a message of that kind is sent.
    """

    to: State
    actions: tuple[Effect | type[RoundMessage], ...] = ()
    when: Callable[[ServerRound, Event], bool] = always


Pair = tuple[State, type]
Table = dict[Pair, tuple[Transition, ...]]


_CLOSE = Transition(State.CLOSING, (Effect.LOG, Close))
_PUBLISH = (Effect.LOG, Effect.PUBLISH, Effect.DROP_UPLOADS)
_FAIL = (Effect.LOG, Effect.DROP_SESSION, Effect.DROP_UPLOADS)
_FAIL_ASKED = (*_FAIL, Effect.ANSWER)

_BOTH: Table = {
    (State.RUNNING, Computed): (
        Transition(State.PUBLISHED, (*_PUBLISH, Done), ServerRound.both_computed),
        Transition(State.RUNNING, (Done,)),
    ),
    (State.RUNNING, Done): (
        Transition(State.PUBLISHED, _PUBLISH, ServerRound.both_computed),
        Transition(State.RUNNING),
    ),
}


def _failing(states: Iterable[State], does: tuple[Effect, ...]) -> Table:
    """Return the lines with which a round fails in these states; `does` are the effects.

    The peer is told, unless it was the peer that has said so.
    """
    table: Table = {}
    for state in states:
        table[state, Failure] = table[state, Overdue] = (Transition(State.FAILED, (*does, Failed)),)
        table[state, Failed] = (Transition(State.FAILED, does),)
    return table


_LEADER: Table = (
    _failing(LIVE, _FAIL_ASKED)
    | _BOTH
    | {
        (State.NEW, OpenAsked): (Transition(State.OPENING, (Effect.LOG, Open)),),
        (State.OPENING, Opened): (
            Transition(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Effect.ANSWER)),
        ),
        (State.OPEN, Stored): (
            Transition(State.CLOSING, (Uploaded, Effect.LOG, Close), ServerRound.full),
            Transition(State.OPEN, (Uploaded,)),
        ),
        (State.OPEN, Uploaded): (
            Transition(State.CLOSING, (Effect.LOG, Close), ServerRound.full),
            Transition(State.OPEN),
        ),
        (State.OPEN, CloseAsked): (_CLOSE,),
        # the deadline, which is not a failure
        (State.OPEN, Overdue): (_CLOSE,),
        (State.CLOSING, Held): (
            Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.obstructed),
            Transition(State.STARTING, (Effect.LOG, Run)),
        ),
        (State.STARTING, Ready): (
            Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START)),
        ),
    }
)

# S1 is asked and never asks, so that it is never `opening` or `starting`.
_FOLLOWER: Table = (
    _failing((State.OPEN, State.CLOSING, State.RUNNING), _FAIL)
    | _BOTH
    | {
        # The lanes are opened before the answer is sent: what S0 sends on a lane that S1 has not
        # opened yet is lost.
        (State.NEW, Open): (
            Transition(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Opened)),
        ),
        (State.OPEN, Stored): (Transition(State.OPEN, (Uploaded,)),),
        (State.OPEN, Uploaded): (Transition(State.OPEN),),
        (State.OPEN, Close): (Transition(State.CLOSING, (Effect.LOG, Held)),),
        (State.CLOSING, Run): (
            Transition(State.FAILED, (*_FAIL, Failed), ServerRound.obstructed),
            Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START, Ready)),
        ),
    }
)

TABLE: tuple[Table, Table] = (_LEADER, _FOLLOWER)

_UNAWARE = "sent before the peer heard that the round has failed here"
_FAILED_LATER = "the peer failed after both had their result, which stands here"

# The messages that may come although the round has moved on, and why. They change nothing.
LATE: tuple[dict[Pair, str], dict[Pair, str]] = (
    {
        (State.CLOSING, Uploaded): "sent before S1 heard `close`; its `held` has the client too",
        (State.PUBLISHED, Failed): _FAILED_LATER,
        **{
            (State.FAILED, kind): _UNAWARE for kind in (Opened, Uploaded, Held, Ready, Done, Failed)
        },
    },
    {
        (State.PUBLISHED, Failed): _FAILED_LATER,
        **{(State.FAILED, kind): _UNAWARE for kind in (Uploaded, Close, Run, Done, Failed)},
    },
)
