"""The result of a round at one server, as it is kept and published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from numpy.typing import NDArray

from securemedian.common.receipts import Receipt
from securemedian.mpc.arrays import Words


@dataclass(frozen=True)
class Result:
    """All that a round leaves at one server, besides S0's run.

    `to_parts` takes it apart into plain fields and arrays for the store, and `from_parts` puts it
    together.
    """

    # the record of the round, signed by this server, and once the round is published by both
    receipt: Receipt
    # the opened values, packed, or where the result is for the clients alone this server's share
    values: Words = field(repr=False)
    # what was done for the round (`mpc.rounds.cost.Cost`)
    cost: Mapping[str, Any]
    # the coordinates whose result is in an outermost bucket
    outermost: int = 0
    # the groups, 0-based, whose model stays because they have fewer than `min_clients`
    unchanged_groups: Sequence[int] = ()
    # the coin of the result, in hex digits; empty if the method tosses none
    coin: str = ""

    def to_parts(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the fields, which msgpack and JSON can hold, and the arrays."""
        fields = {
            "receipt": self.receipt.to_dict(),
            "cost": dict(self.cost),
            "outermost": self.outermost,
            "unchanged_groups": list(self.unchanged_groups),
            "coin": self.coin,
        }
        return fields, {"values": self.values}

    @classmethod
    def from_parts(cls, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return what `to_parts` took apart."""
        receipt = Receipt.from_dict(fields["receipt"])
        return cls(**{**fields, "receipt": receipt, **arrays})
