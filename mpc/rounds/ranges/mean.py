"""The range policy that follows the mean over all coordinates. It converges."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.rounds.ranges.base import Following


@dataclass(frozen=True)
class MeanRange(Following):
    """One range for all coordinates: twice the distance that they moved on average."""

    name = "mean"
    summary = "over twice the distance that coordinates moved on average"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.mean())
