"""Decide whether bits that somebody sees are uniform, whatever they are seen beside.

Bits are jointly uniform, and independent of other bits, exactly in one case. Each XOR of a
non-empty set of them, with or without any of the others, must be 0 as often as 1. This is
Vazirani's XOR lemma. `check_uniform` looks at all of these parities at once: bits alone, small
values, the correlation with each secret bit, and every linear relation between them.

Items are independent. A parity over n items of an honest protocol therefore strays from even by t n
with probability at most 2 exp(-n t^2 / 2). This is Hoeffding's bound, or Azuma's, if an item is
seen beside the next one. The bound for t is solved for a false alarm, in any of the parities of a
run of all tests, in one run of `1 / FALSE_ALARM`. A parity that is constant strays by 1, far beyond
the bound: it is caught with certainty.
"""

import math
from collections.abc import Iterator, Mapping

import numpy as np

# of all parities that a process looks at
FALSE_ALARM = 1e-9
# that it may look at: counted, and more is an error
PARITIES = 1 << 32
_looked_at = 0

Columns = Mapping[str, np.ndarray]


class Leak(AssertionError):
    """Bits that are not uniform, or depend on what they must not depend on."""


def allowed(items: int) -> float:
    """Return the largest |share of zeros - share of ones| of a parity that passes."""
    return math.sqrt(2 * math.log(2 * PARITIES / FALSE_ALARM) / items)


def check_uniform(seen: Columns, known: Columns | None = None) -> None:
    """Raise Leak unless the columns `seen` are uniform together and independent of `known`.

    Columns: 0/1 arrays of equal length, one entry per item; `known` may have any distribution.
    Raises ValueError where there are too few items for a constant parity to be caught, or more than
    22 columns.
    """
    columns = {**seen, **(known or {})}
    if len(columns) > 22:
        raise ValueError(f"{len(columns)} columns: at most 22 are judged together")
    index = np.zeros(len(next(iter(columns.values()))), np.int64)
    for place, column in enumerate(columns.values()):
        index |= (column.reshape(-1).astype(np.int64) & 1) << place
    _check_parities(np.bincount(index, minlength=1 << len(columns)), list(columns), len(seen))


def _check_parities(counts: np.ndarray, names: list[str], seen: int) -> None:
    """Raise Leak unless every parity with some of the first `seen` of the named places is even.

    `counts[x]`: items whose bits are those of x.
    """
    global _looked_at
    items = int(counts.sum())
    if allowed(items) >= 1:
        raise ValueError(f"{items} items are too few for a constant bit to be caught")
    _looked_at += counts.size - (counts.size >> seen)
    if _looked_at > PARITIES:
        raise ValueError(f"more than {PARITIES} parities: false alarms are more likely than said")
    sums = _walsh(counts)
    # parities of what is known alone are what they are
    sums[:: 1 << seen] = 0
    worst = int(np.argmax(np.abs(sums)))
    stray = sums[worst] / items
    if abs(stray) > allowed(items):
        parity = " ^ ".join(name for place, name in enumerate(names) if worst >> place & 1)
        raise Leak(
            f"{parity} is {int(stray < 0)} in {(1 + abs(stray)) / 2:.1%} of {items} items "
            f"(at most {(1 + allowed(items)) / 2:.1%} is uniform)"
        )


def _walsh(counts: np.ndarray) -> np.ndarray:
    """Return per set S of places the sum over x of counts[x] (-1)^(XOR of x's bits in S)."""
    sums, half = counts.astype(np.int64), 1
    while half < sums.size:
        pairs = sums.reshape(-1, 2, half)
        sums = np.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), axis=1).reshape(-1)
        half *= 2
    return sums


def bits_of(name: str, values: np.ndarray, first: int, stop: int) -> dict[str, np.ndarray]:
    """Return bits first..stop-1 of values as columns."""
    wide = values.reshape(-1).astype(np.uint64)
    return {
        f"{name}[{bit}]": (wide >> np.uint64(bit) & np.uint64(1)).astype(np.uint8)
        for bit in range(first, stop)
    }


def windows(
    name: str, values: np.ndarray, width: int, size: int = 6
) -> Iterator[dict[str, np.ndarray]]:
    """Yield all bits of `width`-bit values, `size` neighbouring ones at a time."""
    for first in range(0, width, size):
        yield bits_of(name, values, first, min(first + size, width))


def beside_the_next(columns: Columns) -> dict[str, np.ndarray]:
    """Return each column next to itself one and 64 items on.

    A mask repeated in a word, or from word to word, would show there.
    """
    return {
        name + after: column[lag : len(column) - 64 + lag]
        for name, column in columns.items()
        for after, lag in (("", 0), (" of the next item", 1), (" of the next word", 64))
    }


def looks_uniform(data: np.ndarray) -> bool:
    """Tell whether the bytes of an array are uniform, alone and beside the next byte."""
    values = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    pairs = values[:-1] | values[1:].astype(np.uint16) << np.uint16(8)
    names = [f"{byte}[{bit}]" for byte in ("byte", "next") for bit in range(8)]
    try:
        _check_parities(np.bincount(pairs, minlength=1 << 16), names, 16)
    except Leak:
        return False
    return True
