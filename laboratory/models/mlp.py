"""Multilayer perceptrons with ReLU: 784-200-200-10 for MNIST (the paper's), 64-32-10 for digits.

Beside the other networks of their data sets stand 3072-200-10 for CIFAR-10 and, without a hidden
layer, 64-10 for digits.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn


def perceptron(*widths: int) -> "nn.Module":
    """Return linear layers of these widths, with ReLU between them."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


# the batch is the paper's
MLP = Model("mlp", lambda: perceptron(784, 200, 200, 10), shape=(28, 28), batch=20, rate=0.01)
DIGITS = Model("digits", lambda: perceptron(64, 32, 10), shape=(8, 8), batch=10, rate=0.1, epochs=2)
MLP_CIFAR10 = Model(
    "mlp-cifar10", lambda: perceptron(3072, 200, 10), shape=(3, 32, 32), batch=20, rate=0.01
)
DIGITS_LINEAR = Model(
    "digits-linear", lambda: perceptron(64, 10), shape=(8, 8), batch=10, rate=0.1, epochs=2
)
