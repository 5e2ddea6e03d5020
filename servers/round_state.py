"""The states of a round, as a table and without I/O.

A state and an event give the next state and the actions to do, in order. Each server has its own
table (`TABLE[party]`), because S0 leads:

    S0:  new -> opening -> open -> closing -> checking -> starting -> running -> published
    S1:  new ------------> open -> closing -> checking -------------> running -> published
         any of these but new and published -> failed

`checking` is for rounds in which the servers check what clients send (`checks`). Dealings are
checked while the round is open, too, as soon as both servers hold them: S0 sends `check` with a
list of clients, both servers check these together, S1 answers with its verdicts, and S0 compares
them with its own. One check is under way at a time. What it opens tells nothing of an honest
client's update, so that `bind` comes after it, before the protocol runs.

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

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    BadUpload,
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
    Check,
    Checked,
    Close,
    Dealt,
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
    # What has not been checked yet is checked, by both servers.
    CHECKING = "checking"
    # at S0: S1 has been asked to run the protocol, and has not answered yet
    STARTING = "starting"
    # The protocol runs on the shares of the clients that both servers hold.
    RUNNING = "running"
    # The result can be fetched.
    PUBLISHED = "published"
    # There is no result, and `reason` says why.
    FAILED = "failed"


# the states of a round that has begun and not ended
LIVE = (
    State.OPENING,
    State.OPEN,
    State.CLOSING,
    State.CHECKING,
    State.STARTING,
    State.RUNNING,
)


# The events of this server itself. Those of the peer are the messages of `control`.


@dataclass(frozen=True)
class OpenAsked:
    """The coordinator asks for the round."""


@dataclass(frozen=True)
class DealingStored:
    """A client's whole dealing is stored here."""

    client: str


@dataclass(frozen=True)
class Stored:
    """A client's upload is stored here."""

    client: str
    # see `control.Uploaded`
    digest: bytes = b""


@dataclass(frozen=True)
class CheckEnded:
    """Our check has its verdicts."""

    # the clients that were checked, and those of them that have failed
    clients: list[str]
    failed: list[str]


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


LocalEvent = (
    OpenAsked | DealingStored | Stored | CheckEnded | CloseAsked | Computed | Failure | Overdue
)
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
    # Check the clients of `under_check`, together with the other server.
    CHECK = "check"
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
    # the clients whose whole dealings are stored here, and at the other server
    dealt_here: set[str] = field(default_factory=set)
    dealt_there: set[str] = field(default_factory=set)
    # the clients whose uploads are stored here, and at the other server, with the uploads' digests
    here: dict[str, bytes] = field(default_factory=dict)
    there: dict[str, bytes] = field(default_factory=dict)
    # the clients of the check that is under way, and which have failed it here and at S1
    under_check: list[str] = field(default_factory=list)
    failed_here: list[str] | None = None
    failed_there: list[str] | None = None
    # the verdicts: at S0 those of both servers, which are the same; at S1 its own
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    # what the two servers do not agree on, though honest servers always do
    discord: str = ""
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
        agreed = self.included, sorted(self.failed)
        return digest(self.round_id, self.number, self.params.to_dict(), *agreed)

    @property
    def dealt(self) -> bool:
        """Whether clients deal one-hot vectors ahead of their uploads."""
        return self.params.dealing is not None

    @property
    def checks(self) -> bool:
        """Whether the servers check what clients send."""
        return self.dealt or self.params.method.checks_values

    def whereabouts(self) -> dict[str, str]:
        """Return by name where each client's upload is: "both", "here", "there" or "none"."""
        return self._places(self.here, self.there)

    def whereabouts_of_dealings(self) -> dict[str, str]:
        """Return by name where each client's dealing is. It is empty where nobody deals."""
        return self._places(self.dealt_here, self.dealt_there) if self.dealt else {}

    def _places(self, here: Container[str], there: Container[str]) -> dict[str, str]:
        words = {
            (True, True): "both",
            (True, False): "here",
            (False, True): "there",
            (False, False): "none",
        }
        return {name: words[key in here, key in there] for key, name in self.names.items()}

    # Whether what is asked from outside may be done now

    def check_dealing(self, client: str) -> None:
        """Check that a dealing of this client may be stored now.

        Raises BadUpload, RoundClosed, NotAllowed or DuplicateUpload if it may not.
        """
        if not self.dealt:
            raise BadUpload(f"nobody deals for round {self.round_id}: upload shares of your update")
        self._check_sender(client, "dealings")
        if client in self.dealt_here:
            raise DuplicateUpload(
                f"a dealing of yours for round {self.round_id} is stored already; "
                "the first one counts"
            )

    def check_upload(self, client: str) -> None:
        """Check that an upload of this client may be stored now.

        Raises RoundClosed, NotAllowed, DuplicateUpload or BadUpload if it may not.
        """
        self._check_sender(client, "uploads")
        if client in self.here:
            raise DuplicateUpload(
                f"an upload of yours for round {self.round_id} is stored already; "
                "the first one counts"
            )
        if self.dealt and client not in self.dealt_here:
            raise BadUpload(
                f"no whole dealing of yours for round {self.round_id} is stored here: "
                "deal before you upload"
            )

    def _check_sender(self, client: str, what: str) -> None:
        """Check that this client may send `what` now. Raises RoundClosed or NotAllowed."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and takes no {what}")
        if client not in self.names:
            raise NotAllowed(f"round {self.round_id} is older than your place on the list")
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(
                f"round {self.round_id} is weighted, and its coordinator gave you no weight"
            )
        if self.repeats and client not in self.repeats:
            raise NotAllowed(
                f"round {self.round_id} takes no upload of yours: {self._repeats_whom()}"
            )
        if client in self.failed:
            raise NotAllowed(
                f"your dealing for round {self.round_id} failed the check: "
                "you are left out of this round"
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
        if Check in line.actions:
            self.under_check = self._unchecked()
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
            State.CHECKING: self.run_s,
            State.STARTING: self.answer_s,
            State.RUNNING: self.run_s,
        }
        self.deadline = now + limits.get(state, float("inf"))

    def _note(self, event: Event) -> None:
        """Note what an event says, before the conditions of the table are evaluated."""
        match event:
            case DealingStored():
                self.dealt_here.add(event.client)
            case Stored():
                self.here[event.client] = event.digest
            # of clients that this server lets in: others could be any number of any texts
            case Dealt():
                self.dealt_there |= {event.client} & self.names.keys()
            case Uploaded() if event.client in self.names:
                self.there[event.client] = event.digest
            case Close() | Held():
                self.there = {key: event.held[key] for key in event.held.keys() & self.names.keys()}
                self._choose()
            case Check() if self._may_check(event.clients):
                self.under_check = event.clients
            case Check():
                self.discord = "s0 asks to check clients that cannot be checked now"
            case Checked() if event.clients == self.under_check and self.failed_there is None:
                self.failed_there = event.failed
                self._judge()
            case Checked():
                self.discord = "s1 has checked other clients than it was asked to check"
            case CheckEnded():
                self.failed_here = event.failed
                self._judge()
            case Computed():
                self.computed_here = True
            case Done():
                self.computed_there = True

    def _message(self, kind: type[RoundMessage], event: Event) -> RoundMessage:
        """Return the message of this kind that this server sends at `event`."""
        if kind is Open:
            return self.asked
        if kind is Dealt and isinstance(event, DealingStored):
            return Dealt(self.round_id, event.client)
        if kind is Uploaded and isinstance(event, Stored):
            return Uploaded(self.round_id, event.client, event.digest)
        if kind is Check:
            return Check(self.round_id, self.under_check)
        if kind is Checked and isinstance(event, CheckEnded):
            return Checked(self.round_id, event.clients, event.failed)
        if kind is Close or kind is Held:
            return kind(self.round_id, dict(sorted(self.here.items())))
        if kind is Run:
            return Run(self.round_id, self.digest)
        if kind is Failed:
            return Failed(self.round_id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.round_id)

    def _judge(self) -> None:
        """Take over the verdicts of the check under way, at S0 once both servers have theirs."""
        if self.failed_here is None or (self.party == 0 and self.failed_there is None):
            return
        if self.party == 0 and self.failed_here != self.failed_there:
            self.discord = "the two servers' checks have different verdicts"
            return
        self.failed |= set(self.failed_here)
        self.passed |= set(self.under_check) - self.failed
        self.under_check, self.failed_here, self.failed_there = [], None, None
        if self.state is State.CHECKING:
            self._choose()
        else:
            self.left_out = {self.names[key]: self._why_left_out(key) for key in self.failed}

    def _complete(self) -> set[str]:
        """Return the clients that both servers hold alike, and that have not failed a check."""
        alike = {key for key, digest in self.here.items() if self.there.get(key) == digest}
        if self.dealt:
            alike &= self.dealt_here & self.dealt_there
        if self.repeats:
            alike &= self.repeats
        return alike - self.failed

    def _choose(self) -> None:
        """Choose whom to compute on: complete clients, in the same order at both servers.

        The verdicts may yet change the choice.
        """
        self.included = sorted(self._complete())[: self.params.max_clients]
        self.left_out = {
            name: self._why_left_out(key)
            for key, name in self.names.items()
            if key not in self.included
        }

    def _why_left_out(self, key: str) -> str:
        if key in self.failed:
            return (
                "its dealing failed the check"
                if self.dealt
                else "a value of its update is out of range"
            )
        dealt = key in self.dealt_here, key in self.dealt_there
        if self.dealt and not all(dealt):
            return f"its dealing reached {self._whom(*dealt)}"
        uploaded = key in self.here, key in self.there
        if not all(uploaded):
            return f"its upload reached {self._whom(*uploaded)}"
        if self.here[key] != self.there[key]:
            return "it sent different uploads to the two servers"
        return f"its upload is complete, but max_clients is {self.params.max_clients}"

    def _whom(self, here: bool, there: bool) -> str:
        if here or there:
            return f"only s{self.party if here else 1 - self.party}"
        return "neither server"

    def _unchecked(self) -> list[str]:
        """Return whom to check now, at S0: nobody while a check is under way."""
        if self.under_check or not self.checks:
            return []
        if self.state is not State.OPEN:
            return [key for key in self.included if key not in self.passed]
        # uploads are fixed once the round is closed, and dealings as soon as they are whole
        whole = self.dealt_here & self.dealt_there
        return sorted(whole - self.passed - self.failed)

    def _may_check(self, clients: list[str]) -> bool:
        """Return whether S1 can check these clients now, as S0 asks it to."""
        if self.dealt:
            held = self.dealt_here
        else:
            held = set(self.here) if self.state is State.CHECKING else set()
        return not self.under_check and set(clients) <= held - self.passed - self.failed

    # The conditions of the table. docs/wire.md shows what follows "Return whether".

    def checked(self, _: Event | None) -> bool:
        """Return whether this is a round in which the servers check what clients send."""
        return self.checks

    def checkable(self, _: Event) -> bool:
        """Return whether no check is under way and there is something to check."""
        return bool(self._unchecked())

    def being_checked(self, _: Event) -> bool:
        """Return whether a check is under way."""
        return bool(self.under_check)

    def discordant(self, _: Event) -> bool:
        """Return whether the two servers do not agree on what to check or on the verdicts."""
        return bool(self.discord)

    def full(self, _: Event) -> bool:
        """Return whether both servers hold the uploads of all clients that the round can take."""
        ready = self._complete()
        if self.dealt:
            ready &= self.passed
        able = {key for key in self.names if not self._is_lost(key)}
        if self.repeats:
            return ready >= self.repeats & able
        return len(ready) >= min(self.params.max_clients, len(able))

    def _is_lost(self, key: str) -> bool:
        """Return whether this client cannot be in the round, whatever it still sends."""
        differ = key in self.here and key in self.there and self.here[key] != self.there[key]
        weights = self.params.weights
        return differ or key in self.failed or (bool(weights) and key not in weights)

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
            case _ if self.discord:
                return Failure(PeerProtocolError.code, self.discord)
            case Run() if self.under_check or (
                self.checks and not self.passed.issuperset(self.included)
            ):
                reason = "s0 asks to run the protocol before all clients are checked"
                return Failure(PeerProtocolError.code, reason)
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
                f"and s{self.party} asks for at least {self.needed}. {self._reasons()}"
            )
        # the method's own rules, for so many clients with these weights
        self.params.check_included(self.included)

    def _reasons(self) -> str:
        """Return who is left out and why, with the reasons of the fewest clients first."""
        names: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            names.setdefault(why, []).append(name)
        ordered = sorted(names.items(), key=lambda item: len(item[1]))
        return cut("; ".join(f"{', '.join(who)}: {why}" for why, who in ordered))

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
_FULL = replace(_CLOSE, when=ServerRound.full)
_CHECK = (Check, Effect.CHECK)
_RUN = Transition(State.STARTING, (Effect.LOG, Run))
_PUBLISH = (Effect.LOG, Effect.PUBLISH, Effect.DROP_UPLOADS)
_FAIL = (Effect.LOG, Effect.DROP_SESSION, Effect.DROP_UPLOADS)
_FAIL_ASKED = (*_FAIL, Effect.ANSWER)
_DISCORD = Transition(State.FAILED, (*_FAIL, Failed), ServerRound.discordant)
_DISCORD_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.discordant)
_OBSTRUCTED = Transition(State.FAILED, (*_FAIL, Failed), ServerRound.obstructed)
_OBSTRUCTED_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.obstructed)

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


def _alike(pairs: Iterable[Pair], *lines: Transition) -> Table:
    """Return the same lines for several pairs."""
    return dict.fromkeys(pairs, lines)


_LEADER: Table = (
    _failing(LIVE, _FAIL_ASKED)
    | _BOTH
    | {
        (State.NEW, OpenAsked): (Transition(State.OPENING, (Effect.LOG, Open)),),
        (State.OPENING, Opened): (
            Transition(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Effect.ANSWER)),
        ),
        (State.OPEN, DealingStored): (
            Transition(State.OPEN, (Dealt, *_CHECK), ServerRound.checkable),
            Transition(State.OPEN, (Dealt,)),
        ),
        (State.OPEN, Dealt): (
            Transition(State.OPEN, _CHECK, ServerRound.checkable),
            Transition(State.OPEN),
        ),
        (State.OPEN, Stored): (
            replace(_FULL, actions=(Uploaded, *_CLOSE.actions)),
            Transition(State.OPEN, (Uploaded,)),
        ),
        (State.OPEN, Uploaded): (_FULL, Transition(State.OPEN)),
        **_alike(
            ((State.OPEN, CheckEnded), (State.OPEN, Checked)),
            _DISCORD_ASKED,
            _FULL,
            Transition(State.OPEN, _CHECK, ServerRound.checkable),
            Transition(State.OPEN),
        ),
        (State.OPEN, CloseAsked): (_CLOSE,),
        # the deadline, which is not a failure
        (State.OPEN, Overdue): (_CLOSE,),
        # sent before S1 heard `close`
        (State.CLOSING, Dealt): (Transition(State.CLOSING),),
        **_alike(
            ((State.CLOSING, CheckEnded), (State.CLOSING, Checked)),
            _DISCORD_ASKED,
            Transition(State.CLOSING),
        ),
        (State.CLOSING, Held): (
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (Effect.LOG,), ServerRound.being_checked),
            Transition(State.CHECKING, (Effect.LOG, *_CHECK), ServerRound.checkable),
            _RUN,
        ),
        # several times where clients that have failed make room for others
        **_alike(
            ((State.CHECKING, CheckEnded), (State.CHECKING, Checked)),
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (), ServerRound.being_checked),
            Transition(State.CHECKING, _CHECK, ServerRound.checkable),
            _RUN,
        ),
        (State.STARTING, Ready): (
            Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START)),
        ),
    }
)

# S1 is asked and never asks, so that it is never `opening` or `starting`.
_FOLLOWER: Table = (
    _failing((State.OPEN, State.CLOSING, State.CHECKING, State.RUNNING), _FAIL)
    | _BOTH
    | {
        # The lanes are opened before the answer is sent: what S0 sends on a lane that S1 has not
        # opened yet is lost.
        (State.NEW, Open): (
            Transition(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Opened)),
        ),
        (State.OPEN, DealingStored): (Transition(State.OPEN, (Dealt,)),),
        (State.OPEN, Dealt): (Transition(State.OPEN),),
        (State.OPEN, Stored): (Transition(State.OPEN, (Uploaded,)),),
        (State.OPEN, Uploaded): (Transition(State.OPEN),),
        # S1 is `checking` from the end of a checked round on until it is asked to run the protocol
        (State.OPEN, Close): (
            Transition(State.CHECKING, (Effect.LOG, Held), ServerRound.checked),
            Transition(State.CLOSING, (Effect.LOG, Held)),
        ),
        (State.OPEN, Check): (_DISCORD, Transition(State.OPEN, (Effect.CHECK,))),
        (State.CHECKING, Check): (_DISCORD, Transition(State.CHECKING, (Effect.CHECK,))),
        (State.OPEN, CheckEnded): (Transition(State.OPEN, (Checked,)),),
        (State.CHECKING, CheckEnded): (Transition(State.CHECKING, (Checked,)),),
    }
    | _alike(
        ((State.CLOSING, Run), (State.CHECKING, Run)),
        _OBSTRUCTED,
        Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START, Ready)),
    )
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
            (State.FAILED, kind): _UNAWARE
            for kind in (Opened, Dealt, Uploaded, Checked, Held, Ready, Done, Failed)
        },
    },
    {
        (State.PUBLISHED, Failed): _FAILED_LATER,
        **{
            (State.FAILED, kind): _UNAWARE
            for kind in (Dealt, Uploaded, Check, Close, Run, Done, Failed)
        },
    },
)
