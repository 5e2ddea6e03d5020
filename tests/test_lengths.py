"""Sketches and their lengths against whole numbers, and what they prove and take."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import lengths, ring
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import RandomOts
from securemedian.mpc.protocols.lengths import Soundness, square, square_demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.protocols.sketch import sketch
from tests import reference
from tests.parties import additive, make_parties, run_both

Function = Callable[[Party, RingShare], np.ndarray]
STRENGTH = Soundness.of(40)
T = STRENGTH.bound


def computed(function: Function, values: np.ndarray, demand: Demand, bits: int = 64) -> list[Any]:
    """Return both parties' shares of a function of shared values, which takes just the demand."""
    rng = np.random.default_rng(values.size)
    halves, lanes = additive(ring.reduce(values, bits), bits, rng), make_parties()

    def run(j: int) -> np.ndarray:
        (party,) = lanes[j]
        party.pool.reserve(demand)
        made, taken, take = party.pool.ots, Counter[Any](), party.pool.take

        def counted(kind: Any, as_sender: int, as_receiver: int) -> Any:
            taken[kind, j] += as_sender
            taken[kind, 1 - j] += as_receiver
            return take(kind, as_sender, as_receiver)

        party.pool.take = counted  # type: ignore[method-assign]
        result = function(party, halves[j])
        assert party.pool.ots == made
        want = {
            (kind, i): count for kind, both in demand.counts.items() for i, count in enumerate(both)
        }
        assert taken == want
        return result

    return list(run_both(run))


def bits_of(function: Function, values: np.ndarray, demand: Demand, bits: int = 64) -> list[int]:
    one, other = computed(function, values, demand, bits)
    return unpack_bits(one ^ other, len(values)).tolist()


def words_of(function: Function, values: np.ndarray, demand: Demand) -> list[int]:
    one, other = computed(function, values, demand)
    return [int(word) for word in one + other]


def whole(*numbers: int) -> np.ndarray:
    """Return numbers modulo 2^64."""
    return np.array([number % 2**64 for number in numbers], np.uint64)


# Values out of range by any amount: the least number above all, which has no absolute value
OUT = [T, -T - 1, 2 * T, -2 * T, 1 << 62, -(1 << 62), -(1 << 63), (1 << 63) - 1, (1 << 63) + T - 1]
WITHIN = [0, 1, -1, T - 1, -T]


@pytest.mark.parametrize("bits", [64, 40])
@pytest.mark.parametrize("rows", [1, 64])
def test_a_sketch_is_in_range_if_all_of_its_rows_are(bits: int, rows: int) -> None:
    """Each number out of range is in one row of a sketch of its own."""
    numbers = [*WITHIN, *OUT, *(-number for number in OUT)]
    sketches = np.zeros((len(numbers), rows), np.uint64)
    sketches[:] = whole(*np.resize(WITHIN, rows).tolist())
    sketches[np.arange(len(numbers)), np.arange(len(numbers)) % rows] = whole(*numbers)
    sketches = ring.reduce(sketches, bits)
    centred = ring.signed(sketches, bits).tolist()
    want = [int(all(-T <= row <= T - 1 for row in each)) for each in centred]
    found = bits_of(
        lambda party, own: lengths.in_range(party, own, T, bits),
        sketches,
        lengths.in_range_demand(len(numbers), rows, T, bits),
        bits,
    )
    assert found == want
    assert 0 < sum(want) < len(want)


def test_sums_that_cancel_are_out_of_range() -> None:
    """Neither the sum of a sketch's rows nor its parity tells: each of them is looked at."""
    sketches = np.stack([whole(T, -T), whole(1 << 63, 1 << 63), whole(1 << 62, 3 << 62)])
    demand = lengths.in_range_demand(3, 2, T)
    assert bits_of(lambda party, own: lengths.in_range(party, own, T), sketches, demand) == [0] * 3


@pytest.mark.parametrize("count", [1, 2, 7, 70])
def test_lengths_are_those_of_whole_numbers(count: int) -> None:
    rows = 3
    sketches = np.random.default_rng(count).integers(0, 1 << 64, (count, rows), np.uint64)
    extremes = whole(1 << 63, 1 << 62, -1)
    sketches[0] = extremes
    exact = sketches.astype(object)
    found = words_of(lengths.squared_lengths, sketches, lengths.squared_lengths_demand(count, rows))
    assert found == [sum(row**2) % 2**64 for row in exact]


@pytest.mark.parametrize("limit", [0, 1000, 1 << 62, (1 << 63) - 1])
def test_at_most_a_limit(limit: int) -> None:
    near = [limit, max(0, limit - 1), min((1 << 63) - 1, limit + 1), 0, (1 << 63) - 1]
    values, want = whole(*near), [int(value <= limit) for value in near]
    demand = lengths.at_most_demand(len(near))

    def shared(party: Party, own: RingShare) -> np.ndarray:
        half = limit - 123456789 if party.number == 0 else 123456789
        return lengths.at_most(party, own, RingShare(whole(half)))

    assert bits_of(shared, values, demand) == want


# Soundness


@pytest.mark.parametrize(
    ("rows", "high", "low", "gap"),
    [
        (256, 1.81, 0.25, 2.70),
        (384, 1.64, 0.40, 2.03),
        (512, 1.54, 0.48, 1.78),
        (1024, 1.37, 0.64, 1.46),
    ],
)
def test_what_rows_prove(rows: int, high: float, low: float, gap: float) -> None:
    """The published table, and the lemmas' bounds at what it says."""
    found = Soundness(rows)
    assert found.high == pytest.approx(high, abs=0.006)
    assert found.low == pytest.approx(low, abs=0.006)
    assert found.gap == pytest.approx(gap, abs=0.01)
    error = 2.0**-40
    assert (found.high * math.exp(1 - found.high)) ** (rows / 2) <= error
    s = np.linspace(0, 1, 100_001)
    assert float(np.min((1 - s + 1.5 * s**2) * np.exp(s * found.low))) ** rows <= error
    assert rows * found.bound**2 <= 1 << 63 < rows * (2 * found.bound) ** 2


@pytest.mark.parametrize(("check_bits", "rows"), [(40, 512), (80, 1008), (128, 1616)])
def test_rows_follow_from_the_security(check_bits: int, rows: int) -> None:
    found = Soundness.of(check_bits)
    assert found.rows == rows and found.gap <= 1.8
    assert Soundness(rows - 16, check_bits).gap > 1.8


COINS, DIM = 10_000, 64


@cache
def sketches_of(rows: int, *vectors: tuple[int, ...]) -> np.ndarray:
    """Return the sketches of vectors under 10,000 coins, shape (coins, vectors, rows)."""
    shares = RingShare(np.stack([whole(*vector) for vector in vectors]))
    return np.stack([sketch(digest(i), shares, 0, rows) for i in range(COINS)])


def worst(norm: int) -> list[tuple[int, ...]]:
    """Return vectors of a norm (nearly, and not above it): in one coordinate, in two, and flat."""
    return [(int(norm / math.sqrt(count)),) * count + (0,) * (DIM - count) for count in (1, 2, DIM)]


def likely(rate: float) -> float:
    """Return by how much the rate of 10,000 coins strays from its own once in 10^9 runs."""
    return 6.1 * math.sqrt(rate * (1 - rate) / COINS)


def are_in_range(sketches: np.ndarray) -> np.ndarray:
    """Return which rows are in range, of sketches modulo 2^64, as `lengths.in_range` looks."""
    return sketches + np.uint64(T) < np.uint64(2 * T)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "rate"),
    [
        ((2 * T,), 1 / 2),
        ((-(1 << 63),), 1 / 2),
        ((1 << 62,), 1 / 2),
        # the value beside it cannot hide it: all sums are wrong
        ((-(1 << 63), -(1 << 63)), 1 / 2),
        ((1 << 62, -(1 << 62)), 3 / 8),
        ((1 << 63, (1 << 63) - 1), 1 / 2),
        ((2 * T,) * DIM, None),
    ],
)
def test_what_wraps_is_out_of_range_in_half_of_all_rows(
    numbers: tuple[int, ...], rate: float | None
) -> None:
    """A chance of at most 1/2 per row, and of 2^-r for r rows."""
    passed = are_in_range(sketches_of(16, numbers + (0,) * (DIM - len(numbers)))[:, 0])
    for rows in (1, 2, 4, 8):
        found = passed[:, :rows].all(axis=1).mean()
        assert found <= 2.0**-rows + likely(2.0**-rows)
        if rate is not None:
            assert abs(found - rate**rows) <= likely(rate**rows)
    assert not passed.all(axis=1).sum() > 10


@pytest.mark.slow
def test_who_is_honest_passes_and_who_is_long_does_not() -> None:
    """Toss 10,000 coins for each: at the largest norm, and at that times the gap."""
    norm, rows = STRENGTH.most_norm, STRENGTH.rows
    sketches = sketches_of(rows, *worst(norm), *worst(math.ceil(norm * STRENGTH.gap) + 1))
    assert are_in_range(sketches[:, :3]).all()
    squares = (sketches.view(np.int64).astype(float) ** 2).sum(axis=2)
    limit = STRENGTH.limit(norm)
    assert (squares[:, :3] <= limit).all() and (squares[:, 3:] > limit).all()


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
def test_lengths_stray_no_more_than_is_proved(place: int) -> None:
    """Measure every worst vector in 64 rows, where they stray often enough to be seen."""
    rows, norm = 64, 1 << 20
    vector = worst(norm)[place]
    squared = sum(value**2 for value in vector)
    sketches = sketches_of(rows, *worst(norm))[:, place].view(np.int64).astype(float)
    ratios = (sketches**2).sum(axis=1) / (rows * squared / 2)
    assert abs(ratios.mean() - 1) < 0.02
    seen = []
    for high in (1.2, 1.4, 1.6):
        most = (high * math.exp(1 - high)) ** (rows / 2)
        seen.append((ratios > high).mean())
        assert seen[-1] <= most + likely(most)
    s = np.linspace(0, 1, 10_001)
    for low in (0.5, 0.6, 0.7, 0.8):
        most = float(np.min((1 - s + 1.5 * s**2) * np.exp(s * low))) ** rows
        seen.append((ratios < low).mean())
        assert seen[-1] <= most + likely(most)
    assert seen[0] > 0.001 and seen[-1] > 0.01


def test_too_few_rows_prove_no_length() -> None:
    assert Soundness(64).gap == math.inf


def test_the_limit_is_a_whole_number() -> None:
    assert STRENGTH.bound == 1 << 27 and STRENGTH.most_norm == 1 << 24
    norm = STRENGTH.most_norm
    assert STRENGTH.limit(norm) == int(STRENGTH.high * 512 * norm**2 / 2) < 1 << 57


COIN = bytes(range(16))
ROWS = 32


@pytest.mark.parametrize("rows", [16, 48])
@pytest.mark.parametrize(("clients", "dim"), [(1, 1), (2, 7), (8, 64), (9, 65), (20, 130)])
def test_a_sketch_is_that_of_whole_numbers(clients: int, dim: int, rows: int) -> None:
    """Use the greatest numbers and those of the fewest bits, from any coordinate on."""
    rng = np.random.default_rng(dim)
    vectors = rng.integers(0, 1 << 64, (clients, dim), np.uint64)
    vectors[0, :3] = [1 << 63, 1 << 62, (1 << 64) - 1][:dim]
    for begin in (0, 4, 1 << 20):
        stream = Stream(digest("sketch", COIN)[:16], block=begin // 4 * rows // 16)
        signs = stream.words((dim + 3) // 4 * rows // 8).view(np.uint8).reshape(-1, rows)
        want = reference.signed_sums(signs, vectors)
        for native_aes in (True, False):
            found = sketch(COIN, RingShare(vectors), begin, rows, native_aes)
            assert found.dtype == np.uint64 and np.array_equal(found, want)


def test_narrow_shares_have_the_sketch_of_their_ring() -> None:
    rng = np.random.default_rng(2)
    vectors = rng.integers(0, 1 << 20, (3, 70))
    halves = additive(vectors, 20, rng)
    one, other = (sketch(COIN, half, 0, ROWS) for half in halves)
    whole = sketch(COIN, RingShare(vectors.astype(np.uint64)), 0, ROWS)
    assert np.array_equal(ring.reduce(one + other, 20), ring.reduce(whole, 20))


def test_pieces_of_r_follow_each_other() -> None:
    """R of many rows and coordinates is made in pieces."""
    vectors = np.ones((1, 5000), np.uint64)
    whole = sketch(COIN, RingShare(vectors), 0, 1008)
    parts = [sketch(COIN, RingShare(vectors[:, :1000]), at, 1008) for at in range(0, 5000, 1000)]
    assert np.array_equal(np.sum(parts, axis=0, dtype=np.uint64), whole)


def test_the_seed_is_of_the_sketch_alone() -> None:
    """Clusters are drawn from the key stream of the coin itself."""
    ones = RingShare(np.eye(64, dtype=np.uint64))
    drawn = Stream(COIN).words(64 // 4 * ROWS // 8).view(np.uint8).reshape(-1, ROWS)
    assert not np.array_equal(sketch(COIN, ones, 0, ROWS), reference.signed_sums(drawn, ones))
    other = sketch(bytes(16), ones, 0, ROWS)
    assert not np.array_equal(sketch(COIN, ones, 0, ROWS), other)


def test_entries_are_minus_one_zero_and_one_with_their_chances() -> None:
    matrix = sketch(COIN, RingShare(np.eye(400, dtype=np.uint64)), 0, 512).view(np.int64)
    counts = [(matrix == value).mean() for value in (-1, 0, 1)]
    assert sum(counts) == 1
    assert np.allclose(counts, [0.25, 0.5, 0.25], atol=0.005)


def test_a_start_within_a_byte_is_refused() -> None:
    with pytest.raises(InputError, match="rows: 2;"):
        sketch(COIN, RingShare(np.zeros((1, 4), np.uint64)), 2, ROWS)


@pytest.mark.parametrize(
    ("bits", "count"),
    [*((bits, 65) for bits in (2, 3, 8, 9, 31, 33, 63, 64)), *((32, n) for n in (1, 63, 64, 300))],
)
def test_squares_are_those_of_numpy(bits: int, count: int) -> None:
    """Square random elements, 0, the least and the greatest, modulo 2^l."""
    rng = np.random.default_rng(bits + count)
    values = ring.reduce(rng.integers(0, 2**64, count, np.uint64), bits)
    edges = ring.reduce(np.array([0, 1, -1, 1 << (bits - 2), -(1 << (bits - 2))]), bits)
    values[: edges.size] = edges[:count]
    halves, lanes = additive(values, bits, rng), make_parties()

    def run(j: int) -> np.ndarray:
        (party,) = lanes[j]
        party.pool.reserve(square_demand(count, bits))
        return square(party, halves[j], bits)

    one, other = run_both(run)
    want = [int(value) ** 2 % 2**bits for value in values]
    assert ring.reduce(one + other, bits).tolist() == want
    # nothing is made on the way, and nothing of it was too much
    taken = square_demand(count, bits).counts[RandomOts(bits)]
    assert sum(taken) == (bits - 1) * count


def test_what_a_square_sends() -> None:
    """L - 1 choices and as many replies of l bits per element, in both directions together."""
    lanes = make_parties()
    halves = additive(np.arange(4096, dtype=np.uint32), 32, np.random.default_rng(1))
    run_both(lambda j: lanes[j][0].pool.reserve(square_demand(4096, 32)))
    before = [lanes[j][0].channel.traffic.bytes_sent for j in (0, 1)]
    run_both(lambda j: square(lanes[j][0], halves[j], 32))
    sent = sum(lanes[j][0].channel.traffic.bytes_sent - before[j] for j in (0, 1))
    assert 0 <= sent - 4096 * 31 * 33 // 8 < 1000
