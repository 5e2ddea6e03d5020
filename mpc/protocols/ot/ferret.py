"""Silent OT extension: Ferret on half-trees, semi-honest.

Yang, Weng, Lan, Zhang, Wang, CCS 2020: primal LPN with regular noise and a 10-local linear code.
The half-tree is that of Guo, Yang, Wang, Zhang, Xie, Liu and Zhao, EUROCRYPT 2023.

From `seeds` correlated OTs w = v ^ u Delta (w the sender's block, v and the bit u the receiver's)
an iteration makes `outputs` of them. The first k of the seeds are the LPN secret, the others serve
t trees, one for each bin of the outputs. A tree has one leaf for each output of its bin; in a level
with nodes X_j

    X_0, X_1 = w of a seed and that ^ Delta;   the children of X are L = H(X) and X ^ L

so that every level XORs to Delta. Of the first level the receiver has one node without a message:
its v, which is X_r if r is its bit u. Of each later level the sender gives the XOR of the left
nodes, masked with w of one more seed. With the mask v = w ^ r Delta the receiver gets the XOR of
the left (r = 0) or the right (r = 1) nodes. So from level to level it gets all nodes except the one
on the path of the bits 1 - r. At the last level the XOR of what it knows is the missing leaf ^
Delta: the leaves are correlated OTs whose choice bits e are 1 at a single place. With A the public
matrix of LOCALITY ones per row,

    output = leaf ^ A (first k seeds)   at both ends,

and its choice bit is that of e ^ A u: an LPN sample.

(In the half-tree paper the sender draws X_0 and sends X_0 ^ w; ours is the case where that message
is 0, as w is random and serves nothing else. The path is read off the seeds' own choice bits, which
are uniform: Ferret's receiver chooses it and sends the difference from r, which is 0 here.)

Choice bits ride in bit 0 of the blocks. With bit 0 of Delta 1, of w 0 and of v u, the correlation
holds there too. 127 bits of Delta remain secret.

The first iteration is one of a small code, SETUP. Its seeds come from SoftSpokenOT on the same base
OTs, without its hash: the sigma and the public tweak on its columns keep them correlated, under
sigma(Delta). All later ones are of CODE. The last outputs of an iteration are the seeds of the next
one, and `extend` hands out the others: nothing is used twice. An iteration's trees are grown a
group at a time, when their outputs are wanted.

H is the hash of `ot.hash`. In the trees its tweaks are the number of the node in its group and
a stream with bit 63 set. Half-trees need it to be circular correlation robust, which it is for an
ideal permutation while no two nodes under one key are equal. The receiver is given H(P) or P ^ H(P)
for the node P of a level on its path, and it knows P ^ Delta: one P found gives Delta. It may look
for all of these under one key at once. So each group of trees has a key of its own, which serves
TREES (depth - 1) = 640 of them. It expects to find one after 2^128 / 640 = 2^118.7 evaluations of
AES (tests/test_ferret.py). Under one key per session that would be 2^105.6, for 10^9 OTs.

The sender sends 160 bytes per tree, which is 0.09 bytes per OT, in a message per group that waits
for nothing. SoftSpokenOT's seeds come before the first of them, from receiver to sender.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.kernels import extension, lpn
from securemedian.mpc.protocols.kernels.native import aes
from securemedian.mpc.protocols.kernels.native import trees as native_trees
from securemedian.mpc.protocols.ot.extension import (
    ALIGN,
    Direction,
    RandomOtEnd,
    RandomOtReceiver,
    RandomOtSender,
    Scratch,
    bit_planes,
    checked_block,
)
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream

# Trees that share a key and a message, and are grown at once. They are so many that calls cost
# little, and so few that outputs stay in the third-level cache until they are hashed.
TREES = 64
# Outputs whose indices are drawn at once where AES is OpenSSL's, and stay in the cache.
ENCODED = 1 << 13
# Streams of the trees' tweaks; those of `extend` are below.
TREE_TWEAKS = np.uint64(1 << 63)


@dataclass(frozen=True)
class Code:
    """An LPN instance. The security of those in use is discussed at `CODE`."""

    # k, the seeds that are the LPN secret
    secrets: int
    # t, the bins of outputs, each with one noisy output and one tree
    bins: int
    # levels of a tree, 3 or more: a bin has 2^depth outputs
    depth: int

    @property
    def outputs(self) -> int:
        return self.bins << self.depth

    @property
    def seeds(self) -> int:
        """Return the correlated OTs that an iteration takes."""
        return self.secrets + self.bins * self.depth

    @property
    def reserve(self) -> int:
        """Return the correlated OTs that are kept, or made, for an iteration's seeds."""
        return -(-self.seeds // ALIGN) * ALIGN

    @property
    def yields(self) -> int:
        """Return the OTs that an iteration leaves for `extend`, before the next one's seeds."""
        return self.outputs - CODE.reserve

    def groups(self) -> Iterator[slice]:
        """Yield the groups of trees, each of which shares one message."""
        for first in range(0, self.bins, TREES):
            yield slice(first, min(first + TREES, self.bins))

    def handed_out(self, group: slice) -> int:
        """Return how many of a group's outputs, the first ones, are for `extend`."""
        begin, end = group.start << self.depth, group.stop << self.depth
        return min(max(self.yields - begin, 0), end - begin)

    @property
    def memory(self) -> int:
        """Return the bytes that one end of one direction holds, without SoftSpokenOT's buffers."""
        leaves = TREES << self.depth
        return 16 * (2 * self.reserve + 3 * leaves + leaves // 2) + 4 * lpn.LOCALITY * ENCODED

    def message(self, group: slice) -> tuple[int, int, int]:
        """Return the shape of a group's message in words."""
        return group.stop - group.start, self.depth - 1, 2


# The true sums of the sides of a group's trees that lead off the paths, and the paths.
Mending = tuple[Words, NDArray[np.int64]]
# The function that grows a group's trees: see `_Ferret._grow`.
Grow = Callable[[Blocks, Mending | None], Words]

# SECURITY. Both are instances of our own. The one before them, k = 69,454 and 512 bins of 2^10, is
# a part of one of Ferret's, (n, k, t) = (607,232; 69,454; 593). Later ones of emp-ot fall below 128
# bits by the estimates here. In bits, computed in tests/test_ferret.py:
#
#                                                    CODE   SETUP   before   emp-ot's ferret_b11
#     pooled Gauss                                    157     159      149                    132
#     information-set decoding with collisions        131     132      123                    108
#     algebraic attack, dense linear algebra          153     160      149                     92
#     algebraic attack, sparse                        137     148      135                     74
#
# Pooled Gauss guesses k - t outputs to be free of noise. Decoding allows some of them to be noisy,
# and finds these by collisions of lists as large as Gauss' work; memory costs nothing there. The
# algebraic attack on regular noise (Briaud and Oygarden, EUROCRYPT 2023) uses that the products of
# two outputs of a bin vanish. It guesses outputs to be free of noise until these equations
# determine all monomials. Dense linear algebra has exponent 2.8. The sparse figure would be left if
# Wiedemann's algorithm could use the code's sparsity to the full. The instance ferret_b11
# (10,180,608; 124,000; 4,971; bins of 2^11) has so many outputs in a bin that nothing need be
# guessed.
#
# For bins of a given size CODE was found as follows: for each t the least k with at least 128 bits
# by all four was computed. Few bins leave little of an iteration, because the secret hardly
# shrinks with them; many weaken the algebraic estimate. 768 bins are close to the best, and k was
# then rounded up to 9 2^14. Bins of 2^12 would halve the bytes again, with a secret of 4.3 MB and a
# fifth more time; of 2^10 they would take twice the bytes.
SETUP = Code(secrets=36864, bins=320, depth=9)
CODE = Code(secrets=147456, bins=768, depth=11)


def code_of(iteration: int) -> Code:
    """Return the code that an iteration runs."""
    return CODE if iteration else SETUP


def messages(first: int, count: int) -> Iterator[tuple[int, int, int]]:
    """Yield the shapes of the messages with which OTs number first..first+count-1 come."""
    # the iteration of the OT before them: groups that leave nothing come with the next OT
    before = first - SETUP.yields - 1
    iteration = 1 + before // CODE.yields if before >= 0 else 0
    start = 1 + before % CODE.yields if before >= 0 else first
    stop = start + count
    while stop > 0:
        code, at = code_of(iteration), 0
        for group in code.groups():
            if start <= at < stop:
                yield code.message(group)
            at += code.handed_out(group)
        iteration, start, stop = iteration + 1, max(start - at, 0), stop - at


class _Ferret(RandomOtEnd):
    """The common part of both ends: iterations, and the rest of the last group of trees."""

    sender_speaks = True

    def __init__(self, direction: Direction) -> None:
        self._channel, session = direction.channel, direction.session
        self._native_aes = direction.native_aes
        self._tweaks = direction.tweaks
        self._scratch = Scratch()
        self._hash = Hash(self._scratch, b"securemedian pi", session, native_aes=self._native_aes)
        # the public source of the keys of this lane and direction
        self._derivation = session + int(self._tweaks).to_bytes(8, "little")
        self._matrix = hashlib.sha256(b"securemedian lpn" + self._derivation).digest()[:SEED_BYTES]
        self._iteration = 0
        # the groups of trees that this iteration has yet to make
        self._groups = code_of(self._iteration).groups()
        # its seeds, and those of the next one
        self._seeds: Blocks | None = None
        self._kept: Blocks = np.empty((CODE.reserve, 2), np.uint64)
        # the last group's outputs for `extend`, the last `left` of which are still there
        self._outputs: Blocks = np.empty((0, 2), np.uint64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(index={self.index}, <secrets>)"

    def prepare(self) -> None:
        if self._seeds is None:
            self._seeds = self.bootstrap(SETUP.reserve)

    @abstractmethod
    def bootstrap(self, count: int) -> Blocks:
        """Return the seeds of the first iteration. The receiver speaks, the sender waits for it."""

    @abstractmethod
    def make(self, grow: Grow, masks: Blocks, outputs: Blocks) -> None:
        """Send or receive the message of one group of trees, and write its outputs.

        `grow` is `_grow` for this group; outputs (trees, 2^depth, 2); masks (trees, depth, 2) are
        the seeds that serve the group.
        """

    def _parts(self, count: int) -> Iterator[tuple[slice, Blocks]]:
        """Make as many groups as it takes to give `count` correlated OTs.

        Yields the OTs of each group with the slice of 0..count-1 that they are.
        """
        done = 0
        while done < count:
            if self.left == 0:
                self._outputs = self._next_outputs()
                self.left = len(self._outputs)
            size = min(count - done, self.left)
            first = len(self._outputs) - self.left
            self.left -= size
            yield slice(done, done + size), self._outputs[first : first + size]
            done += size

    def _next_outputs(self) -> Blocks:
        """Make groups of trees until one has outputs for `extend`, and return these."""
        self.prepare()
        while True:
            group = next(self._groups, None)
            if group is None:
                # the last outputs of an iteration are the seeds of the next one
                self._seeds, self._kept = self._kept, np.empty_like(self._kept)
                self._iteration += 1
                self._groups = code_of(self._iteration).groups()
                continue
            code, seeds = code_of(self._iteration), self._seeds
            assert seeds is not None
            secrets = seeds[: code.secrets]
            masks = seeds[code.secrets : code.seeds].reshape(code.bins, code.depth, 2)[group]
            outputs = self._scratch.array("outputs", len(masks), 1 << code.depth, 2)
            self.make(partial(self._grow, group, secrets), masks, outputs)
            flat, given = outputs.reshape(-1, 2), code.handed_out(group)
            if given < len(flat):
                first = max((group.start << code.depth) - code.yields, 0)
                self._kept[first : first + len(flat) - given] = flat[given:]
            if given:
                return flat[:given]

    def _grow(self, group: slice, secrets: Blocks, nodes: Blocks, mending: Mending | None) -> Words:
        """Grow a group's trees and add the code to their leaves. Return the sums of left children.

        nodes (trees, 2^depth, 2) begins with the two nodes of each tree's first level, and becomes
        the outputs. `mending` is what mends the receiver's trees: the true sums of the sides that
        lead off the paths, and the paths. The sums (trees, depth - 1, 2) are those of the levels
        after the first.
        """
        trees, size, _ = nodes.shape
        depth = size.bit_length() - 1
        sums = np.empty((trees, depth - 1, 2), np.uint64)
        tree_hash = self._hash_of(group)
        # of the stream of indices, in which each output has LOCALITY words of 32 bits
        block = (group.start << depth) * lpn.LOCALITY // 4
        if tree_hash.round_keys is not None:
            given, paths = mending or (sums, np.empty(0, np.int64))
            stream, keys = self._tweaks | TREE_TWEAKS, tree_hash.round_keys
            nonce, counter = np.uint64(self._iteration), np.uint64(block)
            matrix_keys = aes.round_keys(self._matrix)[0]
            native_trees.grow_and_encode(
                nodes, given, paths, sums, stream, keys, secrets, nonce, counter, matrix_keys
            )
        else:
            leaves = self.grow_trees(tree_hash, nodes, mending, sums).reshape(-1, 2)
            outputs, matrix = nodes.reshape(-1, 2), Stream(self._matrix, self._iteration, block)
            for first in range(0, len(leaves), ENCODED):
                some = slice(first, min(first + ENCODED, len(leaves)))
                words = self._scratch.array("draws", (some.stop - first) * lpn.LOCALITY // 2)
                matrix.fill(words)
                draws = words.view(np.uint32).reshape(-1, lpn.LOCALITY)
                lpn.encode(leaves[some], secrets, draws, outputs[some])
        return sums

    def grow_trees(
        self, tree_hash: Hash, nodes: Blocks, mending: Mending | None, sums: Words
    ) -> Blocks:
        """Return the leaves (trees, 2^depth, 2) of trees, grown level by level with OpenSSL's AES.

        Arguments are as for `_grow`, but that `nodes` stays, and `sums` is written.
        """
        trees, levels, _ = sums.shape
        parents = np.ascontiguousarray(nodes[:, :2])
        hashed = 0
        for level in range(levels):
            width = 2 << level
            lefts = self._scratch.array("lefts", trees, width, 2)
            flat = lefts.reshape(-1, 2)
            tree_hash.blocks(parents.reshape(-1, 2), hashed, self._tweaks | TREE_TWEAKS, flat)
            hashed += len(flat)
            children = self._scratch.array(f"nodes{level % 2}", trees, 2 * width, 2)
            lpn.grow(parents, lefts, children, level, sums)
            if mending is not None:
                lpn.mend(children, level, sums, *mending)
            parents = children
        return parents

    def _hash_of(self, group: slice) -> Hash:
        """Return the hash of a group of trees of this iteration, under a key that no other uses."""
        counters = (self._iteration, group.start)
        numbered = b"".join(counter.to_bytes(8, "little") for counter in counters)
        label = b"securemedian trees"
        return Hash(self._scratch, label, self._derivation, numbered, native_aes=self._native_aes)


class FerretReceiver(_Ferret, RandomOtReceiver):
    """The receiver's end, which waits for the sender once `prepare` has spoken."""

    def __init__(self, direction: Direction, leaves: list[list[bytes]]) -> None:
        super().__init__(direction)
        self._softspoken = SoftSpokenReceiver(direction, leaves)

    def extend(self, count: int) -> tuple[Words, Blocks]:
        choices = self._scratch.array("choices", checked_block(count) // 64)
        keys = self._scratch.array("keys", count, 2)
        for part, blocks in self._parts(count):
            its = choices[part.start // 64 : part.stop // 64]
            its[:] = bit_planes(blocks, 1)[0]
            self._hash.blocks(blocks, self.index, self._tweaks, keys[part])
            self.index += len(blocks)
        return choices, keys

    def bootstrap(self, count: int) -> Blocks:
        choices, rows = self._softspoken.correlate(count)
        blocks = np.empty((count, 2), np.uint64)
        extension.transpose_and_tweak(rows, np.uint64(0), np.uint64(0), blocks)
        blocks[:, 0] = (blocks[:, 0] & ~np.uint64(1)) | ring.unpack(choices, 1, count)
        return blocks

    def make(self, grow: Grow, masks: Blocks, outputs: Blocks) -> None:
        trees, depth, _ = masks.shape
        # per level, the XOR of the nodes on the side that leads off the path, which is side `bits`
        given = self._channel.recv("ferret.sums", np.uint64, (trees, depth - 1, 2)) ^ masks[:, 1:]
        bits = (masks[:, :, 0] & np.uint64(1)).astype(np.int64)
        paths = ((1 - bits) << np.arange(depth)).sum(axis=1)
        # one node is right, and the other, on the path, is off by Delta, here and below
        outputs[:, :2] = masks[:, :1]
        grow(outputs, (given, paths))
        # the noise
        outputs[np.arange(trees), paths, 0] ^= np.uint64(1)


class FerretSender(_Ferret, RandomOtSender):
    """The sender's end, which waits for nobody after `prepare` and holds Delta."""

    def __init__(
        self, direction: Direction, delta: NDArray[np.uint8], leaves: list[list[bytes]]
    ) -> None:
        super().__init__(direction)
        self._softspoken = SoftSpokenSender(direction, delta, leaves)
        # the difference that SoftSpokenOT's tweaked columns are correlated by
        low, high = self._softspoken.sigma_delta
        self._delta = np.array([low | np.uint64(1), high])
        self._sigma_delta = np.array([self._delta[0] ^ self._delta[1], self._delta[0]])

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        keys0 = self._scratch.array("keys0", checked_block(count), 2)
        keys1 = self._scratch.array("keys1", count, 2)
        for part, blocks in self._parts(count):
            out0, out1 = keys0[part], keys1[part]
            self._hash.blocks(blocks, self.index, self._tweaks, out0, self._sigma_delta, out1)
            self.index += len(blocks)
        return keys0, keys1

    def bootstrap(self, count: int) -> Blocks:
        rows = self._softspoken.correlate(count)
        blocks = np.empty((count, 2), np.uint64)
        extension.transpose_and_tweak(rows, np.uint64(0), np.uint64(0), blocks)
        blocks[:, 0] &= ~np.uint64(1)
        return blocks

    def make(self, grow: Grow, masks: Blocks, outputs: Blocks) -> None:
        outputs[:, 0] = masks[:, 0]
        outputs[:, 1] = masks[:, 0] ^ self._delta
        self._channel.send("ferret.sums", grow(outputs, None) ^ masks[:, 1:])
