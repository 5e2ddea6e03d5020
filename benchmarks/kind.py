"""The frame of a kind of benchmark: its options are read, its points timed, printed and saved."""

import argparse
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.settings import Settings
from securemedian.common import terminal
from securemedian.laboratory import plots, report
from securemedian.laboratory.plots import Line, Panel

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Found:
    """The results of a benchmark: what is saved, printed, and drawn as panels if there are any."""

    results: Sequence[Result]
    printed: Sequence[Any]
    title: str = ""
    panels: Sequence[Panel] = ()
    # further fields of the JSON
    saved: Mapping[str, Any] = field(default_factory=dict)


def run(
    name: str, measure: Callable[[argparse.Namespace, Settings], Found], options: argparse.Namespace
) -> None:
    """Measure, print, and save JSON: NAME.json in --out, or the points alone as --json says.

    Refuse what cannot be written or drawn before anything is measured.
    """
    chosen, to_folder = settings.read(options), hasattr(options, "out")
    file = options.out / f"{name}.json" if to_folder else options.json
    if to_folder:
        plots.check()
    if file:
        report.check_writable(file)
    found = measure(options, chosen)
    console = terminal.console(width=terminal.TABLE_WIDTH)
    for one in found.printed:
        console.print(terminal.prose(one) if isinstance(one, str) else one)
    if not file:
        return
    if to_folder:
        report.save(file, asdict(chosen), found.results, **found.saved)
    else:
        report.write_json(file, found.results)
    drawn = ""
    if found.panels:
        drawn = f" and {plots.save(options.out / name, found.title, found.panels)}"
    console.print(terminal.prose(f"saved to {file}{drawn}"))


def by_clients(label: str, rows: Sequence[Result], value: Callable[[Result], float]) -> Line:
    """Return the line of a value of results by their numbers of clients."""
    return Line(label, [one["clients"] for one in rows], [value(one) for one in rows])


def timed(work: Callable[[], object], repeat: int) -> float:
    """Return the median seconds of `repeat` calls, after a first one, which may compile."""
    seconds = []
    for _ in range(1 + repeat):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median_low(seconds[1:])
