"""A TCP proxy between a client and a server, which cuts and stalls connections as a test says."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from securemedian.clients.config import ServerAddress

SLICE_S = 0.02
CHUNK = 1 << 16
# what a slow line takes at a time, and how long that takes
SLOW_CHUNK, SLOW_S = 1 << 12, 0.02


class Proxy:
    """Passes connections on to `server`, at `address`.

    `refuse` makes it hang up on all connections, `stall` makes it pass nothing on, `mute` nothing
    of what the server says, and `slow` makes it take time. With `cut_after` it hangs up once so
    many bytes have come from clients. All may be set at any time.
    """

    def __init__(self, server: ServerAddress) -> None:
        host, _, port = server.address.removeprefix("tcp://").rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        # what waits here counts as arrived
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_CHUNK)
        self._listener.settimeout(SLICE_S)
        self.address = replace(server, address=f"tcp://127.0.0.1:{self._port}")
        self.refuse = self.stall = self.mute = self.slow = False
        self.cut_after: int | None = None
        # the bytes that have come from clients, and the connections
        self.sent, self.connections = 0, 0
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def _port(self) -> int:
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            with suppress(TimeoutError):
                client, _ = self._listener.accept()
                client.setblocking(True)
                self.connections += 1
                self._threads.append(threading.Thread(target=self._pass, args=(client,)))
                self._threads[-1].start()

    def _pass(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            if self.refuse:
                return
            with socket.create_connection(self._server) as server:
                while not self._stop.is_set() and not self.refuse:
                    if self.stall:
                        self._stop.wait(SLICE_S)
                        continue
                    for source in select.select([client, server], [], [], SLICE_S)[0]:
                        data = source.recv(SLOW_CHUNK if self.slow else CHUNK)
                        self._stop.wait(SLOW_S if self.slow else 0)
                        if not data:
                            return
                        if source is client:
                            self.sent += len(data)
                            if self.cut_after is not None and self.sent >= self.cut_after:
                                self.cut_after = None
                                return
                        elif self.mute:
                            continue
                        (server if source is client else client).sendall(data)


@contextmanager
def proxied(server: ServerAddress) -> Iterator[Proxy]:
    """Run a proxy before a server."""
    proxy = Proxy(server)
    try:
        yield proxy
    finally:
        proxy.close()
