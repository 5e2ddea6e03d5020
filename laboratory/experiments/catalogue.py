"""The experiments by name: what each is carried out with, its runs, and its picture."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from securemedian.mpc.rounds.ranges.base import RangePolicy
from securemedian.mpc.rounds.ranges.registry import POLICIES
from securemedian.mpc.rounds.ranges.uniform import UniformRange

# ByzFL's levels of heterogeneity
SIMILAR = ("similarity:1", "similarity:0.66", "similarity:0.33", "similarity:0")
# the values of p0 = p1 in the experiment on the bucket range, and that of every other experiment
ORDERS, USUAL = (0.001, 0.01, 0.1, 1.0, 10.0), 0.1
# the measures of experiments, and of those on membership inference
ACCURACY, INFERENCE = "test accuracy", "AUC of the attack"
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


# The curves of an experiment


def _curve(
    design: Design,
    panel: str,
    line: str,
    method: str,
    attack: str = "none",
    policy: RangePolicy | None = None,
    networks: tuple[str, ...] = (),
    x: float | None = None,
    shown: str = "",
) -> Curve:
    runs = [design.run(seed, method, attack, policy, networks) for seed in design.seeds]
    return Curve(panel, line, runs, x, shown)


def _by_attack(design: Design) -> list[Curve]:
    return [
        _curve(design, _panel(design, attack), aggregation.label(method), method, attack)
        for attack in design.attacks
        for method in design.methods
    ]


def _panel(design: Design, attack: str) -> str:
    if attack == "none" or not design.attackers:
        return "no fault"
    who = "one client" if design.attackers == 1 else f"{design.attackers} clients"
    return f"{attack}: {who} from round {design.first}"


def _by_range(design: Design) -> list[Curve]:
    """Return one curve per policy of uniform buckets and order of magnitude of p0 = p1."""
    ranged = list(filter(aggregation.has_range, aggregation.names()))
    if len(design.methods) != 1 or len(design.attacks) != 1 or design.methods[0] not in ranged:
        raise ConfigError(
            "an experiment on the bucket range is of one method with such a range and of one "
            f"attack or none: {', '.join([*design.methods, *design.attacks])}; take a method of "
            f"{', '.join(ranged)}"
        )
    (method,), (attack,) = design.methods, design.attacks
    return [
        # p0 alone where the policy has no decay
        _curve(design, "", name, method, attack, cls(**dict.fromkeys(options_of(cls), p)), x=p)
        for name, cls in POLICIES.items()
        if issubclass(cls, UniformRange)
        for p in ORDERS
    ]


def _by_heterogeneity(design: Design) -> list[Curve]:
    """Return one panel per level of heterogeneity, and one curve per method, attack and attackers.

    Without a split of the user's own, the levels are ByzFL's, from the same data to disjoint ones.
    """
    return [
        _curve(at, at.split, aggregation.label(method), method, attack, x=at.attackers)
        for at in (
            replace(design, split=split, attackers=few)
            for split in (SIMILAR if design.split == "iid" else (design.split,))
            for few in range(1, design.attackers + 1)
        )
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


def _by_network(design: Design) -> list[Curve]:
    """Return one panel per network: of all clients in a mixed collaboration, in one of its kind.

    The third line is of clients that train alone.
    """
    if (networks := MIXED.get(design.data.name)) is None:
        raise ConfigError(
            f"no two networks for this data set: {design.data.name}; take one of {', '.join(MIXED)}"
        )
    if len(design.attacks) != 1:
        raise ConfigError(
            f"an experiment on different networks is of one attack or none: {design.attacks}; "
            "name one"
        )
    (attack,), curves = design.attacks, list[Curve]()
    for network in networks:
        for method in design.methods:
            if not aggregation.is_of_predictions(method):
                raise ConfigError(
                    f"one common model, and not different networks: {method}; choose another method"
                )
            kinds: dict[str, tuple[str, ...]] = {"alone": (network,)}
            if method != aggregation.ALONE:
                kinds = {f"{method}, its own kind": (network,), f"{method}, mixed": networks}
            curves += [
                _curve(design, network, line, method, attack, networks=each, shown=network)
                for line, each in kinds.items()
            ]
    return curves


def _by_inference(design: Design) -> list[Curve]:
    """Return one panel for inference on a client's update, and one for that on the aggregate."""
    if design.attackers or aggregation.ALONE in design.methods:
        raise ConfigError(
            "membership inference is measured where all clients are honest and exchange "
            f"something: {design.attackers} attackers; take --attackers 0, and not "
            f"{aggregation.ALONE}"
        )
    shown = {players.UPDATE: "a client's update", players.AGGREGATE: "the aggregate"}
    curves = []
    for name, what in shown.items():
        for method in design.methods:
            curve = _curve(design, f"on {what}", aggregation.label(method), method, shown=name)
            runs = [replace(run, inference=True) for run in curve.runs]
            curves.append(replace(curve, runs=runs))
    return curves


# Their pictures


def _by_round(design: Design, results: Results, measured: str) -> Picture:
    names = dict.fromkeys(result.curve.panel for result in results)
    lines = {name: [one.line for one in results if one.curve.panel == name] for name in names}
    return [Panel(name, "round", f"{measured} (%)", own) for name, own in lines.items()]


def _final(results: Results) -> list[Line]:
    """Return a line per curve: what is reached after the last round, by what varies."""
    lines = []
    for name in dict.fromkeys(result.curve.line for result in results):
        own = [result for result in results if result.curve.line == name]
        at = [result.curve.x or 0.0 for result in own]
        lines.append(Line.over(name, at, [result.final for result in own]))
    return lines


def _by_attackers(design: Design, results: Results, measured: str) -> Picture:
    """Return a panel per level of heterogeneity; a point is the accuracy under the worst attack."""
    worst = _worst(results)
    return [
        Panel(
            level,
            "attackers",
            f"{measured}, worst attack (%)",
            _final([result for result in worst if result.curve.panel == level]),
        )
        for level in dict.fromkeys(result.curve.panel for result in worst)
    ]


def _by_p(design: Design, results: Results, measured: str) -> Picture:
    usual = [result.line for result in results if result.curve.x == USUAL]
    title, label = f"after {design.rounds} rounds", f"{measured} (%)"
    return [
        Panel(title, "p0 = p1", label, _final(results), log_x=True),
        Panel(f"p0 = p1 = {USUAL}", "round", label, usual),
    ]


def _grid(design: Design, results: Results, measured: str) -> Picture:
    value = {
        (result.curve.line, result.curve.runs[0].attack): result.final_mean for result in results
    }
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*value, strict=True))
    values = [[value[row, column] for column in columns] for row in rows]
    x_label = f"attack by {design.attackers} of {design.clients} clients from round {design.first}"
    return Grid(x_label, "method", columns, rows, values)


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
    picture: Callable[[Design, Results, str], Picture] = _by_round
    # the measure of its curves, in percent
    measured: str = ACCURACY
    # the number that varies, if one does
    varied: str = ""
    # the rows of its table, where they are not those of the curves
    rows: Callable[[Results], list[dict[str, Any]]] | None = None
    # `find` and `picture` of a module, instead of runs
    analysis: Any = None
    # the data set unless the user names another one
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
        if design.rate is not None and not 0 < design.rate < math.inf:
            raise ConfigError(f"invalid --rate: {design.rate}; give more than 0")
        for flag, value, least in (
            ("--rounds", design.rounds, 1),
            ("--epochs", 1 if design.epochs is None else design.epochs, 1),
            ("--from", design.first, 1),
            ("--clients", design.clients, 2),
            ("--warm-up", design.warm_up, 0),
            ("--seeds", min(design.seeds), 0),
        ):
            if value < least:
                raise ConfigError(f"invalid {flag}: {value}; give {least} or more")
        if not design.attackers and set(design.attacks) != {"none"}:
            raise ConfigError(
                "an attack without attackers: --attackers 0; give their number with --attackers"
            )
        for seed in design.seeds:
            own = design.data
            if any(map(aggregation.is_of_predictions, design.methods)):
                own = without(own, draw_public(own, design.samples, seed))
            own.parts(design.clients, seed, design.split, design.images)
        if not 0 <= design.attackers < design.clients:
            raise ConfigError(
                f"invalid --attackers: {design.attackers}; give 0 to {design.clients - 1}, for "
                "at least one client must be honest"
            )
        for method in design.methods:
            aggregation.check(method, design.clients, design.attackers)
            if method in aggregation.SECURE:
                design.run(design.seeds[0], method).params(dim=1)


_FAULTS = ("bitflip", "labelflip", "gaussian")
_SIGN_FLIPS = ("sign-flip-10", "sign-flip-100")
_FIGURE: dict[str, Any] = {"seeds": (1, 2, 3), "attacks": _FAULTS}
_FIRST: dict[str, Any] = {"first": 1, "secure": False}
_SHARE = _FIRST | {"clients": 60, "images": 100, "attackers": 3}
_CRONUS: dict[str, Any] = {"images": 300, "samples": 1000, "attackers": 0}
_MEANS: dict[str, Any] = {"methods": ("mean",), "attackers": 0}
_ROBUST = ("mean", "radix", "bucketed", *aggregation.ROBUST)
_BY_SIZE = ("mean", *(name for name in aggregation.SHARE_BY_SIZE if "krum" not in name))
_BY_NUMBER = ("mean", *aggregation.SHARE_BY_RECLUSTERINGS)
_TRIMMED = ("share-trimmed-mean-m5-r4", "share-trimmed-mean-m3-r4")
_PREDICTED = ("predictions-mean", "predictions-spectral", "cronus", "cronus-bucketed")

EXPERIMENTS = {
    one.name: one
    for one in (
        Experiment("fig2", "Figure 2", "MNIST or CIFAR-10", "8 min", {"attackers": 0}),
        Experiment(
            "fig4", "Figure 4", "MNIST", "40 min", _FIGURE | {"attacks": (*_FAULTS, "negate")}
        ),
        Experiment("fig5", "Figure 5", "MNIST", "a day", _FIGURE | {"model": "cnn-mnist"}),
        Experiment("fig6", "Figure 6", "CIFAR-10", "a day", _FIGURE | {"model": "cnn-cifar10"}),
        Experiment(
            "fig13",
            "Figure 13",
            "MNIST",
            "5 min",
            {"images": 6000, "rounds": 8, "methods": ("bucketed-paper",), "attackers": 0},
            _by_range,
            _by_p,
            varied="p0 = p1",
        ),
        Experiment(
            "ranges",
            "Ranges",
            "MNIST, CIFAR-10 or --dataset clinic",
            "10 min",
            _FIRST
            | {
                "images": 600,
                "rounds": 8,
                "methods": ("radix", *filter(aggregation.has_range, aggregation.SECURE)),
                "attacks": ("none", *_FAULTS, "negate", "lie", "fall-of-empires", "sign-flip-10"),
            },
        ),
        Experiment(
            "ifca",
            "IFCA, Figure 1: a mixture of linear models",
            "none",
            "10 min",
            _MEANS
            | {"clients": 2, "images": 1, "rounds": 100, "seeds": (1, 2, 3)}
            | {"groups": (2, 5, 10, 15), "dims": (20, 50, 100, 200, 500)},
            analysis=mixture,
        ),
        Experiment(
            "ifca-rotated",
            "IFCA on rotated images",
            "MNIST",
            "10 min",
            _MEANS | {"clients": 20, "images": 100, "attackers": 2, "groups": (4,)},
            analysis=rotated,
        ),
        Experiment(
            "share",
            "SHARE, Figures 2 to 5 and 8",
            "MNIST, CIFAR-10 or Shakespeare with --split blocks",
            "2 h",
            _SHARE
            | {
                "methods": _BY_SIZE,
                "attacks": ("none", *_SIGN_FLIPS, "fall-of-empires", "labelflip"),
            },
        ),
        Experiment(
            "share-reclusterings",
            "SHARE, Figures 6 and 7",
            "MNIST with --split labels:2 or labels:5",
            "1 h",
            _SHARE | {"methods": _BY_NUMBER, "attacks": ("none", "fall-of-empires")},
        ),
        Experiment(
            "share-fixed",
            "SHARE, Figure 9",
            "MNIST with --split labels:5",
            "1 h",
            _SHARE
            | {
                "methods": ("mean", *aggregation.FIXED, *_TRIMMED),
                "attacks": ("none", "sign-flip-10"),
            },
        ),
        Experiment(
            "share-leak",
            "SHARE, Appendix C.3: what opened sums of clusters tell",
            "any",
            "1 min",
            _MEANS | {"clients": 60, "images": 20, "rounds": 1},
            analysis=leak,
        ),
        Experiment(
            "hospitals",
            "Four hospitals",
            "none",
            "30 min",
            _FIRST
            | {"clients": len(hospitals.HOSPITALS), "rounds": 50, "seeds": range(1, 11)}
            | {"methods": _ROBUST, "attacks": ("sign-flip-30", "labelflip")},
            analysis=hospitals,
            dataset="heart",
        ),
        Experiment(
            "uneven",
            "Uneven sites",
            "none, or --dataset digits",
            "10 min",
            {"clients": len(uneven.SITES), "rounds": 6, "seeds": (1, 2, 3), "secure": False}
            | {"methods": tuple(uneven.RULES)},
            analysis=uneven,
            dataset="clinic",
        ),
        Experiment(
            "attacks",
            "Attacks",
            "MNIST",
            "30 min",
            {"clients": 11, "images": 1500, "rounds": 10, "attackers": 2, "first": 1}
            | {"methods": None, "attacks": None},
            picture=_grid,
        ),
        Experiment(
            "byzfl",
            "ByzFL's protocol",
            "MNIST",
            "2 h",
            _FIRST
            | {"clients": 10, "images": 200, "rounds": 12, "attackers": 4}
            | {"methods": _ROBUST, "attacks": ("labelflip", "lie-optimised", "fall-optimised")},
            _by_heterogeneity,
            _by_attackers,
            varied="attackers",
            rows=_rows_of_worst,
        ),
        Experiment(
            "cronus",
            "Cronus",
            "MNIST or CIFAR-10",
            "20 min",
            _CRONUS
            | {"clients": 11, "rounds": 5, "attackers": 2, "first": 1}
            | {"methods": ("mean", *_PREDICTED), "attacks": None},
            picture=_grid,
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
            | {"clients": 4, "images": 200, "rounds": 8, "secure": False}
            | {"methods": ("mean", "radix", "predictions-mean", "cronus")},
            _by_inference,
            measured=INFERENCE,
        ),
    )
}
