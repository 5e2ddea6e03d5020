"""The experiments on exchanged predictions: the yardsticks, the attacks, and what is measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.laboratory import data, models
from securemedian.laboratory.attacks import ATTACKS
from securemedian.laboratory.experiments import (
    aggregation,
    catalogue,
    execution,
    players,
)
from securemedian.laboratory.experiments.aggregation import filtered_mean
from securemedian.laboratory.experiments.execution import ExperimentServers
from securemedian.laboratory.experiments.players import Collaborators
from securemedian.laboratory.experiments.runs import Design
from securemedian.mpc.errors import InputError
from tests.conftest import needs

needs("torch", "sklearn", "matplotlib")

DIGITS = data.load()
models.use_one_thread()


def design(**chosen: Any) -> Design:
    small = {"images": 30, "rounds": 2, "seeds": [1], "clients": 5, "attackers": 1, "secure": False}
    settled = {"samples": 40, "warm_up": 1} | small | chosen
    return catalogue.EXPERIMENTS["cronus"].design(DIGITS, {}, settled)


def nothing(_: Any) -> None:
    pass


# The yardsticks in the clear


def one_by_one(predictions: np.ndarray, f: int, classes: int, bound: float) -> np.ndarray:
    """Return the filtered means, sample by sample and with the covariance of numpy."""
    found = []
    for sample in range(predictions.shape[1] // classes):
        points = predictions[:, sample * classes : (sample + 1) * classes].astype(np.float64)
        for _ in range(2):
            values, vectors = np.linalg.eigh(np.cov(points.T, bias=True))
            if values[-1] <= bound:
                break
            along = np.abs((points - points.mean(axis=0)) @ vectors[:, -1])
            points = np.delete(points, np.argsort(-along, kind="stable")[: -(-f // 2)], axis=0)
        found.append(points.mean(axis=0))
    return np.concatenate(found)


@pytest.mark.parametrize("f", [1, 2, 3])
@pytest.mark.parametrize("bound", [0.0, 0.05, 0.2])
def test_the_spectral_filter_is_that_of_each_sample(f: int, bound: float) -> None:
    rng = np.random.default_rng(f)
    predictions = rng.dirichlet(np.ones(4), (11, 50)).reshape(11, 200).astype(np.float32)
    predictions[-f:, :80] = rng.integers(0, 2, (f, 80))
    got = filtered_mean(predictions, f, 4, bound)
    assert np.allclose(got, one_by_one(predictions, f, 4, bound), atol=1e-12)
    # samples differ in whether they are filtered
    assert (bound == 0.2) or not np.allclose(got, predictions.mean(axis=0), atol=1e-3)
    with pytest.raises(InputError, match="drops up to 6 points for f = 6 faulty clients"):
        filtered_mean(predictions[:6], 6, 4)


def test_the_auc_is_the_chance_that_a_member_s_loss_is_smaller() -> None:
    rng = np.random.default_rng(2)
    members, others = rng.integers(0, 6, 40) / 2, rng.integers(1, 9, 30) / 2
    pairs = [1.0 if m < o else 0.5 if m == o else 0.0 for m in members for o in others]
    assert players.auc(members, others) == pytest.approx(np.mean(pairs))
    assert players.auc(np.zeros(3), np.ones(4)) == 1
    assert players.auc(np.ones(3), np.ones(4)) == 0.5


# Runs


@pytest.mark.slow
def test_losses_tell_what_was_trained_on() -> None:
    model = models.MODELS["digits"]
    members = DIGITS.images[:30], DIGITS.labels[:30]
    vector = start = models.start(model, 1)
    rng = np.random.default_rng(1)
    for _ in range(60):
        vector = models.train(model, vector, *members, rng)
    assert players.by_loss(model, vector, DIGITS, members) > 0.7
    assert players.by_loss(model, start, DIGITS, members) < 0.65
    losses = models.losses(model, vector, *members)
    chosen = models.predict(model, vector, members[0])[np.arange(30), members[1]]
    assert np.allclose(losses, -np.log(chosen), atol=1e-5)


@pytest.mark.slow
def test_the_servers_and_the_clear_are_equal_bit_by_bit(tmp_path: Path) -> None:
    made = design(attacks=["gaussian"])
    with ExperimentServers.here(5, nothing) as service:
        for method in ("cronus", "cronus-bucketed"):
            clear = made.run(1, method, "gaussian")
            assert clear.collaboration is not None
            plain = execution.carry_out(clear, 2, DIGITS, None, nothing)
            secure = replace(clear, secure=True)
            record = execution.carry_out(secure, 2, DIGITS, service, nothing)
            assert [one.model for one in record.rounds] == [one.model for one in plain.rounds]
            assert [one.accuracy for one in record.rounds] == [one.accuracy for one in plain.rounds]
            assert all(one.cost and one.cost.ots > 0 for one in record.rounds)


@pytest.mark.slow
def test_inference_is_measured_on_updates_and_on_the_aggregate() -> None:
    run = replace(design().run(1, "cronus"), inference=True)
    (figures,) = execution.carry_out(run, 1, DIGITS, None, nothing).rounds
    assert set(figures.inference) == {"update", "aggregate"}


@pytest.mark.slow
def test_colluding_attackers_see_the_honest_predictions() -> None:
    run = replace(design(attackers=2).run(1, "cronus", "ofom"), clients=5)
    players = Collaborators(run, DIGITS)
    state = players.start()
    sent = players.predictions(state, 1)
    honest = sent[:3].reshape(3, -1)
    # far away, and at the mean of all, moved into what a round can carry
    assert (sent[3] == 1).all() and np.abs(sent[4] - 1).max() == 0
    assert np.array_equal(sent[:3], Collaborators(run, DIGITS).predictions(state, 0)[:3])
    lie = replace(run, attack="lie")
    want = np.clip(
        ATTACKS["lie"](1).corrupt(honest[:2], honest[0], honest, np.random.default_rng(1)), 0, 1
    )
    assert np.array_equal(Collaborators(lie, DIGITS).predictions(state, 1)[3:].reshape(2, -1), want)


@pytest.mark.slow
def test_networks_take_turns_and_each_has_its_accuracy(tmp_path: Path) -> None:
    run = design(attackers=0, attacks=["none"]).run(
        1, "cronus", networks=("digits", "digits-linear")
    )
    record = execution.carry_out(run, 1, DIGITS, None, nothing)
    (figures,) = record.rounds
    one, other = figures.networks["digits"], figures.networks["digits-linear"]
    # clients 1, 3 and 5 have the first
    assert figures.accuracy == pytest.approx((3 * one + 2 * other) / 5)
    assert record.accuracies(2, 10, "digits-linear") == [other, 0.1]
    players = Collaborators(run, DIGITS)
    assert players.start().size == 3 * 2410 + 2 * 650
    alone = replace(run, method=aggregation.ALONE, options={})
    lone = execution.carry_out(alone, 1, DIGITS, None, nothing)
    assert lone.rounds[0].model != figures.model
