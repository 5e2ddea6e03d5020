"""The range policy whose buckets find the scale of each coordinate by themselves: the default.

It is the idea of Rprop (Riedmiller and Braun, 1993): a step grows where it was too short, and
shrinks where it was too long.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.encode import Buckets, UnevenBuckets
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_choices, check_number, option
from securemedian.mpc.ranges.base import Float32s
from securemedian.mpc.ranges.log import GREATEST, LogRange, check_edge

# The bounds of s. Below |g| EPSILON a step is lost when the model is rounded to float32.
SMALLEST, LARGEST, EPSILON = 2.0**-60, 2.0**60, 2.0**-24
# s after the first round is at least this part of the median distance that coordinates moved.
LEAST_PART = 0.1
OWN = "own"


class Sizes(NamedTuple):
    """The buckets by the size of (w - g) / s, which are alike above and below 0."""

    # between one and the next; the last has no end
    edges: tuple[float, ...]
    # for which they stand
    values: tuple[float, ...]
    # by which s is multiplied when the result is in one
    factors: tuple[float, ...]


LAYOUTS: dict[str, Sizes] = {
    "q16": Sizes(
        (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2.5),
        (0.06, 0.19, 0.37, 0.62, 0.87, 1.25, 2, 2.5),
        (0.35, 0.5, 0.7, 0.9, 1.1, 1.4, 2, 4),
    ),
    "q16b": Sizes(
        (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1, 2, 4),
        (1 / 32, 3 / 32, 3 / 16, 3 / 8, 3 / 4, 3 / 2, 3, 4),
        (0.25, 0.35, 0.5, 0.7, 1, 1.6, 2.5, 4),
    ),
    "q8": Sizes((0.5, 1, 2), (0.25, 0.75, 1.5, 2), (0.4, 0.9, 1.5, 4)),
}


@dataclass(frozen=True)
class FollowRange(LogRange):
    """Buckets in units of a scale s per coordinate, which follows the results.

    The first round, whose scale has shape (), is that of `log`: it sets s = |w' - w|, or a tenth of
    the median of all where that is more. From then on the result of each round multiplies s by the
    factor of its bucket. s stays within SMALLEST..LARGEST, and above |w'| EPSILON.
    """

    name = "follow"
    layout: str = option(
        next(iter(LAYOUTS)),
        choices=(*LAYOUTS, OWN),
        text="the buckets from the second round on: a layout by its name, or your own "
        f"(default: {next(iter(LAYOUTS))})",
    )
    edges: list[float] = option(
        [],
        text="with layout own: where the buckets above 0 end, in units of the scale, without the "
        "last, which has no end",
        metavar="X,..",
    )
    values: list[float] = option(
        [], text="with layout own: what these buckets stand for", metavar="X,.."
    )
    factors: list[float] = option(
        [],
        text="with layout own: by what they multiply the scale when the result is in them",
        metavar="F,..",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choices(self)
        if self.layout == OWN:
            _check(self.sizes)
        elif self.edges or self.values or self.factors:
            raise ConfigError(
                f"range edges, values and factors are for the layout {OWN}, not {self.layout}"
            )

    @property
    def label(self) -> str:
        return f"{self.name} {self.layout}"

    @property
    def sizes(self) -> Sizes:
        """Return the buckets from the second round on."""
        if self.layout == OWN:
            return Sizes(tuple(self.edges), tuple(self.values), tuple(self.factors))
        return LAYOUTS[self.layout]

    def next(self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int) -> Float32s:
        model = np.asarray(after, np.float64)
        # infinite values, which only exact methods publish, end the training run in any case
        with np.errstate(invalid="ignore"):
            moved = np.abs(model - np.asarray(before, np.float64))
        if np.ndim(scale) == 0:
            found = np.maximum(moved, LEAST_PART * np.median(moved))
        else:
            former = np.asarray(scale, np.float64)
            found = former * self._factors(moved / former)
        least = np.maximum(SMALLEST, EPSILON * np.abs(model))
        return np.clip(found, least, np.maximum(least, LARGEST)).astype(np.float32)

    def _factors(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factor of each result, from its size: that of the bucket with this value.

        The nearest value is meant, because the model was rounded to float32.
        """
        values = np.asarray(self.sizes.values, np.float64)
        bucket = np.searchsorted((values[:-1] + values[1:]) / 2, sizes)
        return np.asarray(self.sizes.factors, np.float64)[bucket]

    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        edges, values, _ = self.sizes
        if count != 2 * len(values):
            named = " or ".join(
                f"{name} ({2 * len(sizes.values)})" for name, sizes in LAYOUTS.items()
            )
            raise ConfigError(
                f"the range layout {self.layout} has {2 * len(values)} buckets, and the round has "
                f"{count}: change buckets, name another layout, {named} or {OWN}, or take the "
                "range policy log or coordinate"
            )
        if np.ndim(scale) == 0:
            return super().buckets(scale, count)
        return UnevenBuckets(scale, edges, values)


def _check(sizes: Sizes) -> None:
    """Raise ConfigError unless these are buckets, from the innermost to the outermost."""
    edges, values, factors = sizes
    if not len(edges) + 1 == len(values) == len(factors) >= 3:
        raise ConfigError(
            "a range layout of your own needs as many factors as values, 3 or more, and one edge "
            f"less, not {len(edges)} edges, {len(values)} values and {len(factors)} factors"
        )
    inner = [number for pair in zip(values, edges, strict=False) for number in pair]
    for number in (*inner, values[-1]):
        check_edge("a range edge or value", number)
    if any(low >= high for low, high in pairwise(inner)) or values[-1] != edges[-1]:
        raise ConfigError(
            "in a range layout of your own each value must lie between its edges, and the last be "
            "the last edge, so that no result lies beyond what an honest client sent"
        )
    for factor in factors:
        check_number("a range factor", factor, 0, GREATEST, f"above 0 and at most {GREATEST:g}")
