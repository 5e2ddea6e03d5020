"""A round on shares, cut into chunks and spread over lanes.

Chunks of coordinates bound the memory. With several lanes, one computes while another waits for the
link.
"""

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Result, RingShare, Words, XorBits
from securemedian.mpc.errors import InputError, PeerProtocolError
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.channel import Channel, Traffic, local_pair
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.base import WARM_UP_CLIENTS, Chunk
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams

# Takes the coordinates done, and the coordinates in all.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Cost:
    """What one party counted over all its lanes.

    What starts with `preprocessing_` is the part that made correlations, which needs no input. What
    starts with `checking_` is the part that checked the clients' uploads, with the correlations
    that it made itself. The rest is online. Bytes, messages and rounds are those of all three;
    `seconds` are those of the round's run alone, before which `fill` and the checks are done.
    """

    # in both directions together
    ots: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    messages: int = 0
    # of the lane that has most
    rounds: int = 0
    preprocessing_bytes_sent: int = 0
    preprocessing_bytes_received: int = 0
    preprocessing_rounds: int = 0
    checking_bytes_sent: int = 0
    checking_bytes_received: int = 0
    checking_rounds: int = 0
    # part of `seconds`: mean over the lanes
    preprocessing_seconds: float = 0.0
    # the rest of `seconds`
    online_seconds: float = 0.0
    # part of `online_seconds`: reading and adding the uploads, which needs no peer; mean over lanes
    uploads_seconds: float = 0.0
    # from the start of the round's run to its end
    seconds: float = 0.0
    # what `fill` took before that
    ahead_seconds: float = 0.0
    # what the checks of the uploads took before that
    checking_seconds: float = 0.0

    def after(self, earlier: "Cost") -> "Cost":
        """Return the cost with what was done before: by `fill`, or by checks of the uploads."""
        sums = {
            name: value + getattr(self, name)
            for name, value in asdict(earlier).items()
            if type(value) is int or name in ("ahead_seconds", "checking_seconds")
        }
        return replace(self, **sums)

    def as_checking(self) -> "Cost":
        """Return what was counted, all of it, as the cost of a check."""
        return Cost(
            ots=self.ots,
            bytes_sent=self.bytes_sent,
            bytes_received=self.bytes_received,
            messages=self.messages,
            rounds=self.rounds,
            checking_bytes_sent=self.bytes_sent,
            checking_bytes_received=self.bytes_received,
            checking_rounds=self.rounds,
            checking_seconds=self.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all counts by name, and those of the online part."""
        online = {
            f"online_{name}": getattr(self, name)
            - getattr(self, f"preprocessing_{name}")
            - getattr(self, f"checking_{name}")
            for name in ("bytes_sent", "bytes_received", "rounds")
        }
        return asdict(self) | online


@dataclass(frozen=True)
class Outcome:
    """The result of a round and its cost."""

    # (results, dim): what the servers learn, or with result_to = "clients" this party's shares
    values: Result = field(repr=False)
    cost: Cost
    # what was tossed for the round; empty for methods that do not toss
    coin: bytes = b""


@dataclass(frozen=True)
class Checked:
    """The verdicts of a check on the clients' uploads, and its cost."""

    # one per client: whether all is as the clients' encoding makes it
    passed: list[bool]
    cost: Cost


@dataclass(frozen=True)
class Shard:
    """Coordinates [begin, end) of a round, which one worker of either server computes.

    `number` is that of the shard, out of `count`. A round is the same whether its shards are
    computed by one pair of parties, one after the other, or each by a pair with a session of its
    own.
    """

    number: int
    count: int
    begin: int
    end: int
    # what all shards have in common: the coin that was tossed for the round, for methods that toss,
    # and shares of what `judge_surveys` found, for methods that survey
    coin: bytes = field(default=b"", repr=False)
    verdicts: XorBits | None = field(default=None, repr=False)

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return self.end - self.begin

    def parts(self, shape: Dealing) -> range:
        """Return which parts of a dealing this shard checks.

        Parts and shards have different boundaries.

        `Dealing.partners` grows as parts shrink, so parts are as large as without shards, and some
        shards may have none.
        """
        each = len(shape.parts)
        return range(self.number * each // self.count, (self.number + 1) * each // self.count)


def shards(dim: int, count: int) -> list[Shard]:
    """Cut `dim` coordinates into `count` shards or, if they are few, into fewer.

    All but the last have the same number of coordinates, in whole slices (`share.SLICE_ALIGN`).
    """
    size = -(-dim // (count * share.SLICE_ALIGN)) * share.SLICE_ALIGN
    begins = range(0, dim, size)
    return [
        Shard(number, len(begins), begin, min(begin + size, dim))
        for number, begin in enumerate(begins)
    ]


def joined(costs: Sequence[Cost]) -> Cost:
    """Return the cost of what was done at once: sums, but for rounds and seconds the most."""
    return Cost(
        **{
            name: (sum if type(value) is int and "rounds" not in name else max)(
                getattr(cost, name) for cost in costs
            )
            for name, value in asdict(costs[0]).items()
        }
    )


def toss(channel: Channel, number: int, entropy: Entropy = os_entropy) -> tuple[bytes, Cost]:
    """Return the coin of a toss (`dealing.toss`), and what that cost."""
    start, before = time.perf_counter(), replace(channel.traffic)
    channel.restart_rounds()
    return dealing.toss(channel, number, entropy), _cost_since(channel, start, before)


def check_dealings(
    channel: Channel,
    number: int,
    shape: Dealing,
    halves: Sequence[share.Upload],
    coin: bytes | None = None,
    parts: Sequence[int] | None = None,
) -> Checked:
    """Return whose dealings pass `dealing.check`, and what that cost.

    The channel is a lane's or one of its own; the other party does the same at the same time.
    `coin` and `parts` are as there.
    """
    start, before = time.perf_counter(), replace(channel.traffic)
    channel.restart_rounds()
    passed = dealing.check(channel, number, shape, halves, coin=coin, parts=parts)
    return Checked(passed, _cost_since(channel, start, before).as_checking())


def _cost_since(channel: Channel, start: float, before: Traffic) -> Cost:
    """Return what was done on a channel since `start`, when its traffic was `before`."""
    traffic = channel.traffic
    return Cost(
        bytes_sent=traffic.bytes_sent - before.bytes_sent,
        bytes_received=traffic.bytes_received - before.bytes_received,
        messages=traffic.messages_sent - before.messages_sent,
        rounds=traffic.rounds,
        seconds=time.perf_counter() - start,
    )


def check_values(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    progress: Progress | None = None,
    shard: Shard | None = None,
) -> Checked:
    """Return whose values are all in range, while the other party does the same.

    The arguments are those of `run_round`, which comes after it: for the clients that passed, and
    with ranks and weights that are theirs. With a `shard`, only values in it are looked at.
    Both parties learn the verdicts, and of a client that failed which of its values are out of
    range. All pass where a method has nothing to check. Raises InputError as `run_round` does, and
    PeerProtocolError if the two verdicts differ.
    """
    _check_count(params, uploads)
    if not params.method.checks_values:
        return Checked([True] * len(uploads), Cost())
    meter = Meter(parties)
    chunk, batch, _ = _agree_on_sizes(parties, protocol)
    pieces = cut_check(params, len(uploads), len(parties), chunk, batch, shard)
    # one row per lane, because lanes run at once
    failed = np.zeros((len(parties), len(uploads)), np.bool_)
    report = _Report(sum(piece.dim for piece in pieces), progress)

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            failed[number, piece.clients] |= check_piece(
                parties[number], params, piece, uploads, batch
            )
            report.add(piece.dim)

    run_lanes(parties, lane)
    passed = [not client.any() for client in failed.T]
    mine, theirs = exchange_verdicts(parties[0], passed)
    if (mine != theirs).any():
        raise PeerProtocolError(
            "the two servers disagree on which clients' values are in range: no result was opened"
        )
    return Checked(passed, meter.read().as_checking())


def run_round(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    progress: Progress | None = None,
    weights: Sequence[int] | None = None,
    groups: Sequence[int] = (),
    entropy: Entropy = os_entropy,
    shard: Shard | None = None,
) -> Outcome:
    """Compute the result of a round, or of a shard of it, while the other party does the same.

    `parties` are this party's lanes. `uploads` are its shares of all clients, in the order that
    both parties agreed on, `weights` the public weights in the same order, by default 1, and
    `groups` the groups of the clients, where they are visible. Blocks
    until the round is done. The first error of any lane is raised after the channels of all lanes
    are closed. Raises InputError for no uploads or too many.

    `entropy` is what this party tosses with, where the method tosses. SECURITY: a run that breaks
    off is repeated with the same, because two results of the same uploads under two coins tell
    more than one. With a `shard` nothing is tossed, surveyed or judged here: it has the coin and
    the verdicts.
    """
    _check_count(params, uploads)
    weights = [1] * len(uploads) if weights is None else weights
    meter = Meter(parties)
    chunk, batch, _ = _agree_on_sizes(parties, protocol)
    coin = shard.coin if shard else b""
    if params.method.tosses and not shard:
        coin = dealing.toss(parties[0].channel, parties[0].number, entropy)
    chunks = cut(params, len(uploads), len(parties), chunk, batch, shard)
    pieces = [
        params.chunk(uploads, weights, *ends, batch, groups=groups, coin=coin) for ends in chunks
    ]
    if params.method.surveys:
        verdicts = shard.verdicts if shard else _judged(parties, params, pieces)
        pieces = [replace(piece, verdicts=verdicts) for piece in pieces]
    results: dict[int, Result] = {}
    report = _Report(sum(piece.dim for piece in pieces), progress)

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            results[piece.begin] = compute(parties[number], params, piece)
            report.add(piece.dim)

    run_lanes(parties, lane)
    # numpy forgets which of the two the chunks were; they are all the same
    values = cast(Result, np.concatenate([results[begin] for begin, _ in chunks], axis=1))
    return Outcome(values, meter.read(), coin)


def _judged(parties: Sequence[Party], params: RoundParams, pieces: Sequence[Chunk]) -> XorBits:
    """Return shares of what the method's `judge` finds in the surveys of all chunks."""
    return judge(parties[0], params, _surveyed(parties, params, pieces), pieces[0])


def _surveyed(parties: Sequence[Party], params: RoundParams, pieces: Sequence[Chunk]) -> RingShare:
    """Return the sum of the surveys of all chunks."""
    surveys: dict[int, RingShare] = {}

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            surveys[piece.begin] = survey(parties[number], params, piece)

    run_lanes(parties, lane)
    total = np.stack([surveys[piece.begin] for piece in pieces]).sum(axis=0, dtype=np.uint64)
    return RingShare(total)


def survey_shard(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    weights: Sequence[int],
    shard: Shard,
) -> tuple[RingShare, Cost]:
    """Return the sum of the surveys of a shard's chunks, and what that cost.

    The arguments are those of `run_round`. The sum of all shards' sums is for `judge_surveys`.
    """
    _check_count(params, uploads)
    meter = Meter(parties)
    chunk, batch, _ = _agree_on_sizes(parties, protocol)
    pieces = [
        params.chunk(uploads, weights, *ends, batch, coin=shard.coin)
        for ends in cut(params, len(uploads), len(parties), chunk, batch, shard)
    ]
    return _surveyed(parties, params, pieces), meter.read()


def judge_surveys(
    parties: Sequence[Party],
    params: RoundParams,
    surveyed: RingShare,
    weights: Sequence[int],
    shard: Shard,
) -> tuple[XorBits, Cost]:
    """Return shares of the verdicts for all shards, of the sum of their surveys, and the cost.

    One pair of parties does so, which any of the shards may have.
    """
    meter = Meter(parties)
    chunk = params.chunk([], weights, shard.begin, shard.end, share.SLICE_ALIGN, coin=shard.coin)
    return judge(parties[0], params, surveyed, chunk), meter.read()


def _check_count(params: RoundParams, uploads: Sequence[share.Upload]) -> None:
    if not 1 <= len(uploads) <= params.max_clients:
        raise InputError(f"{len(uploads)} uploads for a round of 1 to {params.max_clients} clients")


def fill(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    limit_bytes: int,
    hurry: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    shard: Shard | None = None,
) -> Cost:
    """Make correlations for the next round, and the check before it, ahead of its uploads.

    The other party does the same at the same time. The correlations are for `max_clients` clients.
    Stops where the stock would take more than `limit_bytes` (the smaller of the two parties'
    limits), or where party 0's `hurry` says that the round is waiting: the round then makes what is
    missing. Drops the stock that this round has no use for. With a `shard`, they are for it alone.
    """
    meter = Meter(parties)
    chunk, batch, limit = _agree_on_sizes(parties, protocol, limit_bytes)
    weights = list(params.weights.values()) or [1] * params.max_clients
    pieces = cut_check(params, len(weights), len(parties), chunk, batch, shard)
    chunks = cut(params, len(weights), len(parties), chunk, batch, shard)
    sizes = [end - begin for begin, end in chunks]
    # in the order in which they are taken: number, coordinates and demand of each
    work = [(i, piece.dim, check_demand(params, piece)) for i, piece in enumerate(pieces)]
    if params.method.surveys:
        work += [(i, size, survey_demand(params, weights, size)) for i, size in enumerate(sizes)]
        if shard is None or shard.number == 0:
            work.append((0, 0, params.method.judge_demand(weights, params.max_clients)))
    work += [(i, size, demand(params, weights, size)) for i, size in enumerate(sizes)]
    # per lane, the coordinates of each of its pieces and chunks, and the stock to have after it
    steps: list[list[tuple[int, Demand]]] = [[] for _ in parties]
    total = Demand()
    for number, coordinates, wanted in work:
        total = total + wanted
        if total.memory > limit:
            break
        steps_here = steps[number % len(parties)]
        steps_here.append((coordinates, steps_here[-1][1] + wanted if steps_here else wanted))
    report = _Report(sum(coordinates for _, coordinates, _ in work), progress)
    kinds = params.method.check_demand(1, params.max_clients) + round_demand(params, weights, 1)

    def lane(number: int) -> None:
        party = parties[number]
        party.pool.keep_only(kinds)
        for coordinates, wanted in steps[number]:
            if not _go_on(party, hurry):
                return
            party.pool.reserve(wanted)
            report.add(coordinates)

    run_lanes(parties, lane)
    cost = meter.read()
    # all of it is preprocessing, what the parties said about it included
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
    """Return whether to go on. Party 0 decides, so that both stop at the same chunk.

    Its word waits for no answer.
    """
    if party.number == 0:
        go_on = not hurry()
        party.channel.send("fill", np.array([go_on], np.uint8))
        return go_on
    return bool(party.channel.recv("fill", np.uint8, (1,))[0])


@dataclass(frozen=True)
class Piece:
    """Coordinates [begin, end) of some of the clients, whose values a lane checks at once."""

    clients: slice
    begin: int
    end: int

    @property
    def dim(self) -> int:
        """Return the number of coordinates."""
        return self.end - self.begin


def check_piece(
    party: Party,
    params: RoundParams,
    piece: Piece,
    uploads: Sequence[share.Upload],
    batch: int,
) -> NDArray[np.bool_]:
    """Return whose values in a piece are out of range, after making the correlations it lacks.

    `uploads` are those of all clients, of whom the piece has some.
    """
    party.pool.reserve(check_demand(params, piece))
    chosen = uploads[piece.clients]
    chunk = params.chunk(chosen, [1] * len(chosen), piece.begin, piece.end, batch)
    return params.method.out_of_range(party, chunk)


def check_demand(params: RoundParams, piece: Piece) -> Demand:
    """Return the correlations that `check_piece` needs."""
    count = (piece.clients.stop - piece.clients.start) * piece.dim
    return params.method.check_demand(count, params.max_clients)


def exchange_verdicts(party: Party, passed: Sequence[bool]) -> tuple[Words, Words]:
    """Exchange digests of the verdicts with the peer, and return ours and the peer's."""
    mine = np.frombuffer(hashlib.sha256(bytes(passed)).digest(), np.uint64)
    return mine, party.channel.exchange("verdicts", mine)


def compute(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    """Return the result of one chunk on one lane, after making the correlations that it lacks.

    Where the comparisons of many clients are cut into batches (`Method.batch_limit`), each batch
    makes its own correlations, so that the memory of a lane stays bounded.
    """
    if params.method.visible:
        return _compute_groups(party, params, chunk)
    return _compute(party, params, chunk)


def _compute(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    method = params.method
    if method.batch_limit(chunk) is None:
        party.pool.reserve(method.demand(chunk.weights, chunk.dim, chunk.max_clients))
    return method.compute(party, chunk)


def _compute_groups(party: Party, params: RoundParams, chunk: Chunk) -> Result:
    """Return the result of each group of a chunk, computed on its own clients, as a row.

    The row of a group of fewer than `min_clients` is zeros, and nothing is computed for it.
    """
    bits = params.opened_bits
    results = np.zeros((params.method.groups, chunk.dim), ring.dtype(bits))
    for group in range(params.method.groups):
        members = [place for place, own in enumerate(chunk.groups) if own == group]
        if len(members) >= chunk.min_clients:
            part = replace(
                chunk,
                uploads=[chunk.uploads[place] for place in members],
                weights=[chunk.weights[place] for place in members],
                groups=(),
            )
            (results[group],) = params.method.public(_compute(party, params, part))
    return cast(Result, results)


def evenly(params: RoundParams, clients: int) -> list[int]:
    """Return visible groups of about the same size, for what is made or predicted beforehand."""
    return [client % params.method.groups for client in range(clients)]


def survey(party: Party, params: RoundParams, chunk: Chunk) -> RingShare:
    """Return a chunk's survey on one lane, after making the correlations that it lacks."""
    party.pool.reserve(survey_demand(params, chunk.weights, chunk.dim))
    return params.method.survey(party, chunk)


def survey_demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that the survey of `dim` coordinates needs."""
    return params.method.survey_demand(weights, dim, params.max_clients)


def judge(party: Party, params: RoundParams, surveyed: RingShare, chunk: Chunk) -> XorBits:
    """Return the verdicts of a survey, after making the correlations that they lack."""
    party.pool.reserve(params.method.judge_demand(chunk.weights, params.max_clients))
    return params.method.judge(party, surveyed, chunk)


def demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that `dim` coordinates of clients with these weights need.

    Where groups are visible, they are those of groups of about the same size.
    """
    if not params.method.visible:
        return params.method.demand(weights, dim, params.max_clients)
    total, groups = Demand(), params.method.groups
    for group in range(groups):
        if len(members := weights[group::groups]) >= params.min_clients:
            total = total + params.method.demand(members, dim, params.max_clients)
    return total


def round_demand(params: RoundParams, weights: Sequence[int], dim: int) -> Demand:
    """Return the correlations that all of a round of `dim` coordinates needs, but for its check."""
    judged = params.method.judge_demand(weights, params.max_clients)
    return survey_demand(params, weights, dim) + judged + demand(params, weights, dim)


def warm_up(params: ProtocolParams | None = None) -> None:
    """Compile every kernel that a round of any method uses, for every ring dtype.

    Kernels that are in the cache on disk are loaded instead. Both parties run in this process, on
    small inputs.
    """
    protocol = replace(params or ProtocolParams(), lanes=1)
    channels = local_pair()
    rounds = [
        RoundParams(variant, dim=2, max_clients=WARM_UP_CLIENTS)
        for method in METHODS.values()
        for variant in method.warm_up()
    ]
    errors: list[BaseException] = []

    def run(party_id: int) -> None:
        try:
            session = Session.establish(party_id, channels[party_id], bytes(16), protocol)
            party = session.party(0, channels[party_id])
            for each in rounds:
                run_round([party], each, protocol, _warm_up_uploads(party, each, protocol))
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


def _warm_up_uploads(
    party: Party, params: RoundParams, protocol: ProtocolParams
) -> list[share.Upload]:
    """Return uploads of zeros, whose dealings, if any, are dealt and checked."""
    layout, shape = params.layout, params.dealing
    packed = np.zeros((layout.rows, layout.row_words), np.uint64)
    words = share.WordsUpload(layout, packed)
    if params.method.surveys:
        # a seed expands to values that are refused
        return [words] * WARM_UP_CLIENTS
    if shape is None:
        seed = share.SeedUpload(layout, bytes(SEED_BYTES), protocol.native_aes)
        return [words, *[seed] * (WARM_UP_CLIENTS - 1)]
    # both parties deal the same
    dealt = dealing.deal(shape, bytes)
    seeded = replace(dealt.seeded, native_aes=protocol.native_aes)
    half = dealt.words if party.number == 0 else seeded
    dealing.check(party.channel, party.number, shape, [half])
    return [dealing.DealtUpload(shape, half, words)] * WARM_UP_CLIENTS


def _agree_on_sizes(
    parties: Sequence[Party], protocol: ProtocolParams, limit_bytes: int = 0
) -> tuple[int, int, int]:
    """Return the `chunk`, `batch` and limit of a filled pool that both parties use.

    They are LOCAL wishes, so the parties exchange them in one round and take the smaller. Raises
    PeerProtocolError if the parties' pools are not the two halves of the same correlations, or for
    a wish that is too small.
    """
    mine, theirs = exchange_wishes(parties, protocol, limit_bytes)
    if (theirs[:2] < share.SLICE_ALIGN).any():
        raise PeerProtocolError(
            f"the peer wishes for chunks of {theirs[:2].tolist()}, "
            f"fewer than {share.SLICE_ALIGN} coordinates"
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
    """Exchange wishes with the peer, and return ours and the peer's.

    They are seven words: `chunk`, `batch`, the limit of the pool, and a digest of the pools of all
    lanes.
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
    params: RoundParams,
    clients: int,
    lanes: int,
    chunk: int,
    batch: int,
    shard: Shard | None = None,
) -> list[tuple[int, int]]:
    """Return the chunks of a round, or of a shard of it, [begin, end) each.

    Lane i of L computes chunks i, i + L, ..
    """
    return _cut(params.dim, params.method.at_once(clients), lanes, chunk, batch, shard)


def cut_check(
    params: RoundParams,
    clients: int,
    lanes: int,
    chunk: int,
    batch: int,
    shard: Shard | None = None,
) -> list[Piece]:
    """Return the pieces of a check of values, of a shard if there is one.

    Lane i of L checks pieces i, i + L, ..

    There are none where the method has nothing to check.
    """
    per_value = params.method.comparisons_per_value(params.max_clients)
    if not params.method.checks_values:
        return []
    # as many as leave room for the smallest chunk
    together = min(clients, max(1, batch // (per_value * share.SLICE_ALIGN)))
    return [
        Piece(slice(first, min(first + together, clients)), begin, end)
        for first in range(0, clients, together)
        for begin, end in _cut(params.dim, together * per_value, lanes, chunk, batch, shard)
    ]


def _cut(
    dim: int, at_once: int, lanes: int, chunk: int, batch: int, shard: Shard | None
) -> list[tuple[int, int]]:
    first, last = (shard.begin, shard.end) if shard else (0, dim)
    # no larger than an even part per lane, in whole slices, and never less than one slice
    size = min(chunk, batch // max(1, at_once), -(-(last - first) // lanes))
    size = max(1, -(-size // share.SLICE_ALIGN)) * share.SLICE_ALIGN
    return [(begin, min(begin + size, last)) for begin in range(first, last, size)]


def run_lanes(parties: Sequence[Party], lane: Callable[[int], None]) -> None:
    """Call lane(0), lane(1), .. each on a thread of its own, and wait for them.

    The first error closes all channels, so that no lane waits any longer, and is raised.
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
        # Every wait inside a lane is a channel's, which has a limit. A limit here would have to
        # leave a thread behind whose sockets the caller then frees: who cannot wait for a lane that
        # hangs all the same leaves our thread behind, with all of them.
        thread.join()
    if errors:
        raise errors[0]


class _Report:
    """The progress of all lanes together."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done, self._total, self._progress = 0, total, progress
        self._lock = threading.Lock()

    def add(self, coordinates: int) -> None:
        with self._lock:
            self._done += coordinates
            if self._progress is not None:
                self._progress(self._done, self._total)


class Meter:
    """A meter of what a party's lanes do from now on.

    Both parties make theirs before either of them sends.
    """

    def __init__(self, parties: Sequence[Party]) -> None:
        self._parties = parties
        for party in parties:
            party.channel.restart_rounds()
        self._before = [_counters(party) for party in parties]
        self._start = time.perf_counter()

    def read(self) -> Cost:
        """Return the cost of all lanes so far."""
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
