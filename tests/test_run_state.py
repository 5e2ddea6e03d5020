"""Run state and the store: the model and range over rounds, and what is on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import BadUpload, ConfigError, InputError
from securemedian.mpc.protocols import share
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import L1Range, MeanRange
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.rounds.runs import begin
from securemedian.servers.storage.spool import UPLOAD, Piece
from securemedian.servers.storage.store import Store
from tests.servers_alone import Server

DIM = 5
BUCKETED = RoundParams(Bucketed(buckets=8), dim=DIM, max_clients=3)
COORDINATE = {"policy": "coordinate"}
PAIRWISE = RoundParams(Pairwise(ring_bits=32, fraction_bits=8), dim=DIM, max_clients=3)
MODEL = np.linspace(-1, 1, DIM, dtype=np.float32)
INDEX = np.array([0, 1, 3, 6, 7], np.uint16)


def model_of(state: RunState) -> np.ndarray:
    """Return the model that a run must have."""
    assert state.model is not None
    return state.model


def test_a_new_model_starts_with_the_initial_range() -> None:
    started = begin(
        RunState(), BUCKETED, {"policy": "mean", "initial": 0.5, "decay": 0.2}, False, MODEL
    )
    assert (
        started.number == 1
        and started.scale == np.float32(0.5)
        and started.policy == MeanRange(0.5, 0.2)
    )


@pytest.mark.parametrize(
    ("model", "range_", "error"),
    [
        (MODEL.astype(np.float64), {}, "global model"),
        (MODEL[:-1], {}, "global model"),
        (np.full_like(MODEL, np.nan), {}, "global model is not finite"),
        (None, {}, "S0 keeps none"),
        (MODEL[None], {}, "global model"),
        (np.full_like(MODEL, np.inf), {}, "global model is not finite"),
        (MODEL, COORDINATE | {"initial": 0.0}, "start of the bucket range"),
        (MODEL, COORDINATE | {"initial": -1.0}, "start of the bucket range"),
        (MODEL, COORDINATE | {"initial": 1e-60}, "the bucket range is not finite"),
        (MODEL, {"start": 1.0}, "start"),
        (MODEL, {"initial": "0.1"}, "initial"),
        (MODEL, {"policy": "wide"}, "wide"),
    ],
)
def test_a_bad_model_or_range_is_refused(model: Any, range_: dict[str, Any], error: str) -> None:
    with pytest.raises((ConfigError, InputError), match=error):
        begin(RunState(), BUCKETED, range_, False, model)


def test_a_new_model_may_keep_the_range(tmp_path: Path) -> None:
    """Its number goes on, too, so that a failed attempt at it binds as before."""
    server = Server(0, tmp_path, BUCKETED)
    first = begin(RunState(), BUCKETED, COORDINATE, False, MODEL)
    after = finish(first, BUCKETED, PublicValues(INDEX[None]), 3)[0]
    server.rounds.register.runs["default"] = after

    def opened(model: np.ndarray | None, **more: Any) -> Any:
        arrays = {} if model is None else {"model": model}
        fields = {"params": BUCKETED.to_dict(), "range": {}, "keep_range": True} | more
        return server.ask(server.coordinator, "open", arrays, **fields)

    for refused, said in (
        (opened(None), "give that model, and no reset"),
        (opened(MODEL, reset=True), "no reset"),
        (opened(MODEL[1:]), "open without keeping the range"),
    ):
        assert said in refused.fields["message"]
    opened(MODEL + 3)
    entry = server.latest
    assert np.array_equal(model_of(entry.before), MODEL + 3)
    assert np.array_equal(entry.before.scale, after.scale)
    assert (entry.before.number, entry.before.policy) == (2, after.policy)
    assert entry.server_round.asked.start_over is False
    assert entry.before.digest.hex() == entry.server_round.asked.start != after.digest.hex()


def test_rounds_follow_each_other_and_reset_starts_again() -> None:
    first = begin(RunState(), BUCKETED, COORDINATE, False, MODEL)
    after = finish(first, BUCKETED, PublicValues(INDEX[None]), 3)[0]
    assert after.number == 2 and after.model is not None
    assert np.array_equal(
        after.model, UniformBuckets(first.scale, 8).quantize(INDEX, MODEL).astype(np.float32)
    )
    assert np.array_equal(
        after.scale,
        first.policy.next(first.scale, MODEL, after.model, 1, 8),
    )
    assert after.scale.dtype == np.float32 and after.scale.shape == (DIM,)
    assert begin(after, BUCKETED, {}, False, None) is after
    assert begin(after, BUCKETED, {"policy": "constant"}, False, None).number == 2
    again = begin(after, BUCKETED, COORDINATE, True, None)
    assert again.number == 1 and again.scale == np.float32(0.1) and again.model is after.model


def test_pairwise_makes_the_first_model() -> None:
    elements = encode.to_fixed(MODEL, 32, 8)
    first, results = finish(
        begin(RunState(), PAIRWISE, {}, False, None), PAIRWISE, PublicValues(elements[None]), 3
    )
    assert (
        np.array_equal(model_of(first), encode.from_fixed(elements, 32, 8).astype(np.float32))
        and first.number == 2
    )
    assert np.array_equal(results, model_of(first)[None])


def test_the_first_of_several_results_is_the_model() -> None:
    method = Radix(ranks=[2, 1, 3])
    params = RoundParams(method, dim=DIM, max_clients=3)
    words = PublicValues(np.stack([method.words(MODEL + shift) for shift in range(3)]))
    after, results = finish(RunState(), params, words, 3)
    assert np.array_equal(model_of(after), MODEL) and np.array_equal(
        results[2], MODEL + np.float32(2)
    )


def test_midpoint_and_trimmed_mean_divide_at_the_end() -> None:
    method = Radix(midpoint=True)
    midpoint = RoundParams(method, dim=DIM, max_clients=4)
    words = PublicValues(np.stack([method.words(MODEL + shift) for shift in (0, 1)]))
    after = finish(RunState(), midpoint, words, 4)[0]
    assert np.array_equal(model_of(after), MODEL + np.float32(0.5))
    trimmed = RoundParams(TrimmedMean(fraction_bits=8, trim=0.2), dim=DIM, max_clients=5)
    # of the three that are kept
    total = encode.to_fixed(3 * MODEL, 64, 8)
    after = finish(RunState(), trimmed, PublicValues(total[None]), 5)[0]
    assert np.allclose(model_of(after), MODEL, atol=2**-8)


def test_a_model_of_another_size() -> None:
    other = RoundParams(Pairwise(), dim=DIM + 1, max_clients=3)
    kept = RunState(model=MODEL)
    with pytest.raises(InputError, match=r"\(6,\): float32 \(5,\)"):
        begin(kept, other, {}, False, None)
    assert begin(kept, other, {}, True, None).model is None
    with pytest.raises(InputError):
        begin(kept, RoundParams(Bucketed(buckets=8), dim=DIM + 1, max_clients=3), {}, True, None)


def test_a_range_that_diverged_is_refused_until_reset() -> None:
    diverged = RunState(L1Range(), MODEL, np.array(np.inf, np.float32), 7)
    with pytest.raises(ConfigError, match="open with reset"):
        begin(diverged, BUCKETED, {}, False, None)
    assert begin(diverged, BUCKETED, COORDINATE, True, None).number == 1


def test_the_run_survives_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    for state in (
        RunState(),
        RunState(MeanRange(0.2, 0.3), MODEL, np.full(DIM, 0.25, np.float32), 4),
    ):
        name = store.write_run(state)
        loaded = store.read_run(name)
        assert (loaded.policy, loaded.published) == (state.policy, state.published)
        assert np.array_equal(loaded.scale, state.scale) and loaded.scale.shape == state.scale.shape
        assert (loaded.model is None) == (state.model is None)
    assert np.array_equal(model_of(loaded), MODEL)
    for file in (tmp_path / "state" / "kept").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="damaged"):
        store.read_run(name)


def test_a_state_folder_has_one_owner(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(ConfigError, match="another server"):
        Store(tmp_path)
    store.close()
    Store(tmp_path).close()


def test_uploads_come_back_as_they_were_and_go_when_the_round_ends(tmp_path: Path) -> None:
    store = Store(tmp_path)
    layout = BUCKETED.form.layout
    values = np.arange(layout.rows * DIM, dtype=np.uint8).reshape(layout.rows, DIM) % 4
    seeded, words = share.split(values, layout.bits)
    spool = store.spool("1-0000000a", layout)
    seed = np.frombuffer(seeded.seed, np.uint8)
    for client, form, sent in (("a", "seed", seed), ("b", "words", words.packed)):
        row = spool.put(client, Piece(UPLOAD, form, sent))
        assert row is not None
        spool.add(row)
    halves = [RingShare(share.read(spool.get(client), layout, 0, DIM)) for client in ("a", "b")]
    assert np.array_equal(share.combine(halves[0], halves[1], layout.bits), values)
    assert len(list((tmp_path / "spool" / "1-0000000a").iterdir())) == 1
    running = spool.get("b")
    spool.drop()
    assert not (tmp_path / "spool" / "1-0000000a").exists()
    # a run that has not stopped reads on, and reads nothing else
    (tmp_path / "other").write_bytes(bytes(1 << 20))
    with (tmp_path / "other").open("rb"):
        assert (running.words(0, 0, layout.row_words) == words.packed[0]).all()
    assert np.array_equal(share.combine(halves[0], halves[1], layout.bits), values)


@pytest.mark.parametrize(
    ("form", "array"),
    [
        ("seed", np.zeros(15, np.uint8)),
        ("seed", np.zeros(16, np.uint64)),
        (
            "words",
            np.zeros((BUCKETED.form.layout.rows, BUCKETED.form.layout.row_words + 2), np.uint64),
        ),
        (
            "words",
            np.zeros((BUCKETED.form.layout.rows + 1, BUCKETED.form.layout.row_words), np.uint64),
        ),
        ("words", np.zeros((BUCKETED.form.layout.rows, BUCKETED.form.layout.row_words), np.int64)),
        ("both", np.zeros(16, np.uint8)),
    ],
)
def test_an_upload_of_another_shape_leaves_nothing_behind(
    tmp_path: Path, form: str, array: np.ndarray
) -> None:
    spool = Store(tmp_path).spool("1-0000000a", BUCKETED.form.layout)
    with pytest.raises(BadUpload):
        spool.put("a", Piece(UPLOAD, form, array))
    files = (tmp_path / "spool" / "1-0000000a").iterdir()
    assert sum(path.stat().st_size for path in files) == 0
    with pytest.raises(KeyError):
        spool.get("a")


def test_what_no_round_needs_is_cleared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.spool("1-0000000a", BUCKETED.form.layout)
    store.spool("1-0000000b", BUCKETED.form.layout)
    one, other = store.write_run(RunState()), store.write_run(RunState(model=MODEL))
    store.tidy({"1-0000000b"}, {one})
    assert [path.name for path in (tmp_path / "spool").iterdir()] == ["1-0000000b"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [one] and one != other
    store.close()
