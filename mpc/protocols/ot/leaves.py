"""The leaves of SoftSpokenOT's trees, expanded, folded and corrected.

One party's leaves of one lane: per block of `mpc.ot.softspoken` a tree with 2^k of them, each the
seed of a stream. What they become is written there; here are the two ways to compute it, which give
the same bytes:

    PortableLeaves  OpenSSL expands the leaves to memory, kernels fold and correct what is there.
    NativeLeaves    does all of it in registers, where the processor has AES instructions, and
                    hashes a strip of columns while its rows are in the cache.
"""

from abc import ABC, abstractmethod

import numpy as np

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols.kernels import extension as kernels
from securemedian.mpc.protocols.kernels import native
from securemedian.mpc.protocols.ot.extension import bit_planes
from securemedian.mpc.protocols.ot.hash import Hash, as_bytes
from securemedian.mpc.protocols.ot.scratch import Scratch
from securemedian.mpc.protocols.prg import BLOCK_WORDS, SEED_BYTES, ZEROS, Stream
from securemedian.mpc.protocols.protocol import SECURITY_BITS

# of hash inputs: the low word and the high one
Difference = tuple[np.uint64, np.uint64]


class Leaves(ABC):
    """The streams of all leaves of one lane. Every call takes their next bits, w words of each.

    What ends in `_keys` hashes the columns of the rows that it does not return, n = 64 w keys from
    an index of a stream of tweaks on; what ends in `_planes` keeps only the lowest bits of the
    keys, and writes them to words `at` to `at` + w - 1 of bit planes.
    """

    def __init__(self) -> None:
        self._scratch = Scratch()

    @abstractmethod
    def receive(self, rows: Words, choices: Words, corrections: Words) -> None:
        """Write the receiver's V, u and c: rows (128, w), (w,) and (128/k - 1, w)."""

    @abstractmethod
    def send(self, rows: Words, masks: Words, corrections: Words) -> None:
        """Write the sender's W: rows (128, w).

        The first leaf of each tree is missing. `masks` has all ones for each bit of Delta that is
        set, `corrections` is c.
        """

    def receive_keys(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        choices: Words,
        corrections: Words,
        keys: Blocks,
    ) -> None:
        """Write u, c and the receiver's keys (n, 2)."""
        rows = self._scratch.array("rows", SECURITY_BITS, choices.size)
        self.receive(rows, choices, corrections)
        hash_.columns(rows, index, stream, keys)

    def receive_planes(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        choices: Words,
        corrections: Words,
        at: int,
        planes: Words,
    ) -> None:
        """Do as `receive_keys` does, and keep bit planes alone."""
        keys = self._scratch.array("keys0", 64 * choices.size, 2)
        self.receive_keys(hash_, index, stream, choices, corrections, keys)
        planes[:, at : at + choices.size] = bit_planes(keys, len(planes))

    def send_keys(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        masks: Words,
        corrections: Words,
        difference: Difference,
        keys0: Blocks,
        keys1: Blocks,
    ) -> None:
        """Write the sender's keys (n, 2) of either choice, as `Hash.column_pairs` does."""
        rows = self._scratch.array("rows", SECURITY_BITS, len(keys0) // 64)
        self.send(rows, masks, corrections)
        hash_.column_pairs(rows, index, stream, difference, keys0, keys1)

    def send_planes(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        masks: Words,
        corrections: Words,
        difference: Difference,
        at: int,
        planes0: Words,
        planes1: Words,
    ) -> None:
        """Do as `send_keys` does, and keep bit planes alone."""
        words = corrections.shape[1]
        keys0, keys1 = (self._scratch.array(name, 64 * words, 2) for name in ("keys0", "keys1"))
        self.send_keys(hash_, index, stream, masks, corrections, difference, keys0, keys1)
        for keys, planes in ((keys0, planes0), (keys1, planes1)):
            planes[:, at : at + words] = bit_planes(keys, len(planes))


class PortableLeaves(Leaves):
    """Leaves that OpenSSL expands, on any processor."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        super().__init__()
        self._trees = [
            [Stream(leaf, nonce=nonce) if leaf else None for leaf in tree] for tree in trees
        ]

    def receive(self, rows: Words, choices: Words, corrections: Words) -> None:
        words, k = rows.shape[1], len(rows) // len(self._trees)
        leaves = self._scratch.array("leaves", 1 << k, words)
        zeros, views = ZEROS[: 8 * words], [as_bytes(leaf) for leaf in leaves]
        for block, tree in enumerate(self._trees):
            for stream, view in zip(tree, views, strict=True):
                # the receiver knows every leaf
                assert stream is not None
                stream.xor(zeros, view)
            kernels.fold(leaves, rows[block * k : (block + 1) * k])
            if block == 0:
                choices[:] = leaves[0]
            else:
                np.bitwise_xor(leaves[0], choices, out=corrections[block - 1])

    def send(self, rows: Words, masks: Words, corrections: Words) -> None:
        words, k = rows.shape[1], len(rows) // len(self._trees)
        leaves = self._scratch.array("leaves", 1 << k, words)
        zeros, views = ZEROS[: 8 * words], [as_bytes(leaf) for leaf in leaves]
        for block, tree in enumerate(self._trees):
            leaves[0] = 0
            for stream, view in zip(tree[1:], views[1:], strict=True):
                # only the first is missing
                assert stream is not None
                stream.xor(zeros, view)
            mine = rows[block * k : (block + 1) * k]
            kernels.fold(leaves, mine)
            if block > 0:
                kernels.correct(mine, corrections[block - 1], masks[block * k : (block + 1) * k])


class NativeLeaves(Leaves):
    """Leaves that the processor's AES instructions expand."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        super().__init__()
        # a key of zeros stands for a missing leaf, and is not used
        keys = b"".join(leaf or bytes(SEED_BYTES) for tree in trees for leaf in tree)
        self._round_keys = native.round_keys(keys).reshape(
            len(trees), -1, native.ROUNDS + 1, BLOCK_WORDS
        )
        self._nonce = np.uint64(nonce)
        # AES blocks of each stream that were used
        self._used = 0

    def receive(self, rows: Words, choices: Words, corrections: Words) -> None:
        native.receive(*self._next(choices.size), rows, choices, corrections)

    def send(self, rows: Words, masks: Words, corrections: Words) -> None:
        native.send(*self._next(rows.shape[1]), rows, masks, corrections)

    def receive_keys(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        choices: Words,
        corrections: Words,
        keys: Blocks,
    ) -> None:
        given = *self._next(choices.size), choices, corrections
        native.receive_keys(*given, *self._hashing(hash_, index, stream), keys)

    def receive_planes(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        choices: Words,
        corrections: Words,
        at: int,
        planes: Words,
    ) -> None:
        given = *self._next(choices.size), choices, corrections
        native.receive_planes(*given, *self._hashing(hash_, index, stream), at, planes)

    def send_keys(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        masks: Words,
        corrections: Words,
        difference: Difference,
        keys0: Blocks,
        keys1: Blocks,
    ) -> None:
        given = *self._next(len(keys0) // 64), masks, corrections
        native.send_keys(*given, *self._hashing(hash_, index, stream), keys0, *difference, keys1)

    def send_planes(
        self,
        hash_: Hash,
        index: int,
        stream: np.uint64,
        masks: Words,
        corrections: Words,
        difference: Difference,
        at: int,
        planes0: Words,
        planes1: Words,
    ) -> None:
        given = *self._next(corrections.shape[1]), masks, corrections
        native.send_planes(
            *given, *self._hashing(hash_, index, stream), at, planes0, *difference, planes1
        )

    def _next(self, words: int) -> tuple[Words, np.uint64, np.uint64]:
        """Return the round keys, the nonce and the first block of the next `words` words."""
        first = np.uint64(self._used)
        self._used += words // BLOCK_WORDS
        return self._round_keys, self._nonce, first

    def _hashing(
        self, hash_: Hash, index: int, stream: np.uint64
    ) -> tuple[np.uint64, np.uint64, Words, Words]:
        """Return a tweak, the hash's round keys and memory for a strip of rows."""
        assert hash_.round_keys is not None, "both take the processor's own AES, or neither"
        rows = self._scratch.array("strip", SECURITY_BITS, native.STRIP)
        return np.uint64(index), stream, hash_.round_keys, rows


def expander(trees: list[list[bytes]], nonce: int, native_aes: bool) -> Leaves:
    """Return the leaves of a lane, on the processor's own AES if that is wanted and there."""
    return (NativeLeaves if native.taken(native_aes) else PortableLeaves)(trees, nonce)
