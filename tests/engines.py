"""Engines of both servers in this process, whose lanes are pipes that can hang."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers.computing.engine import Engine
from securemedian.servers.computing.threads import ThreadBackend

SMALL = ProtocolParams(lanes=2, chunk=256, batch=1 << 12)


class Pipe:
    """One end of a lane, whose `send` blocks while `blocked` is set."""

    sealed = False

    def __init__(self, channel: Any) -> None:
        self._link, self.blocked = channel._link, threading.Event()
        self.recv = self._link.recv
        self.closed = self.released = False

    def send(self, parts: Sequence[wire.Part]) -> None:
        while self.blocked.is_set():
            time.sleep(0.01)
        self._link.send(parts)

    def meet(self, party: int) -> None:
        """Meet as `ZmqLink.meet` does."""
        if party == 0:
            self.send([b"lane"])
        else:
            self.recv()

    def close(self) -> None:
        """End a wait at either side, as ZmqLink does."""
        self.closed = True
        self._link._in.put(None)
        self._link.close()

    def release(self) -> None:
        self.released = True


class Servers:
    """Two engines. The lanes that are opened while S0 `hangs` hang there until `let_go`."""

    def __init__(self, timeout_s: float, ended: Callable[[], None] = lambda: None) -> None:
        self.hangs, self._timeout_s = False, timeout_s
        self.pipes: dict[bytes, list[tuple[Pipe, Pipe]]] = {}
        self._lock = threading.Lock()
        self.engines = [
            Engine(ThreadBackend(party, SMALL, self.opener(party)), lambda: 1 << 30, ended)
            for party in (0, 1)
        ]

    def opener(self, party: int) -> Any:
        """Return a function that opens the lanes of a session."""

        def open_lanes(session: bytes, count: int) -> list[Pipe]:
            with self._lock:
                pipes = self.pipes.setdefault(session, [])
                while len(pipes) < count:
                    one, other = map(Pipe, local_pair(self._timeout_s))
                    if self.hangs:
                        one.blocked.set()
                    pipes.append((one, other))
                return [pair[party] for pair in pipes[:count]]

        return open_lanes

    def let_go(self) -> None:
        for pipes in self.pipes.values():
            for pipe in (end for both in pipes for end in both):
                pipe.blocked.clear()
