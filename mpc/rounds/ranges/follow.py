"""The range policy whose buckets find the scale of each coordinate by themselves: the default.

It is the idea of Rprop (Riedmiller and Braun, 1993): a step grows where it was too short, and
shrinks where it was too long.
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, option
from securemedian.mpc.rounds.encode import Buckets, UnevenBuckets
from securemedian.mpc.rounds.ranges.log import GREATEST, LEAST, LogRange, Sizes, check_edge

# The factors of s by formula: at least the first, and the second for the outermost bucket.
LEAST_FACTOR, OUTERMOST_FACTOR = 0.3, 8.0
# The bounds of s. It is also at least this part of the median of all, so that a coordinate that has
# not moved for long can move again.
SMALLEST, LARGEST, LEAST_PART = 1e-6, 1e30, 0.01


@dataclass(frozen=True)
class FollowRange(LogRange):
    """Buckets in units of a scale s per coordinate, which follows the results.

    The first round, whose scale has shape (), has logarithmic buckets, and s becomes the geometric
    middle of the bucket that came out. From then on a bucket is a sign and an order of magnitude,
    too, but around s: the edges are +-top / ratio^i, i = 0..b/2-2, and 0, the values the geometric
    middles, the innermost half its edge and the outermost its edge. The result of each round
    multiplies s by the factor of its bucket, the root of its value, within LEAST_FACTOR and
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
        check_number("range ratio", self.ratio, 1, GREATEST, f"above 1 and at most {GREATEST:g}")

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
                f"of {buckets} buckets with the range ratio {self.ratio:g} the innermost would end "
                f"below {LEAST:g}: lower ratio or buckets"
            )
        values = [float(edges[0] / 2), *(float(edge * ratio.sqrt()) for edge in edges[:-1])]
        factors = [max(LEAST_FACTOR, min(math.sqrt(v), OUTERMOST_FACTOR)) for v in values]
        return Sizes(
            tuple(map(float, edges)), (*values, float(self.top)), (*factors, OUTERMOST_FACTOR)
        )
