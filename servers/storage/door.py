"""A door: a process of its own that takes blocks of shares for the daemon (`doors`).

Clients send them sealed over TCP (`common.sealing`). It ends with the daemon, whose end of its
standard input is then closed.
"""

import ctypes
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from securemedian.common import sealing
from securemedian.common.addresses import ports_of
from securemedian.common.sealing import Seal
from securemedian.mpc.errors import ConfigError, SecureMedianError
from securemedian.servers import allocator, logs
from securemedian.servers.network.descriptors import Descriptors
from securemedian.servers.storage.doors import ALIVE_S
from securemedian.servers.storage.files import WordsFile, storing
from securemedian.servers.storage.room import Room

# how long a connection may take to prove that it knows a key, and how many may be at that at once
GREETING_S, MOST_UNPROVED = 5.0, 128
# how long a client may send nothing
SILENT_S = 60.0
# the connections to one room: who has lost one may be back before it is known here
MOST_OF_A_ROOM = 2
_INPUT, _OUTPUT = 0, 1
# an option of prctl (sys/prctl.h)
_PR_SET_PDEATHSIG = 1

# tells the daemon something
Tell = Callable[[dict[str, Any]], None]


class _Granted:
    """A room whose blocks a door takes, its key, and the file that it lies in."""

    def __init__(self, room: Room, file: WordsFile) -> None:
        self.room, self.seal, self._file = room, Seal(room.key), file

    def take(self, door: int, number: int, nonce: bytes, sealed: memoryview, sync: bool) -> bool:
        """Store a block, and return whether it is new; with `sync` the last one on the disk.

        Raises BadUpload, DuplicateUpload or NotStored.
        """
        share = np.frombuffer(self.seal.open(number, nonce, sealed), np.uint64)
        with storing("the block"):
            new = self.room.put(self._file, door, number, share)
            if new and sync and not self.room.missing(door):
                self._file.sync()
        return new


class _Caller:
    """A connection, and as much as has come of what it sends next."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket, self.heard = connection, time.monotonic()
        # once the caller has proved that it knows its key
        self.granted: _Granted | None = None
        self._buffer = bytearray()
        self.expect(0)

    def expect(self, size: int) -> None:
        """Let `read` return so many bytes next."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        self._expected, self._have = memoryview(self._buffer)[:size], 0

    def read(self) -> memoryview | None:
        """Return what is expected once all of it is there. Raises OSError if no more comes."""
        got = self.socket.recv_into(self._expected[self._have :])
        if not got:
            raise ConnectionResetError
        self.heard, self._have = time.monotonic(), self._have + got
        return self._expected if self._have == len(self._expected) else None

    @property
    def overdue(self) -> bool:
        return time.monotonic() > self.heard + (SILENT_S if self.granted else GREETING_S)


class Door:
    """What a door takes at the socket `listener`, and from whom.

    Where it is `alone` with its files, and the daemon does not synchronise them, it says that the
    last of its blocks of a room is stored once all of them are on the disk.
    """

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        descriptors: Descriptors,
        tell: Tell,
        alone: bool = False,
    ) -> None:
        self._number, self._listener, self._tell, self._alone = number, listener, tell, alone
        self._descriptors = descriptors
        self._granted: dict[int, _Granted] = {}
        # with what each has said so far (`_talk`), in the order in which they came
        self._callers: dict[_Caller, Generator[int, memoryview, None]] = {}
        self._selector = selectors.DefaultSelector()
        self._log = logs.BoundedLog()
        self._tick()

    def serve(self, orders: int) -> None:
        """Take blocks, and the daemon's orders from the file `orders`, until that is closed."""
        self._selector.register(orders, selectors.EVENT_READ)
        unpacker = msgpack.Unpacker()
        ticked = time.monotonic()
        while True:
            for key, _ in self._selector.select(ALIVE_S):
                if key.fd == orders:
                    if not (data := os.read(orders, 1 << 16)):
                        return
                    unpacker.feed(data)
                    for order in unpacker:
                        self._obey(order)
                elif key.data is None:
                    self._accept()
                # an order may have closed it
                elif key.data in self._callers:
                    self._hear(key.data)
            if time.monotonic() > ticked + ALIVE_S:
                ticked = time.monotonic()
                self._tick()

    def _obey(self, order: dict[str, Any]) -> None:
        match order:
            case {"grant": fields, "path": path, "stored": stored}:
                room = Room(**fields, stored=dict(map(tuple, stored)))
                self._leave(room.number)
                try:
                    with storing("blocks"), self._descriptors.own():
                        # on another machine than the daemon's there may be no folder yet
                        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                        file = WordsFile(Path(path), sys.maxsize)
                except SecureMedianError as error:
                    self._refused(room, error)
                else:
                    self._granted[room.number] = _Granted(room, file)
            case {"forget": number}:
                self._leave(number)
                self._tell({"forgot": number})

    def _leave(self, number: int) -> None:
        """Take no more blocks of a room."""
        granted = self._granted.pop(number, None)
        for caller in [each for each in self._callers if granted and each.granted is granted]:
            self._close(caller)

    def _tick(self) -> None:
        """Say that this door is there, and close what has been silent for too long."""
        self._tell({})
        for caller in [each for each in self._callers if each.overdue]:
            self._close(caller)
        if self._listener not in self._selector.get_map():
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # without descriptors nobody comes in until the next tick
            self._selector.unregister(self._listener)
            return
        caller = _Caller(connection)
        talk = self._talk(caller)
        try:
            caller.expect(next(talk))
        except OSError:
            connection.close()
            return
        self._callers[caller] = talk
        self._selector.register(connection, selectors.EVENT_READ, caller)
        unproved = [each for each in self._callers if not each.granted]
        if len(unproved) > MOST_UNPROVED:
            self._close(unproved[0])

    def _hear(self, caller: _Caller) -> None:
        """Take what a connection has brought."""
        try:
            if (came := caller.read()) is not None:
                caller.expect(self._callers[caller].send(came))
        except BlockingIOError:
            pass
        except (OSError, StopIteration):
            self._close(caller)

    def _talk(self, caller: _Caller) -> Generator[int, memoryview, None]:
        """Say `common.sealing` with a caller: yields how many bytes come next, and is sent them."""
        challenge = os.urandom(sealing.CHALLENGE_BYTES)
        caller.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        caller.socket.send(challenge)
        greeting = bytes((yield sealing.GREETING_BYTES))
        granted = self._granted.get(sealing.HEADER.unpack_from(greeting)[0])
        if not granted or not granted.seal.proves(greeting, challenge):
            return
        before = [each for each in self._callers if each.granted is granted]
        if len(before) >= MOST_OF_A_ROOM:
            self._close(before[0])
        caller.granted, room = granted, granted.room
        while True:
            number, nonce = sealing.HEADER.unpack((yield sealing.HEADER.size))
            if number >= len(room.owners):
                return
            sealed = yield room.bytes_of(number) + sealing.TAG_BYTES
            try:
                if granted.take(self._number, number, nonce, sealed, self._alone):
                    self._tell({"stored": [room.number, number, room.stored[number]]})
                answer = sealing.STORED
            except SecureMedianError as error:
                self._refused(room, error)
                answer = sealing.REFUSED
            caller.socket.send(answer)

    def _refused(self, room: Room, error: SecureMedianError) -> None:
        self._log.event(
            "request-refused",
            room.client,
            caller=room.client,
            op="block",
            code=error.code,
            reason=str(error),
        )

    def _close(self, caller: _Caller) -> None:
        # not `close` of its talk, which may be what closes another one
        del self._callers[caller]
        self._selector.unregister(caller.socket)
        caller.socket.close()


def write_all(pipe: int, data: bytes) -> None:
    """Write all of the data to a pipe, however long that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(pipe, left) :]


def tell(message: dict[str, Any]) -> None:
    """Tell the daemon something."""
    write_all(_OUTPUT, msgpack.packb(message))


def listen(host: str, ports: str) -> socket.socket:
    """Return a socket at any free port, or at one of FIRST-LAST. Raises ConfigError."""
    error: OSError | None = None
    for port in ports_of(ports) if ports else [0]:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listener = socket.create_server((host, port), family=family)
        except OSError as raised:
            error = raised
        else:
            listener.setblocking(False)
            return listener
    raise ConfigError(f"a door cannot listen at {host}, port {ports or 'any'}: {error}")


def main() -> None:
    """Take blocks until the daemon ends."""
    # the daemon ends it, also after a Ctrl-C that reaches both
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    # so that it ends with the daemon also while it hangs
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)
    allocator.keep()
    number, name, host, ports = sys.argv[1:]
    logs.start(name)
    descriptors = Descriptors()
    try:
        listener = listen(host, ports)
    except ConfigError as error:
        sys.exit(f"{name}: {error}")
    tell({"address": f":{listener.getsockname()[1]}", "pid": os.getpid()})
    Door(int(number), listener, descriptors, tell).serve(_INPUT)
    # at once: the next daemon may be waiting for the state folder
    os._exit(0)


if __name__ == "__main__":
    main()
