"""servers.transport over loopback: the streams between servers, what ends a wait, and who gets in."""

import threading
import time

import numpy as np
import pytest
import zmq

from securemedian.mpc import wire
from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import ChannelClosed, ChannelTimeout, ConfigError
from securemedian.servers.transport import (
    CLIENT_DOMAIN,
    PEER_DOMAIN,
    ClientPort,
    PeerPort,
    authenticate,
)
from securemedian.settings.keys import KeyPair, load_keys

MAX_BYTES = 1 << 20
WAIT_S = 10.0


def keys() -> KeyPair:
    return KeyPair(*zmq.curve_keypair())


class Pair:
    """Both servers' peer ports, each in a context of its own as in two processes."""

    def __init__(self) -> None:
        self.s0, self.s1 = keys(), keys()
        self.contexts = [zmq.Context(), zmq.Context()]
        self.gate = authenticate(self.contexts[1], {PEER_DOMAIN: [self.s0.public.decode()]})
        self.one = PeerPort(self.contexts[1], 1, self.s1, "tcp://127.0.0.1:*", "", MAX_BYTES)
        self.zero = self.connect(self.s0)
        self.releases = [self.gate.stop]

    def connect(self, who: KeyPair) -> PeerPort:
        return PeerPort(
            self.contexts[0], 0, who, self.one.endpoint, self.s1.public.decode(), MAX_BYTES
        )

    def lanes(self, session: bytes, timeout_s: float = WAIT_S):
        """One lane, S1's end first."""
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
def pair():
    made = Pair()
    yield made
    made.close()


def test_a_lane_carries_arrays_both_ways(pair):
    zero, one = (Channel(link) for link in pair.lanes(b"\x01" * 16))
    big = np.arange(100_000, dtype=np.uint64)
    zero.send("a", big)
    one.send("b", big[:0])
    assert np.array_equal(one.recv("a", np.uint64, big.shape), big)
    assert zero.recv("b", np.uint64, (0,)).size == 0
    assert one.traffic.bytes_received == zero.traffic.bytes_sent


def test_what_a_lane_receives_is_aligned_for_the_kernels(pair):
    zero, one = (Channel(link) for link in pair.lanes(b"\x01" * 16))
    for size in (1, 3, 5, 1000):
        zero.send("a", np.zeros(size, np.uint64))
        assert one.recv("a", np.uint64, (size,)).flags.aligned


def test_lanes_of_another_session_do_not_mix(pair):
    (zero, _), (_, one_new) = pair.lanes(b"\x01" * 16), pair.lanes(b"\x02" * 16, timeout_s=0.2)
    zero.send([b"stale"])
    with pytest.raises(ChannelTimeout):
        one_new.recv()


def test_a_wait_ends_at_its_limit_and_when_another_thread_closes(pair):
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


def test_another_key_does_not_reach_the_peer_port(pair):
    control = pair.control(pair.one)
    stranger = pair.control(pair.connect(keys()))
    stranger.send(b"let me in")
    assert not control.poll(500)
    friend = pair.control(pair.zero)
    friend.send(b"hello")
    assert control.poll(WAIT_S * 1000) and control.recv() == b"hello"


def test_a_stream_taken_over_by_a_new_connection_goes_on(pair):
    control = pair.control(pair.one)
    for _ in range(2):  # the second as after a restart of S0, the first connection still open
        zero = pair.control(pair.zero)
        zero.send(b"hello")
        assert control.poll(WAIT_S * 1000) and control.recv() == b"hello"
        control.send(b"welcome")
        assert zero.poll(WAIT_S * 1000) and zero.recv() == b"welcome"


def test_the_client_port_names_the_key_and_not_the_claim():
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
        caller.connect(port.socket.last_endpoint.decode())
        caller.send_multipart(wire.pack("info", {"id": 1, "name": "coordinator"}))
        assert port.socket.poll(WAIT_S * 1000)
        request = port.recv()
        assert request is not None and port.recv() is None
        address, key, parts = request
        assert key == client.public.decode() and wire.unpack(parts).type == "info"
        port.send(address, [b"answer"])
        assert caller.poll(WAIT_S * 1000) and caller.recv() == b"answer"
        with pytest.raises(ConfigError, match="cannot listen"):
            ClientPort(context, server, port.socket.last_endpoint.decode(), MAX_BYTES)
    finally:
        gate.stop()
        context.destroy(linger=0)


def test_key_files_that_others_may_read_are_refused(tmp_path):
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
    with pytest.raises(ConfigError, match="no key file"):
        load_keys(tmp_path / "nobody.key_secret")
