"""Methods whose clients share short differences to the global model (`norms`).

With a `norm_bound` clients share differences to the global model, in a ring of 64 bits. The servers
leave out clients whose difference is too long (`norms`), and open one bit per client. For a bound B
a difference w in fixed point has a length of at most L = B 2^s, with s its fraction bits. With
`auto` S0 chooses the bound before it opens a round (`settled`). Until then L is `most_length`. A
client cuts a longer one to that length. w is rounded toward 0, and so is never longer than the
difference itself. A multiple of 2^-s within the bound is encoded exactly.
"""

from dataclasses import dataclass, replace
from math import floor, log2
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_number, option
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.lengths import MARGIN
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.base import Clear, Form, Published
from securemedian.mpc.rounds.methods.fixed import FixedPoint
from securemedian.mpc.rounds.methods.norms import LONGEST, SOUNDNESS, NormCheck

AUTO, OFF = "auto", "off"
# s where it is not given: of the plain mean, and of auto, if norms then reach AUTO_REACH at least
OFF_FRACTION, AUTO_FRACTION = 24, 16
AUTO_REACH = 32
# how far s goes where it follows from a small bound
MOST_FRACTION = 40
# of the ring of lengths
BITS = 64
# why a client whose upload fails the check is left out, and why where all that fits passes
UNFIT = "its numbers do not fit: its update is too long for the fixed point, or out of range"
FAULT = "its update is longer than its bound allows, or a value is out of range"


@dataclass(frozen=True)
class Cut:
    """The fixed point of differences to the model, and how long one may be in it."""

    fraction_bits: int
    longest: int
    # how many steps shorter a client cuts its difference
    spare: int = 0

    def whole(self, vector: NDArray[np.float64], published: Published) -> NDArray[np.int64]:
        """Return a vector's difference (d,) in fixed point, cut to the length, toward 0.

        A client that counts by its weight scales difference and length by it.
        """
        difference = _difference(vector, published)
        most = max(0, self.longest * published.part - self.spare)
        direction, peak = _direction(difference)
        length, unit = _length(direction), 2.0**self.fraction_bits * published.part
        # values that overflow float64 are longer than any bound
        with np.errstate(over="ignore"):
            near = peak * unit * length <= 2 * most
        if near:
            # a power of two rounds nothing, and a direction does
            whole = np.trunc(difference * unit).astype(np.int64)
            if int((whole * whole).sum()) <= most**2:
                return whole
        return np.trunc(direction * (most / length)).astype(np.int64)

    def shortened(self, vector: NDArray[Any], published: Published) -> str:
        """Say how `whole` cuts a vector (d,); "" where it does not."""
        direction, peak = _direction(_difference(np.asarray(vector, np.float64), published))
        length, most = peak * _length(direction), self.longest / 2.0**self.fraction_bits
        if length <= most:
            return ""
        return f"it is {length:.4g} long, as a difference to the model, and was cut to {most:.4g}"


@dataclass(frozen=True, kw_only=True)
class Bounded(FixedPoint):
    """A method on differences to the global model that are not long."""

    norm_bound: float | str = option(
        AUTO,
        choices=(AUTO, OFF),
        metavar="B|auto|off",
        text="clip each client's difference to length B, and leave out longer ones; auto "
        "(default): S0 adapts B from round to round; off: one client moves the mean at will",
    )
    fraction_bits: int = option(
        -1,
        text=f"s of the fixed point (default: {OFF_FRACTION} with off, and as many as a difference "
        "of length B leaves room for, which auto always takes)",
        metavar="S",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = self.norm_bound
        if type(bound) is int:
            # in one form, so that it has one digest
            bound = float(bound)
        if not isinstance(bound, str):
            limits = f"{AUTO}, {OFF} or a number above 0 and at most {self.most_length:,}"
            check_number("norm_bound", bound, 0, self.most_length, limits)
        object.__setattr__(self, "norm_bound", bound)
        if self.fraction_bits == -1:
            object.__setattr__(self, "fraction_bits", self._fitting())

    def _fitting(self) -> int:
        """Return s where it is not given."""
        if self.norm_bound == OFF:
            return OFF_FRACTION
        if self.norm_bound == AUTO:
            return min(AUTO_FRACTION, floor(log2(self.most_length / AUTO_REACH)))
        least = self.most_length / 2.0**MOST_FRACTION
        return floor(log2(self.most_length / max(least, float(self.norm_bound))))

    @property
    def bounded(self) -> bool:
        """Return whether there is a norm bound."""
        return self.norm_bound != OFF

    @property
    def most_length(self) -> int:
        """Return how long an honest client's difference may be at most, in fixed point."""
        return LONGEST

    @property
    def longest(self) -> int:
        """Return how long an honest client's difference may be, in fixed point."""
        if isinstance(self.norm_bound, float):
            return int(self.norm_bound * 2.0**self.fraction_bits)
        return self.most_length

    def check_round(self, max_clients: int) -> None:
        if not self.bounded:
            super().check_round(max_clients)
            return
        if self.value_bits != BITS:
            raise ConfigError(
                "lengths are checked in a ring of 64 bits only: ring_bits is "
                f"{self.value_bits}; leave ring_bits out, or take norm_bound off"
            )
        super().check_round(max_clients)
        if not 1 <= self.longest <= self.most_length:
            raise ConfigError(
                f"norm_bound {self.norm_bound:g} with fraction_bits {self.fraction_bits} cannot "
                f"be checked: {self.longest:,} steps of the fixed point, beyond 1 to "
                f"{self.most_length:,}; leave fraction_bits out"
            )

    def form(self, dim: int, max_clients: int) -> Form:
        form = super().form(dim, max_clients)
        return short(form, self.norm_check, FAULT) if self.bounded else form

    @property
    def norm_check(self) -> NormCheck:
        """Return the check of the clients' uploads."""
        most = SOUNDNESS.limit(self.longest)
        return NormCheck(
            BITS, SOUNDNESS.rows, MARGIN * self.most_length, most, self.weighing.heaviest
        )

    def check_settled(self) -> None:
        super().check_settled()
        if self.norm_bound == AUTO:
            raise ConfigError(
                "S0 has chosen no number before it opened the round: norm_bound is auto; "
                "update S0, or give a number"
            )

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        if not self.bounded:
            scaled = np.asarray(vector, np.float64) * published.part
            return super().encode(scaled, max_clients, published)
        whole = self.whole_difference(encode.without_nan(vector, "the update"), published)
        return ring.reduce(whole, BITS)[None]

    @property
    def cut(self) -> Cut:
        """Return how a client cuts its difference to the bound."""
        return Cut(self.fraction_bits, self.longest)

    def whole_difference(
        self, vector: NDArray[np.float64], published: Published
    ) -> NDArray[np.int64]:
        """Return a vector's difference (d,) in fixed point, cut to the bound, toward 0."""
        return self.cut.whole(vector, published)

    def whole_differences(self, clear: Clear) -> NDArray[np.int64]:
        """Return the differences (n, d) of all clients so, for `in_the_clear`."""
        updates = np.asarray(clear.updates, np.float64)
        each = zip(updates, self.weighing.parts(clear.weights), strict=True)
        return np.stack(
            [self.whole_difference(row, replace(clear.published, part=part)) for row, part in each]
        )

    def shortened(self, vector: NDArray[Any], published: Published) -> str:
        said = self.cut.shortened(vector, published) if self.bounded else ""
        what = f"norm_bound {self.norm_bound} with fraction_bits {self.fraction_bits}"
        return f"{said}: {what} takes no more" if said else ""

    def moved(self, mean: NDArray[np.float64], published: Published) -> NDArray[np.float64]:
        """Return the model after a movement by a mean difference, or the mean itself."""
        return moved(mean, published) if self.bounded else mean


def short(form: Form, check: NormCheck, fault: str) -> Form:
    """Return the form of a round on short differences, whose lengths are checked."""
    return replace(
        form,
        layout=replace(form.layout, rows=1, bits=BITS),
        xor=False,
        differences=True,
        value_range=None,
        tosses=True,
        check=check,
        values=None,
        fault=fault,
    )


def fitting(model: NDArray[np.float32] | None, longest: int, most: int) -> int:
    """Return s, at most `most`, with which a difference as long as the model has room.

    It is then `longest` steps long at most.
    """
    length = 0.0 if model is None else _length(model.astype(np.float64))
    room = floor(log2(longest / length)) if length else most
    return max(0, min(most, room))


def moved(mean: NDArray[np.float64], published: Published) -> NDArray[np.float64]:
    """Return the model after a movement by a mean difference."""
    return mean if published.model is None else published.model.astype(np.float64) + mean


@dataclass(frozen=True, kw_only=True)
class AlwaysBounded(Bounded):
    """A method on differences whose squares would wrap without a bound."""

    norm_bound: float | str = option(
        AUTO,
        choices=(AUTO,),
        metavar="B|auto",
        text="clients whose difference to the global model is longer than B are left out; auto "
        f"(default): as long as numbers fit, {AUTO_REACH} or the length of the model",
    )
    fraction_bits: int = option(
        -1,
        text=f"s of the fixed point (default: {AUTO_FRACTION} with auto, fewer for a model longer "
        f"than {AUTO_REACH}; as many as a difference of length B leaves room for)",
        metavar="S",
    )

    @property
    def norm_check(self) -> NormCheck:
        most = SOUNDNESS.limit(self.longest)
        return NormCheck(BITS, SOUNDNESS.rows, MARGIN * self.most_length, most)

    def settled(self, model: NDArray[np.float32] | None, bound: float | None = None) -> Self:
        """Return the method with a bound that leaves room for a difference as long as the model."""
        if self.norm_bound != AUTO:
            return self
        fraction = fitting(model, self.most_length, self.fraction_bits)
        most = self.most_length / 2.0**fraction
        return replace(self, norm_bound=most, fraction_bits=fraction)


def _difference(vector: NDArray[np.float64], published: Published) -> NDArray[np.float64]:
    """Return a vector's difference to the model, where what overflows is the largest number."""
    model = 0.0 if published.model is None else published.model.astype(np.float64)
    most = np.finfo(np.float64).max
    with np.errstate(over="ignore"):
        return np.clip(vector - model, -most, most)


def _direction(difference: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Return a difference in units of its largest value, and that value."""
    peak = float(np.abs(difference).max())
    return (difference / peak if peak else difference), peak


def _length(vector: NDArray[np.float64]) -> float:
    return float(np.sqrt((vector * vector).sum()))
