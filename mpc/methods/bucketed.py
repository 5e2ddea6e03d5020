"""The bucketed median: the paper's Algorithm 3, with protocols.md 7.4 and 7.5.

Servers get shares of each client's one-hot vector of its bucket, from dealt uploads (`dealing`).
The sum over the clients, added up over the buckets, is the cumulative histogram H(y), the number of
clients in the buckets 0..y, shared over the small count ring. The result is min {y : H(y) >= k},
where k is the rank, ceil(n/2) for the lower median. H(b-1) = n is never computed.

    m(y) = 1{H(y) >= k} = 1 ^ msb(H(y) - k)

is monotone in y, so the bits of m that are opened are functions of the result: m(y) =
1{y >= result}. Nothing else is opened, and the histogram never is.

With `uploads` unverified, clients share the cumulative one-hot vector itself, as in the paper. That
trusts them to share vectors of 0 and 1 that are monotone. A client that shares other numbers adds
them to the counts, can move the result at will, and chooses which rank is asked about at each
threshold: the bits that `scan` opens may then be unrelated ones. It is there to compare with.

There are two schedules. `scan` compares all b-1 thresholds at once, in 3 rounds for rings up to 5
bits. `bisect` compares ceil(log2 b) thresholds per coordinate, one after another, and opens each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import compare, encode, ring
from securemedian.mpc.arrays import PublicBits, PublicValues, Ring, RingShare
from securemedian.mpc.boolean import invert
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.dealing import MAX_BUCKETS, Dealing
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.kernels import halving
from securemedian.mpc.methods.base import Chunk, Counting, Published
from securemedian.mpc.methods.reveal import open_bits, stacked
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.party import Party

SCHEDULES = ("scan", "bisect")
UPLOADS = ("dealt", "unverified")


@dataclass(frozen=True, kw_only=True)
class Bucketed(Counting):
    """The median to within a bucket, from cumulative histograms."""

    name = "bucketed"
    summary = "cheapest, to within a bucket"

    buckets: int = option(16, text="buckets per coordinate (default: 16)", metavar="B")
    schedule: str = option(
        "bisect",
        choices=SCHEDULES,
        compared=SCHEDULES,
        text="all thresholds at once, or fewer one after another (default: bisect)",
    )
    uploads: str = option(
        "dealt",
        choices=UPLOADS,
        text="dealt (default): clients send random vectors before they train, which the servers "
        "check, and a few bits afterwards; unverified: the paper's own, with which any one client "
        "can set the result: for comparison only",
    )
    check_bits: int = option(
        40,
        text="with uploads dealt: a client that cheats passes the servers' check with a chance of "
        "2^-BITS at most (default: 40, which is also the least; at most 128)",
        metavar="BITS",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("buckets", self.buckets, 3, 1 << 16)
        check_whole("check_bits", self.check_bits, 40, 128)
        if self.uploads == "dealt" and self.buckets > MAX_BUCKETS:
            raise ConfigError(
                f"{self.buckets} buckets are too many to deal, which takes at most {MAX_BUCKETS}: "
                "take radix with encoding buckets, whose words are always valid"
            )

    def dealing(self, dim: int, max_clients: int) -> Dealing | None:
        if self.uploads != "dealt":
            return None
        bits = max(self.bits_for(max_clients), steps(self.buckets))
        return Dealing(dim, self.buckets, bits, self.check_bits)

    @property
    def rows(self) -> int:
        return 1 if self.uploads == "dealt" else self.buckets - 1

    def share_bits_for(self, max_clients: int) -> int:
        # of a rotation, or of a count
        return steps(self.buckets) if self.uploads == "dealt" else self.bits_for(max_clients)

    @property
    def range_buckets(self) -> int:
        return self.buckets

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        index = published.bucketize(vector, self.buckets)
        return index[None] if self.uploads == "dealt" else encode.cumulative(index, self.buckets)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits = self.bits_for(chunk.max_clients)
        dealt = self.uploads == "dealt"
        counts = chunk.dealt_counts(party, bits) if dealt else chunk.weighted_sum(party)
        return stacked([median(party, counts, chunk.total, bits, self.schedule)])

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return demand(dim, self.buckets, self.bits_for(max_clients), self.schedule)

    def at_once(self, clients: int) -> int:
        return self.buckets - 1 if self.schedule == "scan" else 1

    def opened_bits_for(self, max_clients: int) -> int:
        return steps(self.buckets)

    @property
    def opened(self) -> str:
        return "the bucket of each median"

    @property
    def kind(self) -> str:
        return "approximate"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return published.quantize(values, self.buckets)

    def in_the_clear(
        self,
        updates: NDArray[Any],
        weights: Sequence[int],
        published: Published,
        max_clients: int,
    ) -> NDArray[Any]:
        index = published.bucketize(updates, self.buckets)
        ranked = np.sort(np.repeat(index, weights, axis=0), axis=0)
        middle = ranked[(len(ranked) - 1) // 2][None]
        return published.quantize(middle, self.buckets)

    @classmethod
    def warm_up(cls) -> Sequence[Self]:
        # words of 32 and of 64 bits, and each dtype of the counts
        return [cls(ring_bits=bits, buckets=8, uploads="dealt") for bits in (4, 5, 16, 32, 64)]

    @property
    def detail(self) -> str:
        return f"b={self.buckets} {self.schedule}"


def median(
    party: Party,
    counts: RingShare,
    clients: int,
    bits: int,
    schedule: str,
    rank: int | None = None,
) -> PublicValues:
    """Return the bucket of the element of rank k in each coordinate, opened.

    `counts` are shares of H, shape (b-1, d), in the ring of `bits` bits. `clients` is n, `schedule`
    "scan" or "bisect". `rank` is by default that of the lower median.
    """
    rank = ring.median_rank(clients) if rank is None else rank
    # H - k: only one party takes k off its share
    if party.number == 0:
        counts = RingShare(ring.reduce(counts - ring.dtype(bits).type(rank), bits))
    find = _scan if schedule == "scan" else _bisect
    return _buckets(find(party, counts, bits))


def _reached(party: Party, centred: RingShare, bits: int) -> PublicBits:
    """Return m = 1{H >= k}, opened, from shares of H - k."""
    return open_bits(party, invert(party, compare.msb(party, centred, bits)), centred.size)


def _scan(party: Party, centred: RingShare, bits: int) -> NDArray[np.int64]:
    thresholds, dim = centred.shape
    reached = _reached(party, RingShare(centred.reshape(-1)), bits).reshape(thresholds, dim)
    return thresholds - reached.sum(axis=0, dtype=np.int64)


def _bisect(party: Party, centred: RingShare, bits: int) -> NDArray[np.uint16]:
    """Halve the range of the result, with the same number of steps in every coordinate.

    A coordinate that is settled early compares its result once more, whose bit is known: m(y) of
    the result or below b-1.
    """
    thresholds, dim = centred.shape
    low, high = np.zeros(dim, np.uint16), np.full(dim, thresholds, np.uint16)
    compared = centred[thresholds // 2].copy()
    for _ in range(steps(thresholds + 1)):
        reached = _reached(party, RingShare(compared), bits)
        halving.halve(reached, low, high, centred, compared)
    return low


def _buckets(index: NDArray[np.int64] | NDArray[np.uint16]) -> PublicValues:
    """Return bucket indices that opened bits gave, as opened values."""
    return PublicValues(index.astype(np.uint16, copy=False))


def steps(buckets: int) -> int:
    """Return how many thresholds `bisect` compares per coordinate: ceil(log2 b)."""
    return (buckets - 1).bit_length()


def demand(dim: int, buckets: int, bits: int, schedule: str) -> Demand:
    """Return the correlations of `median`."""
    if schedule == "scan":
        return compare.msb_demand(dim * (buckets - 1), bits)
    return compare.msb_demand(dim, bits) * steps(buckets)
