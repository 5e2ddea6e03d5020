"""The doors beside the daemon: processes that take, store and hash blocks of shares.

    clients --sealed--> door --stdout: which blocks are stored, with their digests--> daemon
                        door <--stdin: rooms, with their keys------------------------ daemon

They write to the round's own file, each block at its place. The daemon alone says who may send
what, and when a share is whole. A door that ends, or says nothing for SILENCE_S, is replaced; the
blocks that it has not stored are the daemon's from then on, so that clients go on at once.
"""

import fcntl
import itertools
import logging
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import IO, Any

import msgpack

from securemedian.servers import allocator, logs
from securemedian.servers.storage.room import DAEMON, Room

# how long a door may say nothing, and how often it says that it is there
SILENCE_S, ALIVE_S = 10.0, 1.0
# how long a door may take to start
START_S = 60.0
# the pause before a door that has ended is replaced
PAUSE_S = 1.0
# how long a door may take to end
END_S = 5.0
# bytes of orders that wait for a door: thousands of rooms
PIPE_BYTES = 1 << 20


@dataclass
class _Process:
    """A door that runs, or is about to."""

    number: int
    process: "subprocess.Popen[bytes]"
    heard: float
    # 0 until it listens
    port: int = 0
    said: Any = field(default_factory=msgpack.Unpacker, repr=False)


class Doors:
    """The doors of one server besides the daemon, by default none. Used by one thread.

    They listen at the address `host`, at `ports` FIRST-LAST or any that are free.
    """

    def __init__(self, count: int = 0, host: str = "", ports: str = "", name: str = "") -> None:
        self._count, self._host, self._ports, self._name = count, host, ports, name
        self._numbers = itertools.count(DAEMON + 1)
        self._processes: dict[int, _Process] = {}
        # the rooms of which doors may write blocks, and those that they are to forget
        self._rooms: dict[int, Room] = {}
        self._leaving: set[int] = set()
        self._lock: IO[bytes] | None = None
        self._start_at = 0.0

    def start(self, lock: IO[bytes]) -> None:
        """Start the doors. They hold the lock of the state folder for as long as they write."""
        self._lock = lock
        self.turn()

    @property
    def addresses(self) -> dict[int, str]:
        """Return where the doors that listen are reached, by number: :PORT of this host."""
        return {one.number: f":{one.port}" for one in self._processes.values() if one.port}

    def missing(self, room: Room) -> dict[str, list[int]]:
        """Return the blocks of a room that are not stored, by where they go; "" is the daemon."""
        wheres = {DAEMON: ""} | self.addresses
        return {wheres[door]: room.missing(door) for door in set(room.owners) if room.missing(door)}

    @property
    def pids(self) -> list[int]:
        """Return the processes of the doors, in the order in which they were started."""
        return [one.process.pid for one in self._processes.values()]

    def owners(self, blocks: int, first: int) -> list[int]:
        """Return which door takes which block of a share: slices of coordinates.

        It is the daemon while no door listens. `first` turns the doors, so that all of them have
        something of short shares.
        """
        doors = list(self.addresses) or [DAEMON]
        count = len(doors)
        return [doors[(block * count // blocks + first) % count] for block in range(blocks)]

    def grant(self, room: Room, path: str) -> None:
        """Let the doors that own blocks of a room write them to the file at `path`."""
        doors = set(room.owners) - {DAEMON}
        if doors:
            self._rooms[room.number] = room
        for door in doors:
            fields = {name: getattr(room, name) for name in _OF_A_ROOM}
            self._tell(door, {"grant": fields, "path": path, "stored": list(room.stored.items())})

    def forget(self, room: Room) -> bool:
        """Let the doors write no more blocks of a room; return whether none does any longer."""
        if room.number not in self._rooms:
            return True
        if room.number not in self._leaving:
            self._leaving.add(room.number)
            for door in set(room.owners) - {DAEMON}:
                self._tell(door, {"forget": room.number})
        return False

    def turn(self) -> None:
        """Take what the doors have said, and replace those that have ended."""
        now = time.monotonic()
        for one in list(self._processes.values()):
            ended = not self._hear(one)
            limit_s = SILENCE_S if one.port else START_S
            if ended or now - one.heard > limit_s:
                self._lose(one, "it has ended" if ended else f"it said nothing for {limit_s:g} s")
        if self._lock and len(self._processes) < self._count and now >= self._start_at:
            while len(self._processes) < self._count:
                self._start()

    def close(self) -> None:
        """End the doors."""
        self._count = 0
        for one in list(self._processes.values()):
            assert one.process.stdin
            one.process.stdin.close()
            try:
                one.process.wait(END_S)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
        self._processes.clear()

    def _start(self) -> None:
        assert self._lock
        number = next(self._numbers)
        own = str(number), f"{self._name}-door-{number}", self._host, self._ports
        process = subprocess.Popen(
            [sys.executable, "-m", "securemedian.servers.storage.door", *own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[self._lock.fileno()],
            env=os.environ | allocator.environment(),
        )
        assert process.stdin and process.stdout
        fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for pipe in (process.stdin, process.stdout):
            os.set_blocking(pipe.fileno(), False)
        self._processes[number] = _Process(number, process, time.monotonic())

    def _hear(self, one: _Process) -> bool:
        """Take what a door has said, and return whether it runs."""
        assert one.process.stdout
        while (data := one.process.stdout.read(1 << 16)) is not None:
            if not data:
                return False
            one.heard = time.monotonic()
            one.said.feed(data)
            for message in one.said:
                self._take(one, message)
        return True

    def _take(self, one: _Process, message: dict[str, Any]) -> None:
        match message:
            case {"port": port}:
                one.port = port
                logs.event("door-open", door=one.number, port=port, pid=one.process.pid)
            case {"stored": [number, block, digest]}:
                if room := self._rooms.get(number):
                    room.stored[block] = digest
            case {"forgot": number}:
                if room := self._rooms.get(number):
                    self._let_go(room, one.number)

    def _lose(self, one: _Process, why: str) -> None:
        del self._processes[one.number]
        # nothing that it has begun may still be written once another may write
        one.process.kill()
        one.process.wait()
        for room in list(self._rooms.values()):
            self._let_go(room, one.number)
        self._start_at = time.monotonic() + PAUSE_S
        logs.event("door-lost", logging.WARNING, door=one.number, reason=why)

    def _let_go(self, room: Room, door: int) -> None:
        """Leave to the daemon the blocks of a room that a door writes no longer."""
        room.owners = [DAEMON if owner == door else owner for owner in room.owners]
        if set(room.owners) == {DAEMON}:
            del self._rooms[room.number]
            self._leaving.discard(room.number)

    def _tell(self, number: int, message: dict[str, Any]) -> None:
        """Give an order to a door, if it still runs; one that has not read a thousand is ended."""
        one = self._processes.get(number)
        if one is None:
            return
        assert one.process.stdin
        data = msgpack.packb(message)
        try:
            written = one.process.stdin.write(data)
        except BrokenPipeError:
            # `turn` notices
            return
        if written != len(data):
            one.process.kill()


_OF_A_ROOM = ("number", "client", "round", "kind", "begin", "size", "owners", "key")
