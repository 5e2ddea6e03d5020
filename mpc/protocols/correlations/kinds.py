"""The kinds of correlation, which the package lists.

A triple (Beaver, CRYPTO 1991) comes from one random OT in each direction. With u the receiver's
choice and r_0, r_1 the sender's keys, r_u = r_0 ^ u (r_0 ^ r_1). So r_u and r_0 share the product
of u and r_0 ^ r_1. A party's share of a is its choice in one direction, its share of b_k is bit k
of r_0 ^ r_1 in the other. It adds the product of its own two bits by itself.

A DaBit takes 1 OT and l bits on the wire. With the bits b of the sender and c of the receiver, the
correlated OT of b gives r_0 + c b to the receiver and -r_0 to the sender. Then [b ^ c] = b + c - 2
b c. The sender turns the random OT into it with the correction r_0 - r_1 + b. No other kind sends a
message besides those of the extension.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np

from securemedian.mpc.arrays import Bits, Blocks, RingShare, UnpackedXorBits, Words, XorBits
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Ends, Half, Kind, PackedKind
from securemedian.mpc.protocols.kernels import packing, tables
from securemedian.mpc.protocols.ot import one_of_two
from securemedian.mpc.protocols.ot.one_of_two import OtReceiver, OtSender


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
        """Return the bits of a table."""
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


@dataclass(frozen=True)
class RandomOts(Kind[tuple[OtSender, OtReceiver]]):
    """Two keys over Z_2^bits at the sender, and a random one of them at the receiver."""

    bits: int

    ots = 1

    @property
    def memory(self) -> tuple[int, int]:
        size = ring.dtype(self.bits).itemsize
        return 2 * size, 1 + size

    def send(self, ends: Ends, items: int) -> Half:
        return one_of_two.sender_keys(ends.sender, self.bits, items)

    def receive(self, ends: Ends, items: int) -> Half:
        return one_of_two.receiver_keys(ends.receiver, self.bits, items)

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
        unpacked = np.empty(items, np.uint8)
        packing.unpack_bits(choices, unpacked)
        return unpacked, keys.T.copy()

    def hand_out(
        self, party_id: int, sent: Half, received: Half
    ) -> tuple[Blocks, Blocks, Bits, Blocks]:
        keys0, keys1 = (np.ascontiguousarray(keys.T) for keys in sent)
        choices, keys = received
        return keys0, keys1, choices, np.ascontiguousarray(keys.T)


@dataclass(frozen=True)
class DaBits(Kind[tuple[UnpackedXorBits, RingShare]]):
    """A random bit as XOR shares and as additive shares over Z_2^bits.

    It hands out both shares. The bits of which party 0 was the OT sender come first, at both
    parties: that is the order of a batch's halves.
    """

    bits: int

    ots = 1
    corrected = True

    @property
    def memory(self) -> tuple[int, int]:
        size = 1 + ring.dtype(self.bits).itemsize
        return size, size

    def send(self, ends: Ends, items: int) -> Half:
        return one_of_two.sender_keys(ends.sender, self.bits, items)

    def correct(self, ends: Ends, half: Half) -> Half:
        keys0, keys1 = half
        chosen = np.empty(keys0.size, np.uint8)
        packing.unpack_bits(ends.randomness.words(keys0.size // 64), chosen)
        correction = ring.reduce(keys0 - keys1 + chosen, self.bits)
        ends.channel.send("dabits", ring.pack(correction, self.bits))
        # b - 2 (-r_0)
        return chosen, ring.reduce(chosen + keys0 + keys0, self.bits)

    def receive(self, ends: Ends, items: int) -> Half:
        return one_of_two.receiver_keys(ends.receiver, self.bits, items)

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
