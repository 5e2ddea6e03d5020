"""Oblivious transfer: base, extension, 1-of-2."""

import numpy as np
import pytest
from nacl import bindings as sodium

from securemedian.mpc.errors import LocalProtocolError, PeerProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.channel import local_pair
from securemedian.mpc.protocols.correlations.kinds import RandomOts
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.base import BaseOtReceiver, BaseOtSender
from securemedian.mpc.protocols.ot.extension import ALIGN, BLOCK, Direction, bit_planes
from securemedian.mpc.protocols.ot.softspoken import (
    SoftSpokenReceiver,
    SoftSpokenSender,
    receiver_setup,
    sender_setup,
)
from tests.parties import make_parties, run_both

SESSION = b"a session of the tests"
RNG = np.random.default_rng(11)


def extension(field_bits: int, lane: int = 0) -> tuple[SoftSpokenSender, SoftSpokenReceiver]:
    one, two = local_pair(20)
    (delta, holes), leaves = run_both(
        lambda j: (
            sender_setup(one, SESSION, field_bits)
            if j == 0
            else receiver_setup(two, SESSION, field_bits)
        )
    )
    sender = SoftSpokenSender(Direction(one, SESSION, lane, 0), delta, holes)
    return sender, SoftSpokenReceiver(Direction(two, SESSION, lane, 0), leaves)


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


@pytest.mark.parametrize("point", REFUSED.values(), ids=REFUSED.keys())
def test_base_ot_refuses_points_outside_the_group(point: bytes) -> None:
    """The neutral element, small and mixed orders, and second encodings, as A and as B."""
    one, two = local_pair()
    one.send("base.A", np.frombuffer(point, np.uint8))
    with pytest.raises(PeerProtocolError, match="A is not a point"):
        BaseOtReceiver(two, SESSION).keys(np.zeros(1, np.uint8))
    sender = BaseOtSender(one, SESSION)
    two.send("base.B", np.frombuffer(point, np.uint8).reshape(1, 32))
    with pytest.raises(PeerProtocolError, match=r"B\[0\] is not a point"):
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


def test_base_ot_refuses_the_b_that_is_a() -> None:
    """B = A is in the group, but B - A is the neutral element, whose key everybody knows."""
    one, two = local_pair()
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    two.send("base.B", two.recv("base.A", np.uint8, (32,)).reshape(1, 32))
    with pytest.raises(PeerProtocolError, match=r"B\[0\] is A"):
        sender.keys(1)


def test_base_ot_points_do_not_depend_on_the_choice() -> None:
    """Both choices give points of the prime-order group, so that membership tells nothing."""
    one, two = local_pair()
    sender = BaseOtSender(one, SESSION)
    sender.announce()
    BaseOtReceiver(two, SESSION).keys(np.array([0, 1] * 8, np.uint8))
    points = one.recv("base.B", np.uint8, (16, 32))
    assert all(sodium.crypto_core_ed25519_is_valid_point(point.tobytes()) for point in points)


@pytest.mark.parametrize("field_bits", [1, 2, 4, 8])
def test_extension_gives_the_chosen_key(field_bits: int) -> None:
    sender, receiver = extension(field_bits)
    seen = set()
    for count in (ALIGN, 3 * ALIGN, 1 << 13):
        choices, keys = receiver.extend(count)
        keys0, keys1 = sender.extend(count)
        bits = bits_of(choices, count)
        assert (np.where(bits[:, None] == 1, keys1, keys0) == keys).all()
        assert (keys0 != keys1).any(axis=1).all()
        assert 0.4 < bits.mean() < 0.6 or count == ALIGN
        seen |= {key.tobytes() for key in keys0} | {key.tobytes() for key in keys1}
    # no key twice
    assert len(seen) == 2 * (4 * ALIGN + (1 << 13))


@pytest.mark.parametrize("native_aes", [True, False])
def test_bit_planes_are_those_of_the_keys(native_aes: bool) -> None:
    """For both ends, from the same leaves and index on."""
    one, two = local_pair(20)
    leaves, (delta, holes) = run_both(
        lambda j: receiver_setup(one, SESSION, 4) if j == 0 else sender_setup(two, SESSION, 4)
    )
    here, there = (Direction(channel, SESSION, 0, 0, native_aes) for channel in (one, two))
    receivers = [SoftSpokenReceiver(here, leaves) for _ in range(2)]
    senders = [SoftSpokenSender(there, delta, holes) for _ in range(2)]
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


def test_extension_wire_bits() -> None:
    """128/k - 1 bits an OT (protocols.md 3)."""
    for field_bits in (1, 2, 4, 8):
        sender, receiver = extension(field_bits)
        before = receiver._channel.traffic.bytes_sent
        receiver.extend(BLOCK)
        bits = 8 * (receiver._channel.traffic.bytes_sent - before) / BLOCK
        assert 128 / field_bits - 1 <= bits < 128 / field_bits - 1 + 0.01
        del sender


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


def test_extension_does_not_print_secrets() -> None:
    sender, receiver = extension(4)
    assert repr(sender) == "SoftSpokenSender(index=0, <secrets>)" and "secrets" in repr(receiver)


@pytest.mark.parametrize("bits", [2, 7, 8, 32, 33, 64])
@pytest.mark.parametrize("count", [0, 1, 65, 1000])
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
