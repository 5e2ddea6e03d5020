"""Parameters, frozen. Each is one of three kinds, said beside it:

LOCAL      changes no output; the servers may differ (the smaller wish is used where both must act alike);
AGREEMENT  both servers must have the same value: part of the digest they compare before anything runs;
SECURITY   a security level or the choice of a primitive; agreed on as well.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from securemedian.mpc import ring
from securemedian.mpc.errors import MAX_QUOTE, ConfigError, cut, quoted
from securemedian.mpc.share import SLICE_ALIGN, Layout

SECURITY_BITS = 128  # SECURITY: base OTs, the width of OT extension, AES keys

METHODS = ("bucketed", "pairwise", "radix", "trimmed-mean")
ENCODINGS = ("float32", "bfloat16", "fixed", "buckets")
SCHEDULES = ("scan", "bisect")
SELECTIONS = ("oblivious", "opened")
RESULTS = ("servers", "clients")
OT_EXTENSIONS = ("softspoken", "silent")
RANGE_POLICIES = ("coordinate", "mean", "linf", "l1", "constant")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {quoted(value)}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(
            f"{name} must be a whole number from {low} to {high}, not {quoted(value)}"
        )


def digest(*values: Any) -> bytes:
    """SHA-256 of a canonical msgpack encoding: what the servers compare."""
    return hashlib.sha256(msgpack.packb(values)).digest()


T = TypeVar("T")


def build(cls: type[T], values: object, where: str) -> T:
    """A flat dataclass from a map that came from outside (TOML, msgpack). ConfigError names unknown, missing and
    mistyped keys and `where` they stand.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected a table of settings, not {type(values).__name__}")
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(str(key) for key in set(values) - set(known))
    if unknown:
        raise ConfigError(
            f"{where}: unknown {cut(', '.join(unknown), MAX_QUOTE)}; known are {', '.join(sorted(known))}"
        )
    missing = sorted(
        n
        for n, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and n not in values
    )
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    hints = get_type_hints(cls)
    for name, value in values.items():
        hint = hints[name]
        allowed = [
            get_origin(kind) or kind
            for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))
        ]
        if float in allowed:
            allowed.append(int)
        if type(value) not in allowed:  # type() and not isinstance(): True is no number
            raise ConfigError(
                f"{where}: {name} must be {' or '.join(kind.__name__ for kind in allowed)}, not {quoted(value)}"
            )
    try:
        return cls(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


@dataclass(frozen=True)
class ProtocolParams:
    """How the two servers compute. One session of base OTs is made for one value of it."""

    ot_field_bits: int = 4  # SECURITY-neutral, AGREEMENT: SoftSpokenOT's k_s (1, 2, 4, 8): fewer bytes against more AES
    lanes: int = 2  # AGREEMENT: chunks in flight at once, each on its own channel
    ot_extension: str = "softspoken"  # AGREEMENT: SoftSpokenOT, or silent (Ferret): few bytes, on the hardness of LPN
    chunk: int = (
        1 << 16
    )  # LOCAL: coordinates in one chunk at most; fewer if it would hold more than `batch` comparisons
    batch: int = 1 << 19  # LOCAL: comparisons in one chunk at most: bounds the memory of a lane

    def __post_init__(self) -> None:
        _one_of("ot_extension", self.ot_extension, OT_EXTENSIONS)
        if self.ot_field_bits not in (1, 2, 4, 8):
            raise ConfigError(f"ot_field_bits must be 1, 2, 4 or 8, not {self.ot_field_bits!r}")
        _whole("lanes", self.lanes, 1, 16)
        _whole("chunk", self.chunk, SLICE_ALIGN, 1 << 24)
        _whole("batch", self.batch, SLICE_ALIGN, 1 << 26)

    @property
    def silent(self) -> bool:
        """Whether OT extension is the silent one."""
        return self.ot_extension == "silent"

    def agreement(self) -> dict[str, Any]:
        """The fields both servers must share."""
        return {
            "ot_extension": self.ot_extension,
            "ot_field_bits": self.ot_field_bits,
            "lanes": self.lanes,
        }


@dataclass(frozen=True)
class RoundParams:
    """What one round computes. Every field is AGREEMENT: both servers hold the same ones, hashed into the handshake of
    the round. The options of one method are refused with another.

    `ring_bits`: the count ring of `bucketed` and `radix` (0: the smallest that fits), or the value ring of `pairwise`
    and `trimmed-mean` (0: 64).
    """

    method: str
    dim: int  # coordinates
    max_clients: int  # the ring is sized for this many
    min_clients: int = 2  # fewer uploads and both servers refuse
    ring_bits: int = 0
    deadline_s: float = 600.0  # seconds from opening to closing
    buckets: int = 8  # bucketed, and radix on bucket indices
    schedule: str = "scan"  # bucketed
    fraction_bits: int = 24  # s of the fixed point: pairwise, trimmed-mean, radix on fixed point
    selection: str = "oblivious"  # pairwise
    result_to: str = "servers"  # or, for pairwise, "clients"
    encoding: str = "float32"  # radix: what its words are
    word_bits: int = 32  # radix on fixed point: w
    ranks: list[int] = field(
        default_factory=list
    )  # radix: these instead of the median, 1 the smallest
    quantiles: list[float] = field(default_factory=list)  # radix: the ranks ceil(q n) as well
    midpoint: bool = False  # radix: for even n the mean of both middle elements
    trim: float = 0.1  # trimmed-mean: beta, the share dropped at either end
    weights: dict[str, int] = field(
        default_factory=dict
    )  # client (public key) -> weight; none: all weigh 1
    weight_cap: float = (
        1 / 3
    )  # the most of the total that one client may weigh, where there are weights

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            _one_of(name, getattr(self, name), choices)
        self._refuse_options_of_other_methods()
        _whole("dim", self.dim, 1, 1 << 31)
        _whole("max_clients", self.max_clients, 2, 1 << 16)
        if type(self.min_clients) is not int or not 2 <= self.min_clients <= self.max_clients:
            raise ConfigError(
                f"min_clients must be from 2 to max_clients ({self.max_clients}), not {self.min_clients!r}: "
                "the median of a single client is that client's update"
            )
        if type(self.deadline_s) not in (int, float) or not 0 < self.deadline_s <= 7 * 86400:
            raise ConfigError(
                f"deadline_s must be more than 0 and at most a week, not {self.deadline_s!r}"
            )
        object.__setattr__(self, "deadline_s", float(self.deadline_s))
        _whole("buckets", self.buckets, 3, 1 << 16)
        _whole("word_bits", self.word_bits, 2, 64)
        self._check_ranks()
        self._check_weights()
        self._settle_ring()
        if self.method == "radix" and self.encoding == "fixed":
            _whole("fraction_bits", self.fraction_bits, 0, self.word_bits - 2)
        elif self.method in ("pairwise", "trimmed-mean"):
            _whole("fraction_bits", self.fraction_bits, 0, self.ring_bits - 2 - self.headroom)

    def _refuse_options_of_other_methods(self) -> None:
        for option in fields(self):
            methods = _METHODS_OF_OPTION.get(option.name)
            default = (
                option.default_factory()
                if option.default_factory is not MISSING
                else option.default
            )
            if methods and self.method not in methods and getattr(self, option.name) != default:
                raise ConfigError(
                    f"{option.name} is an option of {' and '.join(methods)}: leave it out for {self.method}"
                )

    def _check_ranks(self) -> None:
        for rank in self.ranks:
            _whole("a rank", rank, 1, self.max_total)
        for q in self.quantiles:
            if type(q) not in (int, float) or not 0 < q <= 1:
                raise ConfigError(f"a quantile must be above 0 and at most 1, not {q!r}")
        if self.midpoint and (self.ranks or self.quantiles or self.weights):
            raise ConfigError(
                "midpoint is of the unweighted median alone: leave out ranks, quantiles and weights"
            )
        if type(self.trim) not in (int, float) or not 0 <= self.trim < 0.5:
            raise ConfigError(
                f"trim must be at least 0 and below 0.5, not {self.trim!r}: more would leave nothing"
            )

    def _check_weights(self) -> None:
        if type(self.weight_cap) not in (int, float) or not 0 < self.weight_cap <= 1:
            raise ConfigError(f"weight_cap must be above 0 and at most 1, not {self.weight_cap!r}")
        for client, weight in self.weights.items():
            _whole(f"the weight of {client}", weight, 1, 1 << 40)
        if self.weights:
            self.weights_of(list(self.weights))

    def _settle_ring(self) -> None:
        if self.method in ("bucketed", "radix"):
            needed = max(
                ring.count_bits(self.max_total, rank) for rank in self.ranks_of(self.max_total)
            )
            if self.ring_bits == 0:
                object.__setattr__(self, "ring_bits", needed)
            if self.ring_bits < needed:
                raise ConfigError(
                    f"ring_bits {self.ring_bits} cannot count a total weight of {self.max_total}: "
                    f"use {needed} or more, or 0 for the smallest"
                )
        elif self.ring_bits == 0:
            object.__setattr__(self, "ring_bits", 64)
        ring.check_bits(self.ring_bits)

    @property
    def max_total(self) -> int:
        """The total weight if everybody takes part."""
        return sum(self.weights.values()) if self.weights else self.max_clients

    @property
    def uses_range(self) -> bool:
        """Whether clients upload buckets around the global model."""
        return self.method == "bucketed" or (self.method == "radix" and self.encoding == "buckets")

    @property
    def headroom(self) -> int:
        """Bits that a sum over all clients needs above one value: trimmed-mean adds values up."""
        return (self.max_clients - 1).bit_length() if self.method == "trimmed-mean" else 0

    @property
    def xor_shared(self) -> bool:
        """Whether uploads are XOR shares of words, not additive shares."""
        return self.method == "radix"

    @property
    def width(self) -> int:
        """Bits of one shared value."""
        if self.method != "radix":
            return self.ring_bits
        widths = {
            "float32": 32,
            "bfloat16": 16,
            "fixed": self.word_bits,
            "buckets": (self.buckets - 1).bit_length(),
        }
        return widths[self.encoding]

    @property
    def layout(self) -> Layout:
        """The shape of one client's upload."""
        return Layout(self.buckets - 1 if self.method == "bucketed" else 1, self.dim, self.width)

    def ranks_of(self, total: int) -> list[int]:
        """The 1-based ranks to compute when those who take part weigh `total`. ConfigError if one is beyond it."""
        median = ring.median_rank(total)
        if self.midpoint:
            return [median, median + 1] if total % 2 == 0 else [median]
        ranks = [*self.ranks, *(max(1, math.ceil(q * total)) for q in self.quantiles)]
        if ranks and max(ranks) > total:
            raise ConfigError(
                f"rank {max(ranks)} was asked for, and those who take part weigh {total} in all"
            )
        return ranks or [median]

    def weights_of(self, clients: Sequence[str]) -> list[int]:
        """The weights of those who take part, in their order. ConfigError where one weighs more than the cap allows."""
        if not self.weights:
            return [1] * len(clients)
        weights = [self.weights[client] for client in clients]
        if max(weights) > self.weight_cap * sum(weights):
            raise ConfigError(
                f"one client weighs {max(weights)} of {sum(weights)} in all, more than weight_cap "
                f"{self.weight_cap:.3g}: it could decide alone with few others; lower it or raise the cap"
            )
        return weights

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def digest(self) -> bytes:
        """What an upload names, so that one encoded for other parameters is told from one of the same size."""
        return digest(self.to_dict())

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Build from a map that came from outside; ConfigError says what is wrong."""
        return build(cls, values, "round parameters")


_CHOICES = {
    "method": METHODS,
    "schedule": SCHEDULES,
    "selection": SELECTIONS,
    "result_to": RESULTS,
    "encoding": ENCODINGS,
}
_METHODS_OF_OPTION = {
    "buckets": ("bucketed", "radix"),
    "schedule": ("bucketed",),
    "fraction_bits": ("pairwise", "trimmed-mean", "radix"),
    "selection": ("pairwise",),
    "result_to": ("pairwise",),
    "encoding": ("radix",),
    "word_bits": ("radix",),
    "ranks": ("radix",),
    "quantiles": ("radix",),
    "midpoint": ("radix",),
    "trim": ("trimmed-mean",),
    "weights": ("bucketed", "pairwise", "radix"),
    "weight_cap": ("bucketed", "pairwise", "radix"),
}


@dataclass(frozen=True)
class RangePolicy:
    """How the bucket range B follows the global model (protocols.md 7.1). B_1 = initial; B' = f(2 |w' - w|) + decay / t
    after round t.

    `coordinate` (default) and `mean` converge; `linf` does on small models; `l1` is the paper as printed and diverges
    at any real model size; `constant` keeps B_1.
    """

    policy: str = "coordinate"
    initial: float = 0.1  # the paper's p0
    decay: float = 0.1  # the paper's p1

    def __post_init__(self) -> None:
        _one_of("range policy", self.policy, RANGE_POLICIES)
        if type(self.initial) not in (int, float) or not 0 < self.initial < float("inf"):
            raise ConfigError(
                f"the bucket range must start above 0 and finite, not {self.initial!r}"
            )
        if type(self.decay) not in (int, float) or not 0 < self.decay < float("inf"):
            raise ConfigError(
                f"range decay must be above 0 and finite, not {self.decay!r}: the range must never reach 0"
            )
