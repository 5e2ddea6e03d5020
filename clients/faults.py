"""What a faulty client does in the demo: the attacks of the paper's experiments (protocols.md 7)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mpc.errors import ConfigError

FAULTS = ("none", "bitflip", "labelflip", "gaussian")


@dataclass(frozen=True)
class Fault:
    """One client's fault, from round `first` on.

    bitflip sends 2 g - w for its trained w and the global g, labelflip trains on 9 - label, gaussian sends noise from
    N(0, 200^2).
    """

    kind: str = "none"
    first: int = 1

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ConfigError(f"a fault is one of {', '.join(FAULTS)}, not {self.kind!r}")

    def labels(self, labels: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        """The labels this client trains on in round `number`."""
        return 9 - labels if self.kind == "labelflip" and number >= self.first else labels

    def update(
        self, trained: NDArray[np.float32], start: NDArray[np.float32], number: int, rng: np.random.Generator
    ) -> NDArray[np.float32]:
        """What this client sends in round `number` after training from `start`."""
        if number < self.first:
            return trained
        if self.kind == "bitflip":
            return 2 * start - trained
        if self.kind == "gaussian":
            return rng.normal(0.0, 200.0, trained.shape).astype(np.float32)
        return trained


NO_FAULT = Fault()
