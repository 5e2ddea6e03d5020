"""Silent OT extension: its correlation, what is used once, and what the other end sees.

Most tests run a code that is far too small to be secure; nothing but a test can choose one.
"""

import bisect
import hashlib
import itertools
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import DaBits, RandomOts, Tables, Triples
from securemedian.mpc.protocols.kernels import extension as kernels
from securemedian.mpc.protocols.kernels import lpn
from securemedian.mpc.protocols.ot import ferret, ggm
from securemedian.mpc.protocols.ot.extension import ALIGN, BLOCK, Direction, Scratch, blocks_of
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.prg import os_entropy
from tests.parties import (
    SMALL,
    SMALL_SETUP,
    deterministic_entropy,
    make_parties,
    run_both,
    run_rounds,
    use_small_codes,
)
from tests.test_ot import SESSION, bits_of
from tests.test_privacy import ROUNDS, inputs, looks_uniform, recorders, shares_of

Pair = tuple[ferret.FerretSender, ferret.FerretReceiver]
BaseOts = tuple[np.ndarray, list[list[bytes]], list[list[bytes]]]
_lanes = itertools.count()


@pytest.fixture(scope="module")
def base() -> BaseOts:
    one, two = local_pair()
    (delta, holes), leaves = run_both(
        lambda j: (
            ggm.sender_setup(one, SESSION, 4) if j == 0 else ggm.receiver_setup(two, SESSION, 4)
        )
    )
    return delta, holes, leaves


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> ferret.Code:
    use_small_codes(monkeypatch)
    # groups that are not alike
    monkeypatch.setattr(ferret, "TREES", 7)
    return SMALL


def pair(
    base: BaseOts, channels: tuple[Channel, Channel] | None = None, native_aes: bool = True
) -> Pair:
    """Both ends of a lane that no test had before."""
    delta, holes, leaves = base
    lane = next(_lanes)
    one, two = channels or local_pair(20)
    sender = ferret.FerretSender(Direction(one, SESSION, lane, 0, native_aes), delta, holes)
    return sender, ferret.FerretReceiver(Direction(two, SESSION, lane, 0, native_aes), leaves)


def extend(ends: Pair, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return copies of keys0, keys1, choice bits and keys."""
    (keys0, keys1), (choices, keys) = run_both(lambda j: ends[j].extend(count))
    return keys0.copy(), keys1.copy(), bits_of(choices, count), keys.copy()


def check(keys0: np.ndarray, keys1: np.ndarray, bits: np.ndarray, keys: np.ndarray) -> None:
    assert (np.where(bits[:, None] == 1, keys1, keys0) == keys).all()
    assert (keys0 != keys1).any(axis=1).all()


def test_the_chosen_key_over_many_iterations(base: BaseOts, small: ferret.Code) -> None:
    """Blocks that end within an iteration, at its end, and that take several."""
    ends = pair(base)
    seen, bits = [], []
    for count in (ALIGN, small.yields - ALIGN, small.yields, 3 * small.yields + ALIGN, 5 * ALIGN):
        made = extend(ends, count)
        check(*made)
        seen += [made[0], made[1]]
        bits.append(made[2])
    assert ends[0].index == ends[1].index == sum(map(len, bits)) and ends[0].left == ends[1].left
    assert ends[0].index > SMALL_SETUP.yields + 4 * small.yields
    # no key twice
    assert len(np.unique(np.concatenate(seen), axis=0)) == 2 * ends[0].index
    assert 0.46 < np.concatenate(bits).mean() < 0.54


@pytest.mark.slow
def test_the_chosen_key_with_the_secure_code(base: BaseOts) -> None:
    ends = pair(base)
    # the first takes from the set-up too, the last from a third iteration
    count = 1 + ferret.CODE.yields // BLOCK
    blocks = [extend(ends, BLOCK) for _ in range(count)]
    for made in blocks:
        check(*made)
    assert ends[0].index > ferret.SETUP.yields + ferret.CODE.yields
    choices = np.concatenate([made[2] for made in blocks])
    # six standard deviations
    assert abs(choices.mean() - 0.5) < 3 / choices.size**0.5
    assert len(np.unique(np.concatenate([made[0][:, 0] for made in blocks]))) == count * BLOCK


def test_the_codes_are_the_ones_that_were_estimated() -> None:
    """Changing them is a matter of security: read the comment at `CODE` first."""
    setup, code = ferret.SETUP, ferret.CODE
    assert (setup.secrets, setup.bins, setup.depth) == (36_864, 320, 9)
    assert (code.secrets, code.bins, code.depth) == (147_456, 768, 11)
    assert lpn.LOCALITY == 10
    assert setup.reserve <= BLOCK and setup.outputs >= code.reserve


def gauss_bits(bins: int, size: int, secrets: int) -> float:
    """Return the bits of pooled Gauss.

    Guess as many outputs without noise as there are secrets, evenly over the bins, and solve. Each
    bin gives one equation for nothing: its noise adds up to 1.
    """
    free = secrets - bins
    return -bins * math.log2(1 - free / (bins * size)) + 2.8 * math.log2(free)


def algebraic_bits(bins: int, size: int, secrets: int, sparse: bool) -> float:
    """Return the bits of the attack of Briaud and Oygarden (EUROCRYPT 2023).

    Guess u outputs of f bins to be free of noise, until the products of two outputs of a bin, which
    all vanish, determine all monomials up to a degree.
    The Hilbert series of the ideal is (1 + (size - 1 - u) z)^f (1 + (size - 1) z)^(bins - f) / (1 +
    z)^(outputs - secrets).
    """

    def solved(f: int, u: int, degree: int) -> bool:
        series = [1] + [0] * degree
        for count, base in ((f, size - 1 - u), (bins - f, size - 1)):
            factor = [math.comb(count, i) * base**i for i in range(degree + 1)]
            series = [
                sum(series[j] * factor[i - j] for j in range(i + 1)) for i in range(degree + 1)
            ]
        free = bins * size - secrets
        inverse = [(-1) ** i * math.comb(free + i - 1, i) for i in range(degree + 1)]
        return any(
            sum(series[j] * inverse[i - j] for j in range(i + 1)) <= 0 for i in range(degree + 1)
        )

    best = math.inf
    for degree, tenths in itertools.product((2, 3, 4), range(1, 11)):
        f = bins * tenths // 10
        u = bisect.bisect_left(range(size - 1), True, key=partial(solved, f, degree=degree))
        if u < size - 1:
            unknowns = max(10, secrets - bins - f * u)
            monomials = math.log2(sum(math.comb(unknowns, i) for i in range(degree + 1)))
            # Wiedemann's algorithm, with as few terms in an equation as the code gives before
            # any elimination
            work = math.log2(3 * 11**degree) + 2 * monomials if sparse else 2.8 * monomials
            best = min(best, work - f * math.log2(1 - u / size))
    return best


def decoding_bits(bins: int, size: int, secrets: int) -> float:
    """Return the bits of information-set decoding with collisions (Stern, Dumer).

    Take as many outputs as pooled Gauss does, but allow p noisy ones in either half of the bins.
    List all choices of a half, and match the lists in as many more outputs, without noise, as a
    list has bits. Solving costs what it does there, a list's entry one operation, and memory
    nothing. With so little noise few sums of p + p represent a choice in more than one way, so that
    the finer ways to make lists gain next to nothing.
    """
    free, half = secrets - bins, bins // 2
    noisy = free / (bins * size)
    best = math.inf
    for p in range(7):
        choices = math.log2(math.comb(half, p)) + p * math.log2(free / bins)
        luck = math.log2(math.comb(half, p)) + p * math.log2(noisy)
        luck += (half - p) * math.log2(1 - noisy)
        matched = -choices * math.log2(1 - 1 / size)
        best = min(best, math.log2(free**2.8 + 3 * 2**choices) - 2 * luck + matched)
    return best


def estimates(code: ferret.Code) -> list[int]:
    """Return the bits of all four, in the order of the comment at `CODE`."""
    instance = code.bins, 1 << code.depth, code.secrets
    found = [gauss_bits(*instance), decoding_bits(*instance)]
    found += [algebraic_bits(*instance, sparse=sparse) for sparse in (False, True)]
    return [round(bits) for bits in found]


def test_the_codes_withstand_the_known_attacks() -> None:
    """The figures of the comment at `CODE`, and of docs/threat-model.md."""
    assert estimates(ferret.CODE) == [157, 131, 153, 137]
    assert estimates(ferret.SETUP) == [159, 132, 160, 148]
    # the code of earlier releases
    assert estimates(ferret.Code(secrets=69_454, bins=512, depth=10)) == [149, 123, 149, 135]
    # emp-ot's ferret_b11, offered for 128 bits
    assert estimates(ferret.Code(secrets=124_000, bins=4971, depth=11)) == [132, 108, 92, 74]
    page = (Path(__file__).parent.parent / "docs" / "threat-model.md").read_text("utf-8")
    assert "157, 131, 153 and at least 137 bits" in page


def search_bits(targets: int) -> float:
    """Return the expected evaluations of a permutation pi that find Delta in the half-trees.

    For the node P on its path the receiver knows P ^ Delta. It is given c = H(P) = pi(s) ^ s or c =
    P ^ H(P), with s = sigma(P) ^ t. The second is sigma^-1(s) ^ pi(s) ^ s ^ sigma^-1(t). One
    evaluation at any z is therefore looked up among all c of both forms, corrected by what is
    public of t. It finds z = s with probability 2^-128 for each. That bit 0 of P is known too
    changes nothing: it halves both the z to be tried and the c that each may belong to.
    """
    return 128 - math.log2(targets)


def given_away(bins: int) -> int:
    """Return the hashes that a receiver is given of `bins` trees: one per level but the first."""
    return bins * (ferret.CODE.depth - 1)


def test_the_trees_keep_their_distance_from_a_search_for_all_nodes_at_once() -> None:
    """The figures of the docstring and of docs/threat-model.md."""
    page = (Path(__file__).parent.parent / "docs" / "threat-model.md").read_text("utf-8")
    assert ferret.__doc__
    group = search_bits(given_away(ferret.TREES))
    iterations = math.ceil(10**9 / ferret.CODE.yields)
    session = search_bits(given_away(ferret.CODE.bins) * iterations)
    assert ferret.CODE.depth > ferret.SETUP.depth
    assert (round(group, 1), round(session, 1)) == (118.7, 105.6)
    assert "2^118.7" in ferret.__doc__ and "2^105.6" in ferret.__doc__ and "2^118.7" in page
    # OTs of which a party knows what both keys hide share the key of the session
    assert round(search_bits(10**9)) == 98 and "2^98" in page


def test_the_two_forms_of_a_target_are_looked_up_together() -> None:
    """Check what `search_bits` says of s for the kernels: both forms, undone by public values."""
    parent = np.frombuffer(os_entropy(16), np.uint64).reshape(1, 2)
    index, stream = np.uint64(77), np.uint64(3) | ferret.TREE_TWEAKS
    tweaked = np.empty_like(parent)
    kernels.sigma_and_tweak(parent, index, stream, tweaked)
    s = tweaked.copy()
    hashed = Hash(Scratch(), b"any key").finish(tweaked)

    def unsigma(x: np.ndarray) -> np.ndarray:
        return np.stack([x[:, 1], x[:, 0] ^ x[:, 1]], axis=1)

    tweak = np.array([[index, stream]])
    assert (unsigma(s ^ tweak) == parent).all()
    assert ((parent ^ hashed ^ unsigma(tweak)) == (unsigma(s) ^ hashed)).all()


def test_every_group_of_trees_has_a_key_of_its_own(
    monkeypatch: pytest.MonkeyPatch, small: ferret.Code
) -> None:
    """Over lanes, directions and iterations, and both ends use the same ones in the same order."""
    keys: dict[type, list[tuple[int, bytes]]] = {ferret.FerretSender: [], ferret.FerretReceiver: []}
    original = ferret._Ferret._hash_of

    def recording(self: Any, group: slice) -> Hash:
        made = original(self, group)
        assert group.stop - group.start <= ferret.TREES and made.key != self._hash.key
        keys[type(self)].append((int(self._tweaks), made.key))
        return made

    monkeypatch.setattr(ferret._Ferret, "_hash_of", recording)
    sides = make_parties(lanes=2, extension="silent")
    demand = Demand({RandomOts(8): (2 * SMALL.yields, 2 * SMALL.yields)})
    for lane in range(2):
        run_both(lambda j: sides[j][lane].pool.reserve(demand))  # noqa: B023
    sent, received = keys.values()
    assert sorted(sent) == sorted(received)
    made = [key for _, key in sent]
    groups = len(list(ferret.messages(0, 2 * SMALL.yields)))
    assert len(made) == len(set(made)) == 2 * 2 * groups and groups == 8


def test_each_bin_has_one_noisy_leaf_where_the_seeds_say(
    base: BaseOts, small: ferret.Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both paths give the same outputs, and the portable one has leaves to look at."""
    leaves: dict[type, list[np.ndarray]] = {ferret.FerretSender: [], ferret.FerretReceiver: []}
    paths: list[np.ndarray] = []
    original, receive = ferret._Ferret.grow_trees, ferret.FerretReceiver.make

    def grow_trees(self: Any, *given: Any) -> Any:
        found = original(self, *given)
        leaves[type(self)].append(found.copy())
        return found

    def make(self: Any, grow: Any, masks: Any, outputs: Any) -> None:
        bits = 1 - (masks[:, :, 0] & np.uint64(1)).astype(np.int64)
        paths.append((bits << np.arange(small.depth)).sum(axis=1))
        receive(self, grow, masks, outputs)

    monkeypatch.setattr(ferret._Ferret, "grow_trees", grow_trees)
    monkeypatch.setattr(ferret.FerretReceiver, "make", make)
    ends = pair(base, native_aes=False)
    extend(ends, SMALL_SETUP.yields + 4 * small.yields)
    sent, received = (np.concatenate(kept) for kept in leaves.values())
    assert sent.shape[1:] == (1 << small.depth, 2) and len(sent) > SMALL_SETUP.bins + 3 * small.bins
    difference = sent ^ received
    noisy = difference.any(axis=2)
    assert (noisy.sum(axis=1) == 1).all() and (noisy.argmax(axis=1) == np.concatenate(paths)).all()
    assert (difference[noisy] == ends[0]._delta).all()
    assert (np.bitwise_xor.reduce(sent, axis=1) == ends[0]._delta).all()
    # the groups that begin the second and the third iteration, of 64 places
    assert (paths[3] != paths[7]).any() and len(np.unique(np.concatenate(paths))) > 20


def test_outputs_are_correlated_and_each_is_handed_out_or_a_seed(
    base: BaseOts, small: ferret.Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs satisfy w = v ^ u Delta, with u in bit 0 of v and of no w."""
    # the seeds that each group was made of, and its outputs, of either end
    made: list[list[tuple[np.ndarray, np.ndarray]]] = [[], []]
    classes: tuple[Any, Any] = ferret.FerretSender, ferret.FerretReceiver
    for cls, kept in zip(classes, made, strict=True):

        def make(self: Any, *given: Any, original: Any = cls.make, kept: Any = kept) -> None:
            original(self, *given)
            kept.append((self._seeds, given[-1].reshape(-1, 2).copy()))

        monkeypatch.setattr(cls, "make", make)
    ends, given = pair(base), [np.empty((0, 2), np.uint64)] * 2
    codes = SMALL_SETUP, small, small
    # and the first group of one more iteration
    while len(given[0]) <= sum(code.yields for code in codes):
        fresh = run_both(lambda j: ends[j]._next_outputs())
        given = [np.concatenate(blocks) for blocks in zip(given, fresh, strict=True)]
    for j in (0, 1):
        at = first = 0
        for code in codes:
            groups = len(list(code.groups()))
            outputs = np.concatenate([block for _, block in made[j][at : at + groups]])
            seeds = made[j][at + groups][0]
            assert len(outputs) == code.outputs and len(seeds) >= small.seeds
            assert (outputs == np.concatenate([given[j][first : first + code.yields], seeds])).all()
            at, first = at + groups, first + code.yields
    w, v = (np.concatenate([outputs for _, outputs in one]) for one in made)
    u = v[:, :1] & np.uint64(1)
    assert not (w[:, 0] & np.uint64(1)).any() and (w == v ^ u * ends[0]._delta).all()
    assert len(np.unique(w, axis=0)) == len(w)


def test_no_tweak_is_used_twice(monkeypatch: pytest.MonkeyPatch, small: ferret.Code) -> None:
    """Under one key, trees and keys of both lanes and directions have tweaks of their own."""
    used: dict[int, set[tuple[bytes, int, int]]] = {0: set(), 1: set()}
    party = 0

    def recording(original: Any) -> Any:
        def record(self: Hash, blocks: Any, index: Any, stream: Any, *rest: Any) -> None:
            fresh = {(self.key, int(index) + i, int(stream)) for i in range(len(blocks))}
            assert not fresh & used[party]
            used[party] |= fresh
            original(self, blocks, index, stream, *rest)

        return record

    # a session of its own, whose lanes are counted from 0
    sides = make_parties(lanes=2, extension="silent", session_id=bytes(16))
    demand = Demand({Triples(2): (9, 9), Tables(4, 2): (130, 40), DaBits(5): (10, 10)})
    with monkeypatch.context() as patch:
        # kernels that do all at once count as tests/test_native.py says
        for side in itertools.chain(*sides):
            for end in (side.pool.ends.sender, side.pool.ends.receiver):
                patch.setattr(end, "_native_aes", False)
        patch.setattr(Hash, "blocks", recording(Hash.blocks))
        for lane in range(2):
            # one party after the other, so that the record knows whose hash it is: what the first
            # waits for comes first
            for end in (side[lane].pool.ends.receiver for side in sides):
                end.prepare()
            for party in (0, 1):
                sides[party][lane].pool.ends.sender.extend(2 * SMALL.yields)
            for party in (0, 1):
                sides[party][lane].pool.ends.receiver.extend(2 * SMALL.yields)
    assert used[0] and {stream & 0xFFFF for _, _, stream in used[0]} == {0, 1, 2, 3}
    assert {stream >> 63 for _, _, stream in used[0]} == {0, 1}
    run_both(lambda j: sides[j][0].pool.reserve(demand))


def test_what_the_receiver_sees_is_uniform_and_of_one_size(
    base: BaseOts, small: ferret.Code, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = pair(base)
    seen: list[np.ndarray] = []
    channel = ends[1]._channel
    original = channel.recv

    def keeping(*wanted: Any) -> np.ndarray:
        seen.append(original(*wanted))
        return seen[-1]

    monkeypatch.setattr(channel, "recv", keeping)
    extend(ends, 8 * small.yields)
    assert [array.shape for array in seen] == list(ferret.messages(0, ends[0].index))
    assert looks_uniform(np.concatenate([array.reshape(-1) for array in seen]))
    # the bootstrap is all that the sender ever sees
    assert ends[0]._channel.traffic.messages_received == 1


def test_bytes_an_ot(base: BaseOts) -> None:
    """Each tree takes 160 bytes, and the start 0.2 MB once, most of it from the receiver."""
    ends = pair(base)
    traffic = ends[0]._channel.traffic
    extend(ends, ferret.SETUP.yields)
    # the rest of the set-up, and the first group of an iteration
    extend(ends, ALIGN)
    start = traffic.bytes_sent
    assert start + traffic.bytes_received < 210_000 and start < 60_000
    for words in blocks_of(ferret.CODE.yields):
        extend(ends, 64 * (words.stop - words.start))
    assert 0.0867 < (traffic.bytes_sent - start) / ferret.CODE.yields < 0.088
    assert traffic.rounds == 2


@pytest.mark.parametrize("words", [(20, 4, 2), (19, 5, 2), (20, 5, 1)])
def test_a_message_of_another_size_is_the_peers_mistake(
    base: BaseOts, monkeypatch: pytest.MonkeyPatch, words: tuple[int, int, int]
) -> None:
    use_small_codes(monkeypatch)
    one, two = local_pair(20)
    _, receiver = pair(base, (one, two))
    one.send("ferret.sums", np.zeros(words, np.uint64))
    with pytest.raises(PeerProtocolError, match=r"ferret\.sums"):
        receiver.extend(ALIGN)
    two.send("ot.corrections", np.zeros((31, 1), np.uint64))
    sender, _ = pair(base, (one, two))
    # after the receiver's own
    one.traffic.messages_received = 1
    one._link.recv()
    with pytest.raises(PeerProtocolError, match=r"ot\.corrections"):
        sender.extend(ALIGN)


def test_lanes_draw_other_matrices(base: BaseOts, small: ferret.Code) -> None:
    one, other = pair(base), pair(base)
    assert one[0]._matrix == one[1]._matrix != other[0]._matrix
    assert not set(extend(one, ALIGN)[3][:, 0].tolist()) & set(
        extend(other, ALIGN)[3][:, 0].tolist()
    )


def test_pools_fill_over_many_iterations(small: ferret.Code) -> None:
    """Corrections of DaBits come between the iterations that make their OTs, and others'."""
    parties = [lanes[0] for lanes in make_parties(field_bits=2, extension="silent")]
    demand = Demand(
        {
            DaBits(9): (3000, 1500),
            RandomOts(8): (2000, 2000),
            Triples(1): (40, 40),
            Tables(3, 1): (9, 600),
        }
    )
    for party in parties:
        party.channel.restart_rounds()
    run_both(lambda j: parties[j].pool.reserve(demand))
    # the bootstrap, and all iterations and corrections
    assert parties[0].channel.traffic.rounds == 2
    one, other = run_both(
        lambda j: parties[j].pool.take(DaBits(9), *((3000, 1500) if j == 0 else (1500, 3000)))
    )
    assert ((one[1] + other[1]) % 512 == one[0] ^ other[0]).all()
    a, b, c = (
        x ^ y
        for x, y in zip(*run_both(lambda j: parties[j].pool.take(Triples(1), 40, 40)), strict=True)
    )
    assert (c == (a & b)).all()
    assert (
        parties[0].pool.left == parties[1].pool.left[::-1]
        and parties[0].pool.fingerprint == parties[1].pool.fingerprint
    )


PINNED = {
    "scan": "3d16c92ca8ec56941df40b4e7ce207de",
    "scan-unverified": "dae91ae8ce5535ae947c76999e9bc73c",
    "radix": "878748586e750b630df9c9e5f2dd3678",
    "pairwise": "5ba1e38a6c81c339239ceec461f17ef9",
}


@pytest.mark.parametrize("name", PINNED)
def test_wire_bytes_of_silent_ots_are_pinned(name: str) -> None:
    """Pin them as tests/test_privacy.py pins those over SoftSpokenOT."""
    params = ROUNDS[name]
    ends = recorders()
    both = make_parties(
        pairs=[ends],
        entropy=[deterministic_entropy(seed) for seed in (1, 2)],
        session_id=b"pinned by a test",
        extension="silent",
    )
    run_rounds(both, params, shares_of(params, inputs(params, "random"), deterministic_entropy(3)))
    digest = hashlib.sha256()
    for end in ends:
        for label, array in end.received:
            digest.update(label.encode() + array.tobytes())
    assert digest.hexdigest()[:32] == PINNED[name]
