"""Random 1-of-2^m OT from m random 1-of-2 OTs, and how to use it.

Naor and Pinkas, CRYPTO 1999. The sender's pad at position i is XOR_j chunk i of r_{j, i_j}, where
i_j is bit j of i; the receiver, with c_j the choice of OT j, knows the keys r_{j, c_j} and so the
pad at position c alone. Every position takes its own chunk of the keys: XORing whole keys would
make four pads of two OTs sum to zero. Where 2^m chunks do not fit the 128 bits of a key, the keys
are first expanded by the hash of the extension, under tweaks of their own.

Online the receiver sends d = c ^ x (m bits, uniform) and the sender message i under pad i ^ d.
"""

import numpy as np

from securemedian.mpc import ring
from securemedian.mpc.arrays import Bits, Ring, Words
from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.kernels import tables as kernels
from securemedian.mpc.ot.extension import ALIGN, BLOCK, RandomOtReceiver, RandomOtSender


def slot_bits(width: int) -> int:
    """Return the bits that a chunk takes in a table.

    They are `width` rounded up to a power of two, so that no chunk spans two words. Raises
    LocalProtocolError for a width that is not 1 to 64.
    """
    if not 1 <= width <= 64:
        raise LocalProtocolError(f"a message has 1 to 64 bits, not {width}")
    return 1 << (width - 1).bit_length()


def table_words(index_bits: int, width: int) -> int:
    """Return the uint64 words of one table."""
    return -(-(slot_bits(width) << index_bits) // 64)


def block_items(index_bits: int, wanted: int) -> int:
    """Return how many tables to make from one block of OTs when `wanted` are still missing."""
    return min(_most_items(index_bits), -(-wanted // ALIGN) * ALIGN)


def _most_items(index_bits: int) -> int:
    return BLOCK // index_bits // ALIGN * ALIGN


def _masks(index_bits: int, width: int) -> Words:
    """Return masks[j, b], the bits of a table that belong to positions whose bit j is b."""
    slot = slot_bits(width)
    position = np.repeat(np.arange(1 << index_bits), slot)
    position = np.pad(position, (0, -position.size % 64), constant_values=-1)
    rows = [
        [
            np.packbits((position >= 0) & (position >> j & 1 == b), bitorder="little").view(
                np.uint64
            )
            for b in (0, 1)
        ]
        for j in range(index_bits)
    ]
    return np.array(rows)


def sender_tables(extension: RandomOtSender, index_bits: int, width: int, items: int) -> Words:
    """Make `items` (see `block_items`) random tables, shape (items, table_words)."""
    keys0, keys1 = extension.extend(items * index_bits)
    words = table_words(index_bits, width)
    if words > 2:
        keys0, keys1 = extension.expand(keys0, words // 2), extension.expand(keys1, words // 2)
    out = np.empty((items, words), np.uint64)
    kernels.combine_keys(keys0, keys1, _masks(index_bits, width), out)
    return out


def receiver_pads(
    extension: RandomOtReceiver, index_bits: int, width: int, items: int
) -> tuple[Bits, Ring]:
    """Make the receiver's side of `sender_tables`: random positions and the pads there."""
    choice_words, keys = extension.extend(items * index_bits)
    words = table_words(index_bits, width)
    if words > 2:
        keys = extension.expand(keys, words // 2)
    choices = np.empty(items, np.uint8)
    pads = np.empty(items, ring.dtype(width))
    kernels.choose_chunks(keys, choice_words, slot_bits(width), width, choices, pads)
    return choices, pads


class OneOfNSender:
    """The sender of chosen 1-of-2^m OTs that are made and used at once.

    1 <= m <= 8, and messages have 1 to 64 bits.
    """

    def __init__(self, channel: Channel, extension: RandomOtSender) -> None:
        self._channel, self._extension = channel, extension

    def send(self, messages: Ring, width: int) -> None:
        """Send the messages, a (count, 2^m) array: the receiver gets one per row."""
        count, positions = messages.shape
        index_bits = _index_bits(positions)
        slot = slot_bits(width)
        for start in range(0, count, _most_items(index_bits)):
            block = messages[start : start + _most_items(index_bits)]
            taken = len(block)
            tables = sender_tables(
                self._extension, index_bits, width, block_items(index_bits, taken)
            )[:taken]
            pads = ring.unpack(tables.reshape(-1), slot, tables.size * 64 // slot).reshape(
                taken, -1
            )
            request = self._channel.recv("one_of_n.request", np.uint8, (taken,))
            moved = np.arange(positions) ^ (request[:, None] & (positions - 1))
            self._channel.send(
                "one_of_n.reply", ring.pack(block ^ np.take_along_axis(pads, moved, axis=1), width)
            )


class OneOfNReceiver:
    """The receiver of what `OneOfNSender` sends."""

    def __init__(self, channel: Channel, extension: RandomOtReceiver) -> None:
        self._channel, self._extension = channel, extension

    def receive(self, choices: Bits, index_bits: int, width: int) -> Ring:
        """Return the message at each choice, 0..2^m - 1."""
        _index_bits(1 << index_bits)
        received = []
        for start in range(0, choices.size, _most_items(index_bits)):
            wanted = choices[start : start + _most_items(index_bits)]
            positions, pads = receiver_pads(
                self._extension, index_bits, width, block_items(index_bits, wanted.size)
            )
            self._channel.send("one_of_n.request", positions[: wanted.size] ^ wanted)
            words = ring.packed_words(wanted.size << index_bits, width)
            reply = ring.unpack(
                self._channel.recv("one_of_n.reply", np.uint64, (words,)),
                width,
                wanted.size << index_bits,
            )
            received.append(
                reply.reshape(wanted.size, -1)[np.arange(wanted.size), wanted] ^ pads[: wanted.size]
            )
        return np.concatenate(received) if received else np.empty(0, ring.dtype(width))


def _index_bits(positions: int) -> int:
    bits = positions.bit_length() - 1
    if positions != 1 << bits or not 1 <= bits <= 8:
        raise LocalProtocolError(f"1-of-N OT takes N = 2, 4, .., 256, not {positions}")
    return bits
