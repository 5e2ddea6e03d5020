"""Random 1-of-2 OT of ring elements in bit planes, which a step of the radix median needs."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.correlations.base import Ends, Half, PackedKind


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
