"""What a kind of correlation is, how much of each a computation demands, and what is in stock."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.ot import one_of_n
from securemedian.mpc.ot.extension import RandomOtReceiver, RandomOtSender
from securemedian.mpc.prg import Stream

# One half of some items: parallel arrays, whose last axis counts the items.
Half = tuple[NDArray[Any], ...]
HandedOut = TypeVar("HandedOut")


@dataclass(frozen=True)
class Ends:
    """Hold what a party makes its halves with.

    Its ends of both directions' OT extension, the channel to the other party, and randomness of its
    own.
    """

    channel: Channel
    sender: RandomOtSender
    receiver: RandomOtReceiver
    randomness: Stream


class Kind(ABC, Generic[HandedOut]):
    """A kind of correlation: how its halves are made, how large they are, and what is handed out.

    A kind is a frozen dataclass of the few numbers that tell it from others of its class. An item
    has a half at the OT sender and one at the OT receiver. The pool (`mpc.correlations.pool`) asks
    both parties for the same blocks of the same kinds in the same order:

    - `send` makes the sender's half of a block, `receive` the receiver's. Each calls `extend` of
      its end once, with the same count at both parties. `send` may send a correction for the block
      after that; it receives nothing of its own.
    - `finish` turns what `receive` made into the receiver's half, once the peer has called `send`
      for the block. It is here that the correction is received. It sends nothing.
    - `hand_out` turns halves out of the stock into what a protocol takes. It moves no messages.
    """

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
        """Make the sender's half of a block of `items`."""

    @abstractmethod
    def receive(self, ends: Ends, items: int) -> Half:
        """Make the receiver's half of a block of `items`, but for its correction."""

    def finish(self, ends: Ends, half: Half) -> Half:
        """Return the receiver's half, complete: here `half` itself, which lacks nothing."""
        return half

    @abstractmethod
    def hand_out(self, party_id: int, sent: Half, received: Half) -> HandedOut:
        """Return what a protocol takes, of halves of both roles.

        `sent` were made as the OT sender and `received` as the receiver; the two need not be of the
        same number, unless the kind says so.
        """

    def block(self, missing: int) -> int:
        """Return the items of the next block when `missing` are missing.

        It is a function of the kind and the number alone, so it is the same at both parties.
        """
        return one_of_n.block_items(self.ots, missing)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Return the place of the kind in the order in which both parties make kinds."""
        return type(self).__name__, *vars(self).values()


class Demand:
    """Say how many items of each kind a computation needs.

    `counts[kind][j]` are those of which party j is the OT sender.
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
        """Return the OTs for all of it, both directions."""
        return sum(kind.ots * sum(counts) for kind, counts in self.counts.items())

    @property
    def memory(self) -> int:
        """Return the bytes that the stock of it takes, at the party where it takes more."""
        zero, one = (
            sum(
                kind.memory[0] * counts[j] + kind.memory[1] * counts[1 - j]
                for kind, counts in self.counts.items()
            )
            for j in (0, 1)
        )
        return max(zero, one)


class Stock:
    """Queue halves of items, which are handed out from the front."""

    def __init__(self) -> None:
        self._pieces: list[Half] = []
        self.count = 0

    def put(self, half: Half) -> None:
        """Add items at the end."""
        self._pieces.append(half)
        self.count += half[0].shape[-1]

    def take(self, count: int) -> Half:
        """Return `count` items; they leave the stock before they are returned.

        Raises LocalProtocolError where there are fewer.
        """
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
