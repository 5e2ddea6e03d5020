"""The process's file descriptors: a part of them that connections cannot take.

libzmq accepts connections until the process has no descriptor left, and has no limit of its own.
The soft limit is such a limit: the kernel looks at it for every new descriptor. It stays below the
hard one, and is raised only while this server opens what a round needs.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

# the most that this process uses, whatever the hard limit: each connection takes memory too
MOST = 1 << 14
# of them, the part that connections cannot take
RESERVED = 0.25


class Descriptors:
    """The limits of this process. For one thread; blocks of `own` are not nested.

    `LimitNOFILE=` of systemd, or `ulimit -Hn`, sets the hard limit that both others follow from.
    """

    def __init__(self) -> None:
        _, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit = MOST if self._hard == resource.RLIM_INFINITY else min(self._hard, MOST)
        self.for_connections = self.limit - int(self.limit * RESERVED)
        self._set(self.for_connections)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Let this block take reserved descriptors.

        Connections that are accepted meanwhile take some as well, and keep them until their
        handshake has failed: blocks are short, and the reserve is large.
        """
        self._set(self.limit)
        try:
            yield
        finally:
            self._set(self.for_connections)

    def _set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))
