"""The range policy that follows each coordinate by itself. It converges on some models."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.rounds.ranges.base import Following


@dataclass(frozen=True)
class CoordinateRange(Following):
    """A range per coordinate: twice the distance that it moved."""

    name = "coordinate"
    summary = "per coordinate over twice the distance that it moved"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return distance
