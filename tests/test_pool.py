"""Pools filled ahead: what they spare a round, and where they stop.

Nothing in them serves twice, failures included.
"""

import itertools
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securemedian.mpc.errors import PeerProtocolError, SecureMedianError
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import (
    DaBits,
    PlaneOts,
    RandomOts,
    Tables,
    Triples,
)
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked, Outcome, fill, run_round
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.engine import Coin, Engine, Engines
from securemedian.servers.computing.threads import ThreadBackend
from tests.engines import SMALL, Servers
from tests.parties import make_parties, run_both, shared

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(8)
DIM, CLIENTS = 700, 4
PLENTY = 1 << 30
ROUNDS = {
    "scan": RoundParams(
        Bucketed(buckets=6, schedule="scan", uploads="unverified"), dim=DIM, max_clients=CLIENTS
    ),
    "bisect": RoundParams(
        Bucketed(buckets=6, schedule="bisect", uploads="unverified"), dim=DIM, max_clients=CLIENTS
    ),
    "pairwise": RoundParams(Pairwise(ring_bits=16, fraction_bits=4), dim=DIM, max_clients=CLIENTS),
    "radix": RoundParams(
        Radix(encoding="fixed", word_bits=8, fraction_bits=2), dim=DIM, max_clients=CLIENTS
    ),
    "trimmed-mean": RoundParams(
        TrimmedMean(ring_bits=24, fraction_bits=4, trim=0.25), dim=DIM, max_clients=CLIENTS
    ),
}
OVER = [("scan", "softspoken"), ("pairwise", "softspoken"), ("radix", "silent")]
Sides = tuple[list[Party], list[Party]]


def filled(
    sides: Sides, params: RoundParams, limits: tuple[int, int] = (PLENTY, PLENTY), **options: Any
) -> list[Cost]:
    return list(run_both(lambda j: fill(sides[j], params, SMALL, limits[j], **options)))


def computed(sides: Sides, params: RoundParams, clients: int = CLIENTS) -> tuple[Outcome, Outcome]:
    """Run a round on random updates, and check its result."""
    published = Published(np.zeros(DIM, np.float32), np.full(DIM, 2, np.float32), CoordinateRange())
    updates = RNG.uniform(-1.2, 1.2, (clients, DIM)).astype(np.float32)
    shares = [params.method.encode(update, CLIENTS, published) for update in updates]
    halves = [shared(params, values) for values in shares]
    outcomes = run_both(lambda j: run_round(sides[j], params, SMALL, [half[j] for half in halves]))
    alone: Sides = make_parties(lanes=2)
    expected = run_both(lambda j: run_round(alone[j], params, SMALL, [half[j] for half in halves]))[
        0
    ]
    assert all((outcome.values == expected.values).all() for outcome in outcomes)
    return outcomes


def stock_bytes(parties: list[Party]) -> int:
    pools = [party.pool for party in parties]
    stocks = [
        stock for pool in pools for side in (pool._sent, pool._received) for stock in side.values()
    ]
    return sum(array.nbytes for stock in stocks for piece in stock._pieces for array in piece)


@pytest.mark.parametrize(("name", "extension"), OVER)
def test_a_full_pool_leaves_nothing_to_make(name: str, extension: str) -> None:
    params = ROUNDS[name]
    sides = make_parties(lanes=2, extension=extension)
    ahead = filled(sides, params)
    assert ahead[0].ots == ahead[1].ots > 0 and ahead[0].seconds == 0 < ahead[0].ahead_seconds
    for outcome, before in zip(computed(sides, params), ahead, strict=True):
        run = outcome.cost
        assert (
            run.ots
            == run.preprocessing_bytes_sent
            == run.preprocessing_rounds
            == 0
            < run.bytes_sent
        )
        whole = run.after(before)
        assert (whole.ots, whole.seconds, whole.ahead_seconds) == (
            before.ots,
            run.seconds,
            before.ahead_seconds,
        )
        assert whole.bytes_sent == run.bytes_sent + before.bytes_sent
        told = whole.to_dict()
        assert (
            told["online_bytes_sent"] == run.bytes_sent
            and told["preprocessing_bytes_sent"] == before.bytes_sent
        )
        assert told["online_rounds"] == run.rounds and told["preprocessing_rounds"] == before.rounds


@pytest.mark.parametrize(("name", "extension"), OVER)
def test_a_short_pool_is_topped_up_by_the_round(name: str, extension: str) -> None:
    params = ROUNDS[name]
    sides = make_parties(lanes=2, extension=extension)
    whole = filled(make_parties(lanes=2), params)[0].ots
    steps = itertools.count()
    # both lanes together
    ahead = filled(sides, params, hurry=lambda: next(steps) >= 2)
    assert 0 < ahead[0].ots == ahead[1].ots < whole
    first, second = computed(sides, params)
    assert first.cost.ots == second.cost.ots > 0
    # and what is left over is of use to the next
    computed(sides, params)


def test_the_round_may_be_of_fewer_clients_than_the_pool() -> None:
    for name in ("radix", "trimmed-mean"):
        sides = make_parties(lanes=2)
        filled(sides, ROUNDS[name])
        computed(sides, ROUNDS[name], clients=CLIENTS - 1)


def test_the_smaller_limit_holds() -> None:
    """Whole blocks are made, so a lane may have up to a block of each kind and direction more."""
    params = replace(ROUNDS["radix"], dim=20_000)
    protocol = replace(SMALL, chunk=1280)
    sides = make_parties(lanes=2)
    limit = 400_000
    run_both(lambda j: fill(sides[j], params, protocol, (limit, PLENTY)[j]))
    # lanes, directions, items that a block is rounded up to, their bytes, kinds at most
    block = 2 * 2 * 128 * 5 * 4
    assert 0.6 * limit < stock_bytes(sides[0]) <= limit + block
    assert stock_bytes(sides[0]) == pytest.approx(stock_bytes(sides[1]), rel=0.02)


def test_kinds_say_how_much_memory_they_take() -> None:
    for kind in (
        Tables(3, 1),
        Tables(4, 2),
        Triples(1),
        Triples(2),
        PlaneOts(12),
        RandomOts(33),
        DaBits(4),
    ):
        sides = make_parties()
        demand = Demand({kind: (1280, 640)})
        run_both(lambda j: sides[j][0].pool.reserve(demand))  # noqa: B023
        made = [sides[j][0].pool.stock[kind] for j in (0, 1)]
        exactly = Demand({kind: (made[0][0], made[0][1])})
        assert exactly.memory == max(stock_bytes(sides[j]) for j in (0, 1)), kind


def test_another_round_drops_what_it_has_no_use_for() -> None:
    sides = make_parties(lanes=2)
    filled(sides, ROUNDS["pairwise"])
    filled(sides, ROUNDS["scan"])
    for party in (*sides[0], *sides[1]):
        assert {kind for kind, counts in party.pool.stock.items() if any(counts)} == {Tables(2, 1)}
    computed(sides, ROUNDS["scan"])


def test_pools_that_do_not_belong_together_are_noticed() -> None:
    sides = make_parties(lanes=2)
    filled(sides, ROUNDS["scan"])
    sides[1][1].pool.keep_only(Demand())
    with pytest.raises(PeerProtocolError, match="do not belong together"):
        filled(sides, ROUNDS["scan"])


class DroppingServers(Servers):
    """Two engines, and the rule by which the servers drop a session: after any failure, both do."""

    def __init__(self) -> None:
        self._sessions = itertools.count(1)
        self._session: bytes | None = None
        self._ended = threading.Event()
        super().__init__(20, self._ended.set)

    def round(self, params: RoundParams, fails: str) -> None:
        """Run a round; `fails` says when one of the servers drops its session, or is ""."""
        self._session = self.engines[0].session_id or next(self._sessions).to_bytes(16, "little")
        for engine in self.engines:
            engine.prepare(self._session, params)
        if fails == "while it is prepared":
            self.engines[1].drop()
        uploads = [share.SeedUpload(params.form.layout, bytes([i]) * 16) for i in range(CLIENTS)]
        for engine in self.engines:
            # the other one has failed before the uploads came
            if engine._session is not None:
                engine.start(RoundInput(params, uploads, [1] * CLIENTS))
        if fails == "while it runs":
            self.engines[0].drop()
        results = [self._result(engine) for engine in self.engines]
        if fails:
            for engine in self.engines:
                engine.drop()
        else:
            assert all(isinstance(result, Outcome) for result in results), results

    def _result(self, engine: Engine) -> Outcome | SecureMedianError | None:
        while engine._job is not None:
            self._ended.wait(0.05)
            self._ended.clear()
            if (result := engine.poll()) is not None:
                assert not isinstance(result, Checked | Coin)
                return result
        return None


@pytest.fixture(scope="module")
def uses() -> Iterator[dict[str, list[Any]]]:
    """Every index that an extension hashes, and every item that a stock hands out."""
    seen: dict[str, list[Any]] = {"hashed": [], "taken": []}
    with pytest.MonkeyPatch.context() as patch:
        for cls in (SoftSpokenSender, SoftSpokenReceiver):

            def extend(self: Any, count: int, original: Any = cls.extend, cls: Any = cls) -> Any:
                # the streams' owner: a session has sender and receiver leaves of its own
                key = (cls.__name__, id(self.hash), int(self.tweaks))
                seen["hashed"].append((self, key, self.index, count))
                return original(self, count)

            patch.setattr(cls, "extend", extend)

        def hand_out(
            self: Any, party_id: int, sent: Any, received: Any, original: Any = RandomOts.hand_out
        ) -> Any:
            sender, receiver = original(self, party_id, sent, received)
            seen["taken"] += sender.keys0.tolist()
            return sender, receiver

        patch.setattr(RandomOts, "hand_out", hand_out)
        yield seen


@settings(
    max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["scan", "pairwise", "radix"]),
            st.sampled_from(["", "", "while it is prepared", "while it runs"]),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_no_index_is_used_twice_even_after_failed_rounds(
    uses: dict[str, list[Any]], rounds: list[tuple[str, str]]
) -> None:
    for seen in uses.values():
        seen.clear()
    # keys of 64 bits are all different
    wide = {
        "pairwise": RoundParams(
            Pairwise(ring_bits=64, fraction_bits=4), dim=DIM, max_clients=CLIENTS
        )
    }
    servers = DroppingServers()
    for name, fails in [*rounds, ("pairwise", "")]:
        servers.round(wide.get(name, ROUNDS[name]), fails)
    for engine in servers.engines:
        assert engine.close()
    used: dict[Any, int] = {}
    for _, key, index, count in uses["hashed"]:
        assert index >= used.get(key, 0), "an index was hashed twice"
        used[key] = index + count
    assert used and len(set(uses["taken"])) == len(uses["taken"])


def test_no_pools_are_filled_while_another_cohort_computes() -> None:
    """Check that an engine that drops its session leaves the others' pools alone, too."""
    servers = DroppingServers()
    limits = [PLENTY, PLENTY]
    wake = lambda: None  # noqa: E731
    both = []
    for j in (0, 1):
        backend = ThreadBackend(j, SMALL, servers.opener(j))
        make = partial(Engine, backend, partial(limits.__getitem__, j), wake)
        both.append(Engines(backend, make, wake))
    params = ROUNDS["pairwise"]
    uploads = [share.SeedUpload(params.form.layout, bytes([i]) * 16) for i in range(CLIENTS)]

    def end(engines: Engines, cohort: str) -> Any:
        job = engines.of(cohort)._job
        assert job is not None and job.join(60)
        return engines.poll()

    def prepared(cohort: str, session: bytes) -> int:
        """Prepare a round, and return how many OTs were made for it."""
        for engines in both:
            engines.of(cohort).prepare(session, params)
        for engines in both:
            assert end(engines, cohort) is None
        opened = both[0].of(cohort)._session
        assert opened is not None
        return opened.ahead.ots

    # the limit of today counts, and the smaller one
    limits[1] = 0
    assert prepared("default", bytes(16)) == 0
    limits[1] = PLENTY
    assert prepared("default", bytes(16)) > 0
    both[0].of("default").start(RoundInput(params, uploads, [1] * CLIENTS))
    assert both[0].of("default").computes and not both[0].of("stroke").computes
    # S0's word counts, and S1 has not begun
    assert prepared("stroke", bytes([1]) * 16) == 0
    both[1].of("stroke").drop()
    both[1].of("default").start(RoundInput(params, uploads, [1] * CLIENTS))
    for engines in both:
        cohort, outcome = end(engines, "default")
        assert cohort == "default" and isinstance(outcome, Outcome)
        assert not engines.of("default").computes
    assert prepared("stroke", bytes([2]) * 16) > 0
    assert all(engines.close() for engines in both)
