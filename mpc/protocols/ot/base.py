"""Base OT: random 1-of-2 OTs from public-key cryptography over ed25519.

Masny and Rindal, CCS 2019 (endemic OT): secure if either party deviates, with computational
Diffie-Hellman in the prime-order group and a hash to it as a random oracle. The sender publishes
A = aG. For choice c the receiver draws B_(1-c) from the group, and sends it with

    B_c = bG - T_c(B_(1-c)),    T_j a hash to the group.

The sender's keys are H(a P_j) with P_j = B_j + T_j(B_(1-j)), the receiver's is H(bA): P_c = bG. The
receiver fixes one of both points by the other, whose hash it cannot choose, so it knows no b of the
other point. Both points are uniform whatever c is, so the sender learns nothing.

H is SHA-256, and T_j is SHA-512 and twice Elligator's map, over the session id, the index and the
message. So keys of different sessions, directions and positions never agree. A party that deviates
may choose keys of its own: nothing that stays secret from it is made of them alone.

Messages have constant size. Group arithmetic is libsodium's. A received point, and P_j, must be
canonically encoded, of the prime-order group and not its neutral element: libsodium multiplies no
other point.
"""

import hashlib

import numpy as np
from nacl import bindings as sodium
from numpy.typing import NDArray

from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.group import POINT_BYTES, multiply, refused, scalar, to_group
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, os_entropy


def _to_group(session: bytes, index: int, side: int, point: bytes) -> bytes:
    """Return T_side of a point, which is as good as a random point of the group."""
    name = session + index.to_bytes(4, "little") + bytes([side])
    return to_group(b"securemedian base OT point" + name + point)


def _key(session: bytes, index: int, side: int, transcript: bytes, shared: bytes) -> bytes:
    name = session + index.to_bytes(4, "little") + bytes([side])
    return hashlib.sha256(b"securemedian base OT" + name + transcript + shared).digest()[
        :SEED_BYTES
    ]


class BaseOtSender:
    """The sender of base OTs, with two keys per OT; `session` is unique to run and direction."""

    def __init__(self, channel: Channel, session: bytes, entropy: Entropy = os_entropy) -> None:
        self._channel, self._session = channel, session
        self._a = scalar(entropy)
        self._point = sodium.crypto_scalarmult_ed25519_base_noclamp(self._a)

    def announce(self) -> None:
        """Send A."""
        self._channel.send("base.A", np.frombuffer(self._point, np.uint8))

    def keys(self, count: int) -> list[tuple[bytes, bytes]]:
        """Receive all B and return the pairs of keys."""
        points: NDArray[np.uint8] = self._channel.recv("base.B", np.uint8, (count, 2, POINT_BYTES))
        pairs = []
        for i in range(count):
            sent = points[i, 0].tobytes(), points[i, 1].tobytes()
            for side in (0, 1):
                if not sodium.crypto_core_ed25519_is_valid_point(sent[side]):
                    raise refused(f"base OT: B[{i}, {side}]")
            key0, key1 = (self._key(i, side, sent) for side in (0, 1))
            pairs.append((key0, key1))
        return pairs

    def _key(self, i: int, side: int, sent: tuple[bytes, bytes]) -> bytes:
        hashed = _to_group(self._session, i, side, sent[1 - side])
        point = sodium.crypto_core_ed25519_add(sent[side], hashed)
        shared = multiply(self._a, point, f"base OT: B[{i}, {side}] with the hash of the other")
        return _key(self._session, i, side, self._point + sent[0] + sent[1], shared)


class BaseOtReceiver:
    """The receiver of base OTs, with one key per OT, its choice's; `session` is the sender's."""

    def __init__(self, channel: Channel, session: bytes, entropy: Entropy = os_entropy) -> None:
        self._channel, self._session, self._entropy = channel, session, entropy

    def keys(self, choices: NDArray[np.uint8]) -> list[bytes]:
        """Receive A, send all B and return the chosen keys."""
        a_point = self._channel.recv("base.A", np.uint8, (POINT_BYTES,)).tobytes()
        secrets = [scalar(self._entropy) for _ in choices]
        # before anything is sent
        shared = [multiply(secret, a_point, "base OT: A") for secret in secrets]
        pairs = []
        for i, (choice, secret) in enumerate(zip(choices.tolist(), secrets, strict=True)):
            own = sodium.crypto_scalarmult_ed25519_base_noclamp(secret)
            other = sodium.crypto_scalarmult_ed25519_base_noclamp(scalar(self._entropy))
            hashed = _to_group(self._session, i, choice, other)
            chosen = sodium.crypto_core_ed25519_sub(own, hashed)
            # either order is the same work
            pairs.append(((chosen, other), (other, chosen))[choice])
        sent = b"".join(first + second for first, second in pairs)
        self._channel.send(
            "base.B", np.frombuffer(sent, np.uint8).reshape(len(pairs), 2, POINT_BYTES)
        )
        return [
            _key(self._session, i, choice, a_point + first + second, secret)
            for i, (choice, (first, second), secret) in enumerate(
                zip(choices.tolist(), pairs, shared, strict=True)
            )
        ]
