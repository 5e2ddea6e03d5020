"""`train --save`: each round's result is in the file when the next round begins."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian.clients import rounds
from securemedian.clients.client import Client
from securemedian.clients.upload import Round
from securemedian.laboratory import worker
from securemedian.mpc.errors import RoundFailed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams


class Fake:
    """A client of rounds whose result is their number."""

    def __init__(self, saved: Path, fails: int = 0) -> None:
        self.config, self.public = SimpleNamespace(name="a"), None
        self.report = print
        self._saved, self._fails, self._number = saved, fails, 0
        self.seen: list[list[float] | None] = []

    def rounds(self, count: int | None, lost: Any, all_count: bool) -> Iterator[rounds.Turn]:
        """Yield real turns of this client."""
        client: Any = self
        return Client.rounds(client, count, None, lost, all_count)

    def wait_for_round(self, timeout_s: float | None) -> Round:
        self.seen.append(np.load(self._saved).tolist() if self._saved.exists() else None)
        self._number += 1
        params = RoundParams(Mean(), dim=2, max_clients=3)
        return Round(f"{self._number}-0", self._number, params, 0, np.zeros(2, np.float32))

    def submit(self, *_: object, **__: object) -> None:
        """Take any update."""

    def attend(self, round_id: str) -> None:
        """Wait for nothing: its rounds ask nothing more."""

    def result(self, round_id: str) -> Any:
        if self._number == self._fails:
            raise RoundFailed("too few")
        return np.full(2, self._number, np.float32)


TRAINER: Any = SimpleNamespace(
    model=SimpleNamespace(record_dp=None), update=lambda start, number: start + number
)


def test_each_result_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "model.npy"
    client: Any = Fake(file, fails=2)
    worker.run(client, worker.OfModels(TRAINER, save=file), rounds=3)
    assert client.seen == [None, [1, 1], [1, 1]]
    assert np.load(file).tolist() == [3, 3] and np.load(file).dtype == np.float32
    assert f"round 3: result in {file}" in capsys.readouterr().out


def test_without_it_no_result_is_waited_for(tmp_path: Path) -> None:
    client: Any = Fake(tmp_path / "none.npy", fails=1)
    worker.run(client, worker.OfModels(TRAINER), rounds=1)
    assert not list(tmp_path.iterdir())
