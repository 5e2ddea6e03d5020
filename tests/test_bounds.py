"""Values out of range: who shares one is found, and nobody else, whatever an honest one says."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import InputError, PeerProtocolError
from securemedian.mpc.protocols import ring, share
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds import chunks, cost, lanes
from securemedian.mpc.rounds.cutting import Does, Step, steps
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.fixed import SizedFixedPoint, Values
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, check_values, fill, run_round
from tests.parties import additive, make_parties, run_both

# Several pieces per lane and, from 6 comparisons per coordinate on, several groups of clients.
SMALL = ProtocolParams(lanes=2, chunk=256, batch=640)
DIM, CLIENTS = 700, 8


def found(values: np.ndarray, bits: int, headroom: int) -> np.ndarray:
    """Return who is found to have a value outside, of values (n, d) as ring elements."""
    shares = additive(values, bits, np.random.default_rng(bits))
    parties = make_parties()
    chunks: list[Any] = [SimpleNamespace(rows=lambda party, j=j: shares[j]) for j in (0, 1)]
    check = Values(bits, headroom)
    one, other = run_both(lambda j: check.outside(parties[j][0], chunks[j]))
    assert one.dtype == np.bool_ and (one == other).all()
    return one


@pytest.mark.parametrize("bits", [2, 3, 5, 8, 9])
def test_every_element_of_a_small_ring(bits: int) -> None:
    elements = ring.reduce(np.arange(1 << bits)[:, None], bits)
    signed = ring.signed(elements, bits)[:, 0]
    for headroom in range(bits - 1):
        top = 1 << (bits - 2 - headroom)
        assert (found(elements, bits, headroom) == (signed < -top) | (signed >= top)).all()


@pytest.mark.parametrize("headroom", [0, 3])
@pytest.mark.parametrize("bits", [16, 17, 31, 32, 33, 63, 64])
def test_the_edges_of_a_large_ring(bits: int, headroom: int) -> None:
    top, half = 1 << (bits - 2 - headroom), 1 << (bits - 1)
    inside = [-top, -top + 1, -1, 0, 1, top - 1]
    outside = [-top - 1, top, top + 1, -half, half - 1, half - top, top - half - 1]
    values = np.array([[value % (1 << bits)] for value in inside + outside], np.uint64)
    got = found(ring.reduce(values, bits), bits, headroom)
    assert got.tolist() == [False] * len(inside) + [True] * len(outside)


# Rounds

METHODS_CHECKED: list[SizedFixedPoint] = [
    Pairwise(ring_bits=32, fraction_bits=8),
    Pairwise(ring_bits=13, fraction_bits=3, selection="opened"),
    TrimmedMean(ring_bits=32, fraction_bits=8, trim=0.25),
    TrimmedMean(ring_bits=17, fraction_bits=3, trim=0.0),
]
Uploads = list[tuple[share.Upload, share.Upload]]


def upload(params: RoundParams, elements: np.ndarray) -> tuple[share.Upload, share.Upload]:
    """Share ring elements (d,), whatever they are, as a hostile client would."""
    return share.split(
        ring.reduce(elements[None], params.form.layout.bits), params.form.layout.bits
    )


def honest(params: RoundParams, clients: int) -> tuple[np.ndarray, Uploads]:
    """Return values (n, d), extremes among them, and their shares."""
    rng = np.random.default_rng(clients)
    values = rng.normal(size=(clients, params.dim))
    extremes = rng.choice([np.inf, -np.inf, 1e300, -1e300, 0.0, -0.0, 1e-300], values.shape)
    values = np.where(rng.random(values.shape) < 0.3, extremes, values)
    encoded = [params.method.encode(row, params.max_clients, Published()) for row in values]
    return values, [share.split(row, params.form.layout.bits) for row in encoded]


def verdicts(
    params: RoundParams, uploads: Uploads, protocol: ProtocolParams = SMALL, lanes: Any = None
) -> Checked:
    lanes = lanes or make_parties(protocol.lanes)
    one, other = run_both(
        lambda j: check_values(lanes[j], params, protocol, [pair[j] for pair in uploads])
    )
    assert one.passed == other.passed
    assert one.cost.bytes_sent == other.cost.bytes_received
    return one


def pieces_of(params: RoundParams, clients: int, protocol: ProtocolParams) -> list[Step]:
    """Return the steps of a check of values."""
    before, _ = steps(params, clients, protocol)
    return [step for step in before if step.does == Does.CHECK]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_CHECKED, ids=lambda m: f"{m.label} {m.ring_bits}")
def test_who_cheats_is_left_out_and_others_have_their_result(method: SizedFixedPoint) -> None:
    """One value each: in the first and the last coordinate, at cuts of lanes, pieces and groups."""
    params = RoundParams(method, dim=DIM, max_clients=CLIENTS)
    values, uploads = honest(params, CLIENTS)
    pieces = pieces_of(params, CLIENTS, SMALL)
    assert len(pieces) > 2 and len({piece.first for piece in pieces}) > 1
    cuts = sorted({at for piece in pieces for at in (piece.begin, piece.end - 1)})
    assert cuts[0] == 0 and cuts[-1] == DIM - 1
    top = 1 << (params.form.ring_bits - 2 - method.headroom(CLIENTS))
    for client, places in ((0, cuts[:1]), (CLIENTS - 1, cuts[-1:]), (3, cuts[1:-1])):
        for at in places:
            elements = np.zeros(DIM, np.int64)
            elements[at] = (top, -top - 1)[at % 2]
            one = [*uploads[:client], upload(params, elements), *uploads[client + 1 :]]
            assert verdicts(params, one).passed == [i != client for i in range(CLIENTS)]
    bad = {2: upload(params, np.full(DIM, 2 * top)), 5: upload(params, np.full(DIM, -2 * top))}
    mixed = [bad.get(client, pair) for client, pair in enumerate(uploads)]
    lanes = make_parties(SMALL.lanes)
    passed = verdicts(params, mixed, lanes=lanes).passed
    assert passed == [client not in bad for client in range(CLIENTS)]
    left = [client for client in range(CLIENTS) if passed[client]]
    one, other = run_both(
        lambda j: run_round(lanes[j], params, SMALL, [mixed[client][j] for client in left])
    )
    assert (one.values == other.values).all()
    want = method.in_the_clear(Clear(values[left], [1] * len(left), Published(), CLIENTS))
    got = method.decode(method.public(one.values), len(left), Published())
    assert np.array_equal(got, want)


@pytest.mark.parametrize("cls", [Pairwise, TrimmedMean])
@pytest.mark.parametrize("bits", [5, 8, 9, 17, 31, 32, 33, 63, 64])
def test_no_honest_client_is_left_out(cls: type[SizedFixedPoint], bits: int) -> None:
    """Try all values of floats, in rings in which nearly everything saturates."""
    for fraction in {0, bits - 5}:
        params = RoundParams(
            cls(ring_bits=bits, fraction_bits=fraction), dim=300, max_clients=CLIENTS
        )
        _, uploads = honest(params, 3)
        ends = [np.full(300, end) for end in (np.inf, -np.inf, np.nextafter(0, -1))]
        encoded = [params.method.encode(end, CLIENTS, Published()) for end in ends]
        uploads += [share.split(row, params.form.layout.bits) for row in encoded]
        assert all(verdicts(params, uploads, ProtocolParams(lanes=1)).passed)


@pytest.mark.parametrize(
    "method", [Bucketed(), Mean(norm_bound="off"), Radix()], ids=lambda m: m.name
)
def test_a_method_without_bounds_passes_all_and_sends_nothing(method: Any) -> None:
    params = RoundParams(method, dim=10, max_clients=3)
    uploads: Uploads = [(share.SeedUpload(params.form.layout, bytes(16)),) * 2] * 3
    checked = verdicts(params, uploads)
    assert checked == Checked([True] * 3, cost.Cost())


def test_too_many_uploads_are_refused() -> None:
    params = RoundParams(Pairwise(), dim=10, max_clients=3)
    lanes = make_parties()[0]
    for count in (0, 4):
        with pytest.raises(InputError, match=f"a round takes 1 to 3 uploads: {count}; give"):
            half = share.SeedUpload(params.form.layout, bytes(16))
            check_values(lanes, params, SMALL, [half] * count)


def test_verdicts_that_differ_end_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    params = RoundParams(Pairwise(ring_bits=16, fraction_bits=0), dim=200, max_clients=3)
    exchange = lanes.exchange_verdicts

    def lie(party: Any, passed: Sequence[bool]) -> Any:
        return exchange(party, [False, *passed[1:]] if party.number else passed)

    monkeypatch.setattr(chunks, "exchange_verdicts", lie)
    with pytest.raises(PeerProtocolError, match="disagree on which clients' values"):
        verdicts(params, honest(params, 3)[1])


# Costs


@pytest.mark.parametrize("clients", [CLIENTS, 3])
@pytest.mark.parametrize("method", METHODS_CHECKED[::2], ids=lambda m: m.label)
def test_what_is_filled_ahead_is_enough(method: SizedFixedPoint, clients: int) -> None:
    params = RoundParams(method, dim=DIM, max_clients=CLIENTS)
    protocol = ProtocolParams(lanes=2)
    lanes = make_parties(2)
    seen: list[tuple[int, int]] = []
    ahead = run_both(
        lambda j: fill(lanes[j], params, protocol, 1 << 30, progress=lambda *at: seen.append(at))
    )[0]
    assert max(seen) == (2 * DIM, 2 * DIM)
    uploads = honest(params, clients)[1]
    checked = verdicts(params, uploads, protocol, lanes)
    assert ahead.ots > 0 and all(checked.passed)
    assert checked.cost.ots == 0 and checked.cost.checking_rounds > 0
    if clients == CLIENTS:
        outcome = run_both(
            lambda j: run_round(lanes[j], params, protocol, [pair[j] for pair in uploads])
        )[0]
        assert outcome.cost.ots == 0


def test_the_parts_of_a_cost_add_up() -> None:
    params = RoundParams(TrimmedMean(), dim=DIM, max_clients=4)
    lanes = make_parties(2)
    protocol = ProtocolParams(lanes=2)
    # too little for all of it
    ahead = run_both(lambda j: fill(lanes[j], params, protocol, 1 << 20))[0]
    uploads = honest(params, 4)[1]
    checked = verdicts(params, uploads, protocol, lanes)
    outcome = run_both(
        lambda j: run_round(lanes[j], params, protocol, [pair[j] for pair in uploads])
    )[0]
    cost = outcome.cost.after(checked.cost).after(ahead)
    whole = cost.to_dict()
    for name in ("bytes_sent", "bytes_received", "rounds"):
        parts = [whole[f"{part}_{name}"] for part in ("preprocessing", "checking", "online")]
        assert whole[name] == sum(parts) and all(parts)
        own = outcome.cost.to_dict()
        assert whole[f"online_{name}"] == own[f"online_{name}"]
        assert whole[f"checking_{name}"] == getattr(checked.cost, name)
    assert cost.checking_seconds == checked.cost.checking_seconds > 0
    assert cost.ahead_seconds == ahead.ahead_seconds and cost.seconds == outcome.cost.seconds
    assert cost.ots == ahead.ots + checked.cost.ots + outcome.cost.ots


def test_a_check_is_cut_to_the_batch() -> None:
    """A piece has at most the comparisons that a lane may run at once, except whole slices."""
    for clients in (2, 3, 100, 70_000):
        for method in METHODS_CHECKED[::2]:
            params = RoundParams(method, dim=2000, max_clients=min(clients, 1 << 16))
            protocol = ProtocolParams(lanes=3, chunk=1 << 16, batch=1 << 12)
            pieces = pieces_of(params, clients, protocol)
            assert params.form.values
            per_value = params.form.values.comparisons
            sizes = [piece.clients * piece.dim for piece in pieces]
            slices = max(piece.clients for piece in pieces)
            assert max(sizes) * per_value < (1 << 12) + slices * per_value * share.SLICE_ALIGN
            assert slices * per_value * share.SLICE_ALIGN <= 1 << 12
            assert sum(sizes) == clients * 2000
            assert all(piece.begin % share.SLICE_ALIGN == 0 for piece in pieces)
