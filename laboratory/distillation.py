"""A client of rounds that exchange predictions: it trains a network of its own, on two sources.

One is its own images, the other a public set with the soft labels that a round publishes. See Chang
et al., "Cronus" (2019); here a round's labels are distilled first, so that what the client learns
from its own images is fresh in its next predictions.
"""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory import models
from securemedian.mpc.errors import ConfigError

if TYPE_CHECKING:
    from securemedian.laboratory.worker import Trainer

Labels = NDArray[np.float32]


@dataclass(frozen=True)
class Student:
    """A client's network between two rounds, with what it trains on."""

    trainer: "Trainer"
    # the public set, a row per image
    inputs: NDArray[np.float32] = field(repr=False)
    # the parameters of its network, which nobody else sees
    vector: NDArray[np.float32] = field(repr=False)

    @classmethod
    def start(cls, trainer: "Trainer", inputs: NDArray[np.float32], warm_up: int) -> "Student":
        """Return a client that has trained alone, `warm_up` times as long as in a round.

        It starts from a network of its own. Raises ConfigError if the network cannot take the
        public set, or the warm-up is negative.
        """
        model = trainer.model
        if warm_up < 0:
            raise ConfigError(f"invalid warm-up: {warm_up}; give 0 rounds or more")
        if inputs.ndim != 2 or inputs.shape[1] != model.inputs or inputs.dtype != np.float32:
            raise ConfigError(
                f"{model.name} takes images of {model.inputs:,} float32 values: the public set "
                f"is {inputs.dtype} of shape {inputs.shape}; choose another model or public set"
            )
        vector = models.start(model, int(np.random.default_rng(trainer.seed).integers(1 << 31)))
        # an attack that begins with the first round has begun
        for _ in range(warm_up):
            vector = trainer.trained(vector, 1)
        return cls(trainer, inputs, vector)

    def predictions(self) -> Labels:
        """Return the probabilities (samples, classes) that this client gives the public set."""
        return models.predict(self.trainer.model, self.vector, self.inputs)

    def sent(self, number: int) -> Labels:
        """Return the predictions that this client sends in round `number`.

        If it attacks, it does so alone: it sees no other client's predictions.
        """
        honest, attack = self.predictions(), self.trainer.attack
        if not attack.active(number):
            return honest
        rng = np.random.default_rng((*self.trainer.seed, number))
        start = undecided(*honest.shape).reshape(-1)
        none = np.empty((0, start.size), np.float32)
        corrupted = attack.corrupt(honest.reshape(1, -1), start, none, rng)
        return sendable(corrupted).reshape(honest.shape)

    def after(self, labels: Labels, number: int) -> "Student":
        """Return this client after round `number`, which gave the public set these soft labels."""
        model, seed = self.trainer.model, self.trainer.seed
        # no training on own images has this seed
        rng = np.random.default_rng((*seed, number, len(self.inputs)))
        distilled = models.train(
            model, self.vector, self.inputs, np.asarray(labels, np.float32), rng
        )
        return replace(self, vector=self.trainer.trained(distilled, number))


def undecided(samples: int, classes: int) -> Labels:
    """Return predictions that say nothing, 1 / classes: what attacks take for the last model."""
    return np.full((samples, classes), 1 / classes, np.float32)


def sendable(predictions: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what a round can carry of predictions: [0, 1], in which shares have no other value."""
    return np.clip(predictions, 0, 1).astype(np.float32)
