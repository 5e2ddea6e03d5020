"""Opening shares to both parties: the only place of `mpc` where anything about the inputs becomes
public. One round each.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.boolean import pack_bits, unpack_bits, words_of
from securemedian.mpc.party import Party


def open_bits(party: Party, shares: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    """Return the first `count` XOR-shared bits, as 0/1 bytes. Bits beyond are blanked before
    sending.
    """
    mine = pack_bits(unpack_bits(shares, count))
    return unpack_bits(mine ^ party.channel.exchange("open.bits", mine, (words_of(count),)), count)


def open_ring(party: Party, shares: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return the shared ring elements."""
    mine = ring.pack(ring.reduce(shares, bits), bits)
    theirs = ring.unpack(party.channel.exchange("open.ring", mine), bits, shares.size)
    return ring.reduce(shares + theirs, bits)
