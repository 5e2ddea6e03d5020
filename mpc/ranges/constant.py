"""The range policy that keeps the first range."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.ranges.base import RangePolicy


@dataclass(frozen=True)
class ConstantRange(RangePolicy):
    """The first round's B in every round."""

    name = "constant"

    def next(
        self, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
    ) -> NDArray[np.float64]:
        return np.asarray(width, np.float64)
