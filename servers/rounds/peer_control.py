"""The conversation with the other server: hellos, rounds that it opens, messages about rounds."""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from securemedian.common.versions import own_versions
from securemedian.mpc.errors import (
    FrameError,
    NotStored,
    PeerProtocolError,
    PeerUnavailable,
    RoundBusy,
    RoundFailed,
    SecureMedianError,
    UnknownCohort,
    UnknownRound,
    cut,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers import logs
from securemedian.servers.computing.engine import STOP_S, Engines
from securemedian.servers.config import ServerConfig
from securemedian.servers.machine.events import Failure, Unlinked
from securemedian.servers.machine.step import told_again
from securemedian.servers.network import control
from securemedian.servers.network.control import (
    Bye,
    Hello,
    Load,
    Message,
    Open,
    Resume,
    RoundMessage,
)
from securemedian.servers.network.peer import Change, LinkProbe, PeerWatch, Told
from securemedian.servers.rounds.register import Entry, Register
from securemedian.servers.rounds.runner import RoundRunner

# the time between two hellos of this server
HELLO_S = 1.0


class PeerControl:
    """Takes the messages of the control stream, and sends hellos. Used by one thread."""

    def __init__(
        self,
        config: ServerConfig,
        register: Register,
        runner: RoundRunner,
        engines: Engines,
        signing_key: str,
        send: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self._config, self._register, self._runner = config, register, runner
        self._engines, self._send, self._clock = engines, send, clock
        # those of S0 and S1: a wrong one in [peer] shows before a round depends on it
        keys = [signing_key, config.peer.signing_key]
        signing_keys = keys if config.party == 0 else keys[::-1]
        agreement = self._agreement = config.agreement() | {"signing_keys": signing_keys}
        # see `control.Hello`
        self._instance, self._sent = _new_instance(), 0
        self._next_hello = clock()
        self._log = logs.BoundedLog(clock)
        self._probe = LinkProbe(send, clock)
        limits = config.peer_wait_s, config.peer_timeout_s
        self.watch = PeerWatch(f"s{1 - config.party}", agreement, *limits)

    def receive(self, parts: Sequence[wire.Part]) -> None:
        """Take one message.

        A wrong message is logged and changes nothing, or fails its round. It never ends the server.
        Messages are ignored until this server is ready.
        """
        if not self._ready():
            return
        try:
            message = control.decode(parts)
        except FrameError as error:
            self._log.event("control-refused", self.watch.name, reason=str(error))
            return
        try:
            self._take(message)
        except Exception as error:
            # a defect in this server
            self._log.event("control-error", self.watch.name, logging.ERROR, error)
            about = message.round if isinstance(message, RoundMessage) else ""
            why = f"met a defect when {self.watch.name} sent a message: see its log"
            for entry in self._register.live:
                if about in ("", entry.server_round.round_id):
                    self._fail(entry, why)

    def tick(self) -> None:
        """Let time pass.

        Raises PeerUnavailable if the peer has not appeared within its limit.
        """
        if not self._ready():
            return
        now = self._clock()
        if now >= self._next_hello:
            self._say_hello()
        self._changed(self.watch.tick(now))
        self._probe.tick()
        for entry in self._register.live:
            if entry.heard and now >= entry.heard_until:
                self.release(entry)

    def measure(self, told: Told) -> None:
        """Measure the link, at S0; `told` is called at the end.

        Raises PeerUnavailable or ParametersDiffer without a link, and RoundBusy if it is in
        use.
        """
        self.watch.require()
        if self._register.live:
            raise RoundBusy(
                "the link is measured between rounds alone: a round is under way; wait for its end"
            )
        self._probe.begin(told)

    def send(self, message: RoundMessage) -> None:
        """Send a message about a round. Without a link it is lost, and repeated on the next one."""
        self._send(replace(message, sent=self._sent))
        self._sent += 1

    def _say_hello(self, names_rounds: bool = True) -> None:
        linked = self.watch.instance if self.watch.linked and names_rounds else ""
        rounds = [entry.server_round.round_id for entry in self._register.live]
        versions = own_versions(peer=True)
        self._send(Hello(self._instance, linked, self._sent, rounds, self._agreement, **versions))
        self._next_hello = self._clock() + HELLO_S

    def _ready(self) -> bool:
        """Return whether this server has compiled, and once it has, begin to wait for the peer.

        Until then it sends no hello and ignores those that come, so that the servers are linked
        only when both have compiled: no time limit runs while either compiles.
        """
        if not self.watch.begun and self._engines.ready:
            config = self._config
            logs.event("peer-awaited", peer=config.peer.endpoint, limit_s=config.peer_wait_s)
            self.watch.begin(self._clock())
        return self.watch.begun

    def _take(self, message: Message) -> None:
        match message:
            case Hello():
                self._changed(self.watch.hello(message, self._clock(), self._instance))
                self._fail_unnamed(message)
            case Bye():
                if change := self.watch.bye():
                    self._changed(change)
                    self._send(Bye())
            case Load():
                self.watch.heard(self._clock())
                if self._config.party == 0:
                    self._probe.take(message)
                elif self.watch.linked:
                    self._send(message)
            case RoundMessage() if not self.watch.received(message.sent, self._clock()):
                # of an earlier link, or after a lost message
                pass
            case RoundMessage() if entry := self._register.get(message.round):
                self._hear(entry, message)
            case Open():
                self._open(message)
            case Resume() if self._config.party == 1:
                reason = (
                    f"s1 knows no round {message.round}: its state folder is not its latest. "
                    "The round has failed for good, open a new one"
                )
                self.send(control.Failed(message.round, UnknownRound.code, reason))
            case _:
                # about a round from before our start, or one that we refused
                told = {"round": message.round, "message": type(message).__name__.lower()}
                self._log.event("message-late", self.watch.name, logging.INFO, None, **told)

    def _hear(self, entry: Entry, message: RoundMessage) -> None:
        """Take a message about a round, or keep it until `release`.

        SECURITY: one that ends an audited round before it has ended here would keep this server
        from finding, and signing, that the other one deviated. It waits for STOP_S at most. One of
        a kind is kept: a server that computes says nothing twice. While it prepares, only those
        that end something are kept.
        """
        server_round, engine = entry.server_round, self._engines.of(entry.server_round.cohort)
        ends = engine.prepares and isinstance(message, control.Failed | control.Again)
        if server_round.audited and (engine.computes or ends):
            entry.heard_until = entry.heard_until if entry.heard else self._clock() + STOP_S
            entry.heard.setdefault(type(message), message)
        else:
            self._runner.take(entry, message)

    def release(self, entry: Entry) -> None:
        """Take the messages about a round that were kept, after what was found here."""
        heard, entry.heard = entry.heard, {}
        for message in heard.values():
            self._runner.take(entry, message)

    def _open(self, asked: Open) -> None:
        """Take part in a round that S0 opens, or answer with the reason against it.

        Another live round of the cohort fails here, because it has ended at S0.
        """
        try:
            if self._config.party == 0:
                raise PeerProtocolError("s0 opens rounds, and this is s0")
            self.watch.require()
            if not self._register.has(asked.cohort):
                raise UnknownCohort(
                    f"it has no such cohort: {asked.cohort!r}; add it to [[cohorts]] there"
                )
            if other := self._register.live_of(asked.cohort):
                self._fail(other, f"was told of another round, {asked.round}")
            kept = self._engines.of(asked.cohort).session_id
            if not asked.new_session and asked.session != kept:
                raise PeerUnavailable(
                    "the other server has no session to keep: s1; open again, for a new one"
                )
            entry = self._register.admit(asked, RoundParams.from_dict(asked.params), RunState())
        except SecureMedianError as error:
            reason = cut(f"{self._config.name}: {error}")
            told: dict[str, Any] = {"round": asked.round, "code": error.code, "reason": reason}
            self._log.event("open-refused", self.watch.name, **told)
            self.send(control.Failed(asked.round, error.code, reason))
            return
        try:
            self._runner.feed(entry, [asked])
        except NotStored as error:
            entry.spool.drop()
            self.send(control.Failed(asked.round, error.code, f"{self._config.name}: {error}"))

    def _fail(self, entry: Entry, why: str) -> None:
        self._runner.take(entry, Failure(RoundFailed.code, f"{self._config.name} {why}"))

    def _fail_unnamed(self, said: Hello) -> None:
        """Fail the live rounds of S1 that S0 does not know, since it does not name them.

        Before its hello, S0 has repeated how the rounds that it knows have ended.
        """
        if self._config.party == 0 or said.peer != self._instance:
            return
        for entry in self._register.live:
            server_round = entry.server_round
            if server_round.adrift and server_round.round_id not in said.rounds:
                reason = (
                    f"s0 no longer knows round {server_round.round_id}: its state folder is not "
                    "its latest. The round has failed for good, open a new one"
                )
                self._runner.take(entry, Failure(UnknownRound.code, reason))

    def _changed(self, change: Change | None) -> None:
        if change is None:
            return
        problem = self.watch.problem
        calm = change is Change.LINKED and not problem
        level = logging.INFO if calm else logging.WARNING
        logs.event(change, level, peer=self.watch.name, problem=problem)
        match change:
            case Change.LOST:
                self._unlink(problem, anew=True)
            case Change.GAP:
                self._unlink(f"messages of {self.watch.name} were lost", anew=True)
            case Change.RESTARTED:
                self._unlink(f"{self.watch.name} was restarted", anew=False)
        if change is not Change.LOST and self._config.party == 0:
            self._link()

    def _unlink(self, reason: str, anew: bool) -> None:
        """Forget what was under way; `anew` as another instance, so that the peer notices."""
        if anew:
            self._instance, self._sent = _new_instance(), 0
            self._next_hello = self._clock()
        self._engines.drop()
        for entry in self._register.live:
            self._runner.take(entry, Unlinked(reason))
            self.release(entry)

    def _link(self) -> None:
        """Begin a new link at S0: repeat how rounds have ended. Live ones get their turn later."""
        self._say_hello(names_rounds=False)
        for entry in self._register.entries:
            if told := told_again(entry.server_round):
                self.send(told)


def _new_instance() -> str:
    return os.urandom(8).hex()
