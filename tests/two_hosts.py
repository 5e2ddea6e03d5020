"""Two hosts and a line between them, on which everything that docs/deploying.md prints is typed.

S0, S1 and the clients have a network namespace each, and a fourth one, in which this program runs,
is the router between them. All devices and rules are inside these four: the machine's own network,
its loopback included, is not touched. Each way through the router takes half of ROUND_TRIP_S, at
RATE, and loses LOSS of the packets, by `tc netem` where the kernel has it and otherwise by `Line`.
"""

import argparse
import heapq
import json
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from fcntl import ioctl
from pathlib import Path
from select import select
from typing import Any

import numpy as np

from securemedian.common.terminal import TABLE_WIDTH, console, table
from tests.daemons import ROOT, in_background, wait_until

ROUND_TRIP_S, RATE, LOSS = 0.040, 100e6, 0.01
# the packets that wait for the line, as in netem; further ones are lost
QUEUE = 1000
# the networks of documentation: S0's address is that of the rules in docs/servers.md
NETWORKS = {"s0": "192.0.2", "s1": "198.51.100", "clients": "203.0.113"}
NAMES = {"s0": "s0.alpha.example", "s1": "s1.beta.example"}
# the folder of each participant's commands; everybody else's are typed at the clients
PLACES = {"alpha": "s0", "beta": "s1"}
FOLDERS = {host: folder for folder, host in PLACES.items()}
HOSPITALS = ("hospital-a", "hospital-b")
# the users that the servers run as
USERS = {"s0": 10001, "s1": 10002}
LIMIT_S = 240.0
# the packets of a VPN between the servers
MTU = 1400
# a client may take so much longer than its servers after a change of address
NOTICE_S = 30.0
# the exit status where the system has no namespaces for us
NOT_ALLOWED = 77
# as the servers' files have it by default
PEER_TIMEOUT_S = 10.0
TOOLS = ("ip", "unshare", "nsenter", "setpriv", "prlimit", "mount", "sysctl")
# the folder in which section 1 is typed
CLONE = "clone"
# the steps after the page, in this order
STEPS = ("rules", "cut", "s1-moves", "s0-moves", "mtu")
UNIT = ROOT / "deploy" / "systemd" / "securemedian@.service"
# the unit's settings that hold here; the rest needs systemd, a cgroup or a filter of system calls
HELD = {
    *("User", "UMask", "LimitCORE", "LimitNOFILE", "CapabilityBoundingSet", "NoNewPrivileges"),
    *("ProtectSystem", "StateDirectory", "StateDirectoryMode", "CacheDirectory"),
    *("CacheDirectoryMode", "Environment", "ExecStart", "ExecReload"),
}
# ProtectSystem=strict: all that is mounted becomes read-only, except the server's own folders
SERVE = r"""
set -eu
for folder in "$STATE" "$CACHE"; do mount --bind "$folder" "$folder"; done
while read -r _ _ _ _ point _; do
    case $point in
        "$STATE" | "$CACHE" | /proc* | /sys* | /dev*) ;;
        *) mount -o remount,bind,ro "$point" ;;
    esac
done </proc/self/mountinfo
if touch probe 2>/dev/null; then echo "files can be written" >&2; exit 1; fi
umask "$UMASK"
exec prlimit --core="$CORE" --nofile="$NOFILE" \
    setpriv $IDENTITY --bounding-set=-all --inh-caps=-all --no-new-privs \
    env NUMBA_CACHE_DIR="$CACHE" bash -c "exec $1"
"""
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def blocks(section: str) -> Iterator[tuple[str, list[str]]]:
    """Give the commands that a text prints, block by block, and the line above each block."""
    for above, block in re.findall(r"([^\n]*)\n\n```bash\n(.*?)```", section, re.DOTALL):
        yield above, block.splitlines()


def tutorial() -> tuple[str, str]:
    """Return docs/deploying.md: how to install, and what follows."""
    text = (ROOT / "docs" / "deploying.md").read_text("utf-8")
    before, heading, rest = text.partition("## 2. Make keys\n")
    return before, heading + rest


def commands() -> Iterator[tuple[str, str]]:
    """Give each command of the page after its section 1, and the host at which it is typed.

    If a hospital types a command, or Gamma "and the hospitals likewise", the others type it after
    that.
    """
    for above, lines in blocks(tutorial()[1]):
        likewise = [("hospital-a", "hospital-b")] if above.endswith("B likewise:") else []
        if above.endswith("and the hospitals likewise:"):
            likewise = [("gamma/coordinator", f"{each}/{each}") for each in HOSPITALS]
        for line in lines:
            yield place(line), line
            for one, other in likewise:
                yield place(line), line.replace(one, other)


def place(command: str) -> str:
    """Return the host of the party whose folder the command names first."""
    found = re.search(r"\b(alpha|beta|gamma|hospital-[ab])\b", command)
    return PLACES.get(found[1], "clients") if found else "clients"


def rules(host: str) -> str:
    """Return the rules of nftables that docs/servers.md prints, as they are for a server's host."""
    text = (ROOT / "docs" / "servers.md").read_text("utf-8")
    (block,) = re.findall(r"```\n(table inet securemedian \{\n.*?)```", text, re.DOTALL)
    kept = [line for line in block.splitlines() if host == "s1" or "7002" not in line]
    return "\n".join(kept) + "\n"


def unit() -> dict[str, list[str]]:
    """Return the options of the service, by name."""
    text = UNIT.read_text("utf-8").partition("[Service]")[2].partition("[Install]")[0]
    options: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        options.setdefault(name, []).append(value)
    return options


class Line:
    """A TUN device whose packets come back late, at a bounded rate, or not at all.

    The router sends everything through it. Each host has a way of its own, like a cable.
    """

    def __init__(self, name: str) -> None:
        self._file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI
        ioctl(self._file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        # when each way is free again, by the network it leads to
        self._free: dict[bytes, float] = {}
        # when which packet is due
        self._due: list[tuple[float, bytes]] = []
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        while True:
            wait = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
            if select([self._file], [], [], wait)[0]:
                with suppress(BlockingIOError):
                    for _ in range(QUEUE):
                        self._take(os.read(self._file, 1 << 16))
            while self._due and self._due[0][0] <= time.monotonic():
                # a host that is cut off takes nothing
                with suppress(OSError):
                    os.write(self._file, heapq.heappop(self._due)[1])

    def _take(self, packet: bytes) -> None:
        if packet[0] >> 4 != 4 or random.random() < LOSS:
            return
        now, way, seconds = time.monotonic(), packet[16:19], len(packet) * 8 / RATE
        free = max(now, self._free.get(way, 0.0))
        if free - now < QUEUE * 1500 * 8 / RATE:
            self._free[way] = free + seconds
            heapq.heappush(self._due, (free + seconds + ROUND_TRIP_S / 2, packet))


@dataclass(frozen=True)
class Round:
    """The time of a round, from its opening to both results in their files."""

    seconds: float
    # of it after the last upload
    online_seconds: float
    # all that left the hosts, TCP and what was sent again included
    wire_bytes: int
    # between the servers, both ways
    server_bytes: int
    # how long after its publication, as S0 dates it, both results were there
    late_seconds: float


class TwoHosts:
    """The hosts, their line, and what is typed at them."""

    def __init__(self, folder: Path, dim: int) -> None:
        self._folder, self._dim, self._begun = folder, dim, time.monotonic()
        self._random = np.random.default_rng(1)
        self._addresses = {host: f"{network}.10" for host, network in NETWORKS.items()}
        self._users = USERS if _maps(max(USERS.values())) else {}
        self._running: list[subprocess.Popen[bytes]] = []
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._program = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        (folder / "bin").mkdir()
        for name, module in (("securemedian", "-m securemedian"), ("python", "")):
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            program.chmod(0o755)
        if (folder / CLONE).exists():
            self._program["PATH"] = f"{folder / CLONE}/venv/bin:{os.environ['PATH']}"
            self._program["PYTHONPATH"] = ""

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  {text}", flush=True)

    # The network

    def lay(self, congestion: str) -> None:
        """Make the namespaces, and the line between them."""
        # the folders in which ip keeps its namespaces, and names are looked up: for this program
        # alone
        _run("mount", "-t", "tmpfs", "tmpfs", "/run")
        self._write_names()
        _run("mount", "--bind", self._folder / "hosts", "/etc/hosts")
        for setting in ("all.rp_filter=0", "default.rp_filter=0", "all.forwarding=1"):
            _run("sysctl", "-qw", f"net.ipv4.conf.{setting}")
        for host, network in NETWORKS.items():
            _run("ip", "netns", "add", host)
            ends = ("type", "veth", "peer", "name", "line", "netns", host)
            _run("ip", "link", "add", f"to-{host}", *ends)
            _run("ip", "address", "add", f"{network}.1/24", "dev", f"to-{host}")
            # packets go one by one, as on a cable
            _run("ip", "link", "set", f"to-{host}", "up", "gso_max_segs", "1")
            _run("ip", "-n", host, "link", "set", "line", "up", "gso_max_segs", "1")
            # a host that is cut off hears nothing, not even that
            _run("ip", "route", "add", "blackhole", f"{network}.0/24", "metric", "1000")
            self._settle(host)
        _run("ip", "netns", "add", "loopback")
        for host in (*NETWORKS, "loopback"):
            _run("ip", "-n", host, "link", "set", "lo", "up")
            if congestion:
                _run(*_at(host), "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={congestion}")
        used = _run(*_at("s0"), "sysctl", "-n", "net.ipv4.tcp_congestion_control").strip()
        self.say(
            f"{self._shape()}: {1e3 * ROUND_TRIP_S:.0f} ms, {RATE / 1e6:.0f} Mbit/s each way, "
            f"{LOSS:.0%} of the packets lost; congestion control: {used}"
        )

    def _settle(self, host: str) -> None:
        _run("ip", "-n", host, "address", "add", f"{self._addresses[host]}/24", "dev", "line")
        _run("ip", "-n", host, "route", "replace", "default", "via", f"{NETWORKS[host]}.1")

    def _shape(self) -> str:
        shape = f"delay {500 * ROUND_TRIP_S:g}ms rate {RATE:.0f}bit loss {LOSS:%} limit {QUEUE}"
        try:
            for host in NETWORKS:
                _run("tc", "qdisc", "add", "dev", f"to-{host}", "root", "netem", *shape.split())
        except (subprocess.CalledProcessError, FileNotFoundError):
            Line("line")
            _run("ip", "link", "set", "line", "up")
            _run("ip", "route", "add", "default", "dev", "line", "table", "100")
            for host in NETWORKS:
                _rule("10", "iif", f"to-{host}", "table", "100")
            return "the line is a TUN device of this program, for want of tc netem"
        return "the line is shaped by tc netem"

    def _write_names(self, everybody: str = "") -> None:
        """Give the servers' names the addresses of their hosts, or this one."""
        lines = [f"{everybody or self._addresses[host]} {name}\n" for host, name in NAMES.items()]
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def guard(self, *hosts: str) -> None:
        """Load the guide's rules instead of those that are there."""
        if not shutil.which("nft"):
            self.say("left out: the rules of docs/servers.md, for want of nft (nftables)")
            return
        for host in hosts:
            text = rules(host).replace(f"{NETWORKS['s0']}.10", self._addresses["s0"])
            anew = "table inet securemedian\ndelete table inet securemedian\n"
            _run(*_at(host), "nft", "-f", "-", given=anew + text)
            self.say(f"{host}: the rules of docs/servers.md")

    def rules(self) -> None:
        """Check that the rules bound the connections of an address, and guard the port for S0."""
        if not shutil.which("nft"):
            return
        let_in = self._connections("clients", ("s0", 7000, 34), ("s1", 7001, 34), ("s1", 7002, 1))
        assert let_in == [32, 32, 0], f"the rules let clients open {let_in} connections"
        assert self._connections("s0", ("s1", 7002, 1)) == [1], "S0 does not reach S1"
        self.say("of 34 connections from one address 32 are let in; port 7002 is for S0 alone")

    def _connections(self, host: str, *tried: tuple[str, int, int]) -> list[int]:
        """Return how many connections to a server's port are let in at a time."""
        text = (
            "import json, socket, sys\n"
            "def count(name, port, number):\n"
            "    kept = []\n"
            "    for _ in range(number):\n"
            "        try: kept.append(socket.create_connection((name, port), 4))\n"
            "        except OSError: pass\n"
            "    return len(kept)\n"
            "print(json.dumps([count(*each) for each in json.loads(sys.argv[1])]))"
        )
        ports = json.dumps([(NAMES[server], *port) for server, *port in tried])
        counts: list[int] = json.loads(self._type(host, shlex.join(["python", "-c", text, ports])))
        return counts

    # Commands

    def type_page(self) -> None:
        """Type what docs/deploying.md prints, and check what it says comes out."""
        self.guard(*NAMES)
        for host, command in commands():
            if "securemedian submit" in command:
                self.begin(host, command)
            elif "securemedian serve" in command:
                if not self._servers:
                    self._hand_over()
                self.serve(host, command)
                if len(self._servers) == len(NAMES):
                    self.link()
            else:
                # the second hospital's file is made while the first one waits
                if ".save(" not in command:
                    self._finish()
                said = self.type(host, command)
                if "print(" in command:
                    assert f"This prints `{said.strip()}`" in tutorial()[1], (
                        f"the page does not say {said}"
                    )

    def type(self, host: str, command: str) -> str:
        """Type a command at a host, and return what it prints."""
        self.say(f"{host}$ {command}")
        return self._type(host, command)

    def _type(self, host: str, command: str) -> str:
        return _run(*_at(host), "bash", "-c", command, cwd=self._folder, **self._program)

    def begin(self, host: str, command: str) -> None:
        """Type a command at a host, without waiting for its end."""
        self.say(f"{host}$ {command} &")
        with (self._folder / "clients.log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    [*_at(host), "bash", "-c", f"exec {command}"],
                    cwd=self._folder,
                    env=os.environ | self._program,
                    stdout=log,
                    stderr=log,
                )
            )

    def _finish(self) -> None:
        """Wait until all has ended that was begun."""
        while self._running:
            process = self._running.pop()
            assert process.wait(LIMIT_S) == 0, f"{process.args!r}: status {process.returncode}"

    # The servers

    def _hand_over(self) -> None:
        """Give each server's files to a user of its own, with the folders of its service."""
        if self._users:
            _open_ways(ROOT, Path(sys.prefix), Path(sys.base_prefix))
        for server, folder in FOLDERS.items():
            config = self._folder / folder / f"{server}.toml"
            state, cache = (self._folder / f"{kind}-{server}" for kind in ("state", "cache"))
            text = re.sub(r"(?m)^state_dir = .*", f'state_dir = "{state}"', config.read_text())
            config.write_text(text)
            for made in (state, cache):
                made.mkdir(mode=0o700)
            if user := self._users.get(server):
                _run("chown", "-R", f"{user}:{user}", config.parent, state, cache)
        left_out = sorted(set(unit()) - HELD | (set() if self._users else {"User"}))
        self.say(f"left out of the unit, for want of systemd or root: {', '.join(left_out)}")

    def serve(self, host: str, command: str) -> None:
        """Start a server as its unit says."""
        options, server = unit(), place(command)
        user = self._users.get(server)
        given = {
            "STATE": f"{self._folder}/state-{server}",
            "CACHE": f"{self._folder}/cache-{server}",
            "UMASK": options["UMask"][0],
            "CORE": options["LimitCORE"][0],
            "NOFILE": options["LimitNOFILE"][0],
            "IDENTITY": f"--reuid={user} --regid={user} --clear-groups" if user else "",
        }
        self.say(f"{host}$ {command} &")
        with (self._folder / f"{server}.log").open("ab") as log:
            self._servers[server] = subprocess.Popen(
                [*_at(host), "unshare", "--mount", "bash", "-c", SERVE, "serve", command],
                cwd=self._folder,
                env=os.environ | self._program | given,
                stdout=log,
                stderr=log,
            )

    def link(self, since: Sequence[int] = (0, 0)) -> None:
        """Wait until both servers see each other, after so many lines of their logs."""
        for server, before in zip(NAMES, since, strict=True):
            self._await(server, "peer-linked", before)

    def _await(self, server: str, event: str, since: int) -> dict[str, Any]:
        """Return an event, once a server has logged it after `since` lines."""

        def logged() -> dict[str, Any] | None:
            status = self._servers[server].poll()
            assert status is None, f"{server} has ended with status {status}"
            lines = [line for line in self.log(server)[since:] if f'"event": "{event}"' in line]
            return dict(json.loads(lines[0])) if lines else None

        return dict(wait_until(logged, LIMIT_S))

    def log(self, server: str) -> list[str]:
        path = self._folder / f"{server}.log"
        return path.read_text().splitlines() if path.exists() else []

    def _logged(self) -> list[int]:
        return [len(self.log(server)) for server in NAMES]

    def stop(self) -> None:
        """End both servers as systemd does."""
        for server in self._servers.values():
            server.terminate()
        for name, server in self._servers.items():
            assert server.wait(LIMIT_S) == 0, f"{name} has ended with {server.returncode}"
        self._servers.clear()

    # Rounds

    def round(self, host: str = "clients", between: Callable[[], None] | None = None) -> Round:
        """Run a round, for which the hospitals wait.

        If something happens `between` their uploads, B comes after it.
        """
        more = ""
        model = self._folder / f"{HOSPITALS[0]}-result.npy"
        if not model.exists():
            model = self._folder / "model.npy"
            np.save(model, np.zeros(self._dim, np.float32))
            more = f" --model {model.name}"
        trained = np.load(model) + 1e-3 * self._random.standard_normal(self._dim)
        for each in HOSPITALS:
            own = trained + 1e-4 * self._random.standard_normal(self._dim)
            np.save(self._folder / f"{each}.npy", own.astype(np.float32))
        before, since, said = _bytes_on_the_line(), self._logged(), len(self.log("clients"))
        early = HOSPITALS[:1] if between else HOSPITALS
        for each in early:
            self._submit(host, each)
        # so that programs' starts do not count
        waiting = "securemedian: waiting for a round to open at S0"

        def wait() -> bool:
            told = self.log("clients")[said:]
            return sum(line.startswith(waiting) for line in told) >= len(early)

        wait_until(wait, LIMIT_S)
        opening = f"securemedian round open gamma/coordinator.toml bucketed --max-clients 2{more}"
        self.type(host, opening)
        if between:
            for server, lines in zip(NAMES, since, strict=True):
                self._await(server, "upload-stored", lines)
            between()
            self._submit(host, HOSPITALS[1])
        self._finish()
        files = [self._folder / f"{each}-result.npy" for each in HOSPITALS]
        assert np.array_equal(*map(np.load, files)), "the hospitals have different results"
        opened, published = (
            self._await("s0", f"round-{state}", since[0]) for state in ("open", "published")
        )
        begun, computed = (
            datetime.fromisoformat(event["time"]).timestamp() for event in (opened, published)
        )
        there, cost = max(file.stat().st_mtime for file in files), published["cost"]
        return Round(
            there - begun,
            cost["online_seconds"],
            _bytes_on_the_line() - before,
            cost["bytes_sent"] + cost["bytes_received"],
            there - computed,
        )

    def _submit(self, host: str, name: str) -> None:
        files = f"{name}.npy --result {name}-result.npy"
        self.begin(host, f"securemedian submit {name}/{name}.toml {files}")

    def cut(self, seconds: float) -> tuple[float, float]:
        """Cut the line to S1 while a round runs.

        Returns the seconds from its return to the servers' link and to both results.
        """
        since, back = self._logged(), [0.0]

        def run() -> None:
            self._await("s0", "round-running", since[0])
            _run("ip", "link", "set", "to-s1", "down")
            self.say("the line to s1 is cut")
            time.sleep(seconds)
            _run("ip", "link", "set", "to-s1", "up")
            back[0] = time.monotonic()
            self.say("it is back")
            if seconds > PEER_TIMEOUT_S:
                self.link(since)
                back.append(time.monotonic())

        join = in_background(run)
        self.round()
        ended = time.monotonic()
        join()
        return back[-1] - back[0], ended - back[0]

    def move(self, host: str) -> tuple[float, float]:
        """Give a server another address while hospital A waits for the result.

        Returns the seconds to the servers' link, and from the result's publication to both
        results at the hospitals.
        """
        linked = [0.0]

        def away() -> None:
            since, begun = self._logged(), time.monotonic()
            old, self._addresses[host] = self._addresses[host], f"{NETWORKS[host]}.20"
            _run("ip", "-n", host, "address", "delete", f"{old}/24", "dev", "line")
            self._settle(host)
            self._write_names()
            self.say(f"{host} has moved from {old} to {self._addresses[host]}")
            if host == "s0":
                # they name it
                self.guard("s1")
            self.link(since)
            linked[0] = time.monotonic() - begun

        late = self.round(between=away).late_seconds
        assert late < NOTICE_S, f"who waited noticed after {late:.0f} s"
        return linked[0], late

    def narrow(self) -> float:
        """Lower the MTU of the line, first as a black hole, which `doctor` must find.

        Returns the seconds of a round once ICMP says so.
        """
        for host, network in NETWORKS.items():
            limit = ("mtu", "lock", str(MTU), "table", "200")
            _run("ip", "route", "add", f"{network}.0/24", "dev", f"to-{host}", *limit)
        _rule("20", "from", "all", "table", "200")
        # the router's own packets: ICMP alone
        _rule("5", "iif", "lo", "blackhole")
        self.say(f"packets have {MTU:,} bytes at most, and nobody is told")
        examine = "securemedian doctor gamma/coordinator.toml"
        try:
            self.type("clients", examine)
        except subprocess.CalledProcessError as error:
            wrong = [line for line in error.stdout.splitlines() if line.startswith("wrong")]
            betweens = ("here and S0", "here and S1", "the servers")
            for line, between in zip(wrong, betweens, strict=True):
                self.say(line)
                assert f"packets of full size are lost between {between}" in line
        else:
            raise AssertionError("doctor finds nothing wrong")
        _run("ip", "rule", "delete", "priority", "5")
        self.say("ICMP passes")
        return self.round().seconds

    def return_to_loopback(self) -> None:
        """Start both servers again, on one host."""
        self.stop()
        since = self._logged()
        self._write_names("127.0.0.1")
        for host, folder in FOLDERS.items():
            self.serve("loopback", f"securemedian serve {folder}/{host}.toml")
        self.link(since)


def _maps(user: int) -> bool:
    """Return whether there is such a user here: in a namespace of users there may be one alone."""
    return any(
        int(first) <= user < int(first) + int(count)
        for first, _, count in map(str.split, Path("/proc/self/uid_map").read_text().splitlines())
    )


def _open_ways(*paths: Path) -> None:
    """Let other users reach these in closed homes, of which nothing else stays to be seen here."""
    inside: dict[Path, set[str]] = {}
    for path in map(Path.resolve, paths):
        for closed in reversed(path.parents):
            if not closed.stat().st_mode & 0o001:
                inside.setdefault(closed, set()).add(path.relative_to(closed).parts[0])
                break
    for closed, names in inside.items():
        kept = [(name, tempfile.mkdtemp()) for name in names]
        for name, there in kept:
            _run("mount", "--bind", closed / name, there)
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", closed)
        for name, there in kept:
            (closed / name).mkdir()
            _run("mount", "--move", there, closed / name)
            os.rmdir(there)


def _bytes_on_the_line() -> int:
    """Return how many bytes have left the hosts."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.strip().startswith("to-"))


def _at(host: str) -> list[str]:
    return ["nsenter", f"--net=/run/netns/{host}"]


def _rule(priority: str, *words: str) -> None:
    _run("ip", "rule", "add", *words, "priority", priority)


def _run(*words: object, given: str = "", cwd: Path | None = None, **environment: str) -> str:
    """Run a command and return its output. Raises CalledProcessError."""
    return subprocess.run(
        [str(word) for word in words],
        input=given,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=True,
    ).stdout


def play(hosts: TwoHosts, options: argparse.Namespace) -> None:
    """Do the steps, and print what they took."""
    rows: list[tuple[str, ...]] = []
    hosts.lay(options.congestion)
    hosts.type_page()
    if "rules" in options.steps:
        hosts.rules()
    line = median([hosts.round() for _ in range(options.rounds)])
    if "cut" in options.steps:
        linked, done = hosts.cut(options.cut_s)
        what = f"the line is cut for {options.cut_s:g} s in a round: from its return"
        rows += [(f"{what} to the link", f"{linked:.1f}")] if linked else []
        rows += [(f"{what} to both results", f"{done:.1f}")]
    for host in reversed(NAMES):
        if f"{host}-moves" in options.steps:
            linked, late = hosts.move(host)
            rows += [(f"{host} has another address: from then to the link", f"{linked:.1f}")]
            rows += [("from the round's publication to both results", f"{late:.1f}")]
    if "mtu" in options.steps:
        rows += [(f"a round with an MTU of {MTU:,}", f"{hosts.narrow():.1f}")]
    hosts.return_to_loopback()
    near = median([hosts.round("loopback") for _ in range(options.rounds)])
    hosts.stop()
    what = f"a round of {options.dim:,} values"
    told = [
        (f"{what}, from its opening to both results", f"{line.seconds:.1f}", f"{near.seconds:.1f}"),
        (
            "  of it after the last upload",
            f"{line.online_seconds:.2f}",
            f"{near.online_seconds:.2f}",
        ),
        ("  bytes between the servers, MB", *2 * [f"{line.server_bytes / 1e6:.2f}"]),
        ("  bytes that left the hosts, MB", f"{line.wire_bytes / 1e6:.2f}", ""),
        *((*row, "") for row in rows),
    ]
    console(width=TABLE_WIDTH).print(table("Seconds", ("", "over the line", "on loopback"), told))


def median(rounds: Sequence[Round]) -> Round:
    """Return the round that took as long as the one in the middle."""
    return sorted(rounds, key=lambda each: each.seconds)[len(rounds) // 2]


def main() -> None:
    """Run this program in namespaces of its own, with all that it starts."""
    parser = argparse.ArgumentParser(
        prog="scripts/two-hosts",
        description="Type the tutorial of docs/deploying.md on two hosts with a slow line between "
        "them, which are network namespaces of this machine, and then do the steps.",
    )
    parser.add_argument(
        "steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)} (default: all)"
    )
    parser.add_argument("--dim", type=int, default=20_000, help="values of an update (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="whose median counts (%(default)s)")
    parser.add_argument("--cut-s", type=float, default=15.0, help="seconds of a cut (%(default)s)")
    parser.add_argument("--congestion", default="", metavar="NAME", help="TCP's congestion control")
    parser.add_argument("--install", action="store_true", help="type the page's section 1, too")
    options = parser.parse_args()
    if unknown := set(options.steps) - set(STEPS):
        parser.error(f"no such step as {', '.join(unknown)}")
    options.steps = options.steps or STEPS
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        print(f"scripts/two-hosts needs {', '.join(missing)}", file=sys.stderr)
        sys.exit(NOT_ALLOWED)
    if "TWO_HOSTS" not in os.environ:
        _enter(options.install)
    folder = Path(os.environ["TWO_HOSTS"])
    hosts = TwoHosts(folder, options.dim)
    try:
        play(hosts, options)
    except (AssertionError, subprocess.SubprocessError) as error:
        said = error.stderr if isinstance(error, subprocess.CalledProcessError) else ""
        logs = [line for name in ("clients", *NAMES) for line in hosts.log(name)[-20:]]
        print(*logs, f"{error}", said, sep="\n", file=sys.stderr)
        sys.exit(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _enter(install: bool) -> None:
    """Start this program again in namespaces of its own; their end ends all that it starts."""
    own = ["unshare", "--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    own += ["--user", "--map-root-user"] if os.geteuid() else []
    tried = subprocess.run([*own, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        print(f"this system gives us no namespaces: {tried.stderr.strip()}", file=sys.stderr)
        sys.exit(NOT_ALLOWED)
    folder = tempfile.mkdtemp(prefix="two-hosts-")
    # the servers have users of their own
    os.chmod(folder, 0o755)
    if install:
        # only if an index can be reached
        subprocess.run(["git", "clone", "-q", ROOT, CLONE], cwd=folder, check=True)
        lines = next(blocks(tutorial()[0]))[1]
        shell = ["bash", "-exc", "\n".join(lines)]
        subprocess.run(
            shell, cwd=f"{folder}/{CLONE}", env=os.environ | {"PYTHONPATH": ""}, check=True
        )
    command = [*own, sys.executable, "-m", "tests.two_hosts", *sys.argv[1:]]
    os.execvpe("unshare", command, os.environ | {"TWO_HOSTS": folder})


if __name__ == "__main__":
    main()
