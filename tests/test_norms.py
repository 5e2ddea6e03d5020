"""Norm bounds: who is left out, whatever is shared, and that honest clients are not."""

from typing import Any

import numpy as np
import pytest

from securemedian.clients.upload import RangeWarning, Round, encode_update
from securemedian.laboratory import plaintext
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import Clear, Method, Published
from securemedian.mpc.rounds.methods.krum import Krum
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
from tests.parties import make_parties, run_both

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
        pairs[client][0] = share.WordsUpload(params.form.layout, words)
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


@pytest.mark.parametrize(
    ("method", "longest"),
    [
        *((method, method.longest) for method in (Mean(norm_bound=1.0), Mean(norm_bound=1000.0))),
        (Krum(), Krum().most_length),
    ],
    ids=str,
)
def test_as_long_as_the_bound_passes_and_longer_than_the_gap_does_not(
    method: Method, longest: float
) -> None:
    params = RoundParams(method, dim=DIM, max_clients=8)
    wholes = [vector(kind, longest) for kind in KINDS]
    wholes += [vector(kind, SOUNDNESS.gap * longest * 1.001) for kind in KINDS]
    wholes += [np.zeros(DIM, np.int64)]
    assert verdicts(params, np.stack(wholes)).passed == [True] * 3 + [False] * 3 + [True]


@pytest.mark.parametrize("bound", ["auto", 3.0])
def test_values_that_wrap_and_shares_that_do_not_fit_fail(bound: float | str) -> None:
    """Try 2^63 and 2^62 in one place or all, cancelling sums, garbage and values just too large."""
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


def test_verdicts_are_those_in_the_clear_and_come_of_the_coin_alone() -> None:
    """Take vectors so near to the limit that the coin decides."""
    method = Mean(norm_bound=2.0)
    params = RoundParams(method, dim=DIM, max_clients=20)
    rng = np.random.default_rng(2)
    edge = method.longest * SOUNDNESS.high**0.5
    lengths = [1 << 20] * 11 + list(edge * rng.uniform(0.93, 1.07, 9))
    ways = rng.normal(size=(20, DIM))
    ways *= (np.array(lengths) / np.linalg.norm(ways, axis=1))[:, None]
    wholes, check, found = ways.astype(np.int64), params.form.check, set()
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
        check = method.form(dim, 3).check
        assert isinstance(check, RangeCheck) and not isinstance(check, NormCheck)
        largest = 2 ** method.range_bits(dim, 3)
        # a passing vector has the room that the method counts with
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
    check = params.form.check
    assert isinstance(check, RangeCheck)
    assert check.passed(wholes.view(np.int64), tossed(OPENINGS)) == [True] * 2 + [False] * 4


def test_a_ring_without_bits_to_spare_has_each_value_checked() -> None:
    for method in (
        Pairwise(ring_bits=32, fraction_bits=8),
        Pairwise(fraction_bits=40),
    ):
        params = RoundParams(method, dim=DIM, max_clients=3)
        assert params.form.check is None and params.form.checks
        assert method.range_bits(DIM, 3) == params.form.ring_bits - 2 - method.headroom(3)


def test_the_check_of_a_large_model_costs_what_that_of_a_small_one_does() -> None:
    large, small = (
        predict(RoundParams(Pairwise(), dim=dim, max_clients=3), [1] * 3, ProtocolParams(lanes=1))
        for dim in (100_000, 10_000)
    )
    for sent in ("checking_bytes_sent", "checking_bytes_received"):
        assert getattr(large.cost, sent) == getattr(small.cost, sent) < 1 << 18


# Clients


def test_a_client_cuts_its_difference_and_says_so() -> None:
    model = np.linspace(-1, 1, DIM).astype(np.float32)
    params = RoundParams(Mean(norm_bound=0.5), dim=DIM, max_clients=3)
    seen = Round("1-a", 1, params, 0, model)
    short = model + vector("flat", 1000) / 1e5
    with np.errstate(all="raise"):
        within = encode_update(short, seen)[0].view(np.int64)
    scale = 2.0 ** params.to_dict()["fraction_bits"]
    assert np.abs(within / scale - (short - model.astype(np.float64))).max() <= 1 / scale
    with pytest.warns(RangeWarning, match="it is 2 long, .* and was cut to 0.5: norm_bound 0.5 wi"):
        beyond = encode_update(model + vector("two", 20_000) / 1e4, seen)[0].view(np.int64)
    assert 0.4999 < np.linalg.norm(beyond) / scale <= 0.5
    # a value beyond all floats is still cut
    for value in (np.inf, -np.inf, 1e308):
        with pytest.warns(RangeWarning):
            cut = encode_update(np.full(DIM, value), seen)[0].view(np.int64)
        assert (
            0.4999 < np.linalg.norm(cut) / scale <= 0.5 and (np.sign(cut) == np.sign(value)).all()
        )


@pytest.mark.parametrize(
    ("bound", "fraction"), [("auto", 16), ("off", 24), (1, 24), (1.5, 23), (256.0, 16), (1e-9, 40)]
)
def test_the_fixed_point_follows_from_the_bound(bound: Any, fraction: int) -> None:
    method = Mean(norm_bound=bound)
    assert method.fraction_bits == fraction
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
    """Take updates that are cut to their bound, and updates that are not."""
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
