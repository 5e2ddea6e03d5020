"""Doors on threads of this process, as if on nodes of a cluster, and what reads their files."""

import os
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import msgpack
import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import DamagedUpload
from securemedian.servers.storage import door
from securemedian.servers.storage.files import WordsFile
from securemedian.servers.storage.scattered import HERE, block_digests


class DoorHere:
    """A door of this process: `doors.Launched`."""

    def __init__(self, number: int, node: str = HERE) -> None:
        self.node, self.said = node, list[dict[str, Any]]()
        listener = door.listen("127.0.0.1", "")
        self.port = listener.getsockname()[1]
        orders, self._orders = os.pipe()
        # those of a process would be changed
        descriptors: Any = SimpleNamespace(own=nullcontext)
        made = door.Door(number, listener, descriptors, self.said.append, alone=bool(node))
        self._thread = threading.Thread(target=made.serve, args=[orders], daemon=True)
        self._thread.start()
        self._heard, self._ended = 0, False
        self.said.append({"address": f"127.0.0.1:{self.port}", "pid": 0})

    def tell(self, order: dict[str, Any]) -> None:
        os.write(self._orders, msgpack.packb(order))

    def hear(self, at_once: bool = False) -> list[dict[str, Any]] | None:
        heard, self._heard = self.said[self._heard :], len(self.said)
        return heard or (None if self._ended else [])

    def kill(self) -> None:
        if not self._ended:
            self.close()

    def close(self) -> None:
        os.close(self._orders)
        self._thread.join(10)
        self._ended = True


class NodesHere:
    """Nodes whose files are this machine's: `Nodes`."""

    def __init__(self, *nodes: str) -> None:
        self.nodes, self.gone = nodes, set[str]()
        self.doors: list[DoorHere] = []
        # what was fetched: (node, bytes)
        self.fetched: list[tuple[str, int]] = []
        self.dropped: list[Path] = []

    def launch(self, number: int, lock: IO[bytes]) -> DoorHere:
        """Start a door, on the nodes in turn."""
        self.doors.append(DoorHere(number, self.nodes[len(self.doors) % len(self.nodes)]))
        return self.doors[-1]

    def at(self, node: str, path: Path, begin: int, count: int) -> "WordsThere":
        return WordsThere(self, node, path, begin, count)

    def digests(self, node: str, path: Path, begin: int, size: int) -> list[bytes]:
        return list(block_digests(self._file(node, path), begin, size))

    def drop(self, folder: Path) -> None:
        self.dropped.append(folder)

    def _file(self, node: str, path: Path) -> WordsFile:
        assert node in path.name
        if node in self.gone:
            raise DamagedUpload(f"{node} is away")
        return WordsFile(path, sys.maxsize)


class WordsThere:
    """Words on a node: `Kept`."""

    def __init__(self, nodes: NodesHere, node: str, path: Path, begin: int, count: int) -> None:
        self._nodes, self._node, self._path = nodes, node, path
        self._begin, self._count = begin, count

    def words(self) -> Words:
        """Fetch the words, and note that."""
        self._nodes.fetched.append((self._node, 8 * self._count))
        words = self._nodes._file(self._node, self._path).read(self._begin, self._count)
        return np.array(words)
