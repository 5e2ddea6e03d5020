"""Ordered, counted messages between the two parties.

A `Channel` carries arrays over a `Link`, which is anything that moves frames in order: a pair of
queues here, zmq sockets in `servers.network.transport`. Every message has a label and a sequence
number, so that two programs that have drifted apart fail at the first message and say where.

Rounds are counted as in the literature. A message's depth is one more than that of the deepest
message that its sender had received. `rounds` is the depth of the deepest message seen. Messages
that do not wait for each other share a round.

Shares of something that becomes public go through `Channel.open`: a *rushing* party, which waits
for the other's share and then chooses its own, would decide what the other sees opened. So each
commits to its share before it sees the other's: SHA-256 of the label, its number, the number of the
message, the share, and random bytes that hide it. The party's number keeps one from sending the
other's commitment back, and a commitment is good for one message alone. The party that opens last
still sees the other's share first, and may break off then.

Number and depth travel in the header's one field "at", always 8 bytes long. So the size of a
message depends on its label, dtype and shape alone: `frame_size`, with which `plan` predicts the
bytes of a round.
"""

import hashlib
import queue
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    PeerDeviated,
    PeerProtocolError,
    quoted,
)
from securemedian.mpc.protocols import wire

# A message as `plan` counts it: whether it is sent or received, its label, dtype and shape.
Planned = tuple[bool, str, DTypeLike, tuple[int, ...]]
# The number and the depth of a message.
_POSITION = struct.Struct("<II")
# SECURITY: random words after a share that is opened, without which its commitment could be guessed
NONCE_WORDS = 4
# beyond all that are counted, and so that the next has room in _POSITION
MOST_DEPTH = 1 << 31
COMMITMENT_WORDS = hashlib.sha256().digest_size // 8


class Link(Protocol):
    """Anything that moves frames to the other party, in order."""

    def send(self, parts: Sequence[wire.Part]) -> None:
        """Send a frame, without waiting for the receiver."""
        ...

    def recv(self) -> Sequence[wire.Part]:
        """Return the next frame.

        Waits for a bounded time. Raises ChannelTimeout when the time is over, and ChannelClosed
        when the other end is gone.
        """
        ...

    def close(self) -> None:
        """Close this end, so that the other end's `recv` raises ChannelClosed."""
        ...


@dataclass
class Traffic:
    """The counts of a channel. Bytes are those of whole frames, headers included."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0
    rounds: int = 0


class Channel:
    """One party's end of the exchange of labelled arrays, over a link.

    It is not safe for use by two threads at once: give each its own.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self.traffic = Traffic()
        self._depth = 0

    def send(self, label: str, array: NDArray[Any]) -> None:
        """Send `array` (any dtype of `wire.DTYPES`) without waiting for the receiver.

        The array must not be written to afterwards.
        """
        depth = self._depth + 1
        parts = wire.pack(label, _fields(self.traffic.messages_sent, depth), {"": array})
        self._link.send(parts)
        self.traffic.bytes_sent += wire.size(parts)
        self.traffic.messages_sent += 1
        self.traffic.rounds = max(self.traffic.rounds, depth)

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        """Receive the next message and return its array, which is read-only.

        Raises ChannelClosed if messages before it were lost, as when a connection is cut and made
        again, and PeerProtocolError unless it has this label, dtype and shape.
        """
        parts = self._link.recv()
        message = wire.unpack(parts)
        number, depth = _position(message)
        due = self.traffic.messages_received
        if number > due:
            raise ChannelClosed(
                f"message {number} came where {due} was due: what was between was lost with a "
                "connection"
            )
        if message.type != label or number != due:
            raise PeerProtocolError(
                f"expected message {due} {label!r}, got {number} {quoted(message.type)}: "
                "the two servers do not run the same round or release"
            )
        if set(message.arrays) != {""}:
            raise PeerProtocolError(f"message {label!r} lacks its one array")
        array = message.arrays[""]
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            raise PeerProtocolError(
                f"{label!r}: expected {np.dtype(dtype)} {shape}, got {array.dtype} {array.shape}"
            )
        self.traffic.bytes_received += wire.size(parts)
        self.traffic.messages_received += 1
        self._depth = max(self._depth, depth)
        self.traffic.rounds = max(self.traffic.rounds, depth)
        return array

    def exchange(
        self, label: str, array: NDArray[Any], shape: tuple[int, ...] | None = None
    ) -> NDArray[Any]:
        """Send an array while the peer sends one, in one round, and return the peer's.

        The peer's array has the same dtype, and `shape` or, without it, the shape of ours. Raises
        PeerProtocolError if it does not.
        """
        self.send(label, array)
        return self.recv(label, array.dtype, array.shape if shape is None else shape)

    def open(self, label: str, number: int, mine: Words, nonce: Words) -> Words:
        """Open shares (n,) while the peer opens as many, in two rounds, and return the peer's.

        Each party commits to what it opens before it sees anything of the other. `label` has "open"
        in it, where the commitment's has "commit". `number` is this party's, 0 or 1. SECURITY:
        `nonce` is fresh and random, NONCE_WORDS long; it may be empty if `mine` is as random.
        Raises PeerDeviated if the peer opens anything else than it has committed to.
        """
        opening = np.concatenate([mine, nonce])
        sent, due = self.traffic.messages_sent, self.traffic.messages_received
        own = np.frombuffer(_commitment(label, number, sent, opening), np.uint64)
        committed = self.exchange(label.replace("open", "commit"), own)
        try:
            theirs = self.exchange(label, opening)
        except PeerProtocolError as error:
            # both were at this message, so both run the same round and release
            raise PeerDeviated(f"{label!r} is not what it has committed to: {error}") from None
        self.check_opening(committed, _commitment(label, 1 - number, due, theirs), label)
        return theirs[: mine.size]

    def check_opening(self, committed: Words, opened: bytes, label: str) -> None:
        """Raise PeerDeviated unless the peer has opened what it has committed to."""
        if committed.tobytes() != opened:
            raise PeerDeviated(f"{label!r} is not what it has committed to")

    def restart_rounds(self) -> None:
        """Count rounds from 0 again, before anything of a new computation is sent or received."""
        self._depth = self.traffic.rounds = 0

    def close(self) -> None:
        """Close the link."""
        self._link.close()


def frame_size(label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> int:
    """Return the bytes that a channel counts for one message, whatever its number."""
    return wire.frame_size(label, _fields(0, 0), {"": (dtype, shape)})


def both_ways(label: str, count: int, dtype: DTypeLike = np.uint64) -> Iterator[Planned]:
    """Yield what each party sends (True) and receives (False) in `Channel.exchange`."""
    for sent in (True, False):
        yield sent, label, dtype, (count,)


def opening_messages(label: str, words: int) -> Iterator[Planned]:
    """Yield the same of `Channel.open`. The `words` count the nonce."""
    yield from both_ways(label.replace("open", "commit"), COMMITMENT_WORDS)
    yield from both_ways(label, words)


def _commitment(label: str, number: int, at: int, opening: Words) -> bytes:
    """Return the SHA-256 that party `number` commits to an opening with, in its message `at`."""
    hashed = hashlib.sha256(digest("commitment", label, number, at))
    hashed.update(opening.data)
    return hashed.digest()


def _fields(number: int, depth: int) -> dict[str, Any]:
    return {"at": _POSITION.pack(number, depth)}


def _position(message: wire.Message) -> tuple[int, int]:
    packed = message.fields.get("at")
    if type(packed) is not bytes or len(packed) != _POSITION.size:
        raise PeerProtocolError(f"message {quoted(message.type)} lacks its number and depth")
    number, depth = _POSITION.unpack(packed)
    if depth > MOST_DEPTH:
        raise PeerProtocolError(f"message {quoted(message.type)} has the depth {depth:,}")
    return number, depth


class _QueueLink:
    """One end of a pair within a process; frames cross as bytes, as they would on a wire."""

    def __init__(
        self,
        out: "queue.SimpleQueue[list[bytes] | None]",
        into: "queue.SimpleQueue[list[bytes] | None]",
        timeout_s: float,
    ) -> None:
        self._out, self._in, self._timeout_s = out, into, timeout_s

    def send(self, parts: Sequence[wire.Part]) -> None:
        self._out.put([bytes(part) for part in parts])

    def recv(self) -> list[bytes]:
        try:
            parts = self._in.get(timeout=self._timeout_s)
        except queue.Empty:
            raise ChannelTimeout(f"nothing received for {self._timeout_s:g} s") from None
        if parts is None:
            # so that the next call fails the same way
            self._in.put(None)
            raise ChannelClosed("the other end closed the channel")
        return parts

    def close(self) -> None:
        self._out.put(None)


def local_pair(timeout_s: float = 60.0) -> tuple[Channel, Channel]:
    """Return two connected channels in one process, for tests and for both parties on threads."""
    one: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
    two: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
    return Channel(_QueueLink(one, two, timeout_s)), Channel(_QueueLink(two, one, timeout_s))
