"""A round on shares, cut into chunks and spread over lanes.

Chunks of coordinates bound the memory. With several lanes, one computes while another waits for the
link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from securemedian.mpc.arrays import Result, RingShare, XorBits
from securemedian.mpc.errors import InputError, PeerProtocolError
from securemedian.mpc.protocols import dealing, share
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing, Note, Opened, note_nothing
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.chunks import (
    check_piece,
    compute,
    judge,
    round_demand,
    step_demand,
)
from securemedian.mpc.rounds.cost import Cost, Meter, counted
from securemedian.mpc.rounds.cutting import (
    Does,
    Shard,
    cut,
    cut_check,
    cut_survey,
    steps,
    surveyor,
)
from securemedian.mpc.rounds.lanes import (
    Progress,
    Report,
    agree_on_sizes,
    exchange_verdicts,
    go_on,
    run_lanes,
)
from securemedian.mpc.rounds.methods.base import Chunk, Survey
from securemedian.mpc.rounds.methods.reveal import open_bits, open_verdicts
from securemedian.mpc.rounds.params import RoundParams


@dataclass(frozen=True)
class Outcome:
    """The result of a round and its cost."""

    # (results, dim): what the servers learn, or with result_to = "clients" this party's shares
    values: Result = field(repr=False)
    cost: Cost
    # the coin of the round; empty for methods that do not toss
    coin: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Checked:
    """The verdicts of a check on the clients' uploads, and its cost."""

    # one per client: whether all is as the clients' encoding makes it
    passed: list[bool]
    cost: Cost
    # likewise, where some may send nothing: whether that is why it has not passed
    silent: Sequence[bool] = ()


def toss(channel: Channel, number: int, entropy: Entropy = os_entropy) -> tuple[bytes, Cost]:
    """Return the coin of a toss (`dealing.toss`), and what that cost."""
    return counted(channel, lambda: dealing.toss(channel, number, entropy))


def toss_for_check(
    channel: Channel, number: int, vouch: Callable[[bytes], bytes]
) -> tuple[bytes, bytes, Cost]:
    """Return the coin of a toss, what the other party vouches for it with, and the cost.

    `vouch` returns as many bytes for a coin as the other party's does, a multiple of 8.
    """

    def vouched() -> tuple[bytes, bytes]:
        coin = dealing.toss(channel, number)
        theirs = channel.exchange("toss.tokens", np.frombuffer(vouch(coin), np.uint64))
        return coin, theirs.tobytes()

    (coin, theirs), cost = counted(channel, vouched)
    return coin, theirs, cost


def check_dealings(
    channel: Channel,
    number: int,
    shape: Dealing,
    halves: Sequence[share.Upload],
    coin: bytes | None = None,
    note: Note = note_nothing,
) -> Checked:
    """Return whose dealings pass `dealing.check`, and what that cost.

    The channel is a lane's or one of its own; the other party does the same at the same time.
    `coin` and `note` are as there.
    """
    given = channel, number, shape, halves
    passed, cost = counted(channel, lambda: dealing.check(*given, coin=coin, note=note))
    return Checked(passed, cost.as_checking())


def open_dealings(
    channel: Channel,
    number: int,
    shape: Dealing,
    halves: Sequence[share.Upload],
    coin: bytes,
    parts: Sequence[int],
) -> tuple[list[Opened], Cost]:
    """Return what `dealing.open_pairs` opens of some parts, and the cost."""
    given = channel, number, shape, halves
    opened, cost = counted(channel, lambda: dealing.open_pairs(*given, coin=coin, parts=parts))
    return opened, cost.as_checking()


def compare_dealings(
    channel: Channel, opened: Sequence[Sequence[Opened]], note: Note
) -> tuple[list[bool], Cost]:
    """Return whose dealings pass, of which each of several lists has some parts, and the cost.

    `note` is as in `dealing.check`.
    """
    whole = [
        Opened(
            b"".join(part.hashes for part in parts),
            b"".join(part.digest for part in parts),
            all(part.guarded for part in parts),
        )
        for parts in zip(*opened, strict=True)
    ]

    def noted() -> list[bool]:
        note([each.hashes for each in whole])
        return dealing.compare(channel, whole)

    return counted(channel, noted)


def check_values(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    progress: Progress | None = None,
    shard: Shard | None = None,
    entropy: Entropy = os_entropy,
    weights: Sequence[int] = (),
) -> Checked:
    """Return which clients' uploads are as a client encodes them; the other party does the same.

    The arguments are those of `run_round`, which follows for the clients that passed. `weights` are
    those by which clients scale what they share (`Weights.one`), if there are any. If whole
    uploads are checked, the two toss for it with the same `entropy` as for the round, and both
    learn the verdicts alone. If each value is checked, they also learn which values of a client
    that failed are out of range. With a `shard`, only its values are checked. All pass where a
    method has nothing to check. Raises InputError as `run_round` does, and PeerProtocolError if the
    two verdicts differ.
    """
    _check_count(params, uploads)
    if not params.form.checks:
        return Checked([True] * len(uploads), Cost())
    meter = Meter(parties)
    protocol, _ = agree_on_sizes(parties, protocol)
    if params.form.check:
        coin = dealing.toss(parties[0].channel, parties[0].number, entropy)
        chunks = cut_survey(params, len(uploads), protocol)
        weights = weights or [params.method.weighing.heaviest] * len(uploads)
        pieces = _pieces(params, chunks, uploads, weights, protocol, coin)
        verdicts = _judged(parties, params.form.check, pieces, progress)
        passed = [bool(bit) for bit in open_bits(parties[0], verdicts, len(uploads))]
    else:
        passed = _passed_by_value(parties, params, protocol, uploads, progress, shard)
    mine, theirs = exchange_verdicts(parties[0], passed)
    if (mine != theirs).any():
        raise PeerProtocolError(
            "the two servers disagree on which clients' values are in range: no result was opened"
        )
    return Checked(passed, meter.read().as_checking())


def _passed_by_value(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    progress: Progress | None,
    shard: Shard | None,
) -> list[bool]:
    """Return which clients have each of their values in range."""
    pieces = cut_check(params, len(uploads), protocol, shard)
    # one row per lane, because lanes run at once
    failed = np.zeros((len(parties), len(uploads)), np.bool_)
    report = Report(sum(piece.dim for piece in pieces), progress)

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            failed[number, piece.clients] |= check_piece(
                parties[number], params, piece, uploads, protocol.batch
            )
            report.add(piece.dim)

    run_lanes([party.channel for party in parties], lane)
    return [not client.any() for client in failed.T]


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
    noise: bytes = b"",
) -> Outcome:
    """Compute the result of a round, or of a shard of it, while the other party does the same.

    `parties` are this party's lanes. `uploads` are its shares of all clients, in the order that
    both parties agreed on. `weights` are the public weights in the same order, by default 1, and
    `groups` the groups of the clients, if they are visible. Blocks until the round is done. The
    first error of any lane is raised after the channels of all lanes are closed. Raises InputError
    for no uploads or too many.

    `entropy` is what this party tosses with, where the method tosses. SECURITY: a run that breaks
    off must be repeated with the same entropy, because results of the same uploads under two coins
    reveal more than one result. `noise` is the seed of this party's noise, where the method adds
    some; without one it is drawn. SECURITY: nobody else knows it, and a run that breaks off is
    repeated with the same, because the mean of two results of the same uploads has less noise. With
    a `shard` nothing is tossed, surveyed or judged here: it has
    the coin and the verdicts.
    """
    _check_count(params, uploads)
    weights = [1] * len(uploads) if weights is None else weights
    meter = Meter(parties)
    protocol, _ = agree_on_sizes(parties, protocol)
    coin = shard.coin if shard else b""
    if params.form.tosses and not shard:
        coin = dealing.toss(parties[0].channel, parties[0].number, entropy)
    chunks = cut(params, len(uploads), protocol, shard)
    pieces = _pieces(params, chunks, uploads, weights, protocol, coin, groups)
    noise = noise or os_entropy(SEED_BYTES)
    pieces = [replace(piece, noise=noise) for piece in pieces]
    if params.form.survey:
        verdicts = shard.verdicts if shard else _judged(parties, params.form.survey, pieces)
        pieces = [replace(piece, verdicts=verdicts) for piece in pieces]
    results: dict[int, Result] = {}
    report = Report(sum(piece.dim for piece in pieces), progress)

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            results[piece.begin] = compute(parties[number], params, piece)
            report.add(piece.dim)

    run_lanes([party.channel for party in parties], lane)
    # numpy forgets which of the two the chunks were; they are all the same
    values = cast(Result, np.concatenate([results[begin] for begin, _ in chunks], axis=1))
    return Outcome(values, meter.read(), coin)


def _pieces(
    params: RoundParams,
    chunks: Sequence[tuple[int, int]],
    uploads: Sequence[share.Upload],
    weights: Sequence[int],
    protocol: ProtocolParams,
    coin: bytes,
    groups: Sequence[int] = (),
) -> list[Chunk]:
    return [
        params.chunk(uploads, weights, *ends, protocol.batch, groups=groups, coin=coin)
        for ends in chunks
    ]


def _judged(
    parties: Sequence[Party],
    surveys: Survey,
    pieces: Sequence[Chunk],
    progress: Progress | None = None,
) -> XorBits:
    """Return shares of what `judge` finds in the surveys of all chunks."""
    surveyed = _surveyed(parties, surveys, pieces, progress)
    return judge(parties[0], surveys, surveyed, pieces[0])


def _surveyed(
    parties: Sequence[Party],
    surveys: Survey,
    pieces: Sequence[Chunk],
    progress: Progress | None = None,
) -> RingShare:
    """Return the sum of the surveys of all chunks."""
    found: dict[int, RingShare] = {}
    report = Report(sum(piece.dim for piece in pieces), progress)

    def lane(number: int) -> None:
        for piece in pieces[number :: len(parties)]:
            found[piece.begin] = surveys.survey(parties[number], piece)
            report.add(piece.dim)

    run_lanes([party.channel for party in parties], lane)
    total = np.stack([found[piece.begin] for piece in pieces]).sum(axis=0, dtype=np.uint64)
    return RingShare(total)


def survey_shard(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    weights: Sequence[int],
    shard: Shard,
    checking: bool = False,
) -> tuple[RingShare, Cost]:
    """Return the sum of the surveys of a shard's chunks, and what that cost.

    The arguments are those of `run_round`; `checking` says whether it is for the check of whole
    uploads. The sum of all shards' sums is for `judge_surveys`.
    """
    _check_count(params, uploads)
    meter = Meter(parties)
    protocol, _ = agree_on_sizes(parties, protocol)
    chunks = (cut_survey if checking else cut)(params, len(uploads), protocol, shard)
    pieces = _pieces(params, chunks, uploads, weights, protocol, shard.coin)
    return _surveyed(parties, surveyor(params, checking), pieces), meter.read()


def judge_surveys(
    parties: Sequence[Party],
    params: RoundParams,
    surveyed: RingShare,
    weights: Sequence[int],
    shard: Shard,
    checking: bool = False,
) -> tuple[XorBits, Cost]:
    """Return shares of the verdicts for all shards, from the sum of their surveys, and the cost."""
    meter = Meter(parties)
    chunk = params.chunk([], weights, shard.begin, shard.end, share.SLICE_ALIGN, coin=shard.coin)
    return judge(parties[0], surveyor(params, checking), surveyed, chunk), meter.read()


def open_passed(
    channel: Channel, number: int, verdicts: XorBits, clients: int
) -> tuple[list[bool], Cost]:
    """Return who passed the check of whole uploads, from the shares of `judge_surveys`."""
    given = channel, number, verdicts, clients
    opened, cost = counted(channel, lambda: open_verdicts(*given, Stream(os_entropy(SEED_BYTES))))
    return [bool(bit) for bit in opened], cost


def _check_count(params: RoundParams, uploads: Sequence[share.Upload]) -> None:
    if not 1 <= len(uploads) <= params.max_clients:
        raise InputError(
            f"a round takes 1 to {params.max_clients} uploads: {len(uploads)}; give as many"
        )


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
    It stops before the stock takes more than `limit_bytes` (the smaller of the two parties'
    limits), and when party 0's `hurry` says that the round is waiting. The round then makes the
    rest. Drops the stock that this round has no use for. With a `shard`, they are for it alone.
    """
    meter = Meter(parties)
    protocol, limit = agree_on_sizes(parties, protocol, limit_bytes)
    named = [params.method.weighing.one(client) for client in params.weights]
    weights = named or [1] * params.max_clients
    before, during = steps(params, len(weights), protocol, shard)
    # the surveys of a check take nothing
    made = [step for step in before if step.does in (Does.CHECK, Does.JUDGE)]
    made += [step for step in during if step.does in (Does.SURVEY, Does.JUDGE, Does.COMPUTE)]
    # per lane, the coordinates of each of its steps, and the stock to have after it
    stocks: list[list[tuple[int, Demand]]] = [[] for _ in parties]
    total = Demand()
    for step in made:
        wanted = step_demand(params, weights, step)
        total = total + wanted
        if total.memory > limit:
            break
        own = stocks[step.number % len(parties)]
        own.append((step.dim, own[-1][1] + wanted if own else wanted))
    report = Report(sum(step.dim for step in made), progress)
    kinds = round_demand(params, weights, 1)

    def lane(number: int) -> None:
        party = parties[number]
        party.pool.keep_only(kinds)
        for coordinates, wanted in stocks[number]:
            if not go_on(party, hurry):
                return
            party.pool.reserve(wanted)
            report.add(coordinates)

    run_lanes([party.channel for party in parties], lane)
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
