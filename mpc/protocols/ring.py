"""Arithmetic in Z_2^l, 2 <= l <= 64, on the smallest unsigned dtype that holds l bits.

numpy's unsigned arithmetic is already modulo 2^8, 2^16, 2^32 or 2^64, and Z_2^l is a quotient of
that ring. So sums and products may stay unreduced and be masked once at the end: `reduce`. On the
wire and on disk an array is packed to l bits per value.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.protocols import kernels

MIN_BITS, MAX_BITS = 2, 64


def check_bits(bits: int) -> int:
    """Return `bits`; raise ConfigError unless it is a whole number from 2 to 64."""
    if type(bits) is not int or not MIN_BITS <= bits <= MAX_BITS:
        raise ConfigError(
            f"invalid ring bits: {quoted(bits)}; give a whole number from {MIN_BITS} to {MAX_BITS}"
        )
    return bits


def dtype(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the smallest unsigned dtype that holds `bits` bits (1..64)."""
    for size in (8, 16, 32):
        if bits <= size:
            return np.dtype(f"u{size // 8}")
    return np.dtype(np.uint64)


def mask(bits: int) -> np.unsignedinteger[Any]:
    """Return 2^bits - 1 as a scalar of the ring's dtype."""
    return dtype(bits).type((1 << bits) - 1)


def reduce(values: NDArray[Any], bits: int) -> Ring:
    """Return values of any integer dtype modulo 2^bits, in the ring's dtype.

    Negative values are taken in two's complement.
    """
    small = values.astype(dtype(bits))
    if bits != small.dtype.itemsize * 8:
        small &= mask(bits)
    return small


def signed(values: NDArray[Any], bits: int) -> NDArray[np.int64]:
    """Return the representatives in [-2^(bits-1), 2^(bits-1))."""
    shift = np.uint64(64 - bits)
    return (values.astype(np.uint64) << shift).view(np.int64) >> np.int64(shift)


def packed_words(count: int, bits: int) -> int:
    """Return how many uint64 words hold `count` values of `bits` bits."""
    return -(-count * bits // 64)


def pack(values: NDArray[Any], bits: int) -> Words:
    """Pack an array, taken flat, to `bits` (1..64) bits per value.

    The bit string is little-endian and zero-padded to whole words. The result may be a view of
    `values`, where its dtype has just `bits` bits.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    # nothing to squeeze: the same bytes, without a pass over them
    if bits == 8 * flat.dtype.itemsize and flat.nbytes % 8 == 0:
        return flat.view(np.uint64)
    words = np.zeros(packed_words(flat.size, bits), np.uint64)
    if bits == 1 and flat.dtype == np.uint8:
        kernels.packing.pack_bits(flat, words)
        return words
    head = _head(flat, bits)
    if head:
        kernels.packing.pack_bytes(flat[:head], bits, words)
    kernels.packing.pack_values(flat[head:], bits, words[head * bits // 64 :])
    return words


def unpack(words: Words, bits: int, count: int) -> Ring:
    """Undo `pack`: return `count` values in the smallest dtype that holds `bits` bits."""
    # nothing to spread
    if bits == 8 * dtype(bits).itemsize:
        return np.ascontiguousarray(words).view(dtype(bits))[:count].copy()
    values, packed = np.empty(count, dtype(bits)), np.ascontiguousarray(words)
    if bits == 1:
        kernels.packing.unpack_bits(packed, values)
        return values
    head = _head(values, bits)
    kernels.packing.unpack_bytes(packed, bits, values[:head].view(np.uint64))
    kernels.packing.unpack_values(packed[head * bits // 64 :], bits, values[head:])
    return values


def _head(values: NDArray[Any], bits: int) -> int:
    """Return how many of the first values, in whole words, are packed as bytes."""
    return values.size & ~63 if values.dtype == np.uint8 and bits < 8 else 0


def split(values: NDArray[Any], bits: int) -> Words:
    """Return the lowest `bits` bit planes (bits, words) of an array, taken flat.

    Bit j of word i of plane k is bit k of value 64 i + j, and 0 beyond the last value.
    """
    flat = np.ascontiguousarray(values).reshape(-1)
    found = np.empty((bits, packed_words(flat.size, 1)), np.uint64)
    kernels.planes.split(flat, found)
    return found


def top_bits(bits: int) -> Words:
    """Return the top bit of each of 64 packed values, in the l words that repeat from there on."""
    return pack(np.full(64, 1 << (bits - 1), np.uint64), bits)


def count_bits(clients: int, rank: int | None = None) -> int:
    """Return the bits of the smallest ring for counts of clients (protocols.md 2).

    In it, `H >= rank` is the sign of `H - rank` for every count H in 0..clients. The default rank
    is the lower median's, ceil(clients / 2). With it the bits never fall as clients are added, so a
    ring sized for the most clients that may come fits the median of fewer.
    """
    rank = median_rank(clients) if rank is None else rank
    bits = MIN_BITS
    while rank > 1 << (bits - 1) or clients - rank > (1 << (bits - 1)) - 1:
        bits += 1
    return bits


def signed_bits(most: int) -> int:
    """Return the bits of the smallest ring that holds the whole numbers from -most to most."""
    return max(MIN_BITS, most.bit_length() + 1)


def index_bits(count: int) -> int:
    """Return the bits of the smallest ring that tells 0..count-1 apart."""
    return max(MIN_BITS, (count - 1).bit_length())


def median_rank(clients: int) -> int:
    """Return the 1-based rank of the lower median of `clients` values: ceil(clients / 2)."""
    return -(-clients // 2)
