"""Radix selection, encodings, ranks, weights and the trimmed mean against plain numpy."""

import math
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import PublicValues, XorWords
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods import bucketed, pairwise, radix
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome, run_round
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from tests import reference
from tests.parties import Lanes, additive, make_parties, run_both

PROTOCOL = ProtocolParams(lanes=2)
# subnormals too
FLOATS = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    1.0,
    -1.0,
    1e-45,
    -1e-45,
    1e-38,
    -3.4e38,
    3.4e38,
    0.1,
]


def random_words(rng: np.random.Generator, clients: int, width: int) -> np.ndarray:
    """Random columns, then ties, all equal, and extremes."""
    top = (1 << width) - 1
    random = rng.integers(0, top, (clients, 30), np.uint64, endpoint=True)
    ties = random[:, :30] & np.uint64(min(top, 3))
    same = np.repeat(np.array([[0, top]], np.uint64), clients, axis=0)
    extremes = rng.choice(np.array([0, top], np.uint64), (clients, 10))
    return ring.reduce(np.concatenate([random, ties, same, extremes], axis=1), max(width, 1))


def xor_shares(words: np.ndarray, rng: np.random.Generator) -> list[XorWords]:
    mask = rng.integers(0, np.iinfo(words.dtype).max, words.shape, words.dtype, endpoint=True)
    return [XorWords(mask), XorWords(mask ^ words)]


def opened(outcome: Outcome) -> PublicValues:
    """Return what a round of radix opened."""
    return PublicValues(outcome.values)


def method_of(params: RoundParams) -> Radix:
    """Return the method of a round, which is radix."""
    assert isinstance(params.method, Radix)
    return params.method


def radix_round(
    lanes: Lanes, values: np.ndarray, weights: list[int] | None = None, **options: Any
) -> tuple[RoundParams, Outcome]:
    """Run a round as clients and servers do it, on plain values (n, d)."""
    clients, dim = values.shape
    named = {f"client-{i}": weight for i, weight in enumerate(weights or [])}
    params = RoundParams(Radix(weights=named, **options), dim=dim, max_clients=clients)
    uploads = [
        share.split(method_of(params).words(row)[None], params.form.layout.bits, xor=True)
        for row in values
    ]
    one, other = run_both(
        lambda j: run_round(
            lanes[j], params, PROTOCOL, [pair[j] for pair in uploads], weights=weights
        )
    )
    assert (one.values == other.values).all()
    return params, one


@pytest.mark.slow
@pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 8, 16, 33])
def test_every_rank_of_random_words(clients: int) -> None:
    party = [side[0] for side in make_parties()]
    rng = np.random.default_rng(clients)
    # every width has a test of its own
    width = int(rng.integers(1, 65)) if clients < 9 else int(rng.integers(1, 13))
    words = random_words(rng, clients, width)
    shares = xor_shares(words, rng)
    for rank in range(1, clients + 1) if clients < 9 else (1, 2, clients // 2, clients):
        bits = ring.count_bits(clients, rank)
        one, other = run_both(
            lambda j: radix.select(party[j], shares[j], width, bits, [rank], [1] * clients)  # noqa: B023
        )
        assert (one == reference.rank_element(words, rank)).all() and (one == other).all()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64])
def test_every_width(width: int) -> None:
    party = [side[0] for side in make_parties()]
    rng = np.random.default_rng(width)
    words = random_words(rng, 5, width)
    shares = xor_shares(words, rng)
    bits, equal = ring.count_bits(5), [1] * 5
    one, other = run_both(lambda j: radix.select(party[j], shares[j], width, bits, [3], equal))
    assert (one == reference.lower_median(words)).all() and (one == other).all()


@pytest.mark.parametrize("bits", [4, 8, 9, 16, 17, 32, 33, 64])
def test_every_count_ring(bits: int) -> None:
    party = [side[0] for side in make_parties()]
    rng = np.random.default_rng(bits)
    words = random_words(rng, 6, 6)
    shares = xor_shares(words, rng)
    one, _ = run_both(lambda j: radix.select(party[j], shares[j], 6, bits, [3], [1] * 6))
    assert (one == reference.lower_median(words)).all()


@pytest.mark.parametrize("clients", [2, 9])
def test_float32_is_exact_over_the_whole_range(lanes: Lanes, clients: int) -> None:
    rng = np.random.default_rng(clients)
    any_bits = rng.integers(0, 2**32, (clients, 300), np.uint32).view(np.float32)
    values = np.concatenate(
        [np.where(np.isnan(any_bits), 1.0, any_bits), rng.choice(FLOATS, (clients, 300))], axis=1
    )
    params, outcome = radix_round(lanes, values.astype(np.float32))
    got = method_of(params).values(outcome.values[0])
    assert (got == reference.lower_median(values.astype(np.float32))).all()


def test_words_keep_the_order_and_come_back() -> None:
    rng = np.random.default_rng(1)
    values = np.concatenate([FLOATS, rng.normal(size=2000) * 10.0 ** rng.integers(-40, 39, 2000)])
    for encoding in ("float32", "bfloat16", "fixed", "unit"):
        params = RoundParams(Radix(encoding=encoding), dim=10, max_clients=5)
        words = method_of(params).words(values)
        back = method_of(params).values(PublicValues(words))
        order = np.argsort(values, kind="stable")
        assert (np.diff(words[order].astype(np.int64)) >= 0)[
            values[order][1:] != values[order][:-1]
        ].all()
        again = method_of(params).words(back)
        assert (again == words).all()
        if encoding == "float32":
            with np.errstate(over="ignore"):
                assert (back == values.astype(np.float32)).all()
        if encoding == "bfloat16":
            normal = np.isfinite(values) & (np.abs(values) > 1e-37) & (np.abs(values) < 3e38)
            assert (np.abs(back[normal] - values[normal]) <= np.abs(values[normal]) * 2.0**-8).all()


def test_bfloat16_rounds_to_the_nearest_and_ties_to_even() -> None:
    method = Radix(encoding="bfloat16")
    values = [1.0, 1.0 + 2**-8, 1.0 + 3 * 2**-8, 1.0 + 2**-8 + 2**-20, -1.0 - 2**-8, 3.4e38]
    assert method.values(PublicValues(method.words(values))).tolist() == [
        1.0,
        1.0,
        1 + 2**-6,
        1 + 2**-7,
        -1.0,
        np.inf,
    ]


@pytest.mark.parametrize("bits", [2, 8, 32])
def test_unit_words_are_even_steps_from_0_to_1(bits: int) -> None:
    method, steps = Radix(encoding="unit", word_bits=bits), 2**bits - 1
    assert method.form(9, 5).layout.bits == bits and method.kind == "approximate"
    values = np.concatenate([np.linspace(0, 1, 1000), [-3.0, -np.inf, 7.0, np.inf, 0.5 / steps]])
    words = method.words(values)
    want = [round(min(max(value, 0.0), 1.0) * steps) for value in values.tolist()]
    assert words.tolist() == want and {0, steps} <= set(want)
    back = method.values(PublicValues(words))
    assert back.tolist() == [word / steps for word in want]
    assert np.abs(back - np.clip(values, 0, 1)).max() <= 0.5001 / steps
    # in the clear as well, where updates are not float64
    single = np.random.default_rng(bits).random((1, 1000), np.float32)
    cleared = method.in_the_clear(Clear(single, [1], Published(), 2))
    assert np.array_equal(cleared[0], method.values(PublicValues(method.words(single[0]))))


@pytest.mark.parametrize("encoding", ["float32", "bfloat16", "fixed", "unit"])
def test_nan_is_refused(encoding: str) -> None:
    with pytest.raises(InputError, match="NaN"):
        Radix(encoding=encoding).words([0.0, np.nan])


def test_a_word_beyond_the_last_bucket_is_the_last_bucket() -> None:
    params = RoundParams(Radix(encoding="buckets", buckets=5), dim=2, max_clients=5)
    assert method_of(params).values(
        PublicValues(np.array([4, 7], np.uint8)),
        Published(np.zeros((), np.float32), np.ones((), np.float32), CoordinateRange()),
    ).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("liars", [1, 3])
def test_random_bytes_are_random_values(lanes: Lanes, liars: int) -> None:
    """A minority that uploads rubbish cannot move the result out of the honest values' range."""
    rng = np.random.default_rng(liars)
    honest = rng.normal(size=(liars + 1, 400)).astype(np.float32)
    params = RoundParams(Radix(), dim=400, max_clients=2 * liars + 1)
    uploads: list[tuple[share.Upload, share.Upload]] = [
        share.split(method_of(params).words(row)[None], 32, xor=True) for row in honest
    ]
    for _ in range(liars):
        one, other = rng.integers(0, 2**64, (2, 1, params.form.layout.row_words), np.uint64)
        layout = params.form.layout
        uploads.append((share.WordsUpload(layout, one), share.WordsUpload(layout, other)))
    outcome, _ = run_both(
        lambda j: run_round(lanes[j], params, PROTOCOL, [pair[j] for pair in uploads])
    )
    got = method_of(params).values(outcome.values[0])
    assert (got >= honest.min(axis=0)).all() and (got <= honest.max(axis=0)).all()


def test_a_malformed_share_moves_an_unverified_median_at_will(lanes: Lanes) -> None:
    """One client of five that shares counts other than 0 and 1 decides alone, as documented."""
    params = RoundParams(
        Bucketed(buckets=8, schedule="scan", uploads="unverified"), dim=200, max_clients=5
    )
    index = np.full((4, 200), 4, np.uint16)
    uploads = [share.split(encode.cumulative(row, 8), params.form.ring_bits) for row in index]
    # "three clients in bucket 0", taken back from bucket 4 on, where the honest counts come in
    lie = np.repeat(np.array([3, 3, 3, 3, 0, 0, 0], np.uint8)[:, None], 200, axis=1)
    uploads.append(share.split(lie, params.form.ring_bits))
    one, _ = run_both(
        lambda j: run_round(lanes[j], params, PROTOCOL, [pair[j] for pair in uploads])
    )
    # each honest client is in bucket 4
    assert (one.values == 0).all()


@pytest.mark.parametrize("ring_bits", [0, 17, 33])
def test_several_ranks_share_the_uploads(lanes: Lanes, ring_bits: int) -> None:
    """They share the OTs too, as many at once as 64 bits have room for: 5, 3 and 1."""
    rng = np.random.default_rng(8)
    values = rng.normal(size=(8, 200)).astype(np.float32)
    ranks: dict[str, Any] = {"ranks": [1, 8], "quantiles": [0.25, 0.5, 0.75]}
    params, outcome = radix_round(lanes, values, ring_bits=ring_bits, **ranks)
    assert method_of(params).ranks_of(8) == [1, 8, 2, 4, 6]
    want = [reference.rank_element(values, rank) for rank in (1, 8, 2, 4, 6)]
    assert (method_of(params).values(opened(outcome)) == want).all()


@pytest.mark.parametrize("clients", [2, 5])
def test_midpoint_gives_both_middle_elements_of_an_even_number(lanes: Lanes, clients: int) -> None:
    values = np.random.default_rng(clients).normal(size=(clients, 200)).astype(np.float32)
    params, outcome = radix_round(lanes, values, midpoint=True)
    middle = method_of(params).values(opened(outcome)).mean(axis=0)
    assert (middle == np.median(values.astype(np.float64), axis=0)).all()


@pytest.mark.parametrize("clients", [3, 4, 12])
def test_weighted_lower_median_of_all_methods(clients: int) -> None:
    party = [side[0] for side in make_parties()]
    rng = np.random.default_rng(clients)
    for high in (2, 3000):
        weights = rng.integers(1, high, clients).tolist()
        total = sum(weights)
        values = np.concatenate(
            [rng.integers(-100, 100, (clients, 40)), rng.integers(-1, 2, (clients, 40))], axis=1
        )
        want = reference.weighted_median(values, weights)
        bits, rank = ring.count_bits(total), ring.median_rank(total)

        words = ring.reduce(values + 128, 8)
        shares = xor_shares(words, rng)
        got, _ = run_both(lambda j: radix.select(party[j], shares[j], 8, bits, [rank], weights))  # noqa: B023
        assert (got.astype(int) - 128 == want).all()

        halves = additive(ring.reduce(values, 32), 32, rng)
        one, other = run_both(
            lambda j: pairwise.median(party[j], halves[j], 32, "hidden", weights=weights)  # noqa: B023
        )  # noqa: B023, RUF100
        assert (ring.signed(ring.reduce(one + other, 32), 32) == want).all()

        index = np.clip(values, -4, 3) + 4
        weighted = sum(
            w * encode.cumulative(row.astype(np.uint16), 8).astype(np.int64)
            for w, row in zip(weights, index, strict=True)
        )
        counts = additive(ring.reduce(weighted, bits), bits, rng)
        got, _ = run_both(lambda j: bucketed.median(party[j], counts[j], total, bits, "bisect"))  # noqa: B023
        assert (got == reference.weighted_median(index, weights)).all()


@pytest.mark.parametrize("clients", [2, 3, 8, 11])
@pytest.mark.parametrize("trim", [None, 0.0, 0.25, 0.49])
def test_trimmed_mean_is_exact(lanes: Lanes, clients: int, trim: float | None) -> None:
    """Try a given trim, and the default, which drops at least one of three or more."""
    rng = np.random.default_rng(clients)
    given: dict[str, Any] = {} if trim is None else {"trim": trim}
    method = TrimmedMean(ring_bits=32, fraction_bits=0, **given)
    params = RoundParams(method, dim=90, max_clients=clients)
    top = 2 ** (30 - method.headroom(clients))
    values = np.concatenate(
        [
            rng.integers(-top, top, (clients, 30)),
            rng.integers(-1, 2, (clients, 30)),
            rng.choice([-top, top - 1], (clients, 30)),
        ],
        axis=1,
    )
    uploads = [
        share.split(encode.to_fixed(row, 32, 0, method.headroom(clients))[None], 32)
        for row in values
    ]
    one, other = run_both(
        lambda j: run_round(lanes[j], params, PROTOCOL, [pair[j] for pair in uploads])
    )
    ends = (
        math.floor(0.1 * clients) or int(clients > 2)
        if trim is None
        else math.floor(trim * clients)
    )
    want = reference.trimmed_sum(values, ends)
    assert ring.signed(one.values[0], 32).tolist() == want and (one.values == other.values).all()
    kept = clients - 2 * ends
    decoded = method.decode(one.values, clients, Published())
    assert np.array_equal(decoded[0], np.array(want) / kept)
    clear = Clear(values, [1] * clients, Published(), clients)
    assert np.array_equal(method.in_the_clear(clear), decoded)


def test_one_of_three_or_more_is_dropped_unless_a_trim_is_given() -> None:
    assert [TrimmedMean().dropped(n) for n in (1, 2, 3, 9, 10, 20)] == [0, 0, 1, 1, 1, 2]
    assert [TrimmedMean(trim=0.1).dropped(n) for n in (3, 9, 10, 20)] == [0, 0, 1, 2]
    assert [TrimmedMean(trim=0, trim_least=3).dropped(n) for n in (3, 6, 7, 100)] == [1, 2, 3, 3]


def test_only_a_trim_that_is_not_given_is_new_on_the_wire() -> None:
    """Release 1.0.0 would divide the sum of three of five by five."""
    by_default = RoundParams(TrimmedMean(), dim=9, max_clients=5)
    assert by_default.since == {"trim_least": 3}
    again = RoundParams.from_dict(by_default.to_dict())
    assert again == by_default and again.digest == by_default.digest
    of_1_0 = by_default.to_dict()
    del of_1_0["trim_least"]
    assert RoundParams.from_dict(of_1_0).method == TrimmedMean(trim=0.1)
    assert not RoundParams.from_dict(of_1_0).since


def test_cost_is_linear_in_the_clients() -> None:
    """A coordinate takes w (2 n + l - 1) OTs, and w (l - 1) more for each further rank."""
    for clients in (3, 8, 15):
        bits = ring.count_bits(clients)
        for ranks in (1, 3):
            ots = radix.demand(6400, clients, 32, bits, ranks).ots / 6400 / 32
            assert ots == 2 * clients + ranks * (bits - 1)
