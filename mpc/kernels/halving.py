"""The bookkeeping of a bisection in every coordinate at once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits
from securemedian.mpc.kernels.jit import kernel


@kernel
def halve(
    reached: Bits,
    low: NDArray[np.uint16],
    high: NDArray[np.uint16],
    counts: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Take over the bits of the thresholds that were compared, and pick the next counts.

    The result of a coordinate is in low..high. What was compared, and is picked next from the
    columns of `counts`, is the threshold in the middle, or the last one.
    """
    last = counts.shape[0] - 1
    for i in range(out.size):
        bottom, top = np.int64(low[i]), np.int64(high[i])
        middle = min((bottom + top) // 2, last)
        top = min(top, middle) if reached[i] else top
        bottom = bottom if reached[i] else max(bottom, middle + 1)
        low[i], high[i] = bottom, top
        out[i] = counts[min((bottom + top) // 2, last), i]
