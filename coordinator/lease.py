"""The lease of a coordinator: one run opens rounds at a time, and ends those left open."""

from pathlib import Path

from securemedian.common.durable import lock_file
from securemedian.mpc.errors import ConfigError, RoundBusy


class Lease:
    """A locked file with the id of the round its holder has open; it ends with the process."""

    def __init__(self, path: Path, stop: str) -> None:
        """Take the lease. Raises RoundBusy, which names the command `stop`, or ConfigError."""
        try:
            self._file = lock_file(path)
        except BlockingIOError as error:
            raise RoundBusy(
                "another run opens rounds with this coordinator's key and has locked the file: "
                f"{path}; wait for its end, or end it with `{stop}`"
            ) from error
        except OSError as error:
            raise ConfigError(
                f"cannot write the file that says which round a run has open: {path} "
                f"({error.strerror}); make room, or choose another folder"
            ) from error

    @property
    def round_id(self) -> str:
        """The id of the round that the holder, or one before it, has left open; otherwise ""."""
        self._file.seek(0)
        return self._file.read(64).decode("ascii", "replace")

    @round_id.setter
    def round_id(self, round_id: str) -> None:
        self._file.truncate(0)
        self._file.seek(0)
        self._file.write(round_id.encode("ascii"))

    def release(self) -> None:
        """Give the lease back. Its note of an open round stays."""
        self._file.close()
