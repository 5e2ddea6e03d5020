"""Long shares in blocks, which are sent, hashed and stored by themselves, in any order.

    digest = SHA-256(SHA-256(block 0), SHA-256(block 1), ..)

All blocks but the last have BLOCK_BYTES. A round says how long its shares are, so that nobody can
pass the digests of blocks off as a block.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

# what one message carries (`wire.PIECE_BYTES`)
BLOCK_BYTES = 4 << 20


def count(size: int) -> int:
    """Return how many blocks a share of so many bytes has."""
    return -(-size // BLOCK_BYTES)


def block_digest(block: Any) -> bytes:
    """Return the digest of one block, a contiguous buffer."""
    return hashlib.sha256(block).digest()


def whole_digest(digests: Iterable[bytes]) -> bytes:
    """Return the digest of a share from those of its blocks, in order."""
    return hashlib.sha256(b"".join(digests)).digest()
