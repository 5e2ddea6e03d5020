"""The exact median, and elements of other ranks, from dealt digits.

Clients hold words of w bits in sorting order, those of `radix`. Each of L = ceil(w / s) levels
divides the interval that the level before opened into W = 2^s slots. Clients vote: as in
`bucketed`, each deals one-hot vectors ahead, and rotates one per level to the slot of its word. A
word outside the interval counts as the nearest one inside. The servers open min {y : H(y) >= k},
the digit of the result. The last level has 2^(w - s (L-1)) slots, and votes beyond count as its
last.

Clamping to an interval is monotone. So the k-th smallest of the clamped words is the k-th smallest
word, which the level before has put into the interval. protocols.md (section 6) has what clients
can do that vote anything. Several ranks are so many descents, one after the other, whose digits
are in `rounds.path`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from securemedian.mpc.arrays import PublicValues, Ring
from securemedian.mpc.errors import ConfigError, quoted
from securemedian.mpc.options import check_number, check_whole, option
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.methods import bucketed
from securemedian.mpc.rounds.methods.base import Chunk, Clear, Form, Method, Published
from securemedian.mpc.rounds.methods.bucketed import MALICIOUS, SECURITY
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.reveal import stacked

# The most votes of a round: each is a session where one server may be malicious.
MAX_VOTES = 256
WEEK = 7 * 86400.0


@dataclass(frozen=True, kw_only=True)
class Zoom(Method):
    """The exact median, or elements of other ranks, a digit per vote."""

    name = "zoom"
    summary = "exact, a digit at a time, in several votes"
    since = 3

    encoding: str = option(
        "float32",
        choices=("float32", "bfloat16", "fixed"),
        text="the words: float32 (default) or bfloat16 over their whole range, or fixed point",
    )
    word_bits: int = option(
        32, text="with encoding fixed: bits of a word (default: 32)", metavar="W"
    )
    fraction_bits: int = option(
        -1, text="with encoding fixed: s of the fixed point (default: 24)", metavar="S"
    )
    slots: int = option(
        16,
        text="slots per level, 4, 8 or 16 (default: 16). Fewer take more levels and fewer bytes "
        "of a client",
        metavar="W",
    )
    ranks: list[int] = option(
        [], text="these ranks, 1 the smallest, not the median", metavar="R,.."
    )
    quantiles: list[float] = option(
        [], text="the ranks ceil(Q n) as well; for quartiles 0.25,0.5,0.75", metavar="Q,.."
    )
    limit_s: float = option(
        14400.0,
        text="seconds that the round waits for its clients, once it has opened a digit (default: "
        "14400, at most a week)",
        metavar="S",
    )
    check_bits: int = option(
        40,
        text="a client that cheats passes the servers' check with a chance of 2^-BITS at most "
        "(default: 40, which is also the least; at most 128)",
        metavar="BITS",
    )
    security: str = option(
        "semi-honest",
        choices=SECURITY,
        text="malicious: one server that deviates learns nothing beyond the result, which is "
        "right. semi-honest (default): it may read the value of a client that stands out",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.slots) is not int or self.slots not in (4, 8, 16):
            raise ConfigError(f"invalid slots: {quoted(self.slots)}; give 4, 8 or 16")
        check_number("limit_s", self.limit_s, 0, WEEK, "more than 0 and at most a week")
        check_whole("check_bits", self.check_bits, 40, 128)
        if self.levels == 1:
            raise ConfigError(
                f"too few word_bits for a second vote: {self.word_bits}; give more than "
                f"{self.slot_bits}, or take bucketed"
            )
        votes = self.levels * max(1, len(self.ranks) + len(self.quantiles))
        if votes > MAX_VOTES:
            raise ConfigError(
                f"more than {MAX_VOTES} votes in a round: {votes}; ask for fewer ranks, or take "
                "more slots"
            )

    @cached_property
    def _radix(self) -> Radix:
        """Return the method whose words and ranks these are."""
        names = ("encoding", "word_bits", "fraction_bits", "ranks", "quantiles")
        return Radix(**{name: getattr(self, name) for name in names})

    @property
    def audited(self) -> bool:
        """Return whether one server that deviates learns nothing beyond the result."""
        return self.security == MALICIOUS

    # Levels

    @property
    def slot_bits(self) -> int:
        """Return s, the bits of a level's digit."""
        return self.slots.bit_length() - 1

    @property
    def levels(self) -> int:
        """Return L, the votes of one rank."""
        return -(-self._radix.word_width // self.slot_bits)

    def place(self, vote: int) -> tuple[int, int, int]:
        """Return the number of a vote's descent, the bits below its digit, and its slots.

        The last level may have fewer slots than the others.
        """
        descent, level = divmod(vote, self.levels)
        left = self._radix.word_width - self.slot_bits * level
        below = max(0, left - self.slot_bits)
        return descent, below, 1 << left - below

    def rank_of(self, vote: int, clients: int) -> int:
        return self.ranks_of(clients)[vote // self.levels]

    # Words and ranks are those of radix

    def words(self, values: ArrayLike) -> Ring:
        """Return words (d,) whose unsigned order is the order of the values (`Radix.words`)."""
        return self._radix.words(values)

    def ranks_of(self, total: int) -> list[int]:
        """Return the ranks to compute, a result each. Raises ConfigError for one beyond `total`."""
        return self._radix.ranks_of(total)

    def check_round(self, max_clients: int) -> None:
        self._radix.check_round(max_clients)
        bucketed.check_audited(self.audited, self._dealt_bits(max_clients))

    def check_total(self, total: int) -> None:
        self._radix.check_total(total)

    def single_clients(self, least: int) -> bool:
        return self._radix.single_clients(least)

    def _dealt_bits(self, max_clients: int) -> int:
        """Return the bits of the ring that dealt vectors are in."""
        return max(self._radix.bits_for(max_clients), self.slot_bits)

    def form(self, dim: int, max_clients: int) -> Form:
        words, bits = self._radix.form(dim, max_clients), self._dealt_bits(max_clients)
        votes = self.levels * words.most_results
        dealing = Dealing(dim, self.slots, bits, self.check_bits, votes)
        layout, audited = dealing.rotations_layout, self.audited
        return replace(words, layout=layout, xor=False, audited=audited, dealing=dealing)

    def encode(self, vector: NDArray[Any], max_clients: int, published: Published) -> Ring:
        """Return the slots of the first vote, (1, d): `Path.slots` has those of the others."""
        return (self.words(vector) >> self.place(0)[1]).astype(np.uint8)[None]

    def compute(self, party: Party, chunk: Chunk) -> PublicValues:
        """Return the digits of the vote that the uploads are, (1, dim)."""
        bits, (first, *_) = chunk.form.ring_bits, chunk.uploads
        rank = self.rank_of(first.vote if isinstance(first, DealtUpload) else 0, chunk.total)
        counts = chunk.dealt_counts(party, bits)
        return stacked([bucketed.median(party, counts, chunk.total, bits, "bisect", rank)])

    def demand(self, weights: Sequence[int], dim: int, max_clients: int) -> Demand:
        return bucketed.demand(dim, self.slots, self._radix.bits_for(max_clients), "bisect")

    def at_once(self, clients: int) -> int:
        return 1

    def opened_rows(self, total: int) -> int:
        return self._radix.opened_rows(total)

    @property
    def opened(self) -> str:
        return self._radix.opened

    @property
    def kind(self) -> str:
        return self._radix.kind

    def decode(self, values: PublicValues, total: int, published: Published) -> NDArray[np.float64]:
        return self._radix.values(values)

    def in_the_clear(self, clear: Clear) -> NDArray[Any]:
        return self._radix.in_the_clear(clear)

    @property
    def detail(self) -> str:
        against = f" {MALICIOUS}" if self.audited else ""
        return f"{self.encoding} W={self.slots}{against}"
