"""Turn real numbers into fixed point or buckets, and back.

Several methods encode with these functions: protocols.md section 2; the paper's Section 4 (F2I)
and Algorithm 3 (Bucketize, Quantize). All arithmetic is float64, so that clients, servers and tests
get the same bits everywhere.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Bits, Ring
from securemedian.mpc.errors import ConfigError, InputError, quoted
from securemedian.mpc.ring import check_bits, reduce, signed


def without_nan(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return the values as float64. Raises InputError, which calls them `what`, if one is NaN."""
    array = np.asarray(values, np.float64)
    bad = np.isnan(array)
    if bad.any():
        raise InputError(
            f"{what} has {int(bad.sum())} NaN, the first at index {int(np.flatnonzero(bad)[0])}: "
            "train again or leave this round out"
        )
    return array


def to_fixed(values: ArrayLike, bits: int, fraction_bits: int, headroom: int = 0) -> Ring:
    """Return real numbers in fixed point: F2I(x) = floor(x 2^s), with s = `fraction_bits`.

    They are ring elements (two's complement, the ring's dtype) in the shape of `values`, saturated
    to [-2^(l-2), 2^(l-2) - 1] so that differences of two of them keep their sign (Theorem C.1).
    `headroom` takes that many bits off the range, for sums of 2^headroom values. +-inf saturates.
    Raises InputError for NaN, and ConfigError if the fraction does not fit the ring.
    """
    check_bits(bits)
    if not 0 <= fraction_bits <= bits - 2 - headroom:
        raise ConfigError(
            f"fraction bits must be 0..{bits - 2 - headroom} in a ring of {bits} bits, "
            f"not {fraction_bits}"
        )
    # what overflows float64 becomes inf, and saturates
    with np.errstate(over="ignore"):
        scaled = np.floor(without_nan(values, "the update") * 2.0**fraction_bits)
    top = 1 << (bits - 2 - headroom)
    # compared in float64, where +-top is exact, and saturated in int64, where top - 1 is too
    high, low = scaled >= top, scaled < -top
    fixed = np.where(high | low, 0.0, scaled).astype(np.int64)
    fixed[high], fixed[low] = top - 1, -top
    return reduce(fixed, bits)


def from_fixed(elements: NDArray[Any], bits: int, fraction_bits: int) -> NDArray[np.float64]:
    """Return the numbers that ring elements in fixed point stand for: signed value / 2^s."""
    return signed(elements, bits) / 2.0**fraction_bits


def _check_buckets(buckets: int, width: ArrayLike) -> NDArray[np.float64]:
    if type(buckets) is not int or not 3 <= buckets <= 1 << 16:
        raise ConfigError(
            f"buckets must be a whole number from 3 to 65536, not {quoted(buckets)}: "
            "the outer two are unbounded and one must lie between"
        )
    width = np.asarray(width, np.float64)
    if not (np.isfinite(width) & (width > 0)).all():
        raise ConfigError(
            "the bucket range B must be finite and greater than 0 in every coordinate"
        )
    return width


def bucketize(
    values: ArrayLike, centre: ArrayLike, width: ArrayLike, buckets: int
) -> NDArray[np.uint16]:
    """Return the bucket (0..b-1) of each value w, in the range of `width` B around `centre` g.

    It is 0 for w <= g - B/2, b-1 for w >= g + B/2, and floor((w - (g - B/2)) / (B/(b-2))) + 1
    otherwise. `centre` and `width` broadcast. Raises InputError for NaN, and ConfigError for b < 3
    or B <= 0.
    """
    width = _check_buckets(buckets, width)
    w = without_nan(values, "the update")
    g = without_nan(centre, "the global model")
    low, high = g - width / 2, g + width / 2
    # infinities would not survive the division
    inner = np.where((w > low) & (w < high), w, g)
    index = np.clip(np.floor((inner - low) / (width / (buckets - 2))) + 1, 1, buckets - 2)
    index = np.where(w <= low, 0, np.where(w >= high, buckets - 1, index))
    return index.astype(np.uint16)


def quantize(
    index: NDArray[Any], centre: ArrayLike, width: ArrayLike, buckets: int
) -> NDArray[np.float64]:
    """Return the value that each bucket stands for.

    The outer two stand for g - B/2 and g + B/2, the others for the middle of their interval. Raises
    InputError for an index that is no bucket, and ConfigError as `bucketize` does.
    """
    width = _check_buckets(buckets, width)
    y = np.asarray(index, np.float64)
    if ((y < 0) | (y > buckets - 1)).any():
        raise InputError(f"a bucket index outside 0..{buckets - 1}")
    low = np.asarray(centre, np.float64) - width / 2
    inner = low + (y - 0.5) * (width / (buckets - 2))
    return np.where(y == 0, low, np.where(y == buckets - 1, low + width, inner))


def cumulative(index: NDArray[Any], buckets: int) -> Bits:
    """Return what a bucketed upload shares: c(y) = 1{bucket <= y}, shape (b-1, d).

    c(b-1) is always 1, so it is not shared.
    """
    thresholds = np.arange(buckets - 1, dtype=np.uint16)
    return (index[None, :] <= thresholds[:, None]).astype(np.uint8)
