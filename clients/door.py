"""A connection to one door of a server, which takes blocks of shares (`common.sealing`)."""

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence

from securemedian.clients.connection import SLICE_S, Connection
from securemedian.common import sealing
from securemedian.common.sealing import Seal
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, ServerUnreachable

# the longest that a door takes and says nothing: it takes turns with all clients
SILENT_S = 30.0
# the longest that it takes to be reached
REACH_S = 10.0


class Door:
    """A connection to one door, for one thread."""

    def __init__(self, server: Connection, address: str, room: int, key: bytes) -> None:
        """Connect, and prove that the key of the room is known.

        `address` is HOST:PORT, or :PORT of the server's own host. Raises ServerUnreachable.
        """
        self._server, self._seal = server, Seal(key)
        host, _, port = address.rpartition(":")
        self._where = f"{server.label}'s door at {host or server.host}:{port}"
        try:
            where = host or server.host, int(port)
            self._socket = socket.create_connection(where, REACH_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            challenge = self._socket.recv(sealing.CHALLENGE_BYTES, socket.MSG_WAITALL)
            self._socket.sendall(self._seal.greeting(room, challenge))
            self._socket.setblocking(False)
        except OSError as error:
            raise self._away(error) from error
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    def send(
        self, numbers: Sequence[int], blocks: Sequence[Words], stored: Callable[[Words], None]
    ) -> None:
        """Send these of the blocks, one after another, and call `stored` with those that are.

        Raises ServerUnreachable, or BadUpload if the door refuses one.
        """
        # those that are not answered
        waiting: deque[Words] = deque()
        for number in numbers:
            waiting.append(blocks[number])
            for part in self._seal.seal(number, blocks[number].data.cast("B")):
                left = memoryview(part)
                while left:
                    left = left[self._exchange(left, waiting, stored) :]
        while waiting:
            self._exchange(memoryview(b""), waiting, stored)

    def _exchange(
        self, left: memoryview, waiting: "deque[Words]", stored: Callable[[Words], None]
    ) -> int:
        """Send some of what is left, if there is any, and take answers; return how much is sent."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0)
        self._selector.modify(self._socket, wanted)
        deadline = time.monotonic() + SILENT_S
        while not (ready := self._selector.select(SLICE_S)):
            self._server.check_cancelled()
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"{self._where} took nothing for {SILENT_S:g} s")
        ((_, events),) = ready
        try:
            if events & selectors.EVENT_READ:
                self._take(self._socket.recv(len(waiting)), waiting, stored)
            return self._socket.send(left) if events & selectors.EVENT_WRITE else 0
        except OSError as error:
            raise self._away(error) from error

    def _take(
        self, answers: bytes, waiting: "deque[Words]", stored: Callable[[Words], None]
    ) -> None:
        if not answers:
            raise ConnectionResetError("it hung up")
        for answer in answers:
            block = waiting.popleft()
            if answer != sealing.STORED[0]:
                raise BadUpload(f"{self._where} has not stored a block")
            stored(block)

    def _away(self, error: OSError) -> ServerUnreachable:
        return ServerUnreachable(f"{self._where} could not be reached: {error}")

    def close(self) -> None:
        self._selector.close()
        self._socket.close()
