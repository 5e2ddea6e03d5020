"""ring, encode, share, prg: numbers in and out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UniformBuckets
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import policy_from
from tests import reference


@given(st.integers(1, 64), st.lists(st.integers(0, 2**64 - 1), max_size=70))
@settings(max_examples=100, deadline=None)
def test_packing_is_little_endian_and_inverts(bits: int, values: list[int]) -> None:
    array = np.array(values, np.uint64)
    words = ring.pack(array, bits)
    assert words.tolist() == reference.pack(values, bits)
    assert ring.unpack(words, bits, len(values)).tolist() == [value % 2**bits for value in values]


@pytest.mark.parametrize("bits", [2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64])
def test_ring_arithmetic_wraps(bits: int) -> None:
    rng = np.random.default_rng(bits)
    x, y = (rng.integers(0, 2**64, 50, np.uint64) for _ in range(2))
    total = ring.reduce(ring.reduce(x, bits) + ring.reduce(y, bits), bits)
    assert total.dtype == ring.dtype(bits)
    assert total.tolist() == [(int(a) + int(b)) % 2**bits for a, b in zip(x, y, strict=True)]
    edges = np.array([-(2 ** (bits - 1)), -1, 0, 1, 2 ** (bits - 1) - 1])
    assert ring.signed(ring.reduce(edges, bits), bits).tolist() == edges.tolist()


def test_count_ring_is_the_smallest_that_holds() -> None:
    """protocols.md 2: 4 bits to 15 clients, 5 to 31, 8 to 255."""
    assert [ring.count_bits(n) for n in (2, 3, 15, 16, 31, 255, 256)] == [2, 2, 4, 5, 5, 8, 9]
    for n in range(1, 300):
        bits, k = ring.count_bits(n), -(-n // 2)
        assert k <= 2 ** (bits - 1) and n - k <= 2 ** (bits - 1) - 1
        assert bits == 2 or k > 2 ** (bits - 2) or n - k > 2 ** (bits - 2) - 1


@given(st.floats(allow_nan=False), st.integers(2, 64), st.data())
@settings(max_examples=150, deadline=None)
def test_fixed_point_matches_exact_arithmetic(x: float, bits: int, data: st.DataObject) -> None:
    fraction = data.draw(st.integers(0, bits - 2))
    element = encode.to_fixed([x], bits, fraction)
    assert int(ring.signed(element, bits)[0]) == reference.fixed_point(x, bits, fraction)


def test_fixed_point_saturates_at_its_very_edges() -> None:
    for bits in (8, 32, 53, 54, 55, 62, 63, 64):
        top = 2.0 ** (bits - 2)
        values = [top, np.nextafter(top, 0), -top, np.nextafter(-top, -np.inf), np.inf, -np.inf]
        got = ring.signed(encode.to_fixed(values, bits, 0), bits)
        assert got.tolist() == [reference.fixed_point(v, bits, 0) for v in values]


def test_fixed_point_refuses_nan_and_names_it() -> None:
    with pytest.raises(InputError, match="2 NaN, the first at index 1"):
        encode.to_fixed([0.0, np.nan, 1.0, np.nan], 64, 24)
    with pytest.raises(InputError, match="NaN"):
        UniformBuckets(1.0, 8).bucketize([np.nan], 0.0)


@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=20),
    st.floats(-1, 1),
    st.floats(1e-3, 4),
    st.integers(3, 40),
)
@settings(max_examples=100, deadline=None)
def test_bucketize_matches_its_definition(
    values: list[float], centre: float, width: float, buckets: int
) -> None:
    got = UniformBuckets(width, buckets).bucketize(values, centre)
    assert got.tolist() == [reference.bucket(w, centre, width, buckets) for w in values]


def test_bucketize_edges_and_inverse() -> None:
    lying, buckets = UniformBuckets(1.0, 8), 8
    assert lying.bucketize(
        [-np.inf, -0.5, np.nextafter(-0.5, 0), 0.0, np.nextafter(0.5, 0), 0.5, np.inf], 0.0
    ).tolist() == [0, 0, 1, 4, 6, 7, 7]
    index = np.arange(buckets)
    middle = lying.quantize(index, 0.0)
    assert lying.bucketize(middle, 0.0).tolist() == index.tolist()
    assert middle[0] == -0.5 and middle[-1] == 0.5
    # an odd number of inner buckets can say "no change"
    assert UniformBuckets(1.0, 9).quantize(np.array([4]), 0.25)[0] == 0.25


@pytest.mark.parametrize(
    ("buckets", "width"), [(2, 1.0), (8, 0.0), (8, -1.0), (8, np.nan), (8, np.inf)]
)
def test_bad_ranges_are_refused(buckets: int, width: float) -> None:
    with pytest.raises(ConfigError):
        UniformBuckets(width, buckets)


def test_range_policies() -> None:
    before, after = np.zeros(4), np.array([0.0, 1.0, -3.0, 0.5])
    moved = np.abs(after)
    expected = {
        "coordinate": 2 * moved + 0.05,
        "mean": 2 * moved.mean() + 0.05,
        "linf": 6.05,
        "l1": 9.05,
        "constant": 0.7,
    }
    for policy, wanted in expected.items():
        got = policy_from({"policy": policy}).next(0.7, before, after, number=2, buckets=8)
        np.testing.assert_allclose(got, wanted)


@pytest.mark.parametrize("bits", [2, 5, 8, 16, 31, 32, 33, 64])
@pytest.mark.parametrize("columns", [1, 128, 1000])
def test_shares_combine_and_slice(bits: int, columns: int) -> None:
    rng = np.random.default_rng(bits)
    values = ring.reduce(rng.integers(0, 2**64, (3, columns), np.uint64), bits)
    seed, words = share.split(values, bits)
    layout = RoundParams(
        Pairwise(ring_bits=bits, fraction_bits=0), dim=columns, max_clients=2
    ).form.layout
    assert (layout.columns, layout.bits) == (seed.layout.columns, seed.layout.bits)
    for start in range(0, columns, share.SLICE_ALIGN):
        stop = min(columns, start + 200)
        halves = [RingShare(share.read(half, seed.layout, start, stop)) for half in (seed, words)]
        assert (share.combine(halves[0], halves[1], bits) == values[:, start:stop]).all()


@pytest.mark.parametrize("bits", [2, 3, 7, 8, 9, 13, 16, 17, 31, 32, 33, 47, 63, 64])
def test_weighted_sums_of_packed_shares(bits: int) -> None:
    """Sum values in two words, carries into every bit, and slices, against plain sums."""
    rng = np.random.default_rng(bits)
    columns, weights = 500, [1, 1, 3, 1, 2, 3]
    values = ring.reduce(rng.integers(0, 2**64, (len(weights), 2, columns), np.uint64), bits)
    values[:, :, ::3] = ring.mask(bits)
    halves = [share.split(one, bits) for one in values]
    layout = halves[0][0].layout
    plain = ring.reduce(
        sum(w * v.astype(np.uint64) for w, v in zip(weights, values, strict=True)), bits
    )
    for start, stop in ((0, columns), (128, 131), (384, columns)):
        both = [
            share.weighted_sum([half[j] for half in halves], weights, layout, start, stop)
            for j in (0, 1)
        ]
        assert both[0].dtype == ring.dtype(bits)
        assert (share.combine(both[0], both[1], bits) == plain[:, start:stop]).all()
    with pytest.raises(InputError, match="take a multiple"):
        share.weighted_sum([half[0] for half in halves], weights, layout, 64, 70)


def test_shares_of_different_shapes_do_not_combine() -> None:
    with pytest.raises(InputError, match="do not belong together"):
        share.combine(RingShare(np.zeros(3, np.uint8)), RingShare(np.zeros(4, np.uint8)), 4)


@pytest.mark.parametrize("bits", [1, 3, 8, 16, 31, 32, 64])
def test_xor_shares_combine(bits: int) -> None:
    words = np.random.default_rng(bits).integers(0, 2**bits - 1, (1, 300), np.uint64, endpoint=True)
    seed, rest = share.split(words, bits, xor=True)
    one, other = (share.read(half, seed.layout, 0, 300) for half in (seed, rest))
    assert ((one ^ other) == words).all()


def test_stream_continues_and_skips() -> None:
    whole = Stream(b"k" * 16).words(20)
    pieces = Stream(b"k" * 16)
    assert np.concatenate([pieces.words(6), pieces.words(14)]).tolist() == whole.tolist()
    assert Stream(b"k" * 16, block=3).words(14).tolist() == whole[6:].tolist()
    assert Stream(b"k" * 16, nonce=1).words(20).tolist() != whole.tolist()
    with pytest.raises(InputError, match="5 bytes; give 16"):
        Stream(b"short")


@pytest.mark.parametrize(
    "bad",
    [
        {"method": "mode"},
        {"dim": 0},
        {"max_clients": 1},
        {"min_clients": 1},
        {"min_clients": 9},
        {"buckets": 2},
        {"ring_bits": 3},
        {"ring_bits": 65},
        {"schedule": "later"},
        {"result_to": "clients"},
        {"selection": "opened"},
        {"deadline_s": 0},
        {"dim": True},
        {"colour": 1},
        {"method": "pairwise", "ring_bits": 1},
        {"method": "pairwise", "fraction_bits": 63},
    ],
)
def test_bad_round_parameters_are_refused(bad: dict[str, object]) -> None:
    good = {"method": "bucketed", "dim": 10, "max_clients": 8}
    RoundParams.from_dict(good)
    with pytest.raises(ConfigError):
        RoundParams.from_dict(good | bad)
