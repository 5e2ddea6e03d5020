"""The inner loops of MACs over Z_2^m (`audit.macs`): leaves that OpenSSL has expanded, and sums.

Tags (and keys) of n ring elements are *packed*: e components in slots of s = 4, 8 or 16 bits, 64/s
of them to a word. Component c of element i stands in word c s // 64 of column i of an array (K, n).
Its bits there are [c s mod 64, c s mod 64 + s). So one instruction works on all components of a
word. Of a slot, only the low bits of the ring count.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.packing import FULL, plus

# Bytes, or numbers, of a leaf that are folded at once, in whole AES blocks: sums of a tree stay in
# the first-level cache.
_TILE = 1 << 11
# Columns that a loop works on while they are in the cache.
_COLUMNS = 1 << 10
# Bytes of an AES block.
_BLOCK = 16


@kernel(*(f"{ring}[2] b1 {ring}[1]! {ring}[2]!" for ring in ("u1", "u2")))
def fold(leaves: NDArray[Any], halved: bool, total: NDArray[Any], rows: NDArray[Any]) -> None:
    """Add up the leaves z of one tree, and those with bit t of z set: total (n,) and rows (k, n).

    leaves (2^k, w) hold an element each or, if `halved`, two. In the AES block j, elements 32 j to
    32 j + 15 are then the low halves of the bytes, and the next 16 the high ones. Above them,
    elements have whatever there is.
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


@kernel("u8[2] u2[2] u8[3]!")
def add_to_places(words: Words, places: NDArray[np.uint16], totals: Words) -> None:
    """Add column i of packed tags (K, n) to totals[a, places[a, i]], for each a.

    totals (t, M, s) have each column in one place, s words for slots of s bits: K of them count.
    """
    slot = totals.shape[2]
    tops = slots(slot) << np.uint64(slot - 1)
    for a in range(places.shape[0]):
        for i in range(words.shape[1]):
            total = totals[a, places[a, i]]
            for k in range(words.shape[0]):
                total[k] = plus(total[k], words[k, i], tops)


@callee
def slots(slot: int) -> np.uint64:
    """Return a word with 1 in each slot."""
    return FULL // (FULL >> np.uint64(64 - slot))


@kernel(*(f"{ring}[2] i8 u8[2]!" for ring in ("u1", "u2")))
def pack(rows: NDArray[Any], slot: int, out: Words) -> None:
    """Pack component rows (e, n): of each number, the low bits that fill a slot.

    Components first become the eight bytes of each word, side by side, and then the word.
    """
    eight = np.empty((8, _COLUMNS), np.uint8)
    for start in range(0, rows.shape[1], _COLUMNS):
        stop = min(start + _COLUMNS, rows.shape[1])
        for k in range(out.shape[0]):
            for byte in range(8):
                _take_byte(rows, slot, 8 * k + byte, start, eight[byte, : stop - start])
            _join_bytes(eight, out[k, start:stop])


@callee
def _take_byte(
    rows: NDArray[Any], slot: int, number: int, start: int, out: NDArray[np.uint8]
) -> None:
    """Set `out` to a byte of the packed components of the elements from `start` on."""
    component = 8 * number // slot
    if component >= rows.shape[0]:
        out[:] = 0
        return
    row = rows[component, start : start + out.shape[0]]
    if slot == 4:
        # an even number of components, because it is a multiple of 4
        above = rows[component + 1, start : start + out.shape[0]]
        for i in range(out.shape[0]):
            out[i] = (np.uint8(row[i]) & np.uint8(15)) | (np.uint8(above[i]) << np.uint8(4))
        return
    down = np.uint16(8 * number % slot)
    for i in range(out.shape[0]):
        out[i] = np.uint8(np.uint16(row[i]) >> down)


@callee
def _join_bytes(eight: NDArray[np.uint8], out: Words) -> None:
    one, two, three, four = eight[0], eight[1], eight[2], eight[3]
    five, six, seven, last = eight[4], eight[5], eight[6], eight[7]
    for i in range(out.shape[0]):
        low = np.uint64(one[i]) | np.uint64(two[i]) << np.uint64(8)
        low |= np.uint64(three[i]) << np.uint64(16) | np.uint64(four[i]) << np.uint64(24)
        high = np.uint64(five[i]) | np.uint64(six[i]) << np.uint64(8)
        high |= np.uint64(seven[i]) << np.uint64(16) | np.uint64(last[i]) << np.uint64(24)
        out[i] = low | high << np.uint64(32)


@kernel(*(f"u8[2] i8 i8 {ring}[2]!" for ring in ("u1", "u2")))
def unpack(words: Words, slot: int, bits: int, rows: NDArray[Any]) -> None:
    """Set component rows (e, n) to the lowest `bits` bits of slots of packed tags (K, n)."""
    mask = FULL >> np.uint64(64 - bits)
    for c in range(rows.shape[0]):
        k, down = c * slot // 64, np.uint64(c * slot % 64)
        for i in range(rows.shape[1]):
            rows[c, i] = (words[k, i] >> down) & mask
