"""The opening of authenticated values, each with a digest of the MACs that prove it.

A party that opens a value also sends a digest of its MACs, or of its tags. The other party computes
from its keys what they have to be, and compares. So digests go one way: the one who checks opens
nothing of its own, and says at most that they differ. An honest party's digest is a function of
what it opens and of the other's keys and Delta. It tells the other party nothing, whatever that one
has sent before. A value that is not opened must not be compared so: its digest would let the other
party test guesses of it (`audit.equality`).

A digest is of a universal hash (`audit.equality.Compared`), whose key is a hash of what is opened,
and of all that was tossed before (`mix`). Say that some of what is opened is wrong. The right tags
are then a known function of Delta, which depends on it. For any two Delta they have the same hash
for one key in 2^100, so that a forgery still has to guess Delta. A party gets another key only if
it opens something else. The digest is bound to the session, the lane, the party and its number.

SECURITY: whoever knows the key can choose errors that cancel in the hash, whatever Delta is: the
hash is linear. So nothing that is opened may be wrong in a way that was chosen after the key was
known. The key depends on what is opened, and on a toss. The values that it is compared with were
committed to before that toss.

MACs of a message may go with the next one if that is as random as the first. A message that reveals
more waits for `settle`.
"""

from collections.abc import Callable, Iterable

import numpy as np

from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import LocalProtocolError, PeerDeviated
from securemedian.mpc.protocols.audit.equality import DIGEST_BYTES, Compared
from securemedian.mpc.protocols.channel import Channel

DIGEST_WORDS = DIGEST_BYTES // 8

# Returns what the MACs of the words that the peer opens have to be.
Expect = Callable[[Words], Iterable[Ring]]


class Opener:
    """One party's openings on one lane, in their order. `what` names those under way in errors."""

    def __init__(self, channel: Channel, number: int, context: bytes) -> None:
        """Take 32 bytes that no other lane of any session has."""
        self._channel, self._number, self._context = channel, number, context
        self._count, self.what = 0, "openings"
        self._open(np.empty(0, np.uint64), np.empty(0, np.uint64))

    def __repr__(self) -> str:
        return f"Opener({self._count} digests, <secrets>)"

    def _open(self, mine: Words, theirs: Words) -> None:
        """Begin the digests of what was opened."""
        self._own = self._hash(self._number, mine)
        self._wanted = self._hash(1 - self._number, theirs)
        # whether MACs of it wait for the next message
        self._waiting = False

    def _hash(self, who: int, words: Words) -> Compared:
        """Return the hash of the MACs of what party `who` opens."""
        return Compared(digest("opening", self._context, who, self._count, words.tobytes()))

    def mix(self, seed: bytes) -> None:
        """Make the keys of all that is opened from now on depend on a seed that was tossed.

        SECURITY: before anything is opened that was committed to since the last seed.
        """
        self._context = digest(self._context, seed)

    def begin(self, mine: Words, macs: Iterable[Ring]) -> None:
        """Begin the digest of what the next message opens, which goes with it, and of its MACs.

        These are contiguous arrays. Raises LocalProtocolError if MACs of the last message wait.
        """
        if self._waiting:
            raise LocalProtocolError("MACs of what was opened are not compared")
        self._own = self._hash(self._number, mine)
        for each in macs:
            self._own.update(each)

    def add_macs(self, own: Ring, wanted: Ring) -> None:
        """Append MACs of what was opened last, and what those of the peer have to be.

        Their digest goes with the next message.
        """
        self._own.update(own)
        self._wanted.update(wanted)
        self._waiting = True

    def tell(self, label: str, mine: Words, expect: Expect | None = None) -> tuple[Words, bool]:
        """Send words with the digest so far, and return the peer's and whether its digest is right.

        If the digest is of this message, after `begin`, `expect` returns what MACs it has to have.
        """
        own = np.frombuffer(self._own.digest(), np.uint64)
        message = self._channel.exchange(label, np.concatenate([mine.reshape(-1), own]))
        theirs = message[:-DIGEST_WORDS].reshape(mine.shape)
        if expect is not None:
            self._wanted = self._hash(1 - self._number, theirs)
            for each in expect(theirs):
                self._wanted.update(each)
        agreed = message[-DIGEST_WORDS:].tobytes() == self._wanted.digest()
        self._count += 1
        self._open(mine, theirs)
        return theirs, agreed

    def exchange(self, label: str, mine: Words, expect: Expect | None = None) -> Words:
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
