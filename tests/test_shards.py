"""Rounds in shards: the same results, whoever computes them and whatever is lost on the way."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.common.keys import KeyPair
from securemedian.mpc.errors import (
    ChannelClosed,
    ConfigError,
    FrameError,
    NoSocket,
    NoWorker,
    PeerProtocolError,
)
from securemedian.mpc.protocols import compiling, ring, share, wire
from securemedian.mpc.protocols.dealing import Dealing, deal
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import SeedUpload, Upload, WordsUpload
from securemedian.mpc.rounds import cutting, pipeline
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.cutting import Shard
from securemedian.mpc.rounds.methods.base import Method
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.methods.radix import Radix
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.methods.trimmed_mean import TrimmedMean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.servers import logs
from securemedian.servers.computing import ray, shards
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.shards import (
    ANEW,
    MOST_ATTEMPTS,
    Anew,
    At,
    Finished,
    Lost,
    ShardedComputation,
    decode,
)
from securemedian.servers.computing.slices import for_shard
from securemedian.servers.computing.worker import Broken, Meeting, ShardWorker
from securemedian.servers.config import EngineConfig
from securemedian.servers.network.control import encode
from tests.daemons import free_ports
from tests.parties import make_parties, run_both, shared
from tests.test_methods import GIVEN
from tests.workers import LOOPBACK, HeldWords, ShardedServers

pytestmark = pytest.mark.slow

SMALL = ProtocolParams(lanes=2, chunk=128, batch=1 << 12)
CLIENTS = 3
DIM = 600
OPENINGS = [bytes([1]) * 32, bytes([2]) * 32]
# servers refuse zoom on workers (tests/test_policy.py)
ROUNDS = [cls(**GIVEN.get(name, {})) for name, cls in METHODS.items() if name != "zoom"]
ROUNDS += [Bucketed(uploads="unverified"), Pairwise(result_to="clients"), Radix(neighbours=1)]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardedServers]:
    """Servers whose clusters are not of the same size, for rounds of three shards."""
    monkeypatch.setattr(compiling, "compile_kernels", lambda *_: None)
    made = ShardedServers(SMALL, workers=[2, 3], shards=3)
    yield made
    made.close()


def inputs(params: RoundParams) -> tuple[list[Upload], list[Upload]]:
    """Return both servers' halves of uploads in the range of the method."""
    rng = np.random.default_rng(4)
    halves = []
    for _ in range(CLIENTS):
        if params.form.buckets:
            values = rng.integers(0, params.form.buckets, (params.form.layout.rows, params.dim))
            if not params.form.dealing and params.form.layout.rows > 1:
                values = np.sort(rng.integers(0, 2, values.shape), axis=0)
        else:
            values = rng.integers(0, 1 << 10, (params.form.layout.rows, params.dim))
        halves.append(shared(params, values.astype(ring.dtype(params.form.layout.bits))))
    return [one for one, _ in halves], [other for _, other in halves]


def compute(
    session: list[ShardedComputation],
    params: RoundParams,
    uploads: tuple[list[Upload], list[Upload]],
    groups: list[int] | None = None,
) -> tuple[Outcome, Outcome]:
    weights = weights_of(params)
    return run_both(
        lambda j: session[j].run_round(
            RoundInput(params, uploads[j], weights, groups or [], OPENINGS[j]),
            lambda done, total: None,
        )
    )


def alone(
    params: RoundParams, uploads: tuple[list[Upload], list[Upload]]
) -> tuple[Outcome, Outcome]:
    """Compute a round without shards, under the same coin."""
    lanes = make_parties(2)
    return run_both(
        lambda j: pipeline.run_round(
            lanes[j],
            params,
            SMALL,
            uploads[j],
            weights=weights_of(params),
            entropy=lambda count: OPENINGS[j],
        )
    )


def weights_of(params: RoundParams) -> list[int]:
    return params.method.weights_of([f"client-{number}" for number in range(CLIENTS)])


def opened(params: RoundParams, outcomes: tuple[Outcome, Outcome]) -> Any:
    one, other = (outcome.values for outcome in outcomes)
    if params.method.result_to == "servers":
        assert (one == other).all()
        return one
    return ring.reduce(one.astype(np.uint64) + other.astype(np.uint64), params.form.opened_bits)


def test_shards_are_whole_slices_and_make_up_the_round() -> None:
    for dim in (1, 127, 128, 129, 1000, 4096):
        for count in (1, 2, 3, 7, 64):
            cut = cutting.shards(dim, count)
            assert [shard.number for shard in cut] == list(range(len(cut)))
            assert all(shard.count == len(cut) <= count for shard in cut)
            assert cut[0].begin == 0 and cut[-1].end == dim
            assert all(one.end == other.begin for one, other in zip(cut, cut[1:], strict=False))
            assert all(shard.begin % share.SLICE_ALIGN == 0 < shard.dim for shard in cut)


def test_the_parts_of_a_dealing_are_each_checked_by_one_shard() -> None:
    shape = Dealing(5_000_000, 6, 8)
    assert len(shape.parts) == 6
    for count in (1, 2, 4, 6, 9):
        cut = cutting.shards(shape.dim, count)
        assert [part for shard in cut for part in shard.parts(shape)] == list(range(6))


@pytest.mark.parametrize("method", ROUNDS, ids=lambda m: f"{m.label} {m.result_to}")
def test_a_round_in_shards_is_the_round(servers: ShardedServers, method: Method) -> None:
    params = RoundParams(method, dim=DIM, max_clients=CLIENTS)
    uploads = inputs(params)
    session = servers.session()
    outcomes = compute(session, params, uploads)
    expected = alone(params, uploads)
    assert np.array_equal(opened(params, outcomes), opened(params, expected))
    assert outcomes[0].coin == outcomes[1].coin == expected[0].coin
    assert outcomes[0].values.dtype == expected[0].values.dtype
    # one server has received all bytes that the other has sent
    one, other = (outcome.cost for outcome in outcomes)
    assert one.bytes_sent == other.bytes_received > 0 < one.rounds


def test_pools_are_filled_ahead_and_used(servers: ShardedServers) -> None:
    params = RoundParams(Bucketed(buckets=4, uploads="unverified"), dim=DIM, max_clients=CLIENTS)
    session, uploads = servers.session(), inputs(params)
    told: list[tuple[int, int]] = []
    assert not session[0].established

    def fill(j: int) -> Cost:
        return session[j].fill(params, 1 << 30, lambda: False, lambda *done: told.append(done))

    ahead = run_both(fill)[0]
    assert session[0].established and ahead.ots > 0 < ahead.ahead_seconds
    first, second = (compute(session, params, uploads)[0].cost for _ in range(2))
    assert first.ots == 0 < second.ots <= ahead.ots
    assert all(done <= total == DIM for done, total in told)
    # nothing is made while a round waits
    assert run_both(lambda j: session[j].fill(params, 0, lambda: True, lambda *done: None))[0]


def to_check(params: RoundParams, uploads: Any, party: int) -> RoundInput:
    weights = [1] * len(uploads[party])
    return RoundInput(params, uploads[party], weights, opening=OPENINGS[party])


def test_verdicts_on_values_are_joined(servers: ShardedServers) -> None:
    method = TrimmedMean(ring_bits=32, fraction_bits=8)
    params = RoundParams(method, dim=DIM, max_clients=CLIENTS)
    assert params.form.values, "each value is checked, and no whole upload"
    # the last value of the second client is out of range, which the last shard alone sees
    wholes = np.zeros((CLIENTS, 1, DIM), np.uint32)
    wholes[1, 0, DIM - 1] = 1 << 30
    uploads = list(zip(*(shared(params, whole) for whole in wholes), strict=True))
    session = servers.session()
    checked = run_both(
        lambda j: session[j].check_values(to_check(params, uploads, j), lambda done, total: None)
    )
    for each in checked:
        assert each.passed == [True, False, True]
        assert each.cost.checking_bytes_sent == each.cost.bytes_sent > 0


def test_whole_uploads_are_checked_over_all_shards(servers: ShardedServers) -> None:
    """The second vector is too long as a whole: a shard of it is not."""
    method = Mean()
    params = RoundParams(method, dim=DIM, max_clients=CLIENTS)
    step = int(method.longest / DIM**0.5)
    lengths = [0.3, 2.5, 1.0]
    wholes = [np.full((1, DIM), int(length * step), np.int64).view(np.uint64) for length in lengths]
    pairs = [share.split(whole, 64) for whole in wholes]
    uploads = [[pair[(j + at) % 2] for at, pair in enumerate(pairs)] for j in (0, 1)]
    session, told = servers.session(), list[tuple[int, int]]()
    checked = run_both(
        lambda j: session[j].check_values(
            to_check(params, uploads, j), lambda *done: told.append(done)
        )
    )
    lanes = make_parties(2)
    expected = run_both(
        lambda j: pipeline.check_values(
            lanes[j], params, SMALL, uploads[j], entropy=lambda count: OPENINGS[j]
        )
    )
    for each in (*checked, *expected):
        assert each.passed == [True, False, True]
        assert each.cost.checking_bytes_sent == each.cost.bytes_sent > 0
    assert checked[0].cost.bytes_sent == checked[1].cost.bytes_received
    # the coin of the round, which comes of the same openings
    tossed = run_both(lambda j: pipeline.toss(lanes[j][0].channel, j, lambda count: OPENINGS[j]))
    steps = [asked[1:] for _, function, asked in servers.workers[0].asked if function == "run"]
    assert {step for step, *_ in steps} == {"survey", "judge"}
    assert {given[-2].coin for _, *given in steps} == {tossed[0][0]}
    assert all(done <= total == DIM for done, total in told)


def test_verdicts_on_dealings_are_joined(
    servers: ShardedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securemedian.mpc.protocols.dealing.PART", 128)
    shape = Dealing(512, 4, 4)
    assert len(shape.parts) == 4
    dealt = [deal(shape) for _ in range(CLIENTS)]
    # a vector of the last part is wrong: by 1 it could still be one-hot, by 2 it cannot
    dealt[2].words.packed[0, shape.parts[3].first] ^= np.uint64(2)
    halves: list[list[Upload]] = [[d.words for d in dealt], [d.seeded for d in dealt]]
    session = servers.session()
    tossed = run_both(lambda j: session[j].toss(lambda coin: bytes([j] * 32)))
    coin = tossed[0][0]
    assert coin == tossed[1][0] and tossed[0][2].bytes_sent > 0
    assert [tokens for _, tokens, _ in tossed] == [bytes([1] * 32), bytes(32)]
    noted: list[list[bytes]] = [[], []]
    checked = run_both(lambda j: session[j].check_dealings(shape, halves[j], coin, noted[j].extend))
    assert checked[0].passed == checked[1].passed == [True, True, False]
    # each client knows what has to be opened of all parts
    assert noted[0] == noted[1]
    assert [each.opened(coin) for each in dealt[:2]] == noted[0][:2]
    assert dealt[2].opened(coin) != noted[0][2]
    # three shards take part, and each got its own parts alone
    assert sum(servers.workers[0].held) == CLIENTS * shape.layout.words * 8
    assert not servers.workers[1].held, "seeds stay seeds"


def test_a_shard_is_sent_its_slice_alone(servers: ShardedServers) -> None:
    params = RoundParams(Pairwise(), dim=DIM, max_clients=CLIENTS)
    uploads = inputs(params)
    compute(servers.session(), params, uploads)
    seeds = [[isinstance(upload, SeedUpload) for upload in own] for own in uploads]
    for workers, own in zip(servers.workers, seeds, strict=True):
        assert sum(workers.held) == own.count(False) * 8 * params.form.layout.words
        runs = [asked for _, function, asked in workers.asked if function == "run"]
        assert len(runs) == 3
        for _, step, given, *_ in runs:
            assert step == "run_round" and given.opening == b""
            assert [isinstance(upload, SeedUpload) for upload in given.uploads] == own


def test_a_slice_has_no_words_of_others() -> None:
    layout = share.Layout(2, 1000, 16)
    rng = np.random.default_rng(1)
    upload = WordsUpload(layout, rng.integers(0, 1 << 63, (2, layout.row_words), np.uint64))
    cut = cutting.shards(1000, 3)
    sliced = for_shard(upload, layout, cut[1], HeldWords)
    begin, end = cut[1].begin, cut[1].end
    assert np.array_equal(
        share.read(sliced, layout, begin, end), share.read(upload, layout, begin, end)
    )
    with pytest.raises(Exception, match="a shard has no words"):
        share.read(sliced, layout, 0, begin)
    # several read the same words
    assert not sliced.words(1, *share.words_of(layout, begin, end)).flags.writeable


def test_words_travel_in_parcels_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "PARCEL_BYTES", 800)
    put: list[list[np.ndarray]] = []

    def store(words: list[np.ndarray]) -> int:
        put.append(words)
        return len(put) - 1

    parcels = ray._Parcels(store)
    sizes = (60, 30, 20, 200, 1)
    stored = [parcels.add(np.full(size, size, np.uint64)) for size in sizes]
    assert [[len(words) for words in parcel] for parcel in put] == [[60, 30, 20], [200]]
    parcels.send()
    parcels.send()
    assert [len(words) for words in put[2]] == [1] and len(put) == 3
    for one, size in zip(stored, sizes, strict=True):
        assert (put[one.parcel.ref][one.number] == np.full(size, size)).all()


def test_a_dealt_slice_crosses_the_borders_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("securemedian.mpc.protocols.dealing.PART", 256)
    params = RoundParams(Bucketed(buckets=4), dim=1024, max_clients=CLIENTS)
    uploads = inputs(params)
    whole = alone(params, uploads)[0].values
    cut = cutting.shards(1024, 3)
    lanes = make_parties(1)
    for shard in cut:
        halves = [
            [for_shard(upload, params.form.layout, shard, HeldWords) for upload in own]
            for own in uploads
        ]

        def run(j: int, halves: Any = halves, shard: Shard = shard) -> Outcome:
            return pipeline.run_round(lanes[j], params, SMALL, halves[j], shard=shard)

        outcome = run_both(run)[0]
        assert np.array_equal(outcome.values, whole[:, shard.begin : shard.end])


def test_workers_of_s1_listen_at_the_ports_that_they_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "compile_kernels", lambda *_: None)
    port = free_ports(1)[0]
    worker = ShardWorker(1, LOOPBACK, SMALL, f"{port}-{port}")
    keys, theirs = (KeyPair(*zmq.curve_keypair()) for _ in range(2))
    meeting = Meeting(bytes(16), keys, theirs.public.decode(), "", timeout_s=5.0)
    assert worker.open("first", meeting) == f"tcp://{LOOPBACK}:{port}"
    refused = worker.open("second", meeting)
    assert isinstance(refused, Broken) and refused.code == NoSocket.code
    assert f"no free port: tcp://{LOOPBACK}:{port}-{port};" in refused.reason
    # it may go well elsewhere, or later
    assert refused.code in ANEW
    assert worker.drop("first")
    assert worker.open("third", meeting) == f"tcp://{LOOPBACK}:{port}"
    assert worker.drop("third")


# Losses


@pytest.mark.parametrize(("party", "comes_back"), [(0, True), (1, False)], ids=["anew", "for good"])
def test_a_lost_shard_is_computed_elsewhere(
    servers: ShardedServers, party: int, comes_back: bool
) -> None:
    params = RoundParams(Pairwise(), dim=DIM, max_clients=CLIENTS)
    uploads, session = inputs(params), servers.session()
    run_both(lambda j: session[j].fill(params, 1 << 30, lambda: False, lambda *done: None))
    workers = servers.workers[party]
    # a thread that is to die cannot be stopped from outside: it is killed before it is asked
    killed = threading.Event()

    def kill(worker: int, function: str, arguments: tuple[Any, ...]) -> None:
        if function == "run" and arguments[1] == "run_round" and not killed.is_set():
            killed.set()
            workers.kill(worker, comes_back)

    workers.watch = kill
    opened_before = [meetings(servers, j) for j in (0, 1)]
    outcomes = compute(session, params, uploads)
    assert killed.is_set()
    assert np.array_equal(opened(params, outcomes), opened(params, alone(params, uploads)))
    # both have begun again, in a session that was never used before, and its pools were empty
    again = [meetings(servers, j)[len(opened_before[j]) :] for j in (0, 1)]
    assert len(again[0]) == len(again[1]) > 0
    sessions = [[meeting.session_id for meeting in meetings(servers, j)] for j in (0, 1)]
    assert sorted(sessions[0]) == sorted(sessions[1])
    assert len(set(sessions[0])) == len(sessions[0])
    keys = [meeting.keys.public for j in (0, 1) for meeting in meetings(servers, j)]
    assert len(set(keys)) == len(keys)
    assert outcomes[0].cost.ots > 0
    # the shares of the lost worker were put again: they may have lain at its node
    whole = CLIENTS * params.form.layout.words * 8
    assert whole < sum(sum(each.held) for each in servers.workers) < 2 * whole
    # the shards that were not lost had what was made ahead
    assert outcomes[0].cost.ots < alone(params, uploads)[0].cost.ots
    # and the next round goes on with these sessions
    assert np.array_equal(
        opened(params, compute(session, params, uploads)), opened(params, outcomes)
    )


def meetings(servers: ShardedServers, party: int) -> list[Any]:
    return [asked[1] for _, function, asked in servers.workers[party].asked if function == "open"]


@pytest.mark.parametrize("party", [0, 1])
def test_a_result_that_one_server_lost_is_not_mixed_with_the_others_first_one(
    servers: ShardedServers, party: int
) -> None:
    """One server has its share of a shard's result, and the other's worker ends before it tells."""
    params = RoundParams(Pairwise(result_to="clients"), dim=DIM, max_clients=CLIENTS)
    uploads, session = inputs(params), servers.session()
    losing, other = servers.workers[party], servers.workers[1 - party]
    submits, lost = [losing.submit, other.submit], threading.Event()

    def lose_first(worker: int, function: str, *arguments: Any) -> Any:
        future = submits[0](worker, function, *arguments)
        if function == "run" and not lost.is_set():
            lost.set()
            future.result(30)
            # the other server has its result by now
            time.sleep(0.5)
            losing.kill(worker)
            return submits[0](worker, "progress", "")
        return future

    def second_late(worker: int, function: str, *arguments: Any) -> Any:
        if function == "run" and arguments[0].endswith("/2"):
            return late(submits[1](worker, function, *arguments))
        return submits[1](worker, function, *arguments)

    losing.submit = lose_first  # type: ignore[method-assign]
    other.submit = second_late  # type: ignore[method-assign]
    outcomes = compute(session, params, uploads)
    assert lost.is_set()
    assert np.array_equal(opened(params, outcomes), opened(params, alone(params, uploads)))


def late(future: "Future[Any]") -> "Future[Any]":
    """Return a future that has the result of another one a while later."""
    made: Future[Any] = Future()

    def wait() -> None:
        value = future.result(30)
        time.sleep(1.0)
        made.set_result(value)

    threading.Thread(target=wait, daemon=True).start()
    return made


def test_a_shard_that_is_always_lost_ends_the_attempt(servers: ShardedServers) -> None:
    params = RoundParams(Pairwise(), dim=128, max_clients=CLIENTS)
    workers = servers.workers[1]

    def kill(worker: int, function: str, arguments: tuple[Any, ...]) -> None:
        if function == "run":
            workers.kill(worker, comes_back=True)

    workers.watch = kill
    session = servers.session()
    errors: list[BaseException] = []

    def run(j: int) -> None:
        try:
            session[j].fill(params, 1 << 30, lambda: False, lambda *done: None)
        except ChannelClosed as error:
            errors.append(error)
            # as the other server's daemon is told
            session[1 - j].close()

    run_both(run)
    assert any(f"was lost {MOST_ATTEMPTS} times" in str(error) for error in errors)
    assert len(meetings(servers, 0)) == len(meetings(servers, 1)) == MOST_ATTEMPTS


def test_a_server_without_workers_says_so(
    servers: ShardedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "WORKER_WAIT_S", 0.3)
    for worker in (0, 1):
        servers.workers[0].kill(worker)
    session = servers.session()
    params = RoundParams(Pairwise(), dim=128, max_clients=CLIENTS)
    with pytest.raises(NoWorker, match="no worker of s0 has been there for long: 0.3 s"):
        run_both(
            lambda j: (
                session[j].fill(params, 0, lambda: False, lambda *done: None) if j == 0 else None
            )
        )


def test_closing_a_session_ends_the_daemons_wait(servers: ShardedServers) -> None:
    session = servers.session()
    params = RoundParams(Pairwise(), dim=128, max_clients=CLIENTS)
    threading.Timer(0.3, session[0].close).start()
    with pytest.raises(ChannelClosed):
        # the other server never comes
        session[0].fill(params, 0, lambda: False, lambda *done: None)


def test_an_error_that_is_no_loss_is_raised(servers: ShardedServers) -> None:
    params = RoundParams(Pairwise(), dim=128, max_clients=CLIENTS)
    session = servers.session()
    with pytest.raises(Exception, match="a round takes 1 to 3 uploads: 0"):
        run_both(lambda j: session[j].run_round(RoundInput(params, [], []), lambda *done: None))


def test_a_worker_that_ends_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever fails with it, and however often Ray says so before another is in its place."""

    class RayError(Exception):
        pass

    calls: list[Future[Any]] = []

    class Actor:
        def __getattr__(self, function: str) -> Any:
            def remote(*arguments: Any) -> Any:
                calls.append(Future())
                return SimpleNamespace(future=lambda: calls[-1])

            return SimpleNamespace(remote=remote)

    made = SimpleNamespace(options=lambda **given: SimpleNamespace(remote=lambda *_: Actor()))
    stand_in: Any = ModuleType("ray")
    stand_in.put, stand_in.remote = None, lambda cls: made
    errors: Any = ModuleType("ray.exceptions")
    errors.RayError, errors.RayTaskError = RayError, type("RayTaskError", (RayError,), {})
    monkeypatch.setitem(sys.modules, "ray", stand_in)
    monkeypatch.setitem(sys.modules, "ray.exceptions", errors)
    events: list[int] = []
    monkeypatch.setattr(logs, "event", lambda name, worker, reason: events.append(worker))
    workers = ray.RayWorkers(0, SMALL, EngineConfig(kind="ray", workers=2))
    for call in list(calls):
        call.set_result("release")
    assert workers.there() == [0, 1]
    answers = [workers.submit(1, function) for function in ("run", "progress", "hurry")]
    run, progress, hurry = calls[2:]
    run.set_exception(RayError("it has died"))
    progress.set_exception(RayError("it has died"))
    assert events == [1] and workers.there() == [0]
    # nor is there another one yet
    calls[-1].set_exception(RayError("it is not there"))
    hurry.set_exception(RayError("it has died"))
    assert events == [1] and workers.there() == [0]
    assert all(isinstance(answer.exception(), shards.WorkerLost) for answer in answers)
    calls[-1].set_result("release")
    assert workers.there() == [0, 1]
    workers.submit(1, "run")
    calls[-1].set_exception(RayError("it has died again"))
    assert events == [1, 1]


# The daemons' messages


def test_messages_between_daemons_are_what_they_say() -> None:
    key = "0" * 40
    for message in (
        Anew(1, 2, 3, key),
        At(1, 2, 3, key, "tcp://10.0.0.1:7000"),
        Finished(1, 2, 3),
        Lost(1, 2, 3, "gone"),
    ):
        parts = [bytes(part) for part in encode(message)]
        assert decode(parts) == message
    with pytest.raises(FrameError, match="not a message between daemons"):
        decode([bytes(part) for part in wire.pack("open", {})])
    with pytest.raises(ConfigError):
        At(1, 2, 3, key, "ipc:///tmp/socket")


def test_messages_that_cannot_come_are_refused(servers: ShardedServers) -> None:
    """S1's daemon says that it has a result of an attempt that nobody has made."""
    params = RoundParams(Pairwise(), dim=128, max_clients=CLIENTS)
    session = servers.session()
    crew = session[1]._rounds

    def lie(j: int) -> None:
        if j == 0:
            session[0].fill(params, 0, lambda: False, lambda *done: None)
        else:
            crew._meet()
            crew._link.send(encode(Finished(1, 0, 9)))
            crew._link.send(encode(Finished(5, 0, 1)))

    with pytest.raises(PeerProtocolError, match="do not run the same round"):
        run_both(lie)
