"""The range policy without a state: a bucket is a sign and an order of magnitude."""

from dataclasses import dataclass
from decimal import Decimal

import numpy as np
from numpy.typing import ArrayLike

from securemedian.mpc.encode import Buckets, UnevenBuckets
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, option
from securemedian.mpc.ranges.base import Float32s, RangePolicy

# the least and the greatest edge that a layout may have
LEAST, GREATEST = 1e-12, 1e12


@dataclass(frozen=True)
class LogRange(RangePolicy):
    """Buckets whose edges grow by the same ratio from `lowest` to `highest`, in every round.

    b buckets have the edges +-lowest ratio^i, i = 0..b/2-2, and 0, where
    ratio = (highest / lowest)^(1 / (b/2 - 2)). They stand for the geometric middle of their edges,
    the innermost for lowest / 2, the outermost for their edge.
    """

    name = "log"
    lowest: float = option(
        1e-5, text="the edge of the logarithmic buckets next to 0 (default: 1e-5)", metavar="X"
    )
    highest: float = option(
        600.0, text="the last edge of the logarithmic buckets (default: 600)", metavar="X"
    )

    def __post_init__(self) -> None:
        for name in ("lowest", "highest"):
            check_edge(f"range {name}", getattr(self, name))
        if not self.lowest < self.highest:
            raise ConfigError(
                f"range lowest must be below highest, and {self.lowest:g} is not below "
                f"{self.highest:g}"
            )

    def start(self) -> Float32s:
        return np.ones((), np.float32)

    def next(self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int) -> Float32s:
        return np.asarray(scale, np.float32)

    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        if count % 2 or count < 6:
            raise ConfigError(
                f"the range policy {self.name} needs an even number of buckets from 6 on, because "
                f"half of them lie above 0 and half below, not {count}: change buckets, or take "
                "the policy coordinate"
            )
        # decimal arithmetic, which gives the same bits on every machine
        edge, highest = Decimal(self.lowest), Decimal(self.highest)
        steps = count // 2 - 2
        ratio = (highest / edge) ** (Decimal(1) / steps)
        exact = []
        for _ in range(steps):
            exact.append(float(edge))
            edge *= ratio
        edges = np.array([*exact, float(highest)])
        middles = np.sqrt(edges[:-1] * edges[1:])
        return UnevenBuckets(scale, edges, [edges[0] / 2, *middles, edges[-1]])


def check_edge(name: str, value: object) -> None:
    """Raise ConfigError unless `value` is a number that an edge of buckets may be."""
    check_number(name, value, LEAST, GREATEST, f"above {LEAST:g} and at most {GREATEST:g}")
