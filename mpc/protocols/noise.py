"""Noise for differential privacy: the discrete Gaussian N_Z(0, sigma^2), exactly.

No floating point takes part (`kernels.gaussian`): its rounding would tell what the noise hides. The
time that a sample takes depends on it a little. Nobody but the server itself sees it, because
samples are drawn by the block, within a round.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols.kernels import gaussian
from securemedian.mpc.protocols.prg import Stream

# Coordinates whose noise comes from one stream.
BLOCK = 1 << 12
# Random words that are made at a time: about 14 are used per coordinate.
_WORDS = 1 << 14


def discrete_gaussian(sigma: Fraction, begin: int, end: int, seed: bytes) -> NDArray[np.int64]:
    """Return the noise of coordinates [begin, end): independent samples of N_Z(0, sigma^2).

    The seed and the number of a coordinate determine its noise, however a vector is cut. Raises
    InputError unless sigma = p / q with 1 <= p <= 2^54 and q <= 2^31.
    """
    if not 1 <= sigma.numerator <= gaussian.MAX_P or sigma.denominator > gaussian.MAX_Q:
        raise InputError(
            f"invalid standard deviation of noise: {sigma}; give one above 0 and at most 2^54, "
            "with a denominator of at most 2^31"
        )
    blocks = range(begin // BLOCK, -(-end // BLOCK))
    if not blocks:
        return np.empty(0, np.int64)
    noise = np.concatenate([_block(sigma, Stream(seed, nonce=block)) for block in blocks])
    first = blocks.start * BLOCK
    return noise[begin - first : end - first]


def _block(sigma: Fraction, stream: Stream) -> NDArray[np.int64]:
    """Return a block's samples, which are the same however many words are made at a time."""
    noise = np.empty(BLOCK, np.int64)
    words, made = np.empty(0, np.uint64), 0
    while made < BLOCK:
        words = np.concatenate([words, stream.words(_WORDS)])
        drawn, used = gaussian.draw(words, sigma.numerator, sigma.denominator, noise[made:])
        words, made = words[used:], made + drawn
    return noise
