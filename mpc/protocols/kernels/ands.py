"""The loops of authenticated ANDs (`mpc.protocols.audit.ands`).

Of a leaky AND, a party keeps a record of eight words, one line of the cache, which buckets fetch
from anywhere:

    0, 1   MAC and key of x       2, 3   of y       4, 5   of r, and then of z
    6      S                      7      the shares of x, y, and z, lowest first
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Blocks, Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.native.fetching import fetch
from securemedian.mpc.protocols.kernels.native.processor import FETCHES

# Words of a record.
RECORD = 8
# How many buckets ahead their records are fetched.
AHEAD = 16


@callee
def _mask(word: np.uint64, i: int) -> np.uint64:
    """Return 64 times bit `i` of a word."""
    return np.uint64(0) - ((word >> np.uint64(i)) & np.uint64(1))


@callee
def _bit(words: Words, i: int) -> np.uint64:
    """Return bit `i` of packed bits."""
    return (words[i >> 6] >> np.uint64(i & 63)) & np.uint64(1)


@kernel("u8[2] u8[2] u8[2] u8[2] u8[2] u8[2] u8 u8[2]! u8[1]!")
def garble(
    own: Blocks,
    peers: Blocks,
    hash_own: Blocks,
    hash0: Blocks,
    hash1: Blocks,
    choices: Words,
    delta: np.uint64,
    records: Words,
    sent: Words,
) -> None:
    """Begin leaky ANDs, whose records have the MACs and keys of y and r: write the rest, and G.

    own (n, 2) are MACs of x, with their hashes; peers (n, 2) are keys, with theirs and those of
    them ^ Delta. choices (3, n/64) are the shares of x, y and r.
    """
    for word in range(choices.shape[1]):
        x_word, y_word, r_word = choices[0, word], choices[1, word], choices[2, word]
        for j in range(64):
            i = 64 * word + j
            record = records[i]
            x, y, r = _mask(x_word, j), _mask(y_word, j), _mask(r_word, j)
            c = (y & delta) ^ record[2] ^ record[3]
            record[0], record[1] = own[i, 0], peers[i, 0]
            record[6] = hash0[i, 0] ^ hash_own[i, 0] ^ (x & c)
            record[7] = (x & np.uint64(1)) | (y & np.uint64(2)) | (r & np.uint64(4))
            sent[i] = hash0[i, 0] ^ hash1[i, 0] ^ c


@kernel("u8[2]! u8[1] u8[1]!")
def mask_tops(records: Words, received: Words, tops: Words) -> None:
    """Finish S with the peer's G, and write the bits d: the top ones of S, masked with r."""
    for word in range(tops.shape[0]):
        found = np.uint64(0)
        for j in range(64):
            record = records[64 * word + j]
            s = record[6] ^ (_mask(record[7], 0) & received[64 * word + j])
            record[6] = s
            d = (s >> np.uint64(63)) ^ ((record[7] >> np.uint64(2)) & np.uint64(1))
            found |= d << np.uint64(j)
        tops[word] = found


@kernel("u8[2]! u8[1] i8 u8 u8[1]!")
def unmask(records: Words, opened: Words, number: int, delta: np.uint64, tests: Words) -> None:
    """Turn r into z with the opened sums of d, and write T."""
    for word in range(opened.shape[0]):
        for j in range(64):
            record = records[64 * word + j]
            d = _mask(opened[word], j)
            if number == 0:
                record[7] ^= d & np.uint64(4)
            else:
                record[5] ^= d & delta
            z = _mask(record[7], 2)
            tests[64 * word + j] = record[6] ^ (z & delta) ^ record[5] ^ record[4]


@kernel("u8[1] u4[2] u8[2]!")
def differ(shares: Words, buckets: NDArray[np.uint32], out: Words) -> None:
    """Write how the bit of the first of each bucket (B, n) differs from the others': (B - 1, n/64).

    Bits beyond the last bucket are 0.
    """
    count = buckets.shape[1]
    for k in range(out.shape[0]):
        for word in range(out.shape[1]):
            found = np.uint64(0)
            for j in range(min(64, count - 64 * word)):
                one, other = buckets[0, 64 * word + j], buckets[k + 1, 64 * word + j]
                bit = _bit(shares, one) ^ _bit(shares, other)
                found |= bit << np.uint64(j)
            out[k, word] = found


@kernel("u8[2] u4[2] u8[2] u8[2] u8 u1[2]! u8[2]! u8[2]! u8[2]! u8[2]!")
def combine(
    records: Words,
    buckets: NDArray[np.uint32],
    mine: Words,
    theirs: Words,
    delta: np.uint64,
    bits: Bits,
    macs: Words,
    keys: Words,
    proofs: Words,
    wanted: Words,
) -> None:
    """Make one AND of each bucket of leaky ones: x, y and z as rows of bits, MACs and keys (3, n).

    `mine` and `theirs` are what both opened of `differ`. proofs (B - 1, n) are the MACs of what
    this party opened, and `wanted` what those of the peer have to be.
    """
    size, count = buckets.shape
    flat, unit = records.reshape(-1), np.uint64(1)
    for i in range(count):
        if FETCHES and i + AHEAD < count:
            for k in range(size):
                fetch(flat, RECORD * np.int64(buckets[k, i + AHEAD]))
        word, j = i >> 6, i & 63
        # not a row of its own, because references to it would be counted
        first = RECORD * np.int64(buckets[0, i])
        for at in range(3):
            macs[at, i], keys[at, i] = flat[first + 2 * at], flat[first + 2 * at + 1]
        x_mac, x_key, z_mac, z_key = macs[0, i], keys[0, i], macs[2, i], keys[2, i]
        shares = flat[first + 7]
        for k in range(1, size):
            other = RECORD * np.int64(buckets[k, i])
            its = _mask(theirs[k - 1, word], j)
            d = _mask(mine[k - 1, word], j) ^ its
            proofs[k - 1, i] = flat[first + 2] ^ flat[other + 2]
            wanted[k - 1, i] = flat[first + 3] ^ flat[other + 3] ^ (its & delta)
            x_mac ^= flat[other]
            x_key ^= flat[other + 1]
            z_mac ^= flat[other + 4] ^ (d & flat[other])
            z_key ^= flat[other + 5] ^ (d & flat[other + 1])
            x = flat[other + 7] & unit
            shares ^= x ^ (flat[other + 7] & np.uint64(4)) ^ (d & (x << np.uint64(2)))
        macs[0, i], keys[0, i], macs[2, i], keys[2, i] = x_mac, x_key, z_mac, z_key
        for at in range(3):
            bits[at, i] = (shares >> np.uint64(at)) & unit


@kernel("u8[1] u8[1] u8[1] u8[1] u8[1] u8 u8 u8[1]! u8[1]!")
def authenticate(
    macs: Words,
    mask_macs: Words,
    keys: Words,
    mask_keys: Words,
    theirs: Words,
    delta: np.uint64,
    counted: np.uint64,
    proofs: Words,
    wanted: Words,
) -> None:
    """Write the MACs of the masked bits that this party opened, and what the peer's have to be.

    `theirs` are the bits that the peer opened, and `counted` has the bits of MACs that count.
    """
    for i in range(macs.shape[0]):
        its = _mask(theirs[i >> 6], i & 63) & delta
        proofs[i] = (macs[i] ^ mask_macs[i]) & counted
        wanted[i] = (keys[i] ^ mask_keys[i] ^ its) & counted


@kernel(*(f"{each}[1] {each}[1] {each}[1] u8[2] u8 {each}[1]!" for each in ("u1", "u8")))
def multiply(
    x: NDArray[Any],
    y: NDArray[Any],
    z: NDArray[Any],
    opened: Words,
    added: np.uint64,
    out: NDArray[Any],
) -> None:
    """Set out to z + e x + d y + d e `added`: bits, MACs or keys of products.

    opened (2, words) are d and e.
    """
    for i in range(out.shape[0]):
        d, e = _mask(opened[0, i >> 6], i & 63), _mask(opened[1, i >> 6], i & 63)
        out[i] = z[i] ^ (e & x[i]) ^ (d & y[i]) ^ (d & e & added)
