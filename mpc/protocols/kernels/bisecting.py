"""The inner loops of the authenticated bisect (`mpc.protocols.bisect`).

Tags and keys are packed as in `kernels.macs`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.macs import FULL, plus, slots

RINGS = ("u1", "u2")


@kernel("u8[2] u2[1] i8 u8[2]!")
def choose(words: Words, rows: NDArray[np.uint16], row: int, out: Words) -> None:
    """Set column i of `out` to that of `words`, wherever rows[i] is `row`."""
    for k in range(words.shape[0]):
        for i in range(words.shape[1]):
            if rows[i] == row:
                out[k, i] = words[k, i]


@callee
def _minus(one: np.uint64, other: np.uint64, tops: np.uint64) -> np.uint64:
    return ((one | tops) - (other & ~tops)) ^ ((one ^ ~other) & tops)


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
                out[k, i] = _minus(out[k, i], up, tops)


@kernel("u8[2]! i8 i8")
def keep_low(words: Words, bits: int, slot: int) -> None:
    """Leave the low `bits` bits of each slot."""
    mask = slots(slot) * (FULL >> np.uint64(64 - bits))
    for k in range(words.shape[0]):
        for i in range(words.shape[1]):
            words[k, i] &= mask
