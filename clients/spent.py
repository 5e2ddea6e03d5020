"""The updates of a client that it has voted on beyond the first vote of a round, for good.

SECURITY: an update of which digits were told is never voted on in another round. The digits of
another set of clients would tell more than one result. All cohorts of a client share the file,
which is only ever appended to.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from securemedian.clients.upload import number_of
from securemedian.common.durable import OWNER, sync_folder
from securemedian.mpc.errors import ConfigError


class Spent:
    """The file of a client's updates that were voted on. Without a path it has none."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def first(self, update: bytes) -> str:
        """Return the round that an update, by its fingerprint, was voted on in, or ""."""
        return next((name for found, name in self._lines() if found == update.hex()), "")

    def numbers(self) -> set[int]:
        """Return the numbers of the rounds in which updates were voted on."""
        return {number_of(round_id) for _, round_id in self._lines()}

    def note(self, update: bytes, round_id: str) -> str:
        """Note that an update is voted on, and return the round in which it first was.

        Of two processes that do so at once, the first line in the file counts. Raises ConfigError
        if it cannot be written.
        """
        if first := self.first(update):
            return first
        if self._path is None:
            raise ConfigError(
                "a round of several votes needs a state_dir, which remembers what was voted on: "
                f"{round_id}; set it in client.toml"
            )
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, OWNER)
            try:
                # a line that a crash has cut ends here
                os.write(descriptor, f"\n{update.hex()} {round_id}\n".encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            sync_folder(self._path.parent)
        except OSError as error:
            raise ConfigError(
                f"cannot write the file: {self._path} ({error.strerror}); make room. Nothing was "
                "sent"
            ) from error
        return self.first(update)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield fingerprints and rounds, in their order. Raises ConfigError."""
        try:
            text = self._path.read_text("utf-8") if self._path and self._path.exists() else ""
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot read the file: {self._path} ({error}); restore it from a copy"
            ) from error
        for line in text.splitlines():
            update, _, round_id = line.partition(" ")
            if round_id:
                yield update, round_id
