"""The updates that a client has voted on, each in one round of several votes.

SECURITY: an update of which a digit was opened is never voted on in another round. The digits of
another set of clients would tell more than one result. So a round claims an update before any of it
is sent, for good: the client frees it only if both servers say that they have opened nothing.

All cohorts of a client share the file, which is only ever appended to. Its lines, in their order,
say which round has an update, so that of two processes the first one counts.
"""

import os
import re
from pathlib import Path

from securemedian.clients.upload import number_of
from securemedian.common.durable import OWNER, sync_folder
from securemedian.common.status import POLICY
from securemedian.mpc.errors import ConfigError, InputError

# a line that a crash has cut fits nothing
_LINE = re.compile(r"^(claim|free) (\S+) ([0-9a-f]{64})$", re.MULTILINE)


class UpdateSpent(InputError):
    """An update was voted on in another round of several votes: train again."""

    # as if its policy refused the round
    code = POLICY


class Spent:
    """The file of a client's updates. Without a path nothing can be claimed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def round_of(self, update: bytes) -> str:
        """Return the round that has claimed an update, by its fingerprint, or ""."""
        return self._claimed().get(update.hex(), "")

    def numbers(self) -> set[int]:
        """Return the numbers of the rounds that have claimed updates."""
        return {number_of(round_id) for round_id in self._claimed().values()}

    def claim(self, update: bytes, claimant: str) -> None:
        """Claim an update for a round, once and again. It may be sent once this returns.

        SECURITY: `claimant` is the round's id, and behind a "/" what only that round has: a server
        that deviates may open another one of the same id.

        Raises UpdateSpent if another round has it, and ConfigError if this cannot be written.
        """
        # a line that is there already may not be on the disk; that of another round counts first
        claimed = self._claimed(f"claim {claimant} {update.hex()}").get(update.hex(), "")
        if claimed != claimant:
            round_id, other = (each.partition("/")[0] for each in (claimant, claimed))
            raise UpdateSpent(
                f"an update for round {round_id} that was voted on in another round: {other}; "
                "train again, because a second vote on it would tell more"
            )

    def free(self, update: bytes, claimant: str) -> None:
        """Free an update if this round has it. Raises ConfigError if this cannot be written."""
        self._claimed(f"free {claimant} {update.hex()}")

    def _claimed(self, line: str = "") -> dict[str, str]:
        """Append a line, and return the round of each update. Raises ConfigError."""
        found: dict[str, str] = {}
        if not self._path or not (line or self._path.exists()):
            return found
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        try:
            with os.fdopen(os.open(self._path, flags, OWNER), "r+b") as file:
                if line:
                    # one that a crash has cut ends here
                    file.write(f"\n{line}\n".encode())
                    file.flush()
                    os.fsync(file.fileno())
                    sync_folder(self._path.parent)
                file.seek(0)
                text = file.read().decode("ascii", "replace")
        except OSError as error:
            raise ConfigError(
                f"cannot use the file: {self._path} ({error.strerror}); make room, and see that "
                "this user may write to it. Nothing was sent"
            ) from error
        for what, round_id, update in _LINE.findall(text):
            if what == "claim":
                found.setdefault(update, round_id)
            elif found.get(update) == round_id:
                del found[update]
        return found
