"""The inner loops of leaf tables: random 1-of-2^m OT from m random OTs, and its use online.

Everything is in bit planes, 64 items to a word. A table has 2^m chunks of `width` bits, and bit k
of chunk i is plane i width + k. In the planes of a block's keys the items' OTs 0 come first, then
their OTs 1, and so on. Tables of a tile of items are worked on in the first-level cache.
"""

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.packing import FULL

# Words of a plane that are worked on at once.
_TILE = 64


@kernel("u8[2] u8[2] i8 u8[2]!")
def combine_keys(keys0: Words, keys1: Words, width: int, tables: Words) -> None:
    """Combine the sender's keys into one table per item.

    keys0, keys1 (2^m width, m w); tables (2^m width, w). Chunk i of a table is the XOR over j of
    chunk i of keys_{i_j} of OT j, where i_j is bit j of i.
    """
    planes, words = tables.shape
    for plane in range(planes):
        chunk, out = plane // width, tables[plane]
        out[:] = 0
        for j in range(keys0.shape[1] // words):
            keys = keys1 if (chunk >> j) & 1 else keys0
            key = keys[plane, j * words : (j + 1) * words]
            for i in range(words):
                out[i] ^= key[i]


@callee
def _pick(near: Words, positions: Words, start: int, words: int, width: int) -> None:
    """Move the chunk at each position to the front of the tables in `near` (2^m width, ..).

    They are `words` words of them, whose positions (m, ..) begin at word `start`. The code does not
    branch on a position.
    """
    levels = positions.shape[0]
    for j in range(levels):
        chosen = positions[j, start : start + words]
        for to in range(width << (levels - 1 - j)):
            first = 2 * to - to % width
            even, odd, out = near[first], near[first + width], near[to]
            for i in range(words):
                out[i] = even[i] ^ ((even[i] ^ odd[i]) & chosen[i])


@kernel("u8[2] u8[2] u8[2]!")
def choose_chunks(keys: Words, choices: Words, pads: Words) -> None:
    """Write the pad of each table that the receiver knows: the chunk at its choices.

    keys (2^m width, m w), choices (m, w), pads (width, w).
    """
    width, words = pads.shape
    near = np.empty((keys.shape[0], _TILE), np.uint64)
    for start in range(0, words, _TILE):
        count = min(_TILE, words - start)
        for plane in range(keys.shape[0]):
            out = near[plane]
            out[:] = 0
            for j in range(choices.shape[0]):
                key = keys[plane, j * words + start : j * words + start + count]
                for i in range(count):
                    out[i] ^= key[i]
        _pick(near, choices, start, count, width)
        for k in range(width):
            pads[k, start : start + count] = near[k, :count]


@kernel("u8[2] u8[2] u8[2] u8[2] b1 b1 u8[2]!")
def reply_leaves(
    leaves: Words,
    requests: Words,
    tables: Words,
    shares: Words,
    greater: bool,
    equal: bool,
    out: Words,
) -> None:
    """Write the sender's masked messages, in reply to the requests.

    leaves, requests (m, w); tables, out (2^m width, w); shares (width, w), where the width is the
    number of messages. For each i, `greater` adds one of 1{leaf > i}, and `equal` one of 1{leaf =
    i}. Message i goes under its share and the table's chunk i ^ request.
    """
    levels, words = leaves.shape
    width, planes = shares.shape[0], out.shape[0]
    near = np.empty((planes, _TILE), np.uint64)
    same, above = np.empty((1 << levels, _TILE), np.uint64), np.empty(_TILE, np.uint64)
    for start in range(0, words, _TILE):
        count = min(_TILE, words - start)
        end = start + count
        for plane in range(planes):
            near[plane, :count] = tables[plane, start:end]
        for j in range(levels):
            moved, step = requests[j, start:end], width << j
            for plane in range(planes):
                if not plane // step & 1:
                    one, other = near[plane], near[plane + step]
                    for i in range(count):
                        swap = (one[i] ^ other[i]) & moved[i]
                        one[i] ^= swap
                        other[i] ^= swap
        # 1{leaf = i}, of ever more bits of the leaf
        same[0] = FULL
        for j in range(levels):
            bit = leaves[j, start:end]
            for low in range(1 << j):
                without, with_ = same[low], same[low + (1 << j)]
                for i in range(count):
                    with_[i] = without[i] & bit[i]
                    without[i] ^= with_[i]
        above[:] = 0
        for chunk in range((1 << levels) - 1, -1, -1):
            its, k = same[chunk], 0
            if greater:
                pad, share = near[chunk * width], shares[0, start:end]
                masked = out[chunk * width, start:end]
                for i in range(count):
                    masked[i] = above[i] ^ share[i] ^ pad[i]
                    above[i] ^= its[i]
                k = 1
            if equal:
                pad, share = near[chunk * width + k], shares[k, start:end]
                masked = out[chunk * width + k, start:end]
                for i in range(count):
                    masked[i] = its[i] ^ share[i] ^ pad[i]


@kernel("u8[2] u8[2] u8[2] u8[2]!")
def finish_leaves(leaves: Words, replies: Words, pads: Words, out: Words) -> None:
    """Write the receiver's shares: the message at its leaf, without the pad.

    leaves (m, w), replies (2^m width, w); pads, out (width, w).
    """
    width, words = out.shape
    near = np.empty((replies.shape[0], _TILE), np.uint64)
    for start in range(0, words, _TILE):
        count = min(_TILE, words - start)
        for plane in range(replies.shape[0]):
            near[plane, :count] = replies[plane, start : start + count]
        _pick(near, leaves, start, count, width)
        for k in range(width):
            got, pad = out[k, start : start + count], pads[k, start : start + count]
            for i in range(count):
                got[i] = near[k, i] ^ pad[i]
