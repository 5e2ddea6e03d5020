"""The loops of authenticated ANDs (`mpc.protocols.audit.ands`).

Bits are bytes 0 and 1 where they have MACs, and packed where they are sent.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel

# Buckets that are filled at once: what comes of them stays in the cache.
_TILE = 1 << 10


@callee
def _mask(word: np.uint64, i: int) -> np.uint64:
    """Return 64 times bit `i` of a word."""
    return np.uint64(0) - ((word >> np.uint64(i)) & np.uint64(1))


@callee
def _spread(bit: np.uint8) -> np.uint64:
    """Return 64 times a bit."""
    return np.uint64(0) - np.uint64(bit)


@kernel("u1[1] u8[1] u8[1] u1[1] u8[1] u8[1] u8[1] u8 u8[1]! u8[1]!")
def garble(
    y: Bits,
    macs: Words,
    keys: Words,
    x: Bits,
    hash_own: Words,
    hash0: Words,
    hash1: Words,
    delta: np.uint64,
    s: Words,
    sent: Words,
) -> None:
    """Begin leaky ANDs: write what S is without the peer's G, and G.

    `macs` and `keys` are those of y; the hashes are of the MAC of x, of its key, and of that
    ^ Delta.
    """
    for i in range(s.shape[0]):
        c = (_spread(y[i]) & delta) ^ macs[i] ^ keys[i]
        s[i] = hash0[i] ^ hash_own[i] ^ (_spread(x[i]) & c)
        sent[i] = hash0[i] ^ hash1[i] ^ c


@kernel("u1[1] u1[1] u8[1] u8[1]! u8[1]!")
def mask_tops(x: Bits, r: Bits, received: Words, s: Words, tops: Words) -> None:
    """Finish S with the peer's G, and write the bits d: the top ones of S, masked with r."""
    for word in range(tops.shape[0]):
        found = np.uint64(0)
        for j in range(64):
            i = 64 * word + j
            s[i] ^= _spread(x[i]) & received[i]
            found |= ((s[i] >> np.uint64(63)) ^ np.uint64(r[i])) << np.uint64(j)
        tops[word] = found


@kernel("u8[1] i8 u8 u1[1]! u8[1] u8[1]! u8[1]!")
def unmask(
    opened: Words,
    number: int,
    delta: np.uint64,
    bits: Bits,
    macs: Words,
    keys: Words,
    s: Words,
) -> None:
    """Turn r into z with the opened sums of d, and S into T."""
    # d is added by party 0 to its shares, and by party 1 to its keys of these
    own, peers = np.uint64(number == 0), np.uint64(number) * delta
    for word in range(opened.shape[0]):
        for j in range(64):
            i = 64 * word + j
            d = _mask(opened[word], j)
            bits[i] ^= np.uint8(d & own)
            keys[i] ^= d & peers
            s[i] ^= (_spread(bits[i]) & delta) ^ keys[i] ^ macs[i]


@callee
def _add_row(
    x: Words,
    y: Words,
    z: Words,
    first: Words,
    d: Bits,
    its: Bits,
    delta: np.uint64,
    out_x: Words,
    out_z: Words,
    opened: Words,
) -> None:
    """Add a part of a row to what comes of its buckets, whose `first` y are given."""
    for i in range(x.shape[0]):
        out_x[i] ^= x[i]
        out_z[i] ^= z[i] ^ (_spread(d[i]) & x[i])
        opened[i] = first[i] ^ y[i] ^ (_spread(its[i]) & delta)


@kernel("u8[2] u8[2] u8[2] i8[1] u1[2] u1[2] u8 u8[2]! u8[2]!")
def combine(
    x: Words,
    y: Words,
    z: Words,
    turns: NDArray[np.int64],
    d: Bits,
    its: Bits,
    delta: np.uint64,
    out: Words,
    opened: Words,
) -> None:
    """Make one AND of each bucket of leaky ones: MACs, or keys, of x, y and z (3, n).

    Those of leaky ANDs are rows (B, n), of which each is turned. d (B - 1, n) are the opened sums
    of y, and `its` the peer's part of them. `opened` becomes the MACs of what this party opened, or
    what those of the peer have to be: these need `delta`, which is 0 for MACs.
    """
    size, count = x.shape
    for start in range(0, count, _TILE):
        stop = min(start + _TILE, count)
        out[0, start:stop], out[1, start:stop] = x[0, start:stop], y[0, start:stop]
        out[2, start:stop] = z[0, start:stop]
        for k in range(1, size):
            at = start
            while at < stop:
                begin = (at + turns[k]) % count
                width = min(stop - at, count - begin)
                end, to = begin + width, at + width
                _add_row(
                    x[k, begin:end],
                    y[k, begin:end],
                    z[k, begin:end],
                    y[0, at:to],
                    d[k - 1, at:to],
                    its[k - 1, at:to],
                    delta,
                    out[0, at:to],
                    out[2, at:to],
                    opened[k - 1, at:to],
                )
                at = to


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
    count = macs.shape[0]
    for word in range(theirs.shape[0]):
        packed = theirs[word]
        for j in range(min(64, count - 64 * word)):
            i = 64 * word + j
            proofs[i] = (macs[i] ^ mask_macs[i]) & counted
            wanted[i] = (keys[i] ^ mask_keys[i] ^ (_mask(packed, j) & delta)) & counted


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
    count = out.shape[0]
    for word in range(opened.shape[1]):
        first, second = opened[0, word], opened[1, word]
        for j in range(min(64, count - 64 * word)):
            i = 64 * word + j
            d, e = _mask(first, j), _mask(second, j)
            out[i] = z[i] ^ (e & x[i]) ^ (d & y[i]) ^ (d & e & added)
