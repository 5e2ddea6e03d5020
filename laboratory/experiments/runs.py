"""What a training run is, and what is kept of it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from securemedian.laboratory.data import Dataset
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges.base import RangePolicy

UPLOADS_LIMIT_S = 6 * 3600.0  # for all clients of a round to train and upload


@dataclass(frozen=True)
class Run:
    """Everything that decides the figures of a training run, but for the number of its rounds: a longer run begins as
    a shorter one. The last `attackers` of the clients attack from round `first` on.
    """

    data: str
    data_digest: str
    model: str
    recipe: Mapping[str, Any]  # how a client trains it
    split: str
    clients: int
    images: int | None  # of each client; None: all there are, divided evenly
    seed: int
    method: str
    options: Mapping[str, Any]  # the method and its options; none for a yardstick
    range: RangePolicy
    attack: str
    attackers: int
    first: int
    secure: bool  # through S0 and S1, or the same functionality in the clear
    extensions: Mapping[str, str]  # digests of the files that registered more, by name

    @property
    def id(self) -> str:
        """Also a file name. Runs that differ in anything differ in it."""
        # every policy had a decay when the first runs were saved: their ids stay
        policy = {"decay": 0.1} | self.range.to_dict()
        values = json.dumps(asdict(self) | {"range": policy}, sort_keys=True)
        digest = hashlib.sha256(values.encode()).hexdigest()
        return f"{self.method}-{self.attack}-seed{self.seed}-{digest[:12]}"

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.method}, {self.attack}, seed {self.seed}"

    def params(self, dim: int) -> RoundParams:
        """Of a round of the servers, which takes all clients or fails."""
        return RoundParams.from_dict(
            {
                "dim": dim,
                "max_clients": self.clients,
                "min_clients": self.clients,
                "deadline_s": UPLOADS_LIMIT_S,
                **self.options,
            }
        )


@dataclass(frozen=True)
class Cost:
    """What the servers say of a round."""

    seconds: float
    ots: int
    bytes_s0_to_s1: int
    bytes_s1_to_s0: int


@dataclass(frozen=True)
class Figures:
    """One round, measured."""

    accuracy: float  # of the new model on the test images
    model: str  # SHA-256 of the new model's float32 values: the same wherever and however it was computed
    seconds: float  # all of the round: training, attacking, combining, testing
    cost: Cost | None  # only of rounds through the servers


@dataclass(frozen=True)
class Record:
    """What is known of a run. A run that diverged ends in the round where a value was no longer a number."""

    rounds: list[Figures] = field(default_factory=list)
    diverged: bool = False

    def accuracies(self, rounds: int, classes: int) -> list[float]:
        """Of so many rounds; those after a divergence have the accuracy of guessing."""
        known = [figures.accuracy for figures in self.rounds[:rounds]]
        return known + [1 / classes] * (rounds - len(known))

    def covers(self, rounds: int) -> bool:
        return self.diverged or len(self.rounds) >= rounds

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Record":
        rounds = [
            Figures(**(one | {"cost": Cost(**one["cost"]) if one["cost"] else None}))
            for one in values["rounds"]
        ]
        return cls(rounds, bool(values["diverged"]))


def fingerprint(data: Dataset) -> str:
    """Of the images themselves: the same name in another folder may be other data."""
    digest = hashlib.sha256()
    for array in (data.images, data.labels, data.test_images, data.test_labels):
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]
