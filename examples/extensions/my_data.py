"""A data set, and its default model (docs/extending.md)."""

import numpy as np

from securemedian.laboratory.data import SOURCES, Dataset, Source
from securemedian.laboratory.models import MODELS
from securemedian.laboratory.models.networks import Model, perceptron


def read(folder):
    from sklearn.datasets import load_wine

    bunch = load_wine()
    values = (bunch.data / bunch.data.max(axis=0)).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:120], order[120:]
    return Dataset("wine", values[train], labels[train], values[test], labels[test], classes=3)


SOURCES["wine"] = Source("wine", read, files=(), advice="it comes with scikit-learn", model="wine")
MODELS["wine"] = Model(
    "wine", lambda: perceptron(13, 32, 3), shape=(13,), batch=5, rate=0.2, epochs=5, classes=3
)
