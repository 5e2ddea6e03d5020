"""`securemedian bench scale`: a round on 1, 2, 4, .. workers a server, and on threads.

Both servers are real processes, started anew for each number of workers, each on a local Ray
cluster of its own. This process plays all clients, one after another, as in `bench memory`. Nothing
is made ahead, so that a round's seconds have all of its work.

Three things limit a round however many workers there are, and each is told apart: what one core
does (OTs per second of one worker), what the link carries (bytes of the busier direction, and the
rate at which the fastest run has sent them), and the door: the one process that takes all uploads,
checks what it has stored against its SHA-256, and hands slices to the workers.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.benchmarks import settings
from securemedian.benchmarks.memory import CNN, SERVERS, submit_all
from securemedian.clients.coordinator import Coordinator
from securemedian.laboratory import daemons, report
from securemedian.laboratory.processes import Processes
from securemedian.mpc.methods.registry import METHODS
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.coordinate import CoordinateRange
from securemedian.scripts import keygen

DEADLINE_S = 3600.0
# stands for no workers at all
THREADS = 0
COLUMNS = (
    "workers",
    "shards",
    "round, s",
    "check, s",
    "door, s",
    "of threads",
    "of 1 worker",
    "MB/s sent",
)


def add_kinds(kinds: Any) -> None:
    """Add `scale` to `bench`."""
    scale = kinds.add_parser(
        "scale",
        help="a round on several workers a server, beside one on threads",
        description='Start both servers with [engine] kind = "ray", with 1, 2, 4, .. workers '
        "each, run rounds, and compare them with rounds on threads. Needs the extra [ray], and two "
        "cores per worker to show more than what it costs.",
    )
    scale.add_argument(
        "--workers",
        type=settings.numbers,
        default=[1, 2, 4],
        metavar="W,..",
        help="workers of each server (default: 1,2,4)",
    )
    scale.add_argument(
        "--shards",
        type=settings.count,
        metavar="S",
        help="shards of a round (default: as many as workers)",
    )
    scale.add_argument(
        "--method",
        choices=tuple(METHODS),
        default="radix",
        help="what the rounds compute (default: %(default)s)",
    )
    for name, default, what in (
        ("--clients", 8, "how many clients submit"),
        ("--dim", CNN, "coordinates"),
        ("--repeat", 3, "rounds of each kind, of which the fastest is kept"),
    ):
        scale.add_argument(
            name,
            type=settings.count,
            default=default,
            metavar="N",
            help=f"{what} (default: %(default)s)",
        )
    settings.add_out(scale)
    scale.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure all numbers of workers, print a table and what limits, and save the JSON."""
    file = report.check_writable(options.out / "scale.json")
    console = report.console()
    params = RoundParams.from_dict(
        {
            "method": options.method,
            "dim": options.dim,
            "max_clients": options.clients,
            "deadline_s": DEADLINE_S,
        }
    )
    points = []
    for workers in [THREADS, *options.workers]:
        shards = max(workers, options.shards or workers)
        with console.status(f"{workers} workers a server" if workers else "threads"):
            points.append(measure(params, workers, shards, options.repeat))
    report.save(file, {"round": params.to_dict()}, points)
    title = f"{params.method.label}, {options.clients} clients, d = {options.dim:,}"
    console.print(report.table(title, list(COLUMNS), rows(points)))
    for line in limits(points):
        console.print(line)
    console.print(f"saved to {file}")


def measure(params: RoundParams, workers: int, shards: int, repeat: int) -> dict[str, Any]:
    """Run rounds with servers of their own, and return the cost of the fastest."""
    model = np.zeros(params.dim, np.float32)
    update = np.random.default_rng(1).normal(0, 0.01, params.dim).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="securemedian-scale-") as made:
        folder = Path(made) / "service"
        keygen.make_all(
            folder, params.max_clients, keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None)
        )
        for server in SERVERS:
            _configure(folder / f"{server}.toml", workers, shards)
        with (
            Processes(folder) as processes,
            Coordinator.from_config(folder / "coordinator.toml") as coordinator,
        ):
            daemons.start(processes, folder)
            found = [
                _round(processes, coordinator, folder, params, model, update) for _ in range(repeat)
            ]
    fastest: dict[str, Any] = min(found, key=lambda point: point["cost"]["seconds"])
    return {"workers": workers, "shards": shards if workers else 0, **fastest}


def _configure(file: Path, workers: int, shards: int) -> None:
    text = "pool_limit_bytes = 0\n" + file.read_text()
    if workers:
        text += f'\n[engine]\nkind = "ray"\nworkers = {workers}\nshards = {shards}\n'
    file.write_text(text)


def _round(
    processes: Processes,
    coordinator: Coordinator,
    folder: Path,
    params: RoundParams,
    model: Any,
    update: Any,
) -> dict[str, Any]:
    """Run one round, and return its cost and what the clients' part took."""
    policy = CoordinateRange() if params.uses_range else None
    round_id = coordinator.open(params, model, policy, reset=True)
    start = time.monotonic()
    submit_all(folder, params.max_clients, update, round_id)
    submitted = time.monotonic()
    status = daemons.until_published(processes, coordinator, round_id, lambda status: None)
    return {
        "uploads_seconds": submitted - start,
        "published_seconds": time.monotonic() - submitted,
        "cost": status["cost"],
    }


def rows(points: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the table's rows, with each number of workers beside threads and one worker."""
    threads = _seconds(points[0])
    one = next((_seconds(point) for point in points if point["workers"] == 1), None)
    return [
        [
            str(point["workers"] or "threads"),
            str(point["shards"] or ""),
            report.figure(point["cost"]["seconds"]),
            report.figure(point["cost"]["checking_seconds"]),
            report.figure(point["cost"]["uploads_seconds"]),
            report.figure(_seconds(point) / threads),
            report.figure(_seconds(point) / one if one and point["workers"] else None),
            report.figure(_rate(point)),
        ]
        for point in points
    ]


def limits(points: Sequence[dict[str, Any]]) -> list[str]:
    """Return one sentence per limit: one core, the link, and the door."""
    least = min(points[1:] or points, key=lambda point: int(point["workers"]))
    fastest = min(points, key=_seconds)
    cost, clients = fastest["cost"], fastest["uploads_seconds"]
    busier = max(cost["bytes_sent"], cost["bytes_received"])
    return [
        f"one core: {least['cost']['ots'] / _seconds(least) / 1e6:.3g} M OTs/s with "
        f"{least['workers'] or 'no'} workers, everything included",
        f"the link: {busier / 1e6:,.4g} MB in the busier direction, sent here at "
        f"{_rate(fastest):,.3g} MB/s; a link of 1 Gbit/s takes {8 * busier / 1e9:.3g} s for them",
        f"the door: {clients:.3g} s to take all uploads, one client after another, and "
        f"{cost['uploads_seconds']:.3g} s to read them, which workers do not share at the daemon",
    ]


def _seconds(point: dict[str, Any]) -> float:
    """Return the seconds of a round with the check before it."""
    return float(point["cost"]["seconds"] + point["cost"]["checking_seconds"])


def _rate(point: dict[str, Any]) -> float:
    """Return MB per second in the busier direction."""
    cost = point["cost"]
    return max(cost["bytes_sent"], cost["bytes_received"]) / _seconds(point) / 1e6
