"""The authenticated connections to both servers, whose answers have a time limit.

A request without an answer may be repeated on a new connection: whether the first one arrived
cannot be known, and a server answers a repeated request like the first.
"""

import functools
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, TypeVar

import zmq
from numpy.typing import NDArray
from zmq.utils.monitor import recv_monitor_message

from securemedian.clients.config import ClientConfig, ServerAddress
from securemedian.common.addresses import connects_ipv6
from securemedian.common.durable import check_process
from securemedian.common.keys import KeyPair
from securemedian.common.status import DEFAULT_COHORT
from securemedian.common.terminal import Progress, Report, Wait, unseen
from securemedian.mpc.errors import (
    ConfigError,
    NoSocket,
    NotStored,
    ServerUnreachable,
    from_code,
)
from securemedian.mpc.protocols import wire

T = TypeVar("T")

# The other end hung up during the handshake: it has another key, is not a server of ours, or has
# no room for connections at the moment.
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | _FAILED
)
# the longest that another key is tried
TRIAL_S = 5.0
# how often a wait for an answer looks whether it has been cancelled, and how much has been sent
SLICE_S = 0.2
# the longest that a server takes for one message
MESSAGE_S = 1800.0
# the longest that nothing of what is sent reaches the other end's host, before the connection is
# made again, to the address that the server's name then has. A slow line is never silent.
SILENCE_S = 10.0
# How often each end shows the other that it is there, so that no firewall forgets a silent line.
# The limit for an answer to that is MESSAGE_S, because it waits behind a long message.
HEARTBEAT_MS = 5000
# the first and the longest pause before a request is sent again
PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
# the bytes that every server takes: longer requests are compared with its max_message_bytes first
SHORT_BYTES = 1 << 16
# the place where Linux has the bytes that the other end has acknowledged, in `struct tcp_info`
_TCP_INFO = getattr(socket, "TCP_INFO", None)
_BYTES_ACKED = struct.Struct("=120xQ")
# the slowest line that requests have time for where other systems do not tell that
SLOWEST_BYTES_PER_S = 1e5

# The descriptors of a connection: three sockets of libzmq and the line itself. Before the first one
# in a process libzmq takes five; the same number is left for files that are written meanwhile.
DESCRIPTORS = 4 + 5


class Connection:
    """A CURVE DEALER to one server, for one request at a time, on any thread.

    A monitor watches it, because zmq alone would try a refused key for ever and report nothing.
    """

    def __init__(
        self,
        label: str,
        server: ServerAddress,
        keys: KeyPair,
        timeout_s: float,
        other: ServerAddress | None = None,
        report: Report = lambda text: None,
        cohort: str = DEFAULT_COHORT,
        proxy: str = "",
    ) -> None:
        """Connect to `server`; `other` is what the configuration has for the other one.

        If this server does not prove its key, the key of the other one is tried, to find out
        whether they are exchanged. `report` gets a line when the server is away and waited for, and
        one when it is back. Requests that name no round are about this `cohort`. It connects
        through the SOCKS5 `proxy` HOST:PORT, if there is one.
        """
        self.label, self.address, self._timeout_s = label, server.address, timeout_s
        self._where = f"{label} at {server.address}"
        self._server, self._keys, self._other = server, keys, other
        self._report, self._told = report, False
        self._cohort, self._proxy = cohort, proxy
        # libzmq's sockets belong to the process that opened them
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        # held by the thread whose request is on its way
        self._cancelled, self._turn = threading.Event(), threading.RLock()
        # whether the server has been reached before, so that it is worth waiting for
        self.reached = False
        # how many connections there have been to it
        self.links = 0
        # the most bytes of a request that the server is known to take
        self._most_bytes = SHORT_BYTES
        # whether the other end has hung up during a handshake since it last proved its key
        self._unproved = False
        self._connect()

    def _connect(self) -> None:
        # whether both ends of this connection have proved their keys to each other
        self._proven = False
        # the descriptor of the connection, once there is one
        self._descriptor = -1
        self._socket = self._dealer(self._server.public_key)
        self._socket.sndtimeo = int(self._timeout_s * 1000)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(self._server.address)

    def _dealer(self, server_key: str) -> zmq.Socket[bytes]:
        """Return a socket that is not connected yet, for a server with this public key.

        Raises NoSocket where this process has too few descriptors for it.
        """
        check_descriptors(DESCRIPTORS, "a connection to a server")
        socket: zmq.Socket[bytes] = _context_of(os.getpid()).socket(zmq.DEALER)
        socket.linger, socket.maxmsgsize = 0, wire.MAX_PART_BYTES
        # TCP's own limit, TCP_USER_TIMEOUT, where the system has one
        socket.tcp_maxrt = int(SILENCE_S * 1000)
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, int(MESSAGE_S * 1000)
        if self._proxy:
            # it finds the server's address
            socket.set_string(zmq.SOCKS_PROXY, self._proxy)
            socket.ipv6 = connects_ipv6(f"tcp://{self._proxy}")
        else:
            socket.ipv6 = connects_ipv6(self._server.address)
        socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
        socket.curve_serverkey = server_key.encode()
        return socket

    def ask(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
        patience_s: float = 0.0,
        progress: Progress = unseen,
        stop: threading.Event | None = None,
    ) -> wire.Message:
        """Send one request and return its answer.

        Without an answer, or if the server has no room to store it, the request is repeated with
        growing pauses for `patience_s` seconds, if the server has been reached before, and until
        `stop` is set. Raises the error that the server answers with, ServerUnreachable if it does
        not answer, and LocalProtocolError in a fork of the process that has connected.
        """
        check_process(self._pid, f"the connection to {self._where}")
        deadline, stop = time.monotonic() + patience_s, stop or self._cancelled
        for pause in pauses():
            try:
                with self._turn:
                    reply = self._ask_once(op, fields or {}, arrays, progress, stop)
                full = reply.type == "error" and reply.fields.get("code") == NotStored.code
                if self._told and not full:
                    self._told = False
                    self._report(f"{self._where} is back")
                if reply.type == "error":
                    code, message = reply.fields.get("code"), reply.fields.get("message")
                    raise from_code(str(code), f"{self.label}: {message}")
                break
            except (ServerUnreachable, NotStored) as error:
                self.outlast(error, -inf if stop.is_set() else deadline)
            stop.wait(pause)
        return reply

    def outlast(self, error: ServerUnreachable | NotStored, deadline: float) -> None:
        """Report once that this server is away. Raises `error` if it is asked no more."""
        left = deadline - time.monotonic()
        if not self.reached or self._cancelled.is_set() or left <= 0:
            raise error
        if not self._told:
            self._told = True
            self._report(f"{error}. Trying again for {left:,.0f} s")

    def _ask_once(
        self,
        op: str,
        fields: Mapping[str, Any],
        arrays: Mapping[str, NDArray[Any]] | None,
        progress: Progress,
        stop: threading.Event,
    ) -> wire.Message:
        self._check_cancelled(stop)
        number = next(self._numbers)
        of_round = {} if fields.get("round") else {"cohort": self._cohort}
        parts = wire.pack(op, {**fields, **of_round, "id": number}, arrays)
        self._check_size(op, wire.size(parts), stop)
        try:
            # earlier events of the connection do not concern this request
            self._take_events()
            before = self._acknowledged()
            try:
                self._socket.send_multipart(parts)
            except zmq.Again:
                raise self._no_answer(op) from None
            reply = self._reply(op, number, wire.size(parts), before, progress, stop)
            # such as that of the connection on which the answer came
            self._take_events()
        except ServerUnreachable:
            # a new connection drops unsent bytes, and replaces one that stalls
            self.close()
            self._connect()
            raise
        return reply

    def _check_size(self, op: str, size: int, stop: threading.Event) -> None:
        """Raise ConfigError if a request is longer than what the server takes, as it says itself.

        It would be sent whole, and again, before it is refused.
        """
        if size <= self._most_bytes:
            return
        said = self._ask_once("info", {}, None, unseen, stop).fields.get("max_message_bytes")
        self._most_bytes = said if type(said) is int else size
        if size > self._most_bytes:
            raise ConfigError(
                f"{self._where} takes requests of at most {self._most_bytes:,} bytes: this "
                f"{op!r} has {size:,}; have max_message_bytes raised at both servers"
            )

    def cancel(self) -> None:
        """Send nothing any more, and end the wait for an answer. Any thread may call it."""
        self._cancelled.set()

    def close(self) -> None:
        """Close the sockets, except in a fork: they are those of the process that opened them."""
        if self._pid == os.getpid():
            with self._turn:
                self._socket.disable_monitor()
                self._socket.close()

    def _reply(
        self,
        op: str,
        number: int,
        size: int,
        before: int,
        progress: Progress,
        stop: threading.Event,
    ) -> wire.Message:
        """Return the answer to a request of `size` bytes, sent after `before` bytes were taken.

        The limit begins again whenever the other end takes more of the request, up to MESSAGE_S, so
        that a slow line does not count as a server that is away. If the system does not tell how
        much was taken, the limit allows for a line of SLOWEST_BYTES_PER_S.
        """
        begun = time.monotonic()
        deadline, sent = begun + self._timeout_s, 0
        if _TCP_INFO is None:
            deadline += min(size / SLOWEST_BYTES_PER_S, MESSAGE_S)
        wait = Wait(self._report, lambda: f"the answer to {op!r} from {self._where}", deadline)
        try:
            while (left := deadline - time.monotonic()) > 0:
                self._check_cancelled(stop)
                if (taken := min(size, self._acknowledged() - before)) > sent:
                    sent = taken
                    latest = begun + max(self._timeout_s, MESSAGE_S)
                    deadline = min(time.monotonic() + self._timeout_s, latest)
                    progress(sent, size)
                if taken >= size or not sent:
                    wait.turn()
                ready = dict(self._poller.poll(int(min(left, SLICE_S) * 1000) + 1))
                if self._socket in ready:
                    message = wire.unpack(self._socket.recv_multipart())
                    # 0: the server could not read our frame. Other numbers are those of late
                    # answers to earlier requests.
                    if message.fields.get("id") in (number, 0):
                        return message
                elif self._monitor in ready:
                    proven = self._proven
                    if self._event() == zmq.EVENT_DISCONNECTED and proven:
                        raise ServerUnreachable(
                            f"{self._where} hung up on a request: {op!r} of {size:,} bytes; it "
                            "was restarted, the line is cut, or have its max_message_bytes "
                            "raised"
                        )
        finally:
            wait.end()
        raise self._no_answer(op)

    def _acknowledged(self) -> int:
        """Return how many bytes the other end's host has taken here; 0 if that is not known."""
        if self._descriptor < 0 or _TCP_INFO is None:
            return 0
        # zmq owns the descriptor, and may have closed it by now
        try:
            borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, self._descriptor)
        except OSError:
            return 0
        try:
            info = borrowed.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED.size)
            return int(_BYTES_ACKED.unpack(info)[0])
        except (OSError, struct.error):
            return 0
        finally:
            borrowed.detach()

    def _check_cancelled(self, stop: threading.Event) -> None:
        if stop.is_set() or self._cancelled.is_set():
            raise ServerUnreachable(f"the connection was closed here: {self._where}; open another")

    def _take_events(self) -> None:
        while self._monitor.poll(0):
            self._event()

    def _event(self) -> int:
        """Return the next event. Raises an error if our key or the server's is refused."""
        seen = recv_monitor_message(self._monitor)
        event = int(seen["event"])
        if event == zmq.EVENT_CONNECTED:
            self._descriptor = int(seen["value"])
        elif event == zmq.EVENT_DISCONNECTED:
            self._proven, self._descriptor = False, -1
        elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.reached = self._proven = True
            self._unproved = False
            self.links += 1
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.reached = False
            raise ServerUnreachable(
                f"{self._where} does not know this key: {self._keys.public.decode()}; ask its "
                "operator to allow this public key and to reload it"
            )
        elif event & _FAILED and not self._unproved:
            self._unproved = True
            self._try_other_key()
        return event

    def _try_other_key(self) -> None:
        """Raise ConfigError if the server proves the key that belongs to the other server."""
        if self.reached or self._other is None:
            return
        trial = self._dealer(self._other.public_key)
        # both events show that the server has this key: it read our handshake and judged our key
        proved = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        monitor = trial.get_monitor_socket(proved | _FAILED)
        try:
            trial.connect(self._server.address)
            exchanged = (
                monitor.poll(int(min(TRIAL_S, self._timeout_s) * 1000))
                and int(recv_monitor_message(monitor)["event"]) & proved
            )
        finally:
            trial.disable_monitor()
            trial.close()
        if exchanged:
            raise ConfigError(
                f"{self._where} has the key of the other server here: "
                f"{self._other.fingerprint}; exchange the public keys of [s0] and [s1], or "
                "their addresses"
            )

    def _no_answer(self, op: str) -> ServerUnreachable:
        if self._proven:
            return ServerUnreachable(
                f"{self._where} did not answer {op!r}: no answer within {self._timeout_s:g} s; "
                "see its log, or raise reply_timeout_s"
            )
        if self._unproved:
            return ServerUnreachable(
                f"{self._where} can be reached, but has not proved its key within "
                f"{self._timeout_s:g} s: {self._server.fingerprint}; compare this fingerprint "
                "with the server's operator, and check the address here"
            )
        return ServerUnreachable(
            f"{self._where} could not be reached: no answer within {self._timeout_s:g} s; start "
            "it, or correct its address here"
        )


class Limit:
    """The time that a wait may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())


def connect(
    config: ClientConfig,
    keys: KeyPair,
    timeout_s: float = inf,
    report: Report = lambda text: None,
) -> tuple[Connection, Connection]:
    """Return new connections to S0 and S1, whose answers take at most `timeout_s`."""
    limit_s = min(config.reply_timeout_s, timeout_s)
    shared = config.cohort, config.socks_proxy
    return (
        Connection("S0", config.s0, keys, limit_s, config.s1, report, *shared),
        Connection("S1", config.s1, keys, limit_s, config.s0, report, *shared),
    )


@functools.cache
def _context_of(pid: int) -> "zmq.Context[Any]":
    """Return the context of this process, which all its connections share."""
    context: zmq.Context[Any] = zmq.Context()
    # by default 1023, which is 170 clients
    context.max_sockets = context.get(zmq.SOCKET_LIMIT)
    return context


def pauses(first: float = PAUSE_S, longest: float = LONGEST_PAUSE_S) -> Iterator[float]:
    """Yield the pauses between attempts, each twice as long as the one before, up to a limit."""
    pause = min(first, longest)
    while True:
        yield pause
        pause = min(2 * pause, longest)


def check_descriptors(count: int, what: str) -> None:
    """Raise NoSocket unless this process can open so many more descriptors, which `what` needs.

    libzmq ends the whole process where a new context finds none.
    """
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        raise NoSocket(
            f"{what} needs {count} descriptors, more than this process can open: {len(opened)} "
            f"({error.strerror}); close unused files, or raise the limit (ulimit -n)"
        ) from error
    finally:
        for descriptor in opened:
            os.close(descriptor)
