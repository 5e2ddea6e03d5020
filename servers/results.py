"""What a round leaves at a server once the protocol has run, as it is kept and published."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from numpy.typing import NDArray

from securemedian.mpc.arrays import Float32s, Words


@dataclass(frozen=True)
class Result:
    """All that a round leaves at one server, besides S0's training run.

    It consists of plain fields and of arrays, so that whoever stores it needs to know none of
    them: `to_parts` and `from_parts`.
    """

    # what was done for the round (`mpc.pipeline.Cost`)
    cost: Mapping[str, Any]
    # the coordinates whose result is in an outermost bucket
    outermost: int = 0
    # the opened values, packed; None where the result is for the clients alone
    opened: Words | None = field(default=None, repr=False)
    # this server's share of a result that is for the clients alone, packed
    share: Words | None = field(default=None, repr=False)
    # what S0 publishes, float32 of shape (results, d)
    results: Float32s | None = field(default=None, repr=False)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the fields that msgpack and JSON can hold, and the arrays that there are."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        arrays = {name: values.pop(name) for name in _ARRAYS}
        return values, {name: array for name, array in arrays.items() if array is not None}

    @classmethod
    def from_parts(cls, values: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what `to_parts` took apart."""
        return cls(**{**values, **arrays})


_ARRAYS = ("opened", "share", "results")
