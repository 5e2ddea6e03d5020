"""Say what a range policy is: how the bucket range follows the model (protocols.md 7.1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import option


@dataclass(frozen=True)
class RangePolicy(ABC):
    """Choose B for each round of a training run; the fields are the policy's options. B_1 =
    initial.
    """

    name: ClassVar[str]
    initial: float = option(0.1, help="the first bucket range (default: 0.1)", metavar="P0")

    def __post_init__(self) -> None:
        if type(self.initial) not in (int, float) or not 0 < self.initial < float("inf"):
            raise ConfigError(
                f"the bucket range must start above 0 and finite, not {quoted(self.initial)}"
            )

    @abstractmethod
    def next(
        self, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
    ) -> NDArray[np.float64]:
        """Return B for the round after round `number` (1-based), which had the range `width`, from
        the global models before and after it: shape () or (d,).
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it is sent, saved and shown: its name and its options."""
        return {"policy": self.name, **flat(self)}


@dataclass(frozen=True)
class Following(RangePolicy):
    """Follow what the model moved by: B' = 2 moved(|w' - w|) + decay / t after round t."""

    decay: float = option(
        0.1, help="P1/t is added to the range after round t (default: 0.1)", metavar="P1"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.decay) not in (int, float) or not 0 < self.decay < float("inf"):
            raise ConfigError(
                f"range decay must be above 0 and finite, not {quoted(self.decay)}: "
                "the range must never reach 0"
            )

    def next(
        self, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
    ) -> NDArray[np.float64]:
        distance = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
        return np.asarray(2.0 * self.moved(distance) + self.decay / number)

    @abstractmethod
    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what the range doubles: of |w' - w|, one number or one per coordinate."""
