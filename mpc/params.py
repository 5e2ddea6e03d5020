"""Parameters, frozen. Each is one of three kinds, said beside it:

LOCAL      changes no output; the servers may differ (the smaller wish is used where both must act alike);
AGREEMENT  both servers must have the same value: part of the digest they compare before anything runs;
SECURITY   a security level or the choice of a primitive; agreed on as well.
"""

import hashlib
from dataclasses import MISSING, asdict, dataclass, fields
from types import UnionType
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

import msgpack

from mpc import ring
from mpc.errors import ConfigError
from mpc.share import SLICE_ALIGN, Layout

SECURITY_BITS = 128  # SECURITY: base OTs, the width of OT extension, AES keys

METHODS = ("bucketed", "pairwise")
SCHEDULES = ("scan", "bisect")
SELECTIONS = ("oblivious", "opened")
RESULTS = ("servers", "clients")
RANGE_POLICIES = ("coordinate", "mean", "linf", "l1", "constant")


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _whole(name: str, value: object, low: int, high: int) -> None:
    if type(value) is not int or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, not {value!r}")


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
        raise ConfigError(f"{where}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    missing = sorted(
        n for n, f in known.items() if f.default is MISSING and f.default_factory is MISSING and n not in values
    )
    if missing:
        raise ConfigError(f"{where}: missing {', '.join(missing)}")
    hints = get_type_hints(cls)
    for name, value in values.items():
        hint = hints[name]
        allowed = [get_origin(kind) or kind for kind in (get_args(hint) if isinstance(hint, UnionType) else (hint,))]
        if float in allowed:
            allowed.append(int)
        if type(value) not in allowed:  # type() and not isinstance(): True is no number
            raise ConfigError(
                f"{where}: {name} must be {' or '.join(kind.__name__ for kind in allowed)}, not {value!r}"
            )
    return cls(**values)


@dataclass(frozen=True)
class ProtocolParams:
    """How the two servers compute. One session of base OTs is made for one value of it."""

    ot_field_bits: int = 4  # SECURITY-neutral, AGREEMENT: SoftSpokenOT's k_s (1, 2, 4, 8): fewer bytes against more AES
    lanes: int = 2  # AGREEMENT: chunks in flight at once, each on its own channel
    chunk: int = (
        1 << 16
    )  # LOCAL: coordinates in one chunk at most; fewer where a chunk would hold more than `batch` comparisons
    batch: int = 1 << 19  # LOCAL: comparisons in one chunk at most: bounds the memory of a lane

    def __post_init__(self) -> None:
        if self.ot_field_bits not in (1, 2, 4, 8):
            raise ConfigError(f"ot_field_bits must be 1, 2, 4 or 8, not {self.ot_field_bits!r}")
        _whole("lanes", self.lanes, 1, 16)
        _whole("chunk", self.chunk, SLICE_ALIGN, 1 << 24)
        _whole("batch", self.batch, SLICE_ALIGN, 1 << 26)

    def agreement(self) -> dict[str, Any]:
        """The fields both servers must share."""
        return {"ot_field_bits": self.ot_field_bits, "lanes": self.lanes}


@dataclass(frozen=True)
class RoundParams:
    """What one round computes. Every field is AGREEMENT: both servers hold the same ones, hashed into the handshake of
    the round.

    `ring_bits` is the count ring for `bucketed` and the value ring for `pairwise`; 0 means the smallest that fits, or
    64.
    """

    method: str  # "bucketed" or "pairwise"
    dim: int  # coordinates
    max_clients: int  # the ring is sized for this many
    min_clients: int = 2  # fewer uploads and both servers refuse
    ring_bits: int = 0
    deadline_s: float = 600.0  # seconds from opening to closing
    buckets: int = 8  # bucketed only
    schedule: str = "scan"  # bucketed only
    fraction_bits: int = 24  # pairwise only: s of the fixed point
    selection: str = "oblivious"  # pairwise only
    result_to: str = "servers"  # or, for pairwise, "clients"

    def __post_init__(self) -> None:
        _one_of("method", self.method, METHODS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("selection", self.selection, SELECTIONS)
        _one_of("result_to", self.result_to, RESULTS)
        _whole("dim", self.dim, 1, 1 << 31)
        _whole("max_clients", self.max_clients, 2, 1 << 16)
        if type(self.min_clients) is not int or not 2 <= self.min_clients <= self.max_clients:
            raise ConfigError(
                f"min_clients must be from 2 to max_clients ({self.max_clients}), not {self.min_clients!r}: "
                "the median of a single client is that client's update"
            )
        if type(self.deadline_s) not in (int, float) or not 0 < self.deadline_s <= 7 * 86400:
            raise ConfigError(f"deadline_s must be more than 0 and at most a week, not {self.deadline_s!r}")
        object.__setattr__(self, "deadline_s", float(self.deadline_s))
        if self.method == "bucketed":
            _whole("buckets", self.buckets, 3, 1 << 16)
            needed = ring.count_bits(self.max_clients)
            if self.ring_bits == 0:
                object.__setattr__(self, "ring_bits", needed)
            if self.ring_bits < needed:
                raise ConfigError(
                    f"ring_bits {self.ring_bits} cannot count {self.max_clients} clients: "
                    f"use {needed} or more, or 0 for the smallest"
                )
            if self.result_to != "servers":
                raise ConfigError(
                    "a bucketed round opens its result at the servers: result_to = 'clients' needs method 'pairwise'"
                )
            if self.selection != "oblivious":
                raise ConfigError("selection is an option of pairwise rounds: leave it out for bucketed ones")
        elif self.ring_bits == 0:
            object.__setattr__(self, "ring_bits", 64)
        ring.check_bits(self.ring_bits)
        if self.method == "pairwise":
            _whole("fraction_bits", self.fraction_bits, 0, self.ring_bits - 2)
            if self.schedule != "scan":
                raise ConfigError("schedule is an option of bucketed rounds: leave it out for pairwise ones")

    @property
    def layout(self) -> Layout:
        """The shape of one client's upload."""
        return Layout(self.buckets - 1 if self.method == "bucketed" else 1, self.dim, self.ring_bits)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Build from a map that came from outside; ConfigError says what is wrong."""
        return build(cls, values, "round parameters")


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
            raise ConfigError(f"the bucket range must start above 0 and finite, not {self.initial!r}")
        if type(self.decay) not in (int, float) or not 0 < self.decay < float("inf"):
            raise ConfigError(
                f"range decay must be above 0 and finite, not {self.decay!r}: the range must never reach 0"
            )
