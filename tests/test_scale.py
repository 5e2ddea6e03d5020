"""`securemedian bench scale`, on Ray: what it measures, and that nothing of it stays behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed: scripts/test --ray")

from tests.daemons import ROOT, wait_until
from tests.processes import below, workers_below

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START_S = 240.0
END_S = 60.0
# both servers on threads, and two on one worker each
FEW = ("--workers", "1", "--dim", "2000", "--clients", "2", "--repeat", "1")


@contextmanager
def started(folder: Path, *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Start the benchmark, which must not outlive the test."""
    process = subprocess.Popen(
        [sys.executable, "-m", "securemedian", "bench", "scale", *options, "--out", str(folder)],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder), "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        # so that it ends its servers where a test has failed
        process.terminate()
        process.communicate(timeout=END_S)


def temporary(folder: Path) -> list[Path]:
    """Return what a benchmark has in temporary folders."""
    return [*folder.glob("sm-*"), *Path("/tmp").glob("ray-*")]


def test_rounds_on_workers_are_measured_beside_rounds_on_threads(short: Path) -> None:
    before = set(Path("/tmp").glob("ray-*"))
    with started(short, *FEW, "--lanes", "3") as process:
        said = process.communicate(timeout=START_S)[0]
        assert process.returncode == 0, said
    threads, worker = json.loads((short / "scale.json").read_text())["points"]
    assert (threads["workers"], threads["lanes"], threads["shards"]) == (0, 3, 0)
    assert (worker["workers"], worker["lanes"], worker["shards"]) == (1, 1, 1)
    seconds = [point["cost"]["seconds"] for point in (threads, worker)]
    assert worker["of_threads"] == pytest.approx(seconds[1] / seconds[0])
    assert threads["cost"]["ots"] == worker["cost"]["ots"] > 0
    assert "one core:" in said and "the link:" in said and "the door:" in said
    assert set(temporary(short)) <= before


def test_nothing_outlives_a_benchmark_that_is_cut_off(short: Path) -> None:
    before = set(Path("/tmp").glob("ray-*"))
    with started(short, *FEW) as process:
        wait_until(lambda: len(workers_below(process.pid)) == 2, START_S)
        there = below(process.pid)
        commands = b" ".join(there.values())
        assert commands.count(b"securemedian serve") >= 4 and b"raylet" in commands
        assert set(temporary(short)) - before
        process.send_signal(signal.SIGTERM)
        assert process.wait(END_S) == 128 + signal.SIGTERM
        wait_until(lambda: not any(each.runs for each in there), END_S)
        assert set(temporary(short)) <= before
