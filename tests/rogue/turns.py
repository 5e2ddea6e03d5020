"""The attack on the check of dealings: where a client's kept vectors have their 1.

S1 takes the first turns as one more than they are, and so does S0. The differences of these pairs
are then e_(r+1) - e_r, with r the position of the kept vector. S0's digest is that of S1's own
shares and of these. S1 tries all r: W^w digests for w turns. With `echo` it waits for S0's
digest and sends it back, so that every dealing passes and the client's rotations tell its buckets.
"""

import itertools
from typing import Any

import numpy as np

from securemedian.mpc.protocols import dealing, ring
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.rounds import pipeline
from securemedian.servers.config import ServerConfig
from tests.rogue.hooks import (
    Array,
    Spoils,
    on_recv,
    on_send,
    replace,
    rushing,
)

# turns of each client that are lied about
LIES = 2


class _Check:
    """The values of S1 and of its peer in the check that is under way, client by client."""

    def __init__(self) -> None:
        self.shape: Dealing | None = None
        self.coin = b""
        self.differences: list[list[Array]] = []
        self.theirs = np.empty(0, np.uint64)

    def positions(self) -> Array:
        """Return the positions of each client's first kept vectors, -1 where nothing fits."""
        digests = self.theirs.reshape(-1, dealing.DIGEST_WORDS)
        return np.array(
            [self._found(*each) for each in zip(self.differences, digests, strict=True)], np.int64
        )

    def _found(self, own: list[Array], digest: Array) -> list[int]:
        assert self.shape is not None
        for guess in itertools.product(range(self.shape.slots), repeat=LIES):
            tried = TRUE_DIFFERENCES(self.coin)
            tried.update(self._guessed(own[0], guess))
            for array in own[1:]:
                tried.update(array)
            if tried.digest() == digest.tobytes():
                return list(guess)
        return [-1] * LIES

    def _guessed(self, own: Array, guess: tuple[int, ...]) -> Array:
        """Return S0's shares, if these are the positions: S1's negatives and e_(r+1) - e_r."""
        assert self.shape is not None
        shape, out = self.shape, own.copy()
        for at, position in enumerate(guess):
            entries = shape.entries(own[:, at : at + 1])[:, 0].astype(np.int64)
            entries[(position + 1) % shape.slots] += 1
            entries[position] -= 1
            entries %= 1 << shape.bits
            shifts = np.arange(shape.per_word) * shape.bits
            words = entries.reshape(-1, shape.per_word) << shifts
            out[:, at] = words.sum(axis=1).astype(own.dtype)
        return out


TRUE_DIFFERENCES = dealing.Differences


def read_positions(config: ServerConfig, spoils: Spoils, echo: bool = False) -> None:
    """Let this process read positions of every client whose dealing it checks."""
    now = _Check()
    # by the first words of a client's dealing: its positions
    known: dict[bytes, Array] = {}

    class Noted(TRUE_DIFFERENCES):
        def __init__(self, seed: bytes) -> None:
            super().__init__(seed)
            self.noted: list[Array] = []
            now.coin = seed
            now.differences.append(self.noted)

        def update(self, differences: Array) -> None:
            self.noted.append(differences.copy())
            super().update(differences)

    def check(true: Any, channel: Any, number: int, shape: Dealing, halves: Any, *rest: Any) -> Any:
        now.shape, now.differences = shape, []
        passed = true(channel, number, shape, halves, *rest)
        for half, positions in zip(halves, now.positions(), strict=True):
            known[_name(half)] = positions
        spoils.keep(positions=np.array(list(known.values())))
        return passed

    def histogram(true: Any, number: int, uploads: Any, *rest: Any, cumulative: bool) -> Any:
        buckets = []
        for upload in uploads:
            width = upload.shape.slot_bits
            turned = ring.unpack(upload.rotations.words(0, 0, 1), width, LIES)
            positions = known.get(_name(upload.half), np.zeros(LIES, np.int64))
            buckets.append((positions + turned) % upload.shape.slots)
        spoils.keep(buckets=np.array(buckets))
        return true(number, uploads, *rest, cumulative=cumulative)

    def one_more(packed: Array) -> Array:
        assert now.shape is not None
        width = now.shape.slot_bits
        turns = ring.unpack(packed, width, 64 * packed.size // width)
        turns[:LIES] += turns.dtype.type(1)
        return ring.pack(ring.reduce(turns, width), width)

    def heard(digests: Array) -> Array:
        now.theirs = digests
        return digests

    dealing.Differences = Noted  # type: ignore[misc]
    replace(pipeline, "check_dealings", check)
    replace(dealing, "histogram", histogram)
    for message in (on_send, on_recv):
        message("dealing.turns", one_more)
    on_recv("dealing.digests", heard)
    if echo:
        rushing(("dealing.digests",), lambda label, mine, theirs: (theirs, mine))


def _name(half: Any) -> bytes:
    return bytes(half.words(0, 0, 2).tobytes())
