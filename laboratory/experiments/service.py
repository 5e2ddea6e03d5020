"""Rounds through the real S0 and S1, where this process plays all clients with their own keys."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.public import PublicSet
from securemedian.common.status import RoundStatus
from securemedian.laboratory.experiments.runs import ServerCost
from securemedian.laboratory.servers import (
    Service,
    ShowStatus,
    client_config,
    differs,
    servers_here,
)
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState

# returns the updates (n, d) of all clients for a published model (d,)
Play = Callable[[Float32s], Float32s]

# between two questions of a client to a server
POLL_S = 0.02


class ExperimentServers:
    """Both servers, which start when the first round needs them and end with this context."""

    def __init__(self, clients: int, show: ShowStatus) -> None:
        self._count, self._show = clients, show
        self._directory = Path(tempfile.mkdtemp(prefix="securemedian-experiment-"))
        # the servers and the connections to them
        self._open = ExitStack()
        self._clients: Sequence[Client] = ()

    def run_round(
        self, params: RoundParams, before: RunState, play: Play
    ) -> tuple[RunState, ServerCost]:
        """Run one more round; return the run's state after it and what it cost the servers.

        The first round of a run is opened with its model. The published result is compared with the
        one computed in the clear: raises SecureMedianError if they differ. An error of `play`
        aborts the round and is raised again.
        """
        first: dict[str, Any] = {}
        if before.published == 0:
            first = {
                "model": before.model,
                "range_policy": before.policy,
                "optimiser": before.optimiser,
            }
        results, cost = self._run(params, play, first)
        return before.after(results[0], params.method.range_buckets), cost

    def combine(
        self, params: RoundParams, public: PublicSet, predictions: NDArray[np.float32]
    ) -> tuple[Float32s, ServerCost]:
        """Run a round of all clients' predictions (n, samples, classes), as `run_round` does.

        Returns the labels (d,), and what the round cost the servers.
        """
        results, cost = self._run(params, lambda _: predictions, {}, public)
        return results[0], cost

    def _run(
        self,
        params: RoundParams,
        play: Play,
        opening: dict[str, Any],
        public: PublicSet | None = None,
    ) -> tuple[Float32s, ServerCost]:
        """Run a round that all clients submit to; return its results (results, d) and its cost."""
        service = self._started()
        sent: dict[str, Float32s] = {}

        def submit(round_id: str, before: Published) -> None:
            # rounds of experiments are opened with a model, or need none
            assert before.model is not None
            updates = play(before.model)
            for client, update in zip(self._clients, updates, strict=True):
                client.public = public
                # attacks send what is beyond every range
                client.submit(update, round_id, saturate=True)
                sent[client.config.name] = update.reshape(-1)

        ended = service.round(params, submit, self._show, **opening)
        # the order in which the servers drew clients for clusters
        placed = np.stack([sent[name] for name in ended.status.included])
        if not ended.clear(placed):
            raise differs(ended.status.number)
        cost = ended.status.cost
        return ended.results, ServerCost(
            cost["seconds"], cost["ots"], cost["bytes_sent"], cost["bytes_received"]
        )

    def _started(self) -> Service:
        if not self._clients:
            self._show(RoundStatus(phase="being started (the first start compiles)"))
            servers = servers_here(self._directory, self._count)
            self._service = self._open.enter_context(servers)
            self._clients = [
                self._open.enter_context(Client(client_config(self._directory, name, POLL_S)))
                for name in self._service.names
            ]
        return self._service

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._open.close()
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            shutil.rmtree(self._directory)
        else:
            print(f"the servers' keys and logs are left in {self._directory}", file=sys.stderr)
