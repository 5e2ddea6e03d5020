"""The leaves of SoftSpokenOT's trees, from seeds to rows and to keys.

A receiver knows all leaves and writes its choices. A sender has a mask for each row in their place.
Of `choices` and `masks` one is None, and so kernels are compiled for either end.
"""

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
)
from securemedian.mpc.protocols.kernels.native.fetching import emit_fetch
from securemedian.mpc.protocols.kernels.native.hashing import (
    hash_block_to_planes,
    hash_part,
    hash_to_planes,
    low_words,
)
from securemedian.mpc.protocols.kernels.native.optional import after, beside, flat
from securemedian.mpc.protocols.kernels.native.processor import ABREAST, LANES, LINE, VECTOR
from securemedian.mpc.protocols.kernels.native.slicing import word_of_key_planes
from securemedian.mpc.protocols.kernels.native.weighing import add_lanes

# The largest k of SoftSpokenOT.
_MOST_BITS = 8
# Words of a row that are expanded at once.
_TILE = ABREAST * VECTOR
# Words of each row that are expanded and then hashed: so few that they stay in the second-level
# cache in between.
STRIP = 200


def _emit_expand(
    builder: ir.IRBuilder,
    count: ir.Value,
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
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Expand the 2^bits leaves of one tree and fold them: `count` tiles of `abreast` vectors.

    At the receiver `total` becomes the sum of all leaves ^ `added`. The sender has no total and all
    leaves but the first: its row j becomes what the leaves fold to ^ masks[j] & `added`.

    Row j is the sum of the leaves whose bit j is set, and so of the sums of the first n leaves, for
    each multiple n of 2^j. AES adds up the leaves with its last key. Every sum is then added to the
    row of the lowest bit of n alone, and each row in the end to those below it.

    The values that a sender writes to a row, or that a receiver overwrites there, are weighed.
    """
    b, v, one = builder, Vectors(builder, lanes), ir.Constant(I64, 1)
    nothing, size = [v.constant([0] * 2 * lanes)] * abreast, 2 * lanes * abreast
    folded, sums = v.memory((_MOST_BITS + 1) * abreast), v.memory(abreast)

    def at(address: ir.Value, number: ir.Value, words: int) -> ir.Value:
        return offset(b, address, b.mul(number, ir.Constant(I64, words)))

    def read(address: ir.Value) -> list[ir.Value]:
        return v.loads(address, abreast)

    def add_leaves(leaves: list[ir.Value]) -> None:
        its_keys = [at(keys, leaf, KEY_WORDS) for leaf in leaves]
        found = v.encrypt_under([counters] * len(leaves), its_keys, read(sums))
        v.stores(found[-1], sums)
        for leaf, vectors in zip(leaves, found, strict=True):
            lowest = b.cttz(b.add(leaf, one), ir.Constant(ir.IntType(1), 1))
            row = at(folded, lowest, size)
            v.stores(v.xors(read(row), vectors), row)

    with loop(b, ir.Constant(I64, _MOST_BITS + 1)) as j:
        v.stores(nothing, at(folded, j, size))
    with loop(b, count) as tile:
        block = b.add(counter, b.mul(tile, ir.Constant(I64, size // 2)))
        counters = v.counters(nonce, block, abreast)
        v.stores(nothing, sums)
        if masks is not None:
            # the pair of the missing leaf
            add_leaves([one])
        with loop(b, b.shl(one, b.sub(bits, one)), int(masks is not None)) as pair:
            even = b.shl(pair, one)
            add_leaves([even, b.or_(even, one)])
        here, correction = at(rows, tile, size), read(at(added, tile, size))
        if total is not None:
            v.stores(v.xors(read(sums), correction), at(total, tile, size))
        with loop(b, bits) as higher:
            j = b.sub(b.sub(bits, one), higher)
            row, own, weighed = (
                offset(b, here, b.mul(j, stride)),
                at(folded, j, size),
                at(lane_sums, j, VECTOR),
            )
            found = v.xors(read(own), read(sums))
            v.stores(found, sums)
            # for the next tile
            v.stores(nothing, own)
            if masks is not None:
                mask = b.load(offset(b, masks, j))
                masked = [b.and_(vector, v.fill(mask, mask)) for vector in correction]
                found = v.xors(found, masked)
            lane_sum, given = v.load(weighed), read(row) if masks is None else found
            for vector, weight in zip(given, read(at(weights, tile, size)), strict=True):
                lane_sum = b.xor(lane_sum, v.products(vector, weight))
            v.store(lane_sum, weighed)
            v.stores(found, row)
            if masks is None:
                # those that stand in this row of the next tree
                for word in range(0, size, LINE // 8):
                    soon = b.add(b.mul(bits, stride), ir.Constant(I64, word))
                    emit_fetch(b, row, soon, write=0)


# (tiles, round keys of a tree, bits, nonce, counter, rows, stride, weights, sums per lane, added,
# masks, total): see `_emit_expand`
_expand_tiles, _expand_blocks = (
    inline(_emit_expand, 12, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, ABREAST), (1, 1))
)


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
    """Do as `expand` does for `words` words of each row, from word `first` on.

    They become the first words of `rows`. `counter` is that of word 0. `lane_sums` (rows, VECTOR)
    have a sum for each lane.
    """
    bits, step, row = rows.shape[0] // leaves.shape[0], rows.shape[1], rows.reshape(-1)
    weight, lane_sum = weights[first:], lane_sums.reshape(-1)
    tiles, block = words // _TILE, counter + np.uint64(first // 2)
    done = tiles * _TILE
    rest, rest_block = (words - done) // 2, block + np.uint64(done // 2)
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
        _expand_tiles(tiles, keys, bits, nonce, block, to, step, weight, sums, plus, its, total)
        _expand_blocks(
            rest,
            keys,
            bits,
            nonce,
            rest_block,
            to[done:],
            step,
            weight[done:],
            sums,
            plus[done:],
            its,
            after(total, done),
        )


@kernel(
    "u8[4] u8 u8 u8[1]! none u8[2]! u8[2]! u8[1] u8[2]!",
    "u8[4] u8 u8 none u8[1] u8[2] u8[2]! u8[1] u8[2]!",
)
def expand(
    leaves: Words,
    nonce: np.uint64,
    counter: np.uint64,
    choices: Words | None,
    masks: Words | None,
    corrections: Words,
    rows: Words,
    weights: Words,
    sums: Words,
) -> None:
    """Expand and fold the leaves of one end: V, the choices and the corrections, or W.

    leaves (128/k, 2^k, 11, 2) are round keys; a sender does not use those of the first leaf of each
    tree. `counter` counts the AES blocks of the streams that were used before. The rows (128, w)
    are written, of fewer trees k for each. The receiver's choices (w,) and corrections (128/k - 1,
    w) are written; the sender's corrections are read, and its masks (128,), as `extension.correct`
    takes them.

    The values that a sender writes to the rows, or that a receiver overwrites there, are added to
    `sums` (128, 2) with `weights` (w,), as `extension.weigh` does. So rows that a receiver keeps
    until it has weights are read while there is AES to do, without another pass over them.
    """
    lane_sums, words = np.zeros((rows.shape[0], VECTOR), np.uint64), rows.shape[1]
    given = choices, masks, corrections
    _expand_part(leaves, nonce, counter, *given, 0, words, rows, weights, lane_sums)
    add_lanes(lane_sums, sums)


@kernel(
    "u8[4] u8 u8 u8[1]! none u8[2]! u8[3]! u8[1] u8[2]! u8 u8 u8[2] none u8[2]! none",
    "u8[4] u8 u8 none u8[1] u8[2] u8[3]! u8[1] u8[2]! u8 u8 u8[2] u8[1] u8[2]! u8[2]!",
)
def expand_to_keys(
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
    round_keys: Words,
    difference: Words | None,
    keys0: Words,
    keys1: Words | None,
) -> None:
    """Do as `expand` does, and hash the columns as `hash_part` does: keys (n, 2).

    The rows go to `strips` (s, 128, STRIP), of which a sender may have one for all.
    """
    width, stride = corrections.shape[1], strips.shape[2]
    lane_sums = np.zeros((128, VECTOR), np.uint64)
    for first in range(0, width, stride):
        words, rows = min(stride, width - first), strips[first // stride % strips.shape[0]]
        row = rows.reshape(-1)
        given = choices, masks, corrections
        _expand_part(leaves, nonce, counter, *given, first, words, rows, weights, lane_sums)
        at, to0, to1 = index + np.uint64(64 * first), keys0[64 * first :], after(keys1, 64 * first)
        hash_part(row, stride, words, at, stream, round_keys, difference, to0, to1)
    add_lanes(lane_sums, sums)


_RECEIVER = "u8[4] u8 u8 u8[1]! none u8[2]! u8[3]! u8[1] u8[2]! u8 u8 u8[2] none u8[1]!"
_SENDER = "u8[4] u8 u8 none u8[1] u8[2] u8[3]! u8[1] u8[2]! u8 u8 u8[2] u8[1] u8[1]!"


@kernel(
    *(f"{_RECEIVER} {hashes}" for hashes in ("none none", "u8[1]! none")),
    *(f"{_SENDER} {hashes}" for hashes in ("none none", "u8[1]! u8[1]!")),
)
def expand_to_words(
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
    round_keys: Words,
    difference: Words | None,
    out: Words,
    hashes0: Words | None,
    hashes1: Words | None,
) -> None:
    """Do as `expand_to_keys` does, and keep the low words, of columns and of hashes: (n,).

    Without hashes there may be 64 rows.
    """
    width, stride = corrections.shape[1], strips.shape[2]
    lane_sums = np.zeros((strips.shape[1], VECTOR), np.uint64)
    for first in range(0, width, stride):
        words, rows = min(stride, width - first), strips[first // stride % strips.shape[0]]
        row = rows.reshape(-1)
        given = choices, masks, corrections
        _expand_part(leaves, nonce, counter, *given, first, words, rows, weights, lane_sums)
        at, to = index + np.uint64(64 * first), out[64 * first :]
        to0, to1 = after(hashes0, 64 * first), after(hashes1, 64 * first)
        low_words(row, stride, words, at, stream, round_keys, difference, to, to0, to1)
    add_lanes(lane_sums, sums)


@kernel(
    "u8[4] u8 u8 u8[1]! none u8[2]! u8[3]! u8[1] u8[2]! u8 u8 u8[2] i8 none u8[2]! none",
    "u8[4] u8 u8 none u8[1] u8[2] u8[3]! u8[1] u8[2]! u8 u8 u8[2] i8 u8[1] u8[2]! u8[2]!",
)
def expand_to_planes(
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
    round_keys: Words,
    begin: int,
    difference: Words | None,
    planes0: Words,
    planes1: Words | None,
) -> None:
    """Do as `expand_to_keys` does, and keep the lowest bits of the keys in bit planes.

    They go to the words of planes (.., w or more) from word `begin` on.
    """
    width, stride = corrections.shape[1], strips.shape[2]
    count, step = planes0.shape
    out0, out1 = planes0.reshape(-1)[begin:], after(flat(planes1), begin)
    near = np.empty((2, 64 * VECTOR, 2), np.uint64)
    near0, near1 = near[0], beside(planes1, near[1])
    lane_sums = np.zeros((128, VECTOR), np.uint64)
    for first in range(0, width, stride):
        words, rows = min(stride, width - first), strips[first // stride % strips.shape[0]]
        row = rows.reshape(-1)
        given = choices, masks, corrections
        _expand_part(leaves, nonce, counter, *given, first, words, rows, weights, lane_sums)
        start = 0
        while start < words:
            at, mine, to = index + np.uint64(64 * (first + start)), row[start:], first + start
            some = VECTOR if start + VECTOR <= words else 2
            to0, to1 = out0[to:], after(out1, to)
            if count <= 8 and some == VECTOR:
                hash_to_planes(
                    mine, stride, at, stream, round_keys, count, step, difference, to0, to1
                )
            elif count <= 8:
                hash_block_to_planes(
                    mine, stride, at, stream, round_keys, count, step, difference, to0, to1
                )
            else:
                hash_part(mine, stride, some, at, stream, round_keys, difference, near0, near1)
                _write_planes(near0, some, count, step, to0)
                _write_planes(near1, some, count, step, to1)
            start += some
    add_lanes(lane_sums, sums)


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
