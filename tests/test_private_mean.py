"""Noise of the mean: its distribution, what each server adds, what an attempt may not change."""

import inspect
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from securemedian.laboratory import plaintext
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.kernels.gaussian import MAX_P, MAX_Q
from securemedian.mpc.protocols.noise import BLOCK, discrete_gaussian
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import pipeline
from securemedian.mpc.rounds.cutting import shards
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.threads import ThreadComputation
from tests import reference
from tests.parties import make_parties, run_both

DIM, CLIENTS = 10_000, 3
METHOD = Mean(norm_bound=2.0, noise_multiplier=0.7)
PARAMS = RoundParams(METHOD, dim=DIM, max_clients=CLIENTS)
UPDATES = np.random.default_rng(4).normal(0, 0.01, (CLIENTS, DIM))
UPLOADS = [
    share.split(METHOD.encode(row, CLIENTS, Published()), PARAMS.form.layout.bits)
    for row in UPDATES
]
SEEDS = bytes(16), bytes(range(16))


def opened(lanes: int = 1, noise: tuple[bytes, bytes] = SEEDS, batch: int = 0) -> np.ndarray:
    """Return the sum that both servers open, signed."""
    parties = make_parties(lanes=lanes)
    protocol = ProtocolParams(batch=batch or ProtocolParams().batch)

    def run(j: int) -> Any:
        held = [pair[j] for pair in UPLOADS]
        return run_round(parties[j], PARAMS, protocol, held, noise=noise[j])

    one, other = run_both(run)
    assert (one.values == other.values).all()
    return ring.signed(one.values, 64)[0]


def test_the_sum_has_the_noise_of_both_servers_and_nothing_else() -> None:
    sigma = METHOD.sigma
    # z times the bound in fixed point, and hardly more
    exact = 0.7 * METHOD.longest
    assert exact < float(sigma) < exact * (1 + 1e-6)
    one, other = (discrete_gaussian(sigma, 0, DIM, seed) for seed in SEEDS)
    noise = one + other
    total = opened() - noise
    (got,) = METHOD.decode(PublicValues(ring.reduce(total, 64)[None]), CLIENTS, Published())
    (want,) = METHOD.in_the_clear(Clear(UPDATES, [1] * CLIENTS, Published(), CLIENTS))
    assert (got == want).all()
    deviation = noise.std() / 2**METHOD.fraction_bits / CLIENTS
    assert deviation == pytest.approx(METHOD.noise.deviation / CLIENTS, rel=0.05)


def test_another_attempt_has_the_same_noise_however_it_is_cut() -> None:
    assert (opened() == opened(lanes=2, batch=1 << 12)).all()
    # without seeds each attempt has its own
    assert (opened(noise=(b"", b"")) != opened(noise=(b"", b""))).all()


def test_a_shard_has_its_part_of_the_noise() -> None:
    whole = opened()
    for shard in shards(DIM, 3):
        parties = make_parties()
        cut = slice(shard.begin, shard.end)

        def run(j: int, shard: Any = shard, parties: Any = parties) -> Any:
            held = [share.read(pair[j], PARAMS.form.layout, 0, DIM) for pair in UPLOADS]
            uploads = [
                share.WordsUpload(PARAMS.form.layout, ring.pack(one, 64)[None]) for one in held
            ]
            return run_round(
                parties[j], PARAMS, ProtocolParams(), uploads, shard=shard, noise=SEEDS[j]
            )

        one, _ = run_both(run)
        assert (ring.signed(one.values, 64)[0] == whole[cut]).all()


def test_a_server_computes_with_the_seed_that_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(pipeline, "run_round", lambda *given: seen.append(given))
    monkeypatch.setattr(ThreadComputation, "establish", lambda _: None)
    nothing: Any = None
    computation = ThreadComputation(0, ProtocolParams(), b"", [], nothing)
    computation.run_round(RoundInput(PARAMS, [], [], noise=SEEDS[1]), nothing)
    assert inspect.signature(run_round).bind(*seen[0]).arguments["noise"] == SEEDS[1]


def test_noise_is_compared_with_the_clear_within_what_explains_it() -> None:
    clear = np.zeros((1, DIM), np.float32)
    (noisy,) = METHOD.decode(PublicValues(ring.reduce(opened(), 64)[None]), CLIENTS, Published())
    (plain,) = METHOD.in_the_clear(Clear(UPDATES, [1] * CLIENTS, Published(), CLIENTS))
    assert plaintext.agrees(noisy, plain, PARAMS, CLIENTS)
    assert not plaintext.agrees(
        noisy + 20 * METHOD.noise.deviation / CLIENTS, plain, PARAMS, CLIENTS
    )
    exact = RoundParams(Mean(norm_bound=2.0), dim=DIM, max_clients=CLIENTS)
    assert not plaintext.agrees(clear + np.float32(1e-30), clear, exact, CLIENTS)


# fixed, so that chance cannot fail a test
SEED = bytes(range(16))


def check_chi_square(seen: np.ndarray, wanted: np.ndarray) -> None:
    """Fail if so much less than what was to be expected would be seen once in 10^6 times.

    By Wilson and Hilferty, the cube root of a chi-square over its degrees is about normal.
    """
    assert wanted.min() > 5 and abs(seen.sum() - wanted.sum()) < 1e-6 * wanted.sum()
    freedom = len(seen) - 1
    ratio = float(((seen - wanted) ** 2 / wanted).sum()) / freedom
    assert ratio ** (1 / 3) < 1 + 4.75 * math.sqrt(2 / (9 * freedom))


@pytest.mark.parametrize("sigma", ["1/3", "1", "3/2", "37/10", "12345/1024"])
def test_samples_have_the_exact_probabilities(sigma: str) -> None:
    count = 10**6
    noise = discrete_gaussian(Fraction(sigma), 0, count, SEED)
    sizes = np.arange(-1000, 1001)
    chances = np.exp(-(sizes**2) / (2 * float(Fraction(sigma)) ** 2))
    chances /= math.fsum(chances)
    # the outermost box on each side holds all beyond it
    most = next(y for y in range(1000) if chances[1001 + y :].sum() * count < 100)
    wanted = chances[1000 - most : 1001 + most] * count
    wanted[0] = wanted[-1] = chances[1000 + most :].sum() * count
    seen = np.bincount(noise.clip(-most, most) + most, minlength=2 * most + 1)
    check_chi_square(seen, wanted)


@pytest.mark.parametrize("sigma", [Fraction(11, 10) * (1 << 20), Fraction(MAX_P - 1, 1023)])
def test_wide_noise_is_normal_and_fills_every_residue(sigma: Fraction) -> None:
    count, boxes = 10**6, 200
    noise = discrete_gaussian(sigma, 0, count, SEED)
    # equal shares of a normal distribution, from which this one cannot be told at such a width
    edges = np.array([_quantile(i / boxes) for i in range(1, boxes)]) * float(sigma)
    seen = np.bincount(np.searchsorted(edges, noise), minlength=boxes)
    check_chi_square(seen, np.full(boxes, count / boxes))
    assert abs(noise.std() / float(sigma) - 1) < 5 / math.sqrt(2 * count)
    for modulus in (2, 7, 64):
        seen = np.bincount(noise % modulus)
        check_chi_square(seen, np.full(modulus, count / modulus))


def _quantile(share: float) -> float:
    """Return the x with a share of a normal distribution below it."""
    low, high = -10.0, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(-middle / 2**0.5) / 2 < share else (low, middle)
    return low


def test_the_noise_of_a_coordinate_does_not_depend_on_how_a_vector_is_cut() -> None:
    whole = discrete_gaussian(Fraction(100), 0, 3 * BLOCK, SEED)
    for begin, end in ((0, 1), (5, 5), (1, BLOCK), (BLOCK - 1, BLOCK + 1), (7, 3 * BLOCK)):
        part = discrete_gaussian(Fraction(100), begin, end, SEED)
        assert (part == whole[begin:end]).all() and part.size == end - begin
    # blocks and seeds differ
    assert (whole[:BLOCK] != whole[BLOCK : 2 * BLOCK]).mean() > 0.9
    other = discrete_gaussian(Fraction(100), 0, BLOCK, SEED[::-1])
    assert (whole[:BLOCK] != other).mean() > 0.9


def test_the_narrowest_noise_is_zero() -> None:
    assert not discrete_gaussian(Fraction(1, MAX_Q), 0, 1000, SEED).any()


def test_a_block_is_what_its_whole_stream_gives() -> None:
    words = Stream(SEED, nonce=1).words(1 << 17).tolist()
    want, used = reference.discrete_gaussian(words, 37, 10, BLOCK)
    # more than are made at a time
    assert used > 1 << 15
    assert discrete_gaussian(Fraction(37, 10), BLOCK, 2 * BLOCK, SEED).tolist() == want


@pytest.mark.parametrize(
    "sigma", [Fraction(0), Fraction(-1), Fraction(MAX_P + 1), Fraction(1, MAX_Q + 1)]
)
def test_noise_that_the_kernel_has_no_room_for_is_refused(sigma: Fraction) -> None:
    with pytest.raises(InputError, match="invalid standard deviation of noise"):
        discrete_gaussian(sigma, 0, 1, SEED)
