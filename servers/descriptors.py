"""The process's file descriptors: a part of them that connections cannot take.

libzmq accepts connections until the process has no descriptor left, and has no limit of its own.
The soft limit is such a limit: the kernel looks at it for every new descriptor. It stays below the
hard one, and is raised only while this server opens what a round needs.
"""

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# the most that this process uses, whatever the hard limit: each connection takes memory too
MOST = 1 << 14
# of them, the part that connections cannot take
RESERVED = 0.25


class Descriptors:
    """The limits of this process. For one thread; blocks of `own` are not nested.

    `LimitNOFILE=` of systemd, or `ulimit -Hn`, sets the hard limit that both others follow from.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        _, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = MOST if self._hard == resource.RLIM_INFINITY else min(self._hard, MOST)
        self.for_connections = self.limit - int(self.limit * RESERVED)
        self._clock, self._until = clock, 0.0
        self._set(self.for_connections)

    @contextmanager
    def own(self, linger_s: float = 0.0) -> Iterator[None]:
        """Let this block, and what it causes within `linger_s`, take reserved descriptors.

        Connections that are accepted meanwhile take some as well, and keep them until their
        handshake has failed, so blocks are short and the reserve is large.
        """
        self._set(self.limit)
        self._until = max(self._until, self._clock() + linger_s)
        try:
            yield
        finally:
            self.tick()

    def tick(self) -> None:
        """Keep the reserve for this server alone again once nothing lingers."""
        if self._until and self._clock() >= self._until:
            self._until = 0.0
            self._set(self.for_connections)

    def _set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))
