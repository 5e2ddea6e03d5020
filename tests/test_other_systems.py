"""Clients and coordinators without what Linux alone has, as on macOS and Windows."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import ROOT, Pair, running

pytestmark = pytest.mark.slow

LIMIT_S = 280
PROGRAM = """
import importlib, os, pathlib, pkgutil, socket, sys

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
MISSING = {
    socket: ("AF_UNIX", "SO_PEERCRED", "TCP_INFO", "TCP_USER_TIMEOUT"),
    os: (
        "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "fchmod", "fdatasync", "fork", "geteuid",
        "getuid", "killpg", "posix_fallocate", "pread", "pwrite", "sched_getaffinity", "setsid",
    ),
}
for module, names in MISSING.items():
    for name in names:
        delattr(module, name)

import numpy as np
import securemedian
for floor in ("mpc", "common", "clients", "coordinator", "operating"):
    package = importlib.import_module(f"securemedian.{floor}")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
from securemedian import *
from securemedian import cli
from securemedian.coordinator.lease import Lease

folder = sys.argv[1]
for name in ("client-1", "coordinator"):
    assert cli.main(["doctor", f"{folder}/{name}.toml"]) == 0
lease = Lease(pathlib.Path(folder) / "round", "stop")
lease.round_id = "12-abc"
lease.round_id = "3-d"
assert lease.round_id == "3-d"
lease.release()
with (
    Coordinator.from_config(f"{folder}/coordinator.toml") as coordinator,
    Client.from_config(f"{folder}/client-1.toml") as one,
    Client.from_config(f"{folder}/client-2.toml") as two,
):
    params = RoundParams(dim=100_000, max_clients=2)
    round_id = coordinator.open_round(params, np.zeros(100_000, np.float32))
    sent = []
    for client in (one, two):
        client.wait_for_round()
        client.submit(np.ones(100_000, np.float32), progress=lambda now, of: sent.append(now))
    assert (one.result() > 0).all() and sent[-1] > 0
"""


def test_a_client_and_a_coordinator_work_without_linux(tmp_path: Path) -> None:
    with running(Pair(tmp_path / "keys")) as pair:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(pair.folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
    assert done.returncode == 0, done.stdout + done.stderr
