"""One round as a table, without I/O.

A state and an event give the next state and the actions to do, in order. Both servers have a table
of their own (`TABLE[party]`), because S0 leads:

    S0:  new -> opening -> open -> closing -> starting -> running -> published
    S1:  new ------------> open -> closing -------------> running -> published
         any of these but new and published -> failed

Every pair of a state and an event is one of three. It has lines in `TABLE`, of which the first
whose condition holds is taken. Or it is in `LATE`, with the reason why it may come after the round
has moved on, and changes nothing. Or it is refused, `ServerRound.handle` raises, and the round is
as before: a message of the peer that cannot come is a PeerProtocolError (and `runner` fails the
round with it), an event of our own a LocalProtocolError. docs/wire.md shows both tables;
tests/test_round_state.py compares them with these, and walks through every order of events that two
honest servers can meet.

A new state or event is a member here and its lines below. What the lines may do is `Effect`, done
by `runner`, or a message of `control`, which goes to the peer.
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
    """Where a round is at one server."""

    # made, and nothing said of it yet; nobody outside sees this one
    NEW = "new"
    # S0: S1 has been asked to take part and has not answered
    OPENING = "opening"
    # uploads are taken
    OPEN = "open"
    # uploads are refused; the servers tell each other whose they hold
    CLOSING = "closing"
    # S0: S1 has been told to run and has not answered
    STARTING = "starting"
    # the protocol runs on the shares of the clients that both hold
    RUNNING = "running"
    # the result can be fetched
    PUBLISHED = "published"
    # it cannot, and `reason` says why
    FAILED = "failed"


LIVE = (State.OPENING, State.OPEN, State.CLOSING, State.STARTING, State.RUNNING)


# Events of this server itself; the peer's are the messages of `control`.


@dataclass(frozen=True)
class OpenAsked:
    """The coordinator wants this round."""


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


LocalEvent = OpenAsked | Stored | CloseAsked | Computed | Failure | Overdue
Event = RoundMessage | LocalEvent


class Effect(StrEnum):
    """What a line of the table does at this server. An effect that fails fails the round."""

    LOG = "log"
    # keep the training run that the round starts from; forget whom an earlier attempt binds, if
    # the coordinator starts over
    BEGIN = "begin"
    # open the lanes, make the base OTs or keep them, fill the pools
    PREPARE = "prepare"
    # values may be opened from here on: remember that this number is for these clients only
    BIND = "bind"
    # run the protocol on the uploads of `included`
    START = "start"
    # keep the training run that the round ends with
    PUBLISH = "publish"
    # forget base OTs and pools, and end a run in hand
    DROP_SESSION = "drop session"
    # delete the shares
    DROP_UPLOADS = "drop uploads"
    # tell the coordinator whether its round is open
    ANSWER = "answer"


Action = RoundMessage | Effect


@dataclass
class ServerRound:
    """Hold one round at one server.

    Clients are their public keys; `names` gives this server's allow-list its names. `asked` is what
    S0 asked S1 for, `floor` this server's own least number of clients, `answer_s` the limit for an
    answer of the peer and `run_s` for a run of the protocol. `repeats` are the clients of an
    earlier attempt at this number that may have opened values, who alone may take part again; empty
    if there was none.
    """

    party: int
    asked: Open
    params: RoundParams
    names: Mapping[str, str]
    floor: int
    answer_s: float
    run_s: float
    repeats: frozenset[str] = frozenset()
    state: State = State.NEW
    # of the present state
    deadline: float = float("inf")
    here: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    included: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    code: str = ""
    reason: str = ""
    computed_here: bool = False
    computed_there: bool = False
    # whether it was ever running
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
    def id(self) -> str:
        return self.asked.round

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def live(self) -> bool:
        """Whether the round is in hand: asked for, and neither published nor failed."""
        return self.state in LIVE

    @property
    def opened(self) -> str:
        """Return what the servers may have learned of values: `nothing`, `maybe` or the `result`.

        `maybe` from the moment that this server runs, so rather too early than too late.
        """
        if self.state is State.PUBLISHED:
            return "result"
        return "maybe" if self.ran else "nothing"

    @property
    def needed(self) -> int:
        """The least number of clients that we run with."""
        return max(self.floor, self.params.min_clients)

    @property
    def digest(self) -> bytes:
        """What both servers must hold alike before they run."""
        return digest(self.id, self.number, self.params.to_dict(), self.included)

    def whereabouts(self) -> dict[str, str]:
        """Return where each client's upload is, by name."""
        words = {
            (True, True): "both",
            (True, False): "here",
            (False, True): "there",
            (False, False): "none",
        }
        return {
            name: words[key in self.here, key in self.there] for key, name in self.names.items()
        }

    # What may be asked from outside, and when

    def check_upload(self, client: str) -> None:
        """Raise unless an upload of this client may be stored now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.id} is {self.state} and takes no uploads")
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(f"round {self.id} is weighted, and its coordinator gave you no weight")
        if self.repeats and client not in self.repeats:
            raise NotAllowed(f"round {self.id} takes no upload of yours: {self._repeats_whom()}")
        if client in self.here:
            raise DuplicateUpload(
                f"an upload of yours for round {self.id} is stored already; the first one counts"
            )

    def check_close(self) -> None:
        """Raise unless the coordinator may close the round now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.id} is {self.state} and cannot be closed")

    def check_abort(self) -> None:
        """Raise unless the coordinator may abort the round: not once it may have opened values."""
        if not self.live:
            raise RoundClosed(f"round {self.id} is {self.state} already")
        if self.state in (State.STARTING, State.RUNNING):
            raise RoundClosed(
                f"round {self.id} is {self.state} and may have opened values: wait for its end"
            )

    # One event

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event; the actions are to be done in order.

        Raises PeerProtocolError or LocalProtocolError for an event that cannot come now, which
        changes nothing.
        """
        pair = self.state, type(event)
        if pair in LATE[self.party]:
            return []
        if pair not in TABLE[self.party]:
            kind = type(event).__name__.lower()
            what = f"{kind!r} cannot come while round {self.id} is {self.state}"
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
            # S0 closes at the deadline; S1 fails the round if it hears nothing of that
            State.OPEN: self.params.deadline_s + self.party * self.answer_s,
            State.CLOSING: self.answer_s,
            State.STARTING: self.answer_s,
            State.RUNNING: self.run_s,
        }
        self.deadline = now + limits.get(state, float("inf"))

    def _note(self, event: Event) -> None:
        """Write down what an event tells, before the conditions are looked at."""
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
        """Return our message of this kind, in answer to `event`."""
        if kind is Open:
            return self.asked
        if kind is Uploaded and isinstance(event, Stored):
            return Uploaded(self.id, event.client)
        if kind is Close or kind is Held:
            return kind(self.id, sorted(self.here))
        if kind is Run:
            return Run(self.id, self.digest)
        if kind is Failed:
            return Failed(self.id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.id)

    def _choose(self) -> None:
        """Choose the clients that both servers hold, in one order for both.

        The others are left out by name.
        """
        complete = sorted(self.here & self.there)
        if self.repeats:
            complete = [client for client in complete if client in self.repeats]
        self.included = complete[: self.params.max_clients]
        reasons = {
            (True, False): f"its upload reached only s{self.party}",
            (False, True): f"its upload reached only s{1 - self.party}",
            (False, False): "its upload reached neither server",
        }
        most = f"complete, and beyond the round's max_clients ({self.params.max_clients})"
        self.left_out = {
            name: reasons.get((key in self.here, key in self.there), most)
            for key, name in self.names.items()
            if key not in self.included
        }

    # The conditions of the table

    def full(self, _: Event) -> bool:
        """All whom the round can take are complete."""
        complete = self.here & self.there
        if self.repeats:
            return complete >= self.repeats
        return len(complete) >= self.params.max_clients

    def both_computed(self, _: Event) -> bool:
        """Both servers have their result."""
        return self.computed_here and self.computed_there

    def obstructed(self, event: Event) -> bool:
        """These clients cannot be computed on."""
        return self._obstacle(event) is not None

    def _obstacle(self, event: Event) -> Failure | None:
        """Return why the round fails at this event; None if it need not."""
        match event:
            case Failure() | Failed():
                return Failure(event.code, event.reason)
            case Overdue():
                reason = f"round {self.id} was {self.state} for longer than its limit"
                return Failure(ChannelTimeout.code, reason)
            case Run() if event.digest != self.digest:
                reason = "the servers' digests of the clients and parameters of round"
                return Failure(ParametersDiffer.code, f"{reason} {self.id} differ")
        try:
            self._check_clients()
        except (ClientsDiffer, ConfigError, TooFewClients) as error:
            return Failure(error.code, str(error))
        return None

    def _check_clients(self) -> None:
        """Raise unless the chosen clients suffice on our own account."""
        if self.repeats and set(self.included) != self.repeats:
            raise ClientsDiffer(f"{len(self.included)} are complete: {self._repeats_whom()}")
        if len(self.included) < self.needed:
            raise TooFewClients(
                f"{len(self.included)} complete uploads, "
                f"and s{self.party} asks for at least {self.needed}"
            )
        # the method's own rules for so many clients of these weights
        self.params.check_included(self.included)

    def whom_it_repeats(self) -> list[str]:
        """Return the names of the clients of the earlier attempt that may have opened values."""
        return sorted(self.names.get(client, "one that left the list") for client in self.repeats)

    def _repeats_whom(self) -> str:
        names = self.whom_it_repeats()
        return cut(
            f"an earlier attempt at number {self.number} may have opened values of {len(names)} "
            "clients, and only these, all of them, may take part again, or the coordinator starts "
            f"over with reset or a model: {', '.join(names)}"
        )


def is_message(event: Event) -> bool:
    """Return whether an event is the peer's word and not our own."""
    return isinstance(event, RoundMessage)


# The table


def always(_: ServerRound, __: Event) -> bool:
    """Hold in any case."""
    return True


@dataclass(frozen=True)
class Line:
    """Go to `to` and do `actions`, if `when` holds.

    A class of messages among the actions means: send our message of that kind.
    """

    to: State
    actions: tuple[Effect | type[RoundMessage], ...] = ()
    when: Callable[[ServerRound, Event], bool] = always


Pair = tuple[State, type]
Table = dict[Pair, tuple[Line, ...]]


_CLOSE = Line(State.CLOSING, (Effect.LOG, Close))
_PUBLISH = (Effect.LOG, Effect.PUBLISH, Effect.DROP_UPLOADS)
_FAIL = (Effect.LOG, Effect.DROP_SESSION, Effect.DROP_UPLOADS)
_FAIL_ASKED = (*_FAIL, Effect.ANSWER)

_BOTH: Table = {
    (State.RUNNING, Computed): (
        Line(State.PUBLISHED, (*_PUBLISH, Done), ServerRound.both_computed),
        Line(State.RUNNING, (Done,)),
    ),
    (State.RUNNING, Done): (
        Line(State.PUBLISHED, _PUBLISH, ServerRound.both_computed),
        Line(State.RUNNING),
    ),
}


def _failing(states: Iterable[State], does: tuple[Effect, ...]) -> Table:
    """Return how each of these states fails; the peer is told unless it has said so itself."""
    table: Table = {}
    for state in states:
        table[state, Failure] = table[state, Overdue] = (Line(State.FAILED, (*does, Failed)),)
        table[state, Failed] = (Line(State.FAILED, does),)
    return table


_LEADER: Table = (
    _failing(LIVE, _FAIL_ASKED)
    | _BOTH
    | {
        (State.NEW, OpenAsked): (Line(State.OPENING, (Effect.LOG, Open)),),
        (State.OPENING, Opened): (
            Line(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Effect.ANSWER)),
        ),
        (State.OPEN, Stored): (
            Line(State.CLOSING, (Uploaded, Effect.LOG, Close), ServerRound.full),
            Line(State.OPEN, (Uploaded,)),
        ),
        (State.OPEN, Uploaded): (
            Line(State.CLOSING, (Effect.LOG, Close), ServerRound.full),
            Line(State.OPEN),
        ),
        (State.OPEN, CloseAsked): (_CLOSE,),
        # the deadline, which is no failure
        (State.OPEN, Overdue): (_CLOSE,),
        (State.CLOSING, Held): (
            Line(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.obstructed),
            Line(State.STARTING, (Effect.LOG, Run)),
        ),
        (State.STARTING, Ready): (Line(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START)),),
    }
)

# S1 is asked and does not ask: it is never `opening` or `starting`.
_FOLLOWER: Table = (
    _failing((State.OPEN, State.CLOSING, State.RUNNING), _FAIL)
    | _BOTH
    | {
        # the lanes before the answer: what S0 sends on a lane that is not there yet is lost
        (State.NEW, Open): (Line(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Opened)),),
        (State.OPEN, Stored): (Line(State.OPEN, (Uploaded,)),),
        (State.OPEN, Uploaded): (Line(State.OPEN),),
        (State.OPEN, Close): (Line(State.CLOSING, (Effect.LOG, Held)),),
        (State.CLOSING, Run): (
            Line(State.FAILED, (*_FAIL, Failed), ServerRound.obstructed),
            Line(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START, Ready)),
        ),
    }
)

TABLE: tuple[Table, Table] = (_LEADER, _FOLLOWER)

_UNAWARE = "sent before it heard that the round has failed here"
_FAILED_LATER = "it failed after both had their result, which stands here"

# What may come although the round has moved on, and why. It changes nothing.
LATE: tuple[dict[Pair, str], dict[Pair, str]] = (
    {
        (State.CLOSING, Uploaded): "sent before it heard `close`; its `held` names the client too",
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
