"""Bits of shared numbers, and elements found by them, against plain numpy, and what they take."""

import numpy as np
import pytest

from securemedian.mpc.arrays import Ring, RingShare, Words
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.convert import from_bits, from_bits_demand, to_bits, to_bits_demand
from securemedian.mpc.rounds.methods import descent
from tests.parties import additive, make_parties, run_both


def bits_of(values: Ring, width: int) -> np.ndarray:
    """Return the low bits of values by plain shifts: (width, count)."""
    shifts = np.arange(width, dtype=np.uint64)[:, None]
    return (values.astype(np.uint64) >> shifts & np.uint64(1)).astype(np.uint8)


def unpacked(planes: Words, count: int) -> np.ndarray:
    return np.stack([unpack_bits(plane, count) for plane in planes])


@pytest.mark.parametrize(("bits", "width"), [(2, 1), (2, 2), (9, 9), (32, 20), (33, 33), (64, 64)])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
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
@pytest.mark.parametrize(("width", "bits"), [(1, 2), (2, 2), (5, 9), (20, 32), (32, 32), (53, 64)])
@pytest.mark.parametrize("count", [1, 2, 5, 33])
def test_an_element_is_that_of_sorting(width: int, bits: int, count: int) -> None:
    """Take every third rank, the first and the last, with ties and both ends of the range."""
    dim = 70
    rng = np.random.default_rng(width + count)
    top = 1 << (width - 1)
    values = rng.integers(-top, top, (count, dim))
    values[:, ::5] = rng.integers(-1, 1, (count, dim))[:, ::5]
    values[:, 1::5] = np.where(rng.integers(0, 2, (count, dim)) == 1, top - 1, -top)[:, 1::5]
    shares = additive(ring.reduce(values, bits).reshape(-1), bits, rng)
    ranked, lanes = np.sort(values, axis=0), make_parties()
    for rank in {1, count, *range(1, count + 1, 3)}:

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
