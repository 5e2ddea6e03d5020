"""Arrays of kernels that may be None, which is known when the kernel is compiled."""

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

Array = NDArray[np.uint64]


def after(array: Array | None, first: int) -> Array | None:
    """Return an array from its element number `first` on, or None for None."""
    return None if array is None else array[first:]


def flat(array: Array | None) -> Array | None:
    """Return an array as one row, or None for None."""
    return None if array is None else array.reshape(-1)


def beside(given: Array | None, array: Array) -> Array | None:
    """Return an array, or None without a `given` one."""
    return None if given is None else array


# inlined, so that slices in loops count no references; not strict: numba would compare annotations
@overload(after, inline="always", strict=False)
def _after(array: Any, first: Any) -> Any:
    if array is types.none:
        return lambda array, first: None
    return lambda array, first: array[first:]


# inlined, so that slices in loops count no references; not strict: numba would compare annotations
@overload(flat, inline="always", strict=False)
def _flat(array: Any) -> Any:
    if array is types.none:
        return lambda array: None
    return lambda array: array.reshape(-1)


# inlined, so that slices in loops count no references; not strict: numba would compare annotations
@overload(beside, inline="always", strict=False)
def _beside(given: Any, array: Any) -> Any:
    if given is types.none:
        return lambda given, array: None
    return lambda given, array: array
