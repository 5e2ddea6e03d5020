"""The optimisers of a run, which turn published results into the next global model.

A median that is faithful to heterogeneous clients moves slowly. An optimiser at the server (FedOpt:
Reddi et al., "Adaptive Federated Optimization", ICLR 2021) takes the step from the global model to
the result as a gradient. It is a public computation on what is published anyway, after the
protocol: nothing is opened for it. A new optimiser is a class here with its line in `OPTIMISERS`.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Float32s
from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_number, named, option

Float64s = NDArray[np.float64]

# the greatest rate; a greater one is a mistake in any case
GREATEST_RATE = 1e6


@dataclass(frozen=True)
class Optimiser(ABC):
    """The rule by which a global model follows the results. Its fields are its options."""

    name: ClassVar[str]
    # how many values it keeps per parameter
    kept: ClassVar[int]

    def start(self, dim: int) -> Float32s:
        """Return the moments before the first result, shape (kept, dim)."""
        return np.zeros((self.kept, dim), np.float32)

    def next(
        self, moments: Float32s, before: ArrayLike, result: ArrayLike
    ) -> tuple[Float32s, Float32s]:
        """Return the model (d,) after a round, and the moments (kept, d) for the next one.

        The round led from the model `before` to the `result`, both float32 of shape (d,). If these
        two have the same sign, the model has it, too: if the step would change it, the model is the
        result. So what is positive at all clients, like the running variances of BatchNorm, stays
        positive. The arithmetic is in float64, so that anybody who knows what was published
        computes the same bits.
        """
        g, target = np.asarray(before, np.float64), np.asarray(result, np.float64)
        # a run that diverges is refused where its model is used
        with np.errstate(over="ignore", invalid="ignore"):
            step, kept = self.step(np.asarray(moments, np.float64), target - g)
            model = g + step
            flips = (g * target > 0) & (model * target <= 0)
            return np.where(flips, target, model).astype(np.float32), kept.astype(np.float32)

    @abstractmethod
    def step(self, moments: Float64s, movement: Float64s) -> tuple[Float64s, Float64s]:
        """Return the step (d,), for a `movement` (d,) to the result, and the new moments."""

    def to_dict(self) -> dict[str, Any]:
        """Return the optimiser as it is sent, saved and shown: its name and its options."""
        return {"optimiser": self.name, **flat(self)}


@dataclass(frozen=True)
class NoOptimiser(Optimiser):
    """The result is the next global model."""

    name = "none"
    kept = 0

    def next(
        self, moments: Float32s, before: ArrayLike, result: ArrayLike
    ) -> tuple[Float32s, Float32s]:
        return np.asarray(result, np.float32), moments

    def step(self, moments: Float64s, movement: Float64s) -> tuple[Float64s, Float64s]:
        return movement, moments


@dataclass(frozen=True)
class Momentum(Optimiser):
    """The step is rate v', for v' = decay v + movement (FedAvgM: Hsu, Qi and Brown, 2019)."""

    name = "momentum"
    kept = 1
    rate: float = option(
        1.0, text="the step is so many times the velocity (default: 1)", metavar="R"
    )
    decay: float = option(
        0.9,
        text="the part of the former velocity that is added to each movement (default: 0.9)",
        metavar="P",
    )

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_part("decay", self.decay)

    def step(self, moments: Float64s, movement: Float64s) -> tuple[Float64s, Float64s]:
        velocity = self.decay * moments[0] + movement
        return self.rate * velocity, velocity[None]


@dataclass(frozen=True)
class Adam(Optimiser):
    """All parameters take steps of about the same length, rate m' / (sqrt(v') + floor).

    m' = decay m + (1 - decay) movement, and v' = second_decay v + (1 - second_decay) movement^2
    (FedAdam, algorithm 2 of Reddi et al.). It is for models whose parameters are of one order of
    magnitude, which the running statistics of unscaled inputs are not.
    """

    name = "adam"
    kept = 2
    # these defaults were tuned on an MLP (docs/ranges.md)
    rate: float = option(
        0.005, text="about the length of a step of each parameter (default: 0.005)", metavar="R"
    )
    decay: float = option(
        0.5,
        text="the weight of former movements in the mean of movements (default: 0.5)",
        metavar="P",
    )
    second_decay: float = option(
        0.9,
        text="the weight of former movements in the mean of squared movements (default: 0.9)",
        metavar="P",
    )
    floor: float = option(
        1e-4,
        text="parameters that move much less than this take shorter steps (default: 1e-4)",
        metavar="X",
    )

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        _check_part("decay", self.decay)
        _check_part("second_decay", self.second_decay)
        check_number("optimiser floor", self.floor, 0, 1, "a number above 0 and at most 1")

    def step(self, moments: Float64s, movement: Float64s) -> tuple[Float64s, Float64s]:
        mean = self.decay * moments[0] + (1 - self.decay) * movement
        square = self.second_decay * moments[1] + (1 - self.second_decay) * movement**2
        return self.rate * mean / (np.sqrt(square) + self.floor), np.stack([mean, square])


# By the names used in flags, messages and saved files. The first is the default.
OPTIMISERS: dict[str, type[Optimiser]] = {
    optimiser.name: optimiser for optimiser in (NoOptimiser, Momentum, Adam)
}


def optimiser_from(values: object) -> Optimiser:
    """Return the optimiser that a map from outside names: `{"optimiser": name, **options}`.

    An empty map is invalid. Raises ConfigError, which says what is wrong.
    """
    return named(values, "optimiser", OPTIMISERS, what="optimiser", where="optimiser")


def _check_rate(rate: object) -> None:
    check_number(
        "optimiser rate", rate, 0, GREATEST_RATE, f"a number above 0 and at most {GREATEST_RATE:g}"
    )


def _check_part(name: str, part: object) -> None:
    if type(part) not in (int, float) or not 0 <= part < 1:  # type: ignore[operator]
        raise ConfigError(
            f"invalid optimiser {name}: {quoted(part)}; give a number from 0 to below 1"
        )
