"""Random bits shared over XOR and over Z_2^l, which turn a shared bit into a number.

A DaBit takes 1 OT and l bits on the wire. With the bits b of the sender and c of the receiver, the
correlated OT of b gives r_0 + c b to the receiver and -r_0 to the sender, and
[b ^ c] = b + c - 2 b c. The sender turns the random OT into it with the correction r_0 - r_1 + b.
No other kind sends a message besides those of the extension.
"""

from dataclasses import dataclass

import numpy as np

from securemedian.mpc.arrays import RingShare, UnpackedXorBits
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Ends, Half, Kind
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot import one_of_two


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
        keys0, keys1 = one_of_two.sender_keys(ends.sender, self.bits, items)
        chosen = np.empty(items, np.uint8)
        packing.unpack_bits(ends.randomness.words(items // 64), chosen)
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
