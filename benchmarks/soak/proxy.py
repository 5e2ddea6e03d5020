"""A TCP proxy on this machine whose connections can be cut, stalled, delayed and reordered."""

import asyncio
import random
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
# how much is forwarded at once
PIECE_BYTES = 1 << 16
# how often a stalled connection looks whether it may go on
SLICE_S = 0.02
# for a call from another thread
CALL_LIMIT_S = 10.0


@dataclass(frozen=True)
class Trouble:
    """What a proxy does to its connections; by default nothing."""

    # connections are ended, and new ones too
    cut: bool = False
    # nothing is forwarded, and nothing is lost
    stalled: bool = False
    # each piece waits so long
    delay_s: float = 0.0
    # a new connection is held for a random time up to this, so that later ones may overtake it
    shuffle_s: float = 0.0


CALM = Trouble()


class Proxy:
    """One port in front of another one. `put` may be called by any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int) -> None:
        self._loop, self._target = loop, target
        self._trouble = CALM
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        """Take connections on a free port."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def put(self, trouble: Trouble) -> None:
        """Give the connections other trouble from now on."""
        self._loop.call_soon_threadsafe(self._put, trouble)

    def _put(self, trouble: Trouble) -> None:
        self._trouble = trouble
        if trouble.cut:
            self.end()

    def end(self) -> None:
        """End all connections at once. To be called in the loop."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await asyncio.sleep(random.uniform(0, self._trouble.shuffle_s))
            if not self._trouble.cut:
                await self._join(reader, writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both ways until either end hangs up."""
        with suppress(OSError):
            there, on = await asyncio.open_connection(LOOPBACK, self._target)
            self._writers.add(on)
            try:
                ways = [
                    asyncio.ensure_future(self._forward(*way))
                    for way in ((reader, on), (there, writer))
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                self._writers.discard(on)
                on.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(PIECE_BYTES):
            await asyncio.sleep(self._trouble.delay_s)
            while self._trouble.stalled:
                await asyncio.sleep(SLICE_S)
            writer.write(data)
            await writer.drain()


class Proxies:
    """Proxies that share a thread. `close` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, target: int) -> Proxy:
        """Return a new proxy in front of a port of this machine."""
        proxy = Proxy(self._loop, target)
        self._call(proxy.listen())
        self._proxies.append(proxy)
        return proxy

    def close(self) -> None:
        """End all connections, and the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_LIMIT_S)

    async def _end(self) -> None:
        for proxy in self._proxies:
            proxy.end()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
