"""Two real servers on this machine, and one process that plays all clients, one after another.

All clients deal and submit the same, which is made once.
"""

import copy
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.coordinator.rounds import nothing
from securemedian.laboratory.servers import Service, ShowStatus, servers_here
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange

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


def timed_round(service: Service, params: RoundParams, show: ShowStatus = nothing) -> Round:
    """Run one round, and return its cost and what the clients' part took.

    `show` is called with S0's status again and again.
    """
    # the default policy asks for more than 8 buckets, and this one for nothing
    policy = CoordinateRange() if params.uses_range else None
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

    ended = service.round(params, play, show, model=model, range_policy=policy, reset=True)
    start, submitted = times
    return {
        "uploads_seconds": submitted - start,
        "published_seconds": time.monotonic() - submitted,
        "attempt": ended.status.attempt,
        "cost": ended.status.cost,
    }


@contextmanager
def started(params: RoundParams, **tables: str) -> Iterator[Service]:
    """Start two servers, each with the tables that are named after it.

    They make nothing ahead, so that a round's seconds have all of its work.
    """
    settings = {"pool_limit_bytes": 0}
    # short, because Ray has sockets below the servers' folders
    with (
        tempfile.TemporaryDirectory(prefix="sm-") as made,
        servers_here(Path(made), params.max_clients, settings=settings, tables=tables) as service,
    ):
        yield service
