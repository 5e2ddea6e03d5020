"""SHARE with Zeno++: against exact arithmetic, what is opened, and through real daemons."""

from fractions import Fraction
from math import isqrt
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import lengths, ring, share
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.sketch import sketch
from securemedian.mpc.rounds.methods import zeno
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values
from tests.parties import Lanes, played, run_both

DIM = 300
SMALL = ProtocolParams(lanes=2, chunk=128)


def names(clients: int) -> list[str]:
    return [f"client-{index}" for index in range(clients)]


def passing(method: Zeno, updates: np.ndarray, weights: list[int], coin: bytes) -> list[list[bool]]:
    """Return which clusters pass: the paper's score of their means, in exact fractions.

    Products and lengths are those of k random sums of the coordinates, times 2 / k.
    """
    scale, dim = 1 << method.fraction_bits, updates.shape[1]
    sums = ring.signed(sketch(coin, RingShare(np.eye(dim, dtype=np.uint64)), 0, zeno.ROWS), 64)
    whole = method.whole_differences(Clear(updates, weights, Published(), len(updates)))
    place = weights.index(0)
    others = [other for other in range(len(updates)) if other != place]
    clusters, total = max(1, len(others) // method.clusters), sum(weights)
    eta, rho, epsilon = (Fraction(str(x)) for x in (method.eta, method.rho, method.epsilon))

    def sketched(vector: np.ndarray, part: Fraction) -> list[Fraction]:
        return [int(row) * part / scale for row in vector @ sums]

    def product(one: list[Fraction], other: list[Fraction]) -> Fraction:
        return sum((a * b for a, b in zip(one, other, strict=True)), Fraction()) * 2 / len(one)

    step = sketched(whole[place], Fraction(1))
    verdicts = []
    for members in method.members(coin, len(others)):
        own = []
        for those in members:
            chosen = [others[index] for index in those]
            mean = sketched(
                whole[chosen].sum(axis=0), Fraction(clusters * method.weighing.heaviest, total)
            )
            score = eta * product(step, mean) - rho * product(mean, mean)
            own.append(score >= -eta * epsilon)
        verdicts.append(own)
    return verdicts


# a is whole and so exact with these
EXACT: dict[str, Any] = {"rho": 0.01, "epsilon": 0.02, "eta": 0.5, "fraction_bits": 10}


@pytest.mark.parametrize(("clients", "size", "reclusterings"), [(13, 3, 3), (7, 1, 1), (4, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_clusters_that_pass_are_those_of_the_paper(
    lanes: Lanes, clients: int, size: int, reclusterings: int, weighted: bool
) -> None:
    """Honest clients, some that go backwards and some that are much too long."""
    rng = np.random.default_rng(clients)
    direction = rng.normal(size=DIM) * 0.1
    updates = direction + rng.normal(size=(clients, DIM)) * 0.02
    updates[::3] *= -1
    updates[1::5] *= 30
    updates[2] = direction
    weights = dict(zip(names(clients), range(4, 4 + clients), strict=True)) if weighted else {}
    method = Zeno(
        validator="client-2",
        clusters=size,
        reclusterings=reclusterings,
        weights=weights,
        norm_bound=2000.0 if weighted else "auto",
        **EXACT,
    )
    params = RoundParams(method, dim=DIM, max_clients=clients)
    outcome = played(lanes, params, updates)
    given = params.method.weights_of(names(clients))
    verdicts = passing(method, updates, given, outcome.coin)
    whole = method.whole_differences(Clear(updates, given, Published(), clients))
    others = [other for other in range(clients) if other != 2]
    movement = np.zeros(DIM)
    for members, own in zip(method.members(outcome.coin, clients - 1), verdicts, strict=True):
        for those, passed in zip(members, own, strict=True):
            for index in those:
                movement += passed * whole[others[index]]
    want = 0.5 * (movement / 2.0**10 / (reclusterings * method.weighing.scaled(sum(given))))
    got = method.decode(method.public(outcome.values), sum(given), Published())
    assert np.array_equal(got[0], want)
    clear = method.in_the_clear(Clear(updates, given, Published(coin=outcome.coin), clients))
    assert np.array_equal(clear, got)
    if clients > 4:
        assert 0 < sum(map(sum, verdicts)) < sum(map(len, verdicts))


def judged(lanes: Lanes, method: Zeno, step: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which clusters pass, for sketches of the validator (the first) and of the others."""
    rows = np.concatenate([step[None], others]).astype(np.int64).view(np.uint64).reshape(-1)
    halves = share.split(rows[None], 64)
    coin, clusters = bytes(16), method.clusters_among(len(others))
    params = RoundParams(method, dim=4, max_clients=len(others) + 1)
    own = [RingShare(half.words(0, 0, rows.size)) for half in halves]
    weights = [0] + [1] * len(others)

    def judge(j: int) -> np.ndarray:
        chunk = params.chunk([], weights, 0, 4, 64, coin=coin)
        return unpack_bits(method.judge(lanes[j][0], own[j], chunk), clusters)

    one, other = run_both(judge)
    return np.asarray(one ^ other).astype(bool)


def of_length(squared: int, first: int) -> np.ndarray:
    """Return a sketch with a sum of squares, and its first row."""
    rows, left = [first], squared - first**2
    while left:
        rows.append(isqrt(left))
        left -= rows[-1] ** 2
    return np.array(rows + [0] * (zeno.ROWS - len(rows)))


@pytest.mark.parametrize(
    ("rho", "epsilon", "fraction_bits", "step", "row", "squared"),
    [
        # a = 1, e = 512
        (1, 2.0, 4, 0, 0, 256 * 512),
        (1, 2.0, 4, 3, 5, 256 * 512 + 15),
        # a = 10^9, e = 10^9 2^26: 2 a <y, y_j> is about -2^65
        (1e-9, 64.0, 10, 1 << 14, 1 - (1 << 20), 10**9 << 14),
    ],
)
def test_a_score_of_exactly_the_bound_passes(
    lanes: Lanes, rho: float, epsilon: float, fraction_bits: int, step: int, row: int, squared: int
) -> None:
    """2 a <y, y_j> - 2 |y_j|^2 + k e = 0, and 2 less and 2 more."""
    method = Zeno(validator="v", clusters=1, rho=rho, epsilon=epsilon, fraction_bits=fraction_bits)
    own, want = of_length(step**2, step), [True, False, True]
    others = np.stack([of_length(squared + more, row) for more in (0, 1, -1)])
    slope, start = round(1 / rho), round(epsilon / rho) << 2 * fraction_bits
    assert slope * step * row - squared + 256 * start == 0
    (members,) = method.members(bytes(16), 3)
    assert judged(lanes, method, own, others).tolist() == [want[those[0]] for those in members]


@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("sign", [-1, 1])
def test_no_score_wraps_for_rows_at_the_ends_of_their_range(
    lanes: Lanes, clusters: int, sign: int
) -> None:
    method = Zeno(validator="v", clusters=clusters, rho=1e-9, epsilon=1e-6, fraction_bits=10)
    limit = method.norm_check.limit
    assert (2 * clusters) * limit <= 1 << 27
    step = np.full(zeno.ROWS, -limit)
    # the largest cluster that there can be
    others = np.full((2 * clusters - 1, zeno.ROWS), sign * limit)
    assert judged(lanes, method, step, others).tolist() == [sign < 0] * (
        method.clusters_among(2 * clusters - 1)
    )


def test_rows_too_long_for_a_cluster_are_left_out_however_many_have_them(lanes: Lanes) -> None:
    """A median of lengths knows nothing of that: rows of all are within 2^27, and no sum is."""
    method = Zeno(validator="client-0", clusters=3)
    params = RoundParams(method, dim=DIM, max_clients=7)
    long = 2 * method.norm_check.limit
    assert long < 1 << 27

    def passed(values: np.ndarray) -> list[bool]:
        halves = [share.split(row.astype(np.uint64)[None], 64) for row in values]
        return run_both(
            lambda j: check_values(lanes[j], params, SMALL, [half[j] for half in halves]).passed
        )[0]

    vectors = np.zeros((7, DIM), np.int64)
    vectors[:, 0] = method.most_length
    assert passed(vectors) == [True] * 7
    vectors[:, 0] = long
    assert passed(vectors) == [False] * 7
    vectors[:, 0] = method.most_length // 4
    vectors[1, 0], vectors[2, 5], vectors[3, 7] = -(1 << 63), 1 << 62, 2 * method.most_length
    assert passed(vectors) == [True, False, False, False, True, True, True]


def test_nobody_is_judged_without_the_validator(lanes: Lanes) -> None:
    method = Zeno(validator="client-3")
    with pytest.raises(ConfigError, match="the validator takes no part"):
        method.weights_of(names(3))
    with pytest.raises(ConfigError, match="not a client of the round: 'client-3'"):
        method.check_members(names(3))
    method.check_members(names(4))
    assert method.weights_of(names(5)) == [1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("rho", "bound", "weighted"),
    [(1e-6, "auto", False), (1e-12, 2.0, False), (1e6, 2.0, True), (1e-6, 2.0, True)],
)
def test_published_is_the_clear_result_for_the_longest_updates(
    lanes: Lanes, rho: float, bound: str | float, weighted: bool
) -> None:
    """All are cut to the longest that there is, in any direction."""
    rng, clients = np.random.default_rng(5), 5
    weights = dict(zip(names(clients), (3, 1, 4, 1, 5), strict=True)) if weighted else {}
    method = Zeno(
        validator="client-0",
        clusters=1,
        rho=rho,
        epsilon=1e-6,
        norm_bound=bound,
        weights=weights,
    )
    params = RoundParams(method, dim=DIM, max_clients=clients)
    updates = np.full((clients, DIM), -1e6)
    updates[1, 1:] *= rng.choice([-1, 1], DIM - 1)
    updates[2:4, ::2] *= -1
    updates[3, 3:] = 0
    outcome = played(lanes, params, updates)
    given = params.method.weights_of(names(clients))
    got = method.decode(method.public(outcome.values), sum(given), Published())
    clear = method.in_the_clear(Clear(updates, given, Published(coin=outcome.coin), clients))
    assert np.array_equal(clear, got)
    if rho < 1:
        # the cluster of the client that goes exactly the validator's way passes, as it should
        assert (got < 0).any()


@pytest.mark.parametrize("count", [1, 63, 64, 65])
def test_signs_of_sums_beyond_64_bits(lanes: Lanes, count: int) -> None:
    rng = np.random.default_rng(count)
    values = rng.integers(-(1 << 63), (1 << 63) - 1, (2, count), endpoint=True)
    values[:, 0] = -(1 << 63), (1 << 63) - 1
    factors, constant = [(1 << 61) + 12345, -(1 << 40)], -(1 << 100)
    halves = share.split(values.view(np.uint64).reshape(1, -1), 64)
    own = [RingShare(half.words(0, 0, 2 * count).reshape(2, count)) for half in halves]

    def found(j: int) -> np.ndarray:
        lanes[j][0].pool.reserve(lengths.negative_demand(2, count))
        return unpack_bits(lengths.negative(lanes[j][0], own[j], factors, constant), count)

    one, other = run_both(found)
    exact = [factors[0] * int(x) + factors[1] * int(y) + constant < 0 for x, y in values.T]
    assert (one ^ other).tolist() == exact
