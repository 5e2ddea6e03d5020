"""The start of a server: it listens before it compiles, and is ready for its peer after that."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError, PeerUnavailable
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import pipeline
from securemedian.servers.computing.backends.threads import ThreadBackend
from securemedian.servers.computing.engine import Engine
from securemedian.servers.network.control import Hello
from tests.daemons import Pair, wait_until
from tests.servers_alone import Server, hello

# with a warm cache, on a machine that runs other tests as well
LISTENING_S = 30.0
# a server whose kernels take this many seconds to compile
COMPILE_S = 6.0
SLOW_COMPILER = f"""
import sys, time
from securemedian import cli
from securemedian.mpc import pipeline
warm_up = pipeline.warm_up
pipeline.warm_up = lambda protocol: (time.sleep({COMPILE_S}), warm_up(protocol))
sys.exit(cli.main())
"""
NO_COMPILER = """
import sys
from securemedian import cli
from securemedian.mpc import pipeline
def warm_up(protocol):
    raise OSError("no such compiler")
pipeline.warm_up = warm_up
sys.exit(cli.main())
"""


def an_engine() -> Engine:
    def open_lane(session_id: bytes, lane: int) -> Any:
        raise AssertionError("no lane is needed")

    backend = ThreadBackend(0, ProtocolParams(), open_lane)
    return Engine(backend, lambda: 1 << 20, lambda: None)


def test_an_engine_compiles_beside_its_caller_and_says_when_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(pipeline, "warm_up", lambda protocol: may_end.wait(30))
    engine = an_engine()
    engine.compile()
    assert not engine.ready and engine.phase == "compiling"
    engine.check()
    assert not engine.close(), "its thread still runs"
    may_end.set()
    wait_until(lambda: engine.ready)
    wait_until(engine.close)
    assert engine.phase == ""


def test_kernels_that_cannot_be_compiled_end_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(protocol: ProtocolParams) -> None:
        raise OSError("no such compiler")

    monkeypatch.setattr(pipeline, "warm_up", warm_up)
    engine = an_engine()
    engine.compile()
    wait_until(engine.close)
    with pytest.raises(LocalProtocolError, match="could not be compiled"):
        engine.check()


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
    server.engine.ready = True
    server.rounds.tick()
    assert [type(message) for message in server.sent] == [Hello]
    assert "has not appeared" in server.rounds.peer.problem
    server.hear(hello())
    assert server.rounds.peer.linked
    server.rounds.tick()


@pytest.mark.slow
def test_a_server_listens_soon_and_answers_while_it_compiles(tmp_path: Path) -> None:
    """Its peer, which is ready, has shorter limits than the compiler takes."""
    pair = Pair(tmp_path / "keys", settings={"peer_timeout_s": 2, "channel_timeout_s": 4})
    try:
        pair.start("s1")
        start = time.monotonic()
        pair.start("s0", program=("-c", SLOW_COMPILER), until="listening")
        assert time.monotonic() - start < LISTENING_S
        answers, slowest = 0, 0.0
        while not any(event["event"] == "compiled" for event in pair.events("s0")):
            begun = time.monotonic()
            info = pair.caller("client-1", "s0").ask("info").fields
            slowest = max(slowest, time.monotonic() - begun)
            answers += not info["peer_linked"]
            time.sleep(0.05)
        assert answers >= 10 and slowest < COMPILE_S / 2
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
        pair.start("s0", program=("-c", SLOW_COMPILER), until="compiling")
        start = time.monotonic()
        assert pair.stop("s0") == 0 and time.monotonic() - start < COMPILE_S
        command = [sys.executable, "-c", NO_COMPILER, "serve", str(pair.folder / "s0.toml")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 2 and "could not be compiled" in ended.stderr
    finally:
        pair.close()
