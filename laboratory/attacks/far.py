"""PAF and OFOM, two attacks with updates that are far away.

They are those of Chang, Shejwalkar, Shokri and Houmansadr, "Cronus: Robust and Heterogeneous
Collaborative Learning with Black-Box Knowledge Transfer" (2019). Both add a "significantly large
vector", which the paper does not fix: here it is 200 in every coordinate, the standard deviation of
the Gaussian fault.
"""

from typing import ClassVar

import numpy as np

from securemedian.laboratory.attacks.base import Attack, Vectors, mean_of
from securemedian.mpc.errors import InputError

FAR = 200.0


class Paf(Attack):
    """All attackers send the mean of the honest updates plus the large vector."""

    name: ClassVar[str] = "paf"
    sees_honest: ClassVar[bool] = True

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        far = mean_of(honest, self) + FAR
        return np.repeat(far[None].astype(np.float32), len(trained), axis=0)


class Ofom(Attack):
    """One far, one mean: one attacker sends a far update, another the mean that results from it.

    The far one sends the mean of the honest updates plus the large vector, the other the mean of
    the honest updates and that one. The second is then at the mean of all clients, the point that
    an aggregate that starts from the mean trusts most. Of m attackers, the first floor(m / 2) are
    far, and the others are at the mean of the honest and the far ones.
    """

    name: ClassVar[str] = "ofom"
    sees_honest: ClassVar[bool] = True

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        if len(trained) < 2:
            raise InputError(f"one far, one mean takes 2 attackers or more, not {len(trained)}")
        mean = mean_of(honest, self)
        far = len(trained) // 2
        # of the far updates among all those whose mean the other attackers send
        share = far / (len(honest) + far)
        distance = np.repeat([FAR, FAR * share], [far, len(trained) - far])
        return (mean + distance[:, None]).astype(np.float32)
