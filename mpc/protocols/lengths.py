"""Lengths of shared vectors, from shares of their sketches y = R x (`sketch`).

With T a power of two, k rows, and w what a client shared, centred in (-2^(l-1), 2^(l-1)):

- If some |w_i| >= 2T, then r_i = 0 and r_i = +-1 cannot both give |y| < T there. So all k rows
  are in range with a chance of at most 2^-k (`in_range`). Otherwise no sum below wraps.
- E y^2 = |w|^2 / 2, and S = sum_j y_j^2 is near to k |w|^2 / 2 (`squared_lengths`). `Soundness`
  says how near. A row is sub-Gaussian, E e^(s y) <= e^(s^2 |w|^2 / 4), which bounds S from above:

      Pr[S > h k |w|^2 / 2] <= (h e^(1-h))^(k/2).

  E y^4 <= 3 |w|^4 / 4 bounds it from below, for e^-x <= 1 - x + x^2 / 2:

      Pr[S < g k |w|^2 / 2] <= (min_s (1 - s + 1.5 s^2) e^(s g))^k.

A distance is the length of a difference. Nothing is opened. The cost is free of d.

A square takes one product of both parties' shares (Gilboa, CRYPTO 1999). With x = x_0 + x_1,
x^2 = x_0^2 + x_1^2 + 2 x_0 x_1. In the last product one party, with s = x_0 or x_1, is the sender
of l - 1 correlated OTs. The other is the receiver, and its choices are the bits b_i of its share:

    2 s sum_i b_i 2^i = sum_i b_i (2^(i+1) s) mod 2^l, i = 0..l-2.

The top bit counts 2^l s = 0. Every batch is cut in halves, in which the roles are swapped. A square
takes two rounds, and (l - 1) (1 + l) bits per element, in both directions together, after l - 1 OTs
ahead of it.

A score of lengths may be too large for a ring of 64 bits (`negative`). A signed number v in Z_2^64
is known in Z_2^128 once the carry of its shares is, with z = v + 2^63:

    z = z_0 + z_1 - 2^64 1{z_0 + z_1 >= 2^64}.

Numbers of 128 bits are Python's: there are few.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from securemedian.mpc.arrays import Bits, Ring, RingPlanes, RingShare, XorBits
from securemedian.mpc.protocols import compare, millionaire, ring
from securemedian.mpc.protocols.boolean import invert, to_ring, to_ring_demand
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import RandomOts
from securemedian.mpc.protocols.party import Party, half_counts
from securemedian.mpc.protocols.sketch import BLOCK_BYTES

# of the ring of lengths, and of whole numbers in `negative`
BITS, WIDE_BITS = 64, 128
# SECURITY: bits of the digests, which are compared instead of the shares of all rows
DIGEST_BITS = 128
# h and g are rounded to so many bits, so that both parties have the same on every processor
FRACTION_BITS = 10
# An honest norm is at most T / 8: a row of it is out of range with a chance below 2^-91.
MARGIN = 8
# the largest proved gap, if the rows may be chosen
MOST_GAP = 1.8


@dataclass(frozen=True)
class Soundness:
    """The bounds that the squared length of a sketch of `rows` rows proves.

    Each fails with a chance of at most 2^-`check_bits`.
    """

    rows: int
    check_bits: int = 40

    @classmethod
    def of(cls, check_bits: int) -> "Soundness":
        """Return that of the fewest rows whose gap is at most MOST_GAP: 512 rows for 40 bits."""
        found = cls(BLOCK_BYTES, check_bits)
        while found.gap > MOST_GAP:
            found = cls(found.rows + BLOCK_BYTES, check_bits)
        return found

    @property
    def bound(self) -> int:
        """Return T of the range check, with which no sum of squares reaches 2^63."""
        return 1 << (BITS - 1 - (self.rows - 1).bit_length()) // 2

    @property
    def most_norm(self) -> int:
        """Return the largest norm that an honest client may have."""
        return self.bound // MARGIN

    @cached_property
    def high(self) -> float:
        """Return h: no vector of norm B has S > h k B^2 / 2."""
        nats = 2 * self.check_bits * math.log(2) / self.rows
        found = _least(lambda h: h - 1 - math.log(h) >= nats, 1, 2 + 2 * nats)
        return math.ceil(found * (1 << FRACTION_BITS)) / (1 << FRACTION_BITS)

    @cached_property
    def low(self) -> float:
        """Return g: no vector of norm B has S < g k B^2 / 2. It is 0 if there are too few rows."""
        nats = self.check_bits * math.log(2) / self.rows
        found = 1 - _least(lambda gone: _exponent(1 - gone) >= nats, 0, 1)
        return math.floor(found * (1 << FRACTION_BITS)) / (1 << FRACTION_BITS)

    @property
    def gap(self) -> float:
        """Return how many times the norm that passes surely a norm that passes at all may be."""
        return math.sqrt(self.high / self.low) if self.low > 0 else math.inf

    def limit(self, norm: int) -> int:
        """Return tau = h k B^2 / 2, which no squared length of norm B exceeds, rounded down."""
        return int(self.high * (1 << FRACTION_BITS)) * self.rows * norm**2 >> FRACTION_BITS + 1


def _least(reached: Callable[[float], bool], low: float, high: float) -> float:
    """Return where, between `low` and `high`, a condition begins to hold that then goes on."""
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _exponent(g: float) -> float:
    """Return the nats per row by which a length below g k |w|^2 / 2 is improbable."""
    # the s at which the derivative is 0
    s = 1 / 3 if g == 0 else (g - 3 + math.sqrt((3 - g) ** 2 + 6 * g * (1 - g))) / (3 * g)
    return -math.log(1 - s + 1.5 * s * s) - s * g


def in_range(party: Party, sketches: RingShare, bound: int, bits: int = BITS) -> XorBits:
    """Return shares of whether -T <= y < T in all rows of a sketch, n bits, packed.

    `sketches` are shares (n, k) in Z_2^bits; T = `bound` is a power of two. With y + T = z and
    2T = 2^t, that is z < 2^t: the bits of z from t up are 0. They are the sum of both parties' bits
    and of the carry out of the bits below. All are 0 if the parties' halves differ in sign alone:
    one digest of all rows of a sketch is compared with the other. Takes the rounds of a comparison
    of t bits, of `to_ring`, and of one for equality.
    """
    low = bound.bit_length()
    shifted = sketches + sketches.dtype.type(bound if party.number == 0 else 0)
    carry = compare.carry(party, ring.split(shifted, low))
    above = to_ring(party, carry, shifted.size, bits - low).reshape(shifted.shape)
    high = ring.reduce(above + (shifted >> shifted.dtype.type(low)), bits - low)
    return all_zero(party, RingShare(high), bits - low)


def in_range_demand(count: int, rows: int, bound: int, bits: int = BITS) -> Demand:
    """Return the correlations of `in_range` on `count` sketches."""
    low = bound.bit_length()
    return (
        millionaire.greater_demand(count * rows, low)
        + to_ring_demand(count * rows, bits - low)
        + all_zero_demand(count)
    )


def all_zero(party: Party, shares: RingShare, bits: int) -> XorBits:
    """Return shares of whether all elements of each row are 0, for shares (n, k) in Z_2^bits.

    They are, if one party's row is the negative of the other's. Digests of both are compared.
    SECURITY: SHA-256 is a random oracle, and the elements' author does not choose the shares, so
    other rows pass with a chance of 2^-DIGEST_BITS.
    """
    own = compare.opposed(party, shares, bits)
    size = DIGEST_BITS // 8
    digests = b"".join(hashlib.sha256(row.tobytes()).digest()[:size] for row in own)
    words = np.frombuffer(digests, np.uint64).reshape(len(own), -1)
    planes = np.concatenate([ring.split(column, 64) for column in words.T])
    return compare.equal(party, planes)


def all_zero_demand(count: int) -> Demand:
    """Return the correlations of `all_zero` on `count` rows."""
    return millionaire.equal_demand(count, DIGEST_BITS)


def squared_lengths(party: Party, sketches: RingShare) -> RingShare:
    """Return shares of S_i = sum_j y_ij^2 in Z_2^64, shape (n,), of sketches (n, k)."""
    squares = square(party, RingShare(sketches.reshape(-1)), BITS).reshape(sketches.shape)
    return RingShare(squares.sum(axis=1, dtype=squares.dtype))


def squared_lengths_demand(count: int, rows: int) -> Demand:
    """Return the correlations of `squared_lengths` of `count` sketches."""
    return square_demand(count * rows, BITS)


def at_most(party: Party, lengths: RingShare, limit: RingShare) -> XorBits:
    """Return shares of whether each squared length (n,) is at most a limit, n bits, packed.

    `limit` are shares of one limit, shape (1,), or of one each, shape (n,). Lengths and limits are
    whole numbers below 2^63.
    """
    return invert(party, compare.msb(party, RingShare(limit - lengths), BITS))


def at_most_demand(count: int) -> Demand:
    """Return the correlations of `at_most` of `count` lengths."""
    return compare.msb_demand(count, BITS)


def square(party: Party, shares: RingShare, bits: int) -> RingShare:
    """Return shares of x^2 in Z_2^bits, for shares of x, shape (count,)."""
    sending, receiving = party.halves(shares.size)
    factors, chosen = shares[sending], _bits_of(shares[receiving], bits - 1)
    kind = RandomOts(bits)
    sender, receiver = party.pool.take(kind, (bits - 1) * factors.size, chosen.size)
    shape = (ring.packed_words((bits - 1) * factors.size, 1),)
    asked = party.channel.exchange("square.request", receiver.request(chosen), shape)
    doubled = np.concatenate([factors << factors.dtype.type(i + 1) for i in range(bits - 1)])
    reply, sent_share = sender.correlated(asked, ring.reduce(doubled, bits))
    shape = (ring.packed_words(chosen.size, bits),)
    answered = party.channel.exchange("square.reply", reply, shape)
    received_share = receiver.finish_correlated(chosen, answered)
    total = shares * shares
    for part, products in ((sending, sent_share), (receiving, received_share)):
        total[part] += products.reshape(bits - 1, -1).sum(axis=0, dtype=total.dtype)
    return RingShare(ring.reduce(total, bits))


def square_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `square` on `count` elements."""
    zero, one = half_counts(count)
    return Demand({RandomOts(bits): ((bits - 1) * zero, (bits - 1) * one)})


def _bits_of(values: Ring, count: int) -> Bits:
    """Return the low `count` bits of all values, the lowest of all first: shape (count values,)."""
    one = values.dtype.type(1)
    planes = [(values >> values.dtype.type(i) & one).astype(np.uint8) for i in range(count)]
    return np.concatenate(planes)


def negative(party: Party, terms: RingShare, factors: Sequence[int], constant: int) -> XorBits:
    """Return shares of whether each sum_i f_i v_i + constant is below 0, n bits, packed.

    `terms` are shares in Z_2^64 of signed numbers v, shape (m, n); the m factors are public, and
    the sums within (-2^127, 2^127). Takes the rounds of a comparison of 64 bits, of one of 127, and
    of `to_ring`.
    """
    half = 1 << (BITS - 1) if party.number == 0 else 0
    shifted = terms + terms.dtype.type(half)
    carry = compare.carry(party, ring.split(shifted, BITS))
    above = to_ring(party, carry, terms.size, BITS).reshape(terms.shape)
    wide = shifted.astype(object) - (above.astype(object) << BITS) - half
    sums = sum(factor * row for factor, row in zip(factors, wide, strict=True))
    sums = sums + (constant if party.number == 0 else 0)
    halves = [(sums >> start & (1 << BITS) - 1).astype(np.uint64) for start in (0, BITS)]
    planes = np.concatenate([ring.split(half, BITS) for half in halves])
    return compare.msb_of_planes(party, RingPlanes(planes))


def negative_demand(terms: int, count: int) -> Demand:
    """Return the correlations of `negative` on terms (m, n)."""
    return (
        millionaire.greater_demand(terms * count, BITS)
        + to_ring_demand(terms * count, BITS)
        + compare.msb_demand(count, WIDE_BITS)
    )
