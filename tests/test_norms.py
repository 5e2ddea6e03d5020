"""Norm bounds: who is left out, whatever is shared, and that honest clients are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.clients.upload import RangeWarning, Round, encode_update
from securemedian.laboratory import plaintext
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.norms import (
    LARGEST,
    LONGEST,
    SOUNDNESS,
    WHOLE_BITS,
    NormCheck,
    RangeCheck,
)
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, check_values, toss
from securemedian.mpc.rounds.plan import predict
from securemedian.servers.network.control import (
    Check,
    Close,
    Held,
    Open,
    Ready,
    Uploaded,
    Verdicts,
)
from tests.parties import make_parties, run_both
from tests.servers_alone import START, Server, held

DIM = 700
SMALL = ProtocolParams(lanes=2, chunk=256)
OPENINGS = [bytes([1]) * 32, bytes([2]) * 32]


def verdicts(
    params: RoundParams,
    wholes: np.ndarray,
    openings: list[bytes] = OPENINGS,
    spoilt: tuple[int, ...] = (),
) -> Checked:
    """Check vectors (n, d), whatever they are; those of `spoilt` clients' shares do not fit."""
    rng = np.random.default_rng(0)
    pairs: list[list[share.Upload]] = [
        list(share.split(whole.astype(np.uint64)[None], 64)) for whole in wholes
    ]
    for client in spoilt:
        words = rng.integers(0, 1 << 63, (1, params.dim), np.uint64)
        pairs[client][0] = share.WordsUpload(params.layout, words)
    lanes = make_parties(SMALL.lanes)
    one, other = run_both(
        lambda j: check_values(
            lanes[j],
            params,
            SMALL,
            [pair[j] for pair in pairs],
            entropy=lambda count: openings[j],
        )
    )
    assert one.passed == other.passed
    return one


def vector(kind: str, length: float, dim: int = DIM) -> np.ndarray:
    """Return a vector (d,) of whole numbers of about this length."""
    one = np.zeros(dim)
    if kind == "one coordinate":
        one[dim // 3] = length
    elif kind == "two":
        one[[0, -1]] = length / 2**0.5, -length / 2**0.5
    else:
        one[:] = length / dim**0.5
    return np.trunc(one).astype(np.int64)


KINDS = ("one coordinate", "two", "flat")


@pytest.mark.parametrize("bound", [1.0, 3.0, 1000.0])
def test_as_long_as_the_bound_passes_and_longer_than_the_gap_does_not(bound: float) -> None:
    method = Mean(norm_bound=bound)
    params = RoundParams(method, dim=DIM, max_clients=8)
    wholes = [vector(kind, method.longest) for kind in KINDS]
    wholes += [vector(kind, SOUNDNESS.gap * method.longest * 1.001) for kind in KINDS]
    wholes += [np.zeros(DIM, np.int64)]
    assert verdicts(params, np.stack(wholes)).passed == [True] * 3 + [False] * 3 + [True]


@pytest.mark.parametrize("bound", ["auto", 3.0])
def test_values_that_wrap_and_shares_that_do_not_fit_fail(bound: float | str) -> None:
    """2^63 and 2^62 in one place or all, sums that cancel, garbage, and what is just too large."""
    params = RoundParams(Mean(norm_bound=bound), dim=DIM, max_clients=16)
    honest = [vector(kind, LONGEST / 8) for kind in KINDS] * 3
    hostile = []
    for value in (1 << 63, 1 << 62, (1 << 64) - (1 << 62), LARGEST, 1 << 40):
        single = np.zeros(DIM, np.uint64)
        single[5] = value
        hostile.append(single)
    # two values whose sum is 0, and a whole vector that wraps to small sums
    cancelling = np.zeros(DIM, np.uint64)
    cancelling[:2] = [1 << 62, (1 << 64) - (1 << 62)]
    wrapping = np.full(DIM, 1 << 63, np.uint64)
    hostile += [cancelling, wrapping]
    wholes = np.stack([*(one.view(np.uint64) for one in honest), *hostile[:6]])
    passed = verdicts(params, wholes, spoilt=(0,)).passed
    assert passed == [False] + [True] * 8 + [False] * 6
    wholes[-1] = hostile[6]
    assert verdicts(params, wholes).passed == [True] * 9 + [False] * 6


@pytest.mark.parametrize("clients", [1, 2, 3, 5])
def test_auto_is_twice_the_lower_median(clients: int) -> None:
    """Ties pass, and so do all where all are 0; a client alone is its own median."""
    params = RoundParams(Mean(), dim=DIM, max_clients=5)
    same = np.stack([vector("flat", 1 << 16)] * clients)
    assert verdicts(params, same).passed == [True] * clients
    assert verdicts(params, np.zeros((clients, DIM), np.int64)).passed == [True] * clients
    one_longer = same.copy()
    one_longer[-1] = vector("flat", 3 << 16)
    assert verdicts(params, one_longer).passed == [True] * (clients - 1) + [clients == 1]
    half_zero = same.copy()
    half_zero[: (clients + 1) // 2] = 0
    zero = [not row.any() for row in half_zero]
    assert verdicts(params, half_zero).passed == zero


def test_lengths_out_of_range_do_not_lift_the_median() -> None:
    """Lengths out of range count as 0, so that they do not let another client pass."""
    params = RoundParams(Mean(), dim=DIM, max_clients=5)
    wholes = np.stack([vector("flat", 1 << 16)] * 5).view(np.uint64)
    # their squares do not wrap
    wholes[:2] = 0
    wholes[0, 3] = wholes[1, 4] = SOUNDNESS.bound * 17 // 16
    wholes[4] = vector("flat", 3 << 16).view(np.uint64)
    assert verdicts(params, wholes).passed == [False, False, True, True, False]


@pytest.mark.parametrize("bound", ["auto", 2.0])
def test_verdicts_are_those_in_the_clear_and_come_of_the_coin_alone(bound: float | str) -> None:
    """Vectors so near to the limit that the coin decides."""
    method = Mean(norm_bound=bound)
    params = RoundParams(method, dim=DIM, max_clients=20)
    rng = np.random.default_rng(2)
    edge = method.longest * SOUNDNESS.high**0.5 if bound != "auto" else 2.0 * (1 << 20)
    lengths = [1 << 20] * 11 + list(edge * rng.uniform(0.93, 1.07, 9))
    ways = rng.normal(size=(20, DIM))
    ways *= (np.array(lengths) / np.linalg.norm(ways, axis=1))[:, None]
    wholes, check, found = ways.astype(np.int64), params.upload_check, set()
    assert isinstance(check, NormCheck)
    for at in range(4):
        openings = [bytes([at]) * 32, bytes([at + 1]) * 32]
        passed = verdicts(params, wholes, openings).passed
        assert verdicts(params, wholes, openings).passed == passed
        assert check.passed(wholes, tossed(openings)) == passed
        assert any(passed[11:]) and not all(passed[11:])
        found.add(tuple(passed))
    assert len(found) > 1


def tossed(openings: list[bytes]) -> bytes:
    """Return the coin of these openings."""
    lanes = make_parties(1)
    return run_both(lambda j: toss(lanes[j][0].channel, j, lambda count: openings[j]))[0][0]


# Values of other methods, where the ring has bits to spare


@pytest.mark.parametrize("dim", [1, 2, 97, DIM, 1_663_370, 1 << 27])
def test_an_honest_vector_is_shorter_than_a_range_of_its_sketch(dim: int) -> None:
    for method in (Pairwise(), TrimmedMean(), Reclustered()):
        check = method.upload_check(dim, 3)
        assert isinstance(check, RangeCheck) and not isinstance(check, NormCheck)
        largest = 2 ** method.range_bits(dim, 3)
        # what passes has the room that the method counts with
        assert 2 * check.limit == 2 ** (62 - method.headroom(3))
        assert largest * dim**0.5 <= check.limit / 6.5 < 4 * largest * dim**0.5
        assert largest >= 2 ** (method.fraction_bits + WHOLE_BITS)


@pytest.mark.parametrize("method", [Pairwise(), TrimmedMean(), Reclustered()], ids=lambda m: m.name)
def test_one_large_value_is_found_and_the_largest_honest_ones_pass(method: Any) -> None:
    params = RoundParams(method, dim=DIM, max_clients=6)
    most = np.full(DIM, np.inf)
    honest = [method.encode(sign * most, 6, Published())[0] for sign in (1, -1)]
    assert (honest[0].view(np.int64) == 2 ** method.range_bits(DIM, 6) - 1).all()
    top = 1 << (62 - method.headroom(6))
    hostile: list[np.ndarray] = []
    for value in (top, -top, 1 << 62, (1 << 63) - 1):
        one = np.zeros(DIM, np.uint64)
        one[len(hostile) * 200] = value % (1 << 64)
        hostile.append(one)
    wholes = np.stack([*honest, *hostile])
    assert verdicts(params, wholes).passed == [True] * 2 + [False] * 4
    check = params.upload_check
    assert isinstance(check, RangeCheck)
    assert check.passed(wholes.view(np.int64), tossed(OPENINGS)) == [True] * 2 + [False] * 4


def test_a_ring_without_bits_to_spare_has_each_value_checked() -> None:
    for method in (
        Pairwise(ring_bits=32, fraction_bits=8),
        Pairwise(fraction_bits=40),
    ):
        params = RoundParams(method, dim=DIM, max_clients=3)
        assert params.upload_check is None and params.method.checks_values
        assert method.range_bits(DIM, 3) == params.ring_bits - 2 - method.headroom(3)


def test_the_check_of_a_large_model_costs_what_that_of_a_small_one_does() -> None:
    large, small = (
        predict(RoundParams(Pairwise(), dim=dim, max_clients=3), [1] * 3, ProtocolParams(lanes=1))
        for dim in (100_000, 10_000)
    )
    for one, other in zip(large.costs, small.costs, strict=True):
        assert one.checking_bytes_sent == other.checking_bytes_sent < 1 << 18


# The state of a round


def test_all_lengths_are_compared_again_when_others_take_a_place(tmp_path: Path) -> None:
    """Under the same coin, which is that of the round, too; and no part of the clients alone."""
    s0 = Server(0, tmp_path / "s0", RoundParams(Mean(), dim=10, max_clients=2), min_clients=2)
    round_id = s0.open()
    s0.upload_all(round_id)
    first, second, third = s0.keys
    s0.hear(Uploaded(round_id, first), Uploaded(round_id, second), Held(round_id, held(s0.keys)))
    s0.engine.end_check(0)
    s0.rounds.engine_ended()
    s0.hear(Verdicts(round_id, [first, second], [first]))
    s0.engine.end_check()
    s0.rounds.engine_ended()
    checks = [message.clients for message in s0.sent if isinstance(message, Check)]
    assert checks == [[first, second], [second, third]]
    s0.hear(Verdicts(round_id, [second, third], []), Ready(round_id, 1))
    assert s0.state[0] == "running" and s0.latest.server_round.included == [second, third]
    assert len(s0.engine.openings) == 3 and len(set(s0.engine.openings)) == 1
    name = s0.config.members["default"].clients[first]
    assert s0.latest.server_round.left_out == {name: Mean().fault}

    def told(*asked: list[str]) -> str:
        """Return the state of S1 once S0 has asked it for these checks."""
        s1 = Server(
            1, tmp_path / f"s1-{asked}", RoundParams(Mean(), dim=10, max_clients=2), min_clients=2
        )
        params = s1.params.to_dict()
        s1.hear(Open(round_id, 1, params, bytes(16), True, False, START))
        s1.upload_all(round_id)
        s1.hear(Close(round_id, held(s1.keys)))
        for clients in asked:
            s1.hear(Check(round_id, clients, b""))
            s1.engine.end_check()
            s1.rounds.engine_ended()
        return s1.state[0]

    assert told([first, second]) == "checking"
    assert told([first]) == told([second, third]) == "failed"
    assert told([first, second], [first, second]) == "failed"


# Clients


def test_a_client_cuts_its_difference_and_says_so() -> None:
    model = np.linspace(-1, 1, DIM).astype(np.float32)
    params = RoundParams(Mean(norm_bound=0.5), dim=DIM, max_clients=3)
    seen = Round("1-a", 1, params, 0, model)
    short = model + vector("flat", 1000) / 1e5
    with np.errstate(all="raise"):
        within = encode_update(short, seen)[0].view(np.int64)
    scale = 2.0 ** params.method.to_dict()["fraction_bits"]
    assert np.abs(within / scale - (short - model.astype(np.float64))).max() <= 1 / scale
    with pytest.warns(RangeWarning, match="it is 2 long, .* and was cut to 0.5: norm_bound 0.5 wi"):
        beyond = encode_update(model + vector("two", 20_000) / 1e4, seen)[0].view(np.int64)
    assert 0.4999 < np.linalg.norm(beyond) / scale <= 0.5
    # what no float holds is still cut
    for value in (np.inf, -np.inf, 1e308):
        with pytest.warns(RangeWarning):
            cut = encode_update(np.full(DIM, value), seen)[0].view(np.int64)
        assert (
            0.4999 < np.linalg.norm(cut) / scale <= 0.5 and (np.sign(cut) == np.sign(value)).all()
        )


def test_rounds_without_a_model_are_around_zero() -> None:
    params = RoundParams(Mean(), dim=4, max_clients=3)
    whole = params.method.encode(np.array([1.5, -1.5, 1e-6, -1e-6]), 3, Published())
    assert (whole[0].view(np.int64) == [3 << 15, -3 << 15, 0, 0]).all()


def test_options_that_no_round_can_have() -> None:
    for bound in (0, -1.0, 1e9, True, "Auto", float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="norm_bound must be"):
            Mean(norm_bound=bound)
    with pytest.raises(ConfigError, match="lengths are checked in a ring of 64 bits: leave ring_b"):
        RoundParams(Mean(ring_bits=32), dim=10, max_clients=3)
    with pytest.raises(ConfigError, match="1 to 16,777,216 can be checked: leave fraction_bits"):
        RoundParams(Mean(norm_bound=2.0, fraction_bits=24), dim=10, max_clients=3)
    with pytest.raises(ConfigError, match="with fraction_bits 40 is 0 steps"):
        RoundParams(Mean(norm_bound=1e-320), dim=10, max_clients=3)
    with pytest.raises(ConfigError, match="auto compares the lengths .* which weights scale: give"):
        RoundParams(Mean(weights=dict.fromkeys("abc", 1 << 34)), dim=10, max_clients=3)


@pytest.mark.parametrize(
    ("bound", "fraction"), [("auto", 16), ("off", 24), (1, 24), (1.5, 23), (256.0, 16), (1e-9, 40)]
)
def test_the_fixed_point_follows_from_the_bound(bound: Any, fraction: int) -> None:
    method = Mean(norm_bound=bound)
    assert method.to_dict()["fraction_bits"] == fraction
    params = RoundParams(method, dim=10, max_clients=3)
    assert RoundParams.from_dict(params.to_dict()) == params
    assert RoundParams.from_dict(params.to_dict()).digest == params.digest
    same = RoundParams.from_dict(
        {"method": "mean", "norm_bound": bound, "dim": 10, "max_clients": 3}
    )
    assert same.digest == params.digest


def test_a_cheater_moves_the_mean_by_the_gap_at_most() -> None:
    """The worst that passed moves the sum by less than GAP times the bound."""
    method = Mean(norm_bound=1.0)
    params = RoundParams(method, dim=DIM, max_clients=20)
    lengths = np.linspace(1, 2 * SOUNDNESS.gap, 20) * method.longest
    for kind in KINDS:
        passed = verdicts(params, np.stack([vector(kind, length) for length in lengths])).passed
        longest = max(length for length, ok in zip(lengths, passed, strict=True) if ok)
        assert passed[0] and longest <= SOUNDNESS.gap * method.longest


@pytest.mark.parametrize("bound", [1.0, 100.0])
def test_weights_multiply_what_is_bounded(bound: float) -> None:
    """Updates that are cut to their bound, and updates that are not."""
    weights = [3, 1, 2, 3]
    names = dict(zip("abcd", weights, strict=True))
    params = RoundParams(Mean(norm_bound=bound, weights=names), dim=DIM, max_clients=4)
    model = np.ones(DIM, np.float32)
    updates = np.stack([model + one for one in np.random.default_rng(1).normal(size=(4, DIM))])
    (want,) = plaintext.published(updates, params, Published(model), weights)
    moved = updates - 1
    if bound == 1.0:
        moved /= np.linalg.norm(moved, axis=1, keepdims=True)
    assert np.allclose(want, 1 + np.average(moved, axis=0, weights=weights), atol=1e-6 * bound)
    clear = Clear(updates, weights, Published(model), 4)
    assert np.array_equal(params.method.in_the_clear(clear)[0].astype(np.float32), want)
