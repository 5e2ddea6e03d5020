"""The inner loop of sketches: rows of signs times shares, by tables of sums.

A table has the 16 sums of four coordinates' shares over its subsets, for eight clients side by
side. A byte of R has the subset that is added (bits 0 to 3) and that which is subtracted (bits 4 to
7). So four coordinates of a row take two look-ups, for all eight clients together.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import COMPILES, callee, kernel
from securemedian.mpc.protocols.kernels.native.signing import eight_rows

# Coordinates per byte of R.
PER_BYTE = 4
# Clients that are added side by side.
ABREAST = 8
# Bytes of each row whose tables stay in the first-level cache.
_TILE = 16


@callee
def _tabulate(shares: NDArray[Any], client: int, begin: int, tables: Words) -> None:
    """Set tables[g, s, c] to the sum over j in s of the share of coordinate `begin` + 4g + j.

    Of client `client` + c; who is not there, and what is beyond the last coordinate, is 0.
    """
    clients, dim = shares.shape
    present = min(ABREAST, clients - client)
    for g in range(tables.shape[0]):
        table = tables[g]
        table[0] = 0
        for j in range(PER_BYTE):
            at = begin + PER_BYTE * g + j
            one = table[1 << j]
            one[:] = 0
            if at < dim:
                for c in range(present):
                    one[c] = np.uint64(shares[client + c, at])
            for subset in range(1, 1 << j):
                for c in range(ABREAST):
                    table[(1 << j) + subset, c] = one[c] + table[subset, c]


@kernel("u4[2] i8 u8[2] u8[3]!", "u8[2] i8 u8[2] u8[3]!")
def add_rows(shares: NDArray[Any], begin: int, signs: Words, total: Words) -> None:
    """Add to `total` (blocks, rows, 8) what coordinates from `begin` on add to sketches.

    shares (clients, dim) of 32 or 64 bits; signs (groups, rows / 8), a byte per four coordinates
    and row. Client i has column i mod 8 of block i // 8.
    """
    groups, words = signs.shape
    flat = signs.reshape(-1)
    tables = np.empty((_TILE, 1 << PER_BYTE, ABREAST), np.uint64)
    for block in range(total.shape[0]):
        for first in range(0, groups, _TILE):
            count = min(_TILE, groups - first)
            _tabulate(shares, ABREAST * block, begin + PER_BYTE * first, tables[:count])
            for word in range(words):
                sums = total[block, 8 * word : 8 * word + 8]
                if COMPILES:
                    eight_rows(tables, flat, first * words + word, words, count, sums)
                else:
                    _eight_rows(tables, signs[first : first + count, word], sums)


@callee
def _eight_rows(tables: Words, signs: Words, sums: Words) -> None:
    """Add to eight rows' sums (8, 8) what each table has at their bytes, which are one word."""
    for g in range(signs.size):
        for row in range(8):
            byte = int(signs[g] >> np.uint64(8 * row)) & 255
            for c in range(ABREAST):
                sums[row, c] += tables[g, byte & 15, c] - tables[g, byte >> 4, c]
