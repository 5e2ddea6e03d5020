"""The soak: what its auditor notices, what its faults do, and a short one over real daemons."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian.common.states import State
from securemedian.coordinator.rounds import Patience, Rounds
from securemedian.mpc.errors import RoundBusy, SecureMedianError, UnknownRound
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network.control import Held
from tests.daemons import wait_until
from tests.servers_alone import Server
from tests.soak import disk, rounds, run
from tests.soak.__main__ import main
from tests.soak.audit import MISSING, SAMPLES, TOO_FEW, Audit, Ended
from tests.soak.client import update
from tests.soak.disk import Disk
from tests.soak.faults import Saboteurs, Transitions
from tests.soak.processes import Revivals, size
from tests.soak.proxy import CALM, Proxies, Proxy, Trouble
from tests.soak.rounds import reference
from tests.soak.run import Soak
from tests.soak.service import COHORTS

ROUND = "7-3fa9c1d2"
COUNTS = ("uploads_lost", "wrong_results", "reused_correlations", "stuck")
# the figures of a report
FIGURES = {"faults", "rounds", "published", "failed", *COUNTS, "recovery_seconds"}


def counts(audit: Audit) -> tuple[int, ...]:
    report = audit.report()
    assert audit.clean == (not any(report[name] for name in COUNTS))
    assert bool(report["findings"]) != audit.clean
    return tuple(report[name] for name in COUNTS)


def published(*included: str, **changes: Any) -> Ended:
    return Ended(ROUND, "mean", "published", included=included, digest="right", **changes)


@pytest.mark.parametrize(
    ("ended", "lost"),
    [
        (published("a", "b"), 0),
        (published("a", left_out={"b": "its values are out of range"}), 0),
        (published("a", left_out={"b": "its upload reached only s0"}), 1),
        (published("a", left_out={"b": "its dealing reached neither server"}), 1),
        (published("a"), 1),
        (published(), 2),
        (Ended(ROUND, "mean", "failed", f"1 complete upload, and s0{TOO_FEW}2"), 2),
        (Ended(ROUND, "mean", "failed", "aborted by coordinator: enough"), 0),
    ],
)
def test_an_acknowledged_upload_is_in_the_result_or_its_client_is_named(
    ended: Ended, lost: int
) -> None:
    audit = Audit()
    for client in "ab":
        audit.acknowledged(client, ROUND)
    audit.closed(ended)
    assert counts(audit) == (lost, 0, 0, 0)
    if ended.state == "published":
        late = Audit()
        late.closed(ended)
        for client in "ab":
            late.acknowledged(client, ROUND)
        assert counts(late) == (lost, 0, 0, 0), "a client may tell later than a server"


def test_the_texts_that_tell_a_lost_upload_are_those_of_the_servers(tmp_path: Path) -> None:
    server = Server(0, tmp_path)
    round_id = server.open()
    server.upload(server.keys[0], round_id)
    server.ask(server.coordinator, "close", round=round_id)
    server.hear(Held(round_id, {}))
    state, reason = server.state
    left_out = server.latest.server_round.left_out
    assert state == "failed" and TOO_FEW in reason
    for text in MISSING:
        assert any(text in why for why in left_out.values()), (text, left_out)


def test_a_round_that_a_server_forgets_has_lost_its_uploads() -> None:
    audit = Audit()
    audit.acknowledged("a", ROUND)
    audit.closed(Ended(ROUND, "mean", "forgotten", "s0 knows no such round"))
    assert counts(audit) == (1, 0, 0, 1)


def test_wrong_results_are_noticed_whoever_gets_them_and_when() -> None:
    audit = Audit()
    audit.closed(published("a", right=False))
    assert counts(audit) == (0, 1, 0, 0)
    audit = Audit()
    audit.result("a", ROUND, "right")
    audit.result("b", ROUND, "wrong")
    audit.closed(published("a", "b", "c"))
    assert counts(audit) == (0, 1, 0, 0)
    audit.result("c", ROUND, "wrong, too")
    assert counts(audit) == (0, 2, 0, 0)
    audit = Audit()
    audit.result("a", ROUND, "of a round that S0 says has failed")
    audit.closed(Ended(ROUND, "mean", "failed", "attempts used up"))
    assert counts(audit) == (0, 1, 0, 0)
    audit.result("b", ROUND, "of the same, later")
    assert counts(audit) == (0, 2, 0, 0)
    audit = Audit()
    audit.goes_on(ROUND, True)
    assert audit.clean
    audit.goes_on(ROUND, False)
    assert counts(audit) == (0, 1, 0, 0)


def teller(audit: Audit) -> Callable[..., None]:
    """Return what lets an auditor hear a line of a server's log."""

    def hear(server: str, event: str, **fields: Any) -> None:
        audit.logged(server, {"event": event, **fields}, 1.0)

    return hear


def test_sessions_are_used_once() -> None:
    audit = Audit()
    hear = teller(audit)
    for server in ("s0", "s1"):
        hear(server, "started")
        hear(server, "session-established", session="first")
        hear(server, "round-running", round=ROUND, session="first")
    hear("s0", "round-running", round="8-3fa9c1d2", session="first")
    hear("s0", "session-established", session="second")
    hear("s0", "round-running", round=ROUND, session="second")
    # the next vote of the round
    hear("s0", "round-running", round=ROUND, session="second", vote=2)
    assert counts(audit) == (0, 0, 0, 0)
    hear("s0", "round-running", round=ROUND, session="first")
    assert counts(audit) == (0, 0, 1, 0)
    hear("s1", "started")
    hear("s1", "session-established", session="first")
    assert counts(audit) == (0, 0, 2, 0)


def test_no_session_is_of_two_cohorts() -> None:
    audit = Audit()
    hear = teller(audit)
    for server in ("s0", "s1"):
        for session in ("first", "second"):
            hear(server, "session-established", session=session)
        hear(server, "round-running", round=ROUND, session="first")
        hear(server, "round-running", round="1-77", cohort="stroke", session="second")
    hear("s0", "round-running", round="8-3fa9c1d2", session="first")
    assert counts(audit) == (0, 0, 0, 0)
    hear("s1", "round-running", round="2-77", cohort="stroke", session="first")
    assert counts(audit) == (0, 0, 1, 0)
    hear("s0", "round-running", round="9-3fa9c1d2", session="second")
    assert counts(audit) == (0, 0, 2, 0)


def test_a_result_is_from_a_session_that_was_established_at_the_same_server() -> None:
    audit = Audit()
    hear = teller(audit)
    hear("s0", "session-established", session="first")
    for server in ("s0", "s1"):
        hear(server, "round-running", round=ROUND, session="first")
    # S1 has lost its memory, and S0 goes on with what S1 had before
    hear("s0", "round-published", round=ROUND)
    assert counts(audit) == (0, 0, 0, 0)
    hear("s1", "round-published", round=ROUND)
    assert counts(audit) == (0, 0, 1, 0)


def test_a_dealing_is_checked_under_one_coin() -> None:
    audit = Audit()
    hear = teller(audit)
    for server in ("s0", "s1", "s0"):
        hear(server, "check-begun", round=ROUND, clients=["a", "b"], coin="heads")
    hear("s1", "check-begun", round=ROUND, clients=["c"], coin="tails")
    hear("s1", "check-begun", round="8-3fa9c1d2", clients=["a"], coin="tails")
    assert counts(audit) == (0, 0, 0, 0)
    hear("s1", "check-begun", round=ROUND, clients=["b", "c"], coin="tails")
    assert counts(audit) == (0, 0, 1, 0)
    hear("s0", "check-begun", round=ROUND, clients=["a", "c"], coin="edge")
    assert counts(audit) == (0, 0, 3, 0)


def test_a_round_that_does_not_end_is_stuck() -> None:
    audit = Audit()
    audit.closed(Ended(ROUND, "mean", "stuck", "the round's end has not come"))
    assert counts(audit) == (0, 0, 0, 1)


def restart(audit: Audit, server: str, at: float) -> None:
    for event, after in (("started", 0.0), ("compiled", 2.0), ("peer-linked", 3.5)):
        audit.logged(server, {"event": event, "seconds": 1.5}, at + after)


def test_recovery_is_told_of_servers_that_had_nothing_else_in_their_way() -> None:
    audit = Audit()
    restart(audit, "s0", 0.0)
    restart(audit, "s1", 0.0)
    assert audit.report()["recovery"]["restarts"] == 0, "both started at once"
    restart(audit, "s0", 10.0)
    assert audit.report()["recovery_seconds"] == pytest.approx(2.0)
    audit.disturb(True, 21.0)
    audit.disturb(False, 22.0)
    restart(audit, "s0", 20.0)
    audit.disturb(True, 30.0)
    restart(audit, "s1", 31.0)
    report = audit.report()["recovery"]
    assert report["restarts"] == 1 and report["worst_seconds_with_compiling"] == 3.5


def test_growth_is_told_of_lives_that_are_long_enough() -> None:
    audit = Audit()
    restart(audit, "s0", 0.0)
    for sample in range(SAMPLES):
        audit.size("s0", 10**8 + 10**6 * sample, 40 + sample // (SAMPLES - 1), 10**6)
    growth = audit.report()["growth"]
    assert growth["peak_disk_mb"] == growth["last_disk_mb"] == 1.0
    assert (growth["lives"], growth["memory_mb"], growth["descriptors"]) == (1, SAMPLES / 2, 1)


def test_the_reference_is_a_sort_of_the_clients_updates() -> None:
    names, params = (
        ["client-2", "client-5", "client-1"],
        RoundParams(Pairwise(), dim=50, max_clients=5),
    )
    updates = [update(3, name, ROUND, 50) for name in names]
    middle = np.sort(updates, axis=0)[1]
    got = reference(3, params, Published(), ROUND, names)
    assert got.shape == (1, 50) and np.abs(got[0] - middle).max() < 2**-23
    assert not np.array_equal(updates[0], update(3, names[0], "8-3fa9c1d2", 50))
    assert not np.array_equal(updates[0], update(4, names[0], ROUND, 50))


# Faults


@pytest.fixture
def echo() -> Iterator[int]:
    """Give the port of a server that sends back what it gets."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(end: socket.socket) -> None:
            with end:
                while data := end.recv(1000):
                    end.sendall(data)

        def listen() -> None:
            while True:
                try:
                    end, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(end,), daemon=True).start()

        threading.Thread(target=listen, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(echo: int) -> Iterator[Proxy]:
    proxies = Proxies()
    yield proxies.add(echo)
    proxies.close()


def call(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), 30.0)


def test_a_proxy_forwards_stalls_delays_and_cuts(proxy: Proxy) -> None:
    with call(proxy) as end:
        end.settimeout(30.0)
        end.sendall(b"one")
        assert end.recv(10) == b"one"
        proxy.put(Trouble(stalled=True))
        end.sendall(b"two")
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(10)
        proxy.put(CALM)
        end.settimeout(30.0)
        assert end.recv(10) == b"two", "what was stalled is not lost"
        proxy.put(Trouble(delay_s=0.2))
        start = time.monotonic()
        end.sendall(b"three")
        assert end.recv(10) == b"three" and time.monotonic() - start >= 0.4
        proxy.put(Trouble(cut=True))
        assert ended(end)
        with call(proxy) as refused:
            assert ended(refused)
        proxy.put(CALM)
    with call(proxy) as end:
        end.sendall(b"again")
        assert end.recv(10) == b"again"


def ended(end: socket.socket) -> bool:
    try:
        return end.recv(10) == b""
    except ConnectionError:
        return True


def test_a_process_that_ends_is_started_again_and_is_left_nowhere(tmp_path: Path) -> None:
    heard: list[dict[str, Any]] = []
    processes = Revivals(tmp_path, lambda _, event: heard.append(event))
    processes.start("server", "http.server", "--bind", "127.0.0.1", "0")
    process = processes["server"]
    first = wait_until(lambda: process.pid)
    assert size(process.pid)
    process.kill(0.0)
    second = wait_until(lambda: process.pid if process.pid != first else None)
    assert len(heard) == 2 and process.exits == []
    process.pause(True)
    processes.stop()
    assert process.pid is None
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_process_that_ends_by_itself_is_counted(tmp_path: Path) -> None:
    # its standard input, which it reads, is empty
    with Revivals(tmp_path, lambda *_: None) as processes:
        processes.start("broken", "json.tool")
        wait_until(lambda: processes["broken"].exits)
        assert processes["broken"].exits[0] == 1


WRITER = """
import sys
for line in sys.stdin:
    try:
        with open(line.strip(), "ab", buffering=0) as file:
            written = file.write(bytes(10_000))
        print("written" if written == 10_000 else "full", flush=True)
    except OSError as error:
        print("full", flush=True)
"""


@pytest.mark.parametrize("root", [True, False])
def test_a_full_disk_refuses_what_is_written_until_it_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    if not root:
        monkeypatch.setattr(disk, "_succeeds", lambda *_: False)
    command = [sys.executable, "-c", WRITER]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as writer:
        to, back = writer.stdin, writer.stdout
        assert to and back
        made = Disk(tmp_path / "state", lambda: writer.pid)
        if root and not made.mounted:
            made.close()
            writer.kill()
            pytest.skip("a file system cannot be mounted here")

        def write() -> str:
            print(tmp_path / "state" / "file", file=to, flush=True)
            return back.readline().strip()

        try:
            assert write() == "written"
            made.fill()
            assert write() == "full" and made.used_bytes() < 20_000
            made.free()
            assert write() == "written" and made.used_bytes() >= 20_000
        finally:
            writer.kill()
            made.close()
    assert not os.path.ismount(tmp_path / "state")


def test_a_kill_waits_for_its_transition() -> None:
    transitions, struck = Transitions(), threading.Event()
    what = "s0", "round-open", "stroke"
    line = {"event": "round-open", "cohort": "stroke"}
    assert not transitions.at(*what, struck.set, 0.05)
    transitions.heard("s0", line)
    assert not struck.is_set(), "it was given up"
    waits = threading.Thread(target=transitions.at, args=(*what, struck.set, 30.0))
    waits.start()
    while not struck.is_set():
        transitions.heard("s1", line)
        transitions.heard("s0", line | {"event": "round-closing"})
        transitions.heard("s0", {"event": "round-open"})
        assert not struck.is_set()
        transitions.heard("s0", line)
    waits.join(30.0)
    assert not waits.is_alive()


class Struck:
    """A service of stubs, which note what is done to them."""

    def __init__(self) -> None:
        self.names = ["client-1", "client-2"]
        self.done: list[tuple[Any, ...]] = []
        self.processes = {name: self._stub(name) for name in ("s0", "s1", *self.names)}
        self.link = self._stub("link")
        self.ways = {
            (name, server): self._stub(name) for name in self.names for server in ("s0", "s1")
        }
        self.disks = {server: self._stub(f"disk of {server}") for server in ("s0", "s1")}

    def _stub(self, name: str) -> Any:
        def note(what: str) -> Any:
            return lambda *arguments: self.done.append((name, what, *arguments))

        return SimpleNamespace(
            **{what: note(what) for what in ("kill", "pause", "put", "fill", "free")},
        )


def test_every_fault_strikes_is_counted_and_is_undone() -> None:
    service: Any = Struck()
    audit = Audit()
    saboteurs = Saboteurs(service, Transitions(), audit, 1, lambda: False)
    # so that nothing lasts
    saboteurs._stop.set()
    undone = {"pause": (False,), "put": (CALM,), "free": ()}
    kinds: set[str] = set()
    for seed in range(100):
        for strike in (
            saboteurs._kill,
            saboteurs._hang,
            saboteurs._link,
            saboteurs._way,
            saboteurs._slow,
            saboteurs._end_client,
            saboteurs._full,
        ):
            service.done.clear()
            kinds.add(str(strike(random.Random(seed))))
            name, what, *last = service.done[-1]
            assert service.done and (what == "kill" or undone[what] == tuple(last))
    assert {kind.split(" ")[0] for kind in kinds} == {
        *("kill", "hang", "cut", "stall", "delay", "reorder", "slow", "full")
    }
    assert {"kill s0", "kill s1", "kill s0 and s1", "full disk of s1 and kill"} <= kinds


def test_a_server_is_killed_at_every_transition_of_either_cohort_in_turn() -> None:
    service: Any = Struck()
    audit, transitions = Audit(), Transitions()
    saboteurs = Saboteurs(service, transitions, audit, 1, lambda: False)
    logging = threading.Event()

    def log() -> None:
        while not logging.wait(0.001):
            for server, state, cohort in product(("s0", "s1"), State, COHORTS):
                transitions.heard(server, {"event": f"round-{state}", "cohort": cohort})

    thread = threading.Thread(target=log)
    thread.start()
    try:
        states = [state for state in State if state is not State.NEW]
        struck = {saboteurs._at_transition(random.Random(1)) for _ in range(12 * len(states))}
    finally:
        logging.set()
        thread.join()
    victims = ("s0", "s1", "s0 and s1")
    assert struck == {
        f"kill {whom} at {state} of {cohort} at {server}"
        for whom, state, cohort, server in product(victims, states, COHORTS, ("s0", "s1"))
    }
    assert len(service.done) == 16 * len(states)


# The command


def test_the_command_reports_and_fails_if_anything_is_amiss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def well(self: Soak, seconds: float) -> bool:
        self.audit.fault("kill s0 and s1 at open of default at s0")
        self.audit.closed(published("a"))
        failed = Ended("1-77", "mean", "failed", "aborted by coordinator", cohort="stroke")
        self.audit.closed(failed)
        return True

    def badly(self: Soak, seconds: float) -> bool:
        self.audit.acknowledged("b", ROUND)
        return well(self, seconds)

    file = tmp_path / "soak.json"
    try:
        monkeypatch.setattr(Soak, "run", well)
        main(["--minutes", "0.5", "--seed", "3", "--json", str(file)])
        report = json.loads(file.read_text())
        assert report.keys() >= FIGURES and all(report[name] == 0 for name in COUNTS)
        assert (report["faults"], report["rounds"], report["published"]) == (1, 2, 1)
        assert report["cohorts"] == {
            "default": {"rounds": 1, "published": 1, "failed": 0},
            "stroke": {"rounds": 1, "published": 0, "failed": 1},
        }
        shown = capsys.readouterr().out
        assert "kill s0 and s1 at a transition" in shown
        assert "stroke" in shown and "uploads_lost" in shown
        assert not list(tmp_path.glob("securemedian-soak-*"))
        monkeypatch.setattr(Soak, "run", badly)
        with pytest.raises(SystemExit) as stopped:
            main(["--json", str(file)])
        assert stopped.value.code == 1 and json.loads(file.read_text())["uploads_lost"] == 1
        assert "the upload of b" in capsys.readouterr().out
        assert list(tmp_path.glob("securemedian-soak-*"))
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), handlers, strict=True):
            signal.signal(number, handler)


def test_every_error_passes_except_that_of_a_forgotten_round() -> None:
    errors: list[SecureMedianError] = [RoundBusy("wait"), UnknownRound("s0 knows no such round")]

    def act() -> None:
        raise errors.pop(0)

    none: Any = None
    loop = Rounds(none, None, Patience(60.0, (SecureMedianError,)), None, 0.0, lambda _: None)
    with pytest.raises(UnknownRound):
        loop.patiently(act)
    assert not errors


# Real daemons


@pytest.mark.release
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "service", 5, lambda seconds, now: None)
    assert soak.run(15.0)
    report = soak.audit.report()
    assert soak.audit.clean, report
    # how many faults there are in this time hangs on the machine
    assert report["faults"] >= 1 and report["cohorts"].keys() == COHORTS.keys(), report
    for rounds_of in report["cohorts"].values():
        assert rounds_of["published"] >= run.CALM_ROUNDS, report
    assert report["dealings_checked"] >= sum(COHORTS.values()), report


@pytest.mark.release
def test_a_soak_notices_results_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its clients send other updates than those of which it knows.

    All values are others: a single one may lie in the same outermost bucket in both.
    """

    def tampered(seed: int, name: str, round_id: str, dim: int) -> Any:
        return update(seed, name, round_id, dim) + np.float32(1.0)

    monkeypatch.setattr(rounds, "update", tampered)
    soak = Soak(tmp_path / "service", 5, lambda seconds, now: None, faulty=False)
    assert soak.run(0.0)
    report = soak.audit.report()
    assert report["wrong_results"] == report["published"], report
    assert report["published"] == run.CALM_ROUNDS * len(COHORTS), report


def mentioned(text: str) -> list[str]:
    """Return the command lines of the processes that mention a text."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # processes come and go
        with suppress(OSError):
            command = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            found += [command] if text in command and "serve" in command else []
    return found


@pytest.mark.release
def test_an_interrupted_soak_ends_in_order(tmp_path: Path) -> None:
    soak = Soak(tmp_path / "service", 5, lambda seconds, now: None)
    threading.Timer(6.0, soak.interrupt).start()
    assert not soak.run(600.0)
    assert not mentioned(str(tmp_path)), "processes are left"
    assert soak.audit.report()["stuck"] == 0
