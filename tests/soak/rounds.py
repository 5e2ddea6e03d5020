"""The rounds of one cohort, one after another, and what the auditor is told of them."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.common.receipts import for_those_left
from securemedian.common.status import DEFAULT_COHORT, RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import plaintext
from securemedian.laboratory.servers import SERVERS
from securemedian.mpc.errors import SecureMedianError, ServerUnreachable, UnknownRound
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from tests.soak.audit import Audit, Ended
from tests.soak.client import digest_of, update
from tests.soak.service import SoakService

# how many values the model of each cohort has
DIMS = {DEFAULT_COHORT: 3000, "stroke": 2000}
# the methods of the rounds, in turn
METHODS = (
    Bucketed(),
    Bucketed(audit=True),
    Radix(),
    Pairwise(),
    # bounded by default
    Mean(),
    Krum(),
    TrimmedMean(neighbours=1, trim=0.3),
    Radix(neighbours=1),
)
# for all uploads of a round, seconds
DEADLINE_S = 8.0
# A round that has not ended, or a request that is not answered, within so long needs an operator.
STUCK_S = 150.0
# for one answer
REPLY_S = 2.0
POLL_S = 0.1

T = TypeVar("T")


class Stuck(Exception):
    """Something has not come about within STUCK_S."""


class SoakInterrupted(Exception):
    """The soak is to end before its time."""


class CohortRounds:
    """The rounds of the cohort that a coordinator has. Used by one thread at a time.

    `say` is told what it is doing. Once `interrupted` is set, what is under way raises
    SoakInterrupted.
    """

    def __init__(
        self,
        service: SoakService,
        coordinator: Coordinator,
        audit: Audit,
        seed: int,
        say: Callable[[str], None],
        interrupted: threading.Event,
    ) -> None:
        self._service, self._coordinator, self._audit = service, coordinator, audit
        self._seed, self._say, self._interrupted = seed, say, interrupted
        self._cohort = coordinator.config.cohort
        self._clients = service.members[self._cohort]
        self._dim = DIMS[self._cohort]
        # so that each cohort begins with another one
        first = list(DIMS).index(self._cohort)
        self._methods = itertools.cycle([*METHODS[first:], *METHODS[:first]])
        # the model of the next round: the result of the last one, or None if that is not known
        self._model: NDArray[np.float32] | None = np.zeros(self._dim, np.float32)
        # whether S0 has a model to go on from
        self._goes_on = False
        # whether there is a round; read by other threads
        self.live = False

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._round()

    def run_some(self, count: int) -> None:
        for _ in range(count):
            self._round()

    def until_linked(self) -> None:
        def linked() -> bool | None:
            info = self._coordinator.servers[0].ask("info").fields
            return bool(info["peer_linked"]) or None

        self._persist(linked, "the link", limit_s=2 * STUCK_S)

    def _round(self) -> None:
        method, coordinator = next(self._methods), self._coordinator
        params = RoundParams(
            method,
            dim=self._dim,
            # of two, neither is closer to the others
            min_clients=3 if method.form(self._dim, 3).survey else 2,
            max_clients=len(self._clients),
            deadline_s=DEADLINE_S,
        )
        round_id = ""
        try:
            round_id = self._open(params)
            self.live = True
            before = self._persist(lambda: coordinator.model(round_id), "the model")
            self._check_model(round_id, before)
            status = self._persist(lambda: self._status(round_id), "the round's end")
            self._close(before, status)
        except (Stuck, UnknownRound) as error:
            state = "stuck" if isinstance(error, Stuck) else "forgotten"
            ended = Ended(round_id, method.name, state, str(error), cohort=self._cohort)
            self._audit.closed(ended)
            self._model = None
            # this is what needs an operator, so that the soak can go on
            with suppress(SecureMedianError):
                coordinator.abort_round(round_id, "the soak waits no longer")
        self.live = False
        processes = self._service.processes
        self._audit.exits = sum(len(processes[server].exits) for server in SERVERS)
        for server in SERVERS:
            if size := processes[server].size():
                self._audit.size(server, *size, self._service.disks[server].used_bytes())

    def _open(self, params: RoundParams) -> str:
        """Open a round, however often that has to be asked for."""
        model = None if self._goes_on else np.zeros(self._dim, np.float32)
        requests = [os.urandom(16).hex()]

        def ask() -> str:
            try:
                return self._coordinator.open_round(params, model, request=requests[-1])
            except ServerUnreachable:
                # perhaps only the answer was lost
                raise
            except SecureMedianError:
                # a request is answered in the same way each time, and this was an answer
                requests.append(os.urandom(16).hex())
                raise

        return self._persist(ask, "a new round")

    def _status(self, round_id: str) -> RoundStatus | None:
        status = self._coordinator.status(round_id)
        phase = f", {status.phase}" if status.phase else ""
        self._say(f"round {round_id}: {status.state}{phase} {status.reason}")
        return status if status.ended else None

    def _check_model(self, round_id: str, before: Published) -> None:
        expected, self._model = self._model, before.model
        if expected is not None and before.model is not None:
            self._audit.goes_on(round_id, np.array_equal(before.model, expected))

    def _close(self, before: Published, status: RoundStatus) -> None:
        """Compare the result of a round that has ended, if it has one, and close its account."""
        round_id, params = status.round, RoundParams.from_dict(status.params)
        ended = Ended(
            round_id,
            params.method.name,
            status.state,
            status.reason,
            tuple(status.included),
            status.left_out,
            min_clients=params.min_clients,
            cohort=self._cohort,
        )
        if ended.state == "published":
            results = self._persist(lambda: self._coordinator.results(round_id), "the result")
            self._model, self._goes_on = results[0], True
            published = replace(before, coin=bytes.fromhex(status.coin))
            computed = for_those_left(params, status.left_out.values())
            expected = reference(self._seed, computed, published, round_id, ended.included)
            # clients of another cohort have no place in it
            own = set(ended.included) <= set(self._clients)
            right = own and np.array_equal(results, expected)
            ended = replace(ended, right=right, digest=digest_of(results[0]))
        self._audit.closed(ended)

    def _persist(self, ask: Callable[[], T | None], what: str, limit_s: float = STUCK_S) -> T:
        """Ask again and again until there is an answer that is not None.

        Raises Stuck, UnknownRound or SoakInterrupted.
        """
        deadline = time.monotonic() + limit_s
        why = ""
        while time.monotonic() < deadline:
            if self._interrupted.is_set():
                raise SoakInterrupted
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
    return plaintext.published(np.stack(updates), params, before, coin=before.coin)
