"""The contract of both plug-ins: faults in a training that either framework must survive.

A test module of a framework derives a class from `Contract`, and says how a training runs there.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import ConfigError
from securemedian.plugins.rounds import Arrays
from tests.daemons import Pair

# gets a client's number and a model, and returns what it trains
Train = Callable[[int, Arrays], Arrays]

START: Arrays = {
    "w": np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3),
    "steps": np.array([7], np.int64),
    "b": np.zeros(2, np.float64),
}
# the update of client 1, 2 and 3, and the median of three
SHIFTS = {1: 0.5, 2: -0.25, 3: 4.0}

# a client's change of the model, and the words of the refusal
UPDATES: list[tuple[Callable[[Arrays], Arrays], str]] = [
    (lambda m: m | {"w": m["w"] * np.float32(np.nan)}, "the update is not finite: 6 NaN"),
    (lambda m: m | {"w": m["w"].T}, r"'w' was sent as float32 \(2, 3\) and came back as"),
]
# a client's configuration, and the words of the refusal
CONFIGURATIONS = [
    ("", "name its own client.toml"),
    ("/nowhere/client.toml", "/nowhere/client.toml"),
    ("{keys}/client-1.toml", "Two nodes may use the same keys: client-1"),
    ("{keys}/coordinator.toml", "'round' is for a client"),
    ("{keys}/away.toml", "could not be reached: no answer within 0.5 s"),
]


def shifted(client: int, model: Arrays) -> Arrays:
    """Return the model that a client has trained. BatchNorm's counters are whole numbers."""
    return {
        "w": model["w"] + np.float32(SHIFTS[client]) * np.arange(6, dtype=np.float32).reshape(2, 3),
        "steps": model["steps"] + client,
        "b": model["b"] - SHIFTS[client],
    }


def fails_on(*clients: int, until: int = 99) -> Train:
    """Return a training that raises at some clients in their first `until` rounds."""
    called = dict.fromkeys(clients, 0)

    def train(client: int, model: Arrays) -> Arrays:
        if client in called:
            called[client] += 1
            if called[client] <= until:
                raise RuntimeError(f"no memory at {client}")
        return shifted(client, model)

    return train


def nothing_is_open(pair: Pair) -> bool:
    return pair.status()["state"] in ("published", "failed", "none")


def included(pair: Pair) -> list[str]:
    """Return the clients in the latest result. Servers name them in the order of keys."""
    return sorted(pair.status()["included"])


@dataclass
class Ran:
    """A training that has ended, and why, if it was not after its last round."""

    model: Arrays
    reason: str
    # the clients whose training was called, in order
    trained: list[int]


def noting(train: Train) -> tuple[list[int], Train]:
    """Return a list, and a training like `train` that adds each client's number to it."""
    trained: list[int] = []

    def noted(number: int, model: Arrays) -> Arrays:
        trained.append(number)
        return train(number, model)

    return trained, noted


class Contract:
    """The tests that each plug-in passes with its own framework."""

    # the question to a user whose clients have not submitted
    HINT = ""

    def run(
        self,
        pair: Pair,
        folder: Path,
        train: Train = shifted,
        rounds: int = 1,
        of_third: str | None = None,
        coordinator: str = "",
        **options: Any,
    ) -> Ran:
        """Train with three clients, the third with the configuration `of_third`."""
        raise NotImplementedError

    def secure(self, coordinator: str, **options: Any) -> Any:
        """Return the plug-in's part at the framework's server."""
        raise NotImplementedError

    def test_a_client_whose_training_fails_is_left_out_without_waiting_for_it(
        self, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            ran = self.run(pair, tmp_path, fails_on(3), deadline_s=3600)
        lower = np.minimum(shifted(1, START)["w"], shifted(2, START)["w"])
        assert np.array_equal(ran.model["w"], lower)
        assert included(pair) == ["client-1", "client-2"]
        assert "without client-3 (its upload reached neither server)" in caplog.text
        assert "no memory at 3" in caplog.text

    def test_too_few_updates_stop_the_training_with_the_reason(
        self, pair: Pair, tmp_path: Path
    ) -> None:
        ran = self.run(pair, tmp_path, fails_on(3), 2, min_clients=3)
        assert "2 complete uploads, and s0 asks for at least 3" in ran.reason
        # the clients that submitted have the plug-in
        assert self.HINT not in ran.reason
        assert ran.trained.count(1) == 1
        assert nothing_is_open(pair)

    def test_a_round_without_a_result_is_skipped_on_request(
        self, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        train = fails_on(3, until=1)
        ran = self.run(pair, tmp_path, train, 2, min_clients=3, on_failure="skip")
        assert "at least 3" in caplog.text and "the model stays as it is" in caplog.text
        # the second round trained from the start model
        assert np.array_equal(ran.model["b"], START["b"] - 0.5)

    @pytest.mark.parametrize(("change", "said"), UPDATES)
    def test_a_wrong_update_is_refused_at_the_client(
        self,
        change: Callable[[Arrays], Arrays],
        said: str,
        pair: Pair,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        self.run(pair, tmp_path, lambda n, m: change(m) if n == 2 else shifted(n, m))
        assert included(pair) == ["client-1", "client-3"]
        assert re.search(said, caplog.text)

    def test_the_order_of_names_is_the_models(self, pair: Pair, tmp_path: Path) -> None:
        ran = self.run(pair, tmp_path, lambda n, m: dict(reversed(shifted(n, m).items())))
        assert np.array_equal(ran.model["w"], shifted(1, START)["w"])

    @pytest.mark.parametrize(("config", "said"), CONFIGURATIONS)
    def test_a_clients_mistake_is_one_message(
        self,
        config: str,
        said: str,
        pair: Pair,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        pair.away("client-3")
        ran = self.run(pair, tmp_path, of_third=config.replace("{keys}", str(pair.folder)))
        assert said in caplog.text
        assert included(pair) == ["client-1", "client-2"]
        # a fault that can be found before hours of training is found before
        assert (3 in ran.trained) == ("Two nodes" in said)

    def test_a_clients_own_policy_refuses_before_it_trains(
        self, pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        own = str(pair.with_policy("client-3", 'methods = ["bucketed"]'))
        with caplog.at_level(logging.INFO):
            ran = self.run(pair, tmp_path, of_third=own)
        assert sorted(ran.trained) == [1, 2] and included(pair) == ["client-1", "client-2"]
        assert "client-3 refuses method radix: its [policy] allows only bucketed" in caplog.text
        why = "its own policy refuses the round"
        assert f"without client-3 ({why})" in caplog.text
        for server in ("s0", "s1"):
            assert pair.status(server)["left_out"] == {"client-3": why}

    def test_wrong_options_are_refused_before_the_training(self, pair: Pair) -> None:
        with pytest.raises(ConfigError, match="invalid option of bucketed: trim"):
            self.secure(str(pair.folder / "coordinator.toml"), options={"buckets": 8, "trim": 0.1})

    def test_layers_stay_with_their_clients(self, pair: Pair, tmp_path: Path) -> None:
        """Each client trains from its own `b`, which nobody else gets."""
        seen: list[tuple[int, float]] = []

        def train(client: int, model: Arrays) -> Arrays:
            seen.append((client, float(model["b"][0])))
            return shifted(client, model)

        ran = self.run(pair, tmp_path, train, 2, keep_local=["b"])
        assert sorted(seen[:3]) == [(1, 0.0), (2, 0.0), (3, 0.0)]
        assert sorted(seen[3:]) == [(client, -SHIFTS[client]) for client in (1, 2, 3)]
        # the framework keeps those that it began with, and the median of the rest
        assert np.array_equal(ran.model["b"], START["b"])
        assert np.allclose(ran.model["w"], shifted(1, shifted(1, START))["w"])
        assert pair.status()["params"]["dim"] == START["w"].size

    def test_servers_that_are_away_end_the_training_or_the_round(
        self, pair: Pair, tmp_path: Path
    ) -> None:
        away: dict[str, Any] = {"coordinator": str(pair.away("coordinator")), "wait_s": 0.1}
        ran = self.run(pair, tmp_path / "stop", **away)
        assert "no round could be opened: S0 at tcp://127" in ran.reason and not ran.trained
        ran = self.run(pair, tmp_path / "skip", rounds=2, on_failure="skip", **away)
        assert not ran.reason and np.array_equal(ran.model["w"], START["w"])
