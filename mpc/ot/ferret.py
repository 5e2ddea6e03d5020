"""Silent OT extension: Ferret on half-trees, semi-honest.

Yang, Weng, Lan, Zhang, Wang, CCS 2020: primal LPN with regular noise and a 10-local linear code.
The half-tree is that of Guo, Yang, Wang, Zhang, Xie, Liu and Zhao, EUROCRYPT 2023.

From `seeds` correlated OTs w = v ^ u Delta (w the sender's block, v and the bit u the receiver's)
an iteration makes `outputs` of them. The first k of the seeds are the LPN secret, the others serve
t trees, one for each bin of the outputs. A tree has one leaf for each output of its bin; in a level
with nodes X_j

    X_0, X_1 = a random block and that ^ Delta;   the children of X are L = H(X) and X ^ L

so that every level XORs to Delta. The sender gives the XOR of a level's left nodes, masked with w
of one seed. With the mask v = w ^ r Delta the receiver gets the XOR of the left (r = 0) or the
right (r = 1) nodes, and so from level to level all nodes but the one on the path of the bits 1 - r.
At the last level the XOR of what it knows is the missing leaf ^ Delta: the leaves are correlated
OTs whose choice bits e are 1 at a single place. With A the public matrix of LOCALITY ones per row,

    output = leaf ^ A (first k seeds)   at both ends,

and its choice bit is that of e ^ A u: an LPN sample.

The path, and so the noise, is read off the seeds' own choice bits, which are uniform: the receiver
then has nothing to say. (Ferret lets it choose a path and send the difference from r, a uniform
bit; ours is the case where that is 0.)

Choice bits ride in bit 0 of the blocks: with bit 0 of Delta 1, of w 0, of v u, the correlation
holds there too, and 127 bits of Delta remain secret. The first iteration's seeds come from
SoftSpokenOT on the same base OTs, without its hash (the sigma and the public tweak on its columns
keep them correlated, under sigma(Delta)). Those of every later iteration come from the iteration
before it. The seeds that an iteration leaves and the OTs that `extend` hands out are disjoint, and
nothing is used twice.

H is the hash of `mpc.ot.hash`. In the trees its tweaks are the number of the node and a stream
with bit 63 set. Half-trees need it to be circular correlation robust, which it is for an ideal
permutation while no two nodes of a session are equal. The receiver is given H(P) or P ^ H(P) for
the node P of a level on its path, and it knows P ^ Delta: one P found gives Delta. It may look
for all P under one key at once, so each group of trees has a key of its own, which serves
TREES (depth - 1) = 576 such P however long the session is. The receiver then expects to find one
after 2^128 / 576 = 2^118.8 evaluations of AES (tests/test_ferret.py); under one key per session it
would be 2^104.7 after 10^9 OTs.

The sender sends 160 bytes per tree, which is 0.18 bytes per OT, in messages of a few trees each
that wait for nothing. The seeds of SoftSpokenOT come before the first of them, from receiver to
sender.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.channel import Channel
from securemedian.mpc.kernels import extension, lpn, packing
from securemedian.mpc.ot.extension import (
    ALIGN,
    RandomOtEnd,
    RandomOtReceiver,
    RandomOtSender,
    checked_block,
)
from securemedian.mpc.ot.hash import Hash, tweak_stream
from securemedian.mpc.ot.scratch import Scratch
from securemedian.mpc.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.prg import Stream

# Trees that are grown at once and share a message: few enough that their nodes stay in the cache.
TREES = 64
# Streams of the trees' tweaks; those of `extend` are below.
TREE_TWEAKS = np.uint64(1 << 63)


@dataclass(frozen=True)
class Code:
    """An LPN instance. Its security is discussed at `CODE`."""

    # k, the seeds that are the LPN secret
    secrets: int
    # t, the bins of outputs, each with one noisy output and one tree
    bins: int
    # levels of a tree: a bin has 2^depth outputs
    depth: int

    @property
    def outputs(self) -> int:
        return self.bins << self.depth

    @property
    def seeds(self) -> int:
        """Return the correlated OTs that an iteration takes."""
        return self.secrets + self.bins * self.depth

    @property
    def bootstrap(self) -> int:
        """Return the OTs of SoftSpokenOT that give the first seeds."""
        return -(-self.seeds // ALIGN) * ALIGN

    @property
    def yields(self) -> int:
        """Return the OTs that an iteration leaves for `extend`."""
        return (self.outputs - self.seeds) // ALIGN * ALIGN

    def groups(self) -> Iterator[slice]:
        """Yield the groups of trees, each of which shares one message."""
        for first in range(0, self.bins, TREES):
            yield slice(first, min(first + TREES, self.bins))

    @property
    def memory(self) -> int:
        """Return the bytes that one end of one direction holds, without SoftSpokenOT's buffers."""
        leaves = TREES << self.depth
        return (
            16 * (self.outputs + self.seeds + 2 * leaves + leaves // 2) + 4 * lpn.LOCALITY * leaves
        )

    def message(self, group: slice) -> tuple[int, int, int]:
        """Return the shape of a group's message in words."""
        return group.stop - group.start, self.depth, 2


# SECURITY. Ferret's regular LPN instance for iterations of this size, (n, k, t) = (607,232; 69,454;
# 593) with bins of 2^10 (emp-ot, early versions of emp-ot/ferret/constants.h, N_REG_PRIMAL_RD2),
# with 81 of its bins left out: an adversary on the longer instance may leave them out itself, so
# that this one is at least as hard.
#
# Our estimates in bits, computed in tests/test_ferret.py:
#
# Pooled Gauss (guess k - t outputs to be free of noise): 149. For emp-ot's ferret_b11 (10,180,608;
# 124,000; 4,971; bins of 2^11), which is offered for 128: 132.
#
# The algebraic attack on regular noise (Briaud and Oygarden, EUROCRYPT 2023): the products of two
# outputs of a bin vanish; guess outputs to be free of noise until these equations determine all
# monomials. 149 with dense linear algebra (exponent 2.8), 135 if Wiedemann's algorithm could use
# the code's sparsity to the full. ferret_b11 has so many outputs in a bin that nothing need be
# guessed, 92 and 74: that is why its larger iterations, with half as many bytes per OT, are not
# used here.
CODE = Code(secrets=69454, bins=512, depth=10)


class _Ferret(RandomOtEnd):
    """What both ends have: iterations, and what is left of the last one."""

    sender_speaks = True

    def __init__(
        self, channel: Channel, session: bytes, lane: int, direction: int, native_aes: bool
    ) -> None:
        self._channel = channel
        self._native_aes = native_aes
        self._code = CODE
        self._tweaks = tweak_stream(lane, direction)
        self._scratch = Scratch()
        self._hash = Hash(self._scratch, b"securemedian pi", session, native_aes=native_aes)
        # what keys of this lane and direction are derived from; all of it is public
        self._derivation = session + int(self._tweaks).to_bytes(8, "little")
        self._matrix = hashlib.sha256(b"securemedian lpn" + self._derivation).digest()
        self._iterations = 0
        # nodes hashed so far, which is the next tweak of a tree
        self._nodes = 0
        self._seeds: Blocks | None = None
        self._outputs: Blocks = np.empty((0, 2), np.uint64)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(index={self.index}, <secrets>)"

    def prepare(self) -> None:
        if self._seeds is None:
            self._seeds = self.bootstrap()[: self._code.seeds]

    @abstractmethod
    def bootstrap(self) -> Blocks:
        """Return the seeds of the first iteration. The receiver speaks, the sender waits for it."""

    @abstractmethod
    def grow_trees(self, masks: Blocks) -> Blocks:
        """Send or receive the message of one group of trees, and return its leaves.

        The leaves have shape (trees, 2^depth, 2). `masks` (trees, depth, 2) are the seeds that
        serve the group.
        """

    def add_noise(self, outputs: Blocks) -> None:
        """Put the choice bits of the noise into the outputs of the group that was grown last."""
        return

    def _parts(self, count: int) -> Iterator[tuple[slice, slice]]:
        """Iterate as often as it takes to give `count` correlated OTs, and yield where they are.

        Yields two slices per run of OTs: where it goes in an array of `count`, and where it stands
        in `_outputs`.
        """
        done = 0
        while done < count:
            if self.left == 0:
                self._iterate()
                self.left = self._code.yields
            size = min(count - done, self.left)
            first = self._code.outputs - self.left
            self.left -= size
            yield slice(done, done + size), slice(first, first + size)
            done += size

    def _iterate(self) -> None:
        self.prepare()
        assert self._seeds is not None
        code = self._code
        # copies, because the outputs overwrite the seeds
        secrets = self._seeds[: code.secrets].copy()
        masks = self._seeds[code.secrets :].reshape(code.bins, code.depth, 2).copy()
        if self._iterations == 0:
            self._outputs = np.empty((code.outputs, 2), np.uint64)
            self._seeds = self._outputs[: code.seeds]
        draws = Stream(self._matrix[:16], nonce=self._iterations)
        for group in code.groups():
            self._tree_hash = self._hash_of(group)
            leaves = self.grow_trees(masks[group]).reshape(-1, 2)
            words = self._scratch.array("draws", len(leaves) * lpn.LOCALITY // 2)
            draws.fill(words)
            out = self._outputs[group.start << code.depth : group.stop << code.depth]
            lpn.encode(leaves, secrets, words.view(np.uint32).reshape(-1, lpn.LOCALITY), out)
            self.add_noise(out)
        self._iterations += 1

    def _hash_of(self, group: slice) -> Hash:
        """Return the hash of a group of trees of this iteration, under a key that no other uses."""
        counters = (self._iterations, group.start)
        numbered = b"".join(counter.to_bytes(8, "little") for counter in counters)
        label = b"securemedian trees"
        return Hash(self._scratch, label, self._derivation, numbered, native_aes=self._native_aes)

    def _level(self, parents: Blocks, level: int, sums: Blocks) -> Blocks:
        """Return the nodes of `level`. Write the XOR of its left and right ones to `sums`."""
        trees, width, _ = parents.shape
        lefts = self._scratch.array("lefts", trees, width, 2)
        flat = lefts.reshape(-1, 2)
        self._tree_hash.blocks(
            parents.reshape(-1, 2), self._nodes, self._tweaks | TREE_TWEAKS, flat
        )
        self._nodes += trees * width
        children = self._nodes_of(trees, level)
        lpn.grow(parents, lefts, children, sums)
        return children

    def _nodes_of(self, trees: int, level: int) -> Blocks:
        return self._scratch.array(f"nodes{level % 2}", trees, 2 << level, 2)


class FerretReceiver(_Ferret, RandomOtReceiver):
    """The receiver's end, which waits for the sender once `prepare` has spoken."""

    def __init__(
        self,
        channel: Channel,
        session: bytes,
        leaves: list[list[bytes]],
        lane: int,
        direction: int,
        native_aes: bool = True,
    ) -> None:
        super().__init__(channel, session, lane, direction, native_aes)
        self._softspoken = SoftSpokenReceiver(channel, session, leaves, lane, direction, native_aes)

    def extend(self, count: int) -> tuple[Words, Blocks]:
        choices = self._scratch.array("choices", checked_block(count) // 64)
        keys = self._scratch.array("keys", count, 2)
        for part, source in self._parts(count):
            blocks = self._outputs[source]
            packing.bit_planes(blocks, choices[part.start // 64 : part.stop // 64].reshape(1, -1))
            self._hash.blocks(blocks, self.index, self._tweaks, keys[part])
            self.index += len(blocks)
        return choices, keys

    def bootstrap(self) -> Blocks:
        count = self._code.bootstrap
        choices, rows = self._softspoken.correlate(count)
        blocks = np.empty((count, 2), np.uint64)
        extension.transpose_and_tweak(rows, np.uint64(0), np.uint64(0), blocks)
        bits = np.empty(count, np.uint8)
        packing.unpack_bits(choices, bits)
        blocks[:, 0] = (blocks[:, 0] & ~np.uint64(1)) | bits
        return blocks

    def grow_trees(self, masks: Blocks) -> Blocks:
        trees, depth, _ = masks.shape
        # per level, the XOR of the nodes on the side that leads off the path, which is side `bits`
        given = self._channel.recv("ferret.sums", np.uint64, masks.shape) ^ masks
        bits = (masks[:, :, 0] & np.uint64(1)).astype(np.int64)
        sums = np.empty((trees, 2, 2), np.uint64)
        nodes = self._nodes_of(trees, 0)
        # one node is right, and the other, on the path, is off by Delta, here and below
        nodes[:] = given[:, :1]
        paths = 1 - bits[:, 0]
        for level in range(1, depth):
            nodes = self._level(nodes, level, sums)
            lpn.mend(nodes, sums, np.ascontiguousarray(given[:, level]), paths)
            paths += (1 - bits[:, level]) << level
        self._paths = paths
        return nodes

    def add_noise(self, outputs: Blocks) -> None:
        bins = outputs.reshape(len(self._paths), -1, 2)
        bins[np.arange(len(bins)), self._paths, 0] ^= np.uint64(1)


class FerretSender(_Ferret, RandomOtSender):
    """The sender's end, which waits for nobody after `prepare` and holds Delta."""

    def __init__(
        self,
        channel: Channel,
        session: bytes,
        delta: NDArray[np.uint8],
        leaves: list[list[bytes]],
        lane: int,
        direction: int,
        roots: Stream,
        native_aes: bool = True,
    ) -> None:
        super().__init__(channel, session, lane, direction, native_aes)
        self._softspoken = SoftSpokenSender(
            channel, session, delta, leaves, lane, direction, native_aes
        )
        self._roots = roots
        # the difference that SoftSpokenOT's tweaked columns are correlated by
        low, high = self._softspoken.sigma_delta
        self._delta = np.array([low | np.uint64(1), high])
        self._sigma_delta = (self._delta[0] ^ self._delta[1], self._delta[0])

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        keys0 = self._scratch.array("keys0", checked_block(count), 2)
        keys1 = self._scratch.array("keys1", count, 2)
        for part, source in self._parts(count):
            blocks = self._outputs[source]
            self._hash.block_pairs(
                blocks, self.index, self._tweaks, self._sigma_delta, keys0[part], keys1[part]
            )
            self.index += len(blocks)
        return keys0, keys1

    def bootstrap(self) -> Blocks:
        count = self._code.bootstrap
        rows = self._softspoken.correlate(count)
        blocks = np.empty((count, 2), np.uint64)
        extension.transpose_and_tweak(rows, np.uint64(0), np.uint64(0), blocks)
        blocks[:, 0] &= ~np.uint64(1)
        return blocks

    def grow_trees(self, masks: Blocks) -> Blocks:
        trees, depth, _ = masks.shape
        # new each time, because the channel may still be sending the last one
        message = masks.copy()
        sums = np.empty((trees, 2, 2), np.uint64)
        nodes = self._nodes_of(trees, 0)
        roots = self._roots.words(2 * trees).reshape(trees, 2)
        nodes[:, 0] = roots
        nodes[:, 1] = roots ^ self._delta
        message[:, 0] ^= roots
        for level in range(1, depth):
            nodes = self._level(nodes, level, sums)
            message[:, level] ^= sums[:, 0]
        self._channel.send("ferret.sums", message)
        return nodes
