"""The prime-order group of edwards25519, for base OTs and the comparison of digests.

Group arithmetic is libsodium's. It multiplies canonical encodings of points of the prime-order
group alone, and not its neutral element.
"""

import hashlib

from nacl import bindings as sodium
from nacl.exceptions import CryptoError

from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.prg import Entropy

POINT_BYTES = sodium.crypto_core_ed25519_BYTES


def scalar(entropy: Entropy) -> bytes:
    """Return a uniformly random scalar."""
    return sodium.crypto_core_ed25519_scalar_reduce(
        entropy(sodium.crypto_core_ed25519_NONREDUCEDSCALARBYTES)
    )


def multiply(factor: bytes, point: bytes, what: str) -> bytes:
    """Return a multiple of a point that the peer has a part in.

    Raises PeerProtocolError unless the point is one that may be sent, which libsodium checks.
    """
    try:
        return sodium.crypto_scalarmult_ed25519_noclamp(factor, point)
    except CryptoError:
        raise refused(what) from None


def refused(what: str) -> PeerProtocolError:
    """Return the error for what should be a point."""
    return PeerProtocolError(f"{what} is not a point of the prime-order group")


def to_group(data: bytes) -> bytes:
    """Return a hash of bytes that is as good as a random point of the group."""
    wide = hashlib.sha512(data).digest()
    return sodium.crypto_core_ed25519_add(
        sodium.crypto_core_ed25519_from_uniform(wide[:POINT_BYTES]),
        sodium.crypto_core_ed25519_from_uniform(wide[POINT_BYTES:]),
    )
