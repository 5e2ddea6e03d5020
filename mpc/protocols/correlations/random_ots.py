"""Random 1-of-2 OT of ring elements, which a multiplexer needs: 1 OT per item."""

from dataclasses import dataclass

from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.base import Ends, Half, Kind
from securemedian.mpc.protocols.ot import one_of_two
from securemedian.mpc.protocols.ot.one_of_two import OtReceiver, OtSender


@dataclass(frozen=True)
class RandomOts(Kind[tuple[OtSender, OtReceiver]]):
    """Two keys over Z_2^bits at the sender, and a random one of them at the receiver.

    It hands out the OTs to send with and those to receive with.
    """

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
