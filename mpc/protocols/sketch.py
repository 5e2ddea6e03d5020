"""Random sums of a shared vector, from which lengths and distances follow at a cost free of d.

With x in Z^d and R in {-1, 0, 1}^(k x d), the sketch is y = R x mod 2^64. It is linear, so that
each party sketches its own shares, with nothing sent. Each entry of R is b - b' of two random bits,
0 half the time, and so E y_j^2 = |x|^2 / 2.

R is the key stream of a seed, which a label separates from all other uses of the round's coin. Byte
j of the q-th k bytes holds b (bits 0 to 3) and b' (bits 4 to 7) of row j in the coordinates 4q to
4q + 3. R is never stored whole.
"""

import numpy as np

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols.kernels.sketching import ABREAST, PER_BYTE, add_rows
from securemedian.mpc.protocols.prg import SEED_BYTES, expand

# Rows are whole blocks of the key stream.
BLOCK_BYTES = 16
# Bytes of R that are made at a time: they stay in the second-level cache.
_PIECE = 1 << 18


def sketch(
    coin: bytes, shares: RingShare, begin: int, rows: int, native_aes: bool = True
) -> RingShare:
    """Return shares of what coordinates [begin, begin + dim) add to the sketches, shape (n, rows).

    `shares` are those of n vectors, shape (n, dim), in Z_2^64, or in a smaller ring, to which the
    sketch then has to be reduced. `rows` is a multiple of 16. Raises InputError unless `begin` is a
    multiple of 4.
    """
    if begin % PER_BYTE or rows % BLOCK_BYTES:
        raise InputError(
            f"invalid start of a sketch of {rows} rows: {begin}; begin where a row does"
        )
    seed = digest("sketch", coin)[:SEED_BYTES]
    # values of 16 bits or less, which lengths are hardly ever of, are not worth a kernel
    own = np.ascontiguousarray(shares, max(shares.dtype, np.dtype(np.uint32)))
    clients, dim = own.shape
    total = np.zeros((-(-clients // ABREAST), rows, ABREAST), np.uint64)
    groups, piece = -(-dim // PER_BYTE), max(1, _PIECE // rows)
    for first in range(0, groups, piece):
        count = min(piece, groups - first)
        block = (begin // PER_BYTE + first) * rows // BLOCK_BYTES
        signs = expand(seed, block, count * rows // 8, native_aes)
        add_rows(own, PER_BYTE * first, signs.reshape(count, -1), total)
    return RingShare(total.transpose(0, 2, 1).reshape(-1, rows)[:clients])
