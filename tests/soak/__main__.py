"""The program behind `scripts/soak`: runs the service under faults, audits every round, reports."""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.live import Live

from securemedian.clients.files import check_writable
from securemedian.common import terminal
from securemedian.common.terminal import Paragraphs
from securemedian.mpc.errors import SecureMedianError
from securemedian.operating import compiling
from tests.soak.audit import Audit
from tests.soak.run import Soak

_DESCRIPTION = """Run two servers and the clients of two cohorts on this machine, round after
round of both at once, while processes are killed (at every transition of a round and at random),
links are cut, stalled, delayed and reordered, disks are full and clients slow. Everybody is started
again when ended, and nobody else helps. Every published result is compared with the one computed in
the clear.

Exit codes: 0 if nothing was lost, wrong, used twice or stuck; 1 if something was. Ctrl-C ends it in
order, with the report so far."""

# figures that must be 0
_NEVER = ("uploads_lost", "wrong_results", "reused_correlations", "stuck")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a soak as the arguments say; exit with status 1 if something was amiss."""
    parser = argparse.ArgumentParser("soak", description=_DESCRIPTION, formatter_class=Paragraphs)
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=5.0,
        metavar="N",
        help="how long faults strike (default: %(default)s); some rounds without faults follow",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=1,
        metavar="S",
        help="what decides which fault strikes when (default: %(default)s)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    options = parser.parse_args(arguments)
    try:
        if options.json:
            check_writable(options.json)
        compiling.compile_all()
        _soak(options)
    except SecureMedianError as error:
        sys.exit(f"soak: {error}")


def _minutes(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
    return value


def _soak(options: argparse.Namespace) -> None:
    console = terminal.console()
    directory = Path(tempfile.mkdtemp(prefix="securemedian-soak-"))
    minutes = options.minutes
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        soak = Soak(
            directory / "service",
            options.seed,
            lambda seconds, now: live.update(_board(soak.audit, seconds, minutes, now)),
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: soak.interrupt())
        complete = soak.run(60 * minutes)
    report = {"minutes": minutes, "seed": options.seed, "complete": complete, **soak.audit.report()}
    console.print(_table(report))
    for finding in report["findings"]:
        console.print(finding, style="bold red", highlight=False)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if soak.audit.clean:
        shutil.rmtree(directory)
        return
    left = "keys and the logs"
    if not complete:
        left = "the logs"
        for secret in directory.rglob("*.key_secret"):
            secret.unlink()
    print(f"{left} of all processes are left in {directory}", file=sys.stderr)
    sys.exit(1)


def _board(audit: Audit, seconds: float, minutes: float, now: str) -> str:
    figures = audit.report()
    counts = ", ".join(f"{figures[name]} {name.replace('_', ' ')}" for name in _NEVER)
    return (
        f"{seconds / 60:.1f} of {minutes:g} minutes and the rounds after them: "
        f"{figures['faults']} faults, {figures['published']} of {figures['rounds']} rounds "
        f"published\n{counts}\n{now}"
    )


def _table(report: dict[str, Any]) -> Group:
    ended = "" if report["complete"] else ", interrupted"
    title = f"soak: {report['minutes']:g} min, seed {report['seed']}{ended}"
    rows = _rows(report | {"faults_by_kind": _short(report["faults_by_kind"])}, "")
    return terminal.table(title, ["", ""], rows)


def _rows(figures: dict[str, Any], indent: str) -> list[list[str]]:
    """Return a row per figure, with the names of the JSON."""
    rows = []
    for name, value in figures.items():
        if isinstance(value, dict):
            rows += [[f"{indent}{name}", ""], *_rows(value, f"{indent}  ")]
        elif not isinstance(value, list):
            rows.append([f"{indent}{name}", str(value)])
    return rows


def _short(kinds: dict[str, int]) -> dict[str, int]:
    """Return the kinds of faults, with those at transitions as one."""
    counts: dict[str, int] = {}
    for kind, count in kinds.items():
        name = kind.split(" at ")[0] + (" at a transition" if " at " in kind else "")
        counts[name] = counts.get(name, 0) + count
    return counts


if __name__ == "__main__":
    main()
