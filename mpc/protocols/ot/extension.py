"""The contract of the two ends of random OT extension, whichever protocol runs between them.

Per OT, the sender learns two random keys of 128 bits, the receiver learns a random choice bit and
the key of that choice, and neither learns more. Both ends must be asked for the same counts in the
same order. The messages carry no counts, and an end waits for exactly those that its peer sends for
the same call.

If OTs are to be checked before their keys are used, the ends call in this order. For each portion
of OTs the receiver calls `seal`, the sender `challenge`, the receiver `weigh`. After the last one
the receiver calls `prove`, the sender `verify`. An extension that checks nothing moves no messages
there, and a portion without OTs moves none.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.kernels import planes as kernels
from securemedian.mpc.protocols.kernels.native.processor import LINE
from securemedian.mpc.protocols.prg import Entropy, os_entropy

# `extend` makes a multiple of ALIGN OTs, so that a row of a block is whole AES blocks.
ALIGN = 128
# The most OTs that one call of `extend` makes: AES calls so long that the call itself costs
# nothing, and rows short enough for the cache. A row is an odd number of cache lines, so that a
# column of rows does not fall on the same few cache sets.
BLOCK = 255 * 512


@dataclass(frozen=True)
class Direction:
    """One direction of one lane, at either end of its extension."""

    channel: Channel
    session: bytes = field(repr=False)
    lane: int
    # the party that sends
    sender: int
    native_aes: bool = True
    entropy: Entropy = os_entropy

    @property
    def tweaks(self) -> np.uint64:
        """Return the upper word of the tweaks, which is below 2^32, because lanes have 16 bits."""
        return np.uint64(2 * self.lane + self.sender)


class RandomOtEnd(ABC):
    """One end of an extension: what the sender and the receiver have in common.

    `sender_speaks`  tells which end sends in `extend`: the sender if it is true, otherwise the
                     receiver. The end that speaks never waits in `extend`; the other waits for its
                     messages.
    `index`          counts the OTs made so far; it is the same at both ends after the same calls.
    `left`           counts the OTs that `extend` gives before it next sends or waits.
    """

    sender_speaks: bool
    index: int = 0
    left: int = 0

    @property
    def ots(self) -> int:
        """Return the OTs made so far, hashed or not."""
        return self.index

    def prepare(self) -> None:
        """Exchange what both ends must have before the first `extend`, if there is anything.

        `extend` does so itself if it was not done before. Here the receiver sends and the sender
        waits, if the sender speaks in `extend`. So a party that is the receiver in one direction
        and the sender in the other prepares the first before it extends the second.
        """
        return


class RandomOtSender(RandomOtEnd):
    """The end that makes two random keys per OT, and has a secret Delta, which never leaves it."""

    @abstractmethod
    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        """Return the keys of choice 0 and of choice 1 of `count` OTs, each (count, 2).

        The next call overwrites what this one returned. Raises LocalProtocolError unless `count` is
        a positive multiple of ALIGN, up to BLOCK.
        """

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        """Return bits 0..`width`-1 of the keys of as many OTs in bit planes (width, count/64).

        `count` is a positive multiple of ALIGN, and may be more than BLOCK, so that no copies are
        made. It takes the messages of `extend` of as many blocks.
        """
        planes0, planes1 = (np.empty((width, count // 64), np.uint64) for _ in range(2))
        for words in blocks_of(count):
            keys0, keys1 = self.extend(64 * (words.stop - words.start))
            planes0[:, words] = bit_planes(keys0, width)
            planes1[:, words] = bit_planes(keys1, width)
        return planes0, planes1

    def challenge(self) -> None:
        """End a portion: challenge the receiver, once all its messages of `extend` are in."""
        return

    def verify(self) -> None:
        """Wait for the answer to all challenges. Raises PeerProtocolError if it is wrong."""
        return


class RandomOtReceiver(RandomOtEnd):
    """The end that makes a random choice bit per OT, and the key of that choice."""

    @abstractmethod
    def extend(self, count: int) -> tuple[Words, Blocks]:
        """Return the packed choices (count/64,) and the chosen keys (count, 2) of `count` OTs.

        Counts and lifetimes are as for the sender.
        """

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        """Return the packed choices, and the chosen keys in bit planes, as the sender does."""
        choices = np.empty(count // 64, np.uint64)
        planes = np.empty((width, choices.size), np.uint64)
        for words in blocks_of(count):
            choices[words], keys = self.extend(64 * (words.stop - words.start))
            planes[:, words] = bit_planes(keys, width)
        return choices, planes

    def seal(self) -> None:
        """End a portion of OTs, the first of a check with some that are for this alone."""
        return

    def weigh(self) -> None:
        """Wait for the challenge of the portion that is sealed, and weigh what it has kept."""
        return

    def prove(self) -> None:
        """Answer all challenges."""
        return


def blocks_of(count: int) -> Iterator[slice]:
    """Yield the words of each block of `count` OTs, of which `extend` makes one at a time."""
    # the last, which alone may have a size that none can have
    checked_block(count % BLOCK or min(count, BLOCK))
    for first in range(0, count, BLOCK):
        yield slice(first // 64, min(first + BLOCK, count) // 64)


def bit_planes(keys: Blocks, width: int) -> Words:
    """Return bits 0..`width`-1 of every key, packed: (width, len(keys) / 64)."""
    planes = np.empty((width, len(keys) // 64), np.uint64)
    kernels.split_keys(keys, planes)
    return planes


def checked_block(count: int) -> int:
    """Return `count`. Raises LocalProtocolError if `extend` makes no blocks of so many OTs."""
    if count <= 0 or count % ALIGN or count > BLOCK:
        raise LocalProtocolError(
            f"extend takes a positive multiple of {ALIGN} up to {BLOCK}, not {count}"
        )
    return count


class Scratch:
    """Memory by name, each piece as large as was ever asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, Words] = {}

    def array(self, name: str, *shape: int) -> Words:
        """Return a contiguous array over the memory of a name, which still holds what was there."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            # no vector that is written from a line's first word on lies in two lines
            memory = np.empty(size + LINE // 8, np.uint64)
            first = -memory.ctypes.data % LINE // 8
            self._memory[name] = memory[first : first + size]
        return self._memory[name][:size].reshape(shape)
