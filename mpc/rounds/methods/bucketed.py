"""The bucketed median: the paper's Algorithm 3, with protocols.md 7.4 and 7.5.

Servers get shares of each client's one-hot vector of its bucket, from dealt uploads (`dealing`).
The sum over the clients, added up over the buckets, is the cumulative histogram H(y), shared over
the small count ring. The result is min {y : H(y) >= k}, where k is the rank, ceil(n/2) for the
lower median. H(b-1) = n is never computed.

    m(y) = 1{H(y) >= k} = 1 ^ msb(H(y) - k) = 1{y >= result},

so the bits of m that are opened are functions of the result, and nothing else is opened. `scan`
compares all b-1 thresholds at once; `bisect` compares ceil(log2 b) of them one after another.

With `uploads` unverified, clients share the cumulative one-hot vector itself, as in the paper. A
client that shares other numbers can move the result at will, and the bits that `scan` opens may
then be unrelated ones. It is there to compare with.

With `groups` k > 1 a round has a median per group (IFCA): each client chose one of k models, and
nobody learns which. It deals one-hot vectors of k b slots, of which slot j b + y is bucket y of
group j, and so has one vote per coordinate. The counts H_j(y) of group j and its size n_j are
differences of the running sum H over all slots, and

    m_j(y) = 1{H_j(y) >= ceil(n_j / 2)} = 1 ^ msb(2 H_j(y) - n_j)

in a ring that holds -n..n. No n_j is opened, but first the bits 1{n_j >= min_clients}, of the
votes in the round's first coordinate. A group without is compared as zeros from then on, so that
nothing else of it is opened. It has the result b, which is not a bucket. A client that votes for a
group in the first coordinate alone gains nothing over votes for its extreme buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, PublicValues, Ring, RingShare
from securemedian.mpc.errors import MAX_QUOTE, ConfigError, cut
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import compare, ring
from securemedian.mpc.protocols.audit.macs import MAX_BITS
from securemedian.mpc.protocols.boolean import invert
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import MAX_BUCKETS, Dealing
from securemedian.mpc.protocols.kernels import searching
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.share import Layout
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.base import (
    Chunk,
    Clear,
    Counting,
    Form,
    Grouped,
    Published,
)
from securemedian.mpc.rounds.methods.reveal import open_bits, stacked

SCHEDULES = ("scan", "bisect")
UPLOADS = ("dealt", "unverified")
MALICIOUS = "malicious"
SECURITY = ("semi-honest", MALICIOUS)
# the values that a round with security malicious takes, by option
TAKEN: dict[str, Any] = {"uploads": "dealt", "schedule": "bisect", "groups": 1, "weights": {}}
# The most buckets of all groups together: more than MAX_BUCKETS, because nothing else hides who is
# in which group.
MAX_SLOTS = 64


@dataclass(frozen=True, kw_only=True)
class Bucketed(Grouped, Counting):
    """The median to within a bucket, from cumulative histograms."""

    name = "bucketed"
    summary = "cheapest, to within a bucket"
    kind = "approximate"
    hides_groups = True

    buckets: int = option(16, text="buckets per coordinate (default: 16)", metavar="B")
    schedule: str = option(
        "bisect",
        choices=SCHEDULES,
        text="all thresholds at once, or fewer one after another (default: bisect)",
    )
    uploads: str = option(
        "dealt",
        choices=UPLOADS,
        text="dealt (default): clients send random vectors before they train, which the servers "
        "check; unverified: the paper's own, for comparison only, with which one client can "
        "set the result",
    )
    check_bits: int = option(
        40,
        text="with uploads dealt: a client that cheats passes the servers' check with a chance of "
        "2^-BITS at most (default: 40, which is also the least; at most 128)",
        metavar="BITS",
    )
    security: str = option(
        "semi-honest",
        choices=SECURITY,
        text="malicious: one server that deviates learns nothing beyond the result, and what it "
        "publishes is right. Clients answer once more while they wait. Needs uploads dealt, "
        "schedule bisect, one group and no weights. semi-honest (default): how much one learns "
        "is up to the other options and the servers' `security`",
        since=3,
    )
    audit: bool = option(
        False,
        text="release 1.0's name for security malicious, which release 1.2 does not take",
        since=3,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("buckets", self.buckets, 3, 1 << 16)
        check_whole("check_bits", self.check_bits, 40, 128)
        if self.audit:
            object.__setattr__(self, "security", MALICIOUS)
            object.__setattr__(self, "audit", False)
        if self.audited:
            self._check_taken()
        if self.hidden:
            self._check_slots()
        elif self.uploads == "dealt" and self.buckets > MAX_BUCKETS:
            raise ConfigError(
                f"more than the {MAX_BUCKETS} buckets that can be dealt: {self.buckets}; take "
                "radix with encoding buckets, whose words are always valid"
            )

    def _check_taken(self) -> None:
        for name, value in TAKEN.items():
            if (given := getattr(self, name)) != value:
                taken, said = (cut(str(each or "none"), MAX_QUOTE) for each in (value, given))
                raise ConfigError(
                    f"security {MALICIOUS} takes {name} {taken} only: {name} {said}; take that, or "
                    "leave security out"
                )

    def _check_slots(self) -> None:
        if self.uploads != "dealt":
            raise ConfigError(
                "hidden groups need uploads dealt, which show that each votes once: uploads "
                f"{self.uploads}; take uploads dealt"
            )
        if self.slots > MAX_SLOTS:
            raise ConfigError(
                f"{self.groups} groups of {self.buckets} buckets are more than the {MAX_SLOTS} "
                f"that can be dealt: {self.slots}; take fewer buckets or groups, or membership "
                "visible"
            )

    def check_round(self, max_clients: int) -> None:
        super().check_round(max_clients)
        check_audited(self.audited, self._dealt_bits(max_clients))

    @property
    def audited(self) -> bool:
        """Return whether one server that deviates learns nothing beyond the result."""
        return self.security == MALICIOUS

    @property
    def slots(self) -> int:
        """Return the buckets that a client chooses from: of all groups, if its own is hidden."""
        return self.groups * self.buckets if self.hidden else self.buckets

    def _needed(self, max_clients: int) -> int:
        return ring.signed_bits(max_clients) if self.hidden else super()._needed(max_clients)

    def _dealt_bits(self, max_clients: int) -> int:
        return max(self.bits_for(max_clients), steps(self.slots))

    def form(self, dim: int, max_clients: int) -> Form:
        bits, dealt = self.bits_for(max_clients), self.uploads == "dealt"
        # one value more than buckets, for a group without a result
        opened = steps(self.buckets + 1 if self.hidden else self.buckets)
        # a rotation, or counts
        rows, share_bits = (1, steps(self.slots)) if dealt else (self.buckets - 1, bits)
        form = Form(
            Layout(rows, dim, share_bits),
            bits,
            opened,
            self.groups,
            buckets=self.buckets,
            hidden=self.hidden,
            audited=self.audited,
        )
        if not dealt:
            return form
        dealing = Dealing(dim, self.slots, self._dealt_bits(max_clients), self.check_bits)
        return replace(form, dealing=dealing)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        index = published.bucketize(vector, self.buckets)
        return index[None] if self.uploads == "dealt" else encode.cumulative(index, self.buckets)

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        bits = chunk.form.ring_bits
        if self.hidden:
            return self._medians(party, chunk, bits)
        dealt = self.uploads == "dealt"
        counts = chunk.dealt_counts(party, bits) if dealt else chunk.weighted_sum(party)
        return stacked([median(party, counts, chunk.total, bits, self.schedule)])

    def _medians(self, party: Party, chunk: Chunk, bits: int) -> PublicValues:
        """Return the bucket of each group's median, opened, or `buckets` of a group too small."""
        first = replace(chunk, begin=0, end=1)
        sizes = self._sums(party, first, bits)[self.buckets :: self.buckets]
        sizes = np.diff(sizes, axis=0, prepend=sizes.dtype.type(0)).reshape(-1)
        if party.number == 0:
            sizes -= sizes.dtype.type(chunk.min_clients)
        enough = _reached(party, RingShare(ring.reduce(sizes, bits)), bits).astype(bool)
        sums = self._sums(party, chunk, bits)
        # 2 H_j(y) - n_j, where H_j(y) = H(j b + y) - H(j b - 1) and n_j = H_j(b - 1)
        starts = sums[: -1 : self.buckets]
        counts = sums[1:].reshape(self.groups, self.buckets, chunk.dim)
        counts, stops = counts[:, :-1], counts[:, -1]
        doubled = 2 * counts - (starts + stops)[:, None]
        doubled = ring.reduce(doubled, bits)
        doubled[~enough] = 0
        # the groups side by side, as so many more coordinates, in C order
        side_by_side = np.ascontiguousarray(doubled.swapaxes(0, 1)).reshape(self.buckets - 1, -1)
        found = median(party, RingShare(side_by_side), chunk.total, bits, self.schedule, rank=0)
        results = found.reshape(self.groups, chunk.dim)
        results[~enough] = self.buckets
        return _buckets(results)

    def _sums(self, party: Party, chunk: Chunk, bits: int) -> Ring:
        """Return shares of H(-1) = 0, H(0), .., H(k b - 1) = n, shape (k b + 1, dim)."""
        counts = chunk.dealt_counts(party, bits)
        sums = np.zeros((self.slots + 1, chunk.dim), counts.dtype)
        sums[1:-1] = counts
        if party.number == 0:
            sums[-1] = chunk.total
        return sums

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        bits = self.bits_for(max_clients)
        if not self.hidden:
            return demand(dim, self.buckets, bits, self.schedule)
        medians = demand(self.groups * dim, self.buckets, bits, self.schedule)
        return medians + compare.msb_demand(self.groups, bits)

    def at_once(self, clients: int) -> int:
        together = self.groups if self.hidden else 1
        return together * (self.buckets - 1 if self.schedule == "scan" else 1)

    @property
    def opened(self) -> str:
        if self.hidden:
            return "the bucket of each group's median, and whether a group has min_clients"
        return "the bucket of each median"

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return published.quantize(values, self.buckets)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        index = clear.published.bucketize(clear.updates, self.buckets)
        ranked = np.sort(np.repeat(index, clear.weights, axis=0), axis=0)
        middle = ranked[(len(ranked) - 1) // 2][None]
        return clear.published.quantize(middle, self.buckets)

    @property
    def detail(self) -> str:
        against = f" {MALICIOUS}" if self.audited else ""
        return f"b={self.buckets} {self.schedule}{self.grouping}{against}"


def check_audited(audited: bool, bits: int) -> None:
    """Raise ConfigError if dealt vectors have too many bits for security malicious."""
    if audited and bits > MAX_BITS:
        raise ConfigError(
            f"security {MALICIOUS} takes counts of at most {MAX_BITS} bits: {bits} bits; let fewer "
            "clients take part, or leave security out"
        )


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
    rank = rank if party.number == 0 else 0
    find = _scan if schedule == "scan" else _bisect
    return _buckets(find(party, counts, rank, bits))


def _reached(party: Party, centred: RingShare, bits: int) -> PublicBits:
    """Return m = 1{H >= k}, opened, from shares of H - k."""
    return open_bits(party, invert(party, compare.msb(party, centred, bits)), centred.size)


def _scan(party: Party, counts: RingShare, rank: int, bits: int) -> NDArray[np.uint16]:
    centred = counts.reshape(-1)
    if rank:
        centred = ring.reduce(centred - ring.dtype(bits).type(rank), bits)
    reached = _reached(party, RingShare(centred), bits).reshape(counts.shape)
    found = np.empty(counts.shape[1], np.uint16)
    searching.count_missed(reached, found)
    return found


def _bisect(party: Party, counts: RingShare, rank: int, bits: int) -> NDArray[np.uint16]:
    """Halve the range of the result, with the same number of steps in every coordinate.

    A step beyond the last threshold compares that one, whose bit is not new: every bit is m(y) of
    the result for some y.
    """
    thresholds, dim = counts.shape
    found, compared = np.zeros(dim, np.uint16), np.empty(dim, counts.dtype)
    subtracted, mask = counts.dtype.type(rank), ring.mask(bits)
    for step in reversed(range(steps(thresholds + 1))):
        searching.pick(counts, found, 1 << step, subtracted, mask, compared)
        reached = _reached(party, RingShare(compared), bits)
        searching.go_up(reached, 1 << step, thresholds, found)
    return found


def _buckets(found: NDArray[np.uint16]) -> PublicValues:
    """Return bucket indices that opened bits gave, as opened values."""
    return PublicValues(found)


def steps(buckets: int) -> int:
    """Return how many thresholds `bisect` compares per coordinate: ceil(log2 b)."""
    return (buckets - 1).bit_length()


def demand(dim: int, buckets: int, bits: int, schedule: str) -> Demand:
    """Return the correlations of `median`."""
    if schedule == "scan":
        return compare.msb_demand(dim * (buckets - 1), bits)
    return compare.msb_demand(dim, bits) * steps(buckets)
