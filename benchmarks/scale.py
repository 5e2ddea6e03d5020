"""`securemedian bench scale`: a round on 1, 2, 4, .. workers a server, and on threads.

Both servers are real processes, on a local Ray cluster each. Rounds on workers and on threads take
turns, and the middle one of each is kept. This process plays all clients.

Three limits are told apart: what one core does (OTs per second of one worker), what the link
carries (the busier direction), and the door: the one process that takes all uploads, checks them
against their SHA-256, and hands slices to the workers.
"""

import argparse
import json
import os
import secrets
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from securemedian.benchmarks import settings
from securemedian.benchmarks.running import CNN, DEADLINE_S, Round, started, timed_round
from securemedian.common import terminal
from securemedian.common.status import RoundStatus
from securemedian.laboratory import report
from securemedian.laboratory.servers import SERVERS, Service, ShowStatus
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.computing.backends.ray import LOCAL, QUIET
from securemedian.servers.config import WORKER_LANES

COLUMNS = (
    "workers",
    "lanes",
    "shards",
    "round, s",
    "check, s",
    "door, s",
    "of threads",
    "of 1 worker",
    "MB/s sent",
)


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
        help="what the rounds compute (default: %(default)s)",
    )
    settings.add_counts(
        scale,
        ("--lanes", 2, "lanes of the servers on threads"),
        ("--clients", 8, "how many clients submit"),
        ("--dim", CNN, "coordinates"),
        ("--repeat", 3, "rounds of each kind after a first one, of which the middle one is kept"),
    )
    scale.add_argument(
        "--kill-node",
        action="store_true",
        help="then kill one of S0's nodes in the middle of a round, and tell what that costs; for "
        "2 workers or more",
    )
    settings.add_out(scale)
    scale.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure all numbers of workers, print a table and what limits, and save the JSON.

    Raises ConfigError if a node is to be killed of which there is only one.
    """
    if options.kill_node and min(options.workers) < 2:
        raise ConfigError(
            f"--kill-node leaves no worker of one: {options.workers}; give --workers 2 or more"
        )
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
            lanes = dict.fromkeys(SERVERS, _table("protocol", lanes=options.lanes))
            threads = stack.enter_context(started(params, **lanes))
        for workers in options.workers:
            shards = max(workers, options.shards or workers)
            with console.status(f"{workers} workers a server"):
                point, rounds = measure(threads, params, workers, shards, options)
            points.append(point)
            beside += rounds
    points.insert(0, {"workers": 0, "lanes": options.lanes, "shards": 0, **_middle(beside)})
    report.save(file, {"round": params.to_dict()}, points)
    title = f"{params.method.label}, {options.clients} clients, d = {options.dim:,}"
    console.print(terminal.table(title, list(COLUMNS), rows(points)))
    for line in [*limits(points), *killed(points)]:
        console.print(line)
    console.print(f"saved to {file}")


def _shards_lost(service: Service) -> int:
    return (service.folder / "s0.log").read_text().count('"event": "shard-lost"')


def _table(name: str, **values: Any) -> str:
    # JSON's words, numbers and switches are TOML's
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join([f"[{name}]", *lines])


def measure(
    threads: Service,
    params: RoundParams,
    workers: int,
    shards: int,
    options: argparse.Namespace,
) -> tuple[dict[str, Any], list[Round]]:
    """Run rounds on workers, each beside one on threads; return the point, and the latter."""
    engine = {"kind": "ray", "workers": workers, "shards": shards}
    with _nodes(workers) if options.kill_node else nullcontext() as cluster:
        tables = {server: _table("engine", **engine) for server in SERVERS}
        if cluster:
            tables["s0"] = _table("engine", address=cluster.address, insecure=True, **engine)
        with started(params, **tables) as service:
            pairs = [
                (timed_round(threads, params), timed_round(service, params))
                for _ in range(options.repeat + 1)
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
            if cluster:
                killed = timed_round(service, params, cluster.kill_one_halfway())
                point["killed"] = killed | {"shards_lost": _shards_lost(service)}
    return point, list(beside)


def _middle(rounds: Sequence[Round]) -> Round:
    return sorted(rounds, key=_seconds)[(len(rounds) - 1) // 2]


class _Nodes:
    def __init__(self, cluster: Any, nodes: Sequence[Any]) -> None:
        self._cluster, self._left = cluster, list(nodes)
        self.address: str = cluster.address

    def kill_one_halfway(self) -> ShowStatus:
        """Return what kills a node once half of a round's coordinates are done."""
        killed = False

        def show(status: RoundStatus) -> None:
            nonlocal killed
            done, total = status.progress
            # before the protocol the progress is that of filling the pools
            if not killed and status.phase == "protocol" and total and 2 * done >= total:
                killed = True
                self._cluster.remove_node(self._left.pop(), allow_graceful=False)

        return show


@contextmanager
def _nodes(count: int) -> Iterator[_Nodes]:
    """Start a cluster of so many nodes with one CPU each, and a head with none."""
    # what Ray reads when it is imported, and S0 inherits
    os.environ.update(QUIET | LOCAL | {"RAY_AUTH_TOKEN": secrets.token_hex(32)})
    try:
        from ray.cluster_utils import Cluster
    except ImportError as error:
        raise ConfigError(
            "Ray is missing: --kill-node needs it; run pip install '.[ray]' in a clone"
        ) from error
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=0, include_dashboard=False)
        yield _Nodes(cluster, [cluster.add_node(num_cpus=1) for _ in range(count)])
    finally:
        cluster.shutdown()


def rows(points: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the table's rows, with each number of workers beside threads and one worker."""
    one = next((_seconds(point) for point in points if point["workers"] == 1), None)
    return [
        [
            str(point["workers"] or "threads"),
            str(point["lanes"]),
            str(point["shards"] or ""),
            terminal.figure(point["cost"]["seconds"]),
            terminal.figure(point["cost"]["checking_seconds"]),
            terminal.figure(point["cost"]["uploads_seconds"]),
            terminal.figure(point.get("of_threads", 1.0)),
            terminal.figure(_seconds(point) / one if one and point["workers"] else None),
            terminal.figure(_rate(point)),
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


def killed(points: Sequence[dict[str, Any]]) -> list[str]:
    """Return one sentence per node that was killed: how long the round took, and others did."""
    return [_killed(point) for point in points if "killed" in point]


def _killed(point: dict[str, Any]) -> str:
    who, lost = f"{point['workers']} workers", point["killed"]["shards_lost"]
    if not lost:
        return f"{who}: the round was over before a node was missed; take a larger --dim"
    return (
        f"a node killed halfway, {who}: {_seconds(point['killed']):.3g} s, with {lost} of "
        f"{point['shards']} shards lost; undisturbed {min(point['all_seconds']):.3g} to "
        f"{max(point['all_seconds']):.3g} s"
    )


def _seconds(point: dict[str, Any]) -> float:
    """Return the seconds of a round with the check before it."""
    return float(point["cost"]["seconds"] + point["cost"]["checking_seconds"])


def _rate(point: dict[str, Any]) -> float:
    """Return MB per second in the busier direction."""
    cost = point["cost"]
    return max(cost["bytes_sent"], cost["bytes_received"]) / _seconds(point) / 1e6
