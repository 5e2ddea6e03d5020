"""All clients of a run, played by this process: honest ones train, attackers see what they may."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from securemedian.laboratory import models
from securemedian.laboratory.attacks import ATTACKS, NO_ATTACK
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.data import split as split_images
from securemedian.laboratory.experiments import membership
from securemedian.laboratory.experiments.runs import Run
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.arrays import Float32s

# clients that train at the same time
THREADS = 2
# parameters; the steps of a smaller network are over before another thread gets the interpreter
THREADS_PAY_FROM = 500_000


class Players:
    """The clients of a run, whose updates are the same with threads or without."""

    def __init__(self, run: Run, data: Dataset) -> None:
        self._run, self._data = run, data
        self._model = run.network(run.model)
        self._attack = ATTACKS[run.attack](first=run.first)
        parts = split_images(data.labels, run.clients, run.seed, run.split, run.images)
        attacks = [NO_ATTACK] * (run.clients - run.attackers) + [self._attack] * run.attackers
        self._trainers = [
            Trainer(self._model, data.images[part], data.labels[part], (run.seed, index), attack)
            for index, (part, attack) in enumerate(zip(parts, attacks, strict=True))
        ]

    def start(self) -> Float32s:
        """Return the model that the run starts from."""
        return models.start(self._model, self._run.seed)

    def updates(self, model: Float32s, number: int) -> Float32s:
        """Return the updates (n, d) that the clients send in round `number`, the attackers' last.

        All clients train from `model` (d,).
        """
        run, attack = self._run, self._attack
        trained = np.stack(
            list(self._each(lambda trainer: trainer.trained(model, number), model.size))
        )
        if not (run.attackers and attack.active(number)):
            return trained
        honest = trained[: run.clients - run.attackers]
        # no client has the index `run.clients`
        rng = np.random.default_rng((run.seed, run.clients, number))
        # an attack may overflow: the aggregate has to survive it
        with np.errstate(over="ignore", invalid="ignore"):
            sent = attack.corrupt(
                trained[len(honest) :], model, honest if attack.sees_honest else honest[:0], rng
            )
        return np.concatenate([honest, sent])

    def accuracy(self, model: Float32s) -> float:
        """Return a model's accuracy on the test images."""
        return models.accuracy(self._model, model, self._data.test_images, self._data.test_labels)

    def inference(self, before: Float32s, after: Float32s, number: int) -> dict[str, float]:
        """Return what membership inference reaches in a round from `before` to `after`."""
        victim = self._trainers[0]
        update, everybody = victim.trained(before, number), self._trainers
        images = np.concatenate([trainer.images for trainer in everybody])
        labels = np.concatenate([trainer.labels for trainer in everybody])
        own, all_of = (victim.images, victim.labels), (images, labels)
        return {
            membership.UPDATE: membership.by_loss(self._model, update, self._data, own),
            membership.AGGREGATE: membership.by_loss(self._model, after, self._data, all_of),
        }

    def _each(self, train: Callable[[Trainer], Float32s], dim: int) -> Iterator[Float32s]:
        if dim < THREADS_PAY_FROM:
            yield from map(train, self._trainers)
            return
        with ThreadPoolExecutor(THREADS, initializer=models.use_one_thread) as pool:
            yield from pool.map(train, self._trainers)
