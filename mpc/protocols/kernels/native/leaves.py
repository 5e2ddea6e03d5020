"""The leaves of SoftSpokenOT's trees, from seeds to rows and to keys.

A receiver knows all leaves and writes its choices. A sender has a mask for each row in their place.
Of `choices` and `masks` one is None, and so kernels are compiled for either end.
"""

from collections.abc import Callable

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
from securemedian.mpc.protocols.kernels.native.hashing import (
    hash_block_to_planes,
    hash_part,
    hash_to_planes,
    low_words,
)
from securemedian.mpc.protocols.kernels.native.optional import after, beside, flat
from securemedian.mpc.protocols.kernels.native.processor import ABREAST, LANES, VECTOR
from securemedian.mpc.protocols.kernels.native.slicing import word_of_key_planes
from securemedian.mpc.protocols.kernels.native.weighing import add_lanes, weigh_rows

# For trees of 2^_SMALL_BITS leaves all sums of 3 vectors are kept in registers.
_SMALL_BITS = 4
_SMALL_ABREAST = 3
# The largest k of SoftSpokenOT.
_MOST_BITS = 8
# Words of a row that are expanded at once.
_TILE = ABREAST * VECTOR
_SMALL_TILE = _SMALL_ABREAST * VECTOR
# Words of each row that are expanded and then hashed: so few that they stay in the second-level
# cache in between.
STRIP = 168


def _emit_expand(
    builder: ir.IRBuilder,
    keys: ir.Value,
    bits: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    added: ir.Value,
    masks: ir.Value | None,
    total: ir.Value | None,
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Expand the 2^bits leaves of one tree and fold them, `abreast` vectors of each row.

    At the receiver `total` becomes the sum of all leaves ^ `added`. The sender has no total and all
    leaves but the first: its row j becomes what the leaves fold to ^ masks[j] & `added`.

    Subtrees are added up as they end, as a binary counter carries: row j takes the sum of each
    right subtree of level j, so that a leaf is added about twice, and not once per row. Row 0 is
    kept in registers, the others and one sum per level in the first-level cache.
    """
    b, v, one = builder, Vectors(builder, lanes), ir.Constant(I64, 1)
    counters = v.counters(nonce, counter, abreast)
    size = 2 * lanes

    def read(address: ir.Value) -> list[ir.Value]:
        return v.loads(address, abreast)

    def stream(leaf: ir.Value) -> list[ir.Value]:
        return v.encrypt(counters, offset(b, keys, b.mul(leaf, ir.Constant(I64, KEY_WORDS))))

    def table() -> Callable[[ir.Value], ir.Value]:
        memory = v.memory((_MOST_BITS + 1) * abreast)
        return lambda level: offset(b, memory, b.mul(level, ir.Constant(I64, size * abreast)))

    folded, sums, row0, pairs = table(), table(), v.memory(abreast), v.memory(abreast)
    with loop(b, bits) as j:
        first = [v.constant([0] * size)] * abreast
        if masks is not None:
            first = _masked(v, read(added), offset(b, masks, j))
        v.stores(first, folded(j))
    v.stores(read(folded(ir.Constant(I64, 0))), row0)
    if masks is not None:
        # the pair of the missing leaf
        odd = stream(one)
        v.stores(v.xors(read(row0), odd), row0)
        v.stores(odd, sums(one))
    with loop(b, b.shl(one, b.sub(bits, one)), int(masks is not None)) as pair:
        even, odd = stream(b.shl(pair, one)), stream(b.or_(b.shl(pair, one), one))
        v.stores(v.xors(read(row0), odd), row0)
        v.stores(v.xors(even, odd), pairs)
        # the levels at which this pair is the end of a right subtree
        top = b.add(b.cttz(b.not_(pair), ir.Constant(ir.IntType(1), 0)), one)
        with loop(b, top, 1) as level:
            right = read(pairs)
            v.stores(v.xors(read(folded(level)), right), folded(level))
            v.stores(v.xors(read(sums(level)), right), pairs)
        v.stores(read(pairs), sums(top))
    v.stores(read(row0), rows)
    with loop(b, bits, 1) as j:
        v.stores(read(folded(j)), offset(b, rows, b.mul(j, stride)))
    if total is not None:
        v.stores(v.xors(read(sums(bits)), read(added)), total)


def _emit_expand_small(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    added: ir.Value,
    masks: ir.Value | None,
    total: ir.Value | None,
) -> None:
    """Do as `_emit_expand` does for trees of 2^_SMALL_BITS leaves, without a loop.

    Two leaves at a time are expanded, and added to the rows in which their pair has a part.
    """
    b, v = builder, Vectors(builder, LANES)
    counters = v.counters(nonce, counter, _SMALL_ABREAST)
    nothing = [v.constant([0] * VECTOR)] * _SMALL_ABREAST
    # of each row, and of all leaves
    sums, whole = [nothing] * _SMALL_BITS, nothing
    for first in range(0, 1 << _SMALL_BITS, 2):
        # the sender misses leaf 0
        pair = [first + 1] if masks is not None and first == 0 else [first, first + 1]
        leaves = [offset(b, keys, KEY_WORDS * leaf) for leaf in pair]
        states = v.encrypt_under([counters] * len(pair), leaves)
        sums[0] = v.xors(sums[0], states[-1])
        both = v.xors(*states) if len(states) == 2 else states[0]
        for j in range(1, _SMALL_BITS):
            if first >> j & 1:
                sums[j] = v.xors(sums[j], both)
        whole = v.xors(whole, both)
    correction = v.loads(added, _SMALL_ABREAST)
    for j, values in enumerate(sums):
        if masks is not None:
            values = v.xors(values, _masked(v, correction, offset(b, masks, j)))
        v.stores(values, offset(b, rows, b.mul(ir.Constant(I64, j), stride)))
    if total is not None:
        v.stores(v.xors(whole, correction), total)


def _masked(v: Vectors, vectors: list[ir.Value], address: ir.Value) -> list[ir.Value]:
    """Return vectors & the mask at an address."""
    mask = v.builder.load(address)
    return [v.builder.and_(vector, v.fill(mask, mask)) for vector in vectors]


_expand_small = inline(_emit_expand_small, 8)
_expand_tile, _expand_block = (
    inline(_emit_expand, 9, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, ABREAST), (1, 1))
)
_weigh_small, _weigh_tile, _weigh_block = (
    weigh_rows(lanes, abreast)
    for lanes, abreast in ((LANES, _SMALL_ABREAST), (LANES, ABREAST), (1, 1))
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
    have a sum for each lane. A few vectors are weighed at a time, beside the AES of the next.
    """
    bits, step, row = rows.shape[0] // leaves.shape[0], rows.shape[1], rows.reshape(-1)
    weight, lane_sum = weights[first:], lane_sums.reshape(-1)
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
        start = 0
        while start < words:
            # slices that are nowhere kept cost no counting of references
            block = counter + np.uint64((first + start) // 2)
            if bits == _SMALL_BITS and start + _SMALL_TILE <= words:
                if choices is not None:
                    _weigh_small(bits, to[start:], step, weight[start:], sums)
                _expand_small(
                    keys, nonce, block, to[start:], step, plus[start:], its, after(total, start)
                )
                if masks is not None:
                    _weigh_small(bits, to[start:], step, weight[start:], sums)
                start += _SMALL_TILE
            elif start + _TILE <= words:
                if choices is not None:
                    _weigh_tile(bits, to[start:], step, weight[start:], sums)
                _expand_tile(
                    keys,
                    bits,
                    nonce,
                    block,
                    to[start:],
                    step,
                    plus[start:],
                    its,
                    after(total, start),
                )
                if masks is not None:
                    _weigh_tile(bits, to[start:], step, weight[start:], sums)
                start += _TILE
            else:
                if choices is not None:
                    _weigh_block(bits, to[start:], step, weight[start:], sums)
                _expand_block(
                    keys,
                    bits,
                    nonce,
                    block,
                    to[start:],
                    step,
                    plus[start:],
                    its,
                    after(total, start),
                )
                if masks is not None:
                    _weigh_block(bits, to[start:], step, weight[start:], sums)
                start += 2


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

    leaves (128/k, 2^k, 11, 2) are round keys, of which a sender does not use those of the first
    leaf of each tree; `counter` counts the AES blocks of the streams that were used before.
    rows (128, w), written, of fewer trees k for each. The receiver's choices (w,) and corrections
    (128/k - 1, w) are written; the sender's corrections are read, and its masks (128,), as
    `extension.correct` takes them.

    What a sender writes to the rows, or what a receiver overwrites there, is added to `sums`
    (128, 2) with `weights` (w,), as `extension.weigh` does. So rows that a receiver keeps until it
    has weights are read while there is AES to do, and there is no other pass over them.
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
