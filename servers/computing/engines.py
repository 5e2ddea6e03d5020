"""One engine per cohort, so that a failure in one cohort does not affect the others.

Each has a session of its own, with base OTs, lanes and pools. So the two servers need not handle
several cohorts in the same order: they only need the same order within a cohort, which its round
sets.
"""

from collections.abc import Callable
from functools import partial

from securemedian.common.status import COMPILING, DEFAULT_COHORT
from securemedian.mpc.errors import SecureMedianError
from securemedian.servers.computing.engine import Engine, Result

# returns a new engine; it is given what says whether another engine computes
Make = Callable[[Callable[[], bool]], Engine]


class Engines:
    """The engines of the cohorts, by name. Used by one thread."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._engines: dict[str, Engine] = {}
        # it compiles for all
        self._first = self.of(DEFAULT_COHORT)

    def of(self, cohort: str) -> Engine:
        if cohort not in self._engines:
            self._engines[cohort] = self._make(partial(self._computes_beside, cohort))
        return self._engines[cohort]

    def compile(self) -> None:
        """Compile the kernels, or load them from the cache on disk, on a thread of its own."""
        self._first.compile()

    @property
    def ready(self) -> bool:
        """Whether `compile` is done, so that the other server never waits for our compiler."""
        return self._first.ready

    @property
    def problem(self) -> str:
        """Return the words for a server that compiles, with the seconds to go if they are known."""
        left = self._first.compiled_in_s
        return COMPILING + ("" if left is None else f", {left:.0f} s to go")

    def poll(self) -> tuple[str, Result | SecureMedianError] | None:
        """Return what an engine has (`Engine.poll`) with the name of its cohort, once."""
        for cohort, engine in self._engines.items():
            if (result := engine.poll()) is not None:
                return cohort, result
        return None

    def drop(self) -> None:
        """Forget all sessions with their pools, and end their jobs."""
        for engine in self._engines.values():
            engine.drop()

    def check(self) -> None:
        """Look after jobs that do not stop. Raises what `Engine.check` raises."""
        for engine in self._engines.values():
            engine.check()

    def close(self) -> bool:
        """Drop everything, and return whether nothing runs any more and no socket is open."""
        self.drop()
        return all([engine.close() for engine in self._engines.values()])

    def _computes_beside(self, cohort: str) -> bool:
        """Return whether another cohort computes. Called by the threads of any engine."""
        engines = list(self._engines.items())
        return any(engine.computes for name, engine in engines if name != cohort)
