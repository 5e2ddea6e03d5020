"""A run over real processes, measured round by round.

Both servers and the clients' workers are child processes; this process is the coordinator.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.policy import Security, forbidden
from securemedian.common.status import RoundStatus
from securemedian.laboratory import models, plaintext
from securemedian.laboratory.attacks import NO_ATTACK, Attack, Malformed
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.data.base import rotate
from securemedian.laboratory.servers import Ended, Service, ShowStatus, differs, servers_here
from securemedian.laboratory.worker import Trainer, check_malleable, first_model
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.dealing import MAX_BUCKETS
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.ranges.uniform import ConstantRange

# not a verb of the command, because it records updates in the clear
WORKER = "securemedian.laboratory.worker"
# Around the start, in which means of columns are 0 and deviations 1, in units in which usual values
# are near 1.
MEASURED_RANGE = ConstantRange(4.0)


@dataclass(frozen=True)
class Scenario:
    """A training: the model, the data, the clients, and how many of them misbehave.

    `directory` is where `data` was read from, None where it needs none. `images` is the number of
    images per client, None for all there are. The last `faulty` clients have the fault `fault`.
    `policy` is None for the default one.
    """

    data: Dataset
    directory: Path | None
    clients: int
    images: int | None
    seed: int
    params: RoundParams
    policy: RangePolicy | None
    fault: Attack
    faulty: int
    model: models.Model
    split: str = "iid"

    def __post_init__(self) -> None:
        if not 0 <= self.faulty <= self.clients:
            raise ConfigError(
                f"invalid --fault-clients: {self.faulty}; give 0 to {self.clients}, the number "
                "of clients"
            )
        if self.faulty and isinstance(self.fault, Malformed):
            check_malleable(self.params)
        # raises here what it would raise in a worker, and at S0
        self.trainer(0)
        if self.params.form.buckets:
            policy = self.policy or policy_from({})
            policy.buckets(policy.start(), self.params.form.buckets)

    @property
    def security(self) -> Security:
        """Return the strictest `security` that permits its rounds."""
        return next(word for word in Security if not forbidden(word, self.params))

    def fault_of(self, index: int) -> Attack:
        return self.fault if index >= self.clients - self.faulty else NO_ATTACK

    def trainer(self, index: int) -> Trainer:
        """Return the trainer that the worker of client `index` (0-based) runs."""
        return Trainer.of_part(
            self.data,
            index,
            self.clients,
            self.seed,
            self.images,
            self.fault_of(index),
            self.split,
            self.model,
            self.quarters(index),
        )

    def quarters(self, index: int) -> int:
        """Return by how many times 90 degrees the images of client `index` (0-based) are turned.

        Without groups they are as they are.
        """
        return index % self.params.method.groups

    def accuracy(self, results: NDArray[Any]) -> float:
        """Return the accuracy on the test images of a model (d,), or of the best of several.

        In a training of several groups it is the mean over the test images of all of them, of each
        of which the model with the smallest loss is taken.
        """
        found = []
        for quarters in range(self.params.method.groups):
            turned = rotate(self.data.test_images, quarters)
            test = turned, self.data.test_labels
            best = min(np.atleast_2d(results), key=lambda one: models.loss(self.model, one, *test))
            found.append(models.accuracy(self.model, best, *test))
        return float(np.mean(found))


class TrainingRun:
    """The running processes of a scenario; `run_round` runs one round with them."""

    def __init__(self, scenario: Scenario, service: Service) -> None:
        self._scenario, self._service = scenario, service
        # the start model, which is sent with the first round and then forgotten
        groups = scenario.params.method.groups
        self._start: NDArray[np.float32] | None
        self._start = models.starts(scenario.model, scenario.seed, groups)

    def measure(self, show: ShowStatus) -> None:
        """Let clients agree on what is average, where the network needs it (`models.measures`).

        That takes a round of medians, which any `security` permits, and its result is the start of
        the run. Raises SecureMedianError if it is not the median of what the workers recorded.
        """
        if not models.measures(self._scenario.model):
            return
        asked = getattr(self._scenario.params.method, "security", Bucketed.security)
        params = replace(
            self._scenario.params, method=Bucketed(buckets=MAX_BUCKETS, security=asked)
        )
        ended = self._round(params, show, MEASURED_RANGE)
        if not ended.clear(*self._recorded(ended.status)):
            raise differs(ended.status.number)
        self._start = ended.results[0]

    def run_round(self, show: ShowStatus) -> dict[str, Any]:
        """Run a round, compare its result with what the workers recorded, and return its figures.

        Accuracies on the test images are those of the published model, and of the mean and the
        exact median of the same updates. `seconds` are those from opening to publishing,
        `protocol_seconds` the servers' once the uploads were in, `ahead_seconds` theirs before.
        """
        ended = self._round(self._scenario.params, show, self._scenario.policy or policy_from({}))
        status, cost, accuracy = ended.status, ended.status.cost, self._scenario.accuracy
        updates, groups = self._recorded(status)
        several = ended.params.method.groups > 1
        return {
            "round": status.number,
            "accuracy": accuracy(ended.results if several else ended.results[0]),
            "plain_mean": accuracy(plaintext.mean(updates)),
            "plain_median": accuracy(plaintext.median(updates)),
            "matches_plaintext": ended.clear(updates, groups),
            "seconds": ended.seconds,
            "protocol_seconds": cost["seconds"],
            "ahead_seconds": cost["ahead_seconds"],
            "ots": cost["ots"],
            "bytes_s0_to_s1": cost["bytes_sent"],
            "bytes_s1_to_s0": cost["bytes_received"],
            "included": status.included,
            "left_out": status.left_out,
            "unchanged_groups": status.unchanged_groups,
        }

    def _round(self, params: RoundParams, show: ShowStatus, policy: RangePolicy) -> Ended:
        start, self._start = self._start, None
        new = None if start is None else policy
        return self._service.round(params, show=show, model=start, range_policy=new)

    def _recorded(self, status: RoundStatus) -> tuple[NDArray[np.float32], list[int]]:
        """Return the updates of those who are in a round, and the groups that they chose."""

        def each(kind: str) -> list[NDArray[Any]]:
            names = [f"{kind}-{status.number}-{name}.npy" for name in status.included]
            return [np.load(self._service.folder / name) for name in names]

        return np.stack(each("round")), [int(group) for group in each("group")]


@contextmanager
def running(scenario: Scenario, directory: Path) -> Iterator[TrainingRun]:
    """Run the processes of a scenario while the context is open.

    Their keys, logs and recorded updates are written to `directory`.
    """
    with servers_here(directory, scenario.clients, scenario.security) as service:
        for index, name in enumerate(service.names):
            service.processes.start(name, WORKER, *_worker(scenario, index, directory, name))
        yield TrainingRun(scenario, service)


def _worker(scenario: Scenario, index: int, directory: Path, name: str) -> list[str]:
    fault = scenario.fault_of(index)
    arguments = [str(directory / f"{name}.toml"), "--record", str(directory)]
    arguments += ["--part", f"{index + 1}/{scenario.clients}", "--seed", str(scenario.seed)]
    arguments += ["--fault", fault.name, "--fault-from", str(fault.first)]
    arguments += ["--dataset", scenario.data.name, "--quarters", str(scenario.quarters(index))]
    arguments += ["--network", scenario.model.name, "--split", scenario.split]
    if scenario.directory is not None:
        arguments += ["--data", str(scenario.directory)]
    if scenario.images is not None:
        arguments += ["--images", str(scenario.images)]
    return arguments


def baseline(
    scenario: Scenario, rounds: int, combine: Callable[[NDArray[Any]], NDArray[np.float32]]
) -> list[float]:
    """Return the accuracy after each round of a training without any protection.

    Start model, seeds and faults are those of the scenario, but each round trains from the result
    of `combine`, so that this training takes a trajectory of its own.
    """
    trainers = [scenario.trainer(index) for index in range(scenario.clients)]
    model = first_model(scenario.model, scenario.seed, trainers)
    accuracies = []
    for number in range(1, rounds + 1):
        model = combine(np.stack([trainer.update(model, number) for trainer in trainers]))
        accuracies.append(scenario.accuracy(model))
    return accuracies
