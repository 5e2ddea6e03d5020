"""The medians against numpy, in process: edge and random inputs, chunkings, all parameters."""

from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, ProtocolParams
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.chunks import demand
from securemedian.mpc.rounds.methods import bucketed, pairwise
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome, run_round
from tests import reference
from tests.parties import (
    Lanes,
    additive,
    make_parties,
    run_both,
    run_rounds,
    shared,
    shared_buckets,
    widths,
)

pytestmark = pytest.mark.slow

CLIENTS = [2, 3, 4, 7, 8, 16, 17]
# random cases a combination
COLUMNS = 40


# with each number of clients, and one with the other OTs: values do not depend on these
OTS_AND_CLIENTS = [*((OT_EXTENSIONS[0], clients) for clients in CLIENTS), (OT_EXTENSIONS[1], 5)]


@pytest.fixture(scope="module")
def lanes(request: pytest.FixtureRequest) -> Lanes:
    """Return two lanes of both parties, whose OTs are of the kind that a test asks for."""
    return make_parties(lanes=2, extension=getattr(request, "param", OT_EXTENSIONS[0]))


def columns(rng: np.random.Generator, clients: int, low: int, high: int) -> np.ndarray:
    """Random columns, then ties, all equal, both extremes, ascending and descending."""
    random = rng.integers(low, high, (clients, COLUMNS), endpoint=True)
    ties = rng.integers(max(low, -1), min(high, 1), (clients, COLUMNS), endpoint=True)
    same = np.full((clients, 2), [low, high])
    extremes = rng.choice([low, high], (clients, COLUMNS))
    ordered = np.sort(random[:, :2], axis=0)
    return np.concatenate([random, ties, same, extremes, ordered, ordered[::-1]], axis=1)


def bucketed_round(
    lanes: Lanes, index: np.ndarray, buckets: int, schedule: str, bits: int = 0
) -> tuple[Outcome, Outcome]:
    clients, dim = index.shape
    params = RoundParams(
        Bucketed(ring_bits=bits, buckets=buckets, schedule=schedule), dim=dim, max_clients=clients
    )
    return run_rounds(
        lanes,
        params,
        [shared_buckets(params, row) for row in index],
    )


def pairwise_round(
    lanes: Lanes, values: np.ndarray, bits: int, **options: Any
) -> tuple[Outcome, Outcome]:
    clients, dim = values.shape
    params = RoundParams(
        Pairwise(ring_bits=bits, fraction_bits=0, **options), dim=dim, max_clients=clients
    )
    return run_rounds(
        lanes, params, [share.split(ring.reduce(row[None], bits), bits) for row in values]
    )


@pytest.mark.parametrize(("lanes", "clients"), OTS_AND_CLIENTS, indirect=["lanes"])
@pytest.mark.parametrize("schedule", ["scan", "bisect"])
def test_bucketed_is_the_bucketed_median_in_the_clear(
    lanes: Lanes, clients: int, schedule: str
) -> None:
    rng = np.random.default_rng(clients)
    for buckets in (3, 8, 9):
        index = columns(rng, clients, 0, buckets - 1)
        one, other = bucketed_round(lanes, index, buckets, schedule)
        want = reference.bucketed_median(index, buckets)
        assert (one.values == want).all() and (other.values == want).all()
        # the bucket of the median is the median of the buckets
        assert (want == reference.lower_median(index)).all()


@pytest.mark.parametrize(("lanes", "clients"), OTS_AND_CLIENTS, indirect=["lanes"])
@pytest.mark.parametrize("selection", ["hidden", "opened"])
def test_pairwise_is_the_element_of_rank_k(lanes: Lanes, clients: int, selection: str) -> None:
    rng = np.random.default_rng(clients)
    for bits in (32, 64):
        values = columns(rng, clients, -(2 ** (bits - 2)), 2 ** (bits - 2) - 1)
        one, other = pairwise_round(lanes, values, bits, selection=selection)
        want = reference.lower_median(values)
        assert (ring.signed(one.values, bits) == want).all() and (
            ring.signed(other.values, bits) == want
        ).all()


@pytest.mark.parametrize(("lanes", "bits"), widths(3, 64), indirect=["lanes"])
def test_pairwise_in_every_ring(lanes: Lanes, bits: int) -> None:
    values = columns(np.random.default_rng(bits), 5, -(2 ** (bits - 2)), 2 ** (bits - 2) - 1)
    one, _ = pairwise_round(lanes, values, bits)
    assert (ring.signed(one.values, bits) == reference.lower_median(values)).all()


@pytest.mark.parametrize("bits", [3, 4, 5, 8, 9, 16, 17, 32, 33, 64])
def test_bucketed_in_every_ring(lanes: Lanes, bits: int) -> None:
    index = columns(np.random.default_rng(bits), 5, 0, 7)
    assert (
        bucketed_round(lanes, index, 8, "scan", bits)[0].values == reference.lower_median(index)
    ).all()


@pytest.mark.parametrize("method", ["bucketed", "pairwise"])
def test_one_client_has_itself_as_median(method: str) -> None:
    """Compute it for n = 1, for which protocols are defined; the service refuses such a round."""
    parties = [side[0] for side in make_parties()]
    rng = np.random.default_rng(1)
    if method == "bucketed":
        index = rng.integers(0, 8, (1, 50)).astype(np.uint16)
        counts = additive(encode.cumulative(index[0], 8), 4, rng)
        for schedule in ("scan", "bisect"):
            got = run_both(lambda j, s=schedule: bucketed.median(parties[j], counts[j], 1, 4, s))  # type: ignore[misc]
            assert (got[0] == index[0]).all() and (got[1] == index[0]).all()
    else:
        values = additive(rng.integers(0, 2**64, (1, 50), np.uint64), 64, rng)
        one, other = run_both(lambda j: pairwise.median(parties[j], values[j], 64, "hidden"))
        assert (one + other == values[0][0] + values[1][0]).all()


@pytest.mark.parametrize("clients", [1, 5, 8])
def test_any_rank(clients: int) -> None:
    parties = [side[0] for side in make_parties()]
    rng = np.random.default_rng(clients)
    index = columns(rng, clients, 0, 7)
    counts = additive(sum(encode.cumulative(row.astype(np.uint16), 8) for row in index), 8, rng)  # type: ignore[arg-type]
    for rank in range(1, clients + 1):
        got, _ = run_both(
            lambda j: bucketed.median(parties[j], counts[j], clients, 8, "scan", rank)  # noqa: B023
        )
        assert (got == reference.rank_element(index, rank)).all()


def test_result_to_clients_is_shared_between_the_servers(lanes: Lanes) -> None:
    values = columns(np.random.default_rng(2), 4, -1000, 1000)
    one, other = pairwise_round(lanes, values, 32, result_to="clients")
    want = reference.lower_median(values)
    assert (
        ring.signed(share.combine(RingShare(one.values), RingShare(other.values), 32), 32) == want
    ).all()
    assert (
        (ring.signed(one.values, 32) == want).mean()
        < 0.1
        > (ring.signed(other.values, 32) == want).mean()
    )


@pytest.mark.parametrize("method", ["bucketed", "pairwise"])
def test_local_parameters_change_no_output(method: str) -> None:
    """Chunks and batches are LOCAL: the parties may even differ in them."""
    rng = np.random.default_rng(9)
    dim, clients = 1500, 3
    kind = (
        Bucketed(buckets=8, schedule="scan")
        if method == "bucketed"
        else Pairwise(ring_bits=32, fraction_bits=0)
    )
    params = RoundParams(kind, dim=dim, max_clients=clients)
    if method == "bucketed":
        values = rng.integers(0, 8, (clients, dim))
        shares = [shared_buckets(params, row) for row in values]
    else:
        values = rng.integers(-1000, 1000, (clients, dim))
        shares = [share.split(ring.reduce(row[None], 32), 32) for row in values]
    want = reference.lower_median(values)
    for lanes, chunk, batch in (
        (1, 128, 1 << 19),
        (2, 256, 1 << 19),
        (3, 1 << 16, 128),
        (2, 1 << 16, 1 << 19),
    ):
        both = make_parties(lanes=lanes)
        mine = [ProtocolParams(lanes=lanes, chunk=chunk, batch=batch), ProtocolParams(lanes=lanes)]
        one, other = run_both(
            lambda j: run_round(both[j], params, mine[j], [pair[j] for pair in shares])  # noqa: B023
        )  # noqa: B023, RUF100
        for outcome in (one, other):
            got = outcome.values if method == "bucketed" else ring.signed(outcome.values, 32)
            assert (got == want).all()


@pytest.mark.parametrize("field_bits", [1, 2, 8])
def test_every_extension_parameter(field_bits: int) -> None:
    both = make_parties(field_bits=field_bits)
    index = columns(np.random.default_rng(field_bits), 7, 0, 7)
    assert (bucketed_round(both, index, 8, "scan")[0].values == reference.lower_median(index)).all()
    assert (
        ring.signed(pairwise_round(both, index, 16)[0].values, 16) == reference.lower_median(index)
    ).all()


def test_progress_reaches_the_whole(lanes: Lanes) -> None:
    seen: list[tuple[int, int]] = []
    params = RoundParams(Bucketed(buckets=8, schedule="scan"), dim=1000, max_clients=2)
    shares = [shared_buckets(params, np.zeros(1000, np.uint16)) for _ in range(2)]
    run_both(
        lambda j: run_round(
            lanes[j],
            params,
            ProtocolParams(),
            [pair[j] for pair in shares],
            (lambda *at: seen.append(at)) if j == 0 else None,
        )
    )
    assert seen[-1] == (1000, 1000) and seen == sorted(seen)


def test_more_uploads_than_the_ring_was_sized_for_are_refused(lanes: Lanes) -> None:
    params = RoundParams(Bucketed(buckets=8, schedule="scan"), dim=10, max_clients=2)
    upload = shared_buckets(params, np.zeros(10, np.uint16))[0]
    for uploads in ([], [upload] * 3):
        with pytest.raises(InputError, match="a round takes 1 to"):
            run_round(lanes[0], params, ProtocolParams(), uploads)


@pytest.mark.parametrize(
    "params",
    [
        RoundParams(Bucketed(buckets=8, schedule="scan"), dim=640, max_clients=8),
        RoundParams(Bucketed(buckets=8), dim=640, max_clients=8),
        RoundParams(Bucketed(buckets=8, groups=4), dim=640, max_clients=8),
        RoundParams(Bucketed(buckets=8, schedule="scan", ring_bits=64), dim=640, max_clients=40),
        RoundParams(Pairwise(ring_bits=32), dim=640, max_clients=8),
        RoundParams(Pairwise(selection="opened"), dim=640, max_clients=8),
    ],
)
def test_demand_is_all_that_a_round_takes(params: RoundParams) -> None:
    """Nothing is made after `reserve`, and less than one alignment of each kind is left over."""
    both = make_parties()
    zeros = np.zeros((params.form.layout.rows, params.dim), ring.dtype(params.form.layout.bits))
    shares = [shared(params, zeros) for _ in range(8)]
    outcome, _ = run_rounds(both, params, shares)
    asked = demand(params, [1] * 8, params.dim).counts
    exact = sum(kind.ots * sum(pair) for kind, pair in asked.items())
    assert exact <= outcome.cost.ots <= exact + sum(2 * 128 * kind.ots for kind in asked)
