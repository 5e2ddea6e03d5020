"""Local training: the networks, that it is deterministic, and what a worker records."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from clients import data, models
from clients.faults import Fault
from clients.worker import Trainer

DIGITS = models.RECIPES["digits"]


def test_the_papers_network_has_its_199210_parameters() -> None:
    start = models.start(models.RECIPES["mnist"], 1)
    assert start.dtype == np.float32
    assert start.shape == (199_210,)


def test_start_is_seeded_and_leaves_torchs_own_generator_alone() -> None:
    import torch

    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, two, other = models.start(DIGITS, 1), models.start(DIGITS, 1), models.start(DIGITS, 2)
    assert torch.equal(torch.rand(1), expected)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, other)


def test_training_is_deterministic_and_learns() -> None:
    digits = data.load(None)
    start = models.start(DIGITS, 1)
    one, two, other = (Trainer.of_part(digits, index, 2, seed=1) for index in (0, 0, 1))
    trained = one.update(start, 1)
    assert np.array_equal(trained, two.update(start, 1))
    assert not np.array_equal(trained, one.update(start, 2))
    assert not np.array_equal(trained, other.update(start, 1))
    assert models.accuracy(DIGITS, trained, digits.test_images, digits.test_labels) > 0.6
    assert models.accuracy(DIGITS, start, digits.test_images, digits.test_labels) < 0.3


def test_faults_change_what_is_sent() -> None:
    honest = Trainer.of_part(data.load(None), 0, 3, seed=1, images=50)
    start = models.start(DIGITS, 1)
    trained = honest.update(start, 2)
    assert np.array_equal(replace(honest, fault=Fault("bitflip", 2)).update(start, 2), 2 * start - trained)
    assert not np.array_equal(replace(honest, fault=Fault("labelflip", 2)).update(start, 2), trained)
    assert replace(honest, fault=Fault("gaussian", 2)).update(start, 2).std() > 100


def test_accuracy_of_a_ruined_model() -> None:
    digits = data.load(None)
    ruined = np.full(models.start(DIGITS, 1).size, np.nan)
    assert models.accuracy(DIGITS, ruined, digits.test_images, digits.test_labels) < 0.2
