"""A training run over real processes, measured: both servers, the clients' workers, this process as the coordinator."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients import models
from clients.client import Coordinator
from clients.config import ClientConfig
from clients.data import Dataset
from clients.faults import NO_FAULT, Fault
from clients.worker import Trainer
from mpc.errors import ConfigError, RoundFailed, ServerUnreachable
from mpc.params import RangePolicy, RoundParams
from scripts import keygen, plaintext
from scripts.processes import Processes

START_LIMIT_S = 300.0  # for both servers: the first start compiles the kernels
PROBE_S = 2.0
POLL_S = 0.1

Watch = Callable[[dict[str, Any]], None]  # is shown S0's status while a round lasts


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
    fault: Fault
    faulty: int

    def __post_init__(self) -> None:
        if not 0 <= self.faulty <= self.clients:
            raise ConfigError(f"--faulty must be from 0 to the number of clients, {self.clients}, not {self.faulty}")
        self.trainer(0)  # raises now what it would raise in a worker

    @property
    def recipe(self) -> models.Recipe:
        return models.RECIPES[self.data.name]

    def fault_of(self, index: int) -> Fault:
        return self.fault if index >= self.clients - self.faulty else NO_FAULT

    def trainer(self, index: int) -> Trainer:
        """What client `index`'s worker trains with."""
        return Trainer.of_part(self.data, index, self.clients, self.seed, self.images, self.fault_of(index))

    def accuracy(self, model: NDArray[Any]) -> float:
        return models.accuracy(self.recipe, model, self.data.test_images, self.data.test_labels)


@dataclass(frozen=True)
class Figures:
    """One round, measured."""

    round: int
    accuracy: float  # of the published model on the test images
    plain_mean: float  # of the mean of the same updates, computed in the clear
    plain_median: float  # of their exact median
    matches_plaintext: bool  # the published float32 vector equals the one computed in the clear, bit by bit
    seconds: float  # from opening to publishing, training included
    protocol_seconds: float
    ots: int
    bytes_s0_to_s1: int
    bytes_s1_to_s0: int
    included: list[str]
    left_out: dict[str, str]


class Experiment:
    """The processes of a plan, running; `round` runs one round."""

    def __init__(self, plan: Plan, directory: Path, processes: Processes, coordinator: Coordinator) -> None:
        self._plan, self._directory, self._processes, self._coordinator = plan, directory, processes, coordinator
        self._start: NDArray[np.float32] | None = models.start(plan.recipe, plan.seed)  # sent with the first round

    def round(self, watch: Watch) -> Figures:
        """Open a round, wait for its result, and compare it with the updates that the workers recorded."""
        began = time.monotonic()
        round_id = self._coordinator.open(
            self._plan.params, self._start, self._plan.range if self._start is not None else None
        )
        self._start = None
        before, width = self._coordinator.model(round_id)
        status = self._until_published(round_id, watch)
        results = self._coordinator.results(round_id)
        seconds = time.monotonic() - began
        updates = np.stack(
            [np.load(self._directory / f"round-{status['number']}-{name}.npy") for name in status["included"]]
        )
        accuracy = self._plan.accuracy
        cost = status["cost"]
        return Figures(
            round=status["number"],
            accuracy=accuracy(results[0]),
            plain_mean=accuracy(plaintext.mean(updates)),
            plain_median=accuracy(plaintext.median(updates)),
            matches_plaintext=np.array_equal(results, plaintext.published(updates, self._plan.params, before, width)),
            seconds=seconds,
            protocol_seconds=cost["seconds"],
            ots=cost["ots"],
            bytes_s0_to_s1=cost["bytes_sent"],
            bytes_s1_to_s0=cost["bytes_received"],
            included=status["included"],
            left_out=status["left_out"],
        )

    def _until_published(self, round_id: str, watch: Watch) -> dict[str, Any]:
        while True:  # the servers end every round within its limits, and a dead server ends the loop
            self._processes.check()
            status = self._coordinator.status(round_id)
            watch(status)
            if status["state"] == "failed":
                raise RoundFailed(f"round {status['number']}: {status['reason']}")
            if status["state"] == "published":
                return status
            time.sleep(POLL_S)


@contextmanager
def running(plan: Plan, directory: Path) -> Iterator[Experiment]:
    """Start everything in `directory` (keys, configurations, logs, recorded updates), and end it on the way out."""
    keygen.make_all(directory, plan.clients, keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, None))
    with Processes(directory) as processes:
        for server in ("s0", "s1"):
            processes.start(server, "serve", str(directory / f"{server}.toml"))
        config = ClientConfig.load(directory / "coordinator.toml")
        _wait_for_servers(config, processes)
        for index, name in enumerate(keygen.client_names(plan.clients)):
            processes.start(name, *_worker(plan, index, directory, name))
        with Coordinator(config) as coordinator:
            yield Experiment(plan, directory, processes, coordinator)


def _worker(plan: Plan, index: int, directory: Path, name: str) -> list[str]:
    """The arguments of one client's `securemedian train`."""
    fault = plan.fault_of(index)
    arguments = ["train", str(directory / f"{name}.toml"), "--record", str(directory)]
    arguments += ["--part", f"{index + 1}/{plan.clients}", "--seed", str(plan.seed)]
    arguments += ["--fault", fault.kind, "--fault-from", str(fault.first)]
    if plan.directory is not None:
        arguments += ["--data", str(plan.directory)]
    if plan.images is not None:
        arguments += ["--images", str(plan.images)]
    return arguments


def _wait_for_servers(config: ClientConfig, processes: Processes) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    with Coordinator(replace(config, reply_timeout_s=PROBE_S)) as coordinator:
        while not _linked(coordinator):
            processes.check()
            if time.monotonic() > deadline:
                raise ServerUnreachable(f"the two servers were not ready within {START_LIMIT_S:g} s")
            time.sleep(POLL_S)


def _linked(coordinator: Coordinator) -> bool:
    """Whether both servers answer and have found each other."""
    try:
        return all(server.ask("info").fields["peer_linked"] for server in coordinator.servers)
    except ServerUnreachable:
        return False


def baseline(plan: Plan, rounds: int, combine: Callable[[NDArray[Any]], NDArray[np.float32]]) -> list[float]:
    """Accuracies of training without any protection, from the same start, seeds and faults, on its own trajectory."""
    model = models.start(plan.recipe, plan.seed)
    trainers = [plan.trainer(index) for index in range(plan.clients)]
    accuracies = []
    for number in range(1, rounds + 1):
        model = combine(np.stack([trainer.update(model, number) for trainer in trainers]))
        accuracies.append(plan.accuracy(model))
    return accuracies
