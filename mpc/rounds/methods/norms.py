"""The check of whole uploads by sketches: no value of a client is large, and its vector not long.

See docs/protocols.md, section 6, for the proofs. Each server sketches its shares (`sketch`) under
the coin that the two toss once the round is closed. A client passes if the k rows of its sketch lie
in [-T, T) and, where there is a norm bound, if S_i = sum_j y_ij^2 is at most

    tau = h k L^2 / 2,    for a bound L in fixed point.

With weights, L is the bound times the client's weight over the largest one.

Both are ANDed on shares. One bit per client is opened, and nothing else of its rows and length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, RingShare, XorBits
from securemedian.mpc.protocols import lengths, ring
from securemedian.mpc.protocols.boolean import (
    conjunctions,
    pack_bits,
    unpack_bits,
    words_of,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import Triples
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.sketch import sketch

if TYPE_CHECKING:
    from securemedian.mpc.rounds.methods.base import Chunk

# SECURITY: both errors of the check of a norm are at most 2^-40
SOUNDNESS = lengths.Soundness.of(40)
# how long an honest client's vector may be in fixed point, and what no value reaches that passes
LONGEST = SOUNDNESS.most_norm
LARGEST = 2 * SOUNDNESS.bound
# SECURITY: rows of a check of values alone, which miss a large one with a chance of 2^-48
RANGE_ROWS = 48
# bits before the point that values must have left where they are checked so
WHOLE_BITS = 15
# rows of sketches that are judged at once
ROWS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class RangeCheck:
    """The check that the values of vectors in Z_2^bits are in (-2T, 2T), T = `limit`.

    An honest vector is no longer than T / 6.5 (`spare_bits`). With a
    larger value a vector passes with one of at most 2^-k, k = `rows` (lemma 2).
    """

    bits: int
    rows: int
    limit: int

    def survey(self, party: Party, chunk: "Chunk") -> RingShare:
        """Return shares of what a chunk adds to all sketches, one after another."""
        shares = chunk.rows(party)
        with party.reading_uploads():
            found = sketch(chunk.coin, shares, chunk.begin, self.rows, party.native_aes)
        return RingShare(found.reshape(-1))

    def surveyed(self, clients: int) -> int:
        return clients * self.rows

    def judge(self, party: Party, surveyed: RingShare, chunk: "Chunk") -> XorBits:
        """Return shares of whether each client passes, packed."""
        sketches = ring.reduce(surveyed.reshape(-1, self.rows), self.bits)
        inside = []
        for group in _groups(sketches):
            party.pool.reserve(self._range_demand(len(group)))
            bits = lengths.in_range(party, group, self.limit, self.bits)
            inside.append(unpack_bits(bits, len(group)))
        return XorBits(pack_bits(np.concatenate(inside)))

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        return self._range_demand(min(len(weights), _at_once(self.rows)))

    def _range_demand(self, clients: int) -> Demand:
        return lengths.in_range_demand(clients, self.rows, self.limit, self.bits)

    def passed(
        self, vectors: NDArray[np.int64], coin: bytes, weights: Sequence[int] = ()
    ) -> list[bool]:
        """Return who passes, of vectors (n, d) in the clear, and their weights if there are any."""
        return [bool(self._within(rows)) for rows in self.sketches(vectors, coin)]

    def sketches(self, vectors: NDArray[np.int64], coin: bytes) -> NDArray[np.int64]:
        """Return the sketches (n, k) of vectors (n, d) in the clear."""
        plain = RingShare(vectors.astype(np.uint64))
        return ring.signed(sketch(coin, plain, 0, self.rows), self.bits)

    def _within(self, rows: NDArray[np.int64]) -> bool:
        return bool(((rows >= -self.limit) & (rows < self.limit)).all())


@dataclass(frozen=True)
class NormCheck(RangeCheck):
    """The check, beyond the range, that vectors in Z_2^64 are not long.

    `most` is the largest sum of squares, tau. A client that weighs less than the `heaviest` one has
    scaled its vector by its weight, and its limit is lower by the square of that.
    """

    most: int
    heaviest: int = 1

    def judge(self, party: Party, surveyed: RingShare, chunk: "Chunk") -> XorBits:
        inside = super().judge(party, surveyed, chunk)
        squared = squared_lengths(party, RingShare(surveyed.reshape(-1, self.rows)))
        party.pool.reserve(self._compared_demand(len(squared)))
        public = [self._limit(weight) if party.number == 0 else 0 for weight in chunk.weights]
        short = lengths.at_most(party, squared, RingShare(np.array(public, np.uint64)))
        ((both,),) = conjunctions(party, [(inside, [short])])
        return both

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        squares = squared_lengths_demand(len(weights), self.rows)
        ranges = super().judge_demand(weights, max_clients)
        return ranges + squares + self._compared_demand(len(weights))

    def _compared_demand(self, clients: int) -> Demand:
        words = words_of(clients)
        return lengths.at_most_demand(clients) + Demand({Triples(1): (words, words)})

    def _limit(self, weight: int) -> int:
        """Return the largest sum of squares of a client of this weight."""
        return self.most * weight**2 // self.heaviest**2

    def passed(
        self, vectors: NDArray[np.int64], coin: bytes, weights: Sequence[int] = ()
    ) -> list[bool]:
        sketches = self.sketches(vectors, coin)
        # whole numbers of any size
        squared = [sum(int(y) ** 2 for y in rows) for rows in sketches]
        inside = [self._within(rows) for rows in sketches]
        most = [self._limit(weight) for weight in weights or [self.heaviest] * len(squared)]
        each = zip(inside, squared, most, strict=True)
        return [bool(ok and one <= limit) for ok, one, limit in each]


def squared_lengths(party: Party, sketches: RingShare) -> RingShare:
    """Return what `lengths.squared_lengths` does of any number of sketches (n, k).

    Those beyond the first make their own correlations, which bounds the memory.
    """
    found = []
    for group in _groups(sketches):
        party.pool.reserve(lengths.squared_lengths_demand(*group.shape))
        found.append(lengths.squared_lengths(party, group))
    return RingShare(np.concatenate(found))


def squared_lengths_demand(count: int, rows: int) -> Demand:
    """Return the correlations of `squared_lengths`, of its first sketches if there are many."""
    return lengths.squared_lengths_demand(min(count, _at_once(rows)), rows)


def _groups(sketches: Ring) -> list[RingShare]:
    """Return sketches (n, k) in groups of at most ROWS_AT_ONCE rows."""
    size = _at_once(sketches.shape[1])
    return [RingShare(sketches[start : start + size]) for start in range(0, len(sketches), size)]


def _at_once(rows: int) -> int:
    return max(1, ROWS_AT_ONCE // rows)


def spare_bits(dim: int) -> int:
    """Return how many bits below 2T the values of an honest vector of `dim` have to be.

    It is then no longer than T / 6.5, so that it fails with a chance of at most RANGE_ROWS 2^-60.
    """
    # ceil(log2(6.5^2 dim)), in whole numbers
    squared = (-(-169 * dim // 4) - 1).bit_length()
    return 1 + -(-squared // 2)
