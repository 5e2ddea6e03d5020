"""The inner loops of MACs over Z_2^m (`audit.macs`): leaves that OpenSSL has expanded, and sums."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel

# Bytes, or numbers, of a leaf that are folded at once, in whole AES blocks: sums of a tree stay in
# the first-level cache.
_TILE = 1 << 11
# Columns of which it is found at once where they are added.
_COLUMNS = 1 << 10
# Bytes of an AES block.
_BLOCK = 16
FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


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


@kernel("u8[2] u2[1] i8 i8 i8 i8 u8[2]!")
def accumulate(
    words: Words,
    buckets: NDArray[np.uint16],
    entry: int,
    last: int,
    slot: int,
    begin: int,
    out: Words,
) -> None:
    """Add packed tags of an entry (K, n) to the sums up to each coordinate's bucket, and below it.

    They are of the coordinates from `begin` on, of all of which there are buckets (d,). The first
    sums are columns i of `out` (K, 2d), and 0 in bucket `last`, the others columns d + i.
    """
    count, tops = buckets.shape[0], slots(slot) << np.uint64(slot - 1)
    masks = np.empty((2, _COLUMNS), np.uint64)
    for start in range(0, words.shape[1], _COLUMNS):
        size, first = min(_COLUMNS, words.shape[1] - start), begin + start
        for i in range(size):
            bucket = np.int64(buckets[first + i])
            masks[0, i] = FULL if entry <= bucket and bucket != last else np.uint64(0)
            masks[1, i] = FULL if entry < bucket else np.uint64(0)
        for k in range(words.shape[0]):
            given = words[k, start : start + size]
            _add_where(given, masks[0], tops, out[k, first : first + size])
            _add_where(given, masks[1], tops, out[k, count + first : count + first + size])


@callee
def _add_where(words: Words, masks: Words, tops: np.uint64, out: Words) -> None:
    for i in range(out.shape[0]):
        out[i] = plus(out[i], words[i] & masks[i], tops)


@callee
def slots(slot: int) -> np.uint64:
    """Return a word with 1 in each slot."""
    return FULL // (FULL >> np.uint64(64 - slot))


@callee
def plus(one: np.uint64, other: np.uint64, tops: np.uint64) -> np.uint64:
    """Return the sums of slots whose top bits are `tops`: no carry leaves its slot."""
    return ((one & ~tops) + (other & ~tops)) ^ ((one ^ other) & tops)


@kernel(*(f"u8[2] i8 i8 {ring}[2]!" for ring in ("u1", "u2")))
def unpack(words: Words, slot: int, bits: int, rows: NDArray[Any]) -> None:
    """Set component rows (e, n) to the lowest `bits` bits of slots of packed tags (K, n)."""
    mask = FULL >> np.uint64(64 - bits)
    for c in range(rows.shape[0]):
        k, down = c * slot // 64, np.uint64(c * slot % 64)
        for i in range(rows.shape[1]):
            rows[c, i] = (words[k, i] >> down) & mask
