"""Kernels: the loops over arrays, compiled by numba.

A client loads those that it uses, when it uses them.
"""

from typing import TYPE_CHECKING

from securemedian.mpc import submodules

if TYPE_CHECKING:
    from securemedian.mpc.protocols.kernels import native as native
    from securemedian.mpc.protocols.kernels import packing as packing
    from securemedian.mpc.protocols.kernels import planes as planes
    from securemedian.mpc.protocols.kernels import vectors as vectors
else:
    __getattr__ = submodules(__name__)
