"""The packing of l-bit values into uint64 words, and back.

Value i takes the bits [i l, (i+1) l) of the little-endian bit string.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import RINGS, callee, kernel

FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


@callee
def plus(one: np.uint64, other: np.uint64, tops: np.uint64) -> np.uint64:
    """Return a word's entries, whose top bits are `tops`, plus another's.

    Top bits are added without their carry, so no carry leaves its entry.
    """
    return ((one & ~tops) + (other & ~tops)) ^ ((one ^ other) & tops)


@callee
def minus(one: np.uint64, other: np.uint64, tops: np.uint64) -> np.uint64:
    """Return a word's entries minus another's.

    Top bits are subtracted without their borrow, so no borrow leaves its entry.
    """
    return ((one | tops) - (other & ~tops)) ^ ((one ^ ~other) & tops)


@kernel(*(f"{ring}[1] i8 u8[1]!" for ring in RINGS))
def pack_values(values: NDArray[Any], bits: int, words: Words) -> None:
    """Write the low `bits` bits (1..64) of each value into `words`, which must be zero before."""
    mask = FULL >> np.uint64(64 - bits)
    position = 0
    for i in range(values.shape[0]):
        value = np.uint64(values[i]) & mask
        word = position >> 6
        offset = position & 63
        words[word] |= value << np.uint64(offset)
        if offset + bits > 64:
            words[word + 1] |= value >> np.uint64(64 - offset)
        position += bits


@kernel(*(f"u8[1] i8 {ring}[1]!" for ring in RINGS))
def unpack_values(words: Words, bits: int, values: NDArray[Any]) -> None:
    """Undo `pack_values`: fill `values` (any unsigned dtype that holds `bits` bits)."""
    mask = FULL >> np.uint64(64 - bits)
    position = 0
    for i in range(values.shape[0]):
        word = position >> 6
        offset = position & 63
        value = words[word] >> np.uint64(offset)
        if offset + bits > 64:
            value |= words[word + 1] << np.uint64(64 - offset)
        values[i] = value & mask
        position += bits


# The low bytes, pairs and fours of bytes of a word's halves, and every byte's lowest bit.
_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_FOURS, _LOWEST = np.uint64(0x00000000FFFFFFFF), np.uint64(0x0101010101010101)


@kernel("u1[1] i8 u8[1]!")
def pack_bytes(values: NDArray[np.uint8], bits: int, words: Words) -> None:
    """Do as `pack_values` does on bytes, a multiple of 8 of them, of which fewer than 8 bits count.

    Eight at a time become one word, whose neighbours then move together, three times. Two halves of
    a byte are what processors do many of at once.
    """
    if bits == 4:
        octets = words.view(np.uint8)
        for i in range(values.shape[0] >> 1):
            octets[i] = (values[2 * i] & np.uint8(15)) | (values[2 * i + 1] << np.uint8(4))
        return
    one, two, four = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits)
    mask = _LOWEST * ((np.uint64(1) << one) - np.uint64(1))
    for i in range(values.shape[0] >> 3):
        x = np.uint64(0)
        for j in range(8):
            x |= np.uint64(values[8 * i + j]) << np.uint64(8 * j)
        x &= mask
        x = (x & _BYTES) | (((x >> np.uint64(8)) & _BYTES) << one)
        x = (x & _PAIRS) | (((x >> np.uint64(16)) & _PAIRS) << two)
        x = (x & _FOURS) | ((x >> np.uint64(32)) << four)
        position = 8 * bits * i
        word, offset = position >> 6, position & 63
        words[word] |= x << np.uint64(offset)
        if offset + 8 * bits > 64:
            words[word + 1] |= x >> np.uint64(64 - offset)


@kernel("u8[1] i8 u8[1]!")
def unpack_bytes(words: Words, bits: int, eights: Words) -> None:
    """Undo `pack_bytes`: each word of `eights` is eight of the bytes."""
    if bits == 4:
        octets, values = words.view(np.uint8), eights.view(np.uint8)
        for i in range(values.shape[0] >> 1):
            values[2 * i] = octets[i] & np.uint8(15)
            values[2 * i + 1] = octets[i] >> np.uint8(4)
        return
    one, two, four, unit = np.uint64(bits), np.uint64(2 * bits), np.uint64(4 * bits), np.uint64(1)
    fours = (unit << four) - unit
    pairs = np.uint64(0x0000000100000001) * ((unit << two) - unit)
    singles = np.uint64(0x0001000100010001) * ((unit << one) - unit)
    for i in range(eights.shape[0]):
        position = 8 * bits * i
        word, offset = position >> 6, position & 63
        x = words[word] >> np.uint64(offset)
        if offset + 8 * bits > 64:
            x |= words[word + 1] << np.uint64(64 - offset)
        x = (x & fours) | (((x >> four) & fours) << np.uint64(32))
        x = (x & pairs) | (((x >> two) & pairs) << np.uint64(16))
        eights[i] = (x & singles) | (((x >> one) & singles) << np.uint64(8))


@kernel("u8[1] u8[1] u8[1]!")
def add_packed(words: Words, tops: Words, total: Words) -> None:
    """Add packed values to packed totals modulo 2^l, without unpacking them.

    `tops` are words, repeated as often as needed, that have the top bit of each value set. Top bits
    are added without their carry, so no carry leaves its value; a value that spans two words passes
    the carry within it on to the second.
    """
    carry, at = np.uint64(0), 0
    for i in range(total.shape[0]):
        one, other, top = total[i], words[i], tops[at]
        at = at + 1 if at + 1 < tops.shape[0] else 0
        low = one & ~top
        added = low + (other & ~top)
        result = added + carry
        carry = np.uint64((added < low) | (result < added))
        total[i] = result ^ ((one ^ other) & top)


@kernel("u8[1] u8[1] u8[1]!")
def subtract_packed(words: Words, tops: Words, total: Words) -> None:
    """Subtract packed values from packed totals modulo 2^l, without unpacking them.

    `tops` are as for `add_packed`. Top bits lend their values a 1, so no borrow leaves its value; a
    value that spans two words passes the borrow within it on to the second.
    """
    borrow, at = np.uint64(0), 0
    for i in range(total.shape[0]):
        one, other, top = total[i], words[i], tops[at]
        at = at + 1 if at + 1 < tops.shape[0] else 0
        high, low = one | top, other & ~top
        difference = high - low
        result = difference - borrow
        borrow = np.uint64((high < low) | (difference < borrow))
        total[i] = result ^ ((one ^ ~other) & top)


@kernel("u1[1] u8[1]!")
def pack_bits(bits: NDArray[np.uint8], words: Words) -> None:
    """Set bit j of words[i] to bits[64 i + j]; missing bits are 0."""
    count = bits.shape[0]
    for i in range(words.shape[0]):
        word = np.uint64(0)
        for j in range(min(64, count - 64 * i)):
            word |= np.uint64(bits[64 * i + j] & np.uint8(1)) << np.uint64(j)
        words[i] = word


@kernel("u8[1] u1[1]!")
def unpack_bits(words: Words, bits: NDArray[np.uint8]) -> None:
    """Set bits[64 i + j] to bit j of words[i]."""
    for i in range(words.shape[0]):
        word = words[i]
        for j in range(min(64, bits.shape[0] - 64 * i)):
            bits[64 * i + j] = (word >> np.uint64(j)) & np.uint64(1)
