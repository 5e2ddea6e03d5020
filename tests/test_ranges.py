"""mpc.ranges and the buckets of mpc.encode, against plain Python, one value at a time."""

import argparse
import math
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securemedian.clients.flags import add_range, range_table
from securemedian.clients.upload import Round
from securemedian.laboratory import plaintext
from securemedian.laboratory.experiments.aggregation import FineRange
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import UnevenBuckets
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges import uneven
from securemedian.mpc.rounds.ranges.registry import POLICIES, policy_from
from securemedian.mpc.rounds.ranges.uneven import FollowRange, LogRange
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange, MeanRange
from securemedian.mpc.rounds.run_state import RunState, finish
from securemedian.servers.rounds.runs import begin

FIRST = np.ones((), np.float32)
ODD = [0.0, -0.0, math.inf, -math.inf, 5e-324, -5e-324, 1e-300, 1e308, -1.7e308]
EDGES = [4 / 2.5**i for i in range(6, -1, -1)]
# one size per bucket of EDGES
ROOT = Decimal("2.5").sqrt()
SIZES = [0.008192, *(float(4 / Decimal("2.5") ** i * ROOT) for i in range(6, 0, -1)), 4.0]
FINE = FineRange().later(16)
# policies, and their edges and values from the second round on
LAYOUTS = {
    "default": (FollowRange(), EDGES, [EDGES[0] / 2, *SIZES[1:]]),
    "powers of 4": (
        FollowRange(top=8.0, ratio=4.0),
        [0.125, 0.5, 2.0, 8.0],
        [0.0625, 0.25, 1.0, 4.0, 8.0],
    ),
    "fine": (FineRange(), list(FINE.edges), list(FINE.values)),
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


def value(index: int, g: float, s: float, edges: list[float], values: list[float]) -> float:
    """Return what a bucket stands for, step by step."""
    half = len(values)
    sign, size = (1.0, index - half) if index >= half else (-1.0, half - 1 - index)
    move, inner = s * values[size], s * (edges[size - 1] if size else 0.0)
    if sign * g < 0 and inner < abs(g) <= move:
        move = (inner + abs(g)) / 2
    return g + sign * move


def around(edges: list[float]) -> list[float]:
    """Return the edges on both sides, and their neighbours in float64."""
    both = [sign * edge for edge in edges for sign in (1, -1)]
    return both + [float(np.nextafter(e, side)) for e in both for side in (-math.inf, math.inf)]


def middles_of(edges: list[float], at: float) -> list[float]:
    """Return the values of logarithmic buckets, nearly."""
    inner = [low * (high / low) ** at for low, high in pairwise(edges)]
    return [edges[0] / 2, *inner, edges[-1]]


@pytest.mark.parametrize("buckets", [6, 16, 1024])
@pytest.mark.parametrize("policy", [LogRange(0.7, 6e2), FollowRange(1e-2, 3.0, ratio=1.01)])
def test_logarithmic_buckets_are_signs_and_orders_of_magnitude(
    policy: LogRange, buckets: int
) -> None:
    edges = log_edges(policy.lowest, policy.highest, buckets)
    sizes = policy.logarithmic(buckets)
    assert list(sizes.edges) == edges
    at = 0.3 if isinstance(policy, FollowRange) else 0.5
    np.testing.assert_allclose(sizes.values, middles_of(edges, at), rtol=1e-12)
    lying = policy.buckets(policy.start(), buckets)
    xs = [*ODD, *around(edges), *np.random.default_rng(buckets).normal(0, 1, 200)]
    assert lying.bucketize(xs, 0.0).tolist() == [bucket(x, edges) for x in xs]
    got = lying.quantize(np.arange(buckets), 0.0).tolist()
    assert got == [value(index, 0.0, 1.0, edges, list(sizes.values)) for index in range(buckets)]
    assert lying.bucketize(got[1:-1], 0.0).tolist() == list(range(1, buckets - 1))


def test_layouts_have_these_bits_everywhere() -> None:
    follow = FollowRange()
    first = follow.buckets(FIRST, 16).quantize(np.arange(8, 16), 0.0)
    later = follow.buckets(np.ones(1, np.float32), 16).quantize(np.arange(8, 16), 0.0)
    assert [one.hex() for one in first.tolist()] == [
        "0x1.a36e2eb1c432dp-15",
        "0x1.06c4363887511p-11",
        "0x1.ba46a1cec4db0p-4",
        "0x1.7435749ef7068p+4",
        "0x1.393df516e1276p+12",
        "0x1.079df298e4f0cp+20",
        "0x1.bbb51d56e4402p+27",
        "0x1.2a05f20000000p+33",
    ]
    assert [one.hex() for one in later.tolist()] == [
        "0x1.0c6f7a0b5ed8dp-7",
        "0x1.a86f0875fcf94p-6",
        "0x1.09456549be1bdp-4",
        "0x1.4b96be9c2da2cp-3",
        "0x1.9e7c6e43390b7p-2",
        "0x1.030dc4ea03a72p+0",
        "0x1.43d136248490fp+1",
        "0x1.0000000000000p+2",
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_buckets_times_a_scale(name: str) -> None:
    policy, edges, values = LAYOUTS[name]
    count = 2 * len(values)
    rng = np.random.default_rng(count)
    x = np.concatenate([ODD, around(edges), rng.normal(0, 2, 300)])
    g = (10.0 ** rng.uniform(-3, 1, x.size) * rng.choice([-1, 1, 0], x.size)).astype(np.float32)
    s = (10.0 ** rng.uniform(-6, 6, x.size)).astype(np.float32)
    with np.errstate(over="ignore"):
        w = g + s.astype(np.float64) * x
    lying = policy.buckets(s, count)
    index = lying.bucketize(w, g)
    assert index.dtype == np.uint16
    got = lying.quantize(index, g)
    for i in range(x.size):
        scaled = (float(w[i]) - float(g[i])) / float(s[i])
        assert index[i] == bucket(scaled, edges)
        assert got[i] == value(int(index[i]), float(g[i]), float(s[i]), edges, values)
    # exactly on the edges, without g
    exact = policy.buckets(np.ones(1, np.float32), count)
    xs = [*ODD, *around(edges)]
    assert exact.bucketize(xs, 0.0).tolist() == [bucket(x, edges) for x in xs]


def test_a_result_has_another_sign_only_if_its_whole_bucket_has() -> None:
    lying = UnevenBuckets(1.0, [1.0, 2.0], [0.5, 1.5, 2.0])
    # below g: (g-1, g], (g-2, g-1], and what is smaller
    for g, index, want in (
        (0.75, 2, 0.25),
        (0.5, 2, 0.25),
        (0.25, 2, 0.125),
        (1.5, 1, 0.25),
        (1.25, 1, 0.125),
        (1.0, 1, -0.5),
        (2.0, 0, 0.0),
        (1.9, 0, -0.1),
        (0.0, 2, -0.5),
        (0.75, 3, 1.25),
    ):
        assert lying.quantize(np.array([index]), g)[0] == pytest.approx(want, abs=1e-15)
        assert lying.quantize(np.array([5 - index]), -g)[0] == pytest.approx(-want, abs=1e-15)
    rng = np.random.default_rng(2)
    model = (10.0 ** rng.uniform(-30, 10, 500)).astype(np.float32)
    for policy in (LogRange(), FollowRange()):
        for scale in (FIRST, (10.0 ** rng.uniform(-6, 12, 500)).astype(np.float32)):
            # clients' values that are positive
            w = (model * 10.0 ** rng.uniform(-3, 3, 500)).astype(np.float32)
            published = Published(model, scale, policy)
            results = published.quantize(published.bucketize(w, 16), 16)
            assert (results.astype(np.float32) > 0).all()


@given(
    st.lists(st.floats(allow_nan=False), min_size=1, max_size=10),
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.floats(2.0**-19, 2.0**60, width=32),
)
@settings(max_examples=80, deadline=None)
def test_any_number_has_a_bucket(values: list[float], g: float, s: float) -> None:
    policy, edges, _ = LAYOUTS["default"]
    got = policy.buckets(np.full(1, s, np.float32), 16).bucketize(values, g)
    scaled = np.array([w - g for w in values], np.float64)
    with np.errstate(over="ignore"):
        scaled /= s
    assert got.tolist() == [bucket(float(x), edges) for x in scaled]


def test_uneven_buckets_refuse_what_is_no_number_and_no_bucket() -> None:
    lying = UnevenBuckets(1.0, [1.0, 2.0], [0.5, 1.5, 2.0])
    with pytest.raises(InputError, match="1 NaN"):
        lying.bucketize([0.0, math.nan], 0.0)
    with pytest.raises(InputError, match=r"out of range"):
        lying.quantize(np.array([6]), 0.0)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="finite and greater than 0"):
            UnevenBuckets([1.0, scale], [1.0], [0.5, 1.0])


@pytest.mark.parametrize("policy", [LogRange(), FollowRange(), CoordinateRange(2e4)])
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
    assert radix.form(9, 5).layout.bits == 4 and words.max() < b
    assert np.array_equal(words, published.bucketize(updates, b))
    results = [
        plaintext.published(updates, RoundParams(method, dim=d, max_clients=5), published)
        for method in (Bucketed(buckets=b), radix)
    ]
    assert np.array_equal(results[0], results[1])
    # the outermost buckets stand for no more than what was sent
    median = plaintext.median(updates)
    outer = encode.outermost(published.bucketize(median, b), b)
    reached, sent = np.abs(results[0][0] - g), np.abs(median - g)
    assert outer.any() == (not first and policy.name != "log")
    assert (reached <= sent + 1e-6)[outer].all()


# The scale over rounds


def plain_follow(scale: list[float] | None, indices: list[int]) -> list[float]:
    """Return the next scale in float32, from the buckets that came out, as protocols.md says."""
    size = [index - 8 if index >= 8 else 7 - index for index in indices]
    if scale is None:
        factors = FollowRange().logarithmic(16).factors
        found = [factors[k] for k in size]
    else:
        roots = [max(0.3, math.sqrt(one)) for one in LAYOUTS["default"][2][:-1]] + [8.0]
        found = [s * roots[k] for s, k in zip(scale, size, strict=True)]
    ranked = sorted(found)
    least = max(1e-6, 0.01 * ranked[len(ranked) // 2])
    return [float(np.float32(max(s, least))) for s in found]


@pytest.mark.parametrize("size", [1e-2, 1.0, 1e4])
def test_the_scale_follows_the_results(size: float) -> None:
    """Eight rounds whose updates shrink and grow, against plain Python, bit for bit."""
    rng = np.random.default_rng(7)
    d, n = 101, 5
    params = RoundParams(Bucketed(), dim=d, max_clients=n)
    state = begin(RunState(), params, {}, False, rng.normal(size=d).astype(np.float32))
    scale: list[float] | None = None
    seen = set()
    for number in range(1, 9):
        assert state.model is not None
        published = state.published_for(params)
        reach = size * 10.0 ** rng.uniform(-2, 1, d) * (0.1 if number < 5 else 30.0)
        updates = (state.model + reach * rng.normal(0.3, 1, (n, d))).astype(np.float32)
        index = np.sort(published.bucketize(updates, 16), axis=0)[(n - 1) // 2]
        before = state.model
        state, results = finish(state, params, PublicValues(index[None]), n)
        assert np.array_equal(results, plaintext.published(updates, params, published))
        assert state.model is not None
        scale = plain_follow(scale, index.tolist())
        assert state.scale.tolist() == scale, number
        assert state.scale.dtype == np.float32 and state.scale.shape == (d,)
        if number > 1:
            seen |= set(np.abs(index - 7.5).tolist())
        # the next range, which everybody else computes from what is published
        current = Round("1-a", number, params, 0, before, published.scale, published.policy)
        again = current.next_scale(results[0])
        assert np.array_equal(again, state.scale) and again.dtype == np.float32
    assert len(seen) == 8


def test_a_scale_stays_a_number() -> None:
    policy = FollowRange()
    zeros = np.zeros(4, np.float32)
    # nothing moved: neither 0 nor denormal
    scale = policy.next(FIRST, zeros, zeros, 1, 16)
    for _ in range(200):
        scale = policy.next(scale, zeros, zeros, 2, 16)
    assert scale.tolist() == [np.float32(uneven.SMALLEST)] * 4
    # everything moves as far as it can
    model = np.array([0.0, 1.0, -1e30, 3e38], np.float32)
    for number in range(2, 200):
        scale = policy.next(scale, 0 * model, np.float32(4) * scale, number, 16)
    assert scale.tolist() == [np.float32(uneven.LARGEST)] * 4
    lying = policy.buckets(scale, 16)
    assert np.isfinite(lying.quantize(np.full(4, 15), 0 * model).astype(np.float32)).all()


def test_coordinates_that_do_not_move_keep_a_hundredth_of_the_median() -> None:
    zeros, scale = np.zeros(3, np.float32), np.array([1e-3, 5.0, 5.0], np.float32)
    model = np.array([0, 5, -5], np.float32)
    after = policy_from({}).next(scale, zeros, model, 2, 16)
    root = 5 * math.sqrt(SIZES[5])
    assert after.tolist() == np.array([0.01 * root, root, root], np.float32).tolist()


def test_a_round_without_buckets_sets_the_scale_to_what_moved() -> None:
    after = np.array([0, 1, -2, 3, 0.5], np.float32)
    for scale in (FIRST, np.full(5, 7, np.float32)):
        found = FollowRange().next(scale, np.zeros(5, np.float32), after, 1, 0)
        assert found.tolist() == [np.float32(0.01), 1, 2, 3, 0.5]


@pytest.mark.parametrize("rank", [0, 1, 7, 8, 14, 15])
def test_the_bucket_is_known_from_a_result_that_was_rounded_or_shortened(rank: int) -> None:
    """S' is from the factor of the bucket, also where the sign rule has shortened the move."""
    policy, rng = FollowRange(), np.random.default_rng(rank)
    d = 2000
    scale = np.full(d, 1, np.float32)
    g = (10.0 ** rng.uniform(-3, 4, d) * rng.choice([-1, 1], d)).astype(np.float32)
    index = np.full(d, rank, np.uint16)
    results = policy.buckets(scale, 16).quantize(index, g).astype(np.float32)
    size = rank - 8 if rank >= 8 else 7 - rank
    wanted = 8.0 if size == 7 else max(0.3, math.sqrt(SIZES[size]))
    found = policy.next(scale, g, results, 2, 16)
    assert (found == np.float32(wanted)).all()


def test_a_policy_goes_on_with_the_scale_of_another_if_it_means_the_same() -> None:
    scale = np.full(2, 3, np.float32)
    assert MeanRange().take_over(scale, CoordinateRange()) is scale
    assert FollowRange(top=3.0).take_over(scale, FollowRange()) is scale
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
        scale = policy.next(scale, model, after, number, 16)
        assert scale.dtype == np.float32 and scale.shape in ((), (3,))
        assert (np.isfinite(scale) & (scale > 0)).all()
        model = after
    assert policy.label.startswith(name) and policy_from(policy.to_dict()) == policy


@pytest.mark.parametrize(
    ("given", "buckets", "message"),
    [
        ({"policy": "log"}, 15, "an even number of buckets"),
        ({"policy": "log"}, 4, "an even number of buckets"),
        ({}, 7, "an even number of buckets"),
        ({}, 4, "an even number of buckets"),
        ({}, 12, "each spans a factor of 3162"),
        ({"policy": "log"}, 12, "each spans a factor of 5623"),
        ({"initial": 0.1}, 16, "invalid option of follow: initial"),
        ({"policy": "coordinate", "lowest": 0.1}, 16, "lowest, which belongs to follow and log"),
        ({"policy": "log", "ratio": 2.0}, 16, "ratio, which belongs to follow"),
        ({"ratio": 1.0}, 16, "invalid range ratio"),
        ({"ratio": math.inf}, 16, "invalid range ratio"),
        ({"top": 0.0}, 16, "invalid range top"),
        ({"policy": "log", "lowest": 0.0}, 16, "invalid range lowest: .*; give a number above"),
        ({"policy": "log", "highest": math.inf}, 16, "invalid range highest"),
        ({"policy": "log", "lowest": math.nan}, 16, "invalid range lowest"),
        ({"lowest": 2.0, "highest": 1.0}, 16, "lowest is not below highest"),
        ({"lowest": True}, 16, "invalid lowest: True; give a number"),
        ({"policy": ["log"]}, 16, "invalid range policy: .*; take one of"),
    ],
)
def test_unusable_ranges_are_refused_when_a_round_opens(
    given: dict[str, Any], buckets: int, message: str
) -> None:
    params = RoundParams(Bucketed(buckets=buckets), dim=4, max_clients=3)
    with pytest.raises(ConfigError, match=message):
        begin(RunState(), params, given, False, np.zeros(4, np.float32))


@pytest.mark.parametrize("junk", [None, 5, "follow", ["follow"]])
def test_a_policy_that_is_no_table_is_refused(junk: Any) -> None:
    with pytest.raises(ConfigError, match="not a table"):
        policy_from(junk)


def test_results_in_the_outermost_buckets_are_counted() -> None:
    index = PublicValues(np.array([[0, 1, 15, 14, 15], [0, 0, 0, 0, 0]], np.uint16))
    assert Bucketed().form(5, 3).outermost(PublicValues(index[:1])) == 3
    # a word beyond the last bucket counts as that
    twelve = Radix(encoding="buckets", buckets=12)
    assert twelve.form(4, 3).outermost(PublicValues(np.array([[0, 10, 11, 13]], np.uint8))) == 3
    assert Radix().form(5, 3).outermost(PublicValues(np.zeros((1, 5), np.uint32))) == 0


def parsed(*flags: str) -> Any:
    parser = argparse.ArgumentParser()
    add_range(parser)
    table = range_table(parser.parse_args(flags))
    return policy_from(table) if table else None


def test_a_flag_names_a_policy_and_its_options() -> None:
    assert parsed() is None
    assert parsed("--range", "log:lowest=1e-4") == LogRange(lowest=1e-4)
    assert parsed("--range", "follow:ratio=3,top=5") == FollowRange(ratio=3.0, top=5.0)
    assert parsed("--range", "mean") == MeanRange()
    for text, said in (
        ("log:ratio=3", "invalid option of log: ratio"),
        ("log:lowest=little", "--range, lowest is not a number: 'little'"),
        ("log:width=3", "unknown width"),
        ("none", "take one of follow, log"),
        ("", "take one of follow, log"),
    ):
        with pytest.raises(ConfigError, match=said):
            parsed("--range", text)


def test_the_innermost_bucket_may_not_vanish() -> None:
    """It is checked when a round opens, though the first round is logarithmic."""
    with pytest.raises(ConfigError, match="lower ratio or buckets"):
        begin(
            RunState(),
            RoundParams(Radix(encoding="buckets", buckets=1000), dim=4, max_clients=3),
            {},
            False,
            np.zeros(4, np.float32),
        )


def test_the_page_has_the_table_of_the_default() -> None:
    page = (Path(__file__).parent.parent / "docs" / "protocols.md").read_text("utf-8")
    table = page[page.index("| `follow`, b = 16: up to |") :].splitlines()
    edges, values, factors = (
        [float(cell) for cell in line.strip(" |").split("|")[1:] if cell.strip() != "beyond"]
        for line in (table[0], table[2], table[3])
    )
    policy, ones = FollowRange(), np.ones(7, np.float32)
    index = policy.buckets(ones, 16).bucketize(edges, 0.0)
    assert index.tolist() == list(range(8, 15))
    ones = np.ones(8, np.float32)
    got = policy.buckets(ones, 16).quantize(np.arange(8, 16), 0.0)
    np.testing.assert_allclose(got, values, atol=6e-5)
    np.testing.assert_allclose(policy.next(ones, np.zeros(8), got, 2, 16), factors, atol=6e-5)
