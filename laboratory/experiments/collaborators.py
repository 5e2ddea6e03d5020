"""All clients of a run that exchanges predictions, played by this process.

The state of such a run is one vector: the parameters of all clients' networks, one after another.
"""

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.public import PublicSet
from securemedian.laboratory import models
from securemedian.laboratory.attacks import ATTACKS, NO_ATTACK
from securemedian.laboratory.data import Dataset, draw_public, split, without
from securemedian.laboratory.distillation import Student, sendable, undecided
from securemedian.laboratory.experiments import membership
from securemedian.laboratory.experiments.runs import Run
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.arrays import Float32s


class Collaborators:
    """The clients of a run, whose networks take turns: client i has network i modulo their number.

    What they train on is without the public set.
    """

    def __init__(self, run: Run, data: Dataset) -> None:
        assert run.collaboration is not None
        self._run, self._data, self._plan = run, data, run.collaboration
        self.public = PublicSet(draw_public(data, self._plan.samples, run.seed))
        own = without(data, self.public.inputs)
        parts = split(own.labels, run.clients, run.seed, run.split, run.images)
        self._attack = ATTACKS[run.attack](first=run.first)
        networks = self._plan.networks
        attacks = [NO_ATTACK] * self._honest + [self._attack] * run.attackers
        self._trainers = [
            Trainer(
                run.network(networks[index % len(networks)]),
                own.images[part],
                own.labels[part],
                (run.seed, index),
                attack,
            )
            for index, (part, attack) in enumerate(zip(parts, attacks, strict=True))
        ]
        sizes = [models.start(trainer.model, 0).size for trainer in self._trainers]
        self._cuts = np.cumsum(sizes)[:-1]

    @property
    def _honest(self) -> int:
        return self._run.clients - self._run.attackers

    def start(self) -> Float32s:
        """Return all clients' parameters after their warm-up."""
        students = [
            Student.start(trainer, self.public.inputs, self._plan.warm_up)
            for trainer in self._trainers
        ]
        return np.concatenate([student.vector for student in students])

    def predictions(self, state: Float32s, number: int) -> NDArray[np.float32]:
        """Return what the clients send in round `number`: (n, samples, classes), attackers' last.

        Attackers that collude see what the honest ones send.
        """
        run, attack = self._run, self._attack
        sent = np.stack([student.predictions() for student in self._students(state)])
        if not (run.attackers and attack.active(number)):
            return sent
        honest = sent[: self._honest].reshape(self._honest, -1)
        trained = sent[self._honest :].reshape(run.attackers, -1)
        rng = np.random.default_rng((run.seed, run.clients, number))
        corrupted = attack.corrupt(
            trained,
            undecided(*sent.shape[1:]).reshape(-1),
            honest if attack.sees_honest else honest[:0],
            rng,
        )
        both = np.concatenate([honest, sendable(corrupted)])
        return both.reshape(sent.shape)

    def after(self, state: Float32s, labels: Float32s, number: int) -> Float32s:
        """Return all clients' parameters after round `number`, which gave these labels (d,)."""
        soft = labels.reshape(self.public.samples, -1)
        return np.concatenate(
            [student.after(soft, number).vector for student in self._students(state)]
        )

    def alone(self, state: Float32s, number: int) -> Float32s:
        """Return all clients' parameters after a round in which each trains on its own images."""
        return np.concatenate(
            [student.trainer.trained(student.vector, number) for student in self._students(state)]
        )

    def inference(self, sent: NDArray[np.float32], labels: NDArray[np.float32]) -> dict[str, float]:
        """Return what membership inference reaches in a round of these predictions and labels."""
        victim, seed = self._trainers[0], self._run.seed

        def attack(predictions: NDArray[np.float32], *trainers: Trainer) -> float:
            learnt = membership.learnt_from(victim.model, self.public.inputs, predictions, seed)
            images = np.concatenate([trainer.images for trainer in trainers])
            known = np.concatenate([trainer.labels for trainer in trainers])
            return membership.by_loss(victim.model, learnt, self._data, (images, known))

        return {
            membership.UPDATE: attack(sent[0], victim),
            membership.AGGREGATE: attack(labels.reshape(sent[0].shape), *self._trainers),
        }

    def accuracies(self, state: Float32s) -> list[tuple[str, float]]:
        """Return the network of each honest client, and its accuracy on the test images."""
        return [
            (
                student.network,
                models.accuracy(
                    student.trainer.model,
                    student.vector,
                    self._data.test_images,
                    self._data.test_labels,
                ),
            )
            for student in self._students(state)[: self._honest]
        ]

    def _students(self, state: Float32s) -> list[Student]:
        vectors = np.split(state, self._cuts)
        return [
            Student(trainer, self.public.inputs, vector)
            for trainer, vector in zip(self._trainers, vectors, strict=True)
        ]
