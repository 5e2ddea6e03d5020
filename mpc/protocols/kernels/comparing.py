"""The inner loops of proofs on authenticated shares (`audit.comparing`).

Tags (and keys) of n ring elements are *packed*: e components in slots of s = 4, 8 or 16 bits, 64/s
of them to a word: component c of element i stands in word c s // 64 of column i of an array (K, n)
at the bits [c s mod 64, c s mod 64 + s). So one instruction works on all components of a word, and
what is permuted is few words per element. Of a slot, only the low bits of the ring count.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.macs import FULL, plus, slots

# Elements that a loop works on while they are in the cache.
BLOCK = 1 << 10
RINGS = ("u1", "u2")


@kernel(*(f"{ring}[2] {ring}[1] {ring} {ring}[2]!" for ring in RINGS))
def accumulate(rows: NDArray[Any], buckets: NDArray[Any], last: Any, out: NDArray[Any]) -> None:
    """Add up the entries of each coordinate up to its bucket, and below it.

    A row has entry j of coordinate i at j n + i, for n buckets. Row r of `out` (e, 2n) gets the sum
    of the entries 0..buckets[i] at i, and that of those below buckets[i] at n + i. In bucket
    `last`, the first of these is 0.
    """
    count = buckets.shape[0]
    ends = np.empty(BLOCK, rows.dtype)
    for start in range(0, count, BLOCK):
        here = buckets[start : start + BLOCK]
        stops = ends[: here.shape[0]]
        for i in range(here.shape[0]):
            stops[i] = here[i] + 1 if here[i] < last else 0
        for r in range(rows.shape[0]):
            upper = out[r, start : start + here.shape[0]]
            lower = out[r, count + start : count + start + here.shape[0]]
            upper[:] = 0
            lower[:] = 0
            for j in range(rows.shape[1] // count):
                at = j * count + start
                entries = rows[r, at : at + here.shape[0]]
                _add_where(entries, stops, rows.dtype.type(j), upper)
                _add_where(entries, here, rows.dtype.type(j), lower)


@callee
def _add_where(entries: NDArray[Any], ends: NDArray[Any], number: Any, out: NDArray[Any]) -> None:
    """Add the entries with this number to the sums that end after it."""
    for i in range(out.shape[0]):
        if number < ends[i]:
            out[i] += entries[i]


@kernel(*(f"{ring}[2] i8 u8[2]!" for ring in RINGS))
def pack(rows: NDArray[Any], slot: int, out: Words) -> None:
    """Pack component rows (e, n): of each number, the low bits that fill a slot.

    Components first become the eight bytes of each word, side by side, and then the word.
    """
    eight = np.empty((8, BLOCK), np.uint8)
    for start in range(0, rows.shape[1], BLOCK):
        stop = min(start + BLOCK, rows.shape[1])
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


@callee
def _minus(one: np.uint64, other: np.uint64, tops: np.uint64) -> np.uint64:
    return ((one | tops) - (other & ~tops)) ^ ((one ^ ~other) & tops)


@kernel(*(f"u8[2] {ring}[1] u8[1] i8 u8[2]!" for ring in RINGS))
def add_constants(tags: Words, values: NDArray[Any], delta: Words, slot: int, out: Words) -> None:
    """Set `out` to the keys of x + a: keys of x plus a Delta, for public a (n,) that fit a slot.

    `delta` (K,) has the bits of Delta packed.
    """
    tops = slots(slot) << np.uint64(slot - 1)
    for k in range(tags.shape[0]):
        for i in range(tags.shape[1]):
            out[k, i] = plus(tags[k, i], np.uint64(values[i]) * delta[k], tops)


@kernel("u8[1] u8[1] u8[2] i8[1] u1[2] i8 u8 i8 i8 u8[2]!")
def differences(
    halves: Words,
    lower: Words,
    partners: Words,
    turns: NDArray[np.int64],
    flips: Bits,
    start: int,
    delta: np.uint64,
    slot: int,
    bits: int,
    out: Words,
) -> None:
    """Set row p of `out` to tags of d - b where flips[p] is 0, and of d + b - 1 where it is 1.

    Tags are one word of the packed ones, of elements from `start` on, and d is q - 2 r, of which
    `halves` and `lower` are tags. For element i, b is element i + turns[p] of row p of `partners`,
    modulo its length. `delta` is that of keys, and 0 for tags. Only the low `bits` of each slot are
    left.
    """
    ones, length = slots(slot), partners.shape[1]
    tops, mask = ones << np.uint64(slot - 1), ones * (FULL >> np.uint64(64 - bits))
    # d + 1 in each slot, and d - delta: to these are added ~b, which is -b - 1, and b
    plain, turned = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    near = np.empty(BLOCK, np.uint64)
    for begin in range(0, out.shape[1], BLOCK):
        size, first = min(BLOCK, out.shape[1] - begin), start + begin
        for i in range(size):
            twice = plus(lower[first + i], lower[first + i], tops)
            d = _minus(halves[first + i], twice, tops)
            plain[i], turned[i] = plus(d, ones, tops), _minus(d, delta, tops)
        for p in range(out.shape[0]):
            done = 0
            while done < size:
                at = (first + done + turns[p]) % length
                run = min(size - done, length - at)
                near[done : done + run] = partners[p, at : at + run]
                done += run
            to, flip = out[p, begin : begin + size], flips[p, first : first + size]
            for i in range(size):
                kept = np.uint64(flip[i]) - np.uint64(1)
                number = turned[i] ^ ((turned[i] ^ plain[i]) & kept)
                to[i] = plus(number, near[i] ^ kept, tops) & mask


@kernel("u8[2] i8 u8[1]!")
def low_bits(tags: Words, slot: int, out: Words) -> None:
    """Set bit c of out[i] to the lowest bit of component c of element i: the MAC modulo 2."""
    each, ones = np.uint64(64 // slot), slots(slot)
    near = np.empty(BLOCK, np.uint64)
    out[:] = 0
    for start in range(0, out.shape[0], BLOCK):
        to = out[start : start + BLOCK]
        for k in range(tags.shape[0]):
            bits = near[: to.shape[0]]
            for i in range(bits.shape[0]):
                bits[i] = tags[k, start + i] & ones
            # runs of bits, each at a multiple of the gap, move together two by two
            gap, run = np.uint64(slot), np.uint64(1)
            while gap < np.uint64(64):
                _fold(bits, gap - run, _runs(gap + gap, run + run))
                gap, run = gap + gap, run + run
            up = np.uint64(k) * each
            for i in range(bits.shape[0]):
                to[i] |= bits[i] << up


@callee
def _fold(words: Words, down: np.uint64, mask: np.uint64) -> None:
    for i in range(words.shape[0]):
        words[i] = (words[i] | (words[i] >> down)) & mask


@callee
def _runs(gap: np.uint64, run: np.uint64) -> np.uint64:
    """Return a word with `run` ones at each multiple of `gap`."""
    ones = (np.uint64(1) << run) - np.uint64(1)
    return ones if gap >= np.uint64(64) else FULL // ((np.uint64(1) << gap) - np.uint64(1)) * ones
