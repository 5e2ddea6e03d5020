"""The sign-flipping attack with a factor s, whose update is g - s (w - g).

It is that of Li, Xu, Chen, Giannakis and Ling, "RSA: Byzantine-Robust Stochastic Aggregation
Methods for Distributed Learning from Heterogeneous Datasets" (AAAI 2019).
"""

from typing import ClassVar

import numpy as np

from securemedian.laboratory.attacks.base import Attack, Vectors


class SignFlip10(Attack):
    """The difference w - g times -10."""

    name: ClassVar[str] = "sign-flip-10"
    scale: ClassVar[float] = 10.0

    def corrupt(
        self, trained: Vectors, start: Vectors, honest: Vectors, rng: np.random.Generator
    ) -> Vectors:
        return start - np.float32(self.scale) * (trained - start)


class SignFlip100(SignFlip10):
    """The difference w - g times -100."""

    name: ClassVar[str] = "sign-flip-100"
    scale: ClassVar[float] = 100.0
