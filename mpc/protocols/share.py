"""Additive shares over Z_2^l and XOR shares (protocols.md section 2).

`[x]_0 + [x]_1 = x (mod 2^l)`: one share is the AES-CTR expansion of a 16-byte seed, the other is x
minus it, so a client uploads its vector once and not twice. Both forms are rows of packed l-bit
values, and a server reads either of them slice by slice: `Upload`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from securemedian.mpc.arrays import PublicValues, Ring, RingShare, Words
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import kernels, ring
from securemedian.mpc.protocols.prg import BLOCK_WORDS, Entropy, expand, os_entropy

# Slices of a row start at multiples of this many values, so that they start at whole AES blocks for
# every width.
SLICE_ALIGN = 64 * BLOCK_WORDS


@dataclass(frozen=True)
class Layout:
    """The shape of one client's shared input: `rows` x `columns` values of `bits` bits each.

    Every row is padded to whole AES blocks.
    """

    rows: int
    columns: int
    bits: int

    @property
    def row_words(self) -> int:
        """Return the 64-bit words of one packed row, its padding included."""
        words = ring.packed_words(self.columns, self.bits)
        return -(-words // BLOCK_WORDS) * BLOCK_WORDS

    @property
    def words(self) -> int:
        """Return the 64-bit words of all rows."""
        return self.rows * self.row_words


class Upload(Protocol):
    """One client's share as a server holds it, packed."""

    def words(self, row: int, start: int, stop: int) -> Words:
        """Return the words [start, stop) of row `row`."""
        ...


@dataclass(frozen=True)
class SeedUpload:
    """A share given as a seed, which is expanded where it is read.

    `start` of `words` must be at a whole AES block. A server whose `ProtocolParams` say so sets
    `native_aes`; at clients the AES is OpenSSL's.
    """

    layout: Layout
    seed: bytes = field(repr=False)
    native_aes: bool = False

    def words(self, row: int, start: int, stop: int) -> Words:
        first = row * self.layout.row_words + start
        return expand(self.seed, first // BLOCK_WORDS, stop - start, self.native_aes)


@dataclass(frozen=True)
class WordsUpload:
    """A share given in full: packed words of shape (rows, row_words), in memory."""

    layout: Layout
    packed: Words = field(repr=False)

    def words(self, row: int, start: int, stop: int) -> Words:
        return np.asarray(self.packed[row, start:stop])


def split(
    values: Ring, bits: int, entropy: Entropy = os_entropy, xor: bool = False
) -> tuple[SeedUpload, WordsUpload]:
    """Share a (rows, columns) array of ring elements; return the seed half and the packed half.

    Shares are additive or, with `xor`, XOR shares of `bits`-bit words. Each half alone is uniform.
    Raises InputError if `values` has another number of axes.
    """
    if values.ndim != 2:
        raise InputError(f"invalid shape to split: {values.shape}; give a (rows, columns) array")
    layout = Layout(values.shape[0], values.shape[1], bits)
    seeded = SeedUpload(layout, entropy(16))
    packed = np.zeros((layout.rows, layout.row_words), np.uint64)
    for row in range(layout.rows):
        plain = ring.reduce(values[row], bits)
        mask = ring.unpack(seeded.words(row, 0, layout.row_words), bits, layout.columns)
        words = ring.pack(plain ^ mask if xor else ring.reduce(plain - mask, bits), bits)
        packed[row, : words.size] = words
    return seeded, WordsUpload(layout, packed)


def read(upload: Upload, layout: Layout, start: int, stop: int) -> Ring:
    """Return columns [start, stop) of a share, unpacked: shape (rows, stop - start).

    They are a RingShare or XorWords, as the share was made. Raises InputError unless `start` is a
    multiple of SLICE_ALIGN.
    """
    first, last = words_of(layout, start, stop)
    out = np.empty((layout.rows, stop - start), ring.dtype(layout.bits))
    for row in range(layout.rows):
        out[row] = ring.unpack(upload.words(row, first, last), layout.bits, stop - start)
    return out


def weighted_sum(
    uploads: Sequence[Upload], weights: Sequence[int], layout: Layout, start: int, stop: int
) -> RingShare:
    """Return columns [start, stop) of the sum of additive shares, each times its public weight.

    The sums are ring elements of shape (rows, stop - start). Shares of the same weight are added as
    they come, packed. Raises InputError unless `start` is a multiple of SLICE_ALIGN.
    """
    first, last = words_of(layout, start, stop)
    tops = ring.top_bits(layout.bits)
    out = np.zeros((layout.rows, stop - start), ring.dtype(layout.bits))
    for weight in sorted(set(weights)):
        members = [upload for upload, own in zip(uploads, weights, strict=True) if own == weight]
        for row in range(layout.rows):
            total = members[0].words(row, first, last).copy()
            for member in members[1:]:
                kernels.packing.add_packed(member.words(row, first, last), tops, total)
            out[row] += ring.unpack(total, layout.bits, stop - start) * out.dtype.type(weight)
    return RingShare(ring.reduce(out, layout.bits))


def words_of(layout: Layout, start: int, stop: int) -> tuple[int, int]:
    """Return which words of a row, [first, last), hold the columns [start, stop).

    Raises InputError unless `start` is a multiple of SLICE_ALIGN.
    """
    if start % SLICE_ALIGN:
        raise InputError(f"invalid start of a slice: {start}; take a multiple of {SLICE_ALIGN}")
    first = start * layout.bits // 64
    return first, min(first + ring.packed_words(stop - start, layout.bits), layout.row_words)


def combine(one: RingShare, other: RingShare, bits: int) -> PublicValues:
    """Return [x]_0 + [x]_1 mod 2^l. Raises InputError if the two shares differ in shape."""
    if one.shape != other.shape:
        raise InputError(
            f"shares that do not belong together: shapes {one.shape} and {other.shape}; give "
            "both of one update"
        )
    return PublicValues(ring.reduce(one.astype(np.uint64) + other.astype(np.uint64), bits))
