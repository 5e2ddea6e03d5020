"""The start of a server: it listens before it compiles, and is ready for its peer after that."""

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError, PeerUnavailable
from securemedian.mpc.protocols import compiling
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers.computing import threads
from securemedian.servers.computing.engine import Engine, Engines
from securemedian.servers.computing.threads import ThreadBackend
from securemedian.servers.network.control import Hello
from tests.daemons import START_S, Pair, wait_until
from tests.servers_alone import Server, hello

# a server whose kernels are compiled once a file is there, whose name is its first argument
SLOW_COMPILER = """
import pathlib, sys, time
from securemedian import cli
from securemedian.mpc.protocols import compiling
go_on, compile_kernels = pathlib.Path(sys.argv.pop(1)), compiling.compile_kernels
def slowly(protocol, told):
    while not go_on.exists():
        time.sleep(0.05)
    compile_kernels(protocol, told)
compiling.compile_kernels = slowly
sys.exit(cli.main())
"""
NO_COMPILER = """
import sys
from securemedian import cli
from securemedian.mpc.protocols import compiling
def compile_kernels(protocol, told):
    raise OSError("no such compiler")
compiling.compile_kernels = compile_kernels
sys.exit(cli.main())
"""


def the_engines() -> Engines:
    def open_lanes(session_id: bytes, count: int) -> Any:
        raise AssertionError("no lane is needed")

    backend = ThreadBackend(0, ProtocolParams(), open_lanes)
    return Engines(backend, partial(Engine, backend, lambda: 1 << 20, lambda: None), lambda: None)


def test_an_engine_compiles_beside_its_caller_and_says_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(compiling, "compile_kernels", lambda protocol, told: may_end.wait(30))
    engines = the_engines()
    engines.compile()
    assert not engines.ready
    engines.check()
    assert not engines.close(), "its thread still runs"
    may_end.set()
    wait_until(lambda: engines.ready)
    wait_until(engines.close)


def test_kernels_that_cannot_be_compiled_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_kernels(protocol: ProtocolParams, told: object) -> None:
        raise OSError("no such compiler")

    monkeypatch.setattr(compiling, "compile_kernels", compile_kernels)
    engines = the_engines()
    engines.compile()
    wait_until(engines.close)
    with pytest.raises(LocalProtocolError, match="could not be compiled"):
        engines.check()


def test_a_compiler_that_ends_while_it_is_asked_after_ends_no_server() -> None:
    engines = the_engines()

    class Compiler(threading.Thread):
        def is_alive(self) -> bool:
            engines.ready = True
            return False

    engines._compiler = Compiler()
    engines.check()
    assert engines.ready


def test_a_server_that_compiles_for_long_logs_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_kernels(protocol: ProtocolParams, told: compiling.Told) -> None:
        for seconds, done in ((1, 10), (20, 25), (21, 26), (80, 100)):
            monkeypatch.setattr(time, "monotonic", lambda now=seconds: float(now))
            told(done, 100)

    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(compiling, "compile_kernels", compile_kernels)
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(threads.logs, "event", lambda name, **about: logged.append((name, about)))
    ThreadBackend(0, ProtocolParams(), lambda *_: pytest.fail("no lane is needed")).start()
    assert logged == [("compiling", {"done": 25, "total": 100, "seconds_to_go": 60})]


@pytest.mark.parametrize("party", [0, 1])
def test_a_server_that_compiles_is_not_there_for_its_peer_and_lets_no_limit_run(
    tmp_path: Path, party: int
) -> None:
    server = Server(party, tmp_path, ready=False)
    server.now += 10 * server.config.peer_wait_s
    server.rounds.tick()
    server.hear(hello())
    assert server.sent == [] and not server.rounds.peer.linked
    assert server.ask(server.coordinator, "info").fields["peer_problem"].endswith("its kernels")
    if party == 0:
        server.ask_to_open()
        assert server.replies[-1].fields["code"] == PeerUnavailable.code
    server.engines.ready = True
    server.rounds.tick()
    assert [type(message) for message in server.sent] == [Hello]
    assert "has not appeared" in server.rounds.peer.problem
    server.hear(hello())
    assert server.rounds.peer.linked
    server.rounds.tick()


@pytest.mark.slow
def test_a_server_listens_soon_and_answers_while_it_compiles(tmp_path: Path) -> None:
    """Its peer, which is ready, has shorter limits than the compiler takes."""
    limits = {"peer_timeout_s": 2, "channel_timeout_s": 4}
    pair, go_on = Pair(tmp_path / "keys", settings=limits), tmp_path / "go-on"
    try:
        pair.start("s1")
        pair.start("s0", program=("-c", SLOW_COMPILER, str(go_on)), until="listening")
        begun, answers = time.monotonic(), 0
        while answers < 10 or time.monotonic() - begun < limits["channel_timeout_s"] + 1:
            answers += not pair.caller("client-1", "s0").ask("info").fields["peer_linked"]
            time.sleep(0.05)
        assert not any(event["event"] == "compiled" for event in pair.events("s0"))
        go_on.touch()
        pair.link()
        times = {event["event"]: event["time"] for event in pair.events("s0") + pair.events("s1")}
        assert times["peer-linked"] >= times["compiled"]
        round_id = pair.open(method="pairwise", dim=100, max_clients=2)
        for name in pair.names[:2]:
            pair.submit(name, np.ones(100, np.float32))
        pair.wait("published")
        assert (pair.result(round_id) == 1).all()
    finally:
        pair.close()


@pytest.mark.slow
def test_a_server_that_compiles_stops_at_once_and_one_that_cannot_says_so(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "keys", clients=2)
    try:
        never = str(tmp_path / "go-on")
        pair.start("s0", program=("-c", SLOW_COMPILER, never), until="compiling")
        assert pair.stop("s0") == 0
        command = [sys.executable, "-c", NO_COMPILER, "serve", str(pair.folder / "s0.toml")]
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=START_S, check=False
        )
        assert ended.returncode == 2 and "could not be compiled" in ended.stderr
    finally:
        pair.close()
