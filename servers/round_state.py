"""The states of a round, as a table and without I/O.

A state and an event give the next state and the actions to do, in order. Each server has its own
table (`TABLE[party]`), because S0 leads:

    S0: new -> opening -> open -> closing -> checking -> queued <-> starting -> running -> published
    S1: new ------------> open ------------> checking -> queued <-------------> running -> published
         any of these but new and published -> failed

`checking` is for rounds in which the servers check what clients send (`checks`). Dealings are
checked while the round is open, too, once both servers hold them: S0 sends `check` with a list of
clients, both servers check these together, S1 answers with its verdicts, and S0 compares them with
its own. What it opens tells nothing of an honest client's update, so that `bind` comes after it,
before the protocol runs. That holds for one check of a dealing: what another permutation would
open, beside the first, is an honest client's secret. So the *coin*, which both servers toss for a
check, is stored before anything is opened under it, and a check that is repeated is repeated with
it.

Rounds of several cohorts may be live at once. What is heavy (`Use`) one of them does at a time:
S0 begins it at a *turn*, for which the round waits (`awaits_turn`), and `rounds` gives the turns.

From `queued` on the clients, the verdicts and the reasons of those left out stay as they are. A run
that breaks off (`interrupted`, `unlinked`, `again`) brings both servers back there, and S0 lets
the round have another turn, as often as `limits` allow.

A server is *adrift* once its link to the other one is broken, and at its start, until `resume` has
told both where the other is. S0 asks and S1 answers, and both go on from the earlier state. What
the other server said before that (`OF_A_LINK`) means nothing any more and is not taken.

Every pair of a state and an event is of one of three kinds:

- It has lines in `TABLE`. The first line whose condition holds is taken.
- It is in `LATE`, with the reason why the event may come after the round has moved on. It changes
  nothing.
- It is refused: `ServerRound.handle` raises, and the round stays as it was. For a message of the
  peer it raises PeerProtocolError, with which `runner` fails the round; for an event of our own
  LocalProtocolError.

docs/wire.md shows both tables. tests/test_round_state.py compares that page with these tables, and
tries every order of events that two honest servers can meet.

A new state is a member of `common.states.State` and its lines below; a new event is a class of
`events` and its lines. The actions of a line are members of `Effect`, which `runner` does, or
messages of `control`, which go to the peer. `runner` stores what a line changes before it does any
of its actions.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from securemedian.common.states import LIVE, State
from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    LocalProtocolError,
    ParametersDiffer,
    PeerProtocolError,
    PeerUnavailable,
    ReceiptInvalid,
    TooFewClients,
    cut,
)
from securemedian.servers.control import (
    Again,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Failed,
    Held,
    Open,
    Opened,
    Ready,
    Resume,
    RoundMessage,
    Uploaded,
    Verdicts,
)
from securemedian.servers.events import (
    OF_A_LINK,
    Action,
    CheckEnded,
    CloseAsked,
    Computed,
    DealingStored,
    Effect,
    Event,
    Failure,
    Interrupted,
    OpenAsked,
    Overdue,
    Stored,
    Tossed,
    Turn,
    Unlinked,
    Use,
    is_message,
)
from securemedian.servers.round_facts import RoundFacts

# by the state of S0, the states in which S1 may be when they tell each other on a new link
BESIDE: dict[str, tuple[str, ...]] = {
    State.OPEN: (State.OPEN,),
    State.CLOSING: (State.OPEN, State.CHECKING, State.QUEUED),
    State.CHECKING: (State.CHECKING,),
    State.QUEUED: (State.CHECKING, State.QUEUED, State.RUNNING),
    State.RUNNING: (State.QUEUED, State.RUNNING, State.PUBLISHED),
    State.PUBLISHED: (State.RUNNING,),
}

# The longest wait before another attempt.
MOST_WAIT_S = 60.0


class ServerRound(RoundFacts):
    """A round at one server, which takes events and says what to do."""

    def awaits_turn(self, now: float) -> bool:
        """Return whether S0 may let the round go on, if S1 is there and nobody else has `use`."""
        if self.party == 1 or not self.live or now < self.retry_at:
            return False
        return not self.resuming if self.adrift else self.next_use is not None

    @property
    def use(self) -> Use | None:
        """What of `Use` is under way."""
        if self.under_check:
            return self._use_of_checks
        runs = self.state is State.RUNNING and not self.computed_here
        return Use.PROTOCOL if runs or self.state is State.STARTING else None

    @property
    def next_use(self) -> Use | None:
        """What of `Use` a turn begins. It is None where both say first where they are."""
        if self.adrift:
            return None
        if self.state is State.QUEUED:
            return Use.PROTOCOL
        checks = self.state in (State.OPEN, State.CHECKING) and self.unchecked()
        return self._use_of_checks if checks else None

    @property
    def _use_of_checks(self) -> Use:
        return Use.CHECK if self.dealt else Use.PROTOCOL

    def told_again(self) -> RoundMessage | None:
        """Return what S0 says on a new link of a round that has ended; S1 may not know it."""
        kinds = {State.PUBLISHED: Resume, State.FAILED: Failed}
        if self.party == 1 or self.state not in kinds:
            return None
        return self._message(kinds[self.state], Unlinked(""))

    # One event

    def after(self, events: Iterable[Event], now: float) -> tuple["ServerRound", list[Action]]:
        """Return the round as the events leave it, and the actions to do, in order.

        This round stays as it is. Raises what `handle` raises.
        """
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set):
                setattr(made, name, value.copy())
        return made, [action for event in events for action in made.handle(event, now)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event, and return the actions to do, in order.

        Raises PeerProtocolError or LocalProtocolError for an event that cannot come now; nothing
        has changed then.
        """
        pair = self.state, type(event)
        if pair in LATE[self.party] or self._is_of_another_link(event):
            return []
        if pair not in TABLE[self.party]:
            kind = type(event).__name__.lower()
            what = f"{kind!r} cannot come while round {self.round_id} is {self.state}"
            raise PeerProtocolError(what) if is_message(event) else LocalProtocolError(what)
        was_adrift, was_checking = self.adrift, bool(self.under_check)
        self._note(event, now)
        line = next(line for line in TABLE[self.party][pair] if line.when(self, event))
        if self.live and line.to is State.FAILED and (cause := self._obstacle(event)):
            self.code, self.reason = cut(cause.code), cut(cause.reason)
        if Check in line.actions:
            self.under_check = self.unchecked()
            self.coin = self.coins.get(self.under_check[0], b"")
        if line.to is not self.state:
            self._enter(line.to, now)
        elif self.state is not State.OPEN and (
            isinstance(event, Resume) or was_checking != bool(self.under_check)
        ):
            # what it waits for begins only now
            self._limit(now)
        return [
            action if isinstance(action, Effect) else self._message(action, event)
            for action in line.actions
            if not (was_adrift and self.adrift and action in OF_A_LINK)
        ]

    def _is_of_another_link(self, event: Event) -> bool:
        """Return whether a message is from before both servers have told where they are."""
        if self.party == 0 and isinstance(event, Resume) and self.live:
            return not self.resuming or event.session != self.session
        # S1 asks to be asked once more
        anew = self.resuming and isinstance(event, Again) and event.attempt == 0
        return self.adrift and isinstance(event, OF_A_LINK) and not anew

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.begun = self.begun or state is State.OPEN
        self.ran = self.ran or state is State.RUNNING
        if state is State.STARTING:
            self.attempt += 1
        if state in (State.QUEUED, State.RUNNING):
            self.computed_here = self.computed_there = False
            self.receipt, self.vouched = None, b""
        if state is State.PUBLISHED:
            self.code = self.reason = ""
        if not self.live:
            self.adrift = self.resuming = False
        self._limit(now)

    def _limit(self, now: float) -> None:
        """Let the time limit of the present state begin."""
        limits = self.limits
        seconds = {
            State.OPENING: limits.answer_s,
            State.OPEN: self.params.deadline_s,
            State.CLOSING: limits.answer_s,
            # before and after it, the round waits for its turn
            State.CHECKING: limits.run_s if self.under_check else float("inf"),
            State.STARTING: limits.answer_s,
            State.RUNNING: limits.run_s,
        }
        if self.party == 1:
            # S0 leads, and S1 only sees to it that it does not wait for ever
            seconds |= {
                State.OPEN: self.params.deadline_s + limits.resume_s,
                State.CHECKING: limits.resume_s,
                State.QUEUED: limits.resume_s,
            }
        self.deadline = now + seconds.get(self.state, float("inf"))
        if self.adrift:
            self.deadline = self.away_until

    def _drift(self, now: float) -> None:
        """Forget what is under way. The verdicts and what was tossed stay."""
        if not self.adrift:
            self.away_until = now + self.limits.resume_s
        self.adrift, self.resuming = True, False
        self.under_check, self.failed_here, self.failed_there = [], None, None
        if self.state is not State.OPEN:
            self.deadline = self.away_until

    def _set_back(self, code: str, reason: str, now: float) -> None:
        """Note why something has broken off, and when it may be tried again."""
        self.setbacks += 1
        wait = self.limits.retry_wait_s * 2.0 ** min(self.setbacks - 1, 30)
        self.retry_at = now + min(wait, MOST_WAIT_S)
        self.code, self.reason = cut(code), cut(reason)

    def _note(self, event: Event, now: float) -> None:
        """Note what an event says, before the conditions of the table are evaluated."""
        match event:
            case DealingStored():
                self.dealt_here[event.client] = event.digest
            case Stored():
                self.here[event.client] = event.digest
            # of clients that this server lets in: others could be any number of any texts
            case Dealt():
                self.dealt_there |= {event.client} & self.names.keys()
            case Uploaded():
                self._note_there({**self.there, event.client: event.digest})
            case Close() if self.ran:
                self.discord = "s0 closes a round that has run already"
            case Close() | Held():
                self._note_held(event.held)
                self.choose()
            case Check() if self.may_check(event.clients, event.coin):
                self.under_check = event.clients
                self._keep_coin(event.coin)
            case Check():
                self.discord = "s0 asks to check clients that cannot be checked now"
            case Tossed():
                self._keep_coin(event.coin)
            case Verdicts() if event.clients == self.under_check and self.failed_there is None:
                self.failed_there = event.failed
                self.judge()
            case Verdicts():
                self.discord = "s1 has checked other clients than it was asked to check"
            case CheckEnded():
                self.failed_here = event.failed
                self.judge()
            case Computed():
                self.computed_here, self.receipt = True, event.receipt
                self._countersign()
                if self.party == 1:
                    # S0 may publish, so that only S0 can say that this run is over
                    self.deadline = now + self.limits.resume_s
            case Done() if event.attempt == self.attempt:
                self._note_vouched(event.signature)
            case Compute() if event.attempt <= self.attempt:
                self.discord = "s0 asks for a run of the protocol that has been before"
            case Compute():
                self.attempt = event.attempt
                self.session, self.new_session = event.session, event.new_session
            case _:
                self._note_link(event, now)

    def _note_link(self, event: Event, now: float) -> None:
        """Note what an event says of the link and of what has broken off."""
        match event:
            case Open():
                self.session, self.new_session = event.session, event.new_session
                self.adrift = False
            case Turn():
                self.session, self.new_session = event.session, event.new_session
                self.adrift = self.adrift and self.state is not State.OPENING
                self.resuming = self.adrift
                if self.state is not State.OPEN:
                    self.deadline = now + self.limits.answer_s
            case Resume():
                if self.party == 1:
                    self.session, self.new_session = event.session, True
                if self.live:
                    self._note_resume(event, now)
            case Unlinked():
                if self.state in (State.STARTING, State.RUNNING) and not self.computed_here:
                    self._set_back(PeerUnavailable.code, event.reason, now)
                self._drift(now)
            case Interrupted():
                self._note_break(event.code, event.reason, now)
            case Again() if event.attempt == 0:
                # S1 has not been asked to run the protocol, and is adrift
                self._set_back(event.code, event.reason, now)
                self._drift(now)
            case Again() if self.current(event):
                self._set_back(event.code, event.reason, now)
            case Overdue():
                self._note_overdue(now)

    def _note_overdue(self, now: float) -> None:
        if self.state in (State.OPENING, State.OPEN) and self.party == 0:
            return
        if self.party == 0:
            self.abandoned = self.adrift and not self.resuming
        else:
            self.abandoned = self.computed_here or self.state is not State.RUNNING
        if self.abandoned:
            return
        reason = f"round {self.round_id} was {self.state} for longer than its limit"
        self._note_break(ChannelTimeout.code, reason, now)
        if self.computed_here:
            self._drift(now)

    def _note_break(self, code: str, reason: str, now: float) -> None:
        """Note that what was under way has broken off, if there was anything."""
        waits = self.computed_here or self.state is State.QUEUED
        if (self.adrift or waits) and not self.resuming:
            return
        self._set_back(code, reason, now)
        if self.state not in (State.STARTING, State.RUNNING):
            self._drift(now)

    def _note_resume(self, said: Resume, now: float) -> None:
        """Take over where the other server is."""
        leader, follower = (self, said) if self.party == 0 else (said, self)
        if follower.state not in BESIDE.get(leader.state, ()):
            self.discord = (
                f"s0 is {leader.state} where s1 is {follower.state}: "
                "the state folder of one of them is not its latest"
            )
            return
        if any(self.coins.get(key, coin) != coin for key, coin in said.coins.items()):
            self.discord = "the two servers have tossed differently for the same client"
            return
        self.computed_there = False
        if said.signature and said.attempt == self.attempt:
            self._note_vouched(said.signature)
        if self.party == 0 and self.state is State.RUNNING and not self.computed_there:
            self._set_back(PeerUnavailable.code, "s1 has lost its run of the protocol", now)
        self._drift(now)
        self.adrift = False
        self.dealt_there = set(said.dealt) & self.names.keys()
        self._note_held(said.held)
        self.coins |= {key: said.coins[key] for key in said.coins.keys() & self.dealt_here.keys()}
        if self.party == 1 and not self.ran:
            # what S0 does not know yet is checked once more
            self.passed &= set(said.passed)
            self.failed &= set(said.failed)
            if self.state is State.CHECKING:
                self.choose()

    def _note_held(self, held: Mapping[str, bytes]) -> None:
        """Note all uploads that the other server holds."""
        self._note_there(held)
        self.unlisted = sorted(held.keys() - self.names.keys())

    def _note_there(self, held: Mapping[str, bytes]) -> None:
        self.there = {key: held[key] for key in held.keys() & self.names.keys()}
        if self.dealt:
            # nobody uploads before its whole dealing is stored
            self.dealt_there |= self.there.keys()

    def _keep_coin(self, coin: bytes) -> None:
        """Note what was tossed for the check that is under way."""
        self.coin = coin
        if coin:
            self.coins |= dict.fromkeys(self.under_check, coin)

    def _message(self, kind: type[RoundMessage], event: Event) -> RoundMessage:
        """Return the message of this kind that this server sends at `event`."""
        if kind is Open:
            return replace(self.asked, session=self.session, new_session=self.new_session)
        if kind is Opened:
            return Opened(self.round_id, self.session)
        if kind is Resume:
            return Resume(
                self.round_id,
                self.session,
                self.state,
                self.attempt,
                self._signature(),
                self._held(),
                sorted(self.dealt_here),
                sorted(self.passed),
                sorted(self.failed),
                dict(sorted(self.coins.items())),
            )
        if kind is Dealt and isinstance(event, DealingStored):
            return Dealt(self.round_id, event.client)
        if kind is Uploaded and isinstance(event, Stored):
            return Uploaded(self.round_id, event.client, self.told(event.digest))
        if kind is Check:
            return Check(self.round_id, self.under_check, self.coin)
        if kind is Verdicts and isinstance(event, CheckEnded):
            return Verdicts(self.round_id, event.clients, event.failed)
        if kind is Close or kind is Held:
            return kind(self.round_id, self._held())
        if kind is Compute:
            return Compute(self.round_id, self.digest, self.attempt, self.session, self.new_session)
        if kind is Ready:
            return Ready(self.round_id, self.attempt)
        if kind is Done:
            return Done(self.round_id, self.attempt, self._signature())
        if kind is Again:
            return Again(
                self.round_id, self.attempt, self.code, cut(f"s{self.party}: {self.reason}")
            )
        if kind is Failed:
            return Failed(self.round_id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.round_id)

    def _held(self) -> dict[str, bytes]:
        return {key: self.told(digest) for key, digest in sorted(self.here.items())}

    def _signature(self) -> bytes:
        """Return this server's signature of its record, if it has its result."""
        return self.receipt.signatures[f"s{self.party}"] if self.receipt else b""

    def _note_vouched(self, signature: bytes) -> None:
        """Note that the other server has its result, and what it has signed."""
        self.computed_there, self.vouched = True, signature
        self._countersign()

    def _countersign(self) -> None:
        """Add the other server's signature to the record, once both are there."""
        if self.receipt and self.computed_there:
            self.receipt = self.receipt.with_signature(f"s{1 - self.party}", self.vouched)

    # The conditions of the table. docs/wire.md shows what follows "Return whether".

    def checked(self, _: Event | None) -> bool:
        """Return whether this is a round in which the servers check what clients send."""
        return self.checks

    def checkable(self, _: Event) -> bool:
        """Return whether no check is under way and there is something to check."""
        return bool(self.unchecked())

    def incomplete(self, _: Event) -> bool:
        """Return whether a check is under way, or there is something to check."""
        return bool(self.under_check or self.unchecked())

    def discordant(self, _: Event) -> bool:
        """Return whether the two servers do not agree on what to check or on the verdicts."""
        return bool(self.discord)

    def full(self, _: Event) -> bool:
        """Return whether both servers hold the uploads of all clients that the round can take."""
        ready = self.complete_clients()
        if self.dealt:
            ready &= self.passed
        able = {key for key in self.names if not self.is_lost(key)}
        if self.repeats:
            return ready >= self.repeats & able
        return len(ready) >= min(self.params.max_clients, len(able))

    def both_computed(self, _: Event) -> bool:
        """Return whether both servers have their result."""
        return self.computed_here and self.computed_there

    def disputed(self, event: Event) -> bool:
        """Return whether both have their result, and do not vouch for the same."""
        other = f"s{1 - self.party}"
        return (
            self.both_computed(event)
            and self.receipt is not None
            and not self.receipt.is_signed(other, self.signing_key)
        )

    def current(self, event: Event) -> bool:
        """Return whether the message is about the latest run of the protocol, or asks for one."""
        if isinstance(event, Again) and event.attempt == 0:
            return True
        return isinstance(event, Ready | Again) and event.attempt == self.attempt

    def of_session(self, event: Event) -> bool:
        """Return whether the message is about the session that was asked for last."""
        return isinstance(event, Opened) and event.session == self.session

    def drifting(self, _: Event) -> bool:
        """Return whether the two servers have yet to tell each other where they are."""
        return self.adrift

    def computed(self, _: Event) -> bool:
        """Return whether this server has its result, which the other one may publish."""
        return self.computed_here

    def left_alone(self, _: Event) -> bool:
        """Return whether the other server was away for too long."""
        return self.abandoned

    def given_up(self, _: Event) -> bool:
        """Return whether it broke off too often, or the other server was away for too long."""
        return self.abandoned or self.setbacks >= self.limits.max_attempts

    def obstructed(self, event: Event) -> bool:
        """Return whether the round cannot run with the chosen clients."""
        return self._obstacle(event) is not None

    def _obstacle(self, event: Event) -> Failure | None:
        """Return why the round fails at this event; None if it does not."""
        match event:
            case Failure() | Failed():
                return Failure(event.code, event.reason)
            case Interrupted() | Again() if not self.begun:
                return Failure(event.code, event.reason)
            case _ if self.discord:
                return Failure(PeerProtocolError.code, self.discord)
            case _ if self.abandoned:
                reason = (
                    f"s{1 - self.party} has not gone on within resume_limit_s: "
                    "the round has failed for good, open a new one"
                )
                return Failure(PeerUnavailable.code, reason)
            case Unlinked() | Interrupted() | Again() | Resume() | Overdue() if (
                self.setbacks >= self.limits.max_attempts
            ):
                reason = (
                    f"{self.reason}. It broke off {self.setbacks} times (max_attempts): "
                    "the round has failed for good, open a new one"
                )
                return Failure(self.code, reason)
            case Overdue():
                reason = f"round {self.round_id} was {self.state} for longer than its limit"
                return Failure(ChannelTimeout.code, reason)
            case Computed() | Done() | Resume() if self.disputed(event):
                reason = (
                    f"s{1 - self.party} vouches for another result of round {self.round_id} than "
                    f"s{self.party} has: nothing is published, and the round has failed for good"
                )
                return Failure(ReceiptInvalid.code, reason)
            case Compute() if self.under_check or (
                self.checks and not self.passed.issuperset(self.included)
            ):
                reason = "s0 asks to run the protocol before all clients are checked"
                return Failure(PeerProtocolError.code, reason)
            case Compute() if event.digest != self.digest:
                reason = (
                    f"the servers have different clients or parameters in round {self.round_id}"
                )
                return Failure(ParametersDiffer.code, reason)
        try:
            self.check_clients()
        except (ClientsDiffer, ConfigError, TooFewClients) as error:
            return Failure(error.code, str(error))
        return None


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
_QUEUE = Transition(State.QUEUED, (Effect.LOG,))
_PUBLISH = (Effect.LOG, Effect.PUBLISH, Effect.DROP_UPLOADS)
_FAIL = (Effect.LOG, Effect.DROP_SESSION, Effect.DROP_UPLOADS)
_FAIL_ASKED = (*_FAIL, Effect.ANSWER)
_DISCORD = Transition(State.FAILED, (*_FAIL, Failed), ServerRound.discordant)
_DISCORD_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.discordant)
_OBSTRUCTED = Transition(State.FAILED, (*_FAIL, Failed), ServerRound.obstructed)
_OBSTRUCTED_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.obstructed)
_GIVEN_UP = Transition(State.FAILED, (*_FAIL_ASKED, Failed), ServerRound.given_up)
# the run breaks off, which the peer knows, or is told
_BROKEN = Transition(State.QUEUED, (Effect.LOG, Effect.DROP_SESSION))
_BREAK = Transition(State.QUEUED, (*_BROKEN.actions, Again))

_DISPUTED = Transition(State.FAILED, (*_FAIL, Failed), ServerRound.disputed)
_DISPUTED_ASKED = replace(_DISPUTED, actions=(*_FAIL_ASKED, Failed))

_BOTH: Table = {
    (State.RUNNING, Computed): (
        _DISPUTED,
        Transition(State.PUBLISHED, (*_PUBLISH, Done), ServerRound.both_computed),
        Transition(State.RUNNING, (Done,)),
    ),
    (State.RUNNING, Done): (
        _DISPUTED,
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
        table[state, Failure] = (Transition(State.FAILED, (*does, Failed)),)
        table[state, Failed] = (Transition(State.FAILED, does),)
    return table


def _alike(pairs: Iterable[Pair], *lines: Transition) -> Table:
    """Return the same lines for several pairs."""
    return dict.fromkeys(pairs, lines)


def _staying(states: Iterable[State], kinds: Iterable[type], *lines: Transition) -> Table:
    """Return lines for each kind of event in each state; the last drops the session and stays."""
    return {
        (state, kind): (*lines, Transition(state, (Effect.DROP_SESSION,)))
        for state in states
        for kind in kinds
    }


_LEADER: Table = (
    _failing(LIVE, _FAIL_ASKED)
    | _BOTH
    | _staying((State.OPENING, State.OPEN, State.CLOSING, State.CHECKING), (Unlinked,))
    | _staying((State.QUEUED,), (Unlinked, Interrupted))
    | _staying((State.OPEN, State.CLOSING, State.CHECKING), (Interrupted, Again), _GIVEN_UP)
    | {
        (State.QUEUED, Again): (
            _GIVEN_UP,
            Transition(State.QUEUED, (Effect.DROP_SESSION,), ServerRound.drifting),
            Transition(State.QUEUED),
        )
    }
    | _staying((State.CLOSING, State.CHECKING, State.QUEUED), (Overdue,), _GIVEN_UP)
    | {
        (State.NEW, OpenAsked): (Transition(State.OPENING, (Effect.LOG, Open)),),
        **_alike(
            ((State.OPENING, Interrupted), (State.OPENING, Again), (State.OPENING, Overdue)),
            Transition(State.FAILED, (*_FAIL_ASKED, Failed)),
        ),
        (State.OPENING, Turn): (Transition(State.OPENING, (Open,)),),
        # S1 has heard an earlier `open`
        **_alike(((State.OPENING, Dealt), (State.OPENING, Uploaded)), Transition(State.OPENING)),
        (State.OPENING, Opened): (
            Transition(
                State.OPEN,
                (Effect.LOG, Effect.BEGIN, Effect.ANSWER, Effect.PREPARE),
                ServerRound.of_session,
            ),
            Transition(State.OPENING),
        ),
        (State.OPEN, DealingStored): (Transition(State.OPEN, (Dealt,)),),
        (State.OPEN, Dealt): (Transition(State.OPEN),),
        (State.OPEN, Stored): (
            replace(_FULL, actions=(Uploaded, *_CLOSE.actions)),
            Transition(State.OPEN, (Uploaded,)),
        ),
        (State.OPEN, Uploaded): (_FULL, Transition(State.OPEN)),
        **_alike(
            ((State.OPEN, CheckEnded), (State.OPEN, Verdicts)),
            _DISCORD_ASKED,
            _FULL,
            Transition(State.OPEN),
        ),
        (State.OPEN, CloseAsked): (_CLOSE,),
        # the deadline, which is not a failure
        (State.OPEN, Overdue): (_CLOSE,),
        (State.OPEN, Resume): (
            _DISCORD_ASKED,
            replace(_FULL, actions=(Effect.LOG, Effect.PREPARE, Close)),
            Transition(State.OPEN, (Effect.PREPARE,)),
        ),
        # sent before S1 heard `close`
        (State.CLOSING, Dealt): (Transition(State.CLOSING),),
        **_alike(
            ((State.CLOSING, CheckEnded), (State.CLOSING, Verdicts)),
            _DISCORD_ASKED,
            Transition(State.CLOSING),
        ),
        (State.CLOSING, Held): (
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (Effect.LOG,), ServerRound.incomplete),
            _QUEUE,
        ),
        (State.CLOSING, Resume): (
            _DISCORD_ASKED,
            Transition(State.CLOSING, (Effect.PREPARE, Close)),
        ),
        # several times where clients that have failed make room for others
        **_alike(
            ((State.CHECKING, CheckEnded), (State.CHECKING, Verdicts)),
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (), ServerRound.incomplete),
            _QUEUE,
        ),
        (State.CHECKING, Resume): (
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (Effect.PREPARE,), ServerRound.incomplete),
            replace(_QUEUE, actions=(Effect.LOG, Effect.PREPARE)),
        ),
        (State.QUEUED, Turn): (
            Transition(State.QUEUED, (Resume,), ServerRound.drifting),
            Transition(State.STARTING, (Effect.LOG, Compute)),
        ),
        (State.QUEUED, Resume): (
            _DISCORD_ASKED,
            Transition(State.QUEUED, (Effect.PREPARE,)),
        ),
        (State.STARTING, Ready): (
            Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START), ServerRound.current),
            Transition(State.STARTING),
        ),
        (State.STARTING, Unlinked): (_GIVEN_UP, _BROKEN),
        **_alike(((State.STARTING, Interrupted), (State.STARTING, Overdue)), _GIVEN_UP, _BREAK),
        (State.STARTING, Again): (
            _GIVEN_UP,
            replace(_BROKEN, when=ServerRound.current),
            Transition(State.STARTING),
        ),
        (State.RUNNING, Unlinked): (
            Transition(State.RUNNING, (Effect.DROP_SESSION,), ServerRound.computed),
            _GIVEN_UP,
            _BROKEN,
        ),
        (State.RUNNING, Interrupted): (
            Transition(State.RUNNING, (), ServerRound.computed),
            _GIVEN_UP,
            _BREAK,
        ),
        # S1 may have published, so that only S1 can say that this run is over
        (State.RUNNING, Overdue): (
            _GIVEN_UP,
            Transition(State.RUNNING, (Effect.DROP_SESSION,), ServerRound.computed),
            _BREAK,
        ),
        (State.RUNNING, Again): (
            _GIVEN_UP,
            replace(_BROKEN, when=ServerRound.current),
            Transition(State.RUNNING),
        ),
        (State.RUNNING, Resume): (
            _DISCORD_ASKED,
            _DISPUTED_ASKED,
            Transition(State.PUBLISHED, _PUBLISH, ServerRound.both_computed),
            _GIVEN_UP,
            Transition(State.QUEUED, (Effect.LOG, Effect.PREPARE)),
        ),
    }
    | {(state, Turn): (Transition(state, (Resume,)),) for state in (State.CLOSING, State.RUNNING)}
    | {
        (state, Turn): (
            Transition(state, (Resume,), ServerRound.drifting),
            Transition(state, (Check, Effect.CHECK), ServerRound.checkable),
            Transition(state),
        )
        for state in (State.OPEN, State.CHECKING)
    }
    | {
        (state, Tossed): (Transition(state, (Effect.CHECK,)),)
        for state in (State.OPEN, State.CLOSING, State.CHECKING)
    }
)

# S1 is asked and never asks, so that it is never `opening`, `closing` or `starting`.
_FOLLOWED = (State.OPEN, State.CHECKING, State.QUEUED, State.RUNNING)
_RESUME = (Effect.DROP_SESSION, Effect.PREPARE, Resume)
_FOLLOWER: Table = (
    _failing(_FOLLOWED, _FAIL)
    | _BOTH
    | _staying((State.OPEN, State.CHECKING, State.QUEUED), (Unlinked,))
    | _staying((State.QUEUED,), (Interrupted,))
    | _alike(
        ((State.OPEN, Overdue), (State.CHECKING, Overdue), (State.QUEUED, Overdue)),
        Transition(State.FAILED, (*_FAIL, Failed)),
    )
    | {
        # The lanes are opened before the answer is sent: what S0 sends on a lane that S1 has not
        # opened yet is lost.
        (State.NEW, Open): (
            Transition(State.OPEN, (Effect.LOG, Effect.BEGIN, Effect.PREPARE, Opened)),
        ),
        # S0 has not heard the answer
        (State.OPEN, Open): (
            Transition(State.OPEN, (Effect.DROP_SESSION, Effect.PREPARE, Opened)),
        ),
        (State.OPEN, DealingStored): (Transition(State.OPEN, (Dealt,)),),
        (State.OPEN, Dealt): (Transition(State.OPEN),),
        (State.OPEN, Stored): (Transition(State.OPEN, (Uploaded,)),),
        (State.OPEN, Uploaded): (Transition(State.OPEN),),
        # S1 is `checking` from the end of a checked round on until it is asked to run the protocol
        (State.OPEN, Close): (
            Transition(State.CHECKING, (Effect.LOG, Held), ServerRound.checked),
            Transition(State.QUEUED, (Effect.LOG, Held)),
        ),
        # S0 has not heard the answer
        (State.CHECKING, Close): (Transition(State.CHECKING, (Held,)),),
        (State.QUEUED, Close): (_DISCORD, Transition(State.QUEUED, (Held,))),
        (State.RUNNING, Unlinked): (
            Transition(State.RUNNING, (Effect.DROP_SESSION,), ServerRound.computed),
            _BROKEN,
        ),
        (State.RUNNING, Interrupted): (
            Transition(State.RUNNING, (), ServerRound.computed),
            _BREAK,
        ),
        (State.RUNNING, Overdue): (
            Transition(State.FAILED, (*_FAIL, Failed), ServerRound.left_alone),
            _BREAK,
        ),
        (State.RUNNING, Again): (
            replace(_BROKEN, when=ServerRound.current),
            Transition(State.RUNNING),
        ),
        (State.RUNNING, Resume): (
            _DISCORD,
            _DISPUTED,
            Transition(State.PUBLISHED, (*_PUBLISH, Resume), ServerRound.both_computed),
            Transition(State.QUEUED, (Effect.LOG, *_RESUME)),
        ),
        # S0 has not heard how the round has ended here
        (State.PUBLISHED, Resume): (Transition(State.PUBLISHED, (Resume,)),),
        **_alike(
            ((State.FAILED, Open), (State.FAILED, Resume)), Transition(State.FAILED, (Failed,))
        ),
    }
    | _alike(
        ((State.CHECKING, Compute), (State.QUEUED, Compute)),
        _OBSTRUCTED,
        Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START, Ready)),
    )
)
_FOLLOWER |= {
    (state, Resume): (_DISCORD, Transition(state, _RESUME))
    for state in (State.OPEN, State.CHECKING, State.QUEUED)
} | {
    pair: lines
    for state in (State.OPEN, State.CHECKING)
    for pair, lines in {
        (state, Check): (_DISCORD, Transition(state, (Effect.CHECK,))),
        (state, Tossed): (Transition(state, (Effect.CHECK,)),),
        (state, CheckEnded): (Transition(state, (Verdicts,)),),
        # S1 is adrift, and S0 learns it
        (state, Interrupted): (Transition(state, (Effect.DROP_SESSION, Again)),),
    }.items()
}

TABLE: tuple[Table, Table] = (_LEADER, _FOLLOWER)

_UNAWARE = "sent before the peer heard that the round has failed here"
_FAILED_LATER = "the peer failed after both had their result, which stands here"
_TOLD_AGAIN = "S1 answers what S0 has told it once more on a new link"
_BROKE_OFF = "about a run that has broken off here"

# The messages that may come although the round has moved on, and why. They change nothing.
LATE: tuple[dict[Pair, str], dict[Pair, str]] = (
    {
        (State.CLOSING, Uploaded): "sent before S1 heard `close`; its `held` has the client too",
        **{(State.QUEUED, kind): _BROKE_OFF for kind in (Ready, Done)},
        (State.STARTING, Done): _BROKE_OFF,
        (State.PUBLISHED, Failed): _FAILED_LATER,
        (State.PUBLISHED, Resume): _TOLD_AGAIN,
        **{
            (State.FAILED, kind): _UNAWARE
            for kind in (
                Opened,
                Resume,
                Dealt,
                Uploaded,
                Verdicts,
                Held,
                Ready,
                Done,
                Again,
                Failed,
            )
        },
    },
    {
        **{(State.QUEUED, kind): _BROKE_OFF for kind in (Done, Again)},
        (State.PUBLISHED, Failed): _FAILED_LATER,
        **{
            (State.FAILED, kind): _UNAWARE
            for kind in (Dealt, Uploaded, Check, Close, Compute, Done, Again, Failed)
        },
    },
)
