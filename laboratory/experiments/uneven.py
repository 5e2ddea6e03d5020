"""Five sites of different sizes, of which one in turn sends its update times -30.

The sites have 40, 25, 18, 12 and 5 % of the records, at random. Each method of the servers is
compared with its rule in plain numpy on the updates of all five, without a ring, a bound or a
check. The difference is the method's price. FedAvg is the mean weighted by records.
Updates are combined in the clear, by the functionality that the servers compute, with its check.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data import Dataset
from securemedian.laboratory.experiments import aggregation, execution
from securemedian.laboratory.experiments.hospitals import with_last
from securemedian.laboratory.experiments.runs import Design, Run
from securemedian.laboratory.plots import Grid, Picture
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds import aggregators
from securemedian.mpc.rounds.run_state import RunState

Vectors = NDArray[np.float64]
# of all records, percent
SITES = (40, 25, 18, 12, 5)
# records of all sites together
MOST = 1500
ATTACK, NO_FAULT, FEDAVG = "sign-flip-30", "no fault", "FedAvg"
SITE_NAMES = [f"{size} %" for size in SITES]
FAULTS = [NO_FAULT, *SITE_NAMES]


def _apart(updates: Vectors) -> Vectors:
    """Return the squared distances of all pairs (n, n); each update is nearest to itself."""
    apart = ((updates[:, None] - updates[None]) ** 2).sum(axis=2)
    np.fill_diagonal(apart, -1)
    return np.asarray(apart)


def mixed(updates: Vectors, f: int) -> Vectors:
    """Return each update's mean with its n - f - 1 nearest ones (Allouah et al., 2023)."""
    near = _apart(updates).argsort(axis=1, kind="stable")[:, : len(updates) - f]
    return np.asarray(updates[near].mean(axis=1))


def multi_krum(updates: Vectors, f: int) -> Vectors:
    """Return the mean of the n - f updates with the least scores (Blanchard et al., 2017)."""
    n = len(updates)
    scores = np.sort(_apart(updates), axis=1)[:, 1 : n - f - 1].sum(axis=1)
    return np.asarray(updates[np.argsort(scores, kind="stable")[: n - f]].mean(axis=0))


Rule = Callable[[Vectors, int], NDArray[Any]]
# by method of the servers
RULES: dict[str, Rule] = {
    "radix": aggregators.median,
    "bucketed": aggregators.median,
    "trimmed-mean-service": aggregators.trimmed_mean,
    "bounded-mean": aggregators.mean,
    "krum-service": aggregators.krum,
    "multi-krum-service": multi_krum,
    "neighbours-median": lambda updates, f: aggregators.median(mixed(updates, f), f),
    "neighbours-trimmed-mean": lambda updates, f: aggregators.trimmed_mean(mixed(updates, f), f),
}


@dataclass
class Found:
    """The accuracies of a method and its rule, in percent, and whom the method left out."""

    method: list[float] = field(default_factory=list)
    rule: list[float] = field(default_factory=list)
    # rounds without a result, and honest sites that were left out of one
    failed: int = 0
    left_out: int = 0


def shared_out(data: Dataset, seed: int) -> Dataset:
    """Return data of at most MOST records, drawn and divided among the sites.

    Columns are standardised by everybody's means and deviations.
    """
    order = np.random.default_rng((seed, len(SITES))).permutation(len(data.labels))[:MOST]
    ends = np.cumsum(SITES)[:-1] * len(order) // 100
    middle, spread = data.images.mean(axis=0), data.images.std(axis=0)
    spread[spread == 0] = 1
    return replace(
        data,
        images=((data.images[order] - middle) / spread).astype(np.float32),
        labels=data.labels[order],
        test_images=((data.test_images - middle) / spread).astype(np.float32),
        owners=np.searchsorted(ends, np.arange(len(order)), side="right"),
        holders=tuple(SITE_NAMES),
    )


def find(design: Design) -> list[dict[str, Any]]:
    """Return a row per method: its accuracy in percent by fault, and that of its rule behind it.

    The accuracies are means over the seeds. `gap` is the most by which the method is worse than its
    rule. `failed` counts its rounds without a result, and `left out` honest sites left out of one.
    """
    if unknown := [method for method in design.methods if method not in RULES]:
        raise ConfigError(
            f"no rule in this experiment: {', '.join(unknown)}; take some of {', '.join(RULES)}"
        )
    if design.clients != len(SITES):
        raise ConfigError(
            f"this experiment has {len(SITES)} sites: {design.clients} clients; leave --clients out"
        )
    rows = []
    # methods of one rule share what it reaches
    plain: dict[tuple[Rule, str], list[float]] = {}
    for method in design.methods:
        found = [_found(design, method, fault, plain) for fault in FAULTS]
        row: dict[str, Any] = {"method": aggregation.label(method)}
        for fault, each in zip(FAULTS, found, strict=True):
            row[fault] = f"{fmean(each.method):.1f} / {fmean(each.rule):.1f}"
        gaps = [fmean(each.rule) - fmean(each.method) for each in found]
        row |= {
            "gap": f"{max(gaps):.1f}",
            "failed": sum(each.failed for each in found),
            "left out": sum(each.left_out for each in found),
        }
        rows.append(row)
    row = {"method": FEDAVG}
    for fault in FAULTS:
        row[fault] = f"{fmean(_trained(design, seed, fault) for seed in design.seeds):.1f}"
    return [*rows, row | dict.fromkeys(("gap", "failed", "left out"), "")]


def _prepared(design: Design, seed: int, method: str, fault: str) -> tuple[Dataset, Run]:
    """Return the data with the faulty site as the last one, and the run."""
    place = len(SITES) - 1 if fault == NO_FAULT else SITE_NAMES.index(fault)
    data = with_last(shared_out(design.data, seed), place)
    return data, design.run(seed, method, "none" if fault == NO_FAULT else ATTACK)


def _found(
    design: Design, method: str, fault: str, plain: dict[tuple[Rule, str], list[float]]
) -> Found:
    found, rule = Found(), RULES[method]
    known = (rule, fault) in plain
    honest = len(SITES) - (fault != NO_FAULT)
    for seed in design.seeds:
        data, run = _prepared(design, seed, method, fault)

        def combined(before: RunState, updates: Float32s, run: Run = run) -> RunState:
            try:
                after, passed = execution.combined(run, before, updates)
            except ConfigError:
                found.failed += 1
                return before.counted()
            found.left_out += passed[:honest].count(False)
            return after

        found.method.append(_accuracy(design, run, data, combined))
        if not known:
            reached = _accuracy(design, run, data, _plainly(rule, design.attackers))
            plain.setdefault((rule, fault), []).append(reached)
    found.rule = plain[rule, fault]
    return found


def _trained(design: Design, seed: int, fault: str) -> float:
    """Return the accuracy in percent of FedAvg."""
    data, run = _prepared(design, seed, "mean", fault)
    assert data.owners is not None
    sizes = np.bincount(data.owners)
    weighted = _plainly(lambda updates, f: np.asarray(sizes @ updates / sizes.sum()), 0)
    return _accuracy(design, run, data, weighted)


def _plainly(rule: Rule, f: int) -> execution.Combine:
    """Return what makes the next state by a rule on all updates."""
    return lambda before, updates: before.after(
        rule(updates.astype(np.float64), f).astype(np.float32)
    )


def _accuracy(design: Design, run: Run, data: Dataset, combine: execution.Combine) -> float:
    """Return the accuracy in percent after a run; 0 if it diverges."""
    record = execution.carry_out(run, design.rounds, data, combine=combine)
    return 0.0 if record.diverged else 100 * record.rounds[-1].accuracy


def picture(design: Design, found: Sequence[dict[str, Any]]) -> Picture:
    """Draw the accuracies as a grid; a rule has its row below its method's."""
    rows, values = [], []
    for row in found:
        each = [str(row[fault]).split(" / ") for fault in FAULTS]
        rows.append(row["method"])
        values.append([float(one[0]) for one in each])
        if len(each[0]) > 1:
            rows.append("  its rule, plainly")
            values.append([float(one[1]) for one in each])
    x_label = f"site that sends -30 times its update, from round {design.first}"
    return Grid(x_label, "", FAULTS, rows, values)
