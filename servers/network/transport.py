"""The sockets: zmq with CURVE and an allow-list on every port, and the streams between the servers.

The servers share one TCP port, which S1 binds. Each stream on it (control, and the lanes of a
session) is a DEALER at both ends, so that the code of a lane is the same at both. Its routing id is
the stream's name:

    S0: DEALER name --tcp, CURVE--> ROUTER, which is S1's port
                                      |
                                  zmq.proxy
                                      |
    S1: DEALER name --inproc------> ROUTER

The proxy's threads are libzmq's own and never hold the GIL. No stream looks at its messages.
"""

import errno
import logging
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from socket import create_connection
from typing import Protocol

import zmq
from zmq.auth.thread import ThreadAuthenticator

from securemedian.common.addresses import connects_ipv6, host_of, listens_ipv6, ports_of
from securemedian.common.keys import KeyPair
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    ConfigError,
    FrameError,
    LocalProtocolError,
    NoSocket,
    PeerProtocolError,
    SecureMedianError,
    cut,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.wire import Part
from securemedian.servers import allocator, logs
from securemedian.servers.network.sealed import (
    CONNECT_S,
    HALF_BYTES,
    KEEPALIVE_IDLE_S,
    KEEPALIVE_INTERVAL_S,
    KEEPALIVE_PROBES,
    TOKEN_BYTES,
    SealedLink,
    SealedPort,
)

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

# the names of the ports, for zmq's authenticator and the log
PEER_DOMAIN, CLIENT_DOMAIN = "peer", "clients"
# how long the last messages may take when a server stops
LINGER_MS = 500
# how long a connection may take to prove a key; until it ends it holds what it has sent
HANDSHAKE_MS = 5000
# zmq's heartbeats on the streams between the servers
HEARTBEAT_MS, HEARTBEAT_LIMIT_MS = 1000, 10_000
# The same for clients. zmq does not count the bytes of an unfinished message as a sign of life.
# So this is also the time limit of a single upload, and therefore long.
CLIENT_HEARTBEAT_MS, CLIENT_HEARTBEAT_LIMIT_MS = 60_000, 1_800_000
# how long to wait for libzmq to begin to connect; if that takes longer, it goes on by itself
CONNECT_MS = 100
# how many random ports are tried per port of the range: a single free one is then missed once in
# 20,000 times
TRIES_PER_PORT = 10
# how S0 greets on a lane and leaves it on CURVE, and how it says that S1's first record came
GREETING, SEALED = b"lane", b"sealed"
# S1's answer to a greeting with a half of the keys: its port, a token, and its own half
_OFFER = struct.Struct(f">H{TOKEN_BYTES}s{HALF_BYTES}s")
# how long new lanes stay on CURVE after a sealed one could not be made, or broke
CURVE_S = 60.0
# how often a waiting lane checks whether it has been closed
SLICE_MS = 50
# how many unread requests of a caller are held here; more wait at the caller, so that memory stays
# bounded
QUEUED_REQUESTS = 4
# How many answers wait for a caller that does not read. A caller that asks one thing at a time has
# one; zmq counts what was read in steps of half of these.
QUEUED_ANSWERS = 8
# how many parts a request has besides whole pieces: a header and the ends of arrays
MAX_REQUEST_PARTS = 8
# how many refused keys are remembered, so that each is logged once
REFUSED_KEYS = 1024
# the answer to a caller after any other exception, which the log has
DEFECT = LocalProtocolError("a defect in this server: see its log")


class _AllowList:
    """The public keys that may use a port. zmq.auth calls it for each connection.

    A refused key is logged once, as far as memory (`REFUSED_KEYS`) and the log have room, because
    anybody can make as many keys as they like.
    """

    def __init__(self, keys: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = {key.encode() for key in keys}
        # a set, in the order in which the keys were last seen
        self._refused: dict[bytes, None] = {}
        self._log = logs.BoundedLog(clock)

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether `key` may use the port `domain`."""
        if key in self._keys:
            return True
        known = key in self._refused
        self._refused.pop(key, None)
        self._refused[key] = None
        if len(self._refused) > REFUSED_KEYS:
            del self._refused[next(iter(self._refused))]
        if not known:
            self._log.event("key-refused", domain, port=domain, key=key.decode())
        return False


def authenticate(context: Context, allowed: Mapping[str, Collection[str]]) -> ThreadAuthenticator:
    """Start and return the context's authenticator, with an allow-list per port (`domain`).

    The caller stops it at the end. Without it the ports let nobody in.
    """
    authenticator = ThreadAuthenticator(context)
    for domain, keys in allowed.items():
        allow(authenticator, domain, keys)
    authenticator.start()
    return authenticator


def allow(authenticator: ThreadAuthenticator, domain: str, keys: Collection[str]) -> None:
    """Accept new connections to a port only from these keys; existing ones stay open."""
    authenticator.configure_curve_callback(domain, _AllowList(keys))


def _serve_curve(socket: Socket, keys: KeyPair, domain: str) -> None:
    """Let `authenticate` guard a socket that is not bound yet."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.zap_domain = domain.encode()
    # otherwise CURVE would let every key in when the authenticator is gone
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = HANDSHAKE_MS


def _keep_alive(socket: Socket) -> None:
    """Let TCP detect that the other host has vanished."""
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES


def _connect(socket: Socket, endpoint: str) -> None:
    """Connect, and wait until libzmq has opened a descriptor for the connection or failed."""
    begun = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED
    monitor = socket.get_monitor_socket(begun)
    socket.ipv6 = connects_ipv6(endpoint)
    socket.connect(endpoint)
    monitor.poll(CONNECT_MS)
    socket.disable_monitor()


def _bind(socket: Socket, endpoint: str) -> None:
    """Bind a socket to tcp://HOST:PORT, or to any free port of tcp://HOST:FIRST-LAST.

    Raises ConfigError, or NoSocket if none of several ports is free.
    """
    host, _, port = endpoint.rpartition(":")
    socket.ipv6 = listens_ipv6(endpoint)
    try:
        if "-" in port:
            ports = ports_of(port)
            tries = TRIES_PER_PORT * len(ports)
            socket.bind_to_random_port(host, ports.start, ports.stop, max_tries=tries)
        else:
            socket.bind(endpoint)
    except zmq.ZMQBindError as error:
        raise NoSocket(f"no free port: {endpoint}; give [engine] ports more of them") from error
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot listen on this address: {endpoint} ({zmq.strerror(error.errno or 0)}); "
            "choose another"
        ) from error


def take_number(message: wire.Message) -> int:
    """Take the caller's number for its request out of the fields, and return it."""
    number = message.fields.pop("id", None)
    if type(number) is not int:
        raise FrameError("a request needs `id`, a whole number that its answer repeats")
    return number


def error_frame(number: int, error: SecureMedianError) -> list[Part]:
    """Return the answer that refuses a request; 0 is the number of one that was not read."""
    fields = {"id": number, "code": error.code, "message": cut(str(error))}
    return wire.pack("error", fields)


class ClientPort:
    """The port for clients and the coordinator.

    A caller is identified by the key of its connection, never by its message. libzmq assembles a
    message of several parts before it delivers it. It limits each part, not their number. So
    only the memory of the process limits how much callers on the allow-list can make it hold.
    """

    def __init__(
        self, context: Context, keys: KeyPair, endpoint: str, max_message_bytes: int
    ) -> None:
        self._max_message_bytes = max_message_bytes
        self._max_parts = MAX_REQUEST_PARTS + max_message_bytes // wire.PIECE_BYTES
        self._log = logs.BoundedLog()
        # `send` needs pyzmq's collector of frames that are not copied, which the first such frame
        # starts. It is started now, while there are descriptors for its sockets and no other
        # threads.
        zmq.Frame(b"first", copy=False)
        self.socket = context.socket(zmq.ROUTER)
        _serve_curve(self.socket, keys, CLIENT_DOMAIN)
        _keep_alive(self.socket)
        self.socket.heartbeat_ivl = CLIENT_HEARTBEAT_MS
        self.socket.heartbeat_timeout = CLIENT_HEARTBEAT_LIMIT_MS
        self.socket.maxmsgsize = min(wire.MAX_PART_BYTES, max_message_bytes)
        self.socket.rcvhwm, self.socket.sndhwm = QUEUED_REQUESTS, QUEUED_ANSWERS
        # otherwise an answer beyond that would be dropped, and nobody told
        self.socket.router_mandatory = True
        self.socket.linger = LINGER_MS
        _bind(self.socket, endpoint)

    def recv(self) -> tuple[bytes, str, list[Part]] | None:
        """Return the next request as (return address, public key, parts), or None.

        The parts are zmq's own buffers, not copied. A request that is too long is freed part by
        part, and answered here with a FrameError.
        """
        try:
            frame = address = self.socket.recv(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        parts: list[Part] = []
        number = total = 0
        # The parts of a message arrive together, so that none of these calls waits.
        while frame.more:
            frame = self.socket.recv(copy=False)
            number, total = number + 1, total + len(frame)
            if number > self._max_parts or total > self._max_message_bytes:
                parts.clear()
            else:
                parts.append(frame.buffer.toreadonly())
        key = str(address.get("User-Id"))
        if number > self._max_parts or total > self._max_message_bytes:
            self._refuse(address.bytes, key, number, total)
            return None
        return address.bytes, key, parts

    def _refuse(self, address: bytes, key: str, number: int, total: int) -> None:
        reason = (
            f"a request of {number} parts and {total:,} bytes: at most {self._max_parts} parts "
            f"and {self._max_message_bytes:,} bytes (max_message_bytes) are taken"
        )
        if total > self._max_message_bytes:
            allocator.give_back()
        self._log.event("request-refused", key, key=key, code=FrameError.code, reason=reason)
        with suppress(ChannelTimeout):
            self.send(address, error_frame(0, FrameError(reason)))

    def send(self, address: bytes, parts: Sequence[Part]) -> None:
        """Send an answer. It is lost if the caller is gone.

        Raises ChannelTimeout, and drops it, if the caller has not read the ones before.
        """
        # The parts are not copied, so that a model which many callers download is in memory once.
        # Two threads must not start pyzmq's collector of such frames at once (it then blocks after
        # a thousand frames), so only the daemon's loop sends in this way.
        for _ in range(2):
            try:
                self.socket.send_multipart([address, *parts], zmq.DONTWAIT, copy=False)
            except zmq.Again:
                # zmq seldom looks by itself at what has been read
                self.socket.getsockopt(zmq.EVENTS)
            except zmq.ZMQError as error:
                if error.errno != errno.EHOSTUNREACH:
                    raise
                return
            else:
                return
        raise ChannelTimeout(
            f"{QUEUED_ANSWERS} answers wait for this caller, who asks and does not read"
        )

    def close(self) -> None:
        self.socket.close()


class PeerPort:
    """The port of the streams to the other server: S1 binds `endpoint`, and S0 connects to it."""

    def __init__(
        self,
        context: Context,
        party: int,
        keys: KeyPair,
        endpoint: str,
        peer_key: str,
        aes: bool = False,
        aes_port: int | None = None,
    ) -> None:
        """Open the port. With `aes`, lanes leave CURVE for AES-GCM if S1 has an `aes_port`.

        0 is any free port. Raises ConfigError or NoSocket.
        """
        self._context, self._party, self._keys = context, party, keys
        self._peer_key = peer_key.encode()
        self.endpoint = endpoint if party == 0 else self._bind_proxy(endpoint)
        self._aes = aes
        self.sealed: SealedPort | None = None
        # until when S0 keeps its new lanes on CURVE
        self._curve_until = 0.0
        if aes and aes_port is not None:
            try:
                self.sealed = SealedPort(host_of(endpoint), aes_port, listens_ipv6(endpoint))
            except OSError as error:
                raise ConfigError(
                    f"cannot listen at [peer] aes_port {aes_port}: {error}"
                ) from error

    def _bind_proxy(self, endpoint: str) -> str:
        front, back = self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER)
        for socket in (front, back):
            # A ROUTER drops messages beyond a high-water mark. How many are on their way is
            # limited by the protocol, in which the servers take turns.
            socket.sndhwm = socket.rcvhwm = 0
            # A restarted S0 takes its names over from a connection that zmq has not given up yet.
            socket.router_handover = True
            socket.linger = LINGER_MS
        _serve_curve(front, self._keys, PEER_DOMAIN)
        _keep_alive(front)
        front.maxmsgsize = wire.MAX_PART_BYTES
        _bind(front, endpoint)
        self._inside = f"inproc://{id(self)}"
        back.bind(self._inside)
        bound = front.getsockopt_string(zmq.LAST_ENDPOINT)
        threading.Thread(target=_proxy, args=(front, back), name="peer-proxy", daemon=True).start()
        return bound

    def stream(self, name: str, keep: bool = True, silent_ms: int = HEARTBEAT_LIMIT_MS) -> Socket:
        """Open our end of the stream `name`, and return its socket.

        S1 opens its end first: what reaches S1's port before that is lost. Without `keep`, a
        message that cannot be sent at once is refused; with it, zmq keeps it until the peer is
        connected. A connection without a whole message or heartbeat for `silent_ms` is made again.
        Raises NoSocket if none can be opened.
        """
        try:
            socket = self._context.socket(zmq.DEALER)
            self._set_up(socket, name, keep, silent_ms)
        except zmq.ZMQError as error:
            raise NoSocket(
                f"this server cannot open a socket: {zmq.strerror(error.errno or 0)}; limit who "
                "can connect, or raise LimitNOFILE (docs/servers.md)"
            ) from error
        return socket

    def _set_up(self, socket: Socket, name: str, keep: bool, silent_ms: int) -> None:
        socket.routing_id = name.encode()
        socket.immediate = not keep
        socket.sndhwm = socket.rcvhwm = 0
        socket.linger = LINGER_MS
        # A connection that S1 has given up or a firewall has forgotten is detected and made again.
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, silent_ms
        if self._party == 0:
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.curve_serverkey = self._peer_key
            socket.maxmsgsize = wire.MAX_PART_BYTES
            socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 1000
            # The lanes of a session may be idle for hours between rounds.
            _keep_alive(socket)
            _connect(socket, self.endpoint)
        else:
            socket.connect(self._inside)

    def lane(self, session_id: bytes, lane: int, timeout_s: float) -> "Lane":
        """Open our end of one lane of a session."""
        # A long message on a slow link may take up to `timeout_s`, and must not count as silence.
        silent_ms = max(HEARTBEAT_LIMIT_MS, int(timeout_s * 1000))
        socket = self.stream(f"{session_id.hex()}/{lane}", silent_ms=silent_ms)
        return Lane(socket, timeout_s, self)

    @property
    def seals(self) -> bool:
        """Whether S0 asks S1 to seal a new lane."""
        return self._aes and time.monotonic() > self._curve_until

    def keep_curve(self, reason: str) -> None:
        """Keep new lanes on CURVE for a while, because a sealed one could not be made or broke."""
        if self.seals:
            self._curve_until = time.monotonic() + CURVE_S
            logs.event("lanes-on-curve", logging.WARNING, reason=reason, seconds=CURVE_S)

    def close(self) -> None:
        """Close the port for sealed lanes; the rest ends with the context."""
        if self.sealed:
            self.sealed.close()


def _proxy(front: Socket, back: Socket) -> None:
    try:
        zmq.proxy(front, back)
    except zmq.ContextTerminated:
        front.close()
        back.close()


class Bell(Protocol):
    """An open file that becomes readable to end a wait for a message."""

    def fileno(self) -> int: ...


class ZmqLink:
    """A stream as the blocking `mpc.protocols.channel.Link`.

    `close`, which any thread may call, ends every wait.
    """

    def __init__(self, socket: Socket, timeout_s: float) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._closed = threading.Event()
        socket.sndtimeo = int(timeout_s * 1000)

    @property
    def sealed(self) -> bool:
        """Whether the stream has left CURVE."""
        return False

    def meet(self, party: int) -> None:
        """Greet S1 as S0, or wait for the greeting as S1. This is the first call, made once.

        Before the greeting S1's port has no route to S0's socket.
        """
        if party == 0:
            self.send([GREETING])
        else:
            self.recv()

    def send(self, parts: Sequence[Part]) -> None:
        """Send one message, copied: `ClientPort.send` says why several threads need copies.

        Raises ChannelTimeout or ChannelClosed.
        """
        self._check()
        try:
            self._socket.send_multipart(parts)
        except zmq.Again:
            raise ChannelTimeout(
                f"the other server took nothing for {self._timeout_s:g} s"
            ) from None

    def recv(self) -> list[bytes]:
        """Return the next message, copied: zmq's buffers are not aligned for the kernels.

        Raises ChannelTimeout or ChannelClosed.
        """
        return self._recv(time.monotonic() + self._timeout_s)

    def _recv(self, deadline: float) -> list[bytes]:
        while not self._socket.poll(SLICE_MS):
            self._check()
            if time.monotonic() > deadline:
                raise ChannelTimeout(f"the other server sent nothing for {self._timeout_s:g} s")
        self._check()
        return self._socket.recv_multipart()

    def ready(self, wait_s: float, bell: Bell) -> bool:
        """Wait up to `wait_s`, or until the bell rings, and return whether a message is there.

        Raises ChannelClosed.
        """
        self._check()
        poller = zmq.Poller()
        for source in (self._socket, bell.fileno(), *self._others()):
            poller.register(source, zmq.POLLIN)
        return any(source != bell.fileno() for source, _ in poller.poll(int(wait_s * 1000)))

    def _others(self) -> list[int]:
        """Return the descriptors at which messages arrive, too."""
        return []

    def _check(self) -> None:
        if self._closed.is_set():
            raise ChannelClosed("the lane was closed: the round has ended")

    def close(self) -> None:
        """End every wait, now and in future."""
        self._closed.set()

    def release(self) -> None:
        """Free the socket, once no thread uses it."""
        self._socket.close(linger=0)


class Lane(ZmqLink):
    """A lane of a session: sealed, on a connection of its own (`sealed`), or on CURVE.

    It begins on CURVE, over which the servers agree. If its connection breaks it goes on over
    CURVE, and `Channel` finds what was lost, as when libzmq connects again.
    """

    def __init__(self, socket: Socket, timeout_s: float, port: PeerPort) -> None:
        super().__init__(socket, timeout_s)
        self._port = port
        self._sealed: SealedLink | None = None

    @property
    def sealed(self) -> bool:
        return self._sealed is not None

    def meet(self, party: int) -> None:
        """Greet S1 as S0, or wait for the greeting as S1, and agree how the lane is encrypted.

        If S0 can seal, it greets with its half of the keys. S1 answers with its port, a token and
        its own half, or with nothing. S0 connects, and says on CURVE whether S1's first record has
        come. SECURITY: all of this is on CURVE, so a line that is cut leads to CURVE at the least.
        """
        self._sealed = self._ask() if party == 0 else self._offer()
        if self._sealed and self._closed.is_set():
            self._sealed.close()

    def _ask(self) -> SealedLink | None:
        if not self._port.seals:
            super().send([GREETING])
            return None
        mine = os_entropy(HALF_BYTES)
        super().send([GREETING, mine])
        offer = b"".join(super().recv())
        if not offer:
            return None
        if len(offer) != _OFFER.size:
            raise PeerProtocolError(f"S1's offer to seal a lane has {len(offer)} bytes")
        number, token, theirs = _OFFER.unpack(offer)
        sealed = None
        try:
            where = host_of(self._port.endpoint), number
            connection = create_connection(where, CONNECT_S)
            # the connection's buffer is empty, so this does not wait
            connection.sendall(token)
            sealed = SealedLink(connection, 0, (mine, theirs), CONNECT_S)
        except (OSError, SecureMedianError) as error:
            self._port.keep_curve(f"no connection to S1's aes_port {number}: {error}")
        super().send([SEALED if sealed else GREETING])
        return sealed

    def _offer(self) -> SealedLink | None:
        greeting = super().recv()
        if len(greeting) == 1:
            return None
        port = self._port.sealed
        if port is None:
            super().send([b""])
            return None
        token, mine = os_entropy(TOKEN_BYTES), os_entropy(HALF_BYTES)
        with port.lock:
            port.drain()
            super().send([_OFFER.pack(port.number, token, mine)])
            connection = port.accept(token, self._socket)
        sealed = None
        if connection:
            with suppress(OSError, SecureMedianError):
                sealed = SealedLink(connection, 1, (greeting[1], mine), CONNECT_S)
        if super().recv() == [SEALED]:
            if not sealed:
                raise PeerProtocolError("S0 seals a lane for which it has not connected")
            return sealed
        if sealed:
            sealed.release()
        return None

    def send(self, parts: Sequence[Part]) -> None:
        self._check()
        if self._sealed:
            try:
                return self._sealed.send(parts)
            except ChannelClosed as error:
                self._unseal(error)
        super().send(parts)

    def _recv(self, deadline: float) -> list[bytes]:
        while self._sealed:
            if self._sealed.ready(SLICE_MS):
                # a whole message within the limit, as on CURVE
                self._sealed.limit(max(deadline - time.monotonic(), SLICE_MS / 1000))
                try:
                    return self._sealed.recv()
                except ChannelClosed as error:
                    self._unseal(error)
            elif self._socket.poll(0):
                self._unseal(ChannelClosed("the other server goes on over CURVE"))
            elif time.monotonic() > deadline:
                raise ChannelTimeout(f"the other server sent nothing for {self._timeout_s:g} s")
            self._check()
        return super()._recv(deadline)

    def _others(self) -> list[int]:
        return [self._sealed.fileno()] if self._sealed else []

    def _unseal(self, why: ChannelClosed) -> None:
        """Go on over CURVE, unless this end was closed."""
        self._check()
        assert self._sealed is not None
        self._sealed.release()
        self._sealed = None
        self._port.keep_curve(f"a sealed lane broke: {why}")

    def close(self) -> None:
        super().close()
        if sealed := self._sealed:
            sealed.close()

    def release(self) -> None:
        if self._sealed:
            self._sealed.release()
        super().release()
