"""What a round computes, in the clear: the ideal functionalities of protocols.md section 1, to compare results with."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpc import encode, ring
from mpc.errors import InputError
from mpc.params import RoundParams


def published(
    updates: NDArray[Any], params: RoundParams, model: NDArray[np.float32] | None, width: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """What a round publishes that started from `model` and `width` and included these updates, shape (n, d)."""
    k = ring.median_rank(len(updates))
    if params.method == "pairwise":
        elements = encode.to_fixed(updates, params.ring_bits, params.fraction_bits)
        median_element = np.sort(ring.signed(elements, params.ring_bits), axis=0)[k - 1]
        return encode.from_fixed(median_element, params.ring_bits, params.fraction_bits).astype(np.float32)
    if model is None or width is None:
        raise InputError("a bucketed round has a model and a range")
    index = encode.bucketize(updates, model, width, params.buckets)
    enough = np.stack([(index <= y).sum(axis=0) >= k for y in range(params.buckets)])  # H(y) >= k
    return encode.quantize(enough.argmax(axis=0), model, width, params.buckets).astype(np.float32)  # the first such y


def mean(updates: NDArray[Any]) -> NDArray[np.float32]:
    """The plain average, which one faulty client can move at will."""
    return np.asarray(updates.mean(axis=0, dtype=np.float64), np.float32)


def median(updates: NDArray[Any]) -> NDArray[np.float32]:
    """The exact lower median of each coordinate."""
    return np.asarray(np.sort(updates, axis=0)[ring.median_rank(len(updates)) - 1], np.float32)
