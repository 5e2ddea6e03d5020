"""The limit on file descriptors, which reserves some that connections cannot take.

libzmq accepts connections until the process has no descriptor left, and has no limit of its own.
The soft limit on descriptors serves as one: the kernel checks it for every new descriptor. It stays
below the hard limit, and is raised only while this server opens what a round needs.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from securemedian.mpc.errors import ConfigError

# the most descriptors that this process uses, whatever the hard limit: a connection takes memory
# too
MOST = 1 << 14
# the fraction of them that connections cannot take
RESERVED = 0.25
# the fewest with which a server starts: it takes 38 by itself, and more in a round
LEAST = 64


def limits_of(hard: int) -> tuple[int, int]:
    """Return the most descriptors of a server with this hard limit, and those for connections.

    Raises ConfigError for a limit with which no server can start.
    """
    most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if most < LEAST:
        raise ConfigError(
            f"this server may open fewer than the {LEAST} descriptors that it needs: {most}; "
            "raise the hard limit on open files (LimitNOFILE= of systemd, or ulimit -Hn)"
        )
    return most, most - int(most * RESERVED)


class Descriptors:
    """The limits on descriptors of this process.

    Used by one thread; blocks of `own` are not nested. Both limits follow from the hard one, which
    systemd's `LimitNOFILE=` or `ulimit -Hn` sets.
    """

    def __init__(self) -> None:
        _, self._hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.limit, self.for_connections = limits_of(self._hard)
        self._set(self.for_connections)

    @contextmanager
    def own(self) -> Iterator[None]:
        """Let a `with` block take reserved descriptors.

        Connections that are accepted during the block take some of them too, up to the 100 per
        port that libzmq queues, and keep them until their handshakes have failed. So blocks are
        short, and the reserve is larger than the queues.
        """
        self._set(self.limit)
        try:
            yield
        finally:
            self._set(self.for_connections)

    def _set(self, soft: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, self._hard))
