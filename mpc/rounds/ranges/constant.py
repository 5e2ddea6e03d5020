"""The range policy that keeps the first range."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.rounds.ranges.base import UniformRange


@dataclass(frozen=True)
class ConstantRange(UniformRange):
    """The first round's B in every round."""

    name = "constant"
    summary = "over the same range in every round"

    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        return np.asarray(scale, np.float32)
