"""Krum and Multi-Krum: against slow definitions, what is opened, and through real daemons."""

from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare, UnpackedXorBits
from securemedian.mpc.protocols import lengths, ring
from securemedian.mpc.protocols.boolean import multiplex_rows, multiplex_rows_demand
from securemedian.mpc.protocols.channel import NONCE_WORDS
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.sketch import sketch
from securemedian.mpc.rounds.methods import nearest, norms
from securemedian.mpc.rounds.methods.base import Clear, Published
from securemedian.mpc.rounds.methods.krum import Krum
from securemedian.mpc.rounds.params import RoundParams
from tests.parties import Lanes, additive, make_parties, played, run_both
from tests.test_privacy import looks_uniform, recorders

DIM = 300
SMALL = ProtocolParams(lanes=2, chunk=128)


# The protocols


@pytest.mark.parametrize("by_bits", [False, True])
@pytest.mark.parametrize(("n", "dim"), [(2, 1), (5, 7), (9, 70)])
def test_the_smallest_are_those_of_a_stable_sort(
    n: int, dim: int, by_bits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sort random numbers, many ties, and the least and the greatest."""
    monkeypatch.setattr(nearest, "_bit_by_bit", lambda n, dim: by_bits)
    rng = np.random.default_rng(n + dim)
    values = rng.integers(0, 1 << 63, (n, dim), np.uint64)
    values[:, ::3] = rng.integers(0, 3, (n, dim), np.uint64)[:, ::3]
    values[:, 1::3] = np.where(rng.integers(0, 2, (n, dim)) == 1, 0, 2**63 - 1)[:, 1::3]
    halves, lanes = additive(values, 64, rng), make_parties()
    for count in {0, 1, n // 2, n - 1, n}:

        def run(j: int, count: int = count) -> np.ndarray:
            (party,) = lanes[j]
            party.pool.reserve(nearest.smallest_demand(n, dim))
            made = party.pool.ots
            found = nearest.smallest(party, halves[j], count)
            # of so few, a half may be empty, of which the pool makes some all the same
            assert dim < 64 or party.pool.ots == made
            return found

        one, other = run_both(run)
        want = np.zeros((n, dim), np.uint8)
        np.put_along_axis(want, np.argsort(values, axis=0, kind="stable")[:count], 1, axis=0)
        assert np.array_equal(one ^ other, want)


def test_values_are_compared_by_pairs_up_to_22_clients_and_bit_by_bit_beyond() -> None:
    chosen = [nearest._bit_by_bit(clients - 1, clients) for clients in range(3, 60)]
    assert chosen == [clients > 22 for clients in range(3, 60)]


@pytest.mark.parametrize("bits", [5, 31, 32, 33, 64])
@pytest.mark.parametrize(("count", "dim"), [(1, 1), (70, 9)])
def test_rows_are_kept_or_become_zero(count: int, dim: int, bits: int) -> None:
    rng = np.random.default_rng(bits)
    rows = ring.reduce(rng.integers(0, 2**64, (count, dim), np.uint64), bits)
    flags = rng.integers(0, 2, count).astype(np.uint8)
    mask = rng.integers(0, 2, count).astype(np.uint8)
    halves, lanes = additive(rows, bits, rng), make_parties()

    def run(j: int) -> np.ndarray:
        (party,) = lanes[j]
        party.pool.reserve(multiplex_rows_demand(count))
        made = party.pool.ots
        bits_of = UnpackedXorBits(mask if j == 0 else mask ^ flags)
        found = multiplex_rows(party, bits_of, halves[j], bits)
        assert party.pool.ots == made
        return found

    one, other = run_both(run)
    assert np.array_equal(ring.reduce(one + other, bits), rows * flags[:, None])


# Rounds


def chosen(method: Krum, updates: np.ndarray, f: int, m: int, coin: bytes) -> list[int]:
    """Return who is averaged, by the paper's definition and in exact arithmetic."""
    n, dim = updates.shape
    matrix = sketch(coin, RingShare(np.eye(dim, dtype=np.uint64)), 0, 256).view(np.int64)
    vectors = [
        ring.signed(method.encode(row, n, Published())[0], 64).astype(object) for row in updates
    ]
    rows = [vector @ matrix.astype(object) for vector in vectors]
    apart = [[sum((a - b) ** 2) for b in rows] for a in rows]
    scores = [sum(sorted(apart[i][j] for j in range(n) if j != i)[: n - f - 2]) for i in range(n)]
    return sorted(range(n), key=lambda i: (scores[i], i))[:m]


@pytest.mark.parametrize("selection", ["hidden", "opened"])
@pytest.mark.parametrize(
    ("clients", "options", "f", "m"),
    [
        (3, {}, 0, 3),
        (4, {"faulty": 1}, 1, 3),
        (5, {"chosen": 1}, 1, 1),
        (7, {"faulty": 3, "chosen": 2}, 3, 2),
        (12, {"faulty": 2}, 2, 10),
    ],
)
def test_the_clients_that_are_averaged_are_those_of_the_paper(
    lanes: Lanes, clients: int, options: dict[str, Any], f: int, m: int, selection: str
) -> None:
    rng = np.random.default_rng(clients)
    updates = rng.normal(size=DIM) + rng.normal(size=(clients, DIM)) * rng.random((clients, 1))
    method = Krum(selection=selection, **options)
    outcome = played(lanes, RoundParams(method, dim=DIM, max_clients=clients), updates)
    own = chosen(method, updates, f, m, outcome.coin)
    encoded = [method.encode(updates[i], clients, Published())[0] for i in own]
    want = ring.signed(np.stack(encoded).sum(axis=0, dtype=np.uint64), 64) / 2.0**16 / m
    (got,) = method.decode(method.public(outcome.values), clients, Published())
    assert np.array_equal(got, want)
    clear = Clear(updates, [1] * clients, Published(coin=outcome.coin), clients)
    assert np.array_equal(method.in_the_clear(clear)[0], want)


def test_equal_updates_are_chosen_by_their_place(lanes: Lanes) -> None:
    """Three of one kind and three of another: all scores tie, and the first are averaged."""
    updates = np.repeat([[1.0], [-1.0]], 3, axis=0) * np.ones(DIM)
    method = Krum(faulty=2, chosen=4)
    outcome = played(lanes, RoundParams(method, dim=DIM, max_clients=6), updates)
    (got,) = method.decode(method.public(outcome.values), 6, Published())
    assert np.array_equal(got, np.full(DIM, (3 * 1.0 - 1.0) / 4))


SHARE = {"method": "reclustered", "clusters": 2, "reclusterings": 3, "ring_bits": 32}
OPENED: list[tuple[dict[str, Any], list[tuple[str, int]], set[str]]] = [
    ({"method": "krum"}, [("ring", 1024)], {"rows.reply", "square.reply", "and"}),
    ({"method": "krum", "selection": "opened"}, [("bits", 1), ("ring", 1024)], set()),
    (
        {"method": "zeno", "validator": "client-0", "clusters": 2, "reclusterings": 2},
        [("ring", 2048)],
        {"square.request", "square.reply", "rows.reply", "b2a"},
    ),
    (
        {"method": "trimmed-mean", "neighbours": 2, "trim": 0.2},
        [("ring", 1280)],
        {"rows.reply", "square.reply", "mux.reply"},
    ),
    (
        {"method": "trimmed-mean", "neighbours": 2, "trim": 0.2, "selection": "opened"},
        [("bits", 1), ("ring", 1280)],
        {"square.reply", "mux.reply"},
    ),
    (
        SHARE | {"fraction_bits": 0, "median_by": "pairwise"},
        [("ring", 1024)],
        {"leaf.request", "mux.reply"},
    ),
    (SHARE | {"fraction_bits": 0, "median_by": "radix"}, [("ring", 1024)], {"leaf.request", "and"}),
]


@pytest.mark.parametrize(("options", "openings", "hidden"), OPENED)
def test_opened_are_the_result_and_who_is_chosen_only_where_that_is_asked_for(
    options: dict[str, Any], openings: list[tuple[str, int]], hidden: set[str]
) -> None:
    """All else that a server hears is uniform, as far as there is enough to judge."""
    pair = recorders()
    params = RoundParams.from_dict({"dim": 2048, "max_clients": 7} | options)
    updates = np.repeat(np.linspace(-1, 1, 7)[:, None], 2048, axis=1)
    played(make_parties(pairs=[pair]), params, updates, protocol=ProtocolParams(lanes=1))
    for end in pair:
        opened = [(label, array.size) for label, array in end.received if label[:4] == "open"]
        assert opened == [(f"open.{kind}", size + NONCE_WORDS) for kind, size in openings]
        labels = {label for label, _ in end.received if label[:3] not in ("bas", "ggm", "ot.")}
        assert labels >= hidden and ("rows.reply" in labels) == ("rows.reply" in hidden)
        # the requests of a comparison are few choices in many words
        few = {"sizes", "toss.commit", "toss.open", "leaf.request", "leaf.reply"}
        for label in labels - (few - hidden):
            seen = end.of(label).view(np.uint8)
            assert seen.size < 1000 or looks_uniform(seen), label


def test_what_is_sent_has_the_same_shape_for_all_updates() -> None:
    shapes = []
    for updates in (np.zeros((5, DIM)), np.ones((5, DIM)), np.eye(5, DIM) * 8):
        pair = recorders()
        params = RoundParams(Krum(), dim=DIM, max_clients=5)
        played(make_parties(pairs=[pair]), params, updates, protocol=ProtocolParams(lanes=1))
        shapes.append([(label, a.dtype, a.shape) for end in pair for label, a in end.received])
    assert shapes[0] == shapes[1] == shapes[2]


def test_sums_of_what_passes_the_check_do_not_wrap() -> None:
    longest = norms.SOUNDNESS.gap * Krum().most_length
    assert longest < 1 << 23 and nearest.MOST_CLIENTS << 23 < 1 << 31
    apart = lengths.Soundness(nearest.ROWS).limit(int(2 * longest))
    assert (nearest.MOST_CLIENTS - 3) * apart < 1 << 63


def test_what_a_selection_takes_does_not_grow_with_the_update() -> None:
    weights = [1] * 10
    for method in (Krum(), Krum(selection="opened")):
        taken = [
            method.judge_demand(weights, 10) + method.demand(weights, dim, 10) for dim in (1, 10**6)
        ]
        assert taken[0].ots == taken[1].ots < 800_000
