"""Sketches: random sums of shares that both parties take alike."""

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.protocols.sketch import sketch
from tests import reference
from tests.parties import additive

COIN = bytes(range(16))
ROWS = 32


def test_sketches_of_shares_add_up_to_that_of_the_vector() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.integers(0, 1 << 64, (3, 50), np.uint64)
    masks = rng.integers(0, 1 << 64, (3, 50), np.uint64)
    whole = sketch(COIN, RingShare(vectors), 0, ROWS)
    halves = [sketch(COIN, RingShare(part), 0, ROWS) for part in (masks, vectors - masks)]
    assert np.array_equal(halves[0] + halves[1], whole)


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


def test_chunks_of_coordinates_add_up() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.integers(0, 1 << 64, (2, 70), np.uint64)
    whole = sketch(COIN, RingShare(vectors), 0, ROWS)
    parts = [sketch(COIN, RingShare(vectors[:, at : at + 20]), at, ROWS) for at in range(0, 70, 20)]
    assert np.array_equal(np.sum(parts, axis=0, dtype=np.uint64), whole)


def test_entries_are_minus_one_zero_and_one_with_their_chances() -> None:
    matrix = sketch(COIN, RingShare(np.eye(400, dtype=np.uint64)), 0, 512).view(np.int64)
    counts = [(matrix == value).mean() for value in (-1, 0, 1)]
    assert sum(counts) == 1
    assert np.allclose(counts, [0.25, 0.5, 0.25], atol=0.005)


def test_a_start_within_a_byte_is_refused() -> None:
    with pytest.raises(InputError, match="rows: 2;"):
        sketch(COIN, RingShare(np.zeros((1, 4), np.uint64)), 2, ROWS)
