"""The hash of OT extension (`mpc.protocols.ot.hash`), of columns of bits and of blocks.

A sender hashes each input twice, the second time with a difference (2,) of hash inputs, and has two
outputs. A receiver has no difference and no second output: both are None.

Columns are those of `words` words of rows that are `stride` words apart. Column i, and block i, is
hashed under the tweak (index + i, stream).
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from llvmlite import ir

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.native.emit import (
    I32,
    I64,
    Vectors,
    bits_at,
    inline,
    loop,
    offset,
    tiles,
)
from securemedian.mpc.protocols.kernels.native.fetching import emit_fetch
from securemedian.mpc.protocols.kernels.native.processor import GFNI, HASHED, LINE

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
    first: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    outs: list[ir.Value],
) -> None:
    """Write the hashes of blocks whose tweaks are `first` + place, each to its place.

    The place of lane l of vector i is order[i][l].
    """
    for some, hashed in emit_hashes(v, blocks, order, first, difference, keys):
        for number, vector in enumerate(hashed):
            places, out = some[number % len(some)], outs[number // len(some)]
            if places == list(range(places[0], places[0] + v.lanes)):
                v.store(vector, offset(v.builder, out, 2 * places[0]))
            else:
                for lane, place in enumerate(places):
                    v.store(v.lane(vector, lane), offset(v.builder, out, 2 * place))


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


def _times(builder: ir.IRBuilder, value: ir.Value, by: int) -> ir.Value:
    return builder.mul(value, ir.Constant(I64, by))


def _tiles_of_columns(
    builder: ir.IRBuilder,
    rows: ir.Value,
    words: ir.Value,
    index: ir.Value,
    difference: ir.Value | None,
) -> Iterator[tuple[Vectors, ir.Value, ir.Value, ir.Value, Any]]:
    """Emit loops over tiles of columns, whose bodies the caller writes.

    Each has its vectors, the address of its rows, the number of its first column, the index of that
    one, and the difference in all lanes.
    """
    b = builder
    for v, _, block in tiles(b, b.lshr(words, ir.Constant(I64, 1))):
        first = _times(b, block, 128)
        apart = None if difference is None else v.broadcast(difference)
        yield v, offset(b, rows, _times(b, block, 2)), first, b.add(index, first), apart


def _outs(out0: ir.Value, out1: ir.Value | None) -> list[ir.Value]:
    return [out0] if out1 is None else [out0, out1]


def _first_tweak(v: Vectors, index: ir.Value, t: ir.Value, stream: ir.Value) -> ir.Value:
    """Return the tweak that those of the columns from t * _STEP on are counted from."""
    return v.fill(v.builder.add(index, _times(v.builder, t, _STEP)), stream)


def _hashed(
    v: Vectors,
    columns: list[ir.Value],
    first: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
) -> list[list[ir.Value]]:
    """Return the hashes of `_columns`, and with a difference those with it: 16 vectors each."""
    hashes: list[list[ir.Value]] = [[] for _ in range(1 if difference is None else 2)]
    for some, hashed in emit_hashes(v, columns, _sixteen(v.lanes), first, difference, keys):
        for number, vector in enumerate(hashed):
            hashes[number // len(some)].append(vector)
    return hashes


def _write_low_columns(v: Vectors, rows: ir.Value, stride: ir.Value, out: ir.Value) -> None:
    """Transpose a vector of 64 rows, and write its columns, one word each."""
    b, eight, tile = v.builder, ir.Constant(I64, 8), v.memory(64)
    with loop(b, eight) as group:
        first = offset(b, rows, b.mul(b.mul(group, eight), stride))
        those = [v.load(offset(b, first, b.mul(stride, ir.Constant(I64, row)))) for row in range(8)]
        for t, vector in enumerate(v.transposed(those)):
            at = b.add(ir.Constant(I64, 8 * t), group)
            v.store(vector, offset(b, tile, _times(b, at, 2 * v.lanes)))
    with loop(b, eight) as t:
        vectors = v.loads(offset(b, tile, _times(b, t, 16 * v.lanes)), 8)
        found = v.interleave([b.bitcast(vector, v.bytes) for vector in vectors])
        _write_columns(v, [b.bitcast(vector, v.words) for vector in found], t, out)


def _emit_low_words(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    words: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value | None,
    difference: ir.Value | None,
    out: ir.Value,
    out0: ir.Value | None,
    out1: ir.Value | None,
) -> None:
    """Write the low words of columns, and of their hashes if there is `out0`: (64 words,).

    They are those of 128 rows, and without hashes of 64.
    """
    b, outs = builder, [each for each in (out0, out1) if each is not None]
    for v, mine, at, its_index, apart in _tiles_of_columns(b, rows, words, index, difference):
        _write_low_columns(v, mine, stride, offset(b, out, at))
        if not outs:
            continue
        columns = _columns(v, mine, stride)
        with loop(b, ir.Constant(I64, 8)) as t:
            first = _first_tweak(v, its_index, t, stream)
            hashes = _hashed(v, columns(t), first, keys, apart)
            for found, to in zip(hashes, outs, strict=True):
                pairs = [v.low_words(*pair) for pair in zip(found[::2], found[1::2], strict=True)]
                _write_columns(v, pairs, t, offset(b, to, at))


def _emit_columns(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    words: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
) -> None:
    """Hash the columns of 128 rows, and write the hashes: out (64 words, 2)."""
    b, outs = builder, _outs(out0, out1)
    for v, mine, at, its_index, apart in _tiles_of_columns(b, rows, words, index, difference):
        columns = _columns(v, mine, stride)
        to = [offset(b, out, _times(b, at, 2)) for out in outs]
        with loop(b, ir.Constant(I64, 8)) as t:
            # an eighth of what follows these
            soon = _times(b, b.add(t, ir.Constant(I64, 8)), 32 * v.lanes)
            for out in to:
                for word in range(0, 32 * v.lanes, LINE // 8):
                    emit_fetch(b, out, b.add(soon, ir.Constant(I64, word)), write=1)
            first = _first_tweak(v, its_index, t, stream)
            here = [offset(b, out, _times(b, t, 2 * _STEP)) for out in to]
            _write_hashes(v, columns(t), _sixteen(v.lanes), first, keys, apart, here)


def _emit_planes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    words: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    count: ir.Value,
    step: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
) -> None:
    """Hash the columns of 128 rows, and keep `count` bits, 8 at most, of each hash.

    Bit k of the hashes becomes plane k of `words` words, which are `step` words apart. Only the
    lowest bytes of the hashes are put side by side, and none goes to memory whole.
    """
    b, outs = builder, _outs(out0, out1)
    for v, mine, at, its_index, apart in _tiles_of_columns(b, rows, words, index, difference):
        columns = _columns(v, mine, stride)
        lowest = [v.memory(8) for _ in outs]
        with loop(b, ir.Constant(I64, 8)) as t:
            first = _first_tweak(v, its_index, t, stream)
            hashes = _hashed(v, columns(t), first, keys, apart)
            for found, memory in zip(hashes, lowest, strict=True):
                octets = v.lowest([b.bitcast(vector, v.bytes) for vector in found])
                v.store(b.bitcast(octets, v.words), offset(b, memory, _times(b, t, 2 * v.lanes)))
        word = b.lshr(at, ir.Constant(I64, 6))
        for memory, out in zip(lowest, outs, strict=True):
            bytes_ = [b.bitcast(vector, v.bytes) for vector in v.loads(memory, 8)]
            if not GFNI:
                bytes_ = v.interleave(bytes_)
            # the 64 columns of half a lane
            octets = [
                v.joined([v.bytes_of_lane(one, lane) for one in bytes_[4 * half : 4 * half + 4]])
                for lane in range(v.lanes)
                for half in range(2)
            ]
            with loop(b, count) as k:
                plane = offset(b, offset(b, out, word), b.mul(k, step))
                for i, octet in enumerate(octets):
                    b.store(bits_at(b, octet, k), offset(b, plane, i))


def _emit_blocks(
    builder: ir.IRBuilder,
    blocks: ir.Value,
    count: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    difference: ir.Value | None,
    out0: ir.Value,
    out1: ir.Value | None,
) -> None:
    """Hash `count` blocks."""
    b = builder
    for v, vectors, at in tiles(b, count, HASHED):
        word = _times(b, at, 2)
        loaded = [v.sigma(one) for one in v.loads(offset(b, blocks, word), vectors)]
        outs = [offset(b, out, word) for out in _outs(out0, out1)]
        apart = None if difference is None else v.broadcast(difference)
        first = v.fill(b.add(index, at), stream)
        _write_hashes(v, loaded, in_a_row(v.lanes, vectors), first, keys, apart, outs)


# (rows, stride, words, index, stream, round keys, difference, out0, out1)
hash_columns = inline(_emit_columns, 9)
# (rows, stride, words, index, stream, round keys, difference, out, out0, out1)
low_words = inline(_emit_low_words, 10)
# (rows, stride, words, index, stream, round keys, count, step, difference, out0, out1)
hash_to_planes = inline(_emit_planes, 11)
_hash_blocks = inline(_emit_blocks, 8)

# Hashes of keys, and with a difference those of both keys of each OT.
_ENDS = ("u8[2] u8 u8 u8[2] none u8[2]! none", "u8[2] u8 u8 u8[2] u8[1] u8[2]! u8[2]!")


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
    """Set out0[i] = H((index + i, stream), block i), for blocks (n, 2).

    out1[i] is the same with sigma(block) ^ difference.
    """
    _hash_blocks(blocks, blocks.shape[0], index, stream, round_keys, difference, out0, out1)
