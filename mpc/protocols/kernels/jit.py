"""The one way in which every kernel is compiled: serial, without the GIL, kept on disk.

A kernel names the types that it takes. It is compiled for all of them at once, and for no others:
once it is compiled, another type is a TypeError.

A signature has a code per argument, by the names of numba: `u8` is a number of 8 bytes, `u8[2]` an
array of two dimensions that is read, `u8[2]!` one that is written, `b1` a bool, and `none` None.
Arrays are in C order. An array that is read may be read-only, as what came from the disk or from
the peer is.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numba
from numba import types
from numba.core.compiler_lock import global_compiler_lock

from securemedian.mpc.protocols.kernels.native.processor import COMPILES

F = TypeVar("F", bound=Callable[..., Any])

# the dtypes of ring elements
RINGS = ("u1", "u2", "u4", "u8")


class Kernel:
    """A kernel, and the types that it takes."""

    def __init__(self, dispatcher: Any, signatures: Sequence[str]) -> None:
        self._dispatcher, self._signatures = dispatcher, signatures
        self._compile, self._compiled = dispatcher.compile, False
        # numba calls it when the kernel is called with types that it is not compiled for
        dispatcher.compile = self._first_called

    def compile(self) -> None:
        """Compile the kernel for all types that it takes, or load it from the cache on disk."""
        # another thread may be at it
        with global_compiler_lock:
            if not self._compiled:
                for signature in self._signatures:
                    self._compile(tuple(map(_type_of, signature.split())))
                self._dispatcher.disable_compile()
                self._compiled = True

    def _first_called(self, given: object) -> Any:
        self.compile()
        # what numba calls now: it picks among the types that there are
        return self._dispatcher


# by module
KERNELS: dict[str, list[Kernel]] = {}


def kernel(*signatures: str) -> Callable[[F], F]:
    """Compile a function that takes arrays and writes into arrays, for these signatures.

    Under NUMBA_DISABLE_JIT=1, which the tests use, it stays plain Python.
    """

    def decorate(function: F) -> F:
        compiled = callee(function)
        if COMPILES:
            KERNELS.setdefault(function.__module__, []).append(Kernel(compiled, signatures))
        return compiled

    return decorate


def callee(function: F) -> F:
    """Compile a function that only kernels call, for the types that they call it with."""
    return cast(F, numba.njit(nogil=True, cache=True)(function))


def _type_of(code: str) -> Any:
    name, _, dimensions = code.partition("[")
    kind = getattr(types, name)
    if not dimensions:
        return kind
    return types.Array(kind, int(dimensions[0]), "C", readonly=not code.endswith("!"))
