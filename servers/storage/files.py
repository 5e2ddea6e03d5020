"""The files of uploads on the disk, and the room that uploads leave to others there."""

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import DamagedUpload, NotStored

# bytes that are hashed at a time, and that are worth being synchronised beside the caller
CHUNK_BYTES = 1 << 20
# Synchronises beside the servers' loops, which wait for it.
_DISK = ThreadPoolExecutor(1, "disk")

# The database's need while the disk is full. SQLite writes its log back into the file from 4 MB
# on, and may take as much again in that file.
DATABASE_BYTES = 8 << 20


class Reserve:
    """Room on the disk that uploads leave to the database, models and results.

    It is a file of that size. A change of a round that finds no room cuts it off, and uploads are
    refused until it is whole again.
    """

    def __init__(self, path: Path) -> None:
        """Open the file, or make it, without any room: a start may need it."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        # by spool, the bytes of the files that its round leaves
        self._bytes_of: dict[Path, int] = {}
        self._held = 0
        self.give_up()

    def hold(self) -> None:
        """Make the reserve whole. Raises OSError if the disk has no room for it."""
        wanted = DATABASE_BYTES + sum(self._bytes_of.values())
        if self._held < wanted:
            _allocate(self._file, self._held, wanted - self._held)
        self._cut(wanted)

    def give_up(self) -> bool:
        """Leave the room to whoever writes next, and return whether there was any."""
        held = self._held
        self._cut(0)
        return held > 0

    def add(self, spool: Path, size: int) -> None:
        """Let `hold` include the files of so many bytes that a round leaves."""
        self._bytes_of[spool] = size

    def drop(self, spool: Path) -> None:
        """Include the files of a round no longer."""
        self._cut(max(0, self._held - self._bytes_of.pop(spool, 0)))

    def _cut(self, size: int) -> None:
        os.ftruncate(self._file.fileno(), size)
        self._held = size

    def close(self) -> None:
        self._file.close()


def _allocate(file: IO[bytes], begin: int, size: int) -> None:
    """Make room for so many bytes at a file's end. Raises OSError, and changes nothing then."""
    try:
        os.posix_fallocate(file.fileno(), begin, size)
    except OSError:
        # part of it may be there
        os.ftruncate(file.fileno(), begin)
        raise


class WordsFile:
    """One file of packed words, which many uploads share.

    It needs one descriptor for any number of clients, so that connections that take descriptors do
    not decide whose upload is stored, and one call synchronises all uploads. A thread synchronises
    what is written meanwhile, so that `sync` has little to wait for. The file is closed when the
    last upload that reads it is gone, which may be later than its folder.
    """

    def __init__(self, path: Path, end: int = 0) -> None:
        """Open a file, or make it; what lies from byte `end` on is cut off."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        if os.fstat(self._file.fileno()).st_size > end:
            os.ftruncate(self._file.fileno(), end)
        # the place of the next words
        self.end = end
        # the bytes that are written and not being synchronised
        self._unsynced = 0
        self._syncing: Future[None] | None = None

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
        _allocate(self._file, begin, 8 * count)
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
        return np.frombuffer(self.read_bytes(begin, 8 * count), np.uint64)

    def read_bytes(self, begin: int, count: int) -> bytes:
        """Return `count` bytes from byte `begin` on. Raises DamagedUpload if they are not there."""
        try:
            data = os.pread(self._file.fileno(), count, begin)
        except OSError as error:
            raise DamagedUpload(
                f"a stored upload cannot be read: {error.strerror}; check the disk, and open a "
                "new round"
            ) from error
        if len(data) != count:
            raise DamagedUpload(
                f"a stored upload is shorter than when it was written: {len(data)} of {count} "
                "bytes; check the disk, and open a new round"
            )
        return data

    def chunks(self, begin: int, count: int) -> Iterator[bytes]:
        """Yield `count` bytes from byte `begin` on, in chunks. Raises what `read_bytes` raises."""
        for at in range(begin, begin + count, CHUNK_BYTES):
            yield self.read_bytes(at, min(CHUNK_BYTES, begin + count - at))


@contextmanager
def storing(what: str) -> Iterator[None]:
    """Let a `with` block write. Raises NotStored instead of OSError."""
    try:
        yield
    except OSError as error:
        raise NotStored(
            f"this server cannot store {what}: {error.strerror}; have its operator look at the "
            "disk of its state_dir, then send it again"
        ) from error
