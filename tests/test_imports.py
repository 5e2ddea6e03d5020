"""The modules that a client and `keygen` load, and the files that an update passes through."""

import subprocess
import sys

import pytest

from tests.daemons import ROOT

COUNT = "print(len([name for name in sys.modules if name.startswith('securemedian')]))"


@pytest.mark.parametrize(
    ("start", "most"),
    [("from securemedian import Client", 75), ("import securemedian.operating.keygen", 65)],
)
def test_few_modules_are_loaded(start: str, most: int) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"import sys; {start}; {COUNT}"],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert int(told.stdout) <= most


@pytest.mark.slow
def test_an_update_passes_through_few_files() -> None:
    # in a process of its own, where no other test has left a thread
    told = subprocess.run(
        [sys.executable, "-m", "tests.trace_update"],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    found = {line for line in told.stdout.splitlines() if line.endswith(".py")}
    # so that the trace sees both ends
    assert {"clients/sharing.py", "servers/rounds/requests.py"} <= found
    # 94 in release 1.0.0, 88 when this was written; a busy machine adds the files of a retry. The
    # protocol alone has 43, so that the aim of 60 is not met.
    assert len(found) <= 91, sorted(found)
