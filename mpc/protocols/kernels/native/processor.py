"""The processor's features, by which kernels choose their instructions.

They are those that numba compiles for. It keeps compiled code by the same features (and the
processor's name) in its cache on disk, so that a processor never loads what was compiled for
another.
"""

from numba import config
from numba.core.registry import cpu_target


def _features() -> frozenset[str]:
    """Return the features of the x86-64 processor that numba compiles for, by LLVM's names."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    compiles = not config.DISABLE_JIT  # type: ignore[attr-defined]
    if not compiles or not triple.startswith("x86_64"):
        return frozenset()
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


FEATURES = _features()
# Blocks of 128 bits in a vector.
if {"avx512f", "avx512bw", "avx512vl", "vaes", "vpclmulqdq"} <= FEATURES:
    LANES = 4
elif {"avx2", "vaes", "vpclmulqdq"} <= FEATURES:
    LANES = 2
else:
    LANES = 1
GFNI = "gfni" in FEATURES
# Whether vectors cut words into bit planes.
SLICES = bool(FEATURES)
# Whether kernels are compiled.
COMPILES = not config.DISABLE_JIT  # type: ignore[attr-defined]
# Whether there are instructions that fetch memory ahead of its use: wherever kernels are compiled.
FETCHES = COMPILES
# Bytes of a line of the cache.
LINE = 64
# Whether one instruction puts eight words in any order.
PERMUTES = "avx512f" in FEATURES
# Words of a row in a vector.
VECTOR = 2 * LANES
# Vectors that are expanded, or hashed, at once: a round key is loaded once for all of them, and no
# instruction waits for the last. A row of `mpc.protocols.ot.extension.BLOCK` OTs is a multiple of 5
# vectors, however many lanes they have.
ABREAST = 5
HASHED = 8


def use_native(wanted: bool) -> bool:
    """Return whether these kernels are to be used: wanted, on a processor with AES instructions.

    Processors that have these also multiply without carries.
    """
    return wanted and {"aes", "pclmul", "sse2"} <= FEATURES


def described() -> str:
    """Return what AES is made by where these kernels are used, in words."""
    vectors = {4: "AVX-512 with VAES", 2: "AVX2 with VAES", 1: "AES-NI"}[LANES]
    return f"{vectors}{' and GFNI' if GFNI else ''}"
