"""The leaves of SoftSpokenOT's trees, expanded, folded and corrected (`ot.softspoken`).

Two ways give the same bytes. OpenSSL expands the leaves to memory, and kernels fold and correct
them there. Or a processor with AES instructions does all of it in registers, and hashes a strip of
columns while its rows are in the cache.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols.kernels import extension as kernels
from securemedian.mpc.protocols.kernels.native import leaves as native
from securemedian.mpc.protocols.kernels.native import weighing
from securemedian.mpc.protocols.kernels.native.aes import round_keys
from securemedian.mpc.protocols.kernels.native.emit import ROUNDS
from securemedian.mpc.protocols.kernels.native.processor import use_native
from securemedian.mpc.protocols.ot.extension import Scratch, bit_planes
from securemedian.mpc.protocols.ot.hash import Hash, as_bytes
from securemedian.mpc.protocols.prg import BLOCK_WORDS, SEED_BYTES, ZEROS, Stream


@dataclass(frozen=True)
class Rows:
    """The places of a call's rows, and the rows that are weighed (`ot.consistency`).

    strips (s, 128, width) as `Leaves.strips` tells: a receiver's stay there, and a sender may have
    one strip for all of them. With weights (w,) a sender's rows are added to the sums (128, 2), and
    at a receiver those that were there before.
    """

    strips: Words = field(repr=False)
    weights: Words | None = field(default=None, repr=False)
    sums: Words | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Tweaked:
    """A hash, and the tweaks from an index of a stream on, that are not used yet."""

    hash: Hash
    index: int
    stream: np.uint64


class Leaves(ABC):
    """The streams of all leaves of one lane. Every call takes their next bits, w words of each.

    An end is the receiver's if it has `choices` (w,), which it writes along with its `corrections`
    (128/k - 1, w). It is the sender's if it has `masks` (128,), all ones for each bit of Delta that
    is set. The sender misses the first leaf of each tree, and reads the corrections. A sender's
    keys come in pairs, as `Hash` makes them with a `difference`. Fewer trees than 128/k have k rows
    each.
    """

    def __init__(self, trees: list[list[bytes]]) -> None:
        self._scratch = Scratch()
        self._rows = len(trees) * (len(trees[0]).bit_length() - 1)

    @abstractmethod
    def rows(
        self, choices: Words | None, masks: Words | None, corrections: Words, rows: Words
    ) -> None:
        """Write the receiver's V, u and c, or the sender's W: rows (128, w)."""

    @abstractmethod
    def strips(self, words: int) -> tuple[int, int, int]:
        """Return the shape of the strips into which `keys` cuts rows of so many words."""

    def weigh(self, strips: Words, weights: Words, sums: Words) -> None:
        """Add rows in strips, times weights, to their sums, as `extension.weigh` does."""
        # whatever AES is used: there is none in it
        (weighing if use_native(True) else kernels).weigh(strips, weights, sums)

    def keys(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        keys0: Blocks,
        difference: Words | None = None,
        keys1: Blocks | None = None,
    ) -> None:
        """Write rows, and hash their columns: keys (64 w, 2)."""
        here = self._strip(choices, masks, corrections, rows)
        tweaked.hash.columns(here, tweaked.index, tweaked.stream, keys0, difference, keys1)

    def low_words(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        out: Words,
        difference: Words | None = None,
        hashes0: Words | None = None,
        hashes1: Words | None = None,
    ) -> None:
        """Write rows, and the low words of their columns: out (64 w,). So of hashes, if wanted."""
        here = self._strip(choices, masks, corrections, rows)
        kernels.low_words(here, out)
        if hashes0 is None:
            return
        keys0, keys1 = (self._scratch.array(name, out.size, 2) for name in ("keys0", "keys1"))
        tweaked.hash.columns(here, tweaked.index, tweaked.stream, keys0, difference, keys1)
        for hashes, keys in ((hashes0, keys0), (hashes1, keys1)):
            if hashes is not None:
                hashes[:] = keys[:, 0]

    def _strip(
        self, choices: Words | None, masks: Words | None, corrections: Words, rows: Rows
    ) -> Words:
        """Write rows to the first strip, weigh what has to be weighed, and return it."""
        here = rows.strips[0]
        if choices is not None:
            self._weigh(rows)
        self.rows(choices, masks, corrections, here)
        if masks is not None:
            self._weigh(rows)
        return here

    def _weigh(self, rows: Rows) -> None:
        if rows.weights is not None and rows.sums is not None:
            self.weigh(rows.strips, rows.weights, rows.sums)

    def planes(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        at: int,
        planes0: Words,
        difference: Words | None = None,
        planes1: Words | None = None,
    ) -> None:
        """Do as `keys` does, and keep the lowest bits: words `at` to `at` + w - 1 of bit planes."""
        words = corrections.shape[1]
        keys0 = self._scratch.array("keys0", 64 * words, 2)
        keys1 = None if planes1 is None else self._scratch.array("keys1", 64 * words, 2)
        self.keys(tweaked, choices, masks, corrections, rows, keys0, difference, keys1)
        for keys, planes in ((keys0, planes0), (keys1, planes1)):
            if keys is not None and planes is not None:
                planes[:, at : at + words] = bit_planes(keys, len(planes))


class PortableLeaves(Leaves):
    """Leaves that OpenSSL expands, on any processor."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        super().__init__(trees)
        self._trees = [
            [Stream(leaf, nonce=nonce) if leaf else None for leaf in tree] for tree in trees
        ]

    def rows(
        self, choices: Words | None, masks: Words | None, corrections: Words, rows: Words
    ) -> None:
        words, k = rows.shape[1], len(rows) // len(self._trees)
        leaves = self._scratch.array("leaves", 1 << k, words)
        zeros, views = ZEROS[: 8 * words], [as_bytes(leaf) for leaf in leaves]
        for block, tree in enumerate(self._trees):
            for leaf, stream, view in zip(leaves, tree, views, strict=True):
                if stream is None:
                    leaf[:] = 0
                else:
                    stream.xor(zeros, view)
            mine = slice(block * k, (block + 1) * k)
            kernels.fold(leaves, rows[mine])
            if masks is not None and block > 0:
                kernels.correct(rows[mine], corrections[block - 1], masks[mine])
            elif choices is not None and block == 0:
                choices[:] = leaves[0]
            elif choices is not None:
                np.bitwise_xor(leaves[0], choices, out=corrections[block - 1])

    def strips(self, words: int) -> tuple[int, int, int]:
        return 1, self._rows, words


class NativeLeaves(Leaves):
    """Leaves that the processor's AES instructions expand."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        super().__init__(trees)
        # a key of zeros stands for a missing leaf, and is not used
        keys = b"".join(leaf or bytes(SEED_BYTES) for tree in trees for leaf in tree)
        self._round_keys = round_keys(keys).reshape(len(trees), -1, ROUNDS + 1, BLOCK_WORDS)
        self._nonce = np.uint64(nonce)
        # AES blocks of each stream that were used
        self._used = 0

    def rows(
        self, choices: Words | None, masks: Words | None, corrections: Words, rows: Words
    ) -> None:
        given = *self._next(rows.shape[1]), choices, masks, corrections
        here, weights, sums = _weighed(Rows(rows[None]), rows.shape[1])
        native.expand(*given, here[0], weights, sums)

    def strips(self, words: int) -> tuple[int, int, int]:
        return -(-words // native.STRIP), self._rows, native.STRIP

    def keys(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        keys0: Blocks,
        difference: Words | None = None,
        keys1: Blocks | None = None,
    ) -> None:
        given = *self._next(corrections.shape[1]), choices, masks, corrections
        kept, hashing = _weighed(rows, corrections.shape[1]), self._hashing(tweaked)
        native.expand_to_keys(*given, *kept, *hashing, difference, keys0, keys1)

    def planes(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        at: int,
        planes0: Words,
        difference: Words | None = None,
        planes1: Words | None = None,
    ) -> None:
        given = *self._next(corrections.shape[1]), choices, masks, corrections
        kept, hashing = _weighed(rows, corrections.shape[1]), self._hashing(tweaked)
        native.expand_to_planes(*given, *kept, *hashing, at, difference, planes0, planes1)

    def low_words(
        self,
        tweaked: Tweaked,
        choices: Words | None,
        masks: Words | None,
        corrections: Words,
        rows: Rows,
        out: Words,
        difference: Words | None = None,
        hashes0: Words | None = None,
        hashes1: Words | None = None,
    ) -> None:
        given = *self._next(corrections.shape[1]), choices, masks, corrections
        kept, hashing = _weighed(rows, corrections.shape[1]), self._hashing(tweaked)
        native.expand_to_words(*given, *kept, *hashing, difference, out, hashes0, hashes1)

    def _next(self, words: int) -> tuple[Words, np.uint64, np.uint64]:
        """Return the round keys, the nonce and the first block of the next `words` words."""
        first = np.uint64(self._used)
        self._used += words // BLOCK_WORDS
        return self._round_keys, self._nonce, first

    def _hashing(self, tweaked: Tweaked) -> tuple[np.uint64, np.uint64, Words]:
        """Return a tweak and the hash's round keys."""
        keys = tweaked.hash.round_keys
        assert keys is not None, "both take the processor's own AES, or neither"
        return np.uint64(tweaked.index), tweaked.stream, keys


def _weighed(rows: Rows, words: int) -> tuple[Words, Words, Words]:
    """Return what kernels take for rows of so many words: with weights of 0 if there are none."""
    if rows.weights is None or rows.sums is None:
        sums = np.zeros((rows.strips.shape[1], 2), np.uint64)
        return rows.strips, np.zeros(words, np.uint64), sums
    return rows.strips, rows.weights, rows.sums


def expander(trees: list[list[bytes]], nonce: int, native_aes: bool) -> Leaves:
    """Return the leaves of a lane, on the processor's own AES if that is wanted and there."""
    return (NativeLeaves if use_native(native_aes) else PortableLeaves)(trees, nonce)
