"""The inner loops of MACs over Z_2^m (`audit.macs`): leaves that OpenSSL has expanded, and sums."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.protocols.kernels.jit import callee, kernel

# Elements of a row that are folded at once: sums of a tree stay in the first-level cache. Whole AES
# blocks of two elements per byte.
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
    near = np.empty(_TILE, leaves.dtype)
    for start in range(0, total.shape[0], _TILE):
        count = min(_TILE, total.shape[0] - start)
        total[start : start + count] = 0
        rows[:, start : start + count] = 0
        for z in range(leaves.shape[0]):
            _spread(leaves[z], halved, start, near[:count])
            _add(near[:count], total[start : start + count])
            for t in range(rows.shape[0]):
                if z >> t & 1:
                    _add(near[:count], rows[t, start : start + count])


@callee
def _spread(leaf: NDArray[Any], halved: bool, start: int, out: NDArray[Any]) -> None:
    """Set `out` to a leaf's elements from number `start` on."""
    if not halved:
        out[:] = leaf[start : start + out.shape[0]]
        return
    for i in range(0, out.shape[0], _BLOCK):
        at = (start + i) // (2 * _BLOCK) * _BLOCK
        down = np.uint8(4) * np.uint8(i // _BLOCK & 1)
        count = min(_BLOCK, out.shape[0] - i)
        for j in range(count):
            out[i + j] = leaf[at + j] >> down


@callee
def _add(values: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(out.shape[0]):
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
