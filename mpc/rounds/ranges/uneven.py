"""The range policies of uneven buckets, whose buckets are a sign and an order of magnitude.

`log` has no state. `follow`, the default, finds the scale of each coordinate by itself. It is the
idea of Rprop (Riedmiller and Braun, 1993): a step grows if it was too short, and shrinks if it was
too long.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, option
from securemedian.mpc.rounds.encode import Buckets, UnevenBuckets
from securemedian.mpc.rounds.ranges.base import RangePolicy

# the bounds of what an edge of buckets may be, in units of their scale
LEAST, GREATEST = 1e-12, 1e12
# the most that a logarithmic bucket may span, as a factor: a round on wider ones ruins the model
WIDEST = 1000
# The factors of s by formula: at least the first, and the second for the outermost bucket.
LEAST_FACTOR, OUTERMOST_FACTOR = 0.3, 8.0
# The bounds of s. It is also at least this part of the median of all, so that a coordinate that has
# not moved for long can move again.
SMALLEST, LARGEST, LEAST_PART = 1e-6, 1e30, 0.01


@dataclass(frozen=True)
class Sizes:
    """The buckets on either side of g, by the size of (w - g) / s, from the innermost on."""

    # between one and the next; the last has no end
    edges: tuple[float, ...]
    # for which they stand; each lies below the bucket's own outer edge
    values: tuple[float, ...]
    # by which s is multiplied when the result is in one
    factors: tuple[float, ...]

    def factors_of(self, moved: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the factors of the buckets from which results came that moved so far, over s.

        A result is at its bucket's value or nearer to its inner edge. So the bounds lie halfway
        from a value to the outer edge: the rounding of results to float32 does not matter there.
        """
        bounds = (np.asarray(self.values[:-1]) + np.asarray(self.edges)) / 2
        return np.asarray(self.factors, np.float64)[np.searchsorted(bounds, moved)]


@dataclass(frozen=True)
class LogRange(RangePolicy):
    """Buckets whose edges grow by the same ratio from `lowest` to `highest`, in every round.

    b buckets have the edges +-lowest ratio^i, i = 0..b/2-2, and 0, where
    ratio = (highest / lowest)^(1 / (b/2 - 2)). They stand for their inner edge times
    ratio^VALUE_AT, the innermost for lowest / 2, the outermost for their edge.
    """

    # the geometric middle
    VALUE_AT: ClassVar[Decimal] = Decimal("0.5")

    name = "log"
    summary = "the same in every round, each wider than the one before by the same factor"
    lowest: float = option(
        1e-6, text="the innermost edge of the logarithmic buckets (default: 1e-6)", metavar="X"
    )
    highest: float = option(
        1e9, text="the outermost edge of the logarithmic buckets (default: 1e9)", metavar="X"
    )

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            check_edge(f"range {name}", getattr(self, name))
        if not self.lowest < self.highest:
            raise ConfigError(
                f"range lowest is not below highest: {self.lowest:g} and {self.highest:g}; "
                "lower one or raise the other"
            )

    def start(self) -> Float32s:
        return np.ones((), np.float32)

    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        sizes = self.logarithmic(count)
        return UnevenBuckets(scale, sizes.edges, sizes.values)

    def logarithmic(self, buckets: int) -> Sizes:
        """Return `buckets` logarithmic buckets.

        As factors they have what s = 1 should become, the geometric middle of a bucket. Raises
        ConfigError if there cannot be so many, or they are too few.
        """
        self.check_even(buckets)
        # decimal arithmetic, which gives the same bits on every machine
        edge, highest = Decimal(self.lowest), Decimal(self.highest)
        steps = buckets // 2 - 2
        ratio = (highest / edge) ** (Decimal(1) / steps)
        if ratio > WIDEST:
            raise ConfigError(
                f"{buckets} buckets of the range policy {self.name} are too coarse: each spans "
                f"a factor of {ratio:.0f}, beyond {WIDEST}; take more buckets, or narrow the "
                "range lowest to highest"
            )
        edges = [edge]
        for _ in range(steps - 1):
            edges.append(edges[-1] * ratio)
        inner, half = ratio**self.VALUE_AT, ratio.sqrt()
        values = [edge / 2, *(one * inner for one in edges), highest]
        factors = [edge / 2, *(one * half for one in edges), highest * half]
        return Sizes(_floats([*edges, highest]), _floats(values), _floats(factors))

    def check_even(self, buckets: int) -> None:
        """Raise ConfigError unless half of so many buckets lie above the model, at least three."""
        if buckets % 2 or buckets < 6:
            raise ConfigError(
                f"the range policy {self.name} needs an even number of buckets from 6 on, half "
                f"of them above 0 and half below: {buckets}; change buckets, or take the range "
                "policy coordinate"
            )


@dataclass(frozen=True)
class FollowRange(LogRange):
    """Buckets in units of a scale s per coordinate, which follows the results.

    The first round, whose scale has shape (), has logarithmic buckets, and s becomes the geometric
    middle of the bucket that came out. From then on a bucket is a sign and an order of magnitude,
    too, but around s. The edges are +-top / ratio^i, i = 0..b/2-2, and 0. The values are the
    geometric middles, the innermost half its edge and the outermost its edge. The result of each
    round multiplies s by the factor of its bucket, the root of its value, within LEAST_FACTOR and
    OUTERMOST_FACTOR. So s goes half the way to the distance that the coordinate moved.
    """

    # Nearer to the inner edge than the middle: in the first round the buckets are wide, and a step
    # that is too long costs a round.
    VALUE_AT: ClassVar[Decimal] = Decimal("0.3")

    name = "follow"
    summary = "in units of a scale per coordinate, which follows the results"
    lowest: float = option(
        1e-4,
        text="in the first round: the innermost edge of the logarithmic buckets (default: 1e-4)",
        metavar="X",
    )
    highest: float = option(
        1e10,
        text="in the first round: the outermost edge of the logarithmic buckets (default: 1e10)",
        metavar="X",
    )
    top: float = option(
        4.0,
        text="from the second round on: the outermost edge, in units of the scale (default: 4)",
        metavar="X",
    )
    ratio: float = option(
        2.5,
        text="from the second round on: how many times as far out each edge is as the one before "
        "(default: 2.5)",
        metavar="R",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_edge("range top", self.top)
        check_number(
            "range ratio", self.ratio, 1, GREATEST, f"a number above 1 and at most {GREATEST:g}"
        )

    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        # infinite values, which only exact methods publish, end the run in any case
        with np.errstate(invalid="ignore"):
            moved = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
        found = moved
        if buckets:
            s = np.asarray(scale, np.float64)
            found = s * self._sizes(scale, buckets).factors_of(moved / s)
        least = max(SMALLEST, LEAST_PART * float(np.median(found)))
        return np.clip(found, least, LARGEST).astype(np.float32)

    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        sizes = self._sizes(scale, count)
        return UnevenBuckets(scale, sizes.edges, sizes.values)

    def _sizes(self, scale: ArrayLike, buckets: int) -> Sizes:
        """Return the buckets of a round with this scale."""
        # made in the first round, too, so that it refuses buckets that later ones cannot have
        later = self.later(buckets)
        return self.logarithmic(buckets) if np.ndim(scale) == 0 else later

    def later(self, buckets: int) -> Sizes:
        """Return the buckets of the second round on, in units of the scale."""
        self.check_even(buckets)
        # as in `logarithmic`
        edges, ratio = [Decimal(self.top)], Decimal(self.ratio)
        for _ in range(buckets // 2 - 2):
            edges.insert(0, edges[0] / ratio)
        if edges[0] < LEAST:
            raise ConfigError(
                f"with the range ratio {self.ratio:g} and {buckets} buckets the innermost would "
                f"end too near to 0: below {LEAST:g}; lower ratio or buckets"
            )
        values = [float(edges[0] / 2), *(float(edge * ratio.sqrt()) for edge in edges[:-1])]
        factors = [max(LEAST_FACTOR, min(math.sqrt(v), OUTERMOST_FACTOR)) for v in values]
        return Sizes(
            tuple(map(float, edges)), (*values, float(self.top)), (*factors, OUTERMOST_FACTOR)
        )


def check_edge(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a number that an edge of buckets may be."""
    check_number(name, value, LEAST, GREATEST, f"a number above {LEAST:g} and at most {GREATEST:g}")


def _floats(numbers: list[Decimal]) -> tuple[float, ...]:
    return tuple(map(float, numbers))
