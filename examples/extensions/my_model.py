"""A model (docs/extending.md)."""

from securemedian.laboratory.models import MODELS
from securemedian.laboratory.models.networks import Model


def build():
    from torch import nn

    return nn.Linear(64, 10)


MODELS["softmax"] = Model("softmax", build, shape=(8, 8), batch=10, rate=0.5, epochs=2)
