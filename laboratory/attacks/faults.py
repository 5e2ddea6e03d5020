"""The faults of the paper's experiments (protocols.md 7), each of which a client has alone."""

from typing import ClassVar

import numpy as np

from securemedian.laboratory.attacks.base import Attack, Labels, Vectors


class BitFlip(Attack):
    """The update with its sign turned: g - (w - g) = 2 g - w."""

    name: ClassVar[str] = "bitflip"

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        return 2 * start - trained


class Negate(Attack):
    """The parameters with their sign turned, -w: a harder reading of the paper's bit flip."""

    name: ClassVar[str] = "negate"

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        return -trained


class LabelFlip(Attack):
    """Training on classes - 1 - label: 9 - label for ten digits."""

    name: ClassVar[str] = "labelflip"

    def labels(self, labels: Labels, classes: int) -> Labels:
        return classes - 1 - labels


class Gaussian(Attack):
    """Noise from N(0, 200^2) in place of the parameters."""

    name: ClassVar[str] = "gaussian"

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        return rng.normal(0.0, 200.0, trained.shape).astype(np.float32)


class Malformed(Attack):
    """An upload that no honest client makes, whatever was trained.

    It is `laboratory.malformed` that carries it out. As nothing of it shows in the update, it is no
    attack of the experiments, which are played on updates.
    """

    name: ClassVar[str] = "malformed"
