"""A training run over real processes, measured: both servers, the clients' workers, this process as the coordinator."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.client import Coordinator
from securemedian.laboratory import models, plaintext
from securemedian.laboratory.attacks import NO_ATTACK, Attack
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.scripts import daemons, keygen
from securemedian.scripts.daemons import Watch
from securemedian.scripts.processes import Processes


@dataclass(frozen=True)
class Plan:
    """What is trained, by whom, and which clients misbehave: the last `faulty` ones."""

    data: Dataset
    directory: Path | None  # the one `data` was read from
    clients: int
    images: int | None  # of each client
    seed: int
    params: RoundParams
    range: RangePolicy | None
    fault: Attack
    faulty: int
    model: models.Model
    split: str = "iid"

    def __post_init__(self) -> None:
        if not 0 <= self.faulty <= self.clients:
            raise ConfigError(
                f"--faulty must be from 0 to the number of clients, {self.clients}, not {self.faulty}"
            )
        self.trainer(0)  # raises now what it would raise in a worker

    def fault_of(self, index: int) -> Attack:
        return self.fault if index >= self.clients - self.faulty else NO_ATTACK

    def trainer(self, index: int) -> Trainer:
        """What client `index`'s worker trains with."""
        return Trainer.of_part(
            self.data,
            index,
            self.clients,
            self.seed,
            self.images,
            self.fault_of(index),
            self.split,
            self.model,
        )

    def accuracy(self, model: NDArray[Any]) -> float:
        return models.accuracy(self.model, model, self.data.test_images, self.data.test_labels)


@dataclass(frozen=True)
class Figures:
    """One round, measured."""

    round: int
    accuracy: float  # of the published model on the test images
    plain_mean: float  # of the mean of the same updates, computed in the clear
    plain_median: float  # of their exact median
    matches_plaintext: (
        bool  # the published float32 vector equals the one computed in the clear, bit by bit
    )
    seconds: float  # from opening to publishing, training included
    protocol_seconds: float  # once the uploads were in
    ahead_seconds: float  # before that: correlations made while the clients trained
    ots: int
    bytes_s0_to_s1: int
    bytes_s1_to_s0: int
    included: list[str]
    left_out: dict[str, str]


class TrainingRun:
    """The processes of a plan, running; `round` runs one round."""

    def __init__(
        self, plan: Plan, directory: Path, processes: Processes, coordinator: Coordinator
    ) -> None:
        self._plan, self._directory, self._processes, self._coordinator = (
            plan,
            directory,
            processes,
            coordinator,
        )
        self._start: NDArray[np.float32] | None = models.start(
            plan.model, plan.seed
        )  # sent with the first round

    def round(self, watch: Watch) -> Figures:
        """Open a round, wait for its result, and compare it with the updates that the workers recorded."""
        began = time.monotonic()
        round_id = self._coordinator.open(
            self._plan.params, self._start, self._plan.range if self._start is not None else None
        )
        self._start = None
        before, width = self._coordinator.model(round_id)
        status = daemons.until_published(self._processes, self._coordinator, round_id, watch)
        results = self._coordinator.results(round_id)
        seconds = time.monotonic() - began
        updates = np.stack(
            [
                np.load(self._directory / f"round-{status['number']}-{name}.npy")
                for name in status["included"]
            ]
        )
        accuracy = self._plan.accuracy
        cost = status["cost"]
        return Figures(
            round=status["number"],
            accuracy=accuracy(results[0]),
            plain_mean=accuracy(plaintext.mean(updates)),
            plain_median=accuracy(plaintext.median(updates)),
            matches_plaintext=np.array_equal(
                results, plaintext.published(updates, self._plan.params, before, width)
            ),
            seconds=seconds,
            protocol_seconds=cost["seconds"],
            ahead_seconds=cost["ahead_seconds"],
            ots=cost["ots"],
            bytes_s0_to_s1=cost["bytes_sent"],
            bytes_s1_to_s0=cost["bytes_received"],
            included=status["included"],
            left_out=status["left_out"],
        )


@contextmanager
def running(plan: Plan, directory: Path) -> Iterator[TrainingRun]:
    """Start everything in `directory` (keys, configurations, logs, recorded updates), and end it on the way out."""
    keygen.make_all(directory, plan.clients, keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None))
    with Processes(directory) as processes:
        daemons.start(processes, directory)
        for index, name in enumerate(keygen.client_names(plan.clients)):
            processes.start(name, *_worker(plan, index, directory, name))
        with Coordinator.from_config(directory / "coordinator.toml") as coordinator:
            yield TrainingRun(plan, directory, processes, coordinator)


def _worker(plan: Plan, index: int, directory: Path, name: str) -> list[str]:
    """The arguments of one client's `securemedian train`."""
    fault = plan.fault_of(index)
    arguments = ["train", str(directory / f"{name}.toml"), "--record", str(directory)]
    arguments += ["--part", f"{index + 1}/{plan.clients}", "--seed", str(plan.seed)]
    arguments += ["--fault", fault.name, "--fault-from", str(fault.first)]
    arguments += ["--network", plan.model.name, "--split", plan.split]
    if plan.directory is not None:
        arguments += ["--data", str(plan.directory)]
    if plan.images is not None:
        arguments += ["--images", str(plan.images)]
    return arguments


def baseline(
    plan: Plan, rounds: int, combine: Callable[[NDArray[Any]], NDArray[np.float32]]
) -> list[float]:
    """Accuracies of training without any protection, from the same start, seeds and faults, on its own trajectory."""
    model = models.start(plan.model, plan.seed)
    trainers = [plan.trainer(index) for index in range(plan.clients)]
    accuracies = []
    for number in range(1, rounds + 1):
        model = combine(np.stack([trainer.update(model, number) for trainer in trainers]))
        accuracies.append(plan.accuracy(model))
    return accuracies
