"""The verb `doctor`: what is well, and what is wrong with a word on what to do."""

import re
import shutil
import socket
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from securemedian import cli
from securemedian.common import versions
from securemedian.common.versions import WIRE
from securemedian.mpc.errors import ServerUnreachable
from securemedian.mpc.protocols import compiling, wire
from securemedian.mpc.protocols.kernels import jit
from securemedian.operating import doctor, keygen
from securemedian.operating.doctor import Level
from securemedian.servers import config as server_config
from securemedian.servers.computing.ray import GUARDED
from securemedian.servers.network import descriptors
from securemedian.servers.network.control import LOAD_BYTES, Load
from securemedian.servers.network.peer import COMPILING, LIMIT_S, PIECES, LinkProbe
from tests.daemons import Pair

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    keygen.make(
        tmp_path / "keys", ["client-1", "client-2"], keygen.network("127.0.0.1", "127.0.0.1", None)
    )
    return tmp_path / "keys"


def found(path: Path, level: Level) -> list[str]:
    return [finding.text for finding in doctor.examine(path) if finding.level is level]


def one(texts: list[str], part: str) -> str:
    (text,) = (text for text in texts if part in text)
    return text


def test_a_server_that_does_not_run_yet(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", str(folder / "s1.toml")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert all(line.startswith(("ok ", "warning ")) for line in said)
    assert len([line for line in said if "free to listen" in line]) == 2
    # S0 needs S1, which does not run
    assert cli.main(["doctor", str(folder / "s0.toml")]) == 2
    output = capsys.readouterr()
    wrong = one(output.out.splitlines(), "s1 cannot be reached")
    assert wrong.startswith("wrong ")
    assert "start it" in wrong
    assert output.err.startswith("securemedian: some of the lines above are wrong: 1;")


def test_nothing_is_changed(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    assert list(doctor.examine(folder / "s1.toml"))
    assert sorted(folder.rglob("*")) == before


def exchange(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def own_key_in_the_list(folder: Path) -> None:
    config, text = server_config.load(folder / "s1.toml"), (folder / "s1.key").read_text()
    (own,) = re.findall(r'public-key = "(.*)"', text)
    exchange(folder / "s1.toml", config.clients[0].public_key, own)


def address_of_another_machine(folder: Path) -> None:
    # reserved for documentation (RFC 5737)
    listen = server_config.load(folder / "s1.toml").listen
    exchange(folder / "s1.toml", listen, "tcp://192.0.2.1:7001")


@pytest.mark.parametrize(
    ("damage", "level", "part", "said"),
    [
        (
            lambda folder: (folder / "s1.key_secret").chmod(0o644),
            Level.WRONG,
            "s1.key_secret",
            "chmod 600",
        ),
        (lambda folder: folder.chmod(0o777), Level.WARNING, "may replace files", "chmod 700"),
        (own_key_in_the_list, Level.WRONG, "client-1", "own public key"),
        (address_of_another_machine, Level.WRONG, "192.0.2.1", "no such address"),
    ],
    ids=["key", "folder", "own key", "address"],
)
def test_what_is_wrong_with_a_servers_files(
    folder: Path, damage: Callable[[Path], None], level: Level, part: str, said: str
) -> None:
    damage(folder)
    assert said in one(found(folder / "s1.toml", level), part)


def test_a_port_of_another_program(folder: Path) -> None:
    host, port = server_config.load(folder / "s1.toml").listen.removeprefix("tcp://").split(":")
    with socket.create_server((host, int(port))):
        wrong = one(found(folder / "s1.toml", Level.WRONG), "another program")
    assert "for clients" in wrong


def test_a_server_that_would_compile_when_it_starts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "COMPILES", True)
    lacking = [SimpleNamespace(missing=[]), SimpleNamespace(missing=["u8", "u4"])]
    monkeypatch.setattr(compiling, "kernels_of", lambda _: lacking)
    warning = one(found(folder / "s1.toml", Level.WARNING), "2 kernels are not compiled")
    assert "Run securemedian compile" in warning
    monkeypatch.setattr(compiling, "kernels_of", lambda _: lacking[:1])
    one(found(folder / "s1.toml", Level.WELL), "all kernels are compiled")
    monkeypatch.setattr(jit, "COMPILES", False)
    assert "unset it" in one(found(folder / "s1.toml", Level.WARNING), "NUMBA_DISABLE_JIT is set")


@pytest.mark.parametrize("name", ["s1", "client-1"])
def test_a_disk_without_room(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A client keeps its journal there."""
    path, state = folder / f"{name}.toml", f"{name}-state has"
    one(found(path, Level.WELL), state)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(10**9, 10**9 - 5, 5))
    assert "make some" in one(found(path, Level.WARNING), f"{name}-state")


@contextmanager
def talking(said: bytes, port: int) -> Iterator[None]:
    """Listen on a port with a program that says this to everybody, and then nothing."""
    kept = []

    def answer() -> None:
        # until the listener is closed
        with suppress(OSError):
            while True:
                kept.append(listener.accept()[0])
                kept[-1].sendall(said)

    with socket.create_server(("127.0.0.1", port)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in kept:
                each.close()


@pytest.mark.parametrize("said", [b"", b"SSH-2.0-OpenSSH_9.9\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_a_program_that_speaks_another_protocol(
    folder: Path, said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server was said to take connections, and a client was asked for its key."""
    monkeypatch.setattr(doctor, "REACH_S", 0.5)
    config = server_config.load(folder / "s0.toml")
    with talking(said, int(config.peer.address.rpartition(":")[2])):
        wrong = one(found(folder / "s0.toml", Level.WRONG), "another protocol")
        assert config.peer.address in wrong
    with talking(said, int(config.listen.rpartition(":")[2])):
        wrong = one(found(folder / "client-1.toml", Level.WRONG), "another protocol")
        assert "S0" in wrong and config.listen in wrong


INFO = {"peer_problem": "", "peer_linked": True}


def test_a_server_that_compiles_is_waited_for() -> None:
    link = doctor._link([INFO, INFO | {"peer_problem": COMPILING}])
    assert link.level is Level.WAIT and "installation: s1; run doctor again" in link.text
    apart = doctor._link([INFO, INFO | {"peer_problem": "s0 has not appeared yet"}])
    assert apart.level is Level.WRONG


class FakeServer:
    """S0, which has measured the link."""

    def __init__(self, sent: int, back: int, seconds: float) -> None:
        self._seen = {"sent": sent, "back": back, "seconds": seconds}

    def ask(self, op: str) -> wire.Message:
        assert op == "link"
        return wire.Message(op, self._seen, {})


@pytest.mark.parametrize(
    ("back", "seconds", "level", "said"),
    [
        (2**20, 0.1, Level.WELL, "1.0 MB came back in 0.10 s"),
        (2**20, 2.0, Level.WARNING, "plan --bandwidth"),
        (2**17, 3.0, Level.WARNING, "plan --bandwidth"),
        # hellos of a few bytes pass
        (0, 3.0, Level.WRONG, "Lower the MTU"),
    ],
)
def test_what_a_measured_link_means(back: int, seconds: float, level: Level, said: str) -> None:
    finding = doctor._full_size(cast(Any, FakeServer(2**20, back, seconds)))
    assert (finding.level, said in finding.text) == (level, True)


def test_a_way_to_a_server_on_which_only_short_messages_pass() -> None:
    """It was told to look at the server's log."""

    class Deaf:
        def ask(self, op: str, arrays: dict[str, Any]) -> wire.Message:
            raise ServerUnreachable(f"{op} got no answer")

    finding = doctor._bandwidth("S1", cast(Any, Deaf()), 1 << 20, 0.04)
    assert finding.level is Level.WRONG
    assert "full size are lost between here and S1" in finding.text


def test_the_link_is_measured_once_for_all_who_ask() -> None:
    pieces: list[Load] = []
    now, told = [0.0], list[tuple[int, int, float]]()
    probe = LinkProbe(pieces.append, lambda: now[0])
    for _ in range(2):
        probe.begin(lambda *outcome: told.append(outcome))
    first = list(pieces)
    assert len(first) == PIECES
    now[0] = 0.5
    for piece in first:
        probe.take(piece)
    assert told == [(2**20, 2**20, 0.5)] * 2
    # of the next one only a part comes back, and pieces of the first one late
    probe.begin(lambda *outcome: told.append(outcome))
    for piece in [*first, *pieces[PIECES : PIECES + 3]]:
        probe.take(piece)
    now[0] = 0.5 + LIMIT_S + 0.1
    probe.tick()
    assert told[2][:2] == (2**20, 3 * LOAD_BYTES) and len(told) == 3


def test_more_callers_than_descriptors(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (5, 5))
    assert "LimitNOFILE" in one(found(folder / "s1.toml", Level.WRONG), "fewer than the 64")
    monkeypatch.setattr(descriptors, "LEAST", 1)
    assert "LimitNOFILE" in one(found(folder / "s1.toml", Level.WRONG), "connections")


def test_cores_for_lanes_and_for_workers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "s1.toml"
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    one(found(path, Level.WELL), "3 cores for 2 lanes")
    path.write_text(path.read_text() + '[engine]\nkind = "ray"\nworkers = 4\n')
    assert "gain nothing" in one(found(path, Level.WARNING), "3 cores for 4 workers")
    assert not [text for level in Level for text in found(path, level) if " lanes" in text]


@pytest.mark.parametrize("installed", [False, True])
def test_ray_and_its_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    path = folder / "s1.toml"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if installed else None)
    for name in GUARDED:
        monkeypatch.delenv(name, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as cluster:
        address = f"127.0.0.1:{cluster.getsockname()[1]}"
        path.write_text(path.read_text() + f'[engine]\nkind = "ray"\naddress = "{address}"\n')
        one(found(path, Level.WELL), f"the Ray cluster takes connections at {address}")
        missing = [text for text in found(path, Level.WRONG) if "pip install '.[ray]'" in text]
        assert len(missing) == (not installed)
        assert "insecure = true" in one(found(path, Level.WRONG), "RAY_AUTH_MODE=token and RAY_USE")
        monkeypatch.setenv("RAY_AUTH_MODE", "token")
        assert "without RAY_USE_TLS=1 in" in one(found(path, Level.WRONG), str(address))
        monkeypatch.setenv("RAY_USE_TLS", "1")
        assert not [text for text in found(path, Level.WRONG) if address in text]
    assert "ray start" in one(found(path, Level.WRONG), f"cannot be reached at {address}")


def test_what_is_no_configuration(tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    assert "cannot read" in one(found(path, Level.WRONG), "notes.toml")
    path.write_text("name = 3")
    assert "missing" in one(found(path, Level.WRONG), "notes.toml")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coordinator", "client-1", "s0", "s1"])
def test_all_is_well_where_both_servers_run(pair: Pair, name: str) -> None:
    path = pair.folder / f"{name}.toml"
    assert found(path, Level.WRONG) == []
    well = found(path, Level.WELL)
    if name.startswith("s"):
        assert one(well, "for clients").startswith("this server is running")
    else:
        assert [text for text in well if "round trip takes" in text and name in text][1:]
        assert [text for text in well if "MB/s" in text][1:]
        assert one(well, "linked")
    assert len([text for text in well if "1.0 MB came back" in text]) == (name == "coordinator")


@pytest.mark.slow
def test_the_link_is_left_to_a_round_under_way(pair: Pair) -> None:
    round_id = pair.open(method="radix", dim=4, max_clients=3)
    wait = found(pair.folder / "coordinator.toml", Level.WAIT)
    assert one(wait, "no round is under way")
    pair.caller("coordinator", "s0").ask("abort", round=round_id, reason="measured")


@pytest.mark.slow
def test_another_release(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is well within one wire version, and a problem beyond."""
    monkeypatch.setattr(doctor, "__version__", "0.0.1")
    well = found(pair.folder / "coordinator.toml", Level.WELL)
    assert len([text for text in well if "machine 0.0.1: they work together" in text]) == 2
    monkeypatch.setattr(versions, "LOWEST_WIRE", WIRE + 1)
    monkeypatch.setattr(versions, "WIRE", WIRE + 2)
    wrong = found(pair.folder / "coordinator.toml", Level.WRONG)
    assert [text[-9:] for text in wrong if "do not work together" in text] == [
        "update S0",
        "update S1",
    ]


@pytest.mark.slow
def test_clocks_that_differ(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() - 60)
    late = [text for text in found(pair.folder / "coordinator.toml", Level.WARNING) if "60" in text]
    assert all("ahead of" in text and "NTP" in text for text in late)
    assert len(late) == 2


@pytest.mark.slow
def test_servers_that_are_exchanged(pair: Pair, tmp_path: Path) -> None:
    text = (pair.folder / "client-1.toml").read_text()
    swapped = text.replace("[s0]", "[sX]").replace("[s1]", "[s0]").replace("[sX]", "[s1]")
    path = tmp_path / "client-1.toml"
    path.write_text(swapped)
    shutil.copy2(pair.folder / "client-1.key_secret", tmp_path)
    wrong = found(path, Level.WRONG)
    assert one(wrong, "S0 answers as party 1") and one(wrong, "S1 answers as party 0")


@pytest.mark.slow
def test_a_cohort_that_the_servers_do_not_have(pair: Pair) -> None:
    path = pair.folder / "elsewhere.toml"
    path.write_text('cohort = "elsewhere"\n' + (pair.folder / "client-1.toml").read_text())
    wrong = found(path, Level.WRONG)
    assert len([text for text in wrong if "elsewhere" in text]) == 2
