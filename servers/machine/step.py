"""One step of a round: a state and an event give the next state and the actions to do.

Each event first changes what it says by itself (`note`). The conditions of the `table` then choose
a line, and the round enters the state of that line.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from securemedian.common.receipts import Receipt
from securemedian.common.states import LIVE, State
from securemedian.mpc.errors import (
    ChannelTimeout,
    LocalProtocolError,
    PeerProtocolError,
    PeerUnavailable,
    cut,
)
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.servers.machine import events
from securemedian.servers.machine.members import (
    MISFOLDED,
    SILENT,
    choose,
    leave_out_early,
    may_check,
    unchecked,
)
from securemedian.servers.machine.round import ChecksNow, ServerRound
from securemedian.servers.machine.table import LATE, TABLE, obstacle
from securemedian.servers.network import control
from securemedian.servers.network.control import SHA256_BYTES

# by the state of S0, the states in which S1 may be when they resynchronise
BESIDE: dict[str, tuple[str, ...]] = {
    State.OPEN: (State.OPEN,),
    State.CLOSING: (State.OPEN, State.CHECKING, State.QUEUED),
    State.CHECKING: (State.CHECKING, State.QUEUED, State.VOTING),
    State.QUEUED: (State.CHECKING, State.QUEUED, State.RUNNING, State.VOTING),
    State.RUNNING: (State.QUEUED, State.RUNNING, State.VOTING, State.PUBLISHED),
    State.VOTING: (State.VOTING, State.RUNNING),
    State.PUBLISHED: (State.RUNNING,),
}

# The longest wait before another attempt.
MOST_WAIT_S = 60.0


def fold(
    here: ServerRound, came: Iterable[events.Event], now: float
) -> tuple[ServerRound, list[events.Action]]:
    """Return the round after several events, and all actions. Raises what `step` raises."""
    actions: list[events.Action] = []
    for event in came:
        here, more = step(here, event, now)
        actions += more
    return here, actions


def step(
    here: ServerRound, event: events.Event, now: float
) -> tuple[ServerRound, list[events.Action]]:
    """Return the round after one event, and the actions to do, in order.

    Raises PeerProtocolError or LocalProtocolError for an event that cannot come now.
    """
    pair = here.state, type(event)
    if pair in LATE[here.party] or is_of_another_link(here, event):
        return here, []
    if pair not in TABLE[here.party]:
        kind = PeerProtocolError if isinstance(event, control.RoundMessage) else LocalProtocolError
        name = type(event).__name__.lower()
        raise kind(f"{name!r} cannot come while round {here.round_id} is {here.state}")
    after = note(here, event, now)
    line = next(line for line in TABLE[here.party][pair] if line.when(after, event))
    if after.live and line.to is State.FAILED and (cause := obstacle(after, event)):
        after = replace(after, code=cut(cause[0]), reason=cut(cause[1]))
    if control.Check in line.actions:
        after = _with_check(after)
    if line.to is not after.state:
        after = enter(after, line.to, now)
        if isinstance(event, control.Resume) and event.level == after.level > here.level:
            # the other server takes these votes already
            after = _with_held(after, event.held)
    elif after.state is not State.OPEN and (
        isinstance(event, control.Resume) or bool(here.check) != bool(after.check)
    ):
        # its wait begins only now
        after = _limited(after, now)
    return after, [
        action if isinstance(action, events.Effect) else _message(after, action, event)
        for action in line.actions
        if not (here.adrift and after.adrift and action in events.OF_A_LINK)
    ]


def is_of_another_link(here: ServerRound, event: events.Event) -> bool:
    """Return whether a message is from before the servers have resynchronised."""
    if here.party == 0 and isinstance(event, control.Resume) and here.live:
        return not here.resuming or event.session != here.session
    # S1 asks to be asked once more
    asks = here.resuming and isinstance(event, control.Again) and event.attempt == 0
    return here.adrift and isinstance(event, events.OF_A_LINK) and not asks


# Turns and resources


def awaits_turn(here: ServerRound, now: float) -> bool:
    """Return whether S0 may give the round a turn, if S1 is linked and the resource is free."""
    if here.party == 1 or not here.live or now < here.retry_at:
        return False
    return not here.resuming if here.adrift else next_use(here) is not None


def use(here: ServerRound) -> events.Use | None:
    """Return the resource that the round uses now."""
    if here.check:
        # the folds of a later vote are waited for as long as the vote
        waits = here.level and here.folding
        return None if waits else _use_of(here, here.check.clients)
    runs = here.state is State.RUNNING and not here.computed_here
    return events.Use.PROTOCOL if runs or here.state is State.STARTING else None


def next_use(here: ServerRound) -> events.Use | None:
    """Return the resource that the next turn needs; None while the servers resynchronise."""
    if here.adrift or here.state not in (State.OPEN, State.CHECKING, State.QUEUED):
        return None
    if clients := unchecked(here):
        return _use_of(here, clients)
    return events.Use.PROTOCOL if here.state is State.QUEUED else None


def _use_of(here: ServerRound, clients: Sequence[str]) -> events.Use:
    if here.may_fold(clients):
        return events.Use.FOLDS
    return events.Use.CHECK if here.dealt else events.Use.PROTOCOL


# States and their limits


def enter(here: ServerRound, state: State, now: float) -> ServerRound:
    """Return the round as it enters a state."""
    changes: dict[str, Any] = {}
    if state in (State.QUEUED, State.RUNNING, State.VOTING):
        changes = {"receipt": None, "vouched": None}
    elif state is State.PUBLISHED:
        changes = {"code": "", "reason": ""}
    if state is State.VOTING and (told := here.receipt):
        own = told.signatures[f"s{here.party}"]
        changes |= {"level": here.level + 1, "path": told.record.opened.hex(), "vouch": own.hex()}
        # SECURITY: no vote of those before counts once more, nor what was bound to them
        here = here.with_all(here.members, uploaded=None, uploaded_there=None)
        changes |= {"signed": "", "folded": [], "setbacks": 0, "retry_at": now}
    if state not in LIVE:
        changes |= {"adrift": False, "resuming": False}
    if state is State.RUNNING and not here.ran:
        changes |= {"until": now + getattr(here.params.method, "limit_s", float("inf"))}
    entered = replace(
        here,
        state=state,
        begun=here.begun or state is State.OPEN,
        ran=here.ran or state is State.RUNNING,
        attempt=here.attempt + (state is State.STARTING),
        **changes,
    )
    return _limited(entered, now)


def _limited(here: ServerRound, now: float) -> ServerRound:
    if here.adrift:
        return replace(here, deadline=here.away_until)
    limits, forever = here.limits, float("inf")
    # a later vote, and the folds of it, may take as long as the votes of a round may
    left = max(0.0, here.until - now) if here.level else 0.0
    seconds = {
        State.OPENING: limits.answer_s,
        State.OPEN: here.params.deadline_s,
        State.CLOSING: limits.answer_s,
        # before and after a check, the round waits for its turn
        State.CHECKING: limits.run_s + left if here.check else forever,
        State.STARTING: limits.answer_s,
        State.RUNNING: limits.run_s,
        State.VOTING: left,
    }
    if here.party == 1:
        # S0 leads, and S1 only sees to it that it does not wait for ever
        seconds |= {
            State.OPEN: here.params.deadline_s + limits.resume_s,
            State.CHECKING: limits.resume_s + left,
            State.QUEUED: limits.resume_s,
            State.VOTING: limits.resume_s + left,
        }
    return replace(here, deadline=now + seconds.get(here.state, forever))


# Messages


def told_again(here: ServerRound) -> control.RoundMessage | None:
    """Return how a round has ended, as S0 repeats it on a new link: S1 may not know it."""
    kinds = {State.PUBLISHED: control.Resume, State.FAILED: control.Failed}
    if here.party == 1 or here.state not in kinds:
        return None
    return _message(here, kinds[here.state], events.Unlinked(""))


def _message(
    here: ServerRound, kind: type[control.RoundMessage], event: events.Event
) -> control.RoundMessage:
    about, session, check = here.round_id, here.session, here.check
    signature = here.receipt.signatures[f"s{here.party}"] if here.receipt else b""
    if here.state is State.VOTING:
        signature = bytes.fromhex(here.vouch)
    held = {key: here.told(stored) for key, stored in sorted(here.here.items())}
    why = here.code, cut(f"s{here.party}: {here.reason}")
    if kind is control.Open:
        return replace(here.asked, session=session, new_session=here.new_session)
    if kind is control.Resume:
        coins = {
            key: member.coin + (member.token or bytes(SHA256_BYTES))
            for key, member in sorted(here.members.items())
            if member.coin
        }
        passed, failed = sorted(here.passed), sorted(here.failed | here.unfolded.keys())
        said = held, sorted(here.dealt_here), passed, failed, coins, here.level
        return control.Resume(about, session, here.state, here.attempt, signature, *said)
    if kind is control.Dealt and isinstance(event, events.DealingStored):
        return control.Dealt(about, event.client)
    if kind is control.Uploaded and isinstance(event, events.Stored):
        return control.Uploaded(about, event.client, here.told(event.digest))
    if kind is control.Check and check:
        return control.Check(about, check.clients, check.coin)
    if kind is control.Verdicts and isinstance(event, events.CheckEnded):
        return control.Verdicts(about, event.clients, event.failed)
    if kind is control.Compute:
        return control.Compute(about, here.digest, here.attempt, session, here.new_session)
    # an audited round may be checked again after a run
    again = 0 if here.state in (State.CHECKING, State.VOTING) else here.attempt
    fields: dict[type, tuple[Any, ...]] = {
        control.Opened: (session, here.spent, here.runs),
        control.Close: (held,),
        control.Held: (held,),
        control.Ready: (here.attempt,),
        control.Done: (here.attempt, signature),
        control.Again: (again, *why),
        control.Failed: why,
    }
    return kind(about, *fields[kind])


# Changes by events, before the conditions of the table are evaluated


def note(here: ServerRound, event: events.Event, now: float) -> ServerRound:
    """Return the round with what an event says, before the conditions of the table."""
    match event:
        case events.DealingStored():
            return here.with_all([event.client], dealt=event.digest)
        case events.Stored():
            return here.with_all([event.client], uploaded=event.digest)
        case events.Declined():
            here = here.with_all([event.client], declined=event.reason)
            # SECURITY: nobody is left out any more once the protocol has run
            return here if here.ran else leave_out_early(here)
        # only of listed clients: the other server could invent any number of others
        case control.Dealt():
            return here.with_all([event.client], dealt_there=True)
        case control.Uploaded():
            return _with_there(here, {event.client: event.digest})
        case control.Close() if here.ran or here.values_checked:
            return replace(here, discord="s0 closes a round that is checked, or has run already")
        case control.Close() | control.Held():
            return choose(_with_held(here, event.held))
        case control.Opened():
            spent, runs = max(here.spent, event.spent), min(here.runs, event.runs)
            here = replace(here, spent=spent, runs=runs)
            return begin_session(here) if event.session == here.session else here
        case control.Check() if may_check(here, event.clients, event.coin):
            here = use_session(here) if here.may_fold(event.clients) else here
            return _with_coin(replace(here, check=ChecksNow(event.clients)), event.coin)
        case control.Check():
            return replace(here, discord="s0 asks to check clients that cannot be checked now")
        case events.Tossed():
            return _note_tossed(here, event)
        case control.Verdicts():
            check = here.check
            if check is None or (event.clients, None) != (check.clients, check.failed_there):
                what = "s1 has checked other clients than it was asked to check"
                return replace(here, discord=what)
            return judge(replace(here, check=replace(check, failed_there=event.failed)))
        case events.CheckEnded() if here.check:
            ended = replace(here.check, failed_here=event.failed, silent=event.silent)
            return judge(replace(here, check=ended))
        case events.Failure() if event.deviation:
            # also of a round that has failed before
            code, reason = cut(event.code), cut(event.reason)
            return replace(here, code=code, reason=reason, deviation=dict(event.deviation))
        case events.Computed():
            return _note_computed(here, event.receipt, now)
        case control.Done() if event.attempt == here.attempt:
            return _vouched(here, event.signature)
        case control.Compute() if event.attempt <= here.attempt:
            return replace(here, discord="s0 asks for a run of the protocol that has been before")
        case control.Compute():
            return replace(_in_session(here, event), attempt=event.attempt)
        case control.Open():
            return begin_session(replace(_in_session(here, event), adrift=False))
        case events.Turn():
            return _note_turn(here, event, now)
        case control.Resume():
            if here.party == 1:
                here = replace(here, session=event.session, new_session=True)
            return _note_resume(here, event, now) if here.live else here
        case events.Unlinked():
            runs = here.state in (State.STARTING, State.RUNNING) and not here.computed_here
            # a check of values has opened verdicts, perhaps, and its repetition opens others
            if runs or (here.check and not here.dealt):
                here = set_back(here, PeerUnavailable.code, event.reason, now)
            return drift(here, now)
        case events.Interrupted():
            return _note_break(here, event.code, event.reason, now)
        case control.Again() if event.attempt == 0:
            # S1 has not been asked to run the protocol, and is adrift
            return drift(set_back(here, event.code, event.reason, now), now)
        case control.Again() if event.attempt == here.attempt:
            return set_back(here, event.code, event.reason, now)
        case events.Overdue():
            return _note_overdue(here, now)
    return here


def _in_session(
    here: ServerRound, event: control.Open | control.Compute | events.Turn
) -> ServerRound:
    return replace(here, session=event.session, new_session=event.new_session)


def begin_session(here: ServerRound) -> ServerRound:
    """Count a session that is prepared for an audited round."""
    return replace(here, sessions=here.sessions + 1, unused=True) if here.audited else here


def use_session(here: ServerRound) -> ServerRound:
    """Use the session that was prepared, or count one that is prepared now."""
    here = here if here.unused else begin_session(here)
    return replace(here, unused=False)


def _with_check(here: ServerRound) -> ServerRound:
    """Return the round at S0 with the check that begins now."""
    clients = unchecked(here)
    coin = None if here.may_fold(clients) else here.members[clients[0]].coin
    return replace(here, check=ChecksNow(clients, coin or b""))


def _with_coin(here: ServerRound, coin: bytes) -> ServerRound:
    """Return the round with what was tossed for the check that is under way."""
    here = replace(here, check=here.check and replace(here.check, coin=coin))
    return here.with_all(here.under_check, coin=coin) if coin else here


def _note_tossed(here: ServerRound, event: events.Tossed) -> ServerRound:
    here = _with_coin(here, event.coin)
    at = range(0, len(event.tokens), SHA256_BYTES)
    tokens = zip(here.under_check, at, strict=bool(event.tokens))
    return here.with_each(
        {key: {"token": event.tokens[begin : begin + SHA256_BYTES]} for key, begin in tokens}
    )


def judge(here: ServerRound) -> ServerRound:
    """Return the round with the verdicts of its check, at S0 once both servers have theirs."""
    check = here.check
    if check is None or check.failed_here is None:
        return here
    if here.party == 0 and check.failed_there is None:
        return here
    if here.party == 0 and check.failed_here != check.failed_there:
        return replace(here, discord="the two servers' checks have different verdicts")
    failed = {key: key in check.failed_here for key in check.clients}
    if not here.folding:
        here = here.with_each({key: {"passed": not wrong} for key, wrong in failed.items()})
    elif check.failed_here:
        why = {key: SILENT if key in check.silent else MISFOLDED for key in check.failed_here}
        here = here.with_each({key: {"unfolded": reason} for key, reason in why.items()})
    else:
        here = replace(here, folded=check.clients)
    here = replace(here, check=None)
    if here.state is not State.CHECKING:
        return leave_out_early(here)
    return here if here.ran else choose(here)


def _note_computed(here: ServerRound, receipt: Receipt, now: float) -> ServerRound:
    """Note a result, and the first record that this server signs: the only one it may sign.

    SECURITY: two of them, and a corrupt server could give each client another result.
    """
    digest = hashlib.sha256(receipt.encoded).hexdigest()
    if digest != (here.signed or digest):
        what = f"s{here.party} has signed another record of this round before"
        here = replace(here, discord=what)
    here = replace(here, receipt=receipt, signed=here.signed or digest)
    if here.vouched is not None:
        here = _vouched(here, here.vouched)
    # S0 may publish, so that only S0 can end this attempt
    return replace(here, deadline=now + here.limits.resume_s) if here.party == 1 else here


def _vouched(here: ServerRound, signature: bytes) -> ServerRound:
    """Note that the other server has its result, and what it has signed."""
    receipt = here.receipt and here.receipt.with_signature(f"s{1 - here.party}", signature)
    here = replace(here, vouched=signature, receipt=receipt)
    # that of the next vote, counted before the conditions of the table
    return begin_session(here) if receipt and not here.last else here


def _note_turn(here: ServerRound, event: events.Turn, now: float) -> ServerRound:
    here = _in_session(here, event)
    if event.new_session and here.audited and here.state is State.QUEUED:
        # the servers' binding is gone with the session, and S1 has to prepare another
        here = drift(here, now)
    adrift = here.adrift and here.state is not State.OPENING
    here = replace(here, adrift=adrift, resuming=adrift)
    if here.state in (State.OPEN, State.VOTING):
        return here
    if next_use(here) is events.Use.FOLDS:
        here = use_session(here)
    return replace(here, deadline=now + here.limits.answer_s)


def _note_overdue(here: ServerRound, now: float) -> ServerRound:
    if here.party == 0 and here.state in (State.OPENING, State.OPEN, State.VOTING):
        return here
    if here.party == 0:
        abandoned = here.adrift and not here.resuming
    else:
        abandoned = here.computed_here or here.state is not State.RUNNING
    here = replace(here, abandoned=abandoned)
    if abandoned:
        return here
    reason = f"round {here.round_id} was {here.state} for longer than its limit"
    here = _note_break(here, ChannelTimeout.code, reason, now)
    return drift(here, now) if here.computed_here else here


def _note_break(here: ServerRound, code: str, reason: str, now: float) -> ServerRound:
    """Note that what was under way has broken off, if there was anything."""
    waits = here.computed_here or here.state is State.QUEUED
    if (here.adrift or waits) and not here.resuming:
        return here
    here = set_back(here, code, reason, now)
    return here if here.state in (State.STARTING, State.RUNNING) else drift(here, now)


def _note_resume(here: ServerRound, said: control.Resume, now: float) -> ServerRound:
    """Go on from the earlier of the two servers' states."""
    leader, follower = (here, said) if here.party == 0 else (said, here)
    if follower.state not in BESIDE.get(leader.state, ()):
        beside = f"s0 is {leader.state} where s1 is {follower.state}"
        what = f"{beside}: the state folder of one of them is not its latest"
        return replace(here, discord=what)
    if not _at_one_vote(here, said):
        what = f"the servers are at votes {leader.level} and {follower.level}"
        return replace(here, discord=f"{what}: the state folder of one is not its latest")
    known = here.known("coin")
    coins = {key: coin[:SEED_BYTES] for key, coin in said.coins.items()}
    if any(known.get(key, coin) != coin for key, coin in coins.items()):
        return replace(here, discord="the two servers have tossed differently for the same client")
    # SECURITY: otherwise the other server could choose one that suits a client that helps it
    unknown = {key: coins[key] for key in coins.keys() & here.dealt_here.keys() - known}
    if any(said.coins[key][SEED_BYTES:] != here.token(key, unknown[key]) for key in unknown):
        what = f"s{1 - here.party} names a coin that s{here.party} has not tossed"
        return replace(here, discord=what)
    here = replace(here, vouched=None)
    if said.signature and said.attempt == here.attempt and here.state is State.RUNNING:
        here = _vouched(here, said.signature)
    if here.party == 0 and here.state is State.RUNNING and not here.computed_there:
        here = set_back(here, PeerUnavailable.code, "s1 has lost its run of the protocol", now)
    # SECURITY: it may be made again, or of other clients, and opens others if S0 deviates
    if here.party == 1 and here.values_checked and not here.ran:
        here = set_back(here, PeerUnavailable.code, "s0 has lost a check of uploads", now)
    here = replace(drift(here, now), adrift=False).with_all(here.members, dealt_there=None)
    # one that has its result needs no other session
    here = here if here.computed_here and here.computed_there else begin_session(here)
    here = here.with_all(said.dealt, dealt_there=True)
    here = _with_held(here, said.held if said.level == here.level else {})
    here = here.with_each({key: {"coin": coin} for key, coin in unknown.items()})
    if here.party == 0 or here.ran:
        return here
    # verdicts that S0 does not have are found again
    unheard = (here.passed - set(said.passed)) | (here.failed - set(said.failed))
    here = here.with_all(unheard, passed=None)
    here = here.with_all(here.unfolded.keys() - set(said.failed), unfolded=None)
    return choose(here) if here.state is State.CHECKING else here


def _at_one_vote(here: ServerRound, said: control.Resume) -> bool:
    """Return whether both servers are at the same vote, or one takes the next and the other may.

    SECURITY: a vote whose digits a client may have been told is never run again.
    """
    if {here.state, said.state} != {State.VOTING, State.RUNNING}:
        return here.level == said.level
    votes, computed = here.state is State.VOTING, bool(said.signature)
    computed &= votes or here.computed_here
    levels = (here.level - 1, said.level) if votes else (here.level, said.level - 1)
    return computed and levels[0] == levels[1] and here.attempt == said.attempt


def _with_held(here: ServerRound, held: Mapping[str, bytes]) -> ServerRound:
    here = _with_there(here.with_all(here.members, uploaded_there=None), held)
    return replace(here, unlisted=sorted(held.keys() - here.members.keys()))


def _with_there(here: ServerRound, held: Mapping[str, bytes]) -> ServerRound:
    """Note uploads of this server's clients at the other server."""
    here = here.with_each({key: {"uploaded_there": told} for key, told in held.items()})
    # nobody uploads before its whole dealing is stored
    return here.with_all(here.there, dealt_there=True) if here.dealt else here


def drift(here: ServerRound, now: float) -> ServerRound:
    """Forget what is under way, except for verdicts and coins."""
    until = here.away_until if here.adrift else now + here.limits.resume_s
    return replace(
        here,
        away_until=until,
        adrift=True,
        resuming=False,
        check=None,
        folded=[],
        deadline=here.deadline if here.state in (State.OPEN, State.VOTING) else until,
    )


def set_back(here: ServerRound, code: str, reason: str, now: float) -> ServerRound:
    """Note why something has broken off, and when it may be tried again."""
    wait = here.limits.retry_wait_s * 2.0 ** min(here.setbacks, 30)
    return replace(
        here,
        setbacks=here.setbacks + 1,
        retry_at=now + min(wait, MOST_WAIT_S),
        code=cut(code),
        reason=cut(reason),
    )
