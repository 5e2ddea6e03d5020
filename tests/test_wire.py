"""wire and channel: what is sent arrives, and nothing else is taken."""

from typing import Any

import msgpack
import numpy as np
import pytest

from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    FrameError,
    LocalProtocolError,
    PeerProtocolError,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.channel import frame_size, local_pair

GOOD = {"v": wire.LAYOUT, "t": "x", "b": {}, "a": [["y", "<u4", [2]]]}


@pytest.mark.parametrize("name", sorted(wire.DTYPES))
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (1, 0, 2)])
def test_frames_round_trip(name: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape)), dtype=wire.DTYPES[name]).reshape(shape)
    parts = wire.pack(
        "kind",
        {"a": 1, "b": "text", "c": b"raw"},
        {"one": array, "two": array[..., ::-1] if shape else array},
    )
    message = wire.unpack([bytes(part) for part in parts])
    assert message.type == "kind" and message.fields == {"a": 1, "b": "text", "c": b"raw"}
    assert message.arrays["one"].dtype == array.dtype and message.arrays["one"].shape == shape
    np.testing.assert_array_equal(message.arrays["two"], array[..., ::-1] if shape else array)
    assert wire.size(parts) == sum(len(bytes(part)) for part in parts)


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({"v": 99}, bytes(8)),
        ({"t": 7}, bytes(8)),
        ({"b": []}, bytes(8)),
        ({"extra": 1}, bytes(8)),
        ({"a": []}, bytes(8)),
        ({"a": [["y", "<u4"]]}, bytes(8)),
        ({"a": [["y", "|O8", [1]]]}, bytes(8)),
        ({"a": [["y", "<u4", [-1]]]}, bytes(8)),
        ({"a": [["y", "<u4", [1 << 40, 1 << 40]]]}, bytes(8)),
        ({"a": [["y", "<u4", [True]]]}, bytes(4)),
        ({}, bytes(7)),
        ({}, bytes(9)),
    ],
)
def test_bad_frames_are_refused(change: dict[str, object], body: bytes) -> None:
    wire.unpack([msgpack.packb(GOOD), bytes(8)])
    with pytest.raises(FrameError):
        wire.unpack([msgpack.packb(GOOD | change), body])


def test_missing_parts_and_surplus_parts_are_refused() -> None:
    for parts in (
        [],
        [msgpack.packb(GOOD)],
        [msgpack.packb(GOOD), bytes(8), bytes(8)],
        [bytes(wire.MAX_HEADER_BYTES + 1)],
    ):
        with pytest.raises(FrameError):
            wire.unpack(parts)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_long_arrays_travel_in_pieces(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    monkeypatch.setattr(wire, "PIECE_BYTES", 100)
    arrays: dict[str, np.ndarray] = {
        "empty": np.zeros((0, 3), np.uint8),
        "long": np.arange(300 + more, dtype=np.uint8),
        "short": np.arange(5, dtype=np.float32),
    }
    parts = [bytes(part) for part in wire.pack("x", {}, arrays)]
    assert max(map(len, parts[1:])) <= 100 and len(parts) == 1 + 1 + 3 + (more > 0) + 1
    found = wire.unpack(parts).arrays
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())
    # cut elsewhere, one missing, one too many
    for wrong in (
        [*parts[:2], parts[2][:-1], parts[2][-1:] + parts[3], *parts[4:]],
        [*parts[:2], parts[2][:50], parts[2][50:], *parts[3:]],
        [*parts[:3], *parts[4:]],
        [*parts, b""],
    ):
        with pytest.raises(FrameError):
            wire.unpack(wrong)


def test_texts_arrive_printable() -> None:
    text = "aborted: \x1b]0;owned\x07\nsecuremedian: submitted"
    fields = {"reason": text, "left_out": {text: [text]}, "raw": b"\x1b", "name": "Hôpital"}
    message = wire.unpack(wire.pack("a\x1b", fields))
    escaped = r"aborted: \x1b]0;owned\x07\nsecuremedian: submitted"
    assert message.type == r"a\x1b"
    assert message.fields == fields | {"reason": escaped, "left_out": {escaped: [escaped]}}
    deep: Any = "end"
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(FrameError):
        wire.unpack(wire.pack("a", {"deep": deep}))


def test_dtypes_without_a_name_are_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="complex"):
        wire.pack("x", {}, {"y": np.zeros(1, complex)})


def test_channel_checks_label_dtype_shape_and_order() -> None:
    array = np.arange(4, dtype=np.uint64)
    for label, dtype, shape in (
        ("other", np.uint64, (4,)),
        ("sum", np.uint32, (4,)),
        ("sum", np.uint64, (5,)),
    ):
        one, two = local_pair()
        one.send("sum", array)
        with pytest.raises(PeerProtocolError):
            two.recv(label, dtype, shape)
    one, two = local_pair()
    one.send("sum", array)
    one.traffic.messages_sent = 0
    one.send("sum", array)
    two.recv("sum", np.uint64, (4,))
    with pytest.raises(PeerProtocolError, match="expected message 1 'sum', got 0"):
        two.recv("sum", np.uint64, (4,))


@pytest.mark.parametrize("label", ["sum", "other"])
def test_a_message_that_was_lost_is_no_fault_of_the_peer(label: str) -> None:
    """A round that breaks off for it is made again, and one with a peer that errs is not."""
    one, two = local_pair()
    for sent in ("lost", label):
        one.send(sent, np.arange(4, dtype=np.uint64))
    two._link.recv()
    with pytest.raises(ChannelClosed, match="message 1 came where 0 was due"):
        two.recv("sum", np.uint64, (4,))


@pytest.mark.parametrize("shape", [(), (0,), (3,), (70000, 2)])
def test_the_size_of_a_message_does_not_depend_on_its_number(shape: tuple[int, ...]) -> None:
    one, two = local_pair()
    sizes = []
    for number in (0, 127, 128, 255, 256, 70000):
        one.traffic.messages_sent = two.traffic.messages_received = number
        one._depth = 3 * number
        before = one.traffic.bytes_sent, two.traffic.bytes_received
        one.send("sum", np.zeros(shape, np.uint8))
        two.recv("sum", np.uint8, shape)
        sizes += [one.traffic.bytes_sent - before[0], two.traffic.bytes_received - before[1]]
    assert set(sizes) == {frame_size("sum", np.uint8, shape)}


@pytest.mark.parametrize("fields", [{}, {"at": 5}, {"at": bytes(7)}, {"at": "12345678"}])
def test_a_message_without_its_number_and_depth_is_refused(fields: dict[str, object]) -> None:
    one, two = local_pair()
    one._link.send(wire.pack("sum", fields, {"": np.zeros(1, np.uint8)}))
    with pytest.raises(PeerProtocolError, match="lacks its number"):
        two.recv("sum", np.uint8, (1,))


def test_a_depth_that_no_computation_has_is_refused() -> None:
    """Otherwise the next message here had no room for its own."""
    one, two = local_pair()
    one._depth = 1 << 31
    one.send("sum", np.zeros(1, np.uint8))
    with pytest.raises(PeerProtocolError, match="'sum' has the depth 2,147,483,649"):
        two.recv("sum", np.uint8, (1,))


def test_channel_waits_end() -> None:
    one, two = local_pair(timeout_s=0.05)
    with pytest.raises(ChannelTimeout):
        one.recv("x", np.uint8, (1,))
    two.close()
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            one.recv("x", np.uint8, (1,))


def test_channel_counts_bytes_and_the_longest_chain_of_messages() -> None:
    one, two = local_pair()
    payload = np.zeros(100, np.uint8)
    one.send("a", payload)
    # does not wait for anything: the same round
    one.send("b", payload)
    two.recv("a", np.uint8, (100,))
    # depends on a: round 2
    two.send("c", payload)
    two.recv("b", np.uint8, (100,))
    one.recv("c", np.uint8, (100,))
    assert one.traffic.rounds == two.traffic.rounds == 2
    assert one.traffic.bytes_sent == two.traffic.bytes_received > 200
    assert (one.traffic.messages_sent, two.traffic.messages_sent) == (2, 1)
    one.send("d", payload)
    assert one.traffic.rounds == 3
