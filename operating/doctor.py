"""The verb `doctor`, which examines what a server, a client or the coordinator stands on.

Every finding is a line. One that is not well says what to do.
"""

import argparse
import errno
import importlib.util
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from securemedian import __version__
from securemedian.clients.config import ClientConfig
from securemedian.common.addresses import host_of, listens_ipv6
from securemedian.common.durable import is_locked, others_may
from securemedian.common.keys import fingerprint, load_keys, load_signing_key
from securemedian.common.policy import SWITCH, Security, of_switch
from securemedian.common.status import COMPILING
from securemedian.common.terminal import Paragraphs, folded
from securemedian.common.toml import read_toml
from securemedian.common.versions import agree
from securemedian.mpc.errors import (
    ConfigError,
    RoundBusy,
    SecureMedianError,
    ServerUnreachable,
    VersionsDiffer,
)
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.servers import config as server_config
from securemedian.servers.computing.ray import check_guarded
from securemedian.servers.config import NEEDS_RAY, EngineConfig, ServerConfig, check_own_key

if TYPE_CHECKING:
    from securemedian.clients.connection import Connection


# how long a server may take to answer, and a port to be reached
REACH_S = 5.0
# how often the round trip is measured, of which the shortest counts
TRIPS = 5
# the most bytes that are sent to measure the bandwidth
LOAD_BYTES = 4 << 20
# below this, uploads take long and the link may be the wrong one
SLOW_BYTES_PER_S = 1e6
# a difference between clocks that makes logs hard to compare
CLOCK_S = 2.0
# the finding of something other than a server
OTHER_PROTOCOL = (
    "something listens for {name} at {endpoint}, but speaks another protocol: another program has "
    "that port, or a proxy is between, or the address is wrong"
)
# the finding of a line that only short messages pass
FULL_SIZE_LOST = (
    "and short messages pass: packets of full size are lost between {between}. Lower the MTU of "
    "the VPN or tunnel, or let ICMP `fragmentation needed` pass"
)
# less room on the disk than this is soon used up
ROOM_BYTES = 1 << 30

_DESCRIPTION = """Examine the configuration of a server, a client or the coordinator, with its key
files, ports, disk and processor. From a client or the coordinator also examine both servers, with
round-trip time, bandwidth, clock and release. Nothing is changed, and no round is opened. A
server may be running or not. From the coordinator, between rounds, also the link between the
servers, with messages of full size.

Exit codes: 0 if nothing is wrong, 2 otherwise. Warnings, and what to wait for, are not wrong."""


class Level(StrEnum):
    """How a finding is to be taken."""

    WELL = "ok"
    # it works, and could be better
    WARNING = "warning"
    # it will work, or can be told, in a while
    WAIT = "wait"
    WRONG = "wrong"


@dataclass(frozen=True)
class Finding:
    """One thing that was examined."""

    level: Level
    # the finding, and unless all is well, the remedy
    text: str

    def __str__(self) -> str:
        return f"{self.level:8} {self.text}"


_well = partial(Finding, Level.WELL)
_warning = partial(Finding, Level.WARNING)
_wait = partial(Finding, Level.WAIT)
_wrong = partial(Finding, Level.WRONG)


def add_verbs(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    verb = subparsers.add_parser(
        "doctor",
        description=_DESCRIPTION,
        formatter_class=Paragraphs,
    )
    verb.add_argument(
        "config", type=Path, metavar="CONFIG", help="the TOML file of any of the parties"
    )
    verb.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> None:
    wrong = 0
    for finding in examine(options.config):
        print(folded(str(finding), sys.stdout), flush=True)
        wrong += finding.level is Level.WRONG
    if wrong:
        raise ConfigError(f"some of the lines above are wrong: {wrong}; do what each says")


def examine(path: Path) -> Iterator[Finding]:
    """Yield what is found about a configuration, one thing after the other."""
    try:
        values = read_toml(path)
        config = server_config.load(path) if "party" in values else ClientConfig.load(path)
    except ConfigError as error:
        yield _wrong(str(error))
        return
    for table in (values, values.get("policy", {})):
        if SWITCH in table:
            line = of_switch(table[SWITCH]).line
            yield _warning(f"{path} has {SWITCH}, which release 1.2 does not read: write {line}")
    if config.policy.audit:
        line = Security.MALICIOUS.line
        yield _warning(f"{path} has audit, which release 1.2 does not read: write {line}")
    whose = config.name if isinstance(config, ServerConfig) else repr(config.name)
    yield _well(f"{path} is a complete configuration of {whose}")
    yield from _keys(config)
    if isinstance(config, ServerConfig):
        yield from _server(config)
    else:
        if config.state_dir:
            yield from _disk(Path(config.state_dir))
        yield from _servers(config)


# Checks of every party


def _keys(config: ServerConfig | ClientConfig) -> Iterator[Finding]:
    try:
        own = [load_keys(config.key_file).public.decode()]
        if isinstance(config, ServerConfig):
            own.append(load_signing_key(config.key_file).public)
            check_own_key(config, *own)
    except ConfigError as error:
        yield _wrong(str(error))
        return
    yield _well(f"{config.key_file} is for its owner alone; its fingerprint is {fingerprint(*own)}")
    folder = Path(config.key_file).parent
    if others_may(folder, 0o022):
        yield _warning(f"others may replace files in {folder}: run chmod 700 {folder}")


# Checks of a server


def _server(config: ServerConfig) -> Iterator[Finding]:
    if sys.platform != "linux":
        yield _wrong("a server needs Linux; clients and coordinators run elsewhere, too")
        return
    running = is_locked(Path(config.state_dir))
    yield from _disk(Path(config.state_dir))
    ports = [("clients", config.listen)]
    if config.peer.listen:
        ports.append(("s0", config.peer.listen))
    if aes_port := config.peer.aes_port:
        ports.append(("s0", f"{config.peer.listen.rpartition(':')[0]}:{aes_port}"))
    for whom, endpoint in ports:
        yield _port(whom, endpoint, running)
    if config.peer.address:
        yield _reach(
            "s1",
            config.peer.address,
            "start it, check [peer] here and its own `listen`, and that no firewall is between",
            zmtp=True,
        )
    yield from _descriptors(config)
    if config.engine.kind == "ray":
        yield from _cluster(config.engine)
    else:
        yield _cores(config.protocol.lanes, "lanes")
    yield from _processor(config)
    yield _kernels(config.protocol)


def _disk(folder: Path) -> Iterator[Finding]:
    there = next(each for each in (folder, *folder.absolute().parents) if each.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        yield _wrong(
            f"the state folder {folder} cannot be written: give {there} to the user who runs this, "
            "or set another state_dir"
        )
        return
    if folder.exists() and others_may(folder, 0o077):
        yield _warning(f"others may look into the state folder: run chmod 700 {folder}")
    free = shutil.disk_usage(there).free
    text = f"the state folder {folder} has {free / 1e9:,.1f} GB of room"
    if free < ROOM_BYTES:
        yield _warning(
            f"{text}: make some, since no upload is kept when it is used up (`securemedian plan` "
            "says how long one is)"
        )
    else:
        yield _well(text)


def _port(whom: str, endpoint: str, running: bool) -> Finding:
    # zmq writes * for all interfaces
    host, port = host_of(endpoint), int(endpoint.rpartition(":")[2])
    family = socket.AF_INET6 if host and listens_ipv6(endpoint) else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE and running:
                return _well(f"this server is running and listens for {whom} on {endpoint}")
            advice = {
                errno.EADDRINUSE: "another program listens there: end it, or take another port",
                errno.EADDRNOTAVAIL: "this machine has no such address: 0.0.0.0 stands for all",
                errno.EACCES: "ports below 1024 need a privilege: take another one",
            }.get(error.errno or 0, "set another address")
            return _wrong(
                f"cannot listen for {whom} on {endpoint} ({os.strerror(error.errno or 0)}): "
                f"{advice}"
            )
        except OverflowError:
            return _wrong(f"cannot listen for {whom} on {endpoint}: the port does not exist")
    return _well(f"{endpoint} is free to listen for {whom}; the server is not running")


def _reach(name: str, endpoint: str, advice: str, zmtp: bool = False) -> Finding:
    """Find out whether a port of another machine takes connections, and how long that takes.

    With `zmtp` also whether what listens there could be a server of ours.
    """
    start = time.perf_counter()
    try:
        address = host_of(endpoint), int(endpoint.rpartition(":")[2])
        with socket.create_connection(address, timeout=REACH_S) as connection:
            trip = time.perf_counter() - start
            spoken = _speaks(connection) if zmtp else True
    except OSError as error:
        why = error.strerror or str(error)
        return _wrong(f"{name} cannot be reached at {endpoint} ({why}): {advice}")
    if not spoken:
        return _wrong(OTHER_PROTOCOL.format(name=name, endpoint=endpoint))
    return _well(f"{name} takes connections at {endpoint}, after {1e3 * trip:,.1f} ms")


def _speaks(connection: socket.socket) -> bool:
    """Return whether the other end speaks ZMTP, with whose signature it then begins by itself."""
    said = b""
    try:
        while len(said) < 10 and (more := connection.recv(10 - len(said))):
            said += more
    except OSError:
        pass
    return len(said) == 10 and (said[0], said[9]) == (0xFF, 0x7F)


def _descriptors(config: ServerConfig) -> Iterator[Finding]:
    # both are Linux's, and a client has neither
    import resource

    from securemedian.servers.network.descriptors import limits_of

    try:
        _, most = limits_of(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    except ConfigError as error:
        yield _wrong(str(error))
        return
    callers = len(config.clients) + len(config.coordinators)
    text = f"{most:,} connections are possible at a time, and {callers:,} callers are on the list"
    # a client of release 1.0 deals over connections of its own
    if most < 2 * callers:
        yield _wrong(
            f"{text}: raise the hard limit on open files (LimitNOFILE= of systemd, or ulimit -Hn)"
        )
    else:
        yield _well(text)


def _cluster(engine: EngineConfig) -> Iterator[Finding]:
    """Find out whether Ray is there and its cluster answers, or has a core here for each worker."""
    if importlib.util.find_spec("ray") is None:
        yield _wrong(NEEDS_RAY)
    if engine.address:
        try:
            check_guarded(engine)
        except ConfigError as error:
            yield _wrong(str(error))
        yield _reach(
            "the Ray cluster", engine.address, "start it (ray start --head), or correct [engine]"
        )
    else:
        yield _cores(engine.workers, "workers")


def _cores(count: int, what: str) -> Finding:
    cores = len(os.sched_getaffinity(0))
    text = f"{cores} cores for {count} {what}"
    if cores < count:
        return _warning(f"{text}: {what} that share a core gain nothing")
    return _well(text)


def _processor(config: ServerConfig) -> Iterator[Finding]:
    from securemedian.mpc.protocols.kernels.native import processor

    if processor.use_native(config.protocol.native_aes):
        yield _well(f"AES runs on {processor.described()}")
    elif processor.use_native(True):
        yield _warning("native_aes is false: rounds take longer than this processor needs")
    else:
        yield _warning(
            "this processor has no AES instructions that are used here: rounds take 2 to 3 times "
            "as long"
        )


def _kernels(protocol: ProtocolParams) -> Finding:
    from securemedian.mpc.protocols.compiling import kernels_of
    from securemedian.mpc.protocols.kernels.jit import COMPILES

    if not COMPILES:
        return _warning(
            "NUMBA_DISABLE_JIT is set, and nothing is compiled: a round takes hours; unset it"
        )
    try:
        missing = sum(len(kernel.missing) for kernel in kernels_of(protocol))
    except ConfigError as error:
        return _wrong(str(error))
    if missing:
        return _warning(
            f"{missing} kernels are not compiled for this processor, which takes the server a "
            "minute or two when it starts. Run securemedian compile, as the user who runs the "
            "server and with the same NUMBA_CACHE_DIR, or as the one who has installed it"
        )
    return _well("all kernels are compiled for this processor")


# Checks of a client or the coordinator


def _servers(config: ClientConfig) -> Iterator[Finding]:
    from securemedian.clients.connection import connect

    servers = connect(config, load_keys(config.key_file), REACH_S)
    answers: list[dict[str, Any]] = []
    try:
        for party, server in enumerate(servers):
            label = server.label
            try:
                info, trip, clock = _ask(server)
                yield _well(
                    f"{label} at {server.address} knows {info['name']!r} as a {info['role']}; a "
                    f"round trip takes {1e3 * trip:,.1f} ms"
                )
                yield from _about(label, party, info)
                yield _clock(label, clock, trip)
                yield _bandwidth(label, server, info["max_message_bytes"], trip)
                answers.append(info)
            except SecureMedianError as error:
                # nothing has listened, or something else has
                spoken = OTHER_PROTOCOL.format(name=label, endpoint=server.address)
                # a proxy finds the server's address, and this machine may not
                direct = not config.socks_proxy
                other = direct and _reach(label, server.address, "", zmtp=True).text == spoken
                yield _wrong(spoken if other else str(error))
        if len(answers) == len(servers):
            link = _link(answers)
            yield link
            if link.level is Level.WELL and answers[0]["role"] == "coordinator":
                yield _full_size(servers[0])
    finally:
        for server in servers:
            server.close()


def _ask(connection: "Connection") -> tuple[dict[str, Any], float, float]:
    """Return a server's `info`, the shortest round trip, and how far its clock is ahead, in s."""
    # the first answer needs a connection first
    connection.ask("info")
    trips = []
    for _ in range(TRIPS):
        sent, start = time.time(), time.perf_counter()
        info = connection.ask("info").fields
        trip = time.perf_counter() - start
        trips.append((trip, float(info["time"]) - sent - trip / 2))
    trip, ahead = min(trips)
    return info, trip, ahead


def _about(label: str, party: int, info: dict[str, Any]) -> Iterator[Finding]:
    if info["party"] != party:
        yield _wrong(f"{label} answers as party {info['party']}: exchange [s0] and [s1]")
    try:
        agreed = agree(label, info)
    except VersionsDiffer as error:
        yield _wrong(str(error))
    else:
        here = "as this machine does"
        if info["release"] != __version__:
            here = f"and this machine {__version__}: they work together"
        yield _well(f"{label} runs release {info['release']}, {here} (wire version {agreed})")


def _clock(label: str, ahead: float, trip: float) -> Finding:
    text = f"{label}'s clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    if abs(ahead) > CLOCK_S + trip:
        return _warning(f"{text}: logs are hard to compare; let NTP set both")
    return _well(text)


def _bandwidth(label: str, connection: "Connection", limit: int, trip: float) -> Finding:
    load = np.zeros(min(LOAD_BYTES, limit // 2), np.uint8)
    start = time.perf_counter()
    try:
        connection.ask("probe", arrays={"load": load})
    except ServerUnreachable:
        # it would wait for a slow line, as long as anything arrives
        return _wrong(
            f"of {load.size / 1e6:.1f} MB to {label} nothing arrived for {REACH_S:g} s, "
            f"{FULL_SIZE_LOST.format(between=f'here and {label}')}"
        )
    rate = load.size / max(time.perf_counter() - start - trip, 1e-6)
    text = f"{label} takes {rate / 1e6:,.1f} MB/s from here"
    if rate < SLOW_BYTES_PER_S:
        return _warning(f"{text}: uploads take long (`securemedian plan` says how long they are)")
    return _well(text)


def _link(answers: Sequence[dict[str, Any]]) -> Finding:
    told = {f"s{party}": info["peer_problem"] for party, info in enumerate(answers)}
    problems = [f"{name}: {problem}" for name, problem in told.items() if problem]
    # with the seconds to go, where they are known
    compiling = [
        f"{name}{problem.removeprefix(COMPILING)}"
        for name, problem in told.items()
        if problem.startswith(COMPILING)
    ]
    if compiling:
        return _wait(
            f"still compiling kernels, once after the installation: {' and '.join(compiling)}; run "
            "doctor again in a minute or two"
        )
    if problems:
        return _wrong(f"the servers cannot work together: {'; '.join(problems)}")
    return _well("the two servers are linked, and their parameters agree")


def _full_size(s0: "Connection") -> Finding:
    """Find out whether long messages pass between the servers: hellos are short."""
    try:
        seen = s0.ask("link").fields
    except RoundBusy:
        return _wait("the link between the servers is measured when no round is under way")
    except SecureMedianError as error:
        return _wrong(f"the link between the servers cannot be measured: {error}")
    sent, back, seconds = (seen[name] for name in ("sent", "back", "seconds"))
    text = (
        f"of {sent / 1e6:.1f} MB that s0 sent to s1 in messages of 64 kB, {back / 1e6:.1f} MB came "
        f"back in {seconds:.2f} s"
    )
    if not back:
        return _wrong(f"{text}, {FULL_SIZE_LOST.format(between='the servers')}")
    if back < sent or back / seconds < SLOW_BYTES_PER_S:
        return _warning(f"{text}: rounds take long (`securemedian plan --bandwidth` says how long)")
    return _well(text)
