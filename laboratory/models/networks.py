"""The networks that clients train, each with its recipe.

A network's `build` imports torch when it is called, so that the names of all models are known where
torch is not installed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from securemedian.laboratory.data.shakespeare import CHARACTERS, CONTEXT

if TYPE_CHECKING:
    from torch import nn

# columns and classes of the clinic's table
_COLUMNS, _RISKS = 7, 2
# widths of the recurrent network
_EMBEDDED, _STATE = 8, 64


@dataclass(frozen=True)
class Model:
    """A PyTorch network and its recipe: plain stochastic gradient descent on the cross-entropy.

    `build` makes the network, which takes images as rows of float32, as the data set has them, and
    brings them into `shape` itself.
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


def perceptron(*widths: int) -> "nn.Module":
    """Return linear layers of these widths, with ReLU between them."""
    from torch import nn

    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _clinic() -> "nn.Module":
    """Return BatchNorm and a perceptron, for columns in their own units.

    The running means and variances are part of the `state_dict`.
    """
    from torch import nn

    return nn.Sequential(nn.BatchNorm1d(_COLUMNS), perceptron(_COLUMNS, 32, _RISKS))


def _cnn_mnist() -> "nn.Module":
    """Return two 5x5 convolutions, then linear layers of 512 and 10: 1,663,370 parameters.

    The convolutions have 32 and 64 channels and keep the size; 2x2 max pooling follows each. It is
    the network of McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient
    Learning of Deep Networks from Decentralized Data" (AISTATS 2017).
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


def _cnn_cifar10() -> "nn.Module":
    """Return the paper's network as we read it, with 409,182 parameters.

    The paper describes two 5x5 convolutions, the first followed by 2x2 max pooling, then three
    linear layers, and prints 581,866 parameters without the widths; no usual widths give that
    number. Here convolutions without padding have 16 and 32 channels, and the linear layers are
    LeNet-5's.
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


def _strided(kernel: int) -> "nn.Module":
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


def _gru_shakespeare() -> "nn.Module":
    """Return a GRU of 64 over codes of characters as float32, with 16,617 parameters.

    SHARE's network has two LSTM layers; this one two cores can train for many clients.
    """
    import torch
    from torch import nn

    class NextCharacter(nn.Module):
        """A GRU over embedded characters, and a linear layer on its last state."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(CHARACTERS, _EMBEDDED)
            self.recurrent = nn.GRU(_EMBEDDED, _STATE, batch_first=True)
            self.output = nn.Linear(_STATE, CHARACTERS)

        def forward(self, codes: torch.Tensor) -> torch.Tensor:
            """Return the logits (samples, characters) of codes (samples, context)."""
            _, state = self.recurrent(self.embedding(codes.long()))
            logits: torch.Tensor = self.output(state[0])
            return logits

    return NextCharacter()


# the batch is the paper's, the rate that of the simulation in protocols.md 7
MLP = Model("mlp", lambda: perceptron(784, 200, 200, 10), shape=(28, 28), batch=20, rate=0.01)
MLP_CIFAR10 = Model(
    "mlp-cifar10", lambda: perceptron(3072, 200, 10), shape=(3, 32, 32), batch=20, rate=0.01
)
DIGITS = Model("digits", lambda: perceptron(64, 32, 10), shape=(8, 8), batch=10, rate=0.1, epochs=2)
DIGITS_LINEAR = Model(
    "digits-linear", lambda: perceptron(64, 10), shape=(8, 8), batch=10, rate=0.1, epochs=2
)
# McMahan et al. take batches of 10 and tune the rate. This is the paper's batch, at a rate that
# learns in few rounds.
CNN_MNIST = Model("cnn-mnist", _cnn_mnist, shape=(1, 28, 28), batch=20, rate=0.05)
CNN_CIFAR10 = Model("cnn-cifar10", _cnn_cifar10, shape=(3, 32, 32), batch=20, rate=0.05)
CNN_CIFAR10_SMALL = Model(
    "cnn-cifar10-small", partial(_strided, 3), shape=(3, 32, 32), batch=20, rate=0.05
)
# two 5x5 convolutions and two linear layers, as in Velicheti, Xia and Koyejo, Section 6.1
CNN_CIFAR10_SHARE = Model(
    "cnn-cifar10-share", partial(_strided, 5), shape=(3, 32, 32), batch=20, rate=0.1, epochs=2
)
CLINIC = Model("clinic", _clinic, shape=(_COLUMNS,), batch=20, rate=0.1, classes=_RISKS)
GRU_SHAKESPEARE = Model(
    "gru-shakespeare",
    _gru_shakespeare,
    shape=(CONTEXT,),
    batch=25,
    rate=1.0,
    epochs=2,
    classes=CHARACTERS,
)

MODELS = {
    model.name: model
    for model in (
        MLP,
        CNN_MNIST,
        CNN_CIFAR10,
        CNN_CIFAR10_SHARE,
        CNN_CIFAR10_SMALL,
        MLP_CIFAR10,
        DIGITS,
        DIGITS_LINEAR,
        CLINIC,
        GRU_SHAKESPEARE,
    )
}
