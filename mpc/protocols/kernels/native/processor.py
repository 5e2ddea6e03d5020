"""The processor's features, by which kernels choose their instructions.

They are those that numba compiles for. It keeps compiled code by the same features (and the
processor's name) in its cache on disk, so that a processor never loads what was compiled for
another.
"""

from securemedian.mpc.protocols.kernels.jit import COMPILES, features

FEATURES = features()
# Of processors with AES instructions, which also multiply without carries.
_NATIVE = {"aes", "pclmul", "sse2"}
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
# Whether words are multiplied without carries.
MULTIPLIES = FEATURES >= _NATIVE
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
    """Return whether these kernels are to be used: wanted, on a processor with AES instructions."""
    return wanted and FEATURES >= _NATIVE


def described() -> str:
    """Return what AES is made by where these kernels are used, in words."""
    vectors = {4: "AVX-512 with VAES", 2: "AVX2 with VAES", 1: "AES-NI"}[LANES]
    return f"{vectors}{' and GFNI' if GFNI else ''}"
