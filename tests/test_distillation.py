"""Clients that learn from each other's predictions: what they send, and what they learn."""

import argparse
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import Client, Coordinator, PublicSet, cli
from securemedian.clients.config import ClientConfig
from securemedian.clients.upload import number_of
from securemedian.laboratory import data, models, worker, worker_options
from securemedian.laboratory.attacks import ATTACKS
from securemedian.laboratory.distillation import Student
from securemedian.laboratory.models.networks import Model
from securemedian.laboratory.worker import Trainer
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from tests.conftest import needs
from tests.daemons import WAIT_S, Pair, in_background

needs("torch", "sklearn")

pytestmark = pytest.mark.slow

DIGITS = data.load()
models.use_one_thread()
PUBLIC = PublicSet(data.draw_public(DIGITS, 200, 1))
OWN = data.without(DIGITS, PUBLIC.inputs)
CLASSES = 10


def linear() -> Model:
    from torch import nn

    return Model("linear", lambda: nn.Linear(64, CLASSES), shape=(8, 8), batch=10, rate=0.1)


def student(index: int = 0, model: Model | None = None, attack: str = "none") -> Student:
    """Return a client of three of 60 images each."""
    trainer = Trainer.of_part(OWN, index, 3, 1, 60, ATTACKS[attack](1), model=model)
    return Student.start(trainer, PUBLIC.inputs, 2)


def accuracy(one: Student) -> float:
    return models.accuracy(one.trainer.model, one.vector, DIGITS.test_images, DIGITS.test_labels)


def test_what_is_public_is_nobodys_own() -> None:
    assert len(OWN.images) == len(OWN.labels) == len(DIGITS.images) - 200
    both = np.concatenate([OWN.images, PUBLIC.inputs])
    assert np.array_equal(np.sort(both, axis=0), np.sort(DIGITS.images, axis=0))
    kept = [index for index, row in enumerate(DIGITS.images) if (row == OWN.images).all(1).any()]
    assert np.array_equal(DIGITS.labels[kept], OWN.labels)
    for samples in (0, len(DIGITS.images)):
        with pytest.raises(ConfigError, match="takes 1 to 1,499"):
            data.draw_public(DIGITS, samples, 1)


def test_a_prediction_is_the_softmax_of_the_network() -> None:
    one = student(model=linear())
    weights, bias = one.vector[:640].reshape(CLASSES, 64), one.vector[640:]
    powers = np.exp(PUBLIC.inputs.astype(np.float64) @ weights.T + bias)
    want = powers / powers.sum(axis=1, keepdims=True)
    assert np.allclose(one.predictions(), want, atol=1e-6)
    assert np.array_equal(one.sent(3), one.predictions())


def test_soft_labels_are_learnt() -> None:
    """A student that is taught by the true labels of the public set gets better than alone."""
    truth = {row.tobytes(): label for row, label in zip(DIGITS.images, DIGITS.labels, strict=True)}
    taught = np.eye(CLASSES, dtype=np.float32)[[truth[row.tobytes()] for row in PUBLIC.inputs]]
    alone = wise = misled = student()
    for number in (1, 2, 3):
        alone = replace(alone, vector=alone.trainer.trained(alone.vector, number))
        wise, misled = wise.after(taught, number), misled.after(taught[:, ::-1].copy(), number)
    assert accuracy(wise) > accuracy(alone) + 0.05 > accuracy(misled) + 0.1
    # the same values give the same student
    assert np.array_equal(student().after(taught, 1).vector, student().after(taught, 1).vector)
    assert not np.array_equal(student(0).vector, student(1).vector)


@pytest.mark.parametrize("attack", ["bitflip", "gaussian", "sign-flip-10", "labelflip"])
def test_attackers_send_what_a_round_can_carry(attack: str) -> None:
    honest, liar = student(), student(attack=attack)
    sent = liar.sent(1)
    assert not np.array_equal(sent, honest.sent(1))
    assert sent.shape == (200, CLASSES) and sent.dtype == np.float32
    assert sent.min() >= 0 and sent.max() <= 1
    if attack == "bitflip":
        assert np.array_equal(sent, np.clip(np.float32(0.2) - honest.predictions(), 0, 1))


def test_a_public_set_that_no_network_takes_and_a_negative_warm_up() -> None:
    trainer = Trainer.of_part(OWN, 0, 3, 1, 60)
    bads: list[Any] = [PUBLIC.inputs[:, 1:], PUBLIC.inputs.astype(np.float64), PUBLIC.inputs[0]]
    for bad in bads:
        with pytest.raises(ConfigError, match="choose another model or public set"):
            Student.start(trainer, bad, 0)
    with pytest.raises(ConfigError, match="invalid warm-up: -1; give 0 rounds or more"):
        Student.start(trainer, PUBLIC.inputs, -1)


def test_the_verb_writes_a_public_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["public-set", str(tmp_path / "p"), "--samples", "200"]) == 0
    assert capsys.readouterr().out.strip().endswith(f"200 samples, SHA-256 {PUBLIC.digest}")
    assert np.array_equal(PublicSet.load(tmp_path / "p").inputs, PUBLIC.inputs)


def test_different_networks_learn_from_each_other(pair: Pair, tmp_path: Path) -> None:
    """Run three workers, one of which lies, through real daemons, and the same in the clear."""
    method = Radix(encoding="unit", word_bits=8)
    exchange = Predictions(PUBLIC.digest, CLASSES)
    params = RoundParams(method, dim=200 * CLASSES, max_clients=3, exchange=exchange)
    students = [student(0), student(1, linear()), student(2, attack="gaussian")]
    before, after = [accuracy(one) for one in students], {}

    def work(number: int) -> None:
        config = ClientConfig.load(pair.folder / f"client-{number}.toml")
        quick = replace(config, state_dir="", wait_timeout_s=WAIT_S, poll_interval_s=0.05)
        with Client(quick, PUBLIC) as client:
            learner = worker.OfPredictions(client, students[number - 1])
            worker.run(client, learner, 2, tmp_path)
            after[number] = learner.student

    waiting = [in_background(partial(work, number)) for number in (1, 2, 3)]
    published = []
    with Coordinator.from_config(str(pair.folder / "coordinator.toml")) as coordinator:
        for _ in range(2):
            published.append(coordinator.result(coordinator.open_round(params)))
    for wait in waiting:
        wait()
    for number, labels in enumerate(published, 1):
        sent = [one.sent(number) for one in students]
        for client, own in enumerate(sent, 1):
            recorded = np.load(tmp_path / f"round-{number}-client-{client}.npy")
            assert np.array_equal(recorded, own.reshape(-1))
        assert np.array_equal(labels, median_labels(sent))
        students = [one.after(labels.reshape(-1, CLASSES), number) for one in students]
    for number, one in enumerate(students, 1):
        assert np.array_equal(after[number].vector, one.vector)
    assert all(accuracy(one) > least for one, least in zip(students[:2], before, strict=False))


class Killed(BaseException):
    """A worker is killed: nothing is stored any more."""


def killing(true: Callable[..., Any], turns: int) -> Callable[..., Any]:
    """Return a function that this thread dies of after so many turns; others call the true one."""
    here, left = threading.current_thread(), iter(range(turns))

    def either(*given: Any) -> Any:
        if threading.current_thread() is here and next(left, None) is None:
            raise Killed
        return true(*given)

    return either


# in which function it dies: when it would learn from its first result, or wait for its second round
@pytest.mark.parametrize(
    ("owner", "name", "turns"), [(Student, "after", 0), (Client, "wait_for_round", 1)]
)
def test_a_worker_that_was_killed_goes_on_with_its_network(
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    owner: type,
    name: str,
    turns: int,
) -> None:
    """It does not warm up again, and learns from the result that it had not learnt from."""
    PUBLIC.save(tmp_path / "public")
    # with a state folder of its own
    text = (pair.folder / "client-1.toml").read_text()
    assert text.count('state_dir = "') == 1
    path = pair.folder / f"client-1-{name}.toml"
    path.write_text(text.replace('state_dir = "', f'state_dir = "{name}-'))
    toml = str(path)
    arguments = [toml, "--part", "1/3", "--images", "60", "--warm-up", "2"]
    arguments += ["--public", str(tmp_path / "public")]
    students = [student(number) for number in range(3)]

    def work(number: int) -> None:
        config = ClientConfig.load(pair.folder / f"client-{number}.toml")
        quick = replace(config, state_dir="", wait_timeout_s=WAIT_S, poll_interval_s=0.05)
        with Client(quick, PUBLIC) as client:
            worker.run(client, worker.OfPredictions(client, students[number - 1]), 2, tmp_path)

    params = RoundParams(
        Radix(encoding="unit", word_bits=8),
        dim=200 * CLASSES,
        max_clients=3,
        exchange=Predictions(PUBLIC.digest, CLASSES),
    )
    parser = argparse.ArgumentParser()
    worker_options.add_worker_options(parser)
    options = parser.parse_args([*arguments, "--rounds", "1"])
    trainer = worker.trainer(options, public=PUBLIC)
    with Coordinator.from_config(str(pair.folder / "coordinator.toml")) as coordinator:
        first = coordinator.open_round(params)
        waiting = [in_background(partial(work, number)) for number in (2, 3)]
        with monkeypatch.context() as patch, Client.from_config(toml, public=PUBLIC) as client:
            patch.setattr(owner, name, killing(getattr(owner, name), turns))
            with pytest.raises(Killed):
                worker.take_part(client, trainer, parser.parse_args(arguments))
        labels = coordinator.result(first).reshape(-1, CLASSES)
        assert np.array_equal(labels.reshape(-1), median_labels([s.sent(1) for s in students]))
        second = coordinator.open_round(params)
        number = number_of(second)
        # the student that was not killed
        expected = students[0].after(labels, number_of(first))
        starts: list[int] = []
        start = Student.start

        def noting(trainer: Trainer, inputs: np.ndarray, warm_up: int) -> Student:
            starts.append(warm_up)
            return start(trainer, inputs, warm_up)

        monkeypatch.setattr(Student, "start", noting)
        with Client.from_config(toml, public=PUBLIC) as client:
            worker.take_part(client, trainer, options, tmp_path)
        for wait in waiting:
            wait()
        coordinator.result(second)
        assert starts == [0]
        sent = np.load(tmp_path / f"round-{number}-client-1.npy")
        assert np.array_equal(sent, expected.sent(number).reshape(-1))
        learnt = capsys.readouterr().out.count("learnt from 200 public images")
        # two of each
        assert learnt == 6
        # the kept student is of another seed
        other = replace(trainer, seed=(2, 0))
        with Client.from_config(toml, public=PUBLIC) as client:
            worker.resume(client, other, PUBLIC.inputs, 1)
        assert starts == [0, 1]


def median_labels(sent: list[np.ndarray]) -> np.ndarray:
    """Return the labels (d,) of three clients' predictions, in numpy."""
    median = np.sort(np.rint(np.array(sent, np.float64) * 255), axis=0)[1] / 255
    sums = median.sum(axis=1, keepdims=True)
    want = np.where(sums > 0, median / np.where(sums > 0, sums, 1), 1 / CLASSES)
    return want.astype(np.float32).reshape(-1)
