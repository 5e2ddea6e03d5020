"""The table of methods: how clients encode an update, what the parties do with a chunk of coordinates, what the opened
values mean. A new method is a module beside this one, a line in `METHODS`, and its name and options in `params`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import encode, share
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.median import bucketed, order, pairwise, radix, trimmed
from securemedian.mpc.median.reveal import open_ring
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import Party

# Words of a radix chunk that take as much memory as one comparison: a step's correlations are small.
WORDS_A_COMPARISON = 16


@dataclass(frozen=True)
class Chunk:
    """Coordinates [begin, end) of one party's shares of all clients, whose public `weights` are in the same order."""

    params: RoundParams
    uploads: Sequence[share.Upload]
    weights: Sequence[int]
    begin: int
    end: int

    @property
    def dim(self) -> int:
        return self.end - self.begin

    @property
    def ranks(self) -> list[int]:
        return self.params.ranks_of(sum(self.weights))

    def shares(self) -> Iterator[NDArray[Any]]:
        """Each client's share, shape (rows, dim)."""
        for upload in self.uploads:
            yield share.read(upload, self.params.layout, self.begin, self.end)


@dataclass(frozen=True)
class Published:
    """What S0 published for a round, float32 as sent: the global model g and the bucket range B, each () or (d,)."""

    model: NDArray[np.float32] | None = field(default=None, repr=False)
    range: NDArray[np.float32] | None = field(default=None, repr=False)

    def around(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """g and B; ConfigError if the round has none."""
        if self.model is None or self.range is None:
            raise ConfigError(
                "a round on buckets needs the model and the range that S0 published, and has none"
            )
        return self.model, self.range


@dataclass(frozen=True)
class Method:
    """`encode` gives what a client shares of a vector (d,): ring elements or words of shape (rows, d). `compute` gives
    the results, or shares of them for result_to = "clients", of shape (results, dim). `at_once` is the number of
    comparisons a coordinate that run together, or what takes as much memory. `decode` gives the numbers that opened
    results of so many clients stand for, float64 of the same shape.
    """

    encode: Callable[[NDArray[Any], RoundParams, Published], NDArray[Any]]
    compute: Callable[[Party, Chunk], NDArray[Any]]
    demand: Callable[[RoundParams, Sequence[int], int], Demand]
    at_once: Callable[[RoundParams, int], int]
    decode: Callable[[NDArray[Any], RoundParams, int, Published], NDArray[np.float64]]


def _fixed(vector: NDArray[Any], params: RoundParams, published: Published) -> NDArray[Any]:
    return encode.to_fixed(vector, params.ring_bits, params.fraction_bits, params.headroom)[None]


def _number(
    values: NDArray[Any], params: RoundParams, clients: int, published: Published
) -> NDArray[np.float64]:
    return encode.from_fixed(values, params.ring_bits, params.fraction_bits)


def _buckets(vector: NDArray[Any], params: RoundParams, published: Published) -> NDArray[Any]:
    return encode.cumulative(
        encode.bucketize(vector, *published.around(), params.buckets), params.buckets
    )


def _bucket_value(
    values: NDArray[Any], params: RoundParams, clients: int, published: Published
) -> NDArray[np.float64]:
    return encode.quantize(values, *published.around(), params.buckets)


def _words(vector: NDArray[Any], params: RoundParams, published: Published) -> NDArray[Any]:
    around = published.around() if params.uses_range else ()
    return encode.to_words(vector, params, *around)[None]


def _word_value(
    values: NDArray[Any], params: RoundParams, clients: int, published: Published
) -> NDArray[np.float64]:
    around = published.around() if params.uses_range else ()
    return encode.from_words(values, params, *around)


def _mean_of_kept(
    values: NDArray[Any], params: RoundParams, clients: int, published: Published
) -> NDArray[np.float64]:
    return _number(values, params, clients, published) / (
        clients - 2 * trimmed.dropped(clients, params.trim)
    )


def _bucketed(party: Party, chunk: Chunk) -> NDArray[Any]:
    params = chunk.params
    with party.reading_uploads():
        counts = share.weighted_sum(
            chunk.uploads, chunk.weights, params.layout, chunk.begin, chunk.end
        )
    return bucketed.median(party, counts, sum(chunk.weights), params.ring_bits, params.schedule)[
        None
    ]


def _all_shares(party: Party, chunk: Chunk) -> NDArray[Any]:
    """Of methods with one row a client: shape (n, dim)."""
    with party.reading_uploads():
        return np.concatenate(list(chunk.shares()))


def _pairwise(party: Party, chunk: Chunk) -> NDArray[Any]:
    params = chunk.params
    values = _all_shares(party, chunk)
    element = pairwise.median(
        party, values, params.ring_bits, params.selection, weights=chunk.weights
    )
    return (
        open_ring(party, element, params.ring_bits) if params.result_to == "servers" else element
    )[None]


def _radix(party: Party, chunk: Chunk) -> NDArray[Any]:
    params = chunk.params
    words = _all_shares(party, chunk)
    return np.stack(
        [
            radix.median(party, words, params.width, params.ring_bits, rank, chunk.weights)
            for rank in chunk.ranks
        ]
    )


def _trimmed_mean(party: Party, chunk: Chunk) -> NDArray[Any]:
    params = chunk.params
    total = trimmed.kept_sum(party, _all_shares(party, chunk), params.ring_bits, params.trim)
    return open_ring(party, total, params.ring_bits)[None]


METHODS = {
    "bucketed": Method(
        _buckets,
        _bucketed,
        lambda params, weights, dim: bucketed.demand(
            dim, params.buckets, params.ring_bits, params.schedule
        ),
        lambda params, clients: bucketed.comparisons(params.buckets, params.schedule),
        _bucket_value,
    ),
    "pairwise": Method(
        _fixed,
        _pairwise,
        lambda params, weights, dim: pairwise.demand(
            dim, params.ring_bits, params.selection, weights
        ),
        lambda params, clients: order.pairs(clients),
        _number,
    ),
    "radix": Method(
        _words,
        _radix,
        lambda params, weights, dim: (
            radix.demand(dim, len(weights), params.width, params.ring_bits)
            * len(params.ranks_of(sum(weights)))
        ),
        lambda params, clients: params.width * clients // WORDS_A_COMPARISON,
        _word_value,
    ),
    "trimmed-mean": Method(
        _fixed,
        _trimmed_mean,
        lambda params, weights, dim: trimmed.demand(
            dim, len(weights), params.ring_bits, params.trim
        ),
        lambda params, clients: order.pairs(clients),
        _mean_of_kept,
    ),
}
