"""Methods that may take the mean of each update's nearest ones in its place (NNM).

See Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, "Fixing by Mixing" (AISTATS 2023).
With `neighbours` f, each of n updates is replaced by the mean of the n - f nearest to it, itself
included, and the method is taken of those. Distances are those of `nearest`. Clients share
differences to the global model, as long as numbers fit (`bounded`). A client that a check leaves
out is one of the f, as in `krum`.

The parties compute on sums of n - f whole numbers, which are divided once they are opened. With
selection `hidden` who is near to whom stays shared, and multiplexes whole updates: n (n - 1) rows.
With `opened` both servers learn it, and the sums are local.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicBits, Ring, RingShare, UnpackedXorBits, XorBits
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.options import check_whole, option
from securemedian.mpc.protocols import order, ring
from securemedian.mpc.protocols.boolean import (
    multiplex_rows,
    multiplex_rows_demand,
    pack_bits,
    unpack_bits,
)
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods import bounded, nearest, norms
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Form, Published
from securemedian.mpc.rounds.methods.fixed import SizedFixedPoint
from securemedian.mpc.rounds.methods.nearest import HIDDEN, OPENED, Tolerating
from securemedian.mpc.rounds.methods.reveal import open_bits

# s where it is not given: of values, and of differences, whose lengths then reach 32
FRACTION, MIXED_FRACTION = 24, 16
# Bits of the ring in which sums are compared and added. A value that passes the check is below
# 2^23, a sum of neighbours below 2^30 for MOST_CLIENTS, and a sum of such sums below 2^37.
MIXED_BITS = 40
MOST_CLIENTS = 128
# Of the rows of `inputs`, how many take as much memory as one comparison, or less: with as many a
# chunk takes less than one of `pairwise` without neighbours.
ROWS_PER_COMPARISON = 4


@dataclass(frozen=True, kw_only=True)
class Neighbours(Tolerating):
    """A method on values, or on sums of each update's nearest ones in fixed point."""

    tolerated = "neighbours"
    most_faulty = MOST_CLIENTS

    neighbours: int = option(
        0,
        metavar="F",
        text="first replace each update by the mean of its n - F nearest ones, itself included; F "
        "of n clients may be faulty, failed checks included (default: 0, do not)",
    )
    selection: str = option(
        HIDDEN,
        choices=(HIDDEN, OPENED),
        text="with neighbours, opened tells the servers who is near to whom (default: hidden)",
    )
    # s, which each method has as an option
    fraction_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction_bits == -1:
            given = MIXED_FRACTION if self.neighbours else FRACTION
            object.__setattr__(self, "fraction_bits", given)
        if self.neighbours and (self.weighing.named or self.groups > 1):
            raise ConfigError(
                "neighbours counts every client once, for one model: neighbours "
                f"{self.neighbours} with weights or groups; leave weights and groups out"
            )
        if self.neighbours and self.result_to != "servers":
            raise ConfigError(
                "neighbours divides the result by a number that clients do not know: result_to "
                f"{self.result_to}; leave result_to out"
            )

    def check_round(self, max_clients: int) -> None:
        if self.neighbours:
            check_whole("max_clients with neighbours", max_clients, 2, MOST_CLIENTS)
            self.check_count(max_clients, "max_clients is")
        super().check_round(max_clients)

    def check_count(self, clients: int, what: str) -> None:
        if clients <= 2 * self._far:
            raise ConfigError(
                f"neighbours {self._far} needs more than {2 * self._far} clients: {what} "
                f"{clients}; lower neighbours or have more clients"
            )

    def single_clients(self, least: int) -> bool:
        """Return whether two updates may be averaged, of which who has one knows the other.

        Of three clients two are nearest to each other: their mean is the median of the mixed ones.
        """
        return (self.neighbours == 1 and least <= 3) or super().single_clients(least)

    @property
    def _far(self) -> int:
        """Return F, how many of those who take part are not among the nearest of each."""
        return max(0, self.neighbours)

    def settled(self, model: NDArray[np.float32] | None, bound: float | None = None) -> Self:
        if not self.neighbours:
            return super().settled(model, bound)
        fraction = bounded.fitting(model, nearest.LONGEST, self.fraction_bits)
        settled = super().settled(model, bound)
        return replace(settled, fraction_bits=fraction, counts_left_out=True)

    def check_settled(self) -> None:
        super().check_settled()
        if self.neighbours and not self.counts_left_out:
            raise ConfigError(
                "S0 runs a release that does not count who is left out: neighbours "
                f"{self.neighbours}; update S0, or leave neighbours out"
            )

    # Shares of clients

    def mixed(self, form: Form) -> Form:
        """Return the form of a round that has one without neighbours, with them if it has any."""
        if not self.neighbours:
            return form
        most = norms.SOUNDNESS.limit(nearest.LONGEST)
        check = norms.NormCheck(bounded.BITS, norms.SOUNDNESS.rows, norms.SOUNDNESS.bound, most)
        fault = bounded.UNFIT if self.counts_left_out else bounded.FAULT
        return replace(bounded.short(form, check, fault), survey=self)

    def encode_difference(self, vector: NDArray[Any], published: Published) -> Ring:
        """Return what a client shares with neighbours, shape (1, d)."""
        whole = self._cut.whole(encode.without_nan(vector, "the update"), published)
        return ring.reduce(whole, bounded.BITS)[None]

    @property
    def _cut(self) -> bounded.Cut:
        return bounded.Cut(self.fraction_bits, nearest.LONGEST)

    def shortened(self, vector: NDArray[Any], published: Published) -> str:
        if not self.neighbours:
            return super().shortened(vector, published)
        said = self._cut.shortened(vector, published)
        return f"{said}: fraction_bits {self.fraction_bits} takes no more" if said else ""

    # The protocol

    def judge(self, party: Party, surveyed: RingShare, chunk: Chunk) -> XorBits:
        """Return shares of who is near to whom, n^2 bits, packed, those of a client together."""
        clients = len(chunk.weights)
        distances = nearest.distances(party, surveyed, clients)
        near = nearest.nearest(party, distances, clients - self._far)
        return XorBits(pack_bits(near.reshape(-1)))

    def judge_demand(self, weights: Sequence[int], max_clients: int) -> Demand:
        clients = len(weights)
        return nearest.distances_demand(clients) + nearest.nearest_demand(clients)

    def inputs(self, party: Party, chunk: Chunk) -> RingShare:
        """Return shares of what the method is taken of, (n, dim) in the ring of `value_bits`."""
        if not self.neighbours:
            return chunk.rows(party)
        clients = len(chunk.weights)
        rows = RingShare(ring.reduce(chunk.rows(party), MIXED_BITS))
        assert chunk.verdicts is not None
        if self.selection == OPENED:
            public: PublicBits = open_bits(party, chunk.verdicts, clients**2)
            near = public.reshape(clients, clients) == 1
            summed = [rows[those].sum(axis=0, dtype=rows.dtype) for those in near]
            return RingShare(ring.reduce(np.stack(summed), MIXED_BITS))
        flags = unpack_bits(chunk.verdicts, clients**2).reshape(clients, clients)
        others = ~np.eye(clients, dtype=np.bool_)
        each = RingShare(rows[np.nonzero(others)[1]])
        kept = multiplex_rows(party, UnpackedXorBits(flags[others]), each, MIXED_BITS)
        sums = kept.reshape(clients, clients - 1, -1).sum(axis=1, dtype=rows.dtype)
        return RingShare(ring.reduce(sums + rows, MIXED_BITS))

    def mixing_demand(self, clients: int) -> Demand:
        """Return the correlations of `inputs`."""
        hidden = self.neighbours and self.selection == HIDDEN
        return multiplex_rows_demand(clients * (clients - 1)) if hidden else Demand()

    def rows_at_once(self, clients: int) -> int:
        """Return how many comparisons take the memory of `inputs` per coordinate."""
        return clients**2 // ROWS_PER_COMPARISON if self.neighbours else 0

    # The result

    def unmixed(
        self, numbers: NDArray[np.float64], clients: int, published: Published
    ) -> NDArray[np.float64]:
        """Return the results of so many clients, of those of what `inputs` returns."""
        if not self.neighbours:
            return numbers
        return bounded.moved(numbers / (clients - self._far), published)

    def mixed_in_the_clear(self, clear: Clear) -> NDArray[np.int64]:
        """Return what `inputs` shares, (n, d), by plain arithmetic."""
        updates = np.asarray(clear.updates, np.float64)
        whole = np.stack([self._cut.whole(row, clear.published) for row in updates])
        distances = nearest.distances_in_the_clear(whole, clear.published.coin)
        near = nearest.nearest_in_the_clear(distances, len(whole) - self._far)
        return np.stack([whole[those].sum(axis=0) for those in near])

    @property
    def mixture(self) -> str:
        """Say in a word or two whether neighbours are mixed, for `detail`."""
        if not self.neighbours:
            return ""
        return f" neighbours={self._far}" + (" opened" * (self.selection == OPENED))


@dataclass(frozen=True, kw_only=True)
class Mixing(Neighbours, SizedFixedPoint):
    """A method that compares all pairs of values in fixed point, or of sums of neighbours."""

    splits = True
    checks_values = True

    fraction_bits: int = option(
        -1,
        metavar="S",
        text=f"s of the fixed point (default: {FRACTION}, with neighbours {MIXED_FRACTION})",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.neighbours and self.ring_bits:
            raise ConfigError(
                f"neighbours has a ring of its own: ring_bits {self.ring_bits}; leave ring_bits out"
            )

    @property
    def value_bits(self) -> int:
        return MIXED_BITS if self.neighbours else super().value_bits

    def form(self, dim: int, max_clients: int) -> Form:
        return self.mixed(super().form(dim, max_clients))

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        if self.neighbours:
            return self.encode_difference(vector, published)
        return super().encode(vector, max_clients, published)

    def at_once(self, clients: int) -> int:
        return order.pairs(clients) + self.rows_at_once(clients)

    def inputs_in_the_clear(self, clear: Clear) -> NDArray[np.int64]:
        """Return what `inputs` shares, (n, d), by plain arithmetic."""
        if self.neighbours:
            return self.mixed_in_the_clear(clear)
        return self.whole_numbers(clear.updates, clear.max_clients)
