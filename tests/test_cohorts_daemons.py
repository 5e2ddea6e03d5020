"""Two cohorts on one pair of real servers, with clients and coordinators as people run them."""

import itertools
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.spent import UpdateSpent
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import plaintext
from securemedian.mpc.errors import UnknownCohort, UnknownRound
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair, in_background, wait_until

pytestmark = pytest.mark.slow

# client-3 takes part in both
MEMBERS = {"default": ("client-1", "client-2", "client-3"), "stroke": ("client-3", "client-4")}
TABLES = "".join(
    f'\n[[cohorts]]\nname = "{name}"\nclients = {list(clients)}\n'.replace("'", '"')
    for name, clients in MEMBERS.items()
)
PARAMS = {
    # long enough for the other one to be ready meanwhile
    "default": RoundParams.from_dict({"method": "pairwise", "dim": 200_000, "max_clients": 3}),
    "stroke": RoundParams.from_dict({"method": "bucketed", "dim": 1000, "max_clients": 2}),
}
MODEL = np.linspace(-0.2, 0.2, 1000, dtype=np.float32)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("pair") / "keys", clients=4)
    # a server's own choices: how long chunks are, and which kernels it takes
    made.configure("s0", TABLES + "\n[protocol]\nchunk = 8192\nnative_aes = false\n")
    made.configure("s1", TABLES)
    made.start("s0", "s1")
    made.link()
    yield made
    assert [made.stop(server) for server in ("s0", "s1")] == [0, 0]
    made.close()


def update(cohort: str, name: str) -> NDArray[np.float32]:
    """Return what a client has trained: each time the same."""
    seed = list(MEMBERS).index(cohort), int(name[-1])
    values = np.random.default_rng(seed).normal(0, 0.05, PARAMS[cohort].dim)
    return values.astype(np.float32)


def submit_all(members: dict[tuple[str, str], Client], cohort: str) -> None:
    """Let all clients of a cohort submit."""
    for name in MEMBERS[cohort]:
        member = members[cohort, name]
        member.wait_for_round()
        member.submit(update(cohort, name))


@pytest.mark.parametrize("killed", ["", "s1"])
def test_two_cohorts_publish_what_they_should_whatever_happens_to_a_server(
    pair: Pair, killed: str
) -> None:
    """The protocol of one runs while the other one is ready, and then a server is killed."""
    before = {server: len(pair.events(server)) for server in ("s0", "s1")}
    with ExitStack() as stack:
        coordinators = {
            name: stack.enter_context(
                Coordinator.from_config(pair.folder / "coordinator.toml", name, report=_quiet)
            )
            for name in MEMBERS
        }
        members = {
            (cohort, name): stack.enter_context(
                Client.from_config(pair.folder / f"{name}.toml", cohort, report=_quiet)
            )
            for cohort, names in MEMBERS.items()
            for name in names
        }
        rounds = {
            "default": coordinators["default"].open_round(PARAMS["default"]),
            "stroke": coordinators["stroke"].open_round(PARAMS["stroke"], MODEL),
        }
        submit_all(members, "default")
        wait_until(lambda: _is_running(coordinators["default"].status()))
        joins = [in_background(lambda: submit_all(members, "stroke"))]
        wait_until(lambda: coordinators["stroke"].status().state == "queued")
        assert coordinators["default"].status().state == "running"
        if killed:
            pair.stop(killed, signal.SIGKILL)
            pair.start(killed)
        for join in joins:
            join()
        for cohort, params in PARAMS.items():
            results = [members[cohort, name].result(rounds[cohort]) for name in MEMBERS[cohort]]
            published = members[cohort, MEMBERS[cohort][0]].model(rounds[cohort])
            updates = np.stack([update(cohort, name) for name in MEMBERS[cohort]])
            expected = plaintext.published(updates, params, published)[0]
            for result in results:
                assert np.array_equal(result, expected)
            status = coordinators[cohort].status(rounds[cohort])
            assert sorted(status.included) == list(MEMBERS[cohort])
            # the waiting cohort has lost nothing
            assert status.attempt == (2 if killed and cohort == "default" else 1)
            receipt = coordinators[cohort].receipt(rounds[cohort])
            assert receipt.record.cohort == cohort
        # the first that was ready was the first; what waits for its retry lets the other one go
        for server in ("s0", "s1"):
            running = [
                event.get("cohort", "default")
                for event in pair.events(server)[before[server] :]
                if event["event"] == "round-running"
            ]
            assert running == ["default", "stroke"] + (["default"] if killed else [])
        _check_strangers(pair, rounds)


def _is_running(status: RoundStatus) -> bool:
    """Return whether a chunk of the round is computed."""
    return status.state == "running" and status.progress[0] > 0


def _check_strangers(pair: Pair, rounds: dict[str, str]) -> None:
    """Check that a client of one cohort is told nothing of the other."""
    for server, op in itertools.product(("s0", "s1"), ("info", "status", "round")):
        with pytest.raises(UnknownCohort, match="for 'client-4': 'default'"):
            pair.caller("client-4", server).ask(op)
    for server, op in itertools.product(("s0", "s1"), ("status", "result")):
        with pytest.raises(UnknownRound, match="the latest is " + rounds["stroke"]):
            pair.caller("client-4", server).ask(op, round=rounds["default"])


def test_an_update_that_two_cohorts_are_given_is_voted_on_in_one(pair: Pair) -> None:
    """A digit of it is then opened in one of their rounds at most."""
    given = update("default", "client-3")
    with ExitStack() as stack:
        made = [
            stack.enter_context(Coordinator.from_config(pair.toml("coordinator"), each))
            for each in MEMBERS
        ]
        members = [
            stack.enter_context(Client.from_config(pair.toml("client-3"), each)) for each in MEMBERS
        ]

        def submits() -> None:
            """Open a round of zoom of each, submit to both at once, and abort the rounds."""
            rounds = [
                one.open_round(RoundParams(Zoom(), dim=given.size, max_clients=count), reset=True)
                for one, count in zip(made, (3, 2), strict=True)
            ]
            refused = []
            both = zip(members, rounds, strict=True)
            for join in [in_background(partial(one.submit, given, name)) for one, name in both]:
                try:
                    join()
                except UpdateSpent as error:
                    refused.append(str(error))
            complete = [one.status().complete for one in made]
            for one, name in zip(made, rounds, strict=True):
                one.abort_round(name, "the test goes on")
            (refusal,), own = refused, complete.index(["client-3"])
            assert f"voted on in another round: {rounds[own]}; train again" in refusal
            assert complete[1 - own] == []

        submits()


def _quiet(_: Any) -> None:
    """Say nothing of a server that is away."""
