"""Sockets: zmq with CURVE and an allow-list on every port, and the streams between the two servers.

The servers share one TCP port, which S1 binds. Each stream on it (control, the lanes of a session)
is a DEALER at both ends with the stream's name as its routing id, so that both ends run the same
code:

    S0: DEALER name --tcp, CURVE--> ROUTER (S1's port) <-zmq.proxy-> ROUTER
    S1: DEALER name --inproc--> the second ROUTER

The proxy's threads are libzmq's own and never hold the GIL. Nothing here reads what it carries.
"""

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from securemedian.mpc import wire
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    ConfigError,
    FrameError,
    SecureMedianError,
)
from securemedian.mpc.protocol import ProtocolParams
from securemedian.mpc.wire import Part
from securemedian.servers import logs
from securemedian.settings.keys import KeyPair

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

PEER_DOMAIN, CLIENT_DOMAIN = "peer", "clients"
# For last words when a server stops
LINGER_MS = 500
# A connection that has not proved a key within this ends. Until then it holds what it has sent.
HANDSHAKE_MS = 5000
# zmq's own signs of life on the streams between the servers, below the messages
HEARTBEAT_MS, HEARTBEAT_LIMIT_MS = 1000, 10_000
# The same for clients. Bytes of an unfinished message are no sign of life for zmq: the limit is
# also one for a single upload, and therefore long.
CLIENT_HEARTBEAT_MS, CLIENT_HEARTBEAT_LIMIT_MS = 60_000, 1_800_000
# TCP's own signs of life end the connections of hosts that vanished, within two minutes
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 15, 4
# Within this libzmq has begun to connect. It goes on by itself if that takes longer.
CONNECT_MS = 100
# How often a waiting lane looks whether it has been closed
SLICE_MS = 50
# Unread requests of one connection; more wait at the caller
QUEUED_REQUESTS = 4
# A request is a header and its arrays, of which no request has more than one.
MAX_REQUEST_PARTS = 8
# Refused keys that are remembered, so that each is logged once, and log lines per minute
REFUSED_KEYS, REFUSALS_PER_MINUTE = 1024, 10

# The peer's longest message is the reply of a comparison's leaves, 31 bytes per 64-bit comparison,
# or the corrections of a block of OTs, 2 MB. Twice that; and the header of a control message is
# within the second figure.
PEER_BYTES_PER_COMPARISON = 64
PEER_BYTES = 4 << 20


def peer_message_limit(protocol: ProtocolParams) -> int:
    """Return the most bytes that one message of the peer may have: `batch` bounds all of them.

    The two servers' chunks hold as many comparisons as the smaller `batch` of both allows.
    """
    return PEER_BYTES + PEER_BYTES_PER_COMPARISON * protocol.batch


class _AllowList:
    """The public keys that may use a port; zmq.auth asks for each connection.

    A refused key is logged once, as far as memory (`REFUSED_KEYS`) and the log
    (`REFUSALS_PER_MINUTE`) have room: anybody can make keys, as many as they like.
    """

    def __init__(self, keys: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = {key.encode() for key in keys}
        # in the order in which they were last seen
        self._refused: dict[bytes, None] = {}
        self._clock = clock
        self._minute_ends, self._lines, self._unlogged = float("-inf"), 0, 0

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
            self._log(domain, key)
        return False

    def _log(self, domain: str, key: bytes) -> None:
        if self._clock() >= self._minute_ends:
            self._minute_ends, self._lines = self._clock() + 60.0, 0
        if self._lines == REFUSALS_PER_MINUTE:
            self._unlogged += 1
            return
        unlogged, self._unlogged = self._unlogged, 0
        self._lines += 1
        logs.event("key-refused", logging.WARNING, port=domain, key=key.decode(), unlogged=unlogged)


def authenticate(context: Context, allowed: Mapping[str, Collection[str]]) -> ThreadAuthenticator:
    """Start the context's allow-lists, one for each domain (a port's name). Stop it at the end.

    Without it the ports let nobody in.
    """
    authenticator = ThreadAuthenticator(context)
    for domain, keys in allowed.items():
        authenticator.configure_curve_callback(domain, _AllowList(keys))
    authenticator.start()
    return authenticator


def _serve_curve(socket: Socket, keys: KeyPair, domain: str) -> None:
    """Prepare a socket that `authenticate` guards. Call it before the socket is bound."""
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.zap_domain = domain.encode()
    # otherwise CURVE lets every key in when the authenticator is gone
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = HANDSHAKE_MS


def _keep_alive(socket: Socket) -> None:
    """Let TCP find out that the other host has vanished."""
    socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl, socket.tcp_keepalive_cnt = KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES


def _connect(socket: Socket, endpoint: str) -> None:
    """Connect, and wait until libzmq's thread has opened the connection's descriptor, or failed."""
    begun = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED
    monitor = socket.get_monitor_socket(begun)
    socket.connect(endpoint)
    monitor.poll(CONNECT_MS)
    socket.disable_monitor()


def _bind(socket: Socket, endpoint: str) -> None:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot listen at {endpoint}: {zmq.strerror(error.errno or 0)}"
        ) from error


def _trim_memory() -> None:
    """Return what the C library has kept of freed memory to the system, where it can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class ClientPort:
    """Where clients and the coordinator ask.

    A caller is known by the key it proved, whatever its message says. libzmq puts a message of
    several parts together before anybody sees it, and bounds each part but not their number: what
    callers on the allow-list can make it hold is bounded by the memory of the process alone.
    """

    def __init__(
        self, context: Context, keys: KeyPair, endpoint: str, max_message_bytes: int
    ) -> None:
        self._max_message_bytes = max_message_bytes
        # `send` needs pyzmq's collector of frames that are not copied. The first such frame starts
        # it: now, while there are descriptors for its sockets, and no other thread.
        zmq.Frame(b"first", copy=False)
        self.socket = context.socket(zmq.ROUTER)
        _serve_curve(self.socket, keys, CLIENT_DOMAIN)
        _keep_alive(self.socket)
        self.socket.heartbeat_ivl = CLIENT_HEARTBEAT_MS
        self.socket.heartbeat_timeout = CLIENT_HEARTBEAT_LIMIT_MS
        self.socket.maxmsgsize = max_message_bytes
        self.socket.rcvhwm = QUEUED_REQUESTS
        self.socket.linger = LINGER_MS
        _bind(self.socket, endpoint)

    def recv(self) -> tuple[bytes, str, list[bytes]] | None:
        """Return the next request, (return address, public key, parts), or None if there is none.

        A request that is too long is freed part by part, and answered here with a FrameError.
        """
        try:
            frame = address = self.socket.recv(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        parts: list[bytes] = []
        number = total = 0
        # the parts of a message arrive together: none of these waits
        while frame.more:
            frame = self.socket.recv(copy=False)
            number, total = number + 1, total + len(frame)
            if number > MAX_REQUEST_PARTS or total > self._max_message_bytes:
                parts.clear()
            else:
                parts.append(frame.bytes)
        key = str(address.get("User-Id"))
        if number > MAX_REQUEST_PARTS or total > self._max_message_bytes:
            self._refuse(address.bytes, key, number, total)
            return None
        return address.bytes, key, parts

    def _refuse(self, address: bytes, key: str, number: int, total: int) -> None:
        reason = (
            f"a request of {number} parts and {total:,} bytes: at most {MAX_REQUEST_PARTS} parts "
            f"and {self._max_message_bytes:,} bytes (max_message_bytes) are taken"
        )
        if total > self._max_message_bytes:
            _trim_memory()
        logs.event("request-refused", logging.WARNING, key=key, code=FrameError.code, reason=reason)
        fields = {"id": 0, "code": FrameError.code, "message": reason}
        self.send(address, wire.pack("error", fields))

    def send(self, address: bytes, parts: Sequence[Part]) -> None:
        """Answer. A caller that is gone, or does not read, loses its answer."""
        # Not copied, so that a model which many callers download lies in memory once. pyzmq's
        # collector of such frames must not be started by two threads at once (it then blocks for
        # good after a thousand frames), so only a daemon's loop sends like this: here.
        self.socket.send_multipart([address, *parts], copy=False)

    def close(self) -> None:
        self.socket.close()


class PeerPort:
    """The streams to the other server. S1 (party 1) binds `endpoint`, S0 connects to it."""

    def __init__(
        self,
        context: Context,
        party: int,
        keys: KeyPair,
        endpoint: str,
        peer_key: str,
        max_message_bytes: int,
    ) -> None:
        self._context, self._party, self._keys = context, party, keys
        self._peer_key, self._max_message_bytes = peer_key.encode(), max_message_bytes
        self.endpoint = endpoint if party == 0 else self._bind_proxy(endpoint)

    def _bind_proxy(self, endpoint: str) -> str:
        front, back = self._context.socket(zmq.ROUTER), self._context.socket(zmq.ROUTER)
        for socket in (front, back):
            # a ROUTER drops what exceeds a high-water mark; the protocol's turns bound what is on
            # its way
            socket.sndhwm = socket.rcvhwm = 0
            # a restarted S0 takes its names over from the connection that zmq has not yet given up
            socket.router_handover = True
            socket.linger = LINGER_MS
        _serve_curve(front, self._keys, PEER_DOMAIN)
        _keep_alive(front)
        front.maxmsgsize = self._max_message_bytes
        _bind(front, endpoint)
        self._inside = f"inproc://{id(self)}"
        back.bind(self._inside)
        bound = front.getsockopt_string(zmq.LAST_ENDPOINT)
        threading.Thread(target=_proxy, args=(front, back), name="peer-proxy", daemon=True).start()
        return bound

    def stream(self, name: str, keep: bool = True, silent_ms: int = HEARTBEAT_LIMIT_MS) -> Socket:
        """Open our end of the stream `name`. S1 goes first: what reaches S1's port before is lost.

        Without `keep`, what cannot be sent at once is refused and not kept for when the peer is
        there. A connection that brings no whole message and no answer to a heartbeat for
        `silent_ms` is made anew. Raises SecureMedianError if no socket can be had.
        """
        try:
            socket = self._context.socket(zmq.DEALER)
            self._set_up(socket, name, keep, silent_ms)
        except zmq.ZMQError as error:
            raise SecureMedianError(
                f"this server cannot open a socket: {zmq.strerror(error.errno or 0)}. "
                "Limit who can connect, or raise LimitNOFILE (docs/deploying.md)"
            ) from error
        return socket

    def _set_up(self, socket: Socket, name: str, keep: bool, silent_ms: int) -> None:
        socket.routing_id = name.encode()
        socket.immediate = not keep
        socket.sndhwm = socket.rcvhwm = 0
        socket.linger = LINGER_MS
        # a connection that S1 has given up, or a firewall forgotten, is noticed and made anew
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, silent_ms
        if self._party == 0:
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.curve_serverkey = self._peer_key
            socket.maxmsgsize = self._max_message_bytes
            socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 1000
            # a session's lanes may be idle for hours between rounds
            _keep_alive(socket)
            _connect(socket, self.endpoint)
        else:
            socket.connect(self._inside)

    def lane(self, session_id: bytes, lane: int, timeout_s: float) -> "ZmqLink":
        """Open our end of one lane of a session."""
        # a long message on a slow link may take as long as `timeout_s` allows, and is no silence
        silent_ms = max(HEARTBEAT_LIMIT_MS, int(timeout_s * 1000))
        return ZmqLink(self.stream(f"{session_id.hex()}/{lane}", silent_ms=silent_ms), timeout_s)


def _proxy(front: Socket, back: Socket) -> None:
    try:
        zmq.proxy(front, back)
    except zmq.ContextTerminated:
        front.close()
        back.close()


class ZmqLink:
    """A stream as the blocking `mpc.channel.Link`. `close`, from any thread, ends every wait."""

    def __init__(self, socket: Socket, timeout_s: float) -> None:
        self._socket, self._timeout_s = socket, timeout_s
        self._closed = threading.Event()
        socket.sndtimeo = int(timeout_s * 1000)

    def meet(self, party: int) -> None:
        """Greet (S0) or wait for the greeting (S1), once and before all else.

        S1's port knows no way to S0's socket before.
        """
        if party == 0:
            self.send([b"lane"])
        else:
            self.recv()

    def send(self, parts: Sequence[Part]) -> None:
        """Send one message, copied: `ClientPort.send` says what several threads must not do."""
        self._check()
        try:
            self._socket.send_multipart(parts)
        except zmq.Again:
            raise ChannelTimeout(
                f"the other server took nothing for {self._timeout_s:g} s"
            ) from None

    def recv(self) -> list[bytes]:
        """Return the next message, copied: zmq's buffers are not aligned for the kernels."""
        deadline = time.monotonic() + self._timeout_s
        while not self._socket.poll(SLICE_MS):
            self._check()
            if time.monotonic() > deadline:
                raise ChannelTimeout(f"the other server sent nothing for {self._timeout_s:g} s")
        self._check()
        return self._socket.recv_multipart()

    def _check(self) -> None:
        if self._closed.is_set():
            raise ChannelClosed("the lane was closed: the round has ended")

    def close(self) -> None:
        self._closed.set()

    def release(self) -> None:
        """Free the socket, once no thread uses it."""
        self._socket.close(linger=0)
