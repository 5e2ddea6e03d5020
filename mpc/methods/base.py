"""Say what a method is: everything that depends on which result a round computes, in one class per
method.

A method is a frozen dataclass. Its fields are its options; its methods say what clients encode,
what the two parties do, what it takes, what is opened, and what the result must be. A new one is a
module beside this one and a line in `registry`; docs/extending.md shows how.

`Weighted`, `Counting` and `FixedPoint` hold what several methods have in common.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import encode, ring, share
from securemedian.mpc.arrays import PublicValues, Result, Ring, RingShare, XorWords
from securemedian.mpc.canonical import flat
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.errors import ConfigError, LocalProtocolError, quoted
from securemedian.mpc.options import check_choices, check_number, check_whole, option
from securemedian.mpc.party import Party
from securemedian.mpc.share import SLICE_ALIGN, Layout

# clients in each round of `warm_up`
WARM_UP_CLIENTS = 3


@dataclass(frozen=True)
class Published:
    """Hold what S0 published for a round, float32 as sent: the global model g and the bucket range
    B, each () or (d,).
    """

    model: NDArray[np.float32] | None = field(default=None, repr=False)
    width: NDArray[np.float32] | None = field(default=None, repr=False)

    def around(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return g and B; ConfigError if the round has none."""
        if self.model is None or self.width is None:
            raise ConfigError(
                "a round on buckets needs the model and the range that S0 published, and has none"
            )
        return self.model, self.width


@dataclass(frozen=True)
class Chunk:
    """Hold coordinates [begin, end) of one party's shares of all clients.

    `weights`: public, in the order of the uploads; `batch`: comparisons to have in hand at once.
    """

    uploads: Sequence[share.Upload]
    weights: Sequence[int]
    layout: Layout
    max_clients: int
    begin: int
    end: int
    batch: int

    @property
    def dim(self) -> int:
        return self.end - self.begin

    @property
    def total(self) -> int:
        """The weight of all that take part."""
        return sum(self.weights)

    def weighted_sum(self, party: Party) -> RingShare:
        """Return this party's share of the weighted sum of all uploads, shape (rows, dim)."""
        with party.reading_uploads():
            return share.weighted_sum(self.uploads, self.weights, self.layout, self.begin, self.end)

    def rows(self, party: Party) -> RingShare:
        """Return this party's shares of uploads of one row each, shape (n, dim)."""
        return RingShare(self._read(party))

    def words(self, party: Party) -> XorWords:
        """Return this party's XOR shares of uploads of one row each, shape (n, dim)."""
        return XorWords(self._read(party))

    def _read(self, party: Party) -> Ring:
        with party.reading_uploads():
            return np.concatenate(
                [share.read(upload, self.layout, self.begin, self.end) for upload in self.uploads]
            )


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """Compute one kind of result. Fields are options; `max_clients` is the round's throughout, and
    sizes rings and headroom.
    """

    name: ClassVar[str]
    # for --help, without the name
    summary: ClassVar[str]
    # whether uploads are XOR shares of words, not additive shares
    xor_shared: ClassVar[bool] = False
    # whether `compute` can cut the comparisons of a chunk into groups (`group`)
    splits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raise ConfigError for options that are wrong in every round."""
        check_choices(self)

    def check_round(self, max_clients: int) -> None:
        """Raise ConfigError for options that do not fit a round of so many clients."""
        ring.check_bits(self.bits_for(max_clients))

    # What clients share

    @abstractmethod
    def bits_for(self, max_clients: int) -> int:
        """Return l of the ring Z_2^l that is computed in."""

    def width_for(self, max_clients: int) -> int:
        """Return the bits of one shared value."""
        return self.bits_for(max_clients)

    @property
    def rows(self) -> int:
        """Shared values per coordinate."""
        return 1

    def layout(self, dim: int, max_clients: int) -> Layout:
        """Return the shape of one client's upload."""
        return Layout(self.rows, dim, self.width_for(max_clients))

    @property
    def uses_range(self) -> bool:
        """Whether clients upload buckets around the global model."""
        return False

    @abstractmethod
    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        """Return what a client shares of a vector (d,): ring elements or words, shape (rows, d).

        Raises InputError for NaN.
        """

    # Weights

    @property
    def named_weights(self) -> Mapping[str, int]:
        """The weight of each client by its name; empty where all weigh 1."""
        return {}

    def max_total(self, max_clients: int) -> int:
        """Return the total weight if everybody takes part."""
        return max_clients

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of those who take part, in their order."""
        return [1] * len(clients)

    def check_total(self, total: int) -> None:
        """Raise ConfigError if there is no result when those who take part weigh `total`."""
        if total < 1:
            raise ConfigError("nobody takes part")

    # The protocol

    @abstractmethod
    def compute(self, party: Party, chunk: Chunk) -> Result:
        """Return the opened results of a chunk, shape (results, dim), or with result_to = "clients"
        this party's shares of them. The other party does the same at the same time.
        """

    @abstractmethod
    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        """Return the correlations that `compute` takes for clients of these weights."""

    @abstractmethod
    def at_once(self, clients: int) -> int:
        """Return the comparisons per coordinate that run together, or what takes as much memory."""

    def group(self, chunk: Chunk) -> int | None:
        """Return the most comparisons to have in hand at once, where even the smallest chunk has
        more than `chunk.batch` of them: `compute` then cuts them into groups, each of which
        reserves its own correlations. None, as for most methods and numbers of clients: all run
        together.
        """
        if self.splits and self.at_once(len(chunk.weights)) * SLICE_ALIGN > chunk.batch:
            return chunk.batch
        return None

    # The result

    @property
    def result_to(self) -> str:
        """Who learns the result: "servers" (and from them everybody) or "clients"."""
        return "servers"

    def public(self, result: Result) -> PublicValues:
        """Return what `compute` gave, as the opened values that they are.

        Raises LocalProtocolError with result_to = "clients": then they are shares.
        """
        if self.result_to != "servers":
            raise LocalProtocolError(
                f"the results of {self.name} to clients are shares, not opened"
            )
        return cast(PublicValues, result)

    @property
    def most_results(self) -> int:
        """Results per coordinate, at most."""
        return 1

    @property
    @abstractmethod
    def opened(self) -> str:
        """Say what both servers learn of the updates, in words."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Say what the result is: "exact" or "approximate", for a median, or "mean"."""

    @abstractmethod
    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        """Return the numbers that opened results stand for, shape (results, dim), where those who
        take part weigh `total`. With result_to = "clients", who do not know it, it must not matter.
        """

    @abstractmethod
    def in_the_clear(
        self,
        updates: NDArray[Any],
        weights: Sequence[int],
        published: Published,
        max_clients: int,
    ) -> NDArray[Any]:
        """Return what `decode` must give for the updates (n, d), by sorting and adding them.

        The ideal functionality (protocols.md section 1), written without `encode`'s words and
        without the protocol, to compare results with.
        """

    # What others ask

    @classmethod
    @abstractmethod
    def warm_up(cls) -> Sequence[Self]:
        """Return variants that together use every kernel of the method with every dtype, for rounds
        of WARM_UP_CLIENTS clients.
        """

    @property
    def detail(self) -> str:
        """Say in a word or two which variant this is."""
        return ""

    @property
    def label(self) -> str:
        """Name the method and its variant, for tables."""
        return f"{self.name} {self.detail}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """Return the method's name and its options."""
        return {"method": self.name, **flat(self)}


@dataclass(frozen=True, kw_only=True)
class Weighted(Method):
    """Count clients by public weights."""

    weights: dict[str, int] = option(
        {},
        help="how much each client counts, sample counts say (default: all the same)",
        metavar="NAME=W,..",
    )
    weight_cap: float = option(
        1 / 3,
        help="refuse if one client weighs more than this share of the total (default: 1/3)",
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_cap", self.weight_cap, 0, 1, "above 0 and at most 1")
        for client, weight in self.weights.items():
            check_whole(f"the weight of {quoted(client)}", weight, 1, 1 << 40)
        if self.weights:
            self.weights_of(list(self.weights))

    @property
    def named_weights(self) -> Mapping[str, int]:
        return self.weights

    def max_total(self, max_clients: int) -> int:
        return sum(self.weights.values()) if self.weights else max_clients

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """As in `Method`. Raises ConfigError where one client weighs more than the cap allows."""
        if not self.weights:
            return super().weights_of(clients)
        weights = [self.weights[client] for client in clients]
        if max(weights) > self.weight_cap * sum(weights):
            raise ConfigError(
                f"one client weighs {max(weights)} of {sum(weights)} in all, more than weight_cap "
                f"{self.weight_cap:.3g}: it could decide alone with few others; "
                "lower it or raise the cap"
            )
        return weights


@dataclass(frozen=True, kw_only=True)
class Counting(Weighted):
    """Compare counts of clients, or of their weight, with ranks: in a ring that holds the total."""

    ring_bits: int = option(
        0, help="bits of the count ring (default: the fewest that count)", metavar="L"
    )

    def check_round(self, max_clients: int) -> None:
        needed, total = self._needed(max_clients), self.max_total(max_clients)
        if self.bits_for(max_clients) < needed:
            raise ConfigError(
                f"ring_bits {self.ring_bits} cannot count a total weight of {total}: "
                f"use {needed} or more, or 0 for the smallest"
            )
        super().check_round(max_clients)

    def _needed(self, max_clients: int) -> int:
        total = self.max_total(max_clients)
        return max(ring.count_bits(total, rank) for rank in self.ranks_of(total))

    def bits_for(self, max_clients: int) -> int:
        return self.ring_bits or self._needed(max_clients)

    def ranks_of(self, total: int) -> list[int]:
        """Return the 1-based ranks to compute when those who take part weigh `total`."""
        return [ring.median_rank(total)]


@dataclass(frozen=True, kw_only=True)
class FixedPoint(Method):
    """Share values in fixed point, F2I(x) = floor(x 2^s), in a ring of 64 bits or as many as asked
    for.

    Values are saturated to the range in which differences, and sums where the method adds up, keep
    their sign.
    """

    ring_bits: int = option(0, help="bits of a shared value (default: 64)", metavar="L")
    fraction_bits: int = option(24, help="s of the fixed point (default: 24)", metavar="S")

    def check_round(self, max_clients: int) -> None:
        super().check_round(max_clients)
        most = self.bits_for(max_clients) - 2 - self.headroom(max_clients)
        if most < 0:
            raise ConfigError(
                f"ring_bits {self.ring_bits} is too small for {self.name} with a total weight of "
                f"{self.max_total(max_clients)}: use {self.headroom(max_clients) + 2} or more"
            )
        check_whole("fraction_bits", self.fraction_bits, 0, most)

    def bits_for(self, max_clients: int) -> int:
        return self.ring_bits or 64

    def headroom(self, max_clients: int) -> int:
        """Return the bits that results need above one value: those of a sum's weight."""
        return 0

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        bits, headroom = self.bits_for(max_clients), self.headroom(max_clients)
        return encode.to_fixed(vector, bits, self.fraction_bits, headroom)[None]

    def numbers(self, values: PublicValues) -> NDArray[np.float64]:
        """Return the numbers that ring elements stand for."""
        return encode.from_fixed(values, self.ring_bits or 64, self.fraction_bits)

    def whole_numbers(self, updates: NDArray[Any], max_clients: int) -> NDArray[np.int64]:
        """Return floor(x 2^s), saturated, by plain float64 arithmetic: for `in_the_clear`."""
        top = 2.0 ** (self.bits_for(max_clients) - 2 - self.headroom(max_clients))
        # what overflows float64 is inf, and saturates
        with np.errstate(over="ignore"):
            scaled = np.floor(np.asarray(updates, np.float64) * 2.0**self.fraction_bits)
        inside = np.clip(scaled, -top, np.nextafter(top, 0)).astype(np.int64)
        return np.where(scaled >= top, np.int64(int(top) - 1), inside)
