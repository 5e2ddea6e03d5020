"""Random AND triples, which an AND of shared bits needs (Beaver, CRYPTO 1991): 2 OTs per bit.

A triple comes from one random OT in each direction: with u the receiver's choice and r_0, r_1 the
sender's keys, r_u = r_0 ^ u (r_0 ^ r_1), so that r_u and r_0 share the product of u and r_0 ^ r_1.
A party's share of a is its choice in one direction, its share of b_k is bit k of r_0 ^ r_1 in the
other, and it adds the product of its own two bits by itself.
"""

from dataclasses import dataclass
from typing import cast

from securemedian.mpc.arrays import Words, XorBits
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.correlations.base import Ends, Half, PackedKind


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
