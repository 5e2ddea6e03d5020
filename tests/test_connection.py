"""A connection's answers and failures, and a client's way through a round.

The servers are small ones of the test's own.
"""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig, ServerAddress
from securemedian.clients.connection import SILENCE_S, Connection
from securemedian.common.keys import KeyPair, SigningKey
from securemedian.common.receipts import SERVICE, Receipt, Record
from securemedian.common.versions import WIRE, own_versions
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    FrameError,
    InputError,
    NotStored,
    ServerUnreachable,
    UnknownRound,
    VersionsDiffer,
)
from securemedian.mpc.protocols import ring, share, wire
from securemedian.mpc.rounds import encode
from securemedian.mpc.rounds.methods.pairwise import Pairwise
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.network.transport import CLIENT_DOMAIN, ClientPort, authenticate
from tests.daemons import endpoint_of, wait_until

pytestmark = pytest.mark.slow

# type, fields, arrays
Answer = tuple[str, dict[str, Any], dict[str, Any]]

SERVER, OTHER, MEMBER, STRANGER = (KeyPair(*zmq.curve_keypair()) for _ in range(4))
# with which SERVER and OTHER sign
SIGNING = {keys.public: SigningKey.new() for keys in (SERVER, OTHER)}


def address_of(keys: KeyPair, endpoint: str) -> ServerAddress:
    return ServerAddress(endpoint, keys.public.decode(), SIGNING[keys.public].public)


def echo(message: wire.Message) -> Answer:
    return message.type, message.fields, message.arrays


@contextmanager
def serving(
    handler: Callable[[wire.Message], Answer],
    max_message_bytes: int = 1 << 20,
    endpoint: str = "tcp://127.0.0.1:*",
    keys: KeyPair = SERVER,
) -> Iterator[ServerAddress]:
    """Run a server on a thread, for callers with the key of MEMBER."""
    context = zmq.Context()
    gate = authenticate(context, {CLIENT_DOMAIN: [MEMBER.public.decode()]})
    port = ClientPort(context, keys, endpoint, max_message_bytes)
    address = address_of(keys, endpoint_of(port))
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            if port.socket.poll(20) and (request := port.recv()):
                message = wire.unpack(request[2])
                kind, fields, arrays = handler(message)
                port.send(
                    request[0], wire.pack(kind, {"id": message.fields["id"]} | fields, arrays)
                )

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield address
    finally:
        stop.set()
        thread.join()
        port.close()
        gate.stop()
        context.term()


@contextmanager
def connected(
    server: ServerAddress, keys: KeyPair = MEMBER, timeout_s: float = 5.0
) -> Iterator[Connection]:
    connection = Connection("S0", server, keys, timeout_s)
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such limit")
def test_a_line_that_is_dead_is_given_up_within_seconds() -> None:
    """A client noticed only after `reply_timeout_s` that its server had moved."""
    with serving(echo) as server, connected(server) as connection:
        connection.ask("hello")
        with socket.socket(fileno=os.dup(connection._descriptor)) as line:
            limit_ms = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert limit_ms == 1000 * SILENCE_S


def test_an_array_of_many_pieces_goes_both_ways() -> None:
    long = np.arange((10 << 20) // 4 + 1, dtype=np.uint32)
    assert long.nbytes > 2 * wire.PIECE_BYTES
    with (
        serving(echo, max_message_bytes=1 << 24) as server,
        connected(server, timeout_s=60.0) as connection,
    ):
        answer = connection.ask("hello", arrays={"long": long, "short": long[:2]})
        assert np.array_equal(answer.arrays["long"], long)
        assert np.array_equal(answer.arrays["short"], long[:2])


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"code": "duplicate-upload", "message": "twice"}, DuplicateUpload),
        # of a frame that the server could not read
        ({"id": 0, "code": "bad-frame", "message": "twice"}, FrameError),
    ],
)
def test_errors_come_back_typed(fields: dict[str, Any], error: type[Exception]) -> None:
    with (
        serving(lambda _: ("error", fields, {})) as server,
        connected(server) as connection,
        pytest.raises(error, match="S0: twice"),
    ):
        connection.ask("upload")


def test_a_refused_key_is_told_at_once_and_with_what_to_do() -> None:
    with serving(echo) as server, connected(server, STRANGER, timeout_s=120) as connection:
        start = time.monotonic()
        with pytest.raises(ServerUnreachable, match="does not know this key") as caught:
            connection.ask("info")
        assert STRANGER.public.decode() in str(caught.value)
        assert STRANGER.secret.decode() not in str(caught.value)
        # far from the limit, on a busy machine too
        assert time.monotonic() - start < 60


def test_the_wrong_server_key_and_nobody_there_end_at_the_limit_and_are_told_apart() -> None:
    with serving(echo) as server:
        impostor = replace(server, public_key=STRANGER.public.decode())
        digits = impostor.fingerprint
        nobody = address_of(SERVER, "tcp://127.0.0.1:9")
        for address, said in (
            (impostor, f"has not proved its key within 1 s: {digits}; compare"),
            (nobody, "could not be reached: no answer within 1 s; start it"),
        ):
            with (
                connected(address, timeout_s=1) as connection,
                pytest.raises(ServerUnreachable, match=said),
            ):
                connection.ask("info")


@pytest.mark.parametrize(("highest", "fields"), [(2, {}), (3, {"reason": "not-finite"})])
def test_servers_are_told_a_reason_if_they_know_reasons(
    tmp_path: Path, highest: int, fields: dict[str, str]
) -> None:
    """Release 1.0.0, wire version 2, refuses a request with a field that it does not know."""
    told: list[dict[str, Any]] = []

    def handler(message: wire.Message) -> Answer:
        if message.type == "decline":
            told.append({name: message.fields[name] for name in message.fields if name != "id"})
        return message.type, own_versions() | {"wire": [1, highest]}, {}

    with (
        serving(handler) as s0,
        serving(handler, keys=OTHER) as s1,
        Client(ClientConfig("a", write_keys(tmp_path), s0, s1)) as client,
    ):
        client.decline(ROUND, "not-finite")
        client.decline(ROUND)
    assert told == 2 * [{"round": ROUND} | fields] + 2 * [{"round": ROUND}]


@pytest.mark.parametrize("caller", [MEMBER, STRANGER], ids=["on the list", "not on it"])
def test_the_key_of_the_other_server_is_told_at_once(caller: KeyPair) -> None:
    with serving(echo) as server:
        swapped = replace(server, public_key=OTHER.public.decode())
        connection = Connection("S0", swapped, caller, 120, server)
        start = time.monotonic()
        with pytest.raises(ConfigError, match=r"^S0 at .* has the key .* \[s0\] and \[s1\]"):
            connection.ask("info")
        assert time.monotonic() - start < 60
        connection.close()
        # with a third key it is not blamed on the other server's
        third = replace(server, public_key=STRANGER.public.decode())
        connection = Connection("S0", swapped, caller, 1, third)
        with pytest.raises(ServerUnreachable, match="has not proved its key"):
            connection.ask("info")
        connection.close()


def test_exchanged_keys_are_told_and_nothing_is_uploaded(tmp_path: Path) -> None:
    pair = Pair(PAIRWISE)
    with (
        serving(lambda message: pair.handle(message, 0)) as s0,
        serving(lambda message: pair.handle(message, 1), keys=OTHER) as s1,
    ):
        config = ClientConfig(
            "a",
            write_keys(tmp_path),
            replace(s0, public_key=s1.public_key),
            replace(s1, public_key=s0.public_key),
        )
        with (
            Client(config) as client,
            pytest.raises(ConfigError, match="exchange the public keys"),
        ):
            client.submit(np.zeros(5))
    assert pair.uploads == []


def test_a_server_that_says_nothing_ends_at_the_limit_and_its_late_answer_is_dropped() -> None:
    given_up = threading.Event()

    def late(message: wire.Message) -> Answer:
        assert given_up.wait(60)
        return echo(message)

    with serving(late) as server, connected(server, timeout_s=3) as connection:
        with pytest.raises(ServerUnreachable, match="did not answer 'first'"):
            connection.ask("first")
        given_up.set()
        assert connection.ask("second").type == "second"


def test_a_message_too_long_for_the_server_is_told_at_once() -> None:
    with (
        serving(echo, max_message_bytes=10_000) as server,
        connected(server, timeout_s=120) as connection,
    ):
        connection.ask("hello")
        start = time.monotonic()
        with pytest.raises(ServerUnreachable, match="max_message_bytes"):
            connection.ask("upload", {}, {"share": np.zeros(20_000, np.uint8)})
        assert time.monotonic() - start < 60
        # it connects again
        assert connection.ask("hello").type == "hello"


def test_a_message_longer_than_a_server_takes_is_not_sent_and_not_repeated() -> None:
    seen: list[str] = []
    limit = [1 << 20]

    def limited(message: wire.Message) -> Answer:
        seen.append(message.type)
        return message.type, {"max_message_bytes": limit[0]}, {}

    long = {"share": np.zeros(1 << 20, np.uint8)}
    with serving(limited, 1 << 24) as server, connected(server, timeout_s=60) as connection:
        connection.ask("hello")
        start = time.monotonic()
        with pytest.raises(ConfigError, match="at most 1,048,576 bytes: .* max_message_bytes r"):
            connection.ask("upload", {}, long, patience_s=3600)
        assert time.monotonic() - start < 60 and seen == ["hello", "info"]
        # the server was given a larger limit meanwhile
        limit[0] = 1 << 22
        for _ in range(2):
            connection.ask("upload", {}, long, patience_s=3600)
        assert seen == ["hello", "info", "info", "upload", "upload"]


def test_a_server_restarted_between_two_requests_goes_unnoticed() -> None:
    with serving(echo) as server:
        connection = Connection("S0", server, MEMBER, 5.0)
        connection.ask("before")
    # on a busy machine zmq takes its time to notice
    wait_until(lambda: connection._monitor.poll(0))
    with serving(echo, endpoint=server.address):
        assert connection.ask("after").type == "after"
    connection.close()


def test_threads_take_turns() -> None:
    """A dealing goes on in the background, and other requests go between its pieces."""
    done, sent, asked = threading.Event(), [0], threading.Event()

    def slow(message: wire.Message) -> Answer:
        asked.set()
        time.sleep(0.01)
        return echo(message)

    with serving(slow) as server, connected(server, timeout_s=60) as connection:

        def deal() -> None:
            while not done.is_set() and sent[0] < 300:
                connection.ask("deal")
                sent[0] += 1

        thread = threading.Thread(target=deal)
        thread.start()
        assert asked.wait(60)
        for _ in range(3):
            assert connection.ask("status").type == "status"
        done.set()
        thread.join(60)
    assert sent[0] < 300


def test_a_cancelled_connection_sends_nothing_and_waits_for_nothing() -> None:
    asked: list[str] = []

    def slow(message: wire.Message) -> Answer:
        asked.append(message.type)
        time.sleep(0.5)
        return message.type, {}, {}

    with serving(slow) as server, connected(server, timeout_s=120) as connection:
        threading.Timer(0.2, connection.cancel).start()
        start = time.monotonic()
        for op in ("first", "second"):
            with pytest.raises(ServerUnreachable, match="closed here"):
                connection.ask(op)
        assert time.monotonic() - start < 60
        time.sleep(0.6)
    assert asked == ["first"]


ROUND, START = "1-0000000a", RunState()


def test_what_a_server_cannot_store_is_sent_again_and_told_once() -> None:
    room: list[bool] = [False, False, True]
    asked: list[bytes] = []

    def full(message: wire.Message) -> Answer:
        asked.append(message.arrays["share"].tobytes())
        if message.type == "refused":
            return "error", {"code": "duplicate-upload", "message": "twice"}, {}
        if room.pop(0):
            return echo(message)
        return "error", {"code": "not-stored", "message": "No space left on device"}, {}

    told: list[str] = []
    share = {"share": np.arange(5)}
    with serving(full) as server:
        connection = Connection("S0", server, MEMBER, 5.0, report=told.append)
        assert connection.ask("upload", {}, share, patience_s=60).type == "upload"
        assert len(asked) == 3 and len(set(asked)) == 1
        where = f"S0 at {server.address}"
        assert told == ["S0: No space left on device. Trying again for 60 s", f"{where} is back"]
        room[:] = [False]
        with pytest.raises(NotStored, match="No space left"):
            connection.ask("upload", {}, share)
        # other errors are final
        with pytest.raises(DuplicateUpload):
            connection.ask("refused", {}, share, patience_s=60)
        assert len(asked) == 5
        connection.close()


class Pair:
    """Two servers with one round whose result is the first update; what they get is kept."""

    def __init__(self, params: RoundParams) -> None:
        self.params = params
        self.state = "open"
        self.uploads: list[wire.Message] = []
        self.refusal: dict[str, Any] | None = None
        # the party that each server says it is
        self.parties = [0, 1]
        # and, by request and server, of its versions
        self.versions: dict[tuple[str, int], dict[str, Any]] = {}

    def handle(self, message: wire.Message, party: int) -> Answer:
        if message.type == "info":
            told = self.versions.get(("info", party), own_versions())
            return "info", {"party": self.parties[party], "max_message_bytes": 1 << 20} | told, {}
        if message.type == "round":
            fields = {
                **self.versions.get(("round", party), own_versions()),
                "round": ROUND,
                "number": 1,
                "params": self.params.to_dict(),
                "index": 0,
                "state": self.state,
                "start": START.digest.hex(),
            }
            return "round", fields, {}
        if message.type == "model":
            policy, optimiser = START.policy.to_dict(), START.optimiser.to_dict()
            fields = {"number": 1, "policy": policy, "optimiser": optimiser}
            return "model", fields, {"scale": START.scale}
        if message.type == "upload":
            if self.refusal:
                return "error", self.refusal, {}
            self.uploads.append(message)
            return "upload", {}, {}
        share = ring.pack(self.share(party), self.params.form.ring_bits)
        return "result", {"form": "share", **self.receipt()}, {"share": share}

    def receipt(self) -> dict[str, Any]:
        """Return the receipt of a round with MEMBER and two more, as an answer has it."""
        included = sorted([MEMBER.public.decode(), "x", "y"])
        params = self.params.to_dict()
        record = Record(
            SERVICE, 1, "default", ROUND, 1, params, included, {}, START.digest, opened=b""
        )
        receipt = Receipt(record.encode())
        for name, keys in (("s0", SERVER), ("s1", OTHER)):
            receipt = receipt.signed(name, SIGNING[keys.public])
        return {"record": receipt.encoded, "signatures": dict(receipt.signatures)}

    def share(self, party: int) -> np.ndarray:
        """Return a party's share of the one update."""
        upload, layout = self.uploads[party], self.params.form.layout
        array = upload.arrays["share"]
        held = (
            share.SeedUpload(layout, array.tobytes())
            if upload.fields["form"] == "seed"
            else share.WordsUpload(layout, array)
        )
        return share.read(held, layout, 0, layout.columns)[0]


def write_keys(folder: Path) -> str:
    """Write the key file of MEMBER."""
    key_file = folder / "a.key_secret"
    key_file.write_text(
        f'curve\n    public-key = "{MEMBER.public.decode()}"\n'
        f'    secret-key = "{MEMBER.secret.decode()}"\n'
    )
    key_file.chmod(0o600)
    return str(key_file)


@contextmanager
def client_of(pair: Pair, tmp_path: Path, **settings: Any) -> Iterator[Client]:
    key_file = write_keys(tmp_path)
    with (
        serving(lambda message: pair.handle(message, 0)) as s0,
        serving(lambda message: pair.handle(message, 1), keys=OTHER) as s1,
        Client(
            ClientConfig("a", key_file, s0, s1, reply_timeout_s=5, poll_interval_s=0.02, **settings)
        ) as client,
    ):
        yield client


PAIRWISE = RoundParams(
    Pairwise(ring_bits=40, fraction_bits=20, result_to="clients"), dim=5, max_clients=3
)


def test_each_server_gets_half_of_the_upload(tmp_path: Path) -> None:
    pair, update = Pair(PAIRWISE), np.arange(5.0)
    with client_of(pair, tmp_path) as client:
        client.submit(update)
    assert [upload.fields["form"] for upload in pair.uploads] == ["seed", "words"]
    assert np.array_equal(
        share.combine(RingShare(pair.share(0)), RingShare(pair.share(1)), 40),
        encode.to_fixed(update, 40, 20),
    )


@pytest.mark.parametrize("parties", [[0, 0], [1, 0], [None, 1]])
def test_nothing_is_uploaded_unless_the_servers_are_both_parties(
    tmp_path: Path, parties: list[Any]
) -> None:
    pair = Pair(PAIRWISE)
    pair.parties = parties
    wrong = 0 if parties[0] != 0 else 1
    with client_of(pair, tmp_path) as client:
        address = getattr(client.config, f"s{wrong}").address
        said = rf"\[s{wrong}\] names a server .*: {address} is party {parties[wrong]}"
        with pytest.raises(ConfigError, match=said):
            client.submit(np.zeros(5))
        assert pair.uploads == []
        pair.parties = [0, 1]
        # the attempt was not used up
        client.submit(np.zeros(5))
    assert len(pair.uploads) == 2


@pytest.mark.parametrize("server", [0, 1])
@pytest.mark.parametrize("request_of", ["info", "round"])
def test_nothing_is_uploaded_to_a_release_that_does_not_work_with_this_one(
    tmp_path: Path, request_of: str, server: int
) -> None:
    """Neither by who looks for a round nor by who submits, and whenever the server is updated."""
    pair = Pair(PAIRWISE)
    later = {"release": "9.9", "wire": [WIRE + 1, WIRE + 2]}
    pair.versions = {(request_of, server): later}
    with client_of(pair, tmp_path) as client:
        words = rf"S{server} runs release 9\.9 .*update this side"
        if (request_of, server) == ("round", 0):
            with pytest.raises(VersionsDiffer, match=words):
                client.wait_for_round()
        with pytest.raises(VersionsDiffer, match=words):
            client.submit(np.zeros(5))
        assert pair.uploads == []
        pair.versions = {}
        # the attempt was not used up
        client.submit(np.zeros(5))
    assert len(pair.uploads) == 2


def test_a_coordinator_opens_nothing_at_a_release_that_does_not_work_with_this_one(
    tmp_path: Path,
) -> None:
    pair = Pair(PAIRWISE)
    pair.versions = {("info", 0): {"release": "0.9", "wire": [0, 0]}}
    with (
        client_of(pair, tmp_path) as client,
        Coordinator(client.config) as coordinator,
        pytest.raises(VersionsDiffer, match=r"S0 runs release 0\.9 .*update S0"),
    ):
        coordinator.open_round(PAIRWISE, timeout_s=5)


def test_one_attempt_a_round(tmp_path: Path) -> None:
    pair = Pair(PAIRWISE)
    with client_of(pair, tmp_path, wait_timeout_s=0.1) as client:
        with pytest.raises(InputError, match="NaN"):
            client.submit(np.full(5, np.nan))
        with pytest.raises(InputError, match="5 values"):
            # nothing was sent: the round is still this client's
            client.submit(np.zeros(6))
        pair.refusal = {"code": "unknown-round", "message": "gone"}
        with pytest.raises(UnknownRound, match="gone"):
            client.submit(np.zeros(5))
        with pytest.raises(ChannelTimeout, match="no new round"):
            client.submit(np.zeros(5))
        with pytest.raises(InputError, match="before a submit"):
            client.result()


def test_a_server_that_never_was_is_not_waited_for(tmp_path: Path) -> None:
    nowhere = address_of(SERVER, "tcp://127.0.0.1:10"), address_of(OTHER, "tcp://127.0.0.1:9")
    config = ClientConfig("a", write_keys(tmp_path), *nowhere, reply_timeout_s=0.5)
    with (
        Client(config) as lost,
        pytest.raises(ServerUnreachable, match="could not be reached"),
    ):
        lost.wait_for_round()
