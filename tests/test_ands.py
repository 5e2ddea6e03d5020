"""ANDs of authenticated bits: values, MACs, and what is found of a party that deviates."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from types import SimpleNamespace
from typing import Any

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
    AuthenticatedTriples,
    bucket_size,
    rotations,
)
from securemedian.mpc.protocols.audit.bits import AuthenticatedBits, masks_of
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS, Opener
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.extension import ALIGN
from securemedian.mpc.protocols.ot.ggm import FIXED_BIT
from securemedian.mpc.protocols.ot.leaves import Tweaked
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
Halves = tuple[AuthenticatedBits, AuthenticatedBits]


def makers(pair: Any = None, **given: Any) -> list[AndMaker]:
    """Return both parties' makers, of a lane of an audit's session."""
    pairs = [pair] if pair else None
    return [maker(lanes[0]) for lanes in make_parties(pairs=pairs, audit=True, **given)]


def maker(party: Party, entropy: Entropy = os_entropy) -> AndMaker:
    return AndMaker(party, Opener(party.channel, party.number, bytes(32)), entropy)


def value(halves: Halves) -> np.ndarray:
    return halves[0].bits ^ halves[1].bits


def check_macs(both: list[AndMaker], halves: Halves) -> None:
    for own, peers, maker in zip(halves, halves[::-1], both[::-1], strict=True):
        assert (own.macs == peers.keys ^ masks_of(own.bits) & maker.delta).all()
        assert own.bits.max(initial=0) <= 1


def shared_bits(both: list[AndMaker], bits: np.ndarray) -> Halves:
    """Return authenticated bits of these values, from a dealer whom nobody has but a test."""
    shares = [RNG.integers(0, 2, bits.size).astype(np.uint8)]
    shares.append(shares[0] ^ bits)
    keys = RNG.integers(0, 2**64, (2, bits.size), np.uint64)
    one, two = (
        AuthenticatedBits(shares[j], keys[1 - j] ^ masks_of(shares[j]) & both[1 - j].delta, keys[j])
        for j in (0, 1)
    )
    return one, two


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 70_000])
def test_triples_are_products_with_valid_macs(count: int) -> None:
    both = makers()
    triples = run_both(lambda j: both[j].triples(count))
    assert [len(each) for each in triples] == [count] * 2
    x, y, z = zip(*(each.take(count) for each in triples), strict=True)
    for factor in (x, y, z):
        check_macs(both, factor)
    assert (value(z) == value(x) & value(y)).all()


def test_triples_are_uniform_and_hidden() -> None:
    """Shares of both parties and MACs beside each other, for x and y; and of z given both."""
    both = makers()
    triples = run_both(lambda j: both[j].triples(COUNT))
    x, y, z = zip(*(each.take(COUNT) for each in triples), strict=True)
    seen = {f"{name}{j}": half[j].bits for name, half in (("x", x), ("y", y)) for j in (0, 1)}
    for half in (x, y, z):
        check_uniform(
            seen | bits_of("mac", half[0].macs, 0, 6) | bits_of("key", half[0].keys, 60, 64)
        )
    check_uniform({"z0": z[0].bits}, seen)


@pytest.mark.parametrize("count", [0, 1, 64, 1000])
def test_multiply(count: int) -> None:
    both = makers()
    values = RNG.integers(0, 2, (2, count)).astype(np.uint8)
    a, b = (shared_bits(both, each) for each in values)

    def run(j: int) -> tuple[AuthenticatedBits, AuthenticatedBits]:
        triples = both[j].triples(2 * count + 3)
        product = both[j].multiply(a[j], b[j], triples)
        # and of what comes of it, with the next triples
        again = both[j].multiply(product ^ a[j], b[j], triples)
        both[j]._opener.settle("products")
        assert len(triples) == 3
        return product, again

    product, again = (each for each in zip(*run_both(run), strict=True))
    for halves in (product, again):
        check_macs(both, halves)
    assert (value(product) == values[0] & values[1]).all()
    assert (value(again) == (values[0] & values[1] ^ values[0]) & values[1]).all()


def test_what_is_linear() -> None:
    both = makers()
    values = RNG.integers(0, 2, (3, 500)).astype(np.uint8)
    public = values[2]
    a, b = (shared_bits(both, each) for each in values[:2])
    for found, want in (
        ([one ^ other for one, other in zip(a, b, strict=True)], values[0] ^ values[1]),
        ([half.times(public) for half in a], values[0] & public),
        ([a[j].plus(j, public, both[j].delta) for j in (0, 1)], values[0] ^ public),
        ([half[100:300] for half in a], values[0, 100:300]),
        ([half[public == 1] for half in a], values[0, public == 1]),
    ):
        check_macs(both, (found[0], found[1]))
        assert (value((found[0], found[1])) == want).all()
    own = AuthenticatedBits.of_own(values[0], a[0].macs), AuthenticatedBits.of_peer(a[1].keys)
    assert (value(own) == values[0]).all()
    assert not own[0].keys.any() and not own[1].macs.any()
    assert "secrets" in repr(own[0])


def test_triples_are_handed_out_once() -> None:
    numbered = [
        AuthenticatedBits(np.zeros(9, np.uint8), *(np.arange(9, dtype=np.uint64),) * 2)
        for _ in range(3)
    ]
    triples = AuthenticatedTriples(*numbered)
    seen = [triples.take(count)[0].macs.tolist() for count in (2, 0, 4)]
    assert seen == [[0, 1], [], [2, 3, 4, 5]] and len(triples) == 3
    with pytest.raises(LocalProtocolError, match="4 triples are wanted, and 3 are left"):
        triples.take(4)


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
    """Raise Leak unless what is opened of buckets says nothing of the other party's y."""
    pair = recorders()
    both, size = makers(pair), 4
    made = leaky(both, size * COUNT)
    turns = rotations(bytes(16), size, COUNT)

    def run(j: int) -> list[AuthenticatedBits]:
        return both[j].combined(made[j].factors, turns)

    found = run_both(run)
    received = pair[0].of("and.buckets")[:-DIGEST_WORDS].reshape(size - 1, -1)
    seen = {f"difference {i}": unpacked(row, COUNT) for i, row in enumerate(received)}
    check_uniform(seen, {"y": found[1][1].bits})


def openings_received() -> None:
    """Raise Leak unless what is opened in `multiply` says nothing of the other party's bits."""
    pair = recorders()
    both = makers(pair)
    zeros = np.zeros(COUNT, np.uint8)
    a, b = (shared_bits(both, zeros) for _ in range(2))

    def run(j: int) -> None:
        both[j].multiply(a[j], b[j], both[j].triples(COUNT))

    run_both(run)
    received = pair[0].of("and.openings")[:-DIGEST_WORDS].reshape(2, -1)
    seen = {name: unpacked(row, COUNT) for name, row in zip("de", received, strict=True)}
    check_uniform(seen, {"a": a[1].bits, "b": b[1].bits})


def unpacked(words: np.ndarray, count: int) -> np.ndarray:
    bits = np.empty(count, np.uint8)
    packing.unpack_bits(np.ascontiguousarray(words), bits)
    return bits


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


@pytest.mark.parametrize("bit", [0, 47, 63])
def test_a_wrong_table_is_found_where_the_peers_x_is_1(bit: int) -> None:
    both = makers(flipping("and.tables", 1 << bit))
    honest, rogue = leaky(both)
    same = honest.tests == rogue.tests
    assert (same == (honest.x == 0)).all() and 0.4 < same.mean() < 0.6
    x, y, z = (getattr(honest, name) ^ getattr(rogue, name) for name in "xyz")
    assert (z[same] == (x & y)[same]).all()


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
def test_no_triples_are_made_with_who_deviates(
    label: str, bits: int, chosen: Any, said: str
) -> None:
    pair = flipping(label, bits, chosen)
    both = makers(pair)
    found = found_by(both, pair, lambda j: both[j].triples(500))
    assert found.endswith(f"{said} not agree")


@pytest.mark.parametrize("place", [0, 6, 10])
def test_a_lie_in_what_is_multiplied_is_found(place: int) -> None:
    pair = flipping("and.openings", 1 << 50, place)
    both = makers(pair)
    a, b = (shared_bits(both, RNG.integers(0, 2, 435).astype(np.uint8)) for _ in range(2))

    def run(j: int) -> None:
        both[j].multiply(a[j], b[j], both[j].triples(435))
        both[j]._opener.settle("a product")

    assert "the MACs of a product, openings do not agree" in found_by(both, pair, run)


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
    a, b = (shared_bits(both, np.zeros(COUNT, np.uint8)) for _ in range(2))
    guesses = RNG.integers(0, 16, COUNT, np.uint64)
    run_both(lambda j: both[j].multiply(a[j], b[j], both[j].triples(COUNT)))
    # of d and of e: those that a party sends, and those that it wants
    honest, rogue = (opener.kept[-2:] for opener in openers)
    for at, of in ((0, 0), (1, 0), (1, 1)):
        assert (honest[at][of] == rogue[at][1 - of]).all()
    passed = honest[0][1] == rogue[0][0] ^ guesses
    assert (passed == (guesses == both[0].delta & np.uint64(15))).all()
    check_rate(int(passed.sum()), COUNT, 1 / 16)


def test_guesses_that_pass_rarely_fill_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 1 guesses the first x of two rows: 2^-2 pass, and lie in one bucket with 1 / n, n = 4.

    Of that bucket it then knows party 0's x.
    """
    pair, runs = flipping("and.tables", 1, [0, ALIGN]), 1000
    both, drawn = makers(pair), list[list[int]]()

    def turns(seed: bytes, size: int, count: int) -> list[int]:
        drawn.append(rotations(seed, size, 4))
        return drawn[-1]

    monkeypatch.setattr(ands, "rotations", turns)
    passed, known = 0, list[int]()
    for _ in range(runs):
        try:
            x, _ = run_both(lambda j: both[j].triples(1, bucket=2).take(1)[0].bits)
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
    said = found_by(both, pair, lambda j: both[j].triples(100))
    assert "none of these OTs is used" in said
    assert not set(pair[0].sent) & {"and.tables", "and.tops", "and.buckets"}


def test_tables_follow_the_check_of_their_ots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that buckets follow a toss after the comparison of all leaky ANDs, too."""
    monkeypatch.setattr(ands, "PORTION", 2 * ALIGN)
    pair = lying(lambda label, array: None)
    both = makers(pair)
    for end in pair:
        end.sent.clear()
    run_both(lambda j: both[j].triples(64))
    check = [*["ot.corrections"] * 5, *["ot.challenge"] * 2, *["ot.proof"] * 2]
    tile = [*check, "and.tables", "and.tops"]
    settled = ["toss.commit", "toss.open", "audit.hidden", "audit.proof"]
    wanted = tile * 3 + settled + ["toss.commit", "toss.open", "and.buckets", "opening.digest"]
    assert [end.sent for end in pair] == [wanted] * 2


@pytest.mark.parametrize("count", [1, 100, 3000])
def test_what_is_planned_is_sent(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message of both parties, in order, and the OTs."""
    monkeypatch.setattr(ands, "PORTION", 1 << 12)
    pair = recorders()
    lanes = make_parties(pairs=[pair], audit=True)
    before = [len(end.received) for end in pair]
    run_both(lambda j: maker(lanes[j][0]).triples(count))
    wanted = [
        (label, np.dtype(dtype), shape)
        for sent, label, dtype, shape in ands.messages(count)
        if sent
    ]
    for end, first, party in zip(pair, before, lanes, strict=True):
        found = [(label, array.dtype, array.shape) for label, array in end.received[first:]]
        assert found == wanted
        assert party[0].pool.ots == ands.ots_of(count)
    received = [message[1:] for message in ands.messages(count) if not message[0]]
    assert received == [message[1:] for message in ands.messages(count) if message[0]]


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


@pytest.mark.parametrize("size", [2, 3, 5])
def test_buckets_are_of_turned_rows(size: int) -> None:
    """Bucket b has number b + s_i of row i, and what comes of it valid MACs."""
    pair, count = local_pair(20), 3000 // ALIGN * ALIGN
    both = makers(pair)
    made, turns = leaky(both, size * count), rotations(bytes(16), size, count)
    found = run_both(lambda j: both[j].combined(made[j].factors, turns))
    x, y, z = ((one, other) for one, other in zip(*found, strict=True))
    for halves in (x, y, z):
        check_macs(both, halves)
    assert (value(z) == value(x) & value(y)).all()
    rows = (made[0].x ^ made[1].x).reshape(size, count)
    turned = [np.roll(row, -turn) for row, turn in zip(rows, turns, strict=True)]
    assert (value(x) == np.bitwise_xor.reduce(turned)).all()
    assert (value(y) == (made[0].y ^ made[1].y)[:count]).all()


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
        for out in given[4].hashes[:1]:
            stream, sending = int(tweaked.stream), len(given[4].hashes) == 2
            used.extend((id(self), stream, tweaked.index + i, sending) for i in range(out.size))
        make(self, tweaked, *given)

    monkeypatch.setattr(leaves, "make", counted)
    monkeypatch.setattr(ands, "PORTION", 2 * ALIGN)
    for _ in range(2):
        run_both(lambda j: both[j].triples(70))
    # 128 buckets of 6
    assert len(used) == len(set(used)) == 2 * 2 * 2 * 768
    ends: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for _, stream, index, sending in used:
        ends[sending].add((stream, index))
    assert ends[True] == ends[False] and len(ends[True]) == len(used) // 2


def test_both_paths_make_the_same() -> None:
    """Compare all messages and triples, whichever path a party takes."""

    def made(native: tuple[bool, bool]) -> list[Any]:
        pair = recorders()

        def run(j: int) -> list[Any]:
            entropy = deterministic_entropy(70 + j)
            params = ProtocolParams(native_aes=native[j])
            session = Session.establish(j, pair[j], bytes(16), params, entropy, audit=True)
            triples = maker(session.party(0, pair[j]), entropy).triples(300)
            return [[factor.bits, factor.macs, factor.keys] for factor in triples.take(300)]

        found = run_both(run)
        return [
            *([array.tobytes() for factor in half for array in factor] for half in found),
            *([(label, array.tobytes()) for label, array in end.received] for end in pair),
        ]

    want = made((False, False))
    assert made((True, False)) == want and made((False, True)) == want
