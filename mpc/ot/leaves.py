"""The leaves of SoftSpokenOT's trees, expanded, folded and corrected.

One party's leaves of one lane: per block of `mpc.ot.softspoken` a tree with 2^k of them, each the
seed of a stream. What they become is written there; here are the two ways to compute it, which give
the same bytes:

    PortableLeaves  OpenSSL expands the leaves to memory, kernels fold and correct what is there.
    NativeLeaves    does all of it in registers, where the processor has AES instructions.
"""

from abc import ABC, abstractmethod

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.kernels import extension as kernels
from securemedian.mpc.kernels import native
from securemedian.mpc.ot.hash import as_bytes
from securemedian.mpc.ot.scratch import Scratch
from securemedian.mpc.prg import BLOCK_WORDS, SEED_BYTES, ZEROS, Stream


class Leaves(ABC):
    """The streams of all leaves of one lane. Every call takes their next bits, w words of each."""

    @abstractmethod
    def receive(self, rows: Words, choices: Words, corrections: Words) -> None:
        """Write the receiver's V, u and c: rows (128, w), (w,) and (128/k - 1, w)."""

    @abstractmethod
    def send(self, rows: Words, masks: Words, corrections: Words) -> None:
        """Write the sender's W: rows (128, w).

        The first leaf of each tree is missing. `masks` has all ones for each bit of Delta that is
        set, `corrections` is c.
        """


class PortableLeaves(Leaves):
    """Leaves that OpenSSL expands, on any processor."""

    def __init__(self, trees: list[list[bytes]], nonce: int) -> None:
        self._trees = [
            [Stream(leaf, nonce=nonce) if leaf else None for leaf in tree] for tree in trees
        ]
        self._scratch = Scratch()

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
        # a key of zeros stands for a missing leaf, and is not used
        keys = b"".join(leaf or bytes(SEED_BYTES) for tree in trees for leaf in tree)
        self._round_keys = native.round_keys(keys).reshape(
            len(trees), -1, native.ROUNDS + 1, BLOCK_WORDS
        )
        self._nonce = np.uint64(nonce)
        # AES blocks of each stream that were used
        self._used = 0

    def receive(self, rows: Words, choices: Words, corrections: Words) -> None:
        native.receive(self._round_keys, self._nonce, self._next(rows), rows, choices, corrections)

    def send(self, rows: Words, masks: Words, corrections: Words) -> None:
        native.send(self._round_keys, self._nonce, self._next(rows), rows, masks, corrections)

    def _next(self, rows: Words) -> np.uint64:
        """Return the first block of the streams that the rows take."""
        first = np.uint64(self._used)
        self._used += rows.shape[1] // BLOCK_WORDS
        return first


def expander(trees: list[list[bytes]], nonce: int, native_aes: bool) -> Leaves:
    """Return the leaves of a lane, on the processor's own AES if that is wanted and there."""
    return (NativeLeaves if native.taken(native_aes) else PortableLeaves)(trees, nonce)
