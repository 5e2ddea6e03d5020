"""A client that trains: it receives each round's model, trains on its own images and submits.

`take_part` is what `securemedian train` does. `main` does the same for clients of the laboratory,
which may misbehave and which record what they send.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import files
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.policy import ClientPolicy
from securemedian.clients.public import PublicSet
from securemedian.clients.rounds import Turn
from securemedian.clients.upload import Round, number_of
from securemedian.common.durable import say
from securemedian.common.terminal import Progress, unseen
from securemedian.laboratory import models, plaintext
from securemedian.laboratory.attacks import NO_ATTACK, Attack, Malformed
from securemedian.laboratory.data import SOURCES, Dataset, load, without
from securemedian.laboratory.data.base import rotate
from securemedian.laboratory.distillation import Student
from securemedian.laboratory.worker_options import (
    add_fault_options,
    add_worker_options,
    fault,
    network,
    public_set,
)
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import ConfigError, InputError, SecureMedianError
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import Entropy
from securemedian.mpc.protocols.share import WordsUpload
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.params import RoundParams

# how long a client trains alone before its first predictions, in rounds' worth of training
WARM_UP = 5


@dataclass(frozen=True)
class Trainer:
    """One client's images, and how it trains on them.

    `seed` is the pair of the run's seed and the client's index, which determine all updates.
    """

    model: models.Model
    images: Float32s = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    seed: tuple[int, int]
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
        quarters: int = 0,
    ) -> Self:
        """Return the trainer of client `index` (0-based) of `parts`.

        The images are split among the clients as `how` says (`data.split`), and this client's are
        turned by `quarters` times 90 degrees. The model is by default the data set's own. Raises
        ConfigError for an unknown part.
        """
        if not 0 <= index < parts:
            raise ConfigError(f"no such part of {parts}: {index + 1}; count parts from 1")
        model = model or models.MODELS[SOURCES[data.name].model]
        models.check_fits(model, data)
        mine = data.parts(parts, seed, how, images)[index]
        images_here = rotate(data.images[mine], quarters)
        return cls(model, images_here, data.labels[mine], (seed, index), attack)

    def loss(self, start: Float32s) -> float:
        return models.loss(self.model, start, self.images, self.labels)

    def update(self, start: Float32s, number: int) -> Float32s:
        """Return the parameters (d,) that this client sends in round `number` after `start`.

        If the client attacks, it does so alone: it sees no other client's update.
        """
        trained, rng = self._train(start, number)
        if not self.attack.active(number):
            return trained
        nobody = np.empty((0, start.size), np.float32)
        return self.attack.corrupt(trained[None], start, nobody, rng)[0]

    def trained(self, start: Float32s, number: int) -> Float32s:
        """Return the parameters (d,) that this client trained, before any attack changes them."""
        return self._train(start, number)[0]

    def _train(self, start: Float32s, number: int) -> tuple[Float32s, np.random.Generator]:
        rng, labels = np.random.default_rng((*self.seed, number)), self.labels
        if self.attack.active(number):
            labels = self.attack.labels(labels, self.model.classes)
        return models.train(self.model, start, self.images, labels, rng), rng


def first_model(model: models.Model, seed: int, trainers: Sequence[Trainer]) -> Float32s:
    """Return the model (d,) that clients' first training starts from.

    If the network first measures everybody's columns, it is the mean after that.
    """
    start = models.start(model, seed)
    if not models.measures(model):
        return start
    return plaintext.mean(np.stack([each.trained(start, 0) for each in trainers]))


class MalformedClient(Client):
    """A client that deals wrong vectors, or shares values out of range, as `fault` says when."""

    def __init__(
        self, config: ClientConfig, fault: Attack, public: PublicSet | None = None
    ) -> None:
        super().__init__(config, public)
        self._fault = fault

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> OwnDealing:
        """Return a dealing whose vectors are not one-hot."""
        dealt = super().deal(shape, current, entropy)
        if self._fault.active(current.number):
            dealt.words = WordsUpload(shape.layout, dealt.words.packed ^ np.uint64(1))
        return dealt

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return values that are as large as the ring allows, where values have a range."""
        values = super().encode(vector, current)
        if self._fault.active(current.number) and current.params.form.checks:
            values = np.full_like(values, (1 << (current.params.form.layout.bits - 1)) - 1)
        return values


def check_malleable(params: RoundParams) -> None:
    """Raise ConfigError if no upload of such a round is found to be malformed."""
    if params.form.dealing is None and not params.form.checks:
        raise ConfigError(
            f"--fault malformed: the servers check no uploads of {params.method.label}. Every word "
            "of radix is the upload of some update; the other rounds in which nothing is checked "
            "are for comparison. Take bucketed with dealt uploads, pairwise or trimmed-mean"
        )


def trainer(
    options: argparse.Namespace,
    attack: Attack = NO_ATTACK,
    public: PublicSet | None = None,
    quarters: int = 0,
) -> Trainer:
    """Return the trainer that the options describe; nobody's own images are of a public set."""
    models.use_one_thread()
    images, (index, parts) = load(options.data, options.dataset), options.part
    if public is not None:
        images = without(images, public.inputs)
    return Trainer.of_part(
        images,
        index,
        parts,
        options.seed,
        options.images,
        attack,
        options.split,
        network(options, images),
        quarters,
    )


@dataclass
class Kept:
    """The network of a client that keeps some layers for itself, over restarts, too."""

    client: Client
    # whether each of its values is sent, shape (d,), and all of them
    sent: NDArray[np.bool_]
    vector: Float32s

    @classmethod
    def of(cls, client: Client, trainer: Trainer, keep_local: Sequence[str]) -> Self:
        """Return the network that an earlier process has kept, or an untrained one.

        Raises InputError for a pattern that no layer fits.
        """
        sent = models.sent(trainer.model, keep_local)
        fields, arrays = client.stored
        if _about(trainer).items() <= fields.items() and "network" in arrays:
            return cls(client, sent, np.array(arrays["network"]))
        return cls(client, sent, models.start(trainer.model, trainer.seed[0]))

    def whole(self, part: NDArray[Any]) -> Float32s:
        """Return the network with these values of what is sent, flat."""
        if part.shape != (self.sent.sum(),):
            raise InputError(
                f"{self.sent.sum():,} values are sent here, and the round has another number: "
                f"{part.size:,}; give `init` and all clients the same --keep-local"
            )
        whole = self.vector.copy()
        whole[self.sent] = part
        return whole

    def keep(self, trainer: Trainer, vector: Float32s) -> Float32s:
        """Keep a trained network, and return what is sent of it, flat."""
        self.vector = vector
        self.client.store(_about(trainer), {"network": vector})
        return vector[self.sent]


@dataclass
class OfModels:
    """A client that trains each round's model. With `kept` some layers stay with this client.

    `save` is a file for each round's result.
    """

    trainer: Trainer
    kept: Kept | None = None
    save: Path | None = None
    # the last result, if only the clients know it
    private: NDArray[Any] | None = field(default=None, repr=False)

    def update(self, current: Round) -> tuple[Float32s, int]:
        """Return the update, from the round's model or the clients' own result, and its group.

        Raises ConfigError if there is nothing to train from.
        """
        group, kept, trainer = 0, self.kept, self.trainer
        if current.params.method.groups > 1:
            group = current.choose(lambda part: trainer.loss(kept.whole(part) if kept else part))
        model = current.of_group(group).model
        given = model if self.private is None or current.number == 1 else self.private
        if given is None:
            raise ConfigError(
                f"the round publishes no model to train from: {current.round_id}; have the "
                "coordinator open it with --model"
            )
        start = np.asarray(given, np.float32)
        if kept is None:
            return trainer.update(start, current.number), group
        return kept.keep(trainer, trainer.update(kept.whole(start), current.number)), group

    def learn(self, turn: Turn) -> None:
        """Wait for the result, if the next update or the user needs it."""
        own = turn.round.params.method.result_to == "clients"
        result = turn.result() if own or self.save else None
        self.private = result if own else None
        if self.save is not None:
            files.write(self.save, np.asarray(result, np.float32))
            say(f"round {turn.round.number}: result in {self.save}")


@dataclass
class OfPredictions:
    """A client that predicts the public set, and learns from what all predict.

    Its network is kept (`Client.store`) for a restart, and written to `save` after each round.
    """

    client: Client
    student: Student
    save: Path | None = None

    def update(self, current: Round) -> tuple[Float32s, int]:
        """Return the predictions. Raises ConfigError in a round of something else."""
        exchange = current.params.exchange
        if not isinstance(exchange, Predictions):
            raise ConfigError(
                f"this client was started for {Predictions.name}, and round {current.round_id} "
                f"exchanges something else: {exchange.name}; start it without --public"
            )
        return self.student.sent(current.number), 0

    def learn(self, turn: Turn) -> None:
        """Learn from the result."""
        self.student = _learn(self.client, self.student, turn.round.round_id)
        if self.save is not None:
            files.write(self.save, self.student.vector)


def run(
    client: Client,
    learner: OfModels | OfPredictions,
    rounds: int | None = None,
    record: Path | None = None,
    progress: Progress = unseen,
) -> None:
    """Take part in `rounds` rounds, or in all that come if None.

    A submission that fails is printed, and the worker goes on to the next round. `progress` gets
    what `Client.submit` gives it. `record` is for the laboratory alone: a directory that receives
    every update IN THE CLEAR as round-NUMBER-NAME.npy, and the group that was chosen as
    group-NUMBER-NAME.npy, to compare results with. Never use it with private data.
    """
    for turn in client.rounds(rounds, lost=(SecureMedianError,), all_count=True):
        current, sent, group = turn.round, None, 0
        if current.dealing_lost:
            say(f"round {current.number}: it goes on without this client, which was restarted")
            continue
        # an update may have been submitted before a restart
        if not current.submitted:
            sent, group = learner.update(current)
            if record is not None:
                name = f"{current.number}-{client.config.name}"
                np.save(record / f"round-{name}.npy", sent.reshape(-1))
                np.save(record / f"group-{name}.npy", group)
        with turn:
            if sent is not None:
                turn.submit(sent, progress=progress, group=group)
            done = "was submitted before" if sent is None else "submitted"
            say(f"round {current.number}: update {done}")
            # the servers may ask again
            client.attend(current.round_id)
            learner.learn(turn)


def take_part(
    client: Client,
    trainer: Trainer,
    options: argparse.Namespace,
    record: Path | None = None,
    progress: Progress = unseen,
    kept: Kept | None = None,
    save: Path | None = None,
) -> None:
    """Take part in rounds: in those that exchange predictions if the client has a public set."""
    learner: OfModels | OfPredictions = OfModels(trainer, kept, save)
    if client.public is not None:
        warm_up = WARM_UP if options.warm_up is None else options.warm_up
        student = resume(client, trainer, client.public.inputs, warm_up)
        learner = OfPredictions(client, student, save)
    run(client, learner, options.rounds, record, progress)


def resume(client: Client, trainer: Trainer, inputs: Float32s, warm_up: int) -> Student:
    """Return the student that an earlier process has kept, or one that has just warmed up.

    A kept one, of the same network and seed, learns from the rounds that it has submitted to since.
    """
    fields, arrays = client.stored
    sent = [one.round_id for one in client.sent]
    if _about(trainer).items() <= fields.items():
        student = replace(Student.start(trainer, inputs, 0), vector=arrays["network"])
        last = fields["round"]
        say(f"going on with the network of {f'round {last}' if last else 'the warm-up'}")
        for round_id in sent[sent.index(last) + 1 :] if last in sent else sent:
            student = _learn(client, student, round_id)
        return student
    student = Student.start(trainer, inputs, warm_up)
    _keep(client, student, sent[-1] if sent else "")
    return student


def _about(trainer: Trainer) -> dict[str, Any]:
    """Return what a network that is kept must be of, to be taken again."""
    return {"network": trainer.model.name, "seed": list(trainer.seed)}


def _keep(client: Client, student: Student, round_id: str) -> None:
    """Keep a student as it is after a round, or after the warm-up if that is ""."""
    fields = {**_about(student.trainer), "round": round_id}
    client.store(fields, {"network": student.vector})


def _learn(client: Client, student: Student, round_id: str) -> Student:
    """Return a student after a round, whose result is waited for, and keep it for a restart.

    A round without a result leaves the student as it is, and is printed.
    """
    number = number_of(round_id)
    try:
        shape = len(student.inputs), student.trainer.model.classes
        labels = np.asarray(client.result(round_id))
        if labels.size != np.prod(shape):
            raise ConfigError(
                f"the round exchanged no predictions on this public set: {round_id}; name "
                "another round"
            )
        labels = labels.reshape(shape)
        student = student.after(labels, number)
        say(f"round {number}: learnt from {len(labels):,} public images")
        _keep(client, student, round_id)
    except SecureMedianError as error:
        say(f"round {number}: {error}")
    return student


def main() -> None:
    """Train as a client of the demo, which may misbehave and whose updates are recorded."""
    parser = argparse.ArgumentParser(
        prog="python -m securemedian.laboratory.worker",
        description="A client for demos on one machine: never use it with private data.",
    )
    add_worker_options(parser)
    add_fault_options(parser)
    parser.add_argument(
        "--record",
        type=Path,
        required=True,
        metavar="DIR",
        help="write every update there IN THE CLEAR, as round-NUMBER-NAME.npy",
    )
    parser.add_argument(
        "--quarters",
        type=int,
        default=0,
        metavar="N",
        help="turn the images by so many times 90 degrees (default: %(default)s)",
    )
    options = parser.parse_args()
    try:
        public = public_set(options)
        trains = trainer(options, fault(options), public, options.quarters)
        # it sees public data only
        config = replace(
            ClientConfig.load(options.config), policy=ClientPolicy.unlimited(), saturate=True
        )
        attack = trains.attack
        malformed = isinstance(attack, Malformed)
        with (
            MalformedClient(config, attack, public) if malformed else Client(config, public)
        ) as client:
            take_part(client, trains, options, options.record)
    except SecureMedianError as error:
        sys.exit(f"worker: {error}")


if __name__ == "__main__":
    main()
