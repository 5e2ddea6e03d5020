"""The rounds of a soak, one after another, until the time is over."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.benchmarks.soak.audit import Audit, Ended
from securemedian.benchmarks.soak.client import digest_of, update
from securemedian.benchmarks.soak.faults import Saboteurs, Transitions
from securemedian.benchmarks.soak.service import CLIENTS, SERVERS, Service
from securemedian.clients.client import Coordinator
from securemedian.laboratory import plaintext
from securemedian.mpc.errors import (
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.methods.base import Published
from securemedian.mpc.methods.bucketed import Bucketed
from securemedian.mpc.methods.mean import Mean
from securemedian.mpc.methods.pairwise import Pairwise
from securemedian.mpc.methods.radix import Radix
from securemedian.mpc.params import RoundParams

DIM = 3000
# what the rounds compute, in turn
METHODS = (Bucketed(), Radix(), Pairwise(), Mean())
# for all uploads of a round, seconds
DEADLINE_S = 8.0
# After the time is over the faults end, and this many rounds more show that all is well again.
CALM_ROUNDS = 2 * len(METHODS)
# A round that has not ended, or a request that is not answered, within so long needs an operator.
STUCK_S = 150.0
# for one answer
REPLY_S = 2.0
POLL_S = 0.1

T = TypeVar("T")


class Stuck(Exception):
    """Something has not come about within STUCK_S."""


class Interrupted(Exception):
    """The soak is to end before its time."""


@dataclass(frozen=True)
class Progress:
    """What a soak is doing."""

    seconds: float
    now: str
    audit: Audit


Show = Callable[[Progress], None]


class Soak:
    """One soak, in a new folder. `show` is called again and again while it lasts."""

    def __init__(self, folder: Path, seed: int, show: Show, faulty: bool = True) -> None:
        self._folder, self._seed, self._show, self._faulty = folder, seed, show, faulty
        self.audit = Audit()
        self._transitions = Transitions()
        self._began = time.monotonic()
        # the model of the next round: the result of the last one, or None if that is not known
        self._model: NDArray[np.float32] | None = np.zeros(DIM, np.float32)
        # whether S0 has a model to go on from
        self._goes_on = False
        self._interrupted, self._live = threading.Event(), threading.Event()

    def run(self, seconds: float) -> bool:
        """Run rounds under faults for so long, and then some without.

        Returns whether it came to its end, and was not interrupted.
        """
        with (
            suppress(Interrupted),
            Service(self._folder, self._seed, self._hear) as service,
            service.coordinator(REPLY_S) as coordinator,
        ):
            service.start()
            self._until_linked(coordinator)
            numbers = itertools.count()
            saboteurs = Saboteurs(service, self._transitions, self.audit, self._seed, self._live)
            with saboteurs if self._faulty else nullcontext():
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    self._round(service, coordinator, next(numbers))
            for _ in range(CALM_ROUNDS):
                self._round(service, coordinator, next(numbers))
        return not self._interrupted.is_set()

    def interrupt(self) -> None:
        """Let `run` end soon and in order. To be called by a signal's handler or another thread."""
        self._interrupted.set()

    def _hear(self, name: str, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if name in SERVERS:
            self._transitions.heard(name, event)
            self.audit.logged(name, event, time.monotonic())
        elif kind == "acknowledged":
            self.audit.acknowledged(name, event["round"])
        elif kind == "result":
            self.audit.result(name, event["round"], event["digest"])

    def _say(self, now: str) -> None:
        self._show(Progress(time.monotonic() - self._began, now, self.audit))

    # One round

    def _round(self, service: Service, coordinator: Coordinator, number: int) -> None:
        method = METHODS[number % len(METHODS)]
        params = RoundParams(method, DIM, CLIENTS, deadline_s=DEADLINE_S)
        round_id = ""
        try:
            round_id = self._open(coordinator, params)
            self._live.set()
            before = self._persist(lambda: coordinator.model(round_id), "the model")
            self._check_model(round_id, before)
            status = self._persist(lambda: self._status(coordinator, round_id), "the round's end")
            self._close(coordinator, before, status)
        except (Stuck, UnknownRound) as error:
            state = "stuck" if isinstance(error, Stuck) else "forgotten"
            self.audit.closed(Ended(round_id, method.name, state, str(error)))
            self._model = None
            # this is what needs an operator, so that the soak can go on
            with suppress(SecureMedianError):
                coordinator.abort(round_id, "the soak waits no longer")
        self._live.clear()
        self.audit.exits = sum(len(service.processes[server].exits) for server in SERVERS)
        for server in SERVERS:
            if size := service.processes[server].size():
                self.audit.size(server, *size, service.disks[server].used_bytes())

    def _open(self, coordinator: Coordinator, params: RoundParams) -> str:
        """Open a round, however often that has to be asked for."""
        model = None if self._goes_on else np.zeros(DIM, np.float32)
        requests = [os.urandom(16).hex()]

        def ask() -> str:
            try:
                return coordinator.open(params, model, request=requests[-1])
            except ServerUnreachable:
                # perhaps only the answer was lost
                raise
            except SecureMedianError:
                # a request is answered in the same way each time, and this was an answer
                requests.append(os.urandom(16).hex())
                raise

        return self._persist(ask, "a new round")

    def _status(self, coordinator: Coordinator, round_id: str) -> dict[str, Any] | None:
        status = coordinator.status(round_id)
        phase = f", {status['phase']}" if status["phase"] else ""
        self._say(f"round {round_id}: {status['state']}{phase} {status['reason']}")
        return status if status["state"] in ("published", "failed") else None

    def _check_model(self, round_id: str, before: Published) -> None:
        expected, self._model = self._model, before.model
        if expected is not None and before.model is not None:
            self.audit.goes_on(round_id, np.array_equal(before.model, expected))

    def _close(self, coordinator: Coordinator, before: Published, status: dict[str, Any]) -> None:
        """Compare the result of a round that has ended, if it has one, and close its account."""
        round_id, params = status["round"], RoundParams.from_dict(status["params"])
        ended = Ended(
            round_id,
            params.method.name,
            status["state"],
            status["reason"],
            tuple(status["included"]),
            status["left_out"],
            min_clients=params.min_clients,
        )
        if ended.state == "published":
            results = self._persist(lambda: coordinator.results(round_id), "the result")
            self._model, self._goes_on = results[0], True
            expected = reference(self._seed, params, before, round_id, ended.included)
            right = np.array_equal(results, expected)
            ended = replace(ended, right=right, digest=digest_of(results[0]))
        self.audit.closed(ended)

    def _until_linked(self, coordinator: Coordinator) -> None:
        def linked() -> bool | None:
            self._say("the servers start")
            info = coordinator.servers[0].ask("info").fields
            return bool(info["peer_linked"]) or None

        self._persist(linked, "the link", limit_s=2 * STUCK_S)

    def _persist(self, ask: Callable[[], T | None], what: str, limit_s: float = STUCK_S) -> T:
        """Ask again and again until there is an answer that is not None.

        Raises Stuck, UnknownRound or Interrupted.
        """
        deadline = time.monotonic() + limit_s
        why = ""
        while time.monotonic() < deadline:
            if self._interrupted.is_set():
                raise Interrupted
            try:
                if (answer := ask()) is not None:
                    return answer
            except UnknownRound:
                raise
            except SecureMedianError as error:
                why = f": {error}"
                self._say(str(error))
            time.sleep(POLL_S)
        raise Stuck(f"{what} has not come within {limit_s:g} s{why}")


def reference(
    seed: int, params: RoundParams, before: Published, round_id: str, included: Sequence[str]
) -> NDArray[np.float32]:
    """Return what a round of these clients must publish, computed in the clear."""
    updates = [update(seed, name, round_id, params.dim) for name in included]
    return plaintext.published(np.stack(updates), params, before)
