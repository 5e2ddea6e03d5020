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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import zip_longest
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
Depths = tuple[int, ...]
# The silent OTs that party 0 and party 1 made, each as the OT receiver and as the sender.
Made = tuple[tuple[int, ...], ...]
NONE_MADE: Made = ((-1, -1), (-1, -1))


@dataclass(frozen=True)
class Plan:
    """The cost of a round as it will be.

    `memory` is the result and, per lane, the buffers of OT extension and the most that a chunk's
    correlations, shares and intermediate arrays take together. It leaves out the uploads (which a
    server keeps in files), the check of dealings, messages that wait to be sent, and Python itself.
    """

    # of party 0, without seconds: totals and the checks' part; the other's bytes are the reverse
    cost: Cost
    # seconds of one core on this machine, without making OTs: for the check of the uploads, except
    # that of dealings, and for the round; both are estimates
    checking_seconds: float
    online_seconds: float
    # bytes at one server
    memory: int


def predict(params: RoundParams, weights: Sequence[int], protocol: ProtocolParams) -> Plan:
    """Return the cost of `pipeline.run_round` for clients with these public weights.

    It includes one `check_dealings`, or one `check_values`, of all clients, which all of them pass,
    and all phases of a `Bisection` where the method is audited. All votes of a round are counted.
    Raises ConfigError if a chunk would be too large for any machine.
    """
    if params.form.audited:
        return _predict_bisection(params, len(weights), protocol)
    return _Rehearsal(params, weights, protocol).plan()


def predict_shards(
    params: RoundParams, weights: Sequence[int], protocol: ProtocolParams, count: int
) -> list[Plan]:
    """Return the cost of each shard of a round that is cut into `count`, as `predict` does.

    It includes the shard's survey and, for the first one, the verdicts on all. Bytes of base OTs
    and of what the daemons say to each other are left out.
    """
    rehearsal = _Rehearsal(params, weights, protocol)
    return [rehearsal.plan(shard) for shard in shards(params.dim, count)]


def _check_of_dealings(shape: Dealing, clients: int, shard: Shard | None = None) -> Cost:
    parts = shard.parts(shape) if shard else None
    said = [] if shard else [*toss_messages()]
    if parts != range(0):
        said += messages(shape, clients, parts)
    return _said(said)


def disk_bytes(params: RoundParams, clients: int) -> int:
    """Return the bytes of dealings and votes that one server keeps at most."""
    return clients * (params.form.bytes_ahead + params.form.bytes_after)


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
    checking = _check_of_dealings(dealing, clients).as_checking()
    cost = sum([cost] * dealing.votes, Cost()).after(checking)
    memory += params.dim * params.form.most_results * 8
    return Plan(cost, 0.0, 0.0, memory)


def _said(both: Iterable[Planned]) -> Cost:
    """Return the cost of messages that each of both parties sends and receives."""
    events = [Event(sent, size_of(label, np.dtype(dtype), of)) for sent, label, dtype, of in both]
    counts, depths, _ = _replay((events, events), (0, 0), NONE_MADE, ProtocolParams())
    size, sent = counts[0].tolist()
    return Cost(bytes_sent=size, bytes_received=size, messages=sent, rounds=max(depths))


@dataclass(eq=False)
class _Part:
    """A step of both parties, after which they are `parties`."""

    parties: tuple[Party, Party]
    events: Sequence[list[Event | Asked]] = ()
    ots: int = 0
    seconds: float = 0.0

    @property
    def stock(self) -> tuple[Any, ...]:
        # parties with the same stock act the same
        return tuple(frozenset(party.pool.stock.items()) for party in self.parties)


class _Rehearsal:
    """A rehearsal of a round's steps at both parties, in which the same steps run once."""

    def __init__(
        self, params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
    ) -> None:
        self._params, self._weights, self._protocol = params, weights, protocol
        self._known: dict[tuple[Step, Any], _Part] = {}
        self._replayed = cache(
            lambda part, start, made: _replay(part.events, start, made, protocol)
        )
        # the most bytes that a step took, rows of OTs included
        self._peak = 0

    def plan(self, shard: Shard | None = None) -> Plan:
        """Return the cost of the round, or of a shard of it."""
        params, protocol, clients = self._params, self._protocol, len(self._weights)
        before, during = steps(params, clients, protocol, shard)
        chunks = [step.dim for step in during if step.does == Does.COMPUTE]
        if (ots := demand(params, self._weights, chunks[0]).ots) > MAX_CHUNK_OTS:
            raise ConfigError(
                f"{params.method.name} takes too many OTs to rehearse or compute: {ots:.1e} for "
                f"{clients} clients and a chunk of {chunks[0]} coordinates; use radix, whose cost "
                "is linear in the clients, or bucketed"
            )
        start = _Part((dry_party(0, protocol), dry_party(1, protocol)))
        lanes = [(start, NONE_MADE)] * protocol.lanes
        checking, checking_seconds = self._count(before, lanes)
        if dealt := params.form.dealing:
            checking = _check_of_dealings(dealt, clients, shard)
        cost, online_seconds = Cost(), 0.0
        for _ in range(params.form.votes):
            # the stock of the check stays, and that of the vote before
            vote, seconds = self._count(during, lanes)
            cost, online_seconds = cost + vote, online_seconds + seconds
        busy = max(len(chunks), sum(step.does == Does.CHECK for step in before))
        lane = self._peak + EXTENSION_BYTES + (2 * ferret.CODE.memory if protocol.silent else 0)
        memory = min(busy, protocol.lanes) * lane
        memory += (shard or params).dim * params.form.most_results * 8
        return Plan(cost.after(checking.as_checking()), checking_seconds, online_seconds, memory)

    def _count(self, some: Sequence[Step], lanes: list[tuple[_Part, Made]]) -> tuple[Cost, float]:
        """Return what steps cost party 0, and the seconds.

        `lanes` have the last part of each lane, and the OTs made. They go on to the last step's.
        """
        depths: list[Depths] = [(0, 0)] * len(lanes)
        counts, ots, seconds = np.zeros((2, 2), np.int64), 0, 0.0
        for step in some:
            at = step.number % len(lanes)
            begun, made = lanes[at]
            key = step, begun.stock
            if key not in self._known:
                self._known[key] = self._rehearsed(step, begun)
            part = self._known[key]
            # the rest depends only on how far apart the depths are
            base = min(depths[at])
            apart = tuple(depth - base for depth in depths[at])
            said, after, made = self._replayed(part, apart, made)
            lanes[at], depths[at] = (part, made), tuple(base + depth for depth in after)
            counts, ots, seconds = counts + said, ots + part.ots, seconds + part.seconds
        (sent, messages), (received, _) = counts.tolist()
        return Cost(ots, sent, received, messages, max(map(max, depths))), seconds

    def _rehearsed(self, step: Step, begun: _Part) -> _Part:
        """Return what both parties do in a step from where a part has left them."""
        parties, events, took = copy.deepcopy(begun.parties), list[list[Event | Asked]](), []
        for party in parties:
            tracemalloc.start()
            start, making = time.perf_counter(), party.pool.spent.seconds
            rehearse(party, self._params, self._weights, self._protocol.batch, step)
            seconds = time.perf_counter() - start - (party.pool.spent.seconds - making)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            channel, receiver = party.channel, party.pool.ends.receiver
            assert isinstance(channel, DryChannel) and isinstance(receiver, DryReceiver)
            took.append((seconds, peak + SECURITY_BITS // 8 * receiver.most_unchecked))
            events.append(channel.events)
            channel.events = []
        # the second party's kernels are loaded and warm
        seconds, peak = map(min, zip(*took, strict=True))
        self._peak = max(self._peak, peak)
        return _Part(parties, events, parties[0].pool.ots - begun.parties[0].pool.ots, seconds)


def _replay(
    asked: Sequence[Sequence[Event | Asked]], start: Depths, made: Made, protocol: ProtocolParams
) -> tuple[NDArray[np.int64], Depths, Made]:
    """Return the bytes and messages that each party sends, how deep both are, and the OTs made.

    Depths are those that `Channel` counts, with each party going on as far as messages have come.
    They begin at `start`, and the messages for OTs are those after `made`.
    """
    counts, depths, ots = np.zeros((2, 2), np.int64), [*start], [[*each] for each in made]
    # depths and sizes of the messages on their way to party 0, and to party 1
    flying: tuple[deque[tuple[int, int]], ...] = deque(), deque()

    def act(j: int) -> Iterator[int]:
        """Send and receive what party `j` does, and yield at each wait for a message."""
        for event in asked[j]:
            said = [event] if isinstance(event, Event) else []
            if isinstance(event, Asked):
                said, ots[j][event.sending] = extended(event, ots[j][event.sending], protocol)
            for message in said:
                if message.sent:
                    flying[1 - j].append((depths[j] + 1, message.size))
                    counts[j] += message.size, 1
                    continue
                while not flying[j]:
                    yield j
                # never less than before: the sender's depth only grows
                depths[j], size = flying[j].popleft()
                assert size == message.size

    for waiting in zip_longest(act(0), act(1)):
        assert any(flying[j] for j in waiting if j is not None), "both parties wait for each other"
    assert not any(flying)
    return counts, tuple(depths), tuple(map(tuple, ots))
