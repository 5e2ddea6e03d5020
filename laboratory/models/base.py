"""The type of a model: a network, and how a client trains it in a round."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """A PyTorch network and its recipe: plain stochastic gradient descent on the cross-entropy.

    `build` makes the network, which takes images as rows of float32, as the data set has them, and
    brings them into `shape` itself. It imports torch when it is called, so that the names of all
    models are known where torch is not installed.
    """

    name: str
    build: Callable[[], "nn.Module"]
    # of one image, or of one row of a table
    shape: tuple[int, ...]
    # images per step
    batch: int
    # learning rate
    rate: float
    # per client and round
    epochs: int = 1
    classes: int = 10

    @property
    def inputs(self) -> int:
        """The number of values per image."""
        return math.prod(self.shape)
