"""A party on one lane, and the session that keeps the base OTs of a pair of servers."""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.pool import Pool
from securemedian.mpc.protocols.ot.extension import Direction
from securemedian.mpc.protocols.ot.ferret import FerretReceiver, FerretSender
from securemedian.mpc.protocols.ot.ggm import receiver_setup, sender_setup
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.prg import SESSION_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams


@dataclass(eq=False, repr=False)
class Party:
    """The means of a protocol function: one lane of one party, used by one thread.

    `number` is 0 or 1. `randomness` makes the masks of this party alone. `native_aes` is as in
    `prg.expand`. `uploads_seconds` is the time spent in `reading_uploads`.
    """

    number: int
    channel: Channel
    pool: Pool
    randomness: Stream
    native_aes: bool = True
    uploads_seconds: float = 0.0

    @contextmanager
    def reading_uploads(self) -> Iterator[None]:
        """Time what a server does with the clients' shares by itself, before the protocol."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.uploads_seconds += time.perf_counter() - start

    def halves(self, count: int) -> tuple[slice, slice]:
        """Return where in a batch of `count` this party is the OT sender, and where the receiver.

        Party 0 is the sender in the first half. The border is at a whole word of bits.
        """
        border, _ = half_counts(count)
        first, second = slice(0, border), slice(border, count)
        return (first, second) if self.number == 0 else (second, first)

    def word_halves(self, words: int) -> tuple[slice, slice]:
        """Return `halves` of a batch that is packed in so many words."""
        sending, receiving = (
            slice(half.start // 64, half.stop // 64) for half in self.halves(64 * words)
        )
        return sending, receiving

    def roles(self, count: int) -> tuple[int, int]:
        """Return how many of `count` items this party sends, and how many it receives."""
        zero, one = half_counts(count)
        return (zero, one) if self.number == 0 else (one, zero)


def half_counts(count: int) -> tuple[int, int]:
    """Return how many items of a batch party 0 sends, and how many party 1."""
    border = min(count, (count + 127) // 128 * 64)
    return border, count - border


@dataclass(eq=False, repr=False)
class Session:
    """The base OTs of both directions, from which lanes are made.

    Both parties drop the session after any failure, because their counters may no longer agree.
    """

    party_id: int
    session_id: bytes
    receiver_leaves: list[list[bytes]]
    delta: NDArray[np.uint8]
    sender_leaves: list[list[bytes]]
    entropy: Entropy
    params: ProtocolParams
    # those that were made
    lanes: set[int] = field(default_factory=set)

    def __repr__(self) -> str:
        return f"Session({self.session_id.hex()}, <secrets>)"

    @classmethod
    def establish(
        cls,
        party_id: int,
        channel: Channel,
        session_id: bytes,
        params: ProtocolParams,
        entropy: Entropy = os_entropy,
        audit: bool = False,
    ) -> Self:
        """Make the base OTs of both directions, while the other party does the same.

        `session_id` is 16 bytes that both agreed on and that no earlier session had. Raises
        LocalProtocolError for another length or party.

        In the session of an `audit`, bit 63 of Delta (`ggm.FIXED_BIT`) is 1 at party 0 and 0 at
        party 1. ANDs of authenticated bits need a place where Delta_0 ^ Delta_1 is 1. It lies
        outside the 48 bits that MACs of rings are made with, and 127 bits remain random.
        """
        if party_id not in (0, 1) or len(session_id) != SESSION_BYTES:
            raise LocalProtocolError(
                f"a party is 0 or 1 and a session id has {SESSION_BYTES} bytes"
            )
        terms = {"lanes": params.lanes, "ot_field_bits": params.ot_field_bits}
        terms |= {"silent": True} if params.silent else {}
        terms |= {"audit": True} if audit else {}
        bound = hashlib.sha256(session_id + repr(sorted(terms.items())).encode()).digest()
        given = params.ot_field_bits, entropy, params.native_aes
        fixed = 1 - party_id if audit else None
        # the direction is named by the party that is the extension's sender
        for direction in (0, 1):
            tag = bound + bytes([direction])
            if direction == party_id:
                delta, sender_leaves = sender_setup(channel, tag, *given, fixed)
            else:
                receiver_leaves = receiver_setup(channel, tag, *given)
        return cls(party_id, bound, receiver_leaves, delta, sender_leaves, entropy, params)

    def party(self, lane: int, channel: Channel) -> Party:
        """Make the party of one lane, with streams and tweaks of its own.

        Raises LocalProtocolError for a lane that was made before, because its correlations would
        repeat.
        """
        if lane in self.lanes or not 0 <= lane < 1 << 16:
            raise LocalProtocolError(f"lane {lane} was made before, or is not in 0..65535")
        self.lanes.add(lane)
        randomness = Stream(self.entropy(16))
        given = self.party_id, self.params.native_aes, self.entropy
        sending = Direction(channel, self.session_id, lane, *given)
        receiving = replace(sending, sender=1 - self.party_id)
        sender, receiver = (
            (FerretSender, FerretReceiver)
            if self.params.silent
            else (SoftSpokenSender, SoftSpokenReceiver)
        )
        ends = (
            sender(sending, self.delta, self.sender_leaves),
            receiver(receiving, self.receiver_leaves),
        )
        pool = Pool(self.party_id, channel, *ends, randomness)
        return Party(self.party_id, channel, pool, randomness, self.params.native_aes)
