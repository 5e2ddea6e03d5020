"""The one way in which every kernel is compiled: serial, without the GIL, kept on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile a function that takes arrays and writes into arrays.

    Under NUMBA_DISABLE_JIT=1, which the tests use, it stays plain Python.
    """
    return cast(F, numba.njit(nogil=True, cache=True)(function))
