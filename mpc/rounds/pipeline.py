"""A round on shares, cut into chunks and spread over lanes.

Chunks of coordinates bound the memory. With several lanes, one computes while another waits for the
link.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, cast

import numpy as np

from securemedian.mpc.arrays import Result, RingShare, XorBits
from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import dealing, share
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.dealing import Dealing, Note, nothing
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.chunks import Work, round_demand, step_demand
from securemedian.mpc.rounds.cost import Cost, Meter, counted
from securemedian.mpc.rounds.cutting import Does, Shard, Step, steps
from securemedian.mpc.rounds.lanes import Progress, Report, agree_on_sizes, go_on, run_lanes
from securemedian.mpc.rounds.methods.reveal import open_verdicts
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


class Found(NamedTuple):
    """A part of a round that a shard has, which may be secret, and its cost."""

    value: Any
    cost: Cost

    def __repr__(self) -> str:
        return f"Found(cost={self.cost})"


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
    coin: bytes,
    note: Note = nothing,
) -> Checked:
    """Return whose dealings pass (`dealing`), and what that cost.

    The channel is a lane's or one of its own; the other party does the same at the same time.
    `coin` is what `toss` gave for these dealings.
    """

    def verdicts() -> list[bool]:
        opened = dealing.open_pairs(channel, number, shape, halves, coin)
        note([each.hashes for each in opened])
        return dealing.compare(channel, opened)

    passed, cost = counted(channel, verdicts)
    return Checked(passed, cost.as_checking())


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
    before, _ = steps(params, len(uploads), protocol, shard)
    weights = weights or [params.method.weighing.heaviest] * len(uploads)
    work = Work(params, uploads, weights, protocol.batch, entropy=entropy)
    _perform(parties, work, before, progress)
    return Checked(work.passed, meter.read().as_checking())


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
    a `shard` nothing is tossed, surveyed or judged here: it has the coin and the verdicts.
    """
    _check_count(params, uploads)
    meter = Meter(parties)
    protocol, _ = agree_on_sizes(parties, protocol)
    _, during = steps(params, len(uploads), protocol, shard)
    weights = [1] * len(uploads) if weights is None else weights
    noise = noise or os_entropy(SEED_BYTES)
    work = Work(params, uploads, weights, protocol.batch, groups, entropy, noise)
    if shard:
        work.coin, work.verdicts = shard.coin, shard.verdicts
        during = [step for step in during if step.does == Does.COMPUTE]
    _perform(parties, work, during, progress)
    return Outcome(cast(Result, work.values), meter.read(), work.coin)


def survey_shard(
    parties: Sequence[Party],
    params: RoundParams,
    protocol: ProtocolParams,
    uploads: Sequence[share.Upload],
    weights: Sequence[int],
    shard: Shard,
    checking: bool = False,
) -> Found:
    """Return the sum of the surveys of a shard's chunks, and what that cost.

    The arguments are those of `run_round`; `checking` says whether it is for the check of whole
    uploads. The sum of all shards' sums is for `judge_surveys`.
    """
    _check_count(params, uploads)
    meter = Meter(parties)
    protocol, _ = agree_on_sizes(parties, protocol)
    before, during = steps(params, len(uploads), protocol, shard)
    work = Work(params, uploads, weights, protocol.batch, coin=shard.coin)
    surveys = [step for step in (before if checking else during) if step.does == Does.SURVEY]
    _perform(parties, work, surveys)
    return Found(work.surveyed, meter.read())


def judge_surveys(
    parties: Sequence[Party],
    params: RoundParams,
    surveyed: RingShare,
    weights: Sequence[int],
    shard: Shard,
    checking: bool = False,
) -> Found:
    """Return shares of the verdicts for all shards, from the sum of their surveys, and the cost."""
    meter = Meter(parties)
    work = Work(params, [], weights, share.SLICE_ALIGN, coin=shard.coin, surveyed=surveyed)
    work.do(parties[0], Step(Does.JUDGE, checking=checking))
    return Found(work.verdicts, meter.read())


def open_passed(channel: Channel, number: int, verdicts: XorBits, clients: int) -> Found:
    """Return who passed the check of whole uploads, from the shares of `judge_surveys`."""
    given = channel, number, verdicts, clients
    opened, cost = counted(channel, lambda: open_verdicts(*given, Stream(os_entropy(SEED_BYTES))))
    return Found([bool(bit) for bit in opened], cost)


def _perform(
    parties: Sequence[Party], work: Work, some: Sequence[Step], progress: Progress | None = None
) -> None:
    """Do steps, once the sizes are agreed on: those with coordinates on all lanes, in turns."""
    for does, of_kind in groupby(some, key=lambda step: step.does):
        own = list(of_kind)
        if own[0].dim:
            # the surveys of a round are not its progress
            told = does != Does.SURVEY or own[0].checking
            work.gather(own, _in_turns(parties, work, own, progress if told else None))
        elif does != Does.AGREE:
            work.do(parties[0], own[0])


def _in_turns(
    parties: Sequence[Party], work: Work, some: Sequence[Step], progress: Progress | None
) -> list[Any]:
    """Return what each step finds, which the lanes do in turns."""
    found: dict[int, Any] = {}
    report = Report(sum(step.dim for step in some), progress)

    def lane(number: int) -> None:
        for step in some[number :: len(parties)]:
            found[step.number] = work.do(parties[number], step)
            report.add(step.dim)

    run_lanes([party.channel for party in parties], lane)
    return [found[step.number] for step in some]


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
    # all of it is preprocessing, what the parties said about it included
    return meter.read().as_ahead()
