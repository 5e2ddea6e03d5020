"""What a range policy is: a rule by which the buckets of a round follow the global model.

See protocols.md section 7.1.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import option
from securemedian.mpc.rounds.encode import Buckets, UniformBuckets


@dataclass(frozen=True)
class RangePolicy(ABC):
    """The rule that says how the buckets of each round of a run lie around the model.

    Its fields are its options. Its state is the `scale`, float32 of shape () or (d,), above 0 and
    finite, which S0 publishes for every round. Since `next` is a public function of what is
    published, anybody can compute the scale of the next round, bit for bit.
    """

    name: ClassVar[str]
    # how the buckets lie, in a few words for --help
    summary: ClassVar[str]

    @abstractmethod
    def start(self) -> Float32s:
        """Return the scale of the first round, shape ()."""

    @abstractmethod
    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        """Return the scale of the round after round `number` (1-based): shape () or (d,).

        That round had `scale` and `buckets` (0: it had none), and led from the global model
        `before` to its first result, `after`, both float32.
        """

    @abstractmethod
    def buckets(self, scale: ArrayLike, count: int) -> Buckets:
        """Return how the `count` buckets of a round with `scale` lie.

        Raises ConfigError if the policy has no layout of so many, or the scale is not usable.
        """

    def take_over(self, scale: Float32s, former: "RangePolicy") -> Float32s:
        """Return the scale with which this policy goes on where `former` had `scale`.

        It is that of a first round, unless both mean the same by it.
        """
        return scale if type(former) is type(self) else self.start()

    @property
    def label(self) -> str:
        """Return the name of the policy and its variant, for tables."""
        return self.name

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it is sent, saved and shown: its name and its options."""
        return {"policy": self.name, **flat(self)}


@dataclass(frozen=True)
class UniformRange(RangePolicy):
    """A policy of the paper's uniform buckets. The scale is their range B."""

    # B of the first round
    initial: float = option(0.1, text="the first bucket range (default: 0.1)", metavar="P0")

    def __post_init__(self) -> None:
        if type(self.initial) not in (int, float) or not 0 < self.initial < float("inf"):
            raise ConfigError(
                f"the bucket range must start above 0 and finite, not {quoted(self.initial)}"
            )

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
        if type(self.decay) not in (int, float) or not 0 < self.decay < float("inf"):
            raise ConfigError(
                f"range decay must be above 0 and finite, not {quoted(self.decay)}: "
                "the range must never reach 0"
            )

    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        distance = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
        # a range that diverges becomes inf, which `buckets` refuses
        with np.errstate(over="ignore"):
            return np.asarray(2.0 * self.moved(distance) + self.decay / number, np.float32)

    @abstractmethod
    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance that the range doubles, from |w' - w| of shape (d,).

        It is one number, or one per coordinate.
        """
