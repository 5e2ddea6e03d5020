"""servers.transport over loopback: streams between servers, what ends a wait, who gets in."""

import errno
import os
import re
import resource
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
import zmq.auth
import zmq.utils.monitor
from zmq.utils.garbage import gc as collector

from securemedian.common.keys import KeyPair, load_keys
from securemedian.mpc.errors import ChannelClosed, ChannelTimeout, ConfigError, SecureMedianError
from securemedian.mpc.protocols import dealing, wire
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.servers.daemon import Daemon
from securemedian.servers.logs import BURST, EVERY_S
from securemedian.servers.network import transport
from securemedian.servers.network.descriptors import Descriptors
from securemedian.servers.network.transport import (
    CLIENT_DOMAIN,
    PEER_DOMAIN,
    ClientPort,
    PeerPort,
    ZmqLink,
    authenticate,
)
from tests.daemons import endpoint_of
from tests.soak.proxy import Proxies, Proxy, Trouble

pytestmark = pytest.mark.slow

MAX_BYTES = 1 << 20
WAIT_S = 60.0
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)


def keys() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


def port_of(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


class Pair:
    """Both servers' peer ports, each in a context of its own as in two processes."""

    def __init__(self) -> None:
        self.s0, self.s1 = keys(), keys()
        self.contexts = [zmq.Context(), zmq.Context()]
        self.gate = authenticate(self.contexts[1], {PEER_DOMAIN: [self.s0.public.decode()]})
        self.one = PeerPort(self.contexts[1], 1, self.s1, "tcp://127.0.0.1:*", "")
        self.zero = self.connect(self.s0)
        self.releases = [self.gate.stop]

    def connect(self, who: KeyPair) -> PeerPort:
        return PeerPort(self.contexts[0], 0, who, self.one.endpoint, self.s1.public.decode())

    def lanes(self, session: bytes, timeout_s: float = WAIT_S) -> tuple[ZmqLink, ZmqLink]:
        """Return both ends of one lane, S0's first; S1's is opened first."""
        one = self.one.lane(session, 0, timeout_s)
        zero = self.zero.lane(session, 0, timeout_s)
        self.releases += [one.release, zero.release]
        zero.meet(0)
        one.meet(1)
        return zero, one

    def control(self, port: PeerPort) -> zmq.Socket:
        socket = port.stream("control")
        self.releases.append(lambda: socket.close(linger=0))
        return socket

    def close(self) -> None:
        for release in self.releases:
            release()
        for context in self.contexts:
            context.term()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


def test_a_lane_carries_arrays_both_ways(pair: Pair) -> None:
    zero, one = (Channel(link) for link in pair.lanes(b"\x01" * 16))
    big = np.arange(100_000, dtype=np.uint64)
    zero.send("a", big)
    one.send("b", big[:0])
    assert np.array_equal(one.recv("a", np.uint64, big.shape), big)
    assert zero.recv("b", np.uint64, (0,)).size == 0
    # for the kernels
    for size in (1, 3, 5, 1000):
        zero.send("a", np.zeros(size, np.uint64))
        assert one.recv("a", np.uint64, (size,)).flags.aligned
    assert one.traffic.bytes_received == zero.traffic.bytes_sent


def test_lanes_of_another_session_do_not_mix(pair: Pair) -> None:
    (zero, _), (_, one_new) = pair.lanes(b"\x01" * 16), pair.lanes(b"\x02" * 16, timeout_s=0.2)
    zero.send([b"stale"])
    with pytest.raises(ChannelTimeout):
        one_new.recv()


def test_a_wait_ends_at_its_limit_and_when_another_thread_closes(pair: Pair) -> None:
    zero, one = pair.lanes(b"\x01" * 16, timeout_s=0.2)
    with pytest.raises(ChannelTimeout, match="0.2 s"):
        zero.recv()
    slow, _ = pair.lanes(b"\x02" * 16, timeout_s=120)
    threading.Timer(0.1, slow.close).start()
    start = time.monotonic()
    with pytest.raises(ChannelClosed):
        slow.recv()
    # not at its limit: busy machines included
    assert time.monotonic() - start < 60
    with pytest.raises(ChannelClosed):
        slow.send([b"late"])


def test_another_key_does_not_reach_the_peer_port(pair: Pair) -> None:
    control = pair.control(pair.one)
    stranger = pair.control(pair.connect(keys()))
    stranger.send(b"let me in")
    assert not control.poll(500)
    friend = pair.control(pair.zero)
    friend.send(b"hello")
    assert control.poll(int(WAIT_S * 1000)) and control.recv() == b"hello"


def test_a_stream_taken_over_by_a_new_connection_goes_on(pair: Pair) -> None:
    control = pair.control(pair.one)
    # the second as after a restart of S0, the first connection still open
    for _ in range(2):
        zero = pair.control(pair.zero)
        zero.send(b"hello")
        assert control.poll(int(WAIT_S * 1000)) and control.recv() == b"hello"
        control.send(b"welcome")
        assert zero.poll(int(WAIT_S * 1000)) and zero.recv() == b"welcome"


def test_the_client_port_names_the_key_and_not_the_claim() -> None:
    server, client = keys(), keys()
    context = zmq.Context()
    gate = authenticate(context, {CLIENT_DOMAIN: [client.public.decode()]})
    port = ClientPort(context, server, "tcp://127.0.0.1:*", MAX_BYTES)
    try:
        caller = context.socket(zmq.DEALER)
        caller.curve_publickey, caller.curve_secretkey, caller.curve_serverkey = (
            client.public,
            client.secret,
            server.public,
        )
        caller.routing_id = b"coordinator"
        caller.connect(endpoint_of(port))
        caller.send_multipart(wire.pack("info", {"id": 1, "name": "coordinator"}))
        assert port.socket.poll(int(WAIT_S * 1000))
        request = port.recv()
        assert request is not None and port.recv() is None
        address, key, parts = request
        assert key == client.public.decode() and wire.unpack(parts).type == "info"
        port.send(address, [b"answer"])
        assert caller.poll(int(WAIT_S * 1000)) and caller.recv() == b"answer"
        with pytest.raises(ConfigError, match="cannot listen"):
            ClientPort(context, server, endpoint_of(port), MAX_BYTES)
    finally:
        gate.stop()
        context.destroy(linger=0)


class Front:
    """A clients' port on a context of its own, and callers of it."""

    def __init__(self) -> None:
        self.keys, self.member = keys(), keys()
        self.context, self.callers = zmq.Context(), zmq.Context()
        self.gate = authenticate(self.context, {CLIENT_DOMAIN: [self.member.public.decode()]})
        self.port = ClientPort(self.context, self.keys, "tcp://127.0.0.1:*", MAX_BYTES)
        self.endpoint = endpoint_of(self.port)

    def caller(
        self, who: KeyPair | None = None, endpoint: str = "", rcvhwm: int = 1000
    ) -> zmq.Socket:
        """Return a DEALER with zmq's defaults for signs of life."""
        who = who or self.member
        made = self.callers.socket(zmq.DEALER)
        made.linger, made.rcvhwm = 0, rcvhwm
        made.curve_publickey, made.curve_secretkey = who.public, who.secret
        made.curve_serverkey = self.keys.public
        made.connect(endpoint or self.endpoint)
        return made

    def hears(self, caller: zmq.Socket, limit_s: float = WAIT_S) -> bool:
        """Return whether a request of `caller` arrives."""
        # zmq ends a connection whose key is refused, and has then no way for a message
        with suppress(zmq.Again):
            caller.send_multipart(wire.pack("info", {"id": 1}), zmq.DONTWAIT)
        return bool(self.port.socket.poll(int(limit_s * 1000))) and self.port.recv() is not None

    def close(self) -> None:
        self.gate.stop()
        self.context.destroy(linger=0)
        self.callers.destroy(linger=0)


@pytest.fixture
def front() -> Iterator[Front]:
    made = Front()
    yield made
    made.close()


@contextmanager
def proxied(where: str) -> Iterator[Proxy]:
    """Give a proxy in front of an endpoint of this machine."""
    proxies = Proxies()
    yield proxies.add(port_of(where))
    proxies.close()


def event(monitor: zmq.Socket, limit_s: float) -> int:
    """Return the monitor's next event, 0 if there is none."""
    if not monitor.poll(int(limit_s * 1000)):
        return 0
    return int(zmq.utils.monitor.recv_monitor_message(monitor)["event"])


def test_without_the_authenticator_nobody_gets_in(front: Front) -> None:
    front.gate.stop()
    assert not front.hears(front.caller(keys()), 1.0)
    assert not front.hears(front.caller(), 0.5)


def test_a_connection_that_proves_no_key_ends(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    """Silent ones, and ones that announce a long message and send it slowly."""
    monkeypatch.setattr(transport, "HANDSHAKE_MS", 300)
    front = Front()
    one = PeerPort(pair.contexts[1], 1, keys(), "tcp://127.0.0.1:*", "")
    frame = b"\x06" + (MAX_BYTES - 1).to_bytes(8, "big")
    try:
        for endpoint in (front.endpoint, one.endpoint):
            for sent in (b"", GREETING + frame):
                with socket.create_connection(("127.0.0.1", port_of(endpoint))) as stranger:
                    # sooner than ZeroMQ ends a handshake by itself, which takes 30 s
                    stranger.settimeout(20)
                    stranger.sendall(sent)
                    while stranger.recv(64):
                        pass
    finally:
        front.close()


def test_nobody_announces_more_than_a_piece(
    monkeypatch: pytest.MonkeyPatch, front: Front, pair: Pair
) -> None:
    """Whatever a request may have in all: memory is taken for a part before a key is proved."""
    monkeypatch.setattr(transport, "HANDSHAKE_MS", int(100_000 * WAIT_S))
    port = ClientPort(front.context, keys(), "tcp://127.0.0.1:*", 1 << 28)
    one = PeerPort(pair.contexts[1], 1, keys(), "tcp://127.0.0.1:*", "")
    for endpoint in (endpoint_of(port), one.endpoint):
        with socket.create_connection(("127.0.0.1", port_of(endpoint))) as stranger:
            stranger.settimeout(WAIT_S)
            stranger.sendall(GREETING + b"\x06" + (wire.MAX_PART_BYTES + 1).to_bytes(8, "big"))
            while stranger.recv(64):
                pass
    port.close()


def test_a_client_that_falls_silent_loses_its_connection_and_an_idle_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "CLIENT_HEARTBEAT_MS", 100)
    monkeypatch.setattr(transport, "CLIENT_HEARTBEAT_LIMIT_MS", 1000)
    front = Front()
    monitor = front.port.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    try:
        with proxied(front.endpoint) as proxy:
            idle = front.caller()
            lost = front.caller(endpoint=f"tcp://127.0.0.1:{proxy.port}")
            assert front.hears(idle) and front.hears(lost)
            assert event(monitor, 2.5) == 0
            proxy.put(Trouble(stalled=True))
            assert event(monitor, WAIT_S) == zmq.EVENT_DISCONNECTED
            assert front.hears(idle)
    finally:
        front.port.socket.disable_monitor()
        front.close()


def test_hosts_that_vanish_are_noticed_by_tcp(front: Front, pair: Pair) -> None:
    """Every accepted connection, of clients and of S0, has TCP's keepalive."""
    ports = [port_of(front.endpoint), port_of(pair.one.endpoint)]
    caller = front.caller()
    assert front.hears(caller)
    inner, outer = pair.control(pair.one), pair.control(pair.zero)
    outer.send(b"hello")
    assert inner.poll(int(WAIT_S * 1000))
    kept: dict[int, list[int]] = {port: [] for port in ports}
    for name in os.listdir("/proc/self/fd"):
        try:
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with copy:
            try:
                copy.getpeername()
                port = copy.getsockname()[1]
            except (OSError, IndexError):
                continue
            if port in kept:
                kept[port].append(copy.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
                assert copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
    assert all(values and all(values) for values in kept.values()), kept


def test_a_request_of_too_many_parts_or_bytes_is_answered_and_not_kept(front: Front) -> None:
    caller = front.caller()
    piece = bytes(MAX_BYTES // 4)
    for parts in ([b"x"] * 100, [piece] * 5, [piece] * 200):
        caller.send_multipart(parts)
        assert front.port.socket.poll(int(WAIT_S * 1000))
        tracemalloc.start()
        assert front.port.recv() is None
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken < 2 * MAX_BYTES
        assert caller.poll(int(WAIT_S * 1000))
        answer = wire.unpack(caller.recv_multipart())
        assert (answer.type, answer.fields["id"], answer.fields["code"]) == (
            "error",
            0,
            "bad-frame",
        )
        assert "max_message_bytes" in answer.fields["message"]
    caller.send_multipart([b"x", piece, piece, piece])
    assert front.port.socket.poll(int(WAIT_S * 1000))
    request = front.port.recv()
    assert request is not None and len(request[2]) == 4


def test_refused_keys_take_bounded_memory_and_a_bounded_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, logged = [0.0], []
    monkeypatch.setattr(transport.logs, "event", lambda *_, **fields: logged.append(fields))
    member = keys().public
    listed = transport._AllowList([member.decode()], lambda: now[0])
    strangers = [f"{i:040}".encode() for i in range(3 * transport.REFUSED_KEYS)]
    for key in strangers:
        assert not listed.callback("clients", key)
    assert listed.callback("clients", member)
    assert len(listed._refused) == transport.REFUSED_KEYS
    assert len(logged) == BURST
    now[0] = EVERY_S
    # known
    listed.callback("clients", strangers[-1])
    assert len(logged) == BURST
    listed.callback("clients", b"9" * 40)
    missing = len(strangers) - BURST
    assert logged[-1] == {"port": "clients", "key": "9" * 40, "suppressed": missing}


def test_a_lane_that_is_slow_with_a_long_message_is_not_silent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame, which zmq counts as a sign of life when it is whole, may take as long as a wait."""
    monkeypatch.setattr(transport, "HEARTBEAT_MS", 100)
    monkeypatch.setattr(transport, "HEARTBEAT_LIMIT_MS", 500)
    with proxied(pair.one.endpoint) as proxy:
        # 400 kB a second
        proxy.put(Trouble(delay_s=0.04, piece_bytes=1 << 14))
        pair.zero.endpoint = f"tcp://127.0.0.1:{proxy.port}"
        zero, one = pair.lanes(b"\x01" * 16)
        one.send([bytes(800_000)])
        assert len(zero.recv()[0]) == 800_000


def test_without_a_descriptor_a_stream_is_refused_with_what_to_do(pair: Pair) -> None:
    pair.control(pair.zero)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # the lowest that is free: with a limit of 0, libzmq's threads could not even poll one
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        with pytest.raises(SecureMedianError, match="Too many open files.*LimitNOFILE"):
            pair.zero.lane(b"\x01" * 16, 0, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    zero, one = pair.lanes(b"\x01" * 16)
    zero.send([b"x"])
    assert one.recv() == [b"x"]


def test_a_clients_port_opens_what_answers_without_a_copy_need() -> None:
    """Open it before strangers take the descriptors: pyzmq needs sockets and a file for it."""
    collector.stop()
    front = Front()
    try:
        assert collector.is_alive() and collector._push is not None
    finally:
        front.close()


def test_who_asks_and_does_not_read_holds_few_answers(front: Front) -> None:
    greedy, honest = front.caller(rcvhwm=1), front.caller()
    answer = [bytes(1 << 20)]
    asked = 100

    def answered(caller: zmq.Socket) -> bool:
        """Let the port answer one request of a caller, and return whether it could."""
        caller.send(b"?")
        assert front.port.socket.poll(int(WAIT_S * 1000))
        request = front.port.recv()
        assert request
        try:
            front.port.send(request[0], answer)
        except ChannelTimeout as error:
            assert "asks and does not read" in str(error)
            return False
        return True

    # far fewer than zmq keeps by default, and the others have theirs
    assert sum(answered(greedy) for _ in range(asked)) < asked / 2
    for _ in range(20):
        assert (
            answered(honest)
            and honest.poll(int(WAIT_S * 1000))
            and honest.recv_multipart() == answer
        )


class Stub:
    """A daemon's parts: the control socket fails, and the rounds note what they are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def poll(self, _: int) -> list:
        return [(self, zmq.POLLIN)]

    def control(self, parts: list) -> None:
        raise AssertionError(parts)

    def recv_multipart(self, _: int) -> list:
        raise zmq.ZMQError(errno.EMFILE)

    def event(self, *_: object) -> None:
        pass

    def engine_ended(self) -> None:
        pass

    def interrupt(self, why: str) -> None:
        self.told.append(why)


def test_a_socket_that_fails_interrupts_the_round_and_not_the_server() -> None:
    stub = Stub()
    loop = Daemon.__new__(Daemon)
    parts: Any = stub
    loop._control = loop._rounds = loop._log = parts
    loop._monitor, loop._reload_asked = None, False
    loop._turn(parts)
    assert stub.told == ["could not use a socket: Too many open files"]


def test_connections_cannot_take_the_reserved_descriptors() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    files: list[Any] = []
    try:
        descriptors = Descriptors()
        assert 0 < descriptors.for_connections < descriptors.limit <= before[1]
        with pytest.raises(OSError, match="Too many open files"):
            while len(files) < descriptors.limit:
                files.append(os.open(os.devnull, os.O_RDONLY))
        with descriptors.own():
            files += [os.open(os.devnull, os.O_RDONLY) for _ in range(100)]
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_key_files_that_others_may_read_are_refused(tmp_path: Path) -> None:
    public, secret = (tmp_path / name for name in ("s0.key", "s0.key_secret"))
    zmq.auth.create_certificates(tmp_path, "s0")
    secret.chmod(0o600)
    assert load_keys(secret).public.decode() in public.read_text()
    assert load_keys(secret).secret.decode() not in repr(load_keys(secret))
    secret.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_keys(secret)
    with pytest.raises(ConfigError, match="public key alone"):
        public.chmod(0o600)
        load_keys(public)
    with pytest.raises(ConfigError, match="missing key file"):
        load_keys(tmp_path / "nobody.key_secret")


def test_the_page_has_the_messages_of_a_check_of_dealings_in_their_order() -> None:
    page = (Path(__file__).parent.parent / "docs" / "wire.md").read_text("utf-8")
    table = page[page.index("| message | array | says |") :].split("\n\n")[0]
    shown = re.findall(r"^\| `([a-z.]+)` \| (u[48])", table, re.MULTILINE)
    shape = Dealing(100, 16, 8)
    said = *dealing.toss_messages(), *dealing.messages(shape, 1)
    messages = [(label, dtype) for sent, label, dtype, _ in said if sent]
    # only servers exchange these after the toss (`pipeline`)
    assert shown.pop(2)[0] == "toss.tokens"
    assert [label for label, _ in shown] == [label for label, _ in messages]
    for (_, code), (_, dtype) in zip(shown, messages, strict=True):
        assert code in ("u4", f"u{np.dtype(dtype).itemsize}")
