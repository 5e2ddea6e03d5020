"""The display of an experiment in a terminal while it runs."""

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from securemedian.common.status import RoundStatus
from securemedian.laboratory.experiments.aggregation import CONSTANT
from securemedian.laboratory.experiments.runs import Run, RunRecord

# the remaining time is estimated from the rounds of the last so many seconds
ESTIMATE_S = 7200.0


class ExperimentBoard:
    """A progress bar over all rounds of all runs, and a line for every finished run."""

    def __init__(self, console: Console, runs: int, rounds: int) -> None:
        self._console, self._runs, self._rounds = console, runs, rounds
        self._number, self._done, self._title, self._line = 0, 0, "", ""
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("rounds"),
            TimeElapsedColumn(),
            TextColumn("remaining"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            speed_estimate_period=ESTIMATE_S,
        )
        self._task = self._progress.add_task("starting", total=None)

    def found(self, done: Mapping[str, RunRecord]) -> None:
        """Count runs that need not be carried out."""
        self._number = len(done)
        if done:
            self._console.print(f"{len(done)} of {self._runs} runs are there already")
        self._progress.reset(
            self._task, total=(self._runs - len(done)) * self._rounds, description="starting"
        )

    def begin(self, run: Run) -> None:
        """Show that a run begins."""
        self._number += 1
        self._title = f"run {self._number} of {self._runs}: {run.name}"
        if run.policy != CONSTANT:
            self._title += f", range {run.policy.label}"
        self._say(f"{self._title}: starting")

    def advance(self, record: RunRecord) -> None:
        """Show that the rounds of `record` are done and the next one is running."""
        accuracy = f", accuracy {record.rounds[-1].accuracy:.2%}" if record.rounds else ""
        self._line = f"{self._title}: round {len(record.rounds) + 1} of {self._rounds}{accuracy}"
        self._progress.update(self._task, completed=self._done + len(record.rounds))
        self._say(self._line)

    def servers(self, status: RoundStatus) -> None:
        """Show S0's status while it computes."""
        done, total = status.progress
        share = f" {done / total:.0%}" if total else ""
        self._say(f"{self._line}; servers: {status.phase or status.state}{share}")

    def finished(self, record: RunRecord) -> None:
        """Print the line of a finished run."""
        self._done += self._rounds
        self._progress.update(self._task, completed=self._done)
        accuracy = f"{record.rounds[-1].accuracy:.2%}" if record.rounds else "none"
        end = (
            f"diverged after round {len(record.rounds)}"
            if record.diverged
            else f"accuracy {accuracy}"
        )
        seconds = sum(figures.seconds for figures in record.rounds)
        self._console.print(f"{self._title}: {end}, {seconds:.0f} s", highlight=False)

    def _say(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()
