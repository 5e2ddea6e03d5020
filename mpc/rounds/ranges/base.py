"""The range policy, by which the buckets of rounds follow the model (protocols.md section 7.1)."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.canonical import flat
from securemedian.mpc.rounds.encode import Buckets


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

    def next(
        self, scale: ArrayLike, before: ArrayLike, after: ArrayLike, number: int, buckets: int
    ) -> Float32s:
        """Return the scale of the round after round `number` (1-based): shape () or (d,).

        That round had `scale` and `buckets` (0: it had none), and led from the global model
        `before` to its first result, `after`, both float32. By default the scale stays.
        """
        return np.asarray(scale, np.float32)

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
