"""How updates are combined: by a median that the servers compute, or by a yardstick in the clear.

A new yardstick is a function in `AGGREGATORS`; a new way to use the servers is a `Secure` in
`SECURE`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.experiments.aggregators import AGGREGATORS
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.mpc.ranges.constant import ConstantRange
from securemedian.mpc.ranges.coordinate import CoordinateRange

# of what has no buckets
CONSTANT = ConstantRange()


@dataclass(frozen=True)
class Secure:
    """Hold how S0 and S1 are used: a method by name and those of its options that differ from its
    defaults, as in `RoundParams.from_dict`.
    """

    label: str
    options: Mapping[str, Any]
    range: RangePolicy = field(default=CONSTANT)


SECURE: dict[str, Secure] = {
    "radix": Secure("exact median (radix)", {"method": "radix"}),
    "pairwise": Secure("exact median (pairwise)", {"method": "pairwise"}),
    "bucketed": Secure(
        "bucketed median", {"method": "bucketed", "buckets": 8}, CoordinateRange(0.1, 0.1)
    ),
}


def names() -> list[str]:
    return [*SECURE, *(name for name in AGGREGATORS if name not in SECURE)]


def label(name: str) -> str:
    """Of the line in a plot. What is never computed by the servers says so."""
    return SECURE[name].label if name in SECURE else f"{name}, in the clear"


def combine(name: str, updates: NDArray[np.float32], attackers: int) -> NDArray[np.float32]:
    """A yardstick's aggregate of updates (n, d), of which so many may be an attacker's."""
    with np.errstate(
        over="ignore", invalid="ignore"
    ):  # an attack may overflow: the run is then seen to diverge
        return np.asarray(AGGREGATORS[name](updates, attackers), np.float32)


def check(name: str, clients: int, attackers: int) -> None:
    """ConfigError where there is no such method, or it cannot take so many attackers among so few
    clients.
    """
    if name not in names():
        raise ConfigError(f"there is no method {name!r}: choose from {', '.join(names())}")
    if name not in SECURE:
        combine(
            name, np.random.default_rng(0).normal(size=(clients, 2)).astype(np.float32), attackers
        )
