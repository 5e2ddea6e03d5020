"""The opening of authenticated values: each message carries a digest of what proves the one before.

A party that opens a value also sends SHA-256 of its MACs, or of its tags. The other party computes
from its keys what they have to be, and compares. So digests go one way: the one who checks opens
nothing of its own, and says at most that they differ. An honest party's digest is a function of
what it opens and of the other's keys and Delta. It tells the other party nothing, whatever that one
has sent before. A value that is not opened must not be compared so: its digest would let the other
party test guesses of it (`audit.equality`).

MACs of a message may go with the next one if that is as random as the first: what reveals more
waits for `settle`. Every digest is bound to the session, the lane, the party and its number.
"""

import hashlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated
from securemedian.mpc.protocols.channel import Channel

DIGEST_WORDS = hashlib.sha256().digest_size // 8


class Opener:
    """One party's openings on one lane, in their order. `what` names those under way in errors."""

    def __init__(self, channel: Channel, number: int, context: bytes) -> None:
        """Take 32 bytes that no other lane of any session has."""
        self._channel, self._number, self._context = channel, number, context
        self._count, self.what = 0, "openings"
        self._begin()

    def __repr__(self) -> str:
        return f"Opener({self._count} digests, <secrets>)"

    def _begin(self) -> None:
        """Begin the digests of both parties."""
        own, peers = (
            hashlib.sha256(digest("opening", self._context, who, self._count))
            for who in (self._number, 1 - self._number)
        )
        self._own, self._wanted = own, peers
        self._count += 1

    def add_own(self, array: NDArray[np.generic]) -> None:
        """Append a contiguous array of MACs of what this party opens."""
        self._own.update(array.data)

    def add_wanted(self, array: NDArray[np.generic]) -> None:
        """Append a contiguous array of what the peer's MACs have to be."""
        self._wanted.update(array.data)

    def add_macs(self, own: NDArray[np.generic], wanted: NDArray[np.generic]) -> None:
        """Append the MACs of what this party opened, and what those of the peer have to be."""
        self.add_own(own)
        self.add_wanted(wanted)

    def tell(
        self, label: str, mine: Words, expect: Callable[[Words], None] | None = None
    ) -> tuple[Words, bool]:
        """Send words (n,) with the digest so far, and return the peer's and whether its is right.

        `expect` may append to what is wanted once the peer's words are known: the digest then is of
        this message, too.
        """
        digested = np.frombuffer(self._own.digest(), np.uint64)
        message = self._channel.exchange(label, np.concatenate([mine.reshape(-1), digested]))
        theirs = message[:-DIGEST_WORDS].reshape(mine.shape)
        if expect is not None:
            expect(theirs)
        agreed = message[-DIGEST_WORDS:].tobytes() == self._wanted.digest()
        self._begin()
        return theirs, agreed

    def exchange(
        self, label: str, mine: Words, expect: Callable[[Words], None] | None = None
    ) -> Words:
        """Do as `tell` does, and return the peer's words. Raises PeerDeviated if it is wrong."""
        theirs, agreed = self.tell(label, mine, expect)
        if not agreed:
            raise PeerDeviated(f"the MACs of {self.what} do not agree")
        return theirs

    def settle(self, what: str) -> None:
        """Compare the digests so far by a message of their own. Raises PeerDeviated."""
        before, self.what = self.what, f"{what}, {self.what}"
        self.exchange("opening.digest", np.empty(0, np.uint64))
        self.what = before
