"""Base OT: random 1-of-2 OTs from public-key cryptography over ed25519.

Chou and Orlandi, LATINCRYPT 2015; semi-honest. The sender publishes A = aG; for choice c the
receiver sends B = bG + cA. The sender's keys are H(aB) and H(a(B - A)), the receiver's is
H(bA) = H(a(B - cA)): the one of its choice. The points that the two keys hash differ by a^2 G, the
Diffie-Hellman value of A with itself, so it cannot compute the other. H is SHA-256 over the session
id, the index and the whole transcript (A, B), so keys of different sessions, directions and
positions never agree.

B is uniform in the group whatever c is, so the sender learns nothing; messages have constant size.
Group arithmetic is libsodium's. What is received must be a canonical encoding of a point of the
prime-order group, and not its neutral element.
"""

import hashlib

import numpy as np
from nacl import bindings as sodium
from nacl.exceptions import CryptoError
from numpy.typing import NDArray

from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.prg import SEED_BYTES, Entropy, os_entropy

POINT_BYTES = sodium.crypto_core_ed25519_BYTES


def _scalar(entropy: Entropy) -> bytes:
    return sodium.crypto_core_ed25519_scalar_reduce(
        entropy(sodium.crypto_core_ed25519_NONREDUCEDSCALARBYTES)
    )


def _checked(point: bytes, what: str) -> bytes:
    """Return a received point, or raise PeerProtocolError if it is not one that may be sent."""
    try:
        valid = sodium.crypto_core_ed25519_is_valid_point(point)
    except CryptoError:
        valid = False
    if not valid:
        raise PeerProtocolError(f"base OT: {what} is not a point of the prime-order group")
    return point


def _key(session: bytes, index: int, a_point: bytes, b_point: bytes, shared: bytes) -> bytes:
    return hashlib.sha256(
        b"securemedian base OT" + session + index.to_bytes(4, "little") + a_point + b_point + shared
    ).digest()[:SEED_BYTES]


class BaseOtSender:
    """The sender of base OTs, which ends with two keys per OT.

    `session` must be unique to this run and direction.
    """

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
        pairs = []
        for i in range(count):
            b_point = _checked(points[i].tobytes(), f"B[{i}]")
            keys = []
            for point in (b_point, sodium.crypto_core_ed25519_sub(b_point, self._point)):
                shared = sodium.crypto_scalarmult_ed25519_noclamp(
                    self._a, _checked(point, f"B[{i}] - A")
                )
                keys.append(_key(self._session, i, self._point, b_point, shared))
            pairs.append((keys[0], keys[1]))
        return pairs


class BaseOtReceiver:
    """The receiver of base OTs, which ends with one key per OT: that of its choice bit.

    `session` is the sender's.
    """

    def __init__(self, channel: Channel, session: bytes, entropy: Entropy = os_entropy) -> None:
        self._channel, self._session, self._entropy = channel, session, entropy

    def keys(self, choices: NDArray[np.uint8]) -> list[bytes]:
        """Receive A, send all B and return the chosen keys."""
        a_point = _checked(self._channel.recv("base.A", np.uint8, (POINT_BYTES,)).tobytes(), "A")
        secrets = [_scalar(self._entropy) for _ in choices]
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
            _key(
                self._session,
                i,
                a_point,
                point,
                sodium.crypto_scalarmult_ed25519_noclamp(secret, a_point),
            )
            for i, (point, secret) in enumerate(zip(points, secrets, strict=True))
        ]
