"""Correlations, made ahead of the inputs and handed out once.

Both parties make the same kinds in the same order, half of them in each direction, so that both do the same work and
both directions of the link carry the same bytes. Five kinds:

`Tables(m, w)`     random 1-of-2^m OT of w-bit messages (w = 1, 2), what a leaf of a comparison needs: m OTs
`Triples(w)`       random bits a, b_1..b_w and XOR shares of them and of c_k = a & b_k, 64 to a word: 2 OTs a bit
`Quads(l)`         random 1-of-4 OT of ring elements, what a step of the radix median needs: 2 OTs
`RandomOts(l)`     random 1-of-2 OT of ring elements, what a multiplexer needs: 1 OT
`DaBits(l)`        a random bit shared over XOR and over Z_2^l, what turns a bit into a number: 1 OT and l bits

A triple comes from one random OT in each direction: with u the receiver's choice and r_0, r_1 the sender's keys, r_u =
r_0 ^ u (r_0 ^ r_1), so that r_u and r_0 share the product of u and r_0 ^ r_1. Each party's a is its choice in one
direction, its b_k bit k of r_0 ^ r_1 in the other; the products of a party's own bits it adds by itself.

A DaBit of bits b (sender) and c (receiver) uses the correlated OT of b: r_0 + c b at the receiver and -r_0 at the
sender, and [b ^ c] = b + c - 2 b c.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc import ring
from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.kernels import packing
from securemedian.mpc.ot import one_of_n
from securemedian.mpc.ot.one_of_two import OtReceiver, OtSender
from securemedian.mpc.ot.softspoken import ALIGN, BLOCK, RandomOtReceiver, RandomOtSender
from securemedian.mpc.prg import Stream

Words = NDArray[np.uint64]
Arrays = tuple[NDArray[Any], ...]


@dataclass(frozen=True, order=True)
class Tables:
    index_bits: int
    width: int

    @property
    def ots(self) -> int:
        """OTs an item."""
        return self.index_bits

    @property
    def bytes(self) -> tuple[int, int]:
        """Memory of an item at the sender and at the receiver."""
        return _table_dtype(self).itemsize, 1


@dataclass(frozen=True, order=True)
class Triples:
    width: int
    ots = 64  # an item is a word of 64 triples' halves

    @property
    def bytes(self) -> tuple[int, int]:
        return 16 * self.width, 8 + 8 * self.width


@dataclass(frozen=True, order=True)
class Quads:
    bits: int
    ots = 2

    @property
    def bytes(self) -> tuple[int, int]:
        size = ring.dtype(self.bits).itemsize
        return 4 * size, 1 + size


@dataclass(frozen=True, order=True)
class RandomOts:
    bits: int
    ots = 1

    @property
    def bytes(self) -> tuple[int, int]:
        size = ring.dtype(self.bits).itemsize
        return 2 * size, 1 + size


@dataclass(frozen=True, order=True)
class DaBits:
    bits: int
    ots = 1

    @property
    def bytes(self) -> tuple[int, int]:
        return (1 + ring.dtype(self.bits).itemsize,) * 2


Kind = Tables | Triples | Quads | RandomOts | DaBits


def _rank(kind: Kind) -> tuple[Any, ...]:
    """The order in which both parties make kinds."""
    return type(kind).__name__, *vars(kind).values()


class Demand:
    """How many items of each kind a computation needs: `counts[kind][j]` with party j as the OT sender."""

    def __init__(self, counts: Mapping[Kind, tuple[int, int]] | None = None) -> None:
        self.counts: dict[Kind, tuple[int, int]] = dict(counts or {})

    def __add__(self, other: "Demand") -> "Demand":
        total = dict(self.counts)
        for kind, (zero, one) in other.counts.items():
            have = total.get(kind, (0, 0))
            total[kind] = (have[0] + zero, have[1] + one)
        return Demand(total)

    def __mul__(self, times: int) -> "Demand":
        return Demand(
            {kind: (zero * times, one * times) for kind, (zero, one) in self.counts.items()}
        )

    @property
    def ots(self) -> int:
        """OTs for all of it, both directions."""
        return sum(kind.ots * sum(counts) for kind, counts in self.counts.items())

    @property
    def bytes(self) -> int:
        """Memory that the stock of it takes, at the party where it takes more."""
        zero, one = (
            sum(
                kind.bytes[0] * counts[j] + kind.bytes[1] * counts[1 - j]
                for kind, counts in self.counts.items()
            )
            for j in (0, 1)
        )
        return max(zero, one)


class _Stock:
    """A queue of parallel arrays, handed out from the front."""

    def __init__(self) -> None:
        self._pieces: list[Arrays] = []
        self.count = 0

    def put(self, piece: Arrays) -> None:
        self._pieces.append(piece)
        self.count += piece[0].shape[-1]

    def take(self, count: int) -> Arrays:
        """`count` items along the last axis; they leave the stock before they are returned."""
        if count > self.count:
            raise LocalProtocolError(
                f"{count} correlations asked for, {self.count} in stock: reserve first"
            )
        taken: list[Arrays] = []
        self.count -= count
        while count > 0 or not taken:
            piece = self._pieces[0]
            size = piece[0].shape[-1]
            if size > count:
                taken.append(tuple(array[..., :count] for array in piece))
                self._pieces[0] = tuple(array[..., count:] for array in piece)
                break
            taken.append(self._pieces.pop(0))
            count -= size
        if len(taken) == 1:
            return taken[0]
        return tuple(np.concatenate(arrays, axis=-1) for arrays in zip(*taken, strict=True))


@dataclass
class Spent:
    """What making correlations has taken: seconds, whole frames, and rounds (see mpc.channel)."""

    seconds: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    rounds: int = 0


class Pool:
    """The correlations of one party on one lane. `reserve` at both parties, with the same demand and in the same order,
    or not at all.
    """

    def __init__(
        self,
        party_id: int,
        channel: Channel,
        sender: RandomOtSender,
        receiver: RandomOtReceiver,
        randomness: Stream,
    ) -> None:
        self._id, self._channel = party_id, channel
        self._sender, self._receiver, self._randomness = sender, receiver, randomness
        self._sent: defaultdict[Kind, _Stock] = defaultdict(_Stock)
        self._received: defaultdict[Kind, _Stock] = defaultdict(_Stock)
        self.spent = Spent()  # in `reserve`

    @property
    def ots(self) -> int:
        """OTs made so far, both directions."""
        return self._sender.index + self._receiver.index

    @property
    def left(self) -> tuple[int, int]:
        """OTs that the extensions give before they next speak, as the sender and as the receiver."""
        return self._sender.left, self._receiver.left

    @property
    def stock(self) -> dict[Kind, tuple[int, int]]:
        """Items left of each kind, as the OT sender and as the receiver."""
        kinds = self._sent.keys() | self._received.keys()
        return {kind: (self._sent[kind].count, self._received[kind].count) for kind in kinds}

    @property
    def id(self) -> bytes:
        """The same at both parties as long as their stocks are the two halves of the same correlations."""
        directions = [(self._sender.index, self._sent), (self._receiver.index, self._received)]
        if self._id == 1:
            directions.reverse()
        state = [
            (
                index,
                sorted((repr(kind), stock.count) for kind, stock in stocks.items() if stock.count),
            )
            for index, stocks in directions
        ]
        return hashlib.sha256(repr(state).encode()).digest()

    def random_keys(self, count: int, sending: bool) -> None:
        """Make `count` random OTs (at most softspoken.BLOCK) in one direction and drop them: what benchmarks time."""
        (self._sender if sending else self._receiver).extend(count)

    def keep_only(self, demand: Demand) -> None:
        """Drop the stock of kinds that `demand` has no use for. At both parties, like `reserve`."""
        for stocks in (self._sent, self._received):
            for kind in stocks.keys() - demand.counts.keys():
                del stocks[kind]

    def reserve(self, demand: Demand) -> None:
        """Make what the stock lacks of `demand`, and count what it takes."""
        start, traffic = time.perf_counter(), self._channel.traffic
        before = replace(traffic)
        self._make(demand)
        self.spent.seconds += time.perf_counter() - start
        self.spent.bytes_sent += traffic.bytes_sent - before.bytes_sent
        self.spent.bytes_received += traffic.bytes_received - before.bytes_received
        self.spent.rounds += traffic.rounds - before.rounds

    def _make(self, demand: Demand) -> None:
        """Two rounds at most, however much it is, whichever end of the extension speaks."""
        me, peer = self._id, 1 - self._id
        # one item at least in either direction: a batch too small to be halved still takes none of the other
        missing = [
            (
                kind,
                max(1, demand.counts[kind][me]) - self._sent[kind].count,
                max(1, demand.counts[kind][peer]) - self._received[kind].count,
            )
            for kind in sorted(demand.counts, key=_rank)
        ]
        # The half that speaks first: its messages are on their way while it works, and wait for nothing.
        # A sender that speaks sends a DaBit's correction behind the block it belongs to: then nothing is received until
        # the loop below asks for it, block by block.
        pending: Iterable[tuple[DaBits, Arrays]] = self._receive_all(missing)
        if self._sender.sender_speaks:
            if any(as_receiver > 0 for _, _, as_receiver in missing):
                self._receiver.prepare()
        else:
            pending = list(pending)
        for kind, as_sender, _ in missing:
            for items in _blocks(kind, as_sender):
                self._sent[kind].put(self._send(kind, items))
        for dabits, (choices, keys) in pending:
            self._received[dabits].put(self._finish_dabits(dabits, choices, keys))

    def _receive_all(
        self, missing: Sequence[tuple[Kind, int, int]]
    ) -> Iterator[tuple[DaBits, Arrays]]:
        """Stock the receiver's half; yields what a correction of the sender is still to come for, in its order."""
        for kind, _, as_receiver in missing:
            for items in _blocks(kind, as_receiver):
                piece = self._receive(kind, items)
                if isinstance(kind, DaBits):
                    yield kind, piece
                else:
                    self._received[kind].put(piece)

    def _receive(self, kind: Kind, items: int) -> Arrays:
        if isinstance(kind, Tables):
            positions, pads = one_of_n.receiver_pads(
                self._receiver, kind.index_bits, kind.width, items
            )
            return (positions | pads << np.uint8(kind.index_bits),)
        if isinstance(kind, Quads):
            return one_of_n.receiver_pads(self._receiver, kind.ots, kind.bits, items)
        choices, keys = self._receiver.extend(items * kind.ots)
        if isinstance(kind, Triples):
            return choices.copy(), _bit_planes(keys, kind.width)
        bits = np.empty(items, np.uint8)
        packing.unpack_bits(choices, bits)
        return bits, ring.reduce(keys[:, 0], kind.bits)

    def _send(self, kind: Kind, items: int) -> Arrays:
        if isinstance(kind, Tables):
            tables = one_of_n.sender_tables(self._sender, kind.index_bits, kind.width, items)
            return (tables[:, 0].astype(_table_dtype(kind)),)
        if isinstance(kind, Quads):
            return (one_of_n.sender_quads(self._sender, kind.bits, items),)
        keys0, keys1 = self._sender.extend(items * kind.ots)
        if isinstance(kind, Triples):
            planes0 = _bit_planes(keys0, kind.width)
            return planes0 ^ _bit_planes(keys1, kind.width), planes0
        ring0, ring1 = ring.reduce(keys0[:, 0], kind.bits), ring.reduce(keys1[:, 0], kind.bits)
        if isinstance(kind, RandomOts):
            return ring0, ring1
        bits = np.empty(items, np.uint8)
        packing.unpack_bits(self._randomness.words(items // 64), bits)
        self._channel.send(
            "dabits", ring.pack(ring.reduce(ring0 - ring1 + bits, kind.bits), kind.bits)
        )
        return bits, ring.reduce(bits + ring0 + ring0, kind.bits)  # b - 2 (-r_0)

    def _finish_dabits(
        self, kind: DaBits, choices: NDArray[np.uint8], keys: NDArray[Any]
    ) -> Arrays:
        corrections = self._channel.recv(
            "dabits", np.uint64, (ring.packed_words(keys.size, kind.bits),)
        )
        product = keys + choices * ring.unpack(corrections, kind.bits, keys.size)
        return choices, ring.reduce(choices - product - product, kind.bits)

    # What the protocols take. Counts are of this party's own role.

    def tables(
        self, kind: Tables, as_sender: int, as_receiver: int
    ) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """The tables to send from, and what there is to receive with: each a position in the low `index_bits` and the
        pad there above them.
        """
        self._top_up(kind, as_sender, as_receiver)
        (tables,) = self._sent[kind].take(as_sender)
        (pads,) = self._received[kind].take(as_receiver)
        return tables, pads

    def quads(
        self, kind: Quads, as_sender: int, as_receiver: int
    ) -> tuple[NDArray[Any], NDArray[np.uint8], NDArray[Any]]:
        """All four pads (4, count) to send with, and the positions and pads to receive with."""
        self._top_up(kind, as_sender, as_receiver)
        (pads,) = self._sent[kind].take(as_sender)
        choices, chosen = self._received[kind].take(as_receiver)
        return np.ascontiguousarray(pads), choices, chosen

    def triples(self, kind: Triples, words: int) -> tuple[Words, Words, Words]:
        """Shares of a (words,), b (width, words) and c (width, words)."""
        self._top_up(kind, words, words)
        b, product_sent = cast(tuple[Words, Words], self._sent[kind].take(words))
        a, product_received = cast(tuple[Words, Words], self._received[kind].take(words))
        return a, b, (a & b) ^ product_sent ^ product_received

    def random_ots(
        self, kind: RandomOts, as_sender: int, as_receiver: int
    ) -> tuple[OtSender, OtReceiver]:
        self._top_up(kind, as_sender, as_receiver)
        keys0, keys1 = self._sent[kind].take(as_sender)
        choices, keys = self._received[kind].take(as_receiver)
        return OtSender(kind.bits, keys0, keys1), OtReceiver(kind.bits, choices, keys)

    def dabits(
        self, kind: DaBits, as_sender: int, as_receiver: int
    ) -> tuple[NDArray[np.uint8], NDArray[Any]]:
        """Bits and their ring shares, those made as the sender of the lower party's half first: in the order of the
        batch.
        """
        self._top_up(kind, as_sender, as_receiver)
        sent, received = self._sent[kind].take(as_sender), self._received[kind].take(as_receiver)
        first, second = (sent, received) if self._id == 0 else (received, sent)
        return np.concatenate((first[0], second[0])), np.concatenate((first[1], second[1]))

    def _top_up(self, kind: Kind, as_sender: int, as_receiver: int) -> None:
        counts = (as_sender, as_receiver) if self._id == 0 else (as_receiver, as_sender)
        self.reserve(Demand({kind: counts}))


def _blocks(kind: Kind, missing: int) -> Iterable[int]:
    """Sizes of the blocks of OTs that make at least `missing` items: a function of the kind and the count alone, so the
    same at both parties.
    """
    while missing > 0:
        # a triple's item is 64 OTs, and a block a multiple of ALIGN of them
        items = (
            min(BLOCK // 64, -(-missing // 2) * 2)
            if isinstance(kind, Triples)
            else one_of_n.block_items(kind.ots, missing)
        )
        yield items
        missing -= items


def _table_dtype(kind: Tables) -> np.dtype[Any]:
    bits = one_of_n.slot_bits(kind.width) << kind.index_bits
    if bits > 64 or kind.index_bits + kind.width > 8:
        raise LocalProtocolError(
            f"{kind}: a stocked table has at most 64 bits, and its pads one byte"
        )
    return ring.dtype(bits)


def _bit_planes(keys: Words, width: int) -> Words:
    """Bits 0..width-1 of every key, packed: (width, len(keys) / 64)."""
    planes = np.empty((width, len(keys) // ALIGN * (ALIGN // 64)), np.uint64)
    packing.bit_planes(keys, planes)
    return planes
