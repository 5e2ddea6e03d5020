"""Predict what a round will cost, by running its protocol on nothing.

`predict` runs both parties one after the other, on channels that move nothing and extensions that
compute nothing, and counts. Who sends what, how long it is and what waits for what are functions of
the round's parameters alone (tests/test_privacy.py), so the counts are exactly those of a real
round (tests/test_plan.py): `Party`, `Pool` and the methods run unchanged.

A chunk's messages depend on its size and on what the chunks before it left in stock, which soon
repeats, so that few chunks of a long vector are run. It predicts the first round of a session:
later rounds find leftovers in stock, and make less. Silent OTs are counted as they are handed out,
but their bytes are of whole groups of trees. A daemon that fills its pools ahead adds an exchange
of sizes and a short message per chunk; one that checks dealings as they come, a short message per
toss and two more per further one.
"""

import copy
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols import share
from securemedian.mpc.protocols.channel import Channel, Traffic, frame_size
from securemedian.mpc.protocols.correlations.pool import Pool
from securemedian.mpc.protocols.dealing import Dealing, messages, toss_messages
from securemedian.mpc.protocols.ot import ferret
from securemedian.mpc.protocols.ot.consistency import PROOF_WORDS
from securemedian.mpc.protocols.ot.extension import (
    ALIGN,
    BLOCK,
    RandomOtReceiver,
    RandomOtSender,
    checked_block,
)
from securemedian.mpc.protocols.ot.softspoken import corrections_shape
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream
from securemedian.mpc.protocols.protocol import SECURITY_BITS, ProtocolParams
from securemedian.mpc.rounds import auditing
from securemedian.mpc.rounds.chunks import demand
from securemedian.mpc.rounds.cost import Cost, joined
from securemedian.mpc.rounds.cutting import Piece, Shard, cut, cut_check, cut_survey, shards
from securemedian.mpc.rounds.lanes import exchange_verdicts, exchange_wishes
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.rehearsal import (
    rehearse,
    rehearse_check,
    rehearse_judge,
    rehearse_survey,
    rehearse_verdicts,
)

# The most OTs of a chunk that is rehearsed, which takes about as many bytes of memory.
MAX_CHUNK_OTS = 1 << 30
# Bytes of the buffers of a lane's two extensions. Per OT they are 16 bytes each for keys (two at
# the sender and one at the receiver), rows (at both) and images of the hash (at both).
EXTENSION_BYTES = 7 * 16 * BLOCK

# What every dry extension returns.
_KEYS = np.zeros((BLOCK, 2), np.uint64)

_size_of = lru_cache(frame_size)

T = TypeVar("T")
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
    cuts, check = (params, len(weights), protocol, shard), params.upload_check
    chunks = cut(*cuts)
    sizes = [end - begin for begin, end in chunks]
    ots = demand(params, weights, sizes[0]).ots
    if ots > MAX_CHUNK_OTS:
        raise ConfigError(
            f"{params.method.name} with {len(weights)} clients needs {ots:.1e} OTs for a chunk of "
            f"{sizes[0]} coordinates, more than can be rehearsed or computed in sensible time: "
            "use radix, whose cost is linear in the clients, or bucketed"
        )
    pieces = cut_check(*cuts)
    # the kernels are loaded first, because their memory is no chunk's
    loading = _Rehearsal(params, weights, protocol)
    loading.chunk(min(sizes[0], share.SLICE_ALIGN), loading.start)
    rehearsal = _Rehearsal(params, weights, protocol)
    lanes = [_Count(protocol) for _ in range(protocol.lanes)]
    states = [rehearsal.start] * protocol.lanes

    def spread(items: Sequence[T], work: Callable[[T, _State], _Part]) -> None:
        """Do one kind of work on items that the lanes take in turns."""
        for number, item in enumerate(items):
            at = number % protocol.lanes
            part = work(item, states[at])
            lanes[at].add(part)
            states[at] = part.after

    leads = shard is None or shard.number == 0
    checking = Cost(), Cost()
    if pieces or check:
        lanes[0].add(rehearsal.opening(protocol))
        if check and not shard:
            lanes[0].add(rehearsal.toss())
        spread([end - begin for begin, end in cut_survey(*cuts)], rehearsal.check_survey)
        if check and leads:
            spread([None], lambda _, state: rehearsal.check_judge(state))
        spread(pieces, rehearsal.piece)
        if check and not shard:
            lanes[0].add(rehearsal.opened(len(weights)))
        if not (check and shard):
            lanes[0].add(rehearsal.verdicts(len(weights)))
        checking = _cost(lanes, 0).as_checking(), _cost(lanes, 1).as_checking()
        lanes = [_Count(protocol, made=lane.made) for lane in lanes]
    if params.dealing is not None:
        parts = shard.parts(params.dealing) if shard else None
        checking = (_dealings_checked(params.dealing, len(weights), parts),) * 2
    lanes[0].add(rehearsal.opening(protocol))
    if params.method.tosses and not shard:
        lanes[0].add(rehearsal.toss())
    if params.method.surveys:
        spread(sizes, rehearsal.survey)
        if leads:
            spread([None], lambda _, state: rehearsal.judge(state))
        if shard:
            # a step of its own, as the survey was
            lanes[0].add(rehearsal.opening(protocol))
    spread(sizes, rehearsal.chunk)
    costs = _cost(lanes, 0).after(checking[0]), _cost(lanes, 1).after(checking[1])
    result = (shard.dim if shard else params.dim) * params.method.most_results * 8
    silent = 2 * ferret.CODE.memory if protocol.silent else 0
    busy = min(max(len(sizes), len(pieces)), protocol.lanes)
    memory = busy * (rehearsal.peak + EXTENSION_BYTES + silent) + result
    if params.method.audited and not shard:
        audit = predict_audit(params, weights, protocol).as_checking()
        costs = costs[0].after(audit), costs[1].after(audit)
        memory += auditing.memory(params, weights, protocol)
    return Plan(costs, memory, len(sizes))


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
        # those that are alike in this cost the same
        leads = shard.number == 0 and (params.method.surveys or params.upload_check is not None)
        alike = shard.dim, leads, *parts
        if alike not in known:
            known[alike] = predict(params, weights, protocol, shard)
        plans.append(known[alike])
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
    """Return the cost of messages that both parties send and receive alike."""
    events = [_Event(sent, _size_of(label, np.dtype(dtype), of)) for sent, label, dtype, of in both]
    sent = [event.size for event in events if event.sent]
    _, rounds = _replay((events, events), (0, 0))
    return Cost(bytes_sent=sum(sent), bytes_received=sum(sent), messages=len(sent), rounds=rounds)


@dataclass
class _Event:
    """A message of `size` bytes, sent or received at one end."""

    sent: bool
    size: int


@dataclass
class _Asked:
    """OTs asked of one end of an extension, whose messages depend on how many it made."""

    sending: bool
    ots: int


class DryChannel(Channel):
    """A channel that only notes what it would carry. All that is received is zeros."""

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.events: list[_Event | _Asked] = []

    def send(self, label: str, array: NDArray[Any]) -> None:
        self.events.append(_Event(True, _size_of(label, array.dtype, array.shape)))

    def recv(self, label: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any]:
        self.events.append(_Event(False, _size_of(label, np.dtype(dtype), shape)))
        array = np.zeros(shape, dtype)
        # read-only, as what a channel receives
        array.flags.writeable = False
        return array

    def check_opening(self, committed: Words, opened: bytes, label: str) -> None:
        """Take the zeros that are opened."""

    def close(self) -> None:
        pass


class _DrySender(RandomOtSender):
    """A sender's end that only notes what is asked of it."""

    def __init__(self, channel: "DryChannel", protocol: ProtocolParams) -> None:
        self._channel, self._protocol = channel, protocol
        self.sender_speaks = protocol.silent
        # whether a check is under way, and whether its portion in hand has OTs
        self._checking = self._portion = False

    def prepare(self) -> None:
        self._channel.events.append(_Asked(True, 0))

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        self._channel.events.append(_Asked(True, checked_block(count)))
        self.index += count
        self._portion = not self._protocol.silent
        return _KEYS[:count], _KEYS[:count]

    def challenge(self) -> None:
        if self._portion and not self._checking:
            self._channel.events.append(_Asked(True, ALIGN))
        if self._portion:
            self._channel.send("ot.challenge", np.zeros(SEED_BYTES, np.uint8))
            self._checking, self._portion = True, False

    def verify(self) -> None:
        if self._checking:
            self._channel.recv("ot.proof", np.uint64, (PROOF_WORDS,))
        self._checking = False


class _DryReceiver(RandomOtReceiver):
    """A receiver's end that only notes what is asked of it.

    `most_unchecked` are the most OTs that it had to keep the rows of at one time.
    """

    def __init__(self, channel: "DryChannel", protocol: ProtocolParams) -> None:
        self._channel, self._protocol = channel, protocol
        self.sender_speaks, self.most_unchecked = protocol.silent, 0
        # whether a check is under way, and the OTs of its portion in hand
        self._checking, self._portion = False, 0

    def prepare(self) -> None:
        self._channel.events.append(_Asked(False, 0))

    def extend(self, count: int) -> tuple[Words, Blocks]:
        self._channel.events.append(_Asked(False, checked_block(count)))
        self.index += count
        self._portion += 0 if self._protocol.silent else count
        self.most_unchecked = max(self.most_unchecked, self._portion)
        return _KEYS.reshape(-1)[: count // 64], _KEYS[:count]

    def seal(self) -> None:
        if self._portion and not self._checking:
            self._channel.events.append(_Asked(False, ALIGN))
            self._checking = True

    def weigh(self) -> None:
        if self._portion:
            self._channel.recv("ot.challenge", np.uint8, (SEED_BYTES,))
        self._portion = 0

    def prove(self) -> None:
        if self._checking:
            self._channel.send("ot.proof", np.zeros(PROOF_WORDS, np.uint64))
        self._checking = False


def _extended(asked: _Asked, made: int, protocol: ProtocolParams) -> tuple[list[_Event], int]:
    """Return the messages of one end of an extension, and the silent OTs made after them.

    It made `made` before them, where -1 stands for a silent extension without seeds.
    """
    words = np.dtype(np.uint64)
    if not protocol.silent:
        corrections = corrections_shape(protocol.ot_field_bits, asked.ots)
        return [_Event(not asked.sending, _size_of("ot.corrections", words, corrections))], made
    said = []
    if made < 0:
        seeds = corrections_shape(protocol.ot_field_bits, ferret.SETUP.reserve)
        said, made = [_Event(not asked.sending, _size_of("ot.corrections", words, seeds))], 0
    for shape in ferret.messages(made, asked.ots):
        said.append(_Event(asked.sending, _size_of("ferret.sums", words, shape)))
    return said, made + asked.ots


class _DryStream(Stream):
    """A stream of zeros, for masks that hide nothing."""

    def __init__(self) -> None:
        pass

    def fill(self, out: Words) -> None:
        out[...] = 0


@dataclass
class _Count:
    """What both ends of a lane counted, party 0's first, and what its extensions made."""

    protocol: ProtocolParams
    ots: int = 0
    bytes_sent: list[int] = field(default_factory=lambda: [0, 0])
    messages: list[int] = field(default_factory=lambda: [0, 0])
    rounds: int = 0
    depths: Depths = (0, 0)
    made: Made = ((-1, -1), (-1, -1))

    def add(self, part: "_Part") -> None:
        # what follows depends on the depths' distance from each other and from the deepest message
        # alone
        base = min(self.depths)
        start = self.depths[0] - base, self.depths[1] - base
        if (start, self.made) not in part.runs:
            part.runs[start, self.made] = _run(part.events, start, self.made, self.protocol)
        run = part.runs[start, self.made]
        self.ots += part.ots
        for j in (0, 1):
            self.bytes_sent[j] += run.bytes_sent[j]
            self.messages[j] += run.messages[j]
        self.depths = (base + run.depths[0], base + run.depths[1])
        self.rounds = max(self.rounds, base + run.deepest)
        self.made = run.made


def _cost(lanes: Sequence[_Count], party_id: int) -> Cost:
    return Cost(
        ots=sum(lane.ots for lane in lanes),
        bytes_sent=sum(lane.bytes_sent[party_id] for lane in lanes),
        bytes_received=sum(lane.bytes_sent[1 - party_id] for lane in lanes),
        messages=sum(lane.messages[party_id] for lane in lanes),
        rounds=max(lane.rounds for lane in lanes),
    )


@dataclass(frozen=True)
class _State:
    """Both parties of a lane between two chunks. States with the same `stock` behave alike."""

    parties: tuple[Party, Party] = field(compare=False)
    stock: tuple[frozenset[Any], frozenset[Any]]


@dataclass(frozen=True)
class _Run:
    """What a chunk comes to from given depths and after given OTs."""

    bytes_sent: tuple[int, int]
    messages: tuple[int, int]
    depths: Depths
    deepest: int
    made: Made


@dataclass(frozen=True, eq=False)
class _Part:
    """What both parties do for one chunk."""

    events: tuple[list[_Event | _Asked], list[_Event | _Asked]]
    ots: int
    after: _State
    runs: dict[tuple[Depths, Made], _Run] = field(default_factory=dict)


class _Rehearsal:
    """A rehearsal of a round's chunks at both parties, where chunks that are alike run once."""

    def __init__(
        self, params: RoundParams, weights: Sequence[int], protocol: ProtocolParams
    ) -> None:
        self._round, self._protocol = (params, weights, protocol.batch), protocol
        # by the sizes of the chunk, or of the piece of a check
        self._known: dict[tuple[tuple[int, ...], _State], _Part] = {}
        self.start = _state((self._party(0), self._party(1)))
        # the most bytes that a chunk took, rows of OTs included
        self.peak = 0

    def _party(self, party_id: int) -> Party:
        channel, stream = DryChannel(), _DryStream()
        ends = _DrySender(channel, self._protocol), _DryReceiver(channel, self._protocol)
        pool = Pool(party_id, channel, *ends, stream)
        return Party(party_id, channel, pool, stream)

    def opening(self, protocol: ProtocolParams) -> _Part:
        """Return what lane 0 does before its first chunk."""
        return self._aside(lambda party: exchange_wishes([party], protocol))

    def toss(self) -> _Part:
        """Return what lane 0 does to toss the coin of a round."""

        def exchange(party: Party) -> None:
            for sent, label, dtype, shape in toss_messages():
                if sent:
                    party.channel.send(label, np.zeros(shape, dtype))
                else:
                    party.channel.recv(label, dtype, shape)

        return self._aside(exchange)

    def verdicts(self, clients: int) -> _Part:
        """Return what lane 0 does when all values are checked."""
        return self._aside(lambda party: exchange_verdicts(party, [True] * clients))

    def _aside(self, work: Callable[[Party], object]) -> _Part:
        """Return what lane 0 does in `work`, which takes no correlations."""
        parties = (self._party(0), self._party(1))
        for party in parties:
            work(party)
        return _part(parties, 0)

    def chunk(self, size: int, state: _State) -> _Part:
        """Return what a chunk of `size` coordinates does from a state."""
        return self._rehearsed((size,), state, lambda party: rehearse(party, *self._round, size))

    def survey(self, size: int, state: _State) -> _Part:
        """Return what the survey of a chunk of `size` coordinates does from a state."""
        return self._rehearsed(
            (size, 0, 0), state, lambda party: rehearse_survey(party, *self._round, size)
        )

    def judge(self, state: _State) -> _Part:
        """Return what lane 0 does with the surveys from a state."""
        return self._rehearsed((), state, lambda party: rehearse_judge(party, *self._round))

    def check_survey(self, size: int, state: _State) -> _Part:
        """Return what a lane does for the check of whole uploads in `size` coordinates."""
        check = self._round[0].upload_check
        return self._rehearsed(
            (size, 0, 1), state, lambda party: rehearse_survey(party, *self._round, size, check)
        )

    def check_judge(self, state: _State) -> _Part:
        """Return what lane 0 does to find whose uploads pass that check."""
        check = self._round[0].upload_check
        return self._rehearsed(
            (0, 0, 1), state, lambda party: rehearse_judge(party, *self._round, check)
        )

    def opened(self, clients: int) -> _Part:
        """Return what lane 0 does to open who passes it."""
        return self._aside(lambda party: rehearse_verdicts(party, clients))

    def piece(self, piece: Piece, state: _State) -> _Part:
        """Return what a piece of a check does from a state."""
        params, _, batch = self._round
        clients = piece.clients.stop - piece.clients.start
        return self._rehearsed(
            (clients, piece.dim), state, lambda party: rehearse_check(party, params, piece, batch)
        )

    def _rehearsed(
        self, sizes: tuple[int, ...], state: _State, work: Callable[[Party], None]
    ) -> _Part:
        key = sizes, state
        if key not in self._known:
            parties = copy.deepcopy(state.parties)
            for party in parties:
                with _Peak() as peak:
                    work(party)
                receiver = party.pool.ends.receiver
                assert isinstance(receiver, _DryReceiver)
                rows = SECURITY_BITS // 8 * receiver.most_unchecked
                self.peak = max(self.peak, peak.size + rows)
            self._known[key] = _part(parties, state.parties[0].pool.ots)
        return self._known[key]


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


def _part(parties: tuple[Party, Party], ots_before: int) -> _Part:
    """Return what the parties did since they were last asked."""
    one, other = (_take_events(party) for party in parties)
    return _Part((one, other), parties[0].pool.ots - ots_before, _state(parties))


def _take_events(party: Party) -> list[_Event | _Asked]:
    channel = party.channel
    assert isinstance(channel, DryChannel)
    events = channel.events[:]
    # emptied in place, because the extensions hold this very list
    channel.events.clear()
    return events


def _state(parties: tuple[Party, Party]) -> _State:
    one, other = (
        frozenset((kind, *counts) for kind, counts in party.pool.stock.items()) for party in parties
    )
    return _State(parties, (one, other))


def _run(
    asked: tuple[list[_Event | _Asked], list[_Event | _Asked]],
    start: Depths,
    made: Made,
    protocol: ProtocolParams,
) -> _Run:
    """Return a chunk's run, with the messages of the extensions for the OTs asked of them."""
    events: tuple[list[_Event], list[_Event]] = [], []
    ots = [list(made[0]), list(made[1])]
    for j in (0, 1):
        for event in asked[j]:
            if isinstance(event, _Asked):
                said, ots[j][event.sending] = _extended(event, ots[j][event.sending], protocol)
                events[j].extend(said)
            else:
                events[j].append(event)
    sent = [[event.size for event in own if event.sent] for own in events]
    for j in (0, 1):
        assert sent[j] == [event.size for event in events[1 - j] if not event.sent]
    depths, deepest = _replay(events, start)
    after = (ots[0][0], ots[0][1]), (ots[1][0], ots[1][1])
    return _Run((sum(sent[0]), sum(sent[1])), (len(sent[0]), len(sent[1])), depths, deepest, after)


def _replay(events: Sequence[Sequence[_Event]], start: Depths) -> tuple[Depths, int]:
    """Return the depths of both parties after a chunk, and that of its deepest message.

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
