"""The base class of attacks."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError

Labels = NDArray[np.int64]
Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Attack:
    """What one or several attackers do from round `first` on.

    This class does nothing; an attack overrides one of its methods. An update of this service is
    the vector w of *trained parameters*, but the literature's attacks are on gradients: they are
    carried out on the differences w - g, where g is the model that the round started from.
    """

    name: ClassVar[str] = "none"
    # whether `corrupt` needs the honest updates of the round
    sees_honest: ClassVar[bool] = False

    first: int = 1

    def active(self, number: int) -> bool:
        """Return whether round `number` is attacked."""
        return number >= self.first

    def labels(self, labels: Labels, classes: int) -> Labels:
        """Return the labels that an attacker trains on."""
        return labels

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        """Return the updates (m, d) that the m attackers send.

        `trained` (m, d) is what they have trained, `start` (d,) the model that all started from,
        and `honest` (h, d) what the others send, which is empty unless `sees_honest`.
        """
        return trained


def mean_of(honest: Vectors, attack: Attack) -> NDArray[np.float64]:
    """Return the mean (d,) of the honest updates; raise InputError if `attack` sees none."""
    if not len(honest):
        raise InputError(
            f"{attack.name} is made from the honest updates of the round, and there are none"
        )
    return honest.mean(axis=0, dtype=np.float64)
