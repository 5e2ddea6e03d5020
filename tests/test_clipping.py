"""The norm bound of a mean that adapts to the clients: who is clipped, and how it moves."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.common.policy import Policy
from securemedian.common.versions import check_known
from securemedian.laboratory import plaintext
from securemedian.laboratory.servers import client_config
from securemedian.mpc.errors import PolicyRefused, VersionsDiffer
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.mean import COUNT_AT, Mean
from securemedian.mpc.rounds.methods.norms import LARGEST, SOUNDNESS
from securemedian.mpc.rounds.params import MAX_CLIENTS, RoundParams
from securemedian.mpc.rounds.pipeline import check_values, run_round
from securemedian.mpc.rounds.run_state import FIRST_STEP, LEAST_STEP, RunState, finish
from securemedian.servers.rounds.runs import begin
from tests.daemons import Pair
from tests.parties import make_parties, run_both

DIM = 300
SIZES = (4.0, 4.0, 1.0, 1.0, 1.0)
NAMES = [f"c{number}" for number in range(len(SIZES))]
SMALL = ProtocolParams(lanes=2, chunk=128)
PAIR = {"clients": 5}


def drawn(seed: int, around: Any = 0.0) -> np.ndarray:
    """Return the updates of two large hospitals and three small ones, of lengths SIZES."""
    ways = np.random.default_rng(seed).normal(size=(len(SIZES), DIM))
    return around + ways * (np.array(SIZES) / np.linalg.norm(ways, axis=1))[:, None]


def asked(run: RunState | None = None, **options: Any) -> RoundParams:
    """Return the parameters of a round as S0 opens it."""
    params = RoundParams(Mean(**options), dim=DIM, max_clients=len(SIZES), min_clients=2)
    return (run or RunState()).settled(params)


def computed(
    params: RoundParams, run: RunState, shares: list[tuple[Any, Any]]
) -> tuple[list[bool], int, RunState, np.ndarray]:
    """Check and run a round in process: who passes, how many were clipped, the next run, the mean.

    `shares` are the two servers' shares of each client, shape (1, d).
    """
    lanes = make_parties(SMALL.lanes)

    def both(j: int) -> tuple[list[bool], Any]:
        uploads = [
            share.WordsUpload(params.form.layout, ring.pack(one[j], params.form.layout.bits)[None])
            for one in shares
        ]
        weights = params.method.weights_of(NAMES)
        passed = check_values(lanes[j], params, SMALL, uploads, weights=weights).passed
        kept = [at for at, ok in enumerate(passed) if ok]
        kept_weights = params.method.weights_of([NAMES[at] for at in kept])
        chosen = [uploads[at] for at in kept]
        return passed, run_round(lanes[j], params, SMALL, chosen, weights=kept_weights)

    (passed, outcome), (_, other) = run_both(both)
    assert np.array_equal(outcome.values, other.values)
    included = [name for name, ok in zip(NAMES, passed, strict=True) if ok]
    total = sum(params.method.weights_of(included))
    after, results = finish(run, params, outcome.values, total)
    by = params.method.adapts
    assert by
    clipped = by.clipped(outcome.values)
    return passed, clipped, after.adapted(run, by, clipped, len(included)), results[0]


def halves(values: Any, seed: int = 0) -> tuple[Any, Any]:
    """Return two additive shares of ring elements (1, d)."""
    one = np.random.default_rng(seed).integers(0, 1 << 64, values.shape, np.uint64)
    return one, values - one


def encoded(params: RoundParams, run: RunState, updates: np.ndarray) -> list[np.ndarray]:
    published = run.published_for(params)
    parts = [replace(published, part=params.part_of(name)) for name in NAMES]
    each = zip(updates, parts, strict=True)
    return [params.method.encode(row, params.max_clients, one) for row, one in each]


def test_the_bound_follows_the_quantile_and_nobody_is_left_out() -> None:
    """Against plain numpy, over several rounds, with clients twice as long later on.

    The median's bound, which is the default, is that of rounds of daemons below.
    """
    quantile = 0.8
    run = RunState(model=np.full(DIM, 0.25, np.float32))
    wanted, step, bounds = 32.0, FIRST_STEP, []
    for number in range(14):
        params = asked(run, quantile=quantile)
        given = params.to_dict()
        assert run.model is not None and given["norm_bound"] == pytest.approx(wanted, rel=1e-5)
        assert given["quantile"] == quantile
        moves = drawn(number) * (2 if number > 9 else 1)
        updates = run.model + moves
        shares = [halves(one, number) for one in encoded(params, run, updates)]
        clear = run.published_for(params)
        passed, clipped, run, mean = computed(params, run, shares)
        lengths = np.linalg.norm(moves, axis=1)
        assert passed == [True] * 5 and clipped == (lengths > wanted).sum()
        cut = moves * np.minimum(1, wanted / lengths)[:, None]
        assert clear.model is not None
        np.testing.assert_allclose(mean, clear.model + cut.mean(axis=0), atol=1e-4)
        assert np.array_equal(mean, plaintext.published(updates, params, clear)[0])
        wanted *= np.exp(-step * (1 - clipped / 5 - quantile))
        step = max(LEAST_STEP, step / 2)
        bounds.append(wanted)
    settled = bounds[9], bounds[13]
    assert 4 < settled[0] < 8
    assert settled[1] > settled[0]


def test_weights_scale_what_is_clipped_and_every_client_counts_once() -> None:
    weights = dict(zip(NAMES, (900, 800, 700, 600, 1), strict=True))
    run = RunState(model=np.zeros(DIM, np.float32))
    params = asked(run, norm_bound=2.0, quantile=0.5, weights=weights)
    updates = drawn(1)
    # also the lightest is clipped
    updates[4] *= 50
    shares = [halves(one) for one in encoded(params, run, updates)]
    passed, clipped, after, mean = computed(params, run, shares)
    assert passed == [True] * 5 and clipped == 3
    cut = updates * np.minimum(1, 2 / np.linalg.norm(updates, axis=1))[:, None]
    want = np.average(cut, axis=0, weights=params.method.weights_of(NAMES))
    np.testing.assert_allclose(mean, want, atol=1e-4)
    assert after.bound is not None
    assert after.bound[0] == pytest.approx(2 * np.exp(FIRST_STEP * (3 / 5 - 0.5)))


@pytest.mark.parametrize("lie", ["long", "longest", "bit", "noise", "garbage", "huge first"])
def test_a_liar_moves_the_mean_by_the_gap_and_the_bound_by_one_vote(lie: str) -> None:
    run = RunState(model=np.zeros(DIM, np.float32))
    params = asked(run, norm_bound=2.0, quantile=0.5)
    updates, rng = drawn(3), np.random.default_rng(7)
    values = encoded(params, run, updates)
    longest = 2.0 * 2 ** params.to_dict()["fraction_bits"]
    left_out = lie in ("longest", "garbage", "huge first")
    if lie in ("long", "longest"):
        # as much as may pass at all, and more
        values[4][:] = 0
        values[4][0, 5] = int(longest * (1.02 if lie == "long" else SOUNDNESS.gap * 1.01))
    elif lie == "bit":
        values[4][0, 0] ^= np.uint64(1)
    elif lie == "noise":
        values[4] = rng.integers(0, 1000, (1, DIM), np.uint64)
    elif lie == "garbage":
        values[4] = rng.integers(0, 1 << 64, (1, DIM), np.uint64)
    else:
        values[4][0, 0] = np.uint64(1 << COUNT_AT)
    passed, clipped, after, mean = computed(params, run, [halves(one) for one in values])
    assert passed == [True] * 4 + [not left_out]
    count = sum(passed)
    cut = updates * np.minimum(1, 2 / np.linalg.norm(updates, axis=1))[:, None]
    others = cut[:4].sum(axis=0) / count
    assert np.linalg.norm(mean - others) <= SOUNDNESS.gap * 2 / count + 1e-4
    assert clipped - 2 in (0, 1)
    assert after.bound is not None
    votes = np.exp(FIRST_STEP * (np.array([2, 3]) / count - 0.5)) * 2
    assert min(abs(after.bound[0] - votes)) < 1e-5


@pytest.mark.parametrize("part", [1.0, 0.5, 1 / 3, 2.0**-22, 2.0**-30])
@pytest.mark.parametrize("dim", [1, 2, 50])
def test_a_vote_makes_nobody_too_long(dim: int, part: float) -> None:
    method = asked(norm_bound=1.0, quantile=0.5).method
    for sign in (1, -1):
        vector = sign * np.eye(1, dim)[0] * 9.0
        whole = ring.signed(method.encode(vector, 5, Published(part=part)), 64)
        assert np.linalg.norm(whole.astype(np.float64)) <= (1 << 24) * part
        assert whole[0, 0] % 2 == (part * (1 << 24) >= 1)


def test_the_count_and_the_sum_do_not_meet() -> None:
    assert MAX_CLIENTS * LARGEST < 1 << COUNT_AT - 1
    method = asked(norm_bound=2.0, quantile=0.5).method
    assert isinstance(method, Mean) and method.adapts
    for clipped in (0, 1, 7, MAX_CLIENTS):
        for first in (0, 5, -5, MAX_CLIENTS * LARGEST - 1, 1 - MAX_CLIENTS * LARGEST):
            value = (first + clipped + (clipped << COUNT_AT)) % (1 << 64)
            opened = np.array([[value, 3]], np.uint64)
            assert method.clipped(opened) == clipped  # type: ignore[arg-type]
            (decoded,) = method.decode(opened, 1, Published())  # type: ignore[arg-type]
            fraction = method.fraction_bits
            assert np.array_equal(decoded * 2.0**fraction, [first, 3])


def test_the_first_bound_is_given_or_that_of_the_model() -> None:
    assert asked().to_dict()["norm_bound"] == 32
    long = RunState(model=np.full(DIM, 10, np.float32))
    assert 173 < asked(long).to_dict()["norm_bound"] <= 512
    given = asked(norm_bound=3.0, quantile=0.5)
    assert given.to_dict()["norm_bound"] == 3 and given.method.adapts
    assert given.method.adapts.next_bound(0.5, 4.0) == 3
    # a number alone says nothing of the next round
    assert asked(norm_bound=3.0).method.adapts is None
    # however often all or none are clipped, a round can have it
    run = RunState()
    for clipped in (*[0] * 300, *[5] * 600):
        params = asked(run)
        params.method.check_round(5)
        assert params.method.adapts
        run = run.adapted(run, params.method.adapts, clipped, 5)
    assert run.bound is not None and run.bound[0] == 1 << 24


def test_the_bound_belongs_to_the_run_and_not_to_its_digest() -> None:
    bound = np.array([2.5, 0.2], np.float32)
    run = RunState(model=np.zeros(DIM, np.float32), bound=bound)
    assert run.digest == replace(run, bound=None).digest
    again = RunState.of_arrays(run.policy, run.published, run.optimiser, run.arrays)
    assert again.bound is not None and (again.bound == bound).all()
    params = RoundParams(Mean(), dim=DIM, max_clients=5)
    assert begin(run, params, {}, False, None).bound is bound
    momentum = begin(run, params, {}, False, None, {"optimiser": "momentum"})
    assert momentum.optimiser != run.optimiser and momentum.bound is bound
    assert begin(run, params, {}, True, None).bound is None
    assert begin(run, params, {}, False, np.ones(DIM, np.float32)).bound is None
    assert run.after(np.ones(DIM, np.float32)).bound is bound is run.counted().bound


def test_only_a_round_that_counts_is_new_on_the_wire() -> None:
    """A client, or a server, of release 1.0.0 is told so."""
    auto, number = asked(), asked(norm_bound=2.0)
    assert auto.since == {"quantile": 3} and not number.since
    assert "quantile" not in number.to_dict()
    said = {"release": "1.0.0", "wire": [1, 2]}
    check_known("a client", said, number)
    with pytest.raises(VersionsDiffer, match="release 1.0.0, which does not know quantile:"):
        check_known("a client", said, auto)


def test_policies_limit_the_number_and_take_the_word() -> None:
    params = asked()
    # keygen of release 1.0 wrote this line
    Policy(allowed={"norm_bound": ["auto"]}).check(params, 0, "s1")
    with pytest.raises(PolicyRefused, match="norm_bound 32.0: its .policy. allows at most 10"):
        Policy(at_most={"norm_bound": 10}).check(params, 0, "s1")


# Through daemons


@pytest.mark.slow
def test_s0_keeps_the_bound_over_a_restart(pair: Pair) -> None:
    """Check that the clients compute the next model that S0 has, too."""
    options: dict[str, Any] = {"method": "mean", "dim": DIM, "max_clients": 5, "deadline_s": 30.0}
    model, wanted, step = np.zeros(DIM, np.float32), 32.0, FIRST_STEP
    for number in range(4):
        round_id = pair.open(None if number else model, **options)
        params = pair.round("client-1")[1]
        assert params.to_dict()["norm_bound"] == pytest.approx(wanted, rel=1e-5)
        published = pair.published("client-1", round_id)
        assert published.model is not None and np.array_equal(published.model, model)
        updates = (model + drawn(number)).astype(np.float32)
        for name, update in zip(pair.names, updates, strict=True):
            pair.submit(name, update)
        status = pair.wait("published")
        assert len(status["included"]) == 5
        order = [pair.names.index(name) for name in status["included"]]
        clipped = (np.linalg.norm(updates - model, axis=1) > wanted).sum()
        (want,) = plaintext.published(updates[order], params, published)
        with Client(client_config(pair.folder, pair.names[number], 0.1)) as client:
            model = client.result(round_id)
        assert np.array_equal(model, want)
        wanted *= np.exp(step * (clipped / 5 - 0.5))
        step = max(LEAST_STEP, step / 2)
        if number == 1:
            pair.stop("s0")
            pair.start("s0")
            pair.link()
    assert wanted < 2
