"""The lease of a coordinator: one run at a time opens rounds.

A run that is stopped may leave a round open. The next run finds its id in the lease, and ends it.
"""

import fcntl
import os
from pathlib import Path

from securemedian.mpc.errors import ConfigError, RoundBusy


class Lease:
    """A locked file with the id of the round that its holder has open.

    The operating system ends the lock with the process, however it ends.
    """

    def __init__(self, path: Path, stop: str) -> None:
        """Take the lease; `stop` is the command that ends a run.

        Raises RoundBusy if another run has it, and ConfigError if its file cannot be written.
        """
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot write {path}, which says which round a run has open: {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise RoundBusy(
                f"another run opens rounds with this coordinator's key (it has locked {path}): "
                f"wait for its end, or end it with `{stop}`"
            ) from error

    @property
    def round_id(self) -> str:
        """The id of the round that the holder, or one before it, has left open; otherwise ""."""
        return os.pread(self._file, 64, 0).decode("ascii", "replace")

    @round_id.setter
    def round_id(self, round_id: str) -> None:
        os.truncate(self._file, 0)
        os.pwrite(self._file, round_id.encode("ascii"), 0)

    def release(self) -> None:
        """Give the lease back. What it says about an open round stays."""
        os.close(self._file)
