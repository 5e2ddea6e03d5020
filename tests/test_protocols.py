"""Protocols on shares against numpy: every width, batches around words and halves, edges."""

from collections.abc import Sequence

import numpy as np
import pytest

from securemedian.mpc.arrays import Ring, RingShare, Words, XorBits
from securemedian.mpc.protocols import boolean, compare, millionaire, ring
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.convert import from_bits, from_bits_demand, to_bits, to_bits_demand
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS
from securemedian.mpc.rounds.methods import descent
from securemedian.mpc.rounds.methods.reveal import open_bits, open_ring
from tests.parties import additive, make_parties, run_both, widths

RNG = np.random.default_rng(3)
BATCHES = [0, 1, 63, 64, 65, 1000]


def sizes(*widths: int) -> list[tuple[int, int]]:
    """Return these widths, each with one batch, and the first with every other batch."""
    return [(bits, 129) for bits in widths] + [(widths[0], count) for count in BATCHES]


@pytest.fixture(scope="module")
def parties(request: pytest.FixtureRequest) -> list[Party]:
    extension = getattr(request, "param", OT_EXTENSIONS[0])
    return [lanes[0] for lanes in make_parties(extension=extension)]


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


@pytest.mark.parametrize(("bits", "count"), sizes(5, 2, 4, 16, 32, 64))
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


@pytest.mark.parametrize(("bits", "count"), sizes(9, 2, 3, 4, 5, 33, 64))
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


@pytest.mark.parametrize(("bits", "count"), sizes(17, 2, 5, 8, 64))
def test_bits_to_ring(parties: list[Party], bits: int, count: int) -> None:
    plain, shares = shared_bits(count)
    one, other = run_both(lambda j: boolean.to_ring(parties[j], shares[j], count, bits))
    assert (ring.reduce(one + other, bits) == plain).all()


@pytest.mark.parametrize(("bits", "count"), sizes(31, 2, 8, 64))
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


def bits_of(values: Ring, width: int) -> np.ndarray:
    """Return the low bits of values by plain shifts: (width, count)."""
    shifts = np.arange(width, dtype=np.uint64)[:, None]
    return (values.astype(np.uint64) >> shifts & np.uint64(1)).astype(np.uint8)


def unpacked(planes: Words, count: int) -> np.ndarray:
    return np.stack([unpack_bits(plane, count) for plane in planes])


@pytest.mark.parametrize(
    ("bits", "width", "count"),
    [
        *((bits, width, 65) for bits, width in ((2, 1), (2, 2), (9, 9), (33, 33), (64, 64))),
        *((32, 20, count) for count in (1, 63, 64, 300)),
    ],
)
def test_bits_of_shared_numbers_are_those_of_numpy(bits: int, width: int, count: int) -> None:
    """Convert back, too: the low bits' numbers, in a ring of as many bits and in a wider one."""
    rng = np.random.default_rng(bits + count)
    values = ring.reduce(rng.integers(0, 2**64, count, np.uint64), bits)
    # carries through all bits, and through none
    values[: min(count, 3)] = ring.reduce(np.array([0, -1, 1 << (width - 1)]), bits)[:count]
    halves, lanes = additive(values, bits, rng), make_parties()

    def run(j: int) -> tuple[Words, Ring]:
        (party,) = lanes[j]
        party.pool.reserve(
            to_bits_demand(count, width) + from_bits_demand(count, width, max(2, width))
        )
        made = party.pool.ots
        planes = to_bits(party, halves[j], width)
        numbers = from_bits(party, planes, count, max(2, width))
        # nothing is made on the way
        assert party.pool.ots == made
        return planes, numbers

    (one, first), (other, second) = run_both(run)
    assert (unpacked(one ^ other, count) == bits_of(values, width)).all()
    low = values.astype(np.uint64) & np.uint64(2**width - 1)
    assert (ring.reduce(first + second, max(2, width)) == low).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("width", "bits", "count"),
    [
        *((width, bits, 5) for width, bits in ((1, 2), (2, 2), (5, 9), (32, 32), (53, 64))),
        *((20, 32, count) for count in (1, 2, 33)),
    ],
)
def test_an_element_is_that_of_sorting(width: int, bits: int, count: int) -> None:
    """Take the first rank, the middle and the last, with ties and both ends of the range."""
    dim = 70
    rng = np.random.default_rng(width + count)
    top = 1 << (width - 1)
    values = rng.integers(-top, top, (count, dim))
    values[:, ::5] = rng.integers(-1, 1, (count, dim))[:, ::5]
    values[:, 1::5] = np.where(rng.integers(0, 2, (count, dim)) == 1, top - 1, -top)[:, 1::5]
    shares = additive(ring.reduce(values, bits).reshape(-1), bits, rng)
    ranked, lanes = np.sort(values, axis=0), make_parties()
    for rank in {1, count // 2 + 1, count}:

        def run(j: int, rank: int = rank) -> Ring:
            (party,) = lanes[j]
            party.pool.reserve(descent.demand(dim, count, width, bits))
            made = party.pool.ots
            own = RingShare(shares[j].reshape(count, dim))
            found = descent.element(party, own, width, bits, rank)
            assert party.pool.ots == made
            return found

        one, other = run_both(run)
        got = ring.signed(ring.reduce(one + other, bits), bits)
        assert got.tolist() == ranked[rank - 1].tolist()


def test_an_element_takes_five_ots_per_value_and_bit() -> None:
    """Count for 20 values of 20 bits: their bits, an AND, a conversion, and almost nothing else."""
    dim, count, width = 6400, 20, 20
    ots = descent.demand(dim, count, width, 32).ots / dim
    assert 5 <= ots / (count * width) < 5.5
