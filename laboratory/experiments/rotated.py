"""Byzantine-robust IFCA on rotated images: groups of clients see them turned by 0, 90, .. degrees.

Each client trains the model with the smallest loss on its images, and the models follow the median
of those who chose them. Faulty clients choose the group that the fewest honest ones choose, and
send `bitflip`. It is computed in the clear, as rounds of hidden groups publish it. Before the first
round, one client per rotation has trained the model of its group.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory import models, plaintext
from securemedian.laboratory.attacks import NO_ATTACK, BitFlip
from securemedian.laboratory.data.base import rotate
from securemedian.laboratory.experiments.runs import Design
from securemedian.laboratory.plots import Line, Panel, Picture
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState

# of the groups that the methods below have
BUCKETS = 16
METHODS = ("bucketed, hidden groups", "mean, groups", "median, one model", "mean, one model")


def find(design: Design) -> list[dict[str, Any]]:
    """Return per seed and round the test accuracy by method: percent, mean over the rotations."""
    (groups,) = design.groups
    found = []
    for seed in design.seeds:
        curves = {name: _accuracies(design, groups, seed, name) for name in METHODS}
        for number in range(1, design.rounds + 1):
            accuracies = {name: curve[number - 1] for name, curve in curves.items()}
            found.append({"seed": seed, "round": number} | accuracies)
    return found


def picture(design: Design, found: Sequence[dict[str, Any]]) -> Picture:
    """Draw the accuracy by round, as a mean over the seeds with the least and the most."""
    (groups,) = design.groups
    numbers = list(range(1, design.rounds + 1))
    lines = []
    for name in METHODS:
        values = [[row[name] for row in found if row["round"] == number] for number in numbers]
        lines.append(Line.over(name, numbers, values))
    panel = Panel("", "round", "test accuracy (%)", lines)
    return [panel]


def _accuracies(design: Design, groups: int, seed: int, method: str) -> list[float]:
    model = design.network(design.model)
    count = groups if "groups" in method else 1
    honest = design.clients - design.attackers
    trainers = [
        Trainer.of_part(
            design.data,
            index,
            design.clients,
            seed,
            design.images,
            NO_ATTACK if index < honest else BitFlip(1),
            how=design.split,
            model=model,
            quarters=index % groups,
        )
        for index in range(design.clients)
    ]
    starts = models.starts(model, seed, count).reshape(count, -1)
    params = RoundParams(
        Bucketed(buckets=BUCKETS, groups=count), dim=starts.shape[1], max_clients=design.clients
    )
    if count > 1:
        starts = np.stack([trainers[group].update(starts[group], 0) for group in range(count)])
    run = RunState.of_groups([RunState(model=start) for start in starts])
    accuracies = []
    for number in range(1, design.rounds + 1):
        chosen = [_choice(trainer, run.models) for trainer in trainers]
        # the smallest group of honest clients, though a group that nobody chose has no result
        sizes = [chosen[:honest].count(group) or design.clients for group in range(count)]
        chosen[honest:] = [int(np.argmin(sizes))] * design.attackers
        updates = np.stack(
            [
                trainer.update(run.models[group], number)
                for trainer, group in zip(trainers, chosen, strict=True)
            ]
        )
        run = _followed(run, params, updates, chosen, method)
        accuracies.append(100 * _accuracy(design, run.models, groups))
    return accuracies


def _choice(trainer: Trainer, each: Sequence[Float32s]) -> int:
    return int(np.argmin([trainer.loss(one) for one in each])) if len(each) > 1 else 0


def _followed(
    run: RunState,
    params: RoundParams,
    updates: NDArray[np.float32],
    chosen: Sequence[int],
    method: str,
) -> RunState:
    after = []
    for group, before in enumerate(run.groups):
        own = updates[np.equal(chosen, group)]
        if len(own) < params.min_clients:
            after.append(before.counted())
        elif method == METHODS[0]:
            single = replace(params, method=Bucketed(buckets=BUCKETS))
            (result,) = plaintext.published(own, single, before.published_for(single))
            after.append(before.after(result, BUCKETS))
        else:
            combine = plaintext.mean if method.startswith("mean") else plaintext.median
            after.append(replace(before, model=combine(own)))
    return RunState.of_groups(after)


def _accuracy(design: Design, each: Sequence[Float32s], groups: int) -> float:
    """Return the mean accuracy over the rotations, each with the model that fits it best."""
    model, found = design.network(design.model), []
    for quarters in range(groups):
        test = rotate(design.data.test_images, quarters), design.data.test_labels
        found.append(max(models.accuracy(model, one, *test) for one in each))
    return float(np.mean(found))
