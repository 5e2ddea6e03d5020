"""Weights that a coordinator chooses read no single client (issue of 1.0.0), and what they do.

Scripts of a review of 1.0.0 read clients' updates from the digits of weighted sums: `READ` has
their weights.
"""

from contextlib import nullcontext
from dataclasses import replace
from fractions import Fraction
from math import gcd
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import ConfigError, TooFewClients
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods import mean
from securemedian.mpc.rounds.methods.base import (
    MOST_SHARE,
    Chunk,
    Clear,
    Method,
    Published,
    Weights,
    effective,
    lowered,
)
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values
from tests.parties import make_parties, run_both
from tests.test_methods import published_round

LARGE = 1 << 32
# mean-weights, mean-weights-all and reclustered-weights
READ = [
    [1] + [1 << 25] * 4,
    [1, 1500, 2000, 1500, 1000],
    [LARGE, LARGE + 1, LARGE + (1 << 11), LARGE + (1 << 22)],
    [(1 << 38) + (1 << 6 * place) for place in range(6)],
]
# the length of a vector here
DIM = 12
# a guess counts if as many coordinates are right; none of fewer steps, which chance would give
RIGHT, LEAST = 10, 48


def named(weights: list[int]) -> dict[str, int]:
    return {f"c{place:02}": weight for place, weight in enumerate(weights)}


def vectors(rng: np.random.Generator, count: int) -> list[list[int]]:
    """Return weights of all sizes: of samples, nearly equal, powers, digits, and one that is 1."""
    made = []
    for number in range(count):
        clients = int(rng.integers(3, 8))
        top = int(rng.choice([4, 30, 1000, 1 << 20, 1 << 40]))
        base = int(rng.integers(1, top))
        kinds = [
            rng.integers(1, top, clients),
            base + rng.integers(0, 4, clients),
            base + (1 << rng.integers(0, 20, clients)),
            1 << rng.integers(0, 40, clients),
            np.r_[1, np.full(clients - 1, top)],
        ]
        made.append([min(int(weight), 1 << 40) for weight in kinds[number % len(kinds)]])
    return made


def opened_sum(method: Mean, updates: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the sum that the servers open, from what clients share and servers add."""
    clients = list(method.weights)
    params = RoundParams(method, dim=DIM, max_clients=len(clients))
    halves = []
    for client, update in zip(clients, updates, strict=True):
        around = Published(part=params.part_of(client))
        halves.append(share.split(method.encode(update, len(clients), around), 64))
    monkeypatch.setattr(mean, "open_ring", lambda party, shares, bits: shares)
    given = [method.weighing.one(client) for client in clients]
    shares: list[Any] = []
    for number in (0, 1):
        party = SimpleNamespace(number=number, reading_uploads=nullcontext)
        chunk = params.chunk([half[number] for half in halves], given, 0, DIM, 64)
        shares.append(method.compute(cast(Party, party), chunk))
    return ring.signed(cast(Any, shares[0] + shares[1]), 64)[0]


def moduli(weights: list[int]) -> np.ndarray:
    """Return the integers by which a sum is read: all up to the total weight, or 3,000 telling."""
    total = sum(weights)
    if total <= 3000:
        return np.arange(1, total + 1)
    telling = {*weights, *(abs(a - b) for a in weights for b in weights), gcd(*weights)}
    telling |= {gcd(a, b) for a in weights for b in weights}
    telling |= {1 << bit for bit in range(total.bit_length())} | {*range(1, 500)}
    telling |= {total // part for part in range(1, 60)}
    return np.array(sorted(one for one in telling if one), np.int64)


def read(total: np.ndarray, weights: list[int], whole: np.ndarray) -> list[tuple[int, str]]:
    """Return which clients' whole numbers (n, d) a sum (d,) tells, and how."""
    g = moduli(weights)[:, None]
    remainder, quotient = total % g, total // g
    nearest = (total + g // 2) % g - g // 2
    ways = {
        "remainder": remainder,
        "nearest remainder": nearest,
        "quotient": quotient,
        "nearest quotient": (total - nearest) // g,
    }
    found = []
    for client, own in enumerate(whole):
        telling = np.abs(own) >= LEAST
        if telling.sum() < RIGHT:
            continue
        for way, guess in ways.items():
            if ((guess == own) & telling).sum(axis=1).max() >= RIGHT:
                found.append((client, way))
    return found


def attacked(count: int, monkeypatch: pytest.MonkeyPatch, seed: int = 35) -> list[Any]:
    rng = np.random.default_rng(seed)
    found = []
    for weights in [*READ, *vectors(rng, count)]:
        # as many steps as an update's values have in the review's scripts
        updates = rng.normal(0, 500, (len(weights), DIM)) * 2.0**-16
        method = Mean(norm_bound=8.0, fraction_bits=16, weights=named(weights))
        total = opened_sum(method, updates, monkeypatch)
        # as each client's update is, and as it is scaled
        given = [method.weighing.one(client) for client in method.weights]
        parts = [1.0] * len(weights) + method.weighing.parts(given)
        whole = [
            method.whole_difference(update, Published(part=part))
            for update, part in zip([*updates, *updates], parts, strict=True)
        ]
        found += [(weights, *one) for one in read(total, weights, np.stack(whole))]
    return found


@pytest.mark.parametrize("seed", range(2))
def test_no_digit_of_a_sum_is_a_clients(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Remainders, quotients and nearest multiples, with 1,000 sets of weights in two parts."""
    assert attacked(500, monkeypatch, seed) == []


def test_that_reading_reads_what_1_0_0_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients and servers without the mend: sums of multiples of what clients share."""
    monkeypatch.setattr(RoundParams, "part_of", lambda self, client: 1.0)
    monkeypatch.setattr(Chunk, "plain_sum", Chunk.weighted_sum)
    monkeypatch.setattr(Weights, "one", lambda self, client: self.named[client])
    found = attacked(0, monkeypatch)
    assert {tuple(weights) for weights, *_ in found} >= {tuple(READ[0]), tuple(READ[2])}


def test_no_digit_of_a_clusters_sum_is_a_clients() -> None:
    """`reclustered` adds what clients share, and nothing else, whatever the weights."""
    rng, coin = np.random.default_rng(1), bytes(16)
    for weights in READ:
        method = Reclustered(clusters=2, weights=named(weights))
        rows = RingShare(rng.integers(0, 1 << 64, (len(weights), DIM), np.uint64))
        party = cast(Party, SimpleNamespace(number=0, reading_uploads=nullcontext))
        got = method.cluster_sums(party, rows, coin)
        for members, sums in zip(
            method.members(coin, len(weights)), got.swapaxes(0, 1), strict=True
        ):
            for cluster, found in zip(members, sums, strict=True):
                assert (rows[list(cluster)].sum(axis=0, dtype=np.uint64) == found).all()


# Lowering


def test_larger_weights_are_lowered_to_the_cap() -> None:
    def of(cap: Fraction, *weights: int) -> list[int]:
        return list(lowered(named(list(weights)), cap).values())

    assert of(MOST_SHARE, 5, 1, 4) == [1, 1, 1]
    assert of(MOST_SHARE, 10, 10, 1, 1) == [2, 2, 1, 1]
    assert of(MOST_SHARE, 7, 1, 1, 1, 1, 1, 1, 1) == [3, 1, 1, 1, 1, 1, 1, 1]
    assert of(MOST_SHARE, 3, 3, 2, 2) == [3, 3, 2, 2]
    assert of(Fraction(1, 4), 3, 3, 2, 2) == [2, 2, 2, 2]
    assert of(MOST_SHARE) == []


def test_the_lowered_weights_are_the_largest_that_fit() -> None:
    rng = np.random.default_rng(2)
    for weights in vectors(rng, 500):
        cap = min(MOST_SHARE, Fraction(1, int(rng.integers(3, len(weights) + 1))))
        low = list(lowered(named(weights), cap).values())
        top = max(low)
        assert top <= cap * sum(low)
        assert low == [min(weight, top) for weight in weights]
        if top < max(weights):
            more = [min(weight, top + 1) for weight in weights]
            assert max(more) > cap * sum(more)


def test_a_cap_above_a_third_counts_as_a_third() -> None:
    """Files and rounds of 1.0 may have 0.5, or 1."""
    for cap in (0.5, 1.0):
        params = RoundParams(Radix(weights=named([5, 1, 4]), weight_cap=cap), dim=4, max_clients=3)
        assert params.method.weights_of(list(params.weights)) == [1, 1, 1]
        assert RoundParams.from_dict(params.to_dict()) == params
    for weights, cap in (([1, 1], 1 / 3), ([1, 1], 1.0), ([1, 1, 1], 0.3)):
        with pytest.raises(
            ConfigError, match="none of which may weigh more than .* or leave weights"
        ):
            Radix(weights=named(weights), weight_cap=cap)


def test_those_who_remain_count_as_enough_or_nothing_is_opened() -> None:
    """No more than a third, and Kish's number of those who remain: of 2, 2, 1, 1 it is 3.6."""
    params = RoundParams(Radix(weights=named([10, 10, 1, 1])), dim=4, max_clients=4, min_clients=3)
    everybody = list(params.weights)
    assert effective(params.method.weights_of(everybody)) == Fraction(36, 10)
    params.check_included(everybody)
    params.check_included(everybody, 3)
    with pytest.raises(TooFewClients, match=r"4 count as 3\.6 of equal weight, below 4;"):
        params.check_included(everybody, 4)
    with pytest.raises(ConfigError, match="one client weighs more than a third .*: 2 of 5;"):
        params.check_included(everybody[:3])
    # a lower cap leaves room for those who drop out
    flat = replace(params, method=Radix(weights=named([10, 10, 9, 9]), weight_cap=0.26))
    flat.check_included(everybody[:3])


# Other kinds of weights

EQUAL: list[Method] = [
    Mean(norm_bound="off"),
    Mean(norm_bound=3.0),
    Reclustered(),
    Zeno(validator="c00", norm_bound=3.0),
    Pairwise(),
    Radix(),
    Bucketed(),
]


# clients cut the extreme values of some methods
@pytest.mark.filterwarnings("ignore:.*is not sent whole")
@pytest.mark.parametrize("method", EQUAL, ids=lambda method: method.label)
def test_equal_weights_are_as_none(method: Any) -> None:
    updates = np.random.default_rng(3).normal(size=(5, 100))
    results = []
    for weights in ({}, named([7] * 5)):
        made = replace(method, weights=weights)
        if isinstance(method, Zeno) and not weights:
            made = replace(made, validator="client-0")
        params = RoundParams(made, dim=100, max_clients=5)
        protocol, same = ProtocolParams(lanes=1), lambda count: bytes(count)
        results.append(published_round(params, updates, protocol, entropy=same))
    (plain, _), (weighted, want) = results
    assert np.array_equal(plain, weighted) and np.array_equal(weighted, want)


def test_a_light_client_is_as_long_as_its_weight_allows() -> None:
    """A client that weighs a fifth of the heaviest, and shares what that may, is left out."""
    weights = [5, 1, 5, 5]
    method = Mean(norm_bound=1.0, weights=named(weights))
    params = RoundParams(method, dim=DIM, max_clients=4)
    update = np.full(DIM, 5.0)
    given = [method.weighing.one(client) for client in params.weights]
    for scaled in (True, False):
        parts = method.weighing.parts(given) if scaled else [1.0] * 4
        pairs = [share.split(method.encode(update, 4, Published(part=p)), 64) for p in parts]
        parties = make_parties(2)
        checked, _ = run_both(
            lambda j: check_values(
                parties[j],  # noqa: B023
                params,
                ProtocolParams(),
                [pair[j] for pair in pairs],  # noqa: B023
                weights=given,
            )
        )
        assert checked.passed == [True, scaled, True, True]
        whole = np.stack([method.whole_difference(update, Published(part=p)) for p in parts])
        assert method.norm_check.passed(whole, bytes(16), given) == [True, scaled, True, True]


def test_a_round_with_weights_is_of_wire_version_3() -> None:
    """Clients of 1.0 would share what is not scaled, whatever weight they are given."""
    assert RoundParams(Mean(), dim=4, max_clients=3).wire < 3
    params = RoundParams(Radix(weights=named([1, 1, 1])), dim=4, max_clients=3)
    assert (params.since["weights"], params.wire) == (3, 3)


# Results that are one client's


def test_what_may_be_a_single_clients_result() -> None:
    cases: list[tuple[dict[str, Any], int, bool]] = [
        ({"ranks": [1]}, 9, True),
        ({"ranks": [2, 3]}, 4, False),
        ({"ranks": [2, 3]}, 3, True),
        ({"ranks": [9]}, 9, True),
        ({}, 3, False),
        ({"midpoint": True}, 3, False),
    ]
    for asked, least, want in cases:
        assert Radix(**asked).single_clients(least) is want, (asked, least)
    # with no more clients does any rank become an end
    for least in (2, 3, 4, 7, 8, 20, 29):
        for q in np.linspace(0.05, 1, 20).round(2).tolist():
            method = Radix(quantiles=[q])
            later = [method.ranks_of(n)[0] in (1, n) for n in range(least, 200)]
            assert method.single_clients(least) == any(later)
    assert [Krum(chosen=m).single_clients(9) for m in range(4)] == [False, True, True, False]
    assert [Zeno(clusters=m).single_clients(9) for m in (1, 2)] == [True, False]


@pytest.mark.parametrize("method", [Radix, Pairwise, TrimmedMean])
def test_neighbours_of_three_clients_open_the_mean_of_two_updates(
    method: type[Radix | Pairwise | TrimmedMean],
) -> None:
    """Two of them are nearest to each other, and the median of the mixed is theirs, whole."""
    trim: dict[str, Any] = {"trim": 0.4} if method is TrimmedMean else {}
    made: Any = method
    mixing = made(neighbours=1, **trim)
    updates = np.random.default_rng(35).normal(0, 0.1, (3, 500))
    result = mixing.in_the_clear(Clear(updates, [1] * 3, Published(coin=bytes(16)), 3))
    pairs = [np.abs(result - (updates.sum(axis=0) - one) / 2).max() for one in updates]
    assert min(pairs) < 2**-15
    assert [mixing.single_clients(least) for least in (2, 3, 4)] == [True, True, False]
    # a median has to be asked, too
    assert not method(**trim).single_clients(3)


def test_a_zeno_round_of_clusters_of_one_opens_an_update() -> None:
    """Check a round in which the coordinator's numbers let one alone pass."""
    updates = np.random.default_rng(36).normal(0, 0.1, (4, 500))
    updates[1] += 2 * updates[0]
    zeno = Zeno(clusters=1, validator="a", rho=0.1, epsilon=1e-9)
    result = zeno.in_the_clear(Clear(updates, [0, 1, 1, 1], Published(coin=bytes(16)), 4))
    assert np.abs(3 * result - updates[1]).max() < 2**-8
