"""A client that trains: it receives each round's model, trains on its own images, submits, and waits for the next."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.laboratory import models
from securemedian.laboratory.attacks import NO_ATTACK, Attack
from securemedian.laboratory.data import SOURCES, Dataset, split
from securemedian.mpc.errors import ConfigError, SecureMedianError


@dataclass(frozen=True)
class Trainer:
    """One client's images and how it trains on them. The same values give the same updates, whoever runs it."""

    model: models.Model
    images: NDArray[np.float32] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    seed: tuple[int, int]  # of the training run, of this client
    attack: Attack = NO_ATTACK

    @classmethod
    def of_part(
        cls,
        data: Dataset,
        index: int,
        parts: int,
        seed: int,
        images: int | None = None,
        attack: Attack = NO_ATTACK,
        how: str = "iid",
        model: models.Model | None = None,
    ) -> Self:
        """Client `index` (0-based) of `parts` on its own part of the training images, which are split as `how` says.

        The model is by default the data set's own.
        """
        if not 0 <= index < parts:
            raise ConfigError(f"there is no part {index + 1} of {parts}: parts are counted from 1")
        model = model or models.MODELS[SOURCES[data.name].model]
        models.check_fits(model, data)
        mine = split(data.labels, parts, seed, how, images)[index]
        return cls(model, data.images[mine], data.labels[mine], (seed, index), attack)

    def update(self, start: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        """The parameters this client sends in round `number`, trained from `start`. It sees no other client's."""
        rng = self._rng(number)
        trained = self._train(start, number, rng)
        if not self.attack.active(number):
            return trained
        return self.attack.corrupt(
            trained[None], start, np.empty((0, start.size), np.float32), rng
        )[0]

    def trained(self, start: NDArray[np.float32], number: int) -> NDArray[np.float32]:
        """What this client has before an attack makes something else of it."""
        return self._train(start, number, self._rng(number))

    def _rng(self, number: int) -> np.random.Generator:
        return np.random.default_rng((*self.seed, number))

    def _train(
        self, start: NDArray[np.float32], number: int, rng: np.random.Generator
    ) -> NDArray[np.float32]:
        labels = (
            self.attack.labels(self.labels, self.model.classes)
            if self.attack.active(number)
            else self.labels
        )
        return models.train(self.model, start, self.images, labels, rng)


def run(
    client: Client, trainer: Trainer, rounds: int | None = None, record: Path | None = None
) -> None:
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
