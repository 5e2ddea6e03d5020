"""Rounds through the real S0 and S1, where this process plays all clients with their own keys."""

import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.public import PublicSet
from securemedian.common.status import RoundStatus
from securemedian.laboratory import daemons, plaintext
from securemedian.laboratory.daemons import ShowStatus
from securemedian.laboratory.experiments.runs import ServerCost
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState

# returns the updates (n, d) of all clients for a published model (d,)
Play = Callable[[Float32s], Float32s]

# between two questions of a client to a server
POLL_S = 0.02


class ExperimentServers:
    """Both servers, which start when the first round needs them and end with this context."""

    def __init__(self, clients: int, show: ShowStatus) -> None:
        self._show = show
        self._directory = Path(tempfile.mkdtemp(prefix="securemedian-experiment-"))
        self._names = daemons.make(self._directory, clients)
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
        self._start()
        fresh = before.published == 0
        round_id = self._coordinator.open_round(
            params,
            before.model if fresh else None,
            before.policy if fresh else None,
            optimiser=before.optimiser if fresh else None,
        )
        results, cost = self._results(params, round_id, play)
        return before.after(results[0], params.method.range_buckets), cost

    def combine(
        self, params: RoundParams, public: PublicSet, predictions: NDArray[np.float32]
    ) -> tuple[Float32s, ServerCost]:
        """Run a round of all clients' predictions (n, samples, classes), as `run_round` does.

        Returns the labels (d,), and what the round cost the servers.
        """
        self._start()
        for client in self._clients:
            client.public = public
        round_id = self._coordinator.open_round(params)
        results, cost = self._results(params, round_id, lambda _: predictions)
        return results[0], cost

    def _results(
        self, params: RoundParams, round_id: str, play: Play
    ) -> tuple[Float32s, ServerCost]:
        """Submit to an open round, and return its results (results, d) and what it cost."""
        published = self._coordinator.model(round_id)
        # rounds of experiments are opened with a model, or need none
        assert published.model is not None
        try:
            updates = play(published.model)
            for client, update in zip(self._clients, updates, strict=True):
                # attacks send what is beyond every range
                client.submit(update, round_id, saturate=True)
        except SecureMedianError as error:
            # if the servers are what is wrong, this fails, too
            with suppress(SecureMedianError):
                self._coordinator.abort_round(round_id, str(error))
            raise
        status = daemons.until_published(self._processes, self._coordinator, round_id, self._show)
        results = self._coordinator.results(round_id)
        params = plaintext.computed(params, status)
        # the order in which the servers drew clients for clusters
        included = status.included
        flat = updates.reshape(len(updates), -1)
        placed = flat[[self._names.index(name) for name in included]]
        weights, coin = params.weights_of(included), bytes.fromhex(status.coin)
        clear = plaintext.published(placed, params, published, weights, coin=coin)
        if not plaintext.agrees(results, clear, params, len(included)):
            raise SecureMedianError(
                f"round {status.number} published another result than the same round computed "
                "in the clear: this is a defect, please report it"
            )
        cost = status.cost
        return results, ServerCost(
            cost["seconds"], cost["ots"], cost["bytes_sent"], cost["bytes_received"]
        )

    def _start(self) -> None:
        if self._clients:
            return
        self._show(RoundStatus(phase="being started (the first start compiles)"))
        self._processes, self._coordinator = self._open.enter_context(
            daemons.running(self._directory)
        )
        self._clients = [
            self._open.enter_context(Client(daemons.client_config(self._directory, name, POLL_S)))
            for name in self._names
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._open.close()
        if error is None or isinstance(error, KeyboardInterrupt | SystemExit):
            shutil.rmtree(self._directory)
        else:
            print(f"the servers' keys and logs are left in {self._directory}", file=sys.stderr)
