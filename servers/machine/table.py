"""The states of a round, as a table and without I/O.

A state and an event give the next state and the actions to do, in order. Each server has its own
table (`TABLE[party]`), because S0 leads:

    S0: new -> opening -> open -> closing -> checking -> queued <-> starting -> running -> published
    S1: new ------------> open ------------> checking -> queued <-------------> running -> published
         any of these but new and published -> failed
    in a round of several votes: running -> voting -> queued (S0), checking or running (S1)

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

A client's upload is its first *vote* in such a round. Once both servers have the digits of a vote,
they tell them to clients, and take another vote of each (`voting`). Nobody is left out any more: a
client that sends none, or refuses, ends the round. A vote whose digits were told never runs again.

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

from collections.abc import Callable
from dataclasses import dataclass

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
    cut,
)
from securemedian.servers.machine import members
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


def always(_: ServerRound, __: Event) -> bool:
    """Return True, for a line that has no condition."""
    return True


def checked(here: ServerRound, _: Event | None) -> bool:
    """Return whether this is a round in which the servers check what clients send."""
    return here.checks


def checkable(here: ServerRound, _: Event) -> bool:
    """Return whether no check is under way and there is something to check."""
    return bool(members.unchecked(here))


def incomplete(here: ServerRound, _: Event) -> bool:
    """Return whether a check is under way, or there is something to check."""
    return bool(here.check or members.unchecked(here))


def discordant(here: ServerRound, _: Event) -> bool:
    """Return whether the two servers disagree, or whether too many sessions have ended."""
    return bool(here.discord) or here.exhausted


def full(here: ServerRound, _: Event) -> bool:
    """Return whether both servers hold the uploads of all clients that the round can take."""
    ready = members.complete_clients(here)
    if here.dealt:
        ready &= here.passed
    able = {key for key in here.names if not members.is_lost(here, key)}
    if here.repeats:
        return ready >= here.repeats & able
    return len(ready) >= min(here.params.max_clients, len(able))


def both_computed(here: ServerRound, _: Event) -> bool:
    """Return whether both servers have their result."""
    return here.computed_here and here.computed_there


def more(here: ServerRound, event: Event) -> bool:
    """Return whether both servers have the digits of a vote that is not the last."""
    return both_computed(here, event) and not here.last


def voted(here: ServerRound, _: Event) -> bool:
    """Return whether both servers, which are in step, have the votes of all clients alike."""
    return not here.adrift and not members.lacking(here)


def disputed(here: ServerRound, event: Event) -> bool:
    """Return whether both have their result, and sign different ones."""
    other = f"s{1 - here.party}"
    return (
        both_computed(here, event)
        and here.receipt is not None
        and not here.receipt.is_signed(other, here.signing_key)
    )


def current(here: ServerRound, event: Event) -> bool:
    """Return whether the message is about the latest run of the protocol, or asks for one."""
    if isinstance(event, Again) and event.attempt == 0:
        return True
    return isinstance(event, Ready | Again) and event.attempt == here.attempt


def of_session(here: ServerRound, event: Event) -> bool:
    """Return whether the message is about the session that was asked for last."""
    return isinstance(event, Opened) and event.session == here.session


def drifting(here: ServerRound, _: Event) -> bool:
    """Return whether the two servers have yet to resynchronise."""
    return here.adrift


def computed(here: ServerRound, _: Event) -> bool:
    """Return whether this server has its result, which the other one may publish."""
    return here.computed_here


def left_alone(here: ServerRound, _: Event) -> bool:
    """Return whether the other server was away for too long."""
    return here.abandoned


def given_up(here: ServerRound, _: Event) -> bool:
    """Return whether it broke off too often, or the other server was away for too long."""
    return here.abandoned or here.broken >= here.runs


def obstructed(here: ServerRound, event: Event) -> bool:
    """Return whether the round cannot run with the chosen clients."""
    return obstacle(here, event) is not None


def obstacle(here: ServerRound, event: Event) -> tuple[str, str] | None:
    """Return the code and the reason with which the round fails at this event, if it does."""
    own, other = f"s{here.party}", f"s{1 - here.party}"
    match event:
        case Failed(code=PeerDeviated.code):
            return event.code, (
                f"{other} claims that {own} deviated, and {own} has found and signed nothing of "
                f"the kind: {event.reason}"
            )
        case Failure() | Failed():
            return event.code, event.reason
        case Interrupted() | Again() if not here.begun:
            return event.code, event.reason
        case _ if here.discord:
            return PeerProtocolError.code, here.discord
        case _ if here.exhausted:
            return RoundFailed.code, (
                f"{here.sessions - 1} sessions of the servers have ended without a result, which "
                "are as many as a round may have: the round has failed for good, open a new one"
            )
        case _ if here.abandoned:
            return PeerUnavailable.code, (
                f"{other} has not gone on within resume_limit_s: "
                "the round has failed for good, open a new one"
            )
        case Stored() | Uploaded() | Declined() | Resume() if here.state is State.VOTING and (
            why := members.unfit(here)
        ):
            return RoundFailed.code, f"{why}. {_NO_VOTES}"
        case Overdue() if here.state is State.VOTING:
            places = {"none": "both", "here": f"{other}", "there": f"{own}"}
            late = ", ".join(f"{k} ({places[at]})" for k, at in members.lacking(here).items())
            why = f"vote {here.level + 1} of {here.votes} did not come in time"
            return RoundFailed.code, f"{why} from {cut(late) or f'{other}'}. {_NO_VOTES}"
        case Unlinked() | Interrupted() | Again() | Resume() | Overdue() if (
            here.broken >= here.runs
        ):
            return here.code, (
                f"{here.reason}. It broke off {here.broken} times (max_attempts): "
                "the round has failed for good, open a new one"
            )
        case Overdue():
            reason = f"round {here.round_id} was {here.state} for longer than its limit"
            return ChannelTimeout.code, reason
        case Computed() | Done() | Resume() if disputed(here, event):
            return ReceiptInvalid.code, (
                f"{other} vouches for another result of round {here.round_id} than {own} has: "
                "nothing is published, and the round has failed for good"
            )
        case Compute() if here.check or (here.checks and not here.passed.issuperset(here.included)):
            reason = "s0 asks to run the protocol before all clients are checked"
            return PeerProtocolError.code, reason
        case Compute() if here.audited and (event.new_session or here.folded != here.included):
            reason = "s0 asks to run the protocol before the folds of all clients are compared"
            return PeerProtocolError.code, reason
        case Compute() if not members.all_here(here):
            reason = "s0 asks to run the protocol before all votes are here"
            return PeerProtocolError.code, reason
        case Compute() if event.attempt > here.runs + here.level:
            return RoundFailed.code, (
                f"s0 asks for run {event.attempt} of the protocol, and {own} makes at most "
                f"{here.runs + here.level} (max_attempts): open a new round"
            )
        case Compute() if event.digest != here.digest:
            reason = f"the servers have different clients or parameters in round {here.round_id}"
            return ParametersDiffer.code, reason
    try:
        members.check_clients(here)
    except (ClientsDiffer, ConfigError, TooFewClients) as error:
        return error.code, str(error)
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
# the states, the kinds of events, the condition, the next state (None: the same), and the actions
Row = tuple[
    State | tuple[State, ...],
    type | tuple[type, ...],
    Callable[[ServerRound, Event], bool],
    State | None,
    *tuple[Effect | type[RoundMessage], ...],
]


def _table(*rows: Row) -> Table:
    """Return the table of these rows: of those for one pair, the earlier is tried first."""
    table: Table = {}
    for states, kinds, when, to, *actions in rows:
        for state in (states,) if isinstance(states, State) else states:
            for kind in (kinds,) if isinstance(kinds, type) else kinds:
                line = Transition(to or state, tuple(actions), when)
                table[state, kind] = (*table.get((state, kind), ()), line)
    return table


# members of `State` and `Effect`, in their order
(NEW, OPENING, OPEN, CLOSING, CHECKING, QUEUED, STARTING, RUNNING, *_REST) = State
VOTING, PUBLISHED, FAILED = _REST
(LOG, BEGIN, PREPARE, BIND, CHECK, START, PUBLISH, DROP_SESSION, DROP_UPLOADS, ANSWER) = Effect

# S1 is asked and never asks, so that it is never `opening`, `closing` or `starting`.
_FOLLOWED = (OPEN, CHECKING, QUEUED, RUNNING, VOTING)
_PUBLISHED = (PUBLISHED, LOG, PUBLISH, DROP_UPLOADS)
_FAILED = (FAILED, LOG, DROP_SESSION, DROP_UPLOADS)
# the coordinator may still wait for its round to open
_FAILED_S0 = (*_FAILED, ANSWER)
# the run breaks off
_BROKEN = (QUEUED, LOG, DROP_SESSION)
_CLOSE = (CLOSING, LOG, Close)
_RESUME = (DROP_SESSION, PREPARE, Resume)
_NEXT = (VOTING, LOG)

_BOTH: tuple[Row, ...] = (
    # a check that the failure has ended finds after all that the peer deviated
    (FAILED, Failure, always, None),
    (RUNNING, (Computed, Done), discordant, *_FAILED, Failed),
    (RUNNING, (Computed, Done), disputed, *_FAILED, Failed),
    (RUNNING, Computed, more, *_NEXT, Done, PREPARE),
    (RUNNING, Done, more, *_NEXT, PREPARE),
    (RUNNING, Computed, both_computed, *_PUBLISHED, Done),
    (RUNNING, Computed, always, None, Done),
    (RUNNING, Done, both_computed, *_PUBLISHED),
    (RUNNING, Done, always, None),
    (RUNNING, Unlinked, computed, None, DROP_SESSION),
    (RUNNING, Interrupted, computed, None),
)

_LEADER = _table(
    *_BOTH,
    # the peer is told of a failure, unless it was the peer that has said so
    (LIVE, Failure, always, *_FAILED_S0, Failed),
    (LIVE, Failed, always, *_FAILED_S0),
    (NEW, OpenAsked, always, OPENING, LOG, Open),
    (OPENING, (Interrupted, Again, Overdue), always, *_FAILED_S0, Failed),
    (OPENING, Turn, always, None, Open),
    # S1 has heard an earlier `open`
    (OPENING, (Dealt, Uploaded), always, None),
    (OPENING, Opened, of_session, OPEN, LOG, BEGIN, ANSWER, PREPARE),
    (OPENING, Opened, always, None),
    ((OPENING, OPEN, CLOSING, CHECKING, VOTING), Unlinked, always, None, DROP_SESSION),
    ((OPEN, CLOSING, CHECKING, VOTING), (Interrupted, Again), given_up, *_FAILED_S0, Failed),
    ((OPEN, CLOSING, CHECKING, VOTING), (Interrupted, Again), always, None, DROP_SESSION),
    ((OPEN, CLOSING, CHECKING), Tossed, always, None, CHECK),
    (OPEN, DealingStored, always, None, Dealt),
    # sent before S1 heard `close`
    ((OPEN, CLOSING), Dealt, always, None),
    (OPEN, Stored, full, CLOSING, Uploaded, LOG, Close),
    (OPEN, Stored, always, None, Uploaded),
    ((OPEN, CLOSING), (CheckEnded, Verdicts, Resume), discordant, *_FAILED_S0, Failed),
    # nobody waits for a client that takes no part
    (OPEN, (Uploaded, Declined, CheckEnded, Verdicts), full, *_CLOSE),
    (OPEN, (Uploaded, Declined, CheckEnded, Verdicts), always, None),
    # the deadline is not a failure
    (OPEN, (CloseAsked, Overdue), always, *_CLOSE),
    (OPEN, Resume, full, CLOSING, LOG, PREPARE, Close),
    (OPEN, Resume, always, None, PREPARE),
    (CLOSING, (CheckEnded, Verdicts), always, None),
    (CLOSING, Resume, always, None, PREPARE, Close),
    ((CLOSING, RUNNING, VOTING), Turn, always, None, Resume),
    ((CLOSING, CHECKING, QUEUED), Overdue, given_up, *_FAILED_S0, Failed),
    ((CLOSING, CHECKING, QUEUED), Overdue, always, None, DROP_SESSION),
    (CLOSING, Held, obstructed, *_FAILED_S0, Failed),
    (CLOSING, Held, incomplete, CHECKING, LOG),
    (CLOSING, Held, always, QUEUED, LOG),
    # several times where clients that have failed make room for others
    (CHECKING, (CheckEnded, Verdicts, Resume), obstructed, *_FAILED_S0, Failed),
    (CHECKING, (CheckEnded, Verdicts), incomplete, None),
    (CHECKING, (CheckEnded, Verdicts), always, QUEUED, LOG),
    (CHECKING, Resume, incomplete, None, PREPARE),
    (CHECKING, Resume, always, QUEUED, LOG, PREPARE),
    ((OPEN, CHECKING, QUEUED), Turn, drifting, None, Resume),
    ((CHECKING, QUEUED), Turn, discordant, *_FAILED_S0, Failed),
    ((OPEN, CHECKING), Turn, checkable, None, Check, CHECK),
    ((OPEN, CHECKING), Turn, always, None),
    # an audited round, in another session
    (QUEUED, Turn, checkable, CHECKING, LOG, Check, CHECK),
    (QUEUED, Turn, always, STARTING, LOG, Compute),
    (QUEUED, (Unlinked, Interrupted), always, None, DROP_SESSION),
    (QUEUED, Again, given_up, *_FAILED_S0, Failed),
    (QUEUED, Again, drifting, None, DROP_SESSION),
    (QUEUED, Again, always, None),
    (QUEUED, Resume, discordant, *_FAILED_S0, Failed),
    (QUEUED, Resume, always, None, PREPARE),
    (STARTING, Ready, current, RUNNING, LOG, BIND, START),
    (STARTING, Ready, always, None),
    (STARTING, (Unlinked, Interrupted, Overdue, Again), given_up, *_FAILED_S0, Failed),
    (STARTING, Unlinked, always, *_BROKEN),
    (STARTING, (Interrupted, Overdue), always, *_BROKEN, Again),
    (RUNNING, (Unlinked, Interrupted, Overdue, Again), given_up, *_FAILED_S0, Failed),
    (RUNNING, Unlinked, always, *_BROKEN),
    (RUNNING, Interrupted, always, *_BROKEN, Again),
    # S1 may have published, so that only S1 can say that this run is over
    (RUNNING, Overdue, computed, None, DROP_SESSION),
    (RUNNING, Overdue, always, *_BROKEN, Again),
    ((STARTING, RUNNING), Again, current, *_BROKEN),
    ((STARTING, RUNNING), Again, always, None),
    (RUNNING, Resume, discordant, *_FAILED_S0, Failed),
    (RUNNING, Resume, disputed, *_FAILED_S0, Failed),
    (RUNNING, Resume, more, *_NEXT, PREPARE),
    (RUNNING, Resume, both_computed, *_PUBLISHED),
    (RUNNING, Resume, given_up, *_FAILED_S0, Failed),
    (RUNNING, Resume, always, QUEUED, LOG, PREPARE),
    (VOTING, (Stored, Uploaded, Resume), obstructed, *_FAILED_S0, Failed),
    (VOTING, Stored, voted, QUEUED, Uploaded, LOG),
    (VOTING, Stored, always, None, Uploaded),
    (VOTING, Uploaded, voted, QUEUED, LOG),
    (VOTING, Uploaded, always, None),
    (VOTING, Resume, voted, QUEUED, LOG, PREPARE),
    (VOTING, Resume, always, None, PREPARE),
    # nobody is left out
    (VOTING, (Declined, Overdue), always, *_FAILED_S0, Failed),
)

_FOLLOWER = _table(
    *_BOTH,
    (_FOLLOWED, Failure, always, *_FAILED, Failed),
    (_FOLLOWED, Failed, always, *_FAILED),
    # The lanes are opened before the answer is sent: what S0 sends on a lane that S1 has not
    # opened yet is lost.
    (NEW, Open, always, OPEN, LOG, BEGIN, PREPARE, Opened),
    # S0 has not heard the answer
    (OPEN, Open, discordant, *_FAILED, Failed),
    (OPEN, Open, always, None, DROP_SESSION, PREPARE, Opened),
    (OPEN, DealingStored, always, None, Dealt),
    (OPEN, Stored, always, None, Uploaded),
    (OPEN, (Dealt, Uploaded, Declined), always, None),
    # S1 is `checking` from the end of a checked round on until it is asked to run the protocol
    (OPEN, Close, checked, CHECKING, LOG, Held),
    (OPEN, Close, always, QUEUED, LOG, Held),
    # S0 has not heard the answer
    ((CHECKING, QUEUED), Close, discordant, *_FAILED, Failed),
    ((CHECKING, QUEUED), Close, always, None, Held),
    ((OPEN, CHECKING, QUEUED, VOTING), Check, discordant, *_FAILED, Failed),
    ((OPEN, CHECKING), Check, always, None, CHECK),
    ((QUEUED, VOTING), Check, always, CHECKING, LOG, CHECK),
    ((OPEN, CHECKING), Tossed, always, None, CHECK),
    ((OPEN, CHECKING), CheckEnded, always, None, Verdicts),
    # S1 is adrift, and S0 learns it
    ((OPEN, CHECKING, VOTING), Interrupted, always, None, DROP_SESSION, Again),
    ((OPEN, CHECKING, QUEUED, VOTING), Unlinked, always, None, DROP_SESSION),
    ((OPEN, CHECKING, QUEUED, VOTING), Overdue, always, *_FAILED, Failed),
    (VOTING, Declined, always, *_FAILED, Failed),
    (_FOLLOWED, Resume, discordant, *_FAILED, Failed),
    (VOTING, (Stored, Uploaded, Resume), obstructed, *_FAILED, Failed),
    (VOTING, Stored, always, None, Uploaded),
    (VOTING, Uploaded, always, None),
    ((OPEN, CHECKING, QUEUED, VOTING), Resume, always, None, *_RESUME),
    (QUEUED, Interrupted, always, None, DROP_SESSION),
    ((CHECKING, QUEUED, VOTING), Compute, obstructed, *_FAILED, Failed),
    ((CHECKING, QUEUED, VOTING), Compute, always, RUNNING, LOG, BIND, START, Ready),
    (RUNNING, Unlinked, always, *_BROKEN),
    (RUNNING, Overdue, left_alone, *_FAILED, Failed),
    (RUNNING, (Interrupted, Overdue), always, *_BROKEN, Again),
    (RUNNING, Again, current, *_BROKEN),
    (RUNNING, Again, always, None),
    (RUNNING, Resume, disputed, *_FAILED, Failed),
    (RUNNING, Resume, more, *_NEXT, *_RESUME),
    (RUNNING, Resume, both_computed, *_PUBLISHED, Resume),
    (RUNNING, Resume, always, QUEUED, LOG, *_RESUME),
    # S0 has not heard how the round has ended here
    (PUBLISHED, Resume, always, None, Resume),
    (FAILED, (Open, Resume), always, None, Failed),
)

_NO_VOTES = "Nobody is left out of later votes: the round has failed for good, open a new one"

TABLE: tuple[Table, Table] = (_LEADER, _FOLLOWER)

_UNAWARE = "sent before the peer heard that the round has failed here"
_FAILED_LATER = "the peer failed after both had their result, which stands here"
_TOLD_AGAIN = "S1 answers what S0 has told it once more on a new link"
_BROKE_OFF = "about a run that has broken off here"


def _late(*rows: tuple[State, tuple[type, ...], str]) -> dict[Pair, str]:
    return {(state, kind): why for state, kinds, why in rows for kind in kinds}


# The messages that may come late, and why. They change nothing.
LATE: tuple[dict[Pair, str], dict[Pair, str]] = (
    _late(
        (CLOSING, (Uploaded,), "sent before S1 heard `close`; its `held` has the client too"),
        (QUEUED, (Ready, Done), _BROKE_OFF),
        (STARTING, (Done,), _BROKE_OFF),
        (PUBLISHED, (Failed,), _FAILED_LATER),
        (PUBLISHED, (Resume,), _TOLD_AGAIN),
        (FAILED, (Opened, Resume, Dealt, Uploaded, Verdicts), _UNAWARE),
        (FAILED, (Held, Ready, Done, Again, Failed), _UNAWARE),
    ),
    _late(
        (QUEUED, (Done, Again), _BROKE_OFF),
        (PUBLISHED, (Failed,), _FAILED_LATER),
        (FAILED, (Dealt, Uploaded, Check, Close, Compute, Done, Again, Failed), _UNAWARE),
    ),
)
