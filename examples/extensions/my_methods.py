"""A yardstick, a method of the servers, and a method with other options (docs/extending.md)."""

from dataclasses import dataclass

import numpy as np

from securemedian.laboratory.experiments.aggregation import SECURE, Secure
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.registry import METHODS


def geometric_median(updates, attackers):
    """Return the point with the least sum of distances to the updates.

    Weiszfeld 1937; Pillutla et al. 2022.
    """
    point = updates.mean(axis=0)
    for _ in range(50):
        weights = 1 / np.maximum(np.linalg.norm(updates - point, axis=1), 1e-9)
        point = weights @ updates / weights.sum()
    return point


@dataclass(frozen=True, kw_only=True)
class UpperMedian(Radix):
    """The element of rank floor(n/2) + 1: the other middle one, for an even number of clients."""

    name = "upper-median"
    summary = "the upper of both middle elements"

    def ranks_of(self, total):
        return [total // 2 + 1]


AGGREGATORS["geometric-median"] = geometric_median
METHODS[UpperMedian.name] = UpperMedian
SECURE["upper"] = Secure("upper median", {"method": "upper-median", "encoding": "bfloat16"})
SECURE["trimmed-third"] = Secure(
    "mean of the middle third", {"method": "trimmed-mean", "trim": 0.34}
)
