"""Kernels: each is compiled for the types that it names, and all of them before the first round."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import compiling
from securemedian.mpc.protocols.kernels.jit import FORM, KERNELS, Cache, Kernel, callee, kernel
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from tests.daemons import ROOT, SETTINGS, START_S, WAIT_S, Pair, in_background, wait_until
from tests.parties import make_parties, run_rounds, shared
from tests.test_methods import published_round, variants

# a server that logs what it compiles or loads from the cache on disk
RECORDER = """
import sys
from numba.core.dispatcher import Dispatcher
from securemedian import cli
from securemedian.servers import logs
add_overload = Dispatcher.add_overload
def add_and_log(self, compiled):
    logs.event("kernel", function=self.py_func.__qualname__, types=str(compiled.signature))
    add_overload(self, compiled)
Dispatcher.add_overload = add_and_log
sys.exit(cli.main())
"""


@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_a_kernel_is_compiled_for_the_types_that_it_names_and_no_others() -> None:
    @kernel("u8[1] u8[1]!", "u4[1] u4[1]!")
    def double(values: Any, out: Any) -> None:
        for i in range(out.size):
            out[i] = 2 * values[i]

    made: Any = double
    given, out = np.arange(5, dtype=np.uint64), np.empty(5, np.uint64)
    double(given, out)
    assert list(out) == [0, 2, 4, 6, 8] and len(made.signatures) == 2
    given.flags.writeable = False
    double(given, out)
    double(given.astype(np.uint32), out.astype(np.uint32))
    assert len(made.signatures) == 2
    given.flags.writeable = True
    out.flags.writeable = False
    for wrong in ((given, out), (given[::2], given[:3]), (given.view(np.int64), given), (1, given)):
        with pytest.raises(TypeError, match="No matching definition"):
            double(*wrong)
    assert len(made.signatures) == 2


def add(values: Any, out: Any) -> None:
    out += values


@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_a_kernel_knows_what_the_cache_on_disk_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    one, other = (Kernel(callee(add), ["u8[1] u8[1]!", "u4[1] u4[1]!"]) for _ in range(2))
    assert one.missing == one.signatures and tmp_path in one.folder.parents
    one.compile_for(one.signatures[1])
    assert one.missing == other.missing == one.signatures[:1]
    other.compile()
    assert one.missing == []


@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_what_lies_beside_a_kernel_serves_those_with_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load kernels as in an image, where root has compiled them."""
    source = tmp_path / "kernels" / "adding.py"
    source.parent.mkdir()
    source.write_text("def add(values, out):\n    out += values\n")
    made: dict[str, Any] = {"__name__": "adding"}
    exec(compile(source.read_text(), str(source), "exec"), made)
    given = "u8[1] u8[1]!"
    Kernel(callee(made["add"]), [given]).compile()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(Cache, "save_overload", lambda *_: pytest.fail("it compiles"))
    other = Kernel(callee(made["add"]), [given])
    assert other.missing == [] and tmp_path / "own" in other.folder.parents
    other.compile()


def test_processes_add_to_the_cache_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that one process had added to numba's index was lost when another wrote it."""
    pytest.importorskip("fcntl")
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    seen: list[str] = []

    def save(*_: object) -> None:
        seen.append("begins")
        time.sleep(0.1)
        seen.append("ends")

    monkeypatch.setattr(IndexDataCacheFile, "save", save)
    monkeypatch.setattr(FORM, "check_cachable", lambda *_: True)
    monkeypatch.setattr(FORM, "reduce", lambda *_: None)
    caches, compiled = (
        [Cache(add) for _ in range(3)],
        SimpleNamespace(codegen=SimpleNamespace(magic_tuple=lambda: ())),
    )
    threads = [threading.Thread(target=each.save_overload, args=("", compiled)) for each in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert seen == ["begins", "ends"] * 3


# prints where kernels are kept, twice
WHERE = """
from securemedian.mpc.protocols.compiling import all_kernels
for kernel in all_kernels()[:2]:
    print(kernel.folder)
"""


def copy_package(folder: Path) -> None:
    """Copy the package into a folder, without what is compiled."""
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "securemedian", folder / "securemedian", ignore=without)


class Installed:
    """A copy of the package beside which nothing can be written, also by root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        copy_package(folder)
        kernels = folder / "securemedian" / "mpc" / "protocols" / "kernels"
        for each in (kernels, kernels / "native"):
            (each / "__pycache__").write_text("a file")

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=kept | {"PYTHONPATH": str(self.folder), **environment},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def test_without_semaphores_one_process_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compile as in containers without /dev/shm, where multiprocessing has none."""
    compiled: list[str] = []
    told: list[tuple[int, int]] = []
    one = SimpleNamespace(
        missing=["u4", "u8"], compile_for=compiled.append, folder=tmp_path / "cache"
    )

    def none(*_: object, **__: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(compiling, "all_kernels", lambda: [one])
    monkeypatch.setattr(compiling, "ProcessPoolExecutor", none)
    compiling.fill_cache(lambda done, total: told.append((done, total)))
    assert compiled == ["u4", "u8"] and told == [(0, 2), (1, 2), (2, 2)]


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Return where a user without a home has kernels, in a temporary folder that is there."""
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary" / f"securemedian-kernels-{os.getuid()}"


@pytest.fixture
def nowhere(own: Path) -> dict[str, str]:
    """Return the environment of that user."""
    return {"HOME": "/dev/null", "TMPDIR": str(own.parent)}


@pytest.mark.slow
@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_kernels_are_kept_in_the_first_folder_that_can_be_written(
    installed: Installed, tmp_path: Path, own: Path, nowhere: dict[str, str]
) -> None:
    for environment, expected in (
        ({"NUMBA_CACHE_DIR": str(tmp_path / "given")}, tmp_path / "given"),
        ({"XDG_CACHE_HOME": str(tmp_path / "xdg")}, tmp_path / "xdg" / "numba"),
        ({"HOME": str(tmp_path / "home")}, tmp_path / "home" / ".cache" / "numba"),
        ({}, own),
        ({"NUMBA_CACHE_DIR": "/dev/null/x"}, own),
    ):
        ran = installed.run("-c", WHERE, **{**nowhere, **environment})
        assert ran.returncode == 0, ran.stderr
        assert all(expected in Path(line).parents for line in ran.stdout.splitlines())
        said = f"compiled kernels are kept in {expected}, because" in ran.stderr
        assert said == (expected != tmp_path / "given")
        assert ran.stderr.count("compiled kernels are kept") == said
    assert own.stat().st_mode & 0o777 == 0o700


@pytest.mark.slow
@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
@pytest.mark.parametrize("kind", ["writable", "link", "exposed"])
def test_a_folder_that_others_may_write_keeps_no_kernels(
    installed: Installed, tmp_path: Path, own: Path, nowhere: dict[str, str], kind: str
) -> None:
    if kind == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        own.symlink_to(tmp_path / "theirs")
    else:
        own.mkdir()
        (own if kind == "writable" else own.parent).chmod(0o777)
    ran = installed.run("-m", "securemedian", "compile", **nowhere)
    assert ran.returncode == 2 and str(own) in ran.stderr
    assert "set NUMBA_CACHE_DIR to a folder that this user alone" in ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_a_command_that_computes_nothing_looks_for_no_folder(
    installed: Installed, tmp_path: Path, own: Path, nowhere: dict[str, str]
) -> None:
    own.mkdir()
    own.parent.chmod(0o777)
    keys = tmp_path / "keys"
    made = installed.run("-m", "securemedian", "keygen", str(keys), "--clients", "3", **nowhere)
    assert made.returncode == 0, made.stderr
    path = keys / "coordinator.toml"
    path.write_text(f"reply_timeout_s = 0.5\n{path.read_text()}")
    asked = installed.run("-m", "securemedian", "round", "status", str(path), **nowhere)
    assert "could not be reached" in asked.stderr
    client = installed.run("-m", "securemedian", "doctor", str(keys / "client-1.toml"), **nowhere)
    assert "is a complete configuration" in client.stdout and "kernels" not in client.stdout
    server = installed.run("-m", "securemedian", "doctor", str(keys / "s0.toml"), **nowhere)
    assert "wrong    no folder to keep compiled kernels in" in server.stdout


def test_how_far_it_is_is_told_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_cache(told: compiling.Told) -> None:
        for done, seconds in enumerate((0, 1, 20, 22, 23)):
            monkeypatch.setattr(time, "monotonic", lambda now=seconds: float(now))
            told(done, 4)

    monkeypatch.setattr(compiling, "fill_cache", fill_cache)
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    assert cli.main(["compile"]) == 0
    out, error = capsys.readouterr()
    assert error.splitlines() == [
        "securemedian: compiling 4 kernels, once",
        "securemedian: compiled 2 of 4 kernels, about 20 s to go",
        "securemedian: compiled 4 kernels",
    ]
    assert "compiled" in out and len(out.splitlines()) == 1


def test_verbs_that_need_every_kernel_compile_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fill_cache(_: object) -> None:
        raise ConfigError("was asked")

    monkeypatch.setattr(compiling, "fill_cache", fill_cache)
    for verb in ("plan pairwise", "demo", "bench ot", "experiment digits"):
        assert cli.main(verb.split()) == 2
        assert capsys.readouterr().err == "securemedian: was asked\n", verb


def test_of_several_processes_one_compiles_and_the_others_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers of one machine compiled everything twice, each in one thread."""
    fcntl = pytest.importorskip("fcntl")
    kernels = [SimpleNamespace(folder=tmp_path / "cache", missing=["u8", "u4"])]
    monkeypatch.setattr(compiling, "all_kernels", lambda: kernels)
    monkeypatch.setattr(compiling, "LOOK_S", 0.01)
    compiled: list[object] = []
    monkeypatch.setattr(compiling, "_compile_all", lambda lacking, _: compiled.append(lacking))
    # another process has the lock, and compiles
    (tmp_path / "cache").mkdir()
    with (tmp_path / "cache" / "compiling.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        seen: list[tuple[int, int]] = []

        def told(done: int, total: int) -> None:
            seen.append((done, total))
            if len(seen) == 3:
                kernels[0].missing.pop()
            elif len(seen) == 5:
                kernels[0].missing.clear()
                fcntl.flock(file, fcntl.LOCK_UN)

        compiling.fill_cache(told)
    assert seen == [(0, 2), (0, 2), (0, 2), (1, 2), (1, 2)] and compiled == []
    # nobody else does
    kernels[0].missing.append("u8")
    compiling.fill_cache()
    assert compiled == [[(0, "u8")]]


def test_there_is_no_kernel_that_no_parameters_take() -> None:
    ours = {name: kernels for name, kernels in KERNELS.items() if name.startswith("securemedian.")}
    assert {each for kernels in ours.values() for each in kernels} == set(compiling.all_kernels())


# prints what the cache on disk lacks, and what a process compiles that loads all kernels
SECOND_START = """
from securemedian.mpc.protocols.compiling import all_kernels
from securemedian.mpc.protocols.kernels.jit import Cache
saved = []
Cache.save_overload = lambda self, sig, data: saved.append(self)
missing = [each for kernel in all_kernels() for each in kernel.missing]
for kernel in all_kernels():
    kernel.compile()
print(len(all_kernels()), missing, saved)
"""


@pytest.mark.release
@pytest.mark.timeout(900)
@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
def test_what_is_compiled_once_is_there_for_the_next_start(tmp_path: Path) -> None:
    """Whatever the parameters are, and although several processes have compiled at once."""
    # a copy, because beside these files there may be compiled ones
    copy_package(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
        )

    command = ["-m", "securemedian", "compile"]
    first = run(*command)
    total = sum(len(each.signatures) for each in compiling.all_kernels())
    assert first.returncode == 0, first.stderr
    assert f"compiling {total} kernels, once" in first.stderr
    assert f"compiled {total} kernels" in first.stderr
    assert str(tmp_path) in first.stdout
    assert run(*command).stderr == ""
    second = run("-c", SECOND_START)
    assert second.stdout == f"{len(compiling.all_kernels())} [] []\n", second.stderr


def children_of(pid: int) -> set[int]:
    """Return the processes that a process has started and that run."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found.add(int(folder.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not KERNELS, reason="nothing is compiled")
@pytest.mark.parametrize(
    ("number", "to", "status", "early"),
    [
        # a terminal sends these to all processes
        (signal.SIGINT, "all", 130, True),
        # as the system chooses while the main thread takes none
        (signal.SIGINT, "a thread", 130, False),
        (signal.SIGHUP, "all", 129, False),
        (signal.SIGTERM, "one", 143, False),
        (signal.SIGKILL, "one", -signal.SIGKILL, False),
    ],
)
def test_a_signal_ends_what_compiles_and_its_workers_without_tracebacks(
    tmp_path: Path, number: int, to: str, status: int, early: bool
) -> None:
    copy_package(tmp_path)
    # a worker that is at work tells, and works for longer than the test
    script = (
        "import os, signal, sys, threading, time\n"
        "from securemedian.mpc.protocols.kernels.jit import Kernel\n"
        f"def compile_for(self, signature): open({str(tmp_path / 'at-work')!r}, 'a').close();"
        " time.sleep(600)\n"
        "Kernel.compile_for = compile_for\n"
        "from securemedian import cli\n"
        "def take(main=threading.get_ident()):\n"
        f"    while not os.path.exists({str(tmp_path / 'at-work')!r}): time.sleep(0.01)\n"
        "    while sys._current_frames()[main].f_code.co_name != 'wait': time.sleep(0.01)\n"
        f"    signal.pthread_kill(threading.get_ident(), {int(number)})\n"
        "if __name__ == '__main__':\n"
        f"    {to == 'a thread'} and threading.Thread(target=take, daemon=True).start()\n"
        "    sys.exit(cli.main(['compile']))\n"
    )
    (tmp_path / "begin.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    with (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "begin.py"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=err,
            start_new_session=True,
        )
    try:
        # its workers, and what keeps their semaphores
        wait_until(lambda: len(children_of(process.pid)) >= 2, START_S)
        if not early:
            wait_until((tmp_path / "at-work").exists, START_S)
        children = children_of(process.pid)
        if to != "a thread":
            (os.killpg if to == "all" else os.kill)(process.pid, number)
        assert process.wait(WAIT_S) == status
        wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "Traceback" not in (tmp_path / "err").read_text()


def attend(pair: Pair, round_id: str, model: np.ndarray) -> None:
    """Take part as clients that answer once more, or vote on."""
    rng = np.random.default_rng()
    with ExitStack() as opened:
        clients = [opened.enter_context(Client(pair.config(name))) for name in pair.names]
        for client in clients:
            # zoom takes an update once
            client.submit(model + rng.uniform(0, 0.1, model.size).astype(np.float32), round_id)
        for join in [in_background(partial(each.attend, round_id, WAIT_S)) for each in clients]:
            join()


@pytest.mark.slow
def test_no_round_compiles_after_its_server_has_said_compiled(tmp_path: Path) -> None:
    """Try each method; a kernel that the cache on disk lacks would be compiled."""
    settings = SETTINGS | {"channel_timeout_s": START_S}
    pair, servers = Pair(tmp_path / "keys", settings=settings), ("s0", "s1")
    try:
        pair.start(*servers, program=("-c", RECORDER))
        pair.link()
        for method in {type(method): method for method in variants()}.values():
            given = {"method": method.name, **flat(method)}
            if "validator" in given:
                given["validator"] = pair.names[0]
            model = np.zeros(300, np.float32)
            round_id = pair.open(model, dim=300, max_clients=len(pair.names), **given)
            form = method.form(300, 4)
            if attended := form.audited or form.votes > 1:
                attend(pair, round_id, model)
            for name in [] if attended else pair.names:
                pair.submit(name, model)
            pair.wait("published")
        for server in servers:
            events = pair.events(server)
            (compiled,) = (i for i, each in enumerate(events) if each["event"] == "compiled")
            kernels = [each["event"] == "kernel" for each in events]
            assert any(kernels[:compiled])
            assert not any(kernels[compiled:]), [
                each for each in events[compiled:] if each["event"] == "kernel"
            ]
    finally:
        pair.close()


@pytest.mark.parametrize("method", [*variants(), Radix(ranks=[1, 2, 3])], ids=lambda m: m.label)
def test_a_round_of_one_coordinate_takes_the_types_that_kernels_name(method: Method) -> None:
    """With several ranks or groups, numpy sees other orders than C in its arrays."""
    params = RoundParams(method, dim=1, max_clients=4)
    results, expected = published_round(params, np.ones((4, 1), np.float32), ProtocolParams())
    assert np.array_equal(results, expected)


@pytest.mark.parametrize("schedule", ["bisect", "scan"])
def test_groups_of_one_coordinate_take_the_types_that_kernels_name(schedule: str) -> None:
    params = RoundParams(Bucketed(buckets=4, groups=2, schedule=schedule), dim=1, max_clients=6)
    # of each group, slots of its own
    halves = [shared(params, np.array([[slot]])) for slot in (0, 1, 1, 5, 6, 7)]
    outcome, _ = run_rounds(make_parties(), params, halves)
    assert outcome.values.tolist() == [[1], [2]]
