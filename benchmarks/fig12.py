"""`securemedian bench fig12`: the part of a server's time that is secure computation.

This is the paper's Figure 12: the MLP's 199,210 coordinates, n = 10..160, bucketed (b = 8), all
with the count ring that the most clients need.

The secure computation (MPC) is everything that takes both servers. In addition, a server reads the
uploads, packed or as seeds to expand, and sums them, which grows with the clients; and S0 turns the
opened buckets into the new model and range.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.work import Point
from securemedian.laboratory import report
from securemedian.laboratory.plots import Line, Panel
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams

# parameters of the network 784-200-200-10
MLP = 199_210
# a field of a result -> its name in the plot
PARTS = {
    "total_seconds": "total server time",
    "mpc_seconds": "MPC, preprocessing included",
    "uploads_seconds": "reading and summing the uploads",
    "publish_seconds": "quantize and range update, at S0",
}


def add_kinds(kinds: Any) -> None:
    """Add `fig12` to `bench`."""
    fig12 = kinds.add_parser(
        "fig12",
        help="the paper's Figure 12: server time, and the MPC part of it, by number of clients",
        description="The paper's Figure 12: a server's time for one bucketed median of the MLP's "
        "parameters, and the part of it that is secure computation, by the number of clients, at "
        "one width of the count ring. Correlations are made before the round starts, and their "
        "seconds are in both.",
    )
    fig12.add_argument(
        "--clients",
        type=settings.numbers,
        default=list(range(10, 161, 30)),
        metavar="N,..",
        help="numbers of clients (default: 10,40,..160)",
    )
    fig12.add_argument(
        "--dim",
        type=settings.count,
        default=MLP,
        metavar="D",
        help="coordinates (default: %(default)s)",
    )
    settings.add_options(fig12)
    settings.add_out(fig12)
    fig12.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Time all points, print a table, save the JSON and the plot."""
    chosen = settings.read(options)
    stem = options.out / "fig12"
    file = report.prepare(stem)
    bits = RoundParams(Bucketed(), dim=options.dim, max_clients=max(options.clients)).ring_bits
    points = [
        Point(
            "median", "bucketed", None, n, options.dim, 8, bits, "scan", ahead=True, verified=False
        )
        for n in options.clients
    ]
    results = settings.measure(points, chosen)
    grown = growth(results)
    report.save(file, asdict(chosen), results, growth_of_mpc=grown)
    console = report.console()
    columns = ["clients", "total, s", "MPC, s", "uploads, s", "quantize, s", "MB"]
    rows = [
        [
            str(r["clients"]),
            *(report.figure(r[part]) for part in PARTS),
            report.figure(report.megabytes(r)),
        ]
        for r in results
    ]
    title = f"Figure 12: bucketed median, d = {options.dim:,}, count ring of {bits} bits"
    note = (
        "MPC: preprocessing included; uploads: reading and summing them; "
        "quantize: the next range included; MB: both directions"
    )
    console.print(report.table(title, columns, rows, note))
    first, last = results[0]["clients"], results[-1]["clients"]
    console.print(
        f"the MPC part changes by {grown:+.1%} from {first} to {last} clients; "
        "in the paper it is constant"
    )
    console.print(
        f"saved to {file}, {report.draw(stem, 'Figure 12: server time', [_panel(results)])}"
    )


def growth(results: Sequence[Mapping[str, Any]]) -> float:
    """Return the relative growth of the MPC part from the first point to the last."""
    return float(results[-1]["mpc_seconds"] / results[0]["mpc_seconds"] - 1)


def _panel(results: Sequence[Mapping[str, Any]]) -> Panel:
    clients = [result["clients"] for result in results]
    lines = [
        Line(name, clients, [result[part] for result in results]) for part, name in PARTS.items()
    ]
    return Panel(f"bucketed median, d = {results[0]['dim']:,}", "clients", "seconds", lines)
