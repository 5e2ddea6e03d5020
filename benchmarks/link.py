"""The link between the two processes of a benchmark: loopback as it is, or a shaped link.

The sender shapes each direction, for all lanes together. Messages leave one after another at the
bandwidth, and arrive half a round trip after their last byte has left. A message is in fact
sent at once, with the time at which it is due, and its receiver sleeps until then.
"""

import math
import re
import struct
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from securemedian.mpc.errors import ConfigError, PeerProtocolError
from securemedian.mpc.protocols import wire
from securemedian.servers.network.transport import Socket, ZmqLink

# how far a sender may be ahead of the link before it has to wait, as with a socket's buffer
BUFFER_BYTES = 16 << 20

# the text for loopback with lanes on AES-GCM, as at servers whose S1 has an `aes_port`
AES = "aes"

_DUE = struct.Struct("<d")
_LINK = re.compile(
    r"(?P<rate>\d+\.?\d*)(?P<unit>[kMG]?)(?P<of>bit|B)/s(,(?P<rtt>\d+\.?\d*)(?P<scale>m?s))?"
)
_UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class LinkShape:
    """A full-duplex link between the two servers; `bits_per_second` is that of each direction."""

    bits_per_second: float
    rtt_s: float

    @classmethod
    def parse(cls, text: str) -> "LinkShape":
        """Return the link that a text describes.

        The text is `loopback`, `aes` (loopback, with lanes on AES-GCM), or a rate and perhaps a
        round-trip time: `377MB/s`, `100Mbit/s,40ms`. Raises ConfigError for any other.
        """
        if text in ("loopback", AES):
            return LOOPBACK
        found = _LINK.fullmatch(text)
        if not found or not float(found["rate"]):
            raise ConfigError(
                f"not a link: {text!r}; write loopback, aes, or RATE or RATE,RTT like 377MB/s or "
                "100Mbit/s,40ms"
            )
        bits = float(found["rate"]) * _UNITS[found["unit"]] * (8 if found["of"] == "B" else 1)
        return cls(bits, float(found["rtt"] or 0) / (1e3 if found["scale"] == "ms" else 1))


# nothing is added to the time that sockets on one machine take
LOOPBACK = LinkShape(math.inf, 0.0)


class Shaper:
    """One direction of a link, shared by all lanes that send over it."""

    def __init__(self, link: LinkShape, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._clock = link, clock
        # the time at which the last byte of all messages so far has left
        self._free = 0.0
        self._lock = threading.Lock()

    def book(self, size: int) -> tuple[float, float]:
        """Queue a message of `size` bytes behind all others.

        Returns the seconds that its sender has to wait until the buffer has room for it, and the
        time at which it is due at the receiver.
        """
        with self._lock:
            now = self._clock()
            start = max(now, self._free)
            self._free = start + 8 * size / self._link.bits_per_second
            ahead = start - now - 8 * BUFFER_BYTES / self._link.bits_per_second
            return max(0.0, ahead), self._free + self._link.rtt_s / 2


class ShapedLink(ZmqLink):
    """A lane over a shaped link, at both ends."""

    def __init__(self, socket: Socket, timeout_s: float, out: Shaper) -> None:
        super().__init__(socket, timeout_s)
        self._out = out

    def send(self, parts: Sequence[wire.Part]) -> None:
        wait, due = self._out.book(wire.size(parts))
        time.sleep(wait)
        super().send([*parts, _DUE.pack(due)])

    def recv(self) -> list[bytes]:
        *parts, stamp = super().recv()
        if len(stamp) != _DUE.size:
            raise PeerProtocolError(
                "a message over a shaped link does not say when it is due: "
                "is the other end shaped, too?"
            )
        time.sleep(max(0.0, _DUE.unpack(stamp)[0] - time.monotonic()))
        return parts
