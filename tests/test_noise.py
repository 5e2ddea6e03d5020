"""The noise of differential privacy: its exact distribution, and how a vector of it is cut."""

import math
from fractions import Fraction

import numpy as np
import pytest

from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols.kernels.gaussian import MAX_P, MAX_Q
from securemedian.mpc.protocols.noise import BLOCK, discrete_gaussian
from securemedian.mpc.protocols.prg import Stream
from tests import reference

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


@pytest.mark.parametrize(
    ("sigma", "count"),
    [
        *((sigma, 10**6) for sigma in ("1/3", "1", "3/2", "37/10", "12345/1024")),
        *(pytest.param(sigma, 10**7, marks=pytest.mark.slow) for sigma in ("3/2", "12345/1024")),
    ],
)
def test_samples_have_the_exact_probabilities(sigma: str, count: int) -> None:
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
