"""The exact median by radix selection on XOR-shared words, at a cost linear in the clients.

See protocols.md section 6; the protocol is ours. Clients share each value as a w-bit word, and the
unsigned order of words is the order of values. From the top bit down, the parties keep a shared
flag c_i per client, "agrees with the result's prefix". They also keep a shared count L, the weight
of the smaller elements. At each bit, with zero_i = c_i & ~x_i[bit] and Z = sum_i W_i zero_i,

    m = 1{L + Z < k}

is the result's own bit, and is opened. Then c_i = zero_i if m = 0, and otherwise c_i = c_i ^ zero_i
and L = L + Z. The weights W_i are public, 1 by default.

The flags are shared additively, c = c_0 + c_1, in the ring of the counts, and the bits z = ~x as
XOR shares. So a product takes two correlated OTs, one each way, as in a multiplexer:

    zero = c z = sum over the parties j of  z_j c_j + z_j (1 - 2 z_{1-j}) c_{1-j},

in which each last product has party 1-j as the sender and the *input* z_j as the choice. So all
choices are sent at once, before the first bit, and several ranks take the same OTs, whose keys have
bits for all of them.

The w bits of each element asked for are opened (of both middle ones for a midpoint), and nothing
else. Any word is a value, so no share is malformed. Each bit takes 1 round for the products, those
of one comparison, and 1 to open; 2 OTs per client, and one comparison per rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import (
    PublicValues,
    PublicWords,
    Ring,
    RingPlanes,
    RingShare,
    XorBits,
    XorWords,
)
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import as_written, check_number, check_whole, option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.boolean import invert, words_of
from securemedian.mpc.protocols.convert import to_bits, to_bits_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import PlaneOts
from securemedian.mpc.protocols.kernels import planes as kernels
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.share import Layout
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.base import (
    Chunk,
    Clear,
    Counting,
    Form,
    Grouped,
    Published,
    ValueRange,
)
from securemedian.mpc.rounds.methods.mixing import FRACTION, MIXED_FRACTION, Neighbours
from securemedian.mpc.rounds.methods.reveal import open_rows, stacked

# With neighbours: a sum of those of MOST_CLIENTS is below 2^30.
MIXED_WORD_BITS = 32
# Bits of uploads whose correlations take as much memory as one comparison: theirs are small.
BITS_PER_COMPARISON = 24


@dataclass(frozen=True, kw_only=True)
class Radix(Neighbours, Grouped, Counting):
    """The exact median, and elements of other ranks, of XOR-shared words."""

    name = "radix"
    summary = "exact, linear in the clients"

    encoding: str = option(
        "float32",
        choices=("float32", "bfloat16", "fixed", "unit", "buckets"),
        text="the words: float32 (default) or bfloat16 over their whole range, fixed point, unit "
        "for even steps from 0 to 1, or bucket indices",
    )
    word_bits: int = option(
        32, text="with encoding fixed or unit: bits of a word (default: 32)", metavar="W"
    )
    fraction_bits: int = option(
        -1,
        text=f"with encoding fixed or neighbours: s of the fixed point (default: {FRACTION}, with "
        f"neighbours {MIXED_FRACTION})",
        metavar="S",
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
        if self.neighbours and (self.encoding != "float32" or self.midpoint):
            raise ConfigError(
                "neighbours has words of its own, sums in fixed point: encoding "
                f"{self.encoding}; leave encoding and midpoint out"
            )
        if self.encoding == "fixed":
            check_whole("fraction_bits", self.fraction_bits, 0, self.word_bits - 2)
        if self.encoding == "unit":
            check_whole("word_bits with encoding unit", self.word_bits, 2, 32)
        for q in self.quantiles:
            check_number("quantile", q, 0, 1, "a number above 0 and at most 1")
        if self.groups > 1 and (self.ranks or self.quantiles or self.midpoint):
            raise ConfigError(
                f"several groups have one median each: {self.groups} groups; leave out ranks, "
                "quantiles and midpoint"
            )
        if self.weights and (self.ranks or self.quantiles):
            raise ConfigError(
                f"ranks and quantiles with weights tell whose a value is: {len(self.weights)} "
                "weights; leave one of them out"
            )
        if self.midpoint and (self.ranks or self.quantiles or self.weights):
            raise ConfigError(
                "midpoint is for the unweighted median: midpoint with ranks, quantiles or "
                "weights; leave these out"
            )

    def check_round(self, max_clients: int) -> None:
        for rank in self.ranks:
            check_whole("rank", rank, 1, self.weighing.most(max_clients))
        super().check_round(max_clients)

    def ranks_of(self, total: int) -> list[int]:
        """Return the ranks to compute, a result each. Raises ConfigError for one beyond `total`."""
        median = ring.median_rank(total)
        if self.midpoint:
            return [median, median + 1] if total % 2 == 0 else [median]
        quantiles = [ceil(as_written(q) * total) for q in self.quantiles]
        ranks = [*self.ranks, *quantiles]
        if ranks and max(ranks) > total:
            raise ConfigError(
                f"a rank beyond the total weight {total} of all who take part: {max(ranks)}; "
                "ask for a lower rank"
            )
        return ranks or [median]

    def check_total(self, total: int) -> None:
        super().check_total(total)
        self.ranks_of(total)

    def single_clients(self, least: int) -> bool:
        """Return whether a rank asked for may be the smallest or the largest of all who remain.

        A median of fewer than three is one of these, too: `min_clients` refuses such a round.
        """
        # a quantile is as near to an end as with the fewest clients
        quantiles = {ceil(as_written(q) * least) for q in self.quantiles}
        ends = bool({1, least} & quantiles) or any(r == 1 or r >= least for r in self.ranks)
        return ends or super().single_clients(least)

    @property
    def word_width(self) -> int:
        """Return the bits of a word."""
        widths = {
            "float32": 32,
            "bfloat16": 16,
            "fixed": self.word_bits,
            "unit": self.word_bits,
            "buckets": (self.buckets - 1).bit_length(),
        }
        return MIXED_WORD_BITS if self.neighbours else widths[self.encoding]

    @property
    def _on_buckets(self) -> bool:
        return self.encoding == "buckets"

    def form(self, dim: int, max_clients: int) -> Form:
        form = Form(
            Layout(1, dim, self.word_width),
            self.bits_for(max_clients),
            self.word_width,
            self.groups * self._most_ranks,
            self._value_range,
            self.buckets if self._on_buckets else 0,
            xor=True,
        )
        return self.mixed(form)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        if self.neighbours:
            return self.encode_difference(vector, published)
        return self.words(vector, published)[None]

    @property
    def _value_range(self) -> ValueRange | None:
        if self._on_buckets:
            return None
        if self.encoding == "fixed":
            top = 2.0 ** (self.word_bits - 2 - self.fraction_bits)
            return ValueRange(-top, top)
        if self.encoding == "unit":
            return ValueRange(0.0, 1.0, closed=True)
        # the greatest finite number of either
        bits = 0x7F7FFFFF if self.encoding == "float32" else 0x7F7F0000
        top = float(np.uint32(bits).view(np.float32))
        return ValueRange(-top, top, closed=True, infinite=True)

    def words(self, values: ArrayLike, published: Published | None = None) -> Ring:
        """Return words whose unsigned order is the order of the values.

        With float32 they are the bits, complemented for negative values and with the sign bit
        flipped for others, so that -0 < +0. With bfloat16 they are the same bits of the nearest
        bfloat16, ties to even. With fixed they are offset binary. With unit they are the nearest
        multiple of 1 / (2^w - 1), ties to even, of a value that is moved into [0, 1]. With buckets
        they are the index, of those `published`. Raises InputError for NaN.
        """
        if self._on_buckets:
            index = (published or Published()).bucketize(values, self.buckets)
            return index.astype(ring.dtype(self.word_width))
        if self.encoding == "fixed":
            elements = encode.to_fixed(values, self.word_bits, self.fraction_bits)
            return elements ^ elements.dtype.type(1 << (self.word_bits - 1))
        if self.encoding == "unit":
            inside = np.clip(encode.without_nan(values, "the update"), 0, 1)
            return np.rint(inside * self._greatest).astype(ring.dtype(self.word_bits))
        # values that overflow float32 become inf
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
        bucket as that bucket, and NaN as infinity.
        """
        if self._on_buckets:
            index = np.minimum(words, self.buckets - 1)
            return (published or Published()).quantize(index, self.buckets)
        if self.encoding == "fixed":
            elements = words ^ words.dtype.type(1 << (self.word_bits - 1))
            return encode.from_fixed(elements, self.word_bits, self.fraction_bits)
        if self.encoding == "unit":
            return words / np.float64(self._greatest)
        ordered = words.astype(np.uint32) << np.uint32(32 - self.word_width)
        # the bits that rounding cut off are 0 in the value, and so 1 in a complement
        if self.encoding == "bfloat16":
            ordered = np.where(ordered >> np.uint32(31), ordered, ordered | np.uint32(0xFFFF))
        bits = np.where(ordered >> np.uint32(31), ordered ^ np.uint32(1 << 31), ~ordered)
        numbers = bits.view(np.float32).astype(np.float64)
        return np.where(np.isnan(numbers), np.copysign(np.inf, numbers), numbers)

    @property
    def _greatest(self) -> int:
        """Return the word that stands for 1 with encoding unit."""
        return (1 << self.word_bits) - 1

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits, ranks = chunk.form.ring_bits, self.ranks_of(chunk.total)
        words = self._mixed(party, chunk) if self.neighbours else chunk.xor_rows(party)
        return select(party, words, self.word_width, bits, ranks, chunk.weights)

    def _mixed(self, party: Party, chunk: Chunk) -> XorWords:
        """Return shares of sums of neighbours as words in offset binary, (n, dim)."""
        sums = self.inputs(party, chunk)
        planes = to_bits(party, RingShare(sums.reshape(-1)), MIXED_WORD_BITS)
        planes[-1] = invert(party, XorBits(planes[-1]))
        words = np.empty(sums.size, ring.dtype(MIXED_WORD_BITS))
        kernels.join(planes, words)
        return XorWords(words.reshape(sums.shape))

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        ranks = len(self.ranks_of(sum(weights)))
        bits, clients = self.bits_for(max_clients), len(weights)
        selecting = demand(dim, clients, self.word_width, bits, ranks)
        if self.neighbours:
            selecting = selecting + to_bits_demand(clients * dim, MIXED_WORD_BITS)
        return selecting + self.mixing_demand(clients)

    def at_once(self, clients: int) -> int:
        words = self.word_width * clients * self._most_ranks // BITS_PER_COMPARISON
        return words + self.rows_at_once(clients)

    def opened_rows(self, total: int) -> int:
        return self.groups if self.visible else len(self.ranks_of(total))

    @property
    def _most_ranks(self) -> int:
        return 2 if self.midpoint else max(1, len(self.ranks) + len(self.quantiles))

    @property
    def opened(self) -> str:
        if self.midpoint:
            return "both middle values of each coordinate"
        if self.ranks or self.quantiles:
            return "the value of each rank asked for"
        return "the bucket of each median" if self._on_buckets else "the value of each median"

    @property
    def kind(self) -> str:
        return "approximate" if self.encoding in ("bfloat16", "unit", "buckets") else "exact"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        if self.neighbours:
            whole = values.astype(np.int64) - (1 << (MIXED_WORD_BITS - 1))
            numbers = self.unmixed(whole / 2.0**self.fraction_bits, total, published)
        else:
            numbers = self.values(values, published)
        return numbers.mean(axis=0, keepdims=True) if self.midpoint else numbers

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        if self.neighbours:
            rounded = self.mixed_in_the_clear(clear)
        else:
            rounded = self._rounded(clear.updates, clear.published)
        ranked = np.sort(np.repeat(rounded, clear.weights, axis=0), axis=0)
        results: NDArray[Any] = ranked[[rank - 1 for rank in self.ranks_of(len(ranked))]]
        if self.neighbours:
            exact = results / 2.0**self.fraction_bits
            results = self.unmixed(exact, len(clear.updates), clear.published)
        if self._on_buckets:
            results = clear.published.quantize(results, self.buckets)
        if self.midpoint:
            results = results.mean(axis=0, keepdims=True, dtype=np.float64)
        return results

    def _rounded(self, updates: NDArray[Any], published: Published) -> NDArray[Any]:
        """Return updates in the clear as the encoding rounds them: numbers, or bucket indices."""
        if self._on_buckets:
            return published.bucketize(updates, self.buckets)
        if self.encoding == "fixed":
            elements = encode.to_fixed(updates, self.word_bits, self.fraction_bits)
            return ring.signed(elements, self.word_bits) / 2.0**self.fraction_bits
        if self.encoding == "unit":
            steps = 2.0**self.word_bits - 1
            exact = np.asarray(updates, np.float64)
            return np.rint(np.minimum(np.maximum(exact, 0.0), 1.0) * steps) / steps
        # values that overflow become inf
        with np.errstate(over="ignore"):
            single = np.asarray(updates).astype(np.float32)
            if self.encoding == "float32":
                return single
            # eight significant bits, fewer below 2^-126; rint takes ties to even
            _, exponent = np.frexp(single.astype(np.float64))
            exponent = np.maximum(exponent, -125)
            scaled = np.ldexp(single.astype(np.float64), 8 - exponent)
            return np.ldexp(np.rint(scaled), exponent - 8).astype(np.float32)

    @property
    def detail(self) -> str:
        if self.encoding == "unit":
            return f"unit {self.word_bits} bits{self.grouping}"
        buckets = f" b={self.buckets}" if self._on_buckets else ""
        return f"{self.encoding}{buckets}{self.grouping}{self.mixture}"


def select(
    party: Party,
    shares: XorWords,
    width: int,
    bits: int,
    ranks: Sequence[int],
    weights: Sequence[int],
) -> PublicValues:
    """Return the element of each rank in each coordinate, opened: shape (ranks, d).

    `shares` are of words of `width` bits (1..64), shape (n, d). `bits` are those of the count ring.
    Each rank is 1..total weight. `weights` are whole numbers >= 1, one per client.
    """
    clients, dim = shares.shape
    # whole words of bits per client; the columns beyond `dim` are nobody's and never opened
    words = words_of(dim)
    planes = np.empty((width, clients * words), np.uint64)
    kernels.split(np.pad(shares, ((0, 0), (0, 64 * words - dim))).reshape(-1), planes)
    zeros = invert(party, XorBits(planes))
    results: list[PublicValues] = []
    for together in _groups(ranks, bits):
        selection = Selection(party, zeros, words, bits, together, weights)
        found = _unknown(width, len(together), words)
        opened = _nothing_opened(len(together), words)
        for bit in reversed(range(width)):
            signs = compare.msb_of_planes(party, selection.reached(bit, opened))
            opened = open_rows(party, XorBits(signs.reshape(-1, words)), dim)
            found[bit] = opened
        results += _elements(found, dim)
    return stacked(results)


def _groups(ranks: Sequence[int], bits: int) -> list[Sequence[int]]:
    """Return groups of ranks whose keys, one of `bits` bits for each, fit into 64 bits."""
    most = 64 // bits
    return [ranks[first : first + most] for first in range(0, len(ranks), most)]


def _unknown(width: int, ranks: int, words: int) -> PublicWords:
    """Return bit planes of results (width, ranks, words), of which no bit is known yet."""
    return PublicWords(np.zeros((width, ranks, words), np.uint64))


def _nothing_opened(ranks: int, words: int) -> PublicWords:
    """Return what stands for the bits above the first (ranks, words): 1s, which rule nobody out."""
    return PublicWords(np.full((ranks, words), kernels.FULL))


def _elements(found: PublicWords, dim: int) -> list[PublicValues]:
    """Return the words (dim,) of each rank, of their bit planes (width, ranks, words)."""
    results = [PublicValues(np.empty(dim, ring.dtype(len(found)))) for _ in found[0]]
    for rank, values in enumerate(results):
        kernels.join(np.ascontiguousarray(found[:, rank]), values)
    return results


class Selection:
    """A party's shares of all clients' flags, and of the counts, for ranks that share their OTs.

    `zeros` are its shares of the complements of the clients' bits: (width, n `words`), the lowest
    bit first. Flags, their products and counts are ring elements in bit planes
    (`mpc.protocols.kernels.planes`). Sends the choices of all OTs when it is made, in one round.
    """

    def __init__(
        self,
        party: Party,
        zeros: XorBits,
        words: int,
        bits: int,
        ranks: Sequence[int],
        weights: Sequence[int],
    ) -> None:
        self._party, self._zeros, self._bits = party, zeros, bits
        self._weights = np.array([weight % (1 << bits) for weight in weights], np.uint64)
        count, kind = zeros.shape[1], PlaneOts(bits * len(ranks))
        # those of all bits, one bit's after another's
        self._stock = party.pool.take(kind, zeros.size, zeros.size)
        choices = self._stock[2].reshape(zeros.shape)
        self._requests = party.channel.exchange("select.request", zeros ^ choices)
        # the public part is in party 0's shares: flags of 1, and L - k with L = 0
        self._flags = np.zeros((kind.planes, count), np.uint64)
        self._below = np.zeros((kind.planes, words), np.uint64)
        if party.number == 0:
            self._flags[::bits] = kernels.FULL
            for plane, counts in enumerate(self._below):
                counts[:] = kernels.FULL * np.uint64(-ranks[plane // bits] >> plane % bits & 1)
        self._products, self._reached = np.zeros_like(self._flags), self._below.copy()

    def reached(self, bit: int, opened: PublicWords) -> RingPlanes:
        """Return shares of L + Z - k at a bit, those of each rank in turn, in bit planes.

        Bits are asked for from the highest down, each with what was opened (ranks, words) at the
        one above it. Takes one round.
        """
        zeros, asked = self._zeros[bit], self._requests[bit]
        keys0, keys1, _, keys = self._stock
        ots, at = (zeros, asked, keys0, keys1), bit * zeros.size
        replies = np.empty_like(self._flags)
        kernels.reply(self._flags, self._products, opened, *ots, at, self._bits, replies)
        replied = self._party.channel.exchange("select.reply", replies)
        kernels.finish(
            *(self._flags, opened, *ots, keys, at, replied, self._weights, self._bits),
            *(self._products, self._below, self._reached),
        )
        by_rank = self._reached.reshape(len(opened), self._bits, -1)
        return RingPlanes(np.ascontiguousarray(by_rank.swapaxes(0, 1)).reshape(self._bits, -1))


def demand(dim: int, clients: int, width: int, bits: int, ranks: int = 1) -> Demand:
    """Return the correlations of `select` for as many ranks."""
    words, total = words_of(dim), Demand()
    for together in _groups(range(ranks), bits):
        ots = Demand({PlaneOts(bits * len(together)): (clients * words, clients * words)})
        total = total + ots + compare.msb_demand(64 * words * len(together), bits)
    return total * width
