"""Between clients and servers: IPv6, firewalls that forget silent lines, SOCKS5 proxies."""

import errno
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian import cli
from securemedian.clients import connection as connection_module
from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import SILENCE_S
from securemedian.common.addresses import (
    bracketed,
    check_endpoint,
    connects_ipv6,
    host_of,
    listens_ipv6,
)
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import ConfigError, ServerUnreachable
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers import config as server_config
from tests.daemons import ROOT, WAIT_S, Pair, free_ports, in_background
from tests.test_connection import connected, echo, serving

MODEL = np.array([1.0, -2.0], np.float32)
RADIX: dict[str, Any] = {"method": "radix", "dim": 2, "max_clients": 3, "min_clients": 2}
# after so long a firewall forgets a silent line
FORGETS_S = 3.0


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this system has no IPv6")
# the servers of this file have no other addresses
PAIR = {"host": "::1"} if has_ipv6() else {}


def take_part(configs: list[ClientConfig], coordinator: ClientConfig) -> np.ndarray:
    """Run one round with these clients, and return its result."""
    with Coordinator(coordinator) as opener:
        params = RoundParams.from_dict(RADIX)
        round_id = opener.open_round(params, MODEL)

        def submit(each: ClientConfig) -> None:
            with Client(replace(each, state_dir="", poll_interval_s=0.05)) as client:
                client.submit(MODEL + 1, round_id)

        for join in [in_background(lambda each=each: submit(each)) for each in configs]:  # type: ignore[misc]
            join()
        return opener.result(round_id, WAIT_S)


def configs_of(pair: Pair, **changed: Any) -> tuple[list[ClientConfig], ClientConfig]:
    *clients, coordinator = (
        replace(ClientConfig.load(pair.folder / f"{name}.toml"), **changed)
        for name in (*pair.names, "coordinator")
    )
    return clients, coordinator


@pytest.mark.slow
@needs_ipv6
def test_a_round_over_ipv6_alone(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    s0, s1 = (server_config.load(pair.folder / f"{name}.toml") for name in ("s0", "s1"))
    for endpoint in (s0.listen, s1.listen, s0.peer.address, s1.peer.listen):
        assert endpoint.startswith("tcp://[::1]:")
    assert take_part(*configs_of(pair)).tolist() == (MODEL + 1).tolist()
    for name in ("s0", "client-1", "coordinator"):
        assert cli.main(["doctor", str(pair.folder / f"{name}.toml")]) == 0
    said = capsys.readouterr().out
    assert f"S0 at {s0.listen} knows 'client-1'" in said and "wrong" not in said


@pytest.mark.slow
@needs_ipv6
def test_a_port_takes_both_kinds_of_addresses_at_once() -> None:
    with serving(echo, endpoint="tcp://*:*") as server:
        port = server.address.rpartition(":")[2]
        for host in ("127.0.0.1", "[::1]"):
            with connected(replace(server, address=f"tcp://{host}:{port}")) as connection:
                assert connection.ask("hello").type == "hello"
    with serving(echo, endpoint="tcp://127.0.0.1:*") as server:
        port = server.address.rpartition(":")[2]
        with (
            connected(replace(server, address=f"tcp://[::1]:{port}"), timeout_s=1) as connection,
            pytest.raises(ServerUnreachable, match="could not be reached"),
        ):
            connection.ask("hello")


# A name that has an address of IPv6 alone, in a copy of /etc/hosts for one process
AAAA = """
import sys, zmq
from securemedian.common.addresses import connects_ipv6, listens_ipv6
port = sys.argv[1]
assert connects_ipv6(f"tcp://six.test:{port}") and listens_ipv6(f"tcp://six.test:{port}")
with zmq.Context() as context, context.socket(zmq.DEALER) as client:
    with context.socket(zmq.ROUTER) as server:
        server.ipv6 = client.ipv6 = True
        client.linger = server.linger = 0
        server.bind(f"tcp://six.test:{port}")
        client.connect(f"tcp://six.test:{port}")
        client.send(b"hello")
        assert server.poll(20000) and server.recv_multipart()[1] == b"hello"
"""


@pytest.mark.slow
@needs_ipv6
def test_a_name_with_an_address_of_ipv6_alone(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n::1 six.test\n")
    (port,) = free_ports(1)
    own = f'mount --bind {hosts} /etc/hosts || exit 77; exec {sys.executable} -c "$1" {port}'
    try:
        ended = subprocess.run(
            ["unshare", "--mount", "sh", "-c", own, "sh", AAAA],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
    except FileNotFoundError:
        pytest.skip("this system has no unshare")
    if ended.returncode in (1, 77) and "Traceback" not in ended.stderr:
        pytest.skip(f"this system gives no file of its own: {ended.stderr}")
    assert ended.returncode == 0, ended.stderr


def resolves(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> None:
    """Let every name have these addresses."""

    def found(*_: object, **__: object) -> list[Any]:
        return [
            (
                socket.AF_INET6 if ":" in host else socket.AF_INET,
                socket.SOCK_STREAM,
                0,
                "",
                (host, port, 0, 0) if ":" in host else (host, port),
            )
            for host, port in addresses
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)


@needs_ipv6
def test_of_a_name_with_both_the_address_that_answers_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (dead,) = free_ports(1)
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        answers = {
            "four": ("127.0.0.1", four.getsockname()[1]),
            "six": ("::1", six.getsockname()[1]),
        }
        for addresses, expected in (
            ([answers["six"], answers["four"]], True),
            ([answers["four"], answers["six"]], False),
            ([("::1", dead), answers["four"]], False),
            ([("127.0.0.1", dead), answers["six"]], True),
            ([answers["four"]], False),
            ([("::1", dead)], True),
            # a name that is not known yet may have either later
            ([], True),
        ):
            resolves(monkeypatch, *addresses)
            assert connects_ipv6("tcp://hospital.example:7000") is expected, addresses


def test_addresses() -> None:
    assert [bracketed(host) for host in ("::1", "[::1]", "a.b", "10.0.0.1")] == [
        "[::1]",
        "[::1]",
        "a.b",
        "10.0.0.1",
    ]
    assert host_of("tcp://[fd00::7]:7000") == "fd00::7"
    assert listens_ipv6("tcp://*:7000") and listens_ipv6("tcp://[::]:7000-7100")
    assert not listens_ipv6("tcp://0.0.0.0:7000") and not connects_ipv6("tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"without brackets: 'tcp://fd00::7:7000'; write"):
        check_endpoint("tcp://fd00::7:7000")


class Relay:
    """A program between a client and a server: it passes on what it is told where to.

    `target` reads what the client sends first, on its own connection, and returns where to go on. A
    line that is silent for `forgets_s` is forgotten: nothing more passes, and nobody is told.
    """

    def __init__(
        self,
        target: Callable[[socket.socket], tuple[str, int]],
        forgets_s: float = float("inf"),
    ) -> None:
        self._target, self._forgets_s = target, forgets_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._stop = threading.Event()
        self.lines, self.forgotten = 0, 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        self._server.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            if select.select([self._server], [], [], 0.05)[0]:
                client, _ = self._server.accept()
                self.lines += 1
                thread = threading.Thread(target=self._relay, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _relay(self, client: socket.socket) -> None:
        with (
            client,
            suppress(OSError),
            socket.create_connection(self._target(client), WAIT_S) as server,
        ):
            self._pass(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        heard, others = time.monotonic(), {client: server, server: client}
        while not self._stop.is_set():
            for ready in select.select(list(others), [], [], 0.05)[0]:
                data = ready.recv(1 << 16)
                if not data:
                    return
                others[ready].sendall(data)
                heard = time.monotonic()
            if time.monotonic() > heard + self._forgets_s:
                self.forgotten += 1
                self._stop.wait()


@contextmanager
def relay_to(where: tuple[str, int], forgets_s: float) -> Iterator[Relay]:
    with closing(Relay(lambda _: where, forgets_s)) as made:
        yield made


@pytest.mark.slow
def test_no_firewall_forgets_the_line_of_a_client_that_trains(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of it is much faster than it is: a firewall forgets after minutes."""
    assert connection_module.HEARTBEAT_MS < 1000 * SILENCE_S
    monkeypatch.setattr(connection_module, "HEARTBEAT_MS", 300)
    with serving(echo) as server:
        where = ("127.0.0.1", int(server.address.rpartition(":")[2]))
        with relay_to(where, FORGETS_S) as relay:
            through = replace(server, address=f"tcp://127.0.0.1:{relay.port}")
            with connected(through, timeout_s=60) as connection:
                connection.ask("hello")
                # longer than the firewall has patience, as a training
                time.sleep(FORGETS_S + 1)
                assert connection.ask("hello").type == "hello"
                assert (relay.forgotten, relay.lines, connection.links) == (0, 1, 1)


class Socks(Relay):
    """A SOCKS5 proxy without a password, the only one that knows the addresses of `names`."""

    def __init__(self, names: Mapping[str, tuple[str, int]]) -> None:
        self._names = names
        self.asked: list[str] = []
        super().__init__(self._negotiate)

    def _negotiate(self, client: socket.socket) -> tuple[str, int]:
        version, count = _exactly(client, 2)
        assert version == 5 and 0 in _exactly(client, count)
        client.sendall(b"\x05\x00")
        version, command, _, kind = _exactly(client, 4)
        assert (version, command) == (5, 1)
        if kind == 3:
            host = _exactly(client, _exactly(client, 1)[0]).decode()
        else:
            family, size = (socket.AF_INET, 4) if kind == 1 else (socket.AF_INET6, 16)
            host = socket.inet_ntop(family, _exactly(client, size))
        port = int.from_bytes(_exactly(client, 2), "big")
        self.asked.append(host)
        where = self._names.get(host)
        client.sendall(bytes([5, 0 if where else 4, 0, 1, 0, 0, 0, 0, 0, 0]))
        if where is None:
            raise OSError(errno.EHOSTUNREACH, f"unknown {host}:{port}")
        return where


def _exactly(client: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = client.recv(count - len(data))
        if not more:
            raise OSError(errno.ECONNRESET, "hung up")
        data += more
    return data


@pytest.mark.slow
def test_a_round_through_a_socks_proxy_that_alone_resolves_names(pair: Pair) -> None:
    clients, coordinator = configs_of(pair)
    names = {
        f"{name}.hospital.invalid": (
            host_of(server.address),
            int(server.address.rpartition(":")[2]),
        )
        for name, server in (("s0", coordinator.s0), ("s1", coordinator.s1))
    }
    with closing(Socks(names)) as proxy:
        changed: dict[str, Any] = {
            "socks_proxy": f"127.0.0.1:{proxy.port}",
            "s0": replace(coordinator.s0, address="tcp://s0.hospital.invalid:7000"),
            "s1": replace(coordinator.s1, address="tcp://s1.hospital.invalid:7001"),
        }
        behind = [replace(each, **changed) for each in clients]
        assert take_part(behind, coordinator).tolist() == (MODEL + 1).tolist()
        assert set(proxy.asked) == set(names)


def test_a_proxy_is_named_by_its_host_and_port(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "keys")
    path = pair.folder / "client-1.toml"
    text = path.read_text()
    path.write_text(f'socks_proxy = "proxy.hospital.example:1080"\n{text}')
    assert ClientConfig.load(path).socks_proxy == "proxy.hospital.example:1080"
    path.write_text(f'socks_proxy = "socks5://proxy"\n{text}')
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ClientConfig.load(path)
