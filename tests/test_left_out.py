"""Hospitals of different sizes: nobody honest is too long, and who is left out counts as faulty."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.client import Client
from securemedian.clients.upload import RangeWarning, Round, encode_update
from securemedian.common.receipts import DIFFERENT, for_those_left
from securemedian.laboratory import plaintext
from securemedian.laboratory.servers import client_config
from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods import nearest
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.bounded import FAULT, UNFIT
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.methods.norms import SOUNDNESS
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values, run_round
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.network.control import Held, Open, Ready, Uploaded, Verdicts
from tests.daemons import Pair
from tests.parties import make_parties, run_both
from tests.servers_alone import START, Server, held

DIM = 100
SMALL = ProtocolParams(lanes=2, chunk=128)
# every method that has a bound, and what it may be told of faulty clients
BOUNDED: list[dict[str, Any]] = [
    {"method": "krum", "faulty": 1},
    {"method": "krum", "faulty": 1, "selection": "opened"},
    {"method": "pairwise", "neighbours": 1},
    {"method": "trimmed-mean", "neighbours": 1},
    {"method": "radix", "neighbours": 1},
    {"method": "zeno", "validator": "c4", "clusters": 1},
]
PAIR = {"clients": 9}


def label(options: dict[str, Any]) -> str:
    return "-".join(map(str, options.values()))


def uneven(seed: int = 0) -> np.ndarray:
    """Return the updates of two large hospitals and three small ones."""
    rng = np.random.default_rng(seed)
    return np.array([size * rng.normal(0, 0.1, DIM) for size in (4, 4, 1, 1, 1)])


def asked(options: dict[str, Any], clients: int = 5, run: RunState | None = None) -> RoundParams:
    """Return the parameters of a round as S0 opens it."""
    params = RoundParams.from_dict({"dim": DIM, "max_clients": clients} | options)
    return (run or RunState()).settled(params)


@pytest.mark.parametrize("options", BOUNDED, ids=label)
def test_large_hospitals_are_in(options: dict[str, Any]) -> None:
    """Pass a hospital that is four times as long as most: the result is that of all five."""
    params, updates = asked(options), uneven()
    method, names = params.method, [f"c{number}" for number in range(5)]
    lanes, weights = make_parties(SMALL.lanes), params.method.weights_of(names)
    values = [method.encode(row, 5, Published()) for row in updates]
    pairs = [share.split(value, params.form.layout.bits) for value in values]

    def both(j: int) -> tuple[list[bool], Any]:
        uploads = [pair[j] for pair in pairs]
        passed = check_values(lanes[j], params, SMALL, uploads).passed
        return passed, run_round(lanes[j], params, SMALL, uploads, weights=weights)

    (passed, outcome), _ = run_both(both)
    assert passed == [True] * 5
    published = Published(coin=outcome.coin)
    got = method.decode(method.public(outcome.values), sum(weights), published)
    assert np.array_equal(got, method.in_the_clear(Clear(updates, weights, published, 5)))


@pytest.mark.parametrize("options", BOUNDED, ids=label)
def test_too_long_is_only_what_does_not_fit(options: dict[str, Any]) -> None:
    params = asked(options)
    check, coin = params.form.check, bytes(32)
    longest = getattr(params.method, "most_length", nearest.LONGEST)
    whole = np.zeros((4, DIM), np.int64)
    whole[0, 3] = longest
    whole[1, 3] = int(SOUNDNESS.gap * longest) + 2
    whole[2, 3] = 1 << 62
    assert check is not None
    assert check.passed(whole, coin) == [True, False, False, True]  # type: ignore[attr-defined]
    if params.method.name != "zeno":
        assert params.form.fault == UNFIT and "its numbers do not fit" in UNFIT


@pytest.mark.parametrize("options", BOUNDED, ids=label)
@pytest.mark.parametrize("length", [0.0, 31.0, 5000.0, 1e12])
def test_a_longer_model_takes_fewer_fraction_bits(options: dict[str, Any], length: float) -> None:
    """S0 chooses them before anybody trains, so that a difference as long as the model fits."""
    model = np.zeros(DIM, np.float32)
    model[:4] = length / 2
    params = asked(options, run=RunState(model=model))
    given = params.to_dict()
    bits, short = given["fraction_bits"], asked(options).to_dict()["fraction_bits"]
    longest = getattr(params.method, "most_length", nearest.LONGEST)
    assert 0 <= bits <= short
    # as few as room for it takes, and none below a whole step
    assert bits in (0, short) or longest / 2.0 ** (bits + 1) < length
    assert bits == 0 or longest / 2.0**bits >= length
    assert params.method.settled(model) == params.method
    # the client cuts a vector that is longer, says so, and is in
    seen = Round("1-a", 1, params, 0, model)
    with pytest.warns(RangeWarning, match="takes no more"):
        whole = ring.signed(encode_update(model + 1e15, seen)[0], params.form.layout.bits)
    assert params.form.check is not None
    assert params.form.check.passed(whole[None], bytes(32)) == [True]  # type: ignore[attr-defined]


def test_a_bound_that_is_given_stays() -> None:
    params = asked(
        {"method": "krum", "norm_bound": 2.0}, run=RunState(model=np.full(DIM, 9e9, "f"))
    )
    assert params.method == Krum(norm_bound=2.0, counts_left_out=True)
    assert replace(Krum(norm_bound=3.0), counts_left_out=True).form(DIM, 5).fault == FAULT


# A client that is left out counts as faulty


@pytest.mark.parametrize(
    ("faulty", "caught", "clients", "left"),
    [(2, 0, 7, 2), (2, 1, 6, 1), (2, 2, 5, 0), (2, 3, 4, 0), (0, 2, 5, 1), (0, 2, 7, 2)],
)
def test_those_who_are_caught_are_some_of_the_faulty(
    faulty: int, caught: int, clients: int, left: int
) -> None:
    """Check this for a given F, and otherwise for as many as those who remain allow."""
    params = asked({"method": "krum", "faulty": faulty}, 9).without(caught)
    updates = np.random.default_rng(clients).normal(size=(clients, DIM))
    updates[:left] *= 3
    clear = Clear(updates, [1] * clients, Published(coin=bytes(32)), 9)
    whole = np.trunc(updates[left:] * 2.0**16) / 2.0**16
    assert np.allclose(params.method.in_the_clear(clear), whole.mean(axis=0), atol=1e-12)
    params.check_included([str(number) for number in range(clients)])


def test_a_silent_client_lowers_nothing_and_too_few_fail_in_words() -> None:
    params = asked({"method": "krum", "faulty": 2}, 9)
    given = flat(params.method)
    reasons = [UNFIT, DIFFERENT, "its upload reached neither server", "its upload reached only s0"]
    assert for_those_left(params, reasons[2:]) == params
    assert for_those_left(params, reasons[1:]).method == Krum(**{**given, "faulty": 1})
    left = for_those_left(params, reasons)
    # two silent and two caught of nine
    left.check_included(list("abcde"))
    assert left.method.label == "krum f=0"
    # of eight, one is caught: three remain to be told from at most two
    few = for_those_left(params, [*reasons[2:], "its own policy refuses the round", UNFIT])
    few.check_included(list("abcd"))
    with pytest.raises(ConfigError, match="needs at least 5: those who take part are 4"):
        for_those_left(params, reasons[2:]).check_included(list("abcd"))


def test_neighbours_count_who_is_left_out_too() -> None:
    params = asked({"method": "pairwise", "neighbours": 2}, 7)
    method = params.without(2).method
    updates = np.random.default_rng(3).normal(size=(5, DIM))
    clear = Clear(updates, [1] * 5, Published(coin=bytes(32)), 7)
    # all five are neighbours then, so that each is replaced by the mean
    whole = np.trunc(updates * 2.0**16) / 2.0**16
    assert np.allclose(method.in_the_clear(clear), whole.mean(axis=0), atol=1e-12)
    assert method.form(DIM, 7).layout == params.form.layout and method.form(DIM, 7).checks
    method.check_total(5)
    with pytest.raises(ConfigError, match="neighbours 2 needs more than 4 clients"):
        params.method.check_total(4)
    # a method without neighbours has nobody to count
    assert asked({"method": "pairwise"}).without(2).method == Pairwise()


@pytest.mark.parametrize("options", [{"method": "krum", "faulty": 2}, BOUNDED[2]], ids=label)
def test_only_rounds_that_count_are_new_on_the_wire(options: dict[str, Any]) -> None:
    """Records of release 1.0.0 have the result that they had."""
    params = asked(options)
    assert params.since == {"counts_left_out": 3}
    of_1_0 = params.to_dict()
    del of_1_0["counts_left_out"]
    old = RoundParams.from_dict(of_1_0)
    assert not old.since and old.without(1) == old and old.form.fault == FAULT


def test_a_server_opens_no_round_whose_numbers_are_not_chosen(tmp_path: Path) -> None:
    """S1 says so to an S0 of release 1.0.0."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"method": "krum"}, "norm_bound is auto; update S0, or give a number"),
        ({"method": "radix", "neighbours": 1}, "neighbours 1; update S0"),
        (
            {"method": "krum", "norm_bound": 2.0, "faulty": nearest.NOBODY},
            "faulty is for rounds that",
        ),
    ]
    for at, (options, says) in enumerate(cases):
        params = RoundParams.from_dict({"dim": DIM, "max_clients": 5} | options)
        s1 = Server(1, tmp_path / str(at), params)
        s1.hear(Open("1-00000001", 1, params.to_dict(), bytes(16), True, False, START))
        assert says in s1.sent[-1].reason
        s1.store.close()


def test_the_servers_compute_with_those_who_are_left(tmp_path: Path) -> None:
    """One of three may be faulty, and is caught: two run with nobody faulty."""
    params = asked({"method": "pairwise", "neighbours": 1}, 3)
    s0 = Server(0, tmp_path, RoundParams.from_dict(params.to_dict()), min_clients=2)
    round_id = s0.open()
    assert s0.latest.server_round.params == params
    s0.upload_all(round_id)
    s0.hear(*(Uploaded(round_id, key) for key in s0.keys), Held(round_id, held(s0.keys)))
    s0.engine.end_check(0)
    s0.rounds.engine_ended()
    # two of three cannot have one faulty, but none
    s0.hear(Verdicts(round_id, s0.keys, [s0.keys[0]]), Ready(round_id, 1))
    assert s0.state[0] == "running" and s0.latest.server_round.excluded == {UNFIT: [s0.keys[0]]}
    assert s0.engine.given.params == params.without(1) != params
    s0.store.close()


# Through daemons


@pytest.mark.slow
def test_two_silent_and_two_caught_of_nine(pair: Pair) -> None:
    """The five others run with nobody faulty, and each client computes the same result."""
    params = asked({"method": "krum", "faulty": 2, "deadline_s": 30.0}, 9)
    round_id = pair.open(**params.to_dict())
    params = pair.round("client-1")[1]
    updates = {name: uneven(at)[at % 5].astype(np.float32) for at, name in enumerate(pair.names)}
    caught, silent, honest = pair.names[:2], pair.names[2:4], pair.names[4:]
    values = pair.encoded(caught[0], updates[caught[0]])
    values[0, 5] = np.uint64(1 << 40)
    for name in caught:
        seeded, words = share.split(values, params.form.layout.bits)
        pair.halves(name, "upload", seeded.seed, words.packed)
    for name in honest:
        pair.submit(name, updates[name])
    pair.caller("coordinator", "s0").ask("close", round=round_id)
    status = pair.wait("published")
    assert {status["left_out"][name] for name in caught} == {UNFIT}
    assert {status["left_out"][name] for name in silent} == {"its upload reached neither server"}
    assert sorted(status["included"]) == sorted(honest)
    opened = for_those_left(RoundParams.from_dict(status["params"]), status["left_out"].values())
    placed = np.stack([updates[name] for name in status["included"]])
    published = pair.published("client-1", round_id)
    coin = bytes.fromhex(status["coin"])
    want = plaintext.published(placed, opened, published, coin=coin)
    assert np.array_equal(pair.result(round_id), want[0])
    # nobody is left out twice: it is the mean of all five
    assert np.allclose(want[0], placed.mean(axis=0), atol=1e-4)
    with Client(client_config(pair.folder, honest[0], 0.1)) as client:
        assert np.array_equal(client.result(round_id), want[0])
    # S0 goes on with the same
    after = pair.open(**params.to_dict())
    model = pair.published("client-1", after).model
    assert model is not None and np.array_equal(model, want[0])
    pair.caller("coordinator", "s0").ask("abort", round=after, reason="that was all")
