"""SHARE's network for CIFAR-10, made small: 30,138 parameters.

Two 5x5 convolutions and two linear layers, as in Velicheti, Xia and Koyejo, Section 6.1. The widths
are ours, and there are strides in place of pooling: two cores train it for many clients.
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


CNN_CIFAR10_SHARE = Model(
    "cnn-cifar10-share", build, shape=(3, 32, 32), batch=20, rate=0.1, epochs=2
)
