"""A party's part in a round, rehearsed on uploads of zeros and a channel that moves nothing.

`plan` rehearses both parties on extensions that compute nothing (`dry_party`), and counts. It times
what one party computes with extensions that are real (`lone_party`).
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Blocks, RingShare, Words, XorBits
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.boolean import words_of
from securemedian.mpc.protocols.channel import Channel, Traffic, frame_size
from securemedian.mpc.protocols.correlations.pool import Pool
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.ot.consistency import PROOF_WORDS
from securemedian.mpc.protocols.ot.extension import (
    ALIGN,
    BLOCK,
    Direction,
    RandomOtReceiver,
    RandomOtSender,
    checked_block,
)
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenSender, corrections_shape
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES, Stream, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.rounds.chunks import Work, evenly
from securemedian.mpc.rounds.cutting import Does, Step
from securemedian.mpc.rounds.lanes import exchange_sizes, exchange_verdicts
from securemedian.mpc.rounds.params import RoundParams

# Every dry extension returns these keys.
_KEYS = np.zeros((BLOCK, 2), np.uint64)

size_of = lru_cache(frame_size)


def rehearse(
    party: Party, params: RoundParams, weights: Sequence[int], batch: int, step: Step
) -> None:
    """Do what a lane does in a step, on uploads of zeros."""
    clients = len(weights)
    match step.does:
        case Does.AGREE:
            exchange_sizes([party], ProtocolParams())
        case Does.CONFIRM:
            exchange_verdicts(party, [True] * clients)
        case _:
            dealt, upload = params.form.dealing, _NoUpload()
            one = upload if dealt is None else DealtUpload(dealt, upload, upload)
            judges = params.form.check if step.checking else params.form.survey
            surveyed = judges.surveyed(clients) if judges else 0
            Work(
                params,
                [one] * clients,
                weights,
                batch,
                evenly(params, clients),
                noise=bytes(SEED_BYTES),
                coin=bytes(SEED_BYTES),
                surveyed=RingShare(np.zeros(surveyed, np.uint64)),
                verdicts=XorBits(np.zeros(words_of(max(clients, surveyed)), np.uint64)),
            ).do(party, step)


class _NoUpload:
    """An upload of zeros."""

    def words(self, row: int, start: int, stop: int) -> Words:
        return np.zeros(stop - start, np.uint64)


@dataclass
class Event:
    """A message of `size` bytes, sent or received at one end."""

    sent: bool
    size: int


@dataclass
class Asked:
    """OTs asked of one end of an extension, whose messages depend on how many it made."""

    sending: bool
    ots: int


class DryChannel(Channel):
    """A channel without a peer, which only notes what it would carry. It receives zeros."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.events: list[Event | Asked] = []

    def send(self, label: str, array: NDArray[Any]) -> None:
        self.events.append(Event(True, size_of(label, array.dtype, array.shape)))

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        self.events.append(Event(False, size_of(label, np.dtype(dtype), shape)))
        array = np.zeros(shape, dtype)
        # read-only, as what a channel receives
        array.flags.writeable = False
        return array

    def check_opening(self, committed: Words, opened: bytes, label: str) -> None:
        """Take whatever is opened."""

    def close(self) -> None:
        pass


def lone_party(protocol: ProtocolParams) -> Party:
    """Return a party 0 without a peer: its cryptography is real, and it receives only zeros."""
    channel, session = DryChannel(), os_entropy(SESSION_BYTES)
    blocks, leaves = SECURITY_BITS // protocol.ot_field_bits, 1 << protocol.ot_field_bits
    trees = [[os_entropy(SEED_BYTES) for _ in range(leaves)] for _ in range(blocks)]
    # the missing leaf of each tree is the first
    delta = np.zeros(SECURITY_BITS, np.uint8)
    holes = [[b"", *tree[1:]] for tree in trees]
    party = Session(0, session, trees, delta, holes, os_entropy, protocol).party(0, channel)
    if not protocol.silent:
        sender = _LoneSender(Direction(channel, session, 0, 0, protocol.native_aes), delta, holes)
        party.pool.ends = replace(party.pool.ends, sender=sender)
    return party


class _LoneSender(SoftSpokenSender):
    """A sender without a peer, which computes what it checks and takes the zeros that come."""

    def verify(self) -> None:
        with suppress(PeerProtocolError):
            super().verify()


def dry_party(number: int, protocol: ProtocolParams) -> Party:
    """Return a party that makes no OTs: its extensions note what is asked of them."""
    channel, stream = DryChannel(), _DryStream()
    ends = _DrySender(channel, protocol), DryReceiver(channel, protocol)
    return Party(number, channel, Pool(number, channel, *ends, stream), stream)


class _DryStream(Stream):
    """A stream of zeros, for masks that hide nothing."""

    def __init__(self) -> None:
        pass

    def fill(self, out: Words) -> None:
        out[...] = 0


class _DrySender(RandomOtSender):
    """A sender's end that only notes what is asked of it."""

    def __init__(self, channel: DryChannel, protocol: ProtocolParams) -> None:
        self._channel, self._protocol = channel, protocol
        self.sender_speaks = protocol.silent
        # whether a check is under way, and whether its portion in hand has OTs
        self._checking = self._portion = False

    def prepare(self) -> None:
        self._channel.events.append(Asked(True, 0))

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        self._channel.events.append(Asked(True, checked_block(count)))
        self.index += count
        self._portion = not self._protocol.silent
        return _KEYS[:count], _KEYS[:count]

    def challenge(self) -> None:
        if self._portion and not self._checking:
            self._channel.events.append(Asked(True, ALIGN))
        if self._portion:
            self._channel.send("ot.challenge", np.zeros(SEED_BYTES, np.uint8))
            self._checking, self._portion = True, False

    def verify(self) -> None:
        if self._checking:
            self._channel.recv("ot.proof", np.uint64, (PROOF_WORDS,))
        self._checking = False


class DryReceiver(RandomOtReceiver):
    """A receiver's end that only notes what is asked of it.

    `most_unchecked` are the most OTs that it had to keep the rows of at one time.
    """

    def __init__(self, channel: DryChannel, protocol: ProtocolParams) -> None:
        self._channel, self._protocol = channel, protocol
        self.sender_speaks, self.most_unchecked = protocol.silent, 0
        # whether a check is under way, and the OTs of its portion in hand
        self._checking, self._portion = False, 0

    def prepare(self) -> None:
        self._channel.events.append(Asked(False, 0))

    def extend(self, count: int) -> tuple[Words, Blocks]:
        self._channel.events.append(Asked(False, checked_block(count)))
        self.index += count
        self._portion += 0 if self._protocol.silent else count
        self.most_unchecked = max(self.most_unchecked, self._portion)
        return _KEYS.reshape(-1)[: count // 64], _KEYS[:count]

    def seal(self) -> None:
        if self._portion and not self._checking:
            self._channel.events.append(Asked(False, ALIGN))
            self._checking = True

    def weigh(self) -> None:
        if self._portion:
            self._channel.recv("ot.challenge", np.uint8, (SEED_BYTES,))
        self._portion = 0

    def prove(self) -> None:
        if self._checking:
            self._channel.send("ot.proof", np.zeros(PROOF_WORDS, np.uint64))
        self._checking = False


def extended(asked: Asked, made: int, protocol: ProtocolParams) -> tuple[list[Event], int]:
    """Return the messages of one end of an extension, and the silent OTs made after them.

    It made `made` before them, where -1 stands for a silent extension without seeds.
    """
    words = np.dtype(np.uint64)
    if not protocol.silent:
        corrections = corrections_shape(protocol.ot_field_bits, asked.ots)
        return [Event(not asked.sending, size_of("ot.corrections", words, corrections))], made
    said = []
    if made < 0:
        seeds = corrections_shape(protocol.ot_field_bits, ferret.SETUP.reserve)
        said, made = [Event(not asked.sending, size_of("ot.corrections", words, seeds))], 0
    for shape in ferret.messages(made, asked.ots):
        said.append(Event(asked.sending, size_of("ferret.sums", words, shape)))
    return said, made + asked.ots
