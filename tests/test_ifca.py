"""Byzantine-robust IFCA in the laboratory: mixtures of linear models, and rotated images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.laboratory import data, models
from securemedian.laboratory.data.base import rotate
from securemedian.laboratory.experiments import catalogue, mixture, rotated
from securemedian.laboratory.experiments.runs import Design
from securemedian.mpc.errors import ConfigError
from tests.conftest import needs

needs("torch", "sklearn", "matplotlib")

pytestmark = pytest.mark.slow


def drawn(groups: int = 2, dim: int = 10, seed: int = 1) -> mixture.Mixture:
    return mixture.Mixture.draw(groups, dim, np.random.default_rng(seed))


def design(name: str, **chosen: Any) -> Design:
    models.use_one_thread()
    return catalogue.EXPERIMENTS[name].design(data.load(), {}, chosen)


def test_robust_models_of_a_mixture_come_near_and_the_mean_does_not() -> None:
    found = drawn()
    start = found.near(np.random.default_rng(2))
    assert found.distance(start) > 0.2
    distances = {
        combine: found.distance(mixture.ifca(found, start, combine, 60))
        for combine in (mixture.median, mixture.trimmed_mean, mixture.mean)
    }
    assert distances[mixture.median] < distances[mixture.mean] / 2
    assert distances[mixture.trimmed_mean] < distances[mixture.mean] / 1.5
    assert distances[mixture.median] < 0.06


def test_the_three_stage_algorithm_finds_groups_of_few_dimensions_without_a_start() -> None:
    found = drawn()
    models_ = mixture.three_stage(found, 60, np.random.default_rng(3))
    assert found.distance(models_) < 0.06
    assert found.distance(models_[::-1]) == found.distance(models_)


def test_honest_clients_choose_their_own_group_from_a_near_start() -> None:
    found = drawn(groups=3)
    honest = found.clients - found.faulty
    chosen = found.chosen(found.predictions(found.near(np.random.default_rng(2))))
    assert (chosen[:honest] == np.arange(honest) % 3).mean() > 0.95


def one_by_one(
    data: mixture.Mixture, models: np.ndarray, combine: mixture.Combine, iterations: int
) -> np.ndarray:
    """Return the models of IFCA, client by client and in float64, through every iteration."""
    honest = data.clients - data.faulty
    for _ in range(iterations):
        sent: dict[int, list[np.ndarray]] = {}
        for client, (x, y) in enumerate(zip(data.inputs, data.outputs, strict=True)):
            choice = min(range(len(models)), key=lambda j: float(((x @ models[j] - y) ** 2).sum()))
            theta = models[choice] * (1 if client < honest else 3)
            sent.setdefault(choice, []).append(2 / len(y) * x.T @ (x @ theta - y))
        models = np.stack(
            [
                model - mixture.STEP * combine(np.stack(sent[j])) if j in sent else model
                for j, model in enumerate(models)
            ]
        )
    return models


@pytest.mark.parametrize("groups, dim", [(2, 8), (3, 120)])
def test_an_iteration_of_all_clients_at_once_is_that_of_one_after_another(
    groups: int, dim: int
) -> None:
    """Check a descent that has settled early, too: saved iterations change nothing."""
    found = drawn(groups, dim)
    start = found.near(np.random.default_rng(2))
    for combine in (mixture.median, mixture.trimmed_mean, mixture.mean):
        for iterations in (1, 2, 120) if dim == 8 else (1, 2):
            got = mixture.ifca(found, start, combine, iterations)
            want = one_by_one(found, start.astype(np.float64), combine, iterations)
            assert np.abs(got - want).max() < 6e-5
            assert np.abs(got - start).max() > 1e-3


def test_models_that_are_sent_away_stay_within_the_longest_vectors() -> None:
    found = drawn()
    start = found.near(np.random.default_rng(2))
    away = mixture.ifca(found, start, lambda sent: -100 * sent.mean(axis=0), 5)
    assert np.allclose(np.linalg.norm(away, axis=1), mixture.LONGEST, atol=1e-5)


@pytest.mark.parametrize("dim", [5, 100, 130])
def test_minimisers_are_the_solutions_of_least_norm(dim: int) -> None:
    found = drawn(dim=dim)
    for client, solution in enumerate(found.minimisers()[:3]):
        want, *_ = np.linalg.lstsq(found.inputs[client], found.outputs[client].astype(np.float64))
        assert np.allclose(solution, want, rtol=1e-3, atol=1e-3)


def test_a_row_per_number_of_groups_and_dimension() -> None:
    made = design("ifca", groups=[2], dims=[5, 8], seeds=[1, 2], rounds=20)
    rows = mixture.find(made)
    assert [(row["groups"], row["clients"], row["dim"]) for row in rows] == [
        (2, 80, 5),
        (2, 80, 8),
    ]
    for row in rows:
        assert row["median"]["dist"] < row["mean"]["dist"] and row["median"]["error"] > 0


def test_both_experiments_are_saved_drawn_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, options in (
        ("ifca", ["--groups", "2,3", "--dims", "5", "--rounds", "5"]),
        ("ifca-rotated", ["--groups", "2", "--clients", "5", "--images", "10", "--rounds", "1"]),
    ):
        folder = tmp_path / name
        assert cli.main(["experiment", name, *options, "--seeds", "1", "--out", str(folder)]) == 0
        assert catalogue.EXPERIMENTS[name].figure in capsys.readouterr().out
        assert (folder / f"{name}-digits.png").exists()
        assert json.loads((folder / f"{name}-digits.json").read_text())["results"]


def test_images_are_turned() -> None:
    images = np.arange(9, dtype=np.float32)[None]
    assert rotate(images, 1)[0].tolist() == [2, 5, 8, 1, 4, 7, 0, 3, 6]
    assert np.array_equal(rotate(rotate(images, 1), 3), images)
    assert rotate(images, 4).tolist() == images.tolist()
    with pytest.raises(ConfigError, match="rows of 6 values"):
        rotate(np.zeros((1, 6), np.float32), 1)


def test_each_rotation_gets_a_model_of_its_own_although_faulty_clients_join_the_smallest() -> None:
    made = design("ifca-rotated", groups=[2], clients=7, attackers=1, rounds=4, images=100)
    rows = rotated.find(made)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    last: dict[str, float] = rows[-1]
    assert last["bucketed, hidden groups"] > last["median, one model"] + 10
    assert last["bucketed, hidden groups"] > last["mean, groups"]
