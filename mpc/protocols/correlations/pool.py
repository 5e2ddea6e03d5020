"""The pool of one party on one lane, which makes, stocks and hands out correlations."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.base import Demand, Ends, Half, HandedOut, Kind, Stock
from securemedian.mpc.protocols.ot.extension import RandomOtReceiver, RandomOtSender
from securemedian.mpc.protocols.prg import Stream

# Kinds in the order in which both parties make them, each with how many items.
Orders = list[tuple[Kind[Any], int]]


@dataclass
class Spent:
    """What making correlations took: seconds, bytes of whole frames, and rounds (`channel`)."""

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
        return self.ends.sender.index + self.ends.receiver.index

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

        It takes two rounds at most, however much is made.
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
    # extension speaks, because its messages wait for nothing: they are on their way while it works,
    # and the peer's are there when it comes to the other half. A sender's correction of a block (of
    # DaBits) follows that block's messages of the extension, if any, on the same channel.

    def _make_where_receivers_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Receive everything, send everything, finish everything.

        The extension's messages go from receiver to sender. So on the way to this party come first
        all the messages that its sender waits for, and then all the corrections.
        """
        begun: list[tuple[Kind[Any], int, list[Half]]] = []
        for kind, blocks in _blocks(to_receive):
            halves = (kind.receive(self.ends, items) for items in blocks)
            if kind.corrected:
                begun.append((kind, sum(blocks), list(halves)))
            else:
                self._received[kind].put(_joined(halves, sum(blocks)))
        self._send_all(to_send)
        for kind, count, first in begun:
            finished = (kind.finish(self.ends, half) for half in first)
            self._received[kind].put(_joined(finished, count))

    def _make_where_senders_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Prepare, send everything, then receive and finish block by block.

        The extension's messages go from sender to receiver. So on the way to this party come each
        block's messages and then its correction, before those of the next block. Before all of them
        the peer's sender waits for what this party's receiver says in `prepare`.
        """
        if any(missing > 0 for _, missing in to_receive):
            self.ends.receiver.prepare()
        self._send_all(to_send)
        for kind, blocks in _blocks(to_receive):
            halves = (kind.finish(self.ends, kind.receive(self.ends, items)) for items in blocks)
            self._received[kind].put(_joined(halves, sum(blocks)))

    def _send_all(self, to_send: Orders) -> None:
        for kind, blocks in _blocks(to_send):
            halves = (kind.send(self.ends, items) for items in blocks)
            self._sent[kind].put(_joined(halves, sum(blocks)))


def _blocks(orders: Orders) -> Iterator[tuple[Kind[Any], list[int]]]:
    """Yield the kinds of which some are missing, and the items of each block of them."""
    for kind, missing in orders:
        blocks = []
        while missing > 0:
            blocks.append(kind.block(missing))
            missing -= blocks[-1]
        if blocks:
            yield kind, blocks


def _joined(halves: Iterable[Half], count: int) -> Half:
    """Return the `count` items of blocks in one piece, of which protocols take parts as views.

    Each block is copied while it is in the cache.
    """
    whole: Half = ()
    at = 0
    for half in halves:
        size = half[0].shape[-1]
        if size == count:
            return half
        whole = whole or tuple(np.empty((*part.shape[:-1], count), part.dtype) for part in half)
        for array, part in zip(whole, half, strict=True):
            array[..., at : at + size] = part
        at += size
    return whole
