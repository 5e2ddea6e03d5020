"""The base of methods: one class per method has all that depends on the result of a round.

A method is a frozen dataclass. Its fields are its options. Its functions say what clients encode,
what the two parties do, what that takes, what is opened, and what the result must be. A new method
is a module next to this one and a line in `registry`; docs/extending.md shows how.

`Weighted`, `Counting` and those in `fixed` are bases of several methods.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import PublicValues, Result, Ring, RingShare, XorBits, XorWords
from securemedian.mpc.errors import ConfigError, LocalProtocolError, quoted
from securemedian.mpc.options import check_choices, check_number, check_whole, option
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.share import SLICE_ALIGN, Layout
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.encode import Buckets
from securemedian.mpc.rounds.ranges.base import RangePolicy

if TYPE_CHECKING:
    from securemedian.mpc.protocols.correlations.base import Demand
    from securemedian.mpc.protocols.party import Party
    from securemedian.mpc.rounds.methods.fixed import Values

# the largest share of one client of all that take part, where clients count by weights
MOST_SHARE = Fraction(1, 3)
# the largest weight
MOST_WEIGHT = 1 << 40


@dataclass(frozen=True)
class Published:
    """The values that S0 published for a round, in float32 as it sent them."""

    # the global model g: () or (d,)
    model: NDArray[np.float32] | None = field(default=None, repr=False)
    # the scale of the buckets: () or (d,)
    scale: NDArray[np.float32] | None = field(default=None, repr=False)
    # how buckets of this scale lie
    policy: RangePolicy | None = None
    # in a round of several groups, what was published for each; the rest is empty then
    groups: tuple[Published, ...] = ()
    # the servers' coin of the round, once it has a result; empty for methods that do not toss
    coin: bytes = field(default=b"", repr=False)
    # how much the client that encodes counts, of 1 for the heaviest (`Weighted`)
    part: float = 1.0

    def of_group(self, group: int) -> Published:
        """Return what was published for a group, 0-based, or all of it if there is one group."""
        return self.groups[group] if self.groups else self

    def bucketize(self, values: ArrayLike, buckets: int) -> NDArray[np.uint16]:
        """Return the bucket of each value, in the shape of `values` (.., d).

        Raises InputError for NaN, and ConfigError if the round has no buckets.
        """
        model, lying = self._around(buckets)
        return lying.bucketize(values, model)

    def quantize(self, index: NDArray[Any], buckets: int) -> NDArray[np.float64]:
        """Return the value that each bucket stands for, in the shape of `index` (.., d).

        Raises InputError for an invalid bucket, and ConfigError as `bucketize` does.
        """
        model, lying = self._around(buckets)
        return lying.quantize(index, model)

    def _around(self, buckets: int) -> tuple[NDArray[np.float32], Buckets]:
        if self.model is None or self.scale is None or self.policy is None:
            raise ConfigError(
                "a round on buckets needs a model and a range: S0 has published none; open it "
                "with both"
            )
        return self.model, self.policy.buckets(self.scale, buckets)


@dataclass(frozen=True)
class ValueRange:
    """The values x that a client can share whole: low <= x < high, with `closed` also x = high."""

    low: float
    high: float
    # whether x is the difference to the global model
    differences: bool = False
    closed: bool = False
    # whether infinities are values of their own
    infinite: bool = False

    def outside(self, vector: NDArray[Any], model: NDArray[Any] | None) -> NDArray[np.bool_]:
        """Return which values of a vector (d,) lie outside, shape (d,); NaN does not."""
        x = np.asarray(vector, np.float64)
        if self.differences and model is not None:
            x = x - model.astype(np.float64)
        beyond = (x < self.low) | (x > self.high if self.closed else x >= self.high)
        return beyond & np.isfinite(x) if self.infinite else beyond

    def __str__(self) -> str:
        what = "differences to the model" if self.differences else "values"
        to = "to" if self.closed else "to below"
        return f"{what} from {_bound(self.low)} {to} {_bound(self.high)}"


def _bound(number: float) -> str:
    return f"{number:,.15g}" if abs(number) < 1e15 else f"{number:.6g}"


@dataclass(frozen=True)
class Clear:
    """A round in the clear: the updates (n, d) of its clients, and what a server knows of it."""

    updates: NDArray[Any] = field(repr=False)
    weights: Sequence[int]
    published: Published
    max_clients: int


class Adapting(Protocol):
    """A norm bound that follows how many clients were clipped."""

    def clipped(self, values: PublicValues) -> int:
        """Return how many clients say in opened values that they were clipped."""

    def next_bound(self, clipped: float, step: float) -> float:
        """Return the norm bound after a round in which this share of the clients was clipped.

        `step` is how far its logarithm moves per share.
        """


@dataclass(frozen=True)
class Noise:
    """The noise of a result; by default there is none."""

    # the cost of a result for each client (`privacy`)
    rho: float = math.inf
    # the standard deviation in each number of the result, times the clients
    deviation: float = 0.0


@dataclass(frozen=True)
class Weights:
    """Public numbers, by the clients' names, that say how much each client counts."""

    # as asked for; empty where all weigh 1
    named: Mapping[str, int]
    # those that count, lowered to the cap
    counting: Mapping[str, int]

    @cached_property
    def heaviest(self) -> int:
        """Return what the heaviest client of the round weighs."""
        return max(self.counting.values(), default=1)

    def one(self, client: str) -> int:
        """Return the weight by which a client scales what it shares, at most `heaviest`."""
        return self.counting.get(client, self.heaviest)

    def most(self, max_clients: int) -> int:
        """Return the total weight of a round in which everybody takes part."""
        return sum(self.counting.values()) if self.named else max_clients

    def of(self, clients: Sequence[str]) -> list[int]:
        """Return their weights, in their order. Raises ConfigError for one above a third."""
        if not self.named:
            return [1] * len(clients)
        weights = [self.counting[client] for client in clients]
        total = sum(weights)
        if clients and max(weights) > MOST_SHARE * total:
            raise ConfigError(
                "one client weighs more than a third of all who take part, and nothing was "
                f"opened: {max(weights)} of {total}; wait for more clients, or set a lower "
                "weight_cap"
            )
        return weights

    def parts(self, weights: Sequence[int]) -> list[float]:
        """Return by what clients with these weights scale what they share; a weight of 0 by 1."""
        return [(weight or self.heaviest) / self.heaviest for weight in weights]

    def scaled(self, total: int) -> float:
        """Return what clients that weigh `total` weigh as they scale what they share."""
        return total / self.heaviest


EQUAL = Weights({}, {})


@dataclass(frozen=True)
class Form:
    """The sizes of a round and the parts that its method has, made once per round."""

    # of one client's upload
    layout: Layout
    # l of the ring Z_2^l in which the parties compute
    ring_bits: int
    # of one opened value, as it is kept and sent
    opened_bits: int
    # the most results per coordinate
    most_results: int = 1
    # the values that `encode` does not cut; None where it cuts on purpose: to the outer buckets, or
    # to a norm bound
    value_range: ValueRange | None = None
    # the buckets around the global model, of which clients upload one; 0 if none
    buckets: int = 0
    # whether uploads are XOR shares of words; additive shares otherwise
    xor: bool = False
    # whether clients share differences to the global model
    differences: bool = False
    # whether each client votes for one of several groups, and nobody learns for which
    hidden: bool = False
    # whether the servers toss a coin for a closed round, which `compute` is given
    tosses: bool = False
    # whether one server that deviates learns nothing beyond the result: clients fold their uploads
    audited: bool = False
    # the shape of dealings, which clients send ahead of their uploads
    dealing: Dealing | None = None
    # the check of whole uploads, whose verdicts are a bit per client
    check: Survey | None = None
    # the check of each value, where whole uploads are not checked
    values: Values | None = None
    # why a client whose upload fails either is left out
    fault: str = "a value of its update is out of range"
    # the survey of all coordinates that `compute` needs
    survey: Survey | None = None

    @property
    def checks(self) -> bool:
        """Return whether a share can hold what no client encodes, so that uploads are checked."""
        return self.check is not None or self.values is not None

    @property
    def infinite(self) -> bool:
        """Return whether an update may have infinite values, which otherwise no client sends."""
        return self.value_range is not None and self.value_range.infinite

    @property
    def uses_model(self) -> bool:
        """Return whether what clients share depends on the global model."""
        return self.buckets > 0 or self.differences

    @property
    def votes(self) -> int:
        """Return how many uploads of one dealing a client sends, each after the digits before."""
        return self.dealing.votes if self.dealing else 1

    @property
    def bytes_ahead(self) -> int:
        """Return the bytes that a client sends before it trains, to the server that gets more."""
        return self.dealing.bytes_ahead if self.dealing else 0

    @property
    def bytes_after(self) -> int:
        """Return the bytes that a client sends after it trained, to the server that gets more."""
        return 8 * self.layout.words * self.votes

    def in_group(self, encoded: Ring, group: int) -> Ring:
        """Return what a client of a group, 0-based, shares: `encoded` for what the group has."""
        return encoded + encoded.dtype.type(group * self.buckets) if self.hidden else encoded

    def outermost(self, values: PublicValues) -> int:
        """Return how many of these opened values are an outermost bucket."""
        return int(encode.outermost(values, self.buckets).sum()) if self.buckets else 0


@dataclass(frozen=True)
class Chunk:
    """Coordinates [begin, end) of one party's shares of all clients' inputs."""

    uploads: Sequence[share.Upload]
    # public, in the order of the uploads
    weights: Sequence[int]
    # public, in the same order: the group of each client where groups are visible
    groups: Sequence[int]
    form: Form
    max_clients: int
    min_clients: int
    begin: int
    end: int
    # the most comparisons to run at once
    batch: int
    # the servers' coin of the round, for methods that toss
    coin: bytes = field(default=b"", repr=False)
    # shares of what `judge` found, packed, for methods that survey
    verdicts: XorBits | None = field(default=None, repr=False)
    # the seed of this party's noise, for methods that add some
    noise: bytes = field(default=b"", repr=False)

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return self.end - self.begin

    @property
    def total(self) -> int:
        """Return the weight of all clients that take part."""
        return sum(self.weights)

    def weighted_sum(self, party: Party) -> RingShare:
        """Return this party's share of the weighted sum of all uploads, shape (rows, dim).

        SECURITY: it is not to be opened (`Weighted`), only compared.
        """
        return self._sum(party, self.weights)

    def plain_sum(self, party: Party) -> RingShare:
        """Return this party's share of the sum of all uploads, shape (rows, dim)."""
        return self._sum(party, [1] * len(self.uploads))

    def _sum(self, party: Party, weights: Sequence[int]) -> RingShare:
        with party.reading_uploads():
            return share.weighted_sum(self.uploads, weights, self.form.layout, self.begin, self.end)

    def dealt_counts(self, party: Party, bits: int) -> RingShare:
        """Return this party's share of the cumulative histogram of dealt uploads (`dealing`).

        Raises LocalProtocolError if an upload was not dealt.
        """
        dealt = [upload for upload in self.uploads if isinstance(upload, DealtUpload)]
        if len(dealt) < len(self.uploads):
            raise LocalProtocolError("a round of dealt uploads was given one that was not dealt")
        with party.reading_uploads():
            given = party.number, dealt, self.weights, bits, self.begin, self.end
            return dealing.histogram(*given, cumulative=True)

    def rows(self, party: Party) -> RingShare:
        """Return this party's additive shares of uploads of one row each, shape (n, dim)."""
        return RingShare(self._read(party))

    def xor_rows(self, party: Party) -> XorWords:
        """Return this party's XOR shares of uploads of one row each, shape (n, dim)."""
        return XorWords(self._read(party))

    def _read(self, party: Party) -> Ring:
        with party.reading_uploads():
            ends = self.form.layout, self.begin, self.end
            return np.concatenate([share.read(upload, *ends) for upload in self.uploads])


class Survey(Protocol):
    """The result of sums over all coordinates: of a method, or of the check before it.

    Both parties do the same at the same time. `surveyed` says how many sums `survey` returns.
    """

    def survey(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of what a chunk adds to the sums, in Z_2^64, shape (k,)."""

    def surveyed(self, clients: int) -> int:
        """Return k, of so many clients."""

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return shared verdicts on the sums of all chunks, of which `chunk` is one."""

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        """Return the correlations that `judge` takes at once."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A kind of result, with its options as fields.

    `max_clients` is the round's in every function. It decides the sizes of rings and headroom.
    """

    name: ClassVar[str]
    # for --help, where the name stands before it
    summary: ClassVar[str]
    # the wire version that the method is new in
    since: ClassVar[int] = 1
    # whether `compute` can cut the comparisons of a chunk into groups (`group`)
    splits: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raise ConfigError for options that are wrong in every round."""
        check_choices(self)

    def check_round(self, max_clients: int) -> None:
        """Raise ConfigError for options that do not fit a round of `max_clients` clients."""
        return None

    def check_members(self, clients: Collection[str]) -> None:
        """Raise ConfigError for options that do not fit these clients, of whom some take part."""
        return None

    # From what is asked for to what is computed

    def settled(self, model: NDArray[np.float32] | None, bound: float | None = None) -> Self:
        """Return the method with numbers for what S0 chooses before it opens a round.

        `model` is the global model that the round starts from, shape (d,), and `bound` the norm
        bound that the rounds before have led to (`RunState.bound`), if there are any.
        """
        return self

    def check_settled(self) -> None:
        """Raise ConfigError for options that no server opens a round with."""
        return None

    def without(self, caught: int) -> Self:
        """Return the method for those who remain after `caught` faulty clients were left out."""
        return self

    # Shares of clients

    @abstractmethod
    def form(self, dim: int, max_clients: int) -> Form:
        """Return the sizes of a round of `dim` values, for options that `check_round` takes."""

    @property
    def groups(self) -> int:
        """Return how many groups of clients there are, each with a model and a result."""
        return 1

    @property
    def visible(self) -> bool:
        """Return whether there are several groups, and each client's is public.

        A round is then one of the method per group, on its own clients (`chunks.Work`).
        """
        return False

    @abstractmethod
    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        """Return what a client shares of its vector (d,): ring elements or words, shape (rows, d).

        If clients deal, they are bucket indices, which their `OwnDealing` turns into rotations.
        Raises InputError for NaN.
        """

    def shortened(self, vector: NDArray[Any], published: Published) -> str:
        """Say how `encode` shortens a vector (d,) as a whole; "" where it does not."""
        return ""

    # Weights

    @property
    def weighing(self) -> Weights:
        """Return what each client counts for."""
        return EQUAL

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """Return the weights of the clients that take part, in their order.

        Raises ConfigError if the method cannot have these clients with these weights.
        """
        return self.weighing.of(clients)

    def single_clients(self, least: int) -> bool:
        """Return whether a result may be that of a client that stands out.

        It is the smallest or the largest value, or an update that is chosen whole. `least` clients
        or more take part.
        """
        return False

    def check_total(self, total: int) -> None:
        """Raise ConfigError if clients that weigh `total` together have no result."""
        if total < 1:
            raise ConfigError(
                f"no client takes part: their weights sum to {total}; wait for clients"
            )

    # The protocol

    @abstractmethod
    def compute(self, party: Party, chunk: Chunk) -> Result:
        """Return the opened results of a chunk, shape (results, dim).

        With result_to = "clients" they are this party's shares of the results. The other party does
        the same at the same time.
        """

    def rank_of(self, vote: int, clients: int) -> int:
        """Return the rank that a vote of so many clients finds, where dealt digits are opened."""
        return ring.median_rank(clients)

    @abstractmethod
    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        """Return the correlations that `compute` takes for clients with these weights."""

    @abstractmethod
    def at_once(self, clients: int) -> int:
        """Return how many comparisons run at once per coordinate, or what takes their memory."""

    def batch_limit(self, chunk: Chunk) -> int | None:
        """Return the most comparisons to run at once, or None if all of a chunk run at once.

        It is a number where even the smallest chunk has more than `chunk.batch` comparisons:
        `compute` then cuts them into groups, each of which reserves its own correlations. It is
        None for most methods and numbers of clients.
        """
        if self.splits and self.at_once(len(chunk.weights)) * SLICE_ALIGN > chunk.batch:
            return chunk.batch
        return None

    # The result

    @property
    def noise(self) -> Noise:
        """Return the noise of a result."""
        return Noise()

    @property
    def adapts(self) -> Adapting | None:
        """Return how the norm bound follows the clients, or None where it does not."""
        return None

    @property
    def result_to(self) -> str:
        """Return who learns the result: "servers" (and from them everybody) or "clients"."""
        return "servers"

    def public(self, result: Result) -> PublicValues:
        """Return what `compute` gave as opened values, which is a matter of types alone.

        Raises LocalProtocolError with result_to = "clients", because `compute` gave shares then.
        """
        if self.result_to != "servers":
            raise LocalProtocolError(
                f"the results of {self.name} to clients are shares, not opened"
            )
        return cast(PublicValues, result)

    def opened_rows(self, total: int) -> int:
        """Return how many values are opened per coordinate, for clients that weigh `total`."""
        return 1

    @property
    @abstractmethod
    def opened(self) -> str:
        """Say in words what both servers learn about the updates."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """Say what the result is: "exact" or "approximate", for a median, or "mean"."""

    @abstractmethod
    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        """Return the numbers that opened results stand for, shape (results, dim).

        `total` is the weight of the clients that took part. With result_to = "clients" it must not
        matter, because the clients do not know it.
        """

    @abstractmethod
    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        """Return what `decode` must give for the updates, by sorting or adding them.

        This is the ideal functionality (protocols.md section 1), to compare results with. It is
        written without the words of `encode` and without the protocol.
        """

    # Questions of other modules

    @property
    def detail(self) -> str:
        """Say in a word or two which variant this is."""
        return ""

    @property
    def label(self) -> str:
        """Return the name of the method and its variant, for tables."""
        return f"{self.name} {self.detail}".rstrip()


@dataclass(frozen=True, kw_only=True)
class Weighted(Method):
    """A method in which clients count by public weights.

    The weights that count are lowered, so that nobody has more than `weight_cap` of all that are
    named, and known before anybody uploads. SECURITY: servers never multiply what they open by
    weights, because each digit of such a sum may be one client's. If a sum is opened, each client
    multiplies its own values by its weight over the largest, before it rounds them (`scaled`). So
    weights cannot be lowered again once it is known who remains: with somebody above a third of
    what those weigh the round fails.
    """

    weights: dict[str, int] = option(
        {},
        text="how much each client counts, for example its samples: the number that its own "
        "client.toml states as weight (default: all the same)",
        metavar="NAME=W,..",
    )
    weight_cap: float = option(
        1 / 3,
        text="lower larger weights to this share of all that are named (default, and the most: "
        "1/3); less than that leaves room for clients that drop out",
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("weight_cap", self.weight_cap, 0, 1, "a number above 0 and at most 1")
        for client, weight in self.weights.items():
            check_whole(f"weight of {quoted(client)}", weight, 1, MOST_WEIGHT)
        if self.weights and len(self.counted) * self._cap < 1:
            raise ConfigError(
                "too few clients with weights, none of which may weigh more than "
                f"{float(self._cap):.3g} of all: {len(self.counted)}; name "
                f"{ceil(1 / self._cap)} or more, or leave weights out"
            )

    @property
    def _cap(self) -> Fraction:
        """Return the largest share of one client of those that are named."""
        return min(MOST_SHARE, Fraction(self.weight_cap).limit_denominator(1 << 20))

    @property
    def counted(self) -> Mapping[str, int]:
        """Return the weights that are named, of those whose updates are combined."""
        return self.weights

    @cached_property
    def weighing(self) -> Weights:
        return Weights(self.weights, lowered(self.counted, self._cap))


def lowered(weights: Mapping[str, int], cap: Fraction) -> dict[str, int]:
    """Return weights, of which those above a share of all are lowered to the largest that is not.

    It is the same for whoever computes it. There are at least 1 / `cap` weights, or none.
    """
    given = np.array(list(weights.values()), np.int64)
    low, high = int(given.min(initial=MOST_WEIGHT)), int(given.max(initial=0))
    while low < high:
        most = (low + high + 1) // 2
        fits = most <= cap * int(np.minimum(given, most).sum())
        low, high = (most, high) if fits else (low, most - 1)
    return {client: min(weight, low) for client, weight in weights.items()}


def effective(weights: Sequence[int]) -> Fraction:
    """Return how many clients of equal weight count as much (Kish): (sum w)^2 / sum w^2."""
    squares = sum(weight**2 for weight in weights)
    return Fraction(sum(weights) ** 2, squares) if squares else Fraction(0)


@dataclass(frozen=True, kw_only=True)
class Counting(Weighted):
    """A method that compares counts of clients, or their weight, with ranks.

    The counts are in a ring that holds the total.
    """

    ring_bits: int = option(
        0, text="bits of the count ring (default: the fewest that count)", metavar="L"
    )

    def check_round(self, max_clients: int) -> None:
        needed, total = self._needed(max_clients), self.weighing.most(max_clients)
        if self.bits_for(max_clients) < needed:
            raise ConfigError(
                f"too few bits to count a total weight of {total}: ring_bits {self.ring_bits}; use "
                f"{needed} or more, or 0 for the smallest"
            )
        ring.check_bits(self.bits_for(max_clients))
        super().check_round(max_clients)

    def _needed(self, max_clients: int) -> int:
        total = self.weighing.most(max_clients)
        return max(ring.count_bits(total, rank) for rank in self.ranks_of(total))

    def bits_for(self, max_clients: int) -> int:
        """Return l of the ring of counts."""
        return self.ring_bits or self._needed(max_clients)

    def ranks_of(self, total: int) -> list[int]:
        """Return the 1-based ranks to compute for clients that weigh `total` together."""
        return [ring.median_rank(total)]


MEMBERSHIPS = ("hidden", "visible")
# The most models of a training.
MAX_GROUPS = 64


@dataclass(frozen=True, kw_only=True)
class Grouped(Method):
    """A method whose clients may be in several groups."""

    # whether nobody needs to know who is in which group
    hides_groups: ClassVar[bool] = False

    groups: int = option(
        1,
        text="models, of which each client trains the one that fits its data best: a result per "
        "group of clients (default: 1)",
        metavar="K",
    )
    membership: str = option(
        "hidden",
        choices=MEMBERSHIPS,
        text="with groups, whether nobody learns which one a client chose (default: hidden, which "
        "only bucketed can), or both servers and all clients do",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("groups", self.groups, 1, MAX_GROUPS)
        if self.groups == 1:
            return
        if self.weighing.named:
            raise ConfigError(
                "several groups take no weights, with which one client may decide a group "
                f"alone: {self.groups} groups; leave weights out"
            )
        if not (self.visible or self.hides_groups):
            raise ConfigError(
                f"cannot hide the group that a client chose: method {self.name}; take bucketed, "
                "or choose membership visible, with which everybody learns it"
            )

    @property
    def visible(self) -> bool:
        return self.groups > 1 and self.membership == "visible"

    def opened_rows(self, total: int) -> int:
        return self.groups

    @property
    def grouping(self) -> str:
        """Say in a word or two how many groups there are, if several, for `detail`."""
        if self.groups == 1:
            return ""
        return f" k={self.groups}" + (" visible" if self.visible else "")

    @property
    def hidden(self) -> bool:
        """Return whether there are several groups, and nobody learns who is in which."""
        return self.groups > 1 and self.membership == "hidden"
