"""The Python interface and the verbs `round`, `submit` and `train`, against running daemons."""

import json
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients import files
from securemedian.clients.client import Client
from securemedian.clients.upload import RangeWarning
from securemedian.coordinator.coordinator import Coordinator
from securemedian.laboratory import plaintext
from securemedian.mpc.errors import RoundFailed
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uneven import FollowRange
from tests.conftest import needs
from tests.daemons import WAIT_S, Pair, in_background

pytestmark = pytest.mark.slow

UPDATES = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
START = np.zeros(50, np.float32)


def test_everybody_can_compute_the_next_buckets(pair: Pair) -> None:
    """Run three default rounds: `next` of the published scale is S0's next one."""
    params = RoundParams(Bucketed(), dim=50, max_clients=3)
    rng = np.random.default_rng(5)
    with Coordinator.from_config(pair.toml("coordinator")) as coordinator:
        clients = [Client.from_config(pair.toml(name)) for name in pair.names]
        scale = FollowRange().start()
        for number in (1, 2, 3):
            round_id = coordinator.open_round(params, START if number == 1 else None)
            rounds = [client.wait_for_round(WAIT_S) for client in clients]
            current = rounds[0]
            assert current.model is not None and current.scale is not None
            assert current.policy == FollowRange() and current.number == number
            assert np.array_equal(current.scale, scale) and current.scale.shape == scale.shape
            # the third round's values lie far beyond the buckets
            reach = 0.1 if number < 3 else 1e5
            updates = current.model + reach * np.abs(rng.normal(1, 0.1, (3, 50)))
            updates = updates.astype(np.float32)
            for client, update in zip(clients, updates, strict=True):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    client.submit(update)
                found = [one for one in caught if issubclass(one.category, RangeWarning)]
                assert len(found) == (number == 3)
                # it points at the line that submitted
                assert all(Path(one.filename).name == Path(__file__).name for one in found)
            (expected,) = plaintext.published(updates, params, current.published)
            result = coordinator.result(round_id)
            assert np.array_equal(result, expected)
            assert coordinator.status(round_id).outermost == (50 if number == 3 else 0)
            scale = current.next_scale(result)
        for client in clients:
            client.close()


def test_a_round_by_verbs_alone(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coordinator = pair.toml("coordinator")
    files.write(tmp_path / "start.npy", START)
    options = f"--max-clients 3 --model {tmp_path}/start.npy --ring-bits 32 --fraction-bits 16"
    assert cli.main(["round", "open", coordinator, "pairwise", *options.split()]) == 0
    round_id = capsys.readouterr().out.strip()
    for name, update in zip(pair.names, UPDATES, strict=True):
        files.write(tmp_path / f"{name}.npz", {"a": update[:20], "b": update[20:]})

    def submit(name: str) -> None:
        update, result = (str(tmp_path / f"{name}{end}.npz") for end in ("", "-result"))
        assert cli.main(["submit", pair.toml(name), update, "--result", result]) == 0

    for join in [in_background(partial(submit, name)) for name in pair.names]:
        join()
    assert cli.main(["round", "result", coordinator, str(tmp_path / "result.npy")]) == 0
    assert "left out" not in capsys.readouterr().err
    result = files.read_models(tmp_path / "result.npy")
    assert np.array_equal(
        result,
        plaintext.published(
            UPDATES,
            RoundParams(Pairwise(ring_bits=32, fraction_bits=16), dim=50, max_clients=3),
            Published(),
        )[0],
    )
    for name in pair.names:
        back = files.read(tmp_path / f"{name}-result.npz")
        assert isinstance(back, dict)
        assert np.array_equal(np.concatenate([back["a"], back["b"]]), result)
    capsys.readouterr()
    assert cli.main(["round", "status", coordinator, "--round", round_id]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], sorted(status["included"])) == ("published", pair.names)


def test_close_and_abort(pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    coordinator = pair.toml("coordinator")
    options = "pairwise --max-clients 3 --dim 50 --reset"
    opening = ["round", "open", coordinator, *options.split()]
    assert cli.main(opening) == 0
    with Client.from_config(pair.toml(pair.names[0])) as client:
        client.submit(UPDATES[0])
        assert cli.main(["round", "abort", coordinator, "--reason", "wrong data"]) == 0
        with pytest.raises(RoundFailed, match="wrong data"):
            client.result()
        assert cli.main(["round", "close", coordinator]) == 2
        assert "cannot be closed" in capsys.readouterr().err
        assert cli.main(opening) == 0
        with Client.from_config(pair.toml(pair.names[1])) as other:
            client.submit(UPDATES[0])
            other.submit(UPDATES[1])
            assert cli.main(["round", "close", coordinator]) == 0
            # the lower median of two
            assert np.allclose(client.result(), np.minimum(UPDATES[0], UPDATES[1]), atol=1e-6)
        reason = "its upload reached neither server"
        round_id = str(pair.status()["round"])
        assert client.left_out(round_id) == {pair.names[2]: reason}
    capsys.readouterr()
    assert cli.main(["round", "result", coordinator, str(tmp_path / "result.npy")]) == 0
    error = capsys.readouterr().err
    assert f"left out of round {round_id}: {pair.names[2]}: {reason}\n" in error


def test_workers_go_on_from_a_result_that_only_they_know(pair: Pair, tmp_path: Path) -> None:
    needs("torch", "sklearn")
    from securemedian.laboratory import data, models
    from securemedian.laboratory.worker import OfModels, Trainer, run

    digits = data.load(None)
    start = models.start(models.MODELS["digits"], 1)
    params = RoundParams(
        Pairwise(ring_bits=32, fraction_bits=20, result_to="clients"), dim=start.size, max_clients=3
    )
    trainers = [Trainer.of_part(digits, index, 3, seed=1, images=40) for index in range(3)]

    def work(name: str, trainer: Trainer) -> None:
        with Client.from_config(pair.toml(name)) as client:
            run(client, OfModels(trainer), rounds=2, record=tmp_path)

    def coordinate() -> None:
        with Coordinator.from_config(pair.toml("coordinator")) as coordinator:
            for model in (start, None):
                coordinator.open_round(params, model)
                pair.wait("published")

    works = [partial(work, *one) for one in zip(pair.names, trainers, strict=True)]
    for join in [in_background(coordinate), *map(in_background, works)]:
        join()
    first, second = (
        np.stack([np.load(tmp_path / f"round-{number}-{name}.npy") for name in pair.names])
        for number in (1, 2)
    )
    (middle,) = plaintext.published(first, params, Published())
    assert np.array_equal(second, np.stack([trainer.update(middle, 2) for trainer in trainers]))
