"""People's first lines at the Python interface: each is taken, or refused with the right line."""

from typing import Any

import pytest

from securemedian import Bucketed, RoundParams
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.methods.registry import METHODS

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
