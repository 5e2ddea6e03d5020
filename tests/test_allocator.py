"""The freed memory of a server, in a process of its own."""

import subprocess
import sys

import pytest

# Takes and frees megabytes, as lanes do, on a thread. Prints the page faults of late turns, and how
# many bytes are given back in the end.
PROGRAM = """
import resource, sys, threading
import numpy as np
from securemedian.servers import allocator
if sys.argv[1] == "keep":
    allocator.keep()
def turn():
    arrays = [np.full(1 << 18, 1, np.uint64) for _ in range(8)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize()
found = []
def work():
    for _ in range(5):
        turn()
    before = faults()
    for _ in range(5):
        turn()
    found.append(faults() - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
kept = resident()
allocator.give_back()
print(found[0], kept - resident())
"""


def run(mode: str) -> tuple[int, int]:
    """Return the faults of five turns, and the bytes that were given back."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, mode],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    faults, freed = done.stdout.split()
    return int(faults), int(freed)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no such option")
def test_freed_memory_is_kept_until_it_is_given_back() -> None:
    """Five turns of 16 MiB touch 4,096 pages each, most of them again if nothing is kept."""
    faults, freed = run("keep")
    assert faults < 200 and freed > 8 << 20
    assert run("default")[0] > 2 * faults + 20
