"""Values that a method would cut: an error before the upload, or cut with a warning."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import Client, Coordinator, RangeWarning, RoundParams, cli
from securemedian.benchmarks import forecast
from securemedian.clients import files
from securemedian.clients.config import ClientConfig
from securemedian.clients.upload import Round, check_range
from securemedian.mpc.errors import InputError
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.methods.base import Method, Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zeno import Zeno
from tests.daemons import Pair

FIXED = Radix(encoding="fixed", word_bits=32, fraction_bits=16)
# the values that 1.0.0 published for three clients that agreed on 1e10, d = 2
CUT: list[tuple[Method, float]] = [
    (Pairwise(), 8_589_934_592.0),
    (TrimmedMean(), 2_147_483_648.0),
    (FIXED, 16_384.0),
]


@pytest.mark.parametrize(("method", "bound"), CUT, ids=lambda one: getattr(one, "name", ""))
def test_the_range_is_where_values_begin_to_be_cut(method: Method, bound: float) -> None:
    """The bound is compared with what `encode` and `decode` make of values around it."""
    params = RoundParams(method, dim=2, max_clients=3)
    taken = params.value_range
    assert taken and (taken.low, taken.high) == (-bound, bound)
    inside = np.array([-bound, np.nextafter(bound, 0)])
    assert not taken.outside(inside, None).any()
    beyond = np.array([np.nextafter(-bound, -np.inf), bound])
    assert taken.outside(beyond, None).all()
    assert taken.outside(np.array([np.nan, np.inf]), None).tolist() == [False, True]
    words = method.encode(np.array([bound, 1e10]), 3, Published(None))
    assert words[0][0] == words[0][1]


def test_the_range_depends_on_the_values_and_clients() -> None:
    wide = RoundParams(TrimmedMean(), dim=1_000_000, max_clients=50).value_range
    assert wide and wide.high == 262_144
    medians = RoundParams(Pairwise(), dim=1_000_000, max_clients=50).value_range
    assert medians and medians.high == 2**24


@pytest.mark.parametrize("name", METHODS)
def test_every_method_cuts_only_what_its_range_has_not(name: str) -> None:
    """A value just inside comes back unchanged; without a range, none is refused."""
    options: dict[str, Any] = {"zeno": {"validator": "v"}, "mean": {"norm_bound": "off"}}.get(
        name, {}
    )
    params = RoundParams(METHODS[name](**options), dim=8, max_clients=6)
    if (taken := params.value_range) is None:
        assert name in ("bucketed", "krum", "zeno")
        return
    vector = np.full(8, np.nextafter(np.float32(taken.high), np.float32(0)), np.float64)
    vector[::2] = taken.low
    published = Published(np.zeros(8, np.float32))
    assert not taken.outside(vector, published.model).any()
    # the first vote of zoom has the first digits alone
    encode = getattr(params.method, "words", lambda v: params.method.encode(v, 6, published))
    # the next step of the fixed point has another word
    assert (encode(vector) != encode(vector * 0.999)).all()


def test_ranges_of_other_encodings() -> None:
    def range_of(method: Method) -> str:
        return str(RoundParams(method, dim=4, max_clients=4).value_range)

    assert range_of(Radix()) == "values from -3.40282e+38 to 3.40282e+38"
    assert range_of(Radix(encoding="bfloat16")) == "values from -3.38953e+38 to 3.38953e+38"
    assert range_of(Radix(encoding="unit")) == "values from 0 to 1"
    assert range_of(FIXED) == "values from -16,384 to below 16,384"
    assert range_of(Reclustered(clusters=2)).startswith("differences to the model from -")
    for cuts_on_purpose in (Bucketed(), Mean(), Krum(), Zeno(validator="v")):
        assert range_of(cuts_on_purpose) == "None"
    infinite = RoundParams(Radix(), dim=2, max_clients=2).value_range
    assert infinite and not infinite.outside(np.array([np.inf, -np.inf]), None).any()
    assert infinite.outside(np.array([1e39]), None).all()
    predictions = Predictions(public_set="0" * 64, classes=2)
    params = RoundParams(Radix(encoding="unit"), dim=4, max_clients=4, exchange=predictions)
    assert params.value_range is None


def test_a_difference_counts_where_differences_are_shared() -> None:
    params = RoundParams(Reclustered(clusters=2), dim=2, max_clients=4)
    taken = params.value_range
    assert taken
    model = np.full(2, 2 * taken.high, np.float32)
    assert not taken.outside(model + 1.0, model).any()
    assert taken.outside(model + 1.0, None).all()
    current = Round("1-0123abcd", 1, params, 0, model=model)
    check_range(model + 1.0, current, str, saturate=False)
    with pytest.raises(InputError, match="differences to the model"):
        check_range(np.zeros(2), current, str, saturate=False)


@pytest.mark.slow
def test_a_value_that_would_be_cut_is_an_error(pair: Pair) -> None:
    method, bound = CUT[-1]
    params = RoundParams(method, dim=2, max_clients=3)
    config = str(pair.folder / "coordinator.toml")
    update = {"w": np.ones(1), "bn.running_var": np.array([1e10])}
    made = [
        Client(replace(ClientConfig.load(pair.folder / f"client-{number}.toml"), state_dir=""))
        for number in (1, 2, 3)
    ]
    with Coordinator.from_config(config) as coordinator:
        round_id = coordinator.open_round(params, reset=True)
        for client in made:
            with pytest.raises(
                InputError, match=rf"1e\+10 in 'bn.running_var'.*below {bound:,.0f}"
            ):
                client.submit(update)
        assert {*pair.status()["clients"].values()} == {"none"}
        for number, client in enumerate(made):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                # by the call, or by the configuration
                client.config = replace(client.config, saturate=number > 0)
                client.submit(update, saturate=None if number else True)
            (warned,) = [one for one in caught if one.category is RangeWarning]
            assert "they are cut to it" in str(warned.message)
        result = made[0].result(round_id)
        assert result["w"].tolist() == [1]
        assert result["bn.running_var"][0] == pytest.approx(bound, rel=1e-6)
        with pytest.raises(InputError, match=f"in 1 values: .*below {bound:,.0f}"):
            coordinator.open_round(params, np.array([1.0, -1e10]))
    for client in made:
        client.close()


def test_plan_prints_ranges_and_leaves_out_what_cannot_hold_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = Bucketed(), Pairwise(), Pairwise(), FIXED
    asked = [RoundParams(method, dim=2, max_clients=3) for method in methods]
    assert forecast.ranges(asked) == [
        "pairwise: values from -8,589,934,592 to below 8,589,934,592",
        "radix fixed: values from -16,384 to below 16,384",
    ]
    monkeypatch.setattr(forecast, "seconds_per_byte", lambda: 1e-9)
    files.write(tmp_path / "start.npy", np.array([1.0, 1e10]))
    plan = ["plan", "--clients", "3", "--model", str(tmp_path / "start.npy")]
    assert cli.main([*plan, "pairwise"]) == 2
    assert "1e+10 at index 1. With 2 values and 3 clients" in capsys.readouterr().err
