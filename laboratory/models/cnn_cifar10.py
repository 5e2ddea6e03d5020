"""Convolutional networks for CIFAR-10: the paper's, of 409,182 parameters, and two small ones.

The paper describes two 5x5 convolutions, the first followed by 2x2 max pooling, then three linear
layers, and prints 581,866 parameters without the widths; no usual widths give that number. This is
our reading: convolutions without padding of 16 and 32 channels, one pooling, and the linear layers
of LeNet-5, which are 120, 84 and 10 wide.
"""

from functools import partial
from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn


def build() -> "nn.Module":
    """Return the network, whose linear layers take 3,200 values.

    The convolutions make 28x28 of 32x32, and 10x10 of the 14x14 that remain after pooling.
    """
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (3, 32, 32)),
        nn.Conv2d(3, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 10 * 10, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def strided(kernel: int) -> "nn.Module":
    """Return a small network, which two cores can train for many clients.

    Its convolutions, of 8 and 16 channels, take steps of 2 in place of pooling. The first is 5x5
    and makes 14x14, the second kernel x kernel.
    """
    from torch import nn

    side = (14 - kernel) // 2 + 1
    return nn.Sequential(
        nn.Unflatten(1, (3, 32, 32)),
        nn.Conv2d(3, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, kernel, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * side * side, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


# the same recipe as the network for MNIST
CNN_CIFAR10 = Model("cnn-cifar10", build, shape=(3, 32, 32), batch=20, rate=0.05)
CNN_CIFAR10_SMALL = Model(
    "cnn-cifar10-small", partial(strided, 3), shape=(3, 32, 32), batch=20, rate=0.05
)
# two 5x5 convolutions and two linear layers, as in Velicheti, Xia and Koyejo, Section 6.1
CNN_CIFAR10_SHARE = Model(
    "cnn-cifar10-share", partial(strided, 5), shape=(3, 32, 32), batch=20, rate=0.1, epochs=2
)
