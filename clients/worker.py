"""A client that trains: it receives each round's model, trains on its own images, submits, and waits for the next."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from clients import models
from clients.client import Client
from clients.data import Dataset, part
from clients.faults import NO_FAULT, Fault
from mpc.errors import ConfigError, SecureMedianError


@dataclass(frozen=True)
class Trainer:
    """One client's images and how it trains on them. The same values give the same updates, whoever runs it."""

    recipe: models.Recipe
    images: NDArray[np.float32] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    seed: tuple[int, int]  # of the training run, of this client
    fault: Fault = NO_FAULT

    @classmethod
    def of_part(
        cls, data: Dataset, index: int, parts: int, seed: int, images: int | None = None, fault: Fault = NO_FAULT
    ) -> Self:
        """Client `index` (0-based) of `parts` on its own part of the training images."""
        mine = part(len(data.labels), index, parts, seed, images)
        return cls(models.RECIPES[data.name], data.images[mine], data.labels[mine], (seed, index), fault)

    def update(self, model: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        """The parameters this client sends in round `number`, trained from `model`."""
        rng = np.random.default_rng((*self.seed, number))
        trained = models.train(self.recipe, model, self.images, self.fault.labels(self.labels, number), rng)
        return self.fault.update(trained, model, number, rng)


def run(client: Client, trainer: Trainer, rounds: int | None = None, record: Path | None = None) -> None:
    """Take part in `rounds` rounds, or in all that come. A submission that goes wrong is reported.

    `record` names a directory that receives every update IN THE CLEAR as round-NUMBER-NAME.npy, to compare results in
    demos: not for private data.
    """
    private: NDArray[Any] | None = None  # the last result, where only the clients know it
    for _ in itertools.count() if rounds is None else range(rounds):
        round = client.wait_for_round()
        start = round.model if private is None or round.number == 1 else private
        if start is None:
            raise ConfigError(
                f"round {round.id} publishes no model to train from: the coordinator has to open it with --model"
            )
        update = trainer.update(np.asarray(start, np.float32), round.number)
        if record is not None:
            np.save(record / f"round-{round.number}-{client.config.name}.npy", update)
        try:
            client.submit(update)
            print(f"round {round.number}: update submitted", flush=True)
            private = client.result() if round.params.result_to == "clients" else None
        except SecureMedianError as error:
            print(f"round {round.number}: {error}", flush=True)
