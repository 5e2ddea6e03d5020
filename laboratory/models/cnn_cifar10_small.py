"""A network for CIFAR-10 that two cores can train for many clients: 30,138 parameters.

It has SHARE's layers (Velicheti, Xia and Koyejo, Section 6.1), two 5x5 convolutions and two linear
layers, of widths that are ours, and strides in place of pooling.
"""

from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn


def build() -> "nn.Module":
    """Return the network: its convolutions make 14x14 of 32x32, and 5x5 of that."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (3, 32, 32)),
        nn.Conv2d(3, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


CNN_CIFAR10_SMALL = Model(
    "cnn-cifar10-small", build, shape=(3, 32, 32), batch=20, rate=0.1, epochs=2
)
