"""Nearest neighbours mixed before a median or a trimmed mean: against slow definitions."""

from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.sketch import sketch
from securemedian.mpc.rounds.methods import mixing, norms, radix
from securemedian.mpc.rounds.methods.base import Clear, Method, Published
from securemedian.mpc.rounds.methods.nearest import LONGEST
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import check_values
from securemedian.mpc.rounds.plan import predict
from tests.parties import Lanes, make_parties, played, run_both
from tests.test_krum import DIM

SCALE = 2.0**16
METHODS = ("pairwise", "trimmed-mean", "radix")


def made(name: str, dim: int, clients: int, **options: Any) -> RoundParams:
    return RoundParams.from_dict({"method": name, "dim": dim, "max_clients": clients} | options)


def mixed(method: Method, updates: np.ndarray, f: int, coin: bytes) -> np.ndarray:
    """Return sums of the n - f nearest updates, by the definition and in exact arithmetic."""
    n, dim = updates.shape
    matrix = sketch(coin, RingShare(np.eye(dim, dtype=np.uint64)), 0, 256).view(np.int64)
    vectors = [
        ring.signed(method.encode(row, n, Published())[0], 64).astype(object) for row in updates
    ]
    rows = [vector @ matrix.astype(object) for vector in vectors]
    sums = []
    for i in range(n):
        apart = [sum((a - b) ** 2 for a, b in zip(rows[i], row, strict=True)) for row in rows]
        others = sorted((j for j in range(n) if j != i), key=lambda j: (apart[j], j))
        sums.append(sum(vectors[j] for j in [i, *others[: n - f - 1]]))
    return np.array(sums, np.int64)


@pytest.mark.parametrize("selection", ["hidden", "opened"])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("clients", "f"), [(3, 1), (10, 4)])
def test_a_result_is_that_of_the_mixed_updates(
    lanes: Lanes, clients: int, f: int, name: str, selection: str
) -> None:
    rng = np.random.default_rng(clients)
    updates = rng.normal(size=DIM) + rng.normal(size=(clients, DIM)) * rng.random((clients, 1))
    # two of one kind, whose distances tie
    updates[1] = updates[0]
    options = {"trim": 0.3} if name == "trimmed-mean" else {}
    params = made(name, DIM, clients, neighbours=f, selection=selection, **options)
    method = params.method
    outcome = played(lanes, params, updates)
    ranked = np.sort(mixed(method, updates, f, outcome.coin), axis=0)
    if name != "trimmed-mean":
        want = ranked[(clients - 1) // 2] / SCALE / (clients - f)
    else:
        m = int(0.3 * clients)
        want = ranked[m : clients - m].sum(axis=0) / SCALE / (clients - 2 * m) / (clients - f)
    (got,) = method.decode(method.public(outcome.values), clients, Published())
    assert np.array_equal(got, want)
    clear = Clear(updates, [1] * clients, Published(coin=outcome.coin), clients)
    assert np.array_equal(method.in_the_clear(clear)[0], want)


def test_a_lane_takes_no_more_memory_than_without() -> None:
    """Chunks are as large as that allows, so that rounds are few."""

    def memory(name: str, **options: Any) -> int:
        params, protocol = made(name, 60_000, 8, **options), ProtocolParams(lanes=1)
        return predict(params, [1] * 8, protocol).memory

    most = memory("pairwise")
    assert all(0.4 * most < memory(name, neighbours=2) < most for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_long_update_is_left_out_before(name: str) -> None:
    params = made(name, DIM, 5, neighbours=1)
    values = [params.method.encode(np.ones(DIM), 5, Published()) for _ in range(5)]
    values[2][0, 3] = 1 << 62
    halves, parties = [share.split(value, 64) for value in values], make_parties(lanes=2)
    checked, _ = run_both(
        lambda j: check_values(parties[j], params, ProtocolParams(), [pair[j] for pair in halves])
    )
    assert checked.passed == [True, True, False, True, True]
    # its error is about its length, as it is not without neighbours
    assert "longer" in params.form.fault
    assert "longer" not in made(name, DIM, 5).form.fault


def test_sums_of_neighbours_do_not_wrap() -> None:
    """They are compared and added up, or become words."""
    longest = norms.SOUNDNESS.gap * LONGEST
    assert longest * mixing.MOST_CLIENTS < 1 << mixing.MIXED_BITS - 2
    assert longest * mixing.MOST_CLIENTS < 1 << radix.MIXED_WORD_BITS - 1
    assert longest * mixing.MOST_CLIENTS**2 < 1 << mixing.MIXED_BITS - 1
