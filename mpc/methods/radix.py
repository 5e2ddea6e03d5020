"""The exact median by radix selection on XOR-shared words, at a cost linear in the clients.

See protocols.md section 6; the protocol is ours. Clients share each value as a w-bit word, and the
unsigned order of words is the order of values. From the top bit down, the parties keep a shared
flag c_i per client, "agrees with the result's prefix", and a shared count L, the weight of the
elements that are smaller. At each bit, with zero_i = c_i & ~x_i[bit] and Z = sum_i W_i zero_i,

    m = 1{L + Z < k}

is the result's own bit: fewer than k elements lie at or below the prefix followed by 0. m is
opened. Then c_i = zero_i if m = 0, and otherwise c_i = c_i ^ zero_i and L = L + Z. The weights W_i
are public, 1 by default, and L + Z - k is compared in the count ring of the total weight.

One 1-of-4 OT of ring elements gives both zero_i and its share in the ring, because the low bit of
an additive share is an XOR share. The receiver's shares of both bits choose.

The w bits of the element of the rank asked for are opened, and nothing else. (For the midpoint of
an even number, both middle elements are opened, though only their mean is published.) Any w-bit
word is a value, so no share is malformed: a client that sends rubbish is a client with rubbish
values.

Each of the w bits takes 2 rounds for the OTs, those of one comparison, and 1 to open. It takes 2
OTs per client and one comparison.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc import compare, encode, ring
from securemedian.mpc.arrays import PublicBits, PublicValues, Ring, RingShare, XorBits, XorWords
from securemedian.mpc.boolean import invert, pack_bits
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.correlations.quads import Quads
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.kernels import packing, quads
from securemedian.mpc.methods.base import Chunk, Counting, Published
from securemedian.mpc.methods.reveal import open_bits, stacked
from securemedian.mpc.options import as_written, check_number, check_whole, option
from securemedian.mpc.party import Party, half_counts

# Words of a chunk that take as much memory as one comparison: a step's correlations are small.
WORDS_PER_COMPARISON = 16


@dataclass(frozen=True, kw_only=True)
class Radix(Counting):
    """The exact median, and elements of other ranks, of XOR-shared words."""

    name = "radix"
    summary = "exact, linear in the clients"
    xor_shared = True

    # not swept: `plan` and `bench` have one flag for the value rings of other methods, and leave
    # this ring small
    ring_bits: int = option(
        0, text="bits of the count ring (default: the fewest that count)", metavar="L", swept=False
    )
    encoding: str = option(
        "float32",
        choices=("float32", "bfloat16", "fixed", "buckets"),
        compared=("float32", "bfloat16", "buckets"),
        text="what the words are: float32 (default) or bfloat16 over their whole range, fixed "
        "point, or bucket indices",
    )
    word_bits: int = option(
        32, text="with encoding fixed: bits of a word (default: 32)", metavar="W"
    )
    fraction_bits: int = option(
        24, text="with encoding fixed: s of the fixed point (default: 24)", metavar="S"
    )
    buckets: int = option(
        16, text="with encoding buckets: buckets per coordinate (default: 16)", metavar="B"
    )
    ranks: list[int] = option(
        [], text="these ranks, 1 the smallest, not the median", metavar="R,.."
    )
    quantiles: list[float] = option(
        [], text="the ranks ceil(Q n) as well; for quartiles 0.25,0.5,0.75", metavar="Q,.."
    )
    midpoint: bool = option(
        False, text="for an even number of clients, the mean of both middle elements"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("buckets", self.buckets, 3, 1 << 16)
        check_whole("word_bits", self.word_bits, 2, 64)
        if self.encoding == "fixed":
            check_whole("fraction_bits", self.fraction_bits, 0, self.word_bits - 2)
        for q in self.quantiles:
            check_number("a quantile", q, 0, 1, "above 0 and at most 1")
        if self.midpoint and (self.ranks or self.quantiles or self.weights):
            raise ConfigError(
                "midpoint is for the unweighted median: leave out ranks, quantiles and weights"
            )

    def check_round(self, max_clients: int) -> None:
        for rank in self.ranks:
            check_whole("a rank", rank, 1, self.max_total(max_clients))
        super().check_round(max_clients)

    def ranks_of(self, total: int) -> list[int]:
        """Return the ranks to compute, of which each gives one result.

        Raises ConfigError if a rank is beyond `total`, the weight of all that take part.
        """
        median = ring.median_rank(total)
        if self.midpoint:
            return [median, median + 1] if total % 2 == 0 else [median]
        quantiles = [ceil(as_written(q) * total) for q in self.quantiles]
        ranks = [*self.ranks, *quantiles]
        if ranks and max(ranks) > total:
            raise ConfigError(
                f"rank {max(ranks)} was asked for, and those who take part weigh {total} in all"
            )
        return ranks or [median]

    def check_total(self, total: int) -> None:
        super().check_total(total)
        self.ranks_of(total)

    @property
    def word_width(self) -> int:
        """Return the bits of a word."""
        widths = {
            "float32": 32,
            "bfloat16": 16,
            "fixed": self.word_bits,
            "buckets": (self.buckets - 1).bit_length(),
        }
        return widths[self.encoding]

    def share_bits_for(self, max_clients: int) -> int:
        return self.word_width

    @property
    def range_buckets(self) -> int:
        return self.buckets if self.encoding == "buckets" else 0

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        return self.words(vector, published)[None]

    def words(self, values: ArrayLike, published: Published | None = None) -> Ring:
        """Return words whose unsigned order is the order of the values.

        float32: the bits, complemented for negative values and with the sign bit flipped for
        others, so that -0 < +0. bfloat16: the same bits of the nearest bfloat16, ties to even.
        fixed: offset binary. buckets: the index, of those `published`. Raises InputError for
        NaN.
        """
        if self.uses_range:
            index = (published or Published()).bucketize(values, self.buckets)
            return index.astype(ring.dtype(self.word_width))
        if self.encoding == "fixed":
            elements = encode.to_fixed(values, self.word_bits, self.fraction_bits)
            return elements ^ elements.dtype.type(1 << (self.word_bits - 1))
        # what overflows float32 becomes inf
        with np.errstate(over="ignore"):
            bits = encode.without_nan(values, "the update").astype(np.float32).view(np.uint32)
        if self.encoding == "bfloat16":
            half = np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
            bits = bits + half & np.uint32(0xFFFF0000)
        ordered = np.where(bits >> np.uint32(31), ~bits, bits ^ np.uint32(1 << 31))
        if self.encoding == "float32":
            return ordered
        return (ordered >> np.uint32(16)).astype(np.uint16)

    def values(
        self, words: PublicValues, published: Published | None = None
    ) -> NDArray[np.float64]:
        """Return the values that words stand for.

        Words that only a faulty client uploads count as the nearest value: a word beyond the last
        bucket as that bucket, and one that is no number as infinity.
        """
        if self.uses_range:
            index = np.minimum(words, self.buckets - 1)
            return (published or Published()).quantize(index, self.buckets)
        if self.encoding == "fixed":
            elements = words ^ words.dtype.type(1 << (self.word_bits - 1))
            return encode.from_fixed(elements, self.word_bits, self.fraction_bits)
        ordered = words.astype(np.uint32) << np.uint32(32 - self.word_width)
        # the bits that rounding cut off are 0 in the value, and so 1 in a complement
        if self.encoding == "bfloat16":
            ordered = np.where(ordered >> np.uint32(31), ordered, ordered | np.uint32(0xFFFF))
        bits = np.where(ordered >> np.uint32(31), ordered ^ np.uint32(1 << 31), ~ordered)
        numbers = bits.view(np.float32).astype(np.float64)
        return np.where(np.isnan(numbers), np.copysign(np.inf, numbers), numbers)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        words, bits = chunk.xor_rows(party), self.bits_for(chunk.max_clients)
        return stacked(
            [
                median(party, words, self.word_width, bits, rank, chunk.weights)
                for rank in self.ranks_of(chunk.total)
            ]
        )

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        one = demand(dim, len(weights), self.word_width, self.bits_for(max_clients))
        return one * len(self.ranks_of(sum(weights)))

    def at_once(self, clients: int) -> int:
        return self.word_width * clients // WORDS_PER_COMPARISON

    def opened_bits_for(self, max_clients: int) -> int:
        return self.word_width

    def opened_rows(self, total: int) -> int:
        return len(self.ranks_of(total))

    @property
    def most_results(self) -> int:
        return 2 if self.midpoint else max(1, len(self.ranks) + len(self.quantiles))

    @property
    def opened(self) -> str:
        if self.midpoint:
            return "both middle values of each coordinate"
        if self.ranks or self.quantiles:
            return "the value of each rank asked for"
        return "the bucket of each median" if self.uses_range else "the value of each median"

    @property
    def kind(self) -> str:
        return "approximate" if self.encoding in ("bfloat16", "buckets") else "exact"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        numbers = self.values(values, published)
        return numbers.mean(axis=0, keepdims=True) if self.midpoint else numbers

    def in_the_clear(
        self,
        updates: NDArray[Any],
        weights: Sequence[int],
        published: Published,
        max_clients: int,
    ) -> NDArray[Any]:
        ranked = np.sort(np.repeat(self._rounded(updates, published), weights, axis=0), axis=0)
        results = ranked[[rank - 1 for rank in self.ranks_of(len(ranked))]]
        if self.uses_range:
            results = published.quantize(results, self.buckets)
        if self.midpoint:
            results = results.mean(axis=0, keepdims=True, dtype=np.float64)
        return results

    def _rounded(self, updates: NDArray[Any], published: Published) -> NDArray[Any]:
        """Return updates in the clear as the encoding rounds them: numbers, or bucket indices."""
        if self.uses_range:
            return published.bucketize(updates, self.buckets)
        if self.encoding == "fixed":
            elements = encode.to_fixed(updates, self.word_bits, self.fraction_bits)
            return ring.signed(elements, self.word_bits) / 2.0**self.fraction_bits
        # what overflows becomes inf
        with np.errstate(over="ignore"):
            single = np.asarray(updates).astype(np.float32)
            if self.encoding == "float32":
                return single
            # eight significant bits, fewer below 2^-126; rint takes ties to even
            _, exponent = np.frexp(single.astype(np.float64))
            exponent = np.maximum(exponent, -125)
            scaled = np.ldexp(single.astype(np.float64), 8 - exponent)
            return np.ldexp(np.rint(scaled), exponent - 8).astype(np.float32)

    @classmethod
    def warm_up(cls) -> Sequence[Self]:
        fixed = [cls(encoding="fixed", word_bits=bits, fraction_bits=0) for bits in (2, 16, 64)]
        return [*(cls(ring_bits=bits) for bits in (4, 16, 32, 64)), *fixed]

    @property
    def detail(self) -> str:
        return f"{self.encoding} b={self.buckets}" if self.uses_range else self.encoding


def median(
    party: Party,
    shares: XorWords,
    width: int,
    bits: int,
    rank: int | None = None,
    weights: Sequence[int] | None = None,
) -> PublicValues:
    """Return the element of rank k in each coordinate, opened.

    `shares` are of words of `width` bits (1..64), shape (n, d). `bits` are those of the count ring.
    `rank` is 1..total weight, by default ceil(total / 2). `weights` are whole numbers >= 1, one per
    client, by default 1.
    """
    clients, dim = shares.shape
    counted = np.asarray(weights if weights is not None else [1] * clients, ring.dtype(bits))[
        :, None
    ]
    rank = ring.median_rank(int(counted.sum(dtype=np.uint64))) if rank is None else rank
    # whole words of flags per client; the columns beyond `dim` are nobody's and never opened
    columns = -(-dim // 64) * 64
    values = np.zeros((clients, columns), shares.dtype)
    values[:, :dim] = shares
    ones = ~np.uint64(0) if party.number == 0 else np.uint64(0)
    flags = XorBits(np.full(clients * columns // 64, ones))
    below = np.zeros(columns, ring.dtype(bits))
    # L - k: only one party takes k off its share
    if party.number == 0:
        below = ring.reduce(below - below.dtype.type(rank), bits)
    result = _zeros(dim, width)
    plane = np.empty_like(flags)
    for bit in range(width - 1, -1, -1):
        packing.pack_plane(values.reshape(-1), bit, plane)
        in_ring = _conjunction(party, flags, invert(party, plane), bits)
        zero = np.empty_like(flags)
        packing.pack_plane(in_ring, 0, zero)
        weighed = (in_ring.reshape(clients, columns) * counted).sum(axis=0, dtype=below.dtype)
        reached = RingShare(ring.reduce(below + weighed, bits))
        opened = _padded(open_bits(party, compare.msb(party, reached, bits), dim), columns)
        flags = XorBits(zero ^ (flags.reshape(clients, -1) & pack_bits(opened)).reshape(-1))
        below = np.where(opened.astype(bool), reached, below)
        _put(opened, bit, result)
    return result


def _zeros(dim: int, width: int) -> PublicValues:
    """Return words of which no bit is known yet."""
    return PublicValues(np.zeros(dim, ring.dtype(width)))


def _put(opened: PublicBits, bit: int, result: PublicValues) -> None:
    """Put the opened bits into the words of the result, at position `bit`."""
    result |= opened[: result.size].astype(result.dtype) << result.dtype.type(bit)


def _padded(opened: PublicBits, columns: int) -> PublicBits:
    """Return opened bits, followed by zeros for the columns that are nobody's."""
    return PublicBits(np.pad(opened, (0, columns - opened.size)))


def _conjunction(party: Party, c: XorBits, z: XorBits, bits: int) -> RingShare:
    """Return additive shares over Z_2^bits of c & z, for all 64 bits of every word. Two rounds."""
    count = 64 * c.size
    sending, receiving = party.halves(count)
    sent, received = party.roles(count)
    (c_sent, z_sent), (c_received, z_received) = (
        (c[half.start // 64 : half.stop // 64], z[half.start // 64 : half.stop // 64])
        for half in (sending, receiving)
    )
    pads, choices, chosen = party.pool.take(Quads(bits), sent, received)
    mask = np.uint64((1 << bits) - 1)

    request = np.empty(received, np.uint8)
    quads.request(c_received, z_received, choices, request)
    asked = party.channel.exchange(
        "quad.request", ring.pack(request, 2), (ring.packed_words(sent, 2),)
    )

    shares = np.empty(count, ring.dtype(bits))
    messages = np.empty((3, sent), shares.dtype)
    quads.reply(c_sent, z_sent, pads, ring.unpack(asked, 2, sent), mask, messages, shares[sending])
    answered = party.channel.exchange(
        "quad.reply", ring.pack(messages, bits), (ring.packed_words(3 * received, bits),)
    )

    replies = ring.unpack(answered, bits, 3 * received).reshape(3, received)
    quads.finish(c_received, z_received, chosen, replies, mask, shares[receiving])
    return RingShare(shares)


def demand(dim: int, clients: int, width: int, bits: int) -> Demand:
    """Return the correlations of `median`."""
    columns = -(-dim // 64) * 64
    return (
        Demand({Quads(bits): half_counts(clients * columns)}) + compare.msb_demand(columns, bits)
    ) * width
