"""Comparing what must be the same at both parties, of which neither may see the other's.

Each party collects arrays, in the same order. Once all is fixed, the two toss the key of a
universal hash (`dealing.Differences`), commit to their digests of everything, and then open them.
Arrays that differ anywhere, also by what one party has chosen, go unnoticed with a chance below
2^-90, up to 2^41 bytes of them: one key is enough beside the 2^-40 of all else. The commitment
keeps a party that waits from sending the other's digest back, and a digest that is right tells
nothing, because the party that checks it knows it.
"""

import hashlib
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import PeerDeviated, PeerProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.dealing import Differences, toss, toss_messages
from securemedian.mpc.protocols.prg import Entropy, os_entropy

NONCE_BYTES = 32
DIGEST_BYTES = hashlib.sha256().digest_size


class Compared(Differences):
    """A digest of what one party has collected."""

    KEYS = 1


class Equality:
    """What one party has collected for one comparison with the other."""

    def __init__(self, channel: Channel, number: int, entropy: Entropy = os_entropy) -> None:
        self._channel, self._number, self._entropy = channel, number, entropy
        self._collected: list[Iterable[NDArray[np.generic]]] = []

    def __repr__(self) -> str:
        return f"Equality({len(self._collected)} collected)"

    def add(self, array: NDArray[np.generic]) -> None:
        """Append an array, which must not change before `settle`.

        SECURITY: it has to be fixed by what was sent before `settle`, because the keys of the hash
        are known after it.
        """
        self.add_pieces([np.ascontiguousarray(array)])

    def add_pieces(self, pieces: Iterable[NDArray[np.generic]]) -> None:
        """Append contiguous arrays that are made one after another when `settle` hashes them.

        Each may lie where the one before it lay. SECURITY: as for `add`.
        """
        self._collected.append(pieces)

    def add_macs(self, own: NDArray[np.generic], wanted: NDArray[np.generic]) -> None:
        """Append the MACs of what this party opened, and what those of the peer have to be."""
        # the same order at both: party 0's first
        for array in (own, wanted) if self._number == 0 else (wanted, own):
            self.add(array)

    def settle(self, what: str) -> None:
        """Compare all that was appended, while the other party does the same, and begin anew.

        Takes four rounds. Raises PeerDeviated, which says `what` is wrong, if anything differs.
        """
        hashed = Compared(toss(self._channel, self._number, self._entropy))
        for array in chain.from_iterable(self._collected):
            hashed.update(array.reshape(-1).view(np.uint8))
        self._collected.clear()
        mine = hashed.digest() + self._entropy(NONCE_BYTES)
        # the party is part of it, so that one cannot send the other's back
        committed = self._channel.exchange("audit.commit", _words(self._commitment(mine)))
        theirs = self._channel.exchange("audit.open", _words(mine)).tobytes()
        if digest("audit commitment", 1 - self._number, theirs) != committed.tobytes():
            raise PeerProtocolError("the peer opened another digest than it had committed to")
        if theirs[:-NONCE_BYTES] != mine[:-NONCE_BYTES]:
            raise PeerDeviated(f"{what} do not agree")

    def _commitment(self, opening: bytes) -> bytes:
        return digest("audit commitment", self._number, opening)


def settling() -> Iterator[tuple[bool, str, DTypeLike, tuple[int, ...]]]:
    """Yield what each party sends (True) and receives (False) in `settle`, in its order."""
    yield from toss_messages()
    for label, size in (("audit.commit", DIGEST_BYTES), ("audit.open", DIGEST_BYTES + NONCE_BYTES)):
        for sent in (True, False):
            yield sent, label, np.uint64, (size // 8,)


def _words(data: bytes) -> NDArray[np.uint64]:
    return np.frombuffer(data, np.uint64)
