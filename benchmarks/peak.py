"""`securemedian bench peak`: the most memory of a server in a round of many clients."""

import argparse
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.running import CNN, DEADLINE_S, SERVERS, started
from securemedian.laboratory import report
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams


def add_kinds(kinds: Any) -> None:
    peak = kinds.add_parser(
        "peak",
        help="how much memory a server takes for a round of many clients",
        description="Start both servers, submit the updates of many clients to one bucketed round, "
        "and print the most memory that each server has had until the result was published, its "
        "code and libraries included.",
    )
    settings.add_counts(
        peak, ("--clients", 160, "how many clients submit"), ("--dim", CNN, "coordinates")
    )
    peak.add_argument(
        "--buckets",
        type=settings.numbers,
        default=[8, 16],
        metavar="B,..",
        help="numbers of buckets (default: 8,16)",
    )
    settings.add_out(peak)
    peak.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Run a round with servers of its own per number of buckets, print a table, save the JSON."""
    file = report.check_writable(options.out / "peak.json")
    console = report.console()
    points, rows = [], []
    for buckets in options.buckets:
        params = RoundParams(
            Bucketed(buckets=buckets),
            dim=options.dim,
            max_clients=options.clients,
            deadline_s=DEADLINE_S,
        )
        with (
            console.status(f"{options.clients} clients, b = {buckets}"),
            started(params) as service,
        ):
            took = service.round()
            peaks = {server: service.processes.peak_mib(server) for server in SERVERS}
        points.append({"buckets": buckets, "peak_mib": peaks} | took)
        figures = report.figure(took["uploads_seconds"]), report.figure(took["published_seconds"])
        rows.append([str(buckets), *map(str, peaks.values()), *figures])
    report.save(file, {"clients": options.clients, "dim": options.dim}, points)
    columns = ["buckets", "S0, MiB", "S1, MiB", "uploads, s", "from the last upload, s"]
    title = f"Most memory of a server: {options.clients} clients, d = {options.dim:,}"
    console.print(report.table(title, columns, rows))
    console.print(f"saved to {file}")
