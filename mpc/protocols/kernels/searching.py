"""The bookkeeping of searches for the first threshold that is reached, in all coordinates at once.

A bisection halves steps: `found` thresholds of a coordinate are known not to be reached, a multiple
of 2 h before the step that asks for threshold found + h - 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits
from securemedian.mpc.protocols.kernels.jit import RINGS, callee, kernel

# Coordinates that a loop works on while they are in the cache.
BLOCK = 1 << 12


@kernel(*(f"{ring}[2] u2[1] i8 {ring} {ring} {ring}[1]!" for ring in RINGS))
def pick(
    counts: NDArray[Any],
    found: NDArray[np.uint16],
    half: int,
    rank: Any,
    mask: Any,
    out: NDArray[Any],
) -> None:
    """Set out[i] to what is compared next: (its count - rank) & mask, the last one's if beyond.

    `rank` and `mask` are scalars of the counts' dtype. It reads all rows of `counts` that any
    coordinate may ask for, which is faster than to read the one row that each does.
    """
    last = counts.shape[0] - 1
    for start in range(0, out.size, BLOCK):
        here, chosen = found[start : start + BLOCK], out[start : start + BLOCK]
        chosen[:] = counts[min(half - 1, last), start : start + BLOCK]
        for base in range(2 * half, last + 2, 2 * half):
            _choose(
                here,
                np.uint16(base),
                counts[min(base + half - 1, last), start : start + BLOCK],
                chosen,
            )
        _centre(chosen, rank, mask)


@callee
def _choose(
    found: NDArray[np.uint16], base: np.uint16, row: NDArray[Any], out: NDArray[Any]
) -> None:
    for i in range(out.size):
        if found[i] == base:
            out[i] = row[i]


@callee
def _centre(counts: NDArray[Any], rank: Any, mask: Any) -> None:
    for i in range(counts.size):
        counts[i] = (counts[i] - rank) & mask


@kernel("u1[1] i8 i8 u2[1]!")
def go_up(reached: Bits, half: int, thresholds: int, found: NDArray[np.uint16]) -> None:
    """Add h to `found` where the threshold that was asked for was not reached, and there is one."""
    for i in range(found.size):
        above = found[i] + half
        if reached[i] == 0 and above <= thresholds:
            found[i] = above


@kernel("u1[2] u2[1]!")
def count_missed(reached: Bits, found: NDArray[np.uint16]) -> None:
    """Set `found` to how many thresholds of each coordinate are not reached, of all that there are.

    `reached` has shape (thresholds, coordinates).
    """
    for start in range(0, found.size, BLOCK):
        here = found[start : start + BLOCK]
        here[:] = reached.shape[0]
        for k in range(reached.shape[0]):
            row = reached[k, start : start + BLOCK]
            for i in range(here.size):
                here[i] -= row[i]
