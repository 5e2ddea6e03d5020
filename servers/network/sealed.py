"""Lanes over TCP connections of their own, which AES-128-GCM encrypts.

AES-GCM costs a tenth of CURVE's cipher on a processor with AES instructions. Each server draws half
of the keys and sends it over the lane's CURVE stream (`transport.Lane`). So nobody else knows the
keys, and each connection has fresh ones. A record carries one part of a message:

    length and flag (4 bytes), AES-GCM of the part, with these 4 bytes as associated data

The flag says that the message goes on. SECURITY: each direction has a key of its own and numbers
its records; the number is the nonce. A record that is changed, repeated, dropped, reordered, sent
back or taken from another lane does not decrypt, and the connection ends.
"""

import hmac
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

import zmq
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import ChannelClosed, ChannelTimeout, SecureMedianError
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.wire import Part
from securemedian.servers import logs

# of a server's half of the keys, and of the token that S0 sends first on a connection, in the clear
HALF_BYTES = TOKEN_BYTES = 32
KEY_BYTES, TAG_BYTES = 16, 16
# The bytes after which a direction takes its next key: RFC 8446 allows six times as many.
REKEY_BYTES = 1 << 36
# the least that a record counts, because a short one uses blocks and a nonce too
RECORD_BYTES = 64
# how long both servers may take to connect a lane
CONNECT_S = 3.0
# TCP keep-alives, which end the connections of vanished hosts within two minutes, and by which
# firewalls remember idle ones
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 60, 15, 4
# the most strangers that may wait at S1's port; one more ends the oldest
PENDING = 16

# S1's first record
_FIRST = [b"lane"]
_HEAD = struct.Struct("<I")
_MORE = 1 << 31


class Records:
    """The records of one direction."""

    def __init__(self, key: bytes) -> None:
        self._number = 0
        self._take(key)

    def _take(self, key: bytes) -> None:
        self._key, self._left = key, REKEY_BYTES
        self._aead = AESGCM(key[:KEY_BYTES])

    def _nonce(self, size: int) -> bytes:
        self._left -= size + RECORD_BYTES
        if self._left < 0:
            self._take(digest("next key of a lane", self._key))
        self._number += 1
        return self._number.to_bytes(12, "big")

    def seal(self, part: Part, more: bool) -> tuple[bytes, bytes]:
        """Return the next record: its head and its encrypted part."""
        head = _HEAD.pack(len(part) | more * _MORE)
        return head, self._aead.encrypt(self._nonce(len(part)), part, head)

    def open(self, head: bytes, sealed: Part) -> bytes:
        """Return the part of the next record. Raises ChannelClosed if this is another record."""
        try:
            return self._aead.decrypt(self._nonce(len(sealed) - TAG_BYTES), sealed, head)
        except InvalidTag:
            raise ChannelClosed("a record of the lane was changed on its way") from None


class SealedLink:
    """A connection that carries a lane: an `mpc.protocols.channel.Link` for one thread.

    A second thread sends what the connection does not take at once, so that `send` never waits.
    """

    def __init__(
        self, connection: socket.socket, party: int, halves: tuple[bytes, bytes], limit_s: float
    ) -> None:
        """Take S0's and S1's halves of the keys, and the limit for one message.

        S1 sends the first record, which shows S0 that both have the same keys. Raises OSError,
        ChannelTimeout or ChannelClosed, and then ends the connection.
        """
        self._connection = connection
        keys = [digest("key of a lane", *halves, sender) for sender in (0, 1)]
        self._out, self._into = Records(keys[party]), Records(keys[1 - party])
        self._buffer = bytearray()
        # the bytes that the second thread has to send, and the reason why nothing more can be sent
        self._rest: deque[memoryview] = deque()
        self._ended: SecureMedianError | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        try:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in (
                (socket.TCP_NODELAY, 1),
                (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
                (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
                (socket.TCP_KEEPCNT, KEEPALIVE_PROBES),
            ):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self.limit(limit_s)
            if party == 1:
                self.send(_FIRST)
            elif self.recv() != _FIRST:
                raise ChannelClosed("the first record of the lane is another")
        except (OSError, SecureMedianError):
            connection.close()
            raise

    def limit(self, limit_s: float) -> None:
        """Set the limit for a message that comes. As with zmq, one that goes has none."""
        self._limit_s = limit_s
        value = struct.pack("@ll", int(limit_s), int(limit_s % 1 * 1e6))
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)

    def fileno(self) -> int:
        """Return the descriptor that is readable when a message, or the end, has come."""
        return self._connection.fileno()

    def ready(self, wait_ms: int) -> bool:
        """Wait up to `wait_ms`, and return whether a message, or the end, has come."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(wait_ms))

    def send(self, parts: Sequence[Part]) -> None:
        """Send a message. Raises ChannelTimeout or ChannelClosed once the connection has ended."""
        for at, part in enumerate(parts):
            head, sealed = self._out.seal(part, at + 1 < len(parts))
            with self._changed:
                if self._ended:
                    raise self._ended
                sent = 0 if self._rest else self._send_now(head, sealed)
                for piece in (memoryview(head)[sent:], memoryview(sealed)[max(0, sent - 4) :]):
                    if piece:
                        self._rest.append(piece)
                if self._rest and not self._thread:
                    self._thread = threading.Thread(target=self._send_rest, daemon=True)
                    self._thread.start()
                self._changed.notify()

    def _send_now(self, *pieces: bytes) -> int:
        """Return how many bytes the connection takes without waiting."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            return self._connection.sendmsg(pieces, (), flags)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _broken(error) from None

    def _send_rest(self) -> None:
        ended: ChannelClosed | None = None
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: self._rest or self._ended)
                if self._ended:
                    return
            try:
                self._connection.sendall(self._rest[0], socket.MSG_NOSIGNAL)
            except OSError as error:
                ended = _broken(error)
            with self._changed:
                self._rest.popleft()
        self.close(ended)

    def recv(self) -> list[bytes]:
        """Return the next message, aligned for the kernels.

        Raises ChannelTimeout or ChannelClosed, and then ends the connection.
        """
        deadline = time.monotonic() + self._limit_s
        parts, more = list[bytes](), _MORE
        try:
            while more:
                head = bytes(self._read(_HEAD.size, deadline))
                (packed,) = _HEAD.unpack(head)
                more, size = packed & _MORE, packed & ~_MORE
                if size > wire.MAX_PART_BYTES:
                    raise ChannelClosed(f"a record of {size:,} bytes came on the lane")
                parts.append(self._into.open(head, self._read(size + TAG_BYTES, deadline)))
        except SecureMedianError as error:
            self.close(error)
            raise
        return parts

    def _read(self, size: int, deadline: float) -> memoryview:
        """Return so many bytes, which the next call overwrites."""
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view, got = memoryview(self._buffer)[:size], 0
        while got < size:
            try:
                count = self._connection.recv_into(view[got:], 0, socket.MSG_WAITALL)
            except BlockingIOError:
                count = -1
            except OSError as error:
                raise _broken(error) from None
            if not count:
                raise ChannelClosed("the lane's connection was cut, or the other server ended it")
            got += count
            # a message may have records without end
            if count < 0 or time.monotonic() > deadline:
                raise ChannelTimeout("no whole message came within the limit")
        return view

    def close(self, why: SecureMedianError | None = None) -> None:
        """End every wait, now and in future. Any thread may call this."""
        with self._changed:
            self._ended = self._ended or why or ChannelClosed("the lane was closed")
            self._changed.notify()
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the connection, once no other thread sends or receives."""
        self.close()
        if self._thread:
            self._thread.join()
        with self._changed:
            self._connection.close()


def _broken(error: OSError) -> ChannelClosed:
    return ChannelClosed(f"the lane's connection broke: {error}")


class SealedPort:
    """S1's TCP port for lanes, where connections wait unread until a lane meets.

    Strangers can hold `PENDING` connections for `CONNECT_S`, with fewer than `TOKEN_BYTES` read,
    and so keep a new lane on CURVE. They cannot disturb a sealed lane.
    """

    def __init__(self, host: str, port: int, ipv6: bool) -> None:
        """Listen at `host`, "" for all addresses, as zmq does. Raises OSError."""
        both = host in ("", "::") and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or (host and ipv6) else socket.AF_INET
        self._listener = socket.create_server(
            (host, port), family=family, backlog=PENDING, dualstack_ipv6=both
        )
        self._listener.setblocking(False)
        self.number: int = self._listener.getsockname()[1]
        # one lane meets at a time
        self.lock = threading.Lock()
        self._log = logs.BoundedLog()

    def drain(self) -> None:
        """Refuse the connections that came before a lane had a token."""
        with suppress(OSError):
            for _ in range(2 * PENDING):
                self._refuse(self._listener.accept()[0])

    def accept(self, token: bytes, stream: "zmq.Socket[bytes]") -> socket.socket | None:
        """Return the connection whose first bytes are `token`.

        Returns None if none comes within `CONNECT_S`, or before a message on the CURVE `stream`.
        """
        poller, waiting = zmq.Poller(), dict[int, socket.socket]()
        poller.register(stream, zmq.POLLIN)
        poller.register(self._listener.fileno(), zmq.POLLIN)
        deadline = time.monotonic() + CONNECT_S
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = dict(poller.poll(int(left * 1000) + 1))
                leaving = [number for number in waiting if number in ready]
                if self._listener.fileno() in ready:
                    connection, _ = self._listener.accept()
                    connection.setblocking(False)
                    # readable once the whole token, or the end, has come
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, TOKEN_BYTES)
                    waiting[connection.fileno()] = connection
                    poller.register(connection.fileno(), zmq.POLLIN)
                    leaving += list(waiting)[:-PENDING]
                for number in dict.fromkeys(leaving):
                    poller.unregister(number)
                    connection, first = waiting.pop(number), b""
                    with suppress(OSError):
                        first = connection.recv(TOKEN_BYTES)
                    if hmac.compare_digest(first, token):
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                        return connection
                    self._refuse(connection)
                if stream in ready:
                    break
        except OSError as error:
            self._log.event("lane-port-failed", "port", reason=str(error))
        finally:
            for connection in waiting.values():
                self._refuse(connection)
        return None

    def _refuse(self, connection: socket.socket) -> None:
        with suppress(OSError):
            address = connection.getpeername()[0]
            self._log.event("lane-refused", "stranger", address=address, port=self.number)
        connection.close()

    def close(self) -> None:
        self._listener.close()
