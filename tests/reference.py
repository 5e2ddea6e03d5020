"""Slow, plain definitions that the fast code is tested against.

They use Python integers and numpy, and nothing of mpc.
"""

import math
from fractions import Fraction

import numpy as np


def pack(values: list[int], bits: int) -> list[int]:
    """Return l-bit values as little-endian 64-bit words."""
    whole = sum((int(value) & ((1 << bits) - 1)) << (bits * i) for i, value in enumerate(values))
    return [(whole >> (64 * i)) & (2**64 - 1) for i in range(-(-len(values) * bits // 64))]


def fold(leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (rows, sum) of GGM leaves (q, w)."""
    q = len(leaves)
    rows = [
        np.bitwise_xor.reduce([leaves[x] for x in range(q) if x >> j & 1], axis=0)
        for j in range(q.bit_length() - 1)
    ]
    return np.array(rows), np.bitwise_xor.reduce(leaves, axis=0)


def columns(rows: np.ndarray) -> np.ndarray:
    """Turn (128, w) bit rows into one (low, high) pair of words per column."""
    bits = np.unpackbits(
        np.ascontiguousarray(rows).view(np.uint8), axis=1, bitorder="little"
    ).reshape(128, -1)
    return np.ascontiguousarray(np.packbits(bits.T, axis=1, bitorder="little")).view(np.uint64)


def planes(values: list[int], count: int) -> list[list[int]]:
    """Bit k of every value, packed 64 per word: one row per k."""
    return [pack([value >> k & 1 for value in values], 1) for k in range(count)]


def half_tree_level(parents: np.ndarray, lefts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (children, XOR of each tree's left ones) of nodes (trees, width, 2)."""
    return np.concatenate([lefts, parents ^ lefts], axis=1), np.bitwise_xor.reduce(lefts, axis=1)


def local_code(leaves: np.ndarray, secrets: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Each leaf without its bit 0 ^ the secrets that its row of 32-bit draws points to."""
    rows = []
    for leaf, row in zip(leaves.tolist(), draws.tolist(), strict=True):
        total = [leaf[0] >> 1 << 1, leaf[1]]
        for draw in row:
            secret = secrets[draw * len(secrets) >> 32].tolist()
            total = [total[0] ^ secret[0], total[1] ^ secret[1]]
        rows.append(total)
    return np.array(rows, np.uint64)


def signed_sums(signs: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the sketches of vectors (n, dim) by signs (groups, rows), modulo 2^64.

    A byte has which of four coordinates are added, and then which are subtracted.
    """
    rows = []
    for vector in vectors.tolist():
        totals = [0] * signs.shape[1]
        for place, value in enumerate(vector):
            group, bit = divmod(place, 4)
            for row, byte in enumerate(signs[group].tolist()):
                totals[row] += value * ((byte >> bit & 1) - (byte >> bit + 4 & 1))
        rows.append([total % 2**64 for total in totals])
    return np.array(rows, np.uint64)


def rank_element(values: np.ndarray, rank: int) -> np.ndarray:
    """Return the element of 1-based rank in each column."""
    return np.sort(values, axis=0)[rank - 1]


def lower_median(values: np.ndarray) -> np.ndarray:
    return rank_element(values, math.ceil(len(values) / 2))


def weighted_median(values: np.ndarray, weights: list[int]) -> np.ndarray:
    """Return each column's lower median with every value repeated as often as it weighs."""
    return lower_median(np.repeat(values, weights, axis=0))


def trimmed_sum(values: np.ndarray, ends: int) -> list[int]:
    """Return each column's sum without its `ends` smallest and largest, in whole numbers."""
    kept = np.sort(values, axis=0)[ends : len(values) - ends]
    return [sum(int(value) for value in column) for column in kept.T]


def bucketed_median(buckets: np.ndarray, count: int) -> np.ndarray:
    """Return min {y : H(y) >= ceil(n/2)} from the histogram, column by column."""
    need = math.ceil(len(buckets) / 2)
    result = []
    for column in buckets.T:
        histogram = [int((column <= y).sum()) for y in range(count)]
        result.append(next(y for y in range(count) if histogram[y] >= need))
    return np.array(result)


def fixed_point(x: float, bits: int, fraction_bits: int) -> int:
    """F2I with exact arithmetic."""
    top = 1 << (bits - 2)
    if math.isinf(x):
        return top - 1 if x > 0 else -top
    return max(-top, min(top - 1, math.floor(Fraction(x) * 2**fraction_bits)))


def bucket(w: float, g: float, width: float, buckets: int) -> int:
    """Bucketize as protocols.md writes it, in float64."""
    low, high = g - width / 2, g + width / 2
    if w <= low:
        return 0
    if w >= high:
        return buckets - 1
    return max(1, min(buckets - 2, math.floor((w - low) / (width / (buckets - 2))) + 1))


class Short(Exception):
    """There are too few random words."""


def discrete_gaussian(words: list[int], p: int, q: int, count: int) -> tuple[list[int], int]:
    """Return samples of N_Z(0, (p/q)^2), until the words are too few, and how many were used."""
    at = used = 0
    samples: list[int] = []

    def below(bound: int) -> int:
        nonlocal at
        while bound > 1:
            if at >= len(words):
                raise Short
            at += 1
            if (found := words[at - 1] % (1 << (bound - 1).bit_length())) < bound:
                return found
        return 0

    def exp(n_times: int, *chances: int) -> bool:
        """Toss with a chance of exp(-x), x = the product of the chances / p, over n_times."""
        n = 1
        while below(n_times * n) == 0 and all(below(p) < chance for chance in chances):
            n += 1
        return n % 2 == 1

    def sample() -> int:
        while True:
            k = 0
            while exp(2):
                k += 1
            if not all(exp(2) for _ in range(k * (k - 1))):
                continue
            u = -p * k % q + q * below(-(-p // q))
            if u >= p or not all(exp(1, u) for _ in range(k)) or not exp(2, u, u):
                continue
            size = (p * k + u) // q
            assert (p * k + u) % q == 0
            if not below(2):
                return size
            if size:
                return -size

    try:
        while len(samples) < count:
            samples.append(sample())
            used = at
    except Short:
        pass
    return samples, used


def weighed(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the sums of the carry-less products of rows (r, w) and weights (w,): (r, 2)."""
    sums = []
    for row in rows.tolist():
        total = 0
        for word, weight in zip(row, weights.tolist(), strict=True):
            while weight:
                # the lowest bit that is set
                lowest = weight & -weight
                total ^= word * lowest
                weight ^= lowest
        sums.append([total % 2**64, total >> 64])
    return np.array(sums, np.uint64)


def in_field(low: int, high: int) -> int:
    """Return a polynomial modulo x^64 + x^4 + x^3 + x + 1, bit by bit."""
    value = high << 64 | low
    for bit in range(127, 63, -1):
        if value >> bit & 1:
            value ^= (1 << 64 | 0b11011) << bit - 64
    return value
