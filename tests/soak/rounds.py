"""The rounds of one cohort, one after another, and what the auditor is told of them."""

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.receipts import for_those_left
from securemedian.common.status import DEFAULT_COHORT, RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.coordinator.rounds import Hooks, Note, Patience, Rounds
from securemedian.laboratory import plaintext
from securemedian.laboratory.servers import SERVERS
from securemedian.mpc.errors import PeerUnavailable, SecureMedianError, UnknownRound
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from tests.soak.audit import Audit, Ended
from tests.soak.client import digest_of, update
from tests.soak.processes import size
from tests.soak.service import SoakService

# how many values the model of each cohort has
DIMS = {DEFAULT_COHORT: 3000, "stroke": 2000}
# the methods of the rounds, in turn
METHODS = (
    Bucketed(),
    Bucketed(security="malicious"),
    Radix(),
    Zoom(limit_s=60.0),
    Zoom(encoding="bfloat16", security="malicious", limit_s=60.0),
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
        # the state that the round started from
        self._before = Published()
        # whether there is a round; read by other threads
        self.live = False
        self._awaited, self._deadline = "", math.inf
        self._note = Note()
        hooks = Hooks(
            self._ask,
            self._opened,
            self._show,
            keep=self._close,
            lost=self._close,
            alive=self._alive,
            report=say,
        )
        # every error may pass: `_alive` ends what is stuck
        patience = Patience(math.inf, (SecureMedianError,), POLL_S, POLL_S)
        self._rounds = Rounds(coordinator, hooks, patience, self._note, POLL_S)

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._round()

    def run_some(self, count: int) -> None:
        for _ in range(count):
            self._round()

    def until_linked(self) -> None:
        def linked() -> None:
            if not self._coordinator.servers[0].ask("info").fields["peer_linked"]:
                raise PeerUnavailable("the servers have no link yet")

        self._await("the link", 2 * STUCK_S)
        self._rounds.patiently(linked)

    def _round(self) -> None:
        self._method = next(self._methods)
        try:
            self._rounds.run(1)
        except (Stuck, UnknownRound) as error:
            state = "stuck" if isinstance(error, Stuck) else "forgotten"
            self._give_up(self._note.under_way()[1], state, str(error))
            self._note.withdraw()
        self.live = False
        processes = self._service.processes
        self._audit.exits = sum(len(processes[server].exits) for server in SERVERS)
        for server in SERVERS:
            if taken := size(processes[server].pid):
                self._audit.size(server, *taken, self._service.disks[server].used_bytes())

    def _give_up(self, round_id: str, state: str, why: str) -> None:
        """Close the account of a round that needs an operator, and do what he would do."""
        self._audit.closed(Ended(round_id, self._method.name, state, why, cohort=self._cohort))
        self._model = None
        with suppress(SecureMedianError):
            self._coordinator.abort_round(round_id, "the soak waits no longer")

    def _await(self, what: str, limit_s: float = STUCK_S) -> None:
        self._awaited, self._deadline = what, time.monotonic() + limit_s

    def _alive(self) -> None:
        if self._interrupted.is_set():
            raise SoakInterrupted
        if time.monotonic() > self._deadline:
            raise Stuck(f"{self._awaited} has not come within the limit")

    def _ask(self, _: int) -> dict[str, Any]:
        self._await("a new round")
        params = RoundParams(
            self._method,
            dim=self._dim,
            # of two, neither is closer to the others
            min_clients=3 if self._method.form(self._dim, 3).survey else 2,
            max_clients=len(self._clients),
            deadline_s=DEADLINE_S,
        )
        return {"params": params, "model": None if self._goes_on else np.zeros(self._dim)}

    def _opened(self, round_id: str) -> None:
        self.live = True
        self._await("the model")
        self._before = self._rounds.patiently(lambda: self._coordinator.model(round_id))
        expected, self._model = self._model, self._before.model
        if expected is not None and self._model is not None:
            self._audit.goes_on(round_id, np.array_equal(self._model, expected))
        self._await("the round's end")

    def _show(self, status: RoundStatus) -> None:
        phase = f", {status.phase}" if status.phase else ""
        self._say(f"round {status.round}: {status.state}{phase} {status.reason}")

    def _close(self, status: RoundStatus, *_: float) -> bool:
        """Compare the result of a round that has ended, if it has one, and close its account.

        Returns False: no round is tried again.
        """
        if not status.params:
            # the servers have forgotten it
            self._give_up(status.round, "forgotten", status.reason)
            return False
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
            self._await("the result")
            results = self._rounds.patiently(lambda: self._coordinator.results(round_id))
            self._model, self._goes_on = results[0], True
            published = replace(self._before, coin=bytes.fromhex(status.coin))
            computed = for_those_left(params, status.left_out.values())
            expected = reference(self._seed, computed, published, round_id, ended.included)
            # clients of another cohort have no place in it
            own = set(ended.included) <= set(self._clients)
            right = own and np.array_equal(results, expected)
            ended = replace(ended, right=right, digest=digest_of(results[0]))
        self._audit.closed(ended)
        return False


def reference(
    seed: int, params: RoundParams, before: Published, round_id: str, included: Sequence[str]
) -> NDArray[np.float32]:
    """Return what a round of these clients must publish, computed in the clear."""
    updates = [update(seed, name, round_id, params.dim) for name in included]
    return plaintext.published(np.stack(updates), params, before, coin=before.coin)
