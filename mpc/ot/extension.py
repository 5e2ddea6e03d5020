"""Random OT extension: what its two ends promise, whichever protocol is between them.

An extension makes millions of random 1-of-2 OTs in one direction of one lane. Of each OT the sender
learns two random keys of 128 bits, the receiver a random choice bit and the key of that choice, and
neither learns more. `softspoken` and `ferret` are the two extensions; `mpc.plan` has ends that only
note what is asked of them.

Both ends must be asked for the same counts in the same order: the messages between them carry no
counts, and an end waits for exactly the messages that its peer sends for the same call.
"""

from abc import ABC, abstractmethod

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.errors import LocalProtocolError

# `extend` makes a multiple of ALIGN OTs, so that a row of a block is whole AES blocks.
ALIGN = 128
# The most OTs that one call of `extend` makes: AES calls long enough to cost nothing beside their
# work, rows short enough for the cache. A row is an odd number of cache lines, so that a column of
# rows does not fall on the same few cache sets.
BLOCK = 255 * 512


class RandomOtEnd(ABC):
    """One end of an extension: what the sender and the receiver have in common.

    `sender_speaks`  tells which end sends in `extend`: the sender if it is true, else the receiver.
                     The end that speaks never waits in `extend`, the other waits for its messages.
    `index`          counts the OTs made so far; it is the same at both ends after the same calls.
    `left`           counts the OTs that `extend` gives before it next sends or waits.
    """

    sender_speaks: bool
    index: int = 0
    left: int = 0

    def prepare(self) -> None:
        """Exchange what both ends must have before the first `extend`, if there is such a thing.

        `extend` does so itself where it was not done. Where the sender speaks in `extend`, the
        receiver sends and the sender waits here, so that a party which is the receiver of one
        direction and the sender of the other prepares the first before it extends the second.
        """
        return

    @abstractmethod
    def expand(self, keys: Blocks, blocks: int) -> Words:
        """Return (count, 2 `blocks`) words for each key of the last `extend`, which `keys` holds.

        For those to whom 128 bits per OT are too few. They look random to who lacks the key, and
        both ends get the same ones from the same key. Sends nothing.
        """


class RandomOtSender(RandomOtEnd):
    """The end that makes two random keys per OT. Holds a secret Delta, which never leaves it."""

    @abstractmethod
    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        """Return the keys of choice 0 and of choice 1 of `count` OTs, each (count, 2).

        `count` is a positive multiple of ALIGN up to BLOCK, or it is a LocalProtocolError. The next
        call overwrites what this one returned.
        """


class RandomOtReceiver(RandomOtEnd):
    """The end that makes a random choice bit per OT, and the key of that choice."""

    @abstractmethod
    def extend(self, count: int) -> tuple[Words, Blocks]:
        """Return the packed choices (count/64,) and the chosen keys (count, 2) of `count` OTs.

        Counts and lifetimes are as for the sender.
        """


def checked_block(count: int) -> int:
    """Return `count` if `extend` makes blocks of so many OTs, else raise LocalProtocolError."""
    if count <= 0 or count % ALIGN or count > BLOCK:
        raise LocalProtocolError(
            f"extend takes a positive multiple of {ALIGN} up to {BLOCK}, not {count}"
        )
    return count
