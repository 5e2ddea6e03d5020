"""The doors beside the daemon, which take, store and hash blocks of shares.

    clients --sealed--> door --which blocks are stored, with their digests--> daemon
                        door <--rooms, with their keys----------------------- daemon

They write to the round's own file, each block at its place. The daemon alone says who may send
what, and when a share is whole. A door that ends, or says nothing for SILENCE_S, is replaced; the
blocks that it has not stored are the daemon's from then on, so that clients go on at once.

Doors are processes of this machine, or of the machines (*nodes*) of a cluster, each of which keeps
what its door takes.
"""

import fcntl
import itertools
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import msgpack

from securemedian.servers import allocator, logs
from securemedian.servers.storage.room import DAEMON, Room
from securemedian.servers.storage.scattered import HERE, Nodes, NoNodes, words_path

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


class Launched(Protocol):
    """A door that runs, or is about to. Used by one thread."""

    # the node where it runs; HERE for the daemon's own machine
    node: str

    def tell(self, order: dict[str, Any]) -> None:
        """Give it an order. One that has ended is noticed by `hear`."""

    def hear(self, at_once: bool = False) -> list[dict[str, Any]] | None:
        """Return what it has said since, or None if it has ended.

        With `at_once` that is all that it has said before this call, and otherwise it never waits.
        """

    def kill(self) -> None:
        """End it at once. Nothing that it has begun is written after that."""

    def close(self) -> None:
        """Let it end."""


class Process:
    """A door that is a process of this machine. It holds `lock` for as long as it writes."""

    node = HERE

    def __init__(self, name: str, host: str, ports: str, number: int, lock: IO[bytes]) -> None:
        own = str(number), f"{name}-door-{number}", host, ports
        self._process = subprocess.Popen(
            [sys.executable, "-m", "securemedian.servers.storage.door", *own],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            pass_fds=[lock.fileno()],
            env=os.environ | allocator.environment(),
        )
        assert self._process.stdin and self._process.stdout
        self._orders, self._sayings = self._process.stdin, self._process.stdout
        fcntl.fcntl(self._orders, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        for pipe in (self._orders, self._sayings):
            os.set_blocking(pipe.fileno(), False)
        self._said = msgpack.Unpacker()

    def tell(self, order: dict[str, Any]) -> None:
        """Give it an order; one that has not read thousands is ended."""
        data = msgpack.packb(order)
        try:
            written = self._orders.write(data)
        except BrokenPipeError:
            return
        if written != len(data):
            self._process.kill()

    def hear(self, at_once: bool = False) -> list[dict[str, Any]] | None:
        while data := self._sayings.read(1 << 16):
            self._said.feed(data)
        # what it has said before it ended counts
        return list(self._said) or (None if data == b"" else [])

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self._orders.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()


# starts the door of a number, if that is possible now; it holds the lock of the state folder
Launch = Callable[[int, IO[bytes]], Launched | None]


@dataclass
class _Door:
    launched: Launched
    # when it was heard last
    heard: float
    # where clients reach it, once it listens: HOST:PORT, or :PORT of the daemon's own host
    address: str = ""


class Doors:
    """The doors of one server besides the daemon, by default none. Used by one thread.

    `nodes` reads what doors have stored on other machines than this one.
    """

    def __init__(
        self, count: int = 0, launch: Launch | None = None, nodes: Nodes | None = None
    ) -> None:
        self._count, self._launch, self.nodes = count, launch, nodes or NoNodes()
        self._numbers = itertools.count(DAEMON + 1)
        self._doors: dict[int, _Door] = {}
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
        """Return where the doors that listen are reached, by number."""
        return {number: door.address for number, door in self._doors.items() if door.address}

    def missing(self, room: Room) -> dict[str, list[int]]:
        """Return the blocks of a room that are not stored, by where they go; "" is the daemon."""
        wheres = {DAEMON: ""} | self.addresses
        return {wheres[door]: blocks for door in set(room.owners) if (blocks := room.missing(door))}

    def owners(self, blocks: int, first: int) -> list[int]:
        """Return which door takes which block of a share: slices of coordinates.

        It is the daemon while no door listens. `first` turns the doors, so that all of them have
        something of short shares.
        """
        doors = list(self.addresses) or [DAEMON]
        count = len(doors)
        return [doors[(block * count // blocks + first) % count] for block in range(blocks)]

    def write_here(self, owners: Collection[int]) -> bool:
        """Return whether any of these doors writes on this machine."""
        return any(
            door not in self._doors or self._doors[door].launched.node == HERE for door in owners
        )

    def grant(self, room: Room, folder: Path) -> None:
        """Let the doors that own blocks of a room write them to the round's file in `folder`."""
        doors = set(room.owners) - {DAEMON}
        if doors:
            self._rooms[room.number] = room
        for number in doors:
            if door := self._doors.get(number):
                order = {
                    "grant": {name: getattr(room, name) for name in _OF_A_ROOM},
                    "path": str(words_path(folder, door.launched.node)),
                    "stored": [[block, digest] for block, digest in room.stored.items()],
                }
                door.launched.tell(order)

    def forget(self, room: Room) -> bool:
        """Let the doors write no more blocks of a room; return whether none does any longer."""
        if room.number not in self._rooms:
            return True
        if room.number not in self._leaving:
            self._leaving.add(room.number)
            for number in set(room.owners) - {DAEMON}:
                if door := self._doors.get(number):
                    door.launched.tell({"forget": room.number})
        return False

    def turn(self, at_once: bool = False) -> None:
        """Take what the doors have said, `at_once` all of it, and replace those that have ended."""
        now = time.monotonic()
        for number, door in list(self._doors.items()):
            # one that does not listen yet has nothing to say about shares
            said = door.launched.hear(at_once and bool(door.address))
            for message in said or []:
                self._take(number, door, message)
            if said:
                door.heard = now
            limit_s = SILENCE_S if door.address else START_S
            if said is None or now - door.heard > limit_s:
                why = "it has ended" if said is None else f"it said nothing for {limit_s:g} s"
                self._lose(number, door, why)
        if self._lock and self._launch and now >= self._start_at:
            while len(self._doors) < self._count:
                number = next(self._numbers)
                if (launched := self._launch(number, self._lock)) is None:
                    self._start_at = now + PAUSE_S
                    return
                self._doors[number] = _Door(launched, time.monotonic())

    def close(self) -> None:
        """End the doors."""
        self._count = 0
        for door in self._doors.values():
            door.launched.close()
        self._doors.clear()

    def _take(self, number: int, door: _Door, message: dict[str, Any]) -> None:
        match message:
            case {"address": address, "pid": pid}:
                door.address = address
                logs.event("door-open", door=number, address=address, pid=pid)
            case {"stored": [room_number, block, digest]}:
                if room := self._rooms.get(room_number):
                    room.stored[block] = digest
                    room.nodes[block] = door.launched.node
            case {"forgot": room_number}:
                if room := self._rooms.get(room_number):
                    self._let_go(room, number)

    def _lose(self, number: int, door: _Door, why: str) -> None:
        del self._doors[number]
        # nothing that it has begun may still be written once another may write
        door.launched.kill()
        for room in list(self._rooms.values()):
            self._let_go(room, number)
        self._start_at = time.monotonic() + PAUSE_S
        logs.event("door-lost", logging.WARNING, door=number, reason=why)

    def _let_go(self, room: Room, door: int) -> None:
        """Leave to the daemon the blocks of a room that a door writes no longer."""
        room.owners = [DAEMON if owner == door else owner for owner in room.owners]
        if set(room.owners) == {DAEMON}:
            del self._rooms[room.number]
            self._leaving.discard(room.number)


_OF_A_ROOM = ("number", "client", "round", "kind", "begin", "size", "owners", "key")
