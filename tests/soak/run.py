"""A soak: the rounds of all cohorts at once under faults, until the time is over."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from securemedian.laboratory.servers import SERVERS
from tests.soak.audit import Audit
from tests.soak.faults import Saboteurs, Transitions
from tests.soak.rounds import METHODS, REPLY_S, CohortRounds, SoakInterrupted
from tests.soak.service import COHORTS, SoakService

# After the time is over the faults end, and this many rounds more of each cohort show that all is
# well again.
CALM_ROUNDS = len(METHODS)


# called with the seconds so far, and a line on each cohort's present activity
Show = Callable[[float, str], None]


class Soak:
    """One soak, in a new folder. `show` is called again and again while it lasts, by any thread."""

    def __init__(self, folder: Path, seed: int, show: Show, faulty: bool = True) -> None:
        self._folder, self._seed, self._show, self._faulty = folder, seed, show, faulty
        self.audit = Audit()
        self._transitions = Transitions()
        self._began = time.monotonic()
        # the doings of each cohort
        self._now = dict.fromkeys(COHORTS, "the servers start")
        self._interrupted = threading.Event()

    def run(self, seconds: float) -> bool:
        """Run rounds under faults for so long, and then some without.

        Returns whether it came to its end, and was not interrupted.
        """
        with (
            suppress(SoakInterrupted),
            SoakService(self._folder, self._seed, self._hear) as service,
            ExitStack() as stack,
        ):
            cohorts = [
                CohortRounds(
                    service,
                    stack.enter_context(service.coordinator(name, REPLY_S)),
                    self.audit,
                    self._seed,
                    lambda now, name=name: self._say(name, now),  # type: ignore[misc]
                    self._interrupted,
                )
                for name in COHORTS
            ]
            service.start()
            cohorts[0].until_linked()
            saboteurs = Saboteurs(
                service,
                self._transitions,
                self.audit,
                self._seed,
                lambda: any(cohort.live for cohort in cohorts),
            )
            with saboteurs if self._faulty else nullcontext():
                self._at_once(lambda cohort: cohort.run(seconds), cohorts)
            self._at_once(lambda cohort: cohort.run_some(CALM_ROUNDS), cohorts)
        return not self._interrupted.is_set()

    def interrupt(self) -> None:
        """Let `run` end soon and in order. To be called by a signal's handler or another thread."""
        self._interrupted.set()

    def _at_once(self, work: Callable[[CohortRounds], None], cohorts: list[CohortRounds]) -> None:
        """Do some work for each cohort, all at the same time. An error ends all of it."""

        def do(cohort: CohortRounds) -> None:
            try:
                work(cohort)
            except BaseException:
                self._interrupted.set()
                raise

        with ThreadPoolExecutor(len(cohorts), "rounds") as pool:
            list(pool.map(do, cohorts))

    def _hear(self, name: str, event: dict[str, Any]) -> None:
        kind = event.get("event")
        if name in SERVERS:
            self._transitions.heard(name, event)
            self.audit.logged(name, event, time.monotonic())
        elif kind == "acknowledged":
            self.audit.acknowledged(name, event["round"])
        elif kind == "result":
            self.audit.result(name, event["round"], event["digest"])

    def _say(self, cohort: str, now: str) -> None:
        self._now[cohort] = now
        lines = "\n".join(f"{name}: {what}" for name, what in self._now.items())
        self._show(time.monotonic() - self._began, lines)
