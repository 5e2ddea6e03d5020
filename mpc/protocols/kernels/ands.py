"""The loops of authenticated ANDs (`mpc.protocols.audit.ands`).

Bits are bytes 0 and 1 where they have MACs, and packed where they are sent.
"""

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


@kernel("u8[2] u8[2] u8[2] i8[1] u1[2] u1[2] u8 i8 u8[2]! u8[2]!")
def combine(
    x: Words,
    y: Words,
    z: Words,
    turns: NDArray[np.int64],
    d: Bits,
    its: Bits,
    delta: np.uint64,
    begin: int,
    out: Words,
    opened: Words,
) -> None:
    """Make one AND of each bucket of leaky ones: MACs, or keys, of x, y and z (3, n).

    Those of leaky ANDs are rows (B, N), of which each is turned. d (B - 1, N) are the opened sums
    of y, and `its` the peer's part of them. `opened` becomes the MACs of what this party opened, or
    what those of the peer have to be: these need `delta`, which is 0 for MACs. The buckets are
    those from `begin` on.
    """
    size, count = x.shape
    for start in range(begin, begin + out.shape[1], _TILE):
        stop = min(start + _TILE, begin + out.shape[1])
        first = start - begin
        last = stop - begin
        out[0, first:last], out[1, first:last] = x[0, start:stop], y[0, start:stop]
        out[2, first:last] = z[0, start:stop]
        for k in range(1, size):
            at = start
            while at < stop:
                turned = (at + turns[k]) % count
                width = min(stop - at, count - turned)
                end, to, near = turned + width, at + width, at - begin
                _add_row(
                    x[k, turned:end],
                    y[k, turned:end],
                    z[k, turned:end],
                    y[0, at:to],
                    d[k - 1, at:to],
                    its[k - 1, at:to],
                    delta,
                    out[0, near : near + width],
                    out[2, near : near + width],
                    opened[k - 1, near : near + width],
                )
                at = to


@kernel("u8[2]! u8[1] u1[1] u1[1] u8 u8")
def mask_products(
    factors: Words, k: Words, opened: Bits, its: Bits, delta: np.uint64, counted: np.uint64
) -> None:
    """Turn z into x (x + k), and y into MACs of k + x + y, of factors x, y, z (3, n).

    The sums are `opened`, and `its` the peer's part of them. Or keys, and what the peer's MACs have
    to be, for which there is a `delta`. `counted` has the bits of MACs that count.
    """
    x, y, z = factors[0], factors[1], factors[2]
    for i in range(k.shape[0]):
        y[i] = (k[i] ^ x[i] ^ y[i] ^ (_spread(its[i]) & delta)) & counted
        z[i] ^= _spread(opened[i]) & x[i]


@kernel("u8[2]! u8[1] u1[1] u1[1] u8 u8 u8 u8")
def unmask_products(
    factors: Words,
    k: Words,
    opened: Bits,
    its: Bits,
    whose: np.uint64,
    added: np.uint64,
    delta: np.uint64,
    counted: np.uint64,
) -> None:
    """Turn x (x + k) into a b for k = a + b, and x into MACs of a + x, which is `opened`.

    `whose` is all ones if k are the halves of a, and else 0. `added` is that of one.
    """
    x, z = factors[0], factors[2]
    for i in range(k.shape[0]):
        x[i] = (x[i] ^ (k[i] & whose) ^ (_spread(its[i]) & delta)) & counted
        z[i] ^= _spread(opened[i]) & (k[i] ^ added)


@callee
def _joined(low: np.uint32, high: np.uint16) -> np.uint64:
    """Return a word of its low 32 bits and 16 more."""
    return np.uint64(low) | np.uint64(high) << np.uint64(32)


@kernel("u8[1] u4[1] u2[1] u8[1] u8[1] u8 u8 u8 u8[1]!")
def authenticate(
    carry: Words,
    low: NDArray[np.uint32],
    high: NDArray[np.uint16],
    k: Words,
    theirs: Words,
    whose: np.uint64,
    delta: np.uint64,
    counted: np.uint64,
    out: Words,
) -> None:
    """Write MACs of c + x + a, for the sums k of a and b, or what those of the peer have to be.

    `low` and `high` are the parts of x. `theirs` are the bits that the peer opened, packed, and
    `whose` and `delta` are as in `unmask_products`.
    """
    count = carry.shape[0]
    for word in range(theirs.shape[0]):
        packed = theirs[word]
        for j in range(min(64, count - 64 * word)):
            i = 64 * word + j
            mac = carry[i] ^ _joined(low[i], high[i]) ^ (k[i] & whose)
            out[i] = (mac ^ (_mask(packed, j) & delta)) & counted


@kernel("u8[2] u4[1] u2[1] u4[1] u2[1] u8[1] u8 u8[1]!")
def add_product(
    public: Words,
    low: NDArray[np.uint32],
    high: NDArray[np.uint16],
    low_x: NDArray[np.uint32],
    high_x: NDArray[np.uint16],
    k: Words,
    added: np.uint64,
    carry: Words,
) -> None:
    """Add w + s x + p k + r to a carry, for public bits s, p and r: MACs or keys.

    Those of w and x come in two parts, and `added` is that of one.
    """
    count = carry.shape[0]
    for word in range(public.shape[1]):
        first, second, third = public[0, word], public[1, word], public[2, word]
        for j in range(min(64, count - 64 * word)):
            i = 64 * word + j
            found = _joined(low[i], high[i]) ^ (_mask(first, j) & _joined(low_x[i], high_x[i]))
            carry[i] ^= found ^ (_mask(second, j) & k[i]) ^ (_mask(third, j) & added)
