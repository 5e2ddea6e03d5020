"""The discrete Gaussian over the integers, drawn exactly: uniform whole numbers and comparisons.

N_Z(0, (p/q)^2) has the whole number y with a chance proportional to exp(-(q y / p)^2 / 2). With
q |y| = p k + u for whole numbers k and 0 <= u < p that is

    exp(-k^2 / 2) * exp(-u / p)^k * exp(-(u / p)^2 / 2),

so k is drawn with the first factor, and u uniformly from those that make p k + u a multiple of q.
Both are kept with the chance of the other two (Karney, ACM TOMS 42 (2016), algorithm D). It is the
distribution of Canonne, Kamath and Steinke (NeurIPS 2020). Their coins have the chance exp(-x) for
a fraction x, which is never multiplied out: no number is as large as p^2.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel

# The largest p and q.
MAX_P, MAX_Q = 1 << 54, 1 << 31


@kernel("u8[1] i8 i8 i8[1]!")
def draw(words: Words, p: int, q: int, out: NDArray[np.int64]) -> tuple[int, int]:
    """Overwrite the first samples of `out`; return how many, and how many random words they took.

    It stops before the first sample for which the words do not suffice. Called again with the words
    that were left and more, it goes on with the samples that enough words would have given at once.

    1 <= p <= MAX_P, 1 <= q <= MAX_Q. Nothing overflows. Because k > 64 has a chance below 2^-2900,
    p k + u < 2^61. Both factors of each product modulo q are below q, and q steps < p + q.
    """
    # the place of the next word; one more than there are once one was missing
    at = np.zeros(1, np.int64)
    steps = (p + q - 1) // q
    used = 0
    for i in range(out.size):
        while at[0] <= words.size:
            k = _whole(words, at)
            u = (q - p % q * (k % q) % q) % q + q * _below(words, at, steps)
            if u >= p or not _kept(words, at, u, p, k):
                continue
            size = (p * k + u) // q
            negative = _below(words, at, 2) == 1
            # zero has one sign
            if size or not negative:
                out[i] = -size if negative else size
                break
        if at[0] > words.size:
            return i, used
        used = at[0]
    return out.size, used


@callee
def _whole(words: Words, at: NDArray[np.int64]) -> int:
    """Return k >= 0 with a chance proportional to exp(-k^2 / 2)."""
    while at[0] <= words.size:
        k = 0
        while at[0] <= words.size and _half(words, at):
            k += 1
        # k has a chance of exp(-k / 2) so far
        left = k * (k - 1)
        while left and _half(words, at):
            left -= 1
        if not left:
            return k
    return 0


@callee
def _kept(words: Words, at: NDArray[np.int64], u: int, p: int, k: int) -> bool:
    """Toss a coin with a chance of exp(-u / p)^k exp(-(u / p)^2 / 2)."""
    for _ in range(k):
        # as in `_half`, with x = u / p
        n = 1
        while _below(words, at, n) == 0 and _below(words, at, p) < u:
            n += 1
        if n % 2 == 0:
            return False
    n = 1
    while _below(words, at, 2 * n) == 0 and _below(words, at, p) < u and _below(words, at, p) < u:
        n += 1
    return n % 2 == 1


@callee
def _half(words: Words, at: NDArray[np.int64]) -> bool:
    """Toss a coin with a chance of exp(-1/2).

    Say that coins of chances x, x/2, .., x/(n-1) all fell, and one of x/n did not. Then n is odd
    with a chance of exp(-x) (Canonne, Kamath and Steinke, algorithm 1).
    """
    n = 1
    while _below(words, at, 2 * n) == 0:
        n += 1
    return n % 2 == 1


@callee
def _below(words: Words, at: NDArray[np.int64], bound: int) -> Any:
    """Return a uniform whole number below `bound`, or `bound` if the words do not suffice."""
    if bound == 1:
        return 0
    # the least 2^b - 1 that is at least bound - 1
    mask = np.uint64(bound - 1)
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    while at[0] < words.size:
        # signed, because a kernel adds signed and unsigned numbers in float64
        found = np.int64(words[at[0]] & mask)
        at[0] += 1
        if found < bound:
            return found
    at[0] = words.size + 1
    return bound
