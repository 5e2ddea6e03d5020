"""The networks that clients train, each with its recipe.

A network's `build` imports torch when it is called, so that the names of all models are known where
torch is not installed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from securemedian.laboratory.data.hospitals import COLUMNS
from securemedian.laboratory.data.shakespeare import CHARACTERS, CONTEXT

if TYPE_CHECKING:
    from torch import nn

# columns and classes of the clinic's table
_COLUMNS, _RISKS = 7, 2
# no smaller deviation is divided by: a column may be the same at all patients of a hospital
_LEAST_DEVIATION = 0.1
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
        return math.prod(self.shape)


def perceptron(*widths: int) -> "nn.Sequential":
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


def _heart() -> "nn.Module":
    """Return logistic regression on columns that are standardised by what the service publishes.

    Mean and deviation of each column are part of the `state_dict`. In the first round a client
    sends those of its own patients, and does nothing else (`models.train`); what is published then
    stays. So nobody pools anything. An unknown value counts as the average.
    """
    import torch
    from torch import nn

    class Standardise(nn.Module):
        """The columns, less their means, by their deviations, once these are published."""

        mean: torch.Tensor
        deviation: torch.Tensor

        def __init__(self, columns: int) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(columns))
            self.register_buffer("deviation", torch.ones(columns))

        def measure(self, rows: torch.Tensor) -> bool:
            """Take mean and deviation from rows, and return True, if there are none yet."""
            if self.mean.any() or (self.deviation != 1).any():
                return False
            known = ~rows.isnan()
            count = known.sum(0)
            mean = rows.nansum(0) / count
            variance = ((rows - mean) ** 2).nansum(0) / count
            # of a column that nobody here has measured, nothing is known
            self.mean.copy_(torch.where(count > 0, mean, self.mean))
            self.deviation.copy_(torch.where(count > 0, variance.sqrt(), self.deviation))
            return True

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return ((rows - self.mean) / self.deviation.clamp(min=_LEAST_DEVIATION)).nan_to_num()

    return nn.Sequential(Standardise(COLUMNS), nn.Linear(COLUMNS, 2))


@dataclass(frozen=True)
class Convolution:
    """A convolution with ReLU, and perhaps 2x2 max pooling after it."""

    channels: int
    kernel: int
    stride: int = 1
    padding: int = 0
    pooled: bool = False


def convolutional(
    shape: tuple[int, int, int], convolutions: Sequence[Convolution], *widths: int
) -> "nn.Module":
    """Return convolutions of images (channels, side, side), then linear layers of these widths."""
    from torch import nn

    channels, side, _ = shape
    layers: list[nn.Module] = [nn.Unflatten(1, shape)]
    for one in convolutions:
        layers += [nn.Conv2d(channels, one.channels, one.kernel, one.stride, one.padding)]
        layers += [nn.ReLU()]
        channels, side = one.channels, (side + 2 * one.padding - one.kernel) // one.stride + 1
        if one.pooled:
            layers += [nn.MaxPool2d(2)]
            side //= 2
    return nn.Sequential(*layers, nn.Flatten(), *perceptron(channels * side * side, *widths))


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
            _, state = self.recurrent(self.embedding(codes.long()))
            logits: torch.Tensor = self.output(state[0])
            return logits

    return NextCharacter()


def _cnn(
    name: str, shape: tuple[int, int, int], convolutions: Sequence[Convolution], *widths: int
) -> Model:
    """Return a model of `convolutional` with the paper's batch, at a rate that learns soon."""
    build = partial(convolutional, shape, convolutions, *widths)
    return Model(name, build, shape, batch=20, rate=0.05)


_RGB = (3, 32, 32)

MODELS = {
    model.name: model
    for model in (
        # the batch is the paper's, the rate that of the simulation in protocols.md 7
        Model("mlp", partial(perceptron, 784, 200, 200, 10), (28, 28), batch=20, rate=0.01),
        # a small one, which two cores can train for thousands of rounds
        Model("mlp-mnist-small", partial(perceptron, 784, 32, 10), (28, 28), batch=20, rate=0.2),
        # That of McMahan, Moore, Ramage, Hampson and Aguera y Arcas, "Communication-Efficient
        # Learning of Deep Networks from Decentralized Data" (AISTATS 2017), who take batches of 10
        # and tune the rate. It has 1,663,370 parameters.
        _cnn(
            "cnn-mnist",
            (1, 28, 28),
            [Convolution(channels, 5, padding=2, pooled=True) for channels in (32, 64)],
            *(512, 10),
        ),
        # The paper's network as we read it, with 409,182 parameters. The paper describes these
        # kinds of layers and prints 581,866 parameters without the widths; no usual widths give
        # that number. The linear layers are LeNet-5's.
        _cnn(
            "cnn-cifar10",
            _RGB,
            [Convolution(16, 5, pooled=True), Convolution(32, 5)],
            *(120, 84, 10),
        ),
        # Small ones, which two cores can train for many clients, with steps of 2 instead of
        # pooling. The first is that of Velicheti, Xia and Koyejo, Section 6.1.
        replace(
            _cnn("cnn-cifar10-share", _RGB, [Convolution(n, 5, 2) for n in (8, 16)], 64, 10),
            rate=0.1,
            epochs=2,
        ),
        _cnn("cnn-cifar10-small", _RGB, [Convolution(8, 5, 2), Convolution(16, 3, 2)], 64, 10),
        Model("mlp-cifar10", partial(perceptron, 3072, 200, 10), _RGB, batch=20, rate=0.01),
        Model("digits", partial(perceptron, 64, 32, 10), (8, 8), batch=10, rate=0.1, epochs=2),
        Model("digits-linear", partial(perceptron, 64, 10), (8, 8), batch=10, rate=0.1, epochs=2),
        Model("heart", _heart, (COLUMNS,), batch=16, rate=0.1, classes=2),
        Model("clinic", _clinic, (_COLUMNS,), batch=20, rate=0.1, classes=_RISKS),
        Model(
            "gru-shakespeare",
            _gru_shakespeare,
            (CONTEXT,),
            batch=25,
            rate=1.0,
            epochs=2,
            classes=CHARACTERS,
        ),
    )
}
