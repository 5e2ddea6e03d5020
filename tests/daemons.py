"""Real daemons for tests, and raw requests to them.

They are two processes with fresh keys and free ports in a temporary folder. Every wait has a limit.
"""

import itertools
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.clients.config import ClientConfig, ServerAddress
from securemedian.common.keys import KeyPair, load_keys
from securemedian.common.policy import Policy
from securemedian.common.receipts import Record, for_those_left
from securemedian.common.states import LIVE
from securemedian.laboratory import plaintext
from securemedian.laboratory.processes import Processes, Running
from securemedian.laboratory.servers import SERVERS, configure, make
from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import SecureMedianError, from_code
from securemedian.mpc.protocols import dealing, ring, share, wire
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.rounds.methods.base import Published
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.operating import keygen
from securemedian.servers import config
from securemedian.servers.network.transport import ClientPort
from tests import forks
from tests.soak.processes import size

# the first start compiles
START_S = 240.0
WAIT_S = 60.0
ROOT = Path(__file__).parent.parent

# short limits, so that tests of what happens at a limit are short too
SETTINGS = {
    "peer_wait_s": 60,
    "peer_timeout_s": 4,
    "channel_timeout_s": 20,
    "round_limit_s": 120,
    "stop_limit_s": 60,
}


def wait_until(condition: Callable[[], Any], limit_s: float = WAIT_S) -> Any:
    """Return the first true value of `condition`."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {limit_s:g} s: {condition}")


def in_background(function: Callable[[], object], limit_s: float = WAIT_S) -> Callable[[], None]:
    """Start a function on a thread, and return one that waits for it and passes its error on."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def join() -> None:
        thread.join(limit_s)
        assert not thread.is_alive()
        if errors:
            raise errors[0]

    return join


def client_of(pair: "Pair", number: int, **changed: Any) -> Client:
    """Return a client as a process has it, which the caller closes."""
    return Client(pair.config(f"client-{number}", **changed))


def results_of(clients: Sequence[Client], round_id: str) -> list[NDArray[np.float32]]:
    """Return what all clients get, which wait for it at the same time."""
    got: list[Any] = [None] * len(clients)

    def wait(place: int) -> None:
        got[place] = clients[place].result(round_id, timeout_s=WAIT_S)

    for join in [in_background(partial(wait, place)) for place in range(len(clients))]:
        join()
    return got


def endpoint_of(port: ClientPort) -> str:
    """Return the address that a port listens on."""
    endpoint = port.socket.last_endpoint
    assert isinstance(endpoint, bytes)
    return endpoint.decode()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nothing listens on at this moment."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Caller:
    """Raw requests with one key to one port."""

    def __init__(
        self, keys: KeyPair, endpoint: str, server_key: str, routing_id: bytes = b""
    ) -> None:
        self._numbers = itertools.count(1)
        # pyzmq types the options of a socket as if they could not be set
        socket: Any = zmq.Context.instance().socket(zmq.DEALER)
        socket.linger, socket.sndtimeo = 0, int(WAIT_S * 1000)
        socket.ipv6 = "[" in endpoint
        if routing_id:
            socket.routing_id = routing_id
        socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
        socket.curve_serverkey = server_key.encode()
        socket.connect(endpoint)
        self._socket = socket

    def ask(
        self, op: str, arrays: Mapping[str, NDArray[Any]] | None = None, **fields: Any
    ) -> wire.Message:
        """Return the answer; an error is raised as what it is."""
        if op in ("deal", "upload"):
            fields = {"start": self._start_of(fields["round"])} | fields
        number = next(self._numbers)
        reply = self.send(wire.pack(op, fields | {"id": number}, arrays))
        assert reply.fields["id"] == number
        if reply.type == "error":
            raise from_code(reply.fields["code"], reply.fields["message"])
        assert reply.type == op
        return reply

    def _start_of(self, round_id: object) -> bytes:
        """Return the digest of what a round starts from, as the server has it."""
        with suppress(SecureMedianError):
            return bytes.fromhex(self.ask("status", round=round_id).fields["start"])
        return bytes(32)

    def send(self, parts: Sequence[wire.Part]) -> wire.Message:
        """Send any frame and return the answer, whatever it is."""
        self._socket.send_multipart(parts)
        assert self._socket.poll(int(WAIT_S * 1000)), "no answer"
        return wire.unpack(self._socket.recv_multipart())

    def tell(self, parts: Sequence[wire.Part]) -> None:
        """Send any frame, without waiting for an answer."""
        self._socket.send_multipart(parts)

    def is_ignored(self, parts: Sequence[wire.Part], limit_s: float = 1.0) -> bool:
        # zmq ends a connection whose key is refused, and has then no way for a message
        with suppress(zmq.Again):
            self._socket.send_multipart(parts, zmq.DONTWAIT)
        return not self._socket.poll(int(limit_s * 1000))

    def close(self) -> None:
        self._socket.close()


class Pair:
    """S0 and S1, and callers of both by name."""

    def __init__(
        self,
        folder: Path,
        clients: int = 3,
        settings: Mapping[str, Any] = SETTINGS,
        descriptors: int = 1 << 14,
        policy: Policy | None = None,
        host: str = keygen.LOOPBACK,
    ) -> None:
        self.folder = folder
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        self._descriptors = descriptors if hard < 0 else min(descriptors, hard)
        self.names = make(folder, clients, policy=policy, host=host)
        for server in SERVERS:
            self.configure(server, **settings)
        self._processes = Processes(folder)
        self._callers: dict[tuple[str, str], Caller] = {}

    def configure(self, server: str, text: str = "", **settings: Any) -> None:
        """Change settings, and put `text` behind what the file has."""
        configure(self.folder / f"{server}.toml", settings, text)

    def start(
        self,
        *servers: str,
        program: Sequence[str] = (),
        module: str = "securemedian.cli",
        until: str = "peer-awaited",
    ) -> None:
        """Start servers and wait until they are ready, or until they log another event.

        `module` has another `main`. `program` is what Python runs in their place, in a process that
        is not forked.
        """
        logged = {server: len(self.events(server)) for server in servers}
        for server in servers:
            self._processes.launch(server, partial(self._launch, server, program, module))
        for server, before in logged.items():
            wait_until(partial(self._has_logged, until, server, before), START_S)

    def _launch(
        self, server: str, program: Sequence[str], module: str, log: BufferedWriter
    ) -> Running:
        command = ["serve", str(self.folder / f"{server}.toml")]
        if not program:
            return forks.source().start(command, log, self._descriptors, module)
        started = subprocess.Popen([sys.executable, *program, *command], stderr=log, cwd=ROOT)
        # long before it looks
        limits = self._descriptors, self._descriptors
        resource.prlimit(started.pid, resource.RLIMIT_NOFILE, limits)
        return started

    def _has_logged(self, name: str, server: str, before: int) -> bool:
        assert self.pid(server), self._log(server).read_text()
        return any(event["event"] == name for event in self.events(server)[before:])

    def pid(self, server: str) -> int | None:
        """Return the process id of a server, or None if it has ended."""
        return self._processes[server].pid

    @property
    def running(self) -> set[str]:
        """The servers that were started and not stopped."""
        return set(self._processes)

    def link(self) -> None:
        """Wait until both servers see each other."""
        for server in ("s0", "s1"):
            wait_until(partial(self._sees_its_peer, server))

    def _sees_its_peer(self, server: str) -> bool:
        return bool(self.caller("coordinator", server).ask("info").fields["peer_linked"])

    def descriptors(self, server: str) -> int:
        """How many descriptors a server has open."""
        return self._size(server)[1]

    def _size(self, server: str) -> tuple[int, int]:
        taken = size(self.pid(server))
        assert taken
        return taken

    def toml(self, name: str) -> str:
        """Return the path of somebody's configuration."""
        return str(self.folder / f"{name}.toml")

    def config(self, name: str, **changed: Any) -> ClientConfig:
        """Return somebody's configuration, with waits that are short in tests."""
        loaded = ClientConfig.load(self.folder / f"{name}.toml")
        return replace(loaded, poll_interval_s=0.02, **changed)

    def away(self, name: str) -> Path:
        """Write the configuration of somebody whose servers cannot be reached."""
        lines = (self.folder / f"{name}.toml").read_text().splitlines()
        for number, line in enumerate(lines):
            if line.startswith("address"):
                lines[number] = f'address = "tcp://127.0.0.1:{number + 1}"'
            elif line.startswith("state_dir"):
                # with the memory of a client that has sent something, servers are waited for
                lines[number] = 'state_dir = "away-state"'
        path = self.folder / "away.toml"
        path.write_text("\n".join(["reply_timeout_s = 0.5", *lines]))
        return path

    def with_policy(self, name: str, lines: str) -> Path:
        """Write the configuration of a client whose [policy] has these lines alone."""
        before, table, _ = (self.folder / f"{name}.toml").read_text().partition("[policy]")
        path = self.folder / f"{name}-policy.toml"
        path.write_text(f"{before}{table}\n{lines}\n")
        return path

    def resident_bytes(self, server: str) -> int:
        """How much memory a server takes."""
        return self._size(server)[0]

    def tell(self, server: str, number: int) -> None:
        """Send a signal."""
        self._processes[server].send(number)

    def stop(self, server: str, number: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit status."""
        self.tell(server, number)
        # a run may go on to its end
        return self.ended(server, START_S)

    def ended(self, server: str, limit_s: float = WAIT_S) -> int:
        return self._processes.pop(server).wait(limit_s)

    def events(self, server: str) -> list[dict[str, Any]]:
        """Return what a server has logged."""
        log = self._log(server)
        lines = log.read_text().splitlines() if log.exists() else []
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def output(self, server: str) -> str:
        return self._log(server).read_text()

    def _log(self, server: str) -> Path:
        return self.folder / f"{server}.log"

    def caller(self, name: str, server: str) -> Caller:
        """Somebody on the list, connected to a server; the same each time."""
        if (name, server) not in self._callers:
            self._callers[name, server] = self.stranger(self._keys(name), server)
        return self._callers[name, server]

    def stranger(self, keys: KeyPair, server: str) -> Caller:
        """Somebody with any key."""
        address: ServerAddress = getattr(
            ClientConfig.load(self.folder / "coordinator.toml"), server
        )
        return Caller(keys, address.address, address.public_key)

    def intruder(self, name: str) -> Caller:
        """Somebody on the list, at S1's port for S0 and by the name of S0's control stream."""
        peer = config.load(self.folder / "s0.toml").peer
        return Caller(self._keys(name), peer.address, peer.public_key, b"control")

    def _keys(self, name: str) -> KeyPair:
        return load_keys(self.folder / f"{name}.key_secret")

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        for server in self.running:
            self._processes[server].send(signal.SIGKILL)
        self._processes.stop()

    # Rounds

    def open(
        self,
        model: NDArray[np.float32] | None = None,
        bucket_range: Mapping[str, Any] | None = None,
        reset: bool = False,
        **params: Any,
    ) -> str:
        """Open a round and return its id."""
        arrays = {} if model is None else {"model": model}
        return (
            self.caller("coordinator", "s0")
            .ask("open", arrays, params=params, range=dict(bucket_range or {}), reset=reset)
            .fields["round"]
        )

    def submit(
        self, name: str, values: NDArray[np.float32], to: Sequence[str] = ("s0", "s1")
    ) -> None:
        """Send an honest upload for the latest round, and its dealing before it."""
        params = self.round(name)[1]
        shared = self.encoded(name, values)
        if params.form.dealing:
            self.rotate(name, self.deal(name, dealing.deal(params.form.dealing), to), values, to)
        else:
            seeded, words = share.split(shared, params.form.layout.bits, xor=params.form.xor)
            self.halves(name, "upload", seeded.seed, words.packed, to)

    def round(self, name: str) -> tuple[dict[str, Any], RoundParams]:
        """Return what S0 tells a client about the latest round, and its parameters."""
        current = self.caller(name, "s0").ask("round").fields
        return current, RoundParams.from_dict(current["params"])

    def encoded(self, name: str, values: NDArray[np.float32]) -> NDArray[Any]:
        """Return what the method of the latest round shares of these values."""
        current, params = self.round(name)
        part = params.part_of(self._keys(name).public.decode())
        published = replace(self.published(name, current["round"]), part=part)
        return params.method.encode(values, params.max_clients, published)

    def published(self, name: str, round_id: str) -> Published:
        """Return what S0 published for a round."""
        valid = self.caller(name, "s0").ask("model", round=round_id)
        named = valid.fields["policy"]
        return Published(
            valid.arrays.get("model"),
            valid.arrays.get("scale"),
            policy_from(named) if named else None,
        )

    def deal(self, name: str, dealt: OwnDealing, to: Sequence[str] = ("s0", "s1")) -> OwnDealing:
        """Send a dealing for the latest round, and return it."""
        words = dealt.words.packed.reshape(-1)
        self.halves(name, "deal", dealt.seeded.seed, words, to, piece=0, pieces=1)
        return dealt

    def rotate(
        self,
        name: str,
        dealt: OwnDealing,
        values: NDArray[np.float32],
        to: Sequence[str] = ("s0", "s1"),
    ) -> None:
        """Send the upload that follows a dealing."""
        rotations = dealt.rotations(self.encoded(name, values)[0])
        for server in to:
            self.send(name, "upload", "rotations", rotations, server)

    def halves(
        self,
        name: str,
        op: str,
        seed: bytes,
        words: NDArray[np.uint64],
        to: Sequence[str] = ("s0", "s1"),
        **fields: Any,
    ) -> None:
        """Send the two halves of an upload or a dealing for the latest round."""
        parts = [("seed", np.frombuffer(seed, np.uint8)), ("words", words)]
        for server in to:
            form, array = parts[(int(server[1]) + self.round(name)[0]["index"]) % 2]
            self.send(name, op, form, array, server, **fields)

    def send(
        self, name: str, op: str, form: str, array: NDArray[Any], server: str, **fields: Any
    ) -> wire.Message:
        """Send one array for the latest round to one server, and return the answer."""
        current, params = self.round(name)
        fields = {"round": current["round"], "params": params.digest, "form": form} | fields
        return self.caller(name, server).ask(op, {"share": array}, **fields)

    def play(
        self,
        values: Iterable[NDArray[np.float32]],
        model: NDArray[np.float32] | None = None,
        bucket_range: Mapping[str, Any] | None = None,
        reset: bool = False,
        **params: Any,
    ) -> str:
        """Open a round of so many values, which each client uploads, and return its id."""
        each = dict(zip(self.names, values, strict=False))
        sizes = {"dim": len(each[self.names[0]]), "max_clients": len(self.names)} | params
        round_id = self.open(model, bucket_range, reset, **sizes)
        for name, value in each.items():
            self.submit(name, value)
        return round_id

    def published_as(
        self, round_id: str, values: Iterable[NDArray[np.float32]]
    ) -> tuple[dict[str, Any], NDArray[np.float32]]:
        """Return the status and the results, which must be what the method is in the clear."""
        status, each = self.wait("published"), dict(zip(self.names, values, strict=True))
        included = status["included"]
        left = for_those_left(RoundParams.from_dict(status["params"]), status["left_out"].values())
        want = plaintext.published(
            np.stack([each[name] for name in included]),
            left,
            self.published(included[0], round_id),
            left.method.weights_of([self._keys(name).public.decode() for name in included]),
            coin=bytes.fromhex(status["coin"]),
        )
        results = self.results(round_id)
        assert np.array_equal(results, want)
        return status, results

    def status(self, server: str = "s0", round_id: str = "") -> dict[str, Any]:
        return self.caller("coordinator", server).ask("status", round=round_id).fields

    def wait(self, state: str, server: str = "s0") -> dict[str, Any]:
        """Return the status once the latest round is in `state`."""

        def reached() -> dict[str, Any] | None:
            status = self.status(server)
            going_on = status["state"] in (state, *LIVE)
            assert going_on, (status["state"], status["reason"])
            return status if status["state"] == state else None

        return wait_until(reached)

    def result(self, round_id: str, name: str = "client-1") -> NDArray[Any]:
        """Return the first result."""
        return self.results(round_id, name)[0]

    def results(self, round_id: str, name: str = "client-1") -> NDArray[Any]:
        """Return what S0's opened values stand for, or both shares put together."""
        reply = self.caller(name, "s0").ask("result", round=round_id)
        status = self.status(round_id=round_id)
        params = RoundParams.from_dict(status["params"])
        params = for_those_left(params, status["left_out"].values())
        if reply.fields["form"] == "opened":
            total = sum(params.method.weights_of(Record.decode(reply.fields["record"]).included))
            values = params.unpack_opened(reply.arrays["opened"], total)
            decoded = params.method.decode(values, total, self.published(name, round_id))
            return decoded.astype(np.float32)
        halves = [
            self.caller(name, server).ask("result", round=round_id).arrays["share"]
            for server in ("s0", "s1")
        ]
        one, other = (
            RingShare(ring.unpack(half, params.form.ring_bits, params.dim)) for half in halves
        )
        values = share.combine(one, other, params.form.ring_bits)
        return params.method.decode(values, params.max_total, Published())[None]


@contextmanager
def running(pair: Pair) -> Iterator[Pair]:
    """Start both servers of a pair, link them, and close everything at the end."""
    try:
        pair.start("s0", "s1")
        pair.link()
        yield pair
    finally:
        pair.close()
