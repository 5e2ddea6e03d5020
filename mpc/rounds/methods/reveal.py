"""Open shares to both parties, in two rounds: both commit, and then both open (`Channel.open`).

This and `mpc.rounds.bisecting` are the only modules of `mpc` in which something about the inputs
becomes public at the servers.
"""

from collections.abc import Sequence

import numpy as np

from securemedian.mpc.arrays import PublicBits, PublicValues, PublicWords, RingShare, Words, XorBits
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.boolean import unpack_bits, words_of
from securemedian.mpc.protocols.channel import NONCE_WORDS, Channel
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import Stream


def open_bits(party: Party, shares: XorBits, count: int) -> PublicBits:
    """Open the first `count` bits. Those beyond are blanked before anything is sent."""
    return open_verdicts(party.channel, party.number, shares, count, party.randomness)


def open_verdicts(
    channel: Channel, number: int, shares: XorBits, count: int, randomness: Stream
) -> PublicBits:
    """Open bits as `open_bits` does, at party `number` on any channel."""
    mine = _first(shares[None], count)[0]
    words = mine ^ _theirs("open.bits", channel, number, mine, randomness)
    return PublicBits(unpack_bits(words, count))


def open_rows(party: Party, shares: XorBits, count: int) -> PublicWords:
    """Open the first `count` bits of each row, and return them packed, too."""
    mine = _first(shares, count)
    flat = mine.reshape(-1)
    theirs = _theirs("open.bits", party.channel, party.number, flat, party.randomness)
    return PublicWords(mine ^ theirs.reshape(mine.shape))


def _first(shares: Words, count: int) -> Words:
    """Return the words of the first `count` bits of each row, the rest blank."""
    words = shares[:, : words_of(count)].copy()
    if count % 64:
        words[:, -1] &= np.uint64((1 << count % 64) - 1)
    return words


def open_ring(party: Party, shares: RingShare, bits: int) -> PublicValues:
    """Open ring elements of Z_2^bits, in the shape of their shares."""
    mine = ring.pack(ring.reduce(shares, bits), bits)
    words = _theirs("open.ring", party.channel, party.number, mine, party.randomness)
    theirs = ring.unpack(words, bits, shares.size).reshape(shares.shape)
    return PublicValues(ring.reduce(shares + theirs, bits))


def _theirs(label: str, channel: Channel, number: int, mine: Words, randomness: Stream) -> Words:
    """Open words (n,), and return the other party's."""
    return channel.open(label, number, mine, randomness.words(NONCE_WORDS))


def stacked(results: Sequence[PublicValues]) -> PublicValues:
    """Return opened results (dim,) as one array (results, dim)."""
    return PublicValues(np.stack(results))
