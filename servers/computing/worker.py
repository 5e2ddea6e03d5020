"""A worker, which computes shards for the daemon of its server, each in a session of its own.

The daemon names the shard and the partner, one worker of the other server. The two workers connect
directly, over CURVE, with keys that the two daemons have made for this session alone.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import zmq

import securemedian
from securemedian.common.keys import KeyPair
from securemedian.mpc.errors import ChannelClosed, SecureMedianError
from securemedian.mpc.protocols import compiling
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers.computing.threads import SWITCH_S, ThreadComputation
from securemedian.servers.network.transport import (
    PEER_DOMAIN,
    PeerPort,
    ZmqLink,
    authenticate,
)

# how long what is dropped may take to stop: a thread stops at its next message, and may first have
# to finish the computation of a chunk
STOP_S = 30.0
# the functions of `ThreadComputation` that a daemon may ask for
STEPS = frozenset({"fill", "open_dealings", "check_values", "survey", "judge", "run_round"})


@dataclass(frozen=True)
class Meeting:
    """Whom a worker meets for a session, and how each proves who it is."""

    session_id: bytes = field(repr=False)
    # made for this session: ours, and the public key of the other server's worker
    keys: KeyPair
    peer_key: str
    # at S0: where the other server's worker listens; at S1 empty
    endpoint: str
    # the limit for one message of the protocol
    timeout_s: float


@dataclass(frozen=True)
class Broken:
    """An error that ended a step, as a value: its `code` and what it says."""

    code: str
    reason: str


class _Seat:
    """One session at a worker, with its sockets."""

    def __init__(
        self, party: int, endpoint: str, protocol: ProtocolParams, meeting: Meeting
    ) -> None:
        self._context = zmq.Context(io_threads=1)
        # at S0 nobody connects
        allowed = {PEER_DOMAIN: [meeting.peer_key]} if party == 1 else {}
        self._gate = authenticate(self._context, allowed)
        links: list[ZmqLink] = []
        port: PeerPort | None = None
        try:
            port = PeerPort(
                self._context,
                party,
                meeting.keys,
                meeting.endpoint or endpoint,
                meeting.peer_key,
            )
            # the last one is for checks of dealings
            for lane in range(protocol.lanes + 1):
                links.append(port.lane(meeting.session_id, lane, meeting.timeout_s))
        except SecureMedianError:
            for link in links:
                link.release()
            self._gate.stop()
            if port is None:
                self._context.destroy(linger=0)
            else:
                # its proxy closes its own sockets
                self._context.term()
            raise
        self.endpoint = port.endpoint
        *lanes, checking = links
        self.computation = ThreadComputation(party, protocol, meeting.session_id, lanes, checking)
        self.hurry = threading.Event()
        self.progress = (0, 0)
        self._closed, self._running = False, 0
        self._stopped = threading.Condition()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Keep the sockets for as long as a step runs."""
        with self._stopped:
            if self._closed:
                raise ChannelClosed("the session was dropped")
            self._running += 1
        try:
            yield
        finally:
            with self._stopped:
                self._running -= 1
                self._stopped.notify_all()

    def note(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def drop(self) -> bool:
        """End all waits, and free the sockets once no step runs; return whether that was in time.

        The sockets of a step that does not stop stay, because its thread may be inside of them.
        """
        self.computation.close()
        with self._stopped:
            self._closed = True
            if not self._stopped.wait_for(lambda: not self._running, STOP_S):
                return False
        self.computation.release()
        self._gate.stop()
        self._context.term()
        return True


class ShardWorker:
    """The requests of a server's daemon to one worker. Its functions are called by many threads.

    `key` names a session at this worker.
    """

    def __init__(self, party: int, host: str, protocol: ProtocolParams, ports: str = "") -> None:
        """Compile the kernels, or load them.

        S1's workers listen at the address `host`, at any of the `ports` FIRST-LAST.
        """
        sys.setswitchinterval(SWITCH_S)
        self._party, self._protocol = party, protocol
        self._endpoint = f"tcp://{host}:{ports or '*'}"
        self._seats: dict[str, _Seat] = {}
        compiling.compile_kernels(protocol)

    def release_of_code(self) -> str:
        return securemedian.__version__

    def open(self, key: str, meeting: Meeting) -> str | Broken:
        """Open this end of a session, and return where it listens or connects to."""
        try:
            seat = self._seats[key] = _Seat(self._party, self._endpoint, self._protocol, meeting)
        except SecureMedianError as error:
            return Broken(error.code, str(error))
        return seat.endpoint

    def run(self, key: str, step: str, *arguments: Any) -> Any:
        """Run a step of `STEPS` with the other server's worker, and return what it returns."""
        if step not in STEPS:
            raise ValueError(f"a worker has no step {step!r}")
        seat = self._seats.get(key)
        if seat is None:
            # it was another process, which has ended, that opened it
            return Broken(ChannelClosed.code, "the worker was restarted")
        try:
            with seat.in_use():
                return self._run(seat, step, *arguments)
        except SecureMedianError as error:
            return Broken(error.code, str(error))

    def _run(self, seat: _Seat, step: str, *arguments: Any) -> Any:
        seat.progress = (0, 0)
        computation = seat.computation
        match step:
            case "fill":
                seat.hurry.clear()
                params, limit_bytes, shard = arguments
                return computation.fill(params, limit_bytes, seat.hurry.is_set, seat.note, shard)
            case "check_values" | "run_round":
                # the daemons toss, if anybody does
                given, shard = arguments
                return getattr(computation, step)(given, seat.note, shard)
        return getattr(computation, step)(*arguments)

    def hurry(self, key: str) -> None:
        """Let the filling of the pools end."""
        if seat := self._seats.get(key):
            seat.hurry.set()

    def progress(self, key: str) -> tuple[int, int]:
        """Return the coordinates that a step has done, and those in all."""
        seat = self._seats.get(key)
        return seat.progress if seat else (0, 0)

    def drop(self, key: str) -> bool:
        """Forget a session with its pools, and return whether its steps have ended in time."""
        seat = self._seats.pop(key, None)
        return seat is None or seat.drop()
