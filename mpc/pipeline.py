"""One round on shares: cut in chunks of coordinates, so that memory is bounded, and spread over
lanes, so that one lane computes while another waits for the link.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np

from securemedian.mpc import share
from securemedian.mpc.arrays import Result, Words
from securemedian.mpc.channel import local_pair
from securemedian.mpc.correlations.base import Demand
from securemedian.mpc.errors import InputError, PeerProtocolError
from securemedian.mpc.methods.base import WARM_UP_CLIENTS, Chunk
from securemedian.mpc.methods.registry import METHODS
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import Party, Session
from securemedian.mpc.protocol import ProtocolParams

Progress = Callable[[int, int], None]  # coordinates done, coordinates in all


@dataclass(frozen=True)
class Cost:
    """What one party counted over all its lanes. `ots` counts both directions; `rounds` is the
    longest lane's.

    `preprocessing_`: of it, making correlations, which needs no input; the rest is online.
    `seconds` is from the start of the round's run to its end; what `fill` did before that is in
    `ahead_seconds` alone.
    """

    ots: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    rounds: int = 0
    preprocessing_bytes_sent: int = 0
    preprocessing_bytes_received: int = 0
    preprocessing_rounds: int = 0
    preprocessing_seconds: float = 0.0  # in `seconds`: mean over lanes
    online_seconds: float = 0.0  # the rest of `seconds`
    uploads_seconds: float = (
        0.0  # of it, reading and summing the uploads, which takes no peer: mean over lanes
    )
    seconds: float = 0.0
    ahead_seconds: float = 0.0

    def after(self, ahead: "Cost") -> "Cost":
        """The cost of a round for which `fill` had made correlations at the cost of `ahead`."""
        counts = {
            name: value + getattr(self, name)
            for name, value in asdict(ahead).items()
            if type(value) is int
        }
        return replace(self, **counts, ahead_seconds=ahead.ahead_seconds)

    def to_dict(self) -> dict[str, Any]:
        online = {
            f"online_{name}": getattr(self, name) - getattr(self, f"preprocessing_{name}")
            for name in ("bytes_sent", "bytes_received", "rounds")
        }
        return asdict(self) | online


@dataclass(frozen=True)
class Outcome:
    """Hold the result of a round. `values`, shape (results, dim), are what the servers learn
    (`Method.decode` gives their numbers), or with result_to = "clients" this party's additive
    shares.
    """

    values: Result
    cost: Cost


def run_round(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    progress: Progress | None = None,
    weights: Sequence[int] | None = None,
) -> Outcome:
    """Compute the round's result from `uploads`, one party's shares of all clients in the order
    both parties agreed on, and their public `weights` in the same order (by default 1). The other
    party does the same at the same time.

    `parties` are this party's lanes. Blocks until done; the first error of any lane is raised after
    the channels of all are closed.
    """
    if not 1 <= len(uploads) <= params.max_clients:
        raise InputError(f"{len(uploads)} uploads for a round of 1 to {params.max_clients} clients")
    weights = [1] * len(uploads) if weights is None else weights
    meter = Meter(parties)
    chunk, batch, _ = _agree_on_sizes(parties, protocol)
    chunks = cut(params, len(uploads), len(parties), chunk, batch)
    results: dict[int, Result] = {}
    report = _Report(params.dim, progress)

    def lane(number: int) -> None:
        for begin, end in chunks[number :: len(parties)]:
            piece = params.chunk(uploads, weights, begin, end, batch)
            results[begin] = compute(parties[number], params, piece)
            report.add(end - begin)

    run_lanes(parties, lane)
    # numpy forgets which of the two the chunks were; they are all the same
    values = cast(Result, np.concatenate([results[begin] for begin, _ in chunks], axis=1))
    return Outcome(values, meter.read())


def fill(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    limit_bytes: int,
    hurry: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> Cost:
    """Make correlations for the next round, for `max_clients` clients, before their uploads are
    there. The other party does the same at the same time.

    Stops where the stock would take more than `limit_bytes` (the smaller wish of both parties), or
    where party 0's `hurry` says that the round is waiting: the round makes what is lacking. Drops
    what this round has no use for.
    """
    meter = Meter(parties)
    chunk, batch, limit = _agree_on_sizes(parties, protocol, limit_bytes)
    weights = list(params.weights.values()) or [1] * params.max_clients
    steps: list[list[tuple[int, Demand]]] = [
        [] for _ in parties
    ]  # what a lane has after each of its chunks
    total = Demand()
    for number, (begin, end) in enumerate(cut(params, len(weights), len(parties), chunk, batch)):
        wanted = demand(params, weights, end - begin)
        total = total + wanted
        if total.memory > limit:
            break
        steps_here = steps[number % len(parties)]
        steps_here.append((end - begin, steps_here[-1][1] + wanted if steps_here else wanted))
    report = _Report(params.dim, progress)

    def lane(number: int) -> None:
        party = parties[number]
        party.pool.keep_only(demand(params, weights, 1))
        for coordinates, wanted in steps[number]:
            if not _go_on(party, hurry):
                return
            party.pool.reserve(wanted)
            report.add(coordinates)

    run_lanes(parties, lane)
    cost = meter.read()
    # all of it is preprocessing, the words about it included
    return replace(
        cost,
        preprocessing_bytes_sent=cost.bytes_sent,
        preprocessing_bytes_received=cost.bytes_received,
        preprocessing_rounds=cost.rounds,
        preprocessing_seconds=0.0,
        online_seconds=0.0,
        seconds=0.0,
        ahead_seconds=cost.seconds,
    )


def _go_on(party: Party, hurry: Callable[[], bool]) -> bool:
    """Party 0 decides, so that both stop at the same chunk; its word does not wait for an answer."""
    if party.number == 0:
        go_on = not hurry()
        party.channel.send("fill", np.array([go_on], np.uint8))
        return go_on
    return bool(party.channel.recv("fill", np.uint8, (1,))[0])


def compute(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    """Return the result of one chunk on one lane, after making what it lacks of correlations.

    Where the comparisons of many clients are cut into groups (`Method.group`), each group makes its
    own, so that a lane's memory stays bounded.
    """
    if params.method.group(chunk) is None:
        party.pool.reserve(demand(params, chunk.weights, chunk.dim))
    return params.method.compute(party, chunk)


def demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that `dim` coordinates of clients with these weights need."""
    return params.method.demand(weights, dim, params.max_clients)


def warm_up(params: ProtocolParams | None = None) -> None:
    """Compile every kernel that a round of any method uses (or load it from the cache on disk), for
    every ring dtype, on small inputs of both parties in this process.
    """
    protocol = replace(params or ProtocolParams(), lanes=1)
    channels = local_pair()
    rounds = [
        RoundParams(variant, 2, WARM_UP_CLIENTS)
        for method in METHODS.values()
        for variant in method.warm_up()
    ]
    errors: list[BaseException] = []

    def run(party_id: int) -> None:
        try:
            session = Session.establish(party_id, channels[party_id], bytes(16), protocol)
            party = session.party(0, channels[party_id])
            for each in rounds:
                layout = each.layout
                packed = np.zeros((layout.rows, layout.row_words), np.uint64)
                words, seed = share.WordsUpload(layout, packed), share.SeedUpload(layout, bytes(16))
                run_round([party], each, protocol, [words, *[seed] * (WARM_UP_CLIENTS - 1)])
        except BaseException as error:
            errors.append(error)
            channels[party_id].close()

    threads = [threading.Thread(target=run, args=(party_id,), daemon=True) for party_id in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _agree_on_sizes(
    parties: Sequence[Party], protocol: ProtocolParams, limit_bytes: int = 0
) -> tuple[int, int, int]:
    """`chunk`, `batch` and the limit of a filled pool are LOCAL wishes, so the parties exchange
    them and take the smaller: one round. PeerProtocolError if the parties' pools are not the two
    halves of the same correlations.
    """
    mine, theirs = exchange_wishes(parties, protocol, limit_bytes)
    if (theirs[:2] < share.SLICE_ALIGN).any():
        raise PeerProtocolError(
            f"the peer wishes for chunks of {theirs[:2].tolist()}, fewer than {share.SLICE_ALIGN} coordinates"
        )
    if (mine[3:] != theirs[3:]).any():
        raise PeerProtocolError(
            "the two servers' pools of correlations do not belong together: both are dropped"
        )
    chunk, batch, limit = (int(size) for size in np.minimum(mine, theirs)[:3])
    return chunk, batch, limit


def exchange_wishes(
    parties: Sequence[Party], protocol: ProtocolParams, limit_bytes: int = 0
) -> tuple[Words, Words]:
    """`chunk`, `batch`, the limit of the pool, and four words that tell the pools of all lanes, of
    both parties, ours first.
    """
    pools = hashlib.sha256(b"".join(party.pool.fingerprint for party in parties)).digest()
    mine = np.concatenate(
        (
            np.array([protocol.chunk, protocol.batch, limit_bytes], np.uint64),
            np.frombuffer(pools, np.uint64),
        )
    )
    return mine, parties[0].channel.exchange("sizes", mine)


def cut(
    params: RoundParams, clients: int, lanes: int, chunk: int, batch: int
) -> list[tuple[int, int]]:
    """The chunks of a round, [begin, end) each. Lane i of L computes the chunks i, i + L, .."""
    at_once = max(1, params.method.at_once(clients))
    # no larger than an even share of the lanes, in whole slices, and never less than one
    size = min(chunk, batch // at_once, -(-params.dim // lanes))
    size = max(1, -(-size // share.SLICE_ALIGN)) * share.SLICE_ALIGN
    return [(begin, min(begin + size, params.dim)) for begin in range(0, params.dim, size)]


def run_lanes(parties: Sequence[Party], lane: Callable[[int], None]) -> None:
    """Call lane(0), lane(1), .. each on a thread of its own; the first error closes all channels,
    so that no lane waits on, and is raised.
    """
    errors: list[BaseException] = []
    lock = threading.Lock()

    def guarded(number: int) -> None:
        try:
            lane(number)
        except BaseException as error:
            with lock:
                errors.append(error)
            for party in parties:
                party.channel.close()

    threads = [
        threading.Thread(target=guarded, args=(number,), name=f"lane-{number}", daemon=True)
        for number in range(len(parties))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # bounded: every wait inside a lane is a channel's, which has a limit
    if errors:
        raise errors[0]


class _Report:
    """Adds up the lanes' progress."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, coordinates: int) -> None:
        with self._lock:
            self._done += coordinates
            if self._progress is not None:
                self._progress(self._done, self._total)


class Meter:
    """Counts what a party's lanes do from its making on: made by both parties before either of them
    sends.
    """

    def __init__(self, parties: Sequence[Party]) -> None:
        self._parties = parties
        for party in parties:
            party.channel.restart_rounds()
        self._before = [_counters(party) for party in parties]
        self._start = time.perf_counter()

    def read(self) -> Cost:
        """The cost of all lanes so far."""
        seconds = time.perf_counter() - self._start
        lanes = [
            {name: now - old[name] for name, now in _counters(party).items()}
            for party, old in zip(self._parties, self._before, strict=True)
        ]
        total = {name: sum(lane[name] for lane in lanes) for name in lanes[0]}
        for name in ("preprocessing_seconds", "uploads_seconds"):
            total[name] /= len(lanes)
        longest = max(lanes, key=lambda lane: lane["rounds"])
        total |= {name: longest[name] for name in ("rounds", "preprocessing_rounds")}
        return Cost(
            **total, online_seconds=seconds - total["preprocessing_seconds"], seconds=seconds
        )


def _counters(party: Party) -> dict[str, Any]:
    traffic, spent = party.channel.traffic, party.pool.spent
    return {
        "ots": party.pool.ots,
        "bytes_sent": traffic.bytes_sent,
        "bytes_received": traffic.bytes_received,
        "messages": traffic.messages_sent,
        "rounds": traffic.rounds,
        "preprocessing_bytes_sent": spent.bytes_sent,
        "preprocessing_bytes_received": spent.bytes_received,
        "preprocessing_rounds": spent.rounds,
        "preprocessing_seconds": spent.seconds,
        "uploads_seconds": party.uploads_seconds,
    }
