"""servers.network.sealed: lanes on AES-GCM, attacked on the line, by strangers and the peer."""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zmq
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from securemedian.common.addresses import host_of, listens_ipv6
from securemedian.common.keys import KeyPair, SigningKey
from securemedian.mpc.errors import ChannelClosed, ChannelTimeout, ConfigError, PeerProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.servers.config import PeerTable
from securemedian.servers.logs import BURST
from securemedian.servers.network import sealed, transport
from securemedian.servers.network.sealed import PENDING, TAG_BYTES, TOKEN_BYTES, Records, SealedPort
from securemedian.servers.network.transport import PEER_DOMAIN, Lane, PeerPort, authenticate
from tests.daemons import wait_until

pytestmark = pytest.mark.slow

WAIT_S = 60.0
# for what must not come
QUICK_S = 1.0
HEAD = struct.Struct("<I")
Record = tuple[bytes, bytes]
# the records that the line carries on, of all that came so far in one direction
Tamper = Callable[[int, list[Record]], list[Record]]


class Line:
    """The line between S0 and S1's port for lanes, with somebody on it who sees whole records."""

    def __init__(self, port: SealedPort) -> None:
        self._to = "127.0.0.1", port.number
        self._listener = socket.create_server(("127.0.0.1", 0))
        # S1 offers this one, as behind a translated address
        port.number = self._listener.getsockname()[1]
        self.tamper: Tamper = lambda direction, records: records[-1:]
        self.seen: list[list[Record]] = [[], []]
        self.ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                far = socket.create_connection(self._to)
                self.ends += near, far
                far.sendall(near.recv(TOKEN_BYTES, socket.MSG_WAITALL))
                for direction, (source, sink) in enumerate(((near, far), (far, near))):
                    threading.Thread(
                        target=self._carry, args=(direction, source, sink), daemon=True
                    ).start()

    def _carry(self, direction: int, source: socket.socket, sink: socket.socket) -> None:
        records: list[Record] = []
        with suppress(OSError):
            while head := source.recv(HEAD.size, socket.MSG_WAITALL):
                size = (HEAD.unpack(head)[0] & (1 << 31) - 1) + TAG_BYTES
                records.append((head, source.recv(size, socket.MSG_WAITALL)))
                self.seen[direction].append(records[-1])
                for record in self.tamper(direction, records):
                    sink.sendall(b"".join(record))
        self.cut([source, sink])

    def cut(self, ends: Sequence[socket.socket] = ()) -> None:
        """Cut one connection, or all that the line carries."""
        for end in ends or self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for end in (self._listener, *self.ends):
            end.close()


class Pair:
    """Both servers' peer ports, with a line between them."""

    def __init__(self) -> None:
        self.keys = [KeyPair(*zmq.curve_keypair()) for _ in range(2)]
        self.contexts = [zmq.Context(), zmq.Context()]
        self.gate = authenticate(self.contexts[1], {PEER_DOMAIN: [self.keys[0].public.decode()]})
        self.one = PeerPort(self.contexts[1], 1, self.keys[1], "tcp://127.0.0.1:*", "", True, 0)
        self.zero = self.connect()
        assert self.one.sealed
        self.port = self.one.sealed
        self.line = Line(self.port)
        self.lanes: list[Lane] = []
        self._names = itertools.count()

    def connect(self, aes: bool = True) -> PeerPort:
        peer = self.keys[1].public.decode()
        return PeerPort(self.contexts[0], 0, self.keys[0], self.one.endpoint, peer, aes)

    def open(self, timeout_s: float = WAIT_S) -> list[Lane]:
        """Return both ends of a new lane, S0's first, before they meet."""
        name = next(self._names)
        ends = [port.lane(bytes(16), name, timeout_s) for port in (self.one, self.zero)][::-1]
        self.lanes += ends
        return ends

    def meet(self, ends: list[Lane]) -> list[Lane]:
        with ThreadPoolExecutor(2) as both:
            for done in [both.submit(end.meet, party) for party, end in enumerate(ends)]:
                done.result(WAIT_S)
        return ends

    def control(self) -> zmq.Socket:
        """Return S1's end of a stream on which nothing comes."""
        return self.one.stream("control")

    def met(self, timeout_s: float = WAIT_S) -> list[Lane]:
        return self.meet(self.open(timeout_s))

    def close(self) -> None:
        for lane in self.lanes:
            lane.release()
        self.line.close()
        self.one.close()
        self.gate.stop()
        for context in self.contexts:
            context.term()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Collect what is logged while the test runs: names and fields."""
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(
        transport.logs, "event", lambda name, *_, **fields: told.append((name, fields))
    )
    return told


def sent(records: list[Record]) -> bytes:
    return b"".join(b"".join(record) for record in records)


def goes_both_ways(ends: list[Lane]) -> bool:
    """Return whether a message arrives in both directions."""
    for source, sink in (ends, ends[::-1]):
        source.send([b"header", b"\x07" * 1000])
        if sink.recv() != [b"header", b"\x07" * 1000]:
            return False
    return True


def test_sealed_lanes_carry_arrays_both_ways_at_once(pair: Pair) -> None:
    """Neither end reads before both have sent more than the kernel holds."""
    ends = pair.met()
    assert all(end.sealed for end in ends)
    zero, one = (Channel(end) for end in ends)
    big = np.arange(6_000_000, dtype=np.uint64)
    for end in (zero, one):
        end.send("big", big)
        end.send("empty", big[:0])
    for end in (zero, one):
        came = end.recv("big", np.uint64, big.shape)
        assert np.array_equal(came, big) and came.flags.aligned
        assert end.recv("empty", np.uint64, (0,)).size == 0
    assert one.traffic == zero.traffic
    for lane in ends:
        # an idle one lives on behind a firewall
        assert lane._sealed
        assert lane._sealed._connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert lane._sealed._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    bell = socket.socketpair()
    assert not ends[0].ready(0.0, bell[0])
    ends[1].send([b"now"])
    assert ends[0].ready(WAIT_S, bell[0]) and ends[0].recv() == [b"now"]
    bell[1].send(b"x")
    assert not ends[0].ready(WAIT_S, bell[0])
    for each in bell:
        each.close()


def test_nobody_on_the_line_reads_a_message(pair: Pair) -> None:
    ends = pair.met()
    secret = b"a share of a client's value"
    for end in ends:
        end.send([secret, b"\0" * 1000])
    assert ends[0].recv() == ends[1].recv() == [secret, b"\0" * 1000]
    for records in pair.line.seen:
        assert len(records) >= 2
        assert secret not in sent(records) and b"\0" * 16 not in sent(records)
    # the same message twice, in both directions and on two lanes
    first, second = (sent(records[-2:]) for records in pair.line.seen)
    assert first[HEAD.size :] != second[HEAD.size :]


def flip(at: int) -> Callable[[list[Record]], list[Record]]:
    """Flip a bit of the last record: of its head, of its part, or of its tag."""

    def made(records: list[Record]) -> list[Record]:
        changed = bytearray(b"".join(records[-1]))
        changed[at] ^= 1
        return [(bytes(changed), b"")]

    return made


def ends_early(records: list[Record]) -> list[Record]:
    """Say in the head that the message ends with this record."""
    (packed,) = HEAD.unpack(records[-1][0])
    return [(HEAD.pack(packed & (1 << 31) - 1), records[-1][1])]


# Changes of S0's third record, the first part of its second message.
ATTACKS: dict[str, Callable[[list[Record]], list[Record]]] = {
    "repeated": lambda records: records[-1:] * 2,
    "an earlier one repeated": lambda records: [records[0], records[-1]],
    "an earlier one in its stead": lambda records: records[:1],
    "dropped": lambda records: [],
    "a bit of its length": flip(0),
    "a bit of its part": flip(HEAD.size),
    "a bit of its tag": flip(-1),
    "its message ends early": ends_early,
    "cut short": lambda records: [(b"".join(records[-1])[:-5], b"")],
    "of nothing": lambda records: [(HEAD.pack(0), bytes(TAG_BYTES))],
    "too long": lambda records: [(HEAD.pack(1 << 30), b"")],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_the_line_changes_never_arrives(attack: str, pair: Pair) -> None:
    ends = pair.met()
    assert all(end.sealed for end in ends)
    zero, one = (Channel(end) for end in ends)
    link, third = ends[1]._sealed, 3

    def tamper(direction: int, records: list[Record]) -> list[Record]:
        return ATTACKS[attack](records) if (direction, len(records)) == (0, third) else records[-1:]

    pair.line.tamper = tamper
    values = np.arange(100, dtype=np.uint64)
    for number in range(4):
        zero.send("numbers", values + np.uint64(number))
    assert np.array_equal(one.recv("numbers", np.uint64, (100,)), values)
    came, ends[1]._timeout_s = 1, QUICK_S
    with pytest.raises((ChannelClosed, ChannelTimeout)):
        while came < 4:
            expected = values + np.uint64(came)
            assert np.array_equal(one.recv("numbers", np.uint64, (100,)), expected)
            came += 1
            # S0 goes on, on what it has by then
            zero.send("numbers", values + np.uint64(came + 2))
    # a record that is repeated is found at the next one
    assert came <= 2
    assert link and len(link._buffer) < 1 << 20


def test_records_are_not_swapped_sent_back_or_taken_from_another_lane(pair: Pair) -> None:
    ends, others = pair.met(), pair.met()
    ends[1]._timeout_s = others[1]._timeout_s = QUICK_S
    swapped: list[Record] = []
    # S1's records go back to S1, which knows them
    back: list[Record] = []

    def tamper(direction: int, records: list[Record]) -> list[Record]:
        if direction == 1:
            back.append(records[-1])
            return records[-1:]
        swapped.append(records[-1])
        return swapped[:0:-1] + swapped[:1] if len(swapped) == 2 else []

    pair.line.tamper = tamper
    ends[0].send([b"first"])
    ends[0].send([b"second"])
    with pytest.raises(ChannelTimeout):
        # over CURVE by then, where nothing is
        ends[1].recv()
    assert not ends[1].sealed

    others[1].send([b"mine"])
    assert others[0].recv() == [b"mine"]
    pair.line.tamper = lambda direction, records: back[-1:]
    others[0].send([b"yours"])
    with pytest.raises(ChannelTimeout):
        others[1].recv()
    assert not others[1].sealed

    pair.zero._curve_until = 0.0
    pair.line.tamper = lambda direction, records: records[-1:]
    here, there = pair.met(), pair.met()
    assert all(end.sealed for end in (*here, *there))
    there[1]._timeout_s = QUICK_S
    kept: list[Record] = []

    def keep(direction: int, records: list[Record]) -> list[Record]:
        if not kept:
            kept.append(records[-1])
            return []
        return kept

    pair.line.tamper = keep
    for lane in (here, there):
        lane[0].send([b"the same number, length and direction"])
        wait_until(lambda: kept)
    with pytest.raises(ChannelTimeout):
        there[1].recv()
    assert not there[1].sealed


def test_no_key_is_used_twice_with_a_nonce(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at two lanes, both directions, a lane made again, and keys that follow one another."""
    monkeypatch.setattr(sealed, "REKEY_BYTES", 5000)
    used: list[tuple[bytes, bytes]] = []

    class Recorded:
        def __init__(self, key: bytes) -> None:
            self._key, self._aead = key, AESGCM(key)
            self.decrypt = self._aead.decrypt

        def encrypt(self, nonce: bytes, part: bytes, head: bytes) -> bytes:
            used.append((self._key, nonce))
            return self._aead.encrypt(nonce, part, head)

    monkeypatch.setattr(sealed, "AESGCM", Recorded)
    for _ in range(2):
        ends = pair.met()
        for _ in range(20):
            assert goes_both_ways(ends) and ends[0].sealed
    assert len(used) > 160 and len(set(used)) == len(used)
    keys = {key for key, _ in used}
    assert len(keys) >= 16 and all(len(key) == 16 for key in keys)


def test_a_short_record_brings_the_next_key_nearer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "REKEY_BYTES", 1000)
    ours, theirs = Records(bytes(32)), Records(bytes(32))
    keys = set()
    for _ in range(100):
        assert theirs.open(*ours.seal(b"", False)) == b""
        keys.add(ours._key)
    assert len(keys) == -(-100 // (1000 // sealed.RECORD_BYTES))


@pytest.mark.parametrize("cause", ["S0 has no AES", "S1 has no port", "refused", "silent", "ended"])
def test_a_lane_that_cannot_be_sealed_stays_on_curve(
    cause: str, pair: Pair, monkeypatch: pytest.MonkeyPatch, log: list[tuple[str, dict[str, Any]]]
) -> None:
    monkeypatch.setattr(transport, "CONNECT_S", 0.5)
    monkeypatch.setattr(sealed, "CONNECT_S", 0.5)
    if cause == "S0 has no AES":
        pair.zero = pair.connect(aes=False)
    elif cause == "S1 has no port":
        pair.one.sealed = None
    elif cause == "refused":
        with socket.create_server(("127.0.0.1", 0)) as gone:
            pair.port.number = gone.getsockname()[1]
    elif cause == "silent":
        pair.line.tamper = lambda direction, records: []
    else:

        def end(direction: int, records: list[Record]) -> list[Record]:
            raise OSError

        pair.line.tamper = end
    for _ in range(2):
        ends = pair.met()
        assert not any(end.sealed for end in ends) and goes_both_ways(ends)
    asked = cause.startswith("S")
    assert [name for name, _ in log if name == "lanes-on-curve"] == ([] if asked else [log[0][0]])
    if not asked:
        assert str(pair.port.number) in log[0][1]["reason"]
        # nothing of the second lane came to the port
        assert not pair.zero.seals
        pair.line.tamper = lambda direction, records: records[-1:]
        pair.port.number = pair.line._listener.getsockname()[1]
        pair.zero._curve_until = 0.0
        assert all(end.sealed for end in pair.met())


def test_a_lane_whose_connection_is_cut_goes_on_over_curve(
    pair: Pair, log: list[tuple[str, dict[str, Any]]]
) -> None:
    """An idle one loses nothing; new ones are on CURVE for a while."""
    ends = pair.met()
    assert goes_both_ways(ends)
    pair.line.cut()
    assert goes_both_ways(ends) and not any(end.sealed for end in ends)
    assert not any(end.sealed for end in pair.met())
    assert {name for name, _ in log} == {"lanes-on-curve"}
    assert "broke" in log[0][1]["reason"]


def test_one_end_alone_notices_that_the_connection_is_gone(pair: Pair) -> None:
    """The other end hears of it over CURVE."""
    ends = pair.met()
    link = ends[0]._sealed
    assert link
    # its end of the connection lives on, unread, as behind a firewall that drops what comes
    copy = link._connection.dup()
    link._connection.detach()
    link._connection = socket.socket()
    ends[0].send([b"over CURVE"])
    assert ends[1].recv() == [b"over CURVE"] and not ends[1].sealed
    copy.close()


def test_a_message_lost_with_the_connection_ends_the_channel(pair: Pair) -> None:
    ends = pair.met(timeout_s=5.0)
    zero, one = (Channel(end) for end in ends)
    pair.line.tamper = lambda direction, records: []
    numbers, seen = np.zeros(10, np.uint64), pair.line.seen[0]
    before = len(seen)
    zero.send("numbers", numbers)
    # the line has taken all of it
    wait_until(lambda: len(seen) > before and not HEAD.unpack(seen[-1][0])[0] >> 31)
    pair.line.cut()
    ends[0]._sealed.close() if ends[0]._sealed else None
    zero.send("numbers", numbers)
    with pytest.raises(ChannelClosed, match="lost with a connection"):
        one.recv("numbers", np.uint64, (10,))


def test_a_wait_ends_at_its_limit_and_when_another_thread_closes(pair: Pair) -> None:
    quick = pair.met(timeout_s=0.3)
    with pytest.raises(ChannelTimeout, match="0.3 s"):
        quick[0].recv()
    # half of a record, and then nothing
    slow = pair.met(timeout_s=120)
    pair.line.tamper = lambda direction, records: [(b"".join(records[-1])[:9], b"")]
    for _, one in (quick, slow):
        one.send([bytes(100)])
    with pytest.raises(ChannelTimeout):
        quick[0].recv()
    start = time.monotonic()
    threading.Timer(0.3, slow[0].close).start()
    with pytest.raises(ChannelClosed):
        slow[0].recv()
    assert time.monotonic() - start < 60
    with pytest.raises(ChannelClosed):
        slow[0].send([b"late"])
    # the connection did not break, so new lanes need not stay on CURVE
    assert pair.zero.seals


def test_all_waits_for_a_message_share_one_limit(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message begins late, its connection breaks later, and nothing comes over CURVE."""

    class Late:
        """A connection on which a message begins when 60 s are left, and never ends."""

        def ready(self, wait_ms: int) -> bool:
            return next(seconds) >= 40

        def limit(self, limit_s: float) -> None:
            limits.append(limit_s)

        def recv(self) -> list[bytes]:
            for _ in range(int(limits[-1]) - 5):
                next(seconds)
            raise ChannelClosed("the connection broke")

        def release(self) -> None:
            pass

    ends = pair.met(timeout_s=100.0)
    limits: list[float] = []
    # each look at the clock takes a second
    seconds = itertools.count()
    link, ends[0]._sealed = ends[0]._sealed, Late()  # type: ignore[assignment]
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    with pytest.raises(ChannelTimeout):
        ends[0].recv()
    assert 50 <= limits[0] <= 60 and 100 <= next(seconds) <= 110
    assert link
    link.release()


def test_a_peer_that_reads_late_gets_all_and_one_that_never_reads_holds_nobody(pair: Pair) -> None:
    """Let a server compute for longer than the limit while the other sends, as on CURVE."""
    ends = pair.met(timeout_s=0.5)
    goes_on = threading.Event()

    def hold(direction: int, records: list[Record]) -> list[Record]:
        goes_on.wait(WAIT_S)
        return records[-1:]

    pair.line.tamper = hold
    pieces = [bytes([number]) * (4 << 20) for number in range(10)]
    start = time.monotonic()
    for piece in pieces:
        ends[0].send([piece])
    assert time.monotonic() - start < 30
    time.sleep(1.5)
    goes_on.set()
    ends[1]._timeout_s = WAIT_S
    assert [ends[1].recv() for _ in pieces] == [[piece] for piece in pieces]
    assert all(end.sealed for end in ends)

    goes_on.clear()
    for piece in pieces:
        ends[0].send([piece])
    ends[0].release()
    assert time.monotonic() - start < WAIT_S
    goes_on.set()


def test_a_message_without_end_is_over_at_the_limit(pair: Pair) -> None:
    ends = pair.met(timeout_s=0.5)
    link = ends[0]._sealed
    assert link

    def spin() -> None:
        """Send records that go on for much longer than the limit, and then the last one."""
        deadline = time.monotonic() + 5.0
        with suppress(OSError):
            while (left := deadline - time.monotonic()) > -1.0:
                link._connection.sendall(b"".join(link._out.seal(b"x" * 1000, left > 0)))

    with ThreadPoolExecutor(1) as other:
        spinning = other.submit(spin)
        with pytest.raises(ChannelTimeout, match="no whole message"):
            ends[1].recv()
        ends[0].close()
        spinning.result(WAIT_S)


def test_strangers_at_the_port_get_nothing_and_do_not_stop_a_lane(
    pair: Pair, log: list[tuple[str, dict[str, Any]]]
) -> None:
    where = pair.line._to
    accept = pair.port.accept
    # they wait before the lane meets, and come while it does
    strangers = [socket.create_connection(where) for _ in range(PENDING)]

    def crowded(token: bytes, stream: Any) -> socket.socket | None:
        for first in (b"", bytes(TOKEN_BYTES), bytes(TOKEN_BYTES - 1), token[:-1]):
            stranger = socket.create_connection(where)
            stranger.sendall(first)
            strangers.append(stranger)
        socket.create_connection(where).close()
        return accept(token, stream)

    pair.port.accept = crowded  # type: ignore[method-assign]
    ends = pair.met()
    assert all(end.sealed for end in ends) and goes_both_ways(ends)
    # those who came too late for that lane wait, unread, for the next
    pair.port.accept = accept  # type: ignore[method-assign]
    assert all(end.sealed for end in pair.met())
    for stranger in strangers:
        stranger.settimeout(WAIT_S)
        # they get no byte, and no connection of theirs stays
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
        stranger.close()
    refused = [fields for name, fields in log if name == "lane-refused"]
    assert 0 < len(refused) <= BURST and refused[0]["address"] == "127.0.0.1"
    assert not [name for name, _ in log if name == "lanes-on-curve"]


def test_whoever_comes_with_another_token_is_refused_before_the_peer_comes(pair: Pair) -> None:
    port, where, token = pair.port, pair.line._to, b"t" * TOKEN_BYTES
    with ThreadPoolExecutor(1) as other, pair.control() as stream:
        coming = other.submit(port.accept, token, stream)
        with socket.create_connection(where) as stranger:
            stranger.sendall(token[:-1] + b"u")
            stranger.settimeout(WAIT_S)
            assert stranger.recv(1) == b""
        with socket.create_connection(where) as friend:
            friend.sendall(token)
            taken = coming.result(WAIT_S)
        assert taken
        taken.close()


def test_one_stranger_more_than_may_wait_ends_the_oldest(pair: Pair) -> None:
    port, where = pair.port, pair.line._to
    with ThreadPoolExecutor(1) as other, pair.control() as stream:
        coming = other.submit(port.accept, b"t" * TOKEN_BYTES, stream)
        strangers = [socket.create_connection(where) for _ in range(PENDING + 1)]
        strangers[0].settimeout(WAIT_S)
        assert strangers[0].recv(1) == b""
        with socket.create_connection(where) as friend:
            friend.sendall(b"t" * TOKEN_BYTES)
            taken = coming.result(WAIT_S)
        assert taken
        taken.close()
        for stranger in strangers:
            stranger.close()


def test_a_lane_that_meets_holds_the_port_for_a_limited_time(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Send a token in two pieces, and then none; meanwhile S0 says nothing on CURVE."""
    port, where, token = pair.port, pair.line._to, b"t" * TOKEN_BYTES
    with ThreadPoolExecutor(1) as other, pair.control() as stream:
        coming = other.submit(port.accept, token, stream)
        with socket.create_connection(where) as friend:
            friend.sendall(token[:-1])
            time.sleep(0.3)
            friend.sendall(token[-1:])
            taken = coming.result(WAIT_S)
        assert taken
        taken.close()
        monkeypatch.setattr(sealed, "CONNECT_S", 0.3)
        with socket.create_connection(where) as stranger:
            stranger.sendall(token[:-1])
            try:
                assert other.submit(port.accept, token, stream).result(WAIT_S / 6) is None
            finally:
                # end the thread, whatever it waits for
                with suppress(OSError):
                    stranger.sendall(token[-1:])


def test_a_token_is_good_for_one_connection(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thief who saw it on the line comes too late; one who comes first has no key."""
    tokens: list[bytes] = []
    accept = pair.port.accept

    def noted(token: bytes, stream: Any) -> socket.socket | None:
        tokens.append(token)
        return accept(token, stream)

    pair.port.accept = noted  # type: ignore[method-assign]
    ends = pair.met()
    with socket.create_connection(pair.line._to) as late:
        late.sendall(tokens[0])
        assert all(end.sealed for end in pair.met()) and tokens[0] != tokens[1]
        late.settimeout(WAIT_S)
        with suppress(ConnectionResetError):
            assert late.recv(1) == b""
    assert goes_both_ways(ends)

    def early(token: bytes, stream: Any) -> socket.socket | None:
        thief = socket.create_connection(pair.line._to)
        thief.sendall(token)
        thieves.append(thief)
        stolen.set()
        return accept(token, stream)

    def after_the_thief(where: tuple[str, int], limit_s: float) -> socket.socket:
        stolen.wait(WAIT_S)
        return socket.create_connection(where, limit_s)

    thieves: list[socket.socket] = []
    stolen = threading.Event()
    monkeypatch.setattr(transport, "create_connection", after_the_thief)
    pair.port.accept = early  # type: ignore[method-assign]
    robbed = pair.met()
    assert not any(end.sealed for end in robbed) and goes_both_ways(robbed)
    thieves[0].close()


def test_what_the_peer_says_about_a_lane_is_checked(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S1 offers nonsense
    zero, one = pair.open()
    transport.ZmqLink.send(one, [b"early"])
    with ThreadPoolExecutor(1) as other:
        meeting = other.submit(zero.meet, 0)
        assert len(transport.ZmqLink.recv(one)) == 2
        transport.ZmqLink.send(one, [b"nonsense"])
        with pytest.raises(PeerProtocolError, match="8 bytes"):
            meeting.result(WAIT_S)
    # S0 says that it has sealed a lane for which it has not connected
    monkeypatch.setattr(sealed, "CONNECT_S", 0.3)
    zero, one = pair.open()
    with ThreadPoolExecutor(1) as other:
        meeting = other.submit(one.meet, 1)
        transport.ZmqLink.send(zero, [transport.GREETING, bytes(32)])
        transport.ZmqLink.recv(zero)
        transport.ZmqLink.send(zero, [transport.SEALED])
        with pytest.raises(PeerProtocolError, match="not connected"):
            meeting.result(WAIT_S)


@pytest.mark.parametrize(
    ("listen", "reached"),
    [
        ("tcp://*:7002", ["127.0.0.1", "::1"]),
        ("tcp://[::]:7002", ["127.0.0.1", "::1"]),
        ("tcp://0.0.0.0:7002", ["127.0.0.1"]),
        ("tcp://[::1]:7002", ["::1"]),
    ],
)
def test_the_port_listens_where_that_of_curve_does(listen: str, reached: list[str]) -> None:
    if "::1" in reached and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    port = SealedPort(host_of(listen), 0, listens_ipv6(listen))
    for host in ("127.0.0.1", "::1"):
        with suppress(OSError):
            socket.create_connection((host, port.number), 5).close()
            reached.remove(host)
    assert not reached
    port.close()


def test_a_port_that_is_taken_is_an_error_of_the_configuration(pair: Pair) -> None:
    with pytest.raises(ConfigError, match="aes_port"):
        PeerPort(
            pair.contexts[1],
            1,
            pair.keys[1],
            "tcp://127.0.0.1:*",
            "",
            True,
            pair.line._to[1],
        )


def test_the_port_is_a_setting_of_s1_alone() -> None:
    public, signing = "6H#oO-F]Cx@k9-zqAHZGFLMSxVc#!sHV!X%iCP4L", SigningKey.new().public
    listening = PeerTable(public, signing, listen="tcp://*:7002")
    assert listening.aes_port == 0 and replace(listening, aes_port=7003)
    for aes_port in (-1, 1 << 16):
        with pytest.raises(ConfigError, match="aes_port"):
            replace(listening, aes_port=aes_port)
    with pytest.raises(ConfigError, match="aes_port is S1's"):
        PeerTable(public, signing, address="tcp://s1:7002", aes_port=7003)
