"""MACs over Z_2^m (`audit.macs`): leaves from seeds to tags and keys, and sums of these.

Of `values`, which a prover has, and `masks`, which a verifier has, one is None, and so kernels are
compiled for either end.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.macs import COLUMN
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
from securemedian.mpc.protocols.kernels.native.optional import after, beside
from securemedian.mpc.protocols.kernels.native.processor import LANES

# k: the leaves of a tree are 2^k
_TREE_BITS = 4
# Vectors that are expanded at once: the sums of all rows stay in registers.
_ABREAST = 2
# Columns that are transposed at once: they fit the second-level cache, with the totals of a table.
_COLUMNS = 1 << 11
# Bytes of a leaf that a tile takes.
_BYTES = 16 * LANES * _ABREAST

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
            # what is shifted in from the next byte is above the element
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
    f: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    *,
    halved: bool,
) -> None:
    """Expand the leaves of one tree, and write a tile of f and of each row, or of rows alone."""
    element = f.type.pointee
    if halved and element != I8:
        # nothing calls it, but it would be compiled
        return
    b, elements = builder, _Elements(builder, element, halved)
    counters = Vectors(builder, LANES).counters(nonce, counter, _ABREAST)
    # what is not used is not computed: the sum, and the first leaf, of a verifier
    total, sums = elements.tree(keys, counters, _TREE_BITS, 0)
    if values is not None:
        total = elements.in_order(total)
        elements.store(elements.subtract(elements.load(values), total), f)
    for row, tile in enumerate(sums):
        tile = elements.in_order(tile)
        if masks is None:
            tile = elements.subtract(elements.nothing, tile)
        else:
            mask = b.load(b.gep(masks, [ir.Constant(I64, row)]))
            unset, set_ = elements.all_(b.not_(mask)), elements.all_(mask)
            plus = [b.and_(*pair) for pair in zip(elements.load(f), set_, strict=True)]
            tile = [b.xor(*pair) for pair in zip(tile, unset, strict=True)]
            tile = elements.add(elements.subtract(tile, unset), plus)
        elements.store(tile, b.gep(rows, [b.mul(stride, ir.Constant(I64, row))]))


_expand_halves, _expand_wholes = (
    inline(_emit_expand, 8, halved=halved) for halved in (True, False)
)


@kernel(
    *(
        f"u8[4] u8 u8 b1 {values} {masks} {ring}[2]! {ring}[2]!"
        for ring in ("u1", "u2")
        for values, masks in ((f"{ring}[1]!", "none"), ("none", f"{ring}[1]"))
    )
)
def expand(
    leaves: Words,
    nonce: np.uint64,
    counter: np.uint64,
    halved: bool,
    values: NDArray[Any] | None,
    masks: NDArray[Any] | None,
    f: NDArray[Any],
    rows: NDArray[Any],
) -> None:
    """Expand the leaves of one end from AES block `counter` on: f and tags, or keys.

    leaves (e/4, 16, 11, 2) are round keys. A prover's values are (n,), its f (e/4, n) and the rows
    (e, n) are written. A verifier's masks are (e,), all ones where Delta_c is 1, and f is read; its
    first leaf of each tree is not used. `halved` elements are as in `macs.fold`.
    """
    count, tile = rows.shape[1], _BYTES // rows.itemsize * (2 if halved else 1)
    # values, f and rows of the last elements, which need not fill a tile
    near, near_rows = np.zeros((2, tile), rows.dtype), np.empty((_TREE_BITS, tile), rows.dtype)
    for tree in range(leaves.shape[0]):
        keys, own = leaves[tree].reshape(-1), f[tree]
        its = after(masks, _TREE_BITS * tree)
        for start in range(0, count, tile):
            left, at = min(tile, count - start), counter + np.uint64(start // tile * (_BYTES // 16))
            given, to = after(values, start), own[start:]
            out, stride = rows[_TREE_BITS * tree].reshape(-1)[start:], count
            if left < tile:
                given, to = beside(values, near[0]), near[1]
                out, stride = near_rows.reshape(-1), tile
                if values is not None:
                    near[0, :left] = values[start:]
                to[:left] = own[start:]
            if halved:
                _expand_halves(keys, nonce, at, given, its, to, out, stride)
            else:
                _expand_wholes(keys, nonce, at, given, its, to, out, stride)
            if left < tile:
                own[start:] = to[:left]
                for t in range(_TREE_BITS):
                    rows[_TREE_BITS * tree + t, start:] = near_rows[t, :left]


def _emit_transpose(
    builder: ir.IRBuilder, groups: ir.Value, rows: ir.Value, stride: ir.Value, near: ir.Value
) -> None:
    """Set the first columns of `near` to those of rows, of which a lane of a vector is a group."""
    b, v, element = builder, Vectors(builder, LANES), rows.type.pointee
    group, size = 128 // element.width, element.width // 8
    kind = ir.VectorType(element, group * LANES)
    with loop(b, groups) as number:
        first = b.mul(number, ir.Constant(I64, group))
        given = []
        for i in range(group):
            row = b.gep(rows, [b.mul(b.add(first, ir.Constant(I64, i)), stride)])
            loaded = b.load(b.bitcast(row, kind.as_pointer()))
            loaded.align = size
            given.append(loaded)
        for place, vector in enumerate(v.interleave(given)):
            for lane in range(LANES):
                order = range(group * lane, group * (lane + 1))
                part = b.shuffle_vector(
                    vector, vector, ir.Constant(ir.VectorType(I32, group), list(order))
                )
                column = ir.Constant(I64, COLUMN * (group * lane + place))
                to = b.gep(near, [b.add(first, column)])
                b.store(part, b.bitcast(to, part.type.as_pointer())).align = size


def _emit_add(
    builder: ir.IRBuilder, count: ir.Value, near: ir.Value, places: ir.Value, totals: ir.Value
) -> None:
    """Add `count` columns each to its place."""
    b, element = builder, near.type.pointee
    kind = ir.VectorType(element, COLUMN)

    def column(array: ir.Value, number: ir.Value) -> ir.Value:
        address = b.gep(array, [b.mul(number, ir.Constant(I64, COLUMN))])
        return b.bitcast(address, kind.as_pointer())

    with loop(b, count) as i:
        to = column(totals, b.zext(b.load(b.gep(places, [i])), I64))
        total, added = b.load(to), b.load(column(near, i))
        total.align = added.align = element.width // 8
        b.store(b.add(total, added), to).align = element.width // 8


# (groups of rows, rows, stride, columns), (count, columns, places, totals)
_transpose, _add = inline(_emit_transpose, 4), inline(_emit_add, 4)


@kernel(*(f"{ring}[2] u2[2] {ring}[3]!" for ring in ("u1", "u2")))
def add_to_places(rows: NDArray[Any], places: NDArray[np.uint16], totals: NDArray[Any]) -> None:
    """Do as `macs.add_to_places` does, on a multiple of 16 rows, and totals of COLUMN elements."""
    at_once = 16 * LANES // rows.itemsize
    groups = rows.shape[0] * rows.itemsize // 16
    near = np.zeros((_COLUMNS, COLUMN), rows.dtype)
    columns, stride = near.reshape(-1), rows.shape[1]
    for start in range(0, stride, _COLUMNS):
        count = min(_COLUMNS, stride - start)
        whole = count // at_once * at_once
        for first in range(0, whole, at_once):
            _transpose(groups, rows.reshape(-1)[start + first :], stride, columns[COLUMN * first :])
        for c in range(rows.shape[0]):
            for i in range(whole, count):
                near[i, c] = rows[c, start + i]
        for a in range(places.shape[0]):
            _add(count, columns, places[a, start:], totals[a].reshape(-1))
