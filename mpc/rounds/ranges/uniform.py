"""The range policies of the paper's uniform buckets, whose scale is the range B of the buckets.

All but `constant` follow how far the model moved; they differ in what they measure.
"""

import sys
from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.options import check_number, option
from securemedian.mpc.rounds.encode import Buckets, UniformBuckets
from securemedian.mpc.rounds.ranges.base import RangePolicy


@dataclass(frozen=True)
class UniformRange(RangePolicy):
    """A policy of the paper's uniform buckets. The scale is their range B."""

    # B of the first round
    initial: float = option(0.1, text="the first bucket range (default: 0.1)", metavar="P0")

    def __post_init__(self) -> None:
        what = "one above 0 and finite"
        check_number("start of the bucket range", self.initial, 0, sys.float_info.max, what)

    def start(self) -> Float32s:
        # one that float32 cannot hold is refused by `buckets`
        with np.errstate(over="ignore"):
            return np.array(self.initial, np.float32)

    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        return UniformBuckets(scale, count)

    def take_over(self, scale: Float32s, former: RangePolicy) -> Float32s:
        return scale if isinstance(former, UniformRange) else self.start()

    @property
    def label(self) -> str:
        return f"{self.name} {self.initial:g}"


@dataclass(frozen=True)
class Following(UniformRange):
    """A policy that follows how far the model moved: B' = 2 moved(|w' - w|) + decay / t.

    t is the number of the round that moved it from w to w'.
    """

    decay: float = option(
        0.1, text="P1/t is added to the range after round t (default: 0.1)", metavar="P1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        what = "one above 0 and finite, for the range must never reach 0"
        check_number("range decay", self.decay, 0, sys.float_info.max, what)

    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        distance = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
        # a range that diverges becomes inf, which `buckets` refuses
        with np.errstate(over="ignore"):
            return np.asarray(2.0 * self.moved(distance) + self.decay / number, np.float32)

    @abstractmethod
    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance that the range doubles, () or (d,), from |w' - w| of shape (d,)."""


@dataclass(frozen=True)
class ConstantRange(UniformRange):
    """The first round's B in every round."""

    name = "constant"
    summary = "over the same range in every round"


@dataclass(frozen=True)
class CoordinateRange(Following):
    """A range per coordinate: twice the distance that it moved. It converges on some models."""

    name = "coordinate"
    summary = "per coordinate over twice the distance that it moved"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return distance


@dataclass(frozen=True)
class MeanRange(Following):
    """One range for all coordinates: twice the mean distance that they moved. It converges."""

    name = "mean"
    summary = "over twice the distance that coordinates moved on average"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.mean())


@dataclass(frozen=True)
class LinfRange(Following):
    """One range: twice the distance of whichever moved most. It converges on small models."""

    name = "linf"
    summary = "over twice the distance of the coordinate that moved most"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.max())


@dataclass(frozen=True)
class L1Range(Following):
    """One range: twice the models' L1 distance, as the paper prints. It diverges on real ones."""

    name = "l1"
    summary = "over twice the distance of all coordinates together"

    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(distance.sum())
