"""The kinds of correlation, which the package lists.

A triple (Beaver, CRYPTO 1991) comes from one random OT in each direction. With u the receiver's
choice and r_0, r_1 the sender's keys, r_u = r_0 ^ u (r_0 ^ r_1). So r_u and r_0 share the product
of u and r_0 ^ r_1. A party's share of a is its choice in one direction, its share of b_k is bit k
of r_0 ^ r_1 in the other. It adds the product of its own two bits by itself.

A DaBit takes 1 OT and l bits on the wire. With the bits b of the sender and c of the receiver, the
correlated OT of b gives r_0 + c b to the receiver and -r_0 to the sender. Then [b ^ c] = b + c - 2
b c. The sender turns the random OT into it with the correction r_0 - r_1 + b. No other kind sends a
message besides those of the extension.

A random OT of ring elements (sender r_0, r_1; receiver c, r_c) becomes a correlated one with one
short message each way (Beaver, CRYPTO 1995). For a choice x the receiver sends d = c ^ x, which is
uniform. With r'_i = r_{i ^ d} it knows r'_x. The sender sends delta + r'_0 - r'_1 and keeps -r'_0;
the receiver ends with r'_0 + x delta. These are additive shares of x delta.
"""

from dataclasses import dataclass, field
from typing import cast

import numpy as np

from securemedian.mpc.arrays import Bits, Blocks, Ring, RingShare, UnpackedXorBits, Words, XorBits
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Ends, Half, HandedOut, Kind, PackedKind
from securemedian.mpc.protocols.kernels import tables


@dataclass(frozen=True)
class Tables(Kind[tuple[Words, Words, Words]]):
    """Tables of 2^index_bits messages of `width` bits, in bit planes.

    An item is 64 tables. It hands out the tables to send from (2^index_bits width, items): bit k of
    message i is plane i width + k. To receive with, it hands out positions (index_bits, items) and
    the pads there (width, items).
    """

    index_bits: int
    width: int

    @property
    def ots(self) -> int:
        return 64 * self.index_bits

    @property
    def memory(self) -> tuple[int, int]:
        return 8 * self._planes, 8 * (self.index_bits + self.width)

    @property
    def _planes(self) -> int:
        planes = self.width << self.index_bits
        if planes > 64:
            raise LocalProtocolError(f"{self}: a stocked table has at most 64 bits, not {planes}")
        return planes

    def send(self, ends: Ends, items: int) -> Half:
        keys0, keys1 = ends.sender.extend_planes(items * self.ots, self._planes)
        combined = np.empty((self._planes, items), np.uint64)
        tables.combine_keys(keys0, keys1, self.width, combined)
        return (combined,)

    def receive(self, ends: Ends, items: int) -> Half:
        choices, keys = ends.receiver.extend_planes(items * self.ots, self._planes)
        positions = choices.reshape(self.index_bits, items)
        pads = np.empty((self.width, items), np.uint64)
        tables.choose_chunks(keys, positions, pads)
        return positions, pads

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[Words, Words, Words]:
        # whole rows, as kernels take them: a part of a piece is a view with gaps
        combined, positions, pads = (np.ascontiguousarray(array) for array in (*sent, *received))
        return combined, positions, pads


@dataclass(frozen=True)
class Triples(PackedKind[tuple[XorBits, XorBits, XorBits]]):
    """XOR shares of random bits a and b_1..b_width, and of c_k = a & b_k: 64 of each per item.

    It hands out shares of a (words,), b (width, words) and c (width, words). A party takes as
    many items as the sender as it takes as the receiver.
    """

    width: int

    @property
    def memory(self) -> tuple[int, int]:
        return 16 * self.width, 8 + 8 * self.width

    def send(self, ends: Ends, items: int) -> Half:
        planes0, planes1 = ends.sender.extend_planes(items * self.ots, self.width)
        return planes0 ^ planes1, planes0

    def receive(self, ends: Ends, items: int) -> Half:
        return ends.receiver.extend_planes(items * self.ots, self.width)

    def hand_out(
        self, party_id: int, sent: Half, received: Half
    ) -> tuple[XorBits, XorBits, XorBits]:
        b, product_sent = cast(tuple[Words, Words], sent)
        a, product_received = cast(tuple[Words, Words], received)
        if b.shape[-1] != a.size:
            raise LocalProtocolError(
                f"{self}: {b.shape[-1]} words taken as the sender, {a.size} as the receiver"
            )
        c = (a & b) ^ product_sent ^ product_received
        return XorBits(a), XorBits(b), XorBits(c)


@dataclass(frozen=True)
class PlaneOts(PackedKind[tuple[Words, Words, Words, Words]]):
    """Two keys of `planes` bits (1..64) at the sender, and a random one of them at the receiver.

    An item is 64 OTs. It hands out both keys (planes, items) to send with, and the choices (items,)
    and chosen keys (planes, items) to receive with. Bit j of a plane's word i belongs to OT 64 i +
    j.
    """

    planes: int

    @property
    def memory(self) -> tuple[int, int]:
        return 16 * self.planes, 8 + 8 * self.planes

    def send(self, ends: Ends, items: int) -> Half:
        return ends.sender.extend_planes(items * self.ots, self.planes)

    def receive(self, ends: Ends, items: int) -> Half:
        return ends.receiver.extend_planes(items * self.ots, self.planes)

    def hand_out(
        self, party_id: int, sent: Half, received: Half
    ) -> tuple[Words, Words, Words, Words]:
        # whole rows, as kernels take them: a part of a piece is a view with gaps
        whole = tuple(np.ascontiguousarray(array) for array in (*sent, *received))
        return cast(tuple[Words, Words, Words, Words], whole)


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

    def correlated(self, request: Words, deltas: Ring) -> tuple[Words, RingShare]:
        """Return the reply, and the sender's share -r'_0 of x delta."""
        self._use()
        flip = ring.unpack(request, 1, self.keys0.size).astype(bool)
        pad0 = np.where(flip, self.keys1, self.keys0)
        pad1 = np.where(flip, self.keys0, self.keys1)
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
        return ring.pack(self.choices ^ choices, 1)

    def finish_correlated(self, choices: Bits, reply: Words) -> RingShare:
        """Return the receiver's share r'_0 + x delta."""
        product = self.keys + choices * ring.unpack(reply, self.bits, choices.size)
        return RingShare(ring.reduce(product, self.bits))


@dataclass(frozen=True)
class RingOts(Kind[HandedOut]):
    """A kind made of two keys over Z_2^bits at the sender, and a random one at the receiver."""

    bits: int

    ots = 1

    def send(self, ends: Ends, items: int) -> Half:
        return tuple(ring.reduce(keys[:, 0], self.bits) for keys in ends.sender.extend(items))

    def receive(self, ends: Ends, items: int) -> Half:
        choices, keys = ends.receiver.extend(items)
        return ring.unpack(choices, 1, items), ring.reduce(keys[:, 0], self.bits)


@dataclass(frozen=True)
class RandomOts(RingOts[tuple[OtSender, OtReceiver]]):
    """Two keys over Z_2^bits at the sender, and a random one of them at the receiver."""

    @property
    def memory(self) -> tuple[int, int]:
        size = ring.dtype(self.bits).itemsize
        return 2 * size, 1 + size

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[OtSender, OtReceiver]:
        return OtSender(self.bits, *sent), OtReceiver(self.bits, *received)


@dataclass(frozen=True)
class Seeds(Kind[tuple[Blocks, Blocks, Bits, Blocks]]):
    """Two random seeds of 128 bits at the sender, and a random one of them at the receiver.

    It hands out both seeds (items, 2) to send with, and the choices (items,) and chosen seeds
    (items, 2) to receive with.
    """

    ots = 1

    @property
    def memory(self) -> tuple[int, int]:
        return 32, 17

    def send(self, ends: Ends, items: int) -> Half:
        keys0, keys1 = ends.sender.extend(items)
        # the last axis counts the items
        return keys0.T.copy(), keys1.T.copy()

    def receive(self, ends: Ends, items: int) -> Half:
        choices, keys = ends.receiver.extend(items)
        return ring.unpack(choices, 1, items), keys.T.copy()

    def hand_out(
        self, party_id: int, sent: Half, received: Half
    ) -> tuple[Blocks, Blocks, Bits, Blocks]:
        keys0, keys1 = (np.ascontiguousarray(keys.T) for keys in sent)
        choices, keys = received
        return keys0, keys1, choices, np.ascontiguousarray(keys.T)


@dataclass(frozen=True)
class DaBits(RingOts[tuple[UnpackedXorBits, RingShare]]):
    """A random bit as XOR shares and as additive shares over Z_2^bits.

    It hands out both shares. The bits of which party 0 was the OT sender come first, at both
    parties: that is the order of a batch's halves.
    """

    corrected = True

    @property
    def memory(self) -> tuple[int, int]:
        size = 1 + ring.dtype(self.bits).itemsize
        return size, size

    def correct(self, ends: Ends, half: Half) -> Half:
        keys0, keys1 = half
        chosen = ring.unpack(ends.randomness.words(keys0.size // 64), 1, keys0.size)
        correction = ring.reduce(keys0 - keys1 + chosen, self.bits)
        ends.channel.send("dabits", ring.pack(correction, self.bits))
        # b - 2 (-r_0)
        return chosen, ring.reduce(chosen + keys0 + keys0, self.bits)

    def finish(self, ends: Ends, half: Half) -> Half:
        choices, keys = half
        correction = ends.channel.recv(
            "dabits", np.uint64, (ring.packed_words(keys.size, self.bits),)
        )
        product = keys + choices * ring.unpack(correction, self.bits, keys.size)
        return choices, ring.reduce(choices - product - product, self.bits)

    def hand_out(
        self, party_id: int, sent: Half, received: Half
    ) -> tuple[UnpackedXorBits, RingShare]:
        first, second = (sent, received) if party_id == 0 else (received, sent)
        bits, in_ring = (np.concatenate(pair) for pair in zip(first, second, strict=True))
        return UnpackedXorBits(bits), RingShare(in_ring)
