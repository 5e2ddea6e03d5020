"""Room in a file for a share that comes in blocks, each of which is written once."""

import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from securemedian.common.blocks import BLOCK_BYTES, block_digest, count
from securemedian.common.sealing import KEY_BYTES
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, DuplicateUpload, quoted

# the door in the daemon, among `Room.owners`
DAEMON = 0


class WrittenFile(Protocol):
    """A file that words are written to."""

    def write(self, at: int, words: Words) -> None:
        """Write words from byte `at` on. Raises OSError."""


@dataclass(frozen=True)
class BlockFields:
    """The fields of a block, whose words are an array."""

    round: str
    # "dealing" or "upload"
    kind: str
    # its number, from 0 on
    block: int


@dataclass
class Room:
    """Room for one client's share, and what is known of its blocks.

    SECURITY: a block is written by the door that owns it, and once: what was hashed is what is
    computed on, whatever a client sends later.
    """

    # tells it from other rooms of this server
    number: int
    client: str
    round: str
    # DEALING or UPLOAD
    kind: str
    # where it begins in the file, and how long it is, in bytes
    begin: int
    size: int
    # by block, the door that takes it
    owners: list[int] = field(repr=False)
    # the digest of the share, as the client has told it
    digest: bytes = b""
    # what blocks to doors are sealed with (`common.sealing`)
    key: bytes = field(default=b"", repr=False)
    # by block, the digest of what is written, and the machine that has it, by default this one
    stored: dict[int, bytes] = field(default_factory=dict, repr=False)
    nodes: dict[int, str] = field(default_factory=dict, repr=False)

    def missing(self, door: int) -> list[int]:
        """Return the blocks that a door takes and has not stored, in order."""
        return [
            block
            for block, owner in enumerate(self.owners)
            if owner == door and block not in self.stored
        ]

    @property
    def missing_elsewhere(self) -> bool:
        """Return whether other doors than the daemon have blocks to take."""
        return any(self.missing(door) for door in set(self.owners) - {DAEMON})

    @property
    def whole(self) -> bool:
        return len(self.stored) == count(self.size)

    def bytes_of(self, block: int) -> int:
        """Return the length of a block."""
        return min(BLOCK_BYTES, self.size - block * BLOCK_BYTES)

    def begin_anew(self, digest: bytes) -> None:
        """Take another share: nothing of it is here yet, and its blocks have a key of their own."""
        self.digest, self.stored, self.nodes = digest, {}, {}
        self.key = os.urandom(KEY_BYTES)

    def put(self, file: WrittenFile, door: int, block: int, share: NDArray[Any]) -> bool:
        """Write a block at this door, and return whether it is new.

        Raises BadUpload if it is none of this door's or has another form, DuplicateUpload if it is
        stored and another one, and OSError if it cannot be written.
        """
        if not (0 <= block < len(self.owners) and self.owners[block] == door):
            raise BadUpload(f"block {quoted(block)} of this share is not for this door")
        words = self.bytes_of(block) // 8
        if share.dtype != np.uint64 or share.shape != (words,):
            raise BadUpload(f"block {block} is uint64 ({words},), not {share.dtype} {share.shape}")
        digest = block_digest(share.data)
        if block in self.stored:
            if digest != self.stored[block]:
                raise DuplicateUpload(f"another block {block} of this share is stored already")
            return False
        file.write(self.begin + block * BLOCK_BYTES, share)
        self.stored[block] = digest
        return True
