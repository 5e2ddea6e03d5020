"""Optimisers: against plain Python, over rounds, on disk, through requests and from flags."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients import flags
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.rounds.encode import to_fixed
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.optimiser import (
    OPTIMISERS,
    Adam,
    Momentum,
    NoOptimiser,
    optimiser_from,
)
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.rounds.runs import begin
from securemedian.servers.storage.store import Store

DIM = 6
MODEL = np.array([1.0, -2.0, 3.0, 0.0, 1e6, -1e-6], np.float32)
PAIRWISE = RoundParams(Pairwise(ring_bits=64, fraction_bits=16), dim=DIM, max_clients=3)


def results(rounds: int) -> list[np.ndarray]:
    """Return what rounds publish: each is far enough from 0 that no sign changes."""
    rng = np.random.default_rng(1)
    return [(MODEL * rng.uniform(0.9, 1.1, DIM)).astype(np.float32) for _ in range(rounds)]


def model_of(state: RunState) -> np.ndarray:
    assert state.model is not None
    return state.model


def test_none_is_the_result() -> None:
    state = RunState(model=MODEL)
    for result in results(3):
        state = state.after(result)
        assert np.array_equal(model_of(state), result)


def test_momentum_as_in_plain_python() -> None:
    state = RunState(model=MODEL, optimiser=Momentum(rate=0.5, decay=0.8))
    model, velocity = MODEL.tolist(), [0.0] * DIM
    for result in results(4):
        state = state.after(result)
        for k in range(DIM):
            velocity[k] = 0.8 * velocity[k] + (float(result[k]) - model[k])
            model[k] += 0.5 * velocity[k]
        assert np.allclose(model_of(state), model, rtol=1e-5, atol=0)
        assert state.moments is not None and state.moments.dtype == np.float32
        assert np.allclose(state.moments[0], velocity, rtol=1e-4, atol=1e-12)


def test_adam_as_in_plain_python() -> None:
    adam = Adam(rate=1e-7, decay=0.7, second_decay=0.9, floor=1e-2)
    state = RunState(model=MODEL, optimiser=adam)
    model, mean, square = MODEL.tolist(), [0.0] * DIM, [0.0] * DIM
    for result in results(4):
        state = state.after(result)
        for k in range(DIM):
            movement = float(result[k]) - model[k]
            mean[k] = 0.7 * mean[k] + 0.3 * movement
            square[k] = 0.9 * square[k] + 0.1 * movement**2
            model[k] += 1e-7 * mean[k] / (math.sqrt(square[k]) + 1e-2)
            model[k] = float(np.float32(model[k]))
        assert np.allclose(model_of(state), model, rtol=1e-6, atol=1e-12)
        assert state.moments is not None
        assert np.allclose(state.moments, [mean, square], rtol=1e-4, atol=1e-12)


def test_momentum_goes_beyond_the_result_but_not_through_zero() -> None:
    """A running variance that falls at all clients stays positive, a weight may turn with them."""
    momentum, model = Momentum(), np.array([1.0, 1.0, -1.0, 1.0, 1.0, 0.0], np.float32)
    moments = np.array([[-0.5, -2.0, 2.0, -2.0, 2.0, -2.0]], np.float32)
    result = np.array([0.9, 0.5, -0.5, -0.5, -0.5, 0.5], np.float32)
    after, _ = momentum.next(moments, model, result)
    assert after[0] == pytest.approx(1 - 0.45 - 0.1)
    assert after[1:3].tolist() == [0.5, -0.5]
    # these have turned their sign in the result already, or had none
    assert after[3:] == pytest.approx([1 - 1.8 - 1.5, 1 + 1.8 - 1.5, -1.8 + 0.5])


def test_the_scale_follows_the_result_and_the_buckets_the_model() -> None:
    params = RoundParams(Bucketed(buckets=16), dim=DIM, max_clients=3)
    first = begin(RunState(), params, {}, False, MODEL, {"optimiser": "momentum"})
    other = begin(RunState(), params, {}, False, MODEL)
    index = np.array([[0, 3, 7, 8, 12, 15]])
    for number in (1, 2):
        after, published = finish(first, params, PublicValues(index), 3)
        plain, same = finish(other, params, PublicValues(index), 3)
        if number == 1:
            # the first step of momentum is the movement itself
            assert np.array_equal(published, same)
            assert np.array_equal(model_of(after), published[0])
        else:
            moved = published[0] - model_of(first)
            assert np.count_nonzero(model_of(after) != published[0]) >= DIM - 1
            assert np.array_equal(published[0] - model_of(other), moved)
        assert np.array_equal(after.scale, plain.scale)
        first, other = after, plain


def test_what_a_round_keeps_changes_or_refuses() -> None:
    momentum = {"optimiser": "momentum", "decay": 0.5}
    first = begin(RunState(), PAIRWISE, {}, False, MODEL, momentum)
    assert (first.optimiser, first.moments) == (Momentum(decay=0.5), None)
    values = PublicValues(to_fixed(MODEL + 1, 64, 16)[None])
    after = finish(first, PAIRWISE, values, 3)[0]
    assert after.moments is not None and after.moments.shape == (1, DIM)
    assert begin(after, PAIRWISE, {}, False, None) is after
    # the same kind goes on; another begins again, and so does a new run
    faster = begin(after, PAIRWISE, {}, False, None, {"optimiser": "momentum"})
    assert faster.optimiser == Momentum() and faster.moments is after.moments
    assert begin(after, PAIRWISE, {}, False, None, {"optimiser": "adam"}).moments is None
    assert begin(after, PAIRWISE, {}, True, None).optimiser == NoOptimiser()
    private = RoundParams(
        Pairwise(ring_bits=64, fraction_bits=16, result_to="clients"), dim=DIM, max_clients=3
    )
    with pytest.raises(ConfigError, match="only the clients learn"):
        begin(after, private, {}, False, None)
    assert begin(after, private, {}, False, None, {"optimiser": "none"}).number == 2


def test_the_moments_survive_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    state = RunState(model=MODEL, optimiser=Adam(rate=0.5)).after(MODEL + 1)
    loaded = store.read_run(store.write_run(state))
    store.close()
    assert loaded.optimiser == state.optimiser and loaded.moments is not None
    one, two = loaded.after(MODEL), state.after(MODEL)
    assert np.array_equal(model_of(one), model_of(two))
    assert one.moments is not None and two.moments is not None
    assert np.array_equal(one.moments, two.moments) and one.moments.all()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([], "not a table"),
        ({"optimiser": "sgd"}, "'sgd'; take one of none, momentum, adam"),
        ({"optimiser": "none", "rate": 1.0}, "rate, which belongs to momentum and adam"),
        ({"optimiser": "momentum", "floor": 1.0}, "invalid option of momentum: floor"),
        ({"optimiser": "momentum", "rate": 0}, "invalid optimiser rate: .*; give a number above 0"),
        (
            {"optimiser": "momentum", "rate": float("nan")},
            "invalid optimiser rate: .*; give a number above 0",
        ),
        (
            {"optimiser": "momentum", "decay": 1.0},
            "invalid optimiser decay: 1.0; give a number from 0 to below 1",
        ),
        ({"optimiser": "adam", "second_decay": -0.1}, "invalid optimiser second_decay"),
        ({"optimiser": "adam", "floor": 0}, "invalid optimiser floor: .*; give a number above 0"),
        ({"optimiser": "adam", "speed": 1}, "unknown speed"),
    ],
)
def test_what_is_no_optimiser(values: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        optimiser_from(values)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_flags_and_messages_name_the_same(name: str) -> None:
    parser = argparse.ArgumentParser()
    flags.add_optimiser(parser)
    assert flags.optimiser_table(parser.parse_args([])) == {}
    named = flags.optimiser_table(parser.parse_args(["--optimiser", name]))
    assert optimiser_from(named) == OPTIMISERS[name]()
    assert optimiser_from(OPTIMISERS[name]().to_dict()) == OPTIMISERS[name]()
    given = parser.parse_args(["--optimiser", "adam:second-decay=0.5"])
    assert optimiser_from(flags.optimiser_table(given)) == Adam(second_decay=0.5)
