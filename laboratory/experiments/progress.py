"""The display of an experiment in a terminal while it runs."""

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


class ExperimentBoard(Progress):
    """A progress bar over all rounds of the missing runs, and a line for every finished one."""

    def __init__(self, console: Console, found: int, missing: int, rounds: int) -> None:
        super().__init__(
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
        self._number, self._runs, self._rounds = found, found + missing, rounds
        self._done, self._title, self._line = 0, "", ""
        self._task = self.add_task("starting", total=missing * rounds)
        if found:
            console.print(f"{found} of {self._runs} runs are there already")

    def begin(self, run: Run) -> None:
        self._number += 1
        self._title = f"run {self._number} of {self._runs}: {run.name}"
        if run.policy != CONSTANT:
            self._title += f", range {run.policy.label}"

    def advance_to(self, record: RunRecord) -> None:
        """Show that the rounds of `record` are done and the next one is running."""
        rounds = record.rounds
        accuracy = f", accuracy {rounds[-1].accuracy:.2%}" if rounds else ""
        self._line = f"{self._title}: round {len(rounds) + 1} of {self._rounds}{accuracy}"
        self.update(self._task, completed=self._done + len(rounds), description=self._line)

    def servers(self, status: RoundStatus) -> None:
        done, total = status.progress
        share = f" {done / total:.0%}" if total else ""
        doing = f"{self._line}; servers: {status.phase or status.state}{share}"
        self.update(self._task, description=doing)

    def ended(self, record: RunRecord) -> None:
        self._done += self._rounds
        self.update(self._task, completed=self._done)
        rounds = record.rounds
        accuracy = f"accuracy {rounds[-1].accuracy:.2%}" if rounds else "accuracy none"
        end = f"diverged after round {len(rounds)}" if record.diverged else accuracy
        seconds = sum(figures.seconds for figures in rounds)
        self.console.print(f"{self._title}: {end}, {seconds:.0f} s", highlight=False)
