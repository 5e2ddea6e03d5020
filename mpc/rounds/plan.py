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
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.dealing import Dealing, messages
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.ot.extension import BLOCK
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.protocols.share import SLICE_ALIGN
from securemedian.mpc.rounds import auditing
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
    chunks: int


def predict(
    params: RoundParams,
    weights: Sequence[int],
    protocol: ProtocolParams,
    shard: Shard | None = None,
) -> Plan:
    """Return the cost of `pipeline.run_round` for clients with these public weights.

    It includes one `dealing.check` of all clients, or one `pipeline.check_values`, which all of
    them pass, and an audit where the method is audited, whose base OTs are left out. Without
    weights they are [1] * n. With a `shard` it is the cost of that shard, with its survey and, for
    the first one, the verdicts on all. Raises ConfigError if a chunk would be too large for any
    machine.
    """
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
    loading = _Rehearsal(params, weights, protocol)
    loading.part(Step(Does.COMPUTE, min(chunks[0].dim, SLICE_ALIGN)), loading.start)
    rehearsal = _Rehearsal(params, weights, protocol)
    lanes = [_Lane(rehearsal, rehearsal.start) for _ in range(protocol.lanes)]
    for step in before:
        lanes[step.number % len(lanes)].take(step)
    checking = _cost(lanes, 0).as_checking(), _cost(lanes, 1).as_checking()
    if params.dealing is not None:
        parts = shard.parts(params.dealing) if shard else None
        checking = (_dealings_checked(params.dealing, len(weights), parts),) * 2
    checking_seconds = sum(lane.seconds for lane in lanes)
    # their stock stays
    lanes = [_Lane(rehearsal, lane.state, made=lane.made) for lane in lanes]
    for step in during:
        lanes[step.number % len(lanes)].take(step)
    costs = _cost(lanes, 0).after(checking[0]), _cost(lanes, 1).after(checking[1])
    result = (shard.dim if shard else params.dim) * params.method.most_results * 8
    silent = 2 * ferret.CODE.memory if protocol.silent else 0
    pieces = sum(step.does == Does.CHECK for step in before)
    busy = min(max(len(chunks), pieces), protocol.lanes)
    memory = busy * (rehearsal.peak + EXTENSION_BYTES + silent) + result
    if params.method.audited and not shard:
        audit = predict_audit(params, weights, protocol).as_checking()
        costs = costs[0].after(audit), costs[1].after(audit)
        memory += auditing.memory(params, weights, protocol)
    online_seconds = sum(lane.seconds for lane in lanes)
    return Plan(costs, checking_seconds, online_seconds, memory, len(chunks))


def predict_shards(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams, count: int
) -> list[Plan]:
    """Return the cost of each shard of a round that is cut into `count`, as `predict` does.

    Bytes of base OTs and of what the daemons say to each other are left out.
    """
    known: dict[tuple[Any, ...], Plan] = {}
    plans = []
    for shard in shards(params.dim, count):
        dealing = params.dealing
        parts = [dealing.parts[number].kept for number in shard.parts(dealing)] if dealing else []
        # shards that are the same in this cost the same
        leads = shard.number == 0 and (params.method.surveys or params.upload_check is not None)
        same = shard.dim, leads, *parts
        if same not in known:
            known[same] = predict(params, weights, protocol, shard)
        plans.append(known[same])
    return plans


def _dealings_checked(shape: Dealing, clients: int, parts: Sequence[int] | None = None) -> Cost:
    """Return the cost of `dealing.check`, which is the same at both parties."""
    if parts is not None and not parts:
        return Cost()
    return _said(messages(shape, clients, parts)).as_checking()


def predict_audit(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> Cost:
    """Return the cost of all steps of an `auditing.Auditor`, which is the same at both parties.

    All clients' folds agree. Base OTs are left out.
    """
    total = Cost(ots=auditing.ots(params, weights, protocol))
    for lanes in auditing.messages(params, weights, protocol):
        total = joined([_said(each) for each in lanes]).after(total)
    return total


def _said(both: Iterable[tuple[bool, str, DTypeLike, tuple[int, ...]]]) -> Cost:
    """Return the cost of messages that each of both parties sends and receives."""
    events = [Event(sent, size_of(label, np.dtype(dtype), of)) for sent, label, dtype, of in both]
    sent = [event.size for event in events if event.sent]
    _, rounds = _replay((events, events), (0, 0))
    return Cost(bytes_sent=sum(sent), bytes_received=sum(sent), messages=len(sent), rounds=rounds)


@dataclass(frozen=True)
class _State:
    """Both parties of a lane between two steps. States with the same `stock` act the same."""

    parties: tuple[Party, Party] = field(compare=False)
    stock: tuple[frozenset[Any], ...]

    @classmethod
    def of(cls, parties: tuple[Party, Party]) -> "_State":
        stocks = [party.pool.stock.items() for party in parties]
        return cls(parties, tuple(frozenset((kind, *of) for kind, of in each) for each in stocks))


@dataclass(frozen=True)
class _Run:
    """The cost of a step from given depths and after given OTs."""

    bytes_sent: tuple[int, int]
    messages: tuple[int, int]
    depths: Depths
    deepest: int
    made: Made


@dataclass(frozen=True, eq=False)
class _Part:
    """The events of a step at both parties, and what party 0 computes."""

    events: tuple[list[Event | Asked], ...]
    ots: int
    seconds: float
    after: _State
    runs: dict[tuple[Depths, Made], _Run] = field(default_factory=dict)


class _Rehearsal:
    """A rehearsal of a round's steps at both parties, in which the same steps run once."""

    def __init__(
        self, params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
    ) -> None:
        self._round, self.protocol = (params, weights, protocol.batch), protocol
        self._known: dict[tuple[Step, _State], _Part] = {}
        self.start = _State.of((dry_party(0, protocol), dry_party(1, protocol)))
        # the most bytes that a step took, rows of OTs included
        self.peak = 0

    def part(self, step: Step, state: _State) -> _Part:
        """Return what both parties do in a step from a state."""
        if (step, state) not in self._known:
            parties = copy.deepcopy(state.parties)
            events, seconds = [], []
            for party in parties:
                start, made = time.perf_counter(), party.pool.spent.seconds
                with _Peak() as peak:
                    rehearse(party, *self._round, step)
                made = party.pool.spent.seconds - made
                seconds.append(time.perf_counter() - start - made)
                channel, receiver = party.channel, party.pool.ends.receiver
                assert isinstance(channel, DryChannel) and isinstance(receiver, DryReceiver)
                rows = SECURITY_BITS // 8 * receiver.most_unchecked
                self.peak = max(self.peak, peak.size + rows)
                events.append(channel.events[:])
                # emptied in place, because the extensions hold this very list
                channel.events.clear()
            ots = parties[0].pool.ots - state.parties[0].pool.ots
            # the second party's kernels are warm
            part = _Part(tuple(events), ots, min(seconds), _State.of(parties))
            self._known[step, state] = part
        return self._known[step, state]


class _Peak:
    """The most bytes that numpy and Python took at once in a `with` block, and not before."""

    size = 0

    def __enter__(self) -> "_Peak":
        self._nested = tracemalloc.is_tracing()
        if not self._nested:
            tracemalloc.start()
        tracemalloc.reset_peak()
        self._before, _ = tracemalloc.get_traced_memory()
        return self

    def __exit__(self, *_: object) -> None:
        self.size = tracemalloc.get_traced_memory()[1] - self._before
        if not self._nested:
            tracemalloc.stop()


@dataclass
class _Lane:
    """The counts of both ends of a lane, party 0's first, and what its extensions made."""

    rehearsal: _Rehearsal
    state: _State
    ots: int = 0
    seconds: float = 0.0
    bytes_sent: list[int] = field(default_factory=lambda: [0, 0])
    messages: list[int] = field(default_factory=lambda: [0, 0])
    rounds: int = 0
    depths: Depths = (0, 0)
    made: Made = ((-1, -1), (-1, -1))

    def take(self, step: Step) -> None:
        """Count a step."""
        part = self.rehearsal.part(step, self.state)
        # the rest depends only on how far apart the depths and the deepest message are
        base = min(self.depths)
        start = self.depths[0] - base, self.depths[1] - base
        if (start, self.made) not in part.runs:
            run = _run(part.events, start, self.made, self.rehearsal.protocol)
            part.runs[start, self.made] = run
        run = part.runs[start, self.made]
        self.ots += part.ots
        self.seconds += part.seconds
        for j in (0, 1):
            self.bytes_sent[j] += run.bytes_sent[j]
            self.messages[j] += run.messages[j]
        self.depths = base + run.depths[0], base + run.depths[1]
        self.rounds = max(self.rounds, base + run.deepest)
        self.made, self.state = run.made, part.after


def _cost(lanes: Sequence[_Lane], party_id: int) -> Cost:
    return Cost(
        ots=sum(lane.ots for lane in lanes),
        bytes_sent=sum(lane.bytes_sent[party_id] for lane in lanes),
        bytes_received=sum(lane.bytes_sent[1 - party_id] for lane in lanes),
        messages=sum(lane.messages[party_id] for lane in lanes),
        rounds=max(lane.rounds for lane in lanes),
    )


def _run(
    asked: Sequence[list[Event | Asked]], start: Depths, made: Made, protocol: ProtocolParams
) -> _Run:
    """Return a step's run, with the messages of the extensions for the OTs asked of them."""
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
    depths, deepest = _replay(events, start)
    after = (ots[0][0], ots[0][1]), (ots[1][0], ots[1][1])
    return _Run((sum(sent[0]), sum(sent[1])), (len(sent[0]), len(sent[1])), depths, deepest, after)


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
