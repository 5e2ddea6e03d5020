"""`securemedian bench scale`: a round on 1, 2, 4, .. workers a server, and on threads.

Both servers are real processes, on a local Ray cluster each. Rounds on workers and on threads take
turns, and the middle one of each is kept. This process plays all clients.

Three limits are told apart: one core (OTs per second of one worker), the link (the busier
direction), and the door. The door is the one process that takes all uploads, checks them against
their SHA-256, and hands slices to the workers.
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.benchmarks import settings
from securemedian.clients.client import Client
from securemedian.common import terminal
from securemedian.laboratory import report
from securemedian.laboratory.servers import SERVERS, Service, servers_here
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.servers.config import WORKER_LANES

# the parameters of CNNMnist
CNN = 1_663_370
DEADLINE_S = 3600.0
# a round that was run, with what it cost
Round = dict[str, Any]


class Copied(Client):
    """A client that deals and encodes what the first one has made."""

    made: dict[str, Any]

    def deal(self, *arguments: Any, **named: Any) -> OwnDealing:
        if "dealt" not in self.made:
            self.made["dealt"] = super().deal(*arguments, **named)
        # a dealing rotates one update only, and so each client gets a copy
        dealt: OwnDealing = copy.copy(self.made["dealt"])
        return dealt

    def encode(self, *arguments: Any, **named: Any) -> NDArray[Any]:
        if "values" not in self.made:
            self.made["values"] = super().encode(*arguments, **named)
        values: NDArray[Any] = self.made["values"]
        return values


def timed_round(service: Service, params: RoundParams) -> Round:
    """Run one round, and return its cost and what the clients' part took."""
    # the default policy asks for more than 8 buckets, and this one for nothing
    policy = CoordinateRange() if params.form.buckets else None
    model = np.zeros(params.dim, np.float32)
    update = np.random.default_rng(1).normal(0, 0.01, params.dim).astype(np.float32)
    times: list[float] = []

    def play(round_id: str, _: Published) -> None:
        times.append(time.monotonic())
        Copied.made = {}
        for name in service.names:
            with Copied.from_config(service.folder / f"{name}.toml") as client:
                client.submit(update, round_id)
        times.append(time.monotonic())

    ended = service.round(params, play, model=model, range_policy=policy, reset=True)
    start, submitted = times
    return {
        "uploads_seconds": submitted - start,
        "published_seconds": time.monotonic() - submitted,
        "attempt": ended.status.attempt,
        "cost": ended.status.cost,
    }


@contextmanager
def started(params: RoundParams, table: str, **values: Any) -> Iterator[Service]:
    """Start two servers, with these values in one table of both configurations.

    They make nothing ahead, so that a round's seconds have all of its work.
    """
    settings = {"pool_limit_bytes": 0}
    # JSON's words, numbers and switches are TOML's
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    tables = dict.fromkeys(SERVERS, "\n".join([f"[{table}]", *lines]))
    # short, because Ray has sockets below the servers' folders
    with (
        tempfile.TemporaryDirectory(prefix="sm-") as made,
        servers_here(Path(made), params.max_clients, settings=settings, tables=tables) as service,
    ):
        yield service


def add_kinds(kinds: Any) -> None:
    scale = kinds.add_parser(
        "scale",
        help="a round on several workers a server, beside one on threads",
        description='Start both servers with [engine] kind = "ray", with 1, 2, 4, .. workers of '
        "one lane each, run rounds, and compare each with one on threads beside it. Needs the "
        "extra [ray], and two cores per worker to show more than what it costs.",
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
        help="the method of the rounds (default: %(default)s)",
    )
    settings.add_counts(
        scale,
        ("--lanes", 2, "lanes of the servers on threads"),
        ("--clients", 8, "how many clients submit"),
        ("--dim", CNN, "coordinates"),
        ("--repeat", 3, "rounds of each kind after a first one, of which the middle one is kept"),
    )
    settings.add_out(scale)
    scale.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure all numbers of workers, print a table and what limits, and save the JSON."""
    file = report.check_writable(options.out / "scale.json")
    console = terminal.console(width=terminal.TABLE_WIDTH)
    params = RoundParams.from_dict(
        {
            "method": options.method,
            "dim": options.dim,
            "max_clients": options.clients,
            "deadline_s": DEADLINE_S,
        }
    )
    beside: list[Round] = []
    points: list[dict[str, Any]] = []
    with ExitStack() as stack:
        # Ray would leave the logs of nodes in /tmp/ray.
        kept = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp"))
        os.environ["RAY_TMPDIR"] = kept
        with console.status("starting on threads"):
            threads = stack.enter_context(started(params, "protocol", lanes=options.lanes))
        for workers in options.workers:
            shards = max(workers, options.shards or workers)
            with console.status(f"{workers} workers a server"):
                point, rounds = measure(threads, params, workers, shards, options.repeat)
            points.append(point)
            beside += rounds
    points.insert(0, {"workers": 0, "lanes": options.lanes, "shards": 0, **_middle(beside)})
    report.save(file, {"round": params.to_dict()}, points)
    title = f"{params.method.label}, {options.clients} clients, d = {options.dim:,}"
    console.print(report.table(title, rows(points)))
    for line in limits(points):
        console.print(line)
    console.print(f"saved to {file}")


def measure(
    threads: Service, params: RoundParams, workers: int, shards: int, repeat: int
) -> tuple[dict[str, Any], list[Round]]:
    """Run rounds on workers, each beside one on threads; return the point, and the latter."""
    with started(params, "engine", kind="ray", workers=workers, shards=shards) as service:
        pairs = [
            (timed_round(threads, params), timed_round(service, params)) for _ in range(repeat + 1)
        ]
    # the first of each has found nothing in the caches
    beside, own = zip(*pairs[1:], strict=True)
    ratios = [_seconds(one) / _seconds(other) for other, one in pairs[1:]]
    point = {
        "workers": workers,
        "lanes": WORKER_LANES,
        "shards": shards,
        "of_threads": statistics.median(ratios),
        "ratios": ratios,
        "all_seconds": [_seconds(one) for one in own],
        **_middle(own),
    }
    return point, list(beside)


def _middle(rounds: Sequence[Round]) -> Round:
    return sorted(rounds, key=_seconds)[(len(rounds) - 1) // 2]


def rows(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the table's rows, with each number of workers beside threads and one worker."""
    one = next((_seconds(point) for point in points if point["workers"] == 1), None)
    return [
        {
            "workers": str(point["workers"] or "threads"),
            "lanes": str(point["lanes"]),
            "shards": str(point["shards"] or ""),
            "round, s": point["cost"]["seconds"],
            "check, s": point["cost"]["checking_seconds"],
            "door, s": point["cost"]["uploads_seconds"],
            "of threads": point.get("of_threads", 1.0),
            "of 1 worker": _seconds(point) / one if one and point["workers"] else None,
            "MB/s sent": _rate(point),
        }
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
