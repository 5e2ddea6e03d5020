"""The inner loops of the authenticated bisect (`mpc.protocols.bisect`).

Tags and keys are packed as in `kernels.macs`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.macs import slots
from securemedian.mpc.protocols.kernels.packing import FULL, minus, plus

# Elements that a loop works on while they are in the cache.
BLOCK = 1 << 10
RINGS = ("u1", "u2")


@kernel("u8[2] u2[1] i8 u8[2]!")
def choose(words: Words, rows: NDArray[np.uint16], row: int, out: Words) -> None:
    """Set column i of `out` to that of `words`, wherever rows[i] is `row`."""
    for k in range(words.shape[0]):
        for i in range(words.shape[1]):
            if rows[i] == row:
                out[k, i] = words[k, i]


@kernel(*(f"u8[2] {ring}[1] i8 i8 u8[2]!" for ring in RINGS))
def subtract_bit(words: Words, numbers: NDArray[Any], bit: int, slot: int, out: Words) -> None:
    """Take 2^t b off `out`, t = `bit`, or -2^t b where bit t of numbers (n,) is 1.

    `words` are tags or keys of the random bits b, of which numbers are the masked ones: b ^ d is
    d + (1 - 2 d) b.
    """
    ones = slots(slot)
    tops, keep = ones << np.uint64(slot - 1), (ones << np.uint64(bit)) - ones
    keep = ~keep
    for k in range(words.shape[0]):
        for i in range(words.shape[1]):
            up = (words[k, i] << np.uint64(bit)) & keep
            if numbers[i] >> bit & 1:
                out[k, i] = plus(out[k, i], up, tops)
            else:
                out[k, i] = minus(out[k, i], up, tops)


@kernel("u8[2]! i8 i8")
def keep_low(words: Words, bits: int, slot: int) -> None:
    """Leave the low `bits` bits of each slot."""
    mask = slots(slot) * (FULL >> np.uint64(64 - bits))
    for k in range(words.shape[0]):
        for i in range(words.shape[1]):
            words[k, i] &= mask


@kernel(*(f"u8[2] {ring}[1] u8[1] i8 u8[2]!" for ring in RINGS))
def add_constants(tags: Words, values: NDArray[Any], delta: Words, slot: int, out: Words) -> None:
    """Set `out` to the keys of x + a: keys of x plus a Delta, for public a (n,) that fit a slot.

    `delta` (K,) has the bits of Delta packed.
    """
    tops = slots(slot) << np.uint64(slot - 1)
    for k in range(tags.shape[0]):
        for i in range(tags.shape[1]):
            out[k, i] = plus(tags[k, i], np.uint64(values[i]) * delta[k], tops)


@kernel("u8[1] u8[2] i8[1] u1[2] i8 u8 i8 i8 u8[2]!")
def differences(
    values: Words,
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

    Tags are one word of the packed ones, of elements from `start` on, and those of d are `values`.
    For element i, b is element i + turns[p] of row p of `partners`, modulo its length. `delta` is
    that of keys, and 0 for tags. Only the low `bits` of each slot are left.
    """
    ones, length = slots(slot), partners.shape[1]
    tops, mask = ones << np.uint64(slot - 1), ones * (FULL >> np.uint64(64 - bits))
    # d + 1 in each slot, and d - delta: to these are added ~b, which is -b - 1, and b
    plain, turned = np.empty(BLOCK, np.uint64), np.empty(BLOCK, np.uint64)
    near = np.empty(BLOCK, np.uint64)
    for begin in range(0, out.shape[1], BLOCK):
        size, first = min(BLOCK, out.shape[1] - begin), start + begin
        for i in range(size):
            d = values[first + i]
            plain[i], turned[i] = plus(d, ones, tops), minus(d, delta, tops)
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
