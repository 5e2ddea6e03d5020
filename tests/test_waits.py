"""The line of a wait: what it waits for, from whom, until when (`common.terminal`)."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from securemedian.clients.config import ClientConfig
from securemedian.common import terminal
from securemedian.common.status import COMPILING
from securemedian.common.terminal import Teller, Wait
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ChannelTimeout
from securemedian.mpc.protocols import wire
from securemedian.operating import keygen
from tests.daemons import free_ports
from tests.servers_alone import Server, hello


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    return now


def test_a_report_gets_a_line_after_a_while_and_then_each_minute(clock: list[float]) -> None:
    said: list[str] = []
    wait = Wait(said.append, lambda: "a round to open at S0", 3700.0)
    for clock[0] in (100.0, 102.9):
        wait.turn()
    assert said == []
    for clock[0] in (103.0, 104.0, 162.9):
        wait.turn()
    assert said == ["waiting for a round to open at S0, until 01:01:40"]
    clock[0] = 163.0
    wait.turn()
    wait.end()
    assert len(said) == 2


def test_a_terminal_shows_it_in_place(
    clock: list[float], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    tell = Teller("securemedian: ")
    number = [1]
    wait = Wait(tell, lambda: f"the result of round {number[0]} from S0 and S1", 1e6)
    clock[0] = 104.0
    wait.turn()
    number[0], clock[0] = 2, 105.0
    wait.turn()
    tell("S0 is back")
    wait.end()
    shown = capsys.readouterr().err.split("\r\x1b[K")
    assert [len(line) < 60 for line in shown] == [True] * 3
    assert shown[0].startswith("securemedian: waiting for the result of round 1 from S0 and")
    assert "round 2" in shown[1] and shown[2] == "securemedian: S0 is back\n"


def config(folder: Path) -> ClientConfig:
    keygen.make(folder, ["a", "b", "c"], keygen.network("127.0.0.1", "127.0.0.1", None))
    return ClientConfig.load(folder / "coordinator.toml")


def test_the_wait_for_a_round_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "AFTER_S", 0.0)
    said: list[str] = []
    service = Coordinator(config(tmp_path), said.append)
    try:
        limit = service.limit(0.1)
        with pytest.raises(ChannelTimeout, match="nothing came within 0.1 s"):
            service.wait(0, lambda: None, limit, "nothing came", "a thing from S0")
    finally:
        service.close()
    assert said[0].startswith("waiting for a thing from S0, until ")


def test_the_wait_for_an_answer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there."""
    monkeypatch.setattr(terminal, "AFTER_S", 0.0)
    text = (tmp_path / "x").absolute()
    made = config(text)
    said: list[str] = []
    object.__setattr__(made, "reply_timeout_s", 0.5)
    object.__setattr__(made.s0, "address", f"tcp://127.0.0.1:{free_ports(1)[0]}")
    with Coordinator(made, report=said.append) as coordinator, pytest.raises(Exception, match="S0"):
        coordinator.status()
    assert said[0].startswith(f"waiting for the answer to 'status' from S0 at {made.s0.address}")


def test_a_round_is_opened_once_the_servers_have_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "AFTER_S", 0.0)
    linked = {"peer_linked": True, "peer_problem": ""}
    s0 = [
        {"peer_linked": False, "peer_problem": COMPILING},
        {"peer_linked": False, "peer_problem": f"{COMPILING}, 40 s to go"},
        {"peer_linked": False, "peer_problem": "s1 has not appeared yet"},
        {"peer_linked": False, "peer_problem": "s1 has not appeared yet"},
        linked,
    ]
    s1 = [
        {"peer_linked": False, "peer_problem": COMPILING},
        {"peer_linked": False, "peer_problem": f"{COMPILING}, 9 s to go"},
        # it sees the other one first
        linked,
    ]
    said: list[str] = []
    made = config(tmp_path)
    object.__setattr__(made, "poll_interval_s", 0.01)
    monkeypatch.setattr(terminal, "EVERY_S", 0.0)
    with Coordinator(made, report=said.append) as coordinator:

        def ask(answers: list[dict[str, Any]]) -> Any:
            return lambda *_: wire.Message(
                "info", answers.pop(0) if len(answers) > 1 else answers[0]
            )

        for server, answers in zip(coordinator.servers, (s0, s1), strict=True):
            monkeypatch.setattr(server, "ask", ask(answers))
        coordinator._wait_for_compilers(10.0)
    assert s0 == [linked]
    assert said[0].startswith(f"waiting for S0 ({COMPILING}) and S1 ({COMPILING}), until ")
    assert f"S0 ({COMPILING}, 40 s to go) and S1 ({COMPILING}, 9 s to go)" in said[1]
    assert "waiting for S0 and S1, which connect to each other, until" in said[2]


def test_servers_that_do_not_compile_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of S0 then says what is wrong."""
    asked = threading.Event()
    with Coordinator(config(tmp_path)) as coordinator:

        def ask(*_: object) -> wire.Message:
            asked.set()
            return wire.Message("info", {"peer_linked": False, "peer_problem": "s1 was stopped"})

        for server in coordinator.servers:
            monkeypatch.setattr(server, "ask", ask)
        coordinator._wait_for_compilers(10.0)
    assert asked.is_set()


def test_a_server_says_how_long_it_still_compiles(tmp_path: Path) -> None:
    server = Server(0, tmp_path, ready=False)
    for left, end in ((None, "its kernels"), (39.7, "its kernels, 40 s to go")):
        server.backend.ready_in_s = left
        for op in ("info", "status"):
            told = server.ask(server.coordinator, op).fields["peer_problem"]
            assert told.startswith(COMPILING) and told.endswith(end)
    # a round that was there before a restart
    server.engines.ready = True
    server.rounds.tick()
    server.hear(hello())
    server.open()
    assert server.ask(server.coordinator, "status").fields["phase"] == ""
    server.engines.ready = False
    assert server.ask(server.coordinator, "status").fields["phase"] == "compiling"
