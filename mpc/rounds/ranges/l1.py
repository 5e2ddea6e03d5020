"""The range policy that follows the sum over all coordinates, as the paper prints it.

It diverges at real model sizes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.rounds.ranges.base import Following


@dataclass(frozen=True)
class L1Range(Following):
    """One range for all coordinates: twice the L1 distance of the two models."""

    name = "l1"
    summary = "over twice the distance of all coordinates together"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.sum())
