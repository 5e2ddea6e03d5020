"""`securemedian bench memory`: the memory of a server in a round of many clients.

Both servers are real processes, started anew for every point. This process plays all clients, one
after another, over the servers' own sockets. All of them deal and submit the same, which is made
once: what a server does with an upload does not depend on what is in it.
"""

import argparse
import copy
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.benchmarks import settings
from securemedian.clients.client import Client
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import daemons, report
from securemedian.laboratory.processes import Processes
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.operating import keygen

# the parameters of CNNMnist
CNN = 1_663_370
SERVERS = ("s0", "s1")
DEADLINE_S = 3600.0


class Copied(Client):
    """A client that deals and encodes what the first one has made."""

    made: dict[str, Any]

    def deal(self, *arguments: Any, **named: Any) -> OwnDealing:
        """Return the one dealing of all clients."""
        if "dealt" not in self.made:
            self.made["dealt"] = super().deal(*arguments, **named)
        # a dealing rotates one update only, and so each client gets a copy
        dealt: OwnDealing = copy.copy(self.made["dealt"])
        return dealt

    def encode(self, *arguments: Any, **named: Any) -> NDArray[Any]:
        """Return the one encoded update of all clients."""
        if "values" not in self.made:
            self.made["values"] = super().encode(*arguments, **named)
        values: NDArray[Any] = self.made["values"]
        return values


def add_kinds(kinds: Any) -> None:
    """Add `memory` to `bench`."""
    memory = kinds.add_parser(
        "memory",
        help="how much memory a server takes for a round of many clients",
        description="Start both servers, submit the updates of many clients to one bucketed round, "
        "and print the most memory that each server has had until the result was published, its "
        "code and libraries included.",
    )
    for name, default, what in (
        ("--clients", 160, "how many clients submit"),
        ("--dim", CNN, "coordinates"),
    ):
        memory.add_argument(
            name,
            type=settings.count,
            default=default,
            metavar="N",
            help=f"{what} (default: %(default)s)",
        )
    memory.add_argument(
        "--buckets",
        type=settings.numbers,
        default=[8, 16],
        metavar="B,..",
        help="numbers of buckets (default: 8,16)",
    )
    settings.add_out(memory)
    memory.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure all points, print a table and save the JSON."""
    file = report.check_writable(options.out / "memory.json")
    console = report.console()
    points = []
    for buckets in options.buckets:
        with console.status(f"{options.clients} clients, b = {buckets}"):
            points.append(measure(options.clients, options.dim, buckets))
    report.save(file, {"clients": options.clients, "dim": options.dim}, points)
    rows = [
        [
            str(point["buckets"]),
            *(str(point["peak_mib"][server]) for server in SERVERS),
            report.figure(point["uploads_seconds"]),
            report.figure(point["run_seconds"]),
        ]
        for point in points
    ]
    columns = ["buckets", "S0, MiB", "S1, MiB", "uploads, s", "from the last upload, s"]
    title = f"Most memory of a server: {options.clients} clients, d = {options.dim:,}"
    console.print(report.table(title, columns, rows))
    console.print(f"saved to {file}")


def measure(clients: int, dim: int, buckets: int) -> dict[str, Any]:
    """Run one round with servers of its own, and return what they took."""
    # the default policy asks for more than 8 buckets, and this one for nothing
    policy = CoordinateRange()
    params = RoundParams(
        Bucketed(buckets=buckets), dim=dim, max_clients=clients, deadline_s=DEADLINE_S
    )
    model = np.zeros(dim, np.float32)
    update = np.random.default_rng(1).normal(0, 0.01, dim).astype(np.float32)
    with tempfile.TemporaryDirectory(prefix="securemedian-memory-") as made:
        folder = Path(made) / "service"
        names = keygen.client_names(clients)
        keygen.make_all(folder, names, keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None))
        with (
            Processes(folder) as processes,
            Coordinator.from_config(folder / "coordinator.toml") as coordinator,
        ):
            daemons.start(processes, folder)
            round_id = coordinator.open_round(params, model, policy)
            start = time.monotonic()
            submit_all(folder, clients, update, round_id)
            submitted = time.monotonic()
            daemons.until_published(processes, coordinator, round_id, lambda status: None)
            ended = time.monotonic()
            peaks = {server: processes.peak_mib(server) for server in SERVERS}
    return {
        "clients": clients,
        "dim": dim,
        "buckets": buckets,
        "peak_mib": peaks,
        "uploads_seconds": submitted - start,
        "run_seconds": ended - submitted,
    }


def submit_all(folder: Path, clients: int, update: NDArray[np.float32], round_id: str) -> None:
    """Submit one update in the name of each client whose configuration is in a folder."""
    Copied.made = {}
    for name in keygen.client_names(clients):
        with Copied.from_config(folder / f"{name}.toml") as client:
            client.submit(update, round_id)
