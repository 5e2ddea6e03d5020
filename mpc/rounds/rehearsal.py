"""What one party does in a round, rehearsed on uploads of zeros.

`plan` rehearses both parties to predict what a round costs; benchmarks rehearse a party that has no
peer, to time what one party computes.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import RingShare, Words, XorBits
from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.boolean import words_of
from securemedian.mpc.protocols.channel import Channel, Traffic
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.ot.extension import Direction
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenSender
from securemedian.mpc.protocols.party import SESSION_BYTES, Party, Session
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.rounds.chunks import check_piece, compute, evenly, judge, survey
from securemedian.mpc.rounds.cutting import Piece
from securemedian.mpc.rounds.methods.base import Chunk, Survey
from securemedian.mpc.rounds.methods.reveal import open_bits
from securemedian.mpc.rounds.params import RoundParams


def lone_party(protocol: ProtocolParams) -> Party:
    """Return a party 0 without a peer: its cryptography is real, and it receives only zeros."""
    channel, session = LoneChannel(), os_entropy(SESSION_BYTES)
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


def rehearse(
    party: Party, params: RoundParams, weights: Sequence[int], batch: int, size: int
) -> None:
    """Do what a lane does for a chunk of `size` coordinates, on uploads of zeros."""
    compute(party, params, _rehearsed_chunk(params, weights, size, batch))


def rehearse_survey(
    party: Party,
    params: RoundParams,
    weights: Sequence[int],
    batch: int,
    size: int,
    surveyor: Survey | None = None,
) -> None:
    """Do what a lane does to survey a chunk of `size` coordinates, on uploads of zeros.

    It is for the method, unless it is for another `surveyor`.
    """
    survey(party, surveyor or params.method, _rehearsed_chunk(params, weights, size, batch))


def rehearse_judge(
    party: Party,
    params: RoundParams,
    weights: Sequence[int],
    batch: int,
    surveyor: Survey | None = None,
) -> None:
    """Do what lane 0 does with the surveys of all chunks, which are zeros."""
    surveyor = surveyor or params.method
    surveyed = np.zeros(surveyor.surveyed(len(weights)), np.uint64)
    judge(party, surveyor, RingShare(surveyed), _rehearsed_chunk(params, weights, 1, batch))


def rehearse_verdicts(party: Party, clients: int) -> None:
    """Do what lane 0 does to open the verdicts on whole uploads."""
    open_bits(party, XorBits(np.zeros(words_of(clients), np.uint64)), clients)


def _rehearsed_chunk(params: RoundParams, weights: Sequence[int], size: int, batch: int) -> Chunk:
    dealt, upload = params.dealing, _NoUpload()
    one = upload if dealt is None else DealtUpload(dealt, upload, upload)
    uploads: list[share.Upload] = [one] * len(weights)
    groups, coin = evenly(params, len(weights)), bytes(SEED_BYTES)
    chunk = params.chunk(uploads, weights, 0, size, batch, groups=groups, coin=coin, noise=coin)
    verdicts = np.zeros(words_of(params.method.surveyed(len(weights))), np.uint64)
    return replace(chunk, verdicts=XorBits(verdicts))


def rehearse_check(party: Party, params: RoundParams, piece: Piece, batch: int) -> None:
    """Do what a lane does to check a piece like this one, on uploads of zeros."""
    uploads: list[share.Upload] = [_NoUpload()] * piece.clients.stop
    check_piece(party, params, replace(piece, begin=0, end=piece.dim), uploads, batch)


class LoneChannel(Channel):
    """A channel without a peer, from which zeros are received at once.

    All arrays are views of one memory, which another thread wrote, as it does for a real channel.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self._zeros = np.empty(0, np.uint8)

    def send(self, label: str, array: NDArray[Any]) -> None:
        pass

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize * math.prod(shape)
        if self._zeros.size < size:
            self._zeros = np.zeros(size, np.uint8)
            self._zeros.flags.writeable = False
        return self._zeros[:size].view(dtype).reshape(shape)

    def check_opening(self, committed: Words, opened: bytes, label: str) -> None:
        """Take whatever is opened."""

    def close(self) -> None:
        pass


class _NoUpload:
    """An upload of zeros."""

    def words(self, row: int, start: int, stop: int) -> Words:
        return np.zeros(stop - start, np.uint64)
