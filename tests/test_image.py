"""The image of deploy/ is built and run by scripts/image, where the machine has what that needs."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import image
from tests.daemons import ROOT

# seconds; CI gives it ten minutes
LIMIT_S = 540


@pytest.mark.release
@pytest.mark.timeout(LIMIT_S + 90)
def test_it_is_built_and_a_round_runs_in_it(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with said.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.image"], cwd=ROOT, stdout=subprocess.PIPE, stderr=file
        )
        try:
            out, _ = process.communicate(timeout=LIMIT_S)
        finally:
            # it ends its containers
            process.send_signal(signal.SIGTERM)
            process.wait(60)
    print(out.decode())
    if process.returncode == image.MISSING:
        pytest.skip(out.decode().splitlines()[-1])
    assert process.returncode == 0, said.read_text()[-4000:]
    assert "a round ran" in out.decode()


@pytest.mark.slow
def test_a_machine_without_builders_hears_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.image"],
        cwd=ROOT,
        env=os.environ | {"PATH": "/nowhere"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == image.MISSING, done.stderr
    assert done.stdout.count("\n") == 1 and image.INSTALL in done.stdout
