"""The attack "a little is enough".

It is that of Baruch, Baruch and Goldberg, "A Little Is Enough: Circumventing Defenses For
Distributed Learning" (NeurIPS 2019).
"""

import math
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from securemedian.laboratory.attacks.base import Attack, Vectors, mean_of
from securemedian.mpc.errors import InputError


class Lie(Attack):
    """All attackers send an update near the honest mean, so close that they look honest.

    In each coordinate it is the mean of the honest updates less z times their standard deviation.
    z is the paper's z_max for n clients and m attackers: with s = floor(n / 2 + 1) - m honest
    clients wanted as supporters, the largest z with Phi(z) <= (n - m - s) / (n - m). Then s honest
    clients can be expected farther out than the attackers, who form a majority together with them.
    Few attackers have to stay close to the mean: z is 0 for n = 3, m = 1 and for n = 10, m = 2. For
    fewer still it is negative, on the other side of the mean. The mean and the deviation of w are
    those of w - g, moved by g.
    """

    name: ClassVar[str] = "lie"
    sees_honest: ClassVar[bool] = True

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        mean, deviation = mean_of(honest, self), honest.std(axis=0, dtype=np.float64)
        sent = mean - z_max(len(trained) + len(honest), len(trained)) * deviation
        return np.repeat(sent[None].astype(np.float32), len(trained), axis=0)


def z_max(clients: int, attackers: int) -> float:
    """Return how many standard deviations from the mean the attackers can go.

    This is Algorithm 3 of the paper. Raises InputError unless there are 3 clients or more and the
    attackers are a minority.
    """
    honest = clients - attackers
    supporters = math.floor(clients / 2 + 1) - attackers
    if not 0 < supporters < honest:
        raise InputError(
            "a little is enough needs 3 clients or more and a minority of attackers, "
            f"not {attackers} of {clients}"
        )
    return NormalDist().inv_cdf((honest - supporters) / honest)
