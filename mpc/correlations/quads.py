"""Random 1-of-4 OT of ring elements, which a step of the radix median needs: 2 OTs per item."""

from dataclasses import dataclass

import numpy as np

from securemedian.mpc import ring
from securemedian.mpc.arrays import Bits, Ring
from securemedian.mpc.correlations.base import Ends, Half, Kind
from securemedian.mpc.ot import one_of_n


@dataclass(frozen=True)
class Quads(Kind[tuple[Ring, Bits, Ring]]):
    """Four pads over Z_2^bits at the sender, and one of them at the receiver.

    It hands out all four pads (4, count) to send with, and the positions and pads to receive with.
    """

    bits: int

    ots = 2

    @property
    def memory(self) -> tuple[int, int]:
        size = ring.dtype(self.bits).itemsize
        return 4 * size, 1 + size

    def send(self, ends: Ends, items: int) -> Half:
        return (one_of_n.sender_quads(ends.sender, self.bits, items),)

    def receive(self, ends: Ends, items: int) -> Half:
        return one_of_n.receiver_pads(ends.receiver, self.ots, self.bits, items)

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[Ring, Bits, Ring]:
        positions, pads = received
        return np.ascontiguousarray(sent[0]), positions, pads
