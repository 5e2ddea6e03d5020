"""The hash of OT extension (`mpc.protocols.ot.hash`), of columns of bits and of blocks.

A sender hashes each input twice, the second time with a difference (2,) of hash inputs, and has two
outputs. A receiver has no difference and no second output: both are None.
"""

from collections.abc import Callable, Iterator

import numpy as np
from llvmlite import ir

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.native.emit import (
    I32,
    I64,
    Vectors,
    bits_at,
    inline,
    loop,
    offset,
)
from securemedian.mpc.protocols.kernels.native.fetching import emit_fetch
from securemedian.mpc.protocols.kernels.native.optional import after
from securemedian.mpc.protocols.kernels.native.processor import GFNI, HASHED, LANES, LINE, VECTOR

# `Vectors.transposed` leaves column t * _STEP + i * _APART of a lane in byte i of vector t.
_STEP, _APART = (16, 1) if GFNI else (1, 8)


def in_a_row(lanes: int, vectors: int) -> list[list[int]]:
    """Return the places of the lanes of vectors of blocks that follow each other."""
    return [[lanes * i + lane for lane in range(lanes)] for i in range(vectors)]


def _sixteen(lanes: int) -> list[list[int]]:
    """Return the places of the columns of `_columns`, counted from the first one of lane 0."""
    return [[128 * lane + _APART * i for lane in range(lanes)] for i in range(16)]


def emit_hashes(
    v: Vectors,
    blocks: list[ir.Value],
    order: list[list[int]],
    first: ir.Value,
    difference: ir.Value | None,
    keys: ir.Value,
) -> Iterator[tuple[list[list[int]], list[ir.Value]]]:
    """Yield the places and hashes of vectors sigma(block), HASHED at a time.

    The tweak of lane l of vector i is `first` + order[i][l]. With a difference of hash inputs, as
    many hashes with it follow.
    """
    b, step = v.builder, HASHED if difference is None else HASHED // 2
    for begin in range(0, len(blocks), step):
        some = order[begin : begin + step]
        tweaked = [
            b.xor(
                block,
                b.add(first, v.constant([word for place in places for word in (place, 0)])),
            )
            for block, places in zip(blocks[begin : begin + step], some, strict=True)
        ]
        if difference is not None:
            tweaked += [b.xor(y, difference) for y in tweaked]
        yield some, v.hash(tweaked, keys)


def _write_hashes(
    v: Vectors,
    blocks: list[ir.Value],
    order: list[list[int]],
    at: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    outs: list[ir.Value],
) -> None:
    """Write the hashes of blocks under tweaks (index + place, stream), each to its place.

    The place of lane l of vector i is at + order[i][l].
    """
    b = v.builder
    first = v.fill(b.add(index, at), stream)
    for some, hashed in emit_hashes(v, blocks, order, first, difference, keys):
        for number, vector in enumerate(hashed):
            places = some[number % len(some)]
            start = offset(b, outs[number // len(some)], b.mul(at, ir.Constant(I64, 2)))
            if places == list(range(places[0], places[0] + v.lanes)):
                v.store(vector, offset(b, start, 2 * places[0]))
            else:
                for lane, place in enumerate(places):
                    v.store(v.lane(vector, lane), offset(b, start, 2 * place))


def _columns(v: Vectors, rows: ir.Value, stride: ir.Value) -> Callable[[ir.Value], list[ir.Value]]:
    """Transpose the 128 x lanes columns of a vector of each row, and return how to get their sigma.

    Lane l has the columns from 128 l on, of which a call returns those at the places of `_sixteen`
    from t * _STEP on, one per vector. Rows are XORed for sigma before they are columns. Their bits
    are transposed 8 rows at a time, which gives 16 bytes of each column. Pairs of these wait in the
    first-level cache, and every 8 vectors of pairs are then 8 columns of each lane: no more than
    there are registers for.
    """
    b, tile = v.builder, v.memory(128)

    def slot(t: ir.Value, group: ir.Value) -> ir.Value:
        at = b.add(b.mul(t, ir.Constant(I64, 16)), group)
        return offset(b, tile, b.mul(at, ir.Constant(I64, 2 * v.lanes)))

    def eight(group: ir.Value) -> list[ir.Value]:
        first = offset(b, rows, b.mul(b.mul(group, ir.Constant(I64, 8)), stride))
        return [v.load(offset(b, first, b.mul(stride, ir.Constant(I64, row)))) for row in range(8)]

    with loop(b, ir.Constant(I64, 8)) as group:
        low, other = eight(group), b.add(group, ir.Constant(I64, 8))
        halves = v.transposed(v.xors(low, eight(other))), v.transposed(low)
        for t, pair in enumerate(zip(*halves, strict=True)):
            found = v.interleave([b.bitcast(vector, v.bytes) for vector in pair])
            for place, vector in zip((group, other), found, strict=True):
                v.store(vector, slot(ir.Constant(I64, t), place))

    def sixteen(t: ir.Value) -> list[ir.Value]:
        vectors = [v.load(slot(t, ir.Constant(I64, group))) for group in range(16)]
        pairs = [b.bitcast(vector, v.bytes) for vector in vectors]
        columns = v.interleave(pairs[:8]) + v.interleave(pairs[8:])
        return [b.bitcast(column, v.words) for column in columns]

    return sixteen


def _write_columns(v: Vectors, pairs: list[ir.Value], t: ir.Value, out: ir.Value) -> None:
    """Write a word of each column of `_sixteen` from t * _STEP on. A vector has two of a lane."""
    b = v.builder
    begin = offset(b, out, b.mul(t, ir.Constant(I64, _STEP)))
    if GFNI:
        for first in range(0, 8, v.lanes):
            for lane, vector in enumerate(v.lanes_apart(pairs[first : first + v.lanes])):
                v.store(vector, offset(b, begin, 128 * lane + 2 * first))
        return
    for i, vector in enumerate(pairs):
        for at in range(2 * v.lanes):
            place = 128 * (at // 2) + _APART * (2 * i + at % 2)
            b.store(b.extract_element(vector, ir.Constant(I32, at)), offset(b, begin, place))


def _emit_transpose(
    builder: ir.IRBuilder, rows: ir.Value, stride: ir.Value, out: ir.Value, *, lanes: int
) -> None:
    """Write the columns of a vector of 64 rows, one word each."""
    b, v = builder, Vectors(builder, lanes)
    tile = v.memory(64)

    def slot(t: ir.Value, group: ir.Value) -> ir.Value:
        at = b.add(b.mul(t, ir.Constant(I64, 8)), group)
        return offset(b, tile, b.mul(at, ir.Constant(I64, 2 * v.lanes)))

    with loop(b, ir.Constant(I64, 8)) as group:
        first = offset(b, rows, b.mul(b.mul(group, ir.Constant(I64, 8)), stride))
        eight = [v.load(offset(b, first, b.mul(stride, ir.Constant(I64, row)))) for row in range(8)]
        for t, vector in enumerate(v.transposed(eight)):
            v.store(vector, slot(ir.Constant(I64, t), group))
    with loop(b, ir.Constant(I64, 8)) as t:
        vectors = [v.load(slot(t, ir.Constant(I64, group))) for group in range(8)]
        found = v.interleave([b.bitcast(vector, v.bytes) for vector in vectors])
        _write_columns(v, [b.bitcast(vector, v.words) for vector in found], t, out)


def _hashed(
    v: Vectors,
    columns: Callable[[ir.Value], list[ir.Value]],
    t: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
) -> list[list[ir.Value]]:
    """Return the hashes of `_columns`, and with a difference those with it: 16 vectors each."""
    b = v.builder
    first = v.fill(b.add(index, b.mul(t, ir.Constant(I64, _STEP))), stream)
    hashes: list[list[ir.Value]] = [[] for _ in range(1 if difference is None else 2)]
    for some, hashed in emit_hashes(v, columns(t), _sixteen(v.lanes), first, difference, keys):
        for number, vector in enumerate(hashed):
            hashes[number // len(some)].append(vector)
    return hashes


def _emit_low_hashes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
    *,
    lanes: int,
) -> None:
    """Hash columns as `_emit_columns` does, and write the low word of each hash."""
    v = Vectors(builder, lanes)
    columns = _columns(v, rows, stride)
    outs = [out0] if out1 is None else [out0, out1]
    apart = None if difference is None else v.broadcast(difference)
    with loop(builder, ir.Constant(I64, 8)) as t:
        hashes = _hashed(v, columns, t, index, stream, keys, apart)
        for found, out in zip(hashes, outs, strict=True):
            pairs = [v.low_words(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
            _write_columns(v, pairs, t, out)


def _emit_columns(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
    *,
    lanes: int,
) -> None:
    """Hash the 128 x `lanes` columns of a vector of each row, as `_write_hashes` does."""
    v = Vectors(builder, lanes)
    columns = _columns(v, rows, stride)
    outs = [out0] if out1 is None else [out0, out1]
    apart = None if difference is None else v.broadcast(difference)
    with loop(builder, ir.Constant(I64, 8)) as t:
        at = builder.mul(t, ir.Constant(I64, _STEP))
        # an eighth of what follows these
        for out in outs:
            soon = builder.mul(builder.add(t, ir.Constant(I64, 8)), ir.Constant(I64, 32 * lanes))
            for word in range(0, 32 * lanes, LINE // 8):
                emit_fetch(builder, out, builder.add(soon, ir.Constant(I64, word)), write=1)
        _write_hashes(v, columns(t), _sixteen(lanes), at, index, stream, keys, apart, outs)


def _emit_planes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    count: ir.Value,
    step: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
    *,
    lanes: int,
) -> None:
    """Hash columns as `_emit_columns` does, and keep `count` bits, 8 at most, of each hash.

    Bit k of the hashes becomes 2 x `lanes` words of plane k, which are `step` words apart. Only the
    lowest bytes of the hashes are put side by side, and none goes to memory whole.
    """
    b, v = builder, Vectors(builder, lanes)
    columns = _columns(v, rows, stride)
    outs = [out0] if out1 is None else [out0, out1]
    apart = None if difference is None else v.broadcast(difference)
    lowest = [v.memory(8) for _ in outs]
    with loop(b, ir.Constant(I64, 8)) as t:
        hashes = _hashed(v, columns, t, index, stream, keys, apart)
        for found, memory in zip(hashes, lowest, strict=True):
            place = b.mul(t, ir.Constant(I64, 2 * lanes))
            octets = v.lowest([b.bitcast(vector, v.bytes) for vector in found])
            v.store(b.bitcast(octets, v.words), offset(b, memory, place))
    for memory, planes in zip(lowest, outs, strict=True):
        bytes_ = [b.bitcast(vector, v.bytes) for vector in v.loads(memory, 8)]
        if not GFNI:
            bytes_ = v.interleave(bytes_)
        # the 64 columns of half a lane
        octets = [
            v.joined([v.bytes_of_lane(one, lane) for one in bytes_[4 * half : 4 * half + 4]])
            for lane in range(lanes)
            for half in range(2)
        ]
        with loop(b, count) as k:
            plane = offset(b, planes, b.mul(k, step))
            for word, octet in enumerate(octets):
                b.store(bits_at(b, octet, k), offset(b, plane, word))


def _emit_blocks(
    builder: ir.IRBuilder,
    blocks: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Hash `abreast` vectors of blocks, as `_write_hashes` does."""
    v = Vectors(builder, lanes)
    loaded, order = [v.sigma(one) for one in v.loads(blocks, abreast)], in_a_row(lanes, abreast)
    outs = [out0] if out1 is None else [out0, out1]
    apart = None if difference is None else v.broadcast(difference)
    _write_hashes(v, loaded, order, ir.Constant(I64, 0), index, stream, keys, apart, outs)


_transpose_tile, _transpose_block = (
    inline(_emit_transpose, 3, lanes=lanes) for lanes in (LANES, 1)
)
_low_hashes_tile, _low_hashes_block = (
    inline(_emit_low_hashes, 8, lanes=lanes) for lanes in (LANES, 1)
)
_columns_tile, _columns_block = (inline(_emit_columns, 8, lanes=lanes) for lanes in (LANES, 1))
# (rows, stride, index, stream, round keys, count, step, difference, out0, out1): see `_emit_planes`
hash_to_planes, hash_block_to_planes = (
    inline(_emit_planes, 10, lanes=lanes) for lanes in (LANES, 1)
)
_blocks_tile, _blocks_one = (
    inline(_emit_blocks, 7, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, HASHED), (1, 1))
)

# Hashes of keys, and with a difference those of both keys of each OT.
_ENDS = ("u8[2] u8 u8 u8[2] none u8[2]! none", "u8[2] u8 u8 u8[2] u8[1] u8[2]! u8[2]!")


@callee
def hash_part(
    rows: Words,
    stride: int,
    words: int,
    index: np.uint64,
    stream: np.uint64,
    round_keys: Words,
    difference: Words | None,
    out0: Words,
    out1: Words | None,
) -> None:
    """Set out0[i] = H((index + i, stream), column i of 128 rows), for `words` words of each row.

    out1[i] is the same with sigma(column) ^ difference. Rows are `stride` words apart, out0 (n, 2).
    """
    start = 0
    while start < words:
        here, at = rows[start:], index + np.uint64(64 * start)
        to0, to1 = out0[64 * start :], after(out1, 64 * start)
        if start + VECTOR <= words:
            _columns_tile(here, stride, at, stream, round_keys, difference, to0, to1)
            start += VECTOR
        else:
            _columns_block(here, stride, at, stream, round_keys, difference, to0, to1)
            start += 2


@callee
def low_words(
    rows: Words,
    stride: int,
    words: int,
    index: np.uint64,
    stream: np.uint64,
    round_keys: Words,
    difference: Words | None,
    out: Words,
    out0: Words | None,
    out1: Words | None,
) -> None:
    """Write the low words of columns, and of their hashes if there are `out0` and `out1`, (n,).

    They are of `words` words of each row, as for `hash_part`, of 128 rows; without hashes of 64.
    """
    start = 0
    while start < words:
        here, at, to = rows[start:], index + np.uint64(64 * start), out[64 * start :]
        to0, to1 = after(out0, 64 * start), after(out1, 64 * start)
        if start + VECTOR <= words:
            _transpose_tile(here, stride, to)
            if out0 is not None:
                _low_hashes_tile(here, stride, at, stream, round_keys, difference, to0, to1)
            start += VECTOR
        else:
            _transpose_block(here, stride, to)
            if out0 is not None:
                _low_hashes_block(here, stride, at, stream, round_keys, difference, to0, to1)
            start += 2


@kernel(*_ENDS)
def hash_blocks(
    blocks: Words,
    index: np.uint64,
    stream: np.uint64,
    round_keys: Words,
    difference: Words | None,
    out0: Words,
    out1: Words | None,
) -> None:
    """Do as `hash_part` does to blocks (n, 2)."""
    count, start = blocks.shape[0], 0
    while start < count:
        here, at = blocks[start:], index + np.uint64(start)
        to0, to1 = out0[start:], after(out1, start)
        if start + HASHED * LANES <= count:
            _blocks_tile(here, at, stream, round_keys, difference, to0, to1)
            start += HASHED * LANES
        else:
            _blocks_one(here, at, stream, round_keys, difference, to0, to1)
            start += 1
