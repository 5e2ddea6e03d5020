"""Secret squares against plain numpy, and what they take."""

import numpy as np
import pytest

from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.correlations.kinds import RandomOts
from securemedian.mpc.protocols.lengths import square, square_demand
from tests.parties import additive, make_parties, run_both


@pytest.mark.parametrize("bits", [2, 3, 8, 9, 31, 32, 33, 63, 64])
@pytest.mark.parametrize("count", [1, 63, 64, 65, 300])
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
