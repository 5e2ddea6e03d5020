"""The summary of an experiment: as JSON, and as a table for the terminal."""

import platform
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Group

import securemedian
from securemedian.common import terminal
from securemedian.laboratory import report
from securemedian.laboratory.experiments import aggregation
from securemedian.laboratory.experiments.catalogue import CurveResult, Experiment
from securemedian.laboratory.experiments.runs import Design, RunRecord, ServerCost

# in the rounds before this one, chance decides more than the method
FROM_ROUND = 4


def machine() -> dict[str, Any]:
    """Return what figures depend on: the processor, the system, and the versions in use."""
    import torch

    return report.machine() | {
        "system": platform.platform(terse=True),
        "torch": torch.__version__,
        "securemedian": securemedian.__version__,
    }


def summary(
    experiment: Experiment,
    design: Design,
    results: Sequence[CurveResult],
    records: Mapping[str, RunRecord],
    command: str,
) -> dict[str, Any]:
    """Return everything that an experiment's JSON file holds."""
    settings = {name: value for name, value in vars(design).items() if name != "data"}
    return {
        "experiment": experiment.name,
        "figure": experiment.figure,
        "measured": experiment.shape.measured,
        "varied": experiment.shape.varied,
        "command": command,
        "machine": machine(),
        "settings": settings | {"data": design.data.name, "optimiser": design.optimiser.to_dict()},
        "seconds": sum(
            figures.seconds
            for result in results
            for run in result.curve.runs
            for figures in records[run.run_id].rounds[: design.rounds]
        ),
        "results": [
            _curve(result, records, design.rounds)
            | {"below_exact": _below(experiment, result, results)}
            for result in results
        ],
    }


def _curve(result: CurveResult, records: Mapping[str, RunRecord], rounds: int) -> dict[str, Any]:
    curve = result.curve
    own = [records[run.run_id] for run in curve.runs]
    first = curve.runs[0]
    measured = [figures for record in own for figures in record.rounds[:rounds]]
    costs, names = [one.cost for one in measured if one.cost], ServerCost.__dataclass_fields__
    return {
        "panel": curve.panel,
        "line": curve.line,
        "shown": curve.shown,
        "x": curve.x,
        "method": first.method,
        "attack": first.attack,
        "range": first.policy.to_dict(),
        "secure": first.secure,
        "seeds": [run.seed for run in curve.runs],
        "runs": [run.run_id for run in curve.runs],
        "accuracy": [[round(value, 2) for value in one] for one in result.accuracies],
        "final": {"mean": result.final_mean, "min": min(result.final), "max": max(result.final)},
        "diverged_after": [len(record.rounds) if record.diverged else None for record in own],
        "seconds_a_round": fmean([one.seconds for one in measured] or [0.0]),
        "servers": {name: fmean(getattr(cost, name) for cost in costs) for name in names}
        if costs
        else None,
    }


def _below(
    experiment: Experiment, result: CurveResult, results: Sequence[CurveResult]
) -> float | None:
    """Return by how many points a curve is below the exact median's in its panel at worst.

    Count from FROM_ROUND on, each seed by itself; a negative number means above in all rounds.
    Return None where no accuracy of an exact median is there.
    """
    panel = [one for one in results if one.curve.panel == result.curve.panel]
    exact = [one for one in panel if one.curve.runs[0].method in aggregation.EXACT]
    if not (experiment.shape.exact and exact):
        return None
    points = [
        theirs - own
        for ours, others in zip(result.accuracies, exact[0].accuracies, strict=True)
        for own, theirs in list(zip(ours, others, strict=True))[FROM_ROUND - 1 :]
    ]
    return round(max(points), 2) if points else None


def rows(title: str, found: Sequence[Mapping[str, Any]]) -> Group:
    """Return the table of an analysis, a row per measurement.

    A column per figure, and of several one for each.
    """
    flat = [
        {
            f"{name} {part}".strip(): _cell(figure)
            for name, value in one.items()
            for part, figure in (value.items() if isinstance(value, Mapping) else [("", value)])
        }
        for one in found
    ]
    return terminal.table(title, list(flat[0]), [list(figures.values()) for figures in flat])


def _cell(figure: Any) -> str:
    if isinstance(figure, bool):
        return "yes" if figure else "no"
    if figure is None:
        return "none"
    return figure if isinstance(figure, str) else f"{figure:.3g}"


def table(summary: Mapping[str, Any]) -> Group:
    settings, measured = summary["settings"], summary["measured"]
    title = (
        f"{summary['figure']}: {settings['model']} on {settings['data']}, "
        f"{settings['clients']} clients, {measured} (%) after round {settings['rounds']} "
        f"over seeds {', '.join(map(str, settings['seeds']))}"
    )
    note = f"below exact: points below the exact median, at worst from round {FROM_ROUND} on"
    columns = ["attack", "method", "mean", "least", "most", "below exact", "s per round"]
    compared = any(one["below_exact"] is not None for one in summary["results"])
    return terminal.table(
        title,
        [*columns, "servers, s", "OTs", "MB each way"],
        [_row(one, summary["varied"]) for one in summary["results"]],
        note if compared else "",
    )


def _row(one: Mapping[str, Any], varied: str) -> list[str]:
    servers, final = one["servers"], one["final"]
    shown = f"{one['shown']}: " if one["shown"] else ""
    name = shown + one["line"] + (f", {varied} = {one['x']:g}" if varied else "")
    diverged = any(after is not None for after in one["diverged_after"])
    below = one["below_exact"]
    row = [
        one["attack"],
        name + (", diverged" if diverged else ""),
        *(f"{final[which]:.2f}" for which in ("mean", "min", "max")),
        "" if below is None else f"{below:.2f}",
        f"{one['seconds_a_round']:.2f}",
    ]
    if not servers:
        return [*row, "", "", ""]
    most = max(servers["bytes_s0_to_s1"], servers["bytes_s1_to_s0"]) / 1e6
    return [*row, f"{servers['seconds']:.2f}", f"{servers['ots']:,.0f}", f"{most:.1f}"]
