"""SoftSpokenOT: millions of random 1-of-2 OTs from 128 base OTs.

Roy, CRYPTO 2022, with the repetition code; secure if either party deviates, by the checks of
`ot.ggm` (Section 5) and of `ot.consistency`.

With k = `ot_field_bits` there are 128/k blocks and q = 2^k. In block i the extension *receiver*
knows q leaves r_x of a GGM tree, the *sender* all but the one at its secret Delta_i. With every
leaf expanded to n bits,

    receiver:  u_i = XOR_x r_x,   v_i = XOR_x x r_x
    sender:    w_i = XOR_x (Delta_i ^ x) r_x = v_i ^ Delta_i u_i

since the missing leaf has factor 0. The receiver takes u = u_0 as its choice bits and sends
c_i = u_i ^ u for the other blocks, n bits each, so that the sender gets w_i = v_i ^ Delta_i u.
Column by column that is W = V ^ u Delta over 128 bits, and

    the sender's keys are H(t, W) and H(t, W ^ Delta),
    the receiver's is H(t, V), the key of choice u,

with the hash H of `ot.hash` under a key of the session. The tweak t is unique in a session:
`index` only grows, and a lane's streams are expanded once, in order. The columns are pseudorandom,
and nobody chooses x against t: the sender's coin in `ot.ggm` sees to that.

The receiver sends 128/k - 1 uniform bits per OT: one message per `extend`, and these messages do
not wait for each other.
"""

import itertools
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.ot.consistency import (
    PROOF_WORDS,
    Weighing,
    digest,
    reduced,
)
from securemedian.mpc.protocols.ot.extension import (
    ALIGN,
    Direction,
    RandomOtEnd,
    RandomOtReceiver,
    RandomOtSender,
    Scratch,
    blocks_of,
    checked_block,
)
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.ot.leaves import Corrected, Rows, Tweaked, Wanted, expander
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream
from securemedian.mpc.protocols.protocol import SECURITY_BITS


def corrections_shape(field_bits: int, count: int) -> tuple[int, int]:
    """Return the shape in words of the one message of `extend`: one row per block but the first."""
    return SECURITY_BITS // field_bits - 1, count // 64


# The streams of OTs with the low word of Delta alone have nonces from here on: lanes are below.
LOW_NONCE = 1 << 16


class _SoftSpoken(RandomOtEnd):
    """The common part of both ends: the streams of the leaves, and the hash.

    The tweak of an OT is the `index` before the OT was made, and `tweaks`.

    Ends of fewer `rows` than 128 have the trees of these alone, and streams of their own. They make
    correlated OTs, and nothing to hash.
    """

    sender_speaks = False
    # the direction, and what `low` takes half of
    _given: tuple[Any, ...]

    def __init__(self, direction: Direction, leaves: list[list[bytes]], rows: int) -> None:
        self._channel, native_aes = direction.channel, direction.native_aes
        nonce = direction.lane + (0 if rows == SECURITY_BITS else LOW_NONCE)
        self._leaves, self._trees = expander(leaves, nonce, native_aes), len(leaves)
        self._row_count = rows
        self.tweaks = direction.tweaks
        self._scratch, label = Scratch(), b"securemedian pi"
        self.hash = Hash(self._scratch, label, direction.session, native_aes=native_aes)

    @property
    def ots(self) -> int:
        return self.index + (self.low.index if "low" in vars(self) else 0)

    @cached_property
    def low(self) -> Self:
        """The end for OTs that have the low word of Delta alone, at half the cost."""
        direction, *arrays = self._given
        halves = [each[: len(each) // 2] for each in arrays]
        made: type[Any] = type(self)
        low: Self = made(direction, *halves, SECURITY_BITS // 2)
        return low

    def __repr__(self) -> str:
        return f"{type(self).__name__}(index={self.index}, <secrets>)"


_ALONE = -1


@dataclass(frozen=True)
class _Kept:
    """A receiver's rows of a call until they are weighed: u (w,) and the strips of V.

    `number` is that of the memory of the strips; _ALONE stands for OTs for the check alone.
    """

    choices: Words = field(repr=False)
    strips: Words = field(repr=False)
    number: int


class SoftSpokenReceiver(_SoftSpoken, RandomOtReceiver):
    """The receiver's end, which sends one message of corrections per `extend`."""

    def __init__(
        self, direction: Direction, leaves: list[list[bytes]], rows: int = SECURITY_BITS
    ) -> None:
        super().__init__(direction, leaves, rows)
        self._given = direction, leaves
        # of the check that is under way
        self._weighing: Weighing | None = None
        # the calls of the portion in hand
        self._portion: list[_Kept] = []
        # those before whose rows have weights, and are weighed by the call that takes their memory
        self._weighted: list[tuple[_Kept, Words]] = []

    def extend(self, count: int) -> tuple[Words, Blocks]:
        keys = self._scratch.array("keys", checked_block(count), 2)
        return self._make(np.empty(count // 64, np.uint64), Wanted(keys=[keys])), keys

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        choices = np.empty(count // 64, np.uint64)
        planes = np.empty((width, choices.size), np.uint64)
        for words in blocks_of(count):
            self._make(choices[words], Wanted(at=words.start, planes=[planes]))
        return choices, planes

    def extend_correlated(self, out: Words, hashes: Words | None = None) -> Words:
        """Make OTs as `extend` does, and return u.

        The low words of the columns of V are written to `out` (n,), and those of keys to `hashes`.

        SECURITY: they are to be checked before anything that is made of them is sent.
        """
        wanted = Wanted(columns=out, hashes=[] if hashes is None else [hashes])
        return self._make(np.empty(checked_block(len(out)) // 64, np.uint64), wanted)

    def _make(self, choices: Words, wanted: Wanted) -> Words:
        """Make OTs, 64 per word of the choices, send their corrections, and return the choices.

        Nothing may be written to these until the OTs are checked.
        """
        # new each time, because the channel may still be sending the last ones
        corrections = np.empty((self._trees - 1, choices.size), np.uint64)
        number, rows = self._rows(64 * choices.size)
        tweaked = Tweaked(self.hash, self.index, self.tweaks)
        self._leaves.make(tweaked, Corrected(corrections, choices), rows, wanted)
        self._channel.send("ot.corrections", corrections)
        self._portion.append(_Kept(choices, rows.strips, number))
        self.index += 64 * choices.size
        return choices

    def _rows(self, count: int) -> tuple[int, Rows]:
        """Return memory, and its number, for the rows of a call, which stay until they are weighed.

        It is that of a call of as many OTs that has weights, if there is one.
        """
        shape = self._leaves.strips(count // 64)
        for i, (kept, weights) in enumerate(self._weighted):
            fits = kept.choices.size == count // 64 and kept.strips.shape == shape
            fits = fits and kept.number != _ALONE
            if fits and self._weighing is not None:
                del self._weighted[i]
                return kept.number, Rows(kept.strips, weights, self._weighing.rows)
        taken = {kept.number for kept in (*self._portion, *(kept for kept, _ in self._weighted))}
        number = next(number for number in itertools.count() if number not in taken)
        return number, Rows(self._scratch.array(f"rows {number}", *shape))

    def seal(self) -> None:
        if self._portion and self._weighing is None:
            self._weighing = Weighing(self._row_count)
            choices, rows = self.correlate(ALIGN)
            self._portion.append(_Kept(choices, rows[None], _ALONE))

    def weigh(self) -> None:
        if not self._portion or self._weighing is None:
            return
        self._weigh_rest(self._weighing)
        seed = self._channel.recv("ot.challenge", np.uint8, (SEED_BYTES,))
        self._weighing.begin(seed.tobytes())
        for kept in self._portion:
            weights = self._weighing.coefficients(kept.choices.size, kept.number == _ALONE)
            Rows(kept.choices.reshape(1, 1, -1), weights, self._weighing.choices).weigh()
            self._weighted.append((kept, weights))
        self._portion.clear()

    def _weigh_rest(self, weighing: Weighing) -> None:
        """Weigh the rows whose memory no call has taken."""
        for kept, weights in self._weighted:
            Rows(kept.strips, weights, weighing.rows).weigh()
        self._weighted.clear()

    def prove(self) -> None:
        if self._weighing is None:
            return
        weighing, self._weighing = self._weighing, None
        self._weigh_rest(weighing)
        proof = np.concatenate((reduced(weighing.choices), digest(reduced(weighing.rows))))
        self._channel.send("ot.proof", proof)

    def correlate(self, count: int) -> tuple[Words, Words]:
        """Return the correlated OTs that `extend` would hash: u (count/64,) and V (128, count/64).

        Sends the corrections. Only those of `seal` are checked.
        """
        words = checked_block(count) // 64
        rows, choices = np.empty((self._row_count, words), np.uint64), np.empty(words, np.uint64)
        corrections = np.empty((self._trees - 1, words), np.uint64)
        self._leaves.rows(Corrected(corrections, choices), rows)
        self._channel.send("ot.corrections", corrections)
        return choices, rows


class SoftSpokenSender(_SoftSpoken, RandomOtSender):
    """The sender's end, which waits for the corrections and holds Delta.

    `delta` is Delta as two words, low word first, and `sigma_delta` is sigma(Delta): the difference
    of the hash's inputs for the two keys of an OT. Both are secret.
    """

    def __init__(
        self,
        direction: Direction,
        delta: NDArray[np.uint8],
        leaves: list[list[bytes]],
        rows: int = SECURITY_BITS,
    ) -> None:
        # folding weighs leaf y with y; storing leaf x at x ^ Delta_i weighs it with Delta_i ^ x,
        # and the missing one with 0
        weights = (
            delta.reshape(len(leaves), -1).astype(np.int64) << np.arange(delta.size // len(leaves))
        ).sum(axis=1)
        moved = [
            [tree[y ^ int(d)] for y in range(len(tree))]
            for tree, d in zip(leaves, weights, strict=True)
        ]
        super().__init__(direction, moved, rows)
        self._given = direction, delta, leaves
        self._masks = np.uint64(0) - delta.astype(np.uint64)
        self.delta: Words = np.packbits(delta, bitorder="little").view(np.uint64)
        low, high = self.delta[0], self.delta[-1]
        self.sigma_delta: Words = np.array([low ^ high, low])
        self._randomness = Stream(direction.entropy(SEED_BYTES))
        # of the check that is under way
        self._weighing: Weighing | None = None

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        keys0, keys1 = (
            self._scratch.array(name, checked_block(count), 2) for name in ("keys0", "keys1")
        )
        self._make(count, Wanted(self.sigma_delta, keys=[keys0, keys1]))
        return keys0, keys1

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        planes0, planes1 = (np.empty((width, count // 64), np.uint64) for _ in range(2))
        for words in blocks_of(count):
            wanted = Wanted(self.sigma_delta, at=words.start, planes=[planes0, planes1])
            self._make(64 * (words.stop - words.start), wanted)
        return planes0, planes1

    def extend_correlated(
        self, out: Words, hashes0: Words | None = None, hashes1: Words | None = None
    ) -> None:
        """Make OTs as `extend` does, and write the low words of the columns of W, and of keys.

        SECURITY: they are to be checked before anything that is made of them is sent.
        """
        hashes = [each for each in (hashes0, hashes1) if each is not None]
        self._make(len(out), Wanted(self.sigma_delta, columns=out, hashes=hashes))

    def _make(self, count: int, wanted: Wanted) -> None:
        """Make OTs, as soon as their corrections come, in the memory of one strip of rows."""
        given = Corrected(self._corrections(count), masks=self._masks)
        weighing = self._weighing = self._weighing or Weighing(self._row_count)
        if not weighing.seed:
            weighing.begin(self._randomness.words(SEED_BYTES // 8).tobytes())
        memory = self._scratch.array("rows", 1, *self._leaves.strips(count // 64)[1:])
        rows = Rows(memory, weighing.coefficients(count // 64), weighing.rows)
        self._leaves.make(Tweaked(self.hash, self.index, self.tweaks), given, rows, wanted)
        self.index += count

    def challenge(self) -> None:
        weighing = self._weighing
        if weighing is None or not weighing.seed:
            return
        if weighing.portions == 1:
            rows, weights = self.correlate(ALIGN), weighing.coefficients(ALIGN // 64, True)
            Rows(rows[None], weights, weighing.rows).weigh()
        self._channel.send("ot.challenge", np.frombuffer(weighing.seed, np.uint8))
        weighing.end()

    def verify(self) -> None:
        if self._weighing is None:
            return
        weighing, self._weighing = self._weighing, None
        proof = self._channel.recv("ot.proof", np.uint64, (PROOF_WORDS,))
        wanted = digest(reduced(weighing.rows) ^ self._masks & proof[0])
        if (proof[1:] != wanted).any():
            raise PeerProtocolError(
                "the peer's corrections of OTs are not those of one vector of choices: it did not "
                "follow the protocol, and none of these OTs is used"
            )

    def correlate(self, count: int) -> Words:
        """Return the correlated OTs that `extend` would hash: W (128, count/64).

        Waits for the receiver's corrections. Only those of `challenge` are checked.
        """
        given = Corrected(self._corrections(count), masks=self._masks)
        rows = np.empty((self._row_count, count // 64), np.uint64)
        self._leaves.rows(given, rows)
        return rows

    def _corrections(self, count: int) -> Words:
        """Wait for the receiver's corrections of `count` OTs."""
        shape = self._trees - 1, checked_block(count) // 64
        return self._channel.recv("ot.corrections", np.uint64, shape)
