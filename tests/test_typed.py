"""People's first lines at the Python interface: each is taken, or refused with the right line."""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian import Bucketed, RoundParams
from securemedian.clients.config import ClientConfig
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.operating import keygen

SIZE: dict[str, Any] = {"dim": 5, "max_clients": 3}


def test_a_method_is_taken_by_its_name() -> None:
    given: Any = "bucketed"
    made = RoundParams(method=given, **SIZE)
    assert made == RoundParams(Bucketed(), **SIZE)
    assert made.digest == RoundParams.from_dict({"method": "bucketed", **SIZE}).digest


@pytest.mark.parametrize("given", ["median", 3, None, Bucketed])
def test_anything_else_is_refused_with_the_line(given: Any) -> None:
    said = (
        "invalid method: .*; take one of bucketed"
        if given == "median"
        else r"as in RoundParams\(Radix\(\)"
    )
    with pytest.raises(ConfigError, match=said):
        RoundParams(method=given, **SIZE)


def test_a_method_that_needs_options_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def needy(*, validator: str) -> None: ...

    monkeypatch.setitem(METHODS, "needy", needy)
    given: Any = "needy"
    with pytest.raises(
        ConfigError, match=r"method without its options: 'needy'; write needy\(..\)"
    ):
        RoundParams(method=given, **SIZE)


PARTS = [np.ones((2, 2), np.float32), np.full(1, 2, np.float32)]
FLAT = [1, 1, 1, 1, 2]


@pytest.mark.parametrize(
    "model",
    [
        SimpleNamespace(state_dict=lambda: OrderedDict(w=PARTS[0], b=PARTS[1])),
        {"w": PARTS[0], "b": PARTS[1]},
        PARTS,
        np.array(FLAT, np.float32),
        FLAT,
    ],
)
def test_a_round_is_opened_with_a_model_in_any_form(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any
) -> None:
    keygen.make(tmp_path, ["a", "b", "c"], keygen.network("127.0.0.1", "127.0.0.1", None))
    sent: list[Any] = []

    def ask(op: str, fields: Any = None, arrays: Any = None, **_: Any) -> wire.Message:
        if op == "open":
            sent.append(arrays["model"])
        return wire.Message(op, {"round": "1-00000000", "wire": [2, 3], "release": "1.1.0"})

    with Coordinator(ClientConfig.load(tmp_path / "coordinator.toml")) as coordinator:
        monkeypatch.setattr(coordinator, "ask", ask)
        monkeypatch.setattr("securemedian.coordinator.coordinator.check_known", lambda *_: None)
        coordinator.open_round(RoundParams(Bucketed(), **SIZE), model)
    assert sent[0].dtype == np.float32 and sent[0].tolist() == FLAT
