"""Several cohorts on one pair of servers, without sockets and without an engine.

tests/test_daemons.py runs two on real ones.
"""

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zmq.utils import z85

from securemedian.common.states import State
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ChannelTimeout, ConfigError, NotStored
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.servers import config
from securemedian.servers.config import Caller, CohortTable
from securemedian.servers.machine import step
from securemedian.servers.machine.events import Use
from securemedian.servers.network import control
from securemedian.servers.network.control import Failed, Open
from securemedian.servers.rounds.register import ROUNDS_RETAINED, Entry, Register
from securemedian.servers.rounds.requests import COORDINATOR, OPS
from tests.servers_alone import SAMPLES, START, FakeEngine, Server

# Of different lengths, with nothing to check, dealings, and values.
KINDS = {
    "default": RoundParams(Mean(norm_bound="off"), dim=4, max_clients=3),
    "stroke": RoundParams(Bucketed(uploads="dealt"), dim=5, max_clients=3),
    "lung.2": RoundParams(Pairwise(), dim=6, max_clients=3),
    "heart": RoundParams(Mean(norm_bound="off"), dim=7, max_clients=2),
}
CLIENTS = tuple(
    Caller(f"client-{at}", z85.encode(bytes([at] * 32)).decode()) for at in range(1, 11)
)
COORDINATORS = tuple(
    Caller(f"coordinator-{at}", z85.encode(bytes([100 + at] * 32)).decode()) for at in range(4)
)
# by cohort; client-3 takes part in two
MEMBERS = {
    "default": CLIENTS[:3],
    "stroke": CLIENTS[2:5],
    "lung.2": CLIENTS[5:8],
    "heart": CLIENTS[8:],
}
SETTINGS: dict[str, Any] = {
    "clients": CLIENTS,
    "coordinators": COORDINATORS,
    "min_clients": 2,
    "cohorts": tuple(
        CohortTable(name, [client.name for client in members], [f"coordinator-{at}"])
        for at, (name, members) in enumerate(MEMBERS.items())
    ),
}


def keys(cohort: str) -> list[str]:
    """Return the keys of a cohort's clients."""
    return [client.public_key for client in MEMBERS[cohort]]


def coordinator(cohort: str) -> str:
    """Return the key of a cohort's coordinator."""
    return COORDINATORS[list(MEMBERS).index(cohort)].public_key


class World:
    """Two servers with all cohorts, and what is on its way between them, in order."""

    def __init__(self, folder: Path) -> None:
        self.servers = [Server(party, folder / f"s{party}", **SETTINGS) for party in (0, 1)]
        # to S0 and to S1
        self.queues: list[list[bytes]] = [[], []]
        # by party: the sessions in which it has run the protocol
        self.runs: list[set[bytes]] = [set(), set()]
        # the rounds as S0 has started them
        self.order: list[str] = []
        self.collect()

    def collect(self) -> None:
        """Take what the servers have said."""
        for party, server in enumerate(self.servers):
            for message in server.sent:
                self.queues[1 - party].append(control.encode(message))  # type: ignore[arg-type]
            server.sent.clear()
        live = self.servers[0].rounds.live
        for use in Use:
            assert len([1 for one in live if step.use(one.server_round) is use]) <= 1
        for one in live:
            name = one.server_round.round_id
            if step.use(one.server_round) is Use.PROTOCOL and self.order[-1:] != [name]:
                self.order.append(name)

    def deliver(self, party: int) -> None:
        """Let a server take the next message."""
        self.servers[party].rounds.control(self.queues[party].pop(0))  # type: ignore[arg-type]
        self.collect()

    def work(self, party: int) -> list[Callable[[], None]]:
        """Return what the engines of a server may end next."""
        found = []
        server = self.servers[party]
        for cohort, params in KINDS.items():
            engine = server.engine_of(cohort)
            session = engine.session_id
            if engine.uploads is not None and session:
                self.runs[party].add(session)
            if engine.result is not None:
                found.append(server.rounds.engine_ended)
            elif engine.checked:
                found.append(partial(self._end, party, engine, None))
            elif engine.uploads is not None and session in self.runs[1 - party]:
                found.append(partial(self._end, party, engine, params))
        return found

    def _end(self, party: int, engine: FakeEngine, params: RoundParams | None) -> None:
        if params is None:
            engine.end_check()
        else:
            values = PublicValues(np.zeros((1, params.dim), np.uint64))
            engine.result, engine.uploads = Outcome(values, Cost()), None
        self.servers[party].rounds.engine_ended()
        self.collect()

    def settle(self, works: bool = True) -> None:
        """Let everything happen that can, but no time pass; unless it `works`, no engine ends."""
        busy = True
        while busy:
            busy = False
            self.collect()
            for party in (0, 1):
                while self.queues[party]:
                    busy = True
                    self.deliver(party)
                for end in self.work(party) if works else []:
                    busy = True
                    end()

    def run(self, until: Callable[[], bool], works: bool = True) -> None:
        """Let time pass until something is so."""
        for _ in range(400):
            self.settle(works)
            if until():
                return
            for server in self.servers:
                server.now += 0.25
                server.rounds.tick()
        raise AssertionError([one.server_round.state for one in self.servers[0].rounds.live])

    def ask(self, party: int, key: str, op: str, arrays: Any = None, **fields: Any) -> wire.Message:
        answer = self.servers[party].ask(key, op, arrays, **fields)
        self.collect()
        return answer

    def ask_to_open(self, cohort: str) -> None:
        params = KINDS[cohort]
        arrays = {"model": np.zeros(params.dim, np.float32)} if params.form.buckets else {}
        fields = {"params": params.to_dict(), "range": {}, "cohort": cohort}
        self.ask(0, coordinator(cohort), "open", arrays, **fields)

    def open(self, cohort: str) -> str:
        """Open a round of a cohort and return its id."""
        self.run(self.linked)
        self.ask_to_open(cohort)
        self.settle()
        entry, other = self.latest(cohort), self.latest(cohort, 1)
        assert entry.server_round.state is State.OPEN
        # as `FakeEngine.toss` has it: a token is the same at both
        opening = entry.server_round.toss_opening
        other.server_round = replace(other.server_round, toss_opening=opening)
        return entry.server_round.round_id

    def linked(self) -> bool:
        return all(one.rounds.peer.instance not in ("", "one") for one in self.servers) and all(
            one.rounds.peer.linked for one in self.servers
        )

    def latest(self, cohort: str, party: int = 0) -> Entry:
        entry = self.servers[party].rounds.register.latest(cohort)
        assert entry is not None
        return entry

    def states(self, cohort: str) -> tuple[str, str]:
        """Return the states of the latest round of a cohort at both."""
        one, other = (str(self.latest(cohort, party).server_round.state) for party in (0, 1))
        return one, other

    def send(self, cohort: str, key: str, party: int) -> None:
        """Send what a client sends to a server."""
        params, round_id = KINDS[cohort], self.latest(cohort).server_round.round_id
        fields = {"round": round_id, "params": params.digest}
        share = {"share": np.zeros(16, np.uint8)}
        form = "seed"
        if params.form.dealing:
            more = {"form": "seed", "piece": 0, "pieces": 1}
            assert self.ask(party, key, "deal", share, **fields, **more).type == "deal"
            form = "rotations"
            layout = params.form.layout
            share = {"share": np.zeros((layout.rows, layout.row_words), np.uint64)}
        answer = self.ask(party, key, "upload", share, **fields, form=form)
        assert answer.type == "upload", answer.fields

    def send_all(self, cohort: str) -> None:
        for key, party in itertools.product(keys(cohort), (0, 1)):
            self.send(cohort, key, party)

    def published(self, *cohorts: str) -> bool:
        return all(self.states(name) == ("published", "published") for name in cohorts)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    for server in made.servers:
        server.store.close()


# Rounds of several


def test_rounds_of_all_cohorts_are_open_at_once_and_run_in_the_order_in_which_they_are_ready(
    world: World,
) -> None:
    ids = {name: world.open(name) for name in KINDS}
    assert [one.server_round.cohort for one in world.servers[1].rounds.live] == list(KINDS)
    ready = "default", "heart", "lung.2", "stroke"
    for name in ready:
        world.send_all(name)
        world.settle(works=name == "stroke")
    assert world.published(*KINDS)
    assert list(dict.fromkeys(world.order)) == [ids[name] for name in ready]
    for name, params in KINDS.items():
        for party in (0, 1):
            entry = world.latest(name, party)
            assert entry.server_round.included == sorted(keys(name))
            assert set(entry.server_round.names.values()) == {one.name for one in MEMBERS[name]}
            assert entry.result and entry.result.receipt.record.cohort == name
            assert entry.server_round.attempt == 1 and not entry.server_round.setbacks
        assert world.servers[0].rounds.dim(name) == params.dim
    sessions = [world.servers[0].engine_of(name).session_id for name in KINDS]
    assert len(set(sessions)) == len(KINDS)


def test_a_round_waits_while_the_protocol_of_another_runs(world: World) -> None:
    for name in KINDS:
        world.open(name)
    for name in KINDS:
        world.send_all(name)
        world.settle(works=False)
    # dealings are checked beside it
    assert world.states("default") == ("running", "running")
    assert step.use(world.latest("stroke").server_round) is Use.CHECK
    assert world.states("lung.2") == ("checking", "checking")
    assert not world.servers[0].engine_of("lung.2").checked
    assert world.latest("lung.2").server_round.deadline == float("inf")
    world.settle()
    assert world.published(*KINDS)


@pytest.mark.parametrize("how", ["abort", "too few", "run breaks", "s1 breaks", "deadline"])
def test_what_ends_or_breaks_one_round_is_nothing_to_the_others(world: World, how: str) -> None:
    for name in KINDS:
        world.open(name)
    world.send_all("default")
    world.send("stroke", keys("stroke")[0], 0)
    world.settle(works=False)
    running = world.latest("default").server_round
    assert running.state is State.RUNNING
    before = [server.engine.session_id for server in world.servers]
    stroke = world.latest("stroke").server_round.round_id
    if how == "abort":
        world.ask(0, coordinator("stroke"), "abort", round=stroke, reason="why")
    elif how == "too few":
        world.ask(0, coordinator("stroke"), "close", round=stroke)
    elif how == "deadline":
        entry = world.latest("stroke")
        entry.server_round = replace(entry.server_round, deadline=world.servers[0].now)
    else:
        for key in keys("stroke"):
            for party in (0, 1):
                world.send("stroke", key, party)
        world.settle(works=False)
        engine = world.servers[0 if how == "run breaks" else 1].engine_of("stroke")
        engine.result = ChannelTimeout("nothing for 60 s")
        for server in world.servers:
            server.rounds.engine_ended()
    for server in world.servers:
        server.rounds.tick()
    world.settle(works=False)
    assert world.states("default") == ("running", "running")
    assert [server.engine.session_id for server in world.servers] == before
    assert world.states("lung.2") == ("open", "open")
    if "breaks" not in how:
        assert world.states("stroke") == ("failed", "failed")
    world.send_all("lung.2")
    world.run(lambda: world.published("default", "lung.2"))
    for party, name in itertools.product((0, 1), ("default", "lung.2")):
        here = world.latest(name, party).server_round
        assert here.attempt == 1 and not here.setbacks
    if "breaks" in how:
        world.run(lambda: world.published("stroke"))
        assert world.latest("stroke").server_round.setbacks == 1


def test_a_round_that_waits_for_its_retry_lets_others_go_first(world: World) -> None:
    for name in ("default", "lung.2"):
        world.open(name)
    world.send_all("default")
    world.settle(works=False)
    world.servers[0].engine.result = ChannelTimeout("nothing for 60 s")
    world.servers[0].rounds.engine_ended()
    world.send_all("lung.2")
    world.settle()
    assert world.published("lung.2") and world.states("default")[0] == "queued"
    world.run(lambda: world.published("default"))


def test_what_cannot_be_stored_of_one_round_does_not_wait_before_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("default", "lung.2"):
        world.open(name)
    world.send_all("default")
    real = Register.commit

    def full(self: Register, entry: Entry, changed: Any, *more: Any) -> None:
        if changed.cohort == "default":
            raise NotStored("no room")
        real(self, entry, changed, *more)

    with monkeypatch.context() as patch:
        patch.setattr(Register, "commit", full)
        world.settle()
        world.send_all("lung.2")
        world.settle()
        assert world.published("lung.2") and world.states("default") == ("open", "open")
    world.run(lambda: world.published("default", "lung.2"))


@pytest.mark.parametrize("killed", [(0,), (1,), (0, 1)])
def test_a_kill_with_several_live_rounds_brings_all_of_them_back(
    world: World, killed: tuple[int, ...]
) -> None:
    for name in KINDS:
        world.open(name)
    world.send_all("default")
    world.send("stroke", keys("stroke")[0], 0)
    world.send("stroke", keys("stroke")[0], 1)
    world.settle(works=False)
    assert world.states("default") == ("running", "running")
    for party in killed:
        world.queues[party].clear()
        world.servers[party].restart()
        live = [entry.server_round for entry in world.servers[party].rounds.live]
        assert len(live) == len(KINDS) and all(one.adrift for one in live)
    world.run(world.linked)
    for key in keys("stroke")[1:]:
        for party in (0, 1):
            world.send("stroke", key, party)
    world.send_all("lung.2")
    world.send_all("heart")
    world.run(lambda: world.published(*KINDS))
    attempts = {name: world.latest(name).server_round.attempt for name in KINDS}
    assert attempts == dict.fromkeys(KINDS, 1) | {"default": 2}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_no_order_of_what_cohorts_do_sets_one_back(tmp_path: Path, seed: int) -> None:
    """Everything but time, in any order; some rounds are aborted, or closed with too few."""
    draw, world = random.Random(seed), World(tmp_path)
    for name in KINDS:
        world.open(name) if name != "default" else world.run(world.linked)
    world.ask_to_open("default")
    left = [(name, key, party) for name in KINDS for key in keys(name) for party in (0, 1)]
    draw.shuffle(left)
    ended: set[str] = set()
    for _ in range(600):
        choices: list[Callable[[], Any]] = []
        choices += [partial(world.deliver, p) for p in (0, 1) if world.queues[p]]
        for party in (0, 1):
            choices += world.work(party)
        if left:
            choices.append(lambda: _send_one(world, left, ended))
        if draw.random() < 0.01 and len(ended) < 2:
            choices.append(lambda: ended.add(_end_one(world, draw)))
        if not choices:
            break
        draw.choice(choices)()
    world.settle()
    for name in KINDS:
        for party in (0, 1):
            one = world.latest(name, party).server_round
            assert not one.setbacks and one.attempt <= 1
            if name not in ended:
                assert one.state is State.PUBLISHED, (name, one.state, one.reason)
                assert one.included == sorted(keys(name))
            else:
                assert not one.live


def _send_one(world: World, left: list[tuple[str, str, int]], ended: set[str]) -> None:
    name, key, party = left.pop()
    there = world.servers[party].rounds.register.latest(name)
    if there is not None and there.server_round.state is State.OPEN:
        world.send(name, key, party)
    elif name not in ended:
        left.insert(0, (name, key, party))


def _end_one(world: World, draw: random.Random) -> str:
    name = draw.choice(list(KINDS))
    round_id = world.latest(name).server_round.round_id
    if draw.random() < 0.5:
        world.ask(0, coordinator(name), "abort", round=round_id, reason="why")
    else:
        world.ask(0, coordinator(name), "close", round=round_id)
    return name


# Cohorts' own files


def test_each_cohort_keeps_its_own_rounds_and_model_and_numbers(world: World) -> None:
    first = world.open("default")
    world.send_all("default")
    world.settle()
    for _ in range(ROUNDS_RETAINED + 1):
        world.open("lung.2")
        world.send_all("lung.2")
        world.settle()
        assert world.published("lung.2")
    s0 = world.servers[0]
    assert len(s0.rounds.register.rounds_of("lung.2")) == ROUNDS_RETAINED
    assert world.latest("lung.2").server_round.number == ROUNDS_RETAINED + 1
    status = s0.ask(keys("default")[0], "status", round=first).fields
    assert (status["state"], status["cohort"]) == ("published", "default")
    s0.restart()
    assert [s0.rounds.dim(name) for name in KINDS] == [4, 0, 6, 0]
    assert len(s0.rounds.register.rounds_of("default")) == 1
    world.run(world.linked)
    assert world.open("default").startswith("2-")
    assert world.open("stroke").startswith("1-")


def test_an_attempt_binds_the_clients_of_its_own_cohort_alone(world: World) -> None:
    for name in ("default", "lung.2"):
        world.open(name)
    world.send_all("default")
    world.settle(works=False)
    assert world.latest("default").server_round.ran
    # it may have opened values, and fails for good
    states = (State.RUNNING, State.FAILED)
    for _ in range(world.servers[0].config.max_attempts):
        world.servers[0].engine.result = ChannelTimeout("nothing for 60 s")
        world.servers[0].rounds.engine_ended()
        world.run(lambda: world.latest("default").server_round.state in states, works=False)
    assert world.states("default") == ("failed", "failed")
    world.send_all("lung.2")
    world.run(lambda: world.published("lung.2"))
    for name in ("default", "lung.2"):
        world.open(name)
        bound = set(keys(name)) if name == "default" else set()
        assert world.latest(name).server_round.repeats == bound


def test_s1_refuses_a_cohort_that_it_does_not_have_by_its_name(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, **SETTINGS)
    params = KINDS["default"].to_dict()
    s1.hear(Open("1-0000000a", 1, params, bytes(16), True, False, START, "nobody"))
    assert isinstance(s1.sent[-1], Failed) and s1.sent[-1].code == "unknown-cohort"
    assert "s1: it has no such cohort: 'nobody'" in s1.sent[-1].reason
    assert not s1.rounds.register.entries


def test_a_new_round_of_s0_ends_only_that_of_its_cohort_at_s1(tmp_path: Path) -> None:
    s1 = Server(1, tmp_path, **SETTINGS)
    params = KINDS["default"].to_dict()
    for round_id, cohort in (("1-0000000a", "default"), ("1-0000000b", "lung.2")):
        s1.hear(Open(round_id, 1, params, bytes(16), True, False, START, cohort))
    s1.hear(Open("1-0000000c", 1, params, bytes(16), True, False, START, "lung.2"))
    states = {
        one.server_round.round_id: one.server_round.state for one in s1.rounds.register.entries
    }
    assert states == {"1-0000000a": "open", "1-0000000b": "failed", "1-0000000c": "open"}


# Strangers


UNKNOWN = "7-00000007"


def test_a_stranger_is_told_of_no_round_and_of_no_cohort(world: World) -> None:
    """Whatever it asks, in the words for what there is not."""
    stroke = world.open("stroke")
    default = world.open("default")
    world.send("stroke", keys("stroke")[0], 0)
    params, share = KINDS["stroke"], {"share": np.zeros(16, np.uint8)}
    fields = {"params": params.digest, "form": "seed", "piece": 0, "pieces": 1, "reason": "policy"}
    fields |= {"metrics": {"examples": 1}, "binding": bytes(16)}
    strangers = keys("default")[0], coordinator("default"), keys("lung.2")[0]
    asked = set()
    for op, line in OPS.items():
        names = [each.name for each in dataclasses.fields(line.fields)]
        for key in strangers:
            role = COORDINATOR if key in [one.public_key for one in COORDINATORS] else "client"
            if role not in line.roles:
                continue
            arrays = share if "share" in line.arrays else {}
            more = {name: fields[name] for name in names if name in fields}
            if op == "open":
                more = {"params": params.to_dict(), "range": {}}
            if "cohort" in names:
                for name in ("stroke", "nobody", ""):
                    for party in (0,) if line.leader_only else (0, 1):
                        answer = world.ask(party, key, op, arrays, **more, cohort=name)
                        assert answer.fields["code"] == "unknown-cohort"
                        text = answer.fields["message"].replace(repr(name), "?")
                        mine = next(one for one in KINDS if key in (*keys(one), coordinator(one)))
                        assert text.endswith(f"; set `cohort` to one of {mine}")
                        asked.add((op, party, key, text))
            if "round" in names:
                for party in (0,) if line.leader_only else (0, 1):
                    texts = []
                    for round_id in (stroke, UNKNOWN):
                        answer = world.ask(party, key, op, arrays, **more, round=round_id)
                        assert answer.fields["code"] == "unknown-round"
                        assert answer.fields["message"].count(stroke) == (round_id == stroke)
                        texts.append(answer.fields["message"].replace(round_id, "?"))
                    assert texts[0] == texts[1]
                    assert (default in texts[0]) == (key not in keys("lung.2"))
                    asked.add((op, party, key, texts[0]))
    assert {one[0] for one in asked} == set(OPS)
    # one text per request, server and caller, whether there is such a cohort or not
    assert len(asked) == len({one[:3] for one in asked}) + len(
        {one[:3] for one in asked if one[0] == "status"}
    )
    assert world.states("stroke") == ("open", "open")
    assert list(world.latest("stroke").server_round.here) == keys("stroke")[:1]


def test_members_are_told_of_their_own_cohorts(world: World) -> None:
    stroke = world.open("stroke")
    both = keys("stroke")[0]
    for party in (0, 1):
        info = world.ask(party, both, "info", cohort="stroke").fields
        assert info["cohorts"] == ["default", "stroke"]
        assert (info["cohort"], info["round"], info["state"]) == ("stroke", stroke, "busy")
        info = world.ask(party, both, "info").fields
        assert (info["cohort"], info["round"], info["state"]) == ("default", "", "idle")
        asked = world.ask(party, both, "round", cohort="stroke").fields
        assert (asked["round"], asked["cohort"]) == (stroke, "stroke")
        assert world.ask(party, both, "round").fields["code"] == "unknown-round"
        status = world.ask(party, both, "status").fields
        assert (status["cohort"], status["state"]) == ("default", "none")
        status = world.ask(party, both, "status", cohort="stroke").fields
        assert set(status["clients"]) == {one.name for one in MEMBERS["stroke"]}
    refused = world.ask(
        0,
        coordinator("stroke"),
        "open",
        params={"weights": {"client-1": 2}},
        range={},
        cohort="stroke",
    ).fields
    assert "client-1" in refused["message"]


def test_a_cohort_is_removed_only_once_its_round_has_ended(world: World) -> None:
    world.open("lung.2")
    world.send_all("lung.2")
    world.settle()
    stroke, heart = world.open("stroke"), world.open("heart")
    everything = world.servers[0].config
    less = tuple(table for table in SETTINGS["cohorts"] if table.name not in ("stroke", "lung.2"))
    for server in world.servers:
        register, kept = server.rounds.register, server.config
        removed = replace(kept, cohorts=less)
        refusal = rf"{stroke}; put the table back into \[\[cohorts\]\]"
        with pytest.raises(ConfigError, match=refusal):
            register.check(removed)
        server.config = removed
        with pytest.raises(ConfigError, match=refusal):
            server.restart()
        # with the table the round is back unchanged
        server.config = kept
        server.restart()
        assert {one.server_round.round_id for one in server.rounds.live} == {stroke, heart}
        server.rounds.register.check(kept)
    world.run(world.linked)
    assert world.states("stroke") == ("open", "open")
    world.ask(0, coordinator("stroke"), "abort", round=stroke, reason="enough seen")
    world.run(lambda: world.states("stroke") == ("failed", "failed"))
    for server in world.servers:
        server.config = replace(server.config, cohorts=less)
        server.restart()
        assert [one.server_round.round_id for one in server.rounds.live] == [heart]
    # an ended round is kept for when the table comes back, and so is the model
    world.servers[0].config = everything
    world.servers[0].restart()
    assert world.states("lung.2")[0] == "published"
    assert world.states("stroke")[0] == "failed"
    assert world.servers[0].rounds.dim("lung.2") == 6


# The configuration


def load(tmp_path: Path, text: str) -> config.ServerConfig:
    path = tmp_path / "s0.toml"
    path.write_text((SAMPLES / "s0.toml").read_text("utf-8") + text, "utf-8")
    return config.load(path)


def test_everybody_takes_part_in_the_default_cohort_unless_it_is_narrowed(tmp_path: Path) -> None:
    names = ["client-1", "client-2", "client-3"]
    one = '[[cohorts]]\nname = "{}"\nclients = ["client-3", "client-1"]\n'
    loaded = load(tmp_path, one.format("stroke.2-b"))
    assert list(loaded.members["default"].clients.values()) == names
    assert loaded.pool_share_bytes == loaded.pool_limit_bytes // 2
    members = loaded.members["stroke.2-b"]
    assert list(members.clients.values()) == ["client-1", "client-3"]
    assert members.coordinators == {loaded.coordinators[0].public_key}
    narrowed = load(tmp_path, one.format("default") + "coordinators = []\n").members["default"]
    assert list(narrowed.clients.values()) == ["client-1", "client-3"]
    assert not narrowed.coordinators and loaded.clients[1].public_key not in narrowed


@pytest.mark.parametrize(
    ("name", "more", "match"),
    [
        (
            "stroke",
            'clients = ["client-1", "nobody"]',
            "clients of cohort stroke names clients that are not on the list: 'nobody'",
        ),
        ("stroke", 'clients = ["client-1", "client-1"]', "more than once: 'client-1'"),
        ("stroke", 'clients = ["client-1"]', "name 2 or more"),
        ("stroke", "clients = [1, 2]", r"invalid clients: \[1, 2\]; give a list of texts"),
        ("stroke", "", "missing clients"),
        (
            "stroke",
            'clients = ["client-1", "client-2"]\ncoordinators = ["client-1"]',
            "coordinators of cohort stroke names .*: 'client-1'",
        ),
        *(
            (name, 'clients = ["client-1", "client-2"]', "invalid cohort name")
            for name in ("", "Stroke", "a/b", "..", "-a", "a" * 41, "a b", "\u00e9")
        ),
    ],
)
def test_a_wrong_table_is_refused_and_named(
    tmp_path: Path, name: str, more: str, match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        load(tmp_path, f'[[cohorts]]\nname = "{name}"\n{more}\n')


def test_two_tables_of_one_cohort_are_refused(tmp_path: Path) -> None:
    one = '[[cohorts]]\nname = "stroke"\nclients = ["client-3", "client-1"]\n'
    with pytest.raises(ConfigError, match="2 tables of one name: 'stroke'"):
        load(tmp_path, one + one)
    with pytest.raises(ConfigError, match=r"write \[\[cohorts\]\]"):
        load(tmp_path, one.replace("[[cohorts]]", "[cohorts]"))
