"""servers.round_state: a round at both servers, as the table alone.

servers.peer and servers.control are tested here, too.
"""

import copy
import functools
import hashlib
import inspect
import itertools
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from securemedian.common.keys import SigningKey
from securemedian.common.receipts import Receipt, Record
from securemedian.common.states import LIVE, State
from securemedian.common.versions import own_versions
from securemedian.mpc.errors import (
    MAX_TEXT,
    BadUpload,
    ClientsDiffer,
    ConfigError,
    DuplicateUpload,
    FrameError,
    LocalProtocolError,
    NotAllowed,
    ParametersDiffer,
    PeerProtocolError,
    PeerUnavailable,
    ReceiptInvalid,
    RoundClosed,
    SecureMedianError,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.config import MOST_RUNS
from securemedian.servers.machine import members, step
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
from securemedian.servers.machine.round import SESSIONS, ChecksNow, Limits, Member, ServerRound
from securemedian.servers.machine.table import (
    LATE,
    TABLE,
    Transition,
    always,
    discordant,
    disputed,
)
from securemedian.servers.network import control
from securemedian.servers.network.control import (
    Again,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Failed,
    Held,
    Hello,
    Open,
    Opened,
    Ready,
    Resume,
    RoundMessage,
    Uploaded,
    Verdicts,
)
from securemedian.servers.network.peer import Change, PeerWatch, differences

ID = "1-0000000a"
NAMES = {"key-a": "anna", "key-b": "ben", "key-c": "cleo", "key-d": "dora"}
DEADLINE_S, ANSWER_S, RUN_S, RESUME_S = 100.0, 5.0, 50.0, 1000.0
LIMITS = Limits(ANSWER_S, RUN_S, RESUME_S, retry_wait_s=1.0, max_attempts=3)
FIRST, SECOND = bytes(SESSION_BYTES), bytes([1] * SESSION_BYTES)
COIN, OTHER_COIN = bytes([7] * SEED_BYTES), bytes([8] * SEED_BYTES)


WHY = "its own policy refuses the round"
# rounds in which nothing is checked, or dealings, or values
PLAIN: dict[str, Any] = {"method": "bucketed", "uploads": "unverified"}
DEALT: dict[str, Any] = {"method": "bucketed", "uploads": "dealt"}
VALUES: dict[str, Any] = {"method": "trimmed-mean"}
# dealings, and then folds
AUDITED: dict[str, Any] = DEALT | {"security": "malicious"}
# three votes of dealings, and folds of each
VOTES: dict[str, Any] = {"method": "zoom", "encoding": "fixed", "word_bits": 12}
VOTES |= {"fraction_bits": 4}
AUDITED_VOTES: dict[str, Any] = VOTES | {"security": "malicious"}


def params(**changes: Any) -> RoundParams:
    return _params(json.dumps(changes))


@functools.cache
def _params(changes: str) -> RoundParams:
    """Make parameters once: a walk begins many rounds."""
    values: dict[str, Any] = {"dim": 10, "max_clients": 3, "deadline_s": DEADLINE_S}
    given = json.loads(changes)
    return RoundParams.from_dict(values | ({} if "method" in given else PLAIN) | given)


class Here:
    """A round at one server, which takes events; a test can set what it knows."""

    # the fields of clients, by the name of what is known of all
    CLIENTS = {
        **{"here": "uploaded", "there": "uploaded_there", "names": "name", "coins": "coin"},
        **{"dealt_here": "dealt", "passed": "passed"},
    }

    FUNCTIONS = {
        name: function
        for module in (members, step)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and name not in ("replace", "cut", "use", "note")
    }

    def __init__(self, made: ServerRound) -> None:
        self.__dict__["round"] = made

    def __getattr__(self, name: str) -> Any:
        if name in self.FUNCTIONS:
            return functools.partial(self.FUNCTIONS[name], self.round)
        return self.round.known("coin") if name == "coins" else getattr(self.round, name)

    def __setattr__(self, name: str, value: Any) -> None:
        of = self.CLIENTS.get(name)
        if of == "name":
            more = {key: Member(one) for key, one in value.items()}
            self.round_is(members={**more, **self.round.members})
        elif of:
            bare = self.round.with_all(self.round.members, **{of: None})
            made = bare.with_each({key: {of: known} for key, known in value.items()})
            self.__dict__["round"] = made
        else:
            self.round_is(**{name: value})

    def round_is(self, **changes: Any) -> None:
        self.__dict__["round"] = replace(self.round, **changes)

    def handle(self, event: Event, now: float) -> list[Any]:
        self.__dict__["round"], actions = step.step(self.round, event, now)
        return actions

    def copy(self) -> "Here":
        return Here(self.round)

    def restore(self, saved: dict[str, Any]) -> None:
        self.__dict__["round"] = self.round.restored(saved)

    def repeats_upload(self, client: str, digest: bytes) -> bool:
        return members.is_repeated(self.round, self.here.get(client), digest, "upload")

    def repeats_dealing(self, client: str, digest: bytes) -> bool:
        return members.is_repeated(self.round, self.dealt_here.get(client), digest, "dealing")


def a_round(
    party: int,
    state: State | None = None,
    floor: int = 2,
    repeats: tuple[str, ...] = (),
    **changes: Any,
) -> Here:
    asked = Open(ID, 1, params(**changes).to_dict(), bytes(SESSION_BYTES), True, False, START)
    made = ServerRound.asked_for(
        party,
        asked,
        params(**changes),
        NAMES,
        floor,
        LIMITS,
        repeats=frozenset(repeats),
        toss_opening=f"what s{party} opens",
        signing_key=SIGNING[1 - party].public,
    )
    return Here(step.enter(made, state, 0.0) if state else made)


START = "0" * 64
SIGNING = SigningKey.new(), SigningKey.new()


@functools.cache
def receipt(party: int, opened: bytes = b"values") -> Receipt:
    """Return what a server makes of its result."""
    record = Record("securemedian", 1, "default", ID, 1, {}, ["key-a"], {}, bytes(32), opened)
    return Receipt(record.encode()).signed(f"s{party}", SIGNING[party])


MESSAGES: tuple[RoundMessage, ...] = (
    a_round(0).asked,
    Opened(ID, FIRST),
    Resume(ID, FIRST, "open", 0, b"", {}, [], [], [], {}),
    Dealt(ID, "key-a"),
    Uploaded(ID, "key-a", b"?"),
    Check(ID, ["key-a"]),
    Verdicts(ID, ["key-a"], []),
    Close(ID, {"key-a": b"?"}),
    Held(ID, {}),
    Compute(ID, b"?", 1, FIRST, False),
    Ready(ID, 0),
    Done(ID, 0, bytes(64)),
    Again(ID, 1, "closed", "why"),
    Failed(ID, "closed", "why"),
)
OWN: tuple[Event, ...] = (
    OpenAsked(),
    DealingStored("key-a", b"!"),
    Stored("key-a", b"!"),
    Declined("key-a"),
    Turn(SECOND, True),
    Tossed(COIN),
    CheckEnded(["key-a"], []),
    CloseAsked(),
    # as if it were any server's own
    Computed(receipt(0).signed("s1", SIGNING[1])),
    Interrupted("closed", "why"),
    Unlinked("why"),
    Failure("closed", "why"),
    Overdue(),
)


def received(message: RoundMessage) -> RoundMessage:
    """Return a message as the other server takes it from the wire."""
    taken = control.decode(control.encode(message))
    assert isinstance(taken, RoundMessage)
    return taken


@functools.cache
def token(party: int, client: str, coin: bytes) -> bytes:
    """Return what a server vouches for a coin with."""
    return a_round(party).token(client, coin)


def tossed(here: Here, coin: bytes = COIN) -> Tossed:
    """Return what a server gets of a toss for the check that is under way."""
    tokens = (token(1 - here.party, client, coin) for client in here.under_check)
    return Tossed(coin, b"".join(tokens))


def tosses(here: Here) -> bool:
    """Return whether the check that is under way begins with a toss."""
    return here.dealt and not (here.check and here.check.coin) and not here.folding


class Both:
    """Two servers' rounds. Messages are passed at once, and Start is noted.

    A check ends at once, too, unless `slow`; then `finish` ends it. Clients of `wrong` fail it.
    """

    def __init__(
        self,
        floors: tuple[int, int] = (2, 2),
        repeats: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
        wrong: tuple[str, ...] = (),
        slow: bool = False,
        **changes: Any,
    ) -> None:
        self.rounds = [
            a_round(party, None, floors[party], repeats[party], **changes) for party in (0, 1)
        ]
        self.wrong, self.slow = wrong, slow
        self.started: list[int] = []
        # the checked clients, per party
        self.checks: list[list[list[str]]] = [[], []]
        self.feed(0, OpenAsked())

    def feed(self, party: int, event: Event, now: float = 1.0) -> None:
        for action in self.rounds[party].handle(event, now):
            if action is Effect.START:
                self.started.append(party)
            elif action is Effect.CHECK and tosses(self.rounds[party]):
                self.feed(party, tossed(self.rounds[party]), now)
            elif action is Effect.CHECK:
                self.checks[party].append(self.rounds[party].under_check)
                if not self.slow:
                    self.finish(party)
            elif not isinstance(action, Effect):
                self.feed(1 - party, received(action), now)
        if self.rounds[0].awaits_turn(now):
            self.feed(0, Turn(FIRST, False), now)

    def finish(self, party: int, wrong: tuple[str, ...] | None = None) -> None:
        """End the check that is under way at a server."""
        clients = self.checks[party][-1]
        wrong = self.wrong if wrong is None else wrong
        self.feed(party, CheckEnded(clients, [key for key in clients if key in wrong]))

    def deal(self, client: str, *parties: int) -> None:
        for party in parties or (0, 1):
            self.rounds[party].check_dealing(client)
            self.feed(party, DealingStored(client, b"d"))

    def upload(self, client: str, *parties: int, digests: tuple[bytes, bytes] = (b"", b"")) -> None:
        for party in parties or (0, 1):
            self.rounds[party].check_upload(client)
            self.feed(party, Stored(client, digests[party]))

    def send(self, *clients: str) -> None:
        """Deal and upload, as honest clients do."""
        for client in clients:
            self.deal(client)
            self.upload(client, digests=(b"m", b"m"))

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(round_.state for round_ in self.rounds)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("what", ["other values", "another key", "nothing"])
def test_a_result_for_which_the_other_server_does_not_vouch_is_not_published(
    first: int, what: str
) -> None:
    both = Both()
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    wrong = {
        "other values": receipt(1, b"others"),
        "another key": Receipt(receipt(1).encoded).signed("s1", SigningKey.new()),
        "nothing": receipt(1).with_signature("s1", b""),
    }[what]
    for party in (first, 1 - first):
        both.feed(party, Computed(receipt(0) if party == 0 else wrong))
    # S1 may have taken S0's signature for good before S0 sees its own
    assert both.rounds[0].state is State.FAILED and both.rounds[0].code == ReceiptInvalid.code
    assert "vouches for another result" in both.rounds[0].reason
    if what == "other values":
        assert both.rounds[1].state is State.FAILED


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_signs_one_record_of_a_round_also_after_its_restart(party: int) -> None:
    here = a_round(party, State.RUNNING)
    done = here.handle(Computed(receipt(party)), 1.0)
    assert [type(action) for action in done] == [Done]
    here.handle(Again(ID, 0, "timeout", "mine has broken off"), 2.0)
    saved = json.loads(json.dumps(here.saved()))
    for opened, signs in ((b"values", True), (b"others", False)):
        here = a_round(party)
        here.restore(saved)
        here.adrift = False
        here = Here(step.enter(here.round, State.RUNNING, 3.0))
        actions = here.handle(Computed(receipt(party, opened)), 3.0)
        assert (Done in map(type, actions)) is signs
        assert (here.state is State.FAILED) is not signs
    assert "has signed another record" in here.reason


def test_s1_makes_no_more_runs_than_its_own_limit() -> None:
    here = a_round(1, State.OPEN)
    here.here = {"key-a": b"", "key-b": b""}
    here.handle(Close(ID, dict(here.here)), 0.0)
    for attempt in range(1, LIMITS.max_attempts + 1):
        assert Effect.START in here.handle(Compute(ID, here.digest, attempt, FIRST, False), 1.0)
        here.handle(Again(ID, attempt, "timeout", "why"), 1.0)
    here.handle(Compute(ID, here.digest, LIMITS.max_attempts + 1, FIRST, False), 1.0)
    assert here.state is State.FAILED and "max_attempts" in here.reason


@pytest.mark.parametrize("how", ["again", "link", "lost"])
def test_s0_makes_no_more_runs_than_the_limit_however_they_break_off(how: str) -> None:
    """Each run opens values, and S1 may ask for others each time."""
    here = a_round(0, State.QUEUED)
    here.here = here.there = dict.fromkeys(("key-a", "key-b"), b"")
    here.included, here.begun = ["key-a", "key-b"], True
    starts, now = 0, 1.0
    while here.live and starts < 10:
        now += 1000
        here.away_until = now + 1000
        here.handle(Turn(FIRST, False), now)
        if here.state is State.STARTING:
            starts += Effect.START in here.handle(Ready(ID, here.attempt), now)
        if how == "again":
            here.handle(Again(ID, here.attempt, "closed", "mine has broken off"), now)
            continue
        if how == "lost":
            here.handle(Computed(receipt(0)), now)
        here.handle(Unlinked("the link is gone"), now)
        if here.live:
            here.handle(Turn(FIRST, True), now)
            here.handle(Resume(ID, FIRST, "queued", 0, b"", {}, [], [], [], {}), now)
    assert starts == LIMITS.max_attempts == here.attempt
    assert "max_attempts" in here.reason


@pytest.mark.parametrize("party", [0, 1])
def test_values_are_checked_no_more_often_than_the_limit(party: int) -> None:
    """Each check opens verdicts, and the other server may ask something else each time."""
    here = a_round(party, State.OPEN, method="trimmed-mean")
    here.here = here.there = {"key-a": b"", "key-b": b""}
    now = 1.0
    if party == 0:
        here.handle(CloseAsked(), now)
    closed = Held(ID, dict(here.here)) if party == 0 else Close(ID, dict(here.here))
    here.handle(closed, now)
    assert here.state is State.CHECKING
    checks = 0
    while here.live and checks < 10:
        now += 1000
        here.away_until = now + 1000
        event: Event = Turn(FIRST, False) if party == 0 else Check(ID, here.included)
        checks += Effect.CHECK in here.handle(event, now)
        if not here.live:
            break
        here.handle(Unlinked("the link is gone"), now)
        if not here.live:
            break
        if party == 0:
            here.handle(Turn(FIRST, True), now)
        state = "checking"
        here.handle(Resume(ID, FIRST, state, 0, b"", dict(here.here), [], [], [], {}), now)
    assert checks == LIMITS.max_attempts and here.state is State.FAILED


@pytest.mark.parametrize("ended", [False, True])
def test_s1_counts_the_checks_of_values_that_s0_says_are_lost(ended: bool) -> None:
    """S0 asks to go on from before a check that is under way, or has ended here."""
    here = a_round(1, State.OPEN, method="trimmed-mean")
    here.here = here.there = {"key-a": b"", "key-b": b""}
    here.handle(Close(ID, dict(here.here)), 1.0)
    checks = 0
    while here.live and checks < 10:
        checks += Effect.CHECK in here.handle(Check(ID, here.included), 1.0)
        if here.live and ended:
            here.handle(CheckEnded(here.included, []), 1.0)
        if here.live:
            said = Resume(ID, FIRST, "checking", 0, b"", dict(here.here), [], [], [], {})
            here.handle(said, 1.0)
    assert checks == LIMITS.max_attempts and here.state is State.FAILED


def test_s0_lets_nobody_else_in_once_values_are_checked() -> None:
    """S0 could add one client at a time, and see what its verdict changes."""
    for again in (Close, Resume):
        here = a_round(1, State.OPEN, method="mean", max_clients=3)
        here.here = here.there = {"key-a": b"", "key-b": b"", "key-c": b""}
        checks, now = 0, 1.0
        for held in (["key-a", "key-b"], ["key-a", "key-b", "key-c"]):
            told = {key: here.told(b"") for key in held}
            if checks == 0 or again is Close:
                here.handle(Close(ID, told), now)
                # the second one ends the round
                assert here.live is (checks == 0)
            else:
                two = ["key-a", "key-b"]
                here.handle(Resume(ID, FIRST, "checking", 0, b"", told, [], two, [], {}), now)
            left = [key for key in here.included if key not in here.passed] or here.included
            checks += Effect.CHECK in here.handle(Check(ID, left), now)
            if here.live:
                here.handle(CheckEnded(left, []), now)
        # this counts, or ends the round
        assert (checks, here.setbacks) == ((1, 0) if again is Close else (2, 1))
        assert here.live is (again is Resume)


def test_of_both_limits_on_runs_the_smaller_one_counts() -> None:
    here = a_round(0, State.OPENING)
    here.handle(Opened(ID, FIRST, runs=2), 1.0)
    assert here.runs == 2 < LIMITS.max_attempts
    # it may not raise it
    more = a_round(0, State.OPENING)
    more.handle(Opened(ID, FIRST, runs=99), 1.0)
    assert more.runs == LIMITS.max_attempts
    asked = replace(a_round(1).asked, runs=1)
    there = Here(ServerRound.asked_for(1, asked, params(), NAMES, 2, LIMITS))
    (opened,) = [one for one in there.handle(asked, 1.0) if isinstance(one, Opened)]
    assert opened.runs == there.runs == 1
    # and it is that of the round, whatever the files say after a restart
    again = a_round(1)
    again.restore(json.loads(json.dumps(there.saved())))
    assert again.runs == 1


def test_who_counts_is_fixed_before_the_first_run() -> None:
    """S0 names other uploads once the protocol has run at S1: S1 never runs on another set."""
    held = dict.fromkeys(("key-a", "key-b", "key-c"), b"")

    def after_a_run() -> Here:
        here = a_round(1, State.OPEN, max_clients=4)
        here.here = dict(held)
        here.handle(Close(ID, held), 1.0)
        here.handle(Compute(ID, here.digest, 1, FIRST, False), 1.0)
        assert here.state is State.RUNNING and here.included == sorted(held)
        return here

    fewer = {key: b"" for key in ("key-a", "key-b")}
    here = after_a_run()
    here.handle(Again(ID, 1, "closed", "why"), 2.0)
    here.handle(Close(ID, fewer), 2.0)
    assert here.state is State.FAILED and "has run already" in here.reason
    for broken in (Again(ID, 1, "closed", "why"), Unlinked("gone")):
        here = after_a_run()
        here.handle(broken, 2.0)
        here.handle(Resume(ID, SECOND, "queued", 1, b"", fewer, [], [], [], {}), 2.0)
        assert here.included == sorted(held)
        other = a_round(1, State.QUEUED, max_clients=4)
        other.included = sorted(fewer)
        here.handle(Compute(ID, other.digest, 2, SECOND, True), 2.0)
        assert here.state is State.FAILED and here.code == ParametersDiffer.code


@pytest.mark.parametrize("state", [State.QUEUED, State.STARTING, State.RUNNING])
def test_s1_cannot_change_who_counts_once_s0_has_chosen(state: State) -> None:
    here = a_round(0, state, max_clients=4)
    here.here = here.there = dict.fromkeys(("key-a", "key-b", "key-c"), b"")
    here.included, here.ran = ["key-a", "key-b", "key-c"], True
    with suppress(PeerProtocolError):
        here.handle(Held(ID, {"key-a": b"", "key-b": b""}), 1.0)
    here.handle(Unlinked("gone"), 1.0)
    here.handle(Turn(SECOND, True), 1e6)
    here.handle(Resume(ID, SECOND, "queued", 0, b"", {"key-a": b""}, [], [], [], {}), 1e6)
    assert here.included == ["key-a", "key-b", "key-c"]


@pytest.mark.parametrize("kind", [PLAIN, DEALT], ids=["upload", "dealing"])
def test_the_servers_agree_on_who_is_excluded_and_why(kind: dict[str, Any]) -> None:
    both = Both(max_clients=4, **kind)
    # each has a client on its list that the other one does not know
    for party, stranger in ((0, "key-x"), (1, "key-y")):
        both.rounds[party].names = NAMES | {stranger: "somebody"}
    places = {"key-a": (0, 1), "key-b": (0, 1), "key-c": (0,), "key-x": (0,), "key-y": (1,)}
    for client, parties in places.items():
        if kind is DEALT:
            both.deal(client, *parties)
        both.upload(client, *parties)
    both.feed(0, CloseAsked())
    assert both.states == (State.RUNNING, State.RUNNING)
    what = "dealing" if kind is DEALT else "upload"
    expected = {
        f"its {what} reached only s0": ["key-c", "key-x"],
        f"its {what} reached only s1": ["key-y"],
    }
    assert both.rounds[0].excluded == both.rounds[1].excluded == expected
    where = {"anna": "both", "ben": "both", "cleo": "here", "dora": "none", "somebody": "here"}
    assert both.rounds[0].whereabouts() == where
    assert both.rounds[1].left_out["cleo"] == f"its {what} reached only s0"


@pytest.mark.parametrize("floors", [(2, 2), (4, 2), (2, 4)])
def test_each_server_refuses_too_few_clients_on_its_own_account(floors: tuple[int, int]) -> None:
    both = Both(floors=floors, max_clients=4, min_clients=2 if max(floors) > 2 else 4)
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    both.feed(0, CloseAsked())
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    assert {round_.code for round_ in both.rounds} == {"too-few-clients"}
    assert {round_.opened for round_ in both.rounds} == {"nothing"}
    assert "3 complete uploads" in both.rounds[0].reason and "at least 4" in both.rounds[0].reason


def test_s1_refuses_a_digest_that_is_not_its_own() -> None:
    both = Both()
    both.rounds[0].params = params(buckets=9)
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    assert both.rounds[0].code == ParametersDiffer.code
    digests = {a_round(0).digest, a_round(0, buckets=9).digest}
    number = a_round(0)
    number.asked = Open("2-0000000a", 2, {}, bytes(SESSION_BYTES), True, False, START)
    included = a_round(0)
    included.included = ["key-a"]
    some = a_round(0)
    some.asked = replace(some.asked, participants=sorted(NAMES))
    failed = a_round(0)
    failed.passed = {"key-a": False}
    assert len(digests | {number.digest, included.digest, some.digest, failed.digest}) == 6


def test_clients_beyond_the_most_are_cut_alike_at_both() -> None:
    both = Both(max_clients=2)
    leader, follower = both.rounds
    # the reports of S1 still on their way
    leader.here = dict.fromkeys(("key-a", "key-b", "key-c"), b"")
    follower.here = dict(leader.here)
    both.feed(0, CloseAsked())
    assert leader.included == follower.included == ["key-a", "key-b"]
    assert "max_clients" in leader.left_out["cleo"] and leader.left_out == follower.left_out


def test_uploads_are_refused_twice_and_out_of_time() -> None:
    both = Both()
    both.upload("key-a")
    assert both.rounds[0].repeats_upload("key-a", b"")
    assert not both.rounds[0].repeats_upload("key-b", b"")
    with pytest.raises(DuplicateUpload):
        both.rounds[0].repeats_upload("key-a", b"another")
    dealt = Both(**DEALT)
    dealt.deal("key-a", 0)
    assert dealt.rounds[0].repeats_dealing("key-a", b"d")
    with pytest.raises(DuplicateUpload):
        dealt.rounds[0].repeats_dealing("key-a", b"another")
    with pytest.raises(BadUpload, match="deal before you upload"):
        dealt.rounds[1].check_upload("key-a")
    with pytest.raises(BadUpload, match="clients do not deal"):
        both.rounds[0].check_dealing("key-d")
    for state in set(State) - {State.OPEN}:
        with pytest.raises(RoundClosed, match=state):
            a_round(0, state).check_upload("key-b")
        with pytest.raises(RoundClosed, match=state):
            a_round(0, state).check_close()
        with pytest.raises(RoundClosed, match="takes no dealings"):
            a_round(0, state, **DEALT).check_dealing("key-b")


def test_who_has_declined_sends_nothing_and_who_has_sent_does_not_decline() -> None:
    both = Both(max_clients=4, **DEALT)
    # a repeated request changes nothing, nor does a restart
    for _ in range(2):
        both.feed(0, Declined("key-a"))
    again = a_round(0, max_clients=4, **DEALT)
    again.restore(json.loads(json.dumps(both.rounds[0].saved())))
    assert again.left_out == both.rounds[0].left_out == {"anna": WHY}
    assert again.declined == both.rounds[0].declined == {"key-a": "policy"}
    for check in (both.rounds[0].check_dealing, both.rounds[0].check_upload):
        with pytest.raises(NotAllowed, match=WHY):
            check("key-a")
    both.send("key-b")
    with pytest.raises(RoundClosed, match="your upload is stored"):
        both.rounds[0].check_decline("key-b")
    with pytest.raises(NotAllowed):
        both.rounds[0].check_decline("key-x")
    for state in set(State) - {State.OPEN}:
        with pytest.raises(RoundClosed, match=f"is {state}, and"):
            a_round(0, state).check_decline("key-a")


def test_an_upload_at_one_server_is_what_counts_of_a_client_that_declines_at_the_other() -> None:
    both = Both(max_clients=4)
    for client in ("key-a", "key-b"):
        both.upload(client)
    both.upload("key-c", 1)
    both.feed(0, Declined("key-c"))
    both.feed(0, CloseAsked())
    assert both.states == (State.RUNNING, State.RUNNING)
    expected = {"its upload reached only s1": ["key-c"]}
    assert both.rounds[0].excluded == both.rounds[1].excluded == expected


def test_the_deadline_closes_at_s0_and_every_other_limit_fails() -> None:
    leader = a_round(0)
    leader.handle(OpenAsked(), 0.0)
    assert leader.deadline == ANSWER_S
    leader.handle(Opened(ID, FIRST), 2.0)
    assert leader.deadline == 2.0 + DEADLINE_S
    assert leader.handle(Overdue(), 200.0)[-1] == Close(ID, {})
    assert leader.deadline == 200.0 + ANSWER_S
    # S1 leaves the lead to S0, and only does not wait for ever
    assert a_round(1, State.OPEN).deadline == DEADLINE_S + RESUME_S
    assert a_round(1, State.QUEUED).deadline == a_round(1, State.CHECKING).deadline == RESUME_S
    assert a_round(0, State.STARTING).deadline == ANSWER_S
    assert a_round(0, State.RUNNING).deadline == a_round(1, State.RUNNING).deadline == RUN_S


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("party", (0, 1))
def test_a_limit_that_is_reached_is_no_end_until_it_has_been_reached_too_often(
    party: int, state: State
) -> None:
    if (state, Overdue) not in TABLE[party] or (party, state) == (0, State.OPEN):
        return
    overdue = a_round(party, state)
    overdue.handle(Overdue(), 300.0)
    voting = state is State.VOTING
    if state is State.OPENING or voting or (party == 1 and state is not State.RUNNING):
        assert overdue.state is State.FAILED and overdue.deadline == float("inf")
        return
    assert overdue.live
    overdue = a_round(party, state)
    overdue.setbacks = LIMITS.max_attempts - 1
    if state is State.QUEUED:
        overdue.adrift = overdue.resuming = True
    failed = overdue.handle(Overdue(), 300.0)[-1]
    if party == 0:
        assert isinstance(failed, Failed) and failed.code == "timeout"
        assert overdue.state is State.FAILED and state in overdue.reason
        assert "for good" in overdue.reason and "3 times" in overdue.reason


# Bytes that release 1.0 said and stored, too

PINNED = {
    "plain": "93b5a02b0852c10791a4a08d363c305eada44e51815c7b62e1debf76dc000609",
    "dealt": "8bd38afee8404cff3c76887f409ea766aa8d4293773253f7b226e86f9a5c7712",
    "values": "12b0496468efa532d0d8936bf61a03bc1b7bd87cfa2033e92d94834739299ae6",
    # of release 1.1, which has this `security` instead of `audit`, and counts sessions
    "audited": "74e9e0f6b8102e4f643ac1e0ec6c24ec1016f0f580d754283f2b487a7f539b7f",
}


@pytest.mark.parametrize("kind", PINNED)
def test_messages_and_saved_values_stay_byte_for_byte(kind: str) -> None:
    """Pin a round to its run, a broken link, another run and its result, at both servers."""
    changes = {"plain": PLAIN, "dealt": DEALT, "values": VALUES, "audited": AUDITED}[kind]
    said = hashlib.sha256()

    class Heard(Both):
        def feed(self, party: int, event: Event, now: float = 1.0) -> None:
            if isinstance(event, RoundMessage):
                parts = [bytes(part) for part in control.encode(event)]
                said.update(b"".join([bytes([party]), *parts]))
            super().feed(party, event, now)

    both = Heard(max_clients=4, wrong=("key-c",), **changes)
    for client in ("key-a", "key-b", "key-c"):
        if both.rounds[0].dealt:
            both.deal(client)
        if kind in ("plain", "values") or client != "key-c":
            both.upload(client, digests=(b"m", b"m"))
    both.feed(0, Declined("key-d"))
    for party in (1, 0):
        both.feed(party, Unlinked("gone"), 2.0)
    both.feed(0, Turn(SECOND, True), 90.0)
    for here in both.rounds:
        here.round_is(noise_secret="ab")
        ours = here.token("key-a", COIN), here.digest, None, here.noise
        kept = json.dumps(here.saved(), sort_keys=True).encode(), repr(ours).encode()
        said.update(b"".join(kept) + ",".join(here.saved()).encode())
    assert said.hexdigest() == PINNED[kind]


def test_sessions_of_an_audited_round_are_few_whatever_ends_them() -> None:
    """Count them over restarts, too."""
    both, most = Both(max_clients=4, **AUDITED), SESSIONS + LIMITS.max_attempts

    def again() -> None:
        for party in (1, 0):
            both.feed(party, Unlinked("gone"), 2.0)

    for number in range(2, most + 1):
        again()
        assert [here.sessions for here in both.rounds] == [number] * 2
        for here in both.rounds:
            new = a_round(here.party, max_clients=4, **AUDITED)
            new.restore(json.loads(json.dumps(here.saved())))
            assert new.sessions == number
    assert both.states == (State.OPEN, State.OPEN)
    again()
    assert both.states == (State.FAILED, State.FAILED)
    assert any(f"{most} sessions of the servers have ended" in one.reason for one in both.rounds)


# Checks


def test_different_uploads_at_the_two_servers_are_left_out() -> None:
    both = Both(max_clients=4, **DEALT)
    both.send("key-a", "key-b")
    both.deal("key-c")
    both.upload("key-c", digests=(b"m", b"other"))
    assert both.states == (State.OPEN, State.OPEN)
    # nobody waits for it either
    both.send("key-d")
    assert both.states == (State.RUNNING, State.RUNNING)
    for here in both.rounds:
        assert here.left_out == {"cleo": "it sent different uploads to the two servers"}


def test_below_the_fewest_clients_a_round_fails_with_all_reasons() -> None:
    both = Both(wrong=("key-b", "key-c"), max_clients=4, **DEALT)
    both.send("key-a")
    both.deal("key-b")
    both.deal("key-c")
    # nobody else can come
    both.feed(0, Declined("key-d"))
    assert both.states == (State.FAILED, State.FAILED)
    for here in both.rounds:
        assert "1 complete upload, " in here.reason and "at least 2" in here.reason
    assert f"dora: {WHY}" in both.rounds[0].reason
    for here in both.rounds:
        assert "ben, cleo: its dealing failed the check" in here.reason


@pytest.mark.parametrize("kind", [DEALT, {"method": "pairwise"}])
@pytest.mark.parametrize("wrong", [(), ("key-d",)])
def test_the_weight_cap_holds_for_those_who_remain(
    kind: dict[str, Any], wrong: tuple[str, ...]
) -> None:
    """A weight of 3 in 10 is within it, and one of 3 in 8 is not."""
    weights = {"key-a": 3, "key-b": 3, "key-c": 2, "key-d": 2}
    both = Both(wrong=wrong, max_clients=4, weights=weights, **kind)
    for client in NAMES:
        if both.rounds[0].dealt:
            both.deal(client)
        if not both.rounds[0].dealt or client not in wrong:
            both.upload(client)
    if not wrong:
        assert both.states == (State.RUNNING, State.RUNNING)
        return
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    for here in both.rounds:
        assert (
            here.code == ConfigError.code
            and "more than a third of all who take part" in here.reason
        )
        assert here.opened == "nothing"


@pytest.mark.parametrize("kind", [DEALT, {"method": "pairwise"}])
def test_those_who_remain_must_count_as_enough_by_their_weights(kind: dict[str, Any]) -> None:
    """Weights of 2, 2, 1 and 1 count as 3.6 clients, and the round asks for 4."""
    weights = {"key-a": 10, "key-b": 10, "key-c": 1, "key-d": 1}
    both = Both(max_clients=4, min_clients=4, weights=weights, **kind)
    for client in NAMES:
        if both.rounds[0].dealt:
            both.deal(client)
        both.upload(client)
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    for here in both.rounds:
        assert here.code == "too-few-clients" and "as 3.6 of equal weight" in here.reason
        assert here.opened == "nothing"


def test_s1_checks_and_runs_only_what_it_may() -> None:
    def fails(here: Here, message: RoundMessage, code: str) -> None:
        actions = here.handle(message, 1.0)
        assert here.state is State.FAILED and here.code == code
        assert Effect.CHECK not in actions and Effect.START not in actions

    for kind in (PLAIN, DEALT, VALUES):
        here = a_round(1, State.OPEN, **kind)
        here.here = {"key-a": b""}
        # values are fixed once the round is closed, and the dealing is not here
        fails(here, Check(ID, ["key-a"]), "peer-protocol")
    here = a_round(1, State.OPEN, **DEALT)
    here.dealt_here |= {"key-a": b"", "key-b": b""}
    assert here.handle(Check(ID, ["key-a"]), 1.0) == [Effect.CHECK]
    here.handle(tossed(here), 1.0)
    # one at a time
    fails(here.copy(), Check(ID, ["key-b"]), "peer-protocol")
    here.handle(CheckEnded(["key-a"], []), 1.0)
    # and each once
    fails(here.copy(), Check(ID, ["key-a", "key-b"]), "peer-protocol")
    here.here = {"key-a": b"m", "key-b": b"m"}
    here.handle(Close(ID, dict(here.here)), 1.0)
    assert here.included == ["key-a", "key-b"]
    fails(here.copy(), Compute(ID, here.digest, 1, FIRST, False), "peer-protocol")
    here.handle(Check(ID, ["key-b"]), 1.0)
    here.handle(CheckEnded(["key-b"], []), 1.0)
    run = Compute(ID, here.digest, 1, FIRST, False)
    assert Effect.START in here.handle(run, 1.0)
    here.handle(Again(ID, 1, "timeout", "why"), 1.0)
    # each run once
    fails(here, run, "peer-protocol")


def test_a_dealing_is_checked_under_one_coin_only() -> None:
    """Two permutations would tell how an honest client's values differ."""
    here = a_round(1, State.OPEN, **DEALT)
    here.dealt_here |= {"key-a": b"", "key-b": b""}
    here.handle(Check(ID, ["key-a"]), 1.0)
    assert here.handle(tossed(here), 1.0) == [Effect.CHECK] and here.coins == {"key-a": COIN}
    # it breaks off before there are verdicts
    here.handle(Interrupted("timeout", "why"), 1.0)
    said = Resume(ID, SECOND, "open", 0, b"", {}, ["key-a", "key-b"], [], [], {})
    answer = here.handle(said, 1.0)[-1]
    known = COIN + token(0, "key-a", COIN)
    assert isinstance(answer, Resume) and answer.coins == {"key-a": known}
    for clients, coin in (
        (["key-a"], OTHER_COIN),
        # this would toss once more
        (["key-a"], b""),
        (["key-a", "key-b"], b""),
    ):
        there = here.copy()
        actions = there.handle(Check(ID, clients, coin), 1.0)
        assert there.state is State.FAILED and there.code == "peer-protocol"
        assert Effect.CHECK not in actions
    assert here.handle(Check(ID, ["key-a"], COIN), 1.0) == [Effect.CHECK]
    # S0 takes over what S1 has stored, and asks for the others apart
    leader = a_round(0, State.OPEN, **DEALT)
    leader.dealt_here |= {"key-a": b"", "key-b": b""}
    leader.handle(Unlinked("why"), 1.0)
    leader.handle(Turn(SECOND, True), 10.0)
    leader.handle(replace(answer, session=SECOND), 10.0)
    turn = Turn(SECOND, False)
    assert leader.handle(turn, 10.0) == [Check(ID, ["key-a"], COIN), Effect.CHECK]
    leader.handle(CheckEnded(["key-a"], []), 10.0)
    assert leader.handle(Verdicts(ID, ["key-a"], []), 10.0) == []
    assert leader.handle(turn, 10.0) == [Check(ID, ["key-b"]), Effect.CHECK]
    # and if both have one, it must be the same
    leader.coins = leader.coins | {"key-a": OTHER_COIN}
    leader.handle(Unlinked("why"), 20.0)
    leader.handle(Turn(FIRST, True), 30.0)
    leader.handle(replace(answer, session=FIRST), 30.0)
    assert leader.state is State.FAILED and "tossed differently" in leader.reason


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_server_takes_no_coin_that_it_has_not_tossed(party: int, restarted: bool) -> None:
    """The other one could choose one that suits a client that helps it."""

    def told(tokens: bytes, coin: bytes = COIN) -> Here:
        here = a_round(party, State.OPEN, **DEALT)
        here.dealt_here |= {"key-a": b""}
        if restarted:
            opening = here.saved()
            here = a_round(party, State.OPEN, **DEALT)
            here.restore(json.loads(json.dumps(opening)))
            here.dealt_here |= {"key-a": b""}
        here.handle(Unlinked("why"), 1.0)
        if party == 0:
            here.handle(Turn(SECOND, True), 10.0)
        coins = {"key-a": coin + tokens}
        here.handle(Resume(ID, SECOND, "open", 0, b"", {}, ["key-a"], [], [], coins), 10.0)
        return here

    own = token(party, "key-a", COIN)
    assert told(own).coins == {"key-a": COIN}
    for forged in (bytes(32), token(1 - party, "key-a", COIN), token(party, "key-b", COIN)):
        assert told(forged).state is State.FAILED
        assert told(forged).reason == f"s{1 - party} names a coin that s{party} has not tossed"
    assert told(own, OTHER_COIN).state is State.FAILED
    if party == 1:
        # nor does it take one without being asked to go on
        here = told(own)
        here.dealt_here |= {"key-b": b""}
        here.handle(Check(ID, ["key-b"], COIN), 11.0)
        assert here.state is State.FAILED and "cannot be checked" in here.reason


@pytest.mark.parametrize(
    "message",
    [
        Verdicts(ID, ["key-b"], []),
        Verdicts(ID, ["key-a", "key-b"], []),
        Verdicts(ID, ["key-a"], ["key-a"]),
    ],
)
@pytest.mark.parametrize("state", [State.OPEN, State.CLOSING, State.CHECKING])
def test_s0_takes_only_the_verdicts_that_it_has_itself(state: State, message: Verdicts) -> None:
    here = a_round(0, state, **DEALT)
    here.check = ChecksNow(["key-a"])
    here.handle(CheckEnded(["key-a"], []), 1.0)
    # a round of no uploads would fail for another reason
    here.code = ""
    here.state = state
    here.handle(message, 1.0)
    assert here.state is State.FAILED and here.code == "peer-protocol" and not here.passed


@pytest.mark.parametrize("state", [State.OPEN, State.CLOSING, State.CHECKING])
def test_s0_takes_verdicts_of_s1_once_and_when_it_has_asked_for_them(state: State) -> None:
    for under_check in ([], ["key-a"]):
        here = a_round(0, state, **DEALT)
        here.check = ChecksNow(under_check) if under_check else None
        for _ in (*under_check, "once more"):
            here.handle(Verdicts(ID, ["key-a"], []), 1.0)
            # a round of no uploads would fail for another reason
            here.state = state if here.code != "peer-protocol" else here.state
        assert here.state is State.FAILED and here.code == "peer-protocol" and not here.passed


def test_s1_does_not_run_the_protocol_while_it_checks() -> None:
    here = a_round(1, State.OPEN, **DEALT)
    here.dealt_here |= dict.fromkeys(NAMES, b"")
    here.handle(Check(ID, ["key-a", "key-b"]), 1.0)
    here.handle(CheckEnded(["key-a", "key-b"], []), 1.0)
    here.handle(Check(ID, ["key-c"]), 1.0)
    here.handle(Close(ID, {"key-a": b"m", "key-b": b"m"}), 1.0)
    here.included = ["key-a", "key-b"]
    actions = here.handle(Compute(ID, here.digest, 1, FIRST, False), 1.0)
    assert here.state is State.FAILED and here.code == "peer-protocol"
    assert Effect.START not in actions


# The table itself


def test_every_pair_is_a_transition_or_late_or_refused_and_nothing_else() -> None:
    """Check that a refused event changes nothing, too."""
    seen = {"transition": 0, "late": 0, "refused": 0}
    kinds = PLAIN, DEALT, VALUES, AUDITED, VOTES
    every = itertools.product(kinds, (0, 1), State, MESSAGES + OWN)
    for kind, party, state, event in every:
        pair, here = (state, type(event)), a_round(party, state, **kind)
        before = here.round
        if pair in LATE[party]:
            assert pair not in TABLE[party]
            assert here.handle(event, 1.0) == [] and here.round == before
            assert LATE[party][pair]
            seen["late"] += 1
        elif party == 0 and isinstance(event, Resume) and here.live:
            # S1 answers what it was not asked
            assert here.handle(event, 1.0) == [] and here.round == before
            seen["late"] += 1
        elif pair in TABLE[party]:
            *conditional, last = TABLE[party][pair]
            assert last.when is always and all(line.when is not always for line in conditional)
            here.handle(event, 1.0)
            assert here.state in {line.to for line in TABLE[party][pair]}
            seen["transition"] += 1
        else:
            kind = PeerProtocolError if isinstance(event, RoundMessage) else LocalProtocolError
            with pytest.raises(kind, match=f"while round {ID} is {state}"):
                here.handle(event, 1.0)
            assert here.round == before
            seen["refused"] += 1
    pairs = 2 * len(State) * len(MESSAGES + OWN)
    assert sum(seen.values()) == len(kinds) * pairs and min(seen.values()) > 30


def test_all_messages_and_events_are_in_the_table() -> None:
    kinds = {type(event) for event in MESSAGES + OWN}
    assert kinds == {event for table in TABLE for _, event in table}
    assert set(State) == {state for table in TABLE for state, _ in table} | {
        State.PUBLISHED,
        State.FAILED,
    }


def test_a_state_that_is_entered_is_logged_and_an_ended_round_keeps_no_uploads() -> None:
    for table in TABLE:
        for (state, _), lines in table.items():
            for line in lines:
                assert (Effect.LOG in line.actions) == (line.to is not state)
                ended = line.to in (State.PUBLISHED, State.FAILED) and line.to is not state
                assert (Effect.DROP_UPLOADS in line.actions) == ended
                if ended:
                    dropped = Effect.DROP_SESSION in line.actions
                    assert dropped == (line.to is State.FAILED)
                starts = line.to is State.RUNNING and state is not State.RUNNING
                assert (Effect.BIND in line.actions) == starts
                # a server stores its memory before anything can be opened
                if starts:
                    assert line.actions.index(Effect.BIND) < line.actions.index(Effect.START)


def test_what_broke_off_never_goes_on_in_its_session() -> None:
    for table in TABLE:
        for (state, event), lines in table.items():
            for line in lines:
                if line.to is State.QUEUED and state in (State.STARTING, State.RUNNING):
                    # at S0 it was dropped when the round drifted
                    resumed = event is Resume and table is TABLE[0]
                    assert resumed or Effect.DROP_SESSION in line.actions


@dataclass(frozen=True)
class Scenario:
    """The events that two honest servers meet in a walk."""

    kind: dict[str, Any]
    # the clients that send something during the walk, and those that have sent all before it
    clients: tuple[str, ...]
    sent: tuple[str, ...] = ()
    # those that deal during the walk, and then send nothing
    dealers: tuple[str, ...] = ()
    # those whose own policies may refuse the round, unless the server has their upload
    decliners: tuple[str, ...] = ()
    # those who fail a check, and those who send the servers different uploads
    wrong: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()
    # those whose folds do not come
    silent: tuple[str, ...] = ()
    # those whose later votes differ at the two servers
    fickle: tuple[str, ...] = ()
    # whether the round may fail at any time
    failures: bool = False
    # how often what is under way may break off, and how often the link or a server may
    breaks: int = 0
    crashes: int = 0
    # whether the next time is one too many, and whether the second session is
    spent: bool = False
    tired: bool = False


class Hello_:
    """In a queue: from here on the sender is another instance."""


class Walk:
    """Two honest servers and what is on its way between them.

    A server's stored state survives its crash: everything that `step` has changed, and none of the
    actions. With the crash everything is lost that was on its way to it.
    """

    # S1 does not let the round in, and knows nothing of it afterwards
    NO = Failure("bad-config", "no")

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rounds = [a_round(party, max_clients=2, **scenario.kind) for party in (0, 1)]
        for here in self.rounds:
            for client in scenario.sent:
                sent = {"uploaded": b"m", "uploaded_there": here.told(b"m")}
                dealt = {"dealt": b"d", "dealt_there": True} if here.dealt else {}
                # the check of dealings has walks of its own
                dealt |= {"passed": True} if here.votes > 1 else {}
                here.round_is(members=here.with_all([client], **sent, **dealt).members)
            here.setbacks = (LIMITS.max_attempts - 1) * scenario.spent
            here.sessions = (SESSIONS + LIMITS.max_attempts - 1) * scenario.tired
        # the lines that an `Unlinked` has taken on the way here
        self.unlinked: list[tuple[int, Any, Transition]] = []
        # to S0 and to S1
        self.queues: list[list[RoundMessage | Hello_]] = [[], []]
        # whether a check is being made at each
        self.busy = [False, False]
        self.breaks, self.crashes = scenario.breaks, scenario.crashes
        # how many sessions there have been, and which each server has ready
        self.sessions = 1
        self.prepared: list[bytes | None] = [None, None]
        # under which coins a client's dealing was opened, in which sessions a server has run the
        # protocol, and on whom either has
        self.opened: frozenset[tuple[str, bytes]] = frozenset()
        self.runs: frozenset[tuple[int, bytes, int]] = frozenset()
        self.included: frozenset[tuple[str, ...]] = frozenset()
        # of how many votes any client may have been told the digits
        self.told = 0
        # in which session each server has compared the folds of whom
        self.folded: list[tuple[bytes | None, list[str]]] = [(None, []), (None, [])]
        # how many sessions of an audited round each has begun, and whether it has material
        self.began = [here.sessions for here in self.rounds]
        self.material = [False, False]

    def key(self) -> Any:
        rounds = [
            (
                here.state,
                here.adrift,
                here.resuming,
                here.session,
                here.setbacks,
                here.sessions,
                here.attempt,
                here.level,
                tuple(here.here.items()),
                tuple(here.there.items()),
                frozenset(here.dealt_here),
                frozenset(here.dealt_there),
                str(here.check),
                here.check and here.check.coin,
                tuple(here.known("coin").items()),
                frozenset(here.passed),
                frozenset(here.failed),
                frozenset(here.declined),
                tuple(here.folded),
                tuple(here.unfolded),
                tuple(here.included),
                here.computed_here,
                here.computed_there,
            )
            for here in (one.round for one in self.rounds)
        ]
        queues = [[(type(m), *map(str, vars(m).values())) for m in queue] for queue in self.queues]
        more = (
            tuple(self.prepared),
            self.breaks,
            self.crashes,
            self.opened,
            self.runs,
            self.included,
            self.told,
        )
        return tuple(rounds), tuple(map(tuple, queues)), tuple(self.busy), more

    def copy(self) -> "Walk":
        made = copy.copy(self)
        made.rounds = [here.copy() for here in self.rounds]
        made.queues = [list(queue) for queue in self.queues]
        made.busy, made.prepared = list(self.busy), list(self.prepared)
        made.folded = list(self.folded)
        made.began, made.material = list(self.began), list(self.material)
        return made

    def _begin(self, party: int) -> None:
        """Begin a session of an audited round. SECURITY: all are counted, and are few."""
        here = self.rounds[party]
        self.began[party] += 1
        most = SESSIONS + here.runs + here.votes - 1
        assert not here.audited or self.began[party] <= here.sessions <= most

    def events(self) -> Iterator[tuple[int, Event | Hello_]]:
        """Yield what may happen next at either server."""
        for party, here in enumerate(self.rounds):
            if self.queues[party]:
                yield party, self.queues[party][0]
            if here.state is State.NEW:
                yield party, OpenAsked() if party == 0 else self.NO
            for client in self.scenario.clients:
                if here.state is not State.OPEN or client in {*here.here, *here.declined}:
                    continue
                if here.dealt and client not in here.dealt_here:
                    yield party, DealingStored(client, b"d")
                elif client not in here.failed:
                    own = client in self.scenario.differ
                    yield party, Stored(client, b"m%d" % party if own else b"m")
            for client in self.scenario.dealers:
                if here.state is State.OPEN and client not in here.dealt_here:
                    yield party, DealingStored(client, b"d")
            for client in self.scenario.decliners:
                if here.state is State.OPEN and client not in {*here.declined, *here.here}:
                    yield party, Declined(client)
            for client in here.included if here.state is State.VOTING else ():
                if client in self.scenario.decliners:
                    yield party, Declined(client)
                if client not in here.here:
                    at = party if client in self.scenario.fickle else 0
                    yield party, Stored(client, b"v%d %d" % (here.level, at))
            if party == 0 and here.state is State.OPEN:
                yield party, CloseAsked()
            if party == 0 and here.awaits_turn(float("inf")):
                new = bytes([self.sessions] * SESSION_BYTES)
                kept = self.prepared[0]
                yield party, Turn(kept, False) if kept else Turn(new, True)
            if self.busy[party] and tosses(here):
                yield party, tossed(here, here.session)
            elif self.busy[party]:
                clients = list(here.under_check)
                out = self.scenario.silent if here.folding else self.scenario.wrong
                failed = [key for key in clients if key in out]
                yield party, CheckEnded(clients, failed, failed if here.folding else [])
            if here.state is State.RUNNING and not here.computed_here:
                yield party, Computed(receipt(party, b"digits of %d" % here.level))
            if here.live and self.breaks:
                yield party, Interrupted("closed", "why")
                waits = here.adrift and not here.resuming if party == 0 else here.computed_here
                leads = party == 0 or here.state is State.RUNNING
                away = self.scenario.failures or (leads and not waits)
                away &= here.state is not State.VOTING or self.scenario.failures
                if (here.state, Overdue) in TABLE[party] and away:
                    yield party, Overdue()
            if here.live and self.scenario.failures:
                yield party, Failure("closed", "why")

    def happen(self, party: int, event: Event | Hello_, dies: bool = False) -> None:
        """Let an event happen. If the server `dies`, that is after it has stored the change."""
        if event is self.NO:
            if self.queues[1] and isinstance(self.queues[1][0], Open):
                self.queues[1].pop(0)
                self.queues[0].append(Failed(ID, "bad-config", "no"))
                self.rounds[1].state = State.FAILED
            return
        here = self.rounds[party]
        if isinstance(event, Hello_):
            self.queues[party].pop(0)
            self._unlink(party)
            return
        if isinstance(event, RoundMessage):
            self.queues[party].pop(0)
            if here.state is State.NEW and not isinstance(event, Open):
                # S1 does not know the round
                if isinstance(event, Resume):
                    self.queues[0].append(Failed(ID, "unknown-round", "no"))
                return
        elif isinstance(event, CheckEnded):
            self.busy[party] = False
            if here.folding and not event.failed:
                self.folded[party] = self.prepared[party], event.clients
        elif isinstance(event, Interrupted | Overdue):
            self.breaks -= 1
        elif isinstance(event, Turn):
            self.sessions += event.new_session
        actions = here.handle(event, 1.0)
        if here.state is State.VOTING:
            # SECURITY: nobody is told other digits than those of both, and none of a set in between
            assert here.path == (b"digits of %d" % (here.level - 1)).hex()
            self.told = max(self.told, here.level)
        if dies:
            self.crash(party)
            return
        for action in actions:
            if action is Effect.CHECK:
                # one check at a time
                assert not self.busy[party] or isinstance(event, Tossed)
                if self.prepared[party] != here.session:
                    self.happen(party, Interrupted("closed", "no such session"))
                    self.breaks += 1
                    return
                self.busy[party] = True
                if here.folding:
                    if not self.material[party]:
                        self._begin(party)
                    self.material[party] = False
                coin = here.check.coin
                self.opened |= {(key, coin) for key in here.under_check if coin}
            elif action is Effect.PREPARE:
                self.prepared[party], self.material[party] = here.session, True
                self._begin(party)
            elif action is Effect.START:
                if not here.new_session and self.prepared[party] != here.session:
                    self.happen(party, Interrupted("closed", "no such session"))
                    self.breaks += 1
                    return
                self.prepared[party] = here.session
                assert (party, here.session, here.level) not in self.runs
                # SECURITY: a vote whose digits anybody was told is never run again
                assert self.told <= here.level and set(here.here) >= set(here.included)
                self.runs |= {(party, here.session, here.level)}
                self.included |= {tuple(here.included)}
                # SECURITY: nothing is opened of what the servers are not bound to
                if here.audited:
                    assert self.folded[party] == (here.session, here.included)
            elif action is Effect.DROP_SESSION:
                self.busy[party], self.prepared[party] = False, None
                self.material[party] = False
            elif not isinstance(action, Effect):
                self.queues[1 - party].append(action)

    def crash(self, party: int) -> None:
        """Start a server again, from what it has stored."""
        self.crashes -= 1
        self.busy[party], self.prepared[party] = False, None
        self.material[party] = False
        self.queues[party] = []
        self.queues[1 - party].append(Hello_())
        old = self.rounds[party]
        if old.state is State.NEW:
            return
        new = self.rounds[party] = a_round(party, max_clients=2, **self.scenario.kind)
        new.restore(json.loads(json.dumps(old.saved())))
        # the file of the result has it
        new.receipt = old.receipt
        if old.live:
            rows = "dealt", "uploaded", "coin", "token", "passed"
            for key, member in old.members.items():
                kept = {name: getattr(member, name) for name in rows}
                new.round_is(members=new.with_all([key], **kept).members)
        self._unlink(party)

    def cut(self) -> None:
        """Break the link, and lose what is on its way."""
        self.crashes -= 1
        self.queues = [[Hello_()], [Hello_()]]

    def _unlink(self, party: int) -> None:
        here = self.rounds[party]
        if here.live:
            self.busy[party], self.prepared[party] = False, None
            pair = here.state, Unlinked
            actions = here.handle(Unlinked("why"), 1.0)
            lines = TABLE[party][pair]
            self.unlinked = [(party, pair, line) for line in lines if line.to is here.state]
            self.queues[1 - party] += [one for one in actions if not isinstance(one, Effect)]
        # S0 says once more how a round has ended
        if told := here.told_again():
            self.queues[1].append(told)


TWO = ("key-a", "key-b")
# together they reach every line of the table; `wrong` needs a client to take its place, or not
SCENARIOS = (
    Scenario(PLAIN, TWO, failures=True),
    Scenario(DEALT, ("key-b",), ("key-a",), failures=True),
    Scenario(DEALT, ("key-b",), ("key-a",), wrong=("key-b",)),
    Scenario(DEALT, ("key-b",), ("key-a", "key-c"), wrong=("key-a",)),
    Scenario(DEALT, ("key-b",), ("key-a",), differ=("key-b",)),
    Scenario(VALUES, ("key-b",), ("key-a",), failures=True),
    Scenario(VALUES, ("key-b",), ("key-a",), wrong=("key-b",)),
    Scenario(VALUES, (), ("key-a", "key-b", "key-c"), wrong=("key-a",)),
    Scenario(PLAIN, (), TWO, crashes=1),
    Scenario(PLAIN, (), TWO, breaks=1, failures=True),
    Scenario(PLAIN, (), TWO, crashes=1, failures=True),
    Scenario(PLAIN, (), TWO, breaks=2),
    Scenario(PLAIN, (), TWO, breaks=1, spent=True),
    Scenario(PLAIN, (), TWO, crashes=1, spent=True),
    Scenario(VALUES, (), TWO, breaks=1, spent=True),
    Scenario(PLAIN, ("key-b",), ("key-a",), crashes=1),
    Scenario(DEALT, (), ("key-a",), dealers=("key-b",), crashes=1),
    Scenario(DEALT, (), TWO, crashes=1),
    Scenario(DEALT, (), TWO, breaks=1),
    Scenario(VALUES, (), TWO, crashes=1),
    Scenario(AUDITED, (), TWO, breaks=2),
    Scenario(AUDITED, (), ("key-a", "key-b", "key-c"), silent=("key-a",), crashes=1),
    Scenario(AUDITED, (), TWO, breaks=1, tired=True),
    Scenario(AUDITED, (), TWO, crashes=1, tired=True),
    Scenario(AUDITED, (), ("key-a", "key-b", "key-c"), silent=("key-a",), tired=True),
    Scenario(PLAIN, ("key-b", "key-c"), ("key-a",), decliners=("key-c",)),
    Scenario(PLAIN, (), ("key-a",), decliners=("key-b", "key-c", "key-d")),
    Scenario(VOTES, (), TWO, failures=True),
    Scenario(VOTES, (), TWO, crashes=1),
    Scenario(VOTES, (), TWO, breaks=1),
    Scenario(VOTES, (), TWO, breaks=1, spent=True, failures=True),
    Scenario(VOTES, (), TWO, decliners=("key-b",)),
    Scenario(VOTES, (), TWO, fickle=("key-b",), crashes=1),
    Scenario(AUDITED_VOTES, (), TWO, crashes=1),
    Scenario(AUDITED_VOTES, (), TWO, breaks=1),
    Scenario(AUDITED_VOTES, (), TWO, crashes=1, tired=True),
)


def walk(scenario: Scenario, most: int = 0) -> tuple[set[Any], set[Any], int, set[bool]]:
    """Take every order of events, or random ones until they have come to so many places.

    Return the lines and late pairs that came, the number of places, and whether a round was ever
    published, or ever not.
    """
    ends: set[bool] = set()
    taken: set[tuple[int, Any, Transition]] = set()
    late: set[tuple[int, Any]] = set()
    start = Walk(scenario)
    known, heap = {start.key()}, [start]
    out = {*scenario.wrong, *scenario.differ, *scenario.silent}
    chance = random.Random(1)
    while heap and not 0 < most < len(known):
        now = heap.pop(chance.randrange(len(heap)) if most else -1)
        leader, follower = now.rounds
        assert follower.ran or not leader.ran
        assert leader.failed | follower.failed <= set(scenario.wrong)
        if State.PUBLISHED in (leader.state, follower.state):
            assert leader.ran and follower.ran and leader.last and follower.last
        # SECURITY: no other set at the same number, and no dealing under a second coin
        assert len(now.included) <= 1
        assert len(now.opened) == len({client for client, _ in now.opened})
        if leader.ran and follower.ran:
            assert leader.included == follower.included and len(leader.included) == 2
            assert not out & set(leader.included)
            # a client that declines may reach one server alone
            said = set(leader.left_out.items()) ^ set(follower.left_out.items())
            assert {name for name, _ in said} <= {NAMES[key] for key in scenario.decliners}
            assert leader.excluded == follower.excluded
            if leader.checks:
                assert leader.passed == follower.passed >= set(leader.included)
        more = list(now.events())
        if not more:
            assert not leader.live and not follower.live
            published = {here.state is State.PUBLISHED for here in now.rounds}
            assert len(published) == 1 or scenario.failures
            # an open round is published, whatever breaks
            others = scenario.clients or scenario.dealers or scenario.decliners or scenario.fickle
            complete = not (others or scenario.failures or out)
            few = scenario.spent or scenario.tired
            assert True in published or not leader.begun or not complete or few
            ends |= published
        for party, event in more:
            then = now.copy()
            before = then.rounds[party].copy()
            pair = before.state, type(event)
            stale = isinstance(event, Hello_) or before.is_of_another_link(event)
            # raises if it is refused
            then.happen(party, event)
            assert not then.rounds[party].discord
            if event is Walk.NO or stale:
                pass
            elif before.state is State.NEW and pair not in TABLE[party]:
                # about a round that S1 does not know
                pass
            elif pair in LATE[party]:
                late.add((party, pair))
            else:
                after = then.rounds[party].state
                taken |= {(party, pair, line) for line in TABLE[party][pair] if line.to is after}
            found = [then]
            if now.crashes and event is not Walk.NO and not isinstance(event, Hello_):
                found.append(now.copy())
                found[-1].happen(party, event, dies=True)
            for each in found:
                taken |= set(each.unlinked)
                if (key := each.key()) not in known:
                    known.add(key)
                    heap.append(each)
        if now.crashes:
            then = now.copy()
            then.cut()
            if (key := then.key()) not in known:
                known.add(key)
                heap.append(then)
    return taken, late, len(known), ends


# Pairs whose line takes longer walks: a server that is away for a day, or that deviated. Others are
# a check of a client outside the round, and `again` before any attempt or about an earlier run.
RARE = {
    (0, State.OPENING, Again),
    (0, State.CHECKING, Resume),
    (0, State.QUEUED, Overdue),
    (0, State.RUNNING, Again),
    (1, State.CHECKING, Overdue),
    (1, State.RUNNING, Again),
    (0, State.FAILED, Failure),
    (1, State.FAILED, Failure),
    (0, State.VOTING, Interrupted),
    (0, State.VOTING, Again),
}


def test_no_order_of_some_makes_an_honest_server_refuse() -> None:
    for scenario in SCENARIOS:
        assert walk(scenario, most=60)[2] > 30


@pytest.mark.release
@pytest.mark.timeout(900)
def test_no_order_of_events_makes_an_honest_server_refuse() -> None:
    """Nor does a line or a late pair stand there that no order reaches."""
    walks = [walk(scenario) for scenario in SCENARIOS]
    taken = {line for one in walks for line in one[0]}
    late = {pair for one in walks for pair in one[1]}
    lines = {
        (party, pair, line)
        for party in (0, 1)
        for pair in TABLE[party]
        for line in TABLE[party][pair]
        if line.when not in (discordant, disputed)
    }
    assert late == {(party, pair) for party in (0, 1) for pair in LATE[party]}
    # S1 refuses clients whom S0 takes only where their configurations or parameters differ
    own_account = {line for line in lines if line[0] == 1 and line[1][1] is Compute}
    left = {(party, *pair) for party, pair, line in lines - taken - own_account}
    assert left <= RARE and min(one[2] for one in walks) > 30


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scenario",
    [
        Scenario(DEALT, TWO, wrong=("key-b",)),
        Scenario(DEALT, (), TWO, breaks=1, crashes=1),
    ],
    ids=["two deal", "crash and break"],
)
def test_no_longer_order_of_events_makes_an_honest_server_refuse(scenario: Scenario) -> None:
    assert walk(scenario)[2] > 5_000


# An attempt that may have opened values


def test_an_abort_is_refused_once_values_may_have_been_opened() -> None:
    # later votes are taken after a run
    for state in set(State) - {State.VOTING}:
        asked = a_round(0, state)
        if state in (State.OPENING, State.OPEN, State.CLOSING, State.CHECKING, State.QUEUED):
            asked.check_abort()
            asked.ran = True
            with pytest.raises(RoundClosed, match="opened"):
                asked.check_abort()
        else:
            with pytest.raises(RoundClosed, match="opened" if asked.live else state):
                asked.check_abort()


@pytest.mark.parametrize("bound", [(0,), (1,), (0, 1)])
def test_an_attempt_that_may_have_opened_values_is_repeated_with_its_clients_only(
    bound: tuple[int, ...],
) -> None:
    """Whichever server remembers."""
    clients = "key-a", "key-b", "key-c"
    repeats = clients if 0 in bound else (), clients if 1 in bound else ()
    both = Both(repeats=repeats, max_clients=4)
    for party in bound:
        with pytest.raises(NotAllowed, match="anna, ben, cleo"):
            both.rounds[party].check_upload("key-d")
    both.upload("key-a")
    both.upload("key-b")
    both.feed(0, CloseAsked())
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    assert {round_.code for round_ in both.rounds} == {ClientsDiffer.code}
    assert "may have opened values" in both.rounds[0].reason

    both = Both(repeats=repeats, max_clients=4)
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    # S0 waits for nobody else
    if 0 in bound:
        assert both.states == (State.RUNNING, State.RUNNING)
    both = Both(repeats=repeats, max_clients=4)
    # one that got in before the server remembered
    for party in (0, 1):
        here = both.rounds[party]
        here.here, here.there = here.here | {"key-d": b""}, here.there | {"key-d": b""}
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    if both.states == (State.OPEN, State.OPEN):
        both.feed(0, CloseAsked())
    if bound == (0, 1):
        assert both.rounds[0].included == both.rounds[1].included == ["key-a", "key-b", "key-c"]
        assert both.states == (State.RUNNING, State.RUNNING)
    # no agreement, no run
    else:
        assert both.states == (State.FAILED, State.FAILED)


def test_an_attempt_is_not_repeated_without_a_client_whose_dealing_failed() -> None:
    """It ends at once, because that client cannot deal again, and opens nothing."""
    bound = "key-a", "key-b", "key-c"
    both = Both(repeats=(bound, bound), wrong=("key-b",), max_clients=4, **DEALT)
    with pytest.raises(NotAllowed, match="anna, ben, cleo"):
        both.rounds[0].check_dealing("key-d")
    both.deal("key-b")
    both.send("key-a", "key-c")
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    for here in both.rounds:
        assert here.code == ClientsDiffer.code and here.opened == "nothing"


def test_a_round_too_small_for_the_attempt_or_the_floor_is_refused() -> None:
    with pytest.raises(ClientsDiffer, match="with max_clients 2"):
        a_round(0, repeats=("key-a", "key-b", "key-c"), max_clients=2)
    with pytest.raises(ConfigError, match="below the 4 clients that s0 asks for: 3"):
        a_round(0, floor=4)


# control and peer


OPEN_FIELDS = {
    "round": ID,
    "number": 1,
    "params": {},
    "session": bytes(SESSION_BYTES),
    "new_session": True,
    "start_over": False,
    "start": START,
}
HELLO = {"instance": "a", "peer": "", "sent": 0, "rounds": [], "agreement": {}}
RESUME = {
    "round": ID,
    "session": bytes(SESSION_BYTES),
    "state": "open",
    "attempt": 0,
    "signature": b"",
    "held": {},
    "dealt": [],
    "passed": [],
    "failed": [],
    "coins": {},
}
SESSION = {"session": bytes(SESSION_BYTES), "new_session": True}
COMPUTE = {"round": ID, "digest": b"", "attempt": 1} | SESSION
WRONG = "x" * 900_000


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"junk"],
        wire.pack("nonsense", {}),
        wire.pack(WRONG, {}),
        wire.pack("opened", {}),
        wire.pack("opened", {"round": ID, "session": bytes(SESSION_BYTES), "more": 1}),
        wire.pack("opened", {"round": ID, WRONG: 1}),
        wire.pack("opened", {"round": 7}),
        wire.pack("opened", {"round": WRONG}),
        wire.pack("held", {"round": ID, "held": ["key"]}),
        wire.pack("held", {"round": ID, "held": {"key": "digest"}}),
        wire.pack("held", {"round": ID, "held": {b"key": b"digest"}}),
        wire.pack("held", {"round": ID, "held": 7}),
        wire.pack("check", {"round": ID, "clients": []}),
        wire.pack("check", {"round": ID, "clients": ["b", "a"]}),
        wire.pack("check", {"round": ID, "clients": ["a", "a"]}),
        wire.pack("check", {"round": ID, "clients": [7]}),
        wire.pack("check", {"round": ID, "clients": ["a"], "coin": b"short"}),
        wire.pack("verdicts", {"round": ID, "clients": ["a"], "failed": [["a"]]}),
        wire.pack("verdicts", {"round": ID, "clients": [], "failed": []}),
        wire.pack("verdicts", {"round": ID, "clients": ["b", "a"], "failed": []}),
        wire.pack("verdicts", {"round": ID, "clients": ["a"], "failed": ["b"]}),
        wire.pack("verdicts", {"round": ID, "clients": ["a"], "failed": ["a", "a"]}),
        wire.pack("verdicts", {"round": ID, "clients": ["a", "b"], "failed": ["b", "a"]}),
        wire.pack("uploaded", {"round": ID, "client": "a", "digest": "text"}),
        wire.pack("held", {"round": ID, "held": None}),
        wire.pack("hello", HELLO | {"agreement": {b"lanes": 2}}),
        wire.pack("hello", HELLO | {"agreement": {b"lanes": 2, "lanes": 2}}),
        wire.pack("hello", HELLO | {"rounds": [7]}),
        wire.pack("resume", RESUME | {"session": b"short"}),
        wire.pack("resume", RESUME | {"coins": {"a": "text"}}),
        wire.pack("resume", RESUME | {"coins": {"a": bytes(SEED_BYTES)}}),
        *(wire.pack("open", OPEN_FIELDS | {"spent": spent}) for spent in (-1.0, float("nan"))),
        *(wire.pack("open", OPEN_FIELDS | {"runs": runs}) for runs in (0, MOST_RUNS + 1)),
        wire.pack("open", OPEN_FIELDS | {"participants": ["b", "a"]}),
        wire.pack("load", {"number": 1, "load": b"short"}),
        wire.pack("resume", RESUME | {"dealt": [7]}),
        wire.pack("compute", COMPUTE | {"session": b""}),
        wire.pack("open", OPEN_FIELDS | {"round": "1-../../../etc"}),
        wire.pack("open", OPEN_FIELDS | {"number": 2}),
        wire.pack("open", OPEN_FIELDS | {"session": bytes(300)}),
        wire.pack("open", OPEN_FIELDS | {"start_over": 1}),
        wire.pack("open", OPEN_FIELDS | {"start": START[1:]}),
        wire.pack("done", {"round": ID, "attempt": 1}),
        wire.pack("done", {"round": ID, "attempt": 1, "signature": "text"}),
    ],
)
def test_control_refuses_what_is_no_message(parts: list[wire.Part]) -> None:
    control.decode(wire.pack("open", OPEN_FIELDS))
    control.decode(wire.pack("hello", HELLO))
    control.decode(wire.pack("resume", RESUME))
    with pytest.raises(FrameError) as caught:
        control.decode([bytes(part) for part in parts])
    assert len(str(caught.value)) < 2 * MAX_TEXT
    if "is not a message" in str(caught.value):
        # the others name a kind that there is
        assert wire.unpack(parts).type in ("nonsense", WRONG)


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("1-0000000a", True),
        # made by chance, and the same at every collection of the tests
        pytest.param(control.new_round_id(1), True, id="new"),
        pytest.param(control.new_round_id(12345), True, id="new-and-long"),
        ("0-0000000a", False),
        ("01-0000000a", False),
        ("1-0000000A", False),
        ("1-0000000a\n", False),
        ("1-0000000aa", False),
        ("1-../00000", False),
        ("../1-0000000a", False),
        ("\u0661-0000000a", False),
        ("1-\u06610000000", False),
        ("", False),
        ("1" * 1000 + "-0000000a", False),
    ],
)
def test_a_round_id_is_a_number_and_eight_hex_digits(text: str, is_id: bool) -> None:
    assert control.is_round_id(text) == is_id


def greeting(instance: str, peer: str = "", lanes: int = 2) -> Hello:
    return Hello(instance, peer, 0, [], {"lanes": lanes}, **own_versions())


def test_the_peer_is_watched() -> None:
    watch = PeerWatch("s1", {"lanes": 2}, wait_s=30, timeout_s=5)
    assert watch.tick(1e9) is None and "compiles" in watch.problem
    watch.begin(0.0)
    assert watch.tick(29.0) is None
    with pytest.raises(PeerUnavailable, match="peer_wait_s"):
        copy.copy(watch).tick(30.0)
    with pytest.raises(PeerUnavailable, match="not appeared"):
        watch.require()
    assert watch.hello(greeting("first"), 29.0, "us") is Change.LINKED and watch.problem == ""
    watch.require()
    assert watch.hello(greeting("first", "us"), 30.0, "us") is None and watch.tick(34.9) is None
    assert watch.tick(35.0) is Change.LOST and watch.tick(36.0) is None and "5 s" in watch.problem
    assert watch.hello(greeting("second"), 37.0, "us") is Change.LINKED
    assert watch.hello(greeting("third", lanes=3), 38.0, "us") is Change.RESTARTED
    with pytest.raises(ParametersDiffer, match="lanes: 2 here, 3 there"):
        watch.require()
    assert watch.bye() is Change.LOST and watch.bye() is None
    assert watch.tick(1e9) is None and watch.problem == "s1 was stopped"


def test_differences_name_the_fields() -> None:
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 2}) == ""
    assert (
        differences({"a": 1, "b": 2}, {"a": 3, "c": 4})
        == "a: 1 here, 3 there; b: 2 here, None there; c: None here, 4 there"
    )
    assert len(differences({"a": 1}, {WRONG: WRONG, "a": WRONG})) < 2 * MAX_TEXT


def test_the_reasons_of_a_failure_are_cut() -> None:
    here, there = a_round(0, State.OPEN), a_round(1, State.OPEN)
    message = here.handle(Failure("closed", WRONG), 1.0)[-1]
    assert isinstance(message, Failed)
    there.handle(received(message), 1.0)
    assert len(here.reason) < 2 * MAX_TEXT and len(there.reason) < 2 * MAX_TEXT
    there = a_round(1, State.OPEN)
    there.handle(Failed(ID, WRONG, WRONG), 1.0)
    assert len(there.reason) + len(there.code) < 4 * MAX_TEXT
    assert issubclass(PeerProtocolError, SecureMedianError)
