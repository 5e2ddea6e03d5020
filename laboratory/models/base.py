"""What a model is: a network, and how a client trains it in a round."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Model:
    """A network of PyTorch and its recipe. Plain stochastic gradient descent on the cross-entropy trains it.

    `build` makes the network, which takes images as rows of float32 in [0, 1] and brings them into `shape` itself. It
    imports torch when it is called: the names of all models are known where torch is not installed.
    """

    name: str
    build: Callable[[], "nn.Module"]
    shape: tuple[int, ...]  # of one image
    batch: int
    rate: float
    epochs: int = 1  # of a client, a round
    classes: int = 10

    @property
    def inputs(self) -> int:
        """The values of one image."""
        return math.prod(self.shape)
