"""MACs over Z_2^m (`audit.macs`): leaves from seeds to packed tags and keys, and sums of these.

Of `values`, which a prover has, and `masks`, which a verifier has, one is None, and so kernels are
compiled for either end.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.native.emit import (
    I8,
    I32,
    I64,
    KEY_WORDS,
    Vectors,
    inline,
    loop,
    spread,
)
from securemedian.mpc.protocols.kernels.native.optional import after, beside, flat
from securemedian.mpc.protocols.kernels.native.processor import LANES

# k: the leaves of a tree are 2^k
_TREE_BITS = 4
# Vectors that are expanded at once: the sums of all rows stay in registers.
_ABREAST = 3
# Columns that are transposed at once: they fit the second-level cache, with the totals of a table.
_COLUMNS = 1 << 10
# Bytes of a leaf that a tile takes, and elements at most.
_BYTES = 16 * LANES * _ABREAST
_MOST_TILE = 2 * _BYTES

Sums = list[ir.Value]


class _Elements:
    """Emit instructions on tiles of elements: lists of vectors."""

    def __init__(self, builder: ir.IRBuilder, element: ir.Type, halved: bool) -> None:
        self.builder, self.halved, self._element = builder, halved, element
        self._vectors = Vectors(builder, LANES)
        self.kind = ir.VectorType(element, 128 // element.width * LANES)
        self.nothing = [ir.Constant(self.kind, [0] * self.kind.count)] * self.count

    @property
    def count(self) -> int:
        """Return the vectors of a tile."""
        return _ABREAST * (2 if self.halved else 1)

    def leaves(self, keys: ir.Value, counters: Sums, numbers: list[int]) -> list[Sums]:
        """Return the elements of leaves; if they are halved, first the low ones of all vectors."""
        b, v = self.builder, self._vectors
        addresses = [b.gep(keys, [ir.Constant(I64, KEY_WORDS * leaf)]) for leaf in numbers]
        found = []
        for states in v.encrypt_under([counters] * len(numbers), addresses):
            # the bits shifted in from the next byte are above the element
            high = [b.lshr(state, v.constant([4] * 2 * LANES)) for state in states]
            every = states + high if self.halved else states
            found.append([b.bitcast(each, self.kind) for each in every])
        return found

    def in_order(self, tile: Sums) -> Sums:
        """Return a tile with its elements in order, where low and high ones are apart."""
        if not self.halved:
            return tile
        found = []
        for low, high in zip(tile[:_ABREAST], tile[_ABREAST:], strict=True):
            blocks = [
                range(side + 16 * lane, side + 16 * lane + 16)
                for lane in range(LANES)
                for side in (0, 16 * LANES)
            ]
            for half in (blocks[:LANES], blocks[LANES:]):
                order = [at for block in half for at in block]
                mask = ir.Constant(ir.VectorType(I32, len(order)), order)
                found.append(self.builder.shuffle_vector(low, high, mask))
        return found

    def add(self, one: Sums, other: Sums) -> Sums:
        return [self.builder.add(*pair) for pair in zip(one, other, strict=True)]

    def subtract(self, one: Sums, other: Sums) -> Sums:
        return [self.builder.sub(*pair) for pair in zip(one, other, strict=True)]

    def all_(self, value: ir.Value) -> Sums:
        return [spread(self.builder, value, self.kind)] * self.count

    def _places(self, address: ir.Value) -> list[ir.Value]:
        b = self.builder
        return [
            b.bitcast(
                b.gep(address, [ir.Constant(I64, self.kind.count * i)]), self.kind.as_pointer()
            )
            for i in range(self.count)
        ]

    def load(self, address: ir.Value) -> Sums:
        """Load a tile from the address of its first element."""
        found = []
        for place in self._places(address):
            loaded = self.builder.load(place)
            loaded.align = self._element.width // 8
            found.append(loaded)
        return found

    def store(self, tile: Sums, address: ir.Value) -> None:
        """Store a tile from the address of its first element on."""
        for vector, place in zip(tile, self._places(address), strict=True):
            self.builder.store(vector, place).align = self._element.width // 8

    def tree(
        self, keys: ir.Value, counters: Sums, level: int, first: int
    ) -> tuple[Sums, list[Sums]]:
        """Return the sum of the 2^level leaves from `first` on, and that of each row."""
        if level == 1:
            even, odd = self.leaves(keys, counters, [first, first + 1])
            return self.add(even, odd), [odd]
        if level == 2:
            n, one, two, three = self.leaves(keys, counters, [first + i for i in range(4)])
            last = self.add(two, three)
            return self.add(self.add(n, one), last), [self.add(one, three), last]
        left, rows = self.tree(keys, counters, level - 1, first)
        right, others = self.tree(keys, counters, level - 1, first + (1 << level - 1))
        sums = [self.add(*pair) for pair in zip(rows, others, strict=True)]
        return self.add(left, right), [*sums, right]


def _emit_expand(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    values: ir.Value | None,
    masks: ir.Value | None,
    f: ir.Value | None,
    rows: ir.Value,
    stride: ir.Value,
    *,
    halved: bool,
    tagged: bool = True,
) -> None:
    """Expand the leaves of one tree, and write a tile of f, of each row, or of both."""
    element = rows.type.pointee
    if halved and element != I8:
        # nothing calls it, but it would be compiled
        return
    b, elements = builder, _Elements(builder, element, halved)
    counters = Vectors(builder, LANES).counters(nonce, counter, _ABREAST)
    # unused values are not computed: the sum, and the first leaf, of a verifier
    total, sums = elements.tree(keys, counters, _TREE_BITS, 0)
    if values is not None:
        total = elements.in_order(total)
        elements.store(elements.subtract(elements.load(values), total), f)
    for row, tile in enumerate(sums if tagged else []):
        tile = elements.in_order(tile)
        if masks is None:
            tile = elements.subtract(elements.nothing, tile)
        else:
            mask = b.load(b.gep(masks, [ir.Constant(I64, row)]))
            unset, set_ = elements.all_(b.not_(mask)), elements.all_(mask)
            tile = [b.xor(*pair) for pair in zip(tile, unset, strict=True)]
            tile = elements.subtract(tile, unset)
            if f is not None:
                plus = [b.and_(*pair) for pair in zip(elements.load(f), set_, strict=True)]
                tile = elements.add(tile, plus)
        elements.store(tile, b.gep(rows, [b.mul(stride, ir.Constant(I64, row))]))


def _emit_pack(
    builder: ir.IRBuilder, rows: ir.Value, tile: ir.Value, out: ir.Value, *, slot: int
) -> None:
    """Pack the rows of one word, `tile` elements of each, into slots."""
    element = rows.type.pointee
    if slot < element.width > 8:
        # nothing calls it, but it would be compiled
        return
    b, v = builder, Vectors(builder, LANES)
    group = 128 // element.width
    kind = ir.VectorType(element, group * LANES)
    nothing = ir.Constant(kind, [0] * kind.count)
    with loop(b, b.udiv(tile, ir.Constant(I64, kind.count))) as number:
        first = b.mul(number, ir.Constant(I64, kind.count))
        given = []
        for row in range(64 // slot):
            at = b.add(first, b.mul(tile, ir.Constant(I64, row)))
            loaded = b.load(b.bitcast(b.gep(rows, [at]), kind.as_pointer()))
            loaded.align = element.width // 8
            given.append(loaded)
        if slot < element.width:
            low, up = (ir.Constant(kind, [each] * kind.count) for each in (15, 4))
            pairs = zip(given[::2], given[1::2], strict=True)
            given = [b.or_(b.and_(one, low), b.shl(other, up)) for one, other in pairs]
        elif slot > element.width:
            given = [each for row in given for each in (row, nothing)]
        for place, vector in enumerate(v.interleave(given)):
            words = b.bitcast(vector, v.words)
            for lane in range(LANES):
                to = b.gep(out, [b.add(first, ir.Constant(I64, group * lane + 2 * place))])
                v.store(v.lane(words, lane), to)


_expand_halves, _expand_wholes = (
    inline(_emit_expand, 8, halved=halved) for halved in (True, False)
)
_sum_halves, _sum_wholes = (
    inline(_emit_expand, 8, halved=halved, tagged=False) for halved in (True, False)
)
# rows, tile, words
_pack4, _pack8, _pack16 = (inline(_emit_pack, 3, slot=slot) for slot in (4, 8, 16))


@kernel(
    *(
        f"u8[4] u8 u8 b1 u8 {values} {masks} {f} u8 u8 {out}"
        for ring in ("u1", "u2")
        for values, masks, f, out in (
            (f"{ring}[1]!", "none", f"{ring}[2]!", "u8[2]!"),
            (f"{ring}[1]!", "none", f"{ring}[2]!", "none"),
            ("none", f"{ring}[1]", f"{ring}[2]!", "u8[2]!"),
            ("none", f"{ring}[1]", "none", "u8[2]!"),
        )
    )
)
def expand(
    leaves: Words,
    nonce: np.uint64,
    counter: np.uint64,
    halved: bool,
    count: int,
    values: NDArray[Any] | None,
    masks: NDArray[Any] | None,
    f: NDArray[Any] | None,
    first: int,
    slot: int,
    out: Words | None,
) -> None:
    """Expand the leaves of one end from AES block `counter` on, for `count` elements.

    leaves (e/4, 16, 11, 2) are round keys. A prover's values are (n,), its f (e/4, n) is written,
    and so are the tags, if `out` is given. A verifier's masks are (e,), all ones where Delta_c is
    1, and f is read from column `first` on; its first leaf of each tree is not used. Without f, and
    with masks that are 0, they are a prover's tags. Tags or keys are packed into slots of `slot`
    bits: `out` (K, n). `halved` elements are as in `macs.fold`.
    """
    if values is not None:
        rows = np.empty(16 * _MOST_TILE, values.dtype)
    elif masks is not None:
        rows = np.empty(16 * _MOST_TILE, masks.dtype)
    tile = _BYTES // rows.itemsize * (2 if halved else 1)
    # values, f and words of the last elements, which need not fill a tile
    near, near_words = np.zeros((2, tile), rows.dtype), np.empty(tile, np.uint64)
    each, stride = 1, 0
    if out is not None:
        # the trees of a word, whose round keys and rows stay in the first-level cache
        each = 16 // slot
    if f is not None:
        stride = f.shape[1]
    for word in range(leaves.shape[0] // each):
        for start in range(0, count, tile):
            left, at = min(tile, count - start), counter + np.uint64(start // tile * (_BYTES // 16))
            for i in range(each):
                tree, begin = word * each + i, first + start
                keys, its, to = (
                    leaves[tree].reshape(-1),
                    after(masks, 4 * tree),
                    rows[4 * i * tile :],
                )
                given, own = after(values, start), after(flat(f), tree * stride + begin)
                if left < tile:
                    given, own = beside(values, near[0]), beside(f, near[1])
                    if values is not None:
                        near[0, :left] = values[start : start + left]
                    elif f is not None:
                        near[1, :left] = f[tree, begin : begin + left]
                if out is None:
                    if halved:
                        _sum_halves(keys, nonce, at, given, its, own, to, tile)
                    else:
                        _sum_wholes(keys, nonce, at, given, its, own, to, tile)
                elif halved:
                    _expand_halves(keys, nonce, at, given, its, own, to, tile)
                else:
                    _expand_wholes(keys, nonce, at, given, its, own, to, tile)
                if left < tile and values is not None and f is not None:
                    f[tree, begin : begin + left] = near[1, :left]
            if out is not None:
                packed = out[word, start:] if left == tile else near_words
                if slot == 4:
                    _pack4(rows, tile, packed)
                elif slot == 8:
                    _pack8(rows, tile, packed)
                else:
                    _pack16(rows, tile, packed)
                if left < tile:
                    out[word, start:] = near_words[:left]


def _emit_transpose(
    builder: ir.IRBuilder, words: ir.Value, stride: ir.Value, near: ir.Value, *, slot: int
) -> None:
    """Set the first columns of `near` to those of words, of which each lane of a vector has two."""
    b, v = builder, Vectors(builder, LANES)
    nothing = v.constant([0] * 2 * LANES)
    rows = [
        v.load(b.gep(words, [b.mul(stride, ir.Constant(I64, k))])) for k in range(3 * slot // 4)
    ]
    rows += [nothing] * (slot - len(rows))
    # a column is `slot` words that follow each other
    found = v.interleave(rows)
    for lane in range(LANES):
        for at, vector in enumerate(found):
            to = b.gep(near, [ir.Constant(I64, 2 * (lane * slot + at))])
            v.store(v.lane(vector, lane), to)


def _emit_add(
    builder: ir.IRBuilder,
    count: ir.Value,
    near: ir.Value,
    places: ir.Value,
    totals: ir.Value,
    *,
    slot: int,
) -> None:
    """Add `count` columns of `slot` words each to its place."""
    b = builder
    fields = ir.VectorType(ir.IntType(max(slot, 8)), 64 * slot // max(slot, 8))
    top, rest = (ir.Constant(fields, [each] * fields.count) for each in (0x88, 0x77))

    def column(array: ir.Value, number: ir.Value) -> ir.Value:
        address = b.gep(array, [b.mul(number, ir.Constant(I64, slot))])
        return b.bitcast(address, fields.as_pointer())

    with loop(b, count) as i:
        to = column(totals, b.zext(b.load(b.gep(places, [i])), I64))
        total, added = b.load(to), b.load(column(near, i))
        total.align = added.align = 8
        if slot < 8:
            # two to a byte: no carry leaves a half
            sums = b.add(b.and_(total, rest), b.and_(added, rest))
            found = b.xor(sums, b.and_(b.xor(total, added), top))
        else:
            found = b.add(total, added)
        b.store(found, to).align = 8


# (words, stride, columns), (count, columns, places, totals)
_transpose4, _transpose8, _transpose16 = (
    inline(_emit_transpose, 3, slot=slot) for slot in (4, 8, 16)
)
_add4, _add8, _add16 = (inline(_emit_add, 4, slot=slot) for slot in (4, 8, 16))


@kernel("u8[2] u2[2] u8[3]!")
def add_to_places(words: Words, places: NDArray[np.uint16], totals: Words) -> None:
    """Do as `macs.add_to_places` does, of 48 components: K is 3 s / 4."""
    slot, count = totals.shape[2], words.shape[1]
    at_once = 2 * LANES
    near, flat_words = np.zeros((_COLUMNS, slot), np.uint64), words.reshape(-1)
    columns = near.reshape(-1)
    for start in range(0, count, _COLUMNS):
        some = min(_COLUMNS, count - start)
        whole = some // at_once * at_once
        for i in range(0, whole, at_once):
            if slot == 4:
                _transpose4(flat_words[start + i :], count, columns[slot * i :])
            elif slot == 8:
                _transpose8(flat_words[start + i :], count, columns[slot * i :])
            else:
                _transpose16(flat_words[start + i :], count, columns[slot * i :])
        for i in range(whole, some):
            for k in range(words.shape[0]):
                near[i, k] = words[k, start + i]
        for a in range(places.shape[0]):
            where, total = places[a, start:], totals[a].reshape(-1)
            if slot == 4:
                _add4(some, columns, where, total)
            elif slot == 8:
                _add8(some, columns, where, total)
            else:
                _add16(some, columns, where, total)
