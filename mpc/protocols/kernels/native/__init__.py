"""Kernels on the processor's own instructions, each one pass in registers.

They give the same bytes as the portable kernels and OpenSSL, which make several passes over memory.
The vectors of an inner loop are written as LLVM instructions (`emit`), because numba has no vectors
of its own; the loops around it are kernels like all others. The instructions take the same time
whatever they work on. The code reads no table, and branches only on sizes and positions.

Sizes: n OTs per block (a multiple of 128), w = n / 64 words per row, 128 rows; round keys are
(.., 11, 2) words, one block per round.
"""

from typing import TYPE_CHECKING

from securemedian.mpc import submodules

if TYPE_CHECKING:
    from securemedian.mpc.protocols.kernels.native import aes as aes
    from securemedian.mpc.protocols.kernels.native import processor as processor
else:
    __getattr__ = submodules(__name__)
