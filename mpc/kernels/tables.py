"""The inner loops of leaf tables: random 1-of-2^m OT from m random OTs, and its use online.

A table holds 2^m chunks in the low bits of its words, chunk i in bits [i s, (i+1) s), where
s = `slot` is a power of two. Item `a` of `count` uses the OTs a, a + count, .., a + (m-1) count of
its block, so that neighbours in a row belong to neighbouring items.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.kernels.jit import kernel


@kernel
def combine_keys(
    keys0: NDArray[np.uint64],
    keys1: NDArray[np.uint64],
    masks: NDArray[np.uint64],
    out: NDArray[Any],
) -> None:
    """Combine the sender's keys into one table per item.

    keys0, keys1 (m count, >= W); out (count, W). Chunk i of a table is XOR_j chunk i of keys_{i_j}
    of OT j, where i_j is bit j of i. masks (m, 2, W) tell which chunks have i_j = 0 and which 1.
    """
    count, words = out.shape
    for word in range(words):
        for item in range(count):
            table = np.uint64(0)
            for j in range(masks.shape[0]):
                at = j * count + item
                table ^= (keys0[at, word] & masks[j, 0, word]) | (
                    keys1[at, word] & masks[j, 1, word]
                )
            out[item, word] = table


@kernel
def choose_chunks(
    keys: NDArray[np.uint64],
    choice_words: NDArray[np.uint64],
    slot: int,
    width: int,
    choices: NDArray[np.uint8],
    pads: NDArray[Any],
) -> None:
    """Write what the receiver knows of each table: one position and the pad there.

    choices[a] = sum_j c_j 2^j, with c_j the choice of OT j, and pads[a] = XOR_j chunk choices[a] of
    its key of OT j, of `width` bits.
    """
    count = pads.shape[0]
    levels = keys.shape[0] // count
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - width)
    for item in range(count):
        choice = 0
        for j in range(levels):
            at = j * count + item
            choice |= int((choice_words[at >> 6] >> np.uint64(at & 63)) & np.uint64(1)) << j
        position = choice * slot
        pad = np.uint64(0)
        for j in range(levels):
            pad ^= keys[j * count + item, position >> 6]
        choices[item] = choice
        pads[item] = (pad >> np.uint64(position & 63)) & mask


@kernel
def request_leaves(
    values: NDArray[Any],
    shift: int,
    pads: NDArray[np.uint8],
    leaf_mask: int,
    out: NDArray[np.uint8],
) -> None:
    """Write the receiver's requests, choice ^ leaf.

    leaf = (value >> shift) & leaf_mask has at most 4 bits, as many as the choice, which is in the
    low bits of a pad.
    """
    s = np.uint64(shift)
    m = np.uint64(leaf_mask)
    for i in range(values.shape[0]):
        out[i] = (np.uint64(pads[i]) ^ (np.uint64(values[i]) >> s)) & m


@kernel
def _shuffle(table: np.uint64, request: np.uint64, slot: int) -> np.uint64:
    """Return a table whose chunk i is chunk i ^ request of the given one.

    A table has up to 16 chunks of 1 or 2 bits. There is no branch on the request.
    """
    one, two, three, four, eight, sixteen = (
        np.uint64(1),
        np.uint64(2),
        np.uint64(3),
        np.uint64(4),
        np.uint64(8),
        np.uint64(16),
    )
    if slot == 1:
        m1, m2, m4, m8 = np.uint64(0x5555), np.uint64(0x3333), np.uint64(0x0F0F), np.uint64(0x00FF)
        s1, s2, s4, s8 = one, two, four, eight
    else:
        m1, m2, m4, m8 = (
            np.uint64(0x33333333),
            np.uint64(0x0F0F0F0F),
            np.uint64(0x00FF00FF),
            np.uint64(0x0000FFFF),
        )
        s1, s2, s4, s8 = two, four, eight, sixteen
    zero = np.uint64(0)
    pick = zero - (request & one)
    t = (table ^ (table >> s1)) & m1 & pick
    table ^= t | (t << s1)
    pick = zero - ((request >> one) & one)
    t = (table ^ (table >> s2)) & m2 & pick
    table ^= t | (t << s2)
    pick = zero - ((request >> two) & one)
    t = (table ^ (table >> s4)) & m4 & pick
    table ^= t | (t << s4)
    pick = zero - ((request >> three) & one)
    t = (table ^ (table >> s8)) & m8 & pick
    return table ^ t ^ (t << s8)


@kernel
def reply_one(
    values: NDArray[Any],
    shift: int,
    leaf_mask: int,
    less: int,
    tables: NDArray[Any],
    requests: NDArray[np.uint8],
    shares: NDArray[np.uint64],
    out: NDArray[Any],
) -> None:
    """Write the sender's masked messages of 1 bit per chunk, in reply to the requests.

    Message i is share ^ 1{leaf > i} where `less` is 1 and share ^ 1{leaf = i} where it is 0, under
    the table's pad i ^ request: 2^leaf has the bit i = leaf, 2^leaf - 1 the bits i < leaf. `shares`
    are packed.
    """
    every = np.uint64(0xFFFF)
    m = np.uint64(leaf_mask)
    for word in range(shares.shape[0]):
        packed = shares[word]
        for bit in range(min(64, values.shape[0] - 64 * word)):
            i = 64 * word + bit
            leaf = (np.uint64(values[i]) >> np.uint64(shift)) & m
            message = (np.uint64(1) << leaf) - np.uint64(less)
            share = (packed >> np.uint64(bit)) & np.uint64(1)
            out[i] = (
                _shuffle(np.uint64(tables[i]), np.uint64(requests[i]), 1)
                ^ message
                ^ (every & (np.uint64(0) - share))
            )


@kernel
def reply_both(
    values: NDArray[Any],
    shift: int,
    tables: NDArray[np.uint32],
    requests: NDArray[np.uint8],
    greater_shares: NDArray[np.uint64],
    equal_shares: NDArray[np.uint64],
    out: NDArray[np.uint32],
) -> None:
    """Write masked messages as `reply_one` does, for 4-bit leaves and with 2 bits per chunk.

    The low bit of chunk i is for 1{leaf > i}, the high one for 1{leaf = i}.
    """
    low, high = np.uint64(0x55555555), np.uint64(0xAAAAAAAA)
    for word in range(greater_shares.shape[0]):
        greater_bits, equal_bits = greater_shares[word], equal_shares[word]
        for bit in range(min(64, values.shape[0] - 64 * word)):
            i = 64 * word + bit
            leaf = np.uint64(2) * ((np.uint64(values[i]) >> np.uint64(shift)) & np.uint64(15))
            message = (((np.uint64(1) << leaf) - np.uint64(1)) & low) ^ (np.uint64(2) << leaf)
            greater = (greater_bits >> np.uint64(bit)) & np.uint64(1)
            equal = (equal_bits >> np.uint64(bit)) & np.uint64(1)
            message ^= (low & (np.uint64(0) - greater)) ^ (high & (np.uint64(0) - equal))
            out[i] = _shuffle(np.uint64(tables[i]), np.uint64(requests[i]), 2) ^ message


@kernel
def finish_leaves(
    values: NDArray[Any],
    shift: int,
    leaf_bits: int,
    slot: int,
    pads: NDArray[np.uint8],
    replies: NDArray[Any],
    out: NDArray[np.uint64],
) -> None:
    """Write the receiver's shares, packed.

    Bit i of out[k] is bit k of (chunk `leaf` of reply i) ^ pad i, for k < slot; unused bits are 0.
    Pad i stands above the choice in pads[i].
    """
    count = values.shape[0]
    m = (np.uint64(1) << np.uint64(leaf_bits)) - np.uint64(1)
    for k in range(slot):
        above = np.uint64(leaf_bits + k)
        for word in range(out.shape[1]):
            found = np.uint64(0)
            for bit in range(min(64, count - 64 * word)):
                i = 64 * word + bit
                leaf = (np.uint64(values[i]) >> np.uint64(shift)) & m
                chunk = np.uint64(replies[i]) >> (leaf * np.uint64(slot) + np.uint64(k))
                pad = np.uint64(pads[i]) >> above
                found |= ((chunk ^ pad) & np.uint64(1)) << np.uint64(bit)
            out[k, word] = found
