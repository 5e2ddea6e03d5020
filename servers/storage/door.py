"""A door: a process of its own that takes blocks of shares for the daemon (`doors`).

It ends with the daemon, whose end of its standard input is then closed.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import zmq

from securemedian.common.blocks import BLOCK_BYTES
from securemedian.common.keys import KeyPair
from securemedian.mpc.canonical import build
from securemedian.mpc.errors import (
    BadUpload,
    ChannelTimeout,
    FrameError,
    SecureMedianError,
    quoted,
)
from securemedian.mpc.protocols import wire
from securemedian.servers import allocator, logs
from securemedian.servers.network.descriptors import Descriptors
from securemedian.servers.network.transport import (
    CLIENT_DOMAIN,
    DEFECT,
    ClientPort,
    allow,
    authenticate,
    error_frame,
    take_number,
)
from securemedian.servers.storage.doors import ALIVE_S
from securemedian.servers.storage.files import WordsFile, storing
from securemedian.servers.storage.room import BlockFields, Room

# bytes of a request besides its block
ENVELOPE_BYTES = 1 << 16
_INPUT, _OUTPUT = 0, 1
# an option of prctl (sys/prctl.h)
_PR_SET_PDEATHSIG = 1


class Door:
    """The blocks that this process takes, of the rooms that the daemon has granted it."""

    def __init__(self, number: int, descriptors: Descriptors) -> None:
        self._number, self._descriptors = number, descriptors
        self._rooms: dict[tuple[str, str, str], tuple[Room, str]] = {}
        self._files: dict[str, WordsFile] = {}

    def grant(self, fields: dict[str, Any], path: str, stored: Sequence[Sequence[Any]]) -> None:
        """Take blocks of a room from now on."""
        room = Room(**fields, stored=dict(map(tuple, stored)))
        self._rooms[room.client, room.round, room.kind] = room, path

    def forget(self, number: int) -> None:
        """Take no more blocks of a room."""
        self._rooms = {
            name: (room, path)
            for name, (room, path) in self._rooms.items()
            if room.number != number
        }
        needed = {path for _, path in self._rooms.values()}
        self._files = {path: file for path, file in self._files.items() if path in needed}

    def take(self, key: str, message: wire.Message) -> tuple[Room, int] | None:
        """Store a block, and return its room and number if it is new.

        Raises FrameError, BadUpload, DuplicateUpload or NotStored.
        """
        if message.type != "block":
            raise FrameError(f"a door takes blocks alone, not {quoted(message.type)}")
        if set(message.arrays) != {"share"}:
            raise FrameError("'block' needs the array `share`, and no other")
        fields = build(BlockFields, message.fields, "block")
        granted = self._rooms.get((key, fields.round, fields.kind))
        if granted is None:
            raise BadUpload("this door has no room for this share: ask the server ('store')")
        room, path = granted
        with storing("the block"):
            if path not in self._files:
                with self._descriptors.own():
                    self._files[path] = WordsFile(Path(path), sys.maxsize)
            new = room.put(self._files[path], self._number, fields.block, message.arrays["share"])
        return (room, fields.block) if new else None


def _answer(port: ClientPort, door: Door, request: tuple[bytes, str, list[wire.Part]]) -> None:
    """Store what a client has sent, tell the daemon, and then the client."""
    address, key, parts = request
    number = 0
    try:
        message = wire.unpack(parts)
        number = take_number(message)
        if stored := door.take(key, message):
            room, block = stored
            _tell({"stored": [room.number, block, room.stored[block]]})
        answer = wire.pack("block", {"id": number})
    except SecureMedianError as error:
        answer = error_frame(number, error)
    except Exception as error:
        logs.event("request-error", logging.ERROR, error)
        answer = error_frame(number, DEFECT)
    with suppress(ChannelTimeout):
        port.send(address, answer)


def _tell(message: dict[str, Any]) -> None:
    """Tell the daemon something."""
    left = memoryview(msgpack.packb(message))
    while left:
        left = left[os.write(_OUTPUT, left) :]


def main() -> None:
    """Take blocks until the daemon ends."""
    # the daemon ends it, also after a Ctrl-C that reaches both
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    # so that it ends with the daemon also while it hangs
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)
    allocator.keep()
    descriptors = Descriptors()
    orders = msgpack.Unpacker()
    while (first := next(orders, None)) is None:
        orders.feed(os.read(_INPUT, 1 << 16) or sys.exit())
    logs.start(first["name"])
    context = zmq.Context(io_threads=1)
    gate = authenticate(context, {CLIENT_DOMAIN: first["allow"]})
    keys = KeyPair(first["public"], first["secret"])
    port = ClientPort(context, keys, first["endpoint"], BLOCK_BYTES + ENVELOPE_BYTES)
    door = Door(first["number"], descriptors)
    _tell({"port": int(port.socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])})
    poller = zmq.Poller()
    for source in (port.socket, _INPUT):
        poller.register(source, zmq.POLLIN)
    said = time.monotonic()
    while True:
        ready = dict(poller.poll(int(ALIVE_S * 1000)))
        if time.monotonic() > said + ALIVE_S:
            said = time.monotonic()
            _tell({})
        if _INPUT in ready:
            data = os.read(_INPUT, 1 << 16)
            if not data:
                # at once: the next daemon may be waiting for the state folder
                os._exit(0)
            orders.feed(data)
        for order in orders:
            match order:
                case {"grant": fields, "path": path, "stored": stored}:
                    door.grant(fields, path, stored)
                case {"forget": number}:
                    door.forget(number)
                    _tell({"forgot": number})
                case {"allow": allowed}:
                    allow(gate, CLIENT_DOMAIN, allowed)
        # one at a time: whoever the daemon has told to come here is known before it comes
        if port.socket in ready and (request := port.recv()):
            _answer(port, door, request)


if __name__ == "__main__":
    main()
