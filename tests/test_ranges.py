"""mpc.ranges and the buckets of mpc.encode, against plain Python, one value at a time."""

import math
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securemedian.laboratory import plaintext
from securemedian.mpc import encode
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.encode import UnevenBuckets
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.methods.base import Published
from securemedian.mpc.methods.bucketed import Bucketed
from securemedian.mpc.methods.radix import Radix
from securemedian.mpc.params import RoundParams
from securemedian.mpc.ranges import follow
from securemedian.mpc.ranges.coordinate import CoordinateRange
from securemedian.mpc.ranges.follow import LAYOUTS, FollowRange
from securemedian.mpc.ranges.log import LogRange
from securemedian.mpc.ranges.mean import MeanRange
from securemedian.mpc.ranges.registry import POLICIES, policy_from
from securemedian.servers.training import Training, begin, finish

FIRST = np.ones((), np.float32)
ODD = [0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324, 1e-300, 1e308, -1.7e308]
OWN = {
    "policy": "follow",
    "layout": "own",
    "edges": [1, 3.0],
    "values": [0.5, 2.0, 3.0],
    "factors": [0.5, 1.0, 4.0],
}


def log_edges(lowest: float, highest: float, buckets: int) -> list[float]:
    """Return the edges above 0, by their definition."""
    last = buckets // 2 - 2
    ratio = (Decimal(highest) / Decimal(lowest)) ** (Decimal(1) / last)
    return [float(Decimal(lowest) * ratio**i) for i in range(last)] + [highest]


def bucket(x: float, edges: list[float]) -> int:
    """Return the bucket of x = (w - g) / s by looking at one edge after another."""
    found = 0
    for edge in [-edge for edge in reversed(edges)] + [0.0] + edges:
        if x > edge:
            found += 1
    return found


def value(index: int, values: list[float]) -> float:
    half = len(values)
    return values[index - half] if index >= half else -values[half - 1 - index]


def around(edges: list[float]) -> list[float]:
    """Return the edges on both sides, and their neighbours in float64."""
    both = [sign * edge for edge in edges for sign in (1, -1)]
    return both + [float(np.nextafter(e, side)) for e in both for side in (-math.inf, math.inf)]


@pytest.mark.parametrize("buckets", [6, 8, 16, 32, 64, 1024])
def test_logarithmic_buckets_are_signs_and_orders_of_magnitude(buckets: int) -> None:
    policy = LogRange(1e-5, 6e2)
    edges = log_edges(1e-5, 6e2, buckets)
    middles = [edges[0] / 2, *(math.sqrt(a * b) for a, b in pairwise(edges)), edges[-1]]
    lying = policy.buckets(policy.start(), buckets)
    xs = [*ODD, *around(edges), *np.random.default_rng(buckets).normal(0, 1, 200)]
    assert lying.bucketize(xs, 0.0).tolist() == [bucket(x, edges) for x in xs]
    got = lying.quantize(np.arange(buckets), 0.0).tolist()
    assert got == [value(index, middles) for index in range(buckets)]
    assert lying.bucketize(got[1:-1], 0.0).tolist() == list(range(1, buckets - 1))


def test_logarithmic_edges_have_these_bits_everywhere() -> None:
    """The ratio of 32 buckets is 3.594, near that of the experiments in protocols.md."""
    lying = LogRange().buckets(FIRST, 32)
    values = lying.quantize(np.array([16, 17, 23, 30, 31]), 0.0)
    assert [one.hex() for one in values.tolist()] == [
        "0x1.4f8b588e368f1p-18",
        "0x1.3e0fba1ba69d8p-16",
        "0x1.4eb6e5bd8472cp-5",
        "0x1.3c7d776b52a60p+8",
        "0x1.2c00000000000p+9",
    ]
    edges = np.array(log_edges(1e-5, 600.0, 32))
    assert np.allclose(edges[1:] / edges[:-1], 3.594, rtol=1e-3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_named_layouts_are_those_of_the_tables(name: str) -> None:
    sizes = LAYOUTS[name]
    edges, values = list(map(float, sizes.edges)), list(map(float, sizes.values))
    count = 2 * len(values)
    rng = np.random.default_rng(count)
    g = rng.normal(size=300).astype(np.float32)
    s = (10.0 ** rng.uniform(-12, 6, 300)).astype(np.float32)
    x = np.concatenate([ODD, around(edges), rng.normal(0, 2, 300)])[:300]
    with np.errstate(over="ignore"):
        w = g + s.astype(np.float64) * x
    lying = FollowRange(layout=name).buckets(s, count)
    index = lying.bucketize(w, g)
    assert index.dtype == np.uint16
    for i in range(300):
        scaled = (float(w[i]) - float(g[i])) / float(s[i])
        assert index[i] == bucket(scaled, edges)
    got = lying.quantize(index, g)
    for i in range(300):
        assert got[i] == float(g[i]) + float(s[i]) * value(int(index[i]), values)
    # exactly on the edges, without g
    exact = FollowRange(layout=name).buckets(np.ones(1, np.float32), count)
    xs = [*ODD, *around(edges)]
    assert exact.bucketize(xs, 0.0).tolist() == [bucket(x, edges) for x in xs]


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=10),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.floats(2.0**-60, 2.0**60, width=32),
)
@settings(max_examples=200, deadline=None)
def test_any_number_has_a_bucket(values: list[float], g: float, s: float) -> None:
    edges = list(map(float, LAYOUTS["q16"].edges))
    got = UnevenBuckets(s, *LAYOUTS["q16"][:2]).bucketize(values, g)
    scaled = np.array([w - g for w in values], np.float64)
    with np.errstate(over="ignore"):
        scaled /= s
    assert got.tolist() == [bucket(float(x), edges) for x in scaled]


def test_uneven_buckets_refuse_what_is_no_number_and_no_bucket() -> None:
    lying = UnevenBuckets(1.0, [1.0, 2.0], [0.5, 1.5, 2.0])
    with pytest.raises(InputError, match="1 NaN"):
        lying.bucketize([0.0, math.nan], 0.0)
    with pytest.raises(InputError, match=r"outside 0\.\.5"):
        lying.quantize(np.array([6]), 0.0)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="finite and greater than 0"):
            UnevenBuckets([1.0, scale], [1.0], [0.5, 1.0])


@pytest.mark.parametrize("policy", [LogRange(), FollowRange(), CoordinateRange(2.0)])
@pytest.mark.parametrize("first", [True, False])
def test_bucketed_and_radix_mean_the_same_buckets(policy: Any, first: bool) -> None:
    rng = np.random.default_rng(1)
    d, b = 200, 16
    g = rng.normal(size=d).astype(np.float32)
    scale = policy.start() if first else (10.0 ** rng.uniform(-4, 1, d)).astype(np.float32)
    published = Published(g, scale, policy)
    updates = (g + rng.normal(size=(5, d)) * 10.0 ** rng.uniform(-6, 3, (5, d))).astype(np.float32)
    radix = Radix(encoding="buckets", buckets=b)
    words = radix.words(updates, published)
    assert radix.share_bits_for(5) == 4 and words.max() < b
    assert np.array_equal(words, published.bucketize(updates, b))
    results = [
        plaintext.published(updates, RoundParams(method, d, 5), published)
        for method in (Bucketed(buckets=b), radix)
    ]
    assert np.array_equal(*results)
    # the outermost buckets stand for no more than what was sent
    median = plaintext.median(updates)
    outer = encode.outermost(published.bucketize(median, b), b)
    reached, sent = np.abs(results[0][0] - g), np.abs(median - g)
    assert outer.any() == (not first) and (reached <= sent * (1 + 1e-6))[outer].all()


def test_a_logarithmic_word_is_a_sign_and_an_exponent() -> None:
    """With ratio 2 and edges at powers of 2, the float's own exponent says the bucket."""
    policy, b = LogRange(2.0**-7, 2.0**7), 32
    published = Published(np.zeros((), np.float32), policy.start(), policy)
    xs = np.random.default_rng(3).normal(size=500) * 2.0
    words = Radix(encoding="buckets", buckets=b).words(xs, published).astype(int)
    for x, word in zip(xs.tolist(), words.tolist(), strict=True):
        # 2^(e-1) <= |x| < 2^e, and no x is a power of 2
        exponent = min(max(math.frexp(x)[1] + 7, 0), 15)
        assert word == (16 + exponent if x > 0 else 15 - exponent)


# The scale over rounds


def plain_follow(
    scale: list[float] | None, before: list[float], after: list[float], indices: list[int]
) -> list[float]:
    """Return the next scale in float32, from the buckets that came out, as protocols.md says."""
    moved = [abs(a - b) for a, b in zip(after, before, strict=True)]
    if scale is None:
        ranked = sorted(moved)
        half = len(ranked) // 2
        middle = ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2
        found = [max(one, 0.1 * middle) for one in moved]
    else:
        factors = LAYOUTS["q16"].factors
        size = [index - 8 if index >= 8 else 7 - index for index in indices]
        found = [s * factors[k] for s, k in zip(scale, size, strict=True)]
    least = [max(2.0**-60, abs(a) * 2.0**-24) for a in after]
    return [
        float(np.float32(min(max(s, low), max(low, 2.0**60))))
        for s, low in zip(found, least, strict=True)
    ]


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_the_scale_follows_the_results(size: float) -> None:
    """Eight rounds whose updates shrink and grow, against plain Python, bit for bit."""
    rng = np.random.default_rng(7)
    d, n = 101, 5
    params = RoundParams(Bucketed(), d, n)
    training = begin(Training(), params, {}, False, rng.normal(size=d).astype(np.float32))
    scale: list[float] | None = None
    seen = set()
    for number in range(1, 9):
        assert training.model is not None
        published = training.published_for(params)
        reach = size * 10.0 ** rng.uniform(-2, 1, d) * (0.1 if number < 5 else 30.0)
        updates = (training.model + reach * rng.normal(0.3, 1, (n, d))).astype(np.float32)
        index = np.sort(published.bucketize(updates, 16), axis=0)[(n - 1) // 2]
        before = training.model.astype(np.float64).tolist()
        training, results = finish(training, params, PublicValues(index[None]), n)
        assert np.array_equal(results, plaintext.published(updates, params, published))
        assert training.model is not None
        after = training.model.astype(np.float64).tolist()
        scale = plain_follow(scale, before, after, index.tolist())
        assert training.scale.tolist() == scale, number
        assert training.scale.dtype == np.float32 and training.scale.shape == (d,)
        if number > 1:
            seen |= set(np.abs(index - 7.5).tolist())
        # what everybody else computes from what is published
        assert published.policy is not None and published.scale is not None
        again = published.policy.next(published.scale, before, after, number)
        assert np.array_equal(again, training.scale) and again.dtype == np.float32
    assert len(seen) == 8


def test_a_scale_stays_a_number() -> None:
    policy = FollowRange()
    zeros = np.zeros(4, np.float32)
    # nothing moved: neither 0 nor denormal
    scale = policy.next(FIRST, zeros, zeros, 1)
    assert scale.tolist() == [follow.SMALLEST] * 4
    for _ in range(200):
        scale = policy.next(scale, zeros, zeros, 2)
    assert scale.tolist() == [follow.SMALLEST] * 4
    # everything moves as far as it can
    model = np.array([0.0, 1.0, -1e30, 3e38], np.float32)
    for number in range(2, 200):
        scale = policy.next(scale, model, model + np.float32(2.5) * scale, number)
    assert (np.isfinite(scale)).all() and scale[0] == follow.LARGEST
    # a step that float32 would lose beside the model
    assert policy.next(scale * 0 + np.float32(1e-12), model, model, 2)[1] == np.float32(2.0**-24)


def test_some_coordinates_that_did_not_move_get_a_tenth_of_the_median() -> None:
    after = np.array([0, 1, -2, 3, 0], np.float32)
    scale = FollowRange().next(FIRST, np.zeros(5, np.float32), after, 1)
    assert scale.tolist() == [np.float32(0.1), 1, 2, 3, np.float32(0.1)]


def test_own_buckets_are_taken() -> None:
    policy = policy_from(OWN)
    lying = policy.buckets(np.full(1, 2, np.float32), 6)
    xs = [-7.0, -6.0, -3.0, 0.0, 1.0, 2.0, 5.0, 6.0, 6.1]
    assert lying.bucketize(xs, 0.0).tolist() == [0, 0, 1, 2, 3, 3, 4, 4, 5]
    assert lying.quantize(np.arange(6), 1.0).tolist() == [-5.0, -3.0, 0.0, 2.0, 5.0, 7.0]
    scale = policy.next(np.full(3, 2, np.float32), np.zeros(3), np.array([1.0, -4.0, 6.0]), 5)
    assert scale.tolist() == [1.0, 2.0, 8.0]


def test_log_keeps_no_state() -> None:
    policy = LogRange()
    moved = np.arange(3, dtype=np.float32)
    assert np.array_equal(policy.next(policy.start(), moved, 5 * moved, 4), policy.start())


def test_a_policy_goes_on_with_the_scale_of_another_if_it_means_the_same() -> None:
    scale = np.full(2, 3, np.float32)
    assert MeanRange().take_over(scale, CoordinateRange()) is scale
    assert FollowRange(layout="q8").take_over(scale, FollowRange()) is scale
    for policy, former in (
        (FollowRange(), CoordinateRange()),
        (FollowRange(), LogRange()),
        (LogRange(), FollowRange()),
        (CoordinateRange(), FollowRange()),
    ):
        assert np.array_equal(policy.take_over(scale, former), policy.start())


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_has_a_scale_and_buckets(name: str) -> None:
    policy = policy_from({"policy": name})
    scale = policy.start()
    assert scale.dtype == np.float32 and scale.shape == ()
    model = np.zeros(3, np.float32)
    for number in (1, 2, 3):
        lying = policy.buckets(scale, 16)
        after = lying.quantize(np.array([0, 8, 15]), model).astype(np.float32)
        assert lying.bucketize(after, model).tolist()[1] == 8
        scale = policy.next(scale, model, after, number)
        assert scale.dtype == np.float32 and scale.shape in ((), (3,))
        assert (np.isfinite(scale) & (scale > 0)).all()
        model = after
    assert policy.label.startswith(name) and policy_from(policy.to_dict()) == policy


@pytest.mark.parametrize(
    ("given", "buckets", "message"),
    [
        ({"policy": "log"}, 15, "an even number of buckets"),
        ({"policy": "log"}, 4, "an even number of buckets"),
        ({}, 8, r"q16 has 16 buckets, and the round has 8.*q8 \(8\)"),
        ({"layout": "q8"}, 16, "q8 has 8 buckets"),
        (OWN, 8, "own has 6 buckets"),
        ({"initial": 0.1}, 16, "initial is an option of coordinate .*: leave it out for follow"),
        ({"policy": "coordinate", "lowest": 0.1}, 16, "lowest is an option of follow and log"),
        ({"policy": "log", "layout": "q16"}, 16, "layout is an option of follow"),
        ({"layout": "q7"}, 16, "layout must be one of"),
        ({"edges": [1.0]}, 16, "are for the layout own"),
        ({"policy": "log", "lowest": 0.0}, 16, "range lowest must be above"),
        ({"policy": "log", "highest": math.inf}, 16, "range highest must be"),
        ({"policy": "log", "lowest": math.nan}, 16, "range lowest must be"),
        ({"lowest": 2.0, "highest": 1.0}, 16, "lowest must be below highest"),
        ({"lowest": True}, 16, "lowest must be float"),
        (OWN | {"edges": []}, 6, "as many factors as values"),
        (OWN | {"factors": [1.0, 1.0]}, 6, "as many factors as values"),
        (OWN | {"edges": [3.0, 1.0]}, 6, "must lie between its edges"),
        (OWN | {"edges": [1.0, "3"]}, 6, "edge or value must be"),
        (OWN | {"edges": [1.0, math.nan]}, 6, "edge or value must be"),
        (OWN | {"values": [0.5, 0.7, 3.0]}, 6, "must lie between its edges"),
        (OWN | {"values": [0.5, 2.0, 3.5]}, 6, "the last be the last edge"),
        (OWN | {"values": [0, 2.0, 3.0]}, 6, "edge or value must be"),
        (OWN | {"factors": [0.5, 0.0, 2.0]}, 6, "a range factor must be"),
        (OWN | {"factors": [0.5, -1.0, 2.0]}, 6, "a range factor must be"),
        (OWN | {"factors": [0.5, math.inf, 2.0]}, 6, "a range factor must be"),
        ({"policy": ["log"]}, 16, "range policy must be one of"),
        ({"layout": 3}, 16, "layout must be str"),
    ],
)
def test_unusable_ranges_are_refused_when_a_round_opens(
    given: dict[str, Any], buckets: int, message: str
) -> None:
    params = RoundParams(Bucketed(buckets=buckets), 4, 3)
    with pytest.raises(ConfigError, match=message):
        begin(Training(), params, given, False, np.zeros(4, np.float32))


@pytest.mark.parametrize("junk", [None, 5, "follow", ["follow"]])
def test_a_policy_that_is_no_table_is_refused(junk: Any) -> None:
    with pytest.raises(ConfigError, match="expected a table"):
        policy_from(junk)


def test_results_in_the_outermost_buckets_are_counted() -> None:
    index = PublicValues(np.array([[0, 1, 15, 14, 15], [0, 0, 0, 0, 0]], np.uint16))
    assert Bucketed().outermost(index) == 3
    # a word beyond the last bucket counts as that
    twelve = Radix(encoding="buckets", buckets=12)
    assert twelve.outermost(PublicValues(np.array([[0, 10, 11, 13]], np.uint8))) == 3
    assert Radix().outermost(PublicValues(np.zeros((1, 5), np.uint32))) == 0
