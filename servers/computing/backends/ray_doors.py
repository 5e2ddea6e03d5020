"""Doors on the nodes of a Ray cluster: actors that take uploads where workers compute.

Each keeps what it takes on the disk of its node, below the path of the server's `state_dir`.
Workers read it from there without the daemon. Reading and deleting are tasks of the node and need
no door, so that what is stored outlasts the actor, though not the node.
"""

import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import ChannelClosed, DamagedUpload
from securemedian.servers import allocator, logs
from securemedian.servers.computing.backends.ray import first_line
from securemedian.servers.network.descriptors import Descriptors
from securemedian.servers.storage.door import Door, listen, write_all
from securemedian.servers.storage.files import WordsFile
from securemedian.servers.storage.scattered import block_digests

# how long a node may take to read words, or to hash those of a client
READ_S = 600.0
# how long the daemon's loop waits for what a door has to say about a share that should be whole
ANSWER_S = 2.0


class _DoorActor:
    """A door as a Ray actor, whose orders and sayings are calls."""

    def __init__(self, number: int, name: str, ports: str) -> None:
        import ray

        os.umask(0o077)
        logs.start(name)
        host = ray.util.get_node_ip_address()
        listener = listen(host, ports)
        address = f"{host}:{listener.getsockname()[1]}"
        self._said: list[dict[str, Any]] = [{"address": address, "pid": os.getpid()}]
        self._lock = threading.Lock()
        orders, self._orders = os.pipe()
        door = Door(number, listener, Descriptors(), self._say, alone=True)
        threading.Thread(target=door.serve, args=[orders], daemon=True).start()

    def _say(self, message: dict[str, Any]) -> None:
        with self._lock:
            self._said.append(message)

    def order(self, order: bytes) -> None:
        write_all(self._orders, order)

    def said(self) -> list[dict[str, Any]]:
        """Return what the door has said since the last time."""
        with self._lock:
            said, self._said = self._said, []
        return said


class RayDoor:
    """A door on a node: `doors.Launched`."""

    def __init__(self, nodes: "RayNodes", node: str, number: int, name: str, ports: str) -> None:
        self.node, self._nodes = node, nodes
        make = _on(node, _DoorActor, runtime_env={"env_vars": allocator.environment()})
        self._actor = make.remote(number, f"{name}-door-{number}", ports)
        self._asked = self._actor.said.remote()

    def tell(self, order: dict[str, Any]) -> None:
        self._actor.order.remote(msgpack.packb(order))

    def hear(self, at_once: bool = False) -> list[dict[str, Any]] | None:
        import ray
        from ray.exceptions import RayError

        said = []
        # what was asked before may have been answered before the latest
        for _ in range(2 if at_once else 1):
            try:
                if not ray.wait([self._asked], timeout=ANSWER_S if at_once else 0)[0]:
                    break
                said += ray.get(self._asked)
            except RayError:
                return None
            self._asked = self._actor.said.remote()
        return said

    def kill(self) -> None:
        import ray

        # actors end with the connection to the cluster
        if ray.is_initialized():
            ray.kill(self._actor)
        self._nodes.left(self.node)

    def close(self) -> None:
        self.kill()


class RayNodes:
    """The nodes of a Ray cluster that have CPUs, whose disks doors write to: `Nodes`."""

    def __init__(self) -> None:
        # how many doors each has
        self._doors: Counter[str] = Counter()
        self._dropped: list[Path] = []

    def launch(self, name: str, ports: str, number: int, lock: IO[bytes]) -> RayDoor | None:
        """Start a door on a node that has fewest; None while there is no cluster yet."""
        if not (nodes := self._alive()):
            return None
        self._drop(nodes)
        node = min(nodes, key=lambda one: (self._doors[one], one))
        self._doors[node] += 1
        return RayDoor(self, node, number, name, ports)

    def left(self, node: str) -> None:
        """Note that a door of a node has ended."""
        self._doors[node] -= 1

    def at(self, node: str, path: Path, begin: int, count: int) -> "_AtNode":
        return _AtNode(node, str(path), begin, count)

    def digests(self, node: str, path: Path, begin: int, size: int) -> Iterator[bytes]:
        # at once, so that all nodes that have something of a share hash it at the same time
        return _answer(_on(node, _digests).remote(str(path), begin, size))

    def drop(self, folder: Path) -> None:
        """Delete the folder of a round on all nodes, or those that are there when a door starts."""
        self._dropped.append(folder)
        self._drop(self._alive())

    def _drop(self, nodes: list[str]) -> None:
        for node in nodes:
            for folder in self._dropped:
                _on(node, shutil.rmtree).remote(str(folder), True)
        if nodes:
            self._dropped.clear()

    def _alive(self) -> list[str]:
        # whoever has connected has imported it
        if "ray" not in sys.modules:
            return []
        import ray

        if not ray.is_initialized():
            return []
        return [
            node["NodeID"]
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("CPU", 0)
        ]


@dataclass(frozen=True)
class _AtNode:
    """Words in a file on a node, for a worker: `Kept`."""

    node: str
    path: str
    begin: int
    count: int

    def words(self) -> Words:
        import ray
        from ray.exceptions import RayError

        asked = _on(self.node, _read).remote(self.path, self.begin, self.count)
        try:
            words: Words = ray.get(asked, timeout=READ_S)
        except RayError as error:
            raise ChannelClosed(
                f"what a node has stored cannot be read: {first_line(error)}"
            ) from error
        return words


def _answer(asked: Any) -> Iterator[bytes]:
    import ray
    from ray.exceptions import RayError

    try:
        yield from ray.get(asked, timeout=READ_S)
    except RayError as error:
        raise DamagedUpload(
            "a node of this server's cluster does not read what it has stored "
            f"({first_line(error)}). The round has failed for good, open a new one"
        ) from error


def _on(node: str, work: Callable[..., Any], **options: Any) -> Any:
    """Return a task or an actor of a node, which takes none of its CPUs."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(work).options(num_cpus=0, scheduling_strategy=strategy, **options)


def _read(path: str, begin: int, count: int) -> Words:
    return WordsFile(Path(path), sys.maxsize).read(begin, count)


def _digests(path: str, begin: int, size: int) -> list[bytes]:
    return list(block_digests(WordsFile(Path(path), sys.maxsize), begin, size))
