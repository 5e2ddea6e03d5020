"""Methods on values in fixed point, and whether shared values lie in their range.

A value v is signed, and in range if -2^t <= v < 2^t, with t = l - 2 - h and h the bits of headroom.
On the circle Z_2^l that holds if msb(v + 2^t) = 0 and msb(2^t - 1 - v) = 0. With h = 0 the first
alone says it. All bits of an honest client are 0, so opening them reveals nothing about it. Of any
other client both parties learn which values are out of range.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, PublicValues, Ring, RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods import norms
from securemedian.mpc.rounds.methods.base import Chunk, Method, Published, Survey, ValueRange
from securemedian.mpc.rounds.methods.reveal import open_bits


@dataclass(frozen=True, kw_only=True)
class FixedPoint(Method):
    """A method on values in fixed point in a ring of 64 bits: F2I(x) = floor(x 2^s).

    Values are saturated to the range in which differences keep their sign, and sums too where the
    method adds up.
    """

    fraction_bits: int = option(24, text="s of the fixed point (default: 24)", metavar="S")

    def check_round(self, max_clients: int) -> None:
        super().check_round(max_clients)
        most = self.value_bits - 2 - self.headroom(max_clients)
        if most < 0:
            raise ConfigError(
                f"ring_bits is too small for {self.name} with {max_clients} clients: "
                f"{self.value_bits}; use {self.headroom(max_clients) + 2} or more"
            )
        check_whole("fraction_bits", self.fraction_bits, 0, most)

    @property
    def value_bits(self) -> int:
        """Return l, the bits of the ring."""
        return 64

    def bits_for(self, max_clients: int) -> int:
        return self.value_bits

    def headroom(self, max_clients: int) -> int:
        """Return the bits that a result needs beyond those of one value, for sums."""
        return 0

    def range_bits(self, dim: int, max_clients: int) -> int:
        """Return t: a client shares values in [-2^t, 2^t), if its update has `dim`."""
        most = self.bits_for(max_clients) - 2 - self.headroom(max_clients)
        return most - norms.spare_bits(dim) if self.upload_check(dim, max_clients) else most

    def value_range(self, dim: int, max_clients: int) -> ValueRange | None:
        top = 2.0 ** (self.range_bits(dim, max_clients) - self.fraction_bits)
        return ValueRange(-top, top, self.shares_differences)

    def upload_check(self, dim: int, max_clients: int) -> Survey | None:
        """Return the check of all values at once, where the ring has bits to spare for it."""
        most = self.bits_for(max_clients) - 2 - self.headroom(max_clients)
        whole = most - norms.spare_bits(dim) - self.fraction_bits
        if not self.checks_values or self.value_bits < 64 or whole < norms.WHOLE_BITS:
            return None
        return norms.RangeCheck(self.value_bits, norms.RANGE_ROWS, 1 << most - 1)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        bits = self.bits_for(max_clients)
        headroom = bits - 2 - self.range_bits(len(vector), max_clients)
        return encode.to_fixed(vector, bits, self.fraction_bits, headroom)[None]

    def out_of_range(self, party: Party, chunk: Chunk) -> NDArray[np.bool_]:
        bits, headroom = self.bits_for(chunk.max_clients), self.headroom(chunk.max_clients)
        return outside(party, chunk.rows(party), bits, headroom)

    def comparisons_per_value(self, max_clients: int) -> int:
        return comparisons(self.headroom(max_clients))

    def check_demand(self, count: int, max_clients: int) -> Demand:
        return outside_demand(count, self.bits_for(max_clients), self.headroom(max_clients))

    def numbers(self, values: PublicValues) -> NDArray[np.float64]:
        """Return the numbers that opened ring elements stand for."""
        return encode.from_fixed(values, self.value_bits, self.fraction_bits)

    def whole_numbers(self, updates: NDArray[Any], max_clients: int) -> NDArray[np.int64]:
        """Return floor(x 2^s), saturated, by plain float64 arithmetic: for `in_the_clear`."""
        top = 2.0 ** self.range_bits(updates.shape[-1], max_clients)
        # values that overflow float64 become inf, and saturate
        with np.errstate(over="ignore"):
            scaled = np.floor(np.asarray(updates, np.float64) * 2.0**self.fraction_bits)
        inside = np.clip(scaled, -top, np.nextafter(top, 0)).astype(np.int64)
        return np.where(scaled >= top, np.int64(int(top) - 1), inside)


@dataclass(frozen=True, kw_only=True)
class SizedFixedPoint(FixedPoint):
    """A method on values in fixed point, in a ring of as many bits as the options say."""

    ring_bits: int = option(0, text="bits of a shared value (default: 64)", metavar="L")

    @property
    def value_bits(self) -> int:
        return self.ring_bits or super().value_bits


def outside(party: Party, values: RingShare, bits: int, headroom: int) -> NDArray[np.bool_]:
    """Return which clients have a value out of range (n,), from shares (n, d) in Z_2^bits."""
    top = ring.dtype(bits).type(1 << (bits - 2 - headroom))
    # public, so that one party's share has them
    least, most = (top, top - 1) if party.number == 0 else (0, 0)
    both = np.stack([values + least, most - values])
    sides = ring.reduce(both[: comparisons(headroom)], bits)
    signs = compare.msb(party, RingShare(sides.reshape(-1)), bits)
    opened: PublicBits = open_bits(party, signs, sides.size)
    return opened.reshape(sides.shape).max(axis=(0, 2)).astype(np.bool_)


def comparisons(headroom: int) -> int:
    """Return the comparisons that `outside` makes for each value."""
    return 1 if headroom == 0 else 2


def outside_demand(count: int, bits: int, headroom: int) -> Demand:
    """Return the correlations of `outside` on `count` values."""
    return compare.msb_demand(count * comparisons(headroom), bits)
