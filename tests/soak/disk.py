"""A server's state folder that can be full, in one of two ways.

Root mounts a small file system of its own for it, and fills that with a file. Anybody else, and
where mounting is not allowed, limits the length of the files that the running server may write.
"""

import os
import resource
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

SIZE = "64m"
# for mount and umount
LIMIT_S = 30.0
PIECE = bytes(1 << 20)


class Disk:
    """The disk below the state folder of one server. `close` unmounts what this has mounted."""

    def __init__(self, folder: Path, pid: Callable[[], int | None]) -> None:
        """Take the state folder, and the function that returns the server's process id."""
        self._folder, self._pid = folder, pid
        self._filler = folder / "filler"
        folder.mkdir(mode=0o700)
        options = f"size={SIZE},mode=700"
        self.mounted = _succeeds("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))

    def fill(self) -> None:
        if not self.mounted:
            self._limit(0)
            return
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(PIECE):
                pass

    def free(self) -> None:
        if self.mounted:
            self._filler.unlink(missing_ok=True)
        else:
            self._limit(resource.RLIM_INFINITY)

    def used_bytes(self) -> int:
        total = 0
        for path in self._folder.rglob("*"):
            # files come and go
            with suppress(OSError):
                total += path.stat().st_size if path != self._filler and path.is_file() else 0
        return total

    def close(self) -> None:
        """Unmount, with everything that is on it."""
        if self.mounted:
            _succeeds("umount", "--lazy", str(self._folder))

    def _limit(self, size: int) -> None:
        if (pid := self._pid()) is not None:
            with suppress(OSError):
                hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
                limit = hard if size == resource.RLIM_INFINITY else size
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


def _succeeds(*command: str) -> bool:
    if os.geteuid() != 0:
        return False
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
