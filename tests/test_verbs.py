"""The Python interface and the verbs `round`, `submit` and `train`, against running daemons."""

import json
import threading
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
from securemedian.mpc.rounds.ranges.uniform import MeanRange
from tests.conftest import needs
from tests.daemons import WAIT_S, Pair

pytestmark = pytest.mark.slow

UPDATES = np.random.default_rng(1).normal(size=(3, 50)).astype(np.float32)
START = np.zeros(50, np.float32)


def together(functions: list[Callable[[], Any]]) -> list[Any]:
    """Return what the functions return, called at the same time."""
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda i=i, f=f: results.update({i: f()}), daemon=True)
        for i, f in enumerate(functions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(results) == len(functions)
    return [results[i] for i in range(len(functions))]


def toml(pair: Pair, name: str) -> str:
    return str(pair.folder / f"{name}.toml")


def test_a_run_in_python(pair: Pair) -> None:
    params, policy = (
        RoundParams(Bucketed(buckets=8, schedule="scan"), dim=50, max_clients=3),
        MeanRange(4.0, 0.5),
    )
    with Coordinator.from_config(toml(pair, "coordinator")) as coordinator:
        clients = [Client.from_config(toml(pair, name)) for name in pair.names]
        for number in (1, 2):
            round_id = coordinator.open_round(
                params, START if number == 1 else None, policy if number == 1 else None
            )
            published = coordinator.model(round_id)
            for client, update in zip(clients, UPDATES, strict=True):
                client.submit({"w": update.reshape(5, 10), "steps": np.array([number])})
            (expected,) = plaintext.published(UPDATES, params, published)
            assert np.array_equal(coordinator.result(round_id), expected)
            for client in clients:
                result = client.result()
                assert np.array_equal(result["w"], expected.reshape(5, 10))
                assert result["steps"].tolist() == [number]
            assert coordinator.status(round_id).number == number
        for client in clients:
            client.close()


def test_everybody_can_compute_the_next_buckets(pair: Pair) -> None:
    """Run three default rounds: `next` of the published scale is S0's next one."""
    params = RoundParams(Bucketed(), dim=50, max_clients=3)
    rng = np.random.default_rng(5)
    with Coordinator.from_config(toml(pair, "coordinator")) as coordinator:
        clients = [Client.from_config(toml(pair, name)) for name in pair.names]
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
    coordinator = toml(pair, "coordinator")
    files.write(tmp_path / "start.npy", START)
    opening = [
        "round",
        "open",
        coordinator,
        "pairwise",
        "--max-clients",
        "3",
        "--model",
        str(tmp_path / "start.npy"),
        "--ring-bits",
        "32",
    ]
    assert cli.main([*opening, "--fraction-bits", "16"]) == 0
    round_id = capsys.readouterr().out.strip()
    for name, update in zip(pair.names, UPDATES, strict=True):
        files.write(tmp_path / f"{name}.npz", {"a": update[:20], "b": update[20:]})

    def submit(name: str) -> int:
        return cli.main(
            [
                "submit",
                toml(pair, name),
                str(tmp_path / f"{name}.npz"),
                "--result",
                str(tmp_path / f"{name}-result.npz"),
            ]
        )

    assert together([partial(submit, name) for name in pair.names]) == [0, 0, 0]
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
    coordinator = toml(pair, "coordinator")
    opening = [
        "round",
        "open",
        coordinator,
        "pairwise",
        "--max-clients",
        "3",
        "--dim",
        "50",
        "--reset",
    ]
    assert cli.main(opening) == 0
    with Client.from_config(toml(pair, pair.names[0])) as client:
        client.submit(UPDATES[0])
        assert cli.main(["round", "abort", coordinator, "--reason", "wrong data"]) == 0
        with pytest.raises(RoundFailed, match="wrong data"):
            client.result()
        assert cli.main(["round", "close", coordinator]) == 2
        assert "cannot be closed" in capsys.readouterr().err
        assert cli.main(opening) == 0
        with Client.from_config(toml(pair, pair.names[1])) as other:
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
        with Client.from_config(toml(pair, name)) as client:
            run(client, OfModels(trainer), rounds=2, record=tmp_path)

    def coordinate() -> None:
        with Coordinator.from_config(toml(pair, "coordinator")) as coordinator:
            for model in (start, None):
                coordinator.open_round(params, model)
                pair.wait("published")

    together(
        [
            coordinate,
            *(lambda n=n, t=t: work(n, t) for n, t in zip(pair.names, trainers, strict=True)),
        ]
    )
    first, second = (
        np.stack([np.load(tmp_path / f"round-{number}-{name}.npy") for name in pair.names])
        for number in (1, 2)
    )
    (middle,) = plaintext.published(first, params, Published())
    assert np.array_equal(second, np.stack([trainer.update(middle, 2) for trainer in trainers]))
