"""The arithmetic of ring elements in bit planes, 64 to a word, which the radix median uses.

Plane k of elements of Z_2^l has bit k of each of them. So an adder of logic gates adds 64 elements
at once, and a product with a bit is an AND. The elements of a client stand in `words` words of each
plane, and those of the next client follow. Planes of several ranks stand one above the other, l for
each. Carries are kept for the words of a tile.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import RINGS, callee, kernel
from securemedian.mpc.protocols.kernels.native.processor import SLICES
from securemedian.mpc.protocols.kernels.native.slicing import word_of_key_planes, word_of_planes
from securemedian.mpc.protocols.kernels.packing import FULL as FULL

# Words of a plane that are added at once: few enough for the first-level cache, in all planes.
_TILE = 64


@kernel(*(f"{ring}[1] u8[2]!" for ring in RINGS))
def split(values: NDArray[Any], planes: Words) -> None:
    """Set bit j of planes[k, i] to bit k of values[64 i + j]; missing bits are 0."""
    flat, words, count = planes.reshape(-1), planes.shape[1], planes.shape[0]
    near = np.zeros(64, values.dtype)
    for i in range(words):
        some = values[64 * i : 64 * i + 64]
        if some.shape[0] < 64:
            near[: some.shape[0]] = some
            some = near
        if SLICES:
            word_of_planes(some, count, flat[i:], words)
        else:
            gather(some, planes[:, i])


@callee
def gather(values: NDArray[Any], out: Words) -> None:
    """Set out[k] to bit k of each of 64 values, as one word."""
    for k in range(out.shape[0]):
        word = np.uint64(0)
        for j in range(64):
            word |= ((values[j] >> np.uint64(k)) & np.uint64(1)) << np.uint64(j)
        out[k] = word


@kernel("u8[2] u8[2]!")
def split_keys(keys: Words, planes: Words) -> None:
    """Set bit j of planes[k, i] to bit k of keys[64 i + j, 0]."""
    flat, out, words = keys.reshape(-1), planes.reshape(-1), planes.shape[1]
    for i in range(words):
        if SLICES:
            word_of_key_planes(flat[128 * i :], planes.shape[0], out[i:], words)
        else:
            # side by side, so that all planes are taken from the registers
            gather(keys[64 * i : 64 * i + 64, 0].copy(), planes[:, i])


@kernel(*(f"u8[2] {ring}[1]!" for ring in RINGS))
def join(planes: Words, values: NDArray[Any]) -> None:
    """Undo `split`."""
    near = np.empty(64, np.uint64)
    for i in range(planes.shape[1]):
        near[:] = 0
        for k in range(planes.shape[0]):
            word = planes[k, i]
            for j in range(64):
                near[j] |= ((word >> np.uint64(j)) & np.uint64(1)) << np.uint64(k)
        for j in range(min(64, values.shape[0] - 64 * i)):
            values[64 * i + j] = near[j]


@callee
def _sum(one: np.uint64, other: np.uint64, carry: np.uint64) -> np.uint64:
    """Return one plane of a sum."""
    return one ^ other ^ carry


@callee
def _carry(one: np.uint64, other: np.uint64, carry: np.uint64) -> np.uint64:
    """Return what the plane carries to the next."""
    return (one & other) | (carry & (one ^ other))


@kernel("u8[2]! u8[2] u8[2] u8[1] u8[1] u8[2] u8[2] i8 i8 u8[2]!")
def reply(
    flags: Words,
    products: Words,
    opened: Words,
    zeros: Words,
    requests: Words,
    keys0: Words,
    keys1: Words,
    at: int,
    bits: int,
    replies: Words,
) -> None:
    """Bring the flags up to date, and write the sender's replies.

    A flag c becomes c - e where the last bit was opened as 1, and otherwise e, with e its product.
    The reply is (1 - 2 z) c + r'_0 - r'_1, with r'_i the key i ^ request and z the own share of the
    bit in `zeros`. The keys begin at word `at` of each plane.
    """
    ranks, words = opened.shape
    carries = np.empty((4, _TILE), np.uint64)
    for rank in range(ranks):
        for client in range(zeros.shape[0] // words):
            for start in range(0, words, _TILE):
                count = min(_TILE, words - start)
                begin = client * words + start
                end = begin + count
                one, z, d = (
                    opened[rank, start : start + count],
                    zeros[begin:end],
                    requests[begin:end],
                )
                rest, turned, first, second = carries[0], carries[1], carries[2], carries[3]
                rest[:], first[:], second[:] = FULL, 0, FULL
                turned[:count] = z
                for k in range(rank * bits, (rank + 1) * bits):
                    c, e, r0, r1 = (
                        flags[k, begin:end],
                        products[k, begin:end],
                        keys0[k, at + begin : at + end],
                        keys1[k, at + begin : at + end],
                    )
                    out = replies[k, begin:end]
                    for i in range(count):
                        flag, product = c[i], e[i]
                        left = _sum(flag, ~product, rest[i])
                        rest[i] = _carry(flag, ~product, rest[i])
                        flag = product ^ (one[i] & (product ^ left))
                        c[i] = flag
                        signed = flag ^ z[i]
                        delta = signed ^ turned[i]
                        turned[i] &= signed
                        swap = (r0[i] ^ r1[i]) & d[i]
                        pad0, pad1 = r0[i] ^ swap, r1[i] ^ swap
                        masked = _sum(delta, pad0, first[i])
                        first[i] = _carry(delta, pad0, first[i])
                        out[i] = _sum(masked, ~pad1, second[i])
                        second[i] = _carry(masked, ~pad1, second[i])


@kernel("u8[2] u8[2] u8[1] u8[1] u8[2] u8[2] u8[2] i8 u8[2] u8[1] i8 u8[2]! u8[2]! u8[2]!")
def finish(
    flags: Words,
    opened: Words,
    zeros: Words,
    requests: Words,
    keys0: Words,
    keys1: Words,
    keys: Words,
    at: int,
    replies: Words,
    weights: Words,
    bits: int,
    products: Words,
    below: Words,
    reached: Words,
) -> None:
    """Write the shares of the products, and add them up on top of the counts.

    A product's share is z (c + reply) + r_x - r'_0, with r_x the receiver's key. The keys begin at
    word `at` of each plane. `below` becomes what was `reached` where the last bit was opened as 1,
    and `reached` becomes `below` plus the products of all clients, each as often as the client
    weighs.
    """
    ranks, words = opened.shape
    carries = np.empty((3, _TILE), np.uint64)
    for rank in range(ranks):
        low = rank * bits
        for start in range(0, words, _TILE):
            stop = min(start + _TILE, words)
            count = stop - start
            one = opened[rank, start:stop]
            for k in range(low, low + bits):
                least, most = below[k, start:stop], reached[k, start:stop]
                for i in range(count):
                    least[i] ^= (least[i] ^ most[i]) & one[i]
                    most[i] = least[i]
            for client in range(zeros.shape[0] // words):
                begin = client * words + start
                end = begin + count
                z, d = zeros[begin:end], requests[begin:end]
                first, second, third = carries[0], carries[1], carries[2]
                first[:], second[:], third[:] = 0, 0, FULL
                for k in range(low, low + bits):
                    c, r0, r1, key = (
                        flags[k, begin:end],
                        keys0[k, at + begin : at + end],
                        keys1[k, at + begin : at + end],
                        keys[k, at + begin : at + end],
                    )
                    got, e = replies[k, begin:end], products[k, begin:end]
                    for i in range(count):
                        own = z[i] & _sum(c[i], got[i], first[i])
                        first[i] = _carry(c[i], got[i], first[i])
                        both = _sum(own, key[i], second[i])
                        second[i] = _carry(own, key[i], second[i])
                        pad0 = r0[i] ^ ((r0[i] ^ r1[i]) & d[i])
                        e[i] = _sum(both, ~pad0, third[i])
                        third[i] = _carry(both, ~pad0, third[i])
                for shift in range(bits):
                    if not (weights[client] >> np.uint64(shift)) & np.uint64(1):
                        continue
                    first[:] = 0
                    for k in range(low + shift, low + bits):
                        total, e = reached[k, start:stop], products[k - shift, begin:end]
                        for i in range(count):
                            before, added = total[i], e[i]
                            total[i] = _sum(before, added, first[i])
                            first[i] = _carry(before, added, first[i])
