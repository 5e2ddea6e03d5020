"""1-of-2 OT of ring elements, random and correlated (Beaver, CRYPTO 1995).

One short message each way turns a random OT (sender r_0, r_1; receiver c, r_c) into a correlated
one. For a choice x the receiver sends d = c ^ x, which is uniform. With r'_i = r_{i ^ d} it knows
r'_x. The sender sends delta + r'_0 - r'_1 and keeps -r'_0; the receiver ends with r'_0 + x delta.
These are additive shares of x delta. A batch serves once: its first request or reply uses it up.

Arrays are ring elements of `bits` bits; requests are packed bits, replies packed to `bits` bits per
value.
"""

from dataclasses import dataclass, field

import numpy as np

from securemedian.mpc.arrays import Bits, Ring, RingShare, Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.extension import RandomOtReceiver, RandomOtSender


def sender_keys(extension: RandomOtSender, bits: int, items: int) -> tuple[Ring, Ring]:
    """Make `items` random OTs, and return both keys of each as elements of Z_2^bits.

    `items` is a block as `RandomOtEnd` makes them.
    """
    keys0, keys1 = extension.extend(items)
    return ring.reduce(keys0[:, 0], bits), ring.reduce(keys1[:, 0], bits)


def receiver_keys(extension: RandomOtReceiver, bits: int, items: int) -> tuple[Bits, Ring]:
    """Make the receiver's side of `sender_keys`: the choice bits and the keys they choose."""
    choices, keys = extension.extend(items)
    unpacked = np.empty(items, np.uint8)
    packing.unpack_bits(choices, unpacked)
    return unpacked, ring.reduce(keys[:, 0], bits)


class _Once:
    """A batch of correlations that refuses a second use."""

    _used = False

    def _use(self) -> None:
        if self._used:
            raise LocalProtocolError(
                f"this {type(self).__name__} was used before: a correlation serves once"
            )
        self._used = True


@dataclass
class OtSender(_Once):
    """Random OTs at the sender, which turns them into correlated ones."""

    bits: int
    keys0: Ring = field(repr=False)
    keys1: Ring = field(repr=False)

    def _permuted(self, request: Words) -> tuple[Ring, Ring]:
        self._use()
        swap = np.empty(self.keys0.size, np.uint8)
        packing.unpack_bits(request, swap)
        flip = swap.astype(bool)
        return np.where(flip, self.keys1, self.keys0), np.where(flip, self.keys0, self.keys1)

    def correlated(self, request: Words, deltas: Ring) -> tuple[Words, RingShare]:
        """Return the reply, and the sender's share -r'_0 of x delta."""
        pad0, pad1 = self._permuted(request)
        reply = ring.pack(ring.reduce(deltas + pad0 - pad1, self.bits), self.bits)
        return reply, RingShare(ring.reduce(np.zeros_like(pad0) - pad0, self.bits))


@dataclass
class OtReceiver(_Once):
    """Random OTs at the receiver: choices c and keys r_c."""

    bits: int
    choices: Bits = field(repr=False)
    keys: Ring = field(repr=False)

    def request(self, choices: Bits) -> Words:
        """Return the request d = c ^ x, packed."""
        self._use()
        words = np.empty(ring.packed_words(choices.size, 1), np.uint64)
        packing.pack_bits(self.choices ^ choices, words)
        return words

    def finish_correlated(self, choices: Bits, reply: Words) -> RingShare:
        """Return the receiver's share r'_0 + x delta."""
        product = self.keys + choices * ring.unpack(reply, self.bits, choices.size)
        return RingShare(ring.reduce(product, self.bits))
