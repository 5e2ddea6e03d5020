"""`securemedian bench scale --doors`: the bytes per second that a server takes by so many doors.

Both servers are real processes, and clients are processes of their own, which send S1 a dealing of
random words each: nothing is checked or computed. Numbers of doors take turns; 0 is the server
itself, over CURVE. Clients share the processors with doors here, which they do not in use, and so
they seal what is for doors before the time is taken, and then only let the system send it. What
goes to the server itself they encrypt meanwhile. The processor's seconds per GB are told, of
clients and of each kind of a server's threads.
"""

import argparse
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from securemedian.benchmarks.running import DEADLINE_S, RunningServers, started
from securemedian.clients.blocks import Blocks
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection, connect
from securemedian.common.addresses import host_of
from securemedian.common.blocks import BLOCK_BYTES, block_digest, whole_digest
from securemedian.common.keys import load_keys
from securemedian.common.sealing import CHALLENGE_BYTES, STORED, Seal
from securemedian.laboratory import report
from securemedian.laboratory.processes import Thread
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import CoordinateRange
from securemedian.operating import keygen

COLUMNS = (
    *("doors", "GB/s", "of first", "daemon, s/GB", "doors, s/GB"),
    *("clients, s/GB", "before, s/GB"),
)
# how the names of zmq's threads begin that encrypt
ZMQ_THREAD = "ZMQbg/IO"
# how long the clients of a round may take
TAKEN_S = 600.0
# how long the base OTs of a new session may take at most, which would be counted otherwise
SETTLE_S = 10.0
# a server that takes less of the processor than IDLE_S during PAUSE_S has nothing to do
IDLE_S, PAUSE_S = 0.02, 0.3


def run(options: argparse.Namespace) -> None:
    """Measure all numbers of doors, print a table and what bounds it, and save the JSON."""
    file = report.check_writable(options.out / "doors.json")
    console = report.console()
    params = RoundParams.from_dict(
        {
            "method": "bucketed",
            "dim": options.dim,
            "max_clients": options.clients,
            "deadline_s": DEADLINE_S,
        }
    )
    with ExitStack() as stack:
        # one process for each client, so that each has its share before the time is taken
        clients = [
            stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            for _ in range(options.clients)
        ]
        services = {
            doors: stack.enter_context(
                started(params, first=f"pool_limit_bytes = 0\ndoors = {doors}")
            )
            for doors in options.doors
        }
        taken: dict[int, list[dict[str, float]]] = {doors: [] for doors in services}
        with console.status("clients send"):
            assert params.dealing is not None
            for each in [one.submit(_make, params.dealing.layout.words) for one in clients]:
                each.result(TAKEN_S)
            for number in range(options.repeat + 1):
                for doors, service in services.items():
                    one = _take(service, clients)
                    # the first has found nothing in the caches
                    if number:
                        taken[doors].append(one)
    points = [_point(doors, taken[doors], taken[options.doors[0]]) for doors in services]
    report.save(file, {"round": params.to_dict()}, points)
    size = params.bytes_ahead / 1e6
    title = f"{options.clients} clients send {size:,.0f} MB each to S1"
    console.print(report.table(title, list(COLUMNS), [_row(point) for point in points]))
    for line in bounds(points, os.cpu_count() or 1):
        console.print(line)
    console.print(f"saved to {file}")


def _take(service: RunningServers, clients: Sequence[ProcessPoolExecutor]) -> dict[str, float]:
    """Let all clients of a round send their dealings, and return what that took."""
    params = service.params
    assert params.dealing is not None
    model = np.zeros(params.dim, np.float32)
    round_id = service.coordinator.open_round(params, model, CoordinateRange(), reset=True)
    start = bytes.fromhex(service.coordinator.status(round_id).start)
    fields = {"round": round_id, "params": params.digest, "start": start, "kind": "dealing"}
    words, names = params.dealing.layout.words, keygen.client_names(params.max_clients)

    def all_do(work: Callable[[Path, dict[str, Any], int], float]) -> float:
        done = [
            client.submit(work, service.folder / f"{name}.toml", fields, words)
            for client, name in zip(clients, names, strict=True)
        ]
        return sum(each.result(TAKEN_S) for each in done)

    sealing_seconds = all_do(_seal)
    _settle(service)
    _warm(service.folder, 8 * words * len(names))
    before, begun = service.processes.seconds("s1"), time.monotonic()
    spent = all_do(_send)
    seconds = time.monotonic() - begun
    after = service.processes.seconds("s1")
    service.coordinator.abort_round(round_id, "all is taken")
    gigabytes = 8 * words * len(names) / 1e9
    own = {thread: (now - before.get(thread, 0.0)) / gigabytes for thread, now in after.items()}
    return {
        "gigabytes_per_second": gigabytes / seconds,
        "clients": spent / gigabytes,
        "sealing": sealing_seconds / gigabytes,
        **_split(own),
    }


def _split(own: Mapping[Thread, float]) -> dict[str, float]:
    """Return a server's seconds per GB by process and by what threads do, and the busiest's."""
    daemon = next(iter(own)).process
    sums = dict.fromkeys(("daemon", "doors", "loops", "curve", "others"), 0.0)
    for thread, seconds in own.items():
        sums["daemon" if thread.process == daemon else "doors"] += seconds
        if thread.number == thread.process:
            sums["loops"] += seconds
        else:
            sums["curve" if thread.name.startswith(ZMQ_THREAD) else "others"] += seconds
    return sums | {"busiest": max(own.values())}


def _settle(service: RunningServers) -> None:
    """Wait until a server has nothing else to do."""
    deadline = time.monotonic() + SETTLE_S
    before, now = -1.0, 0.0
    while time.monotonic() < deadline and now - before > IDLE_S:
        before, now = now, sum(service.processes.seconds("s1").values())
        time.sleep(PAUSE_S)


def _warm(folder: Path, size: int) -> None:
    """Let the system have that much memory for files at hand.

    Under some virtual machines memory that was free for two seconds is taken from the host anew,
    which takes ten times as long as to write to it. Machines of their own have it all the time.
    """
    zeros = bytes(BLOCK_BYTES)
    with (folder / "warm").open("wb", buffering=0) as file:
        for _ in range(0, size, len(zeros)):
            file.write(zeros)
    (folder / "warm").unlink()


@cache
def _share(words: int) -> Words:
    return np.frombuffer(os.urandom(8 * words), np.uint64)


def _make(words: int) -> None:
    """Make the share that `_send` sends."""
    _share(words)


@cache
def _memory(address: str) -> int:
    """Return a file in memory for what goes to a door."""
    return os.memfd_create(address)


# what `_send` sends: by the address of a door how many blocks, their file and its length, and then
# room and key
_sealed: tuple[dict[str, tuple[int, int, int]], int, bytes] = {}, 0, b""


def _seal(file: Path, fields: dict[str, Any], words: int) -> float:
    """Seal what a client has for doors, and return the processor's seconds."""
    global _sealed
    share = _share(words).data.cast("B")
    begun = time.process_time()
    places = range(0, len(share), BLOCK_BYTES)
    digests = (block_digest(share[at : at + BLOCK_BYTES]) for at in places)
    with _connected(file) as server:
        said = server.ask("store", {**fields, "digest": whole_digest(digests)}).fields
    seal, files = Seal(said["key"]), {}
    for address, numbers in said["missing"].items():
        if address:
            memory, length = _memory(address), 0
            for number in numbers:
                at = number * BLOCK_BYTES
                for part in seal.seal(number, share[at : at + BLOCK_BYTES]):
                    length += os.pwrite(memory, part, length)
            files[address] = len(numbers), memory, length
    _sealed = files, said["room"], said["key"]
    return time.process_time() - begun


@contextmanager
def _connected(file: Path) -> Iterator[Connection]:
    """Connect the client of a configuration to S1."""
    config = ClientConfig.load(file)
    servers = connect(config, load_keys(config.key_file))
    try:
        yield servers[1]
    finally:
        for server in servers:
            server.close()


def _send(file: Path, fields: dict[str, Any], words: int) -> float:
    """Send S1 what is sealed, or else the share by itself, and return the processor's seconds."""
    share, (files, room, key) = _share(words), _sealed
    host = host_of(ClientConfig.load(file).s1.address)
    begun = time.process_time()
    if files:
        with ThreadPoolExecutor(len(files)) as pool:
            sent = [
                pool.submit(_send_file, (host, int(address[1:])), room, key, *sealed)
                for address, sealed in files.items()
            ]
        for each in sent:
            each.result()
    else:
        with _connected(file) as server:
            Blocks(server, fields, share, TAKEN_S, lambda stored: None).send()
    return time.process_time() - begun


def _send_file(
    door: tuple[str, int], room: int, key: bytes, blocks: int, memory: int, length: int
) -> None:
    """Send a door what was sealed for it, as it lies in memory, and wait for its answers."""
    with socket.create_connection(door) as connection:
        challenge = connection.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
        connection.sendall(Seal(key).greeting(room, challenge))
        at = 0
        while at < length:
            at += os.sendfile(connection.fileno(), memory, at, length - at)
        if connection.recv(blocks, socket.MSG_WAITALL) != STORED * blocks:
            raise BadUpload("a door has not stored all blocks")


def _point(
    doors: int, taken: Sequence[dict[str, float]], first: Sequence[dict[str, float]]
) -> dict[str, Any]:
    """Return the medians of a number of doors, and of its ratios to the first number's rounds."""
    rates = [[one["gigabytes_per_second"] for one in each] for each in (taken, first)]
    ratios = [one / other for one, other in zip(*rates, strict=True)]
    medians = {name: statistics.median(one[name] for one in taken) for name in taken[0]}
    return {"number": doors, "of_first": statistics.median(ratios), "ratios": ratios, **medians}


def _row(point: dict[str, Any]) -> list[str]:
    names = ("gigabytes_per_second", "of_first", "daemon", "doors", "clients", "sealing")
    return [str(point["number"]), *(report.figure(point[name]) for name in names)]


def bounds(points: Sequence[dict[str, Any]], cores: int) -> list[str]:
    """Return one sentence per number of doors: what of this machine's processors it has had."""
    lines = []
    for point in points:
        own, clients = point["daemon"] + point["doors"], point["clients"]
        used = (own + clients) * point["gigabytes_per_second"]
        lines.append(
            f"{point['number']} doors: {used:.2f} of {cores} cores were busy, "
            f"{clients / (own + clients):.0%} of that with clients; without these they are "
            f"enough for {cores / own:.2f} GB/s. Of the server's {own:.2f} s/GB the loops, which "
            f"write and hash, and at doors receive and open, take {point['loops']:.2f}, CURVE and "
            f"TCP of the server {point['curve']:.2f}, the rest {point['others']:.2f}; where each "
            f"thread has a core, the busiest is enough for {1 / point['busiest']:.2f} GB/s"
        )
    return lines
