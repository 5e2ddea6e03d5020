"""Rounds of several groups over real daemons, with real clients."""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.unattended import RunPlan, UnattendedRun, attempts
from securemedian.laboratory import plaintext
from securemedian.laboratory.attacks import Malformed
from securemedian.laboratory.worker import MalformedClient
from securemedian.mpc.errors import BadUpload, ConfigError, DuplicateUpload, InputError, NotAllowed
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import Pair, in_background

pytestmark = pytest.mark.slow

DIM, CLIENTS = 300, 6
STARTS = np.stack([np.full(DIM, 1, np.float32), np.full(DIM, -1, np.float32)])
PARAMS = RoundParams(Bucketed(groups=2), dim=DIM, max_clients=CLIENTS)
PAIR = {"clients": CLIENTS}


def config(pair: Pair, number: int) -> ClientConfig:
    return pair.config(f"client-{number + 1}", state_dir="")


@pytest.fixture
def members(pair: Pair, opened: ExitStack) -> list[Client]:
    return [opened.enter_context(Client(config(pair, number))) for number in range(CLIENTS)]


def distance(model: NDArray[np.float32], target: float) -> float:
    return float(abs(model - target).mean())


def run(
    members: Sequence[Client], groups: Sequence[int], number: int
) -> tuple[str, NDArray[np.float32]]:
    """Submit an update of each client for a group, and return the round and the updates."""
    updates, round_id = [], ""
    for index, (member, group) in enumerate(zip(members, groups, strict=True)):
        current = member.wait_for_round()
        own = float(np.sign(current.models[group].mean()))
        assert current.choose(partial(distance, target=own)) == group
        rng = np.random.default_rng((number, index))
        update = (current.models[group] + rng.normal(0, 0.3, DIM)).astype(np.float32)
        member.submit(update, group=group)
        updates.append(update)
        round_id = current.round_id
    return round_id, np.stack(updates)


def test_every_group_follows_its_own_clients_and_one_that_is_too_small_keeps_its_model(
    pair: Pair, coordinator: Coordinator, members: list[Client]
) -> None:
    before = STARTS
    for number, groups in enumerate([[0, 0, 1, 0, 1, 1], [1] * 6]):
        assert coordinator.open_round(PARAMS, before if number == 0 else None)
        round_id, updates = run(members, groups, number)
        results = coordinator.results(round_id)
        published = members[0].model(round_id)
        for group, model in enumerate(before):
            assert (published.of_group(group).model == model).all()
        want = plaintext.published(updates, PARAMS, published, groups=groups)
        assert np.array_equal(results, want)
        assert np.array_equal(coordinator.result(round_id), want)
        too_small = [group for group in (0, 1) if groups.count(group) < PARAMS.min_clients]
        for group in too_small:
            assert np.array_equal(results[group], before[group])
        for server in ("s0", "s1"):
            assert pair.wait("published", server)["unchanged_groups"] == too_small
            last = [one for one in pair.events(server) if one["event"] == "round-published"][-1]
            assert last.get("unchanged_groups", []) == too_small
        for member, group in zip(members, groups, strict=True):
            assert np.array_equal(np.asarray(member.result(round_id), np.float32), want[group])
            assert member.unchanged_groups(round_id) == too_small
        assert members[0].receipt(round_id).record.groups == []
        assert pair.status()["groups"] == []
        before = want


def test_a_run_of_groups_goes_on_after_a_restart_of_s0(
    pair: Pair, coordinator: Coordinator, members: list[Client]
) -> None:
    coordinator.open_round(PARAMS, STARTS)
    round_id, _ = run(members, [0, 1, 1, 0, 0, 1], 5)
    results = coordinator.results(round_id)
    pair.wait("published", "s1")
    pair.stop("s0")
    pair.start("s0")
    pair.link()
    assert coordinator.dim() == DIM
    again = coordinator.open_round(PARAMS)
    published = members[0].model(again)
    for group in (0, 1):
        assert (published.of_group(group).model == results[group]).all()
    with pytest.raises(ConfigError, match="groups = 1 needs a model for each: 2 are kept"):
        coordinator.abort_round(again, "enough")
        coordinator.open_round(replace(PARAMS, method=Bucketed()))


def test_a_malformed_dealing_of_several_groups_is_left_out(
    pair: Pair, coordinator: Coordinator, members: list[Client], opened: ExitStack
) -> None:
    coordinator.open_round(replace(PARAMS, max_clients=5), STARTS)
    wrong = opened.enter_context(MalformedClient(config(pair, 5), Malformed()))
    wrong.wait_for_round()
    # the servers may have found out by then
    with suppress(NotAllowed):
        wrong.submit(STARTS[1] * 100, group=1)
    groups = [0, 0, 1, 1, 1]
    round_id, updates = run(members[:5], groups, 9)
    status = pair.wait("published")
    assert status["left_out"]["client-6"] == "its dealing failed the check"
    want = plaintext.published(
        updates, replace(PARAMS, max_clients=5), members[0].model(round_id), groups=groups
    )
    assert np.array_equal(coordinator.results(round_id), want)


VISIBLE = RoundParams(Radix(groups=2, membership="visible"), dim=DIM, max_clients=CLIENTS)


def test_visible_groups_are_told_and_computed_by_themselves(
    pair: Pair, coordinator: Coordinator, members: list[Client]
) -> None:
    params = VISIBLE
    before = STARTS
    for number, groups in enumerate([[0, 0, 1, 0, 1, 1], [0, 0, 0, 0, 0, 1]]):
        coordinator.open_round(params, before if number == 0 else None)
        round_id, updates = run(members, groups, 20 + number)
        results = coordinator.results(round_id)
        published = members[0].model(round_id)
        want = plaintext.published(updates, params, published, groups=groups)
        assert np.array_equal(results, want)
        kept = [[], [1]][number]
        record = members[0].receipt(round_id).record
        own = dict(zip(pair.names, groups, strict=True))
        for server in ("s0", "s1"):
            status = pair.wait("published", server)
            assert status["unchanged_groups"] == kept
            assert dict(zip(status["included"], status["groups"], strict=True)) == own
            assert status["groups"] == record.groups
        assert np.array_equal(members[5].result(round_id), want[groups[5]])
        assert members[5].unchanged_groups(round_id) == kept
        before = want


def test_a_client_that_names_different_groups_to_the_two_servers_is_left_out(
    pair: Pair,
    coordinator: Coordinator,
    members: list[Client],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    params = VISIBLE
    coordinator.open_round(params, STARTS)
    ask = Connection.ask

    def lying(connection: Connection, op: str, *given: Any, **named: Any) -> Any:
        if op == "upload" and connection.label == "S1":
            fields, *rest = given
            given = fields | {"group": 1 - fields["group"]}, *rest
        return ask(connection, op, *given, **named)

    liar = members[5]
    liar.wait_for_round()
    with monkeypatch.context() as patched:
        patched.setattr(Connection, "ask", lying)
        liar.submit(STARTS[0] * 9, group=0)
    round_id, updates = run(members[:5], [0, 0, 1, 1, 1], 30)
    status = pair.wait("published")
    assert status["left_out"] == {"client-6": "it sent different uploads to the two servers"}
    want = plaintext.published(updates, params, members[0].model(round_id), groups=[0, 0, 1, 1, 1])
    assert np.array_equal(coordinator.results(round_id), want)


def test_a_group_that_there_is_not_is_refused_by_the_servers(
    pair: Pair, coordinator: Coordinator
) -> None:
    for params, group in ((VISIBLE, 2), (replace(VISIBLE, method=Radix()), 1)):
        round_id = coordinator.open_round(params, STARTS if group > 1 else STARTS[0])
        share = np.zeros((1, params.form.layout.row_words), np.uint64)
        for wrong in (group, -1, 300):
            with pytest.raises(BadUpload, match="name one from 0 to"):
                pair.send("client-1", "upload", "words", share, "s0", group=wrong)
        coordinator.abort_round(round_id, "done")


def test_a_group_must_be_said_once_and_be_there(
    coordinator: Coordinator, members: list[Client]
) -> None:
    round_id = coordinator.open_round(PARAMS, STARTS)
    member = members[0]
    member.wait_for_round()
    with pytest.raises(
        InputError, match="a round with 2 groups: .*; say which one's model you have trained"
    ):
        member.submit(STARTS[0])
    with pytest.raises(InputError, match="has no such group: 2; choose one from 0 to 1"):
        member.submit(STARTS[0], group=2)
    with pytest.raises(InputError, match="give fit\\(\\) the function `loss`"):
        members[1].fit(STARTS[0].copy(), lambda model: None, rounds=1, report=lambda text: None)
    member.submit(STARTS[0], group=1)
    with pytest.raises(DuplicateUpload):
        member.submit(STARTS[0], round_id, group=0)


def test_the_command_that_is_run_again_gets_the_result_of_its_group(
    pair: Pair, coordinator: Coordinator, members: list[Client], tmp_path: Path
) -> None:
    round_id = coordinator.open_round(PARAMS, STARTS)
    update, result, receipt = (tmp_path / name for name in ("u.npy", "r.npy", "r.json"))
    np.save(update, STARTS[1])
    submit = ["submit", str(pair.folder / "client-1.toml"), str(update)]
    assert cli.main([*submit, "--group", "1"]) == 0
    again = in_background(
        lambda: cli.main([*submit, "--result", str(result), "--receipt", str(receipt)])
    )
    run(members[1:], [0, 0, 1, 1, 1], 40)
    again()
    both = coordinator.results(round_id)
    assert np.array_equal(np.load(result), both[1]) and receipt.exists()
    assert not np.array_equal(both[0], both[1])


def test_fit_trains_the_model_that_fits_best(
    coordinator: Coordinator, members: list[Client]
) -> None:
    """Two groups of clients find their own targets from two starts; one client is on its own."""
    round_id = coordinator.open_round(PARAMS, STARTS)
    targets = [3.0, 3.0, 3.0, 3.0, 3.0, -3.0]
    told: list[list[str]] = [[] for _ in targets]

    def train(model: NDArray[np.float32], target: float) -> None:
        model += np.float32(0.5) * (np.float32(target) - model)

    models = [np.zeros(DIM, np.float32) for _ in targets]
    waits = [
        in_background(
            partial(
                member.fit,
                model,
                partial(train, target=target),
                1,
                report=lines.append,
                loss=partial(distance, target=target),
            )
        )
        for member, model, target, lines in zip(members, models, targets, told, strict=True)
    ]
    for wait in waits:
        wait()
    results = coordinator.results(round_id)
    assert (results[0] > 1).all() and (results[1] == -1).all()
    for model in models[:5]:
        assert np.array_equal(model, results[0])
    assert np.array_equal(models[5], results[1])
    assert told[5][-1].endswith("too few clients have chosen group 1, its model stays")
    assert told[0][-1].endswith("the result is loaded")


def test_the_coordinator_runs_a_run_of_groups(
    pair: Pair, members: list[Client], opened: ExitStack, tmp_path: Path
) -> None:
    np.save(tmp_path / "starts.npy", STARTS)
    plan = RunPlan(
        coordinator=str(pair.folder / "coordinator.toml"),
        rounds=1,
        round={"method": "bucketed", "groups": 2, "max_clients": CLIENTS},
        model=str(tmp_path / "starts.npy"),
        output=str(tmp_path / "run"),
        evaluate="tests.test_group_rounds:mean_of",
    )
    said: list[str] = []
    coordinator = opened.enter_context(Coordinator.from_config(plan.coordinator))
    unattended = UnattendedRun(plan, coordinator, said.append)
    wait = in_background(unattended.run)
    run(members, [0] * 5 + [1], 3)
    wait()
    unattended.close()
    (file,) = (tmp_path / "run").glob("model-*.npy")
    models = np.load(file)
    assert models.shape == (2, DIM) and np.array_equal(models[1], STARTS[1])
    assert any("too few chose group 1, whose model stays" in line for line in said)
    lines = attempts(unattended._log.folder)
    assert lines[-1]["evaluation"]["value.1"] == -1 and lines[-1]["unchanged_groups"] == [1]


def mean_of(model: NDArray[np.float32]) -> float:
    """Return what a user's function might measure."""
    return float(model.mean())
