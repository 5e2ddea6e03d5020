"""Rounds of several groups: each group's model follows its own clients, and nobody learns who."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.upload import Round, encode_update
from securemedian.laboratory import plaintext
from securemedian.mpc.arrays import PublicBits, PublicValues
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods import bucketed
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reveal import open_bits
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.optimiser import Momentum
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from securemedian.mpc.rounds.plan import predict
from securemedian.mpc.rounds.ranges.uneven import FollowRange
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.network.control import Open
from securemedian.servers.rounds.runs import begin
from securemedian.servers.storage.store import Store
from tests.parties import make_parties, run_both, run_rounds, shared
from tests.servers_alone import Server

DIM = 300


def start(groups: int, dim: int = DIM) -> RunState:
    """Return a run of some groups, whose models and scales differ."""
    rng = np.random.default_rng(groups)
    runs = [
        RunState(
            CoordinateRange(),
            rng.normal(size=dim).astype(np.float32),
            rng.uniform(15, 40, dim).astype(np.float32),
            3,
        )
        for _ in range(groups)
    ]
    return RunState.of_groups(runs)


def ran(
    params: RoundParams,
    before: RunState,
    updates: NDArray[Any],
    groups: Sequence[int] | NDArray[np.int64],
    protocol: ProtocolParams | None = None,
) -> PublicValues:
    """Run a round in process and return its opened values."""
    labels = list(groups) if params.method.visible else []
    published = before.published_for(params)
    seen = Round("4-a", 4, params, 0, groups=published.groups)
    halves = []
    for update, group in zip(updates, groups, strict=True):
        values = encode_update(update, seen.of_group(group))
        halves.append(shared(params, params.form.in_group(values, group)))
    protocol = protocol or ProtocolParams(lanes=1, chunk=128)
    lanes = make_parties(protocol.lanes)
    one, other = run_both(
        lambda j: run_round(lanes[j], params, protocol, [pair[j] for pair in halves], groups=labels)
    )
    assert np.array_equal(one.values, other.values)
    return PublicValues(one.values)


VISIBLE = [
    Bucketed(buckets=16, groups=3, membership="visible"),
    Bucketed(buckets=8, groups=3, membership="visible", uploads="unverified", schedule="scan"),
    Radix(groups=3, membership="visible"),
    Radix(encoding="buckets", groups=3, membership="visible"),
    TrimmedMean(groups=3, membership="visible", trim=0.3),
]


@pytest.mark.parametrize("method", VISIBLE, ids=lambda method: method.label)
def test_visible_groups_are_a_round_each(method: Method) -> None:
    rng = np.random.default_rng(4)
    chosen = rng.permutation([0] * 5 + [1] * 2 + [2] * 3).tolist()
    updates = rng.normal(size=(10, DIM)) * 4
    params = RoundParams(method, dim=DIM, max_clients=10, min_clients=3)
    before = start(3)
    opened = ran(params, before, updates, chosen, ProtocolParams(lanes=2, chunk=128))
    assert not opened[1].any() and params.published_groups(opened, chosen) == [0, 2]
    after, results = finish(before, params, opened, 10, chosen)
    want = plaintext.published(updates, params, before.published_for(params), groups=chosen)
    assert np.array_equal(results, want)
    assert np.array_equal(results[1], before.groups[1].arrays["model"])
    assert [run.published for run in after.groups] == [4] * 3


@pytest.mark.parametrize(
    ("groups", "buckets", "schedule"),
    [(2, 16, "bisect"), (3, 5, "scan"), (4, 16, "scan"), (16, 3, "bisect")],
)
def test_each_group_gets_the_median_of_its_own_clients(
    groups: int, buckets: int, schedule: str
) -> None:
    rng = np.random.default_rng(buckets)
    # of 1, 2, .. clients, so that some are too few; their order is mixed
    chosen = rng.permutation(np.repeat(np.arange(groups), np.arange(groups) % 4 + 1))
    updates = rng.normal(size=(len(chosen), DIM)) * 4
    updates[:, :50] = rng.choice([-np.inf, 1e30, 0.0, 0.5], (len(chosen), 50))
    method = Bucketed(buckets=buckets, groups=groups, schedule=schedule)
    params = RoundParams(method, dim=DIM, max_clients=len(chosen), min_clients=3)
    before = start(groups)
    opened = ran(params, before, updates, chosen)
    after, results = finish(before, params, opened, len(chosen))
    want = plaintext.published(
        updates, params, before.published_for(params), groups=chosen.tolist()
    )
    assert results.dtype == np.float32 and np.array_equal(results, want)
    enough = [group for group in range(groups) if np.count_nonzero(chosen == group) >= 3]
    assert params.published_groups(opened, chosen.tolist()) == enough
    assert 0 < len(enough) < groups or groups == 2
    for group, (old, new) in enumerate(zip(before.groups, after.groups, strict=True)):
        assert new.published == 4 and new.model is not None and old.model is not None
        assert np.array_equal(new.model, results[group])
        # the model and the range of a group without a result stay
        moved = not np.array_equal(new.scale, old.scale)
        assert moved == (group in enough) == (not np.array_equal(new.model, old.model))


def test_the_lower_median_of_any_number_of_clients_in_a_group() -> None:
    """Try all ties and all sizes: 2 H >= n is H >= ceil(n / 2)."""
    for size in range(1, 8):
        votes = np.array(np.meshgrid(*[[0, 1, 2]] * min(size, 4))).reshape(min(size, 4), -1)
        votes = np.concatenate([votes, np.full((size - len(votes), votes.shape[1]), 1)])
        method = Bucketed(buckets=3, groups=2)
        params = RoundParams(method, dim=votes.shape[1], max_clients=9)
        others = np.full((9 - size, votes.shape[1]), 5)
        halves = [shared(params, row[None]) for row in np.concatenate([votes, others])]
        outcome, _ = run_rounds(make_parties(), params, halves)
        want = np.sort(votes, axis=0)[(size - 1) // 2]
        if size == 1:
            want = np.full_like(want, 3)
        assert np.array_equal(outcome.values[0], want)
        assert (outcome.values[1] == (2 if size < 8 else 3)).all()


def test_a_client_has_one_vote_per_coordinate_whatever_it_votes_for() -> None:
    """A client that votes for another group in every coordinate counts once in each of these."""
    rng = np.random.default_rng(1)
    method = Bucketed(buckets=8, groups=2)
    params = RoundParams(method, dim=DIM, max_clients=5, min_clients=2)
    honest = np.array([rng.integers(0, 8, DIM) + 8 * group for group in (0, 0, 1, 1)])
    astray = np.where(np.arange(DIM) % 2, 7, 8)
    halves = [shared(params, row[None]) for row in [*honest, astray]]
    outcome, _ = run_rounds(make_parties(), params, halves)
    columns = np.array([*honest, astray])
    for group in (0, 1):
        for coordinate, got in enumerate(outcome.values[group]):
            mine = columns[:, coordinate] - 8 * group
            ranked = np.sort(mine[(mine >= 0) & (mine < 8)])
            assert got == ranked[(len(ranked) - 1) // 2]


@pytest.mark.parametrize("schedule", ["scan", "bisect"])
def test_what_is_opened_are_bits_of_the_results_and_who_has_enough(
    schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a group that is too small, or of a size, no opened bit tells anything."""
    opened = []

    def recorded(party: Any, shares: Any, count: int) -> PublicBits:
        bits = open_bits(party, shares, count)
        if party.number == 0:
            opened.append(bits)
        return bits

    monkeypatch.setattr(bucketed, "open_bits", recorded)
    rng = np.random.default_rng(2)
    chosen = [0, 0, 0, 1, 2, 2, 2, 2]
    params = RoundParams(
        Bucketed(buckets=8, groups=3, schedule=schedule), dim=200, max_clients=8, min_clients=3
    )
    before = start(3, 200)
    values = ran(params, before, rng.normal(size=(8, 200)) * 4, chosen, ProtocolParams(lanes=1))
    enough, *rounds = opened
    assert enough.tolist() == [1, 0, 1]
    # a group that is too small is compared as if all its clients were in the first bucket
    result = np.where(values == 8, 0, values).astype(int)
    if schedule == "scan":
        want = result[None] <= np.arange(7)[:, None, None]
        assert np.array_equal(rounds[0].reshape(7, 3, 200), want)
        return
    low = np.zeros_like(result)
    for step, bits in zip((4, 2, 1), rounds, strict=True):
        asked = np.minimum(low + step - 1, 6)
        assert np.array_equal(bits.reshape(3, 200), result <= asked)
        low += np.where(result <= asked, 0, step)


def test_the_size_of_no_message_depends_on_the_groups() -> None:
    params = RoundParams(Bucketed(buckets=8, groups=4), dim=DIM, max_clients=6, min_clients=2)
    costs = set()
    for chosen in ([0] * 6, [0, 1, 2, 3, 3, 3], [1, 1, 2, 2, 3, 3]):
        halves = [shared(params, np.full((1, DIM), 8 * group + 2)) for group in chosen]
        outcome, _ = run_rounds(make_parties(), params, halves)
        cost = outcome.cost
        costs.add((cost.bytes_sent, cost.bytes_received, cost.messages, cost.rounds))
    assert len(costs) == 1


def test_a_round_of_groups_takes_less_than_six_times_one_of_one() -> None:
    params = RoundParams(Bucketed(buckets=8, groups=4), dim=640, max_clients=12)
    single = replace(params, method=Bucketed(buckets=8))
    both = [predict(each, [1] * 12, ProtocolParams()).cost for each in (params, single)]
    assert both[0].ots < 6 * both[1].ots and both[0].bytes_sent < 6 * both[1].bytes_sent


def test_a_ring_holds_the_differences() -> None:
    """-n..n takes one bit more than the counts."""
    RoundParams(Bucketed(buckets=8, groups=2, ring_bits=5), dim=1, max_clients=15)
    assert RoundParams(Bucketed(buckets=8, groups=2), dim=1, max_clients=15).form.ring_bits == 5
    # as many buckets as there may be, of each group
    Bucketed(groups=64, buckets=32, membership="visible")


def test_a_round_begins_and_goes_on_with_a_model_per_group() -> None:
    params = RoundParams(Bucketed(buckets=16, groups=2), dim=4, max_clients=5)
    models = np.arange(8, dtype=np.float32).reshape(2, 4)
    fresh = begin(RunState(), params, {}, False, models, {"optimiser": "momentum"})
    assert [run.model.tolist() for run in fresh.groups if run.model is not None] == models.tolist()
    assert fresh.number == 1 and fresh.optimiser == Momentum()
    assert begin(fresh, params, {}, False, None) is fresh
    values = np.array([[3, 4, 5, 6], [16] * 4], np.uint16)
    after, _ = finish(fresh, params, PublicValues(values), 5)
    gone_on = begin(after, params, {}, False, None)
    assert gone_on is after and after.number == 2
    again = begin(after, params, {}, True, None)
    assert again.number == 1 and again.groups[0].moments is None
    other = begin(after, params, {"policy": "constant", "initial": 2.0}, False, None)
    assert other.policy.name == "constant" and other.number == 2
    assert [run.scale for run in other.groups] == [2.0, 2.0]
    # one model again
    single = RoundParams(Bucketed(buckets=16), dim=4, max_clients=5)
    assert not begin(after, single, {}, False, models[0]).groups


def test_models_that_do_not_fit_the_groups_are_refused() -> None:
    params = RoundParams(Bucketed(buckets=16, groups=2), dim=4, max_clients=5)
    models = np.zeros((2, 4), np.float32)
    kept = begin(RunState(), params, {}, False, models)
    for wrong in (np.zeros(4), np.zeros((3, 4)), np.zeros((2, 3)), np.zeros((2, 4, 1))):
        with pytest.raises(InputError, match=r"global models? "):
            begin(kept, params, {}, False, wrong.astype(np.float32))
    with pytest.raises(ConfigError, match="groups = 2 needs a model for each: 0 are kept"):
        begin(RunState(), params, {}, False, None)
    with pytest.raises(ConfigError, match="groups = 1 needs a model for each: 2 are kept"):
        begin(kept, RoundParams(Bucketed(buckets=16), dim=4, max_clients=5), {}, False, None)
    with pytest.raises(ConfigError, match="1 are kept"):
        begin(kept.groups[0], params, {}, False, None)


def test_groups_are_no_way_around_a_servers_floor(tmp_path: Path) -> None:
    params = RoundParams(Bucketed(groups=2), dim=4, max_clients=6)
    s0 = Server(0, tmp_path, params, min_clients=3)
    fields = {"range": {}, "params": params.to_dict()}
    models = {"model": np.zeros((2, 4), np.float32)}
    refused = s0.ask(s0.coordinator, "open", models, **fields).fields["message"]
    assert "min_clients for each group is below the 3 clients that s0 asks for" in refused
    fields["params"] = replace(params, min_clients=3).to_dict()
    s0.ask(s0.coordinator, "open", models, **fields)
    assert isinstance(s0.sent[-1], Open)


def test_a_run_of_groups_is_stored_and_sent_as_arrays(tmp_path: Path) -> None:
    params = RoundParams(Bucketed(buckets=16, groups=2), dim=4, max_clients=5)
    run = begin(RunState(), params, {}, False, np.ones((2, 4), np.float32), {"optimiser": "adam"})
    # the range of a group without a result is still that of a first round
    values = np.array([[3, 4, 5, 6], [16] * 4], np.uint16)
    run, _ = finish(run, params, PublicValues(values), 5)
    assert isinstance(run.policy, FollowRange)
    assert [one.scale.ndim for one in run.groups] == [1, 0]
    store = Store(tmp_path / "state")
    loaded = store.read_run(store.write_run(run))
    assert loaded.digest == run.digest and len(loaded.groups) == 2
    assert set(loaded.arrays) == {"model.0", "scale.0", "moments.0", "model.1", "scale.1"}
    missing = {name: array for name, array in run.arrays.items() if name != "scale.0"}
    with pytest.raises(KeyError):
        RunState.of_arrays(run.policy, 1, run.optimiser, missing)


def test_a_client_chooses_the_model_with_the_smallest_loss() -> None:
    params = RoundParams(Bucketed(buckets=8, groups=3), dim=DIM, max_clients=5)
    before = start(3)
    seen = Round("4-a", 4, params, 0, groups=before.published_for(params).groups)
    assert len(seen.models) == 3
    assert seen.choose(lambda model: abs(model - seen.models[1]).sum()) == 1
    assert seen.choose(lambda model: 0.0) == 0
    losses = iter([float("nan"), 3.0, float("inf")])
    assert seen.choose(lambda model: next(losses)) == 1
    for group in (-1, 3):
        with pytest.raises(InputError, match="choose one from 0 to 2"):
            seen.of_group(group)
    with pytest.raises(ConfigError, match="no models to choose from"):
        Round("4-a", 4, params, 0).choose(lambda model: 0.0)
