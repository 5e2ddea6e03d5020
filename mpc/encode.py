"""Real numbers to ring elements or buckets, and back. protocols.md section 2; the paper's Section 4 (F2I) and Algorithm
3 (Bucketize, Quantize).

All arithmetic is float64, so that clients, servers and tests get the same bits everywhere.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.errors import ConfigError, InputError
from securemedian.mpc.params import RangePolicy, RoundParams
from securemedian.mpc.ring import check_bits, dtype, reduce, signed


def _finite_or_inf(values: ArrayLike, what: str) -> NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    bad = np.isnan(array)
    if bad.any():
        raise InputError(
            f"{what} has {int(bad.sum())} NaN, the first at index {int(np.flatnonzero(bad)[0])}: "
            "train again or leave this round out"
        )
    return array


def to_fixed(values: ArrayLike, bits: int, fraction_bits: int, headroom: int = 0) -> NDArray:
    """F2I(x) = floor(x 2^s), saturated to [-2^(l-2), 2^(l-2) - 1] so that differences of two values keep their sign
    (Theorem C.1). `headroom` takes that many bits off the range, for sums of 2^headroom values.

    Returns ring elements (two's complement, the ring's dtype), the shape of `values`. +-inf saturates. Raises
    InputError for NaN.
    """
    check_bits(bits)
    if not 0 <= fraction_bits <= bits - 2 - headroom:
        raise ConfigError(
            f"fraction bits must be 0..{bits - 2 - headroom} in a ring of {bits} bits, not {fraction_bits}"
        )
    with np.errstate(over="ignore"):  # what overflows float64 is inf, and saturates
        scaled = np.floor(_finite_or_inf(values, "the update") * 2.0**fraction_bits)
    top = 1 << (bits - 2 - headroom)
    # compared in float64, where +-top is exact, and saturated in int64, where top - 1 is too
    high, low = scaled >= top, scaled < -top
    fixed = np.where(high | low, 0.0, scaled).astype(np.int64)
    fixed[high], fixed[low] = top - 1, -top
    return reduce(fixed, bits)


def from_fixed(elements: NDArray, bits: int, fraction_bits: int) -> NDArray[np.float64]:
    """The inverse of `to_fixed` up to its rounding: signed value / 2^s."""
    return signed(elements, bits) / 2.0**fraction_bits


def _check_buckets(buckets: int, width: ArrayLike) -> NDArray[np.float64]:
    if type(buckets) is not int or not 3 <= buckets <= 1 << 16:
        raise ConfigError(
            f"buckets must be a whole number from 3 to 65536, not {buckets!r}: "
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
    """The bucket (0..b-1) of each value in the range of `width` B around `centre` g; `centre` and `width` broadcast.

    0 for w <= g - B/2, b-1 for w >= g + B/2, else floor((w - (g - B/2)) / (B/(b-2))) + 1. Raises InputError for NaN,
    ConfigError for b < 3 or B <= 0.
    """
    width = _check_buckets(buckets, width)
    w = _finite_or_inf(values, "the update")
    g = _finite_or_inf(centre, "the global model")
    low, high = g - width / 2, g + width / 2
    inner = np.where((w > low) & (w < high), w, g)  # keeps infinities out of the division
    index = np.clip(np.floor((inner - low) / (width / (buckets - 2))) + 1, 1, buckets - 2)
    index = np.where(w <= low, 0, np.where(w >= high, buckets - 1, index))
    return index.astype(np.uint16)


def quantize(
    index: NDArray, centre: ArrayLike, width: ArrayLike, buckets: int
) -> NDArray[np.float64]:
    """The value a bucket stands for: g - B/2, g + B/2, or the middle of its interval."""
    width = _check_buckets(buckets, width)
    y = np.asarray(index, np.float64)
    if ((y < 0) | (y > buckets - 1)).any():
        raise InputError(f"a bucket index outside 0..{buckets - 1}")
    low = np.asarray(centre, np.float64) - width / 2
    inner = low + (y - 0.5) * (width / (buckets - 2))
    return np.where(y == 0, low, np.where(y == buckets - 1, low + width, inner))


def cumulative(index: NDArray, buckets: int) -> NDArray[np.uint8]:
    """c(y) = 1{bucket <= y}, shape (b-1, d): what a bucketed upload shares. The last column of the one-hot sum is
    always n and not sent.
    """
    thresholds = np.arange(buckets - 1, dtype=np.uint16)
    return (index[None, :] <= thresholds[:, None]).astype(np.uint8)


def next_range(
    policy: RangePolicy, width: ArrayLike, before: ArrayLike, after: ArrayLike, number: int
) -> NDArray[np.float64]:
    """B for the round after round `number` (1-based), from the global models before and after it: shape () or, for
    `coordinate`, (d,).
    """
    if policy.policy == "constant":
        return np.asarray(width, np.float64)
    moved = np.abs(np.asarray(after, np.float64) - np.asarray(before, np.float64))
    if policy.policy != "coordinate":
        moved = np.asarray(
            {"mean": moved.mean(), "linf": moved.max(), "l1": moved.sum()}[policy.policy]
        )
    return np.asarray(2.0 * moved + policy.decay / number)


def to_words(
    values: ArrayLike, params: RoundParams, centre: ArrayLike = 0.0, width: ArrayLike = 1.0
) -> NDArray:
    """The words of a radix round, whose unsigned order is the values' order; `centre` and `width` are for buckets.

    float32: the bits, complemented for negative values and with the sign flipped for others, so that -0 < +0. bfloat16:
    the same of the nearest, ties to even. fixed: offset binary. Raises InputError for NaN.
    """
    if params.encoding == "buckets":
        return bucketize(values, centre, width, params.buckets).astype(dtype(params.width))
    if params.encoding == "fixed":
        elements = to_fixed(values, params.width, params.fraction_bits)
        return elements ^ elements.dtype.type(1 << (params.width - 1))
    with np.errstate(over="ignore"):  # what overflows float32 is inf
        bits = _finite_or_inf(values, "the update").astype(np.float32).view(np.uint32)
    if params.encoding == "bfloat16":
        half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
        bits = bits + half & np.uint32(0xFFFF0000)
    ordered = np.where(bits >> np.uint32(31), ~bits, bits ^ np.uint32(1 << 31))
    return ordered if params.encoding == "float32" else (ordered >> np.uint32(16)).astype(np.uint16)


def from_words(
    words: NDArray, params: RoundParams, centre: ArrayLike = 0.0, width: ArrayLike = 1.0
) -> NDArray[np.float64]:
    """The inverse of `to_words`. What only a faulty client uploads counts as the nearest value: a word beyond the last
    bucket as that, one that is no number as infinity.
    """
    if params.encoding == "buckets":
        return quantize(np.minimum(words, params.buckets - 1), centre, width, params.buckets)
    if params.encoding == "fixed":
        return from_fixed(
            words ^ words.dtype.type(1 << (params.width - 1)), params.width, params.fraction_bits
        )
    ordered = words.astype(np.uint32) << np.uint32(32 - params.width)
    if (
        params.encoding == "bfloat16"
    ):  # what the rounding cut off is 0 in the value, and so 1 in a complement
        ordered = np.where(ordered >> np.uint32(31), ordered, ordered | np.uint32(0xFFFF))
    bits = np.where(ordered >> np.uint32(31), ordered ^ np.uint32(1 << 31), ~ordered)
    values = bits.view(np.float32).astype(np.float64)
    return np.where(np.isnan(values), np.copysign(np.inf, values), values)
