"""What the demo looks like in a terminal: a table that grows with the rounds, and what came of it
at the end.
"""

from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from securemedian.laboratory.training_run import Figures, Scenario


class Board(Live):
    """The live table of rounds, with a line below it that says what is going on."""

    def __init__(self, console: Console, plan: Scenario, rounds: int) -> None:
        super().__init__(console=console, refresh_per_second=8)
        self._rounds, self._done = rounds, 0
        params = plan.params
        fault = (
            f", {plan.faulty} with {plan.fault.name} from round {plan.fault.first}"
            if plan.fault.name != "none" and plan.faulty
            else ""
        )
        self._table = Table(
            title=f"{plan.data.name}: {plan.clients} clients{fault}; {params.method.label}; {params.dim:,} parameters",
            caption="seconds: the whole round; ahead: of it the servers' work while clients train; "
            "run: once all updates are in",
        )
        for heading in (
            "round",
            "accuracy",
            "seconds",
            "ahead",
            "run",
            "S0 to S1",
            "S1 to S0",
            "equals plaintext",
        ):
            self._table.add_column(heading, justify="right")
        self.say("starting both servers (the first start compiles the kernels: a minute or two)")

    def stop(self) -> None:
        super().stop()
        if not self.console.is_terminal:
            self.console.print()  # rich leaves the last line without its end there

    def say(self, line: str) -> None:
        self.update(Group(self._table, Text(line, style="dim")))

    def watch(self, status: dict[str, Any]) -> None:
        """Show where the round in hand is."""
        here = sum(where == "both" for where in status["clients"].values())
        done, total = status["progress"]
        phase = f", {status['phase']}" if status["phase"] else ""
        progress = f" {done / total:.0%}" if total else ""
        uploads = f"{here} of {len(status['clients'])} clients at both servers"
        self.say(
            f"round {self._done + 1} of {self._rounds}: {status['state']}{phase}{progress}; {uploads}"
        )

    def add(self, figures: Figures) -> None:
        """A round is finished."""
        self._done += 1
        self._table.add_row(
            str(figures.round),
            f"{figures.accuracy:.2%}",
            f"{figures.seconds:.1f}",
            f"{figures.ahead_seconds:.2f}",
            f"{figures.protocol_seconds:.2f}",
            megabytes(figures.bytes_s0_to_s1),
            megabytes(figures.bytes_s1_to_s0),
            "yes" if figures.matches_plaintext else "[bold red]NO",
        )
        if self._done == self._rounds:
            self.update(self._table)


def summary(report: dict[str, Any]) -> Group:
    """The final accuracies, and what each server sent, received and learnt."""
    accuracies = Table(title="test accuracy at the end")
    accuracies.add_column("aggregate")
    accuracies.add_column("accuracy", justify="right")
    for label, value in (
        ("secure result", report["final"]["secure"]),
        ("plain mean of the last round's updates", report["final"]["plain_mean"]),
        ("plain median of the last round's updates", report["final"]["plain_median"]),
        *(
            (f"plain {name}, trained by itself from the start", values[-1])
            for name, values in report["baselines"].items()
        ),
    ):
        accuracies.add_row(label, f"{value:.2%}")
    servers = Table(title="what each server saw, all rounds together")
    for heading in ("server", "sent to the other", "received from it", "learnt of the updates"):
        servers.add_column(
            heading, justify="left" if heading.startswith(("server", "learnt")) else "right"
        )
    for name, seen in report["servers"].items():
        servers.add_row(
            name.upper(),
            megabytes(seen["bytes_sent"]),
            megabytes(seen["bytes_received"]),
            seen["learnt"],
        )
    if not report["matches_plaintext"]:
        return Group(accuracies, servers)
    return Group(
        accuracies,
        servers,
        "Every published result equals the one computed in the clear, bit by bit.",
    )


def megabytes(count: int) -> str:
    return f"{count / 1e6:.2f} MB"
