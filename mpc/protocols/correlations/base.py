"""Kinds of correlation, the demand of a computation for each, and the stock."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.ot.extension import ALIGN, BLOCK, RandomOtReceiver, RandomOtSender
from securemedian.mpc.protocols.prg import Stream

# The halves of some items at one party: parallel arrays, whose last axis counts the items.
Half = tuple[NDArray[Any], ...]
HandedOut = TypeVar("HandedOut")


@dataclass(frozen=True)
class Ends:
    """A party's means to make halves: its ends of OT extension, the channel, its own randomness."""

    channel: Channel
    sender: RandomOtSender
    receiver: RandomOtReceiver
    randomness: Stream


class Kind(ABC, Generic[HandedOut]):
    """A kind of correlation: how its halves are made, how large they are, and what is handed out.

    A kind is a frozen dataclass of the few numbers that tell it from others of its class. An item
    has a half at the OT sender and one at the OT receiver. The pool (`correlations.pool`) asks
    both parties for the same blocks of the same kinds in the same order:

    - `send` makes the sender's half of a block, `receive` the receiver's. Each calls `extend` of
      its end once, with the same count at both parties, and moves no other messages.
    - `correct`, where the kind is `corrected`, turns what `send` made into the sender's half, and
      sends a correction. `finish` receives it, and turns what `receive` made into the receiver's.
      Both follow the check of the OTs, for a correction is made of their keys.
    - `hand_out` turns halves from the stock into what a protocol takes. It moves no messages.
    """

    # whether `correct` sends a correction, which `finish` takes
    corrected: ClassVar[bool] = False

    @property
    @abstractmethod
    def ots(self) -> int:
        """Return the random OTs that an item takes."""

    @property
    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """Return the bytes that an item takes in stock, at the sender and at the receiver."""

    @abstractmethod
    def send(self, ends: Ends, items: int) -> Half:
        """Make the sender's half of a block of `items`, without its correction."""

    @abstractmethod
    def receive(self, ends: Ends, items: int) -> Half:
        """Make the receiver's half of a block of `items`, without its correction."""

    def correct(self, ends: Ends, half: Half) -> Half:
        """Return the complete half of the sender: `half` itself, for kinds without correction."""
        return half

    def finish(self, ends: Ends, half: Half) -> Half:
        """Return the complete half of the receiver: `half` itself, for kinds without correction."""
        return half

    @abstractmethod
    def hand_out(self, party_id: int, sent: Half, received: Half) -> HandedOut:
        """Return what a protocol takes, made of halves of both roles.

        `sent` was made as the OT sender and `received` as the receiver. Their numbers of items may
        differ, unless the kind says otherwise.
        """

    def block(self, missing: int) -> int:
        """Return the items of the next block when `missing` are missing.

        It depends on the kind and the number alone, so it is the same at both parties.
        """
        return min(BLOCK // self.ots // self._step * self._step, self._rounded(missing))

    @property
    def _step(self) -> int:
        """Return how many items, of one OT or of a multiple of 64, are a multiple of ALIGN OTs."""
        return ALIGN // min(self.ots, 64)

    def _rounded(self, items: int) -> int:
        return -(-items // self._step) * self._step

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return the place of the kind in the order in which both parties make kinds."""
        return type(self).__name__, *vars(self).values()


class PackedKind(Kind[HandedOut]):
    """A kind whose items are 64 OTs each, of which it makes bit planes, all that are missing."""

    ots = 64

    def block(self, missing: int) -> int:
        return self._rounded(missing)


class Demand:
    """The number of items of each kind that a computation needs.

    `counts[kind][j]` counts those of which party j is the OT sender.
    """

    def __init__(self, counts: Mapping[Kind[Any], tuple[int, int]] | None = None) -> None:
        self.counts: dict[Kind[Any], tuple[int, int]] = dict(counts or {})

    def __add__(self, other: "Demand") -> "Demand":
        total = dict(self.counts)
        for kind, (zero, one) in other.counts.items():
            have = total.get(kind, (0, 0))
            total[kind] = (have[0] + zero, have[1] + one)
        return Demand(total)

    def __mul__(self, times: int) -> "Demand":
        return Demand(
            {kind: (zero * times, one * times) for kind, (zero, one) in self.counts.items()}
        )

    @property
    def ots(self) -> int:
        """Return the OTs that all of it takes, in both directions together."""
        return sum(kind.ots * sum(counts) for kind, counts in self.counts.items())

    @property
    def memory(self) -> int:
        """Return the bytes that all of it takes in stock, at the party where it takes more."""
        zero, one = (
            sum(
                kind.memory[0] * counts[j] + kind.memory[1] * counts[1 - j]
                for kind, counts in self.counts.items()
            )
            for j in (0, 1)
        )
        return max(zero, one)


class Stock:
    """A queue of halves of items, which are handed out from the front."""

    def __init__(self) -> None:
        self._pieces: list[Half] = []
        self.count = 0

    def put(self, half: Half) -> None:
        """Add items at the end."""
        self._pieces.append(half)
        self.count += half[0].shape[-1]

    def take(self, count: int) -> Half:
        """Take `count` items from the stock. Raises LocalProtocolError if there are fewer."""
        if count > self.count:
            raise LocalProtocolError(
                f"{count} correlations asked for, {self.count} in stock: reserve first"
            )
        taken: list[Half] = []
        self.count -= count
        while count > 0 or not taken:
            piece = self._pieces[0]
            size = piece[0].shape[-1]
            if size > count:
                taken.append(tuple(array[..., :count] for array in piece))
                self._pieces[0] = tuple(array[..., count:] for array in piece)
                break
            taken.append(self._pieces.pop(0))
            count -= size
        if len(taken) == 1:
            return taken[0]
        return tuple(np.concatenate(arrays, axis=-1) for arrays in zip(*taken, strict=True))
