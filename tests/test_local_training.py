"""A client's training: it is deterministic, learns, and attacks as the attack says."""

from dataclasses import replace

import numpy as np
import pytest

from securemedian import cli
from securemedian.laboratory import data, models, worker
from securemedian.laboratory.attacks import ATTACKS
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.errors import ConfigError
from tests.conftest import needs

needs("torch", "sklearn")

pytestmark = pytest.mark.slow

DIGITS = models.MODELS["digits"]


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
    digits = data.load()
    start = models.start(DIGITS, 1)
    one, two, other = (Trainer.of_part(digits, index, 2, seed=1) for index in (0, 0, 1))
    trained = one.update(start, 1)
    assert np.array_equal(trained, two.update(start, 1))
    assert not np.array_equal(trained, one.update(start, 2))
    assert not np.array_equal(trained, other.update(start, 1))
    assert models.accuracy(DIGITS, trained, digits.test_images, digits.test_labels) > 0.6
    assert models.accuracy(DIGITS, start, digits.test_images, digits.test_labels) < 0.3


def test_training_is_the_gradient_descent_it_says_it_is() -> None:
    """One batch of one epoch gives w - rate * gradient of the mean cross-entropy."""
    model = replace(DIGITS, batch=5, epochs=1)
    digits = data.load()
    images, labels = digits.images[:5], digits.labels[:5]
    start = models.start(model, 1)
    step = (
        start - models.train(model, start, images, labels, np.random.default_rng(1))
    ) / model.rate

    def loss(vector: np.ndarray) -> float:
        hidden = np.maximum(images @ vector[:2048].reshape(32, 64).T + vector[2048:2080], 0)
        scores = hidden @ vector[2080:2400].reshape(10, 32).T + vector[2400:]
        scores = scores - scores.max(axis=1, keepdims=True)
        return float((np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(5), labels]).mean())

    for i in (*np.random.default_rng(2).integers(0, start.size, 20), 2085, 2405):
        ahead, behind = start.astype(np.float64), start.astype(np.float64)
        ahead[i] += 1e-5
        behind[i] -= 1e-5
        assert step[i] == pytest.approx((loss(ahead) - loss(behind)) / 2e-5, abs=1e-4)


def test_a_part_is_the_splits() -> None:
    digits = data.load()
    for how in ("iid", "labels:2"):
        parts = data.split(digits.labels, 3, 1, how, images=50)
        for index, part in enumerate(parts):
            trainer = Trainer.of_part(digits, index, 3, seed=1, images=50, how=how)
            assert np.array_equal(trainer.images, digits.images[part])
            assert np.array_equal(trainer.labels, digits.labels[part])
    for index in (-1, 3):
        with pytest.raises(ConfigError, match="count parts from 1"):
            Trainer.of_part(digits, index, 3, seed=1)


def test_faults_change_what_is_sent_from_their_first_round_on() -> None:
    honest = Trainer.of_part(data.load(), 0, 3, seed=1, images=50)
    start = models.start(DIGITS, 1)
    before, trained = honest.update(start, 1), honest.update(start, 2)
    for name in ("bitflip", "labelflip", "gaussian", "sign-flip-10"):
        assert np.array_equal(replace(honest, attack=ATTACKS[name](2)).update(start, 1), before)
    assert np.array_equal(
        replace(honest, attack=ATTACKS["bitflip"](2)).update(start, 2), 2 * start - trained
    )
    flipped = replace(honest, labels=9 - honest.labels).update(start, 2)
    assert np.array_equal(replace(honest, attack=ATTACKS["labelflip"](2)).update(start, 2), flipped)
    assert replace(honest, attack=ATTACKS["gaussian"](2)).update(start, 2).std() > 100


def test_accuracy_of_a_ruined_model() -> None:
    digits = data.load()
    ruined = np.full(models.start(DIGITS, 1).size, np.nan)
    assert models.accuracy(DIGITS, ruined, digits.test_images, digits.test_labels) < 0.2


@pytest.mark.parametrize(
    "option", [["--fault", "gaussian"], ["--fault-from", "1"], ["--record", "."]]
)
def test_a_real_client_can_neither_misbehave_nor_record(
    option: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`train` refuses what the laboratory's worker takes."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["train", "client-1.toml", *option])
    assert ended.value.code == 2
    assert f"unrecognized arguments: {' '.join(option)}" in capsys.readouterr().err
    # the same option, and a mistake that is found when all options are understood
    others = [] if option[0] == "--record" else ["--record", "."]
    monkeypatch.setattr("sys.argv", ["worker", "none.toml", *option, *others, "--part", "2/1"])
    with pytest.raises(SystemExit, match="worker: no such part of 1: 2"):
        worker.main()


@pytest.mark.parametrize("option", [[], ["--cohort", "stroke"]])
def test_train_reads_its_configuration(
    option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """It read an option that had another name, and ended with an AttributeError."""
    assert cli.main(["train", "none.toml", *option]) == 2
    assert "cannot read the configuration: none.toml" in capsys.readouterr().err
