"""The state `voting`, in which a round takes a vote within digits that were told."""

import json
import random
from contextlib import suppress
from dataclasses import replace

import pytest

from securemedian.common.states import State
from securemedian.mpc.errors import BadUpload, NotAllowed, RoundClosed, SecureMedianError
from securemedian.servers.machine.events import (
    CheckEnded,
    CloseAsked,
    Computed,
    Declined,
    Effect,
    Event,
    Interrupted,
    Overdue,
    Stored,
    Turn,
    Unlinked,
    Use,
)
from securemedian.servers.machine.round import SESSIONS, ChecksNow
from securemedian.servers.machine.step import use
from securemedian.servers.network.control import (
    Again,
    Check,
    Close,
    Compute,
    Done,
    Held,
    Ready,
    Resume,
    Uploaded,
    Verdicts,
)
from tests.test_round_state import (
    AUDITED_VOTES,
    FIRST,
    ID,
    LIMITS,
    RESUME_S,
    RUN_S,
    SECOND,
    VOTES,
    Both,
    Here,
    a_round,
    receipt,
)

THREE = ("key-a", "key-b", "key-c")
LIMIT_S = 14400.0


def digits(level: int) -> bytes:
    return b"digits of %d" % level


def running(**changes: object) -> Both:
    """Return a round in its first run."""
    both = Both(max_clients=4, **(VOTES | changes))
    both.send(*THREE)
    both.deal("key-d")
    both.feed(0, CloseAsked())
    assert both.states == (State.RUNNING, State.RUNNING)
    return both


def compute(both: Both) -> None:
    level = both.rounds[0].level
    for party in (0, 1):
        both.feed(party, Computed(receipt(party, digits(level))))


def voting(**changes: object) -> Both:
    both = running(**changes)
    compute(both)
    assert both.states == (State.VOTING, State.VOTING)
    return both


def vote(both: Both, *clients: str) -> None:
    for client in clients:
        for party in (0, 1):
            both.feed(party, Stored(client, b"v%d" % both.rounds[party].level))


def said(
    state: str, level: int, attempt: int = 1, signature: bytes = b"", **more: object
) -> Resume:
    given = Resume(
        ID, SECOND, state, attempt, signature, {}, sorted(THREE), [], [], {}, level=level
    )
    return replace(given, **more)  # type: ignore[arg-type]


def signed(party: int, level: int) -> bytes:
    return receipt(party, digits(level)).signatures[f"s{party}"]


@pytest.mark.parametrize("party", [0, 1])
def test_votes_last_until_the_limit_of_all_of_them(party: int) -> None:
    both = voting()
    here = both.rounds[party]
    # since the first run, at 1.0
    limit = 1.0 + LIMIT_S + RESUME_S * party
    assert here.deadline == limit
    # also while a server is away
    here.handle(Unlinked("gone"), 500.0)
    assert here.adrift and here.deadline == limit
    again = a_round(party, max_clients=4, **VOTES)
    again.restore(json.loads(json.dumps(here.saved())))
    again.round_is(until=here.until, deadline=here.deadline)
    again.handle(Unlinked("started"), 800.0)
    assert (again.level, again.path, again.vouch) == (1, here.path, here.vouch)
    if party == 0:
        again.handle(Turn(SECOND, True), 900.0)
    again.handle(said("voting", 1, signature=signed(1 - party, 0)), 1000.0)
    assert again.state is State.VOTING and not again.adrift and again.deadline == limit
    later = Here(replace(again.round, level=1))
    later.handle(Overdue(), limit)
    assert later.state is State.FAILED
    if party == 0:
        want = "vote 2 of 3 did not come in time from anna (both), ben (both), cleo (both)"
        assert want in later.reason and later.code == "round-failed"


@pytest.mark.parametrize("how", ["none", "one"])
def test_s1_runs_no_vote_that_it_has_not_of_all_clients(how: str) -> None:
    for kind in (VOTES, AUDITED_VOTES):
        if kind is AUDITED_VOTES:
            here = a_round(1, max_clients=4, **kind)
            here.round_is(state=State.VOTING, level=1, included=list(THREE), ran=True, attempt=1)
            here.passed = dict.fromkeys(THREE, True)
        else:
            here = voting().rounds[1]
        here.here = {} if how == "none" else {"key-a": b"v1", "key-b": b"v1"}
        # S0 knows the votes, and what S1 lacks
        asks = Check(ID, list(THREE)) if here.audited else Compute(ID, here.digest, 2, FIRST, False)
        here.handle(asks, 2.0)
        assert here.state is State.FAILED and here.code == "peer-protocol"


def test_s1_runs_no_vote_within_other_digits_or_of_other_votes() -> None:
    here = voting().rounds[1]
    here.here = dict.fromkeys(THREE, b"v1")
    for changes in (
        {"path": digits(5).hex()},
        {"level": 2},
        {"included": list(THREE[:2])},
    ):
        there = here.copy()
        other = replace(there.round, **changes)
        there.handle(Compute(ID, other.digest, 2, FIRST, False), 2.0)
        assert there.state is State.FAILED and there.code == "parameters-differ"
    other = here.copy()
    other.here = {"key-a": b"v1", "key-b": b"v1", "key-c": b"another"}
    there = here.copy()
    there.handle(Compute(ID, other.digest, 2, FIRST, False), 2.0)
    assert there.code == "parameters-differ"
    here.handle(Compute(ID, here.digest, 2, FIRST, False), 2.0)
    assert here.state is State.RUNNING


@pytest.mark.parametrize("party", [0, 1])
def test_a_vote_that_was_told_never_runs_again(party: int) -> None:
    """Whatever the other server says of its own state."""
    other = 1 - party
    vouched = signed(other, 0)
    for state, level, attempt, signature in (
        ("queued", 0, 1, b""),
        ("running", 0, 1, b""),
        ("running", 0, 2, vouched),
        ("running", 1, 1, vouched),
        ("voting", 0, 1, vouched),
        ("voting", 2, 1, vouched),
        ("checking", 0, 1, b""),
    ):
        here = voting().rounds[party]
        here.handle(Unlinked("gone"), 2.0)
        if party == 0:
            here.handle(Turn(SECOND, True), 90.0)
        here.handle(said(state, level, attempt, signature), 90.0)
        assert here.state is State.FAILED and here.code == "peer-protocol", (state, level)
        assert "is not its latest" in here.reason
    # one that has the digits, and was not told so
    here = voting().rounds[party]
    here.handle(Unlinked("gone"), 2.0)
    if party == 0:
        here.handle(Turn(SECOND, True), 90.0)
    # it still holds the votes before
    here.handle(said("running", 0, 1, vouched, held={"key-a": b"m"}), 90.0)
    assert here.state is State.VOTING and here.level == 1 and not here.computed_there
    assert not here.there


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("wrong", ["", "signature", "attempt", "level", "nothing"])
def test_a_server_follows_the_other_only_with_its_signature_of_the_same(
    party: int, wrong: str
) -> None:
    here = running().rounds[party]
    here.handle(Computed(receipt(party, digits(0))), 1.0)
    here.handle(Unlinked("gone"), 2.0)
    if party == 0:
        here.handle(Turn(SECOND, True), 90.0)
    told = said("voting", 1, 1, signed(1 - party, 0), held={"key-a": b"v1"})
    changes = {
        "": {},
        "signature": {"signature": signed(1 - party, 3)},
        "attempt": {"attempt": 2},
        "level": {"level": 2},
        "nothing": {"signature": b""},
    }[wrong]
    here.handle(replace(told, **changes), 90.0)  # type: ignore[arg-type]
    if wrong:
        assert here.state is State.FAILED
    else:
        # with the votes that the other one has
        assert here.state is State.VOTING and here.there == {"key-a": b"v1"}


def test_a_rerun_of_a_vote_signs_the_same_digits() -> None:
    for opened, goes_on in ((digits(1), True), (digits(9), False)):
        both = voting()
        vote(both, *THREE)
        both.feed(0, Computed(receipt(0, digits(1))))
        here = both.rounds[0]
        here.handle(Again(ID, 2, "closed", "why"), 2.0)
        here.handle(Turn(FIRST, False), 90.0)
        here.handle(Ready(ID, 3), 90.0)
        assert here.state is State.RUNNING and here.level == 1
        here.handle(Computed(receipt(0, opened)), 91.0)
        assert here.live is goes_on


def test_runs_of_all_votes_are_limited_together() -> None:
    """One that breaks off opens digits again, and the next vote does not make up for it."""
    both = running()
    here, there = both.rounds
    for attempt in range(1, LIMITS.max_attempts):
        here.handle(Again(ID, attempt, "closed", "why"), 100.0 * attempt)
        here.handle(Turn(FIRST, False), 100.0 * attempt + 90)
        here.handle(Ready(ID, attempt + 1), 100.0 * attempt + 90)
    assert here.attempt == LIMITS.max_attempts
    there.round_is(attempt=here.attempt)
    compute(both)
    assert both.states == (State.VOTING, State.VOTING) and here.attempts_left == 1
    vote(both, *THREE)
    assert here.attempt == LIMITS.max_attempts + 1
    here.handle(Again(ID, here.attempt, "closed", "why"), 500.0)
    assert here.state is State.FAILED and "3 times (max_attempts)" in here.reason
    there.handle(Again(ID, there.attempt, "closed", "why"), 500.0)
    there.handle(Compute(ID, there.digest, there.attempt + 1, FIRST, False), 500.0)
    assert there.state is State.FAILED and "at most 4" in there.reason


@pytest.mark.parametrize("party", [0, 1])
def test_who_refuses_or_differs_ends_the_round_and_the_set_stays(party: int) -> None:
    here = voting().rounds[party]
    here.handle(Stored("key-b", b"v1"), 2.0)
    there = here.copy()
    there.check_decline("key-b")
    there.handle(Declined("key-b", "servers-differ"), 2.0)
    assert there.state is State.FAILED and there.included == list(THREE)
    assert there.reason.startswith("ben votes no more: it found that the servers do not")
    assert there.left_out == {"dora": "its upload reached neither server"}
    with pytest.raises(RoundClosed, match="too late to decline"):
        here.check_decline("key-d")


@pytest.mark.parametrize("state", [each for each in State if each is not State.VOTING])
def test_votes_are_taken_while_the_round_is_voting(state: State) -> None:
    here = voting().rounds[0]
    path = digits(0).hex()
    here.check_upload("key-a", 1, path)
    for level, told in ((1, digits(1).hex()), (1, "")):
        with pytest.raises(BadUpload, match="within other digits"):
            here.check_upload("key-a", level, told)
    for level in (0, 2):
        with pytest.raises(RoundClosed):
            here.check_upload("key-a", level, path)
    with pytest.raises(NotAllowed, match="not among the clients"):
        here.check_upload("key-d", 1, path)
    here.round_is(state=state)
    with pytest.raises(RoundClosed, match=f"does not take vote 2: it is {state}"):
        here.check_upload("key-a", 1, path)
    opened = a_round(0, State.OPEN, **VOTES)
    with pytest.raises(BadUpload):
        opened.check_upload("key-a", 0, path)


def test_folds_of_a_later_vote_leave_the_turn_to_other_cohorts() -> None:
    here = a_round(0, max_clients=4, **AUDITED_VOTES)
    here.passed = dict.fromkeys(THREE, True)
    here.round_is(check=ChecksNow(list(THREE)), included=list(THREE), state=State.CHECKING)
    assert use(here.round) is Use.FOLDS
    here.round_is(level=1, until=LIMIT_S)
    assert use(here.round) is None
    # and may take as long as the votes
    entered = Here(replace(here.round, state=State.QUEUED, check=None))
    entered.handle(Turn(FIRST, False), 0.0)
    assert entered.state is State.CHECKING and entered.deadline == RUN_S + LIMIT_S


def test_done_of_a_vote_is_of_both_servers() -> None:
    here = running().rounds[0]
    here.handle(Done(ID, 1, signed(1, 0)), 1.0)
    assert here.state is State.RUNNING
    (done, *_) = [one for one in here.handle(Computed(receipt(0, digits(0))), 1.0)][1:]
    assert done == Done(ID, 1, signed(0, 0)) and here.state is State.VOTING


def test_s0_waits_for_s1_as_long_as_for_votes_also_with_the_last_vote() -> None:
    """Otherwise the shorter limit of a server that is away would end the round."""
    both = voting()
    vote(both, *THREE[:2])
    both.feed(1, Stored("key-c", b"v1"))
    here = both.rounds[0]
    assert here.state is State.VOTING and set(here.there) == set(THREE)
    here.handle(Unlinked("gone"), 2.0)
    here.handle(Stored("key-c", b"v1"), 3.0)
    assert here.state is State.VOTING and here.deadline == 1.0 + LIMIT_S
    here.handle(Turn(SECOND, True), 90.0)
    held = dict.fromkeys(THREE, b"v1")
    here.handle(said("voting", 1, signature=signed(1, 0), held=held), 90.0)
    assert here.state is State.QUEUED and not here.adrift


# A server whose peer says anything


def next_of(here: Here, rng: random.Random) -> Event | None:
    """Return what brings a round on: of this server, or of one that follows the protocol."""
    other, level, attempt = 1 - here.party, here.level, here.attempt
    held, both = {key: b"v%d" % level for key in THREE}, list(THREE)
    if here.adrift and here.party == 0 and not here.resuming:
        return Turn(SECOND, True)
    if here.adrift:
        state = str(here.state) if here.state in (State.VOTING, State.CHECKING) else "queued"
        session = here.session if here.party == 0 else SECOND
        return Resume(ID, session, state, attempt, b"", held, both, both, [], {}, level=level)
    if here.state is State.VOTING:
        if mine := [key for key in THREE if key not in here.here]:
            return Stored(mine[0], held[mine[0]])
        theirs = [key for key in THREE if key not in here.there]
        if here.party == 0 and theirs:
            return Uploaded(ID, theirs[0], held[theirs[0]])
    if here.check:
        ends: list[Event] = [CheckEnded(here.under_check, []), Verdicts(ID, both, [])]
        return rng.choice(ends)
    if here.state is State.STARTING:
        return Ready(ID, attempt)
    if here.state is State.RUNNING and not here.computed_here:
        return Computed(receipt(here.party, digits(level)))
    if here.state is State.RUNNING:
        return Done(ID, attempt, signed(other, level))
    if here.party == 0:
        return Turn(SECOND, False) if here.awaits_turn(1.0) else None
    if here.audited and here.folded != here.included:
        return Check(ID, both)
    return Compute(ID, here.digest, attempt + 1, SECOND, False)


def anything(here: Here, rng: random.Random) -> Event:
    """Return what a peer may say, or what may happen to the link or the work under way."""
    other, level = 1 - here.party, here.level
    attempt = here.attempt + rng.choice((-1, 0, 0, 1))
    clients = list(rng.choice((THREE, THREE, THREE[:2])))
    held = dict.fromkeys(clients, rng.choice((b"v%d" % level, b"another")))
    signature = rng.choice((b"", bytes(64), signed(other, level), signed(other, level - 1)))
    state = rng.choice(("open", "checking", "queued", "running", "voting"))
    session = rng.choice((SECOND, FIRST, here.session))
    said = Resume(ID, session, state, attempt, signature, held, clients, clients, [], {})
    events: list[Event] = [
        *(replace(said, level=max(0, level + more)) for more in (-1, 0, 0, 1)),
        Uploaded(ID, clients[0], held[clients[0]]),
        *(Check(ID, clients), Close(ID, held), Held(ID, held), Verdicts(ID, clients, [])),
        Compute(ID, here.digest, attempt, session, rng.random() < 0.2),
        *(Again(ID, attempt, "closed", "why"), Ready(ID, attempt)),
        *(Done(ID, attempt, signature), Unlinked("gone"), Interrupted("closed", "why")),
    ]
    if here.state is State.RUNNING and not here.computed_here:
        events.append(Computed(receipt(here.party, b"steered")))
    return rng.choice(events)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("kind", [VOTES, AUDITED_VOTES])
def test_whatever_the_other_server_says_a_vote_is_of_one_set_and_told_once(
    party: int, kind: dict[str, object]
) -> None:
    ended = set()
    for seed in range(40):
        rng, here = random.Random(seed), voting(**kind).rounds[party]
        limit, began, runs, own = here.until, here.level, 0, {0: signed(party, 0)}
        for _ in range(60):
            before = here.round
            event = next_of(here, rng) if rng.random() < 0.9 else anything(here, rng)
            actions = []
            with suppress(SecureMedianError):
                actions = here.handle(event, 1.0) if event else []
            if not here.live:
                break
            assert here.included == list(THREE) and here.until == limit
            assert here.sessions <= SESSIONS + here.runs + here.votes - 1
            if Effect.START in actions:
                runs += 1
                # the votes of all, within what was told last, and never one that was told
                assert here.here.keys() == set(THREE) and here.path
                assert not (here.audited and party) or here.folded == here.included
            if here.receipt:
                # one record of each vote
                mine = here.receipt.signatures[f"s{party}"]
                assert own.setdefault(here.level, mine) == mine
            if here.level > before.level:
                began += 1
                assert here.level == began and here.state is State.VOTING and not here.folded
                assert not here.here
        assert runs <= here.runs + here.votes - 2
        ended.add(here.state)
    assert ended >= {State.PUBLISHED, State.FAILED}
