"""The file of packed words that the uploads of one round share."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import DamagedUpload
from securemedian.mpc.protocols.share import Layout

# bytes that are hashed at a time, and that are worth being synchronised beside the caller
CHUNK_BYTES = 1 << 20
# Synchronises beside the servers' loops, which wait for it.
_DISK = ThreadPoolExecutor(1, "disk")


class WordsFile:
    """One file of packed words, which many uploads share.

    It needs one descriptor for any number of clients, so that connections that take descriptors do
    not decide whose upload is stored, and one call synchronises all uploads. A thread synchronises
    what is written meanwhile, so that `sync` has little to wait for. The file is closed when the
    last upload that reads it is gone, which may be later than its folder.
    """

    def __init__(self, path: Path, end: int = 0) -> None:
        """Open a file, or make it; what lies from byte `end` on is overwritten."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        # where the next words begin
        self.end = end
        # the bytes that are written and not being synchronised
        self._unsynced = 0
        self._syncing: Future[None] | None = None

    def append(self, words: Words) -> int:
        """Write words at the end and return where they begin, in bytes.

        Raises OSError if they cannot all be written; what was written is overwritten by the next.
        """
        begin = self.end
        self.write(begin, words)
        self.end += 8 * words.size
        return begin

    def give_back(self, begin: int, size: int) -> None:
        """Let the next words overwrite what was appended last, if it is this."""
        if begin + size == self.end:
            self.end = begin

    def sync(self) -> None:
        """Wait until all that was written is on the disk. Raises OSError if it cannot be."""
        syncing, self._syncing = self._syncing, None
        if syncing:
            syncing.result()
        if self._unsynced:
            os.fdatasync(self._file)
            self._unsynced = 0

    def _sync_beside(self) -> None:
        """Begin to synchronise what is written, if it is much and the last time succeeded."""
        done = self._syncing is None or (self._syncing.done() and not self._syncing.exception())
        if done and self._unsynced >= CHUNK_BYTES:
            self._unsynced = 0
            # the thread keeps the file open until it is done
            self._syncing = _DISK.submit(os.fdatasync, self._file)

    def reserve(self, count: int) -> int:
        """Make room for `count` words at the end and return where it begins, in bytes.

        Raises OSError if the disk has no room for them.
        """
        begin = self.end
        os.posix_fallocate(self._file.fileno(), begin, 8 * count)
        self.end += 8 * count
        return begin

    def write(self, at: int, words: Words) -> None:
        """Write words from byte `at` on. Raises OSError if they cannot all be written."""
        left = words.data.cast("B")
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            self._unsynced += written
            left, at = left[written:], at + written
        self._sync_beside()

    def read(self, begin: int, count: int) -> Words:
        """Return `count` words from byte `begin` on."""
        return np.frombuffer(self.read_bytes(begin, 8 * count), np.uint64)

    def read_bytes(self, begin: int, count: int) -> bytes:
        """Return `count` bytes from byte `begin` on. Raises DamagedUpload if they are not there."""
        try:
            data = os.pread(self._file.fileno(), count, begin)
        except OSError as error:
            raise DamagedUpload(f"a stored upload cannot be read: {error.strerror}") from error
        if len(data) != count:
            raise DamagedUpload("a stored upload is shorter than when it was written")
        return data

    def chunks(self, begin: int, count: int) -> Iterator[bytes]:
        """Yield `count` bytes from byte `begin` on, in chunks. Raises what `read_bytes` raises."""
        for at in range(begin, begin + count, CHUNK_BYTES):
            yield self.read_bytes(at, min(CHUNK_BYTES, begin + count - at))


@dataclass(frozen=True)
class StoredUpload:
    """A share that was given in full, as packed words on disk."""

    layout: Layout
    source: WordsFile = field(repr=False)
    begin: int

    def words(self, row: int, start: int, stop: int) -> Words:
        """Read words [start, stop) of row `row` from the disk."""
        first = row * self.layout.row_words + start
        return self.source.read(self.begin + 8 * first, stop - start)
