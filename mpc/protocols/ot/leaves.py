"""The leaves of SoftSpokenOT's trees, expanded, folded and corrected (`ot.softspoken`).

Two ways give the same bytes. OpenSSL expands the leaves to memory, and kernels fold and correct
them there. Or a processor with AES instructions does all of it in registers, and hashes a strip of
columns while its rows are in the cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols.kernels import extension as kernels
from securemedian.mpc.protocols.kernels.native import leaves as native
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

    def weigh(self) -> None:
        """Add the rows, times their weights if there are any, to their sums."""
        if self.weights is not None and self.sums is not None:
            kernels.weigh(self.strips, self.weights, self.sums)


@dataclass(frozen=True)
class Tweaked:
    """A hash, and the tweaks from an index of a stream on, that are not used yet."""

    hash: Hash
    index: int
    stream: np.uint64


@dataclass(frozen=True)
class Wanted:
    """The arrays that a call writes besides rows, all of them made of the columns of the rows.

    keys       (64 w, 2): the columns' hashes; a sender's come in pairs, the second with the hash
               inputs' `difference`, as `Hash` makes them
    columns    (64 w,): the low words of the columns
    hashes     (64 w,): the low words of keys
    planes     (l, w or more): the lowest bits of keys, in words `at` to `at` + w - 1 of bit planes
    """

    difference: Words | None = field(default=None, repr=False)
    keys: Sequence[Blocks] = field(default=(), repr=False)
    columns: Words | None = field(default=None, repr=False)
    hashes: Sequence[Words] = field(default=(), repr=False)
    at: int = 0
    planes: Sequence[Words] = field(default=(), repr=False)


@dataclass(frozen=True)
class Corrected:
    """The `corrections` (128/k - 1, w) of a call, and what only one of both ends has.

    The receiver has `choices` (w,), which it writes along with the corrections. The sender has
    `masks` (128,), all ones for each bit of Delta that is set, and reads the corrections.
    """

    corrections: Words = field(repr=False)
    choices: Words | None = field(default=None, repr=False)
    masks: Words | None = field(default=None, repr=False)


class Leaves(ABC):
    """The streams of all leaves of one lane. Every call takes their next bits, w words of each.

    The sender misses the first leaf of each tree. Fewer trees than 128/k have k rows each.
    """

    def __init__(self, trees: list[list[bytes]]) -> None:
        self._row_count = len(trees) * (len(trees[0]).bit_length() - 1)

    @abstractmethod
    def rows(self, given: Corrected, rows: Words) -> None:
        """Write the receiver's V, u and c, or the sender's W: rows (128, w)."""

    @abstractmethod
    def strips(self, words: int) -> tuple[int, int, int]:
        """Return the shape of the strips into which `make` cuts rows of so many words."""

    @abstractmethod
    def make(self, tweaked: Tweaked, given: Corrected, rows: Rows, wanted: Wanted) -> None:
        """Write rows and weigh them, and write what is wanted of their columns."""


class PortableLeaves(Leaves):
    """Leaves that OpenSSL expands, on any processor."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        super().__init__(trees)
        self._scratch = Scratch()
        self._trees = [
            [Stream(leaf, nonce=nonce) if leaf else None for leaf in tree] for tree in trees
        ]

    def rows(self, given: Corrected, rows: Words) -> None:
        corrections, choices, masks = given.corrections, given.choices, given.masks
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
        return 1, self._row_count, words

    def make(self, tweaked: Tweaked, given: Corrected, rows: Rows, wanted: Wanted) -> None:
        here = rows.strips[0]
        if given.choices is not None:
            rows.weigh()
        self.rows(given, here)
        if given.masks is not None:
            rows.weigh()
        if wanted.columns is not None:
            kernels.low_words(here, wanted.columns)
        outputs, words = len(wanted.keys or wanted.hashes or wanted.planes), here.shape[1]
        if not outputs:
            return
        keys = wanted.keys or [
            self._scratch.array(f"keys{i}", 64 * words, 2) for i in range(outputs)
        ]
        second = keys[1] if outputs == 2 else None
        tweaked.hash.columns(
            here, tweaked.index, tweaked.stream, keys[0], wanted.difference, second
        )
        for key, low in zip(keys, wanted.hashes, strict=False):
            low[:] = key[:, 0]
        for key, planes in zip(keys, wanted.planes, strict=False):
            planes[:, wanted.at : wanted.at + words] = bit_planes(key, len(planes))


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

    def rows(self, given: Corrected, rows: Words) -> None:
        self.make(None, given, Rows(rows[None]), Wanted())

    def strips(self, words: int) -> tuple[int, int, int]:
        return -(-words // native.STRIP), self._row_count, native.STRIP

    def make(self, tweaked: Tweaked | None, given: Corrected, rows: Rows, wanted: Wanted) -> None:
        first, words = np.uint64(self._used), given.corrections.shape[1]
        self._used += words // BLOCK_WORDS
        keys, difference, tweak = None, None, (np.uint64(0), np.uint64(0))
        if tweaked is not None and (wanted.keys or wanted.hashes or wanted.planes):
            keys, difference = tweaked.hash.round_keys, wanted.difference
            assert keys is not None, "both take the processor's own AES, or neither"
            tweak = np.uint64(tweaked.index), tweaked.stream
        weights, sums = rows.weights, rows.sums
        if weights is None or sums is None:
            weights = np.zeros(words, np.uint64)
            sums = np.zeros((rows.strips.shape[1], 2), np.uint64)
        native.expand(
            self._round_keys,
            self._nonce,
            first,
            given.choices,
            given.masks,
            given.corrections,
            rows.strips,
            weights,
            sums,
            *tweak,
            keys,
            difference,
            *_two(wanted.keys),
            wanted.columns,
            *_two(wanted.hashes),
            wanted.at,
            *_two(wanted.planes),
        )


def _two(arrays: Sequence[Words]) -> tuple[Words | None, Words | None]:
    """Return one array or two as kernels take them: None stands for one that is not there."""
    first, second, *_ = *arrays, None, None
    return first, second


def expander(trees: list[list[bytes]], nonce: int, native_aes: bool) -> Leaves:
    """Return the leaves of a lane, on the processor's own AES if that is wanted and there."""
    return (NativeLeaves if use_native(native_aes) else PortableLeaves)(trees, nonce)
