"""Two real daemons under floods: rounds are published, and memory and descriptors come back.

Each flood is short, bounded in connections and bytes, and goes to 127.0.0.1 alone.
"""

import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.common.keys import KeyPair, load_keys
from securemedian.mpc.protocols import wire
from securemedian.servers import config
from tests.daemons import SETTINGS, Pair, wait_until

pytestmark = pytest.mark.slow

SERVERS = ("s0", "s1")
# A quarter is reserved: twice what both queues of S1 hold, which get in whenever it is opened.
DESCRIPTORS = 2048
FLOOD_S = 2.0
MAX_MESSAGE_BYTES = 1 << 24
MEMORY_SLACK = 64 << 20
DESCRIPTOR_SLACK = 12
PARAMS: dict[str, Any] = {"method": "pairwise", "dim": 1000, "max_clients": 3}
VALUES = [
    np.random.default_rng(client).normal(0, 0.1, PARAMS["dim"]).astype(np.float32)
    for client in range(3)
]
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32)

# A flood's work until the second event, after it has set the first: the servers feel it
Flood = Callable[[Pair, threading.Event, threading.Event], None]


@pytest.fixture(scope="module", autouse=True)
def many_descriptors() -> Iterator[None]:
    """Let this process have the floods' connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(
        tmp_path_factory.mktemp("floods") / "keys",
        settings=SETTINGS | {"max_message_bytes": MAX_MESSAGE_BYTES, "channel_timeout_s": 40},
        descriptors=DESCRIPTORS,
    )
    try:
        made.start(*SERVERS)
        made.link()
        for name in made.names:
            for server in SERVERS:
                made.caller(name, server).ask("info")
        yield made
    finally:
        made.close()


def doors(pair: Pair) -> dict[str, tuple[str, int]]:
    """Return the three ports: both servers' for clients, and S1's for S0."""
    zero, one = (config.load(pair.folder / f"{server}.toml") for server in SERVERS)
    endpoints = {"s0": zero.listen, "s1": one.listen, "peer": zero.peer.address}
    return {
        name: ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        for name, endpoint in endpoints.items()
    }


@contextmanager
def dealer(
    context: zmq.Context[Any], keys: KeyPair, where: tuple[str, int], server: str
) -> Iterator[zmq.Socket[bytes]]:
    made = context.socket(zmq.DEALER)
    made.linger, made.immediate = 0, 1
    made.curve_publickey, made.curve_secretkey = keys.public, keys.secret
    made.curve_serverkey = server.encode()
    made.connect(f"tcp://{where[0]}:{where[1]}")
    try:
        yield made
    finally:
        made.close()


def without_a_key(pair: Pair, felt: threading.Event, ended: threading.Event) -> None:
    """Open silent connections to each port, half as many again as a server has descriptors.

    The first four announce nearly `max_message_bytes` during the handshake and send half of it.
    """
    announced = b"\x06" + (MAX_MESSAGE_BYTES - 1).to_bytes(8, "big")
    wheres = doors(pair).values()
    with ExitStack() as opened:
        for number in range(DESCRIPTORS + DESCRIPTORS // 2):
            for where in wheres:
                end = opened.enter_context(socket.socket())
                end.setblocking(False)
                end.connect_ex(where)
                if number < 4:
                    end.settimeout(1.0)
                    with suppress(OSError):
                        end.sendall(GREETING + announced + bytes(MAX_MESSAGE_BYTES // 2))
        felt.set()
        ended.wait()


def with_a_clients_key(pair: Pair, felt: threading.Event, ended: threading.Event) -> None:
    """Send requests whose answers nobody reads, junk and too much, on many connections.

    The long messages have parts within the limit which together are ten times it.
    """
    keys = load_keys(pair.folder / "client-1.key_secret")
    contacts = config.load(pair.folder / "s1.toml").peer, config.load(pair.folder / "s0.toml").peer
    with zmq.Context() as context, ExitStack() as opened:
        sockets = [
            opened.enter_context(dealer(context, keys, doors(pair)[server], contact.public_key))
            for server, contact in zip(SERVERS, contacts, strict=True)
            for _ in range(50)
        ]
        request = wire.pack("status", {"id": 1, "round": ""})
        for end in sockets:
            end.send_multipart(request)
        for end in sockets:
            assert end.poll(30_000), "no answer"
        for number, end in enumerate(sockets):
            piece = bytes(MAX_MESSAGE_BYTES // 8)
            wrong = [[piece] * 64] if number % 50 == 0 else [[b"junk"] * 5, [b"x"] * 100]
            for parts in wrong:
                end.send_multipart(parts)
        felt.set()
        while not ended.wait(0.02):
            for number, end in enumerate(sockets):
                if number % 5:
                    with suppress(zmq.Again):
                        end.send_multipart(request, zmq.DONTWAIT)
        for end in sockets[::50]:
            # the answer to the long message
            assert end.poll(30_000) and len(end.recv_multipart()) == 1
            assert end.poll(30_000), "no answer to what was too long"
            answer = wire.unpack(end.recv_multipart())
            assert "max_message_bytes" in answer.fields["message"]


def with_refused_requests(pair: Pair, felt: threading.Event, ended: threading.Event) -> None:
    """Send as many wrong requests as the servers take, and read the answers."""
    keys = load_keys(pair.folder / "client-1.key_secret")
    wrong: list[list[wire.Part]] = [
        [b"junk"],
        wire.pack("surprise", {"id": 1}),
        wire.pack("upload", {"id": 1, "round": "7-3fa9c1d2", "params": b"", "form": "seed"}),
    ]
    contacts = config.load(pair.folder / "s1.toml").peer, config.load(pair.folder / "s0.toml").peer
    with zmq.Context() as context, ExitStack() as opened:
        ends = [
            opened.enter_context(dealer(context, keys, doors(pair)[server], contact.public_key))
            for server, contact in zip(SERVERS, contacts, strict=True)
        ]
        for end in ends:
            assert end.poll(30_000, zmq.POLLOUT)
        felt.set()
        while not ended.is_set():
            for end in ends:
                for parts in wrong:
                    end.send_multipart(parts)
            for end in ends:
                for _ in wrong:
                    assert end.poll(30_000), "no answer"
                    assert wire.unpack(end.recv_multipart()).type == "error"


def as_the_peer(pair: Pair, felt: threading.Event, ended: threading.Event) -> None:
    """Send short and long messages with S0's key, on streams that S1 has no end of."""
    keys = load_keys(pair.folder / "s0.key_secret")
    key = config.load(pair.folder / "s0.toml").peer.public_key
    with zmq.Context() as context, ExitStack() as opened:
        sockets = [
            opened.enter_context(dealer(context, keys, doors(pair)["peer"], key)) for _ in range(30)
        ]
        for end in sockets:
            # `immediate`: nothing is buffered before the keys are proved
            while not end.poll(0, zmq.POLLOUT) and not ended.wait(0.02):
                pass
        felt.set()
        while not ended.wait(0.02):
            for number, end in enumerate(sockets):
                with suppress(zmq.Again):
                    end.send(bytes(1 << 20) if number == 0 else b"junk", zmq.DONTWAIT)


@contextmanager
def flooded(pair: Pair, flood: Flood) -> Iterator[None]:
    """Run `flood` on a thread for the block, and for `FLOOD_S` at least; its error is raised."""
    felt, ended, errors = threading.Event(), threading.Event(), []

    def run() -> None:
        try:
            flood(pair, felt, ended)
        except BaseException as error:
            errors.append(error)
            felt.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert felt.wait(60)
        until = time.monotonic() + FLOOD_S
        yield
        time.sleep(max(0.0, until - time.monotonic()))
    finally:
        ended.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not errors, errors


def one_round(pair: Pair) -> None:
    """Run a round of all clients, and check its result."""
    pair.published_as(pair.play(VALUES, **PARAMS), VALUES)


def calm(pair: Pair) -> dict[str, tuple[int, int]]:
    """Memory and descriptors of both servers, once two looks agree."""
    seen: dict[str, tuple[int, int]] = {}
    for server in SERVERS:
        last = -1
        while (now := pair.descriptors(server)) != last:
            last = now
            time.sleep(0.5)
        seen[server] = pair.resident_bytes(server), now
    return seen


def check_is_calm_again(pair: Pair, before: dict[str, tuple[int, int]]) -> None:
    """Wait until both servers have what they had `before`, except for the slack."""
    for server in SERVERS:
        memory, descriptors = before[server]

        def settled(server: str = server, memory: int = memory, most: int = descriptors) -> bool:
            return (
                pair.descriptors(server) <= most + DESCRIPTOR_SLACK
                and pair.resident_bytes(server) <= memory + MEMORY_SLACK
            )

        try:
            wait_until(settled, 60)
        except AssertionError:
            now = pair.resident_bytes(server), pair.descriptors(server)
            raise AssertionError(f"{server} had {before[server]} and has {now}") from None


def test_a_flood_without_a_key_takes_no_descriptor_from_a_new_session(pair: Pair) -> None:
    """The first round opens lanes and files while connections have taken all that they can."""
    before = calm(pair)
    with flooded(pair, without_a_key):
        # all that connections can take
        wait_until(lambda: all(pair.descriptors(s) >= DESCRIPTORS * 3 // 4 for s in SERVERS), 10)
        one_round(pair)
    # the session's lanes and kernels stay
    before = {server: (memory + (32 << 20), kept + 8) for server, (memory, kept) in before.items()}
    check_is_calm_again(pair, before)


@pytest.mark.parametrize("flood", [with_a_clients_key, with_refused_requests, as_the_peer])
def test_a_flood_with_a_key_leaves_nothing_behind(pair: Pair, flood: Flood) -> None:
    """Run after the first flood, whose long frames teach malloc to keep shorter ones."""
    before = calm(pair)
    with flooded(pair, flood):
        one_round(pair)
    check_is_calm_again(pair, before)


def test_the_logs_of_the_floods_are_short_and_name_no_defect(pair: Pair) -> None:
    """Run after all floods, in the order of this file."""
    for server in SERVERS:
        events = pair.events(server)
        names = {event["event"] for event in events}
        assert not names & {
            "request-error",
            "engine-error",
            "socket-error",
            "round-failed",
            "action-error",
        }
        (listening,) = (event for event in events if event["event"] == "listening")
        assert listening["descriptors"] == DESCRIPTORS
        assert listening["connections"] == DESCRIPTORS * 3 // 4
        assert sum(event["event"] == "request-refused" for event in events) < 100
        assert len(pair.output(server)) < 100_000
