"""A peer's program: its virtual environment and its processes, one per party, bounded in time.

A job is {"rank", "addresses" (one per party), "core" (or null), "limit_s", "repetitions", "log",
"tasks"}, and a task is {"work": "compare" | "median" | "sort", "count", "ring_bits", "clients" (of
medians)}.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from securemedian.mpc.errors import SecureMedianError

HERE = Path(__file__).parent
# the version that the pinned wheels of SPU are made for
PYTHON = (3, 11)
# between two looks at the processes
POLL_S = 0.2
# characters of a failed program's output that are shown
SHOWN = 800


class PeerFailed(SecureMedianError):
    """The error that a peer could not be installed or gave no correct result in time.

    The other peers still run.
    """

    code = "peer-failed"


def pins(name: str) -> dict[str, str]:
    """Return the pinned version of each package that the peer requires."""
    lines = (HERE / f"requirements-{name}.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def install(name: str, folder: Path, limit_s: float) -> Path:
    """Return the Python of the peer's virtual environment in `folder`.

    The environment is made if it is not there or its pinned versions have changed. Raises
    PeerFailed if that fails or takes longer than `limit_s`.
    """
    requirements = HERE / f"requirements-{name}.txt"
    environment, installed = folder / name, folder / name / requirements.name
    python = environment / "bin" / "python"
    if installed.exists() and installed.read_text() == requirements.read_text():
        return python
    deadline = time.monotonic() + limit_s
    make = [_python(), "-m", "venv", "--clear", str(environment)]
    fetch = [
        str(python),
        "-I",
        "-m",
        "pip",
        "install",
        "-q",
        "--disable-pip-version-check",
        "-r",
        str(requirements),
    ]
    for command in (make, fetch):
        _call(command, max(1.0, deadline - time.monotonic()))
    shutil.copy(requirements, installed)
    return python


def _python() -> str:
    if sys.version_info[:2] == PYTHON:
        return sys.executable
    version = ".".join(map(str, PYTHON))
    found = shutil.which(f"python{version}")
    if found is None:
        raise PeerFailed(f"the pinned versions need Python {version}: install python{version}")
    return found


def _call(command: Sequence[str], limit_s: float) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerFailed(f"{command[0]}: {error}") from error
    if done.returncode:
        raise PeerFailed(
            f"`{' '.join(command)}` failed: {(done.stderr or done.stdout).strip()[-SHOWN:]}"
        )


def run(
    command: Sequence[str],
    parties: int,
    tasks: Sequence[dict[str, Any]],
    repetitions: int,
    pin: bool,
    limit_s: float,
) -> list[list[dict[str, Any]]]:
    """Run `command` once per party, and return what each party wrote for each task.

    The first word of `command` is the Python of a virtual environment, whose folder receives the
    logs. Raises PeerFailed if a party stops early, takes longer than `limit_s` or leaves out a
    result.
    """
    cores = sorted(os.sched_getaffinity(0))
    common = {
        "addresses": _addresses(parties),
        "limit_s": max(1, int(limit_s)),
        "repetitions": repetitions,
    }
    logs = Path(command[0]).parent.parent
    outputs = [logs / f"party-{rank}.out" for rank in range(parties)]
    processes: list[subprocess.Popen[str]] = []
    deadline = time.monotonic() + limit_s
    with ExitStack() as stack:
        stack.callback(_end, processes)
        for rank, output in enumerate(outputs):
            log = logs / f"party-{rank}.log"
            log.unlink(missing_ok=True)
            core = cores[rank % len(cores)] if pin else None
            job = common | {"rank": rank, "core": core, "log": str(log), "tasks": tasks}
            out = stack.enter_context(output.open("w"))
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(job))
            process.stdin.close()
        # a list, so that all processes are asked
        while any([process.poll() is None for process in processes]):
            if any(process.returncode for process in processes):
                break
            if time.monotonic() > deadline:
                raise PeerFailed(
                    f"not done within {limit_s:g} s: raise --limit-s or lower --count and --dim"
                )
            time.sleep(POLL_S)
        for process, output in zip(processes, outputs, strict=True):
            if process.returncode:
                raise PeerFailed(f"stopped with {process.returncode}: {_last_words(output)}")
    return [_results(output, len(tasks)) for output in outputs]


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


def _addresses(parties: int) -> list[str]:
    """Return loopback addresses whose ports were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(parties)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _results(output: Path, tasks: int) -> list[dict[str, Any]]:
    """Return the JSON lines among whatever else the peer writes."""
    results = [
        json.loads(line) for line in output.read_text().splitlines() if line.startswith('{"task"')
    ]
    if len(results) != tasks:
        raise PeerFailed(f"{len(results)} of {tasks} results: {_last_words(output)}")
    return results


def _last_words(output: Path) -> str:
    return output.read_text(errors="replace").strip()[-SHOWN:] or "it said nothing"
