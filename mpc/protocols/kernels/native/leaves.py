"""The leaves of SoftSpokenOT's trees, from seeds to rows and to keys.

A receiver knows all leaves and writes its choices. A sender has a mask for each row in their place.
Of `choices` and `masks` one is None, and so kernels are compiled for either end.
"""

from collections.abc import Iterator

import numpy as np
from llvmlite import ir

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.native.emit import (
    I64,
    KEY_WORDS,
    Vectors,
    inline,
    loop,
    offset,
    tiles,
)
from securemedian.mpc.protocols.kernels.native.fetching import emit_fetch
from securemedian.mpc.protocols.kernels.native.hashing import (
    hash_columns,
    hash_to_planes,
    low_words,
)
from securemedian.mpc.protocols.kernels.native.optional import after, beside, flat
from securemedian.mpc.protocols.kernels.native.processor import ABREAST, LANES, LINE, VECTOR
from securemedian.mpc.protocols.kernels.native.slicing import word_of_key_planes

# The largest k of SoftSpokenOT.
_MOST_BITS = 8
# Words of each row that are expanded and then hashed: so few that they stay in the second-level
# cache in between.
STRIP = 200


def _at(builder: ir.IRBuilder, address: ir.Value, number: ir.Value, words: int) -> ir.Value:
    """Return the address of an item of an array of items of so many words."""
    return offset(builder, address, builder.mul(number, ir.Constant(I64, words)))


def _add_leaves(
    v: Vectors,
    leaves: list[ir.Value],
    keys: ir.Value,
    counters: list[ir.Value],
    sums: ir.Value,
    folded: ir.Value,
) -> None:
    """Add leaves to the sum of those before them, and each sum to the row of its lowest bit."""
    b, abreast = v.builder, len(counters)
    its_keys = [_at(b, keys, leaf, KEY_WORDS) for leaf in leaves]
    found = v.encrypt_under([counters] * len(leaves), its_keys, v.loads(sums, abreast))
    v.stores(found[-1], sums)
    for leaf, vectors in zip(leaves, found, strict=True):
        lowest = b.cttz(b.add(leaf, ir.Constant(I64, 1)), ir.Constant(ir.IntType(1), 1))
        row = _at(b, folded, lowest, 2 * v.lanes * abreast)
        v.stores(v.xors(v.loads(row, abreast), vectors), row)


def _emit_expand(
    builder: ir.IRBuilder,
    words: ir.Value,
    keys: ir.Value,
    bits: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    weights: ir.Value,
    lane_sums: ir.Value,
    added: ir.Value,
    masks: ir.Value | None,
    total: ir.Value | None,
) -> None:
    """Expand the 2^bits leaves of one tree and fold them: `words` words of each row.

    At the receiver `total` becomes the sum of all leaves ^ `added`. The sender has no total and all
    leaves but the first: its row j becomes what the leaves fold to ^ masks[j] & `added`.

    Row j is the sum of the leaves whose bit j is set, and so of the sums of the first n leaves, for
    each multiple n of 2^j. AES adds up the leaves with its last key. Every sum is then added to the
    row of the lowest bit of n alone, and each row in the end to those below it.

    The values that a sender writes to a row, or that a receiver overwrites there, are weighed.
    """
    b, one, widest = builder, ir.Constant(I64, 1), Vectors(builder, LANES)
    folded = widest.memory((_MOST_BITS + 1) * ABREAST)
    with loop(b, ir.Constant(I64, (_MOST_BITS + 1) * ABREAST)) as i:
        widest.store(widest.constant([0] * VECTOR), _at(b, folded, i, VECTOR))
    for v, abreast, block in tiles(b, b.lshr(words, one), ABREAST):
        nothing, size = [v.constant([0] * 2 * v.lanes)] * abreast, 2 * v.lanes * abreast
        sums, first = v.memory(abreast), b.shl(block, one)
        counters = v.counters(nonce, b.add(counter, block), abreast)
        given = keys, counters, sums, folded
        v.stores(nothing, sums)
        if masks is not None:
            # the pair of the missing leaf
            _add_leaves(v, [one], *given)
        with loop(b, b.shl(one, b.sub(bits, one)), int(masks is not None)) as pair:
            even = b.shl(pair, one)
            _add_leaves(v, [even, b.or_(even, one)], *given)
        here, correction = offset(b, rows, first), v.loads(offset(b, added, first), abreast)
        if total is not None:
            found = v.xors(v.loads(sums, abreast), correction)
            v.stores(found, offset(b, total, first))
        with loop(b, bits) as higher:
            j = b.sub(b.sub(bits, one), higher)
            row, own = offset(b, here, b.mul(j, stride)), _at(b, folded, j, size)
            found = v.xors(v.loads(own, abreast), v.loads(sums, abreast))
            v.stores(found, sums)
            # for the next tile
            v.stores(nothing, own)
            if masks is not None:
                mask = b.load(offset(b, masks, j))
                masked = [b.and_(vector, v.fill(mask, mask)) for vector in correction]
                found = v.xors(found, masked)
            weighed = _at(b, lane_sums, j, VECTOR)
            lane_sum, kept = v.load(weighed), v.loads(row, abreast) if masks is None else found
            weight_of = v.loads(offset(b, weights, first), abreast)
            for vector, weight in zip(kept, weight_of, strict=True):
                lane_sum = b.xor(lane_sum, v.products(vector, weight))
            v.store(lane_sum, weighed)
            v.stores(found, row)
            if masks is None:
                # those that stand in this row of the next tree
                for word in range(0, size, LINE // 8):
                    soon = b.add(b.mul(bits, stride), ir.Constant(I64, word))
                    emit_fetch(b, row, soon, write=0)


# (words, round keys of a tree, bits, nonce, counter, rows, stride, weights, sums per lane, added,
# masks, total): see `_emit_expand`
_expand = inline(_emit_expand, 12)


@callee
def _expand_part(
    leaves: Words,
    nonce: np.uint64,
    counter: np.uint64,
    choices: Words | None,
    masks: Words | None,
    corrections: Words,
    first: int,
    words: int,
    rows: Words,
    weights: Words,
    lane_sums: Words,
) -> None:
    """Expand and fold `words` words of each row, from word `first` on, and weigh them.

    They become the first words of `rows`. `counter` is that of word 0. `lane_sums` (rows, VECTOR)
    have a sum for each lane.
    """
    bits, step, row = rows.shape[0] // leaves.shape[0], rows.shape[1], rows.reshape(-1)
    weight, lane_sum = weights[first:], lane_sums.reshape(-1)
    block = counter + np.uint64(first // 2)
    if choices is not None:
        choices[first : first + words] = 0
    for tree in range(leaves.shape[0]):
        keys, to = leaves[tree], row[tree * bits * step :]
        sums = lane_sum[tree * bits * VECTOR :]
        # the first tree has no correction: its sum is the receiver's choices, and no mask counts
        correction = corrections[max(tree - 1, 0), first:]
        if choices is not None:
            plus, its = choices[first:], None
            total = plus if tree == 0 else correction
        elif masks is not None:
            plus, total = correction, None
            its = np.zeros(bits, np.uint64) if tree == 0 else masks[tree * bits :]
        _expand(words, keys, bits, nonce, block, to, step, weight, sums, plus, its, total)


@callee
def _planes_part(
    rows: Words,
    stride: int,
    words: int,
    index: np.uint64,
    stream: np.uint64,
    round_keys: Words | None,
    count: int,
    step: int,
    difference: Words | None,
    planes0: Words | None,
    planes1: Words | None,
) -> None:
    """Hash columns, and keep the lowest `count` bits in planes that are `step` words apart."""
    if count <= 8:
        given = rows, stride, words, index, stream, round_keys, count, step
        hash_to_planes(*given, difference, planes0, planes1)
        return
    near = np.empty((2, 64 * VECTOR, 2), np.uint64)
    near0, near1 = near[0], beside(planes1, near[1])
    for start in range(0, words, VECTOR):
        some, at = min(VECTOR, words - start), index + np.uint64(64 * start)
        hash_columns(rows[start:], stride, some, at, stream, round_keys, difference, near0, near1)
        _write_planes(near0, some, count, step, after(planes0, start))
        _write_planes(near1, some, count, step, after(planes1, start))


@callee
def _write_planes(
    keys: Words | None, words: int, count: int, step: int, planes: Words | None
) -> None:
    """Write `words` words of `count` planes of keys, which are `step` words apart."""
    if keys is None or planes is None:
        return
    low = keys.reshape(-1)
    for i in range(words):
        word_of_key_planes(low[128 * i :], count, planes[i:], step)


def _signatures() -> Iterator[str]:
    """Yield the types of `expand`: for either end, and for all that is wanted."""
    for end, difference, second in (
        ("u8[1]! none u8[2]!", "none", False),
        ("none u8[1] u8[2]", "u8[1]", True),
    ):

        def pair(kind: str, second: bool = second) -> str:
            return f"{kind} {kind if second else 'none'}"

        given, no = f"u8[4] u8 u8 {end} u8[3]! u8[1] u8[2]! u8 u8", "none none"
        hashed = f"u8[2] {difference}"
        yield f"{given} {no} {no} none {no} i8 {no}"
        yield f"{given} {no} {no} u8[1]! {no} i8 {no}"
        yield f"{given} {hashed} {pair('u8[2]!')} none {no} i8 {no}"
        yield f"{given} {hashed} {no} u8[1]! {pair('u8[1]!')} i8 {no}"
        yield f"{given} {hashed} {no} none {no} i8 {pair('u8[2]!')}"


@kernel(*_signatures())
def expand(
    leaves: Words,
    nonce: np.uint64,
    counter: np.uint64,
    choices: Words | None,
    masks: Words | None,
    corrections: Words,
    strips: Words,
    weights: Words,
    sums: Words,
    index: np.uint64,
    stream: np.uint64,
    round_keys: Words | None,
    difference: Words | None,
    keys0: Words | None,
    keys1: Words | None,
    columns: Words | None,
    hashes0: Words | None,
    hashes1: Words | None,
    begin: int,
    planes0: Words | None,
    planes1: Words | None,
) -> None:
    """Expand and fold the leaves of one end, and hash the columns: V, choices, corrections, or W.

    leaves (128/k, 2^k, 11, 2) are round keys; a sender does not use those of the first leaf of each
    tree. `counter` counts the AES blocks of the streams that were used before. The receiver's
    choices (w,) and corrections (128/k - 1, w) are written; the sender's corrections are read, and
    its masks (128,), all ones or 0. The rows go to strips (s, 128, any number of words), of which a
    sender may have one for all; fewer trees have k rows each.

    The values that a sender writes to the rows, or that a receiver overwrites there, are added to
    `sums` (128, 2) with `weights` (w,), as `extension.weigh` does. So rows that a receiver keeps
    until it has weights are read while there is AES to do, without another pass over them.

    Of the columns it writes, if they are wanted: the hashes, as `hashing.hash_blocks` does, to keys
    (64 w, 2); the low words of columns, and of hashes, (64 w,); the lowest bits of hashes to planes
    (.., w or more), from word `begin` on. A receiver has no second output.
    """
    width, stride = corrections.shape[1], strips.shape[2]
    lane_sums = np.zeros((strips.shape[1], VECTOR), np.uint64)
    for first in range(0, width, stride):
        words, rows = min(stride, width - first), strips[first // stride % strips.shape[0]]
        given = choices, masks, corrections
        _expand_part(leaves, nonce, counter, *given, first, words, rows, weights, lane_sums)
        row, column, at = rows.reshape(-1), 64 * first, index + np.uint64(64 * first)
        here = row, stride, words
        if keys0 is not None:
            to0, to1 = after(keys0, column), after(keys1, column)
            hash_columns(*here, at, stream, round_keys, difference, to0, to1)
        if columns is not None:
            to, to0, to1 = columns[column:], after(hashes0, column), after(hashes1, column)
            low_words(*here, at, stream, round_keys, difference, to, to0, to1)
        if planes0 is not None:
            count, step = planes0.shape
            place = begin + first
            to0, to1 = after(flat(planes0), place), after(flat(planes1), place)
            _planes_part(*here, at, stream, round_keys, count, step, difference, to0, to1)
    for r in range(sums.shape[0]):
        for lane in range(VECTOR):
            sums[r, lane & 1] ^= lane_sums[r, lane]
