"""Two real servers on this machine, and one process that plays all clients, one after another.

All clients deal and submit the same, which is made once.
"""

import copy
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import daemons
from securemedian.laboratory.processes import Processes
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.operating import keygen

# the parameters of CNNMnist
CNN = 1_663_370
SERVERS = ("s0", "s1")
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


@dataclass(frozen=True)
class RunningServers:
    """Two servers that run, and who asks them for rounds."""

    params: RoundParams
    processes: Processes
    coordinator: Coordinator
    folder: Path

    def round(self, show: daemons.ShowStatus = lambda status: None) -> Round:
        """Run one round, and return its cost and what the clients' part took.

        `show` is called with S0's status again and again.
        """
        params = self.params
        # the default policy asks for more than 8 buckets, and this one for nothing
        policy = CoordinateRange() if params.uses_range else None
        model = np.zeros(params.dim, np.float32)
        update = np.random.default_rng(1).normal(0, 0.01, params.dim).astype(np.float32)
        round_id = self.coordinator.open_round(params, model, policy, reset=True)
        start = time.monotonic()
        Copied.made = {}
        for name in keygen.client_names(params.max_clients):
            with Copied.from_config(self.folder / f"{name}.toml") as client:
                client.submit(update, round_id)
        submitted = time.monotonic()
        status = daemons.until_published(self.processes, self.coordinator, round_id, show)
        return {
            "uploads_seconds": submitted - start,
            "published_seconds": time.monotonic() - submitted,
            "attempt": status.attempt,
            "cost": status.cost,
        }


@contextmanager
def started(
    params: RoundParams, *tables: str, first: str = "", **of_server: str
) -> Iterator[RunningServers]:
    """Start two servers, with these tables in both files, and those of one server besides.

    `first` is a line that stands before all tables.
    """
    # short, because Ray has sockets below the servers' folders
    with tempfile.TemporaryDirectory(prefix="sm-") as made:
        folder = Path(made)
        daemons.make(folder, params.max_clients)
        for server in SERVERS:
            file = folder / f"{server}.toml"
            own = [of_server[server]] if server in of_server else []
            file.write_text("\n".join([first, file.read_text(), *tables, *own]))
        with daemons.running(folder) as (processes, coordinator):
            yield RunningServers(params, processes, coordinator, folder)
