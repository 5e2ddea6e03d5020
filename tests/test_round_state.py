"""servers.session: a round at both servers, as the table alone; servers.peer and servers.control beside it."""

import itertools

import pytest

from securemedian.mpc.errors import (
    ConfigError,
    DuplicateUpload,
    FrameError,
    ParametersDiffer,
    PeerUnavailable,
    RoundClosed,
)
from securemedian.mpc.params import RoundParams
from securemedian.servers import control
from securemedian.servers.control import (
    Close,
    Done,
    Failed,
    Held,
    Hello,
    Opened,
    Ready,
    Run,
    Uploaded,
)
from securemedian.servers.peer import Change, PeerWatch, differences
from securemedian.servers.session import (
    LIVE,
    TABLE,
    CloseAsked,
    Computed,
    Failure,
    Overdue,
    Round,
    Start,
    State,
    Stored,
)

NAMES = {"key-a": "anna", "key-b": "ben", "key-c": "cleo", "key-d": "dora"}
MESSAGES = (
    Opened("r"),
    Uploaded("r", "key-a"),
    Close("r", ["key-a"]),
    Held("r", []),
    Run("r", b"?"),
    Ready("r"),
    Done("r"),
    Failed("r", "closed", "why"),
)
OWN = (Stored("key-a"), CloseAsked(), Computed(), Failure("closed", "why"), Overdue())
DEADLINE_S, ANSWER_S, RUN_S = 100.0, 5.0, 50.0


def params(**changes) -> RoundParams:
    return RoundParams("bucketed", 10, **({"max_clients": 3, "deadline_s": DEADLINE_S} | changes))


def a_round(party: int, state: State | None = None, floor: int = 2, **changes) -> Round:
    made = Round(party, "r", 1, params(**changes), NAMES, floor, ANSWER_S, RUN_S, now=0.0)
    made.state = state or made.state
    return made


class Both:
    """Two servers' rounds. Messages are passed at once, and Start is noted."""

    def __init__(self, floors=(2, 2), **changes) -> None:
        self.rounds = [a_round(party, floor=floors[party], **changes) for party in (0, 1)]
        self.started: list[int] = []
        self.feed(0, Opened("r"))

    def feed(self, party: int, event, now: float = 1.0) -> None:
        for action in self.rounds[party].handle(event, now):
            if isinstance(action, Start):
                self.started.append(party)
            else:
                self.feed(1 - party, control.decode(control.encode(action)), now)

    def upload(self, client: str, *parties: int) -> None:
        for party in parties or (0, 1):
            self.rounds[party].check_upload(client)
            self.feed(party, Stored(client))

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(round.state for round in self.rounds)


def test_a_round_from_opening_to_result():
    both = Both()
    for client in ("key-a", "key-b"):
        both.upload(client)
    assert both.states == (State.OPEN, State.OPEN)
    both.upload("key-c")  # the last that the round takes
    assert both.states == (State.RUNNING, State.RUNNING)
    assert both.started == [1, 0]  # S1's lanes are there before S0's
    both.feed(0, Computed())
    assert both.states == (State.RUNNING, State.RUNNING)
    both.feed(1, Computed())
    assert both.states == (State.PUBLISHED, State.PUBLISHED)
    assert both.rounds[0].included == both.rounds[1].included == ["key-a", "key-b", "key-c"]
    assert both.rounds[0].left_out == {"dora": "its upload reached neither server"}


def test_a_client_that_reached_one_server_is_left_out_and_named():
    both = Both(max_clients=4)
    both.upload("key-a")
    both.upload("key-b")
    both.upload("key-c", 0)
    both.upload("key-d", 1)
    assert both.rounds[0].whereabouts() == {
        "anna": "both",
        "ben": "both",
        "cleo": "here",
        "dora": "there",
    }
    both.feed(0, CloseAsked())
    assert both.states == (State.RUNNING, State.RUNNING)
    expected = {"cleo": "its upload reached only s0", "dora": "its upload reached only s1"}
    assert both.rounds[0].left_out == both.rounds[1].left_out == expected


@pytest.mark.parametrize("floors", [(2, 2), (4, 2), (2, 4)])
def test_each_server_refuses_too_few_clients_on_its_own_account(floors):
    both = Both(floors=floors, max_clients=4, min_clients=2 if max(floors) > 2 else 4)
    for client in ("key-a", "key-b", "key-c"):
        both.upload(client)
    both.feed(0, CloseAsked())
    assert both.states == (State.FAILED, State.FAILED) and not both.started
    assert {round.code for round in both.rounds} == {"too-few-clients"}
    assert "3 complete uploads" in both.rounds[0].reason and "at least 4" in both.rounds[0].reason


def test_s1_refuses_a_digest_that_is_not_its_own():
    for change in ({"number": 2}, {"params": params(buckets=9)}):
        both = Both()
        for name, value in change.items():
            setattr(both.rounds[0], name, value)
        for client in ("key-a", "key-b", "key-c"):
            both.upload(client)
        assert both.states == (State.FAILED, State.FAILED) and not both.started
        assert both.rounds[0].code == ParametersDiffer.code


def test_clients_beyond_the_most_are_cut_alike_at_both():
    both = Both(max_clients=2)
    leader, follower = both.rounds
    leader.here, follower.here = (
        {"key-a", "key-b", "key-c"},
        {"key-a", "key-b", "key-c"},
    )  # the reports of S1 still on their way
    both.feed(0, CloseAsked())
    assert leader.included == follower.included == ["key-a", "key-b"]
    assert "max_clients" in leader.left_out["cleo"] and leader.left_out == follower.left_out


def test_uploads_are_refused_twice_and_out_of_time():
    both = Both()
    both.upload("key-a")
    with pytest.raises(DuplicateUpload):
        both.rounds[0].check_upload("key-a")
    for state in set(State) - {State.OPEN}:
        with pytest.raises(RoundClosed, match=state):
            a_round(0, state).check_upload("key-b")


def test_the_deadline_closes_at_s0_and_every_other_limit_fails():
    leader = a_round(0)
    assert leader.deadline == ANSWER_S
    leader.handle(Opened("r"), 2.0)
    assert leader.deadline == 2.0 + DEADLINE_S
    assert (
        leader.handle(Overdue(), 200.0) == [Close("r", [])] and leader.deadline == 200.0 + ANSWER_S
    )
    assert a_round(1).deadline == DEADLINE_S + ANSWER_S
    for party, state in itertools.product((0, 1), LIVE):
        if (party, state) != (0, State.OPEN):
            round = a_round(party, state)
            (failed,) = round.handle(Overdue(), 300.0)
            assert (
                failed.code == "timeout" and round.state is State.FAILED and state in round.reason
            )


@pytest.mark.parametrize("state", LIVE)
@pytest.mark.parametrize("party", (0, 1))
def test_a_failure_anywhere_fails_both(party, state):
    here, there = a_round(party, state), a_round(1 - party, state)
    (message,) = here.handle(Failure("closed", "the link broke"), 1.0)
    assert there.handle(message, 1.0) == []
    assert here.state is there.state is State.FAILED
    assert (here.code, here.reason) == ("closed", "the link broke")
    assert (there.code, there.reason) == ("closed", f"s{party}: the link broke")


def test_events_without_a_line_in_the_table_do_nothing():
    for party, state, event in itertools.product((0, 1), State, MESSAGES + OWN):
        if (state, type(event)) not in TABLE[party]:
            round = a_round(party, state)
            assert round.handle(event, 1.0) == [] and round.state is state


def test_only_s0_leads():
    told = {Opened, Held, Ready, CloseAsked}
    assert {event for _, event in TABLE[0]} - {event for _, event in TABLE[1]} == told
    assert {event for _, event in TABLE[1]} - {event for _, event in TABLE[0]} == {Close, Run}


def test_a_round_below_the_servers_own_floor_is_refused():
    with pytest.raises(ConfigError, match="at least 4"):
        a_round(0, floor=4)


@pytest.mark.parametrize(
    "parts",
    [
        [b"junk"],
        control.wire.pack("nonsense", {}),
        control.wire.pack("opened", {}),
        control.wire.pack("opened", {"round": "r", "more": 1}),
        control.wire.pack("opened", {"round": 7}),
        control.wire.pack("held", {"round": "r", "held": [["key"]]}),
    ],
)
def test_control_refuses_what_is_no_message(parts):
    with pytest.raises(FrameError):
        control.decode(parts)


def test_the_peer_is_watched():
    watch = PeerWatch("s1", {"lanes": 2}, wait_s=30, timeout_s=5, now=0.0)
    assert watch.tick(29.0) is None
    with pytest.raises(PeerUnavailable, match="not appeared"):
        watch.require()
    assert watch.hello(Hello("first", {"lanes": 2}), 29.0) is Change.LINKED and watch.problem == ""
    watch.require()
    assert watch.hello(Hello("first", {"lanes": 2}), 30.0) is None and watch.tick(34.9) is None
    assert watch.tick(35.0) is Change.LOST and watch.tick(36.0) is None and "5 s" in watch.problem
    assert watch.hello(Hello("second", {"lanes": 2}), 37.0) is Change.LINKED
    assert watch.hello(Hello("third", {"lanes": 3}), 38.0) is Change.RESTARTED
    with pytest.raises(ParametersDiffer, match="lanes: 2 here, 3 there"):
        watch.require()
    assert watch.bye() is Change.LOST and watch.bye() is None


def test_a_peer_that_never_appears_ends_the_wait():
    with pytest.raises(PeerUnavailable, match="peer_wait_s"):
        PeerWatch("s1", {}, wait_s=30, timeout_s=5, now=0.0).tick(30.0)


def test_differences_name_the_fields():
    assert differences({"a": 1, "b": 2}, {"a": 1, "b": 2}) == ""
    assert (
        differences({"a": 1, "b": 2}, {"a": 3, "c": 4})
        == "a: 1 here, 3 there; b: 2 here, None there; c: None here, 4 there"
    )
