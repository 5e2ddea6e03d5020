"""The inner loops of MACs over Z_2^m (`audit.macs`): leaves that OpenSSL has expanded, and sums."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.protocols.kernels.jit import callee, kernel

# Bytes, or numbers, of a leaf that are folded at once, in whole AES blocks: sums of a tree stay in
# the first-level cache.
_TILE = 1 << 11
# Elements of a column in memory, of which there are as many as there are rows, or more.
COLUMN = 64
# Columns that are transposed at once.
_COLUMNS = 64
# Bytes of an AES block.
_BLOCK = 16


@kernel(*(f"{ring}[2] b1 {ring}[1]! {ring}[2]!" for ring in ("u1", "u2")))
def fold(leaves: NDArray[Any], halved: bool, total: NDArray[Any], rows: NDArray[Any]) -> None:
    """Add up the leaves z of one tree, and those with bit t of z set: total (n,) and rows (k, n).

    leaves (2^k, w) hold an element each or, if `halved`, two: in the AES block j, elements 32 j to
    32 j + 15 are the low halves of the bytes, and the next 16 the high ones. Above them, elements
    have whatever there is.
    """
    rest = rows.shape[0]
    near, sums = np.empty(_TILE, leaves.dtype), np.empty((rest + 1, _TILE), leaves.dtype)
    for start in range(0, leaves.shape[1], _TILE):
        count = min(_TILE, leaves.shape[1] - start)
        for side in range(2 if halved else 1):
            sums[:] = 0
            for z in range(leaves.shape[0]):
                _shift(leaves[z, start : start + count], 4 * side, near)
                _add(near[:count], sums[rest])
                for t in range(rest):
                    if z >> t & 1:
                        _add(near[:count], sums[t])
            for t in range(rest):
                _put(sums[t, :count], halved, start, side, rows[t])
            _put(sums[rest, :count], halved, start, side, total)


@callee
def _shift(leaf: NDArray[Any], down: int, out: NDArray[Any]) -> None:
    for i in range(leaf.shape[0]):
        out[i] = leaf[i] >> down


@callee
def _put(sums: NDArray[Any], halved: bool, start: int, side: int, out: NDArray[Any]) -> None:
    """Set elements of `out` to sums over low or high halves of the bytes from `start` on."""
    if not halved:
        count = min(sums.shape[0], out.shape[0] - start)
        out[start : start + count] = sums[:count]
        return
    for first in range(0, sums.shape[0], _BLOCK):
        to = 2 * (start + first) + side * _BLOCK
        for i in range(min(_BLOCK, out.shape[0] - to)):
            out[to + i] = sums[first + i]


@callee
def _add(values: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(values.shape[0]):
        out[i] += values[i]


@kernel(*(f"{ring}[2] u2[2] {ring}[3]!" for ring in ("u1", "u2")))
def add_to_places(rows: NDArray[Any], places: NDArray[np.uint16], totals: NDArray[Any]) -> None:
    """Add column i of rows (e, n) to totals[a, places[a, i]], for each a.

    totals (t, M, COLUMN) have each column in one place, to which rows are transposed. What is
    beyond e stays.
    """
    near = np.empty((_COLUMNS, rows.shape[0]), rows.dtype)
    for start in range(0, rows.shape[1], _COLUMNS):
        count = min(_COLUMNS, rows.shape[1] - start)
        for c in range(rows.shape[0]):
            row = rows[c, start : start + count]
            for i in range(count):
                near[i, c] = row[i]
        for i in range(count):
            for a in range(places.shape[0]):
                _add(near[i], totals[a, places[a, start + i], : rows.shape[0]])
