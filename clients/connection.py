"""The authenticated connection to one server, whose answers have a time limit."""

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from numpy.typing import NDArray
from zmq.utils.monitor import recv_monitor_message

from securemedian.clients.config import ServerAddress
from securemedian.mpc import wire
from securemedian.mpc.errors import ConfigError, ServerUnreachable, from_code
from securemedian.settings.keys import KeyPair, fingerprint

# The other end hung up during the handshake: it has another key than the one expected, or is no
# server of ours, or has no room for connections at the moment.
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | _FAILED
)
# the longest that another key is tried
TRIAL_S = 5.0
# how often a wait for an answer looks whether it has been cancelled
SLICE_S = 0.2


class Connection:
    """A CURVE DEALER to one server. Not for two threads at once.

    A monitor watches the connection itself, because zmq alone would try a refused key for ever and
    report nothing.
    """

    def __init__(
        self,
        label: str,
        server: ServerAddress,
        keys: KeyPair,
        timeout_s: float,
        other_key: str = "",
    ) -> None:
        """Connect to `server`; `other_key` is the key that the configuration has for the other one.

        It is tried if this server does not prove its own, to find out whether they are exchanged.
        """
        self._label, self._where, self._timeout_s = label, f"{label} at {server.address}", timeout_s
        self._server, self._keys, self._other_key = server, keys, other_key
        self._numbers = itertools.count(1)
        self._cancelled = threading.Event()
        # whether both ends have proved their keys to each other
        self.proven = False
        # whether the other end has hung up during a handshake since it last proved its key
        self._unproved = False
        self._socket = _dealer(keys, server.public_key)
        self._socket.sndtimeo = int(timeout_s * 1000)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._socket.connect(server.address)

    def ask(
        self,
        op: str,
        fields: Mapping[str, Any] | None = None,
        arrays: Mapping[str, NDArray[Any]] | None = None,
    ) -> wire.Message:
        """Send one request and return its answer.

        Raises the error that the server answers with, or ServerUnreachable if it does not answer.
        """
        self._check_cancelled()
        number = next(self._numbers)
        parts = wire.pack(op, {**(fields or {}), "id": number}, arrays)
        # what happened to the connection before this request does not concern it
        while self._monitor.poll(0):
            self._event()
        try:
            self._socket.send_multipart(parts)
        except zmq.Again:
            raise self._no_answer(op) from None
        reply = self._reply(op, number, wire.size(parts))
        if reply.type == "error":
            raise from_code(
                str(reply.fields.get("code")), f"{self._label}: {reply.fields.get('message')}"
            )
        return reply

    @property
    def address(self) -> str:
        return self._server.address

    def cancel(self) -> None:
        """Send nothing any more, and end the wait for an answer. Any thread may call it."""
        self._cancelled.set()

    def close(self) -> None:
        self._socket.disable_monitor()
        self._socket.close()

    def _reply(self, op: str, number: int, sent: int) -> wire.Message:
        deadline = time.monotonic() + self._timeout_s
        while (left := deadline - time.monotonic()) > 0:
            self._check_cancelled()
            ready = dict(self._poller.poll(int(min(left, SLICE_S) * 1000) + 1))
            if self._socket in ready:
                message = wire.unpack(self._socket.recv_multipart())
                # With 0 the server says that it could not read our frame. Other numbers are those
                # of late answers to earlier requests.
                if message.fields.get("id") in (number, 0):
                    return message
            elif self._monitor in ready and self._event() == zmq.EVENT_DISCONNECTED and self.proven:
                raise ServerUnreachable(
                    f"{self._where} hung up on {op!r}: "
                    f"it was restarted, or {sent:,} bytes are more than its max_message_bytes"
                )
        raise self._no_answer(op)

    def _check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise ServerUnreachable(f"the connection to {self._where} was closed here")

    def _event(self) -> int:
        """Take the next event of the connection, and return it.

        Raises ServerUnreachable if our key was refused, and ConfigError if the server has the key
        that the configuration has for the other one.
        """
        event = int(recv_monitor_message(self._monitor)["event"])
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.proven, self._unproved = True, False
        elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            self.proven = False
            raise ServerUnreachable(
                f"{self._where} does not know this key: "
                f"ask who runs it to allow the public key {self._keys.public.decode()} and to "
                "reload it"
            )
        elif event & _FAILED and not self._unproved:
            self._unproved = True
            self._try_other_key()
        return event

    def _try_other_key(self) -> None:
        """Raise ConfigError if the server proves the key that belongs to the other server."""
        if self.proven or not self._other_key:
            return
        trial = _dealer(self._keys, self._other_key)
        # Both tell that the server has this key: it read our handshake, and judged our own key.
        proved = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        monitor = trial.get_monitor_socket(proved | _FAILED)
        try:
            trial.connect(self._server.address)
            exchanged = (
                monitor.poll(int(min(TRIAL_S, self._timeout_s) * 1000))
                and int(recv_monitor_message(monitor)["event"]) & proved
            )
        finally:
            trial.disable_monitor()
            trial.close()
        if exchanged:
            raise ConfigError(
                f"{self._where} has the key {fingerprint(self._other_key)}, which is that of the "
                "other server here: the public keys of [s0] and [s1] are exchanged, or their "
                "addresses"
            )

    def _no_answer(self, op: str) -> ServerUnreachable:
        if self.proven:
            return ServerUnreachable(
                f"{self._where} did not answer {op!r} within {self._timeout_s:g} s: "
                "see its log, or raise reply_timeout_s"
            )
        if self._unproved:
            return ServerUnreachable(
                f"{self._where} can be reached, but has not proved the key "
                f"{fingerprint(self._server.public_key)} within {self._timeout_s:g} s: compare "
                "this fingerprint with who runs the server, and check the address here"
            )
        return ServerUnreachable(
            f"{self._where} could not be reached within {self._timeout_s:g} s: "
            "is it running, and is its address right here?"
        )


def _dealer(keys: KeyPair, server_key: str) -> zmq.Socket[bytes]:
    """Return a socket that is not connected yet, for a server with this public key."""
    context: zmq.Context[Any] = zmq.Context.instance()
    socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
    socket.linger = 0
    socket.curve_publickey, socket.curve_secretkey = keys.public, keys.secret
    socket.curve_serverkey = server_key.encode()
    return socket


def ask_parties(servers: Sequence[Connection]) -> list[dict[str, Any]]:
    """Return what S0 and S1 say about themselves (`info`).

    Raises ConfigError unless [s0] is party 0 and [s1] is party 1.
    """
    answers = []
    for party, server in enumerate(servers):
        answers.append(server.ask("info").fields)
        if (answered := answers[-1].get("party")) != party:
            raise ConfigError(
                f"[s{party}] names the server at {server.address}, which answers as party "
                f"{answered!r:.20}: nothing was uploaded. Correct [s0] and [s1]"
            )
    return answers
