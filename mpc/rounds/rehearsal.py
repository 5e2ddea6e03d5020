"""What one party does in a round, rehearsed on uploads of zeros.

`plan` rehearses both parties to predict what a round costs; benchmarks rehearse a party that has no
peer, to time what one party computes.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import RingShare, Words, XorBits
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.boolean import words_of
from securemedian.mpc.protocols.channel import Channel, Traffic
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.party import SESSION_BYTES, Party, Session
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.rounds.chunks import check_piece, compute, evenly, judge, survey
from securemedian.mpc.rounds.cutting import Piece
from securemedian.mpc.rounds.methods.base import Chunk
from securemedian.mpc.rounds.params import RoundParams


def lone_party(protocol: ProtocolParams) -> Party:
    """Return a party 0 without a peer: its cryptography is real, and it receives only zeros."""
    channel, session = LoneChannel(), os_entropy(SESSION_BYTES)
    blocks, leaves = SECURITY_BITS // protocol.ot_field_bits, 1 << protocol.ot_field_bits
    trees = [[os_entropy(SEED_BYTES) for _ in range(leaves)] for _ in range(blocks)]
    # the missing leaf of each tree is the first
    delta = np.zeros(SECURITY_BITS, np.uint8)
    holes = [[b"", *tree[1:]] for tree in trees]
    return Session(0, session, trees, delta, holes, os_entropy, protocol).party(0, channel)


def rehearse(
    party: Party, params: RoundParams, weights: Sequence[int], batch: int, size: int
) -> None:
    """Do what a lane does for a chunk of `size` coordinates, on uploads of zeros."""
    compute(party, params, _rehearsed_chunk(params, weights, size, batch))


def rehearse_round(
    party: Party, params: RoundParams, weights: Sequence[int], batch: int, size: int
) -> None:
    """Do what a lane does for a round of one chunk of `size` coordinates, on uploads of zeros."""
    if params.method.surveys:
        rehearse_survey(party, params, weights, batch, size)
        rehearse_judge(party, params, weights, batch)
    rehearse(party, params, weights, batch, size)


def rehearse_survey(
    party: Party, params: RoundParams, weights: Sequence[int], batch: int, size: int
) -> None:
    """Do what a lane does to survey a chunk of `size` coordinates, on uploads of zeros."""
    survey(party, params, _rehearsed_chunk(params, weights, size, batch))


def rehearse_judge(party: Party, params: RoundParams, weights: Sequence[int], batch: int) -> None:
    """Do what lane 0 does with the surveys of all chunks, which are zeros."""
    chunk = _rehearsed_chunk(params, weights, 1, batch)
    assert chunk.verdicts is not None
    surveyed = np.zeros(params.method.surveyed(len(weights)), np.uint64)
    judge(party, params, RingShare(surveyed), chunk)


def _rehearsed_chunk(params: RoundParams, weights: Sequence[int], size: int, batch: int) -> Chunk:
    dealt, upload = params.dealing, _NoUpload()
    one = upload if dealt is None else DealtUpload(dealt, upload, upload)
    uploads: list[share.Upload] = [one] * len(weights)
    groups, coin = evenly(params, len(weights)), bytes(SEED_BYTES)
    chunk = params.chunk(uploads, weights, 0, size, batch, groups=groups, coin=coin)
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

    def close(self) -> None:
        pass


class _NoUpload:
    """An upload of zeros."""

    def words(self, row: int, start: int, stop: int) -> Words:
        return np.zeros(stop - start, np.uint64)
