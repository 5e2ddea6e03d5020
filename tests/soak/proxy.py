"""A TCP proxy on this machine whose connections can be cut, stalled, muted, slow and reordered."""

import asyncio
import random
import socket
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

LOOPBACK = "127.0.0.1"
# how much is forwarded at once, unless a line is slow
PIECE_BYTES = 1 << 16
# how often a stalled connection looks whether it may go on
SLICE_S = 0.02
# for a call from another thread
CALL_LIMIT_S = 10.0


@dataclass(frozen=True)
class Trouble:
    """The trouble that a proxy makes; by default none."""

    # connections are ended, and new ones too
    cut: bool = False
    # nothing is forwarded, and nothing is lost
    stalled: bool = False
    # the answers of the port behind the proxy are lost
    muted: bool = False
    # each piece waits so long, and has at most so many bytes
    delay_s: float = 0.0
    piece_bytes: int = PIECE_BYTES
    # a new connection is held for a random time up to this, so that later ones may overtake it
    shuffle_s: float = 0.0


CALM = Trouble()


class Proxy:
    """One port in front of another one. Any thread may use it.

    A connection takes about `room` bytes at a time off whoever calls, and more only once they are
    forwarded.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: int, room: int) -> None:
        self._loop, self._target, self._room = loop, target, room
        self.trouble = CALM
        # the bytes that have come from callers, and the connections
        self.received = self.connections = 0
        # the number of the byte that ends its connection, once
        self.cut_at: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def listen(self) -> None:
        listener = socket.create_server((LOOPBACK, 0))
        # bytes that wait in it count as taken
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._room)
        self._server = await asyncio.start_server(self._serve, sock=listener, limit=self._room)
        self.port = listener.getsockname()[1]

    def put(self, trouble: Trouble) -> None:
        """Give the connections other trouble from now on."""
        self.trouble = trouble
        if trouble.cut:
            self._loop.call_soon_threadsafe(self._hang_up)

    def end(self) -> None:
        """Take no connections any more, and end those that there are. To be called in the loop."""
        if self._server:
            self._server.close()
        self._hang_up()

    def _hang_up(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        self.connections += 1
        try:
            await asyncio.sleep(random.uniform(0, self.trouble.shuffle_s))
            if not self.trouble.cut:
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
                    asyncio.ensure_future(way)
                    for way in (self._forward(reader, on), self._answer(there, writer))
                ]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
            finally:
                self._writers.discard(on)
                on.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for data in self._pieces(reader):
            self.received += len(data)
            if self.cut_at is not None and self.received >= self.cut_at:
                self.cut_at = None
                return
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for data in self._pieces(reader):
            if not self.trouble.muted:
                writer.write(data)
                await writer.drain()

    async def _pieces(self, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
        while data := await reader.read(self.trouble.piece_bytes):
            await asyncio.sleep(self.trouble.delay_s)
            while self.trouble.stalled:
                await asyncio.sleep(SLICE_S)
            yield data


class Proxies:
    """Proxies that share a thread. `close` ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def add(self, target: int, room: int = PIECE_BYTES) -> Proxy:
        """Return a new proxy in front of a port of this machine, which takes `room` bytes ahead."""
        proxy = Proxy(self._loop, target, room)
        self._call(proxy.listen())
        self._proxies.append(proxy)
        return proxy

    def close(self) -> None:
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_LIMIT_S)
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self._proxies:
            proxy.end()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_LIMIT_S)
