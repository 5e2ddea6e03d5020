"""Public metrics: what may be sent along with an update, who reads it, and what survives."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.common.status import LONGEST_NAME, MOST_METRICS, check_public_metrics
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import InputError, NotStored, PeerProtocolError
from tests.daemons import Pair, running
from tests.servers_alone import Server

METRICS: dict[str, Any] = {"examples": 120, "loss": np.float32(0.25)}


def told(server: Server, round_id: str) -> Any:
    answer = server.ask(server.coordinator, "metrics", round=round_id)
    return json.loads(answer.arrays["metrics"].tobytes())


def test_what_is_no_number_with_a_name_is_refused() -> None:
    assert check_public_metrics(METRICS) == {"examples": 120.0, "loss": 0.25}
    wrong: list[dict[Any, Any]] = [
        {"loss": float("nan")},
        {"loss": float("inf")},
        {"loss": 10**400},
        {"loss": True},
        {"loss": "0.5"},
        {"loss": np.ones(2)},
        {"loss": None},
        {"": 1},
        {"a\nb": 1},
        {3: 1},
        {"x" * (LONGEST_NAME + 1): 1},
        {f"m{i}": i for i in range(MOST_METRICS + 1)},
    ]
    for metrics in wrong:
        with pytest.raises(InputError, match="public metric"):
            check_public_metrics(metrics)


def test_a_round_takes_them_once_from_each_of_its_clients(tmp_path: Path) -> None:
    server = Server(0, tmp_path)
    round_id = server.open()
    one, two = server.keys[:2]
    first = {"examples": 120.0}
    for _ in range(2):
        assert server.ask(one, "tell", round=round_id, metrics=first).type == "tell"
    answer = server.ask(one, "tell", round=round_id, metrics={"examples": 121.0})
    assert answer.fields["code"] == "duplicate-upload"
    assert server.ask(two, "tell", round=round_id, metrics={"a": "b"}).fields["code"] == "bad-input"
    for key, wanted in ((server.coordinator, "not-allowed"), (one, "unknown-round")):
        answer = server.ask(key, "tell", round="9-00000000", metrics=first)
        assert answer.fields["code"] == wanted
    names = server.latest.server_round.names
    assert told(server, round_id) == {names[one]: first}
    # they outlive the process, and not the round
    server.restart()
    assert told(server, round_id) == {names[one]: first}
    server.ask(server.coordinator, "abort", round=round_id, reason="a test")
    assert told(server, round_id) == {names[one]: first}
    database = server.store.database
    database.forget_round(round_id)
    assert database.public_metrics(round_id) == {}


def test_what_cannot_be_stored_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(0, tmp_path)
    round_id = server.open()

    def full(*_: Any) -> None:
        raise NotStored("the disk is full")

    monkeypatch.setattr(type(server.store.database), "add_public_metrics", full)
    answer = server.ask(server.keys[0], "tell", round=round_id, metrics={"examples": 1.0})
    assert answer.fields["code"] == "not-stored"
    assert told(server, round_id) == {}


def test_a_client_that_came_after_the_round_was_opened_sends_none(tmp_path: Path) -> None:
    server = Server(0, tmp_path)
    round_id = server.open()
    late = server.keys[0]
    entry = server.latest
    members = {k: one for k, one in entry.server_round.members.items() if k != late}
    entry.server_round = replace(entry.server_round, members=members)
    answer = server.ask(late, "tell", round=round_id, metrics={"examples": 1.0})
    assert "before you were on the list" in answer.fields["message"]


@pytest.mark.slow
def test_they_go_along_with_an_update(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path, clients=3)
    one, two, three = (str(tmp_path / f"{name}.toml") for name in pair.names)
    np.save(tmp_path / "update.npy", np.ones(3, np.float32))
    with running(pair), Coordinator.from_config(tmp_path / "coordinator.toml") as coordinator:
        round_id = pair.open(method="radix", dim=3, max_clients=3)
        reported: list[str] = []
        with Client.from_config(one, report=reported.append) as client:
            with pytest.raises(InputError, match="is not a finite number"):
                client.submit(np.ones(3), round_id, public_metrics={"loss": float("nan")})
            # an earlier process has sent others: the upload counts all the same
            pair.caller(pair.names[0], "s0").ask("tell", round=round_id, metrics={"loss": 9.0})
            client.submit(np.ones(3), round_id, public_metrics=METRICS)
        assert "goes on without these public metrics" in reported[-1]
        command = ["submit", two, str(tmp_path / "update.npy")]
        for wrong in ("loss", "loss=x", "=1"):
            with pytest.raises(SystemExit):
                cli.main([*command, "--public-metric", wrong])
        assert "write it like examples=120" in capsys.readouterr().err
        assert cli.main([*command, "--public-metric", "a=1", "--public-metric", "b=0.5"]) == 0

        def train(model: np.ndarray) -> None:
            model += 1

        with Client.from_config(three) as client:
            client.fit(np.zeros(3), train, 1, public_metrics=lambda model: {"sum": model.sum()})
            said = {
                pair.names[0]: {"loss": 9.0},
                pair.names[1]: {"a": 1.0, "b": 0.5},
                pair.names[2]: {"sum": 3.0},
            }
            # for everybody in the cohort
            assert client.public_metrics(round_id) == said
        assert coordinator.public_metrics(round_id) == said
        capsys.readouterr()
        assert cli.main(["round", "metrics", str(tmp_path / "coordinator.toml")]) == 0
        assert json.loads(capsys.readouterr().out) == said
        # a server may say anything
        answer = coordinator.servers[0].ask("metrics", {"round": round_id})
        for lie in (b"", b"[]", b'{"client-1": {"loss": "x"}}', b"\xff"):
            answer.arrays["metrics"] = np.frombuffer(lie, np.uint8)
            monkeypatch.setattr(type(coordinator.servers[0]), "ask", lambda *_, **__: answer)
            with pytest.raises(PeerProtocolError, match="no public metrics"):
                coordinator.public_metrics(round_id)
