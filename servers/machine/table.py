"""The states of a round, as a table and without I/O.

A state and an event give the next state and the actions to do, in order. Each server has its own
table (`TABLE[party]`), because S0 leads:

    S0: new -> opening -> open -> closing -> checking -> queued <-> starting -> running -> published
    S1: new ------------> open ------------> checking -> queued <-------------> running -> published
         any of these but new and published -> failed

`checking` is for rounds in which the servers check what clients send (`checks`). Dealings are
checked while the round is open, too, once both servers hold them. S0 sends `check` with a list of
clients, and both servers check these together. S1 answers with its verdicts, and S0 compares them
with its own. The values that one check opens reveal nothing of an honest client's update, so that
`bind` comes after it, before the protocol runs. A second check of the same dealing under another
permutation would reveal secrets. So both servers toss a *coin* for a check, store it before they
open anything under it, and repeat a check with the same coin.

Rounds of several cohorts may be live at once. Each heavy resource (`Use`) serves one of them at a
time: the round waits for its *turn* (`awaits_turn`), and `rounds` gives the turns at S0.

From `queued` on the clients, the verdicts and the reasons of those left out are fixed. A run that
breaks off (`interrupted`, `unlinked`, `again`) returns both servers to `queued`, and S0 gives the
round another turn, as often as `limits` allow.

A server is *adrift* at its start and while its link to the other one is broken. They
resynchronise with `resume`: S0 asks, S1 answers, and both go on from the earlier of their states.
Until then the messages in `OF_A_LINK` are ignored.

Every pair of a state and an event is of one of three kinds:

- It has lines in `TABLE`. The first line whose condition holds is taken.
- It is in `LATE`, with the reason why the event may come late. It changes nothing.
- It is refused: `step.step` raises, and the round does not change. For a message of the
  peer it raises PeerProtocolError, with which `runner` fails the round; for a local event
  LocalProtocolError.

The documentation has both tables as a page (docs/site.py). tests/test_round_state.py tries every
order of events that two honest servers can meet.

A new state is a member of `common.states.State` and its lines below; a new event is a class of
`events` and its lines. The actions of a line are members of `Effect`, which `runner` does, or
messages of `control`, which it sends to the peer. `runner` stores the changed round before it does
any of the actions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from securemedian.common.states import LIVE, State
from securemedian.mpc.errors import (
    ChannelTimeout,
    ClientsDiffer,
    ConfigError,
    ParametersDiffer,
    PeerDeviated,
    PeerProtocolError,
    PeerUnavailable,
    ReceiptInvalid,
    RoundFailed,
    TooFewClients,
)
from securemedian.servers.machine import events, members
from securemedian.servers.machine.events import (
    CheckEnded,
    CloseAsked,
    Computed,
    DealingStored,
    Declined,
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
)
from securemedian.servers.machine.round import ServerRound
from securemedian.servers.network.control import (
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


def always(_: ServerRound, __: events.Event) -> bool:
    """Return True, for a line that has no condition."""
    return True


def checked(here: ServerRound, _: events.Event | None) -> bool:
    """Return whether this is a round in which the servers check what clients send."""
    return here.checks


def checkable(here: ServerRound, _: events.Event) -> bool:
    """Return whether no check is under way and there is something to check."""
    return bool(members.unchecked(here))


def incomplete(here: ServerRound, _: events.Event) -> bool:
    """Return whether a check is under way, or there is something to check."""
    return bool(here.check or members.unchecked(here))


def discordant(here: ServerRound, _: events.Event) -> bool:
    """Return whether the two servers do not agree on what to check or on the verdicts."""
    return bool(here.discord)


def full(here: ServerRound, _: events.Event) -> bool:
    """Return whether both servers hold the uploads of all clients that the round can take."""
    ready = members.complete_clients(here)
    if here.dealt:
        ready &= here.passed
    able = {key for key in here.names if not members.is_lost(here, key)}
    if here.repeats:
        return ready >= here.repeats & able
    return len(ready) >= min(here.params.max_clients, len(able))


def both_computed(here: ServerRound, _: events.Event) -> bool:
    """Return whether both servers have their result."""
    return here.computed_here and here.computed_there


def disputed(here: ServerRound, event: events.Event) -> bool:
    """Return whether both have their result, and sign different ones."""
    other = f"s{1 - here.party}"
    return (
        both_computed(here, event)
        and here.receipt is not None
        and not here.receipt.is_signed(other, here.signing_key)
    )


def current(here: ServerRound, event: events.Event) -> bool:
    """Return whether the message is about the latest run of the protocol, or asks for one."""
    if isinstance(event, Again) and event.attempt == 0:
        return True
    return isinstance(event, Ready | Again) and event.attempt == here.attempt


def of_session(here: ServerRound, event: events.Event) -> bool:
    """Return whether the message is about the session that was asked for last."""
    return isinstance(event, Opened) and event.session == here.session


def drifting(here: ServerRound, _: events.Event) -> bool:
    """Return whether the two servers have yet to resynchronise."""
    return here.adrift


def computed(here: ServerRound, _: events.Event) -> bool:
    """Return whether this server has its result, which the other one may publish."""
    return here.computed_here


def left_alone(here: ServerRound, _: events.Event) -> bool:
    """Return whether the other server was away for too long."""
    return here.abandoned


def given_up(here: ServerRound, _: events.Event) -> bool:
    """Return whether it broke off too often, or the other server was away for too long."""
    return here.abandoned or here.setbacks >= here.runs


def obstructed(here: ServerRound, event: events.Event) -> bool:
    """Return whether the round cannot run with the chosen clients."""
    return obstacle(here, event) is not None


def obstacle(here: ServerRound, event: events.Event) -> events.Failure | None:
    """Return why the round fails at this event; None if it does not."""
    match event:
        case Failed(code=PeerDeviated.code):
            reason = (
                f"s{1 - here.party} claims that s{here.party} deviated, and s{here.party} has "
                f"found and signed nothing of the kind: {event.reason}"
            )
            return events.Failure(event.code, reason)
        case events.Failure() | Failed():
            return events.Failure(event.code, event.reason)
        case events.Interrupted() | Again() if not here.begun:
            return events.Failure(event.code, event.reason)
        case _ if here.discord:
            return events.Failure(PeerProtocolError.code, here.discord)
        case _ if here.abandoned:
            reason = (
                f"s{1 - here.party} has not gone on within resume_limit_s: "
                "the round has failed for good, open a new one"
            )
            return events.Failure(PeerUnavailable.code, reason)
        case events.Unlinked() | events.Interrupted() | Again() | Resume() | events.Overdue() if (
            here.setbacks >= here.runs
        ):
            reason = (
                f"{here.reason}. It broke off {here.setbacks} times (max_attempts): "
                "the round has failed for good, open a new one"
            )
            return events.Failure(here.code, reason)
        case events.Overdue():
            reason = f"round {here.round_id} was {here.state} for longer than its limit"
            return events.Failure(ChannelTimeout.code, reason)
        case events.Computed() | Done() | Resume() if disputed(here, event):
            reason = (
                f"s{1 - here.party} vouches for another result of round {here.round_id} than "
                f"s{here.party} has: nothing is published, and the round has failed for good"
            )
            return events.Failure(ReceiptInvalid.code, reason)
        case Compute() if here.check or (here.checks and not here.passed.issuperset(here.included)):
            reason = "s0 asks to run the protocol before all clients are checked"
            return events.Failure(PeerProtocolError.code, reason)
        case Compute() if here.audited and (event.new_session or here.folded != here.included):
            reason = "s0 asks to run the protocol before the folds of all clients are compared"
            return events.Failure(PeerProtocolError.code, reason)
        case Compute() if event.attempt > here.runs:
            reason = (
                f"s0 asks for run {event.attempt} of the protocol, and s{here.party} makes at most "
                f"{here.runs} (max_attempts): open a new round"
            )
            return events.Failure(RoundFailed.code, reason)
        case Compute() if event.digest != here.digest:
            reason = f"the servers have different clients or parameters in round {here.round_id}"
            return events.Failure(ParametersDiffer.code, reason)
    try:
        members.check_clients(here)
    except (ClientsDiffer, ConfigError, TooFewClients) as error:
        return events.Failure(error.code, str(error))
    return None


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
_FULL = replace(_CLOSE, when=full)
_QUEUE = Transition(State.QUEUED, (Effect.LOG,))
_PUBLISH = (Effect.LOG, Effect.PUBLISH, Effect.DROP_UPLOADS)
_FAIL = (Effect.LOG, Effect.DROP_SESSION, Effect.DROP_UPLOADS)
_FAIL_ASKED = (*_FAIL, Effect.ANSWER)
_DISCORD = Transition(State.FAILED, (*_FAIL, Failed), discordant)
_DISCORD_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), discordant)
_OBSTRUCTED = Transition(State.FAILED, (*_FAIL, Failed), obstructed)
_OBSTRUCTED_ASKED = Transition(State.FAILED, (*_FAIL_ASKED, Failed), obstructed)
_GIVEN_UP = Transition(State.FAILED, (*_FAIL_ASKED, Failed), given_up)
# the run breaks off, which the peer knows, or is told
_BROKEN = Transition(State.QUEUED, (Effect.LOG, Effect.DROP_SESSION))
_BREAK = Transition(State.QUEUED, (*_BROKEN.actions, Again))

_DISPUTED = Transition(State.FAILED, (*_FAIL, Failed), disputed)
_DISPUTED_ASKED = replace(_DISPUTED, actions=(*_FAIL_ASKED, Failed))

_BOTH: Table = {
    (State.RUNNING, Computed): (
        _DISCORD,
        _DISPUTED,
        Transition(State.PUBLISHED, (*_PUBLISH, Done), both_computed),
        Transition(State.RUNNING, (Done,)),
    ),
    (State.RUNNING, Done): (
        _DISPUTED,
        Transition(State.PUBLISHED, _PUBLISH, both_computed),
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
            Transition(State.QUEUED, (Effect.DROP_SESSION,), drifting),
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
                of_session,
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
        # nobody waits for a client that takes no part
        (State.OPEN, Declined): (_FULL, Transition(State.OPEN)),
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
            Transition(State.CHECKING, (Effect.LOG,), incomplete),
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
            Transition(State.CHECKING, (), incomplete),
            _QUEUE,
        ),
        (State.CHECKING, Resume): (
            _OBSTRUCTED_ASKED,
            Transition(State.CHECKING, (Effect.PREPARE,), incomplete),
            replace(_QUEUE, actions=(Effect.LOG, Effect.PREPARE)),
        ),
        (State.QUEUED, Turn): (
            Transition(State.QUEUED, (Resume,), drifting),
            # an audited round, in another session
            Transition(State.CHECKING, (Effect.LOG, Check, Effect.CHECK), checkable),
            Transition(State.STARTING, (Effect.LOG, Compute)),
        ),
        (State.QUEUED, Resume): (
            _DISCORD_ASKED,
            Transition(State.QUEUED, (Effect.PREPARE,)),
        ),
        (State.STARTING, Ready): (
            Transition(State.RUNNING, (Effect.LOG, Effect.BIND, Effect.START), current),
            Transition(State.STARTING),
        ),
        (State.STARTING, Unlinked): (_GIVEN_UP, _BROKEN),
        **_alike(((State.STARTING, Interrupted), (State.STARTING, Overdue)), _GIVEN_UP, _BREAK),
        (State.STARTING, Again): (
            _GIVEN_UP,
            replace(_BROKEN, when=current),
            Transition(State.STARTING),
        ),
        (State.RUNNING, Unlinked): (
            Transition(State.RUNNING, (Effect.DROP_SESSION,), computed),
            _GIVEN_UP,
            _BROKEN,
        ),
        (State.RUNNING, Interrupted): (
            Transition(State.RUNNING, (), computed),
            _GIVEN_UP,
            _BREAK,
        ),
        # S1 may have published, so that only S1 can say that this run is over
        (State.RUNNING, Overdue): (
            _GIVEN_UP,
            Transition(State.RUNNING, (Effect.DROP_SESSION,), computed),
            _BREAK,
        ),
        (State.RUNNING, Again): (
            _GIVEN_UP,
            replace(_BROKEN, when=current),
            Transition(State.RUNNING),
        ),
        (State.RUNNING, Resume): (
            _DISCORD_ASKED,
            _DISPUTED_ASKED,
            Transition(State.PUBLISHED, _PUBLISH, both_computed),
            _GIVEN_UP,
            Transition(State.QUEUED, (Effect.LOG, Effect.PREPARE)),
        ),
    }
    | {(state, Turn): (Transition(state, (Resume,)),) for state in (State.CLOSING, State.RUNNING)}
    | {
        (state, Turn): (
            Transition(state, (Resume,), drifting),
            Transition(state, (Check, Effect.CHECK), checkable),
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
        (State.OPEN, Declined): (Transition(State.OPEN),),
        # S1 is `checking` from the end of a checked round on until it is asked to run the protocol
        (State.OPEN, Close): (
            Transition(State.CHECKING, (Effect.LOG, Held), checked),
            Transition(State.QUEUED, (Effect.LOG, Held)),
        ),
        # S0 has not heard the answer
        (State.CHECKING, Close): (Transition(State.CHECKING, (Held,)),),
        (State.QUEUED, Close): (_DISCORD, Transition(State.QUEUED, (Held,))),
        (State.QUEUED, Check): (
            _DISCORD,
            Transition(State.CHECKING, (Effect.LOG, Effect.CHECK)),
        ),
        (State.RUNNING, Unlinked): (
            Transition(State.RUNNING, (Effect.DROP_SESSION,), computed),
            _BROKEN,
        ),
        (State.RUNNING, Interrupted): (
            Transition(State.RUNNING, (), computed),
            _BREAK,
        ),
        (State.RUNNING, Overdue): (
            Transition(State.FAILED, (*_FAIL, Failed), left_alone),
            _BREAK,
        ),
        (State.RUNNING, Again): (
            replace(_BROKEN, when=current),
            Transition(State.RUNNING),
        ),
        (State.RUNNING, Resume): (
            _DISCORD,
            _DISPUTED,
            Transition(State.PUBLISHED, (*_PUBLISH, Resume), both_computed),
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

# a check that the failure has ended finds after all that the peer deviated
_LATE_FINDING: Table = {(State.FAILED, Failure): (Transition(State.FAILED),)}

TABLE: tuple[Table, Table] = (_LEADER | _LATE_FINDING, _FOLLOWER | _LATE_FINDING)

_UNAWARE = "sent before the peer heard that the round has failed here"
_FAILED_LATER = "the peer failed after both had their result, which stands here"
_TOLD_AGAIN = "S1 answers what S0 has told it once more on a new link"
_BROKE_OFF = "about a run that has broken off here"

# The messages that may come late, and why. They change nothing.
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
