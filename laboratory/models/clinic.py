"""A small network for columns in their own units: BatchNorm first, then a perceptron."""

from typing import TYPE_CHECKING

from securemedian.laboratory.models.base import Model
from securemedian.laboratory.models.mlp import perceptron

if TYPE_CHECKING:
    from torch import nn

_COLUMNS, _HIDDEN, _CLASSES = 7, 32, 2


def build() -> "nn.Module":
    """Return the network, whose running means and variances are part of its `state_dict`."""
    from torch import nn

    return nn.Sequential(nn.BatchNorm1d(_COLUMNS), perceptron(_COLUMNS, _HIDDEN, _CLASSES))


CLINIC = Model("clinic", build, shape=(_COLUMNS,), batch=20, rate=0.1, classes=_CLASSES)
