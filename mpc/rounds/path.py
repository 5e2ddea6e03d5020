"""The path of a round of several votes: all digits that it has opened.

A vote is a level of a descent (`methods.zoom`). The path alone tells servers and clients where the
next vote's slots lie.
"""

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Self, cast

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import PublicValues, Ring, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import InputError, LocalProtocolError, PeerProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.rounds.params import RoundParams

if TYPE_CHECKING:
    # the methods take a while to import
    from securemedian.mpc.rounds.methods.zoom import Zoom


@dataclass(frozen=True)
class Path:
    """The digits that a round of several votes has opened."""

    params: RoundParams
    # how many votes they are of
    votes: int
    # (ranks, d): the word where each interval begins, which is the result once its descent ends
    rows: NDArray[np.uint64] = field(repr=False)

    @classmethod
    def begin(cls, params: RoundParams) -> Self:
        """Return the path of a round that has opened nothing."""
        return cls(params, 0, np.zeros((params.form.most_results, params.dim), np.uint64))

    @property
    def zoom(self) -> "Zoom":
        """Return the method of the round."""
        return cast("Zoom", self.params.method)

    def after(self, digits: PublicValues) -> Self:
        """Return the path with the next vote's digits, shape (1, d).

        A slot beyond the last level's counts as its last one.
        """
        descent, below, slots = self.zoom.place(self.votes)
        rows = self.rows.copy()
        rows[descent] |= np.minimum(digits[0], slots - 1).astype(np.uint64) << np.uint64(below)
        return type(self)(self.params, self.votes + 1, rows)

    def before(self) -> Self:
        """Return the path without the digits of its last vote."""
        descent, below, slots = self.zoom.place(self.votes - 1)
        rows = self.rows.copy()
        rows[descent] &= ~np.uint64((slots - 1) << below)
        return type(self)(self.params, self.votes - 1, rows)

    def slots(self, words: Ring) -> NDArray[np.uint8]:
        """Return the slots (d,) that a client with these words votes for next.

        Words outside the interval count as its nearest one.
        """
        descent, below, slots = self.zoom.place(self.votes)
        low, most = self.rows[descent], np.uint64((slots << below) - 1)
        inside = np.clip(words.astype(np.uint64), low, low + most) - low
        return (inside >> np.uint64(below)).astype(np.uint8)

    @cached_property
    def digest(self) -> bytes:
        """Return 32 bytes that name the round's parameters, the votes told and all digits."""
        found = sha256(self.rows.astype("<u8", copy=False).data.cast("B")).digest()
        return digest("path", self.params.digest, self.votes, found)

    @cached_property
    def last(self) -> Words:
        """Return the last vote's digits, packed: what a client is sent."""
        descent, below, slots = self.zoom.place(self.votes - 1)
        digits = self.rows[descent] >> np.uint64(below) & np.uint64(slots - 1)
        return ring.pack(digits, self.zoom.slot_bits)

    def with_last(self, packed: Words) -> Self:
        """Return the path with the next vote's digits as `last` packs them.

        Raises PeerProtocolError for anything but that many words.
        """
        bits, dim = self.zoom.slot_bits, self.params.dim
        if packed.shape != (wanted := (ring.packed_words(dim, bits),)) or packed.dtype != np.uint64:
            raise PeerProtocolError(
                f"the digits are {packed.shape} of {packed.dtype}, not {wanted} words"
            )
        return self.after(PublicValues(ring.unpack(packed, bits, dim)[None]))

    @property
    def done(self) -> bool:
        """Tell whether all votes of the round are opened."""
        return self.votes == self.params.form.votes

    @property
    def result(self) -> PublicValues:
        """Return the words of the result, shape (ranks, d).

        Raises LocalProtocolError before all is opened: a prefix is not a result.
        """
        if not self.done:
            raise LocalProtocolError(f"{self.votes} votes are not all of {self.params.form.votes}")
        return PublicValues(self.rows.astype(ring.dtype(self.params.form.opened_bits)))

    def saved(self) -> Words:
        """Return all digits, packed, for a file."""
        return ring.pack(self.rows, self.params.form.opened_bits)

    @classmethod
    def restored(cls, params: RoundParams, votes: int, saved: Words) -> Self:
        """Return the path that `saved` has packed. Raises InputError for another size."""
        begun, bits = cls.begin(params), params.form.opened_bits
        if saved.shape != (wanted := (ring.packed_words(begun.rows.size, bits),)):
            raise InputError(f"a path of another round: {saved.shape} words; give {wanted}")
        rows = ring.unpack(saved, bits, begun.rows.size).astype(np.uint64)
        return cls(params, votes, rows.reshape(begun.rows.shape))
