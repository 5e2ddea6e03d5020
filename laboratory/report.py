"""The results of a benchmark: a table on the terminal, a JSON file and a plot.

The JSON says on which machine and by which command its figures were measured.
"""

import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securemedian.clients import terminal
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console, Group


# columns; a narrower terminal folds the lines, which reads better than figures that are cut off
TABLE_WIDTH = 112
CLOSE_FROM = 7


def console() -> "Console":
    """Return the console to print tables on, which is at least TABLE_WIDTH wide."""
    made = terminal.console()
    made.width = max(made.width, TABLE_WIDTH)
    return made


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], note: str = ""
) -> "Group":
    """Return a table with its title above and its note below.

    Columns of figures are aligned to the right, columns of words to the left. Where there is little
    room words are folded: a figure that is cut off is another figure.
    """
    from rich.cells import cell_len
    from rich.console import Group
    from rich.table import Table

    # many columns stand closer together
    close = len(columns) > CLOSE_FROM
    made = Table(box=None, header_style="bold", pad_edge=False, collapse_padding=close)
    for i, column in enumerate(columns):
        figures = all(not row[i] or row[i][0].isdigit() for row in rows)
        # a heading of several words may be folded between them
        whole = [*column.split(), *(row[i] for row in rows)]
        widest = max(map(cell_len, whole)) if figures else None
        made.add_column(
            column,
            justify="right" if figures else "left",
            overflow="fold",
            min_width=widest,
        )
    for row in rows:
        made.add_row(*row)
    return Group(f"\n{title}", made, *([note] if note else []))


def figure(value: float | None) -> str:
    """Return a figure with three significant digits, or an empty text for None."""
    return "" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def megabytes(result: Mapping[str, Any]) -> float:
    """Return the megabytes of both directions together, preprocessing included."""
    return float(result["bytes_s0_to_s1"] + result["bytes_s1_to_s0"]) / 1e6


def check_writable(path: Path) -> Path:
    """Make the folder of a file that will be written after minutes of work, and return its path.

    Raises ConfigError if the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return path


def command() -> str:
    return shlex.join(["securemedian", *sys.argv[1:]])


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
    path.write_text(json.dumps(content, indent=1) + "\n")


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
