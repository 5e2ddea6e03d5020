"""SHARE: clusters drawn from a common coin, against plain numpy, what is opened, and daemons."""

from collections import Counter
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.laboratory import plaintext
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import dealing, share
from securemedian.mpc.protocols.channel import NONCE_WORDS
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import SLICE_ALIGN
from securemedian.mpc.rounds.aggregators import AGGREGATORS
from securemedian.mpc.rounds.clusters import Exposure, divisions, draw, exposed
from securemedian.mpc.rounds.methods import reclustered
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.reclustered import (
    FEWEST,
    MEAN,
    MEDIAN,
    PAIRWISE,
    RADIX,
    TRIMMED_MEAN,
    Reclustered,
)
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from securemedian.mpc.rounds.plan import predict
from securemedian.servers.network.control import Held, Ready, Resume, Uploaded, Verdicts
from tests.parties import Lanes, deterministic_entropy, make_parties, played, run_both
from tests.servers_alone import Server, held, hello
from tests.test_privacy import looks_uniform, recorders

DIM = 300
SMALL = ProtocolParams(lanes=2, chunk=128)


# Clusters


@pytest.mark.parametrize(
    ("clients", "size", "sizes"),
    [
        (60, 3, [3] * 20),
        (11, 3, [4, 4, 3]),
        (5, 3, [5]),
        (7, 1, [1] * 7),
        (3, 3, [3]),
    ],
)
def test_a_partition_spreads_the_rest(clients: int, size: int, sizes: list[int]) -> None:
    members = Reclustered(clusters=size, reclusterings=3).members(os_entropy(16), clients)
    assert len(members) == 3
    for clusters in members:
        assert [len(those) for those in clusters] == sizes
        assert sorted(np.concatenate(clusters)) == list(range(clients))


def test_partitions_are_drawn_from_the_coin_and_uniform() -> None:
    """Two clients are in one cluster of 3 of 9 with a chance of 1 / 4, whoever they are."""
    method = Reclustered(clusters=3, reclusterings=1000)
    coin = bytes(range(16))
    one, again = (np.array(method.members(coin, 9)) for _ in range(2))
    assert (one == again).all()
    assert (one != np.array(method.members(bytes(16), 9))).any()
    together = np.zeros((9, 9))
    for clusters in one:
        for those in clusters:
            together[np.ix_(those, those)] += 1
    apart = ~np.eye(9, dtype=bool)
    # 6 standard deviations of 14 each
    assert (abs(together[apart] - 250) < 85).all() and (together[~apart] == 1000).all()


def test_all_divisions_are_counted() -> None:
    for clients in range(1, 8):
        for clusters in range(1, clients + 1):
            orders = permutations(range(clients))
            made = {frozenset(frozenset(o[k::clusters]) for k in range(clusters)) for o in orders}
            assert divisions(clients, clusters) == len(made)
    assert min(divisions(32, 32 // size) for size in range(2, 17)) < divisions(33, 2)


def test_no_division_is_drawn_so_often_that_a_sum_has_digits() -> None:
    """Of four clients there are three divisions into pairs, and so three weights of 1000 draws.

    A sum of small numbers with such weights tells each of them.
    """
    rng = np.random.default_rng(35)
    found = Counter(
        frozenset(frozenset(those.tolist()) for those in members)
        for members in draw(bytes(16), 4, 2, 1000)
    )
    values = rng.integers(-3, 4, (4, 2000))
    aggregates = [
        np.min([values[list(those)].sum(axis=0) for those in division], axis=0)
        for division in found
    ]
    opened = np.tensordot(list(found.values()), aggregates, 1)
    fitting = Counter(
        sum(w * a for w, a in zip(found.values(), each, strict=True))
        for each in product(range(-6, 7), repeat=3)
    )
    assert np.mean([fitting[one] == 1 for one in opened.tolist()]) > 0.5
    few = Reclustered(clusters=2, reclusterings=4)
    RoundParams(few, dim=10, max_clients=5).check_included(list("abcde"))
    with pytest.raises(ConfigError, match="those who take part are 4, of whom .* ask for fewer"):
        RoundParams(few, dim=10, max_clients=5).check_included(list("abcd"))
    # with one division, every draw weighs the same
    RoundParams(Reclustered(clusters=1, reclusterings=4), dim=10, max_clients=4)


def test_the_first_coins_are_not_each_others_neighbours() -> None:
    """A client's cluster in one reclustering says nothing of that in the next."""
    places = np.array(Reclustered(clusters=1, reclusterings=1000).members(bytes(16), 4))[:, :, 0]
    same = (places[1:] == places[:-1]).mean(axis=0)
    assert (abs(same - 0.25) < 6 * np.sqrt(0.25 * 0.75 / 1000)).all()


# The result


def expected(
    method: Reclustered,
    updates: np.ndarray,
    model: np.ndarray,
    weights: list[int],
    coin: bytes,
) -> np.ndarray:
    """Return the next model by SHARE's Algorithm 1, in exact whole numbers up to the last line."""
    differences = updates.astype(np.float64) - model
    scaled = differences * np.array(method.weighing.parts(weights))[:, None]
    whole = np.floor(scaled * 2.0**method.fraction_bits).astype(object)
    clusters = max(1, len(updates) // method.clusters)
    numerator: Any = 0
    denominator = 1
    for members in method.members(coin, len(updates)):
        sums = np.sort(np.array([whole[those].sum(axis=0) for those in members]), axis=0)
        if method.aggregator == MEDIAN:
            aggregate = sums[-(-clusters // 2) - 1]
        elif method.aggregator == TRIMMED_MEAN:
            ends = int(method.trim * clusters)
            aggregate, denominator = sums[ends : clusters - ends].sum(axis=0), clusters - 2 * ends
        else:
            aggregate, denominator = sums.sum(axis=0), clusters
        numerator = numerator + aggregate
    movement = numerator * clusters // denominator
    per_client = movement.astype(np.float64) / 2.0**method.fraction_bits
    total = method.weighing.scaled(sum(weights))
    return model + method.eta * (per_client / (method.reclusterings * total))


@pytest.mark.parametrize(
    ("clients", "size", "reclusterings", "ring_bits"), [(11, 3, 4, 0), (12, 3, 2, 40), (7, 1, 1, 0)]
)
@pytest.mark.parametrize(
    ("aggregator", "median_by"),
    [(MEDIAN, PAIRWISE), (MEDIAN, RADIX), (TRIMMED_MEAN, FEWEST), (MEAN, FEWEST)],
)
def test_a_round_is_algorithm_1(
    lanes: Lanes,
    aggregator: str,
    median_by: str,
    clients: int,
    size: int,
    reclusterings: int,
    ring_bits: int,
) -> None:
    rng = np.random.default_rng(clients)
    model = rng.normal(size=DIM).astype(np.float32)
    updates = model + rng.normal(size=(clients, DIM))
    # ties
    updates[:, ::7] = np.round(updates[:, ::7])
    weights = [int(weight) for weight in rng.integers(1, 50, clients)]
    method = Reclustered(
        clusters=size,
        reclusterings=reclusterings,
        aggregator=aggregator,
        median_by=median_by,
        trim=0.3,
        eta=0.7,
        ring_bits=ring_bits,
        fraction_bits=16,
    )
    names = [f"client-{index}" for index in range(clients)]
    for dictionary in ({}, dict(zip(names, weights, strict=True))):
        made = replace(method, weights=dictionary)
        params = RoundParams(made, dim=DIM, max_clients=clients)
        given = params.method.weights_of(names)
        outcome = played(lanes, params, updates, Published(model))
        got = made.decode(made.public(outcome.values), sum(given), Published(model))
        want = expected(made, updates, model, given, outcome.coin)
        assert np.array_equal(got[0], want)
        clear = plaintext.published(updates, params, Published(model), given, coin=outcome.coin)
        assert np.array_equal(clear[0], want.astype(np.float32))


@pytest.mark.parametrize("median_by", [PAIRWISE, RADIX])
@pytest.mark.parametrize(("clients", "size"), [(10, 2), (5, 3)])
def test_sums_at_the_ends_of_their_range_are_right(
    lanes: Lanes, clients: int, size: int, median_by: str
) -> None:
    """All clients saturate, some up and some down, so that sums are as large as they can be."""
    rng = np.random.default_rng(clients)
    updates = rng.choice([-1e30, 1e30], (clients, DIM))
    updates[:, 0], updates[:, 1] = 1e30, -1e30
    names = [f"client-{index}" for index in range(clients)]
    for weights in ([1] * clients, [int(weight) for weight in rng.integers(1, 9, clients)]):
        method = Reclustered(
            clusters=size,
            reclusterings=3,
            median_by=median_by,
            weights=dict(zip(names, weights, strict=True)),
            ring_bits=32,
            fraction_bits=4,
        )
        params = RoundParams(method, dim=DIM, max_clients=clients)
        weights = params.method.weights_of(names)
        outcome = played(lanes, params, updates)
        got = method.decode(method.public(outcome.values), sum(weights), Published())
        clear = method.in_the_clear(Clear(updates, weights, Published(coin=outcome.coin), clients))
        assert np.array_equal(got, clear)


@pytest.mark.parametrize("median_by", [PAIRWISE, RADIX])
def test_a_chunk_that_is_too_large_to_be_made_ahead(lanes: Lanes, median_by: str) -> None:
    """A batch too large for `batch` is made in groups, or by and by."""
    rng = np.random.default_rng(1)
    updates = rng.normal(size=(9, DIM))
    method = Reclustered(
        clusters=1, reclusterings=2, ring_bits=16, fraction_bits=4, median_by=median_by
    )
    least = ProtocolParams(lanes=2, chunk=SLICE_ALIGN, batch=SLICE_ALIGN)
    params = RoundParams(method, dim=DIM, max_clients=9)
    outcome = played(lanes, params, updates, protocol=least)
    got = method.decode(method.public(outcome.values), 9, Published())
    clear = method.in_the_clear(Clear(updates, [1] * 9, Published(coin=outcome.coin), 9))
    assert np.array_equal(got, clear)


@pytest.mark.parametrize("median_by", [PAIRWISE, RADIX])
def test_only_the_sum_over_the_reclusterings_is_opened(median_by: str) -> None:
    """The servers hear sizes, the toss, one value per coordinate, and what is uniform."""
    pair = recorders()
    method = Reclustered(
        clusters=2, reclusterings=3, ring_bits=32, fraction_bits=0, median_by=median_by
    )
    params = RoundParams(method, dim=4096, max_clients=6)
    updates = np.repeat(np.arange(6.0)[:, None], 4096, axis=1)
    lanes = make_parties(pairs=[pair])
    uploads = [share.split(method.encode(row, 6, Published()), 32) for row in updates]
    run_both(
        lambda j: run_round(lanes[j], params, ProtocolParams(lanes=1), [p[j] for p in uploads])
    )
    for end in pair:
        opened = [array for label, array in end.received if label.startswith("open")]
        # with what hid it until it was opened
        assert [array.nbytes for array in opened] == [4 * 4096 + 8 * NONCE_WORDS]
        assert looks_uniform(opened[0])
        labels = {label for label, _ in end.received if label[:3] not in ("bas", "ggm", "ot.")}
        assert {"sizes", "toss.commit", "toss.open", "leaf.request"} <= labels
        assert ("mux.reply" if median_by == PAIRWISE else "and") in labels
        # one commitment has too few bytes to say anything about
        for label in labels - {"sizes", "toss.commit", "toss.open", "commit.ring"}:
            assert looks_uniform(end.of(label).view(np.uint8)), label


# Opened


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_an_opened_round_is_the_aggregator_on_the_means_of_clusters(
    lanes: Lanes, aggregator: str
) -> None:
    rng = np.random.default_rng(6)
    model = rng.normal(size=DIM).astype(np.float32)
    updates = model + rng.normal(size=(22, DIM))
    method = Reclustered(
        clustering="opened",
        aggregator=aggregator,
        clusters=3,
        reclusterings=2,
        trim=0.3,
        eta=0.5,
        faulty_clusters=1,
        # a cluster of 4 and one of 3 of its clients expose the fourth, if the coin has it so
        accept_leak=True,
    )
    params = RoundParams(method, dim=DIM, max_clients=22)
    outcome = played(lanes, params, updates, Published(model))
    assert outcome.values.shape == (14, DIM) and outcome.cost.ots == 0
    got = method.decode(method.public(outcome.values), 22, Published(model))
    whole = np.floor((updates - model) * 2.0**24)
    aggregates = []
    for members in method.members(outcome.coin, 22):
        sums = np.array([whole[those].sum(axis=0) for those in members])
        assert [len(those) for those in members] == [4, 3, 3, 3, 3, 3, 3]
        # floor(0.3 x 7) of 7 clusters at either end
        faulty = 2 if aggregator == TRIMMED_MEAN else 1
        aggregates.append(AGGREGATORS[aggregator](sums / 2.0**24 * 7 / 22, faulty))
    want = model + 0.5 * np.mean(aggregates, axis=0, dtype=np.float64)
    # aggregates are float32
    np.testing.assert_allclose(got[0], want, rtol=0, atol=1e-6)
    clear = plaintext.published(updates, params, Published(model), coin=outcome.coin)
    assert np.array_equal(clear[0], got[0].astype(np.float32))


@pytest.mark.parametrize(
    ("clients", "size", "enough"), [(60, 3, 4), (60, 4, 5), (60, 10, 12), (100, 25, 33)]
)
def test_from_how_many_reclusterings_on_all_updates_follow(
    clients: int, size: int, enough: int
) -> None:
    """Each reclustering adds c equations, of which their common sum is one."""
    clusters = clients // size
    for seed in range(3):
        coin = bytes([seed] * 16)
        for reclusterings in (1, enough - 1, enough):
            found = exposed(coin, clients, clusters, reclusterings)
            assert found.rank == min(clients, reclusterings * (clusters - 1) + 1)
        assert found.clients == list(range(clients))
        assert exposed(coin, clients, clusters, 1).clients == []


def test_who_is_exposed_before_all_are() -> None:
    """Solve for each client's unit vector, with exact ranks."""
    some = 0
    for seed in range(10):
        coin = bytes([seed] * 16)
        matrix = np.array(
            [
                [client in those for client in range(7)]
                for members in draw(coin, 7, 3, 3)
                for those in members
            ],
            float,
        )
        rank = np.linalg.matrix_rank(matrix)
        want = [
            client
            for client, unit in enumerate(np.eye(7))
            if np.linalg.matrix_rank(np.vstack([matrix, unit])) == rank
        ]
        found = exposed(coin, 7, 3, 3)
        assert (found.rank, found.clients) == (rank, want)
        some += 0 < len(want) < 7
    assert some


def test_an_exposing_coin_fails_the_round_before_anything_is_opened(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = exposed

    def unlucky(coin: bytes, *sizes: int) -> Exposure:
        return Exposure(5, [2]) if any(coin) else real(coin, *sizes)

    monkeypatch.setattr(reclustered, "exposed", unlucky)
    pair = recorders()
    params = RoundParams(Reclustered(clustering="opened", clusters=3), dim=DIM, max_clients=12)
    with pytest.raises(ConfigError, match="tell updates: those of 1 of 12 clients"):
        played(make_parties(lanes=2, pairs=[pair, recorders()]), params, np.zeros((12, DIM)))
    assert not [label for end in pair for label, _ in end.received if label.startswith("open")]
    accepting = Reclustered(clustering="opened", clusters=3, accept_leak=True)
    params = RoundParams(accepting, dim=DIM, max_clients=12)
    played(make_parties(lanes=2), params, np.zeros((12, DIM)))


# The coin


def test_a_coin_is_tossed_anew_for_each_round_and_kept_for_its_attempts(lanes: Lanes) -> None:
    params = RoundParams(Reclustered(clusters=2), dim=DIM, max_clients=4)
    updates = np.zeros((4, DIM))
    coins = {played(lanes, params, updates).coin for _ in range(3)}
    assert len(coins) == 3 and all(len(coin) == 16 for coin in coins)
    repeated = set()
    for _ in range(3):
        # one for each server, because they draw at the same time
        entropies = deterministic_entropy(1), deterministic_entropy(2)
        repeated.add(played(lanes, params, updates, entropies=entropies).coin)
    assert len(repeated) == 1


def test_another_attempt_has_the_same_opening(tmp_path: Path) -> None:
    """Check a server that was started again meanwhile, too, until the coordinator starts over."""
    s0 = Server(0, tmp_path, RoundParams(Reclustered(aggregator=MEAN), dim=10, max_clients=3))
    first = s0.open()
    s0.upload_all(first)
    s0.hear(*(Uploaded(first, key) for key in s0.keys), Held(first, held(s0.keys)))
    s0.engine.end_check()
    s0.rounds.engine_ended()
    s0.hear(Verdicts(first, s0.keys, []), Ready(first, 1))
    # that of the check before it, too, which may toss
    checked, opening = s0.engine.openings
    assert checked == opening
    s0.restart()
    s0.now += 10.0
    s0.hear(hello())
    s0.rounds.tick()
    resume = next(message for message in s0.sent if isinstance(message, Resume))
    s0.hear(replace(resume, held=held(s0.keys)), Ready(first, 2))
    assert s0.engine.openings == [opening] and len(opening) == dealing.OPENING_BYTES
    # in the same round, and in another one of the same number, whose clients are the same
    for _ in range(2):
        s0.fail()
        s0.restart()
        s0.hear(hello())
        s0.open()
        assert s0.latest.server_round.toss_opening == opening.hex()
    s0.fail()
    s0.open(release=True)
    assert s0.latest.server_round.toss_opening != opening.hex()


# Bad input and cost


@pytest.mark.slow
def test_four_reclusterings_cost_at_most_five_medians_of_as_many_clients_as_clusters() -> None:
    """N = 60, m = 3, R = 4 against one pairwise median of 20 clients, checks included."""
    protocol = ProtocolParams()
    pairwise = RoundParams.from_dict({"method": "pairwise", "dim": 640, "max_clients": 20})
    one = predict(pairwise, [1] * 20, protocol).cost
    for median_by, most in ((PAIRWISE, 4.7), (FEWEST, 2.0)):
        method = Reclustered(clusters=3, reclusterings=4, median_by=median_by)
        ours = predict(RoundParams(method, dim=640, max_clients=60), [1] * 60, protocol).cost
        assert ours.ots <= most * one.ots and ours.bytes_sent <= most * one.bytes_sent


@pytest.mark.parametrize("ring_bits", [32, 64])
def test_a_median_is_computed_in_the_way_that_takes_fewer_ots(ring_bits: int) -> None:
    """Take pairs for few clusters and radix for many; chunks of any size give the same."""
    ways = set()
    for clients in (2, 5, 8, 9, 10, 14, 20, 60):
        least, by_pairs, by_radix = (
            Reclustered(ring_bits=ring_bits, fraction_bits=8, clusters=1, median_by=median_by)
            for median_by in (FEWEST, PAIRWISE, RADIX)
        )
        for dim in (64, 6400):
            ots = [
                method.demand([1] * clients, dim, clients).ots
                for method in (least, by_pairs, by_radix)
            ]
            assert ots[0] in ots[1:]
            if dim > 64:
                # near the balance the fewer bits of sums are not counted on
                assert ots[0] <= 1.2 * min(ots[1:])
            ways.add((clients, ots[0] == ots[2]))
        assert least.at_once(clients) in (by_pairs.at_once(clients), by_radix.at_once(clients))
    assert {(2, False), (5, False), (20, True), (60, True)} <= ways
    assert len(ways) == 8
