"""Carry out one training run from its start, or from where it was interrupted, to its last round."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory import plaintext
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.experiments import methods, saved
from securemedian.laboratory.experiments.players import Players
from securemedian.laboratory.experiments.runs import Cost, Figures, Record, Run
from securemedian.laboratory.experiments.service import Service
from securemedian.mpc.errors import SecureMedianError
from securemedian.servers.training import Training

Float32s = NDArray[np.float32]
# is called with what is known so far, after every round
ShowRecord = Callable[[Record], None]


class Diverged(SecureMedianError):
    """Say that a value of the run is no longer a number: there is no next round."""

    code = "diverged"


def carry_out(
    run: Run, rounds: int, data: Dataset, service: Service | None, folder: Path, show: ShowRecord
) -> Record:
    """Train for `rounds` rounds, saving each. `service` is needed by runs that are `secure`."""
    players = Players(run, data)
    record, training = saved.load_checkpoint(folder, run) or (
        Record(),
        Training(run.range, players.start(), np.array(run.range.initial, np.float32)),
    )
    show(record)
    while not record.covers(rounds):
        if run.secure and service:
            service.ready(training)
        began = time.monotonic()
        try:
            training, cost = _round(run, training, players, service)
            model = _model(training)
            accuracy, digest = players.accuracy(model), hashlib.sha256(model.data).hexdigest()
            figures = Figures(accuracy, digest, time.monotonic() - began, cost)
            record = replace(record, rounds=[*record.rounds, figures])
        except Diverged:
            record = replace(record, diverged=True)
        saved.save_checkpoint(folder, run, record, training)
        show(record)
    saved.finish(folder, run, record)
    return record


def _round(
    run: Run, before: Training, players: Players, service: Service | None
) -> tuple[Training, Cost | None]:
    """Return the run after one more round.

    Raises Diverged where a value is no number.
    """

    def play(model: Float32s) -> Float32s:
        updates = players.updates(model, before.number)
        # no client would be let submit these
        if np.isnan(updates).any():
            raise Diverged("an update is not a number")
        return updates

    model, cost = _model(before), None
    # what overflows is seen below
    with np.errstate(over="ignore", invalid="ignore"):
        if run.method not in methods.SECURE:
            after = before.after(methods.combine(run.method, play(model), run.attackers))
        elif run.secure:
            assert service is not None
            after, cost = service.round(run.params(model.size), before, play)
        else:
            results = plaintext.published(play(model), run.params(model.size), model, before.width)
            after = before.after(results[0])
    if not (np.isfinite(_model(after)).all() and np.isfinite(after.width).all()):
        raise Diverged("the model or its bucket range is no longer finite")
    return after, cost


def _model(training: Training) -> Float32s:
    # every run starts with one
    assert training.model is not None
    return training.model
