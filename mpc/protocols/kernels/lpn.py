"""The inner loops of silent OT: half-trees, and the linear code applied to their leaves.

Trees grow level by level. A 128-bit block is two uint64 words. The nodes of a level are an array
(trees, width, 2); the children of node j stand at j and j + width of the next one.
"""

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel

# SECURITY: the number of secrets that each output of the code adds up, d of a d-local linear code.
LOCALITY = 10


@kernel("u8[3] u8[3] u8[3]! i8 u8[3]!")
def grow(parents: Words, lefts: Words, children: Words, level: int, sums: Words) -> None:
    """Write the children of one level's nodes, and the XOR of the left ones per tree.

    parents, lefts (trees, width, 2); children (trees, 2 width, 2). A left child is that of `lefts`,
    a right child is parent ^ left. In sums (trees, levels, 2) it writes the XOR of a tree's left
    children at `level`.
    """
    trees, width, _ = parents.shape
    for tree in range(trees):
        sum0, sum1 = np.uint64(0), np.uint64(0)
        for j in range(width):
            low, high = lefts[tree, j, 0], lefts[tree, j, 1]
            children[tree, j, 0] = low
            children[tree, j, 1] = high
            children[tree, width + j, 0] = parents[tree, j, 0] ^ low
            children[tree, width + j, 1] = parents[tree, j, 1] ^ high
            sum0 ^= low
            sum1 ^= high
        sums[tree, level, 0] = sum0
        sums[tree, level, 1] = sum1


@callee
def mend_tree(children: Words, half: int, given: Words, found: Words, path: int) -> None:
    """Replace the two children of one tree's node on the path, which are wrong.

    children (2 half, 2). They become given ^ all other children of their side, where `given` (2,)
    is the true XOR of the side that leads off the path. Because the receiver's nodes of a level XOR
    to 0, `found` (2,), the XOR of all left children, is that of all right ones, too. The node's
    place is the low bits of `path`.
    """
    place = path & (half - 1)
    for word in range(2):
        wrong = given[word] ^ found[word]
        children[place, word] ^= wrong
        children[place + half, word] ^= wrong


@kernel("u8[3]! i8 u8[3] u8[3] i8[1]")
def mend(children: Words, level: int, sums: Words, given: Words, paths: NDArray[np.int64]) -> None:
    """Mend one level of each tree, as `mend_tree` does.

    children (trees, 2 half, 2); `sums` and `given` (trees, levels, 2), of which one level is read.
    """
    half = children.shape[1] // 2
    for tree in range(children.shape[0]):
        mend_tree(children[tree], half, given[tree, level], sums[tree, level], paths[tree])


@kernel("u8[2] u8[2] u4[2] u8[2]!")
def encode(leaves: Words, secrets: Words, draws: NDArray[np.uint32], out: Words) -> None:
    """Add LOCALITY blocks of the secret to each leaf, at indices that `draws` chooses.

    out[i] = (leaves[i] without its bit 0) ^ the XOR of LOCALITY blocks of `secrets` (k, 2). Their
    indices are the uniform words draws (n, LOCALITY) scaled to 0..k-1.
    """
    one, half = np.uint64(1), np.uint64(32)
    count = np.uint64(secrets.shape[0])
    for i in range(out.shape[0]):
        low, high = leaves[i, 0] & ~one, leaves[i, 1]
        for j in range(LOCALITY):
            at = (np.uint64(draws[i, j]) * count) >> half
            low ^= secrets[at, 0]
            high ^= secrets[at, 1]
        out[i, 0] = low
        out[i, 1] = high
