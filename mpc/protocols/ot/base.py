"""Base OT: random 1-of-2 OTs from public-key cryptography over ed25519.

Chou and Orlandi, LATINCRYPT 2015; semi-honest. The sender publishes A = aG; for choice c the
receiver sends B = bG + cA. The sender's keys are H(aB) and H(a(B - A)), the receiver's is
H(bA) = H(a(B - cA)): the one of its choice. The points that the two keys hash differ by a^2 G, the
Diffie-Hellman value of A with itself, so it cannot compute the other. H is SHA-256 over the session
id, the index and the whole transcript (A, B), so keys of different sessions, directions and
positions never agree.

B is uniform in the group whatever c is, so the sender learns nothing; messages have constant size.
The sender computes a(B - A) as aB - aA, for which aA serves all OTs. Group arithmetic is
libsodium's. What is received must be a canonical encoding of a point of the prime-order group, and
not its neutral element, and B must not be A: libsodium multiplies no other point.
"""

import hashlib

import numpy as np
from nacl import bindings as sodium
from nacl.exceptions import CryptoError
from numpy.typing import NDArray

from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, os_entropy

POINT_BYTES = sodium.crypto_core_ed25519_BYTES


def _scalar(entropy: Entropy) -> bytes:
    return sodium.crypto_core_ed25519_scalar_reduce(
        entropy(sodium.crypto_core_ed25519_NONREDUCEDSCALARBYTES)
    )


def _times(scalar: bytes, point: bytes, what: str) -> bytes:
    """Return a multiple of a received point.

    Raises PeerProtocolError unless the point is one that may be sent, which libsodium checks.
    """
    try:
        return sodium.crypto_scalarmult_ed25519_noclamp(scalar, point)
    except CryptoError:
        raise PeerProtocolError(
            f"base OT: {what} is not a point of the prime-order group"
        ) from None


def _key(session: bytes, index: int, a_point: bytes, b_point: bytes, shared: bytes) -> bytes:
    return hashlib.sha256(
        b"securemedian base OT" + session + index.to_bytes(4, "little") + a_point + b_point + shared
    ).digest()[:SEED_BYTES]


class BaseOtSender:
    """The sender of base OTs, with two keys per OT; `session` is unique to run and direction."""

    def __init__(self, channel: Channel, session: bytes, entropy: Entropy = os_entropy) -> None:
        self._channel, self._session = channel, session
        self._a = _scalar(entropy)
        self._point = sodium.crypto_scalarmult_ed25519_base_noclamp(self._a)

    def announce(self) -> None:
        """Send A."""
        self._channel.send("base.A", np.frombuffer(self._point, np.uint8))

    def keys(self, count: int) -> list[tuple[bytes, bytes]]:
        """Receive all B and return the pairs of keys."""
        points: NDArray[np.uint8] = self._channel.recv("base.B", np.uint8, (count, POINT_BYTES))
        difference = _times(self._a, self._point, "A")
        pairs = []
        for i in range(count):
            b_point = points[i].tobytes()
            if b_point == self._point:
                raise PeerProtocolError(f"base OT: B[{i}] is A: everybody knows one of its keys")
            shared = _times(self._a, b_point, f"B[{i}]")
            other = sodium.crypto_core_ed25519_sub(shared, difference)
            key0, key1 = (
                _key(self._session, i, self._point, b_point, secret) for secret in (shared, other)
            )
            pairs.append((key0, key1))
        return pairs


class BaseOtReceiver:
    """The receiver of base OTs, with one key per OT, its choice's; `session` is the sender's."""

    def __init__(self, channel: Channel, session: bytes, entropy: Entropy = os_entropy) -> None:
        self._channel, self._session, self._entropy = channel, session, entropy

    def keys(self, choices: NDArray[np.uint8]) -> list[bytes]:
        """Receive A, send all B and return the chosen keys."""
        a_point = self._channel.recv("base.A", np.uint8, (POINT_BYTES,)).tobytes()
        secrets = [_scalar(self._entropy) for _ in choices]
        # before anything is added to A
        shared = [_times(secret, a_point, "A") for secret in secrets]
        points = []
        for choice, secret in zip(choices, secrets, strict=True):
            own = sodium.crypto_scalarmult_ed25519_base_noclamp(secret)
            # both are made and one is taken, so that either choice is the same work
            candidates = own, sodium.crypto_core_ed25519_add(own, a_point)
            points.append(candidates[int(choice)])
        self._channel.send(
            "base.B", np.frombuffer(b"".join(points), np.uint8).reshape(len(points), POINT_BYTES)
        )
        return [
            _key(self._session, i, a_point, point, secret)
            for i, (point, secret) in enumerate(zip(points, shared, strict=True))
        ]
