"""The pool of one party on one lane, which makes, stocks and hands out correlations."""

import hashlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.base import Demand, Ends, Half, HandedOut, Kind, Stock
from securemedian.mpc.protocols.ot.extension import BLOCK, RandomOtReceiver, RandomOtSender
from securemedian.mpc.protocols.prg import Stream

# The OTs of one direction that a sender challenges at once, or a few more: so many that waiting for
# the peer costs little. A receiver keeps 16 bytes of each until then, which is 8 MB.
PORTION = 4 * BLOCK

# Kinds in the order in which both parties make them, each with how many items.
Orders = list[tuple[Kind[Any], int]]


@dataclass
class Spent:
    """The cost of making correlations: seconds, bytes of whole frames, and rounds (`channel`)."""

    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    rounds: int = 0


class Pool:
    """The correlations of one party on one lane.

    Both parties `reserve` and `take` the same numbers of the same kinds in the same order: what one
    takes as the sender, the other takes as the receiver.
    """

    def __init__(
        self,
        party_id: int,
        channel: Channel,
        sender: RandomOtSender,
        receiver: RandomOtReceiver,
        randomness: Stream,
    ) -> None:
        self._party_id = party_id
        self.ends = Ends(channel, sender, receiver, randomness)
        self._sent: defaultdict[Kind[Any], Stock] = defaultdict(Stock)
        self._received: defaultdict[Kind[Any], Stock] = defaultdict(Stock)
        # by `reserve`
        self.spent = Spent()

    @property
    def ots(self) -> int:
        """Return the OTs made so far, in both directions together."""
        return self.ends.sender.ots + self.ends.receiver.ots

    @property
    def left(self) -> tuple[int, int]:
        """Return the OTs that the extensions have left, as the sender and as the receiver."""
        return self.ends.sender.left, self.ends.receiver.left

    @property
    def stock(self) -> dict[Kind[Any], tuple[int, int]]:
        """Return the items left of each kind, as the OT sender and as the receiver."""
        kinds = self._sent.keys() | self._received.keys()
        return {kind: (self._sent[kind].count, self._received[kind].count) for kind in kinds}

    @property
    def fingerprint(self) -> bytes:
        """Return a digest of the stock, equal at both parties while they hold the same items."""
        directions = [
            (self.ends.sender.index, self._sent),
            (self.ends.receiver.index, self._received),
        ]
        if self._party_id == 1:
            directions.reverse()
        state = [
            (
                index,
                sorted((repr(kind), stock.count) for kind, stock in stocks.items() if stock.count),
            )
            for index, stocks in directions
        ]
        return hashlib.sha256(repr(state).encode()).digest()

    def take(self, kind: Kind[HandedOut], as_sender: int, as_receiver: int) -> HandedOut:
        """Hand out items of a kind, after making those that the stock lacks."""
        by_party = (as_sender, as_receiver) if self._party_id == 0 else (as_receiver, as_sender)
        self.reserve(Demand({kind: by_party}))
        sent, received = self._sent[kind].take(as_sender), self._received[kind].take(as_receiver)
        return kind.hand_out(self._party_id, sent, received)

    def keep_only(self, demand: Demand) -> None:
        """Drop the stock of kinds that `demand` does not name, at both parties as in `reserve`."""
        for stocks in (self._sent, self._received):
            for kind in stocks.keys() - demand.counts.keys():
                del stocks[kind]

    def reserve(self, demand: Demand) -> None:
        """Make what the stock lacks of `demand`, and count what that takes.

        Nothing is in stock before the OTs that all of it is made of are checked. Raises
        PeerProtocolError if the peer's are wrong.
        """
        start, traffic = time.perf_counter(), self.ends.channel.traffic
        before = replace(traffic)
        to_send, to_receive = self._missing(demand)
        if self.ends.sender.sender_speaks:
            self._make_where_senders_speak(to_send, to_receive)
        else:
            self._make_where_receivers_speak(to_send, to_receive)
        self.spent.seconds += time.perf_counter() - start
        self.spent.bytes_sent += traffic.bytes_sent - before.bytes_sent
        self.spent.bytes_received += traffic.bytes_received - before.bytes_received
        self.spent.rounds += traffic.rounds - before.rounds

    def _missing(self, demand: Demand) -> tuple[Orders, Orders]:
        """Return what must be made as the sender, and what as the receiver."""
        me, peer = self._party_id, 1 - self._party_id
        kinds = sorted(demand.counts, key=lambda kind: kind.rank)
        # At least one item in either direction, because a batch too small to be halved still takes
        # an empty half of the other.
        return (
            [(kind, max(1, demand.counts[kind][me]) - self._sent[kind].count) for kind in kinds],
            [
                (kind, max(1, demand.counts[kind][peer]) - self._received[kind].count)
                for kind in kinds
            ],
        )

    # The order of messages. Each party begins with the half of the work in which its own end of the
    # extension speaks. Its messages wait for nothing: they are on their way while it works, and the
    # peer's are there when it comes to the other half. Senders' corrections (of DaBits) are made of
    # keys, and so they come after the check of all OTs.

    def _make_where_receivers_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Receive a portion, send one, weigh it, and so on; check all, and finish everything."""
        sender, receiver = self.ends.sender, self.ends.receiver
        giving, taking = _portions(to_send), _portions(to_receive)
        sent, received = _Begun(giving, self._sent), _Begun(taking, self._received)
        nothing: Orders = []
        for to_give, to_take in zip_longest(giving, taking, fillvalue=nothing):
            for kind, items in to_take:
                received.add(kind, kind.receive(self.ends, items))
            receiver.seal()
            for kind, items in to_give:
                sent.add(kind, kind.send(self.ends, items))
            sender.challenge()
            receiver.weigh()
        receiver.prove()
        sender.verify()
        sent.put(lambda kind, half: kind.correct(self.ends, half))
        received.put(lambda kind, half: kind.finish(self.ends, half))

    def _make_where_senders_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Prepare, send everything, then receive and finish everything.

        Before all messages the peer's sender waits for what this party's receiver says in
        `prepare`.
        """
        if any(missing > 0 for _, missing in to_receive):
            self.ends.receiver.prepare()
        giving, taking = _portions(to_send), _portions(to_receive)
        sent, received = _Begun(giving, self._sent), _Begun(taking, self._received)
        for kind, items in chain(*giving):
            sent.add(kind, kind.send(self.ends, items))
        sent.put(lambda kind, half: kind.correct(self.ends, half))
        for kind, items in chain(*taking):
            received.add(kind, kind.receive(self.ends, items))
        received.put(lambda kind, half: kind.finish(self.ends, half))


class _Begun:
    """Halves of blocks that are made, and that are put into stocks when all are.

    Those of a kind become one, of which protocols take parts as views: each block is copied while
    it is in the cache.
    """

    def __init__(self, portions: list[Orders], stocks: dict[Kind[Any], Stock]) -> None:
        self._stocks = stocks
        self._counts: Counter[Kind[Any]] = Counter()
        for kind, items in chain(*portions):
            self._counts[kind] += items
        self._whole: dict[Kind[Any], Half] = {}
        self._filled: Counter[Kind[Any]] = Counter()
        # those of kinds with a correction
        self._blocks: list[tuple[Kind[Any], Half]] = []

    def add(self, kind: Kind[Any], half: Half) -> None:
        """Take the half of a block, without its correction."""
        if kind.corrected:
            self._blocks.append((kind, half))
        else:
            self._copy(kind, half)

    def put(self, complete: Callable[[Kind[Any], Half], Half]) -> None:
        """Put everything into the stocks, after `complete` has made a whole half of each block."""
        for kind, half in self._blocks:
            self._copy(kind, complete(kind, half))
        for kind, half in self._whole.items():
            self._stocks[kind].put(half)

    def _copy(self, kind: Kind[Any], half: Half) -> None:
        size, count, at = half[0].shape[-1], self._counts[kind], self._filled[kind]
        if size == count:
            self._whole[kind] = half
            return
        if at == 0:
            self._whole[kind] = tuple(
                np.empty((*part.shape[:-1], count), part.dtype) for part in half
            )
        for array, part in zip(self._whole[kind], half, strict=True):
            array[..., at : at + size] = part
        self._filled[kind] += size


def _portions(orders: Orders) -> list[Orders]:
    """Return the blocks of items to be made, in portions of about PORTION OTs."""
    portions: list[Orders] = []
    room = 0
    for kind, missing in orders:
        while missing > 0:
            if room <= 0:
                portions.append([])
                room = PORTION
            items = kind.block(min(missing, -(-room // kind.ots)))
            portions[-1].append((kind, items))
            missing, room = missing - items, room - items * kind.ots
    return portions
