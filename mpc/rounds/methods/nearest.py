"""The nearest neighbours of clients, by squared distances that stay shared.

The distances are those of sketches: whole numbers in [0, 2^63). The smallest are found by all pairs
(`order`) or bit by bit (`descent`), whichever takes fewer OTs. Up to 22 clients that is by all
pairs, in a few rounds, and beyond bit by bit, in some hundreds. Of equal distances, the one to the
client of lower index is smaller, as in numpy's stable sort.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import RingShare, UnpackedXorBits, XorBits
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import compare, lengths, order, ring
from securemedian.mpc.protocols.boolean import (
    multiplex,
    multiplex_demand,
    pack_bits,
    unpack_bits,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.sketch import sketch
from securemedian.mpc.rounds.methods import descent, norms
from securemedian.mpc.rounds.methods.base import Chunk, Method

# of the ring of squares
BITS = 64
# of a sketch: as many are enough to rank distances
ROWS = 256
# How long an honest client's difference may be in fixed point. The sum of as many distances as
# MOST_CLIENTS have is then below 2^63, and a value that passes the check of lengths below 2^23.
LONGEST = norms.LONGEST >> 3
MOST_CLIENTS = 180
# the pairs whose distances are computed at once
PAIRS_AT_ONCE = 128
# of F: none of those who remain is faulty
NOBODY = -1
HIDDEN, OPENED = "hidden", "opened"


@dataclass(frozen=True, kw_only=True)
class Tolerating(Method):
    """A method that compares whole updates, and tolerates F faulty clients.

    Those that the servers catch are some of the F. It surveys the clients' sketches.
    """

    # the option that is F, and how large it may be
    tolerated: ClassVar[str]
    most_faulty: ClassVar[int]

    counts_left_out: bool = option(
        False,
        text="clients that a check leaves out count among the F that may be faulty; S0 sets it for "
        "every round that it opens",
        since=3,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._asked != NOBODY:
            check_whole(self.tolerated, self._asked, 0, self.most_faulty)

    @property
    def _asked(self) -> int:
        asked: int = getattr(self, self.tolerated)
        return asked

    @abstractmethod
    def check_count(self, clients: int, what: str) -> None:
        """Raise ConfigError if so many clients are too few; `what` names them."""

    def check_total(self, total: int) -> None:
        super().check_total(total)
        self.check_count(total, "those who take part are")

    def check_settled(self) -> None:
        super().check_settled()
        if self._asked == NOBODY:
            raise ConfigError(
                f"{self.tolerated} is for rounds that lost all their faulty clients: {NOBODY}; ask "
                "for 1 or more"
            )

    def without(self, caught: int) -> Self:
        """Return the method with F for those who remain, NOBODY for none."""
        if not caught or not self.counts_left_out or self._asked <= 0:
            return self
        left = self._asked - caught if self._asked > caught else NOBODY
        changed: dict[str, Any] = {self.tolerated: left}
        return replace(self, **changed)

    def survey(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of what a chunk adds to the clients' sketches, shape (n ROWS,)."""
        with party.reading_uploads():
            found = sketch(chunk.coin, chunk.rows(party), chunk.begin, ROWS, party.native_aes)
            return RingShare(found.reshape(-1))

    def surveyed(self, clients: int) -> int:
        return clients * ROWS


def distances(party: Party, surveyed: RingShare, clients: int) -> RingShare:
    """Return shares of the clients' squared distances, of all their sketches: shape (n, n).

    Pairs beyond the first PAIRS_AT_ONCE make their own correlations, which bounds the memory.
    """
    rows, found = surveyed.reshape(clients, ROWS), np.zeros((clients, clients), np.uint64)
    firsts, seconds = np.triu_indices(clients, 1)
    for start in range(0, firsts.size, PAIRS_AT_ONCE):
        one, other = (each[start : start + PAIRS_AT_ONCE] for each in (firsts, seconds))
        party.pool.reserve(lengths.squared_lengths_demand(one.size, ROWS))
        found[one, other] = lengths.squared_lengths(party, RingShare(rows[one] - rows[other]))
    return RingShare(found + found.T)


def distances_demand(clients: int) -> Demand:
    """Return the correlations of `distances`, of its first pairs if there are many."""
    return lengths.squared_lengths_demand(min(order.pairs(clients), PAIRS_AT_ONCE), ROWS)


def smallest(party: Party, values: RingShare, count: int) -> UnpackedXorBits:
    """Return shares of whether each value is one of the `count` smallest of its column.

    `values` are of numbers in [0, 2^63), shape (n, d), as is what is returned.
    """
    n, dim = values.shape
    if _bit_by_bit(n, dim):
        return descent.smallest(party, values, BITS, count)
    small = ring.signed_bits(n)
    places = order.positions(party, values, BITS, [1] * n, small)
    if party.number == 0:
        places = RingShare(ring.reduce(places - places.dtype.type(count), small))
    below = compare.msb(party, RingShare(places.reshape(-1)), small)
    return UnpackedXorBits(unpack_bits(below, n * dim).reshape(n, dim))


def smallest_demand(n: int, dim: int) -> Demand:
    """Return the correlations of `smallest` on values (n, dim)."""
    if _bit_by_bit(n, dim):
        return descent.smallest_demand(dim, n, BITS)
    return _by_pairs_demand(n, dim)


def _bit_by_bit(n: int, dim: int) -> bool:
    return descent.smallest_demand(dim, n, BITS).ots < _by_pairs_demand(n, dim).ots


def _by_pairs_demand(n: int, dim: int) -> Demand:
    small = ring.signed_bits(n)
    return order.positions_demand(dim, n, BITS, small) + compare.msb_demand(n * dim, small)


def to_others(distances: RingShare) -> RingShare:
    """Return each client's distances to the others, a column each, shape (n - 1, n)."""
    n = len(distances)
    return RingShare(distances.T[~np.eye(n, dtype=np.bool_)].reshape(n, n - 1).T.copy())


def scores(party: Party, distances: RingShare, neighbours: int) -> RingShare:
    """Return shares of each client's sum of its smallest distances to others, shape (n, 1)."""
    others = to_others(distances)
    near = smallest(party, others, neighbours)
    flags, flat = pack_bits(near.reshape(-1)), RingShare(others.reshape(-1))
    terms = multiplex(party, XorBits(flags), flat, BITS).reshape(others.shape)
    return RingShare(terms.sum(axis=0, dtype=terms.dtype)[:, None])


def scores_demand(n: int) -> Demand:
    """Return the correlations of `scores` of n clients."""
    return smallest_demand(n - 1, n) + multiplex_demand(n * (n - 1), BITS)


def nearest(party: Party, distances: RingShare, count: int) -> UnpackedXorBits:
    """Return shares of whether client j is one of the `count` nearest to client i, itself included.

    They have shape (n, n), a row per client i.
    """
    n = len(distances)
    near = smallest(party, to_others(distances), count - 1)
    flags = np.zeros((n, n), np.uint8)
    flags[~np.eye(n, dtype=np.bool_)] = near.T.reshape(-1)
    np.fill_diagonal(flags, 1 - party.number)
    return UnpackedXorBits(flags)


def nearest_demand(n: int) -> Demand:
    """Return the correlations of `nearest` of n clients."""
    return smallest_demand(n - 1, n)


# The same in the clear


def distances_in_the_clear(whole: NDArray[np.int64], coin: bytes) -> NDArray[np.int64]:
    """Return the squared distances of the sketches of whole numbers (n, d), shape (n, n)."""
    rows = sketch(coin, RingShare(whole.astype(np.uint64)), 0, ROWS)
    apart = rows[:, None] - rows[None]
    return np.asarray((apart * apart).sum(axis=2, dtype=np.uint64).view(np.int64))


def scores_in_the_clear(distances: NDArray[Any], neighbours: int) -> NDArray[Any]:
    """Return each client's sum of its smallest distances to others, of distances (n, n)."""
    n = len(distances)
    others = distances[~np.eye(n, dtype=np.bool_)].reshape(n, n - 1)
    return np.asarray(np.sort(others, axis=1)[:, :neighbours].sum(axis=1))


def nearest_in_the_clear(distances: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Return whether client j is one of the `count` nearest to client i, itself included."""
    found = np.eye(len(distances), dtype=np.bool_)
    for client, row in enumerate(distances):
        others = np.argsort(row, kind="stable")
        found[client, others[others != client][: count - 1]] = True
    return found
