"""Every kernel against its plain twin.

`test_kernels_without_the_compiler` runs these tests again without the compiler.
"""

import os
import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.kernels import (
    bisecting,
    extension,
    gaussian,
    lpn,
    macs,
    packing,
    planes,
    searching,
    sketching,
    tables,
    vectors,
)
from tests import reference

RNG = np.random.default_rng(5)


def words(*shape: int) -> np.ndarray:
    return RNG.integers(0, 2**64, shape, np.uint64)


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("width", [2, 6, 300])
def test_fold(k: int, width: int) -> None:
    leaves = words(1 << k, width)
    want_rows, want_sum = reference.fold(leaves)
    rows = np.empty((k, width), np.uint64)
    extension.fold(leaves, rows)
    assert (rows == want_rows).all() and (leaves[0] == want_sum).all()


@pytest.mark.parametrize("width", [2, 16, 22])
def test_transpose_and_tweak(width: int) -> None:
    rows = words(128, width)
    out = np.empty((64 * width, 2), np.uint64)
    extension.transpose_and_tweak(rows, np.uint64(1000), np.uint64(7), out)
    left, right = reference.columns(rows).T
    index = np.arange(64 * width, dtype=np.uint64) + np.uint64(1000)
    assert (out[:, 0] == left ^ right ^ index).all() and (out[:, 1] == left ^ np.uint64(7)).all()
    again = np.empty_like(out)
    extension.sigma_and_tweak(reference.columns(rows), np.uint64(1000), np.uint64(7), again)
    assert (again == out).all()


def test_sigma_is_an_orthomorphism() -> None:
    """Both sigma and x -> sigma(x) ^ x are linear: they permute if they have full rank."""
    identity = np.zeros((128, 2), np.uint64)
    for i in range(128):
        identity[i, i // 64] = np.uint64(1) << np.uint64(i % 64)
    image = np.empty_like(identity)
    for i in range(128):
        extension.sigma_and_tweak(identity[i : i + 1], np.uint64(0), np.uint64(0), image[i : i + 1])
    for matrix in (image, image ^ identity):
        rows = [int(low) | int(high) << 64 for low, high in matrix]
        rank = 0
        for bit in range(128):
            pivot = next((i for i in range(rank, 128) if rows[i] >> bit & 1), None)
            if pivot is None:
                continue
            rows[rank], rows[pivot] = rows[pivot], rows[rank]
            rows = [
                row ^ rows[rank] if i != rank and row >> bit & 1 else row
                for i, row in enumerate(rows)
            ]
            rank += 1
        assert rank == 128


def test_correct_and_xor_constant() -> None:
    rows, correction = words(3, 10), words(10)
    masks = np.array([0, 2**64 - 1, 0], np.uint64)
    want = rows ^ (correction[None] & masks[:, None])
    extension.correct(rows, correction, masks)
    assert (rows == want).all()
    values, constant, out = words(5, 2), words(2), words(5, 2)
    extension.xor_constant(values, constant, out)
    assert (out == values ^ constant).all()


@pytest.mark.parametrize("count", [1, 4, 8, 11, 64])
def test_bit_planes_of_keys(count: int) -> None:
    """By vectors, and by the kernel's plain branch."""
    keys, found, plain = words(128, 2), words(count, 2), words(count)
    planes.split_keys(keys, found)
    planes.gather(keys[64:, 0].copy(), plain)
    assert (found[:, 1] == plain).all()
    assert found.tolist() == reference.planes(keys[:, 0].tolist(), count)


def numbers(rows: np.ndarray) -> list[int]:
    """Return the numbers of bit planes."""
    found = np.empty(64 * rows.shape[1], np.uint64)
    planes.join(np.ascontiguousarray(rows), found)
    return [int(number) for number in found]


# words of a tile and more, and words that fill none
@pytest.mark.parametrize(
    ("m", "bits", "width"), [(1, 1, 66), (3, 1, 1), (4, 1, 1), (2, 2, 66), (4, 2, 1), (2, 3, 2)]
)
def test_tables_and_pads_agree(m: int, bits: int, width: int) -> None:
    """The receiver's pad is the sender's chunk at its choice, by the definition with XORs."""
    chunk, count = (1 << bits) - 1, 64 * width
    keys0, keys1 = words(bits << m, m * width), words(bits << m, m * width)
    choices = words(m, width)
    made, pads = words(bits << m, width), words(bits, width)
    tables.combine_keys(keys0, keys1, bits, made)
    keys = keys0 ^ ((keys0 ^ keys1) & choices.reshape(-1))
    tables.choose_chunks(keys, choices, pads)
    plain = numbers(keys0), numbers(keys1)
    for item, (table, choice, pad) in enumerate(
        zip(numbers(made), numbers(choices), numbers(pads), strict=True)
    ):
        want = 0
        for i in range(1 << m):
            for j in range(m):
                want ^= plain[i >> j & 1][j * count + item] & chunk << bits * i
        assert table == want and pad == want >> bits * choice & chunk


@pytest.mark.parametrize(("m", "width"), [(1, 66), (2, 66), (3, 2), (4, 1)])
@pytest.mark.parametrize(
    ("greater", "equal"), [(True, False), (False, True), (True, True)], ids=lambda flag: str(flag)
)
def test_leaf_messages(m: int, greater: bool, equal: bool, width: int) -> None:
    """Sender and receiver of a leaf end with shares of the comparison of their leaves."""
    a, c, choices = (words(m, width) for _ in range(3))
    bits = greater + equal
    made, replies = words(bits << m, width), words(bits << m, width)
    shares, out = words(bits, width), words(bits, width)
    pads = np.array(
        [
            table >> bits * choice & (1 << bits) - 1
            for table, choice in zip(numbers(made), numbers(choices), strict=True)
        ],
        np.uint64,
    )
    of_pads = words(bits, width)
    planes.split(pads, of_pads)
    tables.reply_leaves(a, choices ^ c, made, shares, greater, equal, replies)
    tables.finish_leaves(c, replies, of_pads, out)
    got = [numbers(plane[None]) for plane in shares ^ out]
    pairs = list(zip(numbers(a), numbers(c), strict=True))
    want = [[int(x > y) for x, y in pairs]] * greater + [[int(x == y) for x, y in pairs]] * equal
    assert got == want


@pytest.mark.parametrize("bits", [2, 5, 31, 64])
def test_packed_values_are_added_and_subtracted_one_by_one(bits: int) -> None:
    count = 200
    one, other = (RNG.integers(0, 2**bits - 1, count, np.uint64, endpoint=True) for _ in range(2))
    # a carry out of every value, and a borrow
    one[:50], other[:50] = 2**bits - 1, 2**bits - 1
    one[50:99], other[50:99] = 0, 2**bits - 1
    total, changed = (
        np.array(reference.pack(values.tolist(), bits), np.uint64) for values in (one, other)
    )
    tops = ring.top_bits(bits)
    assert tops.tolist() == reference.pack([2 ** (bits - 1)] * 64, bits)
    difference = total.copy()
    packing.add_packed(changed, tops, total)
    plain = [(int(a) + int(b)) % 2**bits for a, b in zip(one, other, strict=True)]
    assert total.tolist() == reference.pack(plain, bits)
    packing.subtract_packed(changed, tops, difference)
    plain = [(int(a) - int(b)) % 2**bits for a, b in zip(one, other, strict=True)]
    # the padding of the last word is not told
    want = reference.pack(plain, bits)
    spare = 64 * len(want) - count * bits
    difference[-1] &= np.uint64(2 ** (64 - spare) - 1)
    assert difference.tolist() == want


# slots W, bits l and entries per word: one word and several, of 32 and of 64 bits
VECTORS = [(4, 2, 4), (8, 7, 8), (16, 4, 16), (32, 5, 8), (4, 32, 2), (4, 64, 1)]


def vector_words(values: np.ndarray, bits: int, per_word: int) -> np.ndarray:
    """Return vectors, one per row, as the kernels have them."""
    count, slots = values.shape
    rows = [
        [
            sum(int(value) << bits * place for place, value in enumerate(row[k : k + per_word]))
            for row in values
        ]
        for k in range(0, slots, per_word)
    ]
    return np.array(rows, np.uint32 if per_word * bits <= 32 else np.uint64)


@pytest.mark.parametrize(("slots", "bits", "per_word"), VECTORS)
def test_vectors(slots: int, bits: int, per_word: int) -> None:
    """Each kernel, entry by entry with whole numbers, on more vectors than it takes at once."""
    count, top = vectors.BLOCK + 70, 2**bits

    def drawn() -> np.ndarray:
        values = RNG.integers(0, top - 1, (count, slots), np.uint64, endpoint=True)
        values[:5], values[5:10] = 0, top - 1
        return values.astype(object)

    values, others = drawn(), drawn()
    values[:, -1] = (1 - values[:, :-1].sum(axis=1)) % top
    have = vector_words(values, bits, per_word)
    packed = np.array(reference.pack(values[:, :-1].reshape(-1).tolist(), bits), np.uint64)
    unpacked, numbers = np.zeros_like(have), np.zeros(count, np.uint8)
    for first, last in ((0, 64), (64, count)):
        words_of = packed[first * (slots - 1) * bits // 64 :]
        vectors.unpack(words_of, bits, per_word, 1, unpacked, first, last, numbers[first:last])
    want = (values * np.arange(slots)).sum(axis=1) % slots
    assert (unpacked == have).all() and (numbers % slots == want).all()

    places = RNG.permutation(count).astype(np.uint32)
    vectors.scatter(packed, bits, per_word, 1, places, unpacked, numbers)
    assert (unpacked[:, places] == have).all() and (numbers[places] % slots == want).all()

    turns = RNG.integers(0, 256, count).astype(np.uint8)
    turned = np.empty_like(have)
    vectors.turn(have, turns, bits, per_word, turned)
    rolled = np.array(
        [np.roll(row, turn) for row, turn in zip(values, turns.tolist(), strict=True)]
    )
    assert (turned == vector_words(rolled, bits, per_word)).all()

    order = RNG.integers(0, count, count - 50).astype(np.uint32)
    turns = RNG.integers(0, 256, order.size).astype(np.uint8)
    rolled = np.array(
        [np.roll(row, turn) for row, turn in zip(values[order], turns.tolist(), strict=True)]
    )
    minus = vector_words(others, bits, per_word)
    for negated, sign in ((False, 1), (True, -1)):
        found = np.empty((have.shape[0], order.size), have.dtype)
        vectors.differences(have, order, 9, turns, minus, 50, bits, per_word, negated, found)
        difference = sign * (rolled - others[50:]) % top
        assert (found == vector_words(difference, bits, per_word)).all()

    turns = RNG.integers(0, slots, count).astype(np.uint8)
    rolled = np.array(
        [np.roll(row, turn) for row, turn in zip(values, turns.tolist(), strict=True)]
    )
    turn_words = np.array(reference.pack(turns.tolist(), (slots - 1).bit_length()), np.uint64)
    totals = vector_words(others, bits, per_word)
    vectors.add_turned(packed, turn_words, bits, per_word, 1, totals)
    assert (totals == vector_words((others + rolled) % top, bits, per_word)).all()

    # counts of fewer bits than the dealing has, and of as many
    sums = values.cumsum(axis=1).T[:-1]
    for small in {2, min(bits, 8), bits}:
        dtype, mask = ring.dtype(small), ring.mask(small)
        out = np.zeros((slots - 1, count + 5), dtype)
        for cumulative, want in ((True, 6 * sums), (False, 6 * (sums + values.T[:-1]))):
            for weight in (1, 5):
                weighed = dtype.type(weight % 2**small)
                vectors.add_entries(have, bits, per_word, weighed, mask, cumulative, 5, out)
            assert not out[:, :5].any()
            assert (out[:, 5:].astype(object) == want % 2**small).all()


def unpacked(packed: np.ndarray, slot: int, components: int) -> np.ndarray:
    """Return the components of packed tags, (e, n), as whole numbers."""
    shifts = np.arange(0, 64, slot, dtype=np.uint64)
    slots = packed[:, None] >> shifts[:, None] & np.uint64((1 << slot) - 1)
    return slots.reshape(-1, packed.shape[1])[:components].astype(np.int64)


@pytest.mark.parametrize(("components", "slot"), [(48, 4), (48, 8), (4, 16)])
def test_packed_tags(slot: int, components: int) -> None:
    """Over more elements than are in the cache, against plain numpy on components."""
    count, top = bisecting.BLOCK + 70, 1 << slot
    width = -(-components * slot // 64)

    def random_tags() -> tuple[np.ndarray, np.ndarray]:
        # above the slot, there is anything
        rows = RNG.integers(0, 1 << 16, (components, count)).astype(np.uint16)
        rows = rows.astype(np.uint8) if slot < 16 else rows
        out = words(width, count)
        macs.pack(rows, slot, out)
        return rows.astype(np.int64) % top, out

    (rows, tags), (others, partners) = random_tags(), random_tags()
    assert (unpacked(tags, slot, 64 * width // slot)[:components] == rows).all()
    assert not unpacked(tags, slot, 64 * width // slot)[components:].any()

    delta_bits = RNG.integers(0, 2, (components, 1)).astype(np.uint8)
    delta, out = np.empty((width, 1), np.uint64), np.empty_like(tags)
    macs.pack(delta_bits, slot, delta)
    public = RNG.integers(0, top, count).astype(np.uint16)
    for given in (public,) if slot == 16 else (public, public.astype(np.uint8)):
        bisecting.add_constants(tags, given, delta[:, 0], slot, out)
        want = (rows + delta_bits.astype(np.int64) * public) % top
        assert (unpacked(out, slot, components) == want).all()

    turns = np.array([0, 1, 70, count - 1, 2 * count - 1])
    flips = RNG.integers(0, 2, (len(turns), count)).astype(np.uint8)
    for bits, start in product((2, slot - 1, slot), (0, 40)):
        found = np.empty((len(turns), width, count - start), np.uint64)
        for k in range(width):
            out, rows_of = np.empty((len(turns), count - start), np.uint64), [partners[k]] * 5
            inputs = tags[k], np.stack(rows_of), turns, flips
            bisecting.differences(*inputs, start, delta[k, 0], slot, bits, out)
            found[:, k] = out
        for turn, flip, told in zip(turns, flips, found, strict=True):
            d, b = rows, np.roll(others, -turn, axis=1)
            want = np.where(flip, d + b - delta_bits, d - b) % (1 << bits)
            assert (unpacked(told, slot, components) == want[:, start:]).all()

    chosen = tags.copy()
    asked = RNG.integers(0, 3, count).astype(np.uint16)
    bisecting.choose(partners, asked, 2, chosen)
    assert (chosen == np.where(asked == 2, partners, tags)).all()
    for bit, bits in product(range(0, slot, 3), (slot - 1, slot)):
        given = public if slot == 16 else public.astype(np.uint8)
        out = tags.copy()
        bisecting.subtract_bit(partners, given, bit, slot, out)
        bisecting.keep_low(out, bits, slot)
        times = np.where(given >> bit & 1, 1, -1) << bit
        want = (rows + times * others) % (1 << bits)
        assert (unpacked(out, slot, components) == want).all()

    lowest = np.empty(count, np.uint64)
    bisecting.low_bits(tags, slot, lowest)
    places = np.arange(components, dtype=np.uint64)[:, None]
    assert (lowest == ((rows & 1).astype(np.uint64) << places).sum(axis=0)).all()


@pytest.mark.parametrize("thresholds", [2, 7, 8, 300])
def test_searches_find_the_first_threshold_that_is_reached(thresholds: int) -> None:
    """Over more coordinates than are in the cache; each step asks for what a plain search does."""
    dim, rank, bits = searching.BLOCK + 70, 5, 4
    dtype, mask = ring.dtype(bits), ring.mask(bits)
    results = RNG.integers(0, thresholds, dim, endpoint=True)
    results[:2] = 0, thresholds
    reached = (np.arange(thresholds)[:, None] >= results).astype(np.uint8)
    missed = np.empty(dim, np.uint16)
    searching.count_missed(reached, missed)
    assert (missed == results).all()

    counts = RNG.integers(0, 16, (thresholds, dim)).astype(dtype)
    found, picked = np.zeros(dim, np.uint16), np.empty(dim, dtype)
    plain = np.zeros(dim, int)
    for step in reversed(range(thresholds.bit_length())):
        half = 1 << step
        searching.pick(counts, found, half, dtype.type(rank), mask, picked)
        asked = np.minimum(plain + half - 1, thresholds - 1)
        want = counts[asked, np.arange(dim)].astype(int) - rank
        assert (picked == want % 16).all()
        searching.go_up(reached[asked, np.arange(dim)], half, thresholds, found)
        plain += np.where(plain + half <= results, half, 0)
        assert (found == plain).all()
    assert (found == results).all()


def test_vectors_change_places() -> None:
    items = words(2, 100)
    labels = RNG.choice([0, 1, 9, 255], 100).astype(np.uint8)
    borders, places = np.empty(257, np.uint32), np.empty(100, np.uint32)
    vectors.places(labels, borders, places)
    assert (places[np.argsort(labels, kind="stable")] == np.arange(100)).all()
    assert borders.tolist() == [int((labels < label).sum()) for label in range(257)]
    order = RNG.integers(0, 100, 60).astype(np.uint32)
    chosen = np.empty((2, 60), np.uint64)
    vectors.gather(items, order, 7, chosen)
    assert (chosen == items[:, order]).all()


@pytest.mark.parametrize(("bits", "slots"), [(4, 8), (5, 32), (64, 4)])
def test_set_ones(bits: int, slots: int) -> None:
    """The last slot has no entry of its own."""
    chosen = RNG.integers(0, slots, 50).astype(np.uint8)
    entries = [int(place == slot) for slot in chosen for place in range(slots - 1)]
    packed = np.zeros(-(-len(entries) * bits // 64), np.uint64)
    vectors.set_ones(chosen, bits, slots - 1, packed)
    assert packed.tolist() == reference.pack(entries, bits)


def test_shuffle_goes_on_where_its_draws_ended() -> None:
    draws = RNG.integers(0, 2**32, 40, np.uint32)
    whole, cut = np.arange(30, dtype=np.uint32), np.arange(30, dtype=np.uint32)
    assert vectors.shuffle(whole, 5, 24, draws) == 5
    last = vectors.shuffle(cut, 5, 24, draws[:7])
    assert last == 17 and vectors.shuffle(cut, 5, last, draws[7:]) == 5
    assert (whole == cut).all() and sorted(whole[5:25]) == list(range(5, 25))
    assert whole[:5].tolist() == list(range(5)) and whole[25:].tolist() == list(range(25, 30))


@pytest.mark.parametrize("bits", range(1, 8))
def test_bytes_are_packed_as_values_are(bits: int) -> None:
    """Pack eight at a time, also for the last few; drop bits above the width."""
    for count in (0, 1, 63, 64, 65, 200):
        values = RNG.integers(0, 256, count).astype(np.uint8)
        low = values & np.uint8(2**bits - 1)
        packed = ring.pack(values, bits)
        assert packed.tolist() == reference.pack(low.tolist(), bits)
        assert (ring.unpack(packed, bits, count) == low).all()


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [(1, np.uint8), (7, np.uint8), (12, np.uint16), (32, np.uint32), (64, np.uint64)],
)
@pytest.mark.parametrize("count", [1, 63, 64, 130])
def test_values_in_bit_planes_and_back(bits: int, dtype: Any, count: int) -> None:
    values = RNG.integers(0, 2**bits - 1, count, np.uint64, endpoint=True).astype(dtype)
    found = words(bits, -(-count // 64))
    planes.split(values, found)
    assert found.tolist() == reference.planes(values.tolist(), bits)
    back = np.empty_like(values)
    planes.join(found, back)
    assert (back == values).all()


# plain Python takes a minute for the wide ones
@pytest.mark.parametrize("bits", [4] if "NUMBA_DISABLE_JIT" in os.environ else [1, 4, 33, 64])
def test_a_step_of_the_radix_median(bits: int) -> None:
    """Both parties' steps, on flags of any value, against whole numbers.

    The test has two ranks, and more words than one tile of the kernels, and one that does not fill
    a tile.
    """
    ranks, clients, width, top = 2, 3, 65, 2**bits
    count = clients * width

    def elements(rows: np.ndarray, rank: int) -> list[int]:
        """Return the elements of one rank in bit planes."""
        of_rank = rows[rank * bits : (rank + 1) * bits]
        values = np.empty(64 * of_rank.shape[1], np.uint64)
        planes.join(np.ascontiguousarray(of_rank), values)
        return [int(value) for value in values]

    weights = RNG.integers(0, top - 1, clients, np.uint64, endpoint=True)
    opened = words(ranks, width)
    zeros, choices = words(2, count), words(2, count)
    flags, products, below, reached = (
        [words(ranks * bits, size) for _ in range(2)] for size in (count, count, width, width)
    )
    # (rank, element) of the sums of both parties' shares, before the step
    sums = [
        [
            [(a + b) % top for a, b in zip(elements(x[0], rank), elements(x[1], rank), strict=True)]
            for rank in range(ranks)
        ]
        for x in (flags, products, below, reached)
    ]
    # keys of the step lie behind those of others
    at = 70
    keys0, keys1, keys = ([words(ranks * bits, at + count) for _ in range(2)] for _ in range(3))
    for j in (0, 1):
        # the keys with which the party receives from the other
        other0, other1 = keys0[1 - j][:, at:], keys1[1 - j][:, at:]
        keys[j][:, at:] = other0 ^ ((other0 ^ other1) & choices[j])
    asked = [zeros[1 - j] ^ choices[1 - j] for j in (0, 1)]
    replies = [words(ranks * bits, count) for _ in range(2)]
    for j in (0, 1):
        planes.reply(
            *(flags[j], products[j], opened, zeros[j], asked[j], keys0[j], keys1[j], at, bits),
            replies[j],
        )
    for j in (0, 1):
        planes.finish(
            *(flags[j], opened, zeros[j], asked[j], keys0[j], keys1[j], keys[j], at),
            *(replies[1 - j], weights, bits, products[j], below[j], reached[j]),
        )
    bit = np.unpackbits((zeros[0] ^ zeros[1]).view(np.uint8), bitorder="little").tolist()
    for rank in range(ranks):
        one = np.unpackbits(opened[rank].view(np.uint8), bitorder="little").tolist()
        c, e, least, most = (column[rank] for column in sums)
        c = [
            (x - y) % top if one[i % len(one)] else y
            for i, (x, y) in enumerate(zip(c, e, strict=True))
        ]
        e = [x * z for x, z in zip(c, bit, strict=True)]
        least = [y if chosen else x for x, y, chosen in zip(least, most, one, strict=True)]
        most = [
            x + sum(int(w) * e[client * len(one) + i] for client, w in enumerate(weights))
            for i, x in enumerate(least)
        ]
        for after, want in ((flags, c), (products, e), (below, least), (reached, most)):
            pairs = zip(elements(after[0], rank), elements(after[1], rank), strict=True)
            assert [(x + y) % top for x, y in pairs] == [x % top for x in want]


@pytest.mark.parametrize("width", [1, 2, 16])
def test_grow(width: int) -> None:
    parents, lefts = words(3, width, 2), words(3, width, 2)
    children, sums = words(3, 2 * width, 2), words(3, 4, 2)
    others = sums[:, [0, 1, 3]]
    lpn.grow(parents, lefts, children, 2, sums)
    want_children, want_sums = reference.half_tree_level(parents, lefts)
    assert (children == want_children).all() and (sums[:, 2] == want_sums).all()
    assert (sums[:, [0, 1, 3]] == others).all()


@pytest.mark.parametrize("width", [1, 8])
def test_mend(width: int) -> None:
    """Either child becomes `given` less all others of its side, and nothing else moves."""
    trees = 5
    children, given, paths = (
        words(trees, 2 * width, 2),
        words(trees, 3, 2),
        # only the low bits lead to this level
        RNG.integers(0, 8 * width, trees),
    )
    sides = children.reshape(trees, 2, width, 2)
    # the nodes of the receiver's trees XOR to 0
    sides[:, 1, 0] ^= np.bitwise_xor.reduce(children, axis=1)
    want = sides.copy()
    for tree, path in enumerate(paths % width):
        for side in range(2):
            others = np.delete(sides[tree, side], path, axis=0)
            want[tree, side, path] = np.bitwise_xor.reduce(others, axis=0) ^ given[tree, 1]
    sums = words(trees, 3, 2)
    sums[:, 1] = np.bitwise_xor.reduce(sides[:, 0], axis=1)
    lpn.mend(children, 1, sums, given, paths)
    assert (children == want.reshape(children.shape)).all()


@pytest.mark.parametrize("secrets", [1, 3, 1000])
def test_encode(secrets: int) -> None:
    leaves, blocks, out = words(200, 2), words(secrets, 2), words(200, 2)
    draws = RNG.integers(0, 2**32, (200, lpn.LOCALITY), np.uint32)
    draws[0], draws[1] = 0, 2**32 - 1
    want = reference.local_code(leaves, blocks, draws)
    lpn.encode(leaves, blocks, draws, out)
    assert (out == want).all()


@pytest.mark.parametrize(
    ("p", "q"),
    [(1, 1), (1, 1024), (37, 10), (gaussian.MAX_P, 1), (gaussian.MAX_P - 1, gaussian.MAX_Q)],
)
@pytest.mark.parametrize("size", [0, 1, 4000])
def test_discrete_gaussian(p: int, q: int, size: int) -> None:
    random = words(size)
    out = np.zeros(300, np.int64)
    with np.errstate(over="raise"):
        made, used = gaussian.draw(random, p, q, out)
    want, want_used = reference.discrete_gaussian(random.tolist(), p, q, 300)
    assert (out[:made].tolist(), used) == (want, want_used)
    # the place at which the words ran out makes no difference
    more, rest = np.concatenate([random[used:], words(20_000)]), np.zeros(100, np.int64)
    assert gaussian.draw(more, p, q, rest)[0] == 100 or q > p
    whole = np.zeros(made + 100, np.int64)
    gaussian.draw(np.concatenate([random[:used], more]), p, q, whole)
    assert (whole == np.concatenate([out[:made], rest])).all()


@pytest.mark.parametrize("dtype", [np.uint64, np.uint32])
@pytest.mark.parametrize(("clients", "dim", "rows"), [(1, 1, 8), (7, 66, 16), (17, 130, 8)])
def test_signed_sums(clients: int, dim: int, rows: int, dtype: type) -> None:
    """Added to what is there, from some coordinate on, for blocks of clients that are not full."""
    begin, before = 8, words(-(-clients // sketching.ABREAST), rows, sketching.ABREAST)
    shares: Any = words(clients, begin + dim).astype(dtype)
    signs = words(-(-dim // 4), rows // 8)
    total = before.copy()
    with np.errstate(over="ignore"):
        sketching.add_rows(shares, begin, signs, total)
        found = (total - before).transpose(0, 2, 1).reshape(-1, rows)
    want = reference.signed_sums(signs.view(np.uint8), shares[:, begin:])
    assert (found[:clients] == want).all() and not found[clients:].any()


@pytest.mark.slow
@pytest.mark.skipif(
    "NUMBA_DISABLE_JIT" in os.environ, reason="this is the run without the compiler"
)
def test_kernels_without_the_compiler() -> None:
    """The same functions as plain Python: what is compiled is what is written."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            __file__,
            "-W",
            "ignore::RuntimeWarning",
        ],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
