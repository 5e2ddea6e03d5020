"""A run that is coordinated unattended: what it asks for, keeps and goes on with."""

import json
import threading
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.common.receipts import Receipt
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.unattended import RunLog, RunPlan, UnattendedRun
from securemedian.mpc.errors import (
    ConfigError,
    NotStored,
    PolicyRefused,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import ROOT, WAIT_S, Pair
from tests.test_receipts import RECORD

START = np.arange(3, dtype=np.float32)
PLAN = """
coordinator = "coordinator.toml"
rounds = 3
output = "out"
retry_wait_s = 2
patience_s = 100
"""
ROUND = """
[round]
method = "radix"
max_clients = 3
"""


def loss(model: np.ndarray) -> dict[str, float]:
    return {"loss": float(model.sum())}


def broken(model: np.ndarray) -> float:
    raise ValueError("no data")


class Fake:
    """A coordinator whose servers are a list of what becomes of each round."""

    def __init__(self, *ends: str) -> None:
        self.ends = list(ends)
        self.config = SimpleNamespace(poll_interval_s=0.5)
        self.opened: list[dict[str, Any]] = []
        self.by_request: dict[str, str] = {}
        self.closed: list[str] = []
        # errors that the next requests meet
        self.errors: list[Exception] = []
        self.published = 0
        self.polls = 0

    def _meet(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def dim(self) -> int:
        return START.size

    def open_round(self, params: RoundParams, model: Any = None, **asked: Any) -> str:
        self._meet()
        request = asked["request"]
        if request not in self.by_request:
            self.opened.append({"params": params, "model": model} | asked)
            self.by_request[request] = f"{self.published + 1}-{len(self.opened):08x}"
        return self.by_request[request]

    def status(self, round_id: str, timeout_s: float) -> RoundStatus:
        self._meet()
        self.polls += 1
        status: dict[str, Any] = {
            "number": self.published + 1,
            "state": "open",
            "reason": "",
            "clients": dict.fromkeys("abc", "both" if self.polls % 3 else "none"),
            "progress": [0, 0],
            "phase": "",
            "deadline_in_s": 5.0,
            "included": ["a", "b"],
            "left_out": {"c": "its upload reached neither server"},
            "cost": {},
        }
        if self.polls % 3 == 0:
            status["state"] = self.ends.pop(0)
            status["reason"] = "" if status["state"] == "published" else "too few"
            self.published += status["state"] == "published"
        return RoundStatus(round_id, **status)

    def close_round(self, round_id: str, timeout_s: float) -> None:
        self.closed.append(round_id)

    def outcome(self, round_id: str) -> Any:
        self._meet()
        model = START + np.float32(self.published)
        return model, self.results(model)

    def results(self, model: np.ndarray) -> np.ndarray:
        """Without an optimiser the result is the model."""
        return model[None]

    def public_metrics(self, round_id: str) -> dict[str, dict[str, float]]:
        # one round without any
        return {} if round_id.startswith("2-") else {"a": {"examples": 5.0}}

    def receipt(self, round_id: str) -> Receipt:
        return Receipt(RECORD.encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    np.save(tmp_path / "start.npy", START)
    (tmp_path / "plan.toml").write_text(f'model = "start.npy"\n{PLAN}{ROUND}')
    return tmp_path


def ran(
    folder: Path, fake: Fake, evaluate: str = "", plan: RunPlan | None = None
) -> tuple[list[str], list[float]]:
    """Run the plan of a folder, and return what was said and how long it slept."""
    said: list[str] = []
    slept: list[float] = []
    made = plan or RunPlan.load(folder / "plan.toml")
    if evaluate:
        object.__setattr__(made, "evaluate", evaluate)
    coordinator = cast(Coordinator, fake)
    with closing(UnattendedRun(made, coordinator, said.append, sleep=slept.append)) as unattended:
        unattended.run()
    return said, slept


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/rounds.jsonl").read_text().splitlines()]


def test_all_rounds_one_after_the_other(folder: Path) -> None:
    fake = Fake("published", "published", "published")
    said, _ = ran(folder, fake, "tests.test_coordinate:loss")
    assert [opened["model"] is not None for opened in fake.opened] == [True, False, False]
    assert len({opened["request"] for opened in fake.opened}) == 3
    assert fake.closed == []
    # all clients take part
    assert {opened["participants"] for opened in fake.opened} == {None}
    for number, line in enumerate(lines(folder), 1):
        assert (line["number"], line["state"], line["model"]) == (
            number,
            "published",
            f"model-{number}.npy",
        )
        model = np.load(folder / "out" / line["model"])
        assert np.array_equal(model, START + number)
        assert line["evaluation"] == {"loss": float(model.sum())}
        assert line["left_out"] == {"c": "its upload reached neither server"}
        assert line.get("public_metrics") == (None if number == 2 else {"a": {"examples": 5.0}})
    assert any("1-00000001 is published (1 of 3): 2 clients" in text for text in said)
    assert any("left out: c: its upload" in text for text in said)
    # and nothing is left to do
    assert "3 of 3 rounds are published already" in ran(folder, Fake())[0][0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_result_that_is_not_the_model_is_kept_beside_it(folder: Path, ranks: int) -> None:
    fake = Fake("published", "published", "published")
    # several ranks, the first of which is the model, or the result that an optimiser steps towards
    fake.results = lambda model: np.stack([model, model + 9][-ranks:])  # type: ignore[method-assign]
    ran(folder, fake, "tests.test_coordinate:loss")
    for number, line in enumerate(lines(folder), 1):
        model = START + number
        assert np.array_equal(np.load(folder / "out" / line["model"]), model)
        # the model is measured, which the next round starts from
        assert line["evaluation"] == {"loss": float(model.sum())}
        result = np.load(folder / "out" / line["result"])
        assert np.array_equal(result, model + 9 if ranks == 1 else [model, model + 9])
    names = {path.name for path in (folder / "out").glob("*.npy")}
    assert names == {f"{what}-{t}.npy" for what in ("model", "result") for t in (1, 2, 3)}


def test_results_for_the_clients_alone_leave_receipts(folder: Path) -> None:
    path = folder / "plan.toml"
    round_table = "[round]\nmethod = 'pairwise'\nresult_to = 'clients'\nmax_clients = 3\n"
    path.write_text(f"model = 'start.npy'\n{PLAN}{round_table}")
    ran(folder, Fake("published", "published", "published"))
    assert not list((folder / "out").glob("*.npy"))
    assert len(list((folder / "out").glob("receipt-*.json"))) == 3
    with pytest.raises(ConfigError, match="nothing to measure: .*loss"):
        ran(folder, Fake(), "tests.test_coordinate:loss")


def test_a_folder_that_cannot_be_written_ends_the_run(folder: Path) -> None:
    # the place to which the first receipt would be written first
    (folder / "out/receipt-1.json.new").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"cannot write the file: .*receipt-1.json .Is a dir.*mend that"
    ):
        ran(folder, Fake("published"))
    (folder / "out/receipt-1.json.new").rmdir()
    # the round is published, and is not run again
    fake = Fake("published", "published", "published")
    fake.by_request = {}
    ran(folder, fake)
    assert len(fake.opened) == 2


def test_a_failed_round_is_tried_again(folder: Path) -> None:
    (folder / "plan.toml").write_text(
        f'participants = ["a", "b"]\nmodel = "start.npy"\n{PLAN}{ROUND}'
    )
    fake = Fake("failed", "failed", "published", "published", "published")
    said, slept = ran(folder, fake)
    assert [line["state"] for line in lines(folder)] == ["failed"] * 2 + ["published"] * 3
    assert [opened["participants"] for opened in fake.opened] == [["a", "b"]] * 5
    # until a round is published, the run begins again with each
    assert [opened["model"] is not None for opened in fake.opened] == [True] * 3 + [False] * 2
    assert [wait for wait in slept if wait != 0.5] == [2.0, 4.0]
    assert any("failed: too few; attempt 2 in 2 s" in text for text in said)


def test_a_round_that_goes_on_failing_ends_the_run(folder: Path) -> None:
    with pytest.raises(RoundFailed, match="round 1 of 3 failed 3 times.*too few.*same command"):
        ran(folder, Fake("failed", "failed", "failed"))
    # the next call has attempts of its own
    ran(folder, Fake("failed", "failed", "published", "published", "published"))
    assert [line["state"] for line in lines(folder)].count("failed") == 5


def test_a_run_goes_on_with_the_round_that_is_open(folder: Path) -> None:
    fake = Fake("published", "published", "published")
    # S0 opens the round and the answer is lost, with the coordinator
    log = RunLog(folder / "out")
    log.begin("ab" * 16)
    log.close()
    fake.open_round(RunPlan.load(folder / "plan.toml").params(3), request="ab" * 16)
    ran(folder, fake)
    assert len(fake.opened) == 3
    # the answer came, and nothing after it
    other = Fake("published", "published", "published")
    kept = folder / "out/rounds.jsonl"
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:1]))
    log = RunLog(folder / "out")
    log.begin("cd" * 16, "2-0000000f")
    log.close()
    ran(folder, other)
    assert len(other.opened) == 1
    assert [line["round"] for line in lines(folder)][1] == "2-0000000f"
    # models and who took part are nobody else's
    assert {path.stat().st_mode & 0o777 for path in (folder / "out").iterdir()} == {0o600}


def test_a_round_that_has_ended_is_not_kept_twice(folder: Path) -> None:
    ran(folder, Fake("published", "published", "published"))
    log = RunLog(folder / "out")
    log.begin("ef" * 16, lines(folder)[-1]["round"])
    assert log.under_way() == ("", "")
    log.close()


def test_a_round_closes_with_its_quorum(folder: Path) -> None:
    path = folder / "plan.toml"
    path.write_text("quorum = 3\n" + path.read_text())
    fake = Fake("published", "published", "published")
    said, _ = ran(folder, fake)
    assert fake.closed == list(fake.by_request.values())
    assert any("is closed: 3 uploads are complete" in text for text in said)


def test_servers_that_are_away_are_waited_for(folder: Path) -> None:
    fake = Fake("published", "published", "published")
    fake.errors = [ServerUnreachable("S0 is away")] * 8
    said, slept = ran(folder, fake)
    assert slept[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert said.count("S0 is away: trying again") == 1
    assert said.count("going on") == 1


@pytest.mark.parametrize(
    ("patience_s", "error"),
    [(0, ServerUnreachable("S0 is away")), (100, PolicyRefused("s1 takes no part"))],
)
def test_servers_that_are_away_for_too_long_or_refuse_end_the_run(
    folder: Path, patience_s: int, error: Exception
) -> None:
    path, fake = folder / "plan.toml", Fake()
    path.write_text(path.read_text().replace("patience_s = 100", f"patience_s = {patience_s}"))
    fake.errors = [error]
    with pytest.raises(type(error)):
        ran(folder, fake)


def test_a_request_that_was_refused_is_not_made_again(folder: Path) -> None:
    """S0 answers a request that it knows as it did before."""
    fake = Fake("published", "published", "published")
    asked: list[str] = []
    real = fake.open_round

    def refusing(params: RoundParams, model: Any = None, **rest: Any) -> str:
        asked.append(rest["request"])
        if len(asked) == 1:
            # silence: S0 may have opened the round
            raise ServerUnreachable("S0 is away")
        if len(asked) in (2, 3):
            raise NotStored("S1's disk is full")
        return real(params, model, **rest)

    fake.open_round = refusing  # type: ignore[method-assign]
    ran(folder, fake)
    assert asked[0] == asked[1] and len(set(asked[1:4])) == 3


def test_a_round_that_the_servers_have_lost_counts_as_failed(folder: Path) -> None:
    fake = Fake("published", "published", "published")
    log = RunLog(folder / "out")
    log.begin("ab" * 16, "1-000000aa")
    log.close()
    fake.errors = [UnknownRound("s0 knows no round 1-000000aa")]
    ran(folder, fake)
    first = lines(folder)[0]
    assert (first["state"], "knows no round" in first["reason"]) == ("failed", True)


def test_an_evaluation_that_fails_ends_nothing(folder: Path) -> None:
    said, _ = ran(
        folder, Fake("published", "published", "published"), "tests.test_coordinate:broken"
    )
    assert lines(folder)[2]["evaluation"] == {"error": "ValueError: no data"}
    assert any("broken failed: ValueError: no data" in text for text in said)


def test_one_process_at_a_time(folder: Path) -> None:
    log = RunLog(folder / "out")
    with pytest.raises(ConfigError, match="another process coordinates"):
        ran(folder, Fake())
    log.close()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("rounds.jsonl", "[1]\n", "a damaged file"),
        ("open.json", "{", "remove it"),
    ],
)
def test_damaged_files(folder: Path, file: str, text: str, message: str) -> None:
    (folder / "out").mkdir()
    (folder / "out" / file).write_text(text)
    with pytest.raises(ConfigError, match=message):
        ran(folder, Fake("published"))


def test_a_last_line_that_was_cut_short(folder: Path) -> None:
    ran(folder, Fake("published", "published", "published"))
    kept = folder / "out/rounds.jsonl"
    kept.write_text(kept.read_text()[:-5])
    ran(folder, Fake("published"))
    assert len(lines(folder)) == 3


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 3", "rounds = 0", "invalid rounds: 0; give 1"),
        ("retry_wait_s = 2", "retry_wait_s = -1", "retry_wait_s"),
        ("rounds = 3", "rounds = 3\nquorum = 1", r"\(min_clients\): 1; raise it"),
        ("rounds = 3", "rounds = 3\nround_s = 1", "unknown round_s"),
        ("rounds = 3", 'rounds = 3\nevaluate = "json:no"', "has no such function"),
        ("max_clients = 3", "max_clients = 3\nbuckets = 4\nschedule = 'scan'", "schedule"),
        ("[round]", "[range]\npolicy = 'odd'\n[round]", "odd"),
    ],
)
def test_mistakes_in_a_plan(folder: Path, old: str, new: str, message: str) -> None:
    path = folder / "plan.toml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=message):
        ran(folder, Fake())
    assert not (folder / "out").exists()


def test_the_sample_is_a_plan() -> None:
    plan = RunPlan.load(ROOT / "docs" / "samples" / "run.toml")
    assert plan.params(5).max_clients == 10
    assert plan.policy and plan.optimiser
    names = tuple(f.name for f in fields(RunPlan))
    assert set(names) == {
        line.partition(" = ")[0] if " = " in line else line.strip("[]")
        for line in (ROOT / "docs" / "samples" / "run.toml").read_text().splitlines()
        if line.startswith(names) or line.startswith("[")
    }


@pytest.mark.slow
def test_the_command_runs_a_run(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    path = pair.folder / "run.toml"
    np.save(pair.folder / "start.npy", START)
    # half of the step to the result
    step = "[optimiser]\noptimiser = 'momentum'\ndecay = 0.0\nrate = 0.5\n"
    path.write_text(f'model = "start.npy"\n{PLAN}{ROUND}{step}'.replace("rounds = 3", "rounds = 2"))
    trained_from: list[np.ndarray] = []

    def take_part(name: str, shift: float) -> None:
        model = START.copy()

        def train(values: np.ndarray) -> None:
            trained_from.append(values.copy())
            values += np.float32(shift)

        with Client.from_config(pair.folder / f"{name}.toml") as client:
            client.fit(model, train, rounds=2, report=lambda text: None)

    threads = [
        threading.Thread(target=take_part, args=(name, shift), daemon=True)
        for name, shift in zip(pair.names, (1, 2, 7), strict=True)
    ]
    for thread in threads:
        thread.start()
    assert cli.main(["coordinate", str(path), "--evaluate", "tests.test_coordinate:loss"]) == 0
    for thread in threads:
        thread.join(WAIT_S)
    for number in (1, 2):
        model = np.load(pair.folder / f"out/model-{number}.npy")
        assert np.array_equal(model, START + number)
        assert np.array_equal(np.load(pair.folder / f"out/result-{number}.npy"), model + 1)
        receipt = str(pair.folder / f"out/receipt-{number}.json")
        keys = [str(pair.folder / f"{server}.key") for server in ("s0", "s1")]
        assert cli.main(["receipt", "verify", receipt, "--keys", *keys]) == 0
    # the next round starts from the model that was written
    assert np.array_equal(trained_from[3:], [START + 1] * 3)
    assert lines(pair.folder)[1]["evaluation"] == {"loss": float((START + 2).sum())}
    assert "(2 of 2): 3 clients" in capsys.readouterr().out
