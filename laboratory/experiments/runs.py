"""The design of an experiment, its runs, and the record of each in ID.json once it is finished."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from securemedian.laboratory import models, report
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.experiments import aggregation
from securemedian.laboratory.models import Model
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.optimiser import NoOptimiser, Optimiser
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.operating import keygen

# for all clients of a round to train and upload
UPLOADS_LIMIT_S = 6 * 3600.0


@dataclass(frozen=True)
class Collaboration:
    """The plan of a run that exchanges predictions."""

    # the names of the clients' networks, which take turns
    networks: tuple[str, ...]
    # how many images are public, and so nobody's own
    samples: int
    # how long clients train alone before their first predictions, in rounds' worth of training
    warm_up: int


@dataclass(frozen=True)
class Run:
    """Everything that decides the figures of a run, except the number of its rounds.

    A longer run begins as a shorter one. The last `attackers` of the clients attack from round
    `first` on.
    """

    data: str
    data_digest: str
    model: str
    # how a client trains the model; or each of its networks, by name
    recipe: Mapping[str, Any]
    split: str
    clients: int
    # per client; None: all there are, divided evenly
    images: int | None
    seed: int
    # a name of `aggregation`
    method: str
    # the servers' method and its options; of an aggregator in the clear at most its `weights`
    options: Mapping[str, Any]
    policy: RangePolicy
    attack: str
    attackers: int
    first: int
    # through S0 and S1, or the same functionality in the clear
    secure: bool
    # digests of the files that registered more methods, attacks, .., by file name
    extensions: Mapping[str, str]
    # makes the next model of a round's result
    optimiser: Optimiser = field(default=NoOptimiser())
    # None where parameters are exchanged
    collaboration: Collaboration | None = None
    # whether membership inference is measured in every round
    inference: bool = False

    @property
    def run_id(self) -> str:
        """The run's id, also a file name; runs that differ in any field have different ids."""
        digest = hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()
        return f"{self.method}-{self.attack}-seed{self.seed}-{digest[:12]}"

    @property
    def names(self) -> list[str]:
        return keygen.client_names(self.clients)

    @property
    def holders(self) -> int:
        """The clients that the images are divided among.

        With `similarity`, as in ByzFL's protocol, the attackers hold none: without anybody's
        classes nobody could learn them.
        """
        alike = self.split.startswith("similarity")
        return self.clients - self.attackers if alike else self.clients

    @property
    def name(self) -> str:
        ranged = "" if self.policy == aggregation.CONSTANT else f", range {self.policy.label}"
        return f"{self.method}, {self.attack}, seed {self.seed}{ranged}"

    def network(self, name: str) -> Model:
        return replace(models.MODELS[name], **self.recipe.get(name, self.recipe))

    def to_dict(self) -> dict[str, Any]:
        named = {"policy": self.policy.to_dict(), "optimiser": self.optimiser.to_dict()}
        return asdict(self) | named

    def params(self, dim: int, exchange: Mapping[str, Any] | None = None) -> RoundParams:
        """Return the parameters of a round of the servers, which takes all honest clients or fails.

        `exchange` is what is special to them where predictions are exchanged.
        """
        return RoundParams.from_dict(
            {
                "dim": dim,
                "max_clients": self.clients,
                "min_clients": max(2, self.clients - self.attackers),
                "deadline_s": UPLOADS_LIMIT_S,
                **self.options,
                **(exchange or {}),
            }
        )


@dataclass(frozen=True)
class Design:
    """The parameters of an experiment: these defaults, its own, and the user's choices."""

    data: Dataset = field(repr=False)
    data_digest: str
    extensions: Mapping[str, str]
    model: str
    split: str = "iid"
    clients: int = 3
    # per client; None: all there are
    images: int | None = None
    rounds: int = 20
    seeds: Sequence[int] = (1,)
    methods: Sequence[str] = ("mean", "radix", "bucketed", "bucketed-paper")
    attacks: Sequence[str] = ("none",)
    attackers: int = 1
    # the first round of an attack
    first: int = 3
    # through S0 and S1, or in the clear
    secure: bool = True
    # of rounds that exchange predictions: the public images, and the training before the first one
    samples: int = 500
    warm_up: int = 5
    # of every network, instead of its own
    rate: float | None = None
    epochs: int | None = None
    # of those of the data set, drawn at random; None: all
    test_images: int | None = None
    optimiser: Optimiser = field(default=NoOptimiser())
    # of experiments on groups of clients: how many groups, and of which dimensions
    groups: Sequence[int] = ()
    dims: Sequence[int] = ()

    def run(
        self,
        seed: int,
        method: str,
        attack: str = "none",
        policy: RangePolicy | None = None,
        networks: tuple[str, ...] = (),
    ) -> Run:
        """Return one run of this design.

        `policy` is by default the method's own, and `networks` of clients that keep theirs are by
        default the design's.
        """
        secure = aggregation.SECURE.get(method)
        predictions = aggregation.is_of_predictions(method)
        recipes = {
            name: {key: getattr(self.network(name), key) for key in ("batch", "rate", "epochs")}
            for name in networks or (self.model,)
        }
        return Run(
            data=self.data.name,
            data_digest=self.data_digest,
            model=self.model,
            recipe=recipes if networks else recipes[self.model],
            split=self.split,
            clients=self.clients,
            images=self.images,
            seed=seed,
            method=method,
            options=secure.options_for(self.attackers, self.clients) if secure else {},
            policy=policy or (secure.policy if secure else aggregation.CONSTANT),
            attack=attack,
            attackers=self.attackers,
            first=self.first,
            secure=self.secure and secure is not None,
            extensions=self.extensions,
            optimiser=NoOptimiser() if predictions else self.optimiser,
            collaboration=Collaboration(networks or (self.model,), self.samples, self.warm_up)
            if predictions
            else None,
        )

    def network(self, name: str) -> Model:
        chosen: dict[str, Any] = {"rate": self.rate, "epochs": self.epochs}
        return replace(
            models.MODELS[name],
            **{option: value for option, value in chosen.items() if value is not None},
        )

    def stem(self, experiment: str) -> str:
        """Return the stem of the names of the files with the results."""
        parts = [experiment, self.model]
        if self.split != "iid":
            parts.append(self.split.replace(":", "-"))
        if self.optimiser != NoOptimiser():
            parts.append(self.optimiser.name)
        return "-".join(parts)

    @property
    def subject(self) -> str:
        """Return the subject of the experiment, for the titles of plots."""
        each = self.images or len(self.data.labels) // self.clients
        where = "through S0 and S1" if self.secure else "in the clear"
        return (
            f"{self.model} on {self.data.name}, {self.clients} clients of {each:,} images, "
            f"medians {where}"
        )


@dataclass(frozen=True)
class ServerCost:
    """The cost of a round as S0 reports it."""

    seconds: float
    ots: int
    bytes_s0_to_s1: int
    bytes_s1_to_s0: int


@dataclass(frozen=True)
class Figures:
    """The measures of one round."""

    # of the new model on the test images
    accuracy: float
    # SHA-256 of the new model's float32 values, the same wherever and however it was computed
    model: str
    # of the whole round: training, attacking, combining and testing
    seconds: float
    # None for rounds in the clear
    cost: ServerCost | None
    # the accuracy of each network, where clients keep networks of their own
    networks: Mapping[str, float] = field(default_factory=dict)
    # the AUC of membership inference on an update and on the aggregate, if it is measured
    inference: Mapping[str, float] = field(default_factory=dict)

    def value(self, shown: str = "") -> float:
        """Return the accuracy, of one network if it is named, or what inference on it reaches."""
        return {"": self.accuracy, **self.networks, **self.inference}[shown]


@dataclass(frozen=True)
class RunRecord:
    """The measured rounds of a run.

    A run that diverged ends in the round in which a value was no longer a number.
    """

    rounds: list[Figures] = field(default_factory=list)
    diverged: bool = False

    def accuracies(self, rounds: int, classes: int, shown: str = "") -> list[float]:
        """Return the accuracies of so many rounds; after a divergence, it is that of guessing.

        They are what `Figures.value` gives for `shown`.
        """
        known = [figures.value(shown) for figures in self.rounds[:rounds]]
        return known + [1 / classes] * (rounds - len(known))

    def covers(self, rounds: int) -> bool:
        """Return whether nothing is left to do of so many rounds."""
        return self.diverged or len(self.rounds) >= rounds

    def save(self, folder: Path, run: Run) -> None:
        report.write_json(folder / f"{run.run_id}.json", {"run": run.to_dict()} | asdict(self))

    @classmethod
    def load(cls, folder: Path, run: Run) -> "RunRecord | None":
        """Return the record of a finished run, or None if there is none.

        Raises ConfigError if the file is damaged or of another run.
        """
        path = folder / f"{run.run_id}.json"
        if not path.exists():
            return None
        try:
            values = json.loads(path.read_text("utf-8"))
            # as it is after it has been written and read
            if values["run"] != json.loads(json.dumps(run.to_dict())):
                raise ConfigError(
                    f"a file of another run: {path}; move it away, or choose another folder "
                    "with --out"
                )
            rounds = [
                Figures(**(one | {"cost": ServerCost(**one["cost"]) if one["cost"] else None}))
                for one in values["rounds"]
            ]
            return cls(rounds, bool(values["diverged"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"a damaged file: {path}; remove it, or redo everything with --fresh"
            ) from error


def fingerprint(data: Dataset) -> str:
    """Return a digest of the images: a name may stand for other data in another folder."""
    digest = hashlib.sha256()
    for array in (data.images, data.labels, data.test_images, data.test_labels):
        digest.update(repr(array.shape).encode())
        digest.update(array.data)
    return digest.hexdigest()[:16]
