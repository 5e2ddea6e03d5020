"""The inner loops on shares of dealt vectors: many entries of l bits in one machine word.

A vector of W entries of Z_2^l is K words, as a row of an array (vectors, K) of uint32 or uint64.
Entry j stands in word j // p at the bits [(j mod p) l, (j mod p) l + l), where p = `per_word` is a
power of two and W = K p <= 2^l. So an instruction works on p entries, and a rotation of the vector
is a rotation of its words. Packed, a vector is its entries 0..W-2 alone.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.kernels.jit import kernel

FULL = np.uint64(0xFFFFFFFFFFFFFFFF)


@kernel
def _ones(bits: int, per_word: int, step: int) -> np.uint64:
    """Return a word with 1 in each entry whose number is a multiple of `step`."""
    word = np.uint64(0)
    for entry in range(0, per_word, step):
        word |= np.uint64(1) << np.uint64(entry * bits)
    return word


@kernel
def _masks(bits: int, per_word: int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return the masks of the even entries, of the odd ones once moved down, and two shifts.

    The shifts are from odd entries to even ones, and from the last pair of entries to the first.
    """
    even = _ones(bits, per_word, 2) * (FULL >> np.uint64(64 - bits))
    if per_word == 1:
        return even, np.uint64(0), np.uint64(0), np.uint64(0)
    return even, even, np.uint64(bits), np.uint64((per_word - 2) * bits)


@kernel
def unpack_vectors(
    words: NDArray[np.uint64], bits: int, per_word: int, one: int, vectors: NDArray[Any]
) -> None:
    """Fill `vectors` from their entries 0..W-2, packed; the last entry is `one` minus their sum.

    Entries are summed in pairs, which have 2l bits each, so that no sum of up to 2^l of them
    carries into the next pair: the product with `pairs` has the total in the last pair.
    """
    even, odd, shift, last_pair = _masks(bits, per_word)
    pairs = _ones(bits, per_word, 2)
    entry = FULL >> np.uint64(64 - bits)
    last_word = vectors.shape[1] - 1
    place = np.uint64((per_word - 1) * bits)
    position = 0
    for i in range(vectors.shape[0]):
        total = np.uint64(0)
        for k in range(last_word + 1):
            width = per_word * bits if k < last_word else (per_word - 1) * bits
            value = np.uint64(0)
            if width > 0:
                offset = position & 63
                value = words[position >> 6] >> np.uint64(offset)
                if offset + width > 64:
                    value |= words[(position >> 6) + 1] << np.uint64(64 - offset)
                value &= FULL >> np.uint64(64 - width)
                total += (((value & even) + ((value >> shift) & odd)) * pairs) >> last_pair
            if k == last_word:
                value |= ((np.uint64(one) - total) & entry) << place
            vectors[i, k] = value
            position += width


@kernel
def _weights(bits: int, per_word: int) -> np.uint64:
    """Return the word whose product with pairs of entries has sum_q q s_q in its last pair."""
    word = np.uint64(0)
    for pair in range(per_word // 2):
        word |= np.uint64(pair) << np.uint64((per_word - 2 - 2 * pair) * bits)
    return word


@kernel
def pair(
    kept: NDArray[Any],
    others: NDArray[Any],
    order: NDArray[np.uint32],
    bits: int,
    per_word: int,
    chosen: NDArray[Any],
    turns: NDArray[np.uint8],
) -> None:
    """Give each kept vector its partners, the others in `order`, and compute their turns.

    turns[j] = y(v) - y(v') mod W, where v' is partner j, written to chosen[j], and v its kept
    vector. y = sum_j j v_j mod W is 2 sum_q q s_q + sum of the odd entries, over the pairs of
    entries s_q; each sum is one product, as in `unpack_vectors`.
    """
    even, odd, shift, last_pair = _masks(bits, per_word)
    pairs = _ones(bits, per_word, 2)
    weights = _weights(bits, per_word)
    words = kept.shape[1]
    slots = words * per_word
    half = pairs * np.uint64(max(1, slots // 2 - 1))
    top = np.uint64(slots - 1)
    partners = order.shape[0] // kept.shape[0]
    for i in range(kept.shape[0]):
        own = np.uint64(0)
        for k in range(words):
            value = np.uint64(kept[i, k])
            above = (value >> shift) & odd
            both = (value & even) + above
            own += (((both & half) * weights) >> last_pair) << np.uint64(1)
            own += (above * pairs) >> last_pair
            if k > 0:
                own += ((both * pairs) >> last_pair) * np.uint64(k * per_word)
        for j in range(i * partners, (i + 1) * partners):
            source = order[j]
            other = np.uint64(0)
            for k in range(words):
                value = np.uint64(others[source, k])
                chosen[j, k] = value
                above = (value >> shift) & odd
                both = (value & even) + above
                other += (((both & half) * weights) >> last_pair) << np.uint64(1)
                other += (above * pairs) >> last_pair
                if k > 0:
                    other += ((both * pairs) >> last_pair) * np.uint64(k * per_word)
            turns[j] = (own - other) & top


@kernel
def _turned(
    vectors: NDArray[Any], i: int, k: int, turn: np.uint64, log: np.uint64, bits: int, per_word: int
) -> np.uint64:
    """Return word k of vector i rotated up by `turn` entries."""
    words = vectors.shape[1]
    whole = np.int64(turn >> log)
    width = per_word * bits
    shift = (turn & np.uint64(per_word - 1)) * np.uint64(bits)
    high = np.uint64(vectors[i, (k - whole) & (words - 1)]) << shift
    low = np.uint64(vectors[i, (k - whole - 1) & (words - 1)])
    # in two steps, because a shift by 64 is none
    low = (low >> (np.uint64(width - 1) - shift)) >> np.uint64(1)
    return (high | low) & (FULL >> np.uint64(64 - width))


@kernel
def _log(per_word: int) -> np.uint64:
    log = 0
    while 1 << log < per_word:
        log += 1
    return np.uint64(log)


@kernel
def differences(
    kept: NDArray[Any],
    chosen: NDArray[Any],
    turns: NDArray[np.uint8],
    bits: int,
    per_word: int,
    negated: bool,
) -> None:
    """Overwrite each partner v' of a kept v with rot_t(v') - v, or with its negative."""
    tops = _ones(bits, per_word, 1) << np.uint64(bits - 1)
    log = _log(per_word)
    words = kept.shape[1]
    row = np.empty(words, chosen.dtype)
    partners = chosen.shape[0] // kept.shape[0]
    for i in range(kept.shape[0]):
        for j in range(i * partners, (i + 1) * partners):
            turn = np.uint64(turns[j])
            for k in range(words):
                one = _turned(chosen, j, k, turn, log, bits, per_word)
                other = np.uint64(kept[i, k])
                if negated:
                    one, other = other, one
                # top bits are subtracted without their borrow, so no borrow leaves its entry
                row[k] = ((one | tops) - (other & ~tops)) ^ ((one ^ ~other) & tops)
            # only now, because every word of a rotation takes two
            for k in range(words):
                chosen[j, k] = row[k]


@kernel
def add_turned(
    vectors: NDArray[Any],
    turns: NDArray[np.uint8],
    bits: int,
    per_word: int,
    totals: NDArray[Any],
) -> None:
    """Add each vector, rotated up by its turn, to its totals, entry by entry modulo 2^l."""
    tops = _ones(bits, per_word, 1) << np.uint64(bits - 1)
    log = _log(per_word)
    for i in range(vectors.shape[0]):
        turn = np.uint64(turns[i])
        for k in range(vectors.shape[1]):
            one = _turned(vectors, i, k, turn, log, bits, per_word)
            other = np.uint64(totals[i, k])
            totals[i, k] = ((one & ~tops) + (other & ~tops)) ^ ((one ^ other) & tops)


@kernel
def add_entries(
    vectors: NDArray[Any], bits: int, per_word: int, weight: np.uint64, out: NDArray[Any]
) -> None:
    """Add entry j of each vector i, times a weight, to out[j, i], for as many j as `out` has."""
    entry = FULL >> np.uint64(64 - bits)
    for j in range(out.shape[0]):
        shift = np.uint64(j % per_word * bits)
        k = j // per_word
        for i in range(out.shape[1]):
            out[j, i] += ((np.uint64(vectors[i, k]) >> shift) & entry) * weight


@kernel
def shuffle(order: NDArray[np.uint32], last: int, draws: NDArray[np.uint32]) -> int:
    """Go on with a Fisher-Yates shuffle of order[..last], and return where the draws ended.

    Each draw of 32 uniform bits gives a uniform number below last + 1, or is rejected (Lemire,
    Fast random integer generation in an interval, 2019).
    """
    for u in range(draws.shape[0]):
        if last < 1:
            break
        count = np.uint64(last + 1)
        product = np.uint64(draws[u]) * count
        low = product & np.uint64(0xFFFFFFFF)
        if low < count and low < (np.uint64(1 << 32) - count) % count:
            continue
        chosen = np.int64(product >> np.uint64(32))
        order[last], order[chosen] = order[chosen], order[last]
        last -= 1
    return last


@kernel
def set_ones(
    positions: NDArray[np.uint8], bits: int, slots: int, words: NDArray[np.uint64]
) -> None:
    """Set entry positions[i] of packed vector i to 1, unless it is the last one, left out."""
    for i in range(positions.shape[0]):
        position = np.int64(positions[i])
        if position < slots - 1:
            bit = (i * (slots - 1) + position) * bits
            words[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
