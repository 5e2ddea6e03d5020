"""The convolutional network for MNIST: 1,663,370 parameters.

It is that of McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient Learning
of Deep Networks from Decentralized Data" (AISTATS 2017).
"""

from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model

if TYPE_CHECKING:
    from torch import nn


def build() -> "nn.Module":
    """Return the network: two 5x5 convolutions, then linear layers of 512 and 10.

    The convolutions have 32 and 64 channels and keep the size; 2x2 max pooling follows each.
    """
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


# McMahan et al. take batches of 10 and tune the rate. This is the paper's batch, at a rate that
# learns in few rounds.
CNN_MNIST = Model("cnn-mnist", build, shape=(1, 28, 28), batch=20, rate=0.05)
