"""Random 1-of-2^m OT of small messages, which a leaf of a comparison needs: m OTs per item."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from securemedian.mpc import ring
from securemedian.mpc.arrays import Bits, Ring
from securemedian.mpc.correlations.base import Ends, Half, Kind
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.ot import one_of_n


@dataclass(frozen=True)
class Tables(Kind[tuple[Ring, Bits]]):
    """Tables of 2^index_bits messages of `width` bits.

    It hands out the tables to send from, each packed in one number, and the pads to receive with:
    each is a position in the low `index_bits` bits, and above them the pad at that position.
    """

    index_bits: int
    width: int

    @property
    def ots(self) -> int:
        return self.index_bits

    @property
    def memory(self) -> tuple[int, int]:
        return self._dtype.itemsize, 1

    @property
    def _dtype(self) -> np.dtype[Any]:
        bits = one_of_n.slot_bits(self.width) << self.index_bits
        if bits > 64 or self.index_bits + self.width > 8:
            raise LocalProtocolError(
                f"{self}: a stocked table has at most 64 bits, and its pads one byte"
            )
        return ring.dtype(bits)

    def send(self, ends: Ends, items: int) -> Half:
        tables = one_of_n.sender_tables(ends.sender, self.index_bits, self.width, items)
        return (tables[:, 0].astype(self._dtype),)

    def receive(self, ends: Ends, items: int) -> Half:
        positions, pads = one_of_n.receiver_pads(ends.receiver, self.index_bits, self.width, items)
        return (positions | pads << np.uint8(self.index_bits),)

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[Ring, Bits]:
        return sent[0], received[0]
