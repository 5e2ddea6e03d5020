"""The attacks on zoom that were simulated before it was built, against what is built.

Nobody learns more than the digits of the result from servers that follow the protocol. With
security malicious that holds for a server that deviates, too. In a semi-honest round it reads a
client that stands out, as the pages say: `isolate`, `skew` and `prior` succeed. `peel`, `drop` and
`retry` would succeed if the set of clients changed after a digit is opened, and `nearest` if a
prefix were published. The tests show what the rules are for.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.common.states import State
from securemedian.mpc.arrays import PublicValues, RingShare
from securemedian.mpc.errors import LocalProtocolError, PeerDeviated, SecureMedianError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit.binding import BUCKETS, TABLES, fold, places, vote_masks
from securemedian.mpc.protocols.dealing import histogram
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.bisecting import Bisection
from securemedian.mpc.rounds.methods import bucketed
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path
from securemedian.servers.machine.events import CheckEnded, Computed, Declined, Event, Turn
from securemedian.servers.machine.round import ChecksNow
from securemedian.servers.network.control import (
    Check,
    Close,
    Compute,
    Held,
    Resume,
    Uploaded,
    Verdicts,
)
from tests.parties import Ballot, make_parties, zoomed
from tests.rogue import hooks
from tests.rogue.bisecting import ROWS, spy
from tests.test_bisect import Round, rogue_run
from tests.test_bisect_rogue import DIM, beyond
from tests.test_round_state import AUDITED_VOTES, FIRST, ID, MESSAGES, OWN, a_round
from tests.test_zoom import told

Words = NDArray[np.uint32]
ZOOM = Zoom()
ONE_LANE = ProtocolParams(lanes=1)


def words_of(updates: NDArray[Any]) -> Words:
    return np.stack([ZOOM.words(update) for update in updates]).astype(np.uint32)


def params_of(words: NDArray[Any], most: int = 0, **given: Any) -> RoundParams:
    clients = max(2, most or len(words))
    return RoundParams(Zoom(**given), dim=words.shape[1], max_clients=clients)


def slots_of(path: Path, words: Words) -> NDArray[np.uint8]:
    return np.stack([path.slots(row) for row in words])


def descend(
    words: Words,
    rank: int | Callable[[int], int],
    levels: int = 8,
    who: Callable[[int], slice] = lambda vote: slice(None),
) -> Path:
    """Return what servers open if a vote asks for this rank, of these clients."""
    path = Path.begin(params_of(words))
    while path.votes < levels:
        votes = slots_of(path, words[who(path.votes)])
        path = path.after(told(votes, rank if isinstance(rank, int) else rank(path.votes)))
    return path


def spread(rng: np.random.Generator, clients: int, dim: int, first: float = 1.0) -> Words:
    """Return words of updates, of which the first client's are larger by a factor."""
    updates = rng.normal(0, 0.01, (clients, dim))
    updates[0] *= first
    return words_of(updates.astype(np.float32))


# A server that deviates


def test_isolate_reads_who_stands_out_in_a_semi_honest_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0 asks for the highest rank: 32 bits of a client in a third of the coordinates."""
    words = spread(np.random.default_rng(7), 8, 2000, 3)
    honest = zoomed(make_parties(), params_of(words), list(words), ONE_LANE).result
    assert (honest == words[0]).mean() < 0.06
    # only party 0 takes the rank off its share
    monkeypatch.setattr(Zoom, "rank_of", lambda *_: 8)
    found = zoomed(make_parties(), params_of(words), list(words), ONE_LANE).result
    assert 0.25 < (found == words[0]).mean() < 0.45


def test_skew_reads_the_class_that_a_client_alone_has() -> None:
    """Softmax regression of eight hospitals, of which one has class 9: its row, word by word."""
    rng = np.random.default_rng(3)
    centres, start = np.abs(rng.normal(size=(10, 64))), rng.normal(0, 0.01, (10, 64))
    updates = []
    for client in range(8):
        classes = rng.choice(10 if client == 0 else 9, 300)
        data = centres[classes] * 0.5 + np.abs(rng.normal(size=(300, 64))) * 0.5
        trained = start.copy()
        for _ in range(20):
            scores = np.exp(data @ trained.T)
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(300), classes] -= 1
            trained -= 0.05 * scores.T @ data / 300
        updates.append(trained.reshape(-1))
    words = words_of(np.array(updates, np.float32))
    row = slice(9 * 64, None)
    found, honest = (descend(words, k).result[0, row] for k in (8, 4))
    assert (found == words[0, row]).mean() > 0.75 and (honest == words[0, row]).mean() < 0.05


def steered(
    monkeypatch: pytest.MonkeyPatch, guess: Words, levels: int, rank: NDArray[Any]
) -> list[int]:
    """Let S0 answer with a guess's digits at the first levels, and then ask for other ranks.

    Counts have a bit more than they take, so that a sum is never, or always, below 0. Return a list
    to which each question adds.
    """
    asked: list[int] = []
    true = bucketed._reached

    def reached(party: Any, centred: RingShare, bits: int) -> Any:
        if party.number:
            return true(party, centred, bits)
        vote, step = len(asked) // 4, 3 - len(asked) % 4
        asked.append(vote)
        if vote < levels:
            bit = guess >> np.uint32(28 - 4 * vote + step) & np.uint32(1)
            less = np.where(bit, 16, 0)
        else:
            less = rank
        # the true rank, 4, is taken off already
        return true(party, RingShare(ring.reduce(centred + 4 - less, bits)), bits)

    monkeypatch.setattr(bucketed, "_reached", reached)
    return asked


def test_prior_reads_who_is_near_to_a_guess_in_a_semi_honest_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0 steers the prefix to a guess, until the client is alone: then it has the whole word."""
    rng, levels = np.random.default_rng(11), 5
    around = 0.05 * rng.normal(size=1000)
    change = 0.003 * rng.normal(size=(8, 1000))
    words = words_of((around + change).astype(np.float32))
    guess = words_of((around + change[:1] * (1 + 0.01 * rng.normal(size=1000))).astype(np.float32))
    inside = words >> np.uint32(32 - 4 * levels) == guess >> np.uint32(32 - 4 * levels)
    alone = inside[0] & (inside.sum(axis=0) == 1)
    assert alone.mean() > 0.3
    rank = 1 + (words < (guess[0] >> np.uint32(12) << np.uint32(12))).sum(axis=0)
    asked = steered(monkeypatch, guess[0], levels, rank)
    params = params_of(words, most=16)
    found = zoomed(make_parties(), params, list(words), ONE_LANE).result[0]
    assert len(asked) == 32 and (found[alone] == words[0, alone]).all()


def vote_of(words: Words, vote: int, path: Path | None = None) -> Round:
    """Return a vote of a round with security malicious, with all that clients and servers have."""
    if path is None:
        params = params_of(words, security="malicious")
        path = Path(params, vote, descend(words, (len(words) + 1) // 2, vote).rows)
    params = path.params
    round_ = Round(slots_of(path, words), max_clients=params.max_clients, lanes=2, chunk=256)
    ballots = [Ballot(params, row) for row in words]
    halves = [ballot.vote(path) for ballot in ballots]
    round_.params, round_.shape = params, ballots[0].shape
    round_.uploads = [[half[j] for half in halves] for j in (0, 1)]
    round_.masks = [[vote_masks(one, vote, path.digest) for one in own] for own in round_.masks]
    return round_


@pytest.mark.parametrize(
    ("name", "rogue"), [("", 0), ("", 1), ("rank", 0), ("row", 1), ("masked", 1), ("sum", 0)]
)
def test_a_rogue_learns_the_digits_of_a_malicious_vote_alone(
    name: str, rogue: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank and no row but the right one: neither isolate, nor skew, nor prior gets a bit."""

    until_the_end = partial(hooks.replace, put=monkeypatch.setattr)

    round_ = vote_of(spread(np.random.default_rng(5), 5, DIM), 2)
    spoils, errors = spy(until_the_end, rogue), dict[int, BaseException]()
    if name:
        ROWS[name][0](until_the_end, rogue)
    rogue_run(round_, errors)
    assert beyond(round_, spoils, 2) == 0
    if name:
        said = errors[1 - rogue]
        assert isinstance(said, PeerDeviated) and ROWS[name][1] in str(said)
    else:
        assert not errors


def test_a_helping_client_lets_a_server_ask_for_another_rank_at_each_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S0 adds e to its sums, and a client folds e along: the claim allows a bit per question.

    Here it steers five levels to a guess, and then reads the word that is alone there by its rank.
    """
    rng, levels = np.random.default_rng(11), 5
    around, change = 0.05 * rng.normal(size=512), 0.003 * rng.normal(size=(6, 512))
    words = words_of((around + change).astype(np.float32))
    guess = words_of(around + change[:1] * (1 + 0.01 * rng.normal(size=512)))[0]
    inside = words >> np.uint32(12) == guess >> np.uint32(12)
    alone = inside[0] & (inside.sum(axis=0) == 1)
    less = (words < (guess >> np.uint32(12) << np.uint32(12))).sum(axis=0)
    path, true_sums = Path.begin(params_of(words, most=40, security="malicious")), Bisection._sums
    for vote in range(path.params.form.votes):
        round_ = vote_of(words, vote, path)
        digit = (guess >> np.uint32(max(0, 28 - 4 * vote)) & np.uint32(15)).astype(int)
        steers = np.where(np.arange(15)[:, None] < digit, -16, 16)
        added = steers if vote < levels else np.broadcast_to(2 - less, (15, 512))
        extra = ring.reduce(added.astype(np.uint16), round_.shape.bits).astype(np.uint8)

        def sums(self: Bisection, start: int, stop: int, extra: Any = extra) -> RingShare:
            found = true_sums(self, start, stop)
            bits = self._shape.bits
            return RingShare(ring.reduce(found + (1 - self._number) * extra[:, start:stop], bits))

        def folds(number: int, coin: bytes, _: Any = None, of: Any = (round_, extra)) -> list[Any]:
            (own, extra), found = of, Round.folds(of[0], number, coin)
            if number:
                at, bits = places(coin, 0, 512), own.shape.bits
                more = np.array(
                    [[np.bincount(g, row, BUCKETS) for g in at] for row in extra.astype(int)]
                )
                mine = ring.unpack(found[-1], bits, more.size) + more.reshape(-1).astype(np.uint8)
                found[-1] = ring.pack(ring.reduce(mine, bits), bits)
            return found

        monkeypatch.setattr(Bisection, "_sums", sums)
        monkeypatch.setattr(round_, "folds", folds)
        errors = dict[int, BaseException]()
        found = rogue_run(round_, errors)
        assert not errors
        path = path.after(PublicValues(found[1][None]))
    assert alone.mean() > 0.2 and (path.result[0, alone] == words[0, alone]).all()


def test_another_prefix_has_another_digest() -> None:
    """So a client finds it in the record of the server that follows the protocol."""
    words = spread(np.random.default_rng(1), 5, 40)
    path = descend(words, 3, 3)
    before, seen = descend(words, 3, 2), {path.digest}
    for place in range(40):
        packed = path.last.copy()
        packed[place // 16] ^= np.uint64(1) << np.uint64(4 * (place % 16))
        seen.add(before.with_last(packed).digest)
    # an old level, too
    seen.add(before.digest)
    assert before.with_last(path.last).digest == path.digest and len(seen) == 42


# Another set of clients


def test_peel_reads_signs_if_a_client_is_left_out_after_each_level() -> None:
    """Six of nine clients, by name, in most coordinates: no client is left out after a level."""
    rng = np.random.default_rng(3)
    words = spread(rng, 9, 5000)
    path = Path.begin(params_of(words))
    # steered to the words just below 0
    path = path.after(told(np.full((9, 5000), 7, np.uint8), 1))
    counts, left = [], 0
    for level in range(1, 8):
        left += level >= 2 and left < 6
        slots = slots_of(path, words[left:])
        least, most = np.zeros(5000, int), np.full(5000, 9 - left)
        found = np.zeros(5000, int)
        for step in (8, 4, 2, 1):
            asked = (least + most + 1) // 2
            reached = (slots <= np.minimum(found + step - 1, 14)).sum(axis=0) >= asked
            least, most = np.where(reached, asked, least), np.where(reached, most, asked - 1)
            found = np.where(reached, found, found + step)
        counts.append(least)
        path = path.after(told(found[None].astype(np.uint8), 1))
    read = [
        (counts[place] - counts[place + 1] == (words[place] < 1 << 31)).mean() for place in range(6)
    ]
    assert min(read) > 0.9


def test_a_server_that_leaves_a_client_out_alone_reads_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a malicious vote the other server finds it, and in another one digits are noise."""
    words = spread(np.random.default_rng(4), 9, 3000)
    run, found = bucketed.median, dict[int, Any]()

    def median(party: Any, counts: RingShare, *given: Any) -> Any:
        # the sum of one client's shares at one server is uniform
        if party.number == 0:
            noise = np.random.default_rng(1).integers(0, 16, counts.shape)
            counts = RingShare(ring.reduce(counts - noise.astype(counts.dtype), 4))
        return run(party, counts, *given)

    monkeypatch.setattr(bucketed, "median", median)
    params = params_of(words, encoding="bfloat16")
    short = (words >> np.uint32(16)).astype(np.uint16)
    found = zoomed(make_parties(), params, list(short), ONE_LANE).rows[0]
    # the first digit is 7 or 8 for all
    assert 0.1 < ((found >> np.uint64(12)) // np.uint64(4) == 0).mean() < 0.9

    def sums(self: Bisection, start: int, stop: int) -> RingShare:
        total = true(self, start, stop)
        if self._number == 1:
            return total
        bits = self._shape.bits
        one = histogram(0, self._uploads[:1], [1], bits, start, stop, cumulative=False)
        return RingShare(ring.reduce(total - np.cumsum(one, axis=0, dtype=one.dtype), bits))

    true = Bisection._sums
    monkeypatch.setattr(Bisection, "_sums", sums)
    errors: dict[int, BaseException] = {}
    rogue_run(vote_of(words[:5, :2048], 3), errors)
    assert isinstance(errors[1], PeerDeviated)


@pytest.mark.parametrize("after", [1, 2, 3])
def test_drop_tells_the_side_of_a_client_that_leaves_between_levels(after: int) -> None:
    """Both servers are honest: digits that stay at one end say where the client was."""
    rng, clients = np.random.default_rng(5), 5
    words = spread(rng, clients, 4000)
    medians = np.sort(words, axis=0)[2]
    path = descend(
        words,
        lambda vote: 3 if vote < after else 2,
        who=lambda vote: slice(int(vote >= after), None),
    )
    below = (1 << 32 - 4 * after) - 1
    ends = path.result[0] & np.uint32(below)
    low, high = ends == 0, ends == below
    assert (low | high).mean() > (0.1 if after > 1 else -1)
    # the rest lie below the interval: whoever left was above
    for side, where in ((words[0] >= medians, low), (words[0] < medians, high)):
        assert not where.any() or side[where].mean() > 0.95


def test_retry_tells_the_side_of_a_client_that_the_next_round_leaves_out() -> None:
    """On nearly the same updates: so these are not voted on again beyond the first level."""
    rng, clients, dim = np.random.default_rng(9), 9, 4000
    around = 0.05 * rng.normal(size=dim)
    updates = (around + 0.01 * rng.normal(size=(clients, dim))).astype(np.float32)
    words = words_of(updates)
    prefix = descend(words, 5, 5).rows[0].astype(np.uint32) + np.uint32(2048)
    result = descend(words[1:], 4).result[0]
    before, after = (ZOOM.decode(values, 0, None)[0] for values in (prefix[None], result[None]))  # type: ignore[arg-type]
    above = words[0] >= np.sort(words, axis=0)[4]
    fell = before - after
    best = max(((fell > at) == above).mean() for at in np.quantile(fell, np.linspace(0.1, 0.9, 33)))
    assert best > 0.9


def test_nearest_would_let_a_client_choose_among_prefixes() -> None:
    """A round that could not end has no result, and its prefix would be outside the range."""
    rng = np.random.default_rng(4)
    start = (0.05 * rng.normal(size=4000)).astype(np.float32)
    words = words_of((start + 0.01 * (rng.normal(size=(8, 4000)) + 1)).astype(np.float32))
    path, model = descend(words, 4, 2), ZOOM.words(start)
    low = path.rows[0].astype(np.uint32)
    nearest = np.clip(model, low, low + np.uint32((1 << 24) - 1))
    ordered = np.sort(words[1:], axis=0)
    assert ((nearest < ordered[2]) | (nearest > ordered[3])).mean() > 0.4
    with pytest.raises(LocalProtocolError, match="not all of 8"):
        _ = path.result


# Folds of two votes


def test_twice_reads_digits_if_two_votes_have_the_same_masks() -> None:
    """The difference of two folds under one mask is that of a named client's vectors."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 1 << 32, (1, 100), np.uint64).astype(np.uint32)
    params = params_of(words, security="malicious")
    ballot, path = Ballot(params, words[0]), Path.begin(params)
    first = ballot.vote(path)
    later = path.after(told(path.slots(words[0])[None], 1))
    halves, coin, session, seed = (first, ballot.vote(later)), bytes(16), bytes(16), bytes(16)
    shape, place = ballot.shape, places(coin, 0, 100)[0]
    once = np.flatnonzero(np.bincount(place, minlength=BUCKETS)[place] == 1)
    assert once.size > 50

    def read(seeds: tuple[bytes, bytes]) -> float:
        """Return in how many coordinates the second digit is where the first one is known."""
        differences = []
        for half, mask in zip(halves, seeds, strict=True):
            # party 1 makes a fold of party 0's share of the same vectors as its own
            own = fold(1, half[1], session, coin, seed)
            phi = fold(0, half[0], session, coin, mask)
            values = [ring.unpack(each, shape.bits, 15 * TABLES * BUCKETS) for each in (phi, own)]
            differences.append(ring.reduce(values[0] + values[1], shape.bits).reshape(15, -1))
        both = ring.reduce(differences[1] - differences[0], shape.bits)[:, place[once]]
        slots = [path_.slots(words[0])[once] for path_ in (path, later)]
        steps = [(one <= np.arange(15)[:, None]).astype(np.uint8) for one in slots]
        return float((both == ring.reduce(steps[1] - steps[0], shape.bits)).all(axis=0).mean())

    assert read((seed, seed)) == 1.0
    # masks of the vote and its path
    assert read((vote_masks(seed, 0, path.digest), vote_masks(seed, 1, later.digest))) < 0.05


# Order


def test_ord_results_are_numpys_where_there_is_no_minus_zero() -> None:
    rng = np.random.default_rng(1)
    values = np.array([0.0, 1, -1, 2, 1e-45, -1e-45, 3.4e38, np.inf, -np.inf], np.float32)
    for _ in range(60):
        clients = int(rng.integers(1, 41))
        rank = int(rng.integers(1, clients + 1))
        updates = rng.choice(values, (clients, 8))
        path = descend(words_of(updates), rank)
        found = ZOOM.decode(path.result, clients, None)[0]  # type: ignore[arg-type]
        want = np.sort(updates, axis=0)[rank - 1]
        assert found.astype(np.float32).tobytes() == want.tobytes()
    # -0 is below 0, which numpy takes for the same
    both = descend(words_of(np.array([[0.0], [-0.0]])), 1).result
    assert np.signbit(ZOOM.decode(both, 2, None)).all()  # type: ignore[arg-type]


def test_ord_quantiles_are_ranks_of_the_decimal_as_written() -> None:
    for clients in (1, 2, 3, 8, 25, 40):
        for hundredth in range(1, 101):
            exact = math.ceil(Fraction(hundredth, 100) * clients)
            assert Zoom(quantiles=[hundredth / 100]).rank_of(3, clients) == exact


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    "state", [State.VOTING, State.CHECKING, State.QUEUED, State.STARTING, State.RUNNING]
)
def test_no_server_leaves_a_client_out_once_a_vote_has_run(party: int, state: State) -> None:
    """Whatever two messages or events come: peel needs another set at each level."""
    keys = ["key-a", "key-b", "key-c"]
    here = a_round(party, state, max_clients=4, **AUDITED_VOTES)
    here.here = here.there = dict.fromkeys(keys, b"m")
    here.dealt_here, here.passed = dict.fromkeys(keys, b"d"), dict.fromkeys(keys, True)
    here.included, here.ran, here.level, here.attempt = keys, True, 1, 1
    here.check = ChecksNow(keys, b"") if state is State.CHECKING else None
    gone = keys[:2]
    said = Resume(ID, FIRST, str(state), 1, b"", dict.fromkeys(gone, b"m"), gone, gone, [], {})
    events: list[Event] = [
        *(one for one in (*MESSAGES, *OWN) if not isinstance(one, Computed)),
        *(replace(said, level=level) for level in (0, 1, 2)),
        CheckEnded(keys, ["key-c"], ["key-c"]),
        Verdicts(ID, keys, ["key-c"]),
        Check(ID, gone),
        Uploaded(ID, "key-c", b"other"),
        Declined("key-c"),
        Close(ID, dict.fromkeys(gone, b"m")),
        Held(ID, dict.fromkeys(gone, b"m")),
        Compute(ID, here.digest, 2, FIRST, False),
        Turn(FIRST, False),
    ]
    ended = 0
    for several in product(events, repeat=2):
        one = here.copy()
        for event in several:
            with suppress(SecureMedianError):
                one.handle(event, 1.0)
        assert one.state is State.FAILED or one.included == keys, several
        ended += one.state is State.FAILED
    # S1 never starts a run
    assert ended or (party, state) == (1, State.STARTING)
