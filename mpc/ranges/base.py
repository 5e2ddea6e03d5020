"""What a range policy is: a rule by which the bucket range B follows the global model.

See protocols.md section 7.1.
"""

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
    """The rule that chooses B for each round of a training run. Its fields are its options."""

    name: ClassVar[str]
    # B of the first round
    initial: float = option(0.1, text="the first bucket range (default: 0.1)", metavar="P0")

    def __post_init__(self) -> None:
        if type(self.initial) not in (int, float) or not 0 < self.initial < float("inf"):
            raise ConfigError(
                f"the bucket range must start above 0 and finite, not {quoted(self.initial)}"
            )

    @abstractmethod
    def next(
        self, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
    ) -> NDArray[np.float64]:
        """Return B for the round after round `number` (1-based): shape () or (d,).

        That round had the range `width`, and led from the global model `before` to `after`.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as it is sent, saved and shown: its name and its options."""
        return {"policy": self.name, **flat(self)}


@dataclass(frozen=True)
class Following(RangePolicy):
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
        self, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
    ) -> NDArray[np.float64]:
        distance = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
        return np.asarray(2.0 * self.moved(distance) + self.decay / number)

    @abstractmethod
    def moved(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distance that the range doubles, from |w' - w| of shape (d,).

        It is one number, or one per coordinate.
        """
