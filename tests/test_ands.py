"""ANDs of authenticated bits: values, MACs, and what is found of a party that deviates."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from securemedian.mpc.errors import (
    ChannelClosed,
    LocalProtocolError,
    PeerDeviated,
    PeerProtocolError,
)
from securemedian.mpc.protocols.audit import ands
from securemedian.mpc.protocols.audit.ands import (
    AndMaker,
    Carry,
    Kept,
    bucket_size,
    rotations,
)
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits, masks_of
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS, Opener
from securemedian.mpc.protocols.boolean import pack_bits
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.extension import ALIGN
from securemedian.mpc.protocols.ot.ggm import FIXED_BIT
from securemedian.mpc.protocols.ot.leaves import Tweaked
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenSender
from securemedian.mpc.protocols.party import Party, Session
from securemedian.mpc.protocols.prg import Entropy, os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from tests.parties import deterministic_entropy, make_parties, run_both
from tests.rates import check_rate
from tests.test_ot import Lying
from tests.test_privacy import recorders
from tests.uniformity import bits_of, check_uniform

RNG = np.random.default_rng(17)
COUNT = 4096
Array = np.ndarray
Halves = tuple[AuthenticatedBits, AuthenticatedBits]


def makers(pair: Any = None, **given: Any) -> list[AndMaker]:
    """Return both parties' makers, of a lane of an audit's session."""
    pairs = [pair] if pair else None
    return [maker(lanes[0]) for lanes in make_parties(pairs=pairs, audit=True, **given)]


def maker(party: Party, entropy: Entropy = os_entropy) -> AndMaker:
    return AndMaker(party, Opener(party.channel, party.number, bytes(32)), entropy)


def value(halves: Halves) -> np.ndarray:
    return halves[0].bits ^ halves[1].bits


def check_macs(both: list[AndMaker], halves: Halves, counted: Any = 2**64 - 1) -> None:
    for own, peers, maker in zip(halves, halves[::-1], both[::-1], strict=True):
        wanted = peers.keys ^ masks_of(own.bits) & maker.delta
        assert ((own.macs ^ wanted) & np.uint64(counted) == 0).all()
        assert own.bits.max(initial=0) <= 1


def known_bits(both: list[AndMaker], count: int) -> tuple[Array, Array, Halves]:
    """Return bits that party 0 and party 1 know, and what each party has of their sums."""
    a, b = RNG.integers(0, 2, (2, count)).astype(np.uint8)
    keys = RNG.integers(0, 2**64, (2, count), np.uint64)
    one, two = (
        AuthenticatedBits(own, keys[1 - j] ^ masks_of(own) & both[1 - j].delta, keys[j])
        for j, own in enumerate((a, b))
    )
    return a, b, (one, two)


def wide(kept: Kept) -> AuthenticatedBits:
    """Return bits with all that is kept of their MACs."""
    macs, keys = kept.low.astype(np.uint64) | kept.high.astype(np.uint64) << np.uint64(32)
    return AuthenticatedBits(unpacked(kept.bits, macs.size), macs, keys)


def both_wide(found: Sequence[tuple[Kept, Kept]]) -> tuple[Halves, Halves]:
    """Return w and x of both parties."""
    (w, x), (other_w, other_x) = found
    return (wide(w), wide(other_w)), (wide(x), wide(other_x))


@pytest.mark.parametrize(("count", "known"), [(1, 1), (63, 0), (192, 64), (70_000, 64_000)])
def test_products_have_valid_macs(count: int, known: int) -> None:
    both = makers()
    a, b, k = known_bits(both, count)
    found = run_both(lambda j: both[j].products(k[j], known))
    w, x = both_wide(found)
    assert len(x[0]) == count - known
    for factor in (w, x):
        check_macs(both, factor, MAC_MASK)
    assert (value(w)[:known] == (a & b)[:known]).all()
    rest = value(x)
    assert (value(w)[known:] == rest & (rest ^ (a ^ b)[known:])).all()


def test_products_are_uniform_and_hidden() -> None:
    """Shares of both parties and MACs beside each other, for x and w."""
    both = makers()
    a, b, k = known_bits(both, 2 * COUNT)
    found = run_both(lambda j: both[j].products(k[j], COUNT))
    w, x = both_wide(found)
    seen = {"a": a[COUNT:], "b": b[COUNT:]} | {f"x{j}": x[j].bits for j in (0, 1)}
    for half in (x, w):
        macs = half[0][-COUNT:]
        check_uniform(seen | bits_of("mac", macs.macs, 0, 6) | bits_of("key", macs.keys, 44, 48))
    check_uniform({"w0": w[0].bits[COUNT:]}, seen)
    check_uniform({"w0": w[0].bits[:COUNT]}, {"a": a[:COUNT], "b": b[:COUNT]})


def test_silent_ots_make_no_authenticated_bits() -> None:
    (lanes, _) = make_parties(extension="silent")
    with pytest.raises(LocalProtocolError, match="SoftSpokenOT alone"):
        maker(lanes[0])


# A party's messages, for tests/test_masks.py


def leaky(both: list[AndMaker], count: int = COUNT) -> list[SimpleNamespace]:
    """Return what each party has of leaky ANDs: the factors, T, and the bits x, y and z."""

    def run(j: int) -> SimpleNamespace:
        factors = [
            AuthenticatedBits(np.empty(count, np.uint8), *np.empty((2, count), np.uint64))
            for _ in range(3)
        ]
        tests = np.empty(count, np.uint64)
        both[j].leaky(factors, tests)
        bits = {name: factor.bits for name, factor in zip("xyz", factors, strict=True)}
        return SimpleNamespace(factors=factors, tests=tests, **bits)

    return list(run_both(run))


def tables_received() -> None:
    """Raise Leak unless G says nothing of the other party's y, to whom holds the rest of C."""
    pair = recorders()
    one, two = leaky(makers(pair))
    y = one.factors[1]
    held = pair[0].of("and.tables") ^ y.macs ^ y.keys
    check_uniform(bits_of("table", held, 56, 64), {"own y": one.y, "y": two.y})


def tops_opened() -> None:
    """Raise Leak unless what is opened of leaky ANDs says nothing of x and y."""
    pair = recorders()
    one, two = leaky(makers(pair))
    opened = unpacked(pair[0].of("and.tops") ^ pair[1].of("and.tops"), COUNT)
    check_uniform({"d": opened}, {"x0": one.x, "x1": two.x, "y0": one.y, "y1": two.y})


def buckets_received() -> None:
    """Raise Leak unless what is opened of buckets hides the other party's x, y and bits."""
    pair = recorders()
    both, size = makers(pair), 4
    made = leaky(both, size * COUNT)
    turns = rotations(bytes(16), size, COUNT)
    a, b, k = known_bits(both, COUNT)
    first = [np.bitwise_xor.reduce(turned(each.x, turns)) for each in made]
    run_both(lambda j: both[j].combined(made[j].factors, turns, k[j], COUNT))
    for j, own in ((0, b), (1, a)):
        opened = unpacked(pair[j].of("and.buckets"), (size + 1) * COUNT).reshape(-1, COUNT)
        *differences, q, p = opened
        x, y = first[1 - j], made[1 - j].y[:COUNT]
        check_uniform({f"row {i}": row for i, row in enumerate(differences)}, {"y": y})
        # y hides one, and x the other
        check_uniform({"q": q}, {"x": x, "own": own})
        check_uniform({"p": p}, {"own": own, "y": y})


def turned(row: Array, turns: Sequence[int]) -> Array:
    """Return a row of leaky ANDs as rows of buckets, each turned."""
    rows = row.reshape(len(turns), -1)
    return np.stack([np.roll(each, -turn) for each, turn in zip(rows, turns, strict=True)])


def openings_received() -> None:
    """Raise Leak unless what is opened of a carry says nothing of the other party's bits."""
    pair = recorders()
    both = makers(pair)
    a, b, k = known_bits(both, COUNT)

    def run(j: int) -> None:
        _, x = both[j].products(k[j], 0)
        both[j].opened(Carry.zero(COUNT), k[j], x)

    run_both(run)
    for j, known in enumerate((b, a)):
        received = unpacked(pair[j].of("and.openings"), COUNT)
        check_uniform({"c": received}, {"own": known})


def unpacked(words: np.ndarray, count: int) -> np.ndarray:
    bits = np.empty(count, np.uint8)
    packing.unpack_bits(np.ascontiguousarray(words), bits)
    return bits


# Each case of the bits that an honest party has, beside a rogue's, from its leaky ANDs to its sign


class Has(NamedTuple):
    """A party in n cases: its z and random bits (bits, n), and its factors x, y and z.

    Those are of one AND for each bit but the last: (size, bits - 1, n).
    """

    z: Array
    random: Array
    factors: Array


def cases(bits: int, size: int, rogues: int) -> tuple[Has, Has]:
    """Return each case of an honest party, beside each of some rogues."""
    split = 2 * bits, 2 * bits + 2 * size * (bits - 1)
    every = np.tile(np.arange(1 << split[1]) >> np.arange(split[1])[:, None] & 1, rogues)
    every = every.astype(np.uint8)
    x, y = every[split[0] :].reshape(2, size, bits - 1, -1)
    drawn = RNG.integers(0, 2, (2 * bits + 3 * size * (bits - 1), rogues)).astype(np.uint8)
    own = np.repeat(drawn, 1 << split[1], axis=1)
    its = own[split[0] :].reshape(3, size, bits - 1, -1)
    z = its[2] ^ (x ^ its[0]) & (y ^ its[1])
    return (
        Has(every[:bits], every[bits : split[0]], np.stack([x, y, z])),
        Has(own[:bits], own[bits : split[0]], its),
    )


def add(one: Array, other: Array) -> Array:
    """Return the top bit of the sum of numbers, (bits, n)."""
    weights = 1 << np.arange(len(one))
    return np.asarray((weights @ one + weights @ other) >> len(one) - 1 & 1)


def unbalanced(honest: int, bits: int, size: int, lie: int, guessed: Sequence[str]) -> bool:
    """Return whether what a rogue sees before a sign depends on the honest party's number.

    It knows the `guessed` bits of the honest party's leaky ANDs, and lies in opening `lie`.
    """
    rogues, pair = 4, recorders()
    both, (its, own) = makers(pair), cases(bits, size, rogues)
    has = (its, own) if honest == 0 else (own, its)
    n, masked = its.z.shape[1], [each.z ^ each.random for each in has]

    def with_macs(values: Array) -> AuthenticatedBits:
        flat = np.ascontiguousarray(values).reshape(-1)
        return AuthenticatedBits(flat, *np.zeros((2, flat.size), np.uint64))

    def run(j: int) -> Array:
        both[j]._opener = Keeping(pair[j], j, bytes(32))
        factors, k = [with_macs(each) for each in has[j].factors], with_macs(has[j].random[:-1])
        w, x = both[j].combined(factors, [0] * size, k, n)
        carry = Carry.zero(n)
        for t in range(bits - 1):
            some = k[t * n : t * n + n]
            added = [pack_bits(d[t]) for d in (masked[j], masked[1 - j])]
            of_w = w[t * n : t * n + n]
            of_x = x[t * n - n : t * n] if t else of_w
            told = Carry(carry.bits.copy(), carry.macs, carry.keys)
            if j != honest and t == lie:
                told.bits[:] = ~told.bits
            opened = both[j].opened(told, some, of_x) if t else None
            both[j].carried(carry, some, (added[0], added[1]), of_w, of_x, opened)
        sign = unpacked(carry.bits, n) ^ has[j].random[-1]
        return np.asarray(sign ^ (masked[0] ^ masked[1])[-1] if j == 0 else sign)

    signs = run_both(run)
    # the share of a sign that the honest party opens is what the output says
    assert lie or ((signs[0] ^ signs[1]) == add(its.z, own.z)).all()
    heard = [
        unpacked(words[:-DIGEST_WORDS], words.size * 64 - 256).reshape(-1, n)
        for label, words in pair[1 - honest].received
        if label in {"and.buckets", "and.openings"}
    ]
    x, y, _ = its.factors
    known = [{"x": x, "y": y}[name[0]][int(name[1])] for name in guessed]
    seen = np.concatenate([masked[honest], *heard, *known])
    index = np.zeros(n, np.int64)
    for column in seen:
        index = 2 * index + column
    who = np.repeat(np.arange(rogues), n // rogues)
    views = np.unique(np.stack([who, index]), axis=1, return_inverse=True)[1].reshape(-1)
    numbers = (1 << np.arange(bits)) @ its.z
    counts = np.bincount(views << bits | numbers, minlength=(views.max() + 1) << bits)
    return bool(np.ptp(counts.reshape(-1, 1 << bits), axis=1).any())


@pytest.mark.parametrize("honest", [0, 1])
@pytest.mark.parametrize(
    ("bits", "size", "lie", "guessed", "told"),
    [
        (3, 2, 0, [], False),
        # a row's x, which a wrong table guesses
        (3, 2, 0, ["x0"], False),
        (3, 2, 0, ["x1"], False),
        (3, 2, 0, ["x0", "x1"], True),
        # no table guesses y, and that of the first row masks k
        (3, 2, 0, ["y0"], True),
        # a wrong opening is found before a sign, but after the next opening
        (4, 1, 1, [], False),
        (4, 1, 0, ["x0"], True),
    ],
)
def test_a_number_is_hidden_in_each_case_until_a_sign_is_opened(
    honest: int, bits: int, size: int, lie: int, guessed: list[str], told: bool
) -> None:
    """Count all cases: each view of a rogue comes of each number as often."""
    assert unbalanced(honest, bits, size, lie, guessed) == told


@pytest.mark.parametrize(
    "check", [tables_received, tops_opened, buckets_received, openings_received]
)
def test_what_is_received_is_uniform(check: Callable[[], None]) -> None:
    check()


# A party that deviates


def lying(change: Callable[[str, np.ndarray], None]) -> tuple[Lying, Lying]:
    """Return channels of which party 1's changes its messages."""
    one, two = local_pair(20)
    return Lying(one, lambda label, array: None), Lying(two, change)


def flipping(label: str, bits: int, chosen: Any = ...) -> tuple[Lying, Lying]:
    """Return channels on which party 1 flips bits of words of messages with a label."""

    def change(name: str, array: np.ndarray) -> None:
        if name == label:
            array[chosen] ^= np.uint64(bits)

    return lying(change)


def found_by(both: list[AndMaker], pair: Sequence[Channel], run: Callable[[int], Any]) -> str:
    """Return what the honest party 0 says."""
    said = ""

    def guarded(j: int) -> None:
        nonlocal said
        try:
            run(j)
        except PeerProtocolError as error:
            said = said if j else str(error)
        except ChannelClosed:
            pass
        finally:
            pair[j].close()

    run_both(guarded)
    return said


@pytest.mark.parametrize("bit", [0, 63])
def test_a_wrong_table_is_found_where_the_peers_x_is_1(bit: int) -> None:
    both = makers(flipping("and.tables", 1 << bit))
    honest, rogue = leaky(both)
    same = honest.tests == rogue.tests
    assert (same == (honest.x == 0)).all() and 0.4 < same.mean() < 0.6
    x, y, z = (getattr(honest, name) ^ getattr(rogue, name) for name in "xyz")
    assert (z[same] == (x & y)[same]).all()


@pytest.mark.parametrize("lie", ["own y", "top", "top and d", "OTs of y", "OTs of r"])
def test_no_lie_tells_whether_y_is_1(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong, T_0 ^ T_1 is a function of both x and of what the rogue knows.

    So y, which masks k, cannot be guessed. OTs that are wrong pass here without a guess of Delta.
    """
    both, due = list[AndMaker](), [lie == "OTs of y", lie == "OTs of r"]

    def change(label: str, array: np.ndarray) -> None:
        # those of x have more rows, and those of the check come last
        if label == "ot.corrections" and len(array) == 15 and due:
            array[:] = ~array if due.pop(0) else array
        elif label == "and.tables" and lie == "own y":
            array ^= both[1].delta
        elif label == "and.tables" and lie.startswith("top"):
            array ^= np.uint64(1 << 63)
        elif label == "and.tops" and lie == "top and d":
            array[:] = ~array

    def verify(self: SoftSpokenSender) -> None:
        with suppress(PeerProtocolError):
            true_verify(self)

    true_verify = SoftSpokenSender.verify
    monkeypatch.setattr(SoftSpokenSender, "verify", verify)
    both += makers(lying(change))
    honest, rogue = leaky(both)
    apart, seen = honest.tests ^ rogue.tests, 2 * honest.x + rogue.x
    assert apart.any()
    for each in range(4):
        assert len(set(apart[seen == each].tolist())) == 1


def test_a_wrong_bit_d_is_always_found() -> None:
    """Find it even if its sender goes on as if it were right: it lacks Delta_0 ^ Delta_1."""
    both = makers(flipping("and.tops", 2**64 - 1))
    honest, rogue = leaky(both)
    assert (honest.tests != rogue.tests).all()
    # party 1's key of z, as its own bit would make it
    assert (honest.tests ^ rogue.tests ^ both[1].delta == both[0].delta ^ both[1].delta).all()


@pytest.mark.parametrize(
    ("label", "bits", "chosen", "said"),
    [
        ("and.tables", 1, ..., "leaky ANDs do"),
        ("and.tops", 1 << 40, 3, "leaky ANDs do"),
        ("and.buckets", 1 << 20, 8, "openings of buckets of ANDs, openings do"),
    ],
)
def test_no_products_are_made_with_who_deviates(
    label: str, bits: int, chosen: Any, said: str
) -> None:
    pair = flipping(label, bits, chosen)
    both = makers(pair)
    k = known_bits(both, 500)[2]
    found = found_by(both, pair, lambda j: both[j].products(k[j], 100))
    assert found.endswith(f"{said} not agree")


@pytest.mark.parametrize("place", [0, 6])
def test_a_lie_in_a_carry_is_found(place: int) -> None:
    pair = flipping("and.openings", 1 << 50, place)
    both = makers(pair)
    k = known_bits(both, 448)[2]

    def run(j: int) -> None:
        _, x = both[j].products(k[j], 0)
        both[j].opened(Carry.zero(435), k[j][:435], x[0:435])
        both[j]._opener.settle("a carry")

    assert "the MACs of a carry, openings do not agree" in found_by(both, pair, run)


class Keeping(Opener):
    """An opener that keeps the MACs instead of comparing them."""

    def __init__(self, channel: Channel, number: int, context: bytes) -> None:
        super().__init__(channel, number, context)
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []

    def add_macs(self, own: Any, wanted: Any) -> None:
        self.kept.append((own.copy(), wanted.copy()))


def test_a_lie_passes_who_guesses_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guess of 2^e: of 48 bits, here of 4."""
    monkeypatch.setattr(ands, "MAC_MASK", np.uint64(15))
    pair = flipping("and.openings", 2**64 - 1, slice(COUNT // 64))
    both = makers(pair)
    openers = [Keeping(pair[j], j, bytes(32)) for j in (0, 1)]
    for each, opener in zip(both, openers, strict=True):
        each._opener = opener
    k = known_bits(both, COUNT)[2]
    guesses = RNG.integers(0, 16, COUNT, np.uint64)

    def run(j: int) -> None:
        _, x = both[j].products(k[j], 0)
        both[j].opened(Carry.zero(COUNT), k[j], x)

    run_both(run)
    # those that a party sends, and those that it wants
    honest, rogue = (opener.kept[-1] for opener in openers)
    assert (honest[0] == rogue[1]).all()
    passed = honest[1] == rogue[0] ^ guesses
    assert (passed == (guesses == both[0].delta & np.uint64(15))).all()
    check_rate(int(passed.sum()), COUNT, 1 / 16)


def test_guesses_that_pass_rarely_fill_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 1 guesses the first x of two rows: 2^-2 pass, and lie in one bucket with 1 / n, n = 4.

    Of that bucket it then knows party 0's x.
    """
    pair, runs = flipping("and.tables", 1, [0, ALIGN]), 400
    both, drawn = makers(pair), list[list[int]]()
    k = known_bits(both, 1)[2]

    def turns(seed: bytes, size: int, count: int) -> list[int]:
        drawn.append(rotations(seed, size, 4))
        return drawn[-1]

    monkeypatch.setattr(ands, "rotations", turns)
    monkeypatch.setattr(ands, "bucket_size", lambda count: 2)
    passed, known = 0, list[int]()
    for _ in range(runs):
        try:
            x, _ = run_both(lambda j: wide(both[j].products(k[j], 0)[1]).bits)
        except PeerDeviated as error:
            assert "leaky ANDs" in str(error)
            continue
        passed += 1
        if drawn[-1] == [0, 0]:
            known.append(int(x[0]))
    check_rate(passed, runs, 2**-2)
    check_rate(len(known), runs, 2**-2 / 4)
    assert not any(known)


def test_nothing_is_made_of_ots_that_are_wrong() -> None:
    """The check of OT extension ends before a table is sent."""
    pair = flipping("ot.corrections", 1)
    both = makers(pair)
    k = known_bits(both, 100)[2]
    said = found_by(both, pair, lambda j: both[j].products(k[j], 0))
    assert "none of these OTs is used" in said
    assert not set(pair[0].sent) & {"and.tables", "and.tops", "and.buckets"}


def test_tables_follow_the_check_of_their_ots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that buckets follow a toss after the comparison of all leaky ANDs, too."""
    monkeypatch.setattr(ands, "PORTION", 2 * ALIGN)
    monkeypatch.setattr(ands, "PORTIONS", 1)
    pair = lying(lambda label, array: None)
    both = makers(pair)
    for end in pair:
        end.sent.clear()
    k = known_bits(both, 64)[2]
    run_both(lambda j: both[j].products(k[j], 0))
    check = [*["ot.corrections"] * 5, *["ot.challenge"] * 2, *["ot.proof"] * 2]
    tables = [*check, "and.tables"] * 3 + ["and.tops"]
    settled = ["toss.commit", "toss.open", "audit.hidden", "audit.proof"]
    wanted = tables + settled + ["toss.commit", "toss.open", "and.buckets", "opening.digest"]
    assert [end.sent for end in pair] == [wanted] * 2


@pytest.mark.parametrize(("count", "known"), [(100, 100), (3000, 1000)])
def test_what_is_planned_is_sent(count: int, known: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of both parties, in order, and the OTs."""
    monkeypatch.setattr(ands, "PORTION", 1 << 12)
    monkeypatch.setattr(ands, "PORTIONS", 2)
    pair = recorders()
    lanes = make_parties(pairs=[pair], audit=True)
    both = [maker(each[0]) for each in lanes]
    before, k = [len(end.received) for end in pair], known_bits(both, count)[2]
    run_both(lambda j: both[j].products(k[j], known))
    wanted = [
        (label, np.dtype(dtype), shape)
        for sent, label, dtype, shape in ands.messages(count, known)
        if sent
    ]
    for end, first, party in zip(pair, before, lanes, strict=True):
        found = [(label, array.dtype, array.shape) for label, array in end.received[first:]]
        assert found == wanted
        assert party[0].pool.ots == ands.ots_of(count)
    received = [message[1:] for message in ands.messages(count, known) if not message[0]]
    assert received == [message[1:] for message in ands.messages(count, known) if message[0]]


# Sizes and rotations


def test_buckets_are_as_small_as_may_be() -> None:
    """Check that the formula holds for their size, and fails for one fewer."""
    sizes = {128: 6, 1000: 5, 1 << 12: 4, 370_727: 4, 370_728: 3, 1 << 20: 3}
    for count, size in sizes.items():
        assert bucket_size(count) == size
        chance = [Fraction(1, count ** (b - 1) * 2**b) for b in (size - 1, size)]
        assert chance[0] > Fraction(1, 2**40) >= chance[1]


@pytest.mark.parametrize(("size", "count"), [(2, 4), (2, 5), (3, 3)])
def test_who_guesses_fills_a_bucket_as_rarely_as_is_said(size: int, count: int) -> None:
    """Whatever is guessed, over all rotations: and one of each row comes to the bound itself."""
    turns = np.array([(0, *rest) for rest in product(range(count), repeat=size - 1)])
    # numbers in its row, of each bucket under each rotation
    places = (np.arange(count)[:, None, None] + turns) % count
    bound, most = Fraction(1, 2**size * count ** (size - 1)), Fraction(0)
    for guessed in product([False, True], repeat=size * count):
        rows = np.array(guessed).reshape(size, count)
        full = rows[np.arange(size), places].all(axis=2).any(axis=0)
        most = max(most, Fraction(int(full.sum()), len(turns) * 2 ** sum(guessed)))
    assert most == bound


@pytest.mark.parametrize("size", [2, 5])
def test_buckets_are_of_turned_rows(size: int) -> None:
    """Bucket b has number b + s_i of row i, and what comes of it valid MACs."""
    pair, count = local_pair(20), 3000 // ALIGN * ALIGN
    both = makers(pair)
    made, turns = leaky(both, size * count), rotations(bytes(16), size, count)
    a, b, k = known_bits(both, count)
    found = run_both(lambda j: both[j].combined(made[j].factors, turns, k[j], 0))
    w, x = both_wide(found)
    for halves in (w, x):
        check_macs(both, halves, MAC_MASK)
    assert (value(w) == value(x) & (value(x) ^ a ^ b)).all()
    assert (value(x) == np.bitwise_xor.reduce(turned(made[0].x ^ made[1].x, turns))).all()


def test_rotations_are_uniform() -> None:
    """Check that they are independent, too: of two of 5, each of 25 pairs is about as frequent."""
    drawn = [rotations(seed.to_bytes(16, "little"), 3, 5) for seed in range(5000)]
    assert {first for first, _, _ in drawn} == {0}
    times = np.zeros((5, 5), np.int64)
    for _, one, other in drawn:
        times[one, other] += 1
    assert (np.abs(times - 200) < 70).all()
    # so many that no 64 bits would do
    assert len({rotations(bytes([seed]) * 16, 2, 1 << 100)[1] >> 64 for seed in range(9)}) == 9


# Sessions, tweaks, and both paths


def test_delta_of_an_audit_is_fixed_in_one_bit() -> None:
    """Elsewhere it is what the operating system gives, and other sessions are not touched."""

    def established(audit: bool, drawn: bytes) -> list[Session]:
        pair, given = local_pair(20), (bytes(16), ProtocolParams())
        # the first that party 0 draws is Delta
        first = iter([drawn])
        entropy = [lambda size: next(first, None) or os_entropy(size), os_entropy]
        return list(
            run_both(lambda j: Session.establish(j, pair[j], *given, entropy[j], audit=audit))
        )

    for drawn in (bytes(16), bytes([255]) * 16):
        audited, plain = established(True, drawn), established(False, drawn)
        assert [session.delta[FIXED_BIT] for session in audited] == [1, 0]
        assert (audited[0].delta != plain[0].delta).sum() == (drawn == bytes(16))
        assert (plain[0].delta == drawn[0] & 1).all()
        assert all(
            one.session_id != two.session_id for one, two in zip(audited, plain, strict=True)
        )


def test_no_tweak_is_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a direction both parties hash under the same tweaks, each once; the sender K and K ^ D."""
    used: list[tuple[int, int, int, bool]] = []
    both = makers(local_pair(20), session_id=bytes(16))
    leaves = type(both[0]._sender._leaves)
    make = leaves.make

    def counted(self: Any, tweaked: Tweaked, *given: Any) -> None:
        for out in given[2].hashes[:1]:
            stream, sending = int(tweaked.stream), len(given[2].hashes) == 2
            used.extend((id(self), stream, tweaked.index + i, sending) for i in range(out.size))
        make(self, tweaked, *given)

    monkeypatch.setattr(leaves, "make", counted)
    monkeypatch.setattr(ands, "PORTION", 2 * ALIGN)
    monkeypatch.setattr(ands, "PORTIONS", 1)
    k = known_bits(both, 70)[2]
    for _ in range(2):
        run_both(lambda j: both[j].products(k[j], 0))
    # 128 buckets of 6
    assert len(used) == len(set(used)) == 2 * 2 * 2 * 768
    ends: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for _, stream, index, sending in used:
        ends[sending].add((stream, index))
    assert ends[True] == ends[False] and len(ends[True]) == len(used) // 2


def test_both_paths_make_the_same() -> None:
    """Compare all messages and products, whichever path a party takes."""

    def made(native_aes: bool) -> list[Any]:
        pair = recorders()

        def run(j: int) -> list[Any]:
            entropy = deterministic_entropy(70 + j)
            params = ProtocolParams(native_aes=native_aes)
            session = Session.establish(j, pair[j], bytes(16), params, entropy, audit=True)
            zeros = AuthenticatedBits(np.zeros(300, np.uint8), *np.zeros((2, 300), np.uint64))
            found = maker(session.party(0, pair[j]), entropy).products(zeros, 0)
            return [[kept.bits, kept.low, kept.high] for kept in found]

        found = run_both(run)
        return [
            *([array.tobytes() for factor in half for array in factor] for half in found),
            *([(label, array.tobytes()) for label, array in end.received] for end in pair),
        ]

    assert made(True) == made(False)
