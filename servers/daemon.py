"""The server process: its sockets, its signals and its one loop.

The loop turns what the sockets bring into calls of `rounds` and `requests`.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import zmq

from securemedian.common.keys import KeyPair, SigningKey, load_keys, load_signing_key
from securemedian.mpc.errors import ConfigError
from securemedian.mpc.protocols.kernels.native.processor import use_native
from securemedian.servers import allocator, logs
from securemedian.servers.computing.base import Backend
from securemedian.servers.computing.engine import Engine, Engines
from securemedian.servers.computing.ray import RayBackend
from securemedian.servers.computing.threads import SWITCH_S, ThreadBackend
from securemedian.servers.config import ServerConfig, check_own_key, reloaded
from securemedian.servers.network import control
from securemedian.servers.network.descriptors import Descriptors
from securemedian.servers.network.transport import (
    CLIENT_DOMAIN,
    LINGER_MS,
    PEER_DOMAIN,
    ClientPort,
    PeerPort,
    ZmqLink,
    allow,
    authenticate,
)
from securemedian.servers.rounds.requests import Requests
from securemedian.servers.rounds.rounds import Rounds
from securemedian.servers.storage.store import Store

if TYPE_CHECKING:
    from securemedian.servers.metrics import HttpServer, Monitor

# the longest that the loop waits for a message, and so how late it may notice a time limit
TICK_MS = 100
# how many requests, and for how long, are taken before the loop looks elsewhere: answers to some
# take a millisecond each
MOST_REQUESTS, REQUESTS_S = 64, 0.02
# how many messages of the peer come before requests
MOST_MESSAGES = 256
# how long a server that stops waits for the peer's answer to its `bye`
LEAVE_S = 1.0


class Daemon:
    """One server with its sockets."""

    def __init__(
        self,
        config: ServerConfig,
        keys: KeyPair,
        signing: SigningKey,
        store: Store,
        descriptors: Descriptors,
        read: Callable[[], ServerConfig],
    ) -> None:
        """Open all sockets. `read` reads the configuration again."""
        self._config, self._store, self._descriptors = config, store, descriptors
        self._own_keys, self._read = (keys.public.decode(), signing.public), read
        self._monitor, self._page = _watched(config)
        self._context = zmq.Context(io_threads=2)
        allowed = {CLIENT_DOMAIN: _keys_of(config), PEER_DOMAIN: [config.peer.public_key]}
        self._gate = authenticate(self._context, allowed)
        self._clients = ClientPort(self._context, keys, config.listen, config.max_message_bytes)
        self._peer = PeerPort(
            self._context,
            config.party,
            keys,
            config.peer.endpoint,
            config.peer.public_key,
            use_native(config.protocol.native_aes),
            config.peer.aes_port or None,
        )
        self._control = self._peer.stream("control", keep=False)
        self._wake_out, self._wake_in = os.pipe()
        for end in (self._wake_out, self._wake_in):
            os.set_blocking(end, False)
        self._backend = self._backend_of(config)
        # it may have been reloaded
        limit = lambda: self._config.pool_share_bytes  # noqa: E731
        make = partial(Engine, self._backend, limit, self._wake)
        self._engines = Engines(self._backend, make, self._wake)
        self._rounds = Rounds(config, store, self._engines, signing, self._send)
        self._requests = Requests(config, self._rounds, self._engines, self._clients.send)
        self._stop_asked = self._reload_asked = False
        self._log = logs.BoundedLog()

    def _backend_of(self, config: ServerConfig) -> Backend:
        """Return the backend of `[engine] kind`.

        Raises ConfigError if what it needs is not installed, or if it is not guarded.
        """
        if config.engine.kind == "threads":
            return ThreadBackend(config.party, config.protocol, self._lanes)
        folder, limit = Path(config.state_dir), lambda: self._config.channel_timeout_s
        return RayBackend(config.party, config.protocol, config.engine, folder, self._lanes, limit)

    def run(self) -> None:
        """Serve until SIGTERM or SIGINT, and then until no run is under way.

        A round that has not ended is taken up by the next start.

        Raises PeerUnavailable if the peer does not appear within its limit, and LocalProtocolError
        if computations do not stop.
        """
        config = self._config
        logs.event(
            "listening",
            listen=config.listen,
            connections=self._descriptors.for_connections,
            descriptors=self._descriptors.limit,
        )
        self._take_signals()
        # beside the loop, which has clients to answer; the other server waits for its end
        self._engines.compile()
        poller = zmq.Poller()
        for source in (self._control, self._clients.socket, self._wake_out):
            poller.register(source, zmq.POLLIN)
        ready = False
        while not self._stop_asked:
            self._turn(poller)
            if not ready and self._engines.ready:
                ready = True
                # Ray takes SIGTERM when it is connected
                self._take_signals()
        # it may have been reloaded
        limit_s = self._config.stop_limit_s
        logs.event("stopping", limit_s=limit_s)
        self._rounds.stop()
        deadline = time.monotonic() + limit_s
        while self._rounds.running and time.monotonic() < deadline:
            self._turn(poller)

    def _turn(self, poller: zmq.Poller) -> None:
        ready = dict(poller.poll(TICK_MS))
        if self._reload_asked:
            self._reload()
        try:
            # before what the other server says: it may fail a round because of what is found here
            self._rounds.engine_ended()
            if self._control in ready:
                self._take_messages()
            if self._clients.socket in ready:
                self._take_requests()
            if self._wake_out in ready:
                os.read(self._wake_out, 4096)
            self._rounds.engine_ended()
            self._engines.check()
            self._rounds.tick()
            self._requests.tick()
        except zmq.ZMQError as error:
            # an error of a socket, such as a lack of descriptors, interrupts the rounds but does
            # not end the server
            self._log.event("socket-error", "loop", logging.ERROR, error)
            self._rounds.interrupt(f"could not use a socket: {zmq.strerror(error.errno or 0)}")
        if self._monitor:
            self._monitor.turn(self._requests, self._rounds, self._engines)

    def _take_messages(self) -> None:
        for _ in range(MOST_MESSAGES):
            try:
                parts = self._control.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            self._rounds.control(parts)

    def _take_requests(self) -> None:
        """Take a few requests. Shares that came together are written to the disk together."""
        begun = time.monotonic()
        for _ in range(MOST_REQUESTS):
            if time.monotonic() > begun + REQUESTS_S or not (request := self._clients.recv()):
                break
            self._requests.request(*request)
        self._rounds.flush()

    def _take_signals(self) -> None:
        """Let SIGTERM and SIGINT end `run`, and SIGHUP reload the configuration."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask_to_stop)
        signal.signal(signal.SIGHUP, self._ask_to_reload)
        signal.set_wakeup_fd(self._wake_in)

    def _ask_to_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_asked = True

    def _ask_to_reload(self, number: int, frame: FrameType | None) -> None:
        self._reload_asked = True

    def _reload(self) -> None:
        """Read the configuration again, take over what can change at run time, and log the changes.

        After a mistake in the file nothing changes.
        """
        self._reload_asked = False
        try:
            wanted = self._read()
            check_own_key(wanted, *self._own_keys)
            config, changes = reloaded(self._config, wanted)
            self._rounds.register.check(config)
        except ConfigError as error:
            logs.event("reload-failed", logging.ERROR, reason=str(error))
            return
        self._config = config
        allow(self._gate, CLIENT_DOMAIN, _keys_of(config))
        self._requests.reload(config)
        self._rounds.register.reload(config)
        told: dict[str, Any] = dict(changes)
        level = logging.WARNING if changes["needs_restart"] else logging.INFO
        logs.event("reloaded", level, **told)

    def close(self) -> bool:
        """Close all sockets except those of abandoned computations.

        Returns whether no thread is left that still computes or compiles.
        """
        self._take_leave()
        if self._page:
            self._page.close()
        finished = all([self._engines.close(), self._backend.close()])
        self._control.close()
        self._peer.close()
        self._clients.close()
        self._gate.stop()
        self._store.close()
        if finished:
            self._context.term()
        else:
            # `term` would wait for sockets that are still in use; the last messages need this long
            time.sleep(LINGER_MS / 1000)
        logs.event("stopped")
        return finished

    def _take_leave(self) -> None:
        """Tell the peer that we stop, and wait for its answer.

        Without the wait, what S1's proxy still holds when the process ends would be lost.
        """
        if not self._rounds.peer.linked:
            return
        bye = control.Bye()
        self._send(bye)
        deadline = time.monotonic() + LEAVE_S
        while (left := deadline - time.monotonic()) > 0 and self._control.poll(int(left * 1000)):
            if self._control.recv_multipart() == control.encode(bye):
                return

    def _send(self, message: control.Message) -> None:
        # Again means that the peer is not connected, which its missing hellos will show.
        with suppress(zmq.Again):
            self._control.send_multipart(control.encode(message), zmq.DONTWAIT)

    def _lanes(self, session_id: bytes, count: int) -> list[ZmqLink]:
        timeout_s = self._config.channel_timeout_s
        # one block: each lets in as many connections as wait at the ports
        with self._descriptors.own():
            return [self._peer.lane(session_id, lane, timeout_s) for lane in range(count)]

    def _wake(self) -> None:
        os.write(self._wake_in, b"\0")


def _watched(config: ServerConfig) -> "tuple[Monitor | None, HttpServer | None]":
    """Begin to show metrics, if the configuration says where."""
    if not config.metrics.listen:
        return None, None
    # it needs an extra, and takes a while to import
    from securemedian.servers.metrics import HttpServer, Monitor, Tally

    tally = Tally()
    monitor = Monitor(config, tally)
    page = HttpServer(config.metrics.listen, monitor)
    logs.add_listener(tally)
    return monitor, page


def _keys_of(config: ServerConfig) -> list[str]:
    return [caller.public_key for caller in config.clients + config.coordinators]


def serve(config: ServerConfig, read: Callable[[], ServerConfig]) -> None:
    """Run one server until it is told to stop. `read` reads its configuration again."""
    logs.start(config.name)
    # nobody else reads what is stored here
    os.umask(0o077)
    allocator.keep()
    sys.setswitchinterval(SWITCH_S)
    # Until the daemon's own handler is set there is nothing that has to be ended in order.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    # so little time after the file was read there is nothing to reload
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    keys = load_keys(config.key_file)
    signing = load_signing_key(config.key_file)
    check_own_key(config, keys.public.decode(), signing.public)
    descriptors = Descriptors()
    store = Store(Path(config.state_dir), descriptors.own, config.protocol.native_aes)
    daemon = Daemon(config, keys, signing, store, descriptors, read)
    try:
        daemon.run()
    finally:
        if not daemon.close():
            _end_at_once(sys.exc_info()[1])


def _end_at_once(error: BaseException | None) -> NoReturn:
    """End the process, with status 2 if there is an `error`, without Python's own shutdown.

    Python would free zmq's sockets, or the compiler's memory, while threads still use them, and
    zmq would abort or hang.
    """
    if error:
        logs.event("failed", logging.ERROR, reason=str(error))
    logging.shutdown()
    os._exit(2 if error else 0)
