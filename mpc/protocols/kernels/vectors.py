"""The inner loops on shares of dealt vectors, with many entries of l bits in one machine word.

A vector of W entries of Z_2^l is K words: a column of an array (K, vectors) of uint32 or uint64.
Entry j stands in word j // p at the bits [(j mod p) l, (j mod p) l + l). Here p = `per_word` is a
power of two and W = K p <= 2^l. So one instruction works on p entries, and a rotation of the vector
is a rotation of its words. Packed, a vector is its entries 0..W-2 alone.

Each loop does one thing to all vectors, word by word, which is what compilers turn into vector
instructions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.kernels.jit import RINGS, callee, kernel
from securemedian.mpc.protocols.kernels.native.dealt import unpack_vectors
from securemedian.mpc.protocols.kernels.native.fetching import fetch, fetch_to_write
from securemedian.mpc.protocols.kernels.native.processor import FETCHES, LINE
from securemedian.mpc.protocols.kernels.packing import FULL, minus

# Machine words of vectors.
WORDS = ("u4", "u8")
# Vectors that a loop works on while they are in the cache.
BLOCK = 1 << 10
# How many vectors ahead `gather` fetches: more than it jumps among at a time.
AHEAD = 1 << 14


@callee
def _ones(bits: int, per_word: int, step: int) -> np.uint64:
    """Return a word with 1 in each entry whose number is a multiple of `step`."""
    word = np.uint64(0)
    for entry in range(0, per_word, step):
        word |= np.uint64(1) << np.uint64(entry * bits)
    return word


@callee
def _pairs(bits: int, per_word: int) -> tuple[np.uint64, np.uint64, np.uint64, np.uint64]:
    """Return what turns a word into p/2 pairs of entries, 2l bits each.

    It is the mask of even entries, the mask of odd ones once they are moved down, how far that is,
    and where the last pair stands. Sums of up to 2^l entries do not leave a pair.
    """
    even = _ones(bits, per_word, 2) * (FULL >> np.uint64(64 - bits))
    if per_word == 1:
        return even, np.uint64(0), np.uint64(0), np.uint64(0)
    return even, even, np.uint64(bits), np.uint64((per_word - 2) * bits)


@callee
def weights(bits: int, per_word: int, words: int) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return what pairs of entries are multiplied with and masked by: ones, numbers, halves.

    The product of pairs with `ones` has the sum of all pairs where the last pair stands, that with
    `numbers` sum_q q s_q over the pairs s_q. Of these, only the bits in `halves` matter modulo W/2.
    """
    half = np.uint64(max(1, words * per_word // 2 - 1))
    numbers = np.uint64(0)
    for pair in range(per_word // 2):
        numbers |= np.uint64(pair) << np.uint64((per_word - 2 - 2 * pair) * bits)
    ones = _ones(bits, per_word, 2)
    return ones, numbers, ones * half


@callee
def _unpack(
    words: Words,
    start: int,
    bits: int,
    per_word: int,
    rest: Words,
    vectors: NDArray[Any],
    to: int,
    count: int,
) -> None:
    """Set `count` vectors from `to` on to the packed ones from `start` on.

    Their last entry is `rest`, which is overwritten, minus the sum of the others. The product of a
    word's pairs of entries with `ones` has the sum of all pairs in the last.
    """
    even, odd, down, last_pair = _pairs(bits, per_word)
    ones = _ones(bits, per_word, 2)
    entry = FULL >> np.uint64(64 - bits)
    last = vectors.shape[0] - 1
    top = np.uint64((per_word - 1) * bits)
    step = np.uint64(((last + 1) * per_word - 1) * bits)
    end = np.uint64(words.shape[0] - 1)
    six, low, unit = np.uint64(6), np.uint64(63), np.uint64(1)
    for k in range(last + 1):
        width = per_word * bits if k < last else (per_word - 1) * bits
        mask = FULL >> np.uint64(64 - width) if width > 0 else np.uint64(0)
        position = np.uint64(start) * step + np.uint64(k * per_word * bits)
        row = vectors[k, to : to + count]
        # those whose next word there is, and without asking for it the others
        whole = min(count, max(0, (64 * int(end) - int(position) + int(step) - 1) // int(step)))
        for i in range(whole):
            word, offset = position >> six, position & low
            # in two steps, because a shift by 64 is none
            above = (words[word + unit] << unit) << (low - offset)
            row[i] = ((words[word] >> offset) | above) & mask
            position += step
        for i in range(whole, count):
            row[i] = (words[min(position >> six, end)] >> (position & low)) & mask
            position += step
        if k < last:
            for i in range(row.shape[0]):
                value = np.uint64(row[i])
                rest[i] -= (((value & even) + ((value >> down) & odd)) * ones) >> last_pair
    row = vectors[last, to : to + count]
    for i in range(row.shape[0]):
        value = np.uint64(row[i])
        left = rest[i] - ((((value & even) + ((value >> down) & odd)) * ones) >> last_pair)
        row[i] = value | ((left & entry) << top)


@callee
def _positions(
    vectors: NDArray[Any], first: int, bits: int, per_word: int, out: NDArray[np.uint8]
) -> None:
    """Set `out` to y(v) = sum_j j v_j mod W of the vectors from `first` on.

    Within a word, it is 2 sum_q q s_q plus the sum of the odd entries, over the pairs of entries
    and their sums s_q. Only the bits of s_q below W/2 matter. Each of these is one product.
    """
    even, odd, down, last_pair = _pairs(bits, per_word)
    ones, numbers, halves = weights(bits, per_word, vectors.shape[0])
    slots = vectors.shape[0] * per_word
    out[:] = 0
    for k in range(vectors.shape[0]):
        before = np.uint64(k * per_word)
        row = vectors[k, first : first + out.shape[0]]
        for i in range(row.shape[0]):
            value = np.uint64(row[i])
            above = (value >> down) & odd
            sums = (value & even) + above
            position = (((sums & halves) * numbers) >> last_pair) << np.uint64(1)
            position += ((above * ones) >> last_pair) + ((sums * ones) >> last_pair) * before
            out[i] += np.uint8(position & np.uint64(slots - 1))


@callee
def _read(
    words: Words,
    at: int,
    bits: int,
    per_word: int,
    one: int,
    rest: Words,
    vectors: NDArray[Any],
    first: int,
    last: int,
    positions: NDArray[np.uint8],
) -> int:
    """Set the vectors [first, last) to the packed ones from number `at` on.

    Return of how many of them it has set `positions`, which `_positions` sets for the others.
    """
    done = 0
    if vectors.shape[0] == 1:
        ones, numbers, halves = weights(bits, per_word, 1)
        out, step = vectors[0, first:last], (per_word - 1) * bits
        done = unpack_vectors(words, at, step, bits, one, ones, numbers, halves, out, positions)
    if first + done < last:
        rest[:] = one
        _unpack(words, at + done, bits, per_word, rest, vectors, first + done, last - first - done)
    return done


@kernel(*(f"u8[1] i8 i8 i8 {word}[2]! i8 i8 u1[1]!" for word in WORDS))
def unpack(
    words: Words,
    bits: int,
    per_word: int,
    one: int,
    vectors: NDArray[Any],
    first: int,
    last: int,
    positions: NDArray[np.uint8],
) -> None:
    """Set the vectors [first, last) from their entries 0..W-2, packed, and `positions` to theirs.

    The last entry of each is `one` minus the sum of the others. The position y(v) = sum_j j v_j of
    a vector is right modulo W.
    """
    rest = np.empty(BLOCK, np.uint64)
    for start in range(first, last, BLOCK):
        at, stop = start - first, min(start + BLOCK, last)
        done = _read(words, at, bits, per_word, one, rest, vectors, start, stop, positions[at:])
        _positions(vectors, start + done, bits, per_word, positions[at + done : stop - first])


@kernel("u1[1] u4[1]! u4[1]!")
def places(labels: NDArray[np.uint8], borders: NDArray[np.uint32], out: NDArray[np.uint32]) -> None:
    """Set out[i] to where item i goes, if items are put in the order of their labels.

    Items of label x, of 256, begin at borders[x] and end before borders[x + 1]: these are set, too.
    """
    borders[:] = 0
    for i in range(labels.shape[0]):
        borders[np.int64(labels[i]) + 1] += np.uint32(1)
    for label in range(256):
        borders[label + 1] += borders[label]
    nexts = borders[:256].copy()
    for i in range(labels.shape[0]):
        label = labels[i]
        out[i] = nexts[label]
        nexts[label] += np.uint32(1)


@kernel(*(f"u8[1] i8 i8 i8 u4[1] {word}[2]! u1[1]!" for word in WORDS))
def scatter(
    words: Words,
    bits: int,
    per_word: int,
    one: int,
    places: NDArray[np.uint32],
    vectors: NDArray[Any],
    positions: NDArray[np.uint8],
) -> None:
    """Do as `unpack` does, but vector i goes to places[i], and so does its position."""
    rest = np.empty(BLOCK, np.uint64)
    near = np.empty((vectors.shape[0], BLOCK), vectors.dtype)
    own = np.empty(BLOCK, np.uint8)
    for start in range(0, places.shape[0], BLOCK):
        to = places[start : start + BLOCK]
        done = _read(words, start, bits, per_word, one, rest, near, 0, to.shape[0], own)
        _positions(near, done, bits, per_word, own[done : to.shape[0]])
        for k in range(vectors.shape[0]):
            _put(near[k], to, vectors[k])
        _put(own, to, positions)


@callee
def _put(values: NDArray[Any], places: NDArray[np.uint32], out: NDArray[Any]) -> None:
    """Set out[places[i]] to values[i].

    Values with the same label go side by side, so that of each place the next line is soon wanted.
    """
    line = LINE // out.itemsize
    for i in range(places.shape[0]):
        out[places[i]] = values[i]
        if FETCHES:
            fetch_to_write(out, places[i] + line)


@kernel(*(f"{each}[2] u4[1] i8 {each}[2]!" for each in ("u1", *WORDS)))
def gather(vectors: NDArray[Any], order: NDArray[np.uint32], first: int, out: NDArray[Any]) -> None:
    """Set vector i of `out` to vector order[i].

    `first` is the number of order[0] in the permutation: what will be wanted soon lies further on.
    """
    # the elements of a line, a power of two, minus one
    within = LINE // vectors.itemsize - 1
    for k in range(vectors.shape[0]):
        row, chosen = vectors[k], out[k]
        for i in range(order.shape[0]):
            if FETCHES and i & within == 0:
                fetch(row, first + AHEAD + i)
            chosen[i] = row[order[i]]


@callee
def turn(
    vectors: NDArray[Any], turns: NDArray[np.uint8], bits: int, per_word: int, out: NDArray[Any]
) -> None:
    """Set vector i of `out` to vector i, rotated up by turns[i] entries modulo W.

    Words first change places, by 1, 2, 4, .. of them, and then take in bits of the word below,
    which is the last one below the first.
    """
    words, count = vectors.shape[0], turns.shape[0]
    width = np.uint64(per_word * bits)
    mask = FULL >> (np.uint64(64) - width)
    within, unit = np.uint64(per_word - 1), np.uint64(1)
    placed, made = vectors, np.empty((2, words, count), vectors.dtype)
    by, bit = 1, np.uint64(0)
    while unit << bit < per_word:
        bit += unit
    while by < words:
        # the one of both that `placed` is not
        other = made[bit & unit]
        for k in range(words):
            stays, comes, row = placed[k], placed[k - by], other[k]
            for i in range(count):
                value = np.uint64(stays[i])
                chosen = np.uint64(0) - ((np.uint64(turns[i]) >> bit) & unit)
                row[i] = value ^ ((value ^ np.uint64(comes[i])) & chosen)
        placed, by, bit = other, 2 * by, bit + unit
    for k in range(words):
        values, belows, row = placed[k], placed[k - 1], out[k]
        for i in range(count):
            up = (np.uint64(turns[i]) & within) * np.uint64(bits)
            low = (np.uint64(belows[i]) >> (width - unit - up)) >> unit
            row[i] = ((np.uint64(values[i]) << up) | low) & mask


@kernel(*(f"{word}[2] u4[1] i8 u1[1] {word}[2] i8 i8 i8 b1 {word}[2]!" for word in WORDS))
def differences(
    vectors: NDArray[Any],
    order: NDArray[np.uint32],
    number: int,
    turns: NDArray[np.uint8],
    others: NDArray[Any],
    first: int,
    bits: int,
    per_word: int,
    negated: bool,
    out: NDArray[Any],
) -> None:
    """Set out[i] to vector order[i], turned, minus vector first + i of `others`, modulo 2^l.

    Or, with `negated`, to the negative of that. `number` is that of order[0], as in `gather`.
    """
    tops = _ones(bits, per_word, 1) << np.uint64(bits - 1)
    near = np.empty((vectors.shape[0], BLOCK), vectors.dtype)
    turned = np.empty_like(near)
    for start in range(0, order.shape[0], BLOCK):
        some, by = order[start : start + BLOCK], turns[start : start + BLOCK]
        gather(vectors, some, number + start, near)
        turn(near, by, bits, per_word, turned)
        for k in range(out.shape[0]):
            row = out[k, start : start + BLOCK]
            subtracted = others[k, first + start : first + start + some.shape[0]]
            _subtract(turned[k], subtracted, tops, negated, row)


@callee
def _subtract(
    ones: NDArray[Any], others: NDArray[Any], tops: np.uint64, negated: bool, out: NDArray[Any]
) -> None:
    """Set `out` to words of entries minus others, or to the negatives.

    Top bits are subtracted without their borrow, so no borrow leaves its entry.
    """
    for i in range(out.shape[0]):
        one, other = np.uint64(ones[i]), np.uint64(others[i])
        if negated:
            one, other = other, one
        out[i] = minus(one, other, tops)


@kernel(*(f"u8[1] u8[1] i8 i8 i8 {word}[2]!" for word in WORDS))
def add_turned(
    words: Words, turns: Words, bits: int, per_word: int, one: int, totals: NDArray[Any]
) -> None:
    """Add packed vectors, rotated up by packed turns, to totals modulo 2^l.

    Top bits are added without their carry, so no carry leaves its entry.
    """
    tops = _ones(bits, per_word, 1) << np.uint64(bits - 1)
    turn_bits = 0
    while 1 << turn_bits < totals.shape[0] * per_word:
        turn_bits += 1
    rest, eights = np.empty(BLOCK, np.uint64), np.empty(BLOCK // 8, np.uint64)
    ups, positions = eights.view(np.uint8), np.empty(BLOCK, np.uint8)
    near = np.empty((totals.shape[0], BLOCK), totals.dtype)
    turned = np.empty_like(near)
    for start in range(0, totals.shape[1], BLOCK):
        count = min(BLOCK, totals.shape[1] - start)
        _read(words, start, bits, per_word, one, rest, near, 0, count, positions)
        packed, whole = turns[start * turn_bits // 64 :], count & ~63
        packing.unpack_bytes(packed, turn_bits, eights[: whole // 8])
        packing.unpack_values(packed[whole * turn_bits // 64 :], turn_bits, ups[whole:count])
        turn(near, ups[:count], bits, per_word, turned)
        for k in range(totals.shape[0]):
            row = totals[k, start : start + count]
            for i in range(count):
                total, other = np.uint64(row[i]), np.uint64(turned[k, i])
                row[i] = ((total & ~tops) + (other & ~tops)) ^ ((total ^ other) & tops)


@kernel(*(f"{word}[2] u2[2] i8 i8 {word}[3]!" for word in WORDS))
def add_to_places(
    vectors: NDArray[Any],
    places: NDArray[np.uint16],
    bits: int,
    per_word: int,
    totals: NDArray[Any],
) -> None:
    """Add vector i to totals[:, a, places[a, i]] modulo 2^l, for each a."""
    tops = _ones(bits, per_word, 1) << np.uint64(bits - 1)
    for start in range(0, places.shape[1], BLOCK):
        for k in range(vectors.shape[0]):
            row = vectors[k, start : start + BLOCK]
            for a in range(places.shape[0]):
                to, table = places[a, start : start + BLOCK], totals[k, a]
                for i in range(row.shape[0]):
                    total, other = np.uint64(table[to[i]]), np.uint64(row[i])
                    table[to[i]] = ((total & ~tops) + (other & ~tops)) ^ ((total ^ other) & tops)


# four entries or more fill 32 bits only if they have 8 bits at most
@kernel(
    "u4[2] i8 i8 u1 u1 b1 i8 u1[2]!",
    *(f"u8[2] i8 i8 {ring} {ring} b1 i8 {ring}[2]!" for ring in RINGS),
)
def add_entries(
    vectors: NDArray[Any],
    bits: int,
    per_word: int,
    weight: Any,
    mask: Any,
    cumulative: bool,
    start: int,
    out: NDArray[Any],
) -> None:
    """Add entry j of vector i, times a weight, to out[j, start + i].

    Or, if `cumulative`, the sum of the entries 0..j. That is for all j that `out` has. `weight` and
    `mask`, to which all is reduced, are scalars of its dtype.
    """
    entry = FULL >> np.uint64(64 - bits)
    sums = np.empty(BLOCK, out.dtype)
    for first in range(0, vectors.shape[1], BLOCK):
        count = min(BLOCK, vectors.shape[1] - first)
        sums[:] = 0
        for j in range(out.shape[0]):
            some = vectors[j // per_word, first : first + count]
            down = np.uint64(j % per_word * bits)
            if not cumulative:
                sums[:count] = 0
            for i in range(count):
                sums[i] += (np.uint64(some[i]) >> down) & entry
            _add_times(sums[:count], weight, mask, out[j, start + first : start + first + count])


@callee
def _add_times(values: NDArray[Any], weight: Any, mask: Any, out: NDArray[Any]) -> None:
    for i in range(out.size):
        out[i] = (out[i] + values[i] * weight) & mask


@kernel("u4[1]! i8 i8 u4[1]")
def shuffle(order: NDArray[np.uint32], first: int, last: int, draws: NDArray[np.uint32]) -> int:
    """Go on with a Fisher-Yates shuffle of order[first..last], and return where the draws ended.

    Each draw of 32 uniform bits gives a uniform number, or is rejected (Lemire, Fast random integer
    generation in an interval, 2019).
    """
    for u in range(draws.shape[0]):
        if last <= first:
            break
        count = np.uint64(last - first + 1)
        product = np.uint64(draws[u]) * count
        low = product & np.uint64(0xFFFFFFFF)
        if low < count and low < (np.uint64(1 << 32) - count) % count:
            continue
        chosen = first + np.int64(product >> np.uint64(32))
        order[last], order[chosen] = order[chosen], order[last]
        last -= 1
    return last


@kernel("u1[1] i8 i8 u8[1]!")
def set_ones(slots: NDArray[np.uint8], bits: int, entries: int, words: Words) -> None:
    """Set entry slots[i] of packed vector i to 1, unless it is the last, which is left out."""
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot < entries:
            bit = (i * entries + slot) * bits
            words[bit >> 6] |= np.uint64(1) << np.uint64(bit & 63)
