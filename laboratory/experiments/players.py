"""All clients of a run, played by this process: honest ones train, attackers see what they may.

A run's state is one vector: the parameters of the common model (`Players`), or those of all
clients' networks, one after another (`Collaborators`).
"""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.public import PublicSet
from securemedian.laboratory import models
from securemedian.laboratory.attacks import ATTACKS, NO_ATTACK, Aggregate, Optimised
from securemedian.laboratory.data import Dataset, draw_public, without
from securemedian.laboratory.distillation import Student, sendable, undecided
from securemedian.laboratory.experiments.runs import Run
from securemedian.laboratory.models import Model
from securemedian.laboratory.worker import Trainer, first_model
from securemedian.mpc.arrays import Float32s

# clients that train at the same time
THREADS = 2
# parameters; the steps of a smaller network are over before another thread gets the interpreter
THREADS_PAY_FROM = 500_000


class Players:
    """The clients of a run, whose updates are the same with threads or without."""

    def __init__(self, run: Run, data: Dataset) -> None:
        self._set_up(run, data, data, (run.model,))

    def _set_up(self, run: Run, data: Dataset, own: Dataset, networks: tuple[str, ...]) -> None:
        """Give client i network i modulo their number, and its part of the clients' own images."""
        self._run, self._data = run, data
        self._honest = run.clients - run.attackers
        self._attack = ATTACKS[run.attack](first=run.first)
        parts = own.parts(run.holders, run.seed, run.split, run.images)
        # attackers beyond those who have images train on the first clients'
        parts += parts[: run.clients - len(parts)]
        self._trainers = [
            Trainer(
                run.network(networks[index % len(networks)]),
                own.images[part],
                own.labels[part],
                (run.seed, index),
                NO_ATTACK if index < self._honest else self._attack,
            )
            for index, part in enumerate(parts)
        ]

    def _sent(
        self, made: Float32s, start: Float32s, number: int, aggregate: Aggregate | None = None
    ) -> Float32s:
        """Return what the clients send in round `number`, the attackers' last.

        It is what they `made` (n, d) from `start` (d,), unless attackers corrupt theirs. Those that
        collude see what the honest ones send, and some try out `aggregate`.
        """
        run, attack = self._run, self._attack
        if isinstance(attack, Optimised):
            attack = replace(attack, aggregate=aggregate)
        if not (run.attackers and attack.active(number)):
            return made
        honest = made[: self._honest]
        # no client has the index `run.clients`
        rng = np.random.default_rng((run.seed, run.clients, number))
        seen = honest if attack.sees_honest else honest[:0]
        # an attack may overflow: the aggregate has to survive it
        with np.errstate(over="ignore", invalid="ignore"):
            sent = attack.corrupt(made[self._honest :], start, seen, rng)
        return np.concatenate([honest, self._carried(sent)])

    def _carried(self, sent: Float32s) -> Float32s:
        """Return what a round can carry of what attackers send."""
        return sent

    def start(self) -> Float32s:
        """Return the state that the run starts from."""
        return first_model(self._trainers[0].model, self._run.seed, self._trainers)

    def updates(self, model: Float32s, number: int, aggregate: Aggregate | None = None) -> Float32s:
        """Return the updates (n, d) of round `number`, for which all clients train from `model`.

        `aggregate` is what the round makes of them, for attackers that try it out.
        """
        each = self._each(lambda trainer: trainer.trained(model, number), model.size)
        return self._sent(np.stack(list(each)), model, number, aggregate)

    def accuracy(self, state: Float32s) -> tuple[float, Mapping[str, float]]:
        """Return the accuracy on the test images, and that of each network if there are several."""
        return self._accuracy(self._trainers[0], state), {}

    def _accuracy(self, trainer: Trainer, vector: Float32s) -> float:
        data = self._data
        return models.accuracy(trainer.model, vector, data.test_images, data.test_labels)

    def inference(self, before: Float32s, after: Float32s, number: int) -> dict[str, float]:
        """Return what membership inference reaches in a round from `before` to `after`."""
        victim = self._trainers[0]
        return {
            UPDATE: self._reached(victim.trained(before, number), victim),
            AGGREGATE: self._reached(after, *self._trainers),
        }

    def _reached(self, vector: Float32s, *trainers: Trainer) -> float:
        images = np.concatenate([trainer.images for trainer in trainers])
        labels = np.concatenate([trainer.labels for trainer in trainers])
        return by_loss(self._trainers[0].model, vector, self._data, (images, labels))

    def _each(self, train: Callable[[Trainer], Float32s], dim: int) -> Iterator[Float32s]:
        if dim < THREADS_PAY_FROM:
            yield from map(train, self._trainers)
            return
        with ThreadPoolExecutor(THREADS, initializer=models.use_one_thread) as pool:
            yield from pool.map(train, self._trainers)


class Collaborators(Players):
    """The clients of a run that exchanges predictions, each with a network of its own.

    They do not train on the public set.
    """

    def __init__(self, run: Run, data: Dataset) -> None:
        assert run.collaboration is not None
        self._plan = run.collaboration
        self.public = PublicSet(draw_public(data, self._plan.samples, run.seed))
        self._set_up(run, data, without(data, self.public.inputs), self._plan.networks)
        sizes = [models.start(trainer.model, 0).size for trainer in self._trainers]
        self._cuts = np.cumsum(sizes)[:-1]

    def _carried(self, sent: Float32s) -> Float32s:
        return sendable(sent)

    def start(self) -> Float32s:
        """Return all clients' parameters after their warm-up."""
        inputs, warm_up = self.public.inputs, self._plan.warm_up
        students = [Student.start(trainer, inputs, warm_up) for trainer in self._trainers]
        return np.concatenate([student.vector for student in students])

    def predictions(self, state: Float32s, number: int) -> NDArray[np.float32]:
        """Return what the clients send in round `number`: (n, samples, classes)."""
        made = np.stack([student.predictions() for student in self._students(state)])
        start = undecided(*made.shape[1:]).reshape(-1)
        return self._sent(made.reshape(len(made), -1), start, number).reshape(made.shape)

    def after(self, state: Float32s, labels: Float32s, number: int) -> Float32s:
        """Return all clients' parameters after round `number`, which gave these labels (d,)."""
        soft = labels.reshape(self.public.samples, -1)
        students = self._students(state)
        return np.concatenate([student.after(soft, number).vector for student in students])

    def alone(self, state: Float32s, number: int) -> Float32s:
        """Return all clients' parameters after a round in which each trains on its own images."""
        students = self._students(state)
        return np.concatenate([one.trainer.trained(one.vector, number) for one in students])

    def accuracy(self, state: Float32s) -> tuple[float, Mapping[str, float]]:
        """Return the mean accuracy of the honest clients' networks, and that of each network."""
        every, found = [], dict[str, list[float]]()
        for student in self._students(state)[: self._honest]:
            every.append(self._accuracy(student.trainer, student.vector))
            found.setdefault(student.trainer.model.name, []).append(every[-1])
        return float(np.mean(every)), {name: float(np.mean(ones)) for name, ones in found.items()}

    def inferred(self, sent: NDArray[np.float32], labels: NDArray[np.float32]) -> dict[str, float]:
        """Return what membership inference reaches in a round of these predictions and labels."""
        victim, seed = self._trainers[0], self._run.seed

        def reached(predictions: NDArray[np.float32], *trainers: Trainer) -> float:
            learnt = learnt_from(victim.model, self.public.inputs, predictions, seed)
            return self._reached(learnt, *trainers)

        return {
            UPDATE: reached(sent[0], victim),
            AGGREGATE: reached(labels.reshape(sent[0].shape), *self._trainers),
        }

    def _students(self, state: Float32s) -> list[Student]:
        vectors = np.split(state, self._cuts)
        return [
            Student(trainer, self.public.inputs, vector)
            for trainer, vector in zip(self._trainers, vectors, strict=True)
        ]


# how long the attacker trains on predictions, in rounds' worth of training
TRAINING = 10
# the target of the attack
UPDATE, AGGREGATE = "update", "aggregate"


def auc(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the chance that a member's loss is below another's; ties count half."""
    ordered = np.sort(others)
    above = len(others) - np.searchsorted(ordered, members, side="right")
    ties = len(others) - np.searchsorted(ordered, members, side="left") - above
    return float((above + ties / 2).mean() / len(others))


def by_loss(
    model: Model, vector: Float32s, data: Dataset, members: tuple[Float32s, NDArray[np.int64]]
) -> float:
    """Return what an attacker with these parameters reaches.

    `members` are images and labels that were trained on; the others are the test images.
    """
    others = data.test_images, data.test_labels
    return auc(models.losses(model, vector, *members), models.losses(model, vector, *others))


def learnt_from(model: Model, inputs: Float32s, labels: NDArray[np.float32], seed: int) -> Float32s:
    """Return the parameters that an attacker trains on a public set with predictions of it."""
    vector = models.start(model, seed)
    rng = np.random.default_rng((seed, TRAINING))
    for _ in range(TRAINING):
        vector = models.train(model, vector, inputs, labels, rng)
    return vector
