"""The demo in a terminal: a table that grows with the rounds, and a summary at the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from securemedian.common.status import RoundStatus
from securemedian.common.terminal import table
from securemedian.laboratory import plots
from securemedian.laboratory.plots import Line, Panel
from securemedian.laboratory.training_run import Scenario


class DemoBoard(Live):
    """The live table of rounds, with a line below it that says what is going on."""

    def __init__(
        self,
        console: Console,
        scenario: Scenario,
        rounds: int,
        mean: Sequence[float] | None = None,
    ) -> None:
        super().__init__(console=console, refresh_per_second=8)
        self._rounds, self._done, self._mean = rounds, 0, mean
        params, fault, holders = scenario.params, scenario.fault, scenario.data.holders
        wrong = ", ".join(holders[-scenario.faulty :]) or f"{scenario.faulty} of them"
        misbehaving = (
            f", {wrong} with {fault.name} from round {fault.first} on"
            if fault.name != "none" and scenario.faulty
            else ""
        )
        who = f"{len(holders)} hospitals" if holders else f"{scenario.clients} clients"
        self._table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title=f"{scenario.data.name}: {who}{misbehaving}; "
            f"{params.method.label}; {params.dim:,} parameters",
            caption="seconds: the whole round. Of these, ahead: the servers' work while clients "
            "train; run: their work once all updates are in. Equals plain: what the servers "
            "published is what numpy makes of the updates",
        )
        # in two lines, so that the table fits 80 columns
        twice = "S0>S1\nMB", "S1>S0\nMB", "left\nout", "equals\nplain"
        compared = ("with the\nmean",) if mean else ()
        for heading in ("round", "accuracy", *compared, "seconds", "ahead", "run", *twice):
            # a number that is cut off is another number
            self._table.add_column(heading, justify="right", no_wrap=True)
        self.say("starting both servers (the first start compiles the kernels: a minute or two)")

    def stop(self) -> None:
        super().stop()
        if not self.console.is_terminal:
            # rich does not end the last line in a file or a pipe
            self.console.print()

    def say(self, line: str) -> None:
        self.update(Group(self._table, Text(line, style="dim")))

    def watch(self, status: RoundStatus) -> None:
        """Show how far the current round is, from S0's status."""
        done, total = status.progress
        phase = f", {status.phase}" if status.phase else ""
        progress = f" {done / total:.0%}" if total else ""
        uploads = f"{len(status.complete)} of {len(status.clients)} clients at both servers"
        left_out = "".join(f"; {name}: {why}" for name, why in status.left_out.items())
        self.say(
            f"round {self._done + 1} of {self._rounds}: "
            f"{status.state}{phase}{progress}; {uploads}{left_out}"
        )

    def add(self, measured: dict[str, Any]) -> None:
        """Add the row of a round."""
        self._done += 1
        self._table.add_row(
            str(measured["round"]),
            f"{measured['accuracy']:.1%}",
            *((f"{self._mean[self._done - 1]:.1%}",) if self._mean else ()),
            f"{measured['seconds']:.1f}",
            f"{measured['ahead_seconds']:.2f}",
            f"{measured['protocol_seconds']:.2f}",
            f"{measured['bytes_s0_to_s1'] / 1e6:.2f}",
            f"{measured['bytes_s1_to_s0'] / 1e6:.2f}",
            str(len(measured["left_out"]) or "-"),
            "yes" if measured["matches_plaintext"] else Text("NO", style="bold red"),
        )
        for group in measured["unchanged_groups"]:
            self.console.print(
                f"round {measured['round']}: too few clients chose group {group}, its model stays"
            )
        if self._done == self._rounds:
            self.update(self._table)


def summary(report: dict[str, Any]) -> Group:
    """Return tables of the final accuracies and of what each server sent, received and learnt."""
    final = {
        "secure result": report["final"]["secure"],
        "plain mean of the last round's updates": report["final"]["plain_mean"],
        "plain median of the last round's updates": report["final"]["plain_median"],
    }
    final |= {
        f"plain {name}, trained by itself from the start": values[-1]
        for name, values in report["baselines"].items()
    }
    accuracies = table(
        "test accuracy at the end",
        ["aggregate", "accuracy"],
        [[label, f"{value:.2%}"] for label, value in final.items()],
    )
    servers = table(
        "the view of each server, all rounds together: MB sent to the other and received from it",
        ["server", "sent", "received", "learnt of the updates"],
        [
            [
                name.upper(),
                *(f"{seen[way] / 1e6:.2f}" for way in ("bytes_sent", "bytes_received")),
                seen["learnt"],
            ]
            for name, seen in report["servers"].items()
        ],
    )
    lines = left_out(report["rounds"])
    if report["matches_plaintext"]:
        of_whom = " from the updates of the others" if lines else ""
        how = (
            "except for its noise"
            if report["settings"]["params"].get("noise_multiplier")
            else "bit by bit"
        )
        lines.append(
            f"Every published result equals the one computed in the clear{of_whom}, {how}."
        )
    return Group(accuracies, servers, *lines, *_moral(report))


def _moral(report: dict[str, Any]) -> list[str]:
    """Say what the run shows, in a sentence for those who do not know what a median is."""
    settings, mean = report["settings"], report["baselines"].get("mean")
    faulty, hospitals = settings["faulty"], settings["holders"]
    if not (hospitals and mean and faulty and settings["fault"] != "none"):
        return []
    broken = " and ".join(hospitals[-faulty:])
    right, wrong = (f"{100 * value:.0f}" for value in (report["final"]["secure"], mean[-1]))
    return [
        f"\nFrom round {settings['fault_from']} on {broken} sent nonsense. The model that the "
        f"hospitals trained with the average now judges {wrong} of 100 patients rightly, and the "
        f"one with the median {right}; and nobody has seen a hospital's update."
    ]


def picture(report: dict[str, Any], path: Path) -> Path:
    """Draw the accuracy round by round, secure and by the yardsticks, and return the file."""
    settings = report["settings"]
    secure = [100 * one["accuracy"] for one in report["rounds"]]
    numbers = [one["round"] for one in report["rounds"]]
    lines = [Line(f"secure {settings['params']['method']}", numbers, secure)]
    lines += [
        Line(f"plain {name}, by itself", numbers, [100 * value for value in values])
        for name, values in report["baselines"].items()
    ]
    fault = settings["fault"]
    panel = Panel(
        f"{fault} from round {settings['fault_from']} on" if fault != "none" else "no fault",
        "round",
        "test accuracy (%)",
        lines,
    )
    return plots.save(path.with_suffix(""), f"{settings['data']}, {settings['model']}", [panel])


def left_out(rounds: list[dict[str, Any]]) -> list[str]:
    """Say who was left out of which rounds, and why."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for one in rounds:
        for name, why in one["left_out"].items():
            numbers.setdefault((name, why), []).append(str(one["round"]))
    return [
        f"{name} was left out of round {', '.join(which)}: {why}."
        for (name, why), which in numbers.items()
    ]
