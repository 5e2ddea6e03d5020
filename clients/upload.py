"""A flat update to the two shares of one round, and two shares of a result back to values.
protocols.md section 2.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring, share
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import InputError, PeerProtocolError
from securemedian.mpc.methods.base import Published
from securemedian.mpc.params import RoundParams


@dataclass(frozen=True)
class Round:
    """An open round as a client sees it. Model and range are the published ones; only rounds on
    buckets have both.
    """

    id: str
    number: int
    params: RoundParams
    index: int  # this client's position among the allowed ones
    model: NDArray[np.float32] | None = field(default=None, repr=False)
    range: NDArray[np.float32] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ShareHalf:
    """What one server gets: `form` "seed" (16 bytes it expands) or "words" (packed ring elements)."""

    form: str
    share: NDArray[Any] = field(repr=False)


def encode_update(vector: NDArray[Any], round: Round) -> NDArray[Any]:
    """Return what the round's method shares of an update: ring elements or words, shape (rows, d).

    Raises InputError for a wrong length or NaN.
    """
    params = round.params
    if vector.shape != (params.dim,):
        raise InputError(
            f"round {round.id} takes updates of {params.dim:,} values, this one has shape {vector.shape}: "
            "is it the same model?"
        )
    published = Published(round.model, round.range)
    return params.method.encode(vector, params.max_clients, published)


def split(values: NDArray[Any], round: Round) -> tuple[ShareHalf, ShareHalf]:
    """The halves for S0 and S1. Clients of odd index send the seed to S1, so that both links carry
    the same load.
    """
    seeded, rest = share.split(values, round.params.width, xor=round.params.xor_shared)
    seed, words = (
        ShareHalf("seed", np.frombuffer(seeded.seed, np.uint8)),
        ShareHalf("words", rest.packed),
    )
    return (seed, words) if round.index % 2 == 0 else (words, seed)


def combine(
    one: NDArray[np.uint64], other: NDArray[np.uint64], params: RoundParams
) -> NDArray[np.float64]:
    """Return a result that goes to the clients, from the servers' shares of it, packed words.

    Raises PeerProtocolError for a wrong length.
    """
    expected = ring.packed_words(params.dim, params.ring_bits)
    for server, words in enumerate((one, other)):
        if words.shape != (expected,) or words.dtype != np.uint64:
            raise PeerProtocolError(
                f"S{server}'s share of the result is {words.dtype} {words.shape}, not {expected} words of 64 bits"
            )
    first, second = (
        RingShare(ring.unpack(words, params.ring_bits, params.dim)) for words in (one, other)
    )
    values = share.combine(first, second, params.ring_bits)
    return params.method.decode(values, params.max_total, Published())
