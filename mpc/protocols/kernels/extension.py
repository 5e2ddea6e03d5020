"""The inner loops of OT extension, SoftSpokenOT's above all.

They fold the leaves of GGM trees, correct the rows and transpose them to one 128-bit word per OT.
They also do the part of the hash that is not AES: sigma, the tweak and the XORs.

Sizes: n OTs per block (a multiple of 128), w = n / 64 words per row, 128 rows. Bit j of
`rows[r, i]` belongs to OT 64 i + j.
"""

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.native.processor import MULTIPLIES
from securemedian.mpc.protocols.kernels.native.weighing import weigh_row

# Words of a row that are folded at once: all leaves of a tree stay in the first-level cache.
_TILE = 256
# Words of a row that are transposed at once: both tiles fit the first-level cache and do not evict
# each other.
_COLUMNS = 32


@kernel("u8[2]! u8[2]!")
def fold(leaves: Words, rows: Words) -> None:
    """Fold the leaves of one tree into one row per index bit, and into their sum.

    leaves (q, w) with q = 2^k are overwritten; rows (k, w) are written. Each rows[j] becomes the
    XOR of the leaves whose index has bit j set, and leaves[0] the XOR of all leaves.

    Leaves are added in pairs, one index bit per level, so a leaf is read twice and not k times.
    """
    q, words = leaves.shape
    for start in range(0, words, _TILE):
        stop = min(start + _TILE, words)
        half, j = q >> 1, 0
        while half >= 1:
            row = rows[j, start:stop]
            for x in range(half):
                even, odd, out = (
                    leaves[2 * x, start:stop],
                    leaves[2 * x + 1, start:stop],
                    leaves[x, start:stop],
                )
                if x == 0:
                    for i in range(stop - start):
                        o = odd[i]
                        row[i] = o
                        out[i] = even[i] ^ o
                else:
                    for i in range(stop - start):
                        o = odd[i]
                        row[i] ^= o
                        out[i] = even[i] ^ o
            half >>= 1
            j += 1


@kernel("u8[2]! u8[1] u8[1]")
def correct(rows: Words, correction: Words, masks: Words) -> None:
    """Add the correction to the rows whose mask is set: rows[j] ^= masks[j] & correction.

    Masks are all ones or zero: the code does not branch on the secret bits that they come from.
    """
    for j in range(rows.shape[0]):
        m = masks[j]
        row = rows[j]
        for i in range(row.shape[0]):
            row[i] ^= correction[i] & m


@callee
def _two_levels(
    source: Words,
    first: int,
    start: int,
    width: int,
    out: Words,
    shift: int,
    wide: np.uint64,
    narrow: np.uint64,
) -> None:
    """Do two levels of the 64x64 bit transpose on `width` matrices that lie side by side.

    The levels are those of `shift` and of half of it; a word is read and written once for both. The
    matrices begin at row `first` and column `start` of `source`; `out` may be `source`.
    """
    half = shift >> 1
    s, t = np.uint64(shift), np.uint64(half)
    for base in range(0, 64, 2 * shift):
        for r in range(base, base + half):
            in0 = source[first + r, start : start + width]
            in1 = source[first + r + half, start : start + width]
            in2 = source[first + r + shift, start : start + width]
            in3 = source[first + r + shift + half, start : start + width]
            out0, out1, out2, out3 = out[r], out[r + half], out[r + shift], out[r + shift + half]
            for c in range(width):
                w, x, y, z = in0[c], in1[c], in2[c], in3[c]
                swap = ((w >> s) ^ y) & wide
                w ^= swap << s
                y ^= swap
                swap = ((x >> s) ^ z) & wide
                x ^= swap << s
                z ^= swap
                swap = ((w >> t) ^ x) & narrow
                w ^= swap << t
                x ^= swap
                swap = ((y >> t) ^ z) & narrow
                y ^= swap << t
                z ^= swap
                out0[c] = w
                out1[c] = x
                out2[c] = y
                out3[c] = z


@callee
def _transpose_tile(rows: Words, first: int, start: int, width: int, tile: Words) -> None:
    """Transpose `width` 64x64 matrices from row `first`, column `start` of `rows` into `tile`."""
    _two_levels(
        rows,
        first,
        start,
        width,
        tile,
        32,
        np.uint64(0x00000000FFFFFFFF),
        np.uint64(0x0000FFFF0000FFFF),
    )
    _two_levels(
        tile, 0, 0, width, tile, 8, np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0F0F0F0F0F0F0F0F)
    )
    _two_levels(
        tile, 0, 0, width, tile, 2, np.uint64(0x3333333333333333), np.uint64(0x5555555555555555)
    )


@kernel("u8[2] u8[1]!")
def low_words(rows: Words, out: Words) -> None:
    """Write the columns of the first 64 rows (.., w), one word each: out (64 w,)."""
    words = rows.shape[1]
    tile = np.empty((64, _COLUMNS), np.uint64)
    for start in range(0, words, _COLUMNS):
        width = min(_COLUMNS, words - start)
        _transpose_tile(rows, 0, start, width, tile)
        for c in range(width):
            for r in range(64):
                out[(start + c) * 64 + r] = tile[r, c]


@kernel("u8[2] u8 u8 u8[2]!")
def transpose_and_tweak(rows: Words, index: np.uint64, stream: np.uint64, out: Words) -> None:
    """Transpose the rows to one 128-bit word per OT, and apply the hash's sigma and tweak.

    rows (128, w); out (n, 2). It sets out[i] = sigma(x) ^ tweak with x the 128-bit column of OT i
    and tweak = (index + i, stream). The map sigma(L || R) = (L ^ R) || L is a linear orthomorphism:
    sigma and x -> sigma(x) ^ x are both permutations.
    """
    words = rows.shape[1]
    low = np.empty((64, _COLUMNS), np.uint64)
    high = np.empty((64, _COLUMNS), np.uint64)
    for start in range(0, words, _COLUMNS):
        width = min(_COLUMNS, words - start)
        _transpose_tile(rows, 0, start, width, low)
        _transpose_tile(rows, 64, start, width, high)
        for c in range(width):
            at = (start + c) * 64
            for r in range(64):
                left = low[r, c]
                out[at + r, 0] = left ^ high[r, c] ^ (index + np.uint64(at + r))
                out[at + r, 1] = left ^ stream


@kernel("u8[2] u8 u8 u8[2]!")
def sigma_and_tweak(keys: Words, index: np.uint64, stream: np.uint64, out: Words) -> None:
    """Do as `transpose_and_tweak` does on keys (n, 2) that are columns already; out (n, 2)."""
    for i in range(keys.shape[0]):
        out[i, 0] = keys[i, 0] ^ keys[i, 1] ^ (index + np.uint64(i))
        out[i, 1] = keys[i, 0] ^ stream


@kernel("u8[2] u8[1] u8[2]!")
def xor_constant(values: Words, constant: Words, out: Words) -> None:
    """Set out[i] = values[i] ^ constant, for values and out (n, 2)."""
    low, high = constant[0], constant[1]
    for i in range(values.shape[0]):
        out[i, 0] = values[i, 0] ^ low
        out[i, 1] = values[i, 1] ^ high


@kernel("u8[3] u8[1] u8[2]!")
def weigh(rows: Words, weights: Words, sums: Words) -> None:
    """Add to each row's sum the carry-less products of its words and their weights.

    rows (s, r, w) are r rows that are cut into s strips of w words, an even number. The last strip
    is used as far as there are `weights`. In sums (r, 2) the low word comes first.
    """
    width = rows.shape[2]
    for strip in range(rows.shape[0]):
        mine = weights[strip * width : (strip + 1) * width]
        # one row after the other, as they lie in memory: that is what takes the time
        for r in range(rows.shape[1]):
            if MULTIPLIES:
                weigh_row(rows[strip, r], mine.shape[0], mine, sums[r])
            else:
                weigh_row_by_table(rows[strip, r], mine, sums[r])


@callee
def weigh_row_by_table(row: Words, weights: Words, total: Words) -> None:
    """Add the products of a row's first words and their weights to its sum (2,).

    Memory is addressed by the weights, which are public.
    """
    # the sums of the words whose weights have one value at one byte
    sorted_ = np.zeros((8, 256), np.uint64)
    for i in range(weights.shape[0]):
        for byte in range(8):
            sorted_[byte, weights[i] >> np.uint64(8 * byte) & np.uint64(255)] ^= row[i]
    for byte in range(8):
        values = sorted_[byte]
        for bit in range(7, -1, -1):
            half, part = 1 << bit, np.uint64(0)
            for i in range(half):
                part ^= values[half + i]
                values[i] ^= values[half + i]
            place = np.uint64(8 * byte + bit)
            total[0] ^= part << place
            if place > 0:
                total[1] ^= part >> (np.uint64(64) - place)
