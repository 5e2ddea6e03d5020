"""The faults, and the seed that decides which one strikes when.

The seed decides on kinds, victims, lengths and pauses, but not on the moment of a round that a
fault meets. A server is killed at a transition when it logs it.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Self

from securemedian.common.states import State
from securemedian.laboratory.servers import SERVERS
from tests.soak.audit import Audit, cohort_of
from tests.soak.proxy import CALM, Proxy, Trouble
from tests.soak.service import COHORTS, SoakService

# the pause between two faults of one saboteur, seconds
PAUSE_S = 0.3, 3.0
# how long a fault lasts; some are longer than the servers' own limits (`SERVER_SETTINGS`)
LASTS_S = 0.3, 7.0
# how long a killed process is down before it is started again
DOWN_S = 0.0, 2.0
DELAY_S = 0.02, 0.3
SHUFFLE_S = 1.0
# how long a kill waits for its transition; then it is given up, and not counted
TRANSITION_LIMIT_S = 10.0
# Servers that have just been killed have no round to lose. So most faults of servers wait for a
# round, at most so long, and then for a moment in it.
ROUND_LIMIT_S, MOMENT_S = 10.0, (0.0, 2.0)
MOSTLY = 0.75

Strike = Callable[[random.Random], str | None]


class Transitions:
    """Kills at transitions: who waits for which line about which cohort in whose log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: tuple[str, str, str] | None = None
        self._strike: Callable[[], None] | None = None
        self._struck = threading.Event()

    def heard(self, server: str, event: dict[str, Any]) -> None:
        """Take a line of a server's log."""
        with self._lock:
            what = server, event.get("event"), cohort_of(event)
            if self._awaited != what or self._strike is None:
                return
            strike, self._awaited, self._strike = self._strike, None, None
        strike()
        self._struck.set()

    def at(
        self, server: str, event: str, cohort: str, strike: Callable[[], None], limit_s: float
    ) -> bool:
        """Call `strike` when the server logs the event of a round of the cohort.

        Returns whether it came within the limit.
        """
        self._struck.clear()
        with self._lock:
            self._awaited, self._strike = (server, event, cohort), strike
        if self._struck.wait(limit_s):
            return True
        with self._lock:
            self._awaited = self._strike = None
        return self._struck.is_set()


class Saboteurs:
    """Two threads that strike while the context is open.

    One strikes at servers, the other one at links, clients and disks. `live` says whether there
    is a round.
    """

    def __init__(
        self,
        service: SoakService,
        transitions: Transitions,
        audit: Audit,
        seed: int,
        live: Callable[[], bool],
    ) -> None:
        self._service, self._transitions, self._audit = service, transitions, audit
        self._live = live
        self._stop = threading.Event()
        states = [str(state) for state in State if state is not State.NEW]
        victims = [("s0",), ("s1",), SERVERS]
        # every transition of either cohort at every server with every choice of victims, in an
        # order of the seed's
        self._plan = list(product(SERVERS, states, COHORTS, victims))
        random.Random(seed).shuffle(self._plan)
        self._next = 0
        kinds: tuple[tuple[Strike, ...], ...] = (
            (self._at_transition, self._at_transition, self._kill, self._hang),
            (self._link, self._link, self._way, self._slow, self._end_client, self._full),
        )
        self._threads = [
            threading.Thread(
                target=self._strike,
                args=(strikes, random.Random(f"{seed}/{number}")),
                name="saboteur",
                daemon=True,
            )
            for number, strikes in enumerate(kinds)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Strike no more, and wait until everything that was struck is as before."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _strike(self, strikes: tuple[Strike, ...], rng: random.Random) -> None:
        while not self._stop.wait(rng.uniform(*PAUSE_S)):
            if kind := rng.choice(strikes)(rng):
                self._audit.fault(kind)

    # Servers

    def _at_transition(self, rng: random.Random) -> str | None:
        server, state, cohort, victims = self._plan[self._next % len(self._plan)]
        self._next += 1
        down_s = rng.uniform(*DOWN_S)

        def strike() -> None:
            for victim in victims:
                self._service.processes[victim].kill(down_s)

        deadline = time.monotonic() + TRANSITION_LIMIT_S
        while not self._stop.is_set() and time.monotonic() < deadline:
            if self._transitions.at(server, f"round-{state}", cohort, strike, 0.5):
                return f"kill {' and '.join(victims)} at {state} of {cohort} at {server}"
        return None

    def _await_round(self, rng: random.Random) -> None:
        moment_s = rng.uniform(*MOMENT_S)
        if rng.random() < MOSTLY:
            deadline = time.monotonic() + ROUND_LIMIT_S
            while not self._live() and time.monotonic() < deadline:
                if self._stop.wait(0.1):
                    return
            self._stop.wait(moment_s)

    def _kill(self, rng: random.Random) -> str:
        victims = rng.choice([("s0",), ("s1",), SERVERS])
        self._await_round(rng)
        for victim in victims:
            self._service.processes[victim].kill(rng.uniform(*DOWN_S))
        return f"kill {' and '.join(victims)}"

    def _hang(self, rng: random.Random) -> str:
        server = rng.choice(SERVERS)
        process = self._service.processes[server]
        self._await_round(rng)
        with self._disturbing():
            process.pause(True)
            self._stop.wait(rng.uniform(*LASTS_S))
            process.pause(False)
        return f"hang {server}"

    # Links

    def _link(self, rng: random.Random) -> str:
        with self._disturbing():
            return f"{self._trouble(self._service.link, rng)} the link"

    def _way(self, rng: random.Random) -> str:
        name, server = rng.choice(list(self._service.ways))
        return f"{self._trouble(self._service.ways[name, server], rng)} a client's way to {server}"

    def _trouble(self, proxy: Proxy, rng: random.Random) -> str:
        kinds = {
            "cut": Trouble(cut=True),
            "stall": Trouble(stalled=True),
            "delay": Trouble(delay_s=rng.uniform(*DELAY_S)),
            "reorder": Trouble(shuffle_s=SHUFFLE_S),
        }
        kind = rng.choice(list(kinds))
        if kind == "reorder":
            # so that there are new connections
            proxy.put(Trouble(cut=True))
        proxy.put(kinds[kind])
        self._stop.wait(rng.uniform(*LASTS_S))
        proxy.put(CALM)
        return kind

    @contextmanager
    def _disturbing(self) -> Iterator[None]:
        self._audit.disturb(True, time.monotonic())
        try:
            yield
        finally:
            self._audit.disturb(False, time.monotonic())

    # Clients and disks

    def _slow(self, rng: random.Random) -> str:
        process = self._service.processes[rng.choice(self._service.names)]
        process.pause(True)
        self._stop.wait(rng.uniform(*LASTS_S))
        process.pause(False)
        return "slow client"

    def _end_client(self, rng: random.Random) -> str:
        process = self._service.processes[rng.choice(self._service.names)]
        process.kill(rng.uniform(*DOWN_S))
        return "kill a client"

    def _full(self, rng: random.Random) -> str:
        """Fill a server's disk, and perhaps kill the server, which then starts on a full disk."""
        server = rng.choice(SERVERS)
        disk, also_kill = self._service.disks[server], rng.random() < 0.3
        disk.fill()
        self._stop.wait(rng.uniform(*LASTS_S))
        if also_kill:
            self._service.processes[server].kill(0.0)
            self._stop.wait(rng.uniform(*LASTS_S))
        disk.free()
        return f"full disk of {server}" + (" and kill" if also_kill else "")
