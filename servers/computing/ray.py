"""Workers on a Ray cluster, one machine or many, of the organisation that runs this server.

Ray schedules the workers, restarts those that have ended, and moves slices of shares to them
through its object store. `shards` decides each worker's task and its partner, and knows
nothing of Ray. Ray is an extra, and is imported once a configuration asks for it.
"""

import functools
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import securemedian
from securemedian.common.addresses import host_and_port
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import ConfigError, NoWorker, cut
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers import allocator, logs
from securemedian.servers.computing.shards import ShardedComputation, WorkerLost
from securemedian.servers.computing.threads import OpenLanes
from securemedian.servers.computing.worker import ShardWorker
from securemedian.servers.config import NEEDS_RAY, EngineConfig

# The variables that Ray reads when it is imported. It would tell its makers about this
# machine, and warn of GPUs, which nobody asks for.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
# For a local cluster besides: Ray listens at the loopback alone where it does not make clusters of
# several machines, and answers only whoever knows a token.
LOCAL = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "token"}
# For a cluster at an address, by name: the values that guard it. Ray asks for neither by itself.
GUARDED = {"RAY_AUTH_MODE": ("token",), "RAY_USE_TLS": ("1", "true")}
# how long a cluster may take to answer at its address
CONNECT_S = 5.0
# bytes of a folder below which Ray's longest name of a socket, of 68 bytes, fits into 107
LONGEST_FOLDER = 39
# how long Ray may take to start a local cluster, or to connect to one
INIT_S = 90.0
# how long a cluster may have too few CPUs for the workers: its nodes may still be joining
ROOM_S = 20.0
# how often the daemon looks whether they are there
LOOK_S = 0.1
# how long workers may take to start, the first time with compiling
START_S = 600.0
# bytes of words that go to the object store together: each call takes a millisecond or more,
# however little it carries
PARCEL_BYTES = 1 << 24
# the streams between the daemons: for rounds, and for checks of dealings
STREAMS = 2
# how long a local cluster may take to end
CLOSE_S = 30.0
# calls that a worker takes at once: per shard a step and a check of dealings, and what else is
# asked, which takes no time
CALLS_PER_SHARD, OTHER_CALLS = 2, 16


class _RayWorker(ShardWorker):
    """A worker as a Ray actor, which listens at the address of its node."""

    def __init__(self, party: int, protocol: ProtocolParams, ports: str) -> None:
        import ray

        super().__init__(party, ray.util.get_node_ip_address(), protocol, ports)


@dataclass
class _Parcel:
    """An object in Ray's object store, a list of words."""

    ref: Any = field(default=None, repr=False)

    @cached_property
    def content(self) -> list[Words]:
        # once per step: a slice is read in hundreds of places
        import ray

        words: list[Words] = ray.get(self.ref)
        return words


@dataclass(frozen=True)
class _Stored:
    """Words in a parcel."""

    parcel: _Parcel
    number: int

    def words(self) -> Words:
        return self.parcel.content[self.number]


class _Parcels:
    """Parcels (`slices.Parcels`) of PARCEL_BYTES or a little more, and a last one."""

    def __init__(self, put: Callable[[list[Words]], Any]) -> None:
        self._put = put
        self._begin()

    def add(self, words: Words) -> _Stored:
        stored = _Stored(self._parcel, len(self._words))
        self._words.append(words)
        self._bytes += words.nbytes
        if self._bytes >= PARCEL_BYTES:
            self.send()
        return stored

    def send(self) -> None:
        if self._words:
            self._parcel.ref = self._put(self._words)
            self._begin()

    def _begin(self) -> None:
        self._parcel, self._bytes = _Parcel(), 0
        self._words: list[Words] = []


class RayWorkers:
    """The workers of one server (`shards.Workers`), each an actor that Ray restarts."""

    def __init__(self, party: int, protocol: ProtocolParams, engine: EngineConfig) -> None:
        """Ask Ray for the workers. They are not there yet."""
        import ray

        self._put = ray.put
        make = ray.remote(_RayWorker).options(
            num_cpus=1,
            scheduling_strategy="SPREAD",
            max_restarts=-1,
            # Ray has threads before a worker's own code runs, and then it is too late for that
            runtime_env={"env_vars": allocator.environment()},
            # both servers repeat lost work together
            max_task_retries=0,
            # should one worker alone be left, it has all shards
            max_concurrency=OTHER_CALLS + CALLS_PER_SHARD * engine.shard_count,
        )
        count = engine.workers
        self._actors = [make.remote(party, protocol, engine.ports) for _ in range(count)]
        self._lock = threading.Lock()
        # each worker's answer once it is there
        self._answers: list[Future[Any]] = []
        for worker in range(count):
            self._answers.append(self._call(worker, "release_of_code"))

    @property
    def count(self) -> int:
        return len(self._actors)

    def there(self) -> list[int]:
        return [number for number in range(self.count) if self._is_there(number)]

    def releases(self) -> set[str]:
        """Return the releases of the software that the workers that are there run."""
        return {self._answers[number].result() for number in self.there()}

    def submit(self, worker: int, function: str, *arguments: Any) -> "Future[Any]":
        future = self._call(worker, function, *arguments)
        future.add_done_callback(functools.partial(self._note, worker))
        return future

    def parcels(self) -> _Parcels:
        return _Parcels(self._put)

    def _is_there(self, worker: int) -> bool:
        answer = self._answers[worker]
        if answer.done() and answer.exception():
            # the one that was to take its place has ended, too
            self._ask_anew(worker)
        return answer.done() and not answer.exception()

    def _note(self, worker: int, future: "Future[Any]") -> None:
        """Note that a worker has ended; Ray starts another in its place."""
        # each of its calls fails, and it is lost once
        if isinstance(future.exception(), WorkerLost) and self._ask_anew(worker):
            logs.event("worker-lost", worker=worker, reason=str(future.exception()))

    def _ask_anew(self, worker: int) -> bool:
        """Ask whoever takes a worker's place, and return whether the worker was there until now."""
        with self._lock:
            answer = self._answers[worker]
            if not answer.done():
                return False
            self._answers[worker] = self._call(worker, "release_of_code")
            return answer.exception() is None

    def _call(self, worker: int, function: str, *arguments: Any) -> "Future[Any]":
        """Call a function of a worker; the future raises WorkerLost where Ray says so."""
        from ray.exceptions import RayError, RayTaskError

        answer: Future[Any] = Future()

        def pass_on(future: "Future[Any]") -> None:
            error = future.exception()
            if error is None:
                answer.set_result(future.result())
            elif isinstance(error, RayError) and not isinstance(error, RayTaskError):
                answer.set_exception(_lost(error))
            else:
                answer.set_exception(error)

        try:
            called = getattr(self._actors[worker], function).remote(*arguments).future()
        except RayError as error:
            answer.set_exception(_lost(error))
        else:
            called.add_done_callback(pass_on)
        return answer


def _lost(error: Exception) -> WorkerLost:
    first = cut(_first_line(error), 200)
    return WorkerLost(f"its worker has ended ({type(error).__name__}: {first})")


def _first_line(error: Exception) -> str:
    """Return the first line of what Ray says of an error; tracebacks follow."""
    return str(error).strip().partition("\n")[0]


def check_guarded(engine: EngineConfig) -> None:
    """Raise ConfigError if whoever reaches the cluster at an address can use it, or can listen."""
    missing = [
        f"{name}={values[0]}"
        for name, values in GUARDED.items()
        if os.environ.get(name, "").lower() not in values
    ]
    if engine.address and missing and not engine.insecure:
        raise ConfigError(
            "[engine] address lets all users of the cluster see every share, without "
            f"{' and '.join(missing)} in the environment: {engine.address}; set them on all nodes "
            "and here (docs/scaling.md), or write insecure = true"
        )


class RayBackend:
    """A Ray cluster: a `Backend`."""

    def __init__(
        self,
        party: int,
        protocol: ProtocolParams,
        engine: EngineConfig,
        folder: Path,
        open_lanes: OpenLanes,
        timeout_s: Callable[[], float],
    ) -> None:
        """Take two streams of each session.

        A local cluster writes to `ray` in `folder`. Raises ConfigError if Ray is not
        installed, or if a cluster at an address is not guarded.
        """
        check_guarded(engine)
        os.environ.update(QUIET if engine.address else QUIET | LOCAL)
        try:
            import ray
        except ImportError as error:
            raise ConfigError(NEEDS_RAY) from error
        self._ray = ray
        # nobody knows
        self.ready_in_s: float | None = None
        self._party, self._protocol, self._engine = party, protocol, engine
        self._folder = folder.resolve()
        self._open_lanes, self._timeout_s = open_lanes, timeout_s
        self._workers: RayWorkers | None = None
        self._connected: Future[None] = Future()
        self._ended = threading.Event()
        self._holder = threading.Thread(target=self._hold, name="ray", daemon=True)

    def start(self) -> None:
        """Connect to the cluster or start a local one, and wait for the workers.

        Raises ConfigError if no cluster is at its address, or if a worker runs another
        release, and NoWorker if the cluster has no room for the workers.
        """
        self._holder.start()
        try:
            self._connected.result(INIT_S)
        except TimeoutError:
            raise ConfigError(
                f"the cluster has not let this server in within {INIT_S:g} s: {self._where}; "
                "see that Ray answers there, and that this machine reaches its other ports, too"
            ) from None
        engine = self._engine
        workers = RayWorkers(self._party, self._protocol, engine)
        begun = time.monotonic()
        while len(workers.there()) < engine.workers:
            if self._ended.wait(LOOK_S):
                raise NoWorker(
                    f"this server ends before its workers have started: {self._where}; start it "
                    "again"
                )
            waited = time.monotonic() - begun
            if waited > ROOM_S:
                self._check_room()
            if waited > START_S:
                raise NoWorker(
                    f"too few workers have started within {START_S:g} s: {len(workers.there())} "
                    f"of {engine.workers} on {self._where}; see what Ray says of it (ray status)"
                )
        if other := workers.releases() - {securemedian.__version__}:
            raise ConfigError(
                f"workers on {self._where} run another release than this server's "
                f"{securemedian.__version__}: {', '.join(sorted(other))}; install the same on "
                "all nodes"
            )
        logs.event(
            "workers-there",
            cluster=self._where,
            workers=engine.workers,
            shards=engine.shard_count,
            nodes=sum(node["Alive"] for node in self._ray.nodes()),
        )
        self._workers = workers

    def open(self, session_id: bytes) -> ShardedComputation:
        assert self._workers is not None
        return ShardedComputation(
            self._party,
            session_id,
            self._open_lanes(session_id, STREAMS),
            self._workers,
            self._engine.shard_count,
            self._timeout_s,
        )

    def close(self) -> bool:
        self._ended.set()
        if not self._holder.ident:
            return True
        # Ray that still connects takes no notice
        self._holder.join(CLOSE_S if self._connected.done() else 0)
        return not self._holder.is_alive()

    @property
    def _where(self) -> str:
        address = self._engine.address
        return f"the Ray cluster at {address}" if address else "the local Ray cluster"

    def _hold(self) -> None:
        """Connect, and stay until the end: Ray's processes end with the thread that starts them."""
        try:
            self._connect()
        except Exception as error:
            self._connected.set_exception(error)
        else:
            self._connected.set_result(None)
            self._ended.wait()
        self._ray.shutdown()
        self._clear()

    def _clear(self) -> None:
        """Remove what a local cluster has written, which can be slices of shares."""
        shutil.rmtree(self._folder / "ray", ignore_errors=True)

    def _connect(self) -> None:
        address = self._engine.address
        options: dict[str, Any] = {
            "log_to_driver": False,
            "configure_logging": False,
            "namespace": f"securemedian-{secrets.token_hex(8)}",
        }
        if address:
            try:
                socket.create_connection(host_and_port(address), CONNECT_S).close()
            except OSError as error:
                raise ConfigError(
                    f"nothing answers at [engine] address: {address} "
                    f"({error.strerror or error}); start the cluster there (ray start --head), "
                    "or correct the address"
                ) from error
            options["address"] = address
        else:
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            if len(os.fsencode(self._folder)) > LONGEST_FOLDER:
                raise ConfigError(
                    f"state_dir is too long for the names of Ray's sockets: {self._folder}; "
                    f"choose one of at most {LONGEST_FOLDER} bytes"
                )
            os.environ["RAY_TMPDIR"] = str(self._folder)
            # of a server that was killed
            self._clear()
            # "local" is never one that runs here already, as no address may be
            options |= {
                "address": "local",
                "num_cpus": self._engine.workers,
                "include_dashboard": False,
            }
        try:
            self._ray.init(**options)
        except Exception as error:
            first = cut(_first_line(error), 300)
            raise ConfigError(
                f"the cluster takes no workers of this server: {self._where} ({first}); run Ray "
                f"{self._ray.__version__} there, with the token of this server if it asks for "
                "one"
            ) from error

    def _check_room(self) -> None:
        cpus = self._ray.cluster_resources().get("CPU", 0.0)
        if cpus < self._engine.workers:
            raise NoWorker(
                f"{self._where} has fewer CPUs than [engine] workers = {self._engine.workers} "
                f"take: {cpus:g}; lower workers, or add nodes"
            )
