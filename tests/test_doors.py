"""Long shares in blocks: what the daemon keeps of them, and the doors beside it."""

import json
import os
import platform
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian import cli
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection
from securemedian.common.blocks import BLOCK_BYTES, block_digest, count, whole_digest
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, DamagedUpload, DuplicateUpload
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.storage import door
from securemedian.servers.storage.room import DAEMON, Room
from tests.daemons import ROOT, SETTINGS, Pair, running, wait_until
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


class Answers:
    """A port that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[wire.Message] = []

    def send(self, address: bytes, parts: Sequence[wire.Part]) -> None:
        """Keep an answer."""
        self.sent.append(wire.unpack(parts))


@pytest.mark.parametrize(("number", "code"), [({"id": 5}, "bad-upload"), ({}, "bad-frame")])
def test_a_door_beside_the_daemon_refuses_as_the_daemon_does(
    number: dict[str, int], code: str
) -> None:
    fields: dict[str, Any] = {"round": "1-00000001", "kind": "upload", "block": 0}
    request = wire.pack("block", fields | number, {"share": cut(share())[0]})
    port: Any = Answers()
    # nothing has been granted, and so it opens no files
    descriptors: Any = None
    door._answer(port, door.Door(7, descriptors), (b"", "client-1", request))
    (answer,) = port.sent
    assert answer.type == "error"
    assert (answer.fields["id"], answer.fields["code"]) == (number.get("id", 0), code)


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
    assert alone.store(words).fields["missing"] == [[0, 1, 2, 3, 4]]
    assert alone.store(words).fields["doors"] == [0]
    assert [code(alone.block(words, number)) for number in (4, 0, 2, 3)] == [""] * 4
    assert alone.store(words).fields["missing"] == [[1]]
    assert alone.key not in alone.server.latest.server_round.here
    alone.block(words, 1)
    for _ in range(2):
        # repeated, it is answered alike
        answer = alone.store(words)
        assert not code(answer) and answer.fields["missing"] == []
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
    assert alone.store(words).fields["missing"] == [[0, 1, 2, 3, 4]]
    for number in range(5):
        alone.block(words, number)
    assert alone.store(words).fields["missing"] == []
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
def pair(folder: Path, doors: int) -> Iterator[Pair]:
    made = Pair(folder, 2, SETTINGS | {"doors": doors})
    with running(made) as servers:
        for server in ("s0", "s1"):
            wait_until(partial(has_doors, servers, server, doors - 1))
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
    """Return by label of the connection the blocks that are acknowledged from now on.

    After each of them `then` is called with the label.
    """
    sent: dict[str, list[int]] = {}
    asked = Connection.ask

    def ask(self: Connection, op: str, fields: Any = None, *rest: Any, **named: Any) -> Any:
        answer = asked(self, op, fields, *rest, **named)
        if op == "block":
            sent.setdefault(self.label, []).append(fields["block"])
            then(self.label)
        return answer

    monkeypatch.setattr(Connection, "ask", ask)
    return sent


@pytest.mark.slow
def test_rounds_through_two_doors_publish_what_they_publish_through_one(
    tmp_path: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, results = count_blocks(monkeypatch), []
    for doors in (1, 2):
        sent.clear()
        with pair(tmp_path / str(doors), doors) as servers:
            results.append(a_round(servers))
        labels = {"S0", "S1"} | ({"S0's door", "S1's door"} if doors == 2 else set())
        assert set(sent) == labels
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
    monkeypatch.setattr("securemedian.clients.connection.DOOR_S", 3.0)
    with pair(tmp_path, 2) as servers:
        doomed = pids(servers, "s1")

        def kill(label: str) -> None:
            if label == "S1's door" and doomed:
                os.kill(doomed.pop(), signal.SIGKILL)

        sent = count_blocks(monkeypatch, kill)
        assert close_enough(a_round(servers), expected)
        # it had one of its two blocks of the first share
        assert not doomed and len(sent["S1's door"]) in (1, 3)
        # whatever was acknowledged was sent once
        assert sorted(sum(sent.values(), [])) == sorted([*range(count(SIZE))] * 2)
        assert [each["event"] for each in servers.events("s1")].count("door-lost") == 1
        wait_until(lambda: len(pids(servers, "s1")) == 2)


@pytest.mark.slow
def test_a_client_that_reaches_no_door_sends_everything_to_the_daemon(
    tmp_path: Path, expected: NDArray[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securemedian.clients.connection.DOOR_S", 0.5)
    door = Connection.door
    # as behind a firewall
    monkeypatch.setattr(Connection, "door", lambda self, port: door(self, 1))
    with pair(tmp_path, 2) as servers:
        sent = count_blocks(monkeypatch)
        assert close_enough(a_round(servers), expected)
    assert set(sent) == {"S0", "S1"}


@pytest.mark.slow
def test_doors_end_with_the_daemon_and_a_hung_one_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pair(tmp_path, 2) as servers:
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
    assert cli.main(["bench", "scale", "--doors", "1,2", *sizes]) == 0
    one, two = json.loads((tmp_path / "doors.json").read_text())["points"]
    assert (one["number"], two["number"]) == (1, 2)
    assert one["of_first"] == 1 and one["doors"] == 0 < two["doors"]
    for point in (one, two):
        names = "gigabytes_per_second", "daemon", "clients", "loops", "curve", "busiest"
        assert all(point[name] > 0 for name in names)
        kinds = point["loops"] + point["curve"] + point["others"]
        assert kinds == pytest.approx(point["daemon"] + point["doors"])
        assert point["busiest"] < kinds
