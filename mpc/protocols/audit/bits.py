"""Bits shared by XOR, of which a party can open no other share than its own.

x = x_0 ^ x_1. Party j holds x_j and a MAC of it, M_j = K_(1-j) ^ x_j Delta_(1-j), of which the key
K_(1-j) is the other party's. A party that opens another x_j has to send Delta_(1-j) along, in
effect.

MACs are words of 64 bits, and so is Delta: the low word of the 128 bits of OT extension. Bits that
came from MACs of ring elements (`audit.macs`) have the lowest MAC_BITS of them. If such bits have a
part, the other bits of MACs and keys mean nothing, and comparisons leave them out.

All that is linear over GF(2) each party computes on its own halves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Words
from securemedian.mpc.protocols.audit.macs import MAC_BITS

MAC_MASK = np.uint64((1 << MAC_BITS) - 1)


@dataclass(frozen=True, eq=False)
class AuthenticatedBits:
    """One party's halves of n authenticated bits.

    `bits` (n,) are its shares, `macs` (n,) their MACs, and `keys` (n,) those of the peer's MACs.
    """

    bits: Bits = field(repr=False)
    macs: Words = field(repr=False)
    keys: Words = field(repr=False)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return bits one after another."""
        if len(parts) == 1:
            return parts[0]
        return cls(*map(np.concatenate, zip(*(part.arrays for part in parts), strict=True)))

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Return the shares, the MACs and the keys."""
        return self.bits, self.macs, self.keys

    def __len__(self) -> int:
        return len(self.bits)

    def __xor__(self, other: Self) -> Self:
        pairs = zip(self.arrays, other.arrays, strict=True)
        return type(self)(*(one ^ another for one, another in pairs))

    def __getitem__(self, chosen: Any) -> Self:
        """Return some of the bits, as numpy's arrays are indexed."""
        return type(self)(*(array[chosen] for array in self.arrays))

    def plus(self, number: int, public: Bits, delta: np.uint64) -> Self:
        """Return the sums with public bits, at party `number`, whose word of Delta is `delta`.

        Party 0 changes its shares, and party 1 its keys of these.
        """
        if number == 0:
            return type(self)(self.bits ^ public, self.macs, self.keys)
        return type(self)(self.bits, self.macs, self.keys ^ masks_of(public) & delta)


def masks_of(bits: Bits) -> Words:
    """Return words of 64 ones where bits are 1, and of zeros where they are 0."""
    return np.uint64(0) - bits.astype(np.uint64)
