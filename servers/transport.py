"""Sockets: zmq with CURVE and an allow-list on every port, and the streams between the two servers.

The servers share one TCP port, which S1 binds. Each stream on it (control, the lanes of a session) is a DEALER at both
ends with the stream's name as its routing id, so that lane code is the same at both:

    S0: DEALER name --tcp, CURVE--> ROUTER (S1's port) <-zmq.proxy-> ROUTER <--inproc-- DEALER name :S1

The proxy's threads are libzmq's own and never hold the GIL. Nothing here reads what it carries.
"""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

import zmq
from zmq.auth.thread import ThreadAuthenticator

from securemedian.mpc.errors import ChannelClosed, ChannelTimeout, ConfigError
from securemedian.mpc.wire import Part
from securemedian.servers import logs
from securemedian.settings.keys import KeyPair

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

PEER_DOMAIN, CLIENT_DOMAIN = "peer", "clients"
PEER_MESSAGE_BYTES = (
    1 << 30
)  # far above any message of the protocol, whose size `ProtocolParams` bounds
LINGER_MS = 500  # for last words when a server stops
HEARTBEAT_MS, HEARTBEAT_LIMIT_MS = (
    1000,
    10_000,
)  # zmq's own, below the messages; any traffic counts as a sign of life
SLICE_MS = 50  # how often a waiting lane looks whether it has been closed
QUEUED_REQUESTS = 4  # a caller's unread requests; more wait at the caller, so memory stays bounded


class _AllowList:
    """Which public keys may use a port; zmq.auth asks for each connection. A refused key is logged once."""

    def __init__(self, keys: Collection[str]) -> None:
        self._keys = {key.encode() for key in keys}
        self._refused: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        if key in self._keys:
            return True
        if key not in self._refused:
            self._refused.add(key)
            logs.event("key-refused", logging.WARNING, port=domain, key=key.decode())
        return False


def authenticate(context: Context, allowed: Mapping[str, Collection[str]]) -> ThreadAuthenticator:
    """Start the context's allow-lists, one for each domain (a port's name). Stop it at the end."""
    authenticator = ThreadAuthenticator(context)
    for domain, keys in allowed.items():
        authenticator.configure_curve_callback(domain, _AllowList(keys))
    authenticator.start()
    return authenticator


def _serve_curve(socket: Socket, keys: KeyPair, domain: str) -> None:
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.zap_domain = domain.encode()


def _bind(socket: Socket, endpoint: str) -> None:
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot listen at {endpoint}: {zmq.strerror(error.errno or 0)}"
        ) from error


class ClientPort:
    """Where clients and the coordinator ask. A caller is known by the key it proved, whatever its message says."""

    def __init__(
        self, context: Context, keys: KeyPair, endpoint: str, max_message_bytes: int
    ) -> None:
        self.socket = context.socket(zmq.ROUTER)
        _serve_curve(self.socket, keys, CLIENT_DOMAIN)
        self.socket.maxmsgsize = max_message_bytes
        self.socket.rcvhwm = QUEUED_REQUESTS
        self.socket.linger = LINGER_MS
        _bind(self.socket, endpoint)

    def recv(self) -> tuple[bytes, str, list[bytes]] | None:
        """The next request, (return address, public key, parts), or None if there is none."""
        try:
            address, *frames = self.socket.recv_multipart(zmq.DONTWAIT, copy=False)
        except zmq.Again:
            return None
        return address.bytes, str(address.get("User-Id")), [frame.bytes for frame in frames]

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
            # a ROUTER drops what exceeds a high-water mark; the protocol's own turns bound what is on its way
            socket.sndhwm = socket.rcvhwm = 0
            # a restarted S0 takes its names over from the connection that zmq has not yet given up
            socket.router_handover = True
            socket.linger = LINGER_MS
        _serve_curve(front, self._keys, PEER_DOMAIN)
        front.maxmsgsize = self._max_message_bytes
        _bind(front, endpoint)
        self._inside = f"inproc://{id(self)}"
        back.bind(self._inside)
        bound = front.getsockopt_string(zmq.LAST_ENDPOINT)
        threading.Thread(target=_proxy, args=(front, back), name="peer-proxy", daemon=True).start()
        return bound

    def stream(self, name: str, keep: bool = True) -> Socket:
        """Our end of the stream `name`. S1 makes its end first: what reaches S1's port before is lost.

        Without `keep`, what cannot be sent at once is refused and not kept for when the peer is there.
        """
        socket = self._context.socket(zmq.DEALER)
        socket.routing_id = name.encode()
        socket.immediate = not keep
        socket.sndhwm = socket.rcvhwm = 0
        socket.linger = LINGER_MS
        # a connection that S1 has given up, or a firewall forgotten, is noticed and made anew
        socket.heartbeat_ivl, socket.heartbeat_timeout = HEARTBEAT_MS, HEARTBEAT_LIMIT_MS
        if self._party == 0:
            socket.curve_publickey, socket.curve_secretkey = self._keys.public, self._keys.secret
            socket.curve_serverkey = self._peer_key
            socket.maxmsgsize = self._max_message_bytes
            socket.reconnect_ivl, socket.reconnect_ivl_max = 100, 1000
            # a session's lanes may be idle for hours between rounds
            socket.tcp_keepalive, socket.tcp_keepalive_idle = 1, 60
            socket.connect(self.endpoint)
        else:
            socket.connect(self._inside)
        return socket

    def lane(self, session_id: bytes, lane: int, timeout_s: float) -> "ZmqLink":
        """Our end of one lane of a session."""
        return ZmqLink(self.stream(f"{session_id.hex()}/{lane}"), timeout_s)


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
        """Once, first of all: S0 greets and S1 waits for it, for S1's port knows no way to S0's socket before."""
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
        """The next message, copied: zmq's buffers are not aligned for the kernels."""
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
