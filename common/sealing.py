"""Blocks on their way to a door, sealed with a key that the server has given the client over CURVE.

    door:     challenge         16 random bytes
    client:   room              u8: the room that the server has made for the share
              nonce, tag        AES-128-GCM of nothing, beside `greeting` and the challenge
    client:   number            u8, per block: which it is
              nonce, sealed     AES-128-GCM of the block, beside `block` and the number
    door:     1, or 0           u1, per block and in the same order: it is stored, or refused

This is all that goes over the TCP connection, in bytes that nobody else can read or change. AES-GCM
takes a quarter of the time of CURVE's cipher.

SECURITY: a key is for one room, and what goes there is one share: a block that is sent again is the
same. Nonces are random, of far fewer than 2^32 per key. A door's answers prove nothing: the server
itself says which blocks are missing.
"""

import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securemedian.mpc.errors import BadUpload
from securemedian.mpc.protocols.prg import Entropy, os_entropy

KEY_BYTES = CHALLENGE_BYTES = 16
NONCE_BYTES, TAG_BYTES = 12, 16
# what comes before a sealed block, and the greeting: a number and a nonce, and then the tag
HEADER = struct.Struct(f"<Q{NONCE_BYTES}s")
GREETING_BYTES = HEADER.size + TAG_BYTES
STORED, REFUSED = b"\1", b"\0"


class Seal:
    """The key of a room, with which its client proves itself and seals blocks."""

    def __init__(self, key: bytes, entropy: Entropy = os_entropy) -> None:
        self._cipher, self._entropy = AESGCM(key), entropy

    def greeting(self, room: int, challenge: bytes) -> bytes:
        """Return what proves to a door that this client may send blocks to a room."""
        return b"".join(self._sealed(room, b"", b"greeting" + challenge))

    def proves(self, greeting: bytes, challenge: bytes) -> bool:
        """Return whether a greeting proves that."""
        _, nonce = HEADER.unpack_from(greeting)
        try:
            self._cipher.decrypt(nonce, greeting[HEADER.size :], b"greeting" + challenge)
        except InvalidTag:
            return False
        return True

    def seal(self, number: int, block: memoryview) -> tuple[bytes, bytes]:
        """Return the header of a block, and what is sealed of it."""
        return self._sealed(number, block, _beside(number))

    def open(self, number: int, nonce: bytes, sealed: memoryview) -> bytes:
        """Return a block. Raises BadUpload if it was not sealed as that one with this key."""
        try:
            return self._cipher.decrypt(nonce, sealed, _beside(number))
        except InvalidTag:
            raise BadUpload(f"block {number} is not sealed with the key of its room") from None

    def _sealed(
        self, number: int, content: bytes | memoryview, beside: bytes
    ) -> tuple[bytes, bytes]:
        nonce = self._entropy(NONCE_BYTES)
        return HEADER.pack(number, nonce), self._cipher.encrypt(nonce, content, beside)


def _beside(number: int) -> bytes:
    return b"block" + number.to_bytes(8, "little")
