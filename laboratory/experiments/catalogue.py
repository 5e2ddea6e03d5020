"""The experiments by name: what each is carried out with, its runs, and its picture."""

import math
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from securemedian.laboratory import models
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
    mixture,
    players,
    rotated,
    uneven,
)
from securemedian.laboratory.experiments.runs import Design, Run, fingerprint
from securemedian.laboratory.plots import Grid, Line, Panel, Picture
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import options_of
from securemedian.mpc.rounds.ranges.registry import POLICIES
from securemedian.mpc.rounds.ranges.uniform import UniformRange

# ByzFL's levels of heterogeneity
SIMILAR = ("similarity:1", "similarity:0.66", "similarity:0.33", "similarity:0")
# the values of p0 = p1 in the experiment on the bucket range, and that of every other experiment
ORDERS, USUAL = (0.001, 0.01, 0.1, 1.0, 10.0), 0.1
# two networks for each data set, which differ in kind
MIXED = {
    "mnist": ("mlp", "cnn-mnist"),
    "cifar10": ("cnn-cifar10-small", "mlp-cifar10"),
    "digits": ("digits", "digits-linear"),
}


@dataclass(frozen=True)
class Curve:
    """Runs that differ only in their seeds, with the panel and the line that show them."""

    panel: str
    line: str
    runs: Sequence[Run]
    # the value of the number that the experiment varies, if it varies one
    x: float | None = None
    # the value that is shown of each round (`Figures.value`)
    shown: str = ""

    @classmethod
    def of(
        cls,
        design: Design,
        panel: str,
        line: str,
        method: str,
        attack: str = "none",
        x: float | None = None,
        shown: str = "",
        **special: Any,
    ) -> "Curve":
        """Return the curve of a design's runs with a method, `special` as in `Design.run`."""
        runs = [design.run(seed, method, attack, **special) for seed in design.seeds]
        return cls(panel, line, runs, x, shown)


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

    @property
    def line(self) -> Line:
        """Return accuracy by round: the mean over the seeds, with a band from least to most."""
        by_round = list(zip(*self.accuracies, strict=True))
        return Line.over(self.curve.line, range(1, len(by_round) + 1), by_round)


Results = Sequence[CurveResult]


def _grouped(results: Results, by: str) -> dict[str, list[CurveResult]]:
    """Return results by their curves' `panel` or `line`, in the order in which these come."""
    found: dict[str, list[CurveResult]] = {}
    for result in results:
        found.setdefault(getattr(result.curve, by), []).append(result)
    return found


def _final(results: Results) -> list[Line]:
    """Return a line per curve: what is reached after the last round, by what varies."""
    return [
        Line.over(name, [one.curve.x or 0.0 for one in own], [one.final for one in own])
        for name, own in _grouped(results, "line").items()
    ]


# One curve per method and attack, in a panel per attack or in a grid


def _by_attack(design: Design) -> list[Curve]:
    return [
        Curve.of(design, _panel(design, attack), aggregation.label(method), method, attack)
        for attack in design.attacks
        for method in design.methods
    ]


def _panel(design: Design, attack: str) -> str:
    if attack == "none" or not design.attackers:
        return "no fault"
    who = "one client" if design.attackers == 1 else f"{design.attackers} clients"
    return f"{attack}: {who} from round {design.first}"


def _by_round(design: Design, results: Results, measured: str) -> Picture:
    return [
        Panel(name, "round", f"{measured} (%)", [one.line for one in own])
        for name, own in _grouped(results, "panel").items()
    ]


def _grid(design: Design, results: Results, measured: str) -> Picture:
    value = {
        (result.curve.line, result.curve.runs[0].attack): result.final_mean for result in results
    }
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*value, strict=True))
    values = [[value[row, column] for column in columns] for row in rows]
    x_label = f"attack by {design.attackers} of {design.clients} clients from round {design.first}"
    return Grid(x_label, "method", columns, rows, values)


# One curve per policy of uniform buckets and order of magnitude of p0 = p1


def _by_range(design: Design) -> list[Curve]:
    ranged = list(filter(aggregation.has_range, aggregation.names()))
    if len(design.methods) != 1 or len(design.attacks) != 1 or design.methods[0] not in ranged:
        raise ConfigError(
            "an experiment on the bucket range is of one method with such a range and of one "
            f"attack or none: {', '.join([*design.methods, *design.attacks])}; take a method of "
            f"{', '.join(ranged)}"
        )
    (method,), (attack,) = design.methods, design.attacks
    # p0 alone where the policy has no decay
    return [
        Curve.of(
            design, "", name, method, attack, p, policy=cls(**dict.fromkeys(options_of(cls), p))
        )
        for name, cls in POLICIES.items()
        if issubclass(cls, UniformRange)
        for p in ORDERS
    ]


def _by_p(design: Design, results: Results, measured: str) -> Picture:
    usual = [result.line for result in results if result.curve.x == USUAL]
    title, label = f"after {design.rounds} rounds", f"{measured} (%)"
    return [
        Panel(title, "p0 = p1", label, _final(results), log_x=True),
        Panel(f"p0 = p1 = {USUAL}", "round", label, usual),
    ]


# One panel per level of heterogeneity, and one curve per method, attack and number of attackers


def _by_heterogeneity(design: Design) -> list[Curve]:
    """Return the curves; without a split of the user's own, the levels are ByzFL's."""
    return [
        Curve.of(at, at.split, aggregation.label(method), method, attack, at.attackers)
        for split in (SIMILAR if design.split == "iid" else (design.split,))
        for few in range(1, design.attackers + 1)
        for at in [replace(design, split=split, attackers=few)]
        for method in design.methods
        for attack in design.attacks
    ]


def _worst(results: Results) -> list[CurveResult]:
    """Return, of curves that differ in the attack alone, the one whose last accuracy is least."""
    worst: dict[tuple[Any, ...], CurveResult] = {}
    for result in results:
        key = result.curve.panel, result.curve.line, result.curve.x
        if key not in worst or result.final_mean < worst[key].final_mean:
            worst[key] = result
    return list(worst.values())


def _rows_of_worst(results: Results) -> list[dict[str, Any]]:
    """Return a row per level of heterogeneity and method: by attackers, the worst accuracy."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for result in _worst(results):
        curve = result.curve
        row = rows.setdefault(
            (curve.panel, curve.line), {"data": curve.panel, "method": curve.line}
        )
        row[f"f = {curve.x:g}"] = f"{result.final_mean:.1f} {curve.runs[0].attack}"
    return list(rows.values())


def _by_attackers(design: Design, results: Results, measured: str) -> Picture:
    label = f"{measured}, worst attack (%)"
    return [
        Panel(level, "attackers", label, _final(own))
        for level, own in _grouped(_worst(results), "panel").items()
    ]


# One panel per network: all clients in a mixed collaboration, in one of its kind, and alone


def _by_network(design: Design) -> list[Curve]:
    if (networks := MIXED.get(design.data.name)) is None:
        raise ConfigError(
            f"no two networks for this data set: {design.data.name}; take one of {', '.join(MIXED)}"
        )
    if len(design.attacks) != 1:
        raise ConfigError(
            f"an experiment on different networks is of one attack or none: {design.attacks}; "
            "name one"
        )
    for method in design.methods:
        if not aggregation.is_of_predictions(method):
            raise ConfigError(
                f"one common model, and not different networks: {method}; choose another method"
            )
    (attack,) = design.attacks
    return [
        Curve.of(design, one, line, method, attack, shown=one, networks=each)
        for one in networks
        for method in design.methods
        for line, each in (
            {"alone": (one,)}
            if method == aggregation.ALONE
            else {f"{method}, its own kind": (one,), f"{method}, mixed": networks}
        ).items()
    ]


# One panel for inference on a client's update, and one for that on the aggregate


def _by_inference(design: Design) -> list[Curve]:
    if design.attackers or aggregation.ALONE in design.methods:
        raise ConfigError(
            "membership inference is measured where all clients are honest and exchange "
            f"something: {design.attackers} attackers; take --attackers 0, and not "
            f"{aggregation.ALONE}"
        )
    shown = {players.UPDATE: "on a client's update", players.AGGREGATE: "on the aggregate"}
    found = [
        Curve.of(design, panel, aggregation.label(method), method, shown=name)
        for name, panel in shown.items()
        for method in design.methods
    ]
    return [replace(one, runs=[replace(run, inference=True) for run in one.runs]) for one in found]


@dataclass(frozen=True)
class Shape:
    """The runs of an experiment as curves, and how they are shown."""

    curves: Callable[[Design], list[Curve]] = _by_attack
    picture: Callable[[Design, Results, str], Picture] = _by_round
    # the measure of its curves, in percent
    measured: str = "test accuracy"
    # the number that varies, if one does
    varied: str = ""
    # the rows of its table, where they are not those of the curves
    rows: Callable[[Results], list[dict[str, Any]]] | None = None
    # whether a curve can be compared with that of the exact median
    exact: bool = True


_IN_GRID = Shape(picture=_grid)
_BY_RANGE = Shape(_by_range, _by_p, varied="p0 = p1")
_BY_WORST = Shape(_by_heterogeneity, _by_attackers, varied="attackers", rows=_rows_of_worst)
_BY_NETWORK = Shape(_by_network)
_BY_INFERENCE = Shape(_by_inference, measured="AUC of the attack", exact=False)


@dataclass(frozen=True)
class Experiment:
    """An experiment, with its defaults where they are not those of every design."""

    name: str
    figure: str
    # the data set
    needs: str
    # rough, with the defaults
    duration: str
    shape: Shape = field(default=Shape())
    # `find` and `picture` of a module, instead of runs
    analysis: Any = None
    # the data set unless the user names another one
    dataset: str | None = None
    # fields of Design; methods and attacks that are None are all the usual ones, and all
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def by(self, *parts: Mapping[str, Any], **own: Any) -> "Experiment":
        """Return the experiment with these defaults, of which the later ones count."""
        return replace(self, defaults=dict(ChainMap(own, *reversed(parts))))

    def default(self, name: str) -> Any:
        """Return the default of a field of Design, which may be None for the model."""
        value = self.defaults.get(name, getattr(Design, name, None))
        if value is None and name == "methods":
            return aggregation.usual()
        if value is None and name == "attacks":
            return [name for name, attack in ATTACKS.items() if not issubclass(attack, Optimised)]
        return value

    def design(
        self, data: Dataset, extensions: Mapping[str, str], chosen: Mapping[str, Any]
    ) -> Design:
        """Return the design: the defaults, with what was `chosen` instead.

        Raises ConfigError for choices that do not fit together.
        """
        values: dict[str, Any] = {name: self.default(name) for name in self.defaults}
        values |= {name: value for name, value in chosen.items() if value is not None}
        if values.get("model") is None:
            values["model"] = SOURCES[data.name].model
        for name in ("seeds", "methods", "attacks"):
            # a value that is named twice counts once
            values[name] = list(dict.fromkeys(values.get(name) or self.default(name)))
        if (tested := values.get("test_images")) is not None:
            data = with_fewer_tests(data, tested)
        made = Design(data=data, data_digest=fingerprint(data), extensions=extensions, **values)
        if made.images is not None and chosen.get("images") is None:
            public = made.samples if any(map(aggregation.is_of_predictions, made.methods)) else 0
            most = max(1, (len(data.labels) - public) // max(1, made.clients))
            made = replace(made, images=min(made.images, most))
        self._check(made)
        return made

    def _check(self, design: Design) -> None:
        for what, asked, known in (
            ("model", [design.model], models.MODELS),
            ("attack", design.attacks, ATTACKS),
        ):
            if unknown := [name for name in asked if name not in known]:
                raise ConfigError(f"unknown {what}: {unknown[0]!r}; choose from {', '.join(known)}")
        try:
            models.check_fits(models.MODELS[design.model], design.data)
        except ConfigError as error:
            raise ConfigError(
                f"{self.name} needs {self.needs}, whose folder --data names: {error}"
            ) from error
        rate, most = design.rate, design.clients - 1
        for flag, value, valid, advice in (
            ("--rate", rate, rate is None or 0 < rate < math.inf, "more than 0"),
            ("--rounds", design.rounds, design.rounds >= 1, "1 or more"),
            ("--epochs", design.epochs, design.epochs is None or design.epochs >= 1, "1 or more"),
            ("--from", design.first, design.first >= 1, "1 or more"),
            ("--clients", design.clients, design.clients >= 2, "2 or more"),
            ("--attackers", design.attackers, 0 <= design.attackers <= most, f"0 to {most}"),
            ("--warm-up", design.warm_up, design.warm_up >= 0, "0 or more"),
            ("--seeds", min(design.seeds), min(design.seeds) >= 0, "0 or more"),
        ):
            if not valid:
                raise ConfigError(f"invalid {flag}: {value}; give {advice}")
        if not design.attackers and set(design.attacks) != {"none"}:
            raise ConfigError(
                "an attack without attackers: --attackers 0; give their number with --attackers"
            )
        for seed in design.seeds:
            own = design.data
            if any(map(aggregation.is_of_predictions, design.methods)):
                own = without(own, draw_public(own, design.samples, seed))
            own.parts(design.clients, seed, design.split, design.images)
        for method in design.methods:
            aggregation.check(method, design.clients, design.attackers)
            if method in aggregation.SECURE:
                design.run(design.seeds[0], method).params(dim=1)


_FAULTS = ("bitflip", "labelflip", "gaussian")
_ROBUST = ("mean", "radix", "bucketed", *aggregation.ROBUST)
_PREDICTED = ("predictions-mean", "predictions-spectral", "cronus", "cronus-bucketed")
_MNIST_OR_CIFAR = "MNIST or CIFAR-10"
# defaults of several
_FIGURE: dict[str, Any] = {"seeds": (1, 2, 3), "attacks": _FAULTS}
_FIRST: dict[str, Any] = {"first": 1, "secure": False}
_SHARE = _FIRST | {"clients": 60, "images": 100, "attackers": 3}
_CRONUS: dict[str, Any] = {"images": 300, "samples": 1000, "attackers": 0}
_MEANS: dict[str, Any] = {"methods": ("mean",), "attackers": 0}

EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment("fig2", "Figure 2", _MNIST_OR_CIFAR, "8 min").by(attackers=0),
        Experiment("fig4", "Figure 4", "MNIST", "40 min").by(_FIGURE, attacks=(*_FAULTS, "negate")),
        Experiment("fig5", "Figure 5", "MNIST", "a day").by(_FIGURE, model="cnn-mnist"),
        Experiment("fig6", "Figure 6", "CIFAR-10", "a day").by(_FIGURE, model="cnn-cifar10"),
        Experiment("fig13", "Figure 13", "MNIST", "5 min", _BY_RANGE).by(
            images=6000, rounds=8, methods=("bucketed-paper",), attackers=0
        ),
        Experiment("ranges", "Ranges", "MNIST, CIFAR-10 or --dataset clinic", "10 min").by(
            _FIRST,
            images=600,
            rounds=8,
            methods=("radix", *filter(aggregation.has_range, aggregation.SECURE)),
            attacks=("none", *_FAULTS, "negate", "lie", "fall-of-empires", "sign-flip-10"),
        ),
        Experiment(
            "ifca", "IFCA, Figure 1: a mixture of linear models", "none", "10 min", analysis=mixture
        ).by(
            _MEANS | {"clients": 2, "images": 1, "rounds": 100, "seeds": (1, 2, 3)},
            groups=(2, 5, 10, 15),
            dims=(20, 50, 100, 200, 500),
        ),
        Experiment(
            "ifca-rotated", "IFCA on rotated images", "MNIST", "10 min", analysis=rotated
        ).by(_MEANS, clients=20, images=100, attackers=2, groups=(4,)),
        Experiment(
            "share",
            "SHARE, Figures 2 to 5 and 8",
            "MNIST, CIFAR-10 or Shakespeare with --split blocks",
            "2 h",
        ).by(
            _SHARE,
            methods=("mean", *(name for name in aggregation.SHARE_BY_SIZE if "krum" not in name)),
            attacks=("none", "sign-flip-10", "sign-flip-100", "fall-of-empires", "labelflip"),
        ),
        Experiment(
            "share-reclusterings",
            "SHARE, Figures 6 and 7",
            "MNIST with --split labels:2 or labels:5",
            "1 h",
        ).by(
            _SHARE,
            methods=("mean", *aggregation.SHARE_BY_RECLUSTERINGS),
            attacks=("none", "fall-of-empires"),
        ),
        Experiment("share-fixed", "SHARE, Figure 9", "MNIST with --split labels:5", "1 h").by(
            _SHARE,
            methods=(
                *("mean", *aggregation.FIXED),
                *("share-trimmed-mean-m5-r4", "share-trimmed-mean-m3-r4"),
            ),
            attacks=("none", "sign-flip-10"),
        ),
        Experiment(
            "share-leak",
            "SHARE, Appendix C.3: what opened sums of clusters tell",
            "any",
            "1 min",
            analysis=leak,
        ).by(_MEANS, clients=60, images=20, rounds=1),
        Experiment(
            "hospitals", "Four hospitals", "none", "30 min", analysis=hospitals, dataset="heart"
        ).by(
            _FIRST | {"clients": len(hospitals.HOSPITALS), "rounds": 50, "seeds": range(1, 11)},
            methods=_ROBUST,
            attacks=("sign-flip-30", "labelflip"),
        ),
        Experiment(
            "uneven",
            "Uneven sites",
            "none, or --dataset digits",
            "10 min",
            analysis=uneven,
            dataset="clinic",
        ).by(
            {"clients": len(uneven.SITES), "rounds": 6, "seeds": (1, 2, 3), "secure": False},
            methods=tuple(uneven.RULES),
        ),
        Experiment("attacks", "Attacks", "MNIST", "30 min", _IN_GRID).by(
            {"clients": 11, "images": 1500, "rounds": 10, "attackers": 2, "first": 1},
            methods=None,
            attacks=None,
        ),
        Experiment("byzfl", "ByzFL's protocol", "MNIST", "2 h", _BY_WORST).by(
            _FIRST | {"clients": 10, "images": 200, "rounds": 12, "attackers": 4},
            methods=_ROBUST,
            attacks=("labelflip", "lie-optimised", "fall-optimised"),
        ),
        Experiment("cronus", "Cronus", _MNIST_OR_CIFAR, "20 min", _IN_GRID).by(
            _CRONUS | {"clients": 11, "rounds": 5, "attackers": 2, "first": 1},
            methods=("mean", *_PREDICTED),
            attacks=None,
        ),
        Experiment(
            "cronus-heterogeneous",
            "Cronus, different networks",
            _MNIST_OR_CIFAR,
            "20 min",
            _BY_NETWORK,
        ).by(_CRONUS, clients=6, rounds=6, methods=("cronus", "alone")),
        Experiment(
            "cronus-membership",
            "Cronus, membership inference",
            _MNIST_OR_CIFAR,
            "5 min",
            _BY_INFERENCE,
        ).by(
            _CRONUS | {"clients": 4, "images": 200, "rounds": 8, "secure": False},
            methods=("mean", "radix", "predictions-mean", "cronus"),
        ),
    )
}
