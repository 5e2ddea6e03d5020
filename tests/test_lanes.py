"""Lanes that hang: the cause that was seen is closed, and a server goes on without them."""

import ast
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from securemedian.mpc.errors import (
    ChannelClosed,
    LocalProtocolError,
    PeerDeviated,
    SecureMedianError,
)
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.dealing import Dealing, deal
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.share import Upload, WordsUpload
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.servers.computing import engine
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.engine import MOST_ABANDONED, Engine
from securemedian.servers.computing.threads import ThreadComputation
from tests.daemons import ROOT, SETTINGS, Pair, wait_until
from tests.engines import Servers

pytestmark = pytest.mark.slow

# for what takes seconds on an idle machine
LIMIT_S = 180.0


def uncopied_sends(source: str) -> list[int]:
    """Return the lines of calls of `send..` with `copy` other than True."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("send")
        and any(
            word.arg == "copy" and not (isinstance(word.value, ast.Constant) and word.value.value)
            for word in node.keywords
        )
    ]


def test_only_the_loop_of_a_daemon_sends_without_copying() -> None:
    assert uncopied_sends("s.send(b'', copy=False)") == [1]
    folders = ("mpc", "servers", "clients", "benchmarks", "laboratory", "common")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT): uncopied_sends(path.read_text()) for path in paths}
    found = {path: lines for path, lines in found.items() if lines}
    assert list(found) == [Path("servers/network/transport.py")]
    source = ast.parse((ROOT / "servers/network/transport.py").read_text())
    (port,) = (node for node in source.body if getattr(node, "name", "") == "ClientPort")
    (line,) = found[Path("servers/network/transport.py")]
    assert port.lineno < line <= (port.end_lineno or 0)


# Engines


PARAMS = RoundParams(Bucketed(buckets=6, uploads="unverified"), dim=300, max_clients=3)


class HangingServers(Servers):
    """Two engines that compute rounds of PARAMS."""

    def prepare(self, session: bytes) -> None:
        for each in self.engines:
            each.prepare(session, PARAMS)

    def drop(self) -> None:
        """Drop the session at both, where S0's lanes may hang, and wait for S1 to have done so."""
        for each in self.engines:
            each.drop()
        wait_until(lambda: not self.engines[1].poll() and not self.engines[1].stopping)

    def compute(self) -> list[Outcome]:
        halves = [share.SeedUpload(PARAMS.form.layout, bytes([i]) * 16) for i in range(3)]
        for each in self.engines:
            each.start(RoundInput(PARAMS, halves, [1] * 3))
        results = [wait_until(each.poll) for each in self.engines]
        assert all(isinstance(result, Outcome) for result in results), results
        return results


def test_material_of_a_round_is_made_by_itself_and_goes_with_its_session() -> None:
    """Each time other material, of which nothing outlasts a session, nor another round's."""
    servers = Servers(LIMIT_S)
    params = RoundParams(Bucketed(security="malicious"), dim=300, max_clients=3)
    seen: list[bytes] = []

    def made(session: bytes) -> list[ThreadComputation]:
        for each in servers.engines:
            each.prepare(session, params)
        assert all(each.prepares for each in servers.engines)
        # the first one compiles
        wait_until(lambda: not any(e.poll() or e.prepares for e in servers.engines), LIMIT_S)
        assert all(each.progress == (600, 600) for each in servers.engines)
        computations: list[Any] = [each._session.computation for each in servers.engines]  # type: ignore[union-attr]
        one, other = (each._prepared.session_id for each in computations)
        assert one == other and one not in seen
        seen.append(one)
        return computations

    first, again = made(b"1" * 16), made(b"1" * 16)
    assert first == again and not any(each._bound for each in again)
    for each in servers.engines:
        each.drop()
    assert made(b"2" * 16) != first
    for each in servers.engines:
        each.close()


@pytest.mark.parametrize("error", [PeerDeviated("a wrong sum"), ChannelClosed("dropped")])
def test_a_dropped_job_tells_only_that_the_peer_deviated(error: SecureMedianError) -> None:
    closed = threading.Event()

    def run_round(*_: object) -> Outcome:
        assert closed.wait(LIMIT_S)
        raise error

    fake = SimpleNamespace(
        session_id=b"", close=closed.set, release=lambda: None, run_round=run_round
    )
    fake.fill = lambda *_: Cost()
    backend = cast(Any, SimpleNamespace(open=lambda _: fake))
    made = Engine(backend, lambda: 1 << 30, lambda: None)
    made.prepare(b"", PARAMS)
    made.start(RoundInput(PARAMS, [], []))
    made.drop()
    polled = []
    while made.stopping:
        polled.append(made.poll())
        time.sleep(0.01)
    assert [one for one in polled if one] == [error] * isinstance(error, PeerDeviated)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingServers]:
    monkeypatch.setattr(engine, "STOP_S", 0.3)
    made = HangingServers(LIMIT_S)
    yield made
    made.let_go()
    for each in made.engines:
        wait_until(each.close)


def session(number: int) -> bytes:
    return bytes([number]) * 16


def test_a_round_goes_on_beside_a_computation_that_hangs(hanging: HangingServers) -> None:
    servers = hanging
    servers.hangs = True
    servers.prepare(session(1))
    servers.drop()
    servers.hangs = False
    servers.prepare(session(2))
    servers.compute()
    assert servers.engines[0].session_id == session(2)
    # the server does not touch a folder that a thread may use; at the other server nothing hung
    hung = servers.pipes[session(1)]
    assert all(one.closed and not one.released for one, _ in hung)
    assert all(other.released for _, other in hung)
    assert not servers.engines[0].close() and servers.engines[1].close()
    servers.let_go()

    def released() -> bool:
        servers.engines[0].check()
        return all(one.released for one, _ in hung)

    wait_until(released)
    assert servers.engines[0].close()


def test_a_hung_computation_is_abandoned_without_another_round(
    hanging: HangingServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "STOP_S", LIMIT_S)
    servers = hanging
    servers.hangs = True
    servers.prepare(session(1))
    servers.drop()
    servers.engines[0].check()
    # it has its time to stop
    assert not servers.engines[0]._abandoned
    # this one passes
    servers.engines[0]._stop_by -= LIMIT_S
    servers.engines[0].check()
    assert len(servers.engines[0]._abandoned) == 1
    start = time.monotonic()
    servers.engines[0].prepare(session(2), PARAMS)
    assert time.monotonic() - start < LIMIT_S, "it waited for what was abandoned"


def test_so_many_hung_computations_end_the_server(hanging: HangingServers) -> None:
    servers = hanging
    servers.hangs = True
    for number in range(1, MOST_ABANDONED + 1):
        servers.prepare(session(number))
        servers.drop()
    with pytest.raises(LocalProtocolError, match="do not stop"):
        servers.prepare(session(100))
    with pytest.raises(LocalProtocolError, match="do not stop"):
        servers.engines[0].check()
    servers.engines[1].check()
    servers.let_go()
    # all of them have ended after all: there is nothing to end the server for
    wait_until(lambda: servers.engines[0].close())
    servers.engines[0].check()


def two_dealings() -> tuple[Dealing, list[list[Upload]]]:
    """Return a shape, and per party the halves of a right dealing and of a wrong one."""
    shape = Dealing(300, 6, 4)
    right, wrong = deal(shape), deal(shape)
    wrong.words = WordsUpload(shape.layout, wrong.words.packed ^ np.uint64(1))
    return shape, [[right.seeded, wrong.seeded], [right.words, wrong.words]]


def test_dealings_are_checked_beside_what_the_lanes_do(hanging: HangingServers) -> None:
    servers = hanging
    servers.hangs = True
    servers.prepare(session(1))
    # all lanes hang, except the stream of the checks
    servers.pipes[session(1)][-1][0].blocked.clear()
    shape, halves = two_dealings()
    for _ in range(2):
        for each in servers.engines:
            each.toss(lambda coin: coin * 2)
        coin, other = (wait_until(each.poll) for each in servers.engines)
        assert coin == other and len(coin.seed) == SEED_BYTES and coin.tokens == coin.seed * 2
        for each, own in zip(servers.engines, halves, strict=True):
            each.check_dealings(shape, own, coin.seed)
            assert each.phase == "preparing and checking dealings"
        for each in servers.engines:
            checked = wait_until(each.poll)
            assert checked.passed == [True, False] and each.phase == "preparing"
    servers.let_go()
    costs = [outcome.cost for outcome in servers.compute()]
    for cost, other in (costs, costs[::-1]):
        assert 0 < cost.checking_bytes_sent == other.checking_bytes_received < cost.bytes_sent
        assert cost.checking_seconds > 0 and cost.checking_rounds > 2
    # the count is that round's
    servers.prepare(session(1))
    assert all(outcome.cost.checking_rounds == 0 for outcome in servers.compute())


def test_a_check_that_hangs_is_abandoned_and_keeps_its_sockets(hanging: HangingServers) -> None:
    servers = hanging
    servers.prepare(session(1))
    wait_until(lambda: all(each.session_id for each in servers.engines))
    pipes = servers.pipes[session(1)]
    pipes[-1][0].blocked.set()
    shape, halves = two_dealings()
    for each, own in zip(servers.engines, halves, strict=True):
        each.check_dealings(shape, own, COIN)
    servers.drop()
    time.sleep(0.4)
    servers.engines[0].check()
    assert len(servers.engines[0]._abandoned) == 1
    assert not any(one.released for one, _ in pipes) and all(one.closed for one, _ in pipes)
    servers.prepare(session(2))
    servers.compute()
    servers.let_go()
    wait_until(servers.engines[0].close)
    assert all(one.released for one, _ in pipes)


def test_an_error_of_a_check_is_told_like_any_other(hanging: HangingServers) -> None:
    servers = hanging
    with pytest.raises(LocalProtocolError, match="before the round is prepared"):
        servers.engines[0].check_dealings(*two_dealings()[:1], [], COIN)
    servers.prepare(session(1))
    shape, halves = two_dealings()
    servers.engines[0].check_dealings(shape, halves[0], COIN)
    servers.engines[1].drop()
    error = wait_until(servers.engines[0].poll)
    assert isinstance(error, ChannelClosed)


# Daemons


# If a file NAME.hang lies beside its configuration, each lane of this server that sends anything
# hangs for good. A user saw this in a socket of zmq's collector that leads nowhere. The collector's
# own end, which Python's end calls, then waits for ever or aborts the process.
HANGING = """
import sys
import threading
from pathlib import Path
import zmq
from zmq.utils import garbage
from securemedian.cli import main
from securemedian.servers.computing import engine
from securemedian.servers.network import transport

engine.STOP_S = 1.0
hang = Path(sys.argv[-1]).with_suffix(".hang")
send = transport.ZmqLink.send
zmq.Frame(bytes(zmq.COPY_THRESHOLD), copy=False)
nowhere = garbage.gc.context.socket(zmq.PUSH)
one_at_a_time = threading.Lock()

def send_or_hang(link, parts):
    if hang.exists():
        with one_at_a_time:
            nowhere.send(b"")
    send(link, parts)

transport.ZmqLink.send = send_or_hang
sys.exit(main())
"""
COIN = bytes(SEED_BYTES)
DIM = 500
OPEN: dict[str, Any] = {
    "model": np.zeros(DIM, np.float32),
    "bucket_range": {"policy": "coordinate"},
    "reset": True,
    "method": "bucketed",
    "buckets": 8,
    "dim": DIM,
    "max_clients": 3,
}
VALUES = (-0.2, 0.1, 0.2)


class HangingPair(Pair):
    """A pair of daemons whose lanes can be made to hang."""

    def run(self, *servers: str) -> None:
        self.start(*servers, program=["-c", HANGING])
        self.link()

    @contextmanager
    def hang(self, server: str) -> Iterator[None]:
        """Let what `server` sends on a lane in this time hang, for good."""
        file = self.folder / f"{server}.hang"
        file.touch()
        yield
        file.unlink()

    def named(self, server: str, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events(server) if each["event"] == event]

    def fail_a_round(self) -> None:
        self.open(**OPEN)
        wait_until(lambda: self.status()["state"] == "failed")
        assert "sent nothing for 2 s" in self.status()["reason"]

    def allow(self, attempts: int) -> None:
        """Let both servers try so often what breaks off, in the rounds to come.

        Of their limits the smaller one counts.
        """
        for server in ("s0", "s1"):
            before = len(self.named(server, "reloaded"))
            self.configure(server, max_attempts=attempts)
            self.tell(server, signal.SIGHUP)
            wait_until(partial(self._has_reloaded, server, before))

    def _has_reloaded(self, server: str, before: int) -> bool:
        return len(self.named(server, "reloaded")) > before

    def publish_a_round(self) -> None:
        """Publish a round, whose median of three is the second, to half a bucket.

        A server may need longer to let go of the last session, or to get the processor, than the
        other one waits for a message.
        """
        self.allow(attempts=5)
        round_id = self.open(**OPEN)
        for name, value in zip(self.names, VALUES, strict=True):
            self.submit(name, np.full(DIM, value, np.float32))
        self.wait("published")
        assert np.allclose(self.result(round_id), VALUES[1], atol=0.1)
        self.allow(attempts=1)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[HangingPair]:
    # a round that breaks off is not tried again, so that each hangs in one session
    settings = SETTINGS | {"channel_timeout_s": 2, "max_attempts": 1}
    made = HangingPair(tmp_path / "keys", settings=settings)
    try:
        made.run("s0", "s1")
        yield made
    finally:
        made.close()


def test_a_server_whose_lanes_hang_goes_on_or_ends_itself_and_stops(pair: HangingPair) -> None:
    with pair.hang("s0"):
        for _ in range(MOST_ABANDONED):
            pair.fail_a_round()
        assert pair.ended("s0") == 2
    assert "do not stop" in pair.named("s0", "failed")[-1]["reason"]
    assert len(pair.named("s0", "computation-abandoned")) == MOST_ABANDONED
    pair.run("s0")
    pair.publish_a_round()
    # the lanes of the session that was kept, and then those of a new one
    for server, times in (("s0", 1), ("s1", 2)):
        before = len(pair.named(server, "computation-abandoned"))
        with pair.hang(server):
            for _ in range(times):
                pair.fail_a_round()
        pair.publish_a_round()
        abandoned = pair.named(server, "computation-abandoned")[before:]
        assert [each["abandoned"] for each in abandoned] == [1, 2][:times]
    start = time.monotonic()
    for server in ("s0", "s1"):
        assert pair.stop(server) == 0, pair.output(server)
        assert pair.events(server)[-1]["event"] == "stopped"
        assert "Assertion failed" not in pair.output(server)
    assert time.monotonic() - start < SETTINGS["stop_limit_s"]
