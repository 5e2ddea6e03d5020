"""Protocols on shares against numpy: every width, batches around words and halves, edges."""

from collections.abc import Sequence

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare, XorBits
from securemedian.mpc.protocols import boolean, compare, millionaire, ring
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring
from tests.parties import additive, make_parties, run_both, widths

RNG = np.random.default_rng(3)
BATCHES = [0, 1, 2, 63, 64, 65, 129, 1000]


@pytest.fixture(scope="module", params=OT_EXTENSIONS)
def parties(request: pytest.FixtureRequest) -> list[Party]:
    return [lanes[0] for lanes in make_parties(extension=request.param)]


def shared_bits(count: int) -> tuple[np.ndarray, list[XorBits]]:
    bits = RNG.integers(0, 2, count).astype(np.uint8)
    mask = RNG.integers(0, 2**64, -(-count // 64), np.uint64)
    return bits, [XorBits(mask), XorBits(mask ^ boolean.pack_bits(bits))]


def opened(parties: list[Party], shares: Sequence[XorBits], count: int) -> np.ndarray:
    one, other = run_both(lambda j: open_bits(parties[j], shares[j], count))
    assert (one == other).all()
    return one


def values(bits: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of unsigned values, half of them close to each other, with all extremes in front."""
    top = (1 << bits) - 1
    x = RNG.integers(0, top, count, np.uint64, endpoint=True)
    y = RNG.integers(0, top, count, np.uint64, endpoint=True)
    near = RNG.integers(0, 2, count).astype(bool)
    y[near] = x[near] ^ RNG.integers(0, 2, near.sum()).astype(np.uint64)
    edges = [
        (0, 0),
        (top, top),
        (0, top),
        (top, 0),
        (top // 2, top // 2 + 1),
        (top // 2 + 1, top // 2),
        (0, 1),
        (1, 0),
    ]
    for i, (a, b) in enumerate(edges[:count]):
        x[i], y[i] = min(a, top), min(b, top)
    return x.astype(ring.dtype(bits)), y.astype(ring.dtype(bits))


def private(party: Party, a: np.ndarray, c: np.ndarray, bits: int) -> list[np.ndarray]:
    """Return the bit planes of a and of c that a party holds: who holds which swaps at the half."""
    return [ring.split(x[half], bits) for x, half in zip((a, c), party.halves(a.size), strict=True)]


@pytest.mark.parametrize(("parties", "bits"), widths(1, 63), indirect=["parties"])
def test_millionaires(parties: list[Party], bits: int) -> None:
    count = 300
    a, c = values(bits, count)
    shares = run_both(lambda j: millionaire.greater(parties[j], *private(parties[j], a, c, bits)))
    assert (opened(parties, shares, count) == (a > c)).all()


@pytest.mark.parametrize(("parties", "bits"), widths(1, 64), indirect=["parties"])
def test_private_equality(parties: list[Party], bits: int) -> None:
    count = 300
    a, c = values(bits, count)
    shares = run_both(lambda j: millionaire.equal(parties[j], *private(parties[j], a, c, bits)))
    assert (opened(parties, shares, count) == (a == c)).all()


@pytest.mark.parametrize(("parties", "bits"), widths(2, 64), indirect=["parties"])
def test_msb_of_every_ring(parties: list[Party], bits: int) -> None:
    x, _ = values(bits, 200)
    shares = additive(x, bits, RNG)
    # shares 0 and all ones are the edges of the carry (protocols.md 7.3)
    for i, edge in enumerate((0, (1 << bits) - 1, 1 << (bits - 1), (1 << (bits - 1)) - 1)):
        shares[0][20 + i] = edge
        shares[1][20 + i] = (int(x[20 + i]) - edge) % (1 << bits)
    got = opened(parties, run_both(lambda j: compare.msb(parties[j], shares[j], bits)), x.size)
    assert (got == (x.astype(np.uint64) >> np.uint64(bits - 1))).all()


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("bits", [2, 4, 5, 16, 32, 64])
def test_comparisons_of_signed_values(parties: list[Party], bits: int, count: int) -> None:
    low, high = -(2 ** (bits - 2)), 2 ** (bits - 2) - 1
    x, y = (RNG.integers(low, high, count, endpoint=True) for _ in range(2))
    for i, (a, b) in enumerate([(low, high), (high, low), (low, low), (high, high)][:count]):
        x[i], y[i] = a, b
    xs, ys = additive(ring.reduce(x, bits), bits, RNG), additive(ring.reduce(y, bits), bits, RNG)
    assert (
        opened(parties, run_both(lambda j: compare.greater(parties[j], xs[j], ys[j], bits)), count)
        == (x > y)
    ).all()


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 9, 33, 64])
def test_equality_of_shared_values(parties: list[Party], bits: int, count: int) -> None:
    x, y = values(bits, count)
    xs, ys = additive(x, bits, RNG), additive(y, bits, RNG)
    apart = [ring.reduce(xs[j] - ys[j], bits) for j in (0, 1)]
    found = run_both(lambda j: compare.is_zero(parties[j], RingShare(apart[j]), bits))
    assert (opened(parties, found, count) == (x == y)).all()


@pytest.mark.parametrize("count", BATCHES)
def test_conjunctions(parties: list[Party], count: int) -> None:
    bits, shares = zip(*(shared_bits(count) for _ in range(5)), strict=True)
    products = run_both(
        lambda j: boolean.conjunctions(
            parties[j],
            [(shares[0][j], [shares[1][j], shares[2][j]]), (shares[3][j], [shares[4][j]])],
        )
    )
    for term, k, x, y in ((0, 0, 0, 1), (0, 1, 0, 2), (1, 0, 3, 4)):
        got = opened(parties, (products[0][term][k], products[1][term][k]), count)
        assert (got == (bits[x] & bits[y])).all()


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("bits", [2, 5, 8, 17, 64])
def test_bits_to_ring(parties: list[Party], bits: int, count: int) -> None:
    plain, shares = shared_bits(count)
    one, other = run_both(lambda j: boolean.to_ring(parties[j], shares[j], count, bits))
    assert (ring.reduce(one + other, bits) == plain).all()


@pytest.mark.parametrize("count", BATCHES)
@pytest.mark.parametrize("bits", [2, 8, 31, 64])
def test_multiplexer(parties: list[Party], bits: int, count: int) -> None:
    plain, shares = shared_bits(count)
    x, _ = values(bits, count)
    xs = additive(x, bits, RNG)
    one, other = run_both(lambda j: boolean.multiplex(parties[j], shares[j], xs[j], bits))
    assert (ring.reduce(one + other, bits) == x * plain).all()


@pytest.mark.parametrize("bits", [2, 7, 64])
def test_opening(parties: list[Party], bits: int) -> None:
    x, _ = values(bits, 77)
    xs = additive(x, bits, RNG)
    one, other = run_both(lambda j: open_ring(parties[j], xs[j], bits))
    assert (one == x).all() and (other == x).all()


def test_opened_bits_carry_nothing_beyond_their_count(parties: list[Party]) -> None:
    """Packed shares may hold rubbish behind the last bit; it must not travel."""
    _, shares = shared_bits(64)
    run_both(lambda j: open_bits(parties[j], shares[j], 3))
    sent = boolean.pack_bits(boolean.unpack_bits(shares[0], 3))
    assert int(sent[0]) < 8


def test_leaves_and_ots_of_a_31_bit_comparison() -> None:
    """An instance of 31 bits takes 31 OTs for its leaves and 14 for its ANDs (protocols.md 5)."""
    for bits, leaf_ots, and_ots in ((31, 31, 14), (3, 3, 0), (4, 4, 0), (5, 5, 2)):
        demand = millionaire.greater_demand(64 * 100, bits).counts
        leaf = sum(
            kind.ots * sum(pair) for kind, pair in demand.items() if type(kind).__name__ == "Tables"
        )
        joins = sum(
            kind.ots * sum(pair)
            for kind, pair in demand.items()
            if type(kind).__name__ == "Triples"
        )
        assert (leaf, joins) == (leaf_ots * 6400, and_ots * 6400)
