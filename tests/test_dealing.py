"""Dealt one-hot vectors: honest dealings pass, and every way to lie is caught as often as it must.

`dealt` writes a dealing of any vectors by plain numpy, as a client of somebody else's would.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ConfigError,
    InputError,
    LocalProtocolError,
    PeerDeviated,
    PeerProtocolError,
)
from securemedian.mpc.protocols import dealing, ring, share
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import (
    Dealing,
    DealtUpload,
    OwnDealing,
    Permutation,
    deal,
    histogram,
)
from securemedian.mpc.protocols.kernels import vectors
from securemedian.mpc.protocols.prg import Stream, os_entropy
from securemedian.mpc.protocols.share import SeedUpload, Upload, WordsUpload
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from tests import reference
from tests.parties import (
    check,
    deterministic_entropy,
    make_parties,
    run_both,
    run_rounds,
    shared,
    vectors_of,
)
from tests.test_privacy import Recorder, recorders
from tests.uniformity import beside_the_next, bits_of, check_uniform, looks_uniform

# a bucket's vector, and one that sums to 1 and is wrong
HONEST, WRONG = [1, 0, 0, 0, 0, 0, 0, 0], [2, 2, 2, -1, -1, -1, -1, -1]
Halves = Sequence[tuple[Upload, Upload]]


@dataclass(frozen=True)
class Small(Dealing):
    """A shape with few guards and one partner, so that cheats often escape."""

    guards: ClassVar[int] = 2

    def partners(self, kept: int) -> int:
        return 1


@dataclass(frozen=True)
class Unguarded(Small):
    """A shape without guards: partners alone."""

    guards: ClassVar[int] = 0


def one_hots(rng: np.random.Generator, count: int, slots: int) -> np.ndarray:
    """Return random one-hot vectors, shape (count, W)."""
    return np.eye(slots, dtype=np.int64)[rng.integers(0, slots, count)]


def honest(shape: Dealing, seed: int = 1) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return plain vectors, kept and others of each part."""
    rng = np.random.default_rng(seed)
    return [
        (one_hots(rng, part.kept, shape.slots), one_hots(rng, part.others, shape.slots))
        for part in shape.parts
    ]


def dealt(
    shape: Dealing, plain: Sequence[tuple[np.ndarray, np.ndarray]]
) -> tuple[SeedUpload, WordsUpload]:
    """Share vectors of any entries, of which all but the last are sent."""
    seeded = SeedUpload(shape.layout, os_entropy(16))
    packed = np.zeros((1, shape.layout.row_words), np.uint64)
    for part, sections in zip(shape.parts, plain, strict=True):
        for first, values in zip((part.first, part.middle), sections, strict=True):
            sent = ring.reduce(values[:, :-1].reshape(-1), shape.bits)
            size = ring.packed_words(sent.size, shape.bits)
            mask = ring.unpack(seeded.words(0, first, first + size), shape.bits, sent.size)
            words = ring.pack(ring.reduce(sent - mask, shape.bits), shape.bits)
            packed[0, first : first + size] = words
    return seeded, WordsUpload(shape.layout, packed)


def opened(shape: Dealing, halves: tuple[Upload, Upload]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Undo `dealt`: return the vectors, kept and others of each part, last entries included."""
    sections = []
    for part in shape.parts:
        both = []
        for first, count in ((part.first, part.kept), (part.middle, part.others)):
            sent = count * (shape.slots - 1)
            last = first + ring.packed_words(sent, shape.bits)
            one, other = (
                ring.unpack(half.words(0, first, last), shape.bits, sent).astype(np.uint64)
                for half in halves
            )
            values = (one + other).reshape(count, -1)
            whole = np.column_stack([values, np.uint64(1) - values.sum(axis=1, dtype=np.uint64)])
            both.append(ring.reduce(whole, shape.bits))
        sections.append((both[0], both[1]))
    return sections


def checked(shape: Dealing, clients: Halves, entropy: int | None = None) -> list[bool]:
    """Check dealings at both parties, whose toss a test may know, and return their one verdict."""
    pair = local_pair(20)
    sources = [os_entropy] * 2
    if entropy is not None:
        sources = [deterministic_entropy(entropy + j) for j in (0, 1)]
    one, other = run_both(
        lambda j: check(pair[j], j, shape, [half[j] for half in clients], entropy=sources[j])
    )
    assert one == other
    return list(one)


def known_permutation(shape: Dealing, entropy: int) -> np.ndarray:
    """Return the others in the order that `checked` with this entropy gives them, in one part."""
    openings = [deterministic_entropy(entropy + j)(dealing.OPENING_BYTES) for j in (0, 1)]
    seed = digest("toss", *openings)[:16]
    return order_of(Permutation.uniform(Stream(seed, nonce=0), shape.parts[0].others))


def order_of(permutation: Permutation) -> np.ndarray:
    """Return which vector stands where in a permutation."""
    near = np.empty(permutation.order.size, np.int64)
    near[permutation.places] = np.arange(near.size)
    return np.asarray(near[permutation.order])


SHAPES = [
    *((8, 4, dim) for dim in (1, 2, 64, 200)),
    *((buckets, 6, 70) for buckets in (3, 5, 16, 17)),
    *((8, bits, 70) for bits in (3, 31, 32, 33, 63, 64)),
    (32, 5, 70),
    (32, 64, 3),
    (3, 2, 70),
]


@pytest.mark.parametrize(("buckets", "bits", "dim"), SHAPES)
def test_honest_dealings_pass_and_count(buckets: int, bits: int, dim: int) -> None:
    """Vectors are one-hot, both forms of dealing pass, and counts are those of plain numpy."""
    rng = np.random.default_rng(dim + bits)
    shape = Dealing(dim, buckets, bits)
    own = [deal(shape) for _ in range(3)]
    for kept, others in opened(shape, (own[0].seeded, own[0].words)):
        for values in (kept, others):
            assert (np.sort(values, axis=1) == [0] * (shape.slots - 1) + [1]).all()
    halves: Halves = [(own[0].seeded, own[0].words), (own[1].words, own[1].seeded)]
    halves = [*halves, dealt(shape, honest(shape)), (own[2].seeded, own[2].words)]
    assert checked(shape, halves) == [True] * 4
    # each client knows what has to be opened
    coin = os_entropy(16)
    one, other = noted(local_pair(20), shape, own, coin)
    assert one == other == [each.opened(coin) for each in own]
    assert own[0].opened(coin) != own[1].opened(coin) != own[1].opened(os_entropy(16))
    index = rng.integers(0, buckets, (3, dim))
    index[:, 0] = buckets - 1
    rotations = [
        WordsUpload(shape.rotations_layout, each.rotations(row))
        for each, row in zip(own, index, strict=True)
    ]
    weights = [2, 1, 2]
    shares = [
        histogram(
            j,
            [DealtUpload(shape, halves[i][j], rotations[k]) for k, i in enumerate((0, 1, 3))],
            *(weights, bits, 0, dim, True),
        )
        for j in (0, 1)
    ]
    below = index[:, None] <= np.arange(buckets - 1)[:, None]
    want = (below * np.array(weights)[:, None, None]).sum(axis=0)
    assert (share.combine(shares[0], shares[1], bits) == ring.reduce(want, bits)).all()


def test_slots_beyond_the_last_bucket_count_as_it() -> None:
    shape = Dealing(64, 5, 4)
    own = deal(shape)
    words = own.rotations(np.full(64, 4))
    turns = ring.unpack(words[0], 3, 64)
    rotations = WordsUpload(shape.rotations_layout, np.zeros_like(words))
    # buckets 4, 5, 6, 7, of which only the first exists
    packed = ring.pack((turns + np.arange(64) % 4).astype(np.uint8) & np.uint8(7), 3)
    rotations.packed[0, : packed.size] = packed
    both: tuple[Upload, Upload] = (own.seeded, own.words)
    shares = [
        histogram(j, [DealtUpload(shape, half, rotations)], [1], 4, 0, 64, True)
        for j, half in enumerate(both)
    ]
    assert not share.combine(shares[0], shares[1], 4).any()


def test_a_dealing_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dealing, "PART", 200)
    monkeypatch.setattr(dealing, "CHUNK", 128)
    shape = Dealing(1000, 8, 4)
    assert [part.start for part in shape.parts] == [0, 128, 384, 512, 768]
    assert sum(part.kept for part in shape.parts) == 1000
    own = deal(shape)
    wrong = honest(shape)
    wrong[3][0][5] = WRONG
    assert checked(shape, [(own.seeded, own.words), dealt(shape, wrong)]) == [True, False]
    index = np.random.default_rng(3).integers(0, 8, 1000)
    rotations = WordsUpload(shape.rotations_layout, own.rotations(index))
    both: tuple[Upload, Upload] = (own.seeded, own.words)
    uploads = [[DealtUpload(shape, half, rotations)] for half in both]
    # a slice that begins and ends within parts
    shares = [histogram(j, uploads[j], [1], 4, 256, 900, True) for j in (0, 1)]
    want = index[256:900] <= np.arange(7)[:, None]
    assert (share.combine(shares[0], shares[1], 4) == want).all()
    with pytest.raises(InputError, match="take a multiple"):
        histogram(0, uploads[0], [1], 4, 100, 900, True)


# Cheats


def test_vectors_all_wrong_in_the_same_way_are_caught_by_guards_alone() -> None:
    """Partners cannot see it: without guards it passes with certainty."""
    assert sum(WRONG) == 1
    for shape, passes in ((Dealing(50, 8, 4), False), (Unguarded(50, 8, 4), True)):
        sections = [
            (np.tile(WRONG, (part.kept, 1)), np.tile(WRONG, (part.others, 1)))
            for part in shape.parts
        ]
        assert checked(shape, [dealt(shape, sections)]) == [passes]


# the kept vectors and the others that are wrong, and the vector that stands there
CHEATS: dict[str, tuple[slice, slice, list[int]]] = {
    "a kept one": (slice(7, 8), slice(0), WRONG),
    "a kept one and others": (slice(7, 8), slice(2, 90, 20), WRONG),
    "another one": (slice(0), slice(3, 4), WRONG),
    "all kept ones": (slice(None), slice(0), WRONG),
    "two ones": (slice(1), slice(0), [1, 1, -1, 0, 0, 0, 0, 0]),
    "a large number": (slice(1), slice(0), [1000, 0, 0, 0, 0, 0, 0, -999]),
}


@pytest.mark.parametrize("bits", [4, 20])
def test_a_cheat_is_caught_and_nobody_else(bits: int) -> None:
    shape = Dealing(50, 8, bits)
    own = deal(shape)
    clients: list[tuple[Upload, Upload]] = [(own.words, own.seeded)]
    for kept, others, vector in CHEATS.values():
        plain = honest(shape)
        plain[0][0][kept], plain[0][1][others] = vector, vector
        clients.append(dealt(shape, plain))
    assert checked(shape, [*clients, clients[0]]) == [True, *[False] * len(CHEATS), True]


def test_what_one_who_knew_the_toss_could_do() -> None:
    """Exactly the partners must be wrong alike, and no guard: any other choice is caught."""
    shape = Dealing(50, 8, 4)
    (part,) = shape.parts
    order = known_permutation(shape, 40)
    # partner p of vector i stands at g + p N + i
    partners = [order[part.guards + p * part.kept + 7] for p in range(part.partners)]

    def verdict(kept: list[int], others: dict[int, list[int]]) -> bool:
        plain = honest(shape)
        if kept:
            plain[0][0][7] = kept
        for place, vector in others.items():
            plain[0][1][place] = vector
        return checked(shape, [dealt(shape, plain)], 40)[0]

    turned = {place: np.roll(WRONG, k).tolist() for k, place in enumerate(partners)}
    assert verdict(WRONG, turned)
    assert not verdict(WRONG, dict(list(turned.items())[1:]))
    assert not verdict(WRONG, turned | {order[part.guards + 8]: WRONG})
    # another class of wrong vectors: its mirror image is not a rotation of it
    other = [0, 2, 0, 0, -1, 0, 0, 0]
    assert sum(other) == 1 and not verdict(WRONG, dict.fromkeys(partners, other))
    assert not verdict([], turned)
    # a wrong guard alone, and a guard that is wrong beside partners that are right
    assert not verdict([], {order[0]: WRONG})
    assert not verdict(WRONG, turned | {order[part.guards - 1]: WRONG})
    assert verdict([], {order[0]: HONEST})


def test_the_measured_rate_of_escape_is_the_formula() -> None:
    """K kept and k others that are wrong alike, of 3 kept, 3 partners and 2 guards."""
    shape = Small(3, 8, 4)
    (part,) = shape.parts
    assert (part.kept, part.partners, part.guards, part.others) == (3, 1, 2, 5)
    clients = []
    for k in (1, 2, 3):
        plain = honest(shape)
        for section in plain[0]:
            section[:k] = WRONG
        clients.append(dealt(shape, plain))
    tosses = 200
    passed = np.array([checked(shape, clients) for _ in range(tosses)])
    for k, escaped in zip((1, 2, 3), passed.sum(axis=0), strict=True):
        rate = 1 / math.comb(5, k)
        # six standard deviations: a false alarm in a run of 10^8
        bound = 6 * math.sqrt(tosses * rate * (1 - rate))
        assert abs(escaped - tosses * rate) <= bound, f"k = {k}: {escaped} of {tosses}"


def escapes(kept: int, partners: int, guards: int) -> float:
    """Return the best chance of a cheat by trying every k."""
    others = partners * kept + guards
    return max(1 / math.comb(others, partners * k) for k in range(1, kept + 1))


@pytest.mark.parametrize("check_bits", [40, 80, 128])
def test_partners_are_as_few_as_the_security_allows(check_bits: int) -> None:
    for kept in (1, 2, 3, 19, 100):
        partners = Dealing(kept, 8, 4, check_bits).parts[0].partners
        assert escapes(kept, partners, 64) <= 2.0**-check_bits
        assert partners == 1 or escapes(kept, partners - 1, 64) > 2.0**-check_bits


@pytest.mark.parametrize(
    ("kept", "few", "many"),
    [
        (100, 7, 12),
        (1000, 5, 9),
        (2410, 5, 8),
        (10_000, 4, 7),
        (199_210, 4, 6),
        (1_000_000, 3, 5),
        (100_000_000, 3, 4),
    ],
)
def test_the_table_of_partners(kept: int, few: int, many: int) -> None:
    for check_bits, want in ((40, few), (80, many)):
        assert 1 + Dealing(10, 8, 4, check_bits).partners(kept) == want


def test_halves_of_two_dealings_are_caught() -> None:
    """Send words that do not belong to the seed, whole or from one vector on."""
    shape = Dealing(50, 8, 4)
    one, other = deal(shape), deal(shape)
    half_way = one.words.packed.copy()
    half_way[0, shape.parts[0].middle + 4 :] = other.words.packed[0, shape.parts[0].middle + 4 :]
    cut = WordsUpload(shape.layout, half_way)
    assert checked(shape, [(one.seeded, other.words), (one.seeded, cut)]) == [False, False]


# The two servers


class Lying(Recorder):
    """A channel that changes what it sends under a label."""

    label, change = "", 0

    def send(self, label: str, array: np.ndarray) -> None:
        if label == self.label:
            array = array.copy()
            array.reshape(-1)[-1] ^= array.dtype.type(self.change)
        super().send(label, array)


@pytest.mark.parametrize("label", ["toss.commit", "toss.open"])
def test_a_peer_that_opens_another_seed_is_refused(label: str) -> None:
    pair = recorders()
    liar = Lying(pair[1])
    liar.label, liar.change = label, 1
    ends = (pair[0], liar)

    def run(j: int) -> str:
        try:
            dealing.toss(ends[j], j)
        except PeerDeviated as error:
            return str(error)
        return ""

    assert run_both(run) == ("'toss.open' is not what it has committed to", "")


def test_a_commitment_sent_back_is_refused() -> None:
    """A peer that repeats our messages commits to our seed, but not as the other party."""
    one, other = local_pair(20)

    def echo() -> None:
        other.send("toss.commit", other.recv("toss.commit", np.uint64, (4,)))
        other.send("toss.open", other.recv("toss.open", np.uint64, (4,)))

    with pytest.raises(PeerDeviated, match="is not what it has committed to"):
        run_both(lambda j: dealing.toss(one, 0) if j == 0 else echo())


def test_a_toss_is_of_both_and_the_same_at_both() -> None:
    tossed = set()
    for seeds in ((1, 2), (1, 3), (4, 2)):
        pair = local_pair(20)
        both = run_both(
            lambda j: dealing.toss(pair[j], j, deterministic_entropy(seeds[j]))  # noqa: B023
        )
        assert both[0] == both[1] and len(both[0]) == 16
        tossed.add(both[0])
    assert len(tossed) == 3


@pytest.mark.parametrize("label", ["dealing.guards", "dealing.turns", "dealing.digests"])
def test_a_peer_that_opens_wrongly_fails_that_client_alone(label: str) -> None:
    """The last client of three: no check passes what the peer did not send rightly."""
    shape = Dealing(64, 8, 4)
    own = [deal(shape) for _ in range(3)]
    pair = recorders()
    liar = Lying(pair[1])
    ends = (pair[0], liar)
    said = 0

    def send(name: str, array: np.ndarray) -> None:
        nonlocal said
        said += name == label
        liar.label, liar.change = ("", 0) if said < 3 and "digest" not in label else (label, 1)
        Lying.send(liar, name, array)

    liar.send = send  # type: ignore[method-assign, assignment]
    halves = [(each.seeded, each.words) for each in own]
    verdicts, _ = run_both(lambda j: check(ends[j], j, shape, [half[j] for half in halves]))
    assert verdicts == [True, True, False]


def noted(
    ends: Sequence[Channel], shape: Dealing, own: Sequence[OwnDealing], coin: bytes
) -> list[list[bytes]]:
    """Return what each party notes of these clients' dealings."""
    found: list[list[bytes]] = [[], []]
    halves = [(each.seeded, each.words) for each in own]
    run_both(
        lambda j: check(
            ends[j], j, shape, [half[j] for half in halves], coin=coin, note=found[j].extend
        )
    )
    return found


def test_a_client_knows_what_has_to_be_opened_of_each_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dealing, "PART", 128)
    shape, coin = Dealing(500, 8, 4), bytes(16)
    own = deal(shape)
    one, _ = noted(local_pair(20), shape, [own], coin)
    assert one == [own.opened(coin)] and len(one[0]) == 32 * len(shape.parts) > 64
    # it may rotate after it has looked, and look again
    own.rotations(np.zeros(500, int))
    assert one == [own.opened(coin)]


@pytest.mark.parametrize("label", ["dealing.guards", "dealing.turns"])
def test_what_a_peer_opens_wrongly_a_client_sees_at_the_honest_server(label: str) -> None:
    """See it even if its dealing passes, because the peer has sent its digest back."""
    shape = Dealing(64, 8, 4)
    own, coin = deal(shape), bytes(16)
    pair = recorders()
    liar = Lying(pair[1])
    liar.label, liar.change = label, 1
    honest, _ = noted((pair[0], liar), shape, [own], coin)
    assert honest != [own.opened(coin)]


def test_no_digest_is_sent_before_what_was_opened_is_noted() -> None:
    """The peer could otherwise test a guess, break off, and do it again without a lie."""
    shape, pair = Dealing(64, 8, 4), recorders()
    own = deal(shape)
    halves = own.seeded, own.words

    def refuse(hashes: Sequence[bytes]) -> None:
        raise PeerProtocolError("other than before")

    def run(j: int) -> str:
        try:
            check(pair[j], j, shape, [halves[j]], coin=bytes(16), note=refuse)
        except PeerProtocolError as error:
            return str(error)
        return ""

    assert run_both(run) == ("other than before",) * 2
    for end in pair:
        assert "dealing.digests" not in [label for label, _ in end.received]


def test_a_peer_with_another_shape_is_refused() -> None:
    pair = local_pair(20)
    shapes = (Dealing(640, 8, 4), Dealing(1280, 8, 4))
    own = [deal(shape) for shape in shapes]
    with pytest.raises(PeerProtocolError, match="expected"):
        run_both(lambda j: check(pair[j], j, shapes[j], [own[j].seeded]))


def test_differences_are_hashed_under_tossed_keys() -> None:
    """Every byte counts, and the keys are the seed's; blocks may end anywhere."""
    values = np.random.default_rng(8).integers(0, 2**32, 40, np.uint32)

    def digested(seed: bytes, *blocks: np.ndarray) -> bytes:
        differences = dealing.Differences(seed)
        for block in blocks:
            differences.update(block)
        return differences.digest()

    want = digested(bytes(16), values)
    assert digested(bytes(16), values[:7], values[7:]) == want
    assert digested(bytes(15) + b"1", values) != want
    for place in range(values.nbytes):
        changed = values.copy()
        changed.view(np.uint8)[place] ^= 1
        assert digested(bytes(16), changed) != want
    # as another library call computes the tags
    tags = [
        AESGCM(digest("dealing differences", bytes(16), key)[:16]).encrypt(
            bytes(12), b"", values.tobytes()
        )
        for key in range(2)
    ]
    assert digest("dealing digest", *tags) == want and tags[0] != tags[1]


# Permutations


@pytest.mark.parametrize("near", [0, 14])
def test_permutations_are_uniform(near: int) -> None:
    """Count all 24 orders of 4 vectors, with labels and without."""
    stream, tries = Stream(bytes(16), nonce=near), 2400
    seen = [tuple(order_of(Permutation.uniform(stream, 4, near))) for _ in range(tries)]
    _, often = np.unique(np.array(seen), axis=0, return_counts=True)
    assert len(often) == 24
    # the quantile of chi-square with 23 degrees of freedom at 1 - 10^-9
    assert ((often - tries / 24) ** 2 / (tries / 24)).sum() < 91


def test_a_permutation_of_many_has_each_vector_once() -> None:
    permutation = Permutation.uniform(Stream(bytes(16)), 100_000)
    order = order_of(permutation)
    assert (np.sort(order) == np.arange(100_000)).all()
    # no vector is nearer to where it was than chance allows
    assert abs(np.corrcoef(order, np.arange(100_000))[0, 1]) < 0.02


def test_a_draw_that_would_favour_some_numbers_is_rejected() -> None:
    """2^32 = 1 modulo 3, so that one of the draws is one too many for three numbers."""
    order = np.arange(3, dtype=np.uint32)
    assert vectors.shuffle(order, 0, 2, np.array([0], np.uint32)) == 2
    assert vectors.shuffle(order, 0, 2, np.array([1], np.uint32)) == 1


# A server's view


def view(number: int, index: np.ndarray) -> dict[str, np.ndarray]:
    """Return what party `number` sees of an honest client with these buckets, bit by bit.

    The turns that are opened, the rotations, and its own shares of the kept vectors.
    """
    shape = Dealing(index.size, 8, 4)
    own = deal(shape)
    halves, pair = (own.seeded, own.words), recorders()
    run_both(lambda j: check(pair[j], j, shape, [halves[j]]))
    (part,) = shape.parts
    words = pair[0].of("dealing.turns"), pair[1].of("dealing.turns")
    one, other = (ring.unpack(each, 3, part.partners * part.kept) for each in words)
    turns = (one + other & 7).reshape(part.partners, part.kept)
    rotations = ring.unpack(own.rotations(index)[0], 3, index.size)
    shares = vectors_of(shape, halves[number].words(0, 0, part.middle), part.kept, number)
    return (
        bits_of("t", turns[0], 0, 3)
        | bits_of("t'", turns[1], 0, 3)
        | bits_of("m", rotations, 0, 3)
        | bits_of("share", shares, 0, 6)
    )


def opened_and_rotations(number: int) -> None:
    """Raise Leak unless all that a server sees is uniform beside the client's buckets."""
    index = np.random.default_rng(number).integers(0, 8, 4000)
    check_uniform(view(number, index), bits_of("bucket", index, 0, 3))


def words_half() -> None:
    """Raise Leak unless the halves that are words are uniform, two clients' beside the slots."""
    shape = Dealing(4000, 8, 4)
    slots: dict[str, np.ndarray] = {}
    shares: list[np.ndarray] = []
    for own in (deal(shape), deal(shape)):
        (kept, _) = opened(shape, (own.seeded, own.words))[0]
        slots |= bits_of(f"slot of client {len(shares)}", kept.argmax(axis=1), 0, 3)
        shares.append(ring.unpack(own.words.words(0, 0, shape.parts[0].middle), 28, 4000))
    for first in range(0, 28, 7):
        one, other = (
            bits_of(f"share of client {client}", words, first, first + 7)
            for client, words in enumerate(shares)
        )
        check_uniform(one | other, slots)


def slots_beside_the_seed() -> None:
    """Raise Leak unless the seed's own stream says nothing of the slots."""
    shape = Dealing(4000, 8, 4)
    own = deal(shape)
    (kept, _) = opened(shape, (own.seeded, own.words))[0]
    stream = ring.unpack(Stream(own.seeded.seed).words(ring.packed_words(4000, 3)), 3, 4000)
    check_uniform(bits_of("slot", kept.argmax(axis=1), 0, 3), bits_of("stream", stream, 0, 3))


@pytest.mark.parametrize("number", [0, 1])
def test_all_that_a_server_sees_is_uniform(number: int) -> None:
    opened_and_rotations(number)
    words_half()
    slots_beside_the_seed()


def test_slots_are_uniform_beside_each_other() -> None:
    shape = Dealing(4000, 8, 4)
    own = deal(shape)
    for values in opened(shape, (own.seeded, own.words))[0]:
        check_uniform(beside_the_next(bits_of("slot", values.argmax(axis=1), 0, 3)))


def test_what_crosses_the_link_has_a_size_of_its_own_and_is_uniform() -> None:
    """Whatever the buckets, and whether or not a client cheats."""
    shape = Dealing(4096, 8, 4)
    plain = honest(shape)
    plain[0][0][:] = WRONG
    sizes = set()
    for halves in (dealt(shape, honest(shape)), dealt(shape, plain)):
        pair = recorders()
        run_both(lambda j: check(pair[j], j, shape, [halves[j]]))  # noqa: B023
        for end in pair:
            sizes.add(tuple((label, array.shape, array.dtype.str) for label, array in end.received))
            assert looks_uniform(end.of("dealing.turns"))
    assert len(sizes) == 1
    assert [label for label, *_ in sizes.pop()] == [
        "toss.commit",
        "toss.open",
        "dealing.guards",
        "dealing.turns",
        "dealing.digests",
    ]


def test_two_dealings_share_nothing() -> None:
    shape = Dealing(4096, 8, 4)
    one, other = deal(shape), deal(shape)
    assert one.seeded.seed != other.seeded.seed
    assert looks_uniform(one.words.packed[:, : shape.parts[0].kept * 28 // 64])
    index = np.zeros(4096, np.uint16)
    assert looks_uniform(one.rotations(index) ^ other.rotations(index))
    assert "secret" in repr(one) and str(one.seeded.seed) not in repr(one)


def test_a_dealing_rotates_once() -> None:
    own = deal(Dealing(10, 5, 4))
    for wrong in (np.full(10, 5), np.zeros(9, int), np.zeros((1, 10), int)):
        with pytest.raises(InputError, match="invalid bucket indices: .*; give 10 below 5"):
            own.rotations(wrong)
    own.rotations(np.zeros(10, int))
    with pytest.raises(LocalProtocolError, match="deal again"):
        own.rotations(np.zeros(10, int))


# Rounds


@pytest.mark.parametrize("schedule", ["scan", "bisect"])
@pytest.mark.parametrize("clients", [1, 2, 8])
def test_a_dealt_round_is_the_bucketed_median_bit_by_bit(schedule: str, clients: int) -> None:
    rng = np.random.default_rng(clients)
    for buckets in (3, 16):
        index = rng.integers(0, buckets, (clients, 300))
        # ties, and all equal
        index[:, :100] = rng.integers(0, 2, (clients, 100))
        index[:, 100:110] = 1
        results = []
        for uploads in ("dealt", "unverified"):
            method = Bucketed(buckets=buckets, schedule=schedule, uploads=uploads)
            params = RoundParams(method, dim=300, max_clients=max(2, clients))
            shares = [
                shared(params, row[None].astype(np.uint16))
                if uploads == "dealt"
                else shared(params, (row <= np.arange(buckets - 1)[:, None]).astype(np.uint8))
                for row in index
            ]
            one, other = run_rounds(make_parties(2), params, shares)
            assert (one.values == other.values).all()
            results.append(one.values)
        assert (results[0] == results[1]).all()
        assert (results[0] == reference.lower_median(index)).all()


def test_a_round_refuses_an_upload_that_was_not_dealt() -> None:
    params = RoundParams(Bucketed(uploads="dealt"), dim=128, max_clients=2)
    plain = share.split(np.zeros((1, 128), np.uint8), 3)
    with pytest.raises(LocalProtocolError, match="not dealt"):
        run_rounds(make_parties(), params, [plain, plain])


def test_the_shape_of_a_round() -> None:
    params = RoundParams(Bucketed(uploads="dealt", buckets=16), dim=1_663_370, max_clients=8)
    shape = params.form.dealing
    assert shape == Dealing(1_663_370, 16, 4, 40)
    assert params.form.layout == shape.rotations_layout
    assert [part.partners for part in shape.parts] == [2, 2]
    assert 8 * shape.rotations_layout.words == 831_696
    # (W-1) l B bits per coordinate and guard, and padding to a block in each of four sections
    exact = (3 * 1_663_370 + 2 * 64) * 60 / 8
    assert exact <= shape.bytes_ahead <= exact + 4 * 16
    assert RoundParams(Bucketed(uploads="unverified"), dim=10, max_clients=8).form.dealing is None
    weighted = Bucketed(buckets=8, weights={"a": 900, "b": 800, "c": 700})
    assert RoundParams(weighted, dim=10, max_clients=3).form.dealing == Dealing(10, 8, 12, 40)


def test_options_that_cannot_be_dealt() -> None:
    with pytest.raises(ConfigError, match="take radix with encoding buckets"):
        Bucketed(uploads="dealt", buckets=33)
    Bucketed(uploads="unverified", buckets=33)
    for wrong in (39, 129):
        with pytest.raises(
            ConfigError, match="invalid check_bits: .*; give a whole number from 40 to 128"
        ):
            Bucketed(check_bits=wrong)
