"""Random 1-of-2^m OT of small messages, which a leaf of a comparison needs: m OTs per item."""

from dataclasses import dataclass

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.correlations.base import Ends, Half, Kind
from securemedian.mpc.protocols.kernels import tables as kernels


@dataclass(frozen=True)
class Tables(Kind[tuple[Words, Words, Words]]):
    """Tables of 2^index_bits messages of `width` bits, in bit planes.

    An item is 64 tables. It hands out the tables to send from (2^index_bits width, items), in which
    bit k of message i is plane i width + k, and to receive with, positions (index_bits, items) and
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
        tables = np.empty((self._planes, items), np.uint64)
        kernels.combine_keys(keys0, keys1, self.width, tables)
        return (tables,)

    def receive(self, ends: Ends, items: int) -> Half:
        choices, keys = ends.receiver.extend_planes(items * self.ots, self._planes)
        positions = choices.reshape(self.index_bits, items)
        pads = np.empty((self.width, items), np.uint64)
        kernels.choose_chunks(keys, positions, pads)
        return positions, pads

    def hand_out(self, party_id: int, sent: Half, received: Half) -> tuple[Words, Words, Words]:
        # whole rows, as kernels take them: a part of a piece is a view with gaps
        tables, positions, pads = (np.ascontiguousarray(array) for array in (*sent, *received))
        return tables, positions, pads
