"""The exchanges of a round: trained parameters, or predictions on a public set.

Predictions are those of Chang, Shejwalkar, Shokri and Houmansadr, "Cronus: Robust and Heterogeneous
Collaborative Learning with Black-Box Knowledge Transfer" (2019). Every client predicts the same
unlabelled samples with a model of its own, and trains it on the result. A new exchange is a class
here with its line in `EXCHANGES`.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.canonical import flat
from securemedian.mpc.errors import ConfigError, InputError, quoted
from securemedian.mpc.options import check_whole, option, options_of
from securemedian.mpc.rounds.encode import without_nan
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.ranges.uniform import ConstantRange

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
# from 0 to 1, on even buckets with the middle one at 0.5
_UNIT = Published(np.array(0.5, np.float32), np.array(1, np.float32), ConstantRange(1.0))


@dataclass(frozen=True)
class Exchange:
    """The kind of vector that a round combines. Its fields are its options."""

    name: ClassVar[str]
    # the model and scale of the buckets of every round; None where these are the run's, and the
    # result is the next model
    fixed: ClassVar[Published | None] = None

    def check_round(self, dim: int) -> None:
        """Raise ConfigError unless an update can have `dim` values."""

    def check_shape(self, shapes: list[tuple[int, ...]], dim: int) -> None:
        """Raise InputError unless an update of arrays of these shapes can be flattened and sent."""

    def check_values(self, vector: NDArray[Any]) -> None:
        """Raise InputError unless a flat update (d,) has values that may be sent."""

    def result(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return what is published for what a method has computed, both of shape (results, d)."""
        return numbers

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the options."""
        return {"exchange": self.name, **flat(self)}


@dataclass(frozen=True)
class Parameters(Exchange):
    """The trained parameters of one model that all clients have in common."""

    name = "parameters"

    def to_dict(self) -> dict[str, Any]:
        """Return an empty map, so that such rounds have the digests that they always had."""
        return {}


@dataclass(frozen=True)
class Predictions(Exchange):
    """Soft labels: for each sample of a public set, a number in [0, 1] per class.

    An update is an array (samples, classes), of which row i is about sample i. The training has no
    model: clients keep theirs, which may differ in kind.
    """

    name = "predictions"
    fixed = _UNIT

    public_set: str = option(
        "", text="the SHA-256 of the public set, in hex digits", metavar="SHA256"
    )
    classes: int = option(0, text="classes of a prediction", metavar="C")

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.public_set):
            raise ConfigError(
                f"invalid public_set: {quoted(self.public_set)}; give the SHA-256 of the public "
                "set in 64 hex digits"
            )
        check_whole("classes", self.classes, 2, 1 << 20)

    def check_round(self, dim: int) -> None:
        if dim % self.classes:
            raise ConfigError(
                f"dim is not a multiple of the {self.classes} classes: {dim}; give the number "
                "of public samples times that of classes"
            )

    def check_shape(self, shapes: list[tuple[int, ...]], dim: int) -> None:
        expected = (dim // self.classes, self.classes)
        if shapes != [expected]:
            given = " and ".join(map(str, shapes[:3])) or "nothing"
            raise InputError(
                f"predictions of another shape than (samples, classes) = {expected}: {given}; "
                "predict all of the public set, a row per sample"
            )

    def check_values(self, vector: NDArray[Any]) -> None:
        values = without_nan(vector, "the predictions array")
        outside = np.flatnonzero((values < 0) | (values > 1))
        if outside.size:
            sample, label = divmod(int(outside[0]), self.classes)
            raise InputError(
                f"{outside.size:,} predictions lie outside [0, 1]: the first is "
                f"{values[outside[0]]:g} for class {label} of sample {sample}; send "
                "probabilities, as softmax gives them"
            )

    def result(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Return the numbers clipped to [0, 1], and divided by their sum per sample.

        A median is taken per class, so that the classes of a sample need not add up to 1. If all
        are 0, each becomes 1 / classes.
        """
        labels = np.clip(np.asarray(numbers, np.float64), 0, 1).reshape(-1, self.classes)
        sums = labels.sum(axis=1, keepdims=True)
        labels[sums[:, 0] == 0] = 1
        sums[sums == 0] = self.classes
        return (labels / sums).reshape(np.shape(numbers))


def public_digest(inputs: NDArray[Any]) -> str:
    """Return the SHA-256 of a public set (samples, ..) in hex digits.

    It tells the dtype, the shape and every bit. Raises InputError unless it is an array of numbers.
    """
    if inputs.ndim < 1 or not inputs.size or inputs.dtype.kind not in "biuf":
        raise InputError(
            f"invalid public set: {inputs.dtype} of shape {inputs.shape}; give an array of "
            "numbers with a row per sample"
        )
    # of one byte order, and row by row
    plain = np.ascontiguousarray(inputs, inputs.dtype.newbyteorder("<"))
    digest = hashlib.sha256(f"{plain.dtype.str} {inputs.shape} ".encode())
    digest.update(plain.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


# By the names used in flags, TOML and messages. The first is the default.
EXCHANGES: dict[str, type[Exchange]] = {
    exchange.name: exchange for exchange in (Parameters, Predictions)
}
# The keys of an exchange in a map of parameters: no option of a method has one of these names.
EXCHANGE_FIELDS = ("exchange", *dict.fromkeys(n for e in EXCHANGES.values() for n in options_of(e)))
