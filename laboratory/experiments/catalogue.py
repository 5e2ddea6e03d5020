"""The experiments by name, each with its runs and the way they are drawn."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from securemedian.laboratory import models, plots
from securemedian.laboratory.attacks import ATTACKS, Optimised
from securemedian.laboratory.data import (
    SOURCES,
    Dataset,
    draw_public,
    with_fewer_tests,
    without,
)
from securemedian.laboratory.experiments import (
    aggregation,
    hospitals,
    leak,
    membership,
    mixture,
    rotated,
    uneven,
)
from securemedian.laboratory.experiments.runs import Collaboration, Run, fingerprint
from securemedian.laboratory.models import Model
from securemedian.laboratory.plots import Grid, Line, Panel
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.optimiser import NoOptimiser, Optimiser
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import POLICIES
from securemedian.mpc.rounds.ranges.uniform import UniformRange

# ByzFL's levels of heterogeneity
SIMILAR = ("similarity:1", "similarity:0.66", "similarity:0.33", "similarity:0")
# the values of p0 = p1 in the experiment on the bucket range
ORDERS = (0.001, 0.01, 0.1, 1.0, 10.0)
# the value of p0 = p1 in every other experiment
USUAL = 0.1
# what experiments measure, and what those on membership inference do
ACCURACY, INFERENCE = "test accuracy", "AUC of the attack"
# two networks for each data set, which differ in kind
MIXED = {
    "mnist": ("mlp", "cnn-mnist"),
    "cifar10": ("cnn-cifar10-small", "mlp-cifar10"),
    "digits": ("digits", "digits-linear"),
}


@dataclass(frozen=True)
class Design:
    """What an experiment is carried out with: these defaults, its own, and the user's choices."""

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
    # of every network, in place of its own
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
        """What the experiment is about, for the titles of plots."""
        each = self.images or len(self.data.labels) // self.clients
        where = "through S0 and S1" if self.secure else "in the clear"
        return (
            f"{self.model} on {self.data.name}, {self.clients} clients of {each:,} images, "
            f"medians {where}"
        )


@dataclass(frozen=True)
class Curve:
    """Runs that differ only in their seeds, with the panel and the line that show them."""

    panel: str
    line: str
    runs: Sequence[Run]
    # the value of the number that the experiment varies, if it varies one
    x: float | None = None
    # what is shown of each round (`Figures.value`)
    shown: str = ""


@dataclass(frozen=True)
class CurveResult:
    """A curve with the accuracy, in percent, of each run after each round: [seed][round]."""

    curve: Curve
    accuracies: Sequence[Sequence[float]]

    @property
    def final(self) -> list[float]:
        return [one[-1] for one in self.accuracies]

    @property
    def final_mean(self) -> float:
        return sum(self.final) / len(self.final)

    def line(self, label: str) -> Line:
        """Return accuracy by round: the mean over the seeds, with a band from least to most."""
        by_round = list(zip(*self.accuracies, strict=True))
        return Line.over(label, range(1, len(by_round) + 1), by_round)


Draw = Callable[[Path, str, Design, Sequence[CurveResult], str], Path]


@dataclass(frozen=True)
class Analysis:
    """What is found out and drawn in place of runs."""

    # a row per measurement, for the table and the JSON
    find: Callable[[Design], list[dict[str, Any]]]
    draw: Callable[[Path, str, Design, Sequence[dict[str, Any]]], Path]


# The curves of an experiment


def _by_attack(design: Design) -> list[Curve]:
    return [
        Curve(
            _panel(design, attack),
            aggregation.label(method),
            [design.run(seed, method, attack) for seed in design.seeds],
        )
        for attack in design.attacks
        for method in design.methods
    ]


def _policy(name: str, p: float) -> RangePolicy:
    """Return a policy with p0 = p1 = p, or p0 alone where it has no decay."""
    return POLICIES[name](**dict.fromkeys(options_of(POLICIES[name]), p))


def _by_range(design: Design) -> list[Curve]:
    """Return one curve per policy of uniform buckets and order of magnitude of p0 = p1."""
    if (
        len(design.methods) != 1
        or len(design.attacks) != 1
        or not aggregation.has_range(design.methods[0])
    ):
        known = ", ".join(filter(aggregation.has_range, aggregation.names()))
        raise ConfigError(
            f"an experiment on the bucket range is of one method with such a range ({known}) "
            "and of one attack or none"
        )
    (method,), (attack,) = design.methods, design.attacks
    return [
        Curve(
            "",
            policy,
            [design.run(seed, method, attack, _policy(policy, p)) for seed in design.seeds],
            x=p,
        )
        for policy, cls in POLICIES.items()
        if issubclass(cls, UniformRange)
        for p in ORDERS
    ]


def _by_heterogeneity(design: Design) -> list[Curve]:
    """Return one panel per level of heterogeneity, and one curve per method, attack and attackers.

    Without a split of the user's own, the levels are ByzFL's, from the same data to disjoint ones.
    """
    splits = SIMILAR if design.split == "iid" else (design.split,)
    return [
        Curve(
            split,
            aggregation.label(method),
            [at.run(seed, method, attack) for seed in design.seeds],
            x=at.attackers,
        )
        for split in splits
        for at in (
            replace(design, split=split, attackers=few) for few in range(1, design.attackers + 1)
        )
        for method in design.methods
        for attack in design.attacks
    ]


def _worst(results: Sequence[CurveResult]) -> list[CurveResult]:
    """Return, of curves that differ in the attack alone, the one whose last accuracy is least."""
    worst: dict[tuple[Any, ...], CurveResult] = {}
    for result in results:
        key = result.curve.panel, result.curve.line, result.curve.x
        if key not in worst or result.final_mean < worst[key].final_mean:
            worst[key] = result
    return list(worst.values())


def _rows_of_worst(results: Sequence[CurveResult]) -> list[dict[str, Any]]:
    """Return a row per level of heterogeneity and method: by attackers, the worst accuracy."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in _worst(results):
        curve = result.curve
        row = rows.setdefault(
            (curve.panel, curve.line), {"data": curve.panel, "method": curve.line}
        )
        row[f"f = {curve.x:g}"] = f"{result.final_mean:.1f} {curve.runs[0].attack}"
    return list(rows.values())


def _by_network(design: Design) -> list[Curve]:
    """Return one panel per network: of all clients in a mixed collaboration, in one of its kind.

    The third line is of clients that train alone.
    """
    if (networks := MIXED.get(design.data.name)) is None:
        raise ConfigError(
            f"there are no two networks for {design.data.name}: take one of {', '.join(MIXED)}"
        )
    if len(design.attacks) != 1:
        raise ConfigError("an experiment on different networks is of one attack or none")

    def curve(network: str, line: str, method: str, *kinds: str) -> Curve:
        runs = [
            design.run(seed, method, design.attacks[0], networks=kinds) for seed in design.seeds
        ]
        return Curve(network, line, runs, shown=network)

    curves = []
    for network in networks:
        for method in design.methods:
            if not aggregation.is_of_predictions(method):
                raise ConfigError(f"{method} has one common model, and not different networks")
            if method == aggregation.ALONE:
                curves.append(curve(network, "alone", method, network))
                continue
            curves.append(curve(network, f"{method}, its own kind", method, network))
            curves.append(curve(network, f"{method}, mixed", method, *networks))
    return curves


def _by_inference(design: Design) -> list[Curve]:
    """Return one panel for inference on a client's update, and one for that on the aggregate."""
    if design.attackers or aggregation.ALONE in design.methods:
        raise ConfigError(
            "membership inference is measured where all clients are honest and exchange something: "
            f"take --attackers 0, and not {aggregation.ALONE}"
        )
    runs = {
        method: [replace(design.run(seed, method), inference=True) for seed in design.seeds]
        for method in design.methods
    }
    return [
        Curve(f"on {what}", aggregation.label(method), runs[method], shown=shown)
        for shown, what in (
            (membership.UPDATE, "a client's update"),
            (membership.AGGREGATE, "the aggregate"),
        )
        for method in design.methods
    ]


def _panel(design: Design, attack: str) -> str:
    if attack == "none" or not design.attackers:
        return "no fault"
    who = "one client" if design.attackers == 1 else f"{design.attackers} clients"
    return f"{attack}: {who} from round {design.first}"


# How they are drawn


def _by_round(
    stem: Path, figure: str, design: Design, results: Sequence[CurveResult], measured: str
) -> Path:
    panels = [
        Panel(
            name,
            "round",
            f"{measured} (%)",
            [result.line(result.curve.line) for result in results if result.curve.panel == name],
        )
        for name in dict.fromkeys(result.curve.panel for result in results)
    ]
    return plots.save(stem, f"{figure}: {design.subject}", panels)


def _accuracy_by_attackers(
    stem: Path, figure: str, design: Design, results: Sequence[CurveResult], measured: str
) -> Path:
    """Draw a panel per level of heterogeneity; a point is the accuracy under the worst attack."""
    panels = []
    for level in dict.fromkeys(result.curve.panel for result in results):
        own = [result for result in _worst(results) if result.curve.panel == level]
        lines = []
        for method in dict.fromkeys(result.curve.line for result in own):
            points = [result for result in own if result.curve.line == method]
            at = [result.curve.x or 0.0 for result in points]
            lines.append(Line.over(method, at, [result.final for result in points]))
        panels.append(Panel(level, "attackers", f"{measured}, worst attack (%)", lines))
    return plots.save(stem, f"{figure}: {design.subject}", panels)


def _accuracy_by_range(
    stem: Path, figure: str, design: Design, results: Sequence[CurveResult], measured: str
) -> Path:
    final = []
    for policy in dict.fromkeys(result.curve.line for result in results):
        own = [result for result in results if result.curve.line == policy]
        at = [result.curve.x or 0.0 for result in own]
        final.append(Line.over(policy, at, [result.final for result in own]))
    usual = [result.line(result.curve.line) for result in results if result.curve.x == USUAL]
    panels = [
        Panel(f"after {design.rounds} rounds", "p0 = p1", f"{measured} (%)", final, log_x=True),
        Panel(f"p0 = p1 = {USUAL}", "round", f"{measured} (%)", usual),
    ]
    return plots.save(stem, f"{figure}: {design.subject}", panels)


def _accuracy_grid(
    stem: Path, figure: str, design: Design, results: Sequence[CurveResult], measured: str
) -> Path:
    columns = list(dict.fromkeys(result.curve.runs[0].attack for result in results))
    rows = list(dict.fromkeys(result.curve.line for result in results))
    value = {
        (result.curve.line, result.curve.runs[0].attack): result.final_mean for result in results
    }
    x_label = f"attack by {design.attackers} of {design.clients} clients from round {design.first}"
    values = [[value[row, column] for column in columns] for row in rows]
    grid = Grid(x_label, "method", columns, rows, values)
    title = (
        f"{figure}: {measured} (%) after {design.rounds} rounds, "
        f"{design.model} on {design.data.name}"
    )
    return plots.save_grid(stem, title, grid)


_FAULTS = ("bitflip", "labelflip", "gaussian")
_SIGN_FLIPS = ("sign-flip-10", "sign-flip-100")


@dataclass(frozen=True)
class Experiment:
    """An experiment, with its defaults where they are not those of every design."""

    name: str
    figure: str
    # the data set
    needs: str
    # rough, with the defaults
    duration: str
    # fields of Design; methods and attacks that are None are all the usual ones, and all
    defaults: Mapping[str, Any]
    curves: Callable[[Design], list[Curve]] = _by_attack
    draw: Draw = _by_round
    # what its curves show, in percent
    measured: str = ACCURACY
    # the number that varies, if one does
    varied: str = ""
    # the rows of its table, where they are not those of the curves
    rows: Callable[[Sequence[CurveResult]], list[dict[str, Any]]] | None = None
    # in place of runs
    analysis: Analysis | None = None
    # that it takes unless another is named
    dataset: str | None = None

    def default(self, name: str) -> Any:
        """Return the default of a field of Design, which may be None for the model."""
        value = self.defaults.get(name, getattr(Design, name, None))
        if value is None and name == "methods":
            return aggregation.usual()
        if value is None and name == "attacks":
            return [name for name, attack in ATTACKS.items() if not issubclass(attack, Optimised)]
        return value


def design(
    experiment: Experiment, data: Dataset, extensions: Mapping[str, str], chosen: Mapping[str, Any]
) -> Design:
    """Return the design of an experiment: its defaults, with what was `chosen` instead.

    Raises ConfigError for choices that do not fit together.
    """
    values: dict[str, Any] = {name: experiment.default(name) for name in experiment.defaults}
    values |= {name: value for name, value in chosen.items() if value is not None}
    if values.get("model") is None:
        values["model"] = SOURCES[data.name].model
    for name in ("seeds", "methods", "attacks"):
        # a value that is named twice counts once
        values[name] = list(dict.fromkeys(values.get(name) or experiment.default(name)))
    if (tested := values.get("test_images")) is not None:
        data = with_fewer_tests(data, tested)
    made = Design(data=data, data_digest=fingerprint(data), extensions=extensions, **values)
    if made.images is not None and chosen.get("images") is None:
        public = made.samples if any(map(aggregation.is_of_predictions, made.methods)) else 0
        most = max(1, (len(data.labels) - public) // max(1, made.clients))
        made = replace(made, images=min(made.images, most))
    _check(experiment, made)
    return made


def _check(experiment: Experiment, design: Design) -> None:
    for what, asked, known in (
        ("model", [design.model], models.MODELS),
        ("attack", design.attacks, ATTACKS),
    ):
        for name in asked:
            if name not in known:
                raise ConfigError(f"there is no {what} {name!r}: choose from {', '.join(known)}")
    try:
        models.check_fits(models.MODELS[design.model], design.data)
    except ConfigError as error:
        raise ConfigError(
            f"{experiment.name} needs {experiment.needs}, whose folder --data names: {error}"
        ) from error
    if design.rate is not None and not 0 < design.rate < math.inf:
        raise ConfigError(f"--rate must be above 0, not {design.rate}")
    for flag, value, least in (
        ("--rounds", design.rounds, 1),
        ("--epochs", 1 if design.epochs is None else design.epochs, 1),
        ("--from", design.first, 1),
        ("--clients", design.clients, 2),
        ("--warm-up", design.warm_up, 0),
        ("--seeds", min(design.seeds), 0),
    ):
        if value < least:
            raise ConfigError(f"{flag} must be {least} or more, not {value}")
    if not design.attackers and set(design.attacks) != {"none"}:
        raise ConfigError("an attack needs attackers: give their number with --attackers")
    for seed in design.seeds:
        own = design.data
        if any(map(aggregation.is_of_predictions, design.methods)):
            own = without(own, draw_public(own, design.samples, seed))
        own.parts(design.clients, seed, design.split, design.images)
    if not 0 <= design.attackers < design.clients:
        raise ConfigError(
            f"--attackers must be from 0 to {design.clients - 1}, not {design.attackers}: "
            "at least one client must be honest"
        )
    for method in design.methods:
        aggregation.check(method, design.clients, design.attackers)
        if method in aggregation.SECURE:
            design.run(design.seeds[0], method).params(dim=1)


_FIG4: dict[str, Any] = {"seeds": (1, 2, 3), "attacks": (*_FAULTS, "negate")}
_SHARE: dict[str, Any] = {"clients": 60, "images": 100, "attackers": 3, "first": 1, "secure": False}
_CRONUS: dict[str, Any] = {"images": 300, "samples": 1000, "attackers": 0}
_SHARE_SIZES = [name for name in aggregation.SHARE_BY_SIZE if "krum" not in name]
_PREDICTED = ("predictions-mean", "predictions-spectral", "cronus", "cronus-bucketed")

EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment("fig2", "Figure 2", "MNIST or CIFAR-10", "8 min", {"attackers": 0}),
        Experiment("fig4", "Figure 4", "MNIST", "40 min", _FIG4),
        Experiment(
            "fig5", "Figure 5", "MNIST", "a day", _FIG4 | {"model": "cnn-mnist", "attacks": _FAULTS}
        ),
        Experiment(
            "fig6",
            "Figure 6",
            "CIFAR-10",
            "a day",
            _FIG4 | {"model": "cnn-cifar10", "attacks": _FAULTS},
        ),
        Experiment(
            "fig13",
            "Figure 13",
            "MNIST",
            "5 min",
            {"images": 6000, "rounds": 8, "methods": ("bucketed-paper",), "attackers": 0},
            _by_range,
            _accuracy_by_range,
            varied="p0 = p1",
        ),
        Experiment(
            "ranges",
            "Ranges",
            "MNIST, CIFAR-10 or --dataset clinic",
            "10 min",
            {
                "images": 600,
                "rounds": 8,
                "methods": ("radix", *filter(aggregation.has_range, aggregation.SECURE)),
                "attacks": ("none", *_FAULTS, "negate", "lie", "fall-of-empires", "sign-flip-10"),
                "first": 1,
                "secure": False,
            },
        ),
        Experiment(
            "ifca",
            "IFCA, Figure 1",
            "none",
            "10 min",
            {
                "clients": 2,
                "images": 1,
                "rounds": 100,
                "seeds": (1, 2, 3),
                "methods": ("mean",),
                "attackers": 0,
                "groups": (2, 5, 10, 15),
                "dims": (20, 50, 100, 200, 500),
            },
            analysis=Analysis(mixture.by_dimension, mixture.draw),
        ),
        Experiment(
            "ifca-rotated",
            "IFCA on rotated images",
            "MNIST",
            "10 min",
            {"clients": 20, "images": 100, "methods": ("mean",), "attackers": 2, "groups": (4,)},
            analysis=Analysis(rotated.by_round, rotated.draw),
        ),
        Experiment(
            "share",
            "SHARE, Figures 2 to 5 and 8",
            "MNIST, CIFAR-10 or Shakespeare with --split blocks",
            "2 h",
            _SHARE
            | {
                "methods": ("mean", *_SHARE_SIZES),
                "attacks": ("none", *_SIGN_FLIPS, "fall-of-empires", "labelflip"),
            },
        ),
        Experiment(
            "share-reclusterings",
            "SHARE, Figures 6 and 7",
            "MNIST with --split labels:2 or labels:5",
            "1 h",
            _SHARE
            | {
                "methods": ("mean", *aggregation.SHARE_BY_RECLUSTERINGS),
                "attacks": ("none", "fall-of-empires"),
            },
        ),
        Experiment(
            "share-fixed",
            "SHARE, Figure 9",
            "MNIST with --split labels:5",
            "1 h",
            _SHARE
            | {
                "methods": (
                    "mean",
                    *aggregation.FIXED,
                    "share-trimmed-mean-m5-r4",
                    "share-trimmed-mean-m3-r4",
                ),
                "attacks": ("none", "sign-flip-10"),
            },
        ),
        Experiment(
            "share-leak",
            "SHARE, Appendix C.3",
            "any",
            "1 min",
            {"clients": 60, "images": 20, "rounds": 1, "methods": ("mean",), "attackers": 0},
            analysis=Analysis(leak.by_reclusterings, leak.draw),
        ),
        Experiment(
            "hospitals",
            "Four hospitals",
            "none",
            "30 min",
            {
                "clients": len(hospitals.HOSPITALS),
                "rounds": 50,
                "seeds": range(1, 11),
                "methods": ("mean", "radix", "bucketed", *aggregation.ROBUST),
                "attacks": ("sign-flip-30", "labelflip"),
                "first": 1,
                "secure": False,
            },
            analysis=Analysis(hospitals.by_fault, hospitals.draw),
            dataset="heart",
        ),
        Experiment(
            "uneven",
            "Uneven sites",
            "none, or --dataset digits",
            "10 min",
            {
                "clients": len(uneven.SITES),
                "rounds": 6,
                "seeds": (1, 2, 3),
                "methods": tuple(uneven.RULES),
                "secure": False,
            },
            analysis=Analysis(uneven.by_method, uneven.draw),
            dataset="clinic",
        ),
        Experiment(
            "attacks",
            "Attacks",
            "MNIST",
            "30 min",
            {
                "clients": 11,
                "images": 1500,
                "rounds": 10,
                "methods": None,
                "attacks": None,
                "attackers": 2,
                "first": 1,
            },
            draw=_accuracy_grid,
        ),
        Experiment(
            "byzfl",
            "ByzFL's protocol",
            "MNIST",
            "2 h",
            {
                "clients": 10,
                "images": 200,
                "rounds": 12,
                "methods": ("mean", "radix", "bucketed", *aggregation.ROBUST),
                "attacks": ("labelflip", "lie-optimised", "fall-optimised"),
                "attackers": 4,
                "first": 1,
                "secure": False,
            },
            _by_heterogeneity,
            _accuracy_by_attackers,
            varied="attackers",
            rows=_rows_of_worst,
        ),
        Experiment(
            "cronus",
            "Cronus",
            "MNIST or CIFAR-10",
            "20 min",
            _CRONUS
            | {
                "clients": 11,
                "rounds": 5,
                "methods": ("mean", *_PREDICTED),
                "attacks": None,
                "attackers": 2,
                "first": 1,
            },
            draw=_accuracy_grid,
        ),
        Experiment(
            "cronus-heterogeneous",
            "Cronus, different networks",
            "MNIST or CIFAR-10",
            "20 min",
            _CRONUS | {"clients": 6, "rounds": 6, "methods": ("cronus", "alone")},
            _by_network,
        ),
        Experiment(
            "cronus-membership",
            "Cronus, membership inference",
            "MNIST or CIFAR-10",
            "5 min",
            _CRONUS
            | {
                "clients": 4,
                "images": 200,
                "rounds": 8,
                "methods": ("mean", "radix", "predictions-mean", "cronus"),
                "secure": False,
            },
            _by_inference,
            measured=INFERENCE,
        ),
    )
}
