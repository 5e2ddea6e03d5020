"""Long shares in blocks: what the daemon keeps of them, and the doors beside it."""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian import cli
from securemedian.clients import door as client_door
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection
from securemedian.common import sealing
from securemedian.common.blocks import BLOCK_BYTES, block_digest, count, whole_digest
from securemedian.common.sealing import Seal
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, DamagedUpload, DuplicateUpload
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.storage import door, doors
from securemedian.servers.storage.room import DAEMON, Room
from tests.daemons import ROOT, SETTINGS, Pair, running, wait_until
from tests.doors_here import DoorHere
from tests.servers_alone import Server

# four blocks and a bit
DIM = 2_200_000
PARAMS = RoundParams(Mean(norm_bound="off"), dim=DIM, max_clients=3)
SIZE = 8 * PARAMS.layout.words


def share(seed: int = 1) -> Words:
    return np.random.default_rng(seed).integers(0, 1 << 63, SIZE // 8, np.uint64)


def cut(words: Words) -> list[Words]:
    return [words[at : at + BLOCK_BYTES // 8] for at in range(0, words.size, BLOCK_BYTES // 8)]


def digest(words: Words) -> bytes:
    return whole_digest(block_digest(block.data) for block in cut(words))


# One door


class Memory:
    """A file that is written to."""

    def __init__(self) -> None:
        self.written: list[int] = []

    def write(self, at: int, words: Words) -> None:
        """Note the place."""
        self.written.append(at)


def room(owners: list[int]) -> Room:
    return Room(1, "client-1", "1-00000001", "upload", 80, SIZE, owners)


def test_a_block_is_written_once_by_the_door_that_owns_it() -> None:
    here, file, blocks = room([DAEMON, 7, DAEMON, 7, 7]), Memory(), cut(share())
    assert here.missing(DAEMON) == [0, 2] and here.missing(7) == [1, 3, 4]
    assert here.put(file, DAEMON, 2, blocks[2])
    assert not here.put(file, DAEMON, 2, blocks[2].copy())
    assert file.written == [80 + 2 * BLOCK_BYTES]
    with pytest.raises(DuplicateUpload, match="another block 2"):
        here.put(file, DAEMON, 2, blocks[2] + np.uint64(1))
    for number in (1, 5, -1):
        with pytest.raises(BadUpload, match="not for this door"):
            here.put(file, DAEMON, number, blocks[1])
    for wrong in (blocks[0][:-1], blocks[0].view(np.uint32), blocks[0].reshape(2, -1)):
        with pytest.raises(BadUpload, match="block 0 is uint64"):
            here.put(file, DAEMON, 0, wrong)
    assert file.written == [80 + 2 * BLOCK_BYTES] and not here.whole
    assert here.missing(DAEMON) == [0]


def test_a_block_that_cannot_be_written_is_missing() -> None:
    class Full(Memory):
        def write(self, at: int, words: Words) -> None:
            raise OSError(28, "no space")

    here = room([DAEMON] * 5)
    with pytest.raises(OSError, match="no space"):
        here.put(Full(), DAEMON, 0, cut(share())[0])
    assert here.missing(DAEMON) == [0, 1, 2, 3, 4]


@pytest.fixture
def beside(tmp_path: Path) -> Iterator["Beside"]:
    made = Beside(tmp_path / "words")
    try:
        yield made
    finally:
        made.close()


class Beside:
    """A door of this process with one room, of a share of SIZE bytes, and what it says."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.room = room([7, 8, 7, 7, 7])
        self.room.begin_anew(digest(share()))
        self.door = DoorHere(7)
        self.port, self.said = self.door.port, self.door.said
        self.server: Any = SimpleNamespace(
            label="S0", host="127.0.0.1", check_cancelled=lambda: None
        )

    def order(self, **message: Any) -> None:
        self.door.tell(message)

    def grant(self) -> None:
        fields = {name: getattr(self.room, name) for name in doors._OF_A_ROOM}
        self.order(grant=fields, path=str(self.file), stored=[])

    def connect(self) -> client_door.Door:
        return client_door.Door(self.server, f":{self.port}", self.room.number, self.room.key)

    def send(self, numbers: list[int]) -> list[Words]:
        """Send blocks of `share`, and return those that are acknowledged."""
        stored: list[Words] = []
        with closing(self.connect()) as made:
            made.send(numbers, cut(share()), stored.append)
        return stored

    def raw(self) -> tuple[socket.socket, bytes]:
        """Return a connection, and the challenge of the door."""
        made = socket.create_connection(("127.0.0.1", self.port), 10)
        return made, made.recv(sealing.CHALLENGE_BYTES, socket.MSG_WAITALL)

    @property
    def stored(self) -> dict[int, bytes]:
        """Return the digests of blocks, as the door has told them."""
        return {each["stored"][1]: each["stored"][2] for each in self.said if "stored" in each}

    def close(self) -> None:
        self.door.close()


def hung_up(connection: socket.socket) -> bool:
    """Return whether the door closes a connection, and says nothing before that."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_door_stores_what_is_sealed_for_it_and_tells_the_daemon_first(beside: Beside) -> None:
    beside.grant()
    told: list[int] = []
    with closing(beside.connect()) as made:
        made.send([0, 2, 4], cut(share()), lambda block: told.append(len(beside.stored)))
    assert told == sorted(told) and told[0] >= 1
    blocks = cut(share())
    assert beside.stored == {number: block_digest(blocks[number].data) for number in (0, 2, 4)}
    content = np.fromfile(beside.file, np.uint64)[80 // 8 :]
    for number in (0, 2, 4):
        at = number * BLOCK_BYTES // 8
        assert np.array_equal(content[at : at + blocks[number].size], blocks[number])
    # the same again is acknowledged, and not told again
    before = len(beside.said)
    assert len(beside.send([0])) == 1
    assert not any("stored" in each for each in beside.said[before:])


def test_a_door_refuses_blocks_that_are_not_its_own(beside: Beside) -> None:
    beside.grant()
    with pytest.raises(BadUpload, match="has not stored a block"):
        beside.send([1])
    # and goes on
    assert len(beside.send([3])) == 1


@pytest.mark.parametrize("wrong", ["key", "room", "challenge", "forgotten"])
def test_nobody_sends_a_door_anything_without_the_key_of_a_room(beside: Beside, wrong: str) -> None:
    beside.grant()
    connection, challenge = beside.raw()
    seal = Seal(bytes(16) if wrong == "key" else beside.room.key)
    if wrong == "challenge":
        # what was heard of another connection
        challenge = beside.raw()[1]
    if wrong == "forgotten":
        beside.order(forget=beside.room.number)
        wait_until(lambda: {"forgot": beside.room.number} in beside.said)
    connection.sendall(seal.greeting(2 if wrong == "room" else beside.room.number, challenge))
    assert hung_up(connection)
    assert beside.stored == {}


@pytest.mark.parametrize("wrong", ["bit", "tag", "number", "order"])
def test_a_block_that_somebody_has_changed_is_not_stored(beside: Beside, wrong: str) -> None:
    beside.grant()
    connection, challenge = beside.raw()
    seal, blocks = Seal(beside.room.key), cut(share())
    connection.sendall(seal.greeting(beside.room.number, challenge))
    header, sealed = seal.seal(0, blocks[0].data.cast("B"))
    changed = bytearray(sealed)
    match wrong:
        case "bit":
            changed[1000] ^= 1
        case "tag":
            changed[-1] ^= 1
        case "number":
            header = sealing.HEADER.pack(2, header[8:])
        case "order":
            changed[:] = seal.seal(2, blocks[2].data.cast("B"))[1]
    connection.sendall(header + changed)
    assert connection.recv(1) == sealing.REFUSED
    assert beside.stored == {}
    # the connection goes on
    connection.sendall(b"".join(seal.seal(0, blocks[0].data.cast("B"))))
    assert connection.recv(1) == sealing.STORED


def test_a_door_hangs_up_on_a_block_that_no_share_has(beside: Beside) -> None:
    beside.grant()
    connection, challenge = beside.raw()
    seal = Seal(beside.room.key)
    connection.sendall(seal.greeting(beside.room.number, challenge))
    connection.sendall(sealing.HEADER.pack(5, bytes(12)))
    assert hung_up(connection)


def test_who_proves_nothing_makes_room_for_others(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "GREETING_S", 600.0)
    monkeypatch.setattr(door, "MOST_UNPROVED", 3)
    strangers = [beside.raw()[0] for _ in range(4)]
    assert hung_up(strangers[0])
    strangers[1].settimeout(0.5)
    with pytest.raises(TimeoutError):
        strangers[1].recv(1)


def test_who_says_nothing_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "GREETING_S", 1.0)
    monkeypatch.setattr(door, "SILENT_S", 1.0)
    with closing(Beside(tmp_path / "words")) as beside:
        beside.grant()
        assert hung_up(beside.raw()[0])
        connection, challenge = beside.raw()
        greeting = Seal(beside.room.key).greeting(beside.room.number, challenge)
        connection.sendall(greeting)
        assert hung_up(connection)


def test_a_room_has_few_connections_and_loses_them_with_its_key(beside: Beside) -> None:
    beside.grant()
    connections = [beside.raw() for _ in range(3)]
    for connection, challenge in connections:
        greeting = Seal(beside.room.key).greeting(beside.room.number, challenge)
        connection.sendall(greeting)
    # who came first had to go
    assert sum(hung_up(each) for each, _ in connections[:1]) == 1
    beside.room.begin_anew(bytes(32))
    beside.grant()
    assert all(hung_up(each) for each, _ in connections[1:])
    assert len(beside.send([0])) == 1


def test_what_is_sealed_has_the_same_length_whatever_it_is_and_never_repeats() -> None:
    seal, block = Seal(bytes(16)), bytes(1000)
    sent = [b"".join(seal.seal(1, memoryview(each))) for each in (block, block, b"\1" * 1000)]
    assert len({*sent}) == 3 and {len(each) for each in sent} == {20 + 1000 + 16}
    # all that can be seen is the number
    assert {each[:8] for each in sent} == {(1).to_bytes(8, "little")}


def test_what_a_process_says_before_it_ends_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "said").write_bytes(msgpack.packb({"stored": [1, 2, b"3"]}))
    command = ["/bin/cat", str(tmp_path / "said")]
    started = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **rest: started(command, **rest))
    with (tmp_path / "lock").open("w+b") as lock:
        process = doors.Process("s0", "127.0.0.1", "", 1, lock)
        heard = wait_until(process.hear)
        assert heard == [{"stored": [1, 2, b"3"]}]
        wait_until(lambda: process.hear() is None)
        process.kill()


# A client

# what zmq does with blocks to two doors: three buffers for each, freed before the next ones
SENDING = """
import resource, sys
from securemedian.clients.blocks import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
def send():
    buffers = [bytearray(4 << 20) for _ in range(6)]
for _ in range(3):
    send()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    send()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others do not learn")
def test_a_client_keeps_the_memory_of_blocks_that_are_sent() -> None:
    def faults(what: str) -> int:
        command = [sys.executable, "-c", SENDING, what]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
        return int(ended.stdout)

    assert faults("kept") < 2000 < faults("not")


# The daemon


class Alone:
    """A server with an open round, and one client that sends it blocks."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(0, folder, PARAMS)
        self.round = self.server.open()
        self.key = self.server.keys[0]

    def store(self, words: Words, **changes: Any) -> wire.Message:
        start = bytes.fromhex(self.server.latest.server_round.asked.start)
        fields = {"round": self.round, "params": PARAMS.digest, "start": start, "kind": "upload"}
        return self.server.ask(self.key, "store", **fields | {"digest": digest(words)} | changes)

    def block(self, words: Words, number: int) -> wire.Message:
        fields = {"round": self.round, "kind": "upload", "block": number}
        return self.server.ask(self.key, "block", {"share": cut(words)[number]}, **fields)


@pytest.fixture
def alone(tmp_path: Path) -> Alone:
    return Alone(tmp_path / "state")


def code(answer: wire.Message) -> str:
    return str(answer.fields.get("code", ""))


def test_a_share_counts_once_all_of_its_blocks_are_stored_in_any_order(alone: Alone) -> None:
    words = share()
    assert code(alone.block(words, 0)) == BadUpload.code
    assert alone.store(words).fields["missing"] == {"": [0, 1, 2, 3, 4]}
    assert [code(alone.block(words, number)) for number in (4, 0, 2, 3)] == [""] * 4
    assert alone.store(words).fields["missing"] == {"": [1]}
    assert alone.key not in alone.server.latest.server_round.here
    alone.block(words, 1)
    for _ in range(2):
        # repeated, it is answered alike
        answer = alone.store(words)
        assert not code(answer) and answer.fields["missing"] == {}
        assert alone.key in alone.server.latest.server_round.here
    assert code(alone.store(share(2))) == DuplicateUpload.code
    # nothing can be written there any more
    assert code(alone.block(share(2), 0)) == BadUpload.code
    spool = alone.server.latest.spool
    assert np.array_equal(spool.get(alone.key).words(0, 0, words.size), words)
    alone.server.restart()
    assert np.array_equal(alone.server.latest.spool.get(alone.key).words(0, 0, words.size), words)
    alone.server.latest.spool.examination({alone.key})()


def test_blocks_with_another_digest_than_said_are_sent_again(alone: Alone) -> None:
    words = share()
    alone.store(words, digest=bytes(32))
    for number in range(5):
        alone.block(words, number)
    answer = alone.store(words, digest=bytes(32))
    assert code(answer) == BadUpload.code and "do not have the digest" in answer.fields["message"]
    assert alone.key not in alone.server.latest.server_round.here
    # likewise those of an attempt that the client has given up
    alone.store(share(2))
    alone.block(share(2), 0)
    assert alone.store(words).fields["missing"] == {"": [0, 1, 2, 3, 4]}
    for number in range(5):
        alone.block(words, number)
    assert alone.store(words).fields["missing"] == {}
    spool = alone.server.latest.spool
    assert np.array_equal(spool.get(alone.key).words(0, 0, words.size), words)
    assert spool.stored_bytes == SIZE


@pytest.mark.parametrize("kind", ["dealing", "model", ""])
def test_only_what_the_round_takes_has_room(alone: Alone, kind: str) -> None:
    assert code(alone.store(share(), kind=kind)) == BadUpload.code
    assert alone.server.latest.spool.stored_bytes == 0


def test_a_disk_that_changes_a_block_is_noticed(alone: Alone) -> None:
    words = share()
    alone.store(words)
    for number in range(5):
        alone.block(words, number)
    alone.store(words)
    spool = alone.server.latest.spool
    spool.examination({alone.key})()
    (file,) = alone.server.folder.rglob("uploads.words")
    with file.open("r+b") as stored:
        stored.seek(BLOCK_BYTES + 5)
        stored.write(b"\0\1")
    with pytest.raises(DamagedUpload):
        spool.examination({alone.key})()


# Doors beside the daemon


@contextmanager
def pair(folder: Path, number: int) -> Iterator[Pair]:
    made = Pair(folder, 2, SETTINGS | {"doors": number})
    with running(made) as servers:
        for server in ("s0", "s1"):
            wait_until(partial(has_doors, servers, server, number))
        yield servers


def has_doors(servers: Pair, server: str, count: int) -> bool:
    return len(pids(servers, server)) == count


def pids(servers: Pair, server: str) -> list[int]:
    return [each["pid"] for each in servers.events(server) if each["event"] == "door-open"]


def update(number: int) -> NDArray[np.float32]:
    return np.random.default_rng(number).normal(0, 0.01, DIM).astype(np.float32)


def a_round(servers: Pair, **params: Any) -> NDArray[Any]:
    """Run a round with both clients, and return its result."""
    params = {"dim": DIM, "max_clients": 2} | (params or {"method": "mean", "norm_bound": "off"})
    model = np.zeros(params["dim"], np.float32)
    round_id = servers.open(model, reset=True, **params)
    with ExitStack() as stack:
        for number, name in enumerate(servers.names):
            loaded = ClientConfig.load(servers.folder / f"{name}.toml")
            config = replace(loaded, state_dir="", retry_limit_s=20)
            client = stack.enter_context(Client(config))
            client.submit(update(number)[: params["dim"]], round_id)
        servers.wait("published")
        return servers.result(round_id)


@pytest.fixture(scope="module")
def expected() -> NDArray[Any]:
    return np.mean([update(0), update(1)], axis=0)


def close_enough(result: NDArray[Any], expected: NDArray[Any]) -> bool:
    return bool(np.allclose(result, expected, atol=1e-4))


def count_blocks(
    monkeypatch: pytest.MonkeyPatch, then: Callable[[str], object] = str
) -> dict[str, list[int]]:
    """Return by server, or door of it, the blocks that are acknowledged from now on.

    After each of them `then` is called with that.
    """
    sent: dict[str, list[int]] = {}
    asked, sent_to_door = Connection.ask, client_door.Door.send

    def note(label: str, number: int) -> None:
        sent.setdefault(label, []).append(number)
        then(label)

    def ask(self: Connection, op: str, fields: Any = None, *rest: Any, **named: Any) -> Any:
        answer = asked(self, op, fields, *rest, **named)
        if op == "block":
            note(self.label, fields["block"])
        return answer

    def send(self: client_door.Door, numbers: Any, blocks: Any, stored: Any) -> None:
        left = iter(numbers)

        def noted(block: Words) -> None:
            note(f"{self._server.label}'s door", next(left))
            stored(block)

        sent_to_door(self, numbers, blocks, noted)

    monkeypatch.setattr(Connection, "ask", ask)
    monkeypatch.setattr(client_door.Door, "send", send)
    return sent


@pytest.mark.slow
def test_rounds_through_doors_publish_what_they_publish_without(
    tmp_path: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, results = count_blocks(monkeypatch), []
    for count_of_doors in (0, 2):
        sent.clear()
        with pair(tmp_path / str(count_of_doors), count_of_doors) as servers:
            results.append(a_round(servers))
        assert set(sent) == ({"S0's door", "S1's door"} if count_of_doors else {"S0", "S1"})
        assert sum(map(len, sent.values())) == 2 * count(SIZE)
    assert np.array_equal(results[0], results[1]) and close_enough(results[0], expected)


@pytest.mark.slow
def test_dealings_go_to_doors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent, dealt = count_blocks(monkeypatch), {"method": "bucketed", "uploads": "dealt", "dim": 500}
    with pair(tmp_path, 2) as servers:
        whole = a_round(servers, **dealt)
        assert not sent
        monkeypatch.setattr("securemedian.clients.blocks.WHOLE_BYTES", 0)
        # each server gets one dealing in words, of one block, and the doors take turns
        rounds = [a_round(servers, **dealt) for _ in range(2)]
        assert all(np.array_equal(each, whole) for each in rounds)
        assert {"S0's door", "S1's door"} & set(sent) and sum(map(len, sent.values())) == 4


@pytest.mark.slow
def test_a_door_that_dies_costs_what_was_not_acknowledged_and_is_replaced(
    tmp_path: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path, 2) as servers:
        doomed = pids(servers, "s1")[:1]

        def kill(label: str) -> None:
            if label == "S1's door" and doomed:
                os.kill(doomed.pop(), signal.SIGKILL)

        sent = count_blocks(monkeypatch, kill)
        assert close_enough(a_round(servers), expected)
        assert not doomed
        # whatever was acknowledged was sent once: of two shares
        assert Counter(sum(sent.values(), [])) <= Counter([*range(count(SIZE))] * 2)
        assert [each["event"] for each in servers.events("s1")].count("door-lost") == 1
        wait_until(lambda: len(pids(servers, "s1")) == 3)


@pytest.mark.slow
def test_a_client_that_reaches_no_door_sends_everything_to_the_daemon(
    tmp_path: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reach = client_door.Door

    def behind_a_firewall(server: Connection, address: str, *rest: Any) -> client_door.Door:
        return reach(server, ":1", *rest)

    monkeypatch.setattr("securemedian.clients.blocks.Door", behind_a_firewall)
    with pair(tmp_path, 2) as servers:
        sent = count_blocks(monkeypatch)
        assert close_enough(a_round(servers), expected)
    assert set(sent) == {"S0", "S1"}


@pytest.mark.slow
def test_doors_end_with_the_daemon_and_a_hung_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path, 1) as servers:
        (hung,) = pids(servers, "s0")
        os.kill(hung, signal.SIGSTOP)
        wait_until(lambda: len(pids(servers, "s0")) == 2)
        assert not Path(f"/proc/{hung}").exists()
        (there,) = pids(servers, "s1")
        servers.stop("s1", signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{there}").exists())
        servers.start("s1")


@pytest.mark.slow
def test_the_benchmark_compares_numbers_of_doors(tmp_path: Path) -> None:
    sizes = "--clients", "2", "--dim", "200000", "--repeat", "1", "--out", str(tmp_path)
    assert cli.main(["bench", "scale", "--doors", "0,1", *sizes]) == 0
    none, one = json.loads((tmp_path / "doors.json").read_text())["points"]
    assert (none["number"], one["number"]) == (0, 1)
    assert none["of_first"] == 1 and none["doors"] == 0 < one["doors"]
    assert one["curve"] < none["curve"] and one["sealing"] > 0
    for point in (none, one):
        assert all(point[name] > 0 for name in ("gigabytes_per_second", "clients", "loops"))
        kinds = point["loops"] + point["curve"] + point["others"]
        assert kinds == pytest.approx(point["daemon"] + point["doors"])
        assert 0 < point["busiest"] <= kinds
