"""Open shares to both parties, in one round.

This is the only module of `mpc` in which something about the inputs becomes public at the servers.
"""

from collections.abc import Sequence

import numpy as np

from securemedian.mpc.arrays import PublicBits, PublicValues, PublicWords, RingShare, Words, XorBits
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.boolean import unpack_bits, words_of
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.party import Party


def open_bits(party: Party, shares: XorBits, count: int) -> PublicBits:
    """Open the first `count` bits. Those beyond are blanked before anything is sent."""
    return open_verdicts(party.channel, shares, count)


def open_verdicts(channel: Channel, shares: XorBits, count: int) -> PublicBits:
    """Open bits as `open_bits` does, on a channel that is no lane's."""
    return PublicBits(unpack_bits(_opened(channel, shares[None], count)[0], count))


def open_rows(party: Party, shares: XorBits, count: int) -> PublicWords:
    """Open the first `count` bits of each row, and return them packed, too."""
    return PublicWords(_opened(party.channel, shares, count))


def _opened(channel: Channel, shares: Words, count: int) -> Words:
    mine = shares[:, : words_of(count)].copy()
    if count % 64:
        mine[:, -1] &= np.uint64((1 << count % 64) - 1)
    theirs = channel.exchange("open.bits", mine.reshape(-1))
    return mine ^ theirs.reshape(mine.shape)


def open_ring(party: Party, shares: RingShare, bits: int) -> PublicValues:
    """Open ring elements of Z_2^bits, in the shape of their shares."""
    mine = ring.pack(ring.reduce(shares, bits), bits)
    theirs = ring.unpack(party.channel.exchange("open.ring", mine), bits, shares.size)
    theirs = theirs.reshape(shares.shape)
    return PublicValues(ring.reduce(shares + theirs, bits))


def stacked(results: Sequence[PublicValues]) -> PublicValues:
    """Return opened results (dim,) as one array (results, dim)."""
    return PublicValues(np.stack(results))
