"""Zoom in process: exact at every rank, and liars who change their minds move it within a range."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, Ring
from securemedian.mpc.errors import ConfigError, InputError, LocalProtocolError, PeerProtocolError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.audit.binding import (
    BUCKETS,
    TABLES,
    fold,
    masks,
    places,
    vote_masks,
)
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, deal, histogram
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.bisecting import Bisection
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.methods.zoom import MAX_VOTES, Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path
from securemedian.mpc.rounds.plan import disk_bytes, predict
from tests.parties import (
    Ballot,
    Lanes,
    check,
    make_parties,
    played,
    run_both,
    run_rounds,
    zoomed,
)

ENCODINGS: list[dict[str, Any]] = [
    {},
    {"encoding": "bfloat16"},
    {"encoding": "fixed", "word_bits": 13, "fraction_bits": 4},
    {"encoding": "fixed", "word_bits": 5, "fraction_bits": 0},
    {"encoding": "fixed", "word_bits": 64, "fraction_bits": 30},
]
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf])


def ranked(words: Sequence[Ring], ranks: Sequence[int]) -> NDArray[Any]:
    return np.sort(np.stack(words), axis=0)[[rank - 1 for rank in ranks]]


def chosen(rng: np.random.Generator, method: Zoom, clients: int, dim: int) -> list[Ring]:
    """Return words of clients: of values, and in a third of the coordinates of any bits."""
    bits = method.form(1, 64).opened_bits
    if method.encoding == "fixed":
        values = np.clip(rng.normal(size=(clients, dim)), -0.5, 0.5)
    else:
        values = rng.normal(size=(clients, dim))
        values[:, : dim // 4] = rng.choice(SPECIAL, (clients, dim // 4))
    # ties
    values[:, dim // 2 : 2 * dim // 3] = values[:1, dim // 2 : 2 * dim // 3]
    found = np.stack([method.words(row) for row in values])
    # words that are NaN to float32 are words all the same
    wild = rng.integers(0, 1 << bits, (clients, dim // 3), np.uint64, False)
    wild[:, ::3] = rng.choice(np.array([0, (1 << bits) - 1], np.uint64), wild[:, ::3].shape)
    found[:, dim - dim // 3 :] = wild
    return list(found)


def asked(rng: np.random.Generator, clients: int) -> dict[str, Any]:
    """Return the median, ranks or quantiles, of which one is any."""
    ranks = [int(rng.integers(1, clients + 1))]
    quantiles = [float(rng.choice([0.07, 0.25, 0.5, 0.9, 1.0]))]
    given: list[dict[str, Any]] = [{}, {"ranks": ranks}, {"quantiles": quantiles}]
    return [*given, {"ranks": ranks, "quantiles": quantiles}][int(rng.integers(4))]


@pytest.mark.timeout(0)
def test_results_are_sorted_words(lanes: Lanes, zooms: int) -> None:
    """Run random rounds, as many as `--zooms` asks for, of 1 to 40 clients."""
    rng = np.random.default_rng(42)
    for _ in range(zooms):
        clients, dim = int(rng.integers(1, 41)), int(rng.choice([1, 9, 60, 140]))
        encoding = ENCODINGS[int(rng.choice(len(ENCODINGS), p=[0.3, 0.3, 0.25, 0.1, 0.05]))]
        given = encoding | asked(rng, clients)
        method = Zoom(slots=int(rng.choice([4, 8, 16])), **given)
        most = max(2, clients) + int(rng.choice([0, 0, 1, 30]))
        params = RoundParams(method, dim=dim, max_clients=most)
        words = chosen(rng, method, clients, dim)
        path = zoomed(lanes, params, words, ProtocolParams(lanes=2, chunk=128))
        assert path.result.dtype == words[0].dtype, method
        assert (path.result == ranked(words, method.ranks_of(clients))).all(), method


def test_the_result_is_that_of_radix_bit_by_bit(lanes: Lanes) -> None:
    rng = np.random.default_rng(1)
    for slots, given in ((16, {}), (8, {"encoding": "bfloat16"}), (4, {"quantiles": [0.3, 0.9]})):
        updates = rng.choice(SPECIAL, (7, 130)).astype(np.float32)
        updates[:, 40:] = rng.normal(size=(7, 90)).astype(np.float32)
        zoom, radix = Zoom(slots=slots, **given), Radix(**given)
        words = [zoom.words(update) for update in updates]
        path = zoomed(lanes, RoundParams(zoom, dim=130, max_clients=9), words)
        other = played(lanes, RoundParams(radix, dim=130, max_clients=9), updates)
        assert (path.result == other.values).all()
        one, two = (
            method.decode(PublicValues(np.asarray(values)), 7, None)  # type: ignore[arg-type]
            for method, values in ((zoom, path.result), (radix, other.values))
        )
        assert one.astype(np.float32).tobytes() == two.astype(np.float32).tobytes()


# Liars

Lie = Callable[[int, tuple[int, int]], NDArray[Any]]


def lies(rng: np.random.Generator, slots: int) -> list[Lie]:
    """Return what liars vote at each level, of the shape (liars, d)."""
    top = slots - 1
    return [
        lambda _, shape: np.zeros(shape, np.uint8),
        lambda _, shape: np.full(shape, top, np.uint8),
        lambda vote, shape: np.full(shape, top * (vote % 2), np.uint8),
        lambda vote, shape: np.full(shape, top * (1 - vote % 2), np.uint8),
        lambda _, shape: rng.integers(0, slots, shape).astype(np.uint8),
        lambda _, shape: rng.choice([0, top], shape).astype(np.uint8),
    ]


def told(votes: NDArray[Any], rank: int) -> PublicValues:
    """Return the digits of votes (n, d), as the servers find them."""
    return PublicValues(np.sort(votes, axis=0)[rank - 1 : rank].astype(np.uint16))


def test_liars_who_change_their_minds_stay_within_the_honest_range() -> None:
    """100,000 runs: the result is from h(k-f) to h(k), of honest words h, whatever liars vote."""
    rng, dim, moved = np.random.default_rng(7), 1000, 0
    for _ in range(100):
        clients, slots = int(rng.integers(2, 13)), int(rng.choice([4, 8, 16]))
        given = ENCODINGS[int(rng.integers(3))]
        rank = int(rng.integers(1, clients + 1))
        method = Zoom(slots=slots, ranks=[rank], **given)
        params = RoundParams(method, dim=dim, max_clients=max(2, clients))
        bits, most = params.form.opened_bits, min(rank - 1, clients - rank)
        liars, lie = int(rng.integers(most + 1)), lies(rng, slots)[int(rng.integers(6))]
        # near to each other, in part
        low = rng.integers(0, 1 << bits, dim, np.uint64)
        words = low >> rng.integers(0, bits, dim, np.uint64)
        spread = rng.integers(0, words, (clients - liars, dim), np.uint64, True)
        honest, path = np.minimum(low + spread, np.uint64((1 << bits) - 1)), Path.begin(params)
        while not path.done:
            own = np.stack([path.slots(row) for row in honest])
            votes = np.concatenate([own, lie(path.votes, (liars, dim))])
            path = path.after(told(votes, rank))
        ordered = np.sort(honest, axis=0)
        assert (ordered[rank - 1 - liars] <= path.result[0]).all()
        assert (path.result[0] <= ordered[rank - 1]).all()
        moved += int((path.result[0] != ordered[rank - 1 - liars]).sum())
    assert moved > 10_000


# Paths


def test_a_path_is_told_and_saved() -> None:
    rng = np.random.default_rng(3)
    method = Zoom(slots=8, encoding="bfloat16", ranks=[1, 3])
    params = RoundParams(method, dim=70, max_clients=5)
    path = client = Path.begin(params)
    seen = {path.digest}
    while not path.done:
        with pytest.raises(LocalProtocolError, match="not all of 12"):
            _ = path.result
        path = path.after(PublicValues(rng.integers(0, 8, (1, 70)).astype(np.uint16)))
        client = client.with_last(path.last)
        assert client.digest == path.digest and (client.rows == path.rows).all()
        again = Path.restored(params, path.votes, path.saved())
        assert again.digest == path.digest and again.done == path.done
        seen.add(path.digest)
    assert path.votes == 12 and len(seen) == 13
    # 0 is a digit: the number of votes counts, and so do the parameters
    zeros = [Path(params, votes, np.zeros((2, 70), np.uint64)).digest for votes in (0, 1, 2)]
    others = replace(params, min_clients=3)
    assert len({*zeros, Path.begin(others).digest}) == 4
    with pytest.raises(PeerProtocolError, match="words"):
        Path.begin(params).with_last(path.last[:-1])
    with pytest.raises(InputError, match="a path of another round"):
        Path.restored(params, 3, path.saved()[:-1])


def test_votes_beyond_the_last_level_count_as_its_last(lanes: Lanes) -> None:
    """W = 8 leaves 2 bits to the last level of 32: a client that votes 7 there has voted 3."""
    params = RoundParams(Zoom(slots=8), dim=64, max_clients=3)
    ballots = [Ballot(params, np.full(64, word, np.uint32)) for word in (5, 1 << 31, 1 << 31)]
    path = Path.begin(params)
    while not path.done:
        votes = [ballot.vote(path) for ballot in ballots[:1]]
        slots = 7 if path.votes == 10 else 0
        votes += [each.cast(np.full(64, slots, np.uint8), path.votes) for each in ballots[1:]]
        one, _ = run_rounds(lanes, params, votes)
        path = path.after(PublicValues(np.asarray(one.values)))
    assert (path.result == 3).all()


# Dealings of several votes


def test_votes_rotate_vectors_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where parts of a dealing end within a vote."""
    monkeypatch.setattr("securemedian.mpc.protocols.dealing.PART", 400)
    shape = Dealing(300, 8, 4, votes=5)
    assert shape.stride == 384 and len(shape.parts) == 4
    assert any(part.start % shape.stride for part in shape.parts)
    own, rng = deal(shape), np.random.default_rng(1)
    index = rng.integers(0, 8, (5, 300))
    for vote, row in enumerate(index):
        rotations = share.WordsUpload(shape.rotations_layout, own.rotations(row, vote))
        halves: list[share.Upload] = [own.seeded, own.words]
        sums = [
            histogram(j, [DealtUpload(shape, half, rotations, vote)], [1], 4, 128, 300, True)
            for j, half in enumerate(halves)
        ]
        below = row <= np.arange(7)[:, None]
        assert ((sums[0] + sums[1]) % 16 == below[:, 128:]).all()
        session_id, coin, seed = bytes(16), bytes([vote] * 16), bytes([1] * 16)
        packed = [
            fold(j, DealtUpload(shape, half, rotations, vote), session_id, coin, seed)
            for j, half in enumerate(halves)
        ]
        one, other, mask = (
            ring.unpack(words, 4, 7 * TABLES * BUCKETS).reshape(7, TABLES, BUCKETS)
            for words in (*packed, masks(seed, session_id, shape))
        )
        want = np.zeros((7, TABLES, BUCKETS), np.uint8)
        for table, where in enumerate(places(coin, 0, 300)):
            for found, ones in zip(want[:, table], below, strict=True):
                np.add.at(found, where, ones.astype(np.uint8))
        assert ((one + other - 2 * mask - want) % 16 == 0).all()
        with pytest.raises(LocalProtocolError, match="one update only"):
            own.rotations(row, vote)
    with pytest.raises(LocalProtocolError, match="one update only"):
        own.rotations(index[0], 5)
    mixed = [DealtUpload(shape, own.seeded, rotations, vote) for vote in (0, 1)]
    with pytest.raises(InputError, match="votes of several levels"):
        histogram(0, mixed, [1, 1], 4, 0, 300, True)


def test_a_dealing_of_several_votes_is_checked_as_one() -> None:
    shape, pair = Dealing(100, 4, 3, votes=16), local_pair()
    good, bad = deal(shape), deal(shape)
    # a kept vector of the last vote
    bad.words.packed[0, shape.parts[0].words_of(15 * 128, 15 * 128 + 1)[0]] += np.uint64(2)
    halves = [(one.seeded, one.words) for one in (good, bad)]
    for passed in run_both(lambda j: check(pair[j], j, shape, [half[j] for half in halves])):
        assert passed == [True, False]


def test_votes_have_slots_of_their_own() -> None:
    """Two rotations by the same slots would tell how two votes differ."""
    shape = Dealing(300, 16, 4, votes=3)
    own, same = deal(shape), np.zeros(300, np.uint8)
    seen = np.stack([ring.unpack(own.rotations(same, vote)[0], 4, 300) for vote in range(3)])
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert 1 <= (seen[one] == seen[other]).sum() < 60


def test_a_dealing_for_few_clients_is_checked() -> None:
    """W divides the ring of dealings, although counts take fewer bits."""
    form, pair = Zoom(encoding="bfloat16").form(70, 2), local_pair()
    assert form.dealing is not None and form.ring_bits < 4 == form.dealing.bits
    shape, dealt = form.dealing, deal(form.dealing)
    halves = dealt.seeded, dealt.words
    for passed in run_both(lambda j: check(pair[j], j, shape, [halves[j]])):
        assert passed == [True]


def test_one_vote_is_dealt_as_before() -> None:
    shape = Dealing(300, 8, 4)
    assert shape == Dealing(300, 8, 4, votes=1) and shape.stride == shape.dim == 300
    assert Dealing(256, 8, 4, votes=2).stride == 256


# In malicious mode


def voted(
    params: RoundParams,
    ballots: Sequence[Ballot],
    path: Path,
    masks: Sequence[Sequence[bytes]],
    protocol: ProtocolParams,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what both servers have of a vote, in a session of its own."""
    halves = [ballot.vote(path) for ballot in ballots]
    pairs = [local_pair(20) for _ in range(protocol.lanes)]
    seeds = [[vote_masks(seed, path.votes, path.digest) for seed in own] for own in masks]

    def run(number: int) -> NDArray[Any]:
        other, given = 1 - number, (number, [pair[number] for pair in pairs], params)
        one = Bisection.establish(*given, protocol)
        one.bind([half[number] for half in halves], seeds[number], lambda: None)
        coin = one.toss()
        folds = [
            fold(other, half[other], one.session_id, coin, seeds[other][place])
            for place, half in enumerate(halves)
        ]
        assert one.compare(folds) == [True] * len(folds)
        return one.run(lambda: None)

    return run_both(run)


def test_malicious_rounds_are_sorted_words() -> None:
    """A session per vote, whose rank is that of its descent."""
    rng = np.random.default_rng(8)
    given: dict[str, Any] = {"encoding": "fixed", "word_bits": 8, "fraction_bits": 2}
    method = Zoom(slots=8, ranks=[1, 5], security="malicious", **given)
    params = RoundParams(method, dim=300, max_clients=6)
    words = chosen(rng, method, 5, 300)
    ballots, path = [Ballot(params, row) for row in words], Path.begin(params)
    masks = [[os_entropy(16) for _ in words] for _ in range(2)]
    while not path.done:
        one, other = voted(params, ballots, path, masks, ProtocolParams(lanes=2, chunk=128))
        assert (one == other).all()
        path = path.after(PublicValues(one[None]))
    assert (path.result == ranked(words, [1, 5])).all()


def test_masks_of_the_first_vote_are_those_of_a_round_of_one() -> None:
    seed, path = bytes(range(16)), bytes(32)
    assert vote_masks(seed, 0, path) == seed
    found = {vote_masks(seed, vote, path) for vote in range(4)}
    assert len(found | {vote_masks(seed, 1, bytes([1] * 32))}) == 5
    assert all(len(one) == 16 for one in found)


# Costs


@pytest.mark.parametrize(
    ("slots", "levels", "ots", "ahead"), [(4, 16, 96, 72), (8, 11, 99, 116), (16, 8, 96, 180)]
)
def test_a_plan_has_the_costs_of_all_votes(slots: int, levels: int, ots: int, ahead: int) -> None:
    params = RoundParams(Zoom(slots=slots), dim=100_000, max_clients=8)
    planned = predict(params, [1] * 8, ProtocolParams())
    cost = planned.cost
    assert params.form.votes == levels and ots <= cost.ots / params.dim < ots + 0.1
    assert 276 <= cost.bytes_sent / params.dim < 286
    assert ahead - 1 < params.form.bytes_ahead / params.dim < ahead + 1
    assert 4 <= params.form.bytes_after / params.dim < 4.2
    sent = params.form.bytes_ahead + params.form.bytes_after
    assert disk_bytes(params, 8) == 8 * sent


def test_a_round_takes_the_ots_of_its_plan() -> None:
    """96 per coordinate, of which each takes radix 608."""
    params = RoundParams(Zoom(), dim=1 << 15, max_clients=8)
    lanes, rng = make_parties(), np.random.default_rng(1)
    words = [rng.integers(0, 1 << 32, params.dim, np.uint64).astype(np.uint32) for _ in range(8)]
    ballots, path, ots = [Ballot(params, row) for row in words], Path.begin(params), 0
    protocol = ProtocolParams(lanes=1)
    while not path.done:
        one, _ = run_rounds(lanes, params, [each.vote(path) for each in ballots], protocol)
        path, ots = path.after(PublicValues(np.asarray(one.values))), ots + one.cost.ots
    assert (path.result == ranked(words, [4])).all()
    assert ots == predict(params, [1] * 8, protocol).cost.ots
    assert 96 <= ots / params.dim < 96.2
    radix = RoundParams(Radix(), dim=1 << 15, max_clients=8)
    assert 608 <= predict(radix, [1] * 8, protocol).cost.ots / params.dim < 609


# Refusals


@pytest.mark.parametrize(
    "name", ["weights", "groups", "membership", "neighbours", "midpoint", "ring_bits", "uploads"]
)
def test_options_of_other_methods_are_refused_by_name(name: str) -> None:
    given = {"method": "zoom", "dim": 10, "max_clients": 3, name: 2}
    with pytest.raises(ConfigError, match=f"invalid option of zoom: {name}, which belongs to"):
        RoundParams.from_dict(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"slots": 32}, "invalid slots"),
        ({"slots": 16.0}, "invalid slots"),
        ({"limit_s": 0.0}, "invalid limit_s"),
        ({"limit_s": 604801.0}, "invalid limit_s"),
        ({"check_bits": 39}, "invalid check_bits"),
        # one vote has no digits to vote within, and its last slots would be beyond the words
        ({"encoding": "fixed", "word_bits": 4, "fraction_bits": 0}, "too few word_bits .*: 4;"),
        ({"encoding": "unit"}, "invalid encoding"),
        ({"security": "bounded"}, "invalid security"),
        ({"quantiles": [0.0]}, "invalid quantile"),
        ({"ranks": [1] * 33}, f"more than {MAX_VOTES} votes"),
    ],
)
def test_options_that_are_wrong_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Zoom(**given)


def test_rounds_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="invalid rank"):
        RoundParams(Zoom(ranks=[5]), dim=10, max_clients=4)
    with pytest.raises(ConfigError, match="counts of at most 16 bits"):
        RoundParams(Zoom(ranks=[1], security="malicious"), dim=10, max_clients=1 << 16)
    params = RoundParams(Zoom(ranks=[4]), dim=10, max_clients=4)
    with pytest.raises(ConfigError, match="a rank beyond the total weight"):
        params.check_included(["a", "b", "c"])


def test_the_lowest_and_highest_rank_are_single_clients() -> None:
    for given, single in (({"ranks": [1]}, True), ({"quantiles": [1.0]}, True), ({}, False)):
        assert Zoom(**given).single_clients(5) is single
    assert Zoom(ranks=[4]).single_clients(4) and not Zoom(ranks=[3]).single_clients(4)


def test_releases_that_do_not_know_zoom_are_told() -> None:
    assert METHODS["zoom"] is Zoom
    params = RoundParams(Zoom(), dim=10, max_clients=3)
    assert params.since == {"method zoom": 3} and params.wire == 3
    assert RoundParams.from_dict(params.to_dict()) == params
    assert RoundParams(Radix(), dim=10, max_clients=3).since == {}
