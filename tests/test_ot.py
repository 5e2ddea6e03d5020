"""Oblivious transfer: base, extension, 1-of-2."""

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from nacl import bindings as sodium

from securemedian.mpc.errors import ChannelClosed, LocalProtocolError, PeerProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.correlations import pool
from securemedian.mpc.protocols.correlations.base import Demand, Kind
from securemedian.mpc.protocols.correlations.kinds import DaBits, RandomOts, Tables, Triples
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.base import BaseOtReceiver, BaseOtSender, _key, _to_group
from securemedian.mpc.protocols.ot.consistency import reduced
from securemedian.mpc.protocols.ot.extension import ALIGN, BLOCK, Direction, bit_planes
from securemedian.mpc.protocols.ot.ggm import _seeds, receiver_setup, sender_setup
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.prg import os_entropy
from tests.parties import make_parties, run_both

SESSION = b"a session of the tests"
RNG = np.random.default_rng(11)


def base_of(field_bits: int) -> tuple[Any, Any]:
    """Return the base OTs of both ends: Delta with one seed of each pair, and all seeds."""
    one, two = local_pair(20)
    return run_both(
        lambda j: (
            sender_setup(one, SESSION, field_bits)
            if j == 0
            else receiver_setup(two, SESSION, field_bits)
        )
    )


def extension(
    field_bits: int, lane: int = 0, native_aes: tuple[bool, bool] = (True, True)
) -> tuple[SoftSpokenSender, SoftSpokenReceiver]:
    (delta, holes), leaves = base_of(field_bits)
    ends = [
        Direction(end, SESSION, lane, 0, native)
        for end, native in zip(local_pair(20), native_aes, strict=True)
    ]
    return SoftSpokenSender(ends[0], delta, holes), SoftSpokenReceiver(ends[1], leaves)


def bits_of(words: np.ndarray, count: int) -> np.ndarray:
    bits = np.empty(count, np.uint8)
    packing.unpack_bits(words, bits)
    return bits


def test_base_ot_gives_the_chosen_key_alone() -> None:
    one, two = local_pair()
    choices = RNG.integers(0, 2, 40).astype(np.uint8)
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    pairs, keys = run_both(
        lambda j: sender.keys(40) if j == 0 else BaseOtReceiver(two, SESSION).keys(choices)
    )
    flat = [key for pair in pairs for key in pair]
    # no two keys agree, so the receiver's key tells which it is
    assert len(set(flat)) == 80
    assert [pair[choice] for pair, choice in zip(pairs, choices, strict=True)] == keys


def test_base_ot_keys_are_bound_to_the_session() -> None:
    one, two = local_pair()
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    pairs, keys = run_both(
        lambda j: (
            sender.keys(2)
            if j == 0
            else BaseOtReceiver(two, b"another").keys(np.zeros(2, np.uint8))
        )
    )
    assert not {key for pair in pairs for key in pair} & set(keys)


P25519 = 2**255 - 19
# The points of small order: of order 1, 2, 4 (two) and 8 (four), as libsodium writes them.
TORSION = [
    bytes.fromhex(point)
    for point in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    )
]
SIGN = 1 << 255


def prime_order_point() -> bytes:
    scalar = sodium.crypto_core_ed25519_scalar_reduce(RNG.bytes(64))
    return sodium.crypto_scalarmult_ed25519_base_noclamp(scalar)


def refused_points() -> dict[str, bytes]:
    """Return encodings that no honest party sends, by what is wrong with them."""
    points = {f"small order {i}": point for i, point in enumerate(TORSION)}
    for i, point in enumerate(TORSION[1:], 1):
        mixed = sodium.crypto_core_ed25519_add(prime_order_point(), point)
        points[f"mixed order {i}"] = mixed
    # y + p for the few y that leave room for it, with either sign. None of them is the y of a point
    # of prime order (below): a point of the group has one encoding.
    for y in range(19):
        for sign in (0, SIGN):
            points[f"y = {y} + p, sign {sign >> 255}"] = (y + P25519 | sign).to_bytes(32, "little")
    # x = 0 has no sign
    for y in (1, P25519 - 1):
        points[f"y = {y % 7}, x = -0"] = (y | SIGN).to_bytes(32, "little")
    return points


REFUSED = refused_points()


def test_base_ot_refuses_points_outside_the_group() -> None:
    """Send the neutral element, small and mixed orders, and second encodings, as A and as B."""
    one, two = local_pair()
    for point in REFUSED.values():
        one.send("base.A", np.frombuffer(point, np.uint8))
        with pytest.raises(PeerProtocolError, match="A is not a point"):
            BaseOtReceiver(two, SESSION).keys(np.zeros(1, np.uint8))
    for point, side in product(REFUSED.values(), (0, 1)):
        sender, pair = BaseOtSender(one, SESSION), [prime_order_point(), prime_order_point()]
        pair[side] = point
        two.send("base.B", np.frombuffer(b"".join(pair), np.uint8).reshape(1, 2, 32))
        with pytest.raises(PeerProtocolError, match=rf"B\[0, {side}\] is not a point"):
            sender.keys(1)


def test_the_refused_points_are_what_they_are_said_to_be() -> None:
    """The eight torsion points have order 8 at most, and a mixed point without its T is good."""
    assert len(set(TORSION)) == 8
    for point in TORSION:
        eightfold = point
        for _ in range(3):
            eightfold = sodium.crypto_core_ed25519_add(eightfold, eightfold)
        assert eightfold == TORSION[0]
    valid = sodium.crypto_core_ed25519_is_valid_point
    for i, point in enumerate(TORSION[1:], 1):
        assert valid(sodium.crypto_core_ed25519_sub(REFUSED[f"mixed order {i}"], point))
    assert not any(valid((y | s).to_bytes(32, "little")) for y in range(19) for s in (0, SIGN))


@pytest.mark.parametrize("side", [0, 1])
def test_base_ot_refuses_the_key_that_everybody_knows(side: int) -> None:
    """Both points are in the group, but one is the negative of the other's hash."""
    one, two = local_pair()
    sender, pair = BaseOtSender(one, SESSION), [prime_order_point(), prime_order_point()]
    neutral = TORSION[0]
    pair[side] = sodium.crypto_core_ed25519_sub(
        neutral, _to_group(SESSION, 0, side, pair[1 - side])
    )
    two.send("base.B", np.frombuffer(b"".join(pair), np.uint8).reshape(1, 2, 32))
    with pytest.raises(PeerProtocolError, match=rf"B\[0, {side}\] with the hash .* not a point"):
        sender.keys(1)


def test_base_ot_points_do_not_depend_on_the_choice() -> None:
    """Both choices give points of the prime-order group, so that membership tells nothing."""
    one, two = local_pair()
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    BaseOtReceiver(two, SESSION).keys(np.array([0, 1] * 8, np.uint8))
    points = one.recv("base.B", np.uint8, (16, 2, 32)).reshape(32, 32)
    assert all(sodium.crypto_core_ed25519_is_valid_point(point.tobytes()) for point in points)


def test_the_hash_to_the_group_takes_in_all_that_it_is_given() -> None:
    """Otherwise a receiver takes it off its own point, and has both keys."""
    points = prime_order_point(), prime_order_point()
    hashed = {
        _to_group(session, index, side, point)
        for session in (SESSION, b"another")
        for index in (0, 1)
        for side in (0, 1)
        for point in points
    }
    assert len(hashed) == 16
    assert all(sodium.crypto_core_ed25519_is_valid_point(point) for point in hashed)


def test_a_base_ot_receiver_that_knows_both_points_has_no_key() -> None:
    """It cannot send multiples of G that it knows and have either key: the hashes are added."""
    one, two = local_pair()
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    a_point = two.recv("base.A", np.uint8, (32,)).tobytes()
    secrets = [sodium.crypto_core_ed25519_scalar_reduce(RNG.bytes(64)) for _ in range(2)]
    pair = [sodium.crypto_scalarmult_ed25519_base_noclamp(secret) for secret in secrets]
    two.send("base.B", np.frombuffer(b"".join(pair), np.uint8).reshape(1, 2, 32))
    ((key0, key1),) = sender.keys(1)
    known = {
        _key(SESSION, 0, side, a_point + pair[0] + pair[1], shared)
        for side in (0, 1)
        for shared in (
            sodium.crypto_scalarmult_ed25519_noclamp(secret, a_point) for secret in secrets
        )
    }
    assert not {key0, key1} & known


class Lying(Channel):
    """A channel on which some messages are changed before they are sent."""

    def __init__(self, channel: Channel, change: Callable[[str, np.ndarray], None]) -> None:
        super().__init__(channel._link)
        self._change = change
        self.sent: list[str] = []

    def send(self, label: str, array: np.ndarray) -> None:
        self.sent.append(label)
        array = array.copy()
        self._change(label, array)
        super().send(label, array)


@pytest.mark.parametrize("block", [0, 31])
@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("side", [0, 1])
def test_a_wrong_sum_of_a_tree_is_found_by_the_sender_that_uses_it(
    block: int, level: int, side: int
) -> None:
    """It passes with the chance of one half that the path leads there, which it then has told."""

    def wrong(label: str, array: np.ndarray) -> None:
        if label == "ggm.sums":
            array.reshape(-1, 2, 16)[4 * block + level, side, 3] ^= 1

    delta = RNG.bytes(16)
    drawn = iter([delta])
    one, two = local_pair(20)
    # the path of a block begins with the top bit
    bit = delta[block // 2] >> (4 * (block % 2) + 3 - level) & 1
    sender = partial(
        sender_setup, one, SESSION, 4, lambda size: next(drawn, None) or os_entropy(size)
    )
    receiver = partial(receiver_setup, Lying(two, wrong), SESSION, 4)

    def both(j: int) -> None:
        try:
            (sender, receiver)[j]()
        except PeerProtocolError:
            # so that the other does not wait
            one.close()
            raise
        except ChannelClosed:
            pass

    if bit == side:
        run_both(both)
        return
    with pytest.raises(PeerProtocolError, match=rf"trees are wrong \(of blocks \[{block}\]\)"):
        run_both(both)


def test_streams_of_equal_leaves_differ() -> None:
    """So columns of V cannot be made to collide under the hash's tweaks, whatever the leaves."""
    same = [[bytes(16)] * 16] * 32
    seeds = _seeds(b"a coin", same)
    flat = [seed for tree in seeds for seed in tree]
    assert len(set(flat)) == len(flat) and not set(flat) & {*sum(_seeds(b"another", same), [])}


def weighed(sender: SoftSpokenSender, receiver: SoftSpokenReceiver) -> None:
    """End a portion of what was extended."""
    run_both(lambda j: (sender.challenge, receiver.seal)[j]())
    receiver.weigh()


def checked(sender: SoftSpokenSender, receiver: SoftSpokenReceiver) -> None:
    """Check what was extended."""
    weighed(sender, receiver)
    run_both(lambda j: (sender.verify, receiver.prove)[j]())


def flipping(channel: Channel, flips: list[tuple[int, int]]) -> Lying:
    """Return a channel on which the correction of OTs is wrong in blocks: (block, OT).

    It is so in the first message of corrections. If all blocks but block 0 are wrong, the result is
    the same as with block 0 alone.
    """
    first = iter([True])

    def flip(label: str, array: np.ndarray) -> None:
        if label == "ot.corrections" and next(first, False):
            for block, ot in flips:
                array[block - 1, ot // 64] ^= np.uint64(1) << np.uint64(ot % 64)

    return Lying(channel, flip)


@pytest.mark.parametrize(
    ("field_bits", "native_aes"), [(1, True), (2, False), (4, True), (4, False), (8, False)]
)
def test_honest_corrections_pass(field_bits: int, native_aes: bool) -> None:
    """However many OTs and portions there are, check after check, and if there is nothing to check.

    Rows are weighed by the call that takes their memory, which some find and others do not.
    """
    sender, receiver = extension(field_bits, native_aes=(native_aes, not native_aes))
    alike = [[3, 1], [1, 3], [], [3, 3], [3], [2]]
    checks: list[list[list[int]]] = [[[1]], [], [[3, 1]], [[]], alike, [[200], [1, 1], [200]]]
    seen = set()
    for portions in checks:
        for counts in portions:
            for count in counts:
                choices, keys = receiver.extend(count * ALIGN)
                keys0, keys1 = sender.extend(count * ALIGN)
                bits = bits_of(choices, count * ALIGN)
                assert (np.where(bits[:, None] == 1, keys1, keys0) == keys).all()
                assert 0.4 < bits.mean() < 0.6 or count < 200
                seen |= {key.tobytes() for key in (*keys0, *keys1)}
            weighed(sender, receiver)
        checked(sender, receiver)
    assert sender.index == receiver.index == 426 * ALIGN
    # no key twice
    assert len(seen) == 2 * 426 * ALIGN


@pytest.mark.parametrize("field_bits", [1, 2, 4, 8])
@pytest.mark.parametrize("block", [0, 3])
def test_a_wrong_block_passes_who_guesses_its_delta(field_bits: int, block: int) -> None:
    """One guess of 2^k passes: what is learnt with a chance of 2^-k is k bits of Delta."""
    (delta, holes), leaves = base_of(field_bits)
    blocks = len(leaves)
    right = int((delta[block * field_bits :][:field_bits] << np.arange(field_bits)).sum())
    wrong = [block] if block else list(range(1, blocks))
    guesses = range(1 << field_bits) if field_bits < 8 else {right, right ^ 1, right ^ 128, 0, 255}
    passed = set()
    for lane, guess in enumerate(guesses):
        one, two = local_pair(20)
        receiver = SoftSpokenReceiver(
            Direction(flipping(two, [(number, 5) for number in wrong]), SESSION, lane, 0), leaves
        )
        sender = SoftSpokenSender(Direction(one, SESSION, lane, 0), delta, holes)
        receiver.extend(ALIGN)
        sender.extend(ALIGN)

        weighed(sender, receiver)
        # v~ is off by what the sender's w~ is off by if the guess is right
        weighing, shifted = receiver._weighing, shifted_by_5(receiver)
        assert weighing is not None
        if block == 0:
            # all other blocks are right for this u
            weighing.choices[0] ^= shifted
        for t in range(field_bits):
            weighing.rows[block * field_bits + t] ^= shifted * np.uint64(guess >> t & 1)
        try:
            run_both(lambda j, ends=(sender.verify, receiver.prove): ends[j]())  # type: ignore[misc]
            passed.add(guess)
        except PeerProtocolError as error:
            assert "corrections of OTs are not those of one vector" in str(error)
    assert passed == {right}


def shifted_by_5(receiver: SoftSpokenReceiver) -> np.ndarray:
    """Return chi_0 x^5 of the last portion, low word first: the weight of its bit 5."""
    chi = int(receiver._weighted[0][1][0])
    return np.array([chi << 5 & 2**64 - 1, chi >> 59], np.uint64)


@pytest.mark.parametrize("later", ["the words that hide", "the same again", "nothing"])
def test_later_portions_do_not_make_up_for_a_wrong_one(later: str) -> None:
    """A party that knows a portion's seed has told all that its weights count for.

    The words that hide all others have weight 1. Made after a seed is told, they would be off by
    what the sum is off by, and every wrong block would pass.
    """
    (delta, holes), leaves = base_of(4)
    # one in which it matters
    block = 1 + int(np.argmax(delta.reshape(32, 4)[1:].any(axis=1)))
    one, two = local_pair(20)
    off: list[np.uint64] = []

    def lie(label: str, array: np.ndarray) -> None:
        if label != "ot.corrections":
            return
        if lying.sent.count(label) == 1 or later == "the same again" and array.shape[1] > 2:
            array[block - 1, 0] ^= np.uint64(1 << 5)
        elif off and array.shape[1] == 2 and later == "the words that hide":
            array[block - 1, 1] ^= off[0]

    lying = Lying(two, lie)
    receiver = SoftSpokenReceiver(Direction(lying, SESSION, 0, 0), leaves)
    sender = SoftSpokenSender(Direction(one, SESSION, 0, 0), delta, holes)
    for _ in range(2):
        receiver.extend(2 * ALIGN)
        sender.extend(2 * ALIGN)
        weighed(sender, receiver)
        off += reduced(shifted_by_5(receiver)[None]).tolist()
    with pytest.raises(PeerProtocolError, match="none of these OTs is used"):
        run_both(lambda j: (sender.verify, receiver.prove)[j]())


def test_flipped_corrections_are_found_before_a_key_is_used() -> None:
    """93 OTs that are wrong in one block each, of which keys told all of Delta up to 0.8.0."""
    ots = [(block, 3 * block + i) for block in range(1, 32) for i in range(3)]
    ots += [(block, i) for block in range(1, 32) for i in range(3)]
    one, two = local_pair(20)
    pair = Lying(one, lambda label, array: None), flipping(two, [])
    parties = [lanes[0] for lanes in make_parties(pairs=[pair])]
    honest, rogue = parties
    demand = Demand({RandomOts(8): (4096, 0), DaBits(8): (128, 128)})
    receiver = rogue.pool.ends.receiver
    assert isinstance(receiver, SoftSpokenReceiver)
    receiver._channel = flipping(two, ots)
    # messages are numbered by what was counted
    receiver._channel.traffic = pair[1].traffic
    pair[0].sent.clear()

    def reserve(j: int) -> None:
        try:
            parties[j].pool.reserve(demand)
        except ChannelClosed:
            assert j == 1
        finally:
            pair[j].close()

    with pytest.raises(PeerProtocolError, match="none of these OTs is used"):
        run_both(reserve)
    assert not any(sum(counts) for counts in honest.pool.stock.values())
    # nothing was made of a key
    assert set(pair[0].sent) == {"ot.corrections", "ot.challenge", "ot.proof"}


def test_corrections_of_dabits_follow_the_check() -> None:
    one, two = local_pair(20)
    pair = Lying(one, lambda label, array: None), Lying(two, lambda label, array: None)
    parties = [lanes[0] for lanes in make_parties(pairs=[pair])]
    run_both(lambda j: parties[j].pool.reserve(Demand({DaBits(8): (128, 128)})))
    for end in pair:
        assert end.sent[-3:] == ["ot.challenge", "ot.proof", "dabits"]


def test_a_fill_is_checked_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a receiver keeps few rows, and that both parties make the same OTs."""
    monkeypatch.setattr(pool, "PORTION", 5 * ALIGN)
    one, two = local_pair(20)
    pair = Lying(one, lambda label, array: None), Lying(two, lambda label, array: None)
    parties = [lanes[0] for lanes in make_parties(pairs=[pair])]
    kinds: dict[Kind[Any], tuple[int, int]] = {
        RandomOts(8): (900, 2000),
        Tables(3, 2): (5, 20),
        Triples(1): (9, 9),
    }
    run_both(lambda j: parties[j].pool.reserve(Demand(kinds)))
    # for about 2,400 OTs and about 6,400, in portions of at least 640
    assert [end.sent.count("ot.challenge") for end in pair] == [4, 9]
    assert [end.sent.count("ot.proof") for end in pair] == [1, 1]
    made = [party.pool.stock for party in parties]
    assert all(made[0][kind] == made[1][kind][::-1] for kind in kinds)
    assert all(made[0][kind] >= kinds[kind] for kind in kinds)
    (send, _), (_, receive) = run_both(
        lambda j: parties[j].pool.take(RandomOts(8), *((900, 0) if j == 0 else (0, 900)))
    )
    assert (np.where(receive.choices == 1, send.keys1, send.keys0) == receive.keys).all()


@pytest.mark.parametrize(
    ("field_bits", "native_aes"), [(1, True), (2, False), (4, True), (4, False), (8, False)]
)
def test_correlated_ots(field_bits: int, native_aes: bool) -> None:
    """W = V ^ u Delta, in the low 64 bits, and keys; between OTs that are hashed, and checked."""
    sender, receiver = extension(field_bits, native_aes=(native_aes, not native_aes))
    for ots in ([1], [3, 3], [7, 1, 7]):
        for count in ots:
            for ends, hashed in (((sender, receiver), True), ((sender.low, receiver.low), False)):
                own, peers, key, key0, key1 = np.zeros((5, count * ALIGN), np.uint64)
                index = ends[0].index
                choices = ends[1].extend_correlated(own, *([key] if hashed else []))
                ends[0].extend_correlated(peers, *([key0, key1] if hashed else []))
                bits = bits_of(choices, count * ALIGN).astype(np.uint64)
                assert (peers == own ^ bits * ends[0].delta[0]).all()
                assert (key == np.where(bits == 1, key1, key0)).all()
                assert not hashed or (key0 != key1).all()
                assert ends[0].index == ends[1].index == index + count * ALIGN
            choices, keys = receiver.extend(count * ALIGN)
            keys0, keys1 = sender.extend(count * ALIGN)
            bits = bits_of(choices, count * ALIGN)
            assert (np.where(bits[:, None] == 1, keys1, keys0) == keys).all()
        for ends in ((sender, receiver), (sender.low, receiver.low)):
            weighed(*ends)
            checked(*ends)
    assert (sender.low.delta == sender.delta[:1]).all()


def twice(native_aes: bool) -> tuple[list[SoftSpokenReceiver], list[SoftSpokenSender]]:
    """Return two receivers and two senders with the same leaves, at the same index."""
    one, two = local_pair(20)
    leaves, (delta, holes) = run_both(
        lambda j: receiver_setup(one, SESSION, 4) if j == 0 else sender_setup(two, SESSION, 4)
    )
    here, there = (Direction(channel, SESSION, 0, 0, native_aes) for channel in (one, two))
    receivers = [SoftSpokenReceiver(here, leaves) for _ in range(2)]
    senders = [SoftSpokenSender(there, delta, holes) for _ in range(2)]
    return receivers, senders


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("block", [1, 15])
def test_wrong_corrections_of_correlated_ots_are_found(low: bool, block: int) -> None:
    (delta, holes), leaves = base_of(4)
    # one in which it matters
    while not delta[4 * block : 4 * block + 4].any():
        (delta, holes), leaves = base_of(4)
    one, two = local_pair(20)
    receiver = SoftSpokenReceiver(Direction(flipping(two, [(block, 5)]), SESSION, 0, 0), leaves)
    sender = SoftSpokenSender(Direction(one, SESSION, 0, 0), delta, holes)
    ends = (sender.low, receiver.low) if low else (sender, receiver)
    out = np.empty(ALIGN, np.uint64)
    ends[1].extend_correlated(out)
    ends[0].extend_correlated(out)
    with pytest.raises(PeerProtocolError, match="none of these OTs is used"):
        checked(*ends)


def test_low_ends_have_streams_of_their_own() -> None:
    _, receiver = extension(4)
    out = np.empty((2, ALIGN), np.uint64)
    choices = receiver.extend_correlated(out[0])
    assert not (receiver.low.extend_correlated(out[1]) == choices).any()
    assert not (out[0] == out[1]).any()
    # once, or what they make would be made again
    assert receiver.low is receiver.low


@pytest.mark.parametrize("native_aes", [True, False])
def test_bit_planes_are_those_of_the_keys(native_aes: bool) -> None:
    """Compare them at both ends, from the same leaves and index on."""
    receivers, senders = twice(native_aes)
    # the last takes a whole block and a part of one
    for blocks in ([3 * ALIGN], [ALIGN], [BLOCK, ALIGN]):
        parts = [tuple(array.copy() for array in receivers[0].extend(count)) for count in blocks]
        choices, planes = receivers[1].extend_planes(sum(blocks), 5)
        want, keys = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        assert (choices == want).all() and (planes == bit_planes(keys, 5)).all()
        pairs = [[bit_planes(keys, 5) for keys in senders[0].extend(count)] for count in blocks]
        wanted = [np.concatenate(arrays, axis=1) for arrays in zip(*pairs, strict=True)]
        for want, got in zip(wanted, senders[1].extend_planes(sum(blocks), 5), strict=True):
            assert (got == want).all()
    assert {end.index for end in (*receivers, *senders)} == {BLOCK + 5 * ALIGN}
    for end in (senders[1], receivers[1]):
        with pytest.raises(LocalProtocolError, match="multiple"):
            end.extend_planes(BLOCK + 1, 5)


def test_lanes_share_nothing() -> None:
    """The same base OTs on two lanes give unrelated keys and tweaks."""
    one, two = local_pair()
    leaves, (delta, holes) = run_both(
        lambda j: receiver_setup(one, SESSION, 4) if j == 0 else sender_setup(two, SESSION, 4)
    )
    keys = [
        SoftSpokenReceiver(Direction(one, SESSION, lane, 0), leaves).extend(ALIGN)[1].copy()
        for lane in (0, 1)
    ]
    assert not (keys[0] == keys[1]).any()
    del delta, holes


@pytest.mark.parametrize("count", [0, 1, ALIGN - 1, BLOCK + ALIGN, -ALIGN])
def test_extension_refuses_sizes_it_cannot_make(count: int) -> None:
    sender, receiver = extension(4)
    for end in (sender, receiver):
        with pytest.raises(LocalProtocolError, match="multiple"):
            end.extend(count)


@pytest.mark.parametrize(("bits", "count"), [(2, 0), (33, 65), (64, 1000)])
def test_correlated_one_of_two(bits: int, count: int) -> None:
    parties = [lanes[0] for lanes in make_parties()]
    delta = ring.reduce(RNG.integers(0, 2**64, count, np.uint64), bits)
    choice = RNG.integers(0, 2, count).astype(np.uint8)
    (sender, _), (_, receiver) = run_both(
        lambda j: parties[j].pool.take(RandomOts(bits), *((count, 0) if j == 0 else (0, count)))
    )
    request = receiver.request(choice)
    reply, own = sender.correlated(request, delta)
    got = receiver.finish_correlated(choice, reply)
    assert (ring.reduce(own + got, bits) == ring.reduce(choice * delta, bits)).all()
    with pytest.raises(LocalProtocolError, match="serves once"):
        receiver.request(choice)
    with pytest.raises(LocalProtocolError, match="serves once"):
        sender.correlated(request, delta)
