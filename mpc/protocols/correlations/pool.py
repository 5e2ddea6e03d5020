"""The pool of one party on one lane, which makes, stocks and hands out correlations."""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, groupby, zip_longest
from operator import itemgetter
from typing import Any

import numpy as np

from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.correlations.base import Demand, Ends, Half, HandedOut, Kind, Stock
from securemedian.mpc.protocols.ot.extension import BLOCK, RandomOtReceiver, RandomOtSender
from securemedian.mpc.protocols.prg import Stream

# The OTs of one direction that are checked at once: so many that waiting for the peer costs little.
# A receiver keeps 16 bytes of each until then, which is 33 MB.
CHECKED = 16 * BLOCK

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

        It takes four rounds at most, however much is made. Nothing is in stock before the OTs that
        it is made of are checked. Raises PeerProtocolError if the peer's are wrong.
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
    # and the peer's are there when it comes to the other half. Senders' corrections (of DaBits) are
    # made of keys, and so they come after the check of all OTs.

    def _make_where_receivers_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Receive a portion, send one, check both, and so on; then finish everything."""
        sender, receiver = self.ends.sender, self.ends.receiver
        sent: Begun = []
        received: Begun = []
        nothing: Orders = []
        portions = _portions(to_send), _portions(to_receive)
        for giving, taking in zip_longest(*portions, fillvalue=nothing):
            received += [(kind, kind.receive(self.ends, items)) for kind, items in taking]
            receiver.seal()
            sent += [(kind, kind.send(self.ends, items)) for kind, items in giving]
            sender.challenge()
            receiver.prove()
            sender.verify()
        self._correct_all(sent)
        self._finish_all(received)

    def _make_where_senders_speak(self, to_send: Orders, to_receive: Orders) -> None:
        """Prepare, send everything, then receive and finish everything.

        Before all messages the peer's sender waits for what this party's receiver says in
        `prepare`.
        """
        if any(missing > 0 for _, missing in to_receive):
            self.ends.receiver.prepare()
        giving, taking = (chain(*_portions(orders)) for orders in (to_send, to_receive))
        self._correct_all([(kind, kind.send(self.ends, items)) for kind, items in giving])
        self._finish_all([(kind, kind.receive(self.ends, items)) for kind, items in taking])

    def _correct_all(self, begun: "Begun") -> None:
        for kind, halves in _by_kind(begun):
            self._sent[kind].put(_joined([kind.correct(self.ends, half) for half in halves]))

    def _finish_all(self, begun: "Begun") -> None:
        for kind, halves in _by_kind(begun):
            self._received[kind].put(_joined([kind.finish(self.ends, half) for half in halves]))


# Halves of blocks, kind after kind, without corrections.
Begun = list[tuple[Kind[Any], Half]]


def _by_kind(begun: Begun) -> Iterator[tuple[Kind[Any], list[Half]]]:
    for kind, some in groupby(begun, key=itemgetter(0)):
        yield kind, [half for _, half in some]


def _portions(orders: Orders) -> list[Orders]:
    """Return the blocks of items to be made, in portions of about CHECKED OTs."""
    portions: list[Orders] = []
    room = 0
    for kind, missing in orders:
        while missing > 0:
            if room <= 0:
                portions.append([])
                room = CHECKED
            items = kind.block(min(missing, -(-room // kind.ots)))
            portions[-1].append((kind, items))
            missing, room = missing - items, room - items * kind.ots
    return portions


def _joined(halves: list[Half]) -> Half:
    """Return the items of blocks in one piece, of which protocols take parts as views."""
    if len(halves) == 1:
        return halves[0]
    return tuple(np.concatenate(parts, axis=-1) for parts in zip(*halves, strict=True))
