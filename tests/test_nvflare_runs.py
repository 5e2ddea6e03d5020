"""The example of the plug-in for NVFlare, run in NVFlare's simulator."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nvflare")
pytest.importorskip("sklearn")

from tests.daemons import ROOT, Pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 240.0
SITES = 3


def simulated(folder: Path, keys: Path, rounds: int = 2) -> tuple[int, str]:
    """Run the example in the simulator, and return its status and what it has printed."""
    output = folder / "output"
    with output.open("wb") as printed:
        process = subprocess.Popen(
            [
                *(sys.executable, str(ROOT / "examples" / "nvflare" / "job.py")),
                *("--sites", str(SITES), "--rounds", str(rounds), "--keys", str(keys)),
            ],
            env=os.environ
            | {"PYTHONPATH": str(ROOT), "NVFLARE_SIMULATOR_WORKSPACE_ROOT": str(folder)},
            cwd=folder,
            stdout=printed,
            stderr=subprocess.STDOUT,
            # ended with the processes that it starts itself
            start_new_session=True,
        )
    try:
        status = process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return status, output.read_text()


def test_the_example_trains_in_the_simulator(pair: Pair, tmp_path: Path) -> None:
    status, printed = simulated(tmp_path, pair.folder)
    assert status == 0, printed
    assert "round 1: accuracy 0.9" in printed
    last = pair.status()
    assert (last["number"], last["state"]) == (2, "published")
    assert sorted(last["included"]) == [f"client-{number}" for number in range(1, SITES + 1)]


def test_a_mistake_ends_the_simulation_with_its_reason(tmp_path: Path) -> None:
    status, printed = simulated(tmp_path, Path("/nowhere"))
    assert status != 0
    assert "cannot read the configuration: /nowhere/coordinator.toml" in printed
