"""How every kernel here is compiled: serial, without the GIL, kept on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Compile an arrays-in, arrays-out function. Plain Python under NUMBA_DISABLE_JIT=1, which the tests use."""
    return cast(F, numba.njit(nogil=True, cache=True)(function))
