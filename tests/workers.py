"""Workers of both servers in this process, and the streams between their daemons."""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import zmq

from securemedian.common.keys import KeyPair
from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers.computing.shards import ShardedComputation, WorkerLost
from securemedian.servers.computing.slices import Parcels
from securemedian.servers.computing.worker import ShardWorker
from securemedian.servers.network.transport import (
    PEER_DOMAIN,
    PeerPort,
    authenticate,
)
from tests.daemons import free_ports

LOOPBACK = "127.0.0.1"


class HeldWords:
    """Words in this process, which cannot be fetched before they are sent."""

    def __init__(self, words: Words, sent: bool = True) -> None:
        self._words = words.copy()
        self._words.flags.writeable = False
        self.sent = sent

    def words(self) -> Words:
        assert self.sent
        return self._words


class HeldParcels:
    """Parcels in this process, whose bytes are counted in `held`."""

    def __init__(self, held: list[int]) -> None:
        self._held, self._waiting = held, list[HeldWords]()

    def add(self, words: Words) -> HeldWords:
        self._waiting.append(HeldWords(words, sent=False))
        self._held.append(words.nbytes)
        return self._waiting[-1]

    def send(self) -> None:
        for words in self._waiting:
            words.sent = True
        self._waiting.clear()


class LocalWorkers:
    """The workers of one server, each of which can be killed."""

    def __init__(self, party: int, count: int, protocol: ProtocolParams) -> None:
        self._make = lambda: ShardWorker(party, LOOPBACK, protocol)
        self._workers: list[ShardWorker | None] = [self._make() for _ in range(count)]
        self._pool = ThreadPoolExecutor(64)
        # the request to each worker, in order
        self.asked: list[tuple[int, str, tuple[Any, ...]]] = []
        # the bytes of each slice that workers can fetch
        self.held: list[int] = []
        # called with each thing that is asked, before it is done
        self.watch: Callable[[int, str, tuple[Any, ...]], None] = lambda *asked: None

    def submit(self, worker: int, function: str, *arguments: Any) -> "Future[Any]":
        self.asked.append((worker, function, arguments))
        self.watch(worker, function, arguments)
        return self._pool.submit(self._call, worker, function, arguments)

    def there(self) -> list[int]:
        return [number for number, worker in enumerate(self._workers) if worker]

    def parcels(self) -> Parcels:
        return HeldParcels(self.held)

    def kill(self, worker: int, comes_back: bool = False) -> None:
        """End a worker with all that it holds; another may take its place."""
        killed, self._workers[worker] = self._workers[worker], None
        assert killed
        for key in list(killed._seats):
            # so that what runs is not waited for
            self._pool.submit(killed.drop, key)
        if comes_back:
            self._workers[worker] = self._make()

    def close(self) -> None:
        for worker in self._workers:
            for key in list(worker._seats) if worker else []:
                assert worker and worker.drop(key)
        self._pool.shutdown()

    def _call(self, worker: int, function: str, arguments: tuple[Any, ...]) -> Any:
        asked = self._workers[worker]
        if asked is None:
            raise WorkerLost("its worker has ended")
        value = getattr(asked, function)(*arguments)
        if self._workers[worker] is not asked:
            raise WorkerLost("its worker has ended")
        return value


class ShardedServers:
    """Both servers' daemons and workers, so far as they compute."""

    def __init__(self, protocol: ProtocolParams, workers: Sequence[int], shards: int) -> None:
        self.workers = [LocalWorkers(party, workers[party], protocol) for party in (0, 1)]
        self._shards = shards
        keys = [KeyPair(*zmq.curve_keypair()) for _ in (0, 1)]
        self._contexts: list[zmq.Context[Any]] = [zmq.Context() for _ in (0, 1)]
        endpoint = f"tcp://{LOOPBACK}:{free_ports(1)[0]}"
        self._gate = authenticate(self._contexts[1], {PEER_DOMAIN: [keys[0].public.decode()]})
        self._ports = [
            PeerPort(
                self._contexts[party],
                party,
                keys[party],
                endpoint,
                keys[1 - party].public.decode(),
            )
            for party in (0, 1)
        ]
        self._numbers = itertools.count(1)
        self._opened: list[ShardedComputation] = []

    def session(self, timeout_s: float = 20.0) -> list[ShardedComputation]:
        """Open a session at both servers, S1 first."""
        session_id = next(self._numbers).to_bytes(16, "little")
        made = {
            party: ShardedComputation(
                party,
                session_id,
                [self._ports[party].lane(session_id, lane, timeout_s) for lane in range(2)],
                self.workers[party],
                self._shards,
                lambda: timeout_s,
            )
            for party in (1, 0)
        }
        self._opened += made.values()
        return [made[0], made[1]]

    def close(self) -> None:
        for computation in self._opened:
            computation.close()
            computation.release()
        for workers in self.workers:
            workers.close()
        self._gate.stop()
        for context in self._contexts:
            context.term()
