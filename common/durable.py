"""Files that a crash leaves whole, old or new, and folders that one process at a time has."""

import io
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from securemedian.mpc.errors import ConfigError, LocalProtocolError

try:
    import fcntl
except ImportError:
    # Windows: there nothing keeps two processes apart
    fcntl = None  # type: ignore[assignment]

OWNER = 0o600
# Windows has a flag for files that are not text, and folders that cannot be opened
_BINARY = getattr(os, "O_BINARY", 0)
_FOLDERS_OPEN = hasattr(os, "O_DIRECTORY")
# the file in a folder that its process has locked
_LOCK = "lock"
# why `say` could not print its latest line, if it could not
unsaid: list[OSError] = []


def replace_file(path: Path, parts: Iterable[Any], mode: int = OWNER) -> None:
    """Replace a file by these parts, and sync it. Raises OSError; the old file then stays."""
    with _replacing(path, mode) as file:
        for part in parts:
            file.write(part)


@contextmanager
def _replacing(path: Path, mode: int) -> Iterator[IO[bytes]]:
    """Open what becomes a file once it is written and synced. Raises OSError, and keeps the old."""
    new = path.with_name(f"{path.name}.new")
    try:
        with _open_anew(new, mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_folder(path.parent)
    except OSError:
        new.unlink(missing_ok=True)
        raise


def _open_anew(path: Path, mode: int) -> IO[bytes]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | _BINARY
    return os.fdopen(os.open(path, flags, mode), "wb")


@contextmanager
def open_private(path: Path) -> Iterator[IO[bytes]]:
    """Open a file to replace it, which nobody but its owner may read if it is a new one.

    The old one stays until the new one is whole, unless it is a device or pipe, or its folder takes
    no other file. Raises OSError.
    """
    path = Path(os.path.realpath(path))
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        with _open_anew(path, OWNER) as file:
            yield file
        return
    kept = path.stat().st_mode & 0o777 if path.exists() else None
    with _replacing(path, OWNER) as file:
        yield file
    if kept is not None:
        path.chmod(kept)


def others_may(path: Path, bits: int) -> bool:
    """Return whether others have one of these permissions of a path (never on Windows)."""
    return os.name == "posix" and bool(path.stat().st_mode & bits & 0o077)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if not _FOLDERS_OPEN:
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Lock(io.FileIO):
    """An open file that this process has locked, until it closes it or ends.

    A forked process inherits the descriptor, and with it the lock: it closes its own at once, and
    what it closes unlocks nothing here.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "r+")
        self._pid = os.getpid()
        _HELD.add(self)

    def close(self) -> None:
        """Unlock the file for all who have its descriptor, and close it."""
        if fcntl and not self.closed and self._pid == os.getpid():
            with suppress(OSError):
                fcntl.flock(self, fcntl.LOCK_UN)
        super().close()


_HELD: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_in_child() -> None:
    for lock in list(_HELD):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def check_process(pid: int, what: str) -> None:
    """Raise LocalProtocolError if the process `pid` has made `what`, and this is a fork of it."""
    if pid != os.getpid():
        raise LocalProtocolError(
            f"{what} was made by process {pid}, and this is process {os.getpid()}, a fork of it, "
            "which cannot use its connections: make one in the process that uses it"
        )


def lock_folder(folder: Path, refusal: str) -> Lock:
    """Lock a folder until the file is closed. Raises ConfigError with `refusal`, or OSError."""
    try:
        return lock_file(folder / _LOCK)
    except BlockingIOError as error:
        raise ConfigError(refusal) from error


def lock_file(path: Path) -> Lock:
    """Open a file for this process alone. Raises BlockingIOError if another one has it."""
    file = Lock(os.open(path, os.O_RDWR | os.O_CREAT | _BINARY, OWNER))
    try:
        if fcntl:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file


def is_locked(folder: Path) -> bool:
    """Return whether a process has locked a folder, as far as we may look into it."""
    try:
        with (folder / _LOCK).open("rb") as lock:
            # another one that only looks is not in the way
            if fcntl:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def say(text: str) -> None:
    """Print a line at once. A full disk behind the standard output stops nothing (`unsaid`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        unsaid[:] = [error]
