"""Encoding, splitting and combining, against mpc.share and numpy."""

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients import upload
from securemedian.clients.upload import RangeWarning, Round, ShareHalf
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError, InputError, PeerProtocolError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange

# neither a multiple of a word nor of a block
D = 700
BUCKETED = RoundParams(Bucketed(buckets=6, uploads="unverified"), dim=D, max_clients=5)
PAIRWISE = RoundParams(Pairwise(ring_bits=37, fraction_bits=12), dim=D, max_clients=5)


def a_round(params: RoundParams, index: int = 0, **arrays: Any) -> Round:
    return Round("1-abc", 1, params, index, **arrays)


def as_server_reads(half: ShareHalf, params: RoundParams) -> NDArray:
    layout = params.form.layout
    held = (
        share.SeedUpload(layout, half.share.tobytes())
        if half.form == "seed"
        else share.WordsUpload(layout, half.share)
    )
    return share.read(held, layout, 0, layout.columns)


@pytest.mark.parametrize("index", [0, 1])
def test_halves_combine_to_the_values_and_the_seed_alternates(index: int) -> None:
    for params in (BUCKETED, PAIRWISE):
        values = np.random.default_rng(index).integers(
            0, 2**params.form.ring_bits, (params.form.layout.rows, D), np.uint64
        )
        halves = upload.split(values, a_round(params, index))
        assert [half.form for half in halves] == (
            ["seed", "words"] if index % 2 == 0 else ["words", "seed"]
        )
        assert {half.form: (half.share.dtype, half.share.shape) for half in halves} == {
            "seed": (np.uint8, (16,)),
            "words": (np.uint64, (params.form.layout.rows, params.form.layout.row_words)),
        }
        one, other = (as_server_reads(half, params) for half in halves)
        assert np.array_equal(
            share.combine(RingShare(one), RingShare(other), params.form.ring_bits),
            ring.reduce(values, params.form.ring_bits),
        )


def test_bucketed_values_count_the_thresholds_reached() -> None:
    rng = np.random.default_rng(2)
    model, width = rng.normal(size=D).astype(np.float32), rng.uniform(0.1, 1, D).astype(np.float32)
    update = model + rng.normal(0, 0.3, D)
    unverified = RoundParams(Bucketed(buckets=6, uploads="unverified"), dim=D, max_clients=5)
    around = a_round(unverified, model=model, scale=width, policy=CoordinateRange())
    values = upload.encode_update(update, around)
    bucket = UniformBuckets(width, 6).bucketize(update, model)
    assert values.shape == (5, D)
    assert np.array_equal(values.sum(axis=0), 5 - bucket)


@pytest.mark.parametrize("uploads", ["unverified", "dealt"])
def test_a_client_is_warned_when_most_of_its_values_lie_beyond_the_buckets(uploads: str) -> None:
    model, scale = np.zeros(D, np.float32), np.ones((), np.float32)
    params = replace(BUCKETED, method=Bucketed(buckets=6, uploads=uploads))
    around = a_round(params, model=model, scale=scale, policy=CoordinateRange())
    update = np.zeros(D)
    # the range ends at +-0.5
    update[: D // 4], update[D // 4 : D // 2] = 0.5, -7
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        upload.encode_update(update, around)
        upload.encode_update(update * 100, a_round(PAIRWISE))
    update[-1] = math.inf
    with pytest.warns(RangeWarning, match=r"351 of the 700 values .* round 1-abc"):
        upload.encode_update(update, around)


def test_an_update_is_sorted_into_buckets_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, scale = np.zeros(D, np.float32), np.ones((), np.float32)
    around = a_round(BUCKETED, model=model, scale=scale, policy=CoordinateRange())
    calls: list[int] = []
    bucketize = Published.bucketize

    def counted(published: Published, values: Any, buckets: int) -> Any:
        calls.append(buckets)
        return bucketize(published, values, buckets)

    monkeypatch.setattr(Published, "bucketize", counted)
    upload.encode_update(np.zeros(D), around)
    assert calls == [6]


def test_fixed_point_result_comes_back_within_its_precision() -> None:
    update = np.random.default_rng(3).normal(size=D)
    elements = upload.encode_update(update, a_round(PAIRWISE))[0]
    mask = np.random.default_rng(4).integers(0, 2**37, D, np.uint64)
    words = [ring.pack(ring.reduce(part, 37), 37) for part in (mask, elements - mask)]
    result = upload.combine(words[0], words[1], PAIRWISE)
    assert np.array_equal(result, np.floor(update * 2**12) / 2**12)


def test_shares_of_a_result_of_another_length_are_refused() -> None:
    words = np.zeros(ring.packed_words(D, 37), np.uint64)
    wrongs: list[Any] = [words[:-1], words.astype(np.uint32), np.empty(0)]
    for wrong in wrongs:
        with pytest.raises(PeerProtocolError, match="S1"):
            upload.combine(words, wrong, PAIRWISE)


def test_bad_updates_are_refused() -> None:
    with pytest.raises(InputError, match="700 values"):
        upload.encode_update(np.zeros(D + 1), a_round(PAIRWISE))
    with pytest.raises(InputError, match="NaN"):
        upload.encode_update(np.full(D, np.nan), a_round(PAIRWISE))
    with pytest.raises(InputError, match="NaN"):
        upload.encode_update(
            np.full(D, np.nan),
            a_round(
                BUCKETED,
                model=np.zeros(D, np.float32),
                scale=np.float32(1),
                policy=CoordinateRange(),
            ),
        )
    with pytest.raises(ConfigError, match="needs a model and a range"):
        upload.encode_update(np.zeros(D), a_round(BUCKETED))
