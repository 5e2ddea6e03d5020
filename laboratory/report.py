"""The results of a benchmark as a table and in a JSON file.

The JSON says on which machine and by which command its figures were measured.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securemedian.clients import files
from securemedian.common import terminal

if TYPE_CHECKING:
    from rich.console import Group


def megabytes(result: Mapping[str, Any]) -> float:
    """Return the megabytes of both directions together, preprocessing included."""
    return float(result["bytes_s0_to_s1"] + result["bytes_s1_to_s0"]) / 1e6


def table(title: str, rows: Sequence[Mapping[str, str | float | None]], note: str = "") -> "Group":
    """Return a table of rows, whose names are its columns, with three digits of each figure."""
    cells = [
        [one if isinstance(one, str) else terminal.figure(one) for one in row.values()]
        for row in rows
    ]
    return terminal.table(title, list(rows[0]), cells, note)


def check_writable(path: Path) -> Path:
    """Make the folder of a file that will be written after minutes of work, and return its path.

    Raises ConfigError if the file cannot be written.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    files.check_writable(path)
    return path


def command() -> str:
    return shlex.join(["securemedian", *sys.argv[1:]])


def write_json(path: Path, values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write values as JSON to a file, whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(values, indent=1) + "\n")
    os.replace(new, path)


def save(
    path: Path, settings: Mapping[str, Any], points: Sequence[Mapping[str, Any]], **more: Any
) -> None:
    """Write the points of a figure, with everything that is needed to measure them again."""
    content = {
        "command": command(),
        "machine": machine() | {"date": datetime.now(UTC).isoformat(timespec="seconds")},
        "settings": dict(settings),
        **more,
        "points": points,
    }
    write_json(path, content)


def cores() -> int | None:
    """Return how many cores this process may use, if that can be told."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine() -> dict[str, Any]:
    """Return what figures depend on: the processor, its cores, and the versions in use."""
    return {
        "cpu": _cpu(),
        "cores": cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"
