"""Turn real numbers into fixed point or buckets, and back.

Several methods encode with these functions: protocols.md section 2; the paper's Section 4 (F2I)
and Algorithm 3 (Bucketize, Quantize). All arithmetic is float64, so that clients, servers and tests
get the same bits everywhere.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import Bits, Ring
from securemedian.mpc.errors import ConfigError, InputError, NotFinite, quoted
from securemedian.mpc.options import check_whole
from securemedian.mpc.protocols.ring import check_bits, reduce, signed


def without_nan(values: ArrayLike, what: str) -> NDArray[np.float64]:
    """Return the values as float64. Raises NotFinite, which calls them `what`, if one is NaN."""
    array = np.asarray(values, np.float64)
    _check_none(np.isnan(array), what, "NaN")
    return array


def check_finite(values: NDArray[Any], what: str) -> None:
    """Raise NotFinite, which calls the values `what`, if one is NaN or infinite."""
    _check_none(~np.isfinite(values), what, "NaN or infinite values")


def _check_none(bad: NDArray[np.bool_], what: str, kind: str) -> None:
    if bad.any():
        raise NotFinite(
            f"{what} is not finite: {int(bad.sum())} {kind}, the first at index "
            f"{int(np.flatnonzero(bad)[0])}; train again or leave this round out"
        )


def to_fixed(values: ArrayLike, bits: int, fraction_bits: int, headroom: int = 0) -> Ring:
    """Return real numbers in fixed point: F2I(x) = floor(x 2^s), with s = `fraction_bits`.

    They are ring elements (two's complement, the ring's dtype) in the shape of `values`, saturated
    to [-2^(l-2), 2^(l-2) - 1]. So differences of two of them keep their sign (Theorem C.1).
    `headroom` takes that many bits off the range, for sums of 2^headroom values. +-inf saturates.
    Raises InputError for NaN, and ConfigError if the fraction does not fit the ring.
    """
    check_bits(bits)
    if not 0 <= fraction_bits <= bits - 2 - headroom:
        raise ConfigError(
            f"invalid fraction bits in a ring of {bits} bits: {fraction_bits}; give 0 to "
            f"{bits - 2 - headroom}"
        )
    # values that overflow float64 become inf, and saturate
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


class Buckets(ABC):
    """How the buckets of one round lie around the global model, from below: 0..b-1.

    `values` and the model g broadcast with the scale, of shape () or (d,). The outermost buckets
    stand for their edge, so that no result lies beyond what an honest client sent.
    """

    @abstractmethod
    def bucketize(self, values: ArrayLike, model: ArrayLike) -> NDArray[np.uint16]:
        """Return the bucket of each value w. Raises InputError for NaN."""

    @abstractmethod
    def quantize(self, index: NDArray[Any], model: ArrayLike) -> NDArray[np.float64]:
        """Return the value of each bucket. Raises InputError for an invalid bucket."""


class UniformBuckets(Buckets):
    """The paper's buckets: b-2 of width B/(b-2) around g, and two unbounded ones.

    The bucket of w is 0 for w <= g - B/2, b-1 for w >= g + B/2, and
    floor((w - (g - B/2)) / (B/(b-2))) + 1 otherwise. The outer two stand for g - B/2 and g + B/2,
    the others for the middle of their interval. Raises ConfigError for b < 3 or B <= 0.
    """

    def __init__(self, width: ArrayLike, buckets: int) -> None:
        check_whole("buckets", buckets, 3, 1 << 16)
        self._width, self._buckets = check_scale(width), buckets

    def bucketize(self, values: ArrayLike, model: ArrayLike) -> NDArray[np.uint16]:
        width, buckets = self._width, self._buckets
        w = without_nan(values, "the update")
        g = without_nan(model, "the global model")
        low, high = g - width / 2, g + width / 2
        # infinities would not survive the division
        inner = np.where((w > low) & (w < high), w, g)
        index = np.clip(np.floor((inner - low) / (width / (buckets - 2))) + 1, 1, buckets - 2)
        index = np.where(w <= low, 0, np.where(w >= high, buckets - 1, index))
        return index.astype(np.uint16)

    def quantize(self, index: NDArray[Any], model: ArrayLike) -> NDArray[np.float64]:
        width, buckets = self._width, self._buckets
        y = _checked(index, buckets).astype(np.float64)
        low = np.asarray(model, np.float64) - width / 2
        inner = low + (y - 0.5) * (width / (buckets - 2))
        return np.where(y == 0, low, np.where(y == buckets - 1, low + width, inner))


class UnevenBuckets(Buckets):
    """Buckets with any edges, which are the same above and below g, times a scale s.

    `edges`, increasing and above 0, and 0 part the buckets by x = (w - g) / s; each interval is
    closed on the right. `values`, one more than there are edges, are what the buckets above 0 stand
    for, from the innermost on; those below 0 stand for their negatives. So b = 2 len(values), and
    bucket i has t(i-1) < x <= t(i), where t = (-edges reversed, 0, edges).

    A result does not change the sign of a parameter g before its whole bucket has. If the move
    would reach 0 or beyond, and the inner edge of the bucket does not, it is the mean of that edge
    and |g|. So what is positive at all clients, like the running variances of BatchNorm, stays
    positive. Raises ConfigError if s is not above 0 and finite.
    """

    def __init__(self, scale: ArrayLike, edges: ArrayLike, values: ArrayLike) -> None:
        self._scale = check_scale(scale)
        above, middles = np.asarray(edges, np.float64), np.asarray(values, np.float64)
        self._edges = np.concatenate([-above[::-1], [0.0], above])
        # by the size of x
        self._inner, self._sizes = np.concatenate([[0.0], above]), middles

    def bucketize(self, values: ArrayLike, model: ArrayLike) -> NDArray[np.uint16]:
        w = without_nan(values, "the update")
        g = without_nan(model, "the global model")
        # values that overflow are beyond every edge
        with np.errstate(over="ignore"):
            x = (w - g) / self._scale
        return np.searchsorted(self._edges, x, side="left").astype(np.uint16)

    def quantize(self, index: NDArray[Any], model: ArrayLike) -> NDArray[np.float64]:
        half, g = self._sizes.size, np.asarray(model, np.float64)
        signed = _checked(index, 2 * half).astype(np.int64) - half
        above = signed >= 0
        size = np.where(above, signed, -1 - signed)
        move, inner = self._scale * self._sizes[size], self._scale * self._inner[size]
        left = np.abs(g)
        crosses = np.where(above, g < 0, g > 0) & (inner < left) & (left <= move)
        move = np.where(crosses, (inner + left) / 2, move)
        return np.where(above, g + move, g - move)


def check_scale(scale: ArrayLike) -> NDArray[np.float64]:
    """Return a scale as float64. Raises ConfigError unless it is above 0 and finite everywhere."""
    scale = np.asarray(scale, np.float64)
    if not (np.isfinite(scale) & (scale > 0)).all():
        raise ConfigError(
            f"invalid bucket range: {quoted(scale)}; give one that is finite and greater than 0 "
            "in every coordinate"
        )
    return scale


def _checked(index: NDArray[Any], buckets: int) -> NDArray[Any]:
    y = np.asarray(index)
    if ((y < 0) | (y > buckets - 1)).any():
        raise InputError(f"a bucket index out of range: shape {y.shape}; give 0 to {buckets - 1}")
    return y


def outermost(index: NDArray[Any], buckets: int) -> NDArray[np.bool_]:
    """Return which buckets are one of the two outermost, which have no end."""
    return (index == 0) | (index >= buckets - 1)


def cumulative(index: NDArray[Any], buckets: int) -> Bits:
    """Return what a bucketed upload shares: c(y) = 1{bucket <= y}, shape (b-1, d).

    c(b-1) is always 1, so it is not shared.
    """
    thresholds = np.arange(buckets - 1, dtype=np.uint16)
    return (index[None, :] <= thresholds[:, None]).astype(np.uint8)
