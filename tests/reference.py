"""Slow, plain definitions that the fast code is tested against.

They use Python integers and numpy, and nothing of mpc.
"""

import math
from fractions import Fraction

import numpy as np


def pack(values: list[int], bits: int) -> list[int]:
    """l-bit values as little-endian 64-bit words."""
    whole = sum((int(value) & ((1 << bits) - 1)) << (bits * i) for i, value in enumerate(values))
    return [(whole >> (64 * i)) & (2**64 - 1) for i in range(-(-len(values) * bits // 64))]


def fold(leaves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(rows, sum) of GGM leaves (q, w)."""
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
    """(children, XOR of each tree's left ones) of nodes (trees, width, 2)."""
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
