"""What a round computes, in the clear: the ideal functionalities of protocols.md section 1, to compare results with."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import encode, ring
from securemedian.mpc.params import RoundParams


def published(
    updates: NDArray[Any],
    params: RoundParams,
    model: NDArray[np.float32] | None,
    width: NDArray[np.float32] | None,
    weights: Sequence[int] | None = None,
) -> NDArray[np.float32]:
    """The results (ranks, d) that a round must publish for the updates (n, d) of the included clients, which weigh
    `weights`, given the model and range it started from.
    """
    if params.method == "trimmed-mean":
        ends = math.floor(Fraction(str(params.trim)) * len(updates))
        kept = np.sort(_fixed(updates, params.ring_bits, params), axis=0)[
            ends : len(updates) - ends
        ]
        # whole numbers first, so that nothing is rounded before the division
        total = kept.astype(object).sum(axis=0).astype(np.int64)
        return np.asarray(total / 2.0**params.fraction_bits / len(kept), np.float32)[None]
    ranked = np.sort(
        np.repeat(_values(updates, params, model, width), weights or 1, axis=0), axis=0
    )
    results: NDArray[Any] = ranked[[rank - 1 for rank in params.ranks_of(len(ranked))]]
    if params.uses_range:
        assert model is not None and width is not None
        results = encode.quantize(results, model, width, params.buckets)
    if params.midpoint:
        results = results.mean(axis=0, keepdims=True, dtype=np.float64)
    return results.astype(np.float32)


def _values(
    updates: NDArray[Any],
    params: RoundParams,
    model: NDArray[np.float32] | None,
    width: NDArray[np.float32] | None,
) -> NDArray[Any]:
    """The updates as the round's encoding rounds them: numbers, or bucket indices."""
    if params.uses_range:
        if model is None or width is None:
            raise ValueError("a round on buckets has a model and a range")
        return encode.bucketize(updates, model, width, params.buckets)
    if params.method == "pairwise" or params.encoding == "fixed":
        return _fixed(updates, params.width, params) / 2.0**params.fraction_bits
    if params.encoding == "bfloat16":
        import torch

        return (
            torch.from_numpy(updates.astype(np.float32))
            .to(torch.bfloat16)
            .to(torch.float32)
            .numpy()
        )
    return updates.astype(np.float32)


def _fixed(updates: NDArray[Any], bits: int, params: RoundParams) -> NDArray[np.int64]:
    return ring.signed(encode.to_fixed(updates, bits, params.fraction_bits, params.headroom), bits)


def mean(updates: NDArray[Any]) -> NDArray[np.float32]:
    """The plain average, which one faulty client can move at will."""
    return np.asarray(updates.mean(axis=0, dtype=np.float64), np.float32)


def median(updates: NDArray[Any]) -> NDArray[np.float32]:
    """The exact lower median of each coordinate."""
    return np.asarray(np.sort(updates, axis=0)[ring.median_rank(len(updates)) - 1], np.float32)
