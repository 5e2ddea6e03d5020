"""Methods on values in fixed point, and whether shared values lie in their range.

A value v is signed, and in range if -2^t <= v < 2^t, with t = l - 2 - h and h the bits of headroom.
On the circle Z_2^l that holds if msb(v + 2^t) = 0 and msb(2^t - 1 - v) = 0. With h = 0 the first
alone says it. All bits of an honest client are 0, so opening them reveals nothing about it. Of any
other client both parties learn which values are out of range.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, PublicValues, Ring, RingShare
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.share import Layout
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods import norms
from securemedian.mpc.rounds.methods.base import Chunk, Form, Method, Published, ValueRange
from securemedian.mpc.rounds.methods.reveal import open_bits


@dataclass(frozen=True, kw_only=True)
class FixedPoint(Method):
    """A method on values in fixed point in a ring of 64 bits: F2I(x) = floor(x 2^s).

    Values are saturated to the range in which differences keep their sign, and sums too where the
    method adds up.
    """

    fraction_bits: int = option(24, text="s of the fixed point (default: 24)", metavar="S")

    # whether values are checked, by the check of all at once or one by one
    checks_values: ClassVar[bool] = False

    def check_round(self, max_clients: int) -> None:
        super().check_round(max_clients)
        ring.check_bits(self.value_bits)
        most = self._most_bits(max_clients)
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

    def headroom(self, max_clients: int) -> int:
        """Return the bits that a result needs beyond those of one value, for sums."""
        return 0

    def _most_bits(self, max_clients: int) -> int:
        """Return t where no value is checked, or each one."""
        return self.value_bits - 2 - self.headroom(max_clients)

    def _checks_whole(self, dim: int, max_clients: int) -> bool:
        """Return whether all values are checked at once: where the ring has bits to spare."""
        whole = self._most_bits(max_clients) - norms.spare_bits(dim) - self.fraction_bits
        return self.checks_values and self.value_bits == 64 and whole >= norms.WHOLE_BITS

    def range_bits(self, dim: int, max_clients: int) -> int:
        """Return t: a client shares values in [-2^t, 2^t), if its update has `dim`."""
        spare = norms.spare_bits(dim) if self._checks_whole(dim, max_clients) else 0
        return self._most_bits(max_clients) - spare

    def form(self, dim: int, max_clients: int) -> Form:
        bits, top = self.value_bits, 2.0 ** (self.range_bits(dim, max_clients) - self.fraction_bits)
        form = Form(Layout(1, dim, bits), bits, bits, value_range=ValueRange(-top, top))
        if self._checks_whole(dim, max_clients):
            limit = 1 << self._most_bits(max_clients) - 1
            return replace(form, check=norms.RangeCheck(bits, norms.RANGE_ROWS, limit))
        values = Values(bits, self.headroom(max_clients)) if self.checks_values else None
        return replace(form, values=values)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        headroom = self.value_bits - 2 - self.range_bits(len(vector), max_clients)
        return encode.to_fixed(vector, self.value_bits, self.fraction_bits, headroom)[None]

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


@dataclass(frozen=True)
class Values:
    """The check that each value in Z_2^bits leaves so many bits of headroom."""

    bits: int
    headroom: int

    @property
    def comparisons(self) -> int:
        """Return how many comparisons the check makes for each value of each client."""
        return 1 if self.headroom == 0 else 2

    def outside(self, party: Party, chunk: Chunk) -> NDArray[np.bool_]:
        """Return which clients have a value out of range in a chunk, shape (n,), opened.

        The other party does the same at the same time, before `compute`.
        """
        values = chunk.rows(party)
        top = values.dtype.type(1 << (self.bits - 2 - self.headroom))
        # public, so that one party's share has them
        least, most = (top, top - 1) if party.number == 0 else (0, 0)
        both = np.stack([values + least, most - values])
        sides = ring.reduce(both[: self.comparisons], self.bits)
        signs = compare.msb(party, RingShare(sides.reshape(-1)), self.bits)
        opened: PublicBits = open_bits(party, signs, sides.size)
        return opened.reshape(sides.shape).max(axis=(0, 2)).astype(np.bool_)

    def demand(self, count: int) -> Demand:
        """Return the correlations that `outside` takes for `count` values of all clients."""
        return compare.msb_demand(count * self.comparisons, self.bits)
