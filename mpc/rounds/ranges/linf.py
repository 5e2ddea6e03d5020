"""The range policy that follows the coordinate that moved most. It converges on small models."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.rounds.ranges.base import Following


@dataclass(frozen=True)
class LinfRange(Following):
    """One range for all coordinates: twice the distance of the one that moved most."""

    name = "linf"
    summary = "over twice the distance of the coordinate that moved most"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.max())
