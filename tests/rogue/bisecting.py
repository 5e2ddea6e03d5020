"""The deviations of a server in a round with security malicious, by name.

Each replaces functions of the authenticated bisect, for one party alone. That server sees no more
than the other one opens: `Signs` has the shares of signs that came, and its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import binding
from securemedian.mpc.protocols.audit.ands import AndMaker, Carry
from securemedian.mpc.protocols.audit.binding import Binder, Bound
from securemedian.mpc.protocols.audit.bits import AuthenticatedBits
from securemedian.mpc.protocols.audit.macs import Prover
from securemedian.mpc.protocols.audit.opening import Opener
from securemedian.mpc.protocols.bisect import TILE, Lane, partners_of
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.rounds.bisecting import Bisection
from tests.rogue.hooks import Array

# given an owner, the name of one of its functions, and one that is called with the true one first
Replace = Callable[[Any, str, Callable[..., Any]], None]
# and the number of the party that deviates
Deviation = Callable[[Replace, int], None]


@dataclass
class Signs:
    """The shares of signs that the rogue has of each step, (coordinates,), by lane."""

    shares: dict[int, list[Array]] = field(default_factory=dict)
    theirs: dict[int, list[Array]] = field(default_factory=dict)

    def of(self, lane: int) -> list[Array]:
        """Return the signs of each step that were opened to it."""
        pairs = zip(self.shares.get(lane, []), self.theirs.get(lane, []), strict=True)
        return [own ^ other for own, other in pairs]


def spy(replace: Replace, rogue: int, keep: Callable[[Signs], None] = lambda _: None) -> Signs:
    """Keep the rogue's shares of signs, and those that it is told, whatever they prove."""
    spoils = Signs()

    def init(true: Any, self: Prover, session: Session, *given: Any) -> None:
        true(self, session, *given)
        self.of = session.party_id  # type: ignore[attr-defined]

    def sign(true: Any, self: Lane, *given: Any) -> AuthenticatedBits:
        found: AuthenticatedBits = true(self, *given)
        if self.party.number == rogue:
            self.opener.own = self._lane, found.bits.copy()  # type: ignore[attr-defined]
        return found

    def tell(true: Any, self: Opener, label: str, mine: Array, *given: Any) -> Any:
        theirs, right = true(self, label, mine, *given)
        if self._number == rogue and label == "bisect.sign":
            lane, own = self.own  # type: ignore[attr-defined]
            spoils.shares.setdefault(lane, []).append(own)
            spoils.theirs.setdefault(lane, []).append(unpack_bits(theirs, own.size))
            keep(spoils)
        return theirs, right

    replace(Prover, "__init__", init)
    replace(Lane, "_sign", sign)
    replace(Opener, "tell", tell)
    return spoils


def _number(self: Any) -> int:
    """Return whose part this is."""
    if isinstance(self, Binder):
        self = self.prover
    if isinstance(self, Prover):
        return int(self.of)  # type: ignore[attr-defined]
    return int(self.party.number if isinstance(self, Lane) else self._number)


def _by(owner: Any, name: str, deviate: Callable[..., Any]) -> Deviation:
    """Return a deviation: the rogue calls deviate(true, self, ..), and others true(self, ..)."""

    def deviation(replace: Replace, rogue: int) -> None:
        def either(true: Any, self: Any, *given: Any) -> Any:
            return deviate(true, self, *given) if _number(self) == rogue else true(self, *given)

        replace(owner, name, either)

    deviation.__doc__ = deviate.__doc__
    return deviation


def asking(ask: Callable[[Array, Array, int, int], Array]) -> Deviation:
    """Return the deviation that makes other shares of H - k, given these, rows, k and l."""

    def deviate(true: Any, self: Lane, step: int, rows: Array, rank: int) -> Any:
        z, d = true(self, step, rows, rank)
        other = ask(z, rows, rank, self.shape.bits)
        return other, d ^ z ^ other

    deviate.__doc__ = ask.__doc__
    return _by(Lane, "_masked", deviate)


def _another_rank(z: Array, rows: Array, rank: int, bits: int) -> Array:
    """Ask whether anybody is at or below: k - 1 more than there is."""
    return ring.reduce(z + z.dtype.type(rank - 1), bits)


def _another_row(true: Any, self: Lane, step: int, rows: Array, rank: int, *given: Any) -> Any:
    """Ask about another threshold than the digits say."""
    return true(
        self, step, np.minimum(rows ^ np.uint16(1), np.uint16(self.shape.buckets - 2)), rank, *given
    )


def _other_bits(true: Any, self: Lane, *given: Any) -> Any:
    """Say of one bit of the number that it is another."""
    z, d = true(self, *given)
    return z, d ^ d.dtype.type(1)


def _flipped(true: Any, self: Lane, t: int, carry: Carry, *given: Any) -> Any:
    """Open another c ^ x ^ a in one coordinate."""
    lie = carry.bits.copy()
    lie[0] ^= np.uint64(1)
    return true(self, t, Carry(lie, carry.macs, carry.keys), *given)


def _flipped_on_lane_1(true: Any, self: Lane, *given: Any) -> Any:
    """Let one lane end while the other one goes on."""
    return _flipped(true, self, *given) if self._lane else true(self, *given)


def _last_flipped(true: Any, self: Lane, t: int, *given: Any) -> Any:
    """Open another c ^ x ^ a in the last AND of each step alone."""
    last = t == self.shape.bits - 2
    return _flipped(true, self, t, *given) if last else true(self, t, *given)


def _guessed(true: Any, self: Lane, t: int, carry: Carry, *given: Any) -> Any:
    """Open another c ^ x ^ a everywhere, and say that Delta is 1."""
    return true(self, t, Carry(~carry.bits, carry.macs ^ np.uint64(1), carry.keys), *given)


def _last_sign(true: Any, self: Lane, *given: Any) -> Any:
    """Open another last sign than there is."""
    found = true(self, *given)
    if not self._steps:
        found.bits[:] ^= 1
    return found


def _other_sum(true: Any, self: Bisection, start: int, stop: int) -> RingShare:
    """Be bound to a sum in which one more client is in the lowest bucket of each coordinate."""
    found = true(self, start, stop)
    return RingShare(ring.reduce(found + found.dtype.type(1), self._shape.bits))


def _twice(true: Any, self: Binder, bound: Bound, values: Array) -> None:
    """Tell what is added to a, and tell it again."""
    true(self, bound, values)
    words = np.zeros(bound.padded * len(values) * self.shape.bits // 64, np.uint64)
    self.prover.channel.send("bisect.change", words)


def _other_mask(true: Any, self: Binder, bound: Bound, values: Array) -> None:
    """Be bound to another sum of the masks of folds."""
    true(self, bound, values ^ values.dtype.type(bound is self.masks))


def _no(true: Any, self: Opener, label: str, *given: Any) -> Any:
    """Say that the sums do not agree, so that the peer tells the folds that it makes."""
    theirs, right = true(self, label, *given)
    return theirs, right and label != "bisect.folds"


def _no_bits(true: Any, self: Lane, values: Array, t: int) -> Any:
    """Commit to numbers that are 2 more than the bits that are claimed."""
    prover, commit = self.prover, self.prover.commit

    def more(given: Array, *rest: Any) -> Any:
        del prover.commit
        return commit(given + np.uint8(2), *rest)

    if self.shape.bits - t > 1:
        prover.commit = more  # type: ignore[method-assign, assignment]
    return true(self, values, t)


# of the coordinates in which errors cancel: more than a hash has bits
PLACES = 170


class Cheat:
    """A prover whose values are others than it claims: what it commits to, one after another."""

    def __init__(self, prover: Prover, values: Sequence[Array]) -> None:
        self._prover, self._values = prover, list(values)

    def commit(self, claims: Array, bits: int, slot: int) -> tuple[int, Array]:
        return self._prover.commit(self._values.pop(0), bits, slot)


def cancelling(opener: Opener, who: int, words: Array, errors: Iterable[Array]) -> Array:
    """Return which of the errors, arrays of one length, change no hash of what `who` opens.

    These are the words that it opens. The hash is linear. The last error is among those that are
    returned. There are more of them than the hash has bits, so that others make up for it.
    """

    def hashed(error: Array) -> int:
        tag: Any = opener._hash(who, words)._tags[0]
        tag.authenticate_additional_data(np.ascontiguousarray(error).data.cast("B"))
        tag.finalize()
        return int.from_bytes(tag.tag, "big")

    none, basis, left, number = 0, dict[int, tuple[int, int]](), 0, 0
    for number, error in enumerate(errors):
        none = none or hashed(np.zeros_like(error))
        left, used = hashed(error) ^ none, 1 << number
        while left and left.bit_length() in basis:
            other, others = basis[left.bit_length()]
            left, used = left ^ other, used ^ others
        if left:
            basis[left.bit_length()] = left, used
    assert not left
    return np.array([used >> i & 1 for i in range(number + 1)], bool)


def _cancel(replace: Replace, rogue: int) -> None:
    """Claim that all bits are 0, and commit to numbers whose errors cancel in the hash then."""
    steps, offs = 4, dict[int, list[Array]]()

    def make(true: Any, self: Lane, *given: Any) -> Any:
        randomness: Any = self.party.randomness
        randomness.words = partial(np.zeros, dtype=np.uint64)
        try:
            return true(self, *given)
        finally:
            del randomness.words

    def prove(true: Any, self: Lane, values: Array, t: int) -> Any:
        if t:
            return true(self, values, t)
        rows, length = partners_of(values.size)
        words, claims = -(-rows * length // 64), np.zeros(rows * length, np.uint8)
        # of the bits of the first step, which come last
        first, half = values.size // steps * (steps - 1), 1 << self.shape.bits - 1

        def errors() -> Iterable[Array]:
            for place in range(first, first + PLACES):
                tile = place // TILE * TILE
                error = np.zeros(self._delta.size * rows * length, np.uint64)
                of_tile = error[self._delta.size * rows * (length - values.size) + rows * tile :]
                of_tile[place - tile :: min(TILE, values.size - tile)][:rows] = half
                yield error

        off, own = np.zeros_like(values), self.prover
        hashed = self.opener, rogue, np.zeros(words, np.uint64), errors()
        off[first : first + PLACES] = cancelling(*hashed) * half
        offs.setdefault(self._lane, []).append(off[first:])
        self.prover = Cheat(own, [off, claims])  # type: ignore[assignment]
        try:
            return true(self, values, t)
        finally:
            self.prover = own

    def masked(true: Any, self: Lane, step: int, *given: Any) -> Any:
        z, d = true(self, step, *given)
        each = zip(offs[self._lane], self._chunks, strict=True)
        off = np.concatenate([one[: chunk.bound.dim] for one, chunk in each])
        return (z ^ off, d ^ off) if step == steps - 1 else (z, d)

    for name, deviate in (("_make", make), ("_prove_bits", prove), ("_masked", masked)):
        _by(Lane, name, deviate)(replace, rogue)


def _wrong_blocks(true: Any, self: Prover, values: Array, *given: Any) -> Any:
    """Authenticate other values in six of the 12 blocks: a guess that their 24 bits are 0."""
    channel, send = self.channel, self.channel.send

    def wrong(label: str, array: Array) -> None:
        changed = array.copy()
        changed[: changed.size // 2] ^= np.uint64(0x1111111111111111)
        send(label, changed)

    channel.send = wrong  # type: ignore[method-assign]
    try:
        return true(self, values, *given)
    finally:
        del channel.send


def _buckets(true: Any, self: AndMaker, leaky: Any, *given: Any) -> Any:
    """Open another bit of a bucket of leaky ANDs."""
    leaky[1].bits[-1] ^= 1
    return true(self, leaky, *given)


def _another_bit(true: Any, self: AndMaker, leaky: Any, turns: Any, k: Any, known: int) -> Any:
    """Make ANDs of another random bit than the one that was proved, the first and the last time."""
    bits = k.bits.copy()
    bits[[0, -1]] ^= 1
    return true(self, leaky, turns, AuthenticatedBits(bits, k.macs, k.keys), known)


def _another_place(true: Any, self: AndMaker, leaky: Any, turns: Any, k: Any, known: int) -> Any:
    """Make ANDs of the bits of the next coordinates, with the MACs of these."""
    own = (np.roll(k.bits, -1), np.roll(k.macs, -1), k.keys)
    return true(self, leaky, turns, AuthenticatedBits(*own), known)


def _last_mask(true: Any, self: Opener, label: str, mine: Array, *given: Any) -> Any:
    """Open another x ^ a of the last product of bits that are known."""
    lie = mine.copy()
    lie[-1:] ^= np.uint64((label == "and.buckets") << 63)
    return true(self, label, lie, *given)


def _coin(replace: Replace, rogue: int) -> None:
    """Wait for the peer's half of the coin, and open another than was committed to."""

    def open_(
        true: Any, self: Channel, label: str, number: int, mine: Array, nonce: Array
    ) -> Array:
        if number != rogue:
            return np.asarray(true(self, label, number, mine, nonce))
        self.exchange(label.replace("open", "commit"), np.zeros(4, np.uint64))
        theirs = self.recv(label, mine.dtype, mine.shape)
        self.send(label, theirs)
        return theirs

    replace(Channel, "open", open_)


def told_fold(replace: Replace, rogue: int) -> None:
    """Say that the sums do not agree, and tell a wrong fold of the own share of each client."""
    _by(Opener, "tell", _no)(replace, rogue)

    def fold(true: Any, number: int, *given: Any) -> Array:
        return np.asarray(true(number, *given)) ^ np.uint64(number == rogue)

    replace(binding, "fold", fold)


def _another_row_of_all(replace: Replace, rogue: int) -> None:
    """Ask about another threshold than the digits say."""
    for name in ("_masked", "_zeros"):
        _by(Lane, name, _another_row)(replace, rogue)


# name: the deviation, and how the honest server says that it has seen it
ROWS: dict[str, tuple[Deviation, str]] = {
    "rank": (asking(_another_rank), "step 3 of lane"),
    "row": (_another_row_of_all, "step 3 of lane"),
    "masked": (_by(Lane, "_masked", _other_bits), "step 3 of lane"),
    "and": (_by(Lane, "_opened", _flipped), "step 3 of lane"),
    "last-and": (_by(Lane, "_opened", _last_flipped), "step 3 of lane"),
    "and-of-lane-1": (_by(Lane, "_opened", _flipped_on_lane_1), "step 3 of lane 1"),
    "and-guess": (_by(Lane, "_opened", _guessed), "step 3 of lane"),
    "last-sign": (_by(Lane, "_sign", _last_sign), "step 0 of lane"),
    "sum": (_by(Bisection, "_sums", _other_sum), "the sums of the clients' shares"),
    "sum-twice": (_by(Binder, "shift", _twice), "bind"),
    "mask": (_by(Binder, "shift", _other_mask), "the sums of the clients' shares"),
    "coin": (_coin, "committed"),
    "no": (_by(Opener, "tell", _no), "the sums of the clients' shares"),
    "no-bits": (_by(Lane, "_prove_bits", _no_bits), "random bits"),
    "cancel": (_cancel, "random bits 0 of lane"),
    "blocks": (_by(Prover, "commit", _wrong_blocks), "random bits"),
    "buckets": (_by(AndMaker, "combined", _buckets), "buckets of ANDs"),
}

# those that are not run between daemons
OF_PRODUCTS: dict[str, tuple[Deviation, str]] = {
    "another-bit": (_by(AndMaker, "combined", _another_bit), "buckets of ANDs"),
    "another-place": (_by(AndMaker, "combined", _another_place), "buckets of ANDs"),
    "last-mask": (_by(Opener, "exchange", _last_mask), "buckets of ANDs"),
}
