"""Test that what a server ends with is uniform, whatever the inputs are.

That is its share of every output, and all that it can unmask of what it was sent.

Bytes on the wire say too little: a share that is not masked never travels. Each test here fixes the
inputs *and* how they are shared, so that only the protocol's own masks can make an output share
uniform. It looks at the share alone, beside the secrets, and beside the shares of its neighbours.
`tests.uniformity` says what false alarms cost. The checks are functions, and tests/test_masks.py
shows which mask each of them guards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from nacl import bindings as sodium

from securemedian.mpc.arrays import PublicWords, RingShare, UnpackedXorBits, XorBits
from securemedian.mpc.protocols import (
    boolean,
    compare,
    convert,
    group,
    lengths,
    millionaire,
    order,
    ring,
    share,
)
from securemedian.mpc.protocols.audit.equality import settle
from securemedian.mpc.protocols.channel import NONCE_WORDS, Channel, local_pair
from securemedian.mpc.protocols.correlations.base import Kind
from securemedian.mpc.protocols.correlations.kinds import (
    DaBits,
    PlaneOts,
    RandomOts,
    Tables,
    Triples,
)
from securemedian.mpc.protocols.kernels import extension as extension_kernels
from securemedian.mpc.protocols.kernels import planes
from securemedian.mpc.protocols.ot import base, ferret, ggm, softspoken
from securemedian.mpc.protocols.ot.consistency import Weighing, reduced
from securemedian.mpc.protocols.ot.extension import ALIGN, Direction
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import OT_EXTENSIONS, SECURITY_BITS, ProtocolParams
from securemedian.mpc.rounds.methods import descent, pairwise, radix, reveal, trimmed_mean
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.methods.reclustered import Reclustered
from securemedian.mpc.rounds.methods.zeno import Zeno
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import run_round
from tests.parties import run_both
from tests.test_privacy import Recorder
from tests.uniformity import (
    FALSE_ALARM,
    PARITIES,
    Leak,
    allowed,
    beside_the_next,
    bits_of,
    check_uniform,
    windows,
)

# items of a batch: 4096 in either direction
COUNT = 8192
Columns = dict[str, np.ndarray]
# of inputs alone
RNG = np.random.default_rng(17)

# This part depends on how `mpc` is laid out: where a party's secrets go, how a pool is asked, where
# a method keeps its steps.


def dealt_secrets(field_bits: int = 4) -> tuple[list[list[bytes]], np.ndarray, list[list[bytes]]]:
    """Return all leaves, Delta, and the leaves without those at Delta; no base OT is computed."""
    blocks = SECURITY_BITS // field_bits
    leaves = [[os_entropy(16) for _ in range(1 << field_bits)] for _ in range(blocks)]
    delta = np.unpackbits(np.frombuffer(os_entropy(16), np.uint8), bitorder="little")
    missing = (delta.reshape(blocks, -1) << np.arange(field_bits)).sum(axis=1)
    holes = [
        [b"" if x == hole else leaf for x, leaf in enumerate(tree)]
        for tree, hole in zip(leaves, missing, strict=True)
    ]
    return leaves, delta, holes


def dealt_parties(extension: str, pair: tuple[Channel, Channel]) -> list[Party]:
    """Return both parties of a lane, whose base OTs the test deals instead of computing them."""
    tag = os_entropy(32)
    one, other = dealt_secrets(), dealt_secrets()
    params = ProtocolParams(ot_extension=extension)
    return [
        Session(j, tag, theirs[0], mine[1], mine[2], os_entropy, params).party(0, pair[j])
        for j, mine, theirs in ((0, one, other), (1, other, one))
    ]


def radix_products(party: Party, own: tuple[XorBits, XorBits], bits: int) -> list[RingShare]:
    """Run two steps of the radix median, for one client with bits x and y: products x and x y."""
    (x, y), words = own, own[0].size
    selection = radix.Selection(party, XorBits(np.stack([y, x])), words, bits, [1], [1])
    opened = [np.full((1, words), 2**64 - 1, np.uint64), np.zeros((1, words), np.uint64)]
    found = []
    for i, bit in enumerate(opened):
        values = np.empty(64 * words, ring.dtype(bits))
        planes.join(selection.reached(1 - i, PublicWords(bit)), values)
        found.append(RingShare(values))
    return found


def leaf_shares(party: Party, own: Any, bits: int, equality: bool) -> list[np.ndarray]:
    leaves = millionaire.leaves_of(bits, equality)
    as_sender, as_receiver = own
    gt, eq = millionaire._leaf_shares(party, as_sender, as_receiver, leaves)
    return [words for words in (*gt, *eq) if words.size]


def pairwise_median(party: Party, values: RingShare, bits: int) -> np.ndarray:
    return pairwise.median(party, values, bits, "hidden")


def kept_sum(party: Party, values: RingShare, bits: int) -> np.ndarray:
    return trimmed_mean.kept_sum(party, values, bits, trimmed_mean.dropped(len(values), 0.25))


def recorded_parties(extension: str = "softspoken") -> tuple[list[Party], list[Recorder]]:
    one, two = local_pair(20)
    ends = [Recorder(one), Recorder(two)]
    return dealt_parties(extension, (ends[0], ends[1])), ends


# The statistics

NOISE = np.frombuffer(os_entropy(COUNT), np.uint8) & 1


def test_the_bound_is_that_of_the_false_alarm() -> None:
    items, stray = COUNT, allowed(COUNT)
    assert np.isclose(2 * np.exp(-items * stray**2 / 2) * PARITIES, FALSE_ALARM)
    assert 0.09 < stray < 0.11


@pytest.mark.parametrize(
    "seen, known",
    [
        ({"share": NOISE * 0}, {}),
        ({"share": NOISE}, {"secret": NOISE}),
        ({"share": NOISE}, {"secret": 1 - NOISE}),
        ({"one": NOISE, "other": NOISE}, {}),
        ({"one": NOISE, "other": NOISE ^ np.arange(COUNT) % 2}, {"secret": np.arange(COUNT) % 2}),
        # right three times of four
        ({"share": NOISE * (np.arange(COUNT) % 2)}, {}),
        (beside_the_next({"share": np.tile(NOISE[:64], COUNT // 64)}), {}),
        (beside_the_next({"share": np.repeat(NOISE[: COUNT // 64], 64)}), {}),
    ],
)
def test_the_statistics_see_a_leak(seen: Columns, known: Columns) -> None:
    with pytest.raises(Leak):
        check_uniform(seen, known)


def test_the_statistics_let_noise_pass() -> None:
    one, other, secret = NOISE[::2], NOISE[1::2], np.arange(COUNT // 2) % 3 == 0
    check_uniform({"one": one, "other": other, "masked": one ^ NOISE[::-2]}, {"secret": secret})
    check_uniform(beside_the_next({"one": NOISE}))


def test_the_statistics_refuse_to_judge_on_too_little() -> None:
    with pytest.raises(ValueError, match="too few"):
        check_uniform({"share": NOISE[:64]})
    with pytest.raises(ValueError, match="at most 22"):
        check_uniform({str(i): NOISE for i in range(23)})


# Protocols on shares


# Bits per item of each part of a message, and which items these are.
Message = tuple[tuple[int, ...], str]


@dataclass(frozen=True)
class Protocol:
    """Hold one protocol function, with inputs that the test knows.

    `inputs(kind, parties)` gives the inputs of both parties and the secrets, as columns of one
    entry per item. `run` gives a party's output shares, as arrays of one entry per item or of
    packed bits. `bits`: of an output share; `packed`: bits come 64 per word. `messages`: label ->
    (bits per item of each part of the message, its items at the receiver). The items are the half
    in which the receiver is "sending" or "receiving", or the "whole" batch, which also comes in bit
    "planes".
    """

    inputs: Callable[[str, list[Party]], tuple[Sequence[Any], Columns]]
    run: Callable[[Party, Any], Sequence[Any]]
    bits: int
    packed: bool = True
    items: int = COUNT
    messages: Mapping[str, Message] = field(default_factory=dict)


# `differing` alone is for --fast: the other kinds look for what it might miss.
KINDS = [
    "differing",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("low", "high", "mixed")),
]


def plain_pair(kind: str, bits: int, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    """Return two unsigned values per item.

    They are both least, both greatest, the greatest and the least, or random and near each other.
    """
    top = (1 << bits) - 1
    if kind != "mixed":
        fixed = {"low": (0, 0), "high": (top, top), "differing": (top, 0)}[kind]
        return np.full(count, fixed[0], ring.dtype(bits)), np.full(
            count, fixed[1], ring.dtype(bits)
        )
    x, y = (RNG.integers(0, top, count, np.uint64, endpoint=True) for _ in range(2))
    near = np.where(x & np.uint64(4), x, y)
    return x.astype(ring.dtype(bits)), near.astype(ring.dtype(bits))


def secrets_of(bits: int, result: np.ndarray, **inputs: np.ndarray) -> Columns:
    """Return the bit that is computed and the outer bits of the inputs."""
    columns = {"the result": result.astype(np.uint8)}
    for name, values in inputs.items():
        columns |= bits_of(name, values, 0, 1) | bits_of(name, values, bits - 1, bits)
    return columns


def private(bits: int, result: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Any:
    """Give a to the sender and c to the receiver of each half."""

    def inputs(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
        a, c = plain_pair(kind, bits)
        halves = [party.halves(COUNT) for party in parties]
        own = [(ring.split(a[s], bits), ring.split(c[r], bits)) for s, r in halves]
        return own, secrets_of(bits, result(a, c), a=a, c=c)

    return inputs


def elements(
    bits: int, result: Callable[[np.ndarray, np.ndarray], np.ndarray], fits: int | None = None
) -> Any:
    """Share x and y of `fits` bits, sign included, additively; party 1's shares are all 1."""

    def inputs(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
        x, y = (
            ring.reduce(ring.signed(v, fits or bits), bits) for v in plain_pair(kind, fits or bits)
        )
        one = x.dtype.type(1)
        shares = [[ring.reduce(v - one, bits) for v in (x, y)], [np.full_like(x, 1)] * 2]
        plain = result(ring.signed(x, bits), ring.signed(y, bits))
        return shares, secrets_of(bits, plain, x=x, y=y)

    return inputs


def packed_bits(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
    """XOR-share bits x and y; party 1's shares are all 0."""
    x, y = (v & 1 for v in plain_pair(kind, 4))
    words = [boolean.pack_bits(v.astype(np.uint8)) for v in (x, y)]
    return [words, [np.zeros_like(v) for v in words]], {"x": x, "y": y, "x & y": x & y}


def selected(bits: int) -> Any:
    """XOR-share bits s and share x additively; party 1's shares are all 0 and all 1."""

    def inputs(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
        s, x = plain_pair(kind, bits)
        s = s & s.dtype.type(1)
        words = boolean.pack_bits(s.astype(np.uint8))
        one = x.dtype.type(1)
        shares = [(words, ring.reduce(x - one, bits)), (np.zeros_like(words), np.full_like(x, 1))]
        return shares, {"s": s} | secrets_of(bits, s * x & 1, x=x)

    return inputs


CLIENTS, DIM = 3, 4096


def uploads(bits: int, count: int = CLIENTS) -> Any:
    """Share a value per client and coordinate, of `bits` - 3 bits; party 1's shares are all 1."""

    def inputs(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
        rows = [plain_pair(kind, bits - 3, DIM)[i % 2] for i in range(count)]
        values = ring.reduce(np.stack(rows).astype(np.uint64), bits)
        shares = [ring.reduce(values - values.dtype.type(1), bits), np.full_like(values, 1)]
        middle = np.sort(values, axis=0)[(count - 1) // 2]
        columns = {"the median": middle & 1} | {f"x{i}": row & 1 for i, row in enumerate(rows)}
        return shares, columns

    return inputs


def placed(kind: str, parties: list[Party]) -> tuple[list[Any], Columns]:
    """Share positions 0..3, for `order.within`; party 1's shares are all 1."""
    x, _ = plain_pair(kind, 2)
    positions = ring.reduce(x, 4).reshape(1, -1)
    shares = [ring.reduce(positions - positions.dtype.type(1), 4), np.full_like(positions, 1)]
    return shares, secrets_of(2, (x >= 1) & (x < 3), x=x)


def flat(products: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the products of all terms, one after the other."""
    return [product for term in products for product in term]


def borders(value: int) -> np.ndarray:
    return np.array([[value]])


def on_own(protocol: Callable[..., Any], *options: Any) -> Callable[[Party, Any], list[Any]]:
    """Return what runs a protocol on all of a party's own inputs, with these options last."""
    return lambda party, own: [protocol(party, *own, *options)]


def first_to_ring(party: Party, x: XorBits, _: XorBits, bits: int) -> RingShare:
    """Convert the first of two inputs to the ring."""
    return boolean.to_ring(party, x, COUNT, bits)


def equal_shares(party: Party, x: RingShare, y: RingShare, bits: int) -> XorBits:
    """Tell where two inputs are equal."""
    return compare.is_zero(party, RingShare(ring.reduce(x - y, bits)), bits)


def rows_of_one(party: Party, s: XorBits, x: RingShare, bits: int) -> RingShare:
    """Multiplex rows of one element."""
    flags = UnpackedXorBits(boolean.unpack_bits(s, x.size))
    kept = boolean.multiplex_rows(party, flags, RingShare(x.reshape(-1, 1)), bits)
    return RingShare(kept.reshape(-1))


def smallest_of(party: Party, values: RingShare) -> list[XorBits]:
    """Tell which values of each coordinate are the two smallest."""
    chosen = descent.smallest(party, values, 7, 2)
    return [XorBits(boolean.pack_bits(np.ascontiguousarray(row))) for row in chosen]


def first_squared(party: Party, x: RingShare, _: RingShare, bits: int) -> RingShare:
    """Square the first of two inputs."""
    return lengths.square(party, x, bits)


def rows_in_range(party: Party, x: RingShare, y: RingShare, bits: int) -> XorBits:
    """Tell where both inputs, as the rows of a sketch, are in -4..3."""
    return lengths.in_range(party, RingShare(np.stack([x, y], axis=1)), 4, bits)


def upper_bits(party: Party, own: Any, bits: int) -> list[Any]:
    """Return the bits of the first of two inputs, except the lowest, which is the input's own."""
    return list(convert.to_bits(party, own[0], bits)[1:])


def from_two_bits(party: Party, x: XorBits, y: XorBits, bits: int) -> RingShare:
    """Convert the numbers x + 2 y to the ring."""
    return convert.from_bits(party, XorBits(np.stack([x, y])), COUNT, bits)


PROTOCOLS: dict[str, Protocol] = {
    **{
        f"greater-{bits}": Protocol(
            private(bits, np.greater), on_own(millionaire.greater), 1, messages=messages
        )
        for bits, messages in (
            (2, {"leaf.request": ((2,), "sending"), "leaf.reply": ((4,), "receiving")}),
            (3, {"leaf.request": ((3,), "sending"), "leaf.reply": ((8,), "receiving")}),
            (8, {"leaf.request": ((4, 4), "sending"), "leaf.reply": ((16, 32), "receiving")}),
            (16, {}),
        )
    },
    **{
        f"equal-{bits}": Protocol(
            private(bits, np.equal), on_own(millionaire.equal), 1, messages=messages
        )
        for bits, messages in (
            (4, {"leaf.request": ((4,), "sending"), "leaf.reply": ((16,), "receiving")}),
            (9, {"leaf.request": ((1, 4, 4), "sending"), "leaf.reply": ((2, 16, 16), "receiving")}),
        )
    },
    # later steps join these: masks of the joins would hide it in the output
    "leaves-of-greater": Protocol(
        private(8, np.greater), lambda party, own: leaf_shares(party, own, 8, False), 1
    ),
    "leaves-of-equal": Protocol(
        private(8, np.equal), lambda party, own: leaf_shares(party, own, 8, True), 1
    ),
    "msb": Protocol(
        elements(5, lambda x, y: x < 0), lambda party, own: [compare.msb(party, own[0], 5)], 1
    ),
    "shared-greater": Protocol(elements(9, np.greater, 7), on_own(compare.greater, 9), 1),
    "shared-equal": Protocol(elements(6, np.equal), on_own(equal_shares, 6), 1),
    "conjunctions": Protocol(
        packed_bits,
        lambda party, own: flat(
            boolean.conjunctions(party, [(own[0], [own[1]]), (own[1], [own[0], own[1]])])
        ),
        1,
    ),
    "conjunction": Protocol(
        packed_bits,
        lambda party, own: flat(boolean.conjunctions(party, [(own[0], [own[1]])])),
        1,
        messages={"and": ((1, 1), "whole")},
    ),
    **{
        f"to-ring-{bits}": Protocol(
            packed_bits,
            on_own(first_to_ring, bits),
            bits,
            packed=False,
            messages={"b2a": ((1,), "whole")},
        )
        for bits in (2, 5, 32)
    },
    **{
        f"multiplex-{bits}": Protocol(
            selected(bits),
            on_own(boolean.multiplex, bits),
            bits,
            packed=False,
            messages={"mux.request": ((1,), "whole"), "mux.reply": ((bits,), "whole")},
        )
        for bits in (4, 64)
    },
    **{
        f"multiplex-rows-{bits}": Protocol(
            selected(bits),
            on_own(rows_of_one, bits),
            bits,
            packed=False,
            messages={"rows.request": ((1,), "whole"), "rows.reply": ((bits,), "whole")},
        )
        for bits in (4, 33)
    },
    **{
        f"square-{bits}": Protocol(
            elements(bits, lambda x, _: x * x & 1),
            on_own(first_squared, bits),
            bits,
            packed=False,
            messages=messages,
        )
        for bits, messages in (
            (2, {"square.request": ((1,), "sending"), "square.reply": ((2,), "receiving")}),
            (5, {}),
            (64, {}),
        )
    },
    "in-range": Protocol(
        elements(6, lambda x, y: (abs(2 * x + 1) < 8) & (abs(2 * y + 1) < 8), 4),
        on_own(rows_in_range, 6),
        1,
    ),
    "to-bits": Protocol(elements(5, lambda x, _: x >> 1 & 1), partial(upper_bits, bits=5), 1),
    "from-bits": Protocol(packed_bits, on_own(from_two_bits, 5), 5, packed=False),
    "descent": Protocol(
        uploads(9),
        lambda party, own: [descent.element(party, own, 7, 9, 2)],
        9,
        packed=False,
        items=DIM,
    ),
    "descent-smallest": Protocol(uploads(9), smallest_of, 1, items=DIM),
    **{
        f"radix-products-{bits}": Protocol(
            packed_bits,
            partial(radix_products, bits=bits),
            bits,
            packed=False,
            messages={
                "select.request": ((1, 1), "whole"),
                "select.reply": ((bits, bits), "planes"),
            },
        )
        for bits in (4, 17)
    },
    "positions": Protocol(
        uploads(9),
        lambda party, own: list(order.positions(party, own, 9, [1] * CLIENTS, 4)),
        4,
        packed=False,
        items=DIM,
    ),
    "within": Protocol(
        placed, lambda party, own: [order.within(party, own, borders(1), borders(3), 4)], 1
    ),
    "pairwise-median": Protocol(
        uploads(9), lambda party, own: [pairwise_median(party, own, 9)], 9, packed=False, items=DIM
    ),
    "trimmed-sum": Protocol(
        uploads(9, 4), lambda party, own: [kept_sum(party, own, 9)], 9, packed=False, items=DIM
    ),
}


def output_share(name: str, kind: str = "differing", extension: str = "softspoken") -> None:
    """Run a protocol and check each party's output shares, in each half of the batch.

    Check that it opens nothing on its way, too.
    """
    protocol = PROTOCOLS[name]
    parties, ends = recorded_parties(extension)
    inputs, secrets = protocol.inputs(kind, parties)
    results = run_both(lambda j: protocol.run(parties[j], inputs[j]))
    for party, outputs in zip(parties, results, strict=True):
        for number, output in enumerate(outputs):
            values = entries(protocol, output)
            title = f"share {number} of party {party.number}"
            for part in party.halves(protocol.items):
                for columns in windows(title, values[part], protocol.bits):
                    check_uniform(columns, of_part(secrets, part))
                low = bits_of(title, values[part], 0, min(2, protocol.bits))
                check_uniform(beside_the_next(low))
    if opened := {label for end in ends for label, _ in end.received if label.startswith("open")}:
        raise Leak(f"{name} sends {', '.join(sorted(opened))}")


def received(name: str, kind: str = "differing") -> None:
    """Run a protocol and check what each party is sent online.

    All bits of an item are judged together, and next to the party's own output share, which is what
    it makes of them.
    """
    protocol = PROTOCOLS[name]
    parties, ends = recorded_parties()
    inputs, secrets = protocol.inputs(kind, parties)
    results = run_both(lambda j: protocol.run(parties[j], inputs[j]))
    for party, end, outputs in zip(parties, ends, results, strict=True):
        for label, (sizes, where) in protocol.messages.items():
            values = entries(protocol, outputs[0])
            part, rows = parts_of(end.of(label), sizes, where, party)
            known = of_part(secrets, part)
            seen = bits_of("own share", values[part], 0, min(2, protocol.bits))
            if label == "b2a":
                # the low bit of a DaBit's ring share *is* its bit: party 0's share shows it what it
                # was sent
                seen = {}
            for row, bits in rows:
                for columns in windows(label, row, bits, 16 - len(known)):
                    check_uniform(columns | seen, known)
                check_uniform(beside_the_next(bits_of(label, row, 0, min(2, bits))))


def entries(protocol: Protocol, output: np.ndarray) -> np.ndarray:
    """Return an output as one entry per item."""
    return boolean.unpack_bits(output, protocol.items) if protocol.packed else output


def of_part(columns: Columns, part: slice) -> Columns:
    return {name: column[part] for name, column in columns.items()}


def parts_of(
    message: np.ndarray, sizes: tuple[int, ...], where: str, party: Party
) -> tuple[slice, list[tuple[np.ndarray, int]]]:
    """Return the items that a message concerns, and its parts: an entry per item, and its bits."""
    sending, receiving = party.halves(COUNT)
    part = {"sending": sending, "receiving": receiving}.get(where, slice(0, COUNT))
    count = part.stop - part.start
    parts, at, message = [], 0, message.reshape(-1)
    for bits in sizes:
        words = ring.packed_words(count, bits)
        mine = message[at : at + words]
        values = np.empty(count, ring.dtype(bits))
        if where != "whole":
            planes.join(mine.reshape(bits, -1), values)
        else:
            values = ring.unpack(mine, bits, count)
        parts.append((values, bits))
        at += words
    assert at == message.size, "the message is not of these parts"
    return part, parts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROTOCOLS)
def test_an_output_share_says_nothing(name: str, kind: str) -> None:
    output_share(name, kind)


@pytest.mark.parametrize("name", ["greater-8", "conjunctions", "multiplex-4", "to-ring-5"])
def test_an_output_share_says_nothing_with_silent_ots(name: str) -> None:
    output_share(name, "differing", "silent")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [name for name in PROTOCOLS if PROTOCOLS[name].messages])
def test_what_is_received_says_nothing(name: str, kind: str) -> None:
    received(name, kind)


# Correlations as the pool hands them out


def both_ways(kind: Kind[Any], extension: str, count: int = COUNT) -> list[tuple[Any, Any]]:
    """Take `count` items in each direction; return per party what it got and what the other got."""
    parties, _ = recorded_parties(extension)
    one, other = run_both(lambda j: parties[j].pool.take(kind, count, count))
    return [(one, other), (other, one)]


def tables_handed_out(kind: Tables, extension: str = "softspoken") -> None:
    """Check the pads at unread positions next to the position and the pad that the receiver has.

    Check its position next to the whole table of the sender, too.
    """
    for (sent, _, _), (_, positions, pads) in both_ways(kind, extension, COUNT // 64):
        table, choice, pad = (numbers(rows) for rows in (sent, positions, pads))
        at = [chunk(kind, table, choice ^ np.uint64(i)) for i in range(1 << kind.index_bits)]
        reads = bits_of("position", choice, 0, kind.index_bits)
        reads |= bits_of("pad", pad, 0, kind.width)
        unread = list(range(1, 1 << kind.index_bits))
        for start in range(0, len(unread), 8 // kind.width):
            some = unread[start : start + 8 // kind.width]
            seen = dict(reads)
            for i in some:
                seen |= bits_of(f"unread pad {i}", at[i], 0, kind.width)
            check_uniform(seen)
        check_uniform(
            beside_the_next(bits_of("position", choice, 0, 1) | bits_of("table", table, 0, 2))
        )
        for columns in windows("table", table, kind.width << kind.index_bits, 12):
            check_uniform(columns | bits_of("position", choice, 0, kind.index_bits))


def numbers(rows: np.ndarray) -> np.ndarray:
    """Return the numbers of bit planes."""
    values = np.empty(64 * rows.shape[1], np.uint64)
    planes.join(np.ascontiguousarray(rows), values)
    return values


def chunk(kind: Tables, tables: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the message at a position of each table."""
    return tables >> positions * np.uint64(kind.width) & np.uint64((1 << kind.width) - 1)


def unread_messages(kind: Tables, extension: str = "softspoken") -> None:
    """Check each unread pad of a table next to what the receiver's own keys say there."""
    parties, _ = recorded_parties(extension)
    receiver: Any = parties[1].pool.ends.receiver
    extend, kept = receiver.extend_planes, []

    def keeping(ots: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        choices, keys = extend(ots, count)
        kept.append(keys)
        return choices, keys

    receiver.extend_planes = keeping
    items = COUNT // 64
    (sent, _, _), (_, positions, pads) = run_both(
        lambda j: parties[j].pool.take(kind, *((items, 0) if j == 0 else (0, items)))
    )
    table, choice = numbers(sent), numbers(positions)
    reads = bits_of("position", choice, 0, kind.index_bits)
    reads |= bits_of("pad", numbers(pads), 0, kind.width)
    for i in range(1, 1 << kind.index_bits):
        there = choice ^ np.uint64(i)
        seen = reads | bits_of(f"unread pad {i}", chunk(kind, table, there), 0, kind.width)
        for j in range(kind.index_bits):
            own = numbers(kept[0][:, j * items : (j + 1) * items])
            seen |= bits_of(f"own key {j} there", chunk(kind, own, there), 0, 1)
        check_uniform(seen)


def plane_ots_handed_out(bits: int, extension: str = "softspoken") -> None:
    """Check the key that was not chosen beside the choice and the chosen key."""
    for (keys0, keys1, _, _), (_, _, choices, keys) in both_ways(
        PlaneOts(bits), extension, COUNT // 64
    ):
        others = keys0 ^ ((keys0 ^ keys1) & ~choices)
        chosen = {"choice": boolean.unpack_bits(choices, COUNT)}
        for first in range(0, bits, 6):
            seen = dict(chosen)
            for k in range(first, min(first + 6, bits)):
                seen[f"bit {k} of the chosen key"] = boolean.unpack_bits(keys[k], COUNT)
                seen[f"bit {k} of the other key"] = boolean.unpack_bits(others[k], COUNT)
            check_uniform(seen)
        other = {"other key": boolean.unpack_bits(others[0], COUNT)}
        check_uniform(beside_the_next(chosen | other))


def triples_handed_out(width: int, extension: str = "softspoken") -> None:
    """Check a party's shares of a, b and a & b next to the other's of a and b.

    These are five bits of six, and the sixth is what the product says.
    """

    def columns(whose: str, named: str, shares: np.ndarray) -> Columns:
        rows = np.atleast_2d(shares)
        return {
            f"{whose} {named}{k}": boolean.unpack_bits(np.ascontiguousarray(row), 64 * row.size)
            for k, row in enumerate(rows)
        }

    for (a, b, c), (a1, b1, _) in both_ways(Triples(width), extension, COUNT // 64):
        own = columns("own", "a", a) | columns("own", "b", b) | columns("own", "ab", c)
        check_uniform(own | columns("the other's", "a", a1) | columns("the other's", "b", b1))
        check_uniform(beside_the_next(dict(list(own.items())[:: width + 1][:3])))


def random_ots_handed_out(bits: int, extension: str = "softspoken") -> None:
    """Check the key that was not chosen beside the choice and the chosen key."""
    for (sender, _), (_, receiver) in both_ways(RandomOts(bits), extension):
        chosen = receiver.choices.astype(bool)
        other = np.where(chosen, sender.keys0, sender.keys1)
        for first in range(0, bits, 6):
            stop = min(first + 6, bits)
            seen = bits_of("chosen key", receiver.keys, first, stop)
            seen |= bits_of("other key", other, first, stop) | {"choice": receiver.choices}
            check_uniform(seen)
        check_uniform(beside_the_next({"choice": receiver.choices} | bits_of("key", other, 0, 1)))


def dabits_handed_out(bits: int, extension: str = "softspoken") -> None:
    """Check a party's bit and ring share, whose low bit is that bit, beside the other's bit."""
    for (own, in_ring), (other, _) in both_ways(DaBits(bits), extension):
        # made as sender, as receiver
        for part in (slice(0, COUNT), slice(COUNT, 2 * COUNT)):
            for first in range(1, bits, 6):
                seen = bits_of("ring share", in_ring[part], first, min(first + 6, bits))
                check_uniform(seen | {"own bit": own[part], "other bit": other[part]})
            check_uniform(beside_the_next({"own bit": own[part], "other bit": other[part]}))


def dabit_corrections(bits: int = 8) -> None:
    """Check the corrections of DaBits, the one message of a pool's own, next to both bits."""
    parties, ends = recorded_parties()
    handed = run_both(lambda j: parties[j].pool.take(DaBits(bits), COUNT, COUNT))
    for j, end in enumerate(ends):
        made = end.of("dabits")
        correction = ring.unpack(made, bits, made.size * 64 // bits)[:COUNT]
        # a party's received items belong to those it made as the receiver, the later half of party
        # 1's sending
        part = slice(COUNT, 2 * COUNT) if j == 0 else slice(0, COUNT)
        check_uniform(
            bits_of("correction", correction, 0, bits)
            | {"own bit": handed[j][0][part], "sender's bit": handed[1 - j][0][part]}
        )


HAND_OUTS: list[tuple[Callable[..., None], Any]] = [
    *((tables_handed_out, Tables(m, w)) for m, w in ((1, 1), (2, 1), (3, 1), (4, 1), (4, 2))),
    *((unread_messages, Tables(m, w)) for m, w in ((1, 1), (3, 1), (4, 2))),
    *((plane_ots_handed_out, bits) for bits in (4, 17, 64)),
    *((triples_handed_out, width) for width in (1, 2)),
    *((random_ots_handed_out, bits) for bits in (4, 64)),
    *((dabits_handed_out, bits) for bits in (2, 5, 64)),
]


@pytest.mark.parametrize(
    "extension", [OT_EXTENSIONS[0], pytest.param(OT_EXTENSIONS[1], marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("check, of", HAND_OUTS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_a_correlation_says_nothing_of_the_other_half(
    check: Callable[..., None], of: Any, extension: str
) -> None:
    check(of, extension)


# Oblivious transfer: what a receiver can unmask is what it chose


def ends(
    extension: str = "softspoken", field_bits: int = 4, lane: int = 0, secrets: Any = None
) -> tuple[Any, Any, list[Recorder]]:
    """Return one direction of one lane: sender, receiver and their channels."""
    pair = [Recorder(channel) for channel in local_pair(20)]
    leaves, delta, holes = secrets or dealt_secrets(field_bits)
    tag = b"a session of the tests"
    if extension == "silent":
        sender: Any = ferret.FerretSender(Direction(pair[0], tag, lane, 0), delta, holes)
        receiver: Any = ferret.FerretReceiver(Direction(pair[1], tag, lane, 0), leaves)
    else:
        sender = softspoken.SoftSpokenSender(Direction(pair[0], tag, lane, 0), delta, holes)
        receiver = softspoken.SoftSpokenReceiver(Direction(pair[1], tag, lane, 0), leaves)
    return sender, receiver, pair


def extended(sender: Any, receiver: Any, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make OTs: choices, the chosen keys and the others."""
    (keys0, keys1), (words, keys) = run_both(lambda j: (sender, receiver)[j].extend(count))
    choices = boolean.unpack_bits(words, count)
    return choices, keys, np.where(choices[:, None] == 1, keys0, keys1)


def extension_keys(extension: str = "softspoken", count: int = COUNT) -> None:
    """Check the key that was not chosen beside the choice and the chosen key, all 128 bits."""
    sender, receiver, _ = ends(extension)
    choices, chosen, other = extended(sender, receiver, count)
    for word in (0, 1):
        for first in range(0, 64, 6):
            stop = min(first + 6, 64)
            seen = bits_of("chosen key", chosen[:, word], first, stop)
            check_uniform(seen | bits_of("other key", other[:, word], first, stop) | {"u": choices})
    low = bits_of("chosen key", chosen[:, 0], 0, 1) | bits_of("other key", other[:, 0], 0, 1)
    check_uniform(beside_the_next(low | {"choice": choices}))


def extension_corrections(field_bits: int = 4) -> None:
    """Check what the sender is sent beside the receiver's choices."""
    sender, receiver, pair = ends(field_bits=field_bits)
    choices, _, _ = extended(sender, receiver, COUNT)
    (rows,) = (array for label, array in pair[0].received if label == "ot.corrections")
    columns = {f"correction {i}": boolean.unpack_bits(row, COUNT) for i, row in enumerate(rows)}
    names = list(columns)
    for start in range(0, len(names), 8):
        check_uniform({n: columns[n] for n in names[start : start + 8]} | {"choice": choices})


def lanes_apart(extension: str = "softspoken", count: int = COUNT) -> None:
    """Check that choices and keys of two lanes of the same base OTs have nothing in common."""
    secrets = dealt_secrets()
    seen: Columns = {}
    for lane in (0, 1):
        sender, receiver, _ = ends(extension, lane=lane, secrets=secrets)
        choices, chosen, other = extended(sender, receiver, count)
        seen |= {f"choice of lane {lane}": choices.copy()}
        seen |= bits_of(f"key of lane {lane}", chosen[:, 0], 0, 3)
        seen |= bits_of(f"other key of lane {lane}", other[:, 0], 0, 3)
    check_uniform(seen)


def correlated_messages(bits: int = 8) -> None:
    """Check a 1-of-2 OT's request, its reply and the share of x delta at each end."""
    sender, receiver = one_way(bits)
    for choice, delta in ((0, 0), (1, 0), (1, 1)):
        wanted = np.full(COUNT, choice, np.uint8)
        send, receive = next(sender), next(receiver)
        request = receive.request(wanted)
        check_uniform({"request": boolean.unpack_bits(request, COUNT)})
        reply, own = send.correlated(request, np.full(COUNT, delta, ring.dtype(bits)))
        got = receive.finish_correlated(wanted, reply)
        check_uniform(bits_of("sender's share", own, 0, bits))
        check_uniform(bits_of("receiver's share", got, 0, bits))
        check_uniform(bits_of("reply", ring.unpack(reply, bits, COUNT), 0, bits))


def one_way(bits: int) -> tuple[Any, Any]:
    """Return batches of random 1-of-2 OTs at party 0, the sender, and at party 1."""
    parties, _ = recorded_parties()
    batches = [
        run_both(
            lambda j: parties[j].pool.take(RandomOts(bits), *((COUNT, 0) if j == 0 else (0, COUNT)))
        )
        for _ in range(3)
    ]
    return (one[0] for one, _ in batches), (other[1] for _, other in batches)


def proofs(fills: int = COUNT // 64) -> None:
    """Check what proves a receiver's corrections beside the sum of the choices that are used."""
    sender, receiver, pair = ends()
    seen: dict[str, list[np.ndarray]] = {"proof": [], "sum of the choices": []}
    for _ in range(fills):
        choices, _, _ = extended(sender, receiver, ALIGN)
        run_both(lambda j: (sender.challenge, receiver.seal)[j]())
        receiver.weigh()
        run_both(lambda j: (sender.verify, receiver.prove)[j]())
        own, weighing = np.zeros((1, 2), np.uint64), Weighing()
        weighing.begin(pair[1].received[-1][1].tobytes())
        words = np.packbits(choices, bitorder="little").view(np.uint64)
        extension_kernels.weigh(words.reshape(1, 1, -1), weighing.coefficients(words.size), own)
        seen["sum of the choices"].append(reduced(own))
        seen["proof"].append(pair[0].received[-1][1][:1])
    check_uniform(
        {name: bits_of_bytes([word.tobytes() for word in words]) for name, words in seen.items()}
    )


# Set-up


def base_ots(count: int = 512) -> None:
    """Check the key not chosen, and the points that the sender sees, beside the choice."""
    first, second = local_pair(20)
    one, two = Recorder(first), Recorder(second)
    choices = RNG.integers(0, 2, count).astype(np.uint8)
    sender = base.BaseOtSender(one, b"tests")
    sender.announce()
    pairs, keys = run_both(
        lambda j: sender.keys(count) if j == 0 else base.BaseOtReceiver(two, b"tests").keys(choices)
    )
    other = [pair[1 - choice] for pair, choice in zip(pairs, choices, strict=True)]
    for first_bit in range(0, 64, 16):
        seen: Columns = {}
        for name, these in (("chosen key", keys), ("other key", other)):
            words = np.frombuffer(b"".join(these), np.uint64).reshape(count, 2)[:, 0]
            seen |= bits_of(name, words, first_bit, first_bit + 3)
        check_uniform(seen, {"choice": choices})
    points = one.of("base.B").reshape(count, 2, -1)
    for side in (0, 1):
        # as it is sent, and as the sender adds the hash of the other
        added = [
            sodium.crypto_core_ed25519_add(
                pair[side].tobytes(), base._to_group(b"tests", i, side, pair[1 - side].tobytes())
            )
            for i, pair in enumerate(points)
        ]
        for name, these in (("point", points[:, side].tobytes()), ("sum", b"".join(added))):
            words = np.frombuffer(these, np.uint64).reshape(count, 4)[:, 0]
            check_uniform(bits_of(name, words, 0, 6), {"choice": choices})


def announced_points(count: int = 512) -> None:
    """Check that no two senders announce related points."""
    first, second = local_pair(20)
    end = Recorder(second)
    for _ in range(count):
        base.BaseOtSender(first, b"tests").announce()
        end.recv("base.A", np.uint8, (group.POINT_BYTES,))
    words = np.ascontiguousarray(end.of("base.A").reshape(count, -1)).view(np.uint64)[:, 0]
    check_uniform(bits_of("A", words, 0, 6))


def set_up(field_bits: int) -> tuple[np.ndarray, list[list[bytes]], list[list[bytes]], np.ndarray]:
    """Return Delta, all leaves, the sender's leaves, and the masked sums it was sent."""
    first, second = local_pair(20)
    end = Recorder(first)
    (delta, holes), leaves = run_both(
        lambda j: (
            ggm.sender_trees(end, b"tests", field_bits, os_entropy, True)
            if j == 0
            else ggm.receiver_trees(second, b"tests", field_bits, os_entropy, True)
        )
    )
    sums = end.of("ggm.sums").reshape(-1, 2, 16)
    return delta, leaves, holes, sums


def bits_of_bytes(these: list[bytes]) -> np.ndarray:
    return np.unpackbits(np.frombuffer(b"".join(these), np.uint8), bitorder="little")


def xor_of(these: list[bytes]) -> bytes:
    rows = np.frombuffer(b"".join(these), np.uint8).reshape(len(these), -1)
    return np.bitwise_xor.reduce(rows, axis=0).tobytes()


def tree_sums(field_bits: int = 1) -> None:
    """Check the masks on the sums of the last level, and the missing leaf.

    The test judges the mask of the side on Delta's path next to that of the other side, which the
    sender knows. It judges the missing leaf next to what the sender knows of its tree.
    """
    delta, leaves, holes, sums = set_up(field_bits)
    # off the path, on it
    masks: dict[int, list[bytes]] = {0: [], 1: []}
    known, missing, sent = [], [], []
    for block, tree in enumerate(leaves):
        hole = holes[block].index(b"")
        at = (block + 1) * field_bits - 1
        for side in (0, 1):
            mask = xor_of([*tree[side::2], sums[at, side].tobytes()])
            masks[int(side == hole & 1)].append(mask)
        missing.append(tree[hole])
        known.append(tree[hole ^ 1])
        sent.append(
            xor_of([sums[at, hole & 1].tobytes(), *[x for x in holes[block][hole & 1 :: 2] if x]])
        )
    check_uniform({"known mask": bits_of_bytes(masks[0]), "other mask": bits_of_bytes(masks[1])})
    check_uniform(
        {
            "missing leaf": bits_of_bytes(missing),
            "its sibling": bits_of_bytes(known),
            "what its sum leaves": bits_of_bytes(sent),
        }
    )


def sessions_apart() -> None:
    """Check that Delta, leaves and the streams of masks of two sessions have nothing in common."""
    seen: Columns = {}
    for number in (0, 1):
        delta, leaves, _, _ = set_up(4)
        seen |= {f"Delta of session {number}": delta}
        seen |= {f"leaf of session {number}": bits_of_bytes([leaves[0][0]])}
    check_uniform(seen)


def streams_apart(extension: str = "softspoken") -> None:
    """Check that parties and sessions draw masks from unrelated streams."""
    seen: Columns = {}
    for number in (0, 1):
        for party in recorded_parties(extension)[0]:
            owner = f"of party {party.number} in session {number}"
            seen |= bits_of(f"mask {owner}", party.randomness.words(1024), 0, 2)
    check_uniform(seen)


def silent_sums(count: int) -> None:
    """Check the masks on the sums of silent OT's trees.

    Check what its receiver unmasks next to the side that it learns, too.
    """
    sender, receiver, pair = ends("silent")
    plain: list[np.ndarray] = []
    grow, receive = sender._grow, receiver.make
    unmasked: list[tuple[np.ndarray, np.ndarray]] = []

    def keeping_sums(*given: Any) -> np.ndarray:
        plain.append(grow(*given).copy())
        return plain[-1]

    def keeping_masks(growing: Any, masks: np.ndarray, outputs: np.ndarray) -> None:
        own = masks[:, 1:].copy()
        receive(growing, masks, outputs)
        unmasked.append((own, pair[1].received[-1][1] ^ own))

    sender._grow, receiver.make = keeping_sums, keeping_masks
    run_both(lambda j: (sender, receiver)[j].extend(count))
    sent = [array for label, array in pair[1].received if label == "ferret.sums"]
    wire, left, own, given = (
        np.concatenate([part.reshape(-1, 2) for part in parts])
        for parts in (sent, plain, *zip(*unmasked, strict=True))
    )
    side = np.repeat(own[:, 0] & np.uint64(1), 63)

    def columns(name: str, words: np.ndarray) -> Columns:
        """Return bits 1..63 of either word: bit 0 carries a choice."""
        return {
            f"{name} {word}": (
                words[:, word, None] >> np.arange(1, 64, dtype=np.uint64) & np.uint64(1)
            ).reshape(-1)
            for word in (0, 1)
        }

    check_uniform(columns("mask", wire ^ left) | columns("sum", left), {"side": side})
    check_uniform(columns("unmasked", given) | columns("own seed", own), {"side": side})


# Uploads and openings


def upload_shares(bits: int, xor: bool = False) -> None:
    """Check each half of two clients' uploads of the same values, row beside row."""
    for value in (0, 1, (1 << bits) - 1):
        plain = np.full((2, COUNT), value, ring.dtype(bits))
        seeded, packed = zip(*(share.split(plain, bits, xor=xor) for _ in range(2)), strict=True)
        for half in (seeded, packed):
            rows = {
                f"row {row} of client {client}": share.read(upload, upload.layout, 0, COUNT)[row]
                for client, upload in enumerate(half)
                for row in (0, 1)
            }
            for first in range(0, bits, 4):
                seen: Columns = {}
                for name, values in rows.items():
                    seen |= bits_of(name, values, first, min(first + 4, bits))
                check_uniform(seen)


def opened_bits_alone() -> None:
    """Check that no bit beyond those opened is sent: it may be a share of something else."""
    parties, pair = recorded_parties()
    shares = RNG.integers(0, 2**64, 128, np.uint64)
    run_both(lambda j: reveal.open_bits(parties[j], XorBits(shares), 64 * 127 + 3))
    for end in pair:
        if int(end.of("open.bits")[-1 - NONCE_WORDS]) >> 3:
            raise Leak("bits beyond those opened were sent")


def commitments_hide() -> None:
    """Check that commitments to the same shares differ, in the same message of two sessions."""
    shares, seen = XorBits(np.zeros(128, np.uint64)), set()
    for _ in range(2):
        parties, pair = recorded_parties()
        run_both(lambda j: reveal.open_bits(parties[j], shares, 64 * 128))  # noqa: B023
        seen |= {end.of("commit.bits").tobytes() for end in pair}
    if len(seen) < 4:
        raise Leak("a commitment can be computed from the share")


def digests_are_hidden() -> None:
    """Check that the two parties of a comparison hide the same digest in different ways."""
    pair = [Recorder(end) for end in local_pair(20)]
    run_both(lambda j: settle(pair[j], j, np.arange(5), "the test"))
    if (pair[0].of("audit.hidden") == pair[1].of("audit.hidden")).all():
        raise Leak("a digest can be told from what hides it")


def opens_the_sum_alone() -> None:
    """Check that for a mean each server is sent one share per coordinate, of the sum."""
    method, dim = Mean(norm_bound="off", ring_bits=12, fraction_bits=0), COUNT
    params = RoundParams(method, dim=dim, max_clients=CLIENTS)
    values = np.stack([plain_pair("differing", 4, dim)[i % 2] for i in range(CLIENTS)])
    halves = [share.split(row[None].astype(np.uint16), 12) for row in values]
    parties, pair = recorded_parties()
    opened = run_both(
        lambda j: method.compute(
            parties[j], params.chunk([half[j] for half in halves], [1] * CLIENTS, 0, dim, dim)
        )
    )
    total = values.sum(axis=0)
    for end, result in zip(pair, opened, strict=True):
        assert (result[0] == total).all()
        sent = [array[:-NONCE_WORDS] for label, array in end.received if label[:4] == "open"]
        if len(end.received) != 2 or sum(array.size for array in sent) * 64 != 12 * dim:
            raise Leak("more is sent than one share of the sum")
        theirs = ring.unpack(sent[0], 12, dim)
        for columns in windows("share of the sum", theirs, 12):
            check_uniform(columns, bits_of("x0", values[0], 0, 1))


def opens_one_aggregate() -> None:
    """Check that of all reclusterings together each server is sent one share per coordinate."""
    method, dim = Reclustered(ring_bits=16, fraction_bits=0, clusters=1, reclusterings=2), 256
    params = RoundParams(method, dim=dim, max_clients=CLIENTS)
    values = np.arange(CLIENTS * dim, dtype=np.uint16).reshape(CLIENTS, dim) % 50
    halves = [share.split(row[None], 16) for row in values]
    parties, pair = recorded_parties()

    def compute(j: int) -> None:
        chunk = params.chunk(
            [half[j] for half in halves], [1] * CLIENTS, 0, dim, dim, coin=bytes(16)
        )
        parties[j].pool.reserve(method.demand(chunk.weights, dim, CLIENTS))
        method.compute(parties[j], chunk)

    run_both(compute)
    for end in pair:
        opened = [array[:-NONCE_WORDS] for label, array in end.received if label[:4] == "open"]
        if sum(array.size for array in opened) * 64 != 16 * dim:
            raise Leak("more is sent than one share of the sum over the reclusterings")


def opens_the_sum_of_clusters_alone() -> None:
    """Check that SHARE with Zeno++ opens the result, and nothing of the validator's update."""
    method, dim = Zeno(validator="v", clusters=1, reclusterings=2), 128
    params = RoundParams(method, dim=dim, max_clients=CLIENTS)
    values = np.arange(CLIENTS * dim, dtype=np.uint64).reshape(CLIENTS, dim) % np.uint64(9)
    halves = [share.split(row[None], 64) for row in values]
    parties, pair = recorded_parties()
    run_both(
        lambda j: run_round(
            [parties[j]],
            params,
            ProtocolParams(lanes=1),
            [half[j] for half in halves],
            weights=[0] + [1] * (CLIENTS - 1),
        )
    )
    for end in pair:
        opened = [array.size for label, array in end.received if label.startswith("open")]
        if opened != [dim + NONCE_WORDS]:
            raise Leak("more is sent than a share of the result")


# Each check with what it takes.
SENT: list[tuple[Any, ...]] = [
    (dabit_corrections,),
    *((extension_keys, extension) for extension in OT_EXTENSIONS),
    *((lanes_apart, extension) for extension in OT_EXTENSIONS),
    *((streams_apart, extension) for extension in OT_EXTENSIONS),
    *((extension_corrections, field_bits) for field_bits in (1, 2, 4, 8)),
    (correlated_messages,),
    (proofs,),
    (base_ots,),
    (announced_points,),
    *((tree_sums, field_bits) for field_bits in (1, 2, 4)),
    (sessions_apart,),
    (silent_sums, 100 * ALIGN),
    *((upload_shares, bits, xor) for bits in (2, 5, 64) for xor in (False, True)),
    (opened_bits_alone,),
    (commitments_hide,),
    (digests_are_hidden,),
    (opens_the_sum_alone,),
    (opens_one_aggregate,),
    (opens_the_sum_of_clusters_alone,),
]


@pytest.mark.parametrize("check", SENT, ids=lambda check: check[0].__name__)
def test_nothing_more_is_sent(check: tuple[Any, ...]) -> None:
    check[0](*check[1:])
