"""Silent OT's half-trees, grown and encoded in one pass."""

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.lpn import LOCALITY, mend_tree
from securemedian.mpc.protocols.kernels.native.emit import (
    I8,
    I32,
    I64,
    Vectors,
    inline,
    loop,
    offset,
)
from securemedian.mpc.protocols.kernels.native.hashing import emit_hashes, in_a_row
from securemedian.mpc.protocols.kernels.native.processor import ABREAST, HASHED, LANES, VECTOR

# Words of what is encrypted at once.
_TILE = ABREAST * VECTOR
# Outputs of the code whose indices are the words of what is encrypted at once.
_ENCODED = 4 * ABREAST * LANES // LOCALITY


def _emit_grow(
    builder: ir.IRBuilder,
    nodes: ir.Value,
    width: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    total: ir.Value,
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Grow a level of `width` nodes of a half-tree, `abreast` vectors at a time.

    A node's left child, its hash under the tweak (index + its place, stream), replaces it, and its
    right child is written `width` nodes further on. `total` becomes the XOR of the left children.
    """
    b, v = builder, Vectors(builder, lanes)
    step = ir.Constant(I64, lanes * abreast)
    order = in_a_row(lanes, abreast)
    sums = [v.memory(1) for _ in range(abreast)]
    for memory in sums:
        v.store(v.constant([0] * 2 * lanes), memory)
    with loop(b, b.udiv(width, step)) as i:
        at = b.mul(i, step)
        here = offset(b, nodes, b.mul(at, ir.Constant(I64, 2)))
        there = offset(b, here, b.mul(width, ir.Constant(I64, 2)))
        parents = v.loads(here, abreast)
        first = v.fill(b.add(index, at), stream)
        inputs = [v.sigma(parent) for parent in parents]
        (_, lefts), *_ = emit_hashes(v, inputs, order, first, None, keys)
        v.stores(lefts, here)
        v.stores(v.xors(parents, lefts), there)
        for memory, left in zip(sums, lefts, strict=True):
            v.store(b.xor(v.load(memory), left), memory)
    block = Vectors(b, 1)
    found = block.constant([0, 0])
    for memory in sums:
        vector = v.load(memory)
        for lane in range(lanes):
            found = b.xor(found, v.lane(vector, lane))
    block.store(found, total)


_grow, _grow_pair = (
    inline(_emit_grow, 6, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, HASHED), (1, 2))
)


def _emit_indices(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    secrets: ir.Value,
    out: ir.Value,
) -> None:
    """Write where the next _ENCODED outputs find their secrets: the offsets in bytes, 32 bits each.

    Each 32-bit word of the stream is scaled to one of `secrets` indices of blocks.
    """
    b, v = builder, Vectors(builder, LANES)

    def all_(word: int) -> ir.Value:
        return v.constant([word] * VECTOR)

    count, half = v.fill(secrets, secrets), all_(32)
    for i, words in enumerate(v.encrypt(v.counters(nonce, counter, ABREAST), keys)):
        low = b.lshr(b.mul(b.and_(words, all_(2**32 - 1)), count), half)
        high = b.and_(b.mul(b.lshr(words, half), count), all_(2**64 - 2**32))
        offsets = b.shl(b.or_(low, high), all_(4))
        v.store(offsets, offset(b, out, VECTOR * i))


_indices = inline(_emit_indices, 5)


def _emit_gather(
    builder: ir.IRBuilder, offsets: ir.Value, secrets: ir.Value, out: ir.Value
) -> None:
    """Add LOCALITY blocks of the secret to each of _ENCODED leaves, of which bit 0 is cleared."""
    b, v = builder, Vectors(builder, 1)
    blocks = b.bitcast(secrets, I8.as_pointer())
    places = b.bitcast(offsets, I32.as_pointer())
    for i in range(_ENCODED):
        address = offset(b, out, 2 * i)
        found = b.and_(v.load(address), v.constant([2**64 - 2, 2**64 - 1]))
        for j in range(LOCALITY):
            place = b.zext(b.load(offset(b, places, LOCALITY * i + j)), I64)
            found = b.xor(found, v.load(b.gep(blocks, [place])))
        v.store(found, address)


_gather = inline(_emit_gather, 3)


@kernel("u8[3]! u8[3] i8[1] u8[3]! u8 u8[2] u8[2] u8 u8 u8[2]")
def grow_and_encode(
    nodes: Words,
    given: Words,
    paths: NDArray[np.int64],
    sums: Words,
    stream: np.uint64,
    tree_keys: Words,
    secrets: Words,
    nonce: np.uint64,
    counter: np.uint64,
    matrix_keys: Words,
) -> None:
    """Grow half-trees in place, and add the code to their leaves while these are in the cache.

    It does what `lpn.grow`, `lpn.mend` and `lpn.encode` do level by level. The nodes (trees,
    2^depth, 2), with depth 3 or more, begin with the two nodes of each tree's first level, and
    become the outputs. In sums (trees, depth - 1, 2) it writes the XOR of the left children of each
    later level. With `given` of that shape and `paths` (trees,), the trees are mended; the sender
    has no paths (0,). Tweaks count the nodes of a level over all trees, level after level.
    `tree_keys` are the round keys of the hash; `nonce`, `counter` and `matrix_keys` begin the
    stream of indices. The places that it mends depend on the paths, as in `lpn.mend`; nothing else
    depends on secrets.
    """
    trees, size = nodes.shape[0], nodes.shape[1]
    blocks, count = secrets.reshape(-1), np.uint64(secrets.shape[0])
    offsets = np.empty(_TILE, np.uint64)
    for tree in range(trees):
        its, mine = nodes[tree].reshape(-1), nodes[tree]
        width, level = 2, 0
        while width < size:
            at, total = np.uint64(trees * (width - 2) + tree * width), sums[tree, level]
            if width >= HASHED * LANES:
                _grow(its, width, at, stream, tree_keys, total)
            else:
                _grow_pair(its, width, at, stream, tree_keys, total)
            if paths.shape[0]:
                mend_tree(mine, width, given[tree, level], total, paths[tree])
            width, level = 2 * width, level + 1
        for first in range(0, size, _ENCODED):
            _indices(matrix_keys, nonce, counter, count, offsets)
            _gather(offsets, blocks, its[2 * first :])
            counter += np.uint64(_TILE // 2)
