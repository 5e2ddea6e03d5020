"""The convolutional network for MNIST of McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient
Learning of Deep Networks from Decentralized Data" (AISTATS 2017): 1,663,370 parameters.
"""

from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn


def build() -> "nn.Module":
    """Two 5x5 convolutions of 32 and 64 channels that keep the size, each followed by 2x2 max pooling; 512; 10."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 32, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


# McMahan et al. take batches of 10 and tune the rate: this is the paper's batch, at a rate that learns in few rounds
CNN_MNIST = Model("cnn-mnist", build, shape=(1, 28, 28), batch=20, rate=0.05)
