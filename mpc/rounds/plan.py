"""Predict what a round will cost, by running its protocol on nothing.

`predict` runs both parties one after the other, on channels that move nothing and extensions that
compute nothing (`rehearsal`), and counts. The messages of a round, and what each waits for, are
functions of its parameters alone (tests/test_privacy.py). So the counts are exactly those of a real
round (tests/test_plan.py): `Party`, `Pool` and the methods run unchanged.

A chunk's messages depend on its size and on what the chunks before it left in stock, which soon
repeats, so that few chunks of a long vector are run. It predicts the first round of a session:
later rounds find leftovers in stock, and make less. Silent OTs are counted as they are handed out,
but their bytes are of whole groups of trees. A daemon that fills its pools ahead adds an exchange
of sizes and a short message per chunk. One that checks dealings as they come adds a short message
per toss and two more per further toss.
"""

import copy
import time
import tracemalloc
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.channel import Planned
from securemedian.mpc.protocols.dealing import Dealing, messages, toss_messages
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.ot.extension import BLOCK
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.protocols.share import SLICE_ALIGN
from securemedian.mpc.rounds import bisecting
from securemedian.mpc.rounds.chunks import demand
from securemedian.mpc.rounds.cost import Cost, joined
from securemedian.mpc.rounds.cutting import Does, Shard, Step, shards, steps
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.rehearsal import (
    Asked,
    DryChannel,
    DryReceiver,
    Event,
    dry_party,
    extended,
    rehearse,
    size_of,
)

# The most OTs of a chunk that is rehearsed, which takes about as many bytes of memory.
MAX_CHUNK_OTS = 1 << 30
# Bytes of the buffers of a lane's two extensions. Per OT they are 16 bytes each for keys (two at
# the sender and one at the receiver), rows (at both) and images of the hash (at both).
EXTENSION_BYTES = 7 * 16 * BLOCK

# How deep party 0 and party 1 are: the rounds of `Channel`.
Depths = tuple[int, int]
# The silent OTs that party 0 and party 1 made, each as the OT receiver and as the sender.
Made = tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class Plan:
    """The cost of a round as it will be.

    `memory` is the result and, per lane, the buffers of OT extension and the most that a chunk's
    correlations, shares and intermediate arrays take together. It leaves out the uploads (which a
    server keeps in files), the check of dealings, messages that wait to be sent, and Python itself.
    """

    # of party 0 and of party 1: totals and the checks' part of them, without seconds
    costs: tuple[Cost, Cost]
    # seconds of one core on this machine, without making OTs: for the check of the uploads, except
    # that of dealings, and for the round; both are estimates
    checking_seconds: float
    online_seconds: float
    # bytes at one server
    memory: int


def predict(
    params: RoundParams,
    weights: Sequence[int],
    protocol: ProtocolParams,
    shard: Shard | None = None,
) -> Plan:
    """Return the cost of `pipeline.run_round` for clients with these public weights.

    It includes one `check_dealings`, or one `check_values`, of all clients, which all of them pass,
    and all phases of a `Bisection` where the method is audited. With a `shard` it is the
    cost of that shard, with its survey and, for the first one, the verdicts on all.
    Raises ConfigError if a chunk would be too large for any machine.
    """
    if params.form.audited:
        return _predict_bisection(params, len(weights), protocol)
    before, during = steps(params, len(weights), protocol, shard)
    chunks = [step for step in during if step.does == Does.COMPUTE]
    ots = demand(params, weights, chunks[0].dim).ots
    if ots > MAX_CHUNK_OTS:
        raise ConfigError(
            f"{params.method.name} takes too many OTs to rehearse or compute: "
            f"{ots:.1e} for {len(weights)} clients and a chunk of {chunks[0].dim} coordinates; "
            "use radix, whose cost is linear in the clients, or bucketed"
        )
    # the kernels are loaded first, because their memory does not belong to any chunk
    first = Step(Does.COMPUTE, min(chunks[0].dim, SLICE_ALIGN))
    _Rehearsal(params, weights, protocol).count([first], [])
    rehearsal = _Rehearsal(params, weights, protocol)
    checking, checking_seconds = rehearsal.count(before, [])
    checking = [cost.as_checking() for cost in checking]
    if dealt := params.form.dealing:
        checking = [_check_of_dealings(dealt, len(weights), shard)] * 2
    # the stock of the check stays
    counted, online_seconds = rehearsal.count(during, rehearsal.lanes)
    memory = EXTENSION_BYTES + (2 * ferret.CODE.memory if protocol.silent else 0)
    pieces = sum(step.does == Does.CHECK for step in before)
    memory = min(max(len(chunks), pieces), protocol.lanes) * (rehearsal.peak + memory)
    memory += (shard.dim if shard else params.dim) * params.form.most_results * 8
    one, other = (cost.after(check) for cost, check in zip(counted, checking, strict=True))
    return Plan((one, other), checking_seconds, online_seconds, memory)


def predict_shards(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams, count: int
) -> list[Plan]:
    """Return the cost of each shard of a round that is cut into `count`, as `predict` does.

    Bytes of base OTs and of what the daemons say to each other are left out.
    """
    known: dict[tuple[Any, ...], Plan] = {}
    plans = []
    for shard in shards(params.dim, count):
        dealt = params.form.dealing
        parts = [dealt.parts[number].kept for number in shard.parts(dealt)] if dealt else []
        # shards that are the same in this cost the same
        leads = shard.number == 0 and bool(params.form.survey or params.form.check)
        same = shard.dim, leads, *parts
        if same not in known:
            known[same] = predict(params, weights, protocol, shard)
        plans.append(known[same])
    return plans


def _check_of_dealings(shape: Dealing, clients: int, shard: Shard | None = None) -> Cost:
    parts = shard.parts(shape) if shard else None
    said = [] if shard else [*toss_messages()]
    if parts != range(0):
        said += messages(shape, clients, parts)
    return _said(said).as_checking()


def _predict_bisection(params: RoundParams, clients: int, protocol: ProtocolParams) -> Plan:
    """Return the cost of all phases of a `Bisection`, which is the same at both parties.

    All clients' folds agree. Base OTs are left out, and so are seconds.
    """
    phases, ots, memory = bisecting.predict(params, protocol)
    costs = {phase: joined([_said(lane) for lane in lanes]) for phase, lanes in phases.items()}
    ahead = replace(costs["prepare"], ots=ots).as_ahead()
    cost = costs["run"].after(ahead)
    for phase in ("bind", "toss", "compare"):
        cost = cost.after(costs[phase].as_checking())
    dealing = bisecting.dealing_of(params)
    cost = cost.after(_check_of_dealings(dealing, clients))
    memory += params.dim * params.form.most_results * 8
    return Plan((cost, cost), 0.0, 0.0, memory)


def _said(both: Iterable[Planned]) -> Cost:
    """Return the cost of messages that each of both parties sends and receives."""
    events = [Event(sent, size_of(label, np.dtype(dtype), of)) for sent, label, dtype, of in both]
    sent = [event.size for event in events if event.sent]
    _, rounds = _replay((events, events), (0, 0))
    return Cost(bytes_sent=sum(sent), bytes_received=sum(sent), messages=len(sent), rounds=rounds)


@dataclass(frozen=True)
class _Run:
    """The cost of a part from given depths and after given OTs."""

    # bytes that party 0 and party 1 send, and the messages of each
    counts: NDArray[np.int64]
    depths: Depths
    deepest: int
    made: Made


class _Part:
    """A step of both parties, after which they are `parties`."""

    def __init__(
        self,
        parties: tuple[Party, Party],
        events: Sequence[list[Event | Asked]] = (),
        ots: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.parties, self.events, self.ots, self.seconds = parties, events, ots, seconds
        self.runs: dict[tuple[Depths, Made], _Run] = {}
        # parties with the same stock act the same
        self.stock = tuple(frozenset(party.pool.stock.items()) for party in parties)


@dataclass
class _Lane:
    """The counts of a lane, and what its extensions made."""

    # its last part
    part: _Part
    ots: int = 0
    # as those of `_Run`
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(4, np.int64))
    rounds: int = 0
    seconds: float = 0.0
    depths: Depths = (0, 0)
    made: Made = ((-1, -1), (-1, -1))


class _Rehearsal:
    """A rehearsal of a round's steps at both parties, in which the same steps run once."""

    def __init__(
        self, params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
    ) -> None:
        self._round, self._protocol = (params, weights, protocol.batch), protocol
        self._known: dict[tuple[Step, Any], _Part] = {}
        self._start = _Part((dry_party(0, protocol), dry_party(1, protocol)))
        self.lanes: list[_Lane] = []
        # the most bytes that a step took, rows of OTs included
        self.peak = 0

    def count(self, some: Sequence[Step], lanes: Sequence[_Lane]) -> tuple[list[Cost], float]:
        """Return what steps cost each party on lanes with the stock of others, and the seconds."""
        began = [_Lane(lane.part, made=lane.made) for lane in lanes]
        self.lanes = began or [_Lane(self._start) for _ in range(self._protocol.lanes)]
        for step in some:
            self._take(self.lanes[step.number % len(self.lanes)], step)
        one, other, *messages = np.sum([lane.counts for lane in self.lanes], axis=0).tolist()
        ots, rounds = sum(lane.ots for lane in self.lanes), max(lane.rounds for lane in self.lanes)
        costs = [
            Cost(ots, *sizes, messages[j], rounds)
            for j, sizes in enumerate(((one, other), (other, one)))
        ]
        return costs, sum(lane.seconds for lane in self.lanes)

    def _take(self, lane: _Lane, step: Step) -> None:
        """Count a step on a lane."""
        begun, key = lane.part, (step, lane.part.stock)
        if key not in self._known:
            self._known[key] = self._rehearsed(step, begun)
        part = lane.part = self._known[key]
        # the rest depends only on how far apart the depths and the deepest message are
        base = min(lane.depths)
        start = (lane.depths[0] - base, lane.depths[1] - base), lane.made
        if start not in part.runs:
            part.runs[start] = _run(part.events, *start, self._protocol)
        run = part.runs[start]
        lane.ots += part.ots
        lane.counts = lane.counts + run.counts
        lane.seconds += part.seconds
        lane.rounds = max(lane.rounds, base + run.deepest)
        lane.depths, lane.made = (base + run.depths[0], base + run.depths[1]), run.made

    def _rehearsed(self, step: Step, begun: _Part) -> _Part:
        """Return what both parties do in a step from where a part has left them."""
        parties = copy.deepcopy(begun.parties)
        events, seconds = list[list[Event | Asked]](), []
        for party in parties:
            tracemalloc.start()
            start, making = time.perf_counter(), party.pool.spent.seconds
            rehearse(party, *self._round, step)
            making = party.pool.spent.seconds - making
            seconds.append(time.perf_counter() - start - making)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            channel, receiver = party.channel, party.pool.ends.receiver
            assert isinstance(channel, DryChannel) and isinstance(receiver, DryReceiver)
            self.peak = max(self.peak, peak + SECURITY_BITS // 8 * receiver.most_unchecked)
            events.append(channel.events[:])
            # emptied in place, because the extensions hold this very list
            channel.events.clear()
        ots = parties[0].pool.ots - begun.parties[0].pool.ots
        # the second party's kernels are warm
        return _Part(parties, events, ots, min(seconds))


def _run(
    asked: Sequence[list[Event | Asked]], start: Depths, made: Made, protocol: ProtocolParams
) -> _Run:
    """Return a part's run, with the messages of the extensions for the OTs asked of them."""
    events: tuple[list[Event], list[Event]] = [], []
    ots = [list(made[0]), list(made[1])]
    for j in (0, 1):
        for event in asked[j]:
            if isinstance(event, Asked):
                said, ots[j][event.sending] = extended(event, ots[j][event.sending], protocol)
                events[j].extend(said)
            else:
                events[j].append(event)
    sent = [[event.size for event in own if event.sent] for own in events]
    for j in (0, 1):
        assert sent[j] == [event.size for event in events[1 - j] if not event.sent]
    counts = np.array([*map(sum, sent), *map(len, sent)])
    after = (ots[0][0], ots[0][1]), (ots[1][0], ots[1][1])
    return _Run(counts, *_replay(events, start), after)


def _replay(events: Sequence[Sequence[Event]], start: Depths) -> tuple[Depths, int]:
    """Return the depths of both parties after a step, and that of its deepest message.

    They begin at the depths `start`. Depths are those that `Channel` counts, with each party going
    on as far as messages have come.
    """
    depths, deepest, at = list(start), 0, [0, 0]
    # depths of the messages on their way to party 0, and to party 1
    flying: tuple[deque[int], deque[int]] = deque(), deque()
    while at != [len(own) for own in events]:
        before = list(at)
        for j in (0, 1):
            while at[j] < len(events[j]) and (events[j][at[j]].sent or flying[j]):
                if events[j][at[j]].sent:
                    flying[1 - j].append(depths[j] + 1)
                    deepest = max(deepest, depths[j] + 1)
                else:
                    depths[j] = max(depths[j], flying[j].popleft())
                at[j] += 1
        assert at != before, "both parties wait for each other"
    return (depths[0], depths[1]), deepest
