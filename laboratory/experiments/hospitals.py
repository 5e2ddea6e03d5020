"""The worth of a federation to four hospitals, and when one of them is broken.

Each hospital trains on its own patients and is tested on a third of everybody's. The yardsticks are
a hospital alone, all patients in one place, and FedAvg, the mean weighted by patients. Ten seeds
draw start models and who is tested. Updates are combined in the clear, by the same functionality
that the servers compute.
"""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from securemedian.laboratory import models
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.data.hospitals import HOSPITALS, drawn
from securemedian.laboratory.experiments import aggregation, execution
from securemedian.laboratory.experiments.runs import Design, Run
from securemedian.laboratory.plots import Grid, Picture
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.errors import ConfigError

FEDAVG, ALONE, POOLED = "FedAvg", "alone, on average", "all patients in one place"


def find(design: Design) -> list[dict[str, Any]]:
    """Return a row per fault: the accuracy in percent of each method.

    A fault is an attack by one of the hospitals. Of each accuracy there is the mean over the seeds
    and, behind it, the deviation.
    """
    if design.data.name != "heart":
        raise ConfigError(
            f"this experiment is on the hospitals' patients: {design.data.name}; take --dataset "
            "heart"
        )
    faults = [("none", len(HOSPITALS) - 1)]
    faults += [
        (attack, place)
        for attack in design.attacks
        if attack != "none"
        for place in range(len(HOSPITALS))
    ]
    labels = {method: aggregation.label(method) for method in design.methods} | {FEDAVG: FEDAVG}
    rows = []
    for attack, place in faults:
        row = {"fault": "no fault" if attack == "none" else f"{attack}, {HOSPITALS[place]}"}
        for method, label in labels.items():
            row[label] = _shown([_of(design, seed, method, attack, place) for seed in design.seeds])
        rows.append(row)
    everybody = range(len(HOSPITALS))
    alone = [
        fmean(_trained(design, drawn(seed), [place], seed) for place in everybody)
        for seed in design.seeds
    ]
    together = [_trained(design, drawn(seed), everybody, seed) for seed in design.seeds]
    yardsticks = {ALONE: _shown(alone), POOLED: _shown(together)}
    return [row | (yardsticks if row is rows[0] else dict.fromkeys(yardsticks, "")) for row in rows]


def _shown(accuracies: Sequence[float]) -> str:
    spread = f" ± {stdev(accuracies):.1f}" if len(accuracies) > 1 else ""
    return f"{fmean(accuracies):.1f}{spread}"


def _of(design: Design, seed: int, method: str, attack: str, place: int) -> float:
    """Return the accuracy in percent after a run in which the hospital at a place may attack."""
    data = with_last(drawn(seed), place)
    run: Run = design.run(seed, "mean" if method == FEDAVG else method, attack)
    if method == FEDAVG:
        # in the clear: no servers weigh one hospital with more than a third
        sizes = np.bincount(data.owners).tolist() if data.owners is not None else []
        run = replace(run, options={"weights": sizes})
    record = execution.carry_out(run, design.rounds, data)
    return 100 * record.accuracies(design.rounds, data.classes)[-1]


def with_last(data: Dataset, place: int) -> Dataset:
    """Return the data with the owner at a place as the last one, where attackers are."""
    assert data.owners is not None
    order = [other for other in range(len(data.holders)) if other != place] + [place]
    return replace(
        data,
        owners=np.argsort(order)[data.owners],
        holders=tuple(data.holders[other] for other in order),
    )


def _trained(design: Design, data: Dataset, places: Sequence[int], seed: int) -> float:
    """Return the accuracy in percent of a training on some hospitals' patients without others."""
    model = design.network(design.model)
    assert data.owners is not None
    own = np.isin(data.owners, places)
    trainer = Trainer(model, data.images[own], data.labels[own], (seed, 0))
    vector = models.start(model, seed)
    # before round 1 it measures
    for number in range(design.rounds + 1):
        vector = trainer.trained(vector, number)
    return 100 * models.accuracy(model, vector, data.test_images, data.test_labels)


def picture(design: Design, found: Sequence[dict[str, Any]]) -> Picture:
    """Draw the accuracies as a grid, of which faults are the rows."""
    columns = [name for name in found[0] if name != "fault"]
    values = [
        [float(row[name].split()[0]) if row[name] else float("nan") for name in columns]
        for row in found
    ]
    return Grid("method", "hospital and its fault", columns, [r["fault"] for r in found], values)
