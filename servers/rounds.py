"""A server's rounds, from opening to result: feeds `session` with what happens, and does what it says."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import securemedian
from securemedian.mpc import ring, wire
from securemedian.mpc.errors import (
    ConfigError,
    FrameError,
    PeerProtocolError,
    PeerUnavailable,
    RoundBusy,
    RoundFailed,
    SecureMedianError,
    UnknownRound,
    from_code,
)
from securemedian.mpc.params import RoundParams
from securemedian.mpc.party import SESSION_BYTES
from securemedian.mpc.pipeline import Outcome
from securemedian.servers import control, logs, training
from securemedian.servers.config import ServerConfig
from securemedian.servers.control import Bye, Hello, Message, Open, Opened
from securemedian.servers.engine import Engine
from securemedian.servers.peer import Change, PeerWatch
from securemedian.servers.session import (
    Action,
    Computed,
    Event,
    Failure,
    Overdue,
    Round,
    Start,
    State,
    Stored,
)
from securemedian.servers.store import Spool, Store
from securemedian.servers.training import Float32s, Training

HELLO_S = 1.0
KEPT_ROUNDS = 4  # whose status and result can still be asked for

WhenOpened = Callable[[Round, SecureMedianError | None], None]


@dataclass
class Entry:
    """A round and what this server holds for it. `before` and `after`: S0's training run as it finds and leaves it."""

    round: Round
    session: bytes
    spool: Spool
    before: Training
    when_opened: WhenOpened | None = None  # to be called once S1 has answered
    after: Training | None = None
    results: Float32s | None = field(default=None, repr=False)  # S0: (results, d), published
    share: NDArray[np.uint64] | None = field(default=None, repr=False)
    cost: Mapping[str, Any] = field(default_factory=dict)


class Rounds:
    """The rounds of one server; the latest may be live. `send` gives a message to the peer. Used by one thread."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        engine: Engine,
        send: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config, self._store, self._engine, self._send, self._clock = (
            config,
            store,
            engine,
            send,
            clock,
        )
        self._training = store.load_training() if config.party == 0 else Training()
        self._entries: dict[str, Entry] = {}
        self._stopping = False
        self._hello = Hello(
            os.urandom(8).hex(), config.protocol.agreement() | {"release": securemedian.__version__}
        )
        self._next_hello = clock()
        self.names = {client.public_key: client.name for client in config.clients}
        self.peer = PeerWatch(
            f"s{1 - config.party}",
            self._hello.agreement,
            config.peer_wait_s,
            config.peer_timeout_s,
            clock(),
        )

    @property
    def latest(self) -> Entry | None:
        return next(reversed(self._entries.values()), None)

    @property
    def live(self) -> Entry | None:
        """The round in hand."""
        entry = self.latest
        return entry if entry and entry.round.live else None

    def find(self, round_id: str) -> Entry:
        if round_id not in self._entries:
            known = (
                f"the latest is {self.latest.round.id}"
                if self.latest
                else "there has been none yet"
            )
            raise UnknownRound(f"{self._config.name} knows no round {round_id!r}; {known}")
        return self._entries[round_id]

    def left_s(self, entry: Entry) -> float:
        """Seconds in which the round still takes uploads."""
        return entry.round.deadline - self._clock() if entry.round.state is State.OPEN else 0.0

    # What happens

    def control(self, parts: Sequence[wire.Part]) -> None:
        """A message of the peer."""
        try:
            message = control.decode(parts)
        except FrameError as error:
            logs.event("control-refused", logging.WARNING, reason=str(error))
            return
        match message:
            case Hello():
                self._peer_changed(self.peer.hello(message, self._clock()))
            case Bye():
                if change := self.peer.bye():
                    self._peer_changed(change)
                    self._send(Bye())
            case Open():
                self._open_there(message)
            case _ if message.round in self._entries:
                self.feed(self._entries[message.round], message)

    def engine_ended(self) -> None:
        """The engine may have a result."""
        result, entry = self._engine.poll(), self.live
        if result is None or entry is None:
            return
        try:
            if isinstance(result, SecureMedianError):
                raise result
            self._take(entry, result)
            self.feed(entry, Computed())
        except SecureMedianError as error:
            self.feed(entry, Failure(error.code, str(error)))

    def tick(self) -> None:
        """Time has passed. Raises PeerUnavailable if the peer has not appeared within its limit."""
        now = self._clock()
        if now >= self._next_hello:
            self._send(self._hello)
            self._next_hello = now + HELLO_S
        self._peer_changed(self.peer.tick(now))
        if (entry := self.live) and now >= entry.round.deadline:
            self.feed(entry, Overdue())

    def stop(self) -> None:
        """Take no more rounds. A run in hand may finish, any earlier state fails."""
        self._stopping = True
        if (entry := self.live) and entry.round.state is not State.RUNNING:
            self.fail("was stopped")

    def fail(self, why: str) -> None:
        """Fail the round in hand, if there is one, for a reason of this server."""
        if entry := self.live:
            self.feed(entry, Failure(RoundFailed.code, f"{self._config.name} {why}"))

    def open(
        self,
        params: RoundParams,
        range_: dict[str, Any],
        reset: bool,
        model: Float32s | None,
        when_opened: WhenOpened,
    ) -> None:
        """S0: start a round. `when_opened` is called with S1's answer."""
        self.peer.require()
        if entry := self.live:
            raise RoundBusy(
                f"round {entry.round.id} is {entry.round.state}: close or abort it, or wait for its end"
            )
        before = training.begin(self._training, params, range_, reset, model)
        kept = self._engine.session_id
        session = kept or os.urandom(SESSION_BYTES)
        entry = self._add(
            f"{before.number}-{os.urandom(4).hex()}", before.number, params, session, before
        )
        entry.when_opened = when_opened
        self._send(Open(entry.round.id, before.number, params.to_dict(), session, kept is None))

    def upload(self, entry: Entry, client: str, form: str, share: NDArray[Any]) -> None:
        """Store a client's share, once and in time."""
        entry.round.check_upload(client)
        entry.spool.put(client, form, share)
        logs.event("upload-stored", round=entry.round.id, client=self.names[client])
        self.feed(entry, Stored(client))

    def feed(self, entry: Entry, event: Event) -> None:
        """Let the round take an event, and do what it says."""
        before = entry.round.state
        actions = entry.round.handle(event, self._clock())
        if entry.round.state is not before:
            self._entered(entry)
        for action in actions:
            self._do(entry, action)

    # What is done

    def _add(
        self, round_id: str, number: int, params: RoundParams, session: bytes, before: Training
    ) -> Entry:
        """A new round, unless this server's own limits forbid it."""
        config = self._config
        if self._stopping:
            raise RoundBusy(f"{config.name} is being stopped")
        upload_bytes = 8 * params.layout.words
        if upload_bytes > config.max_message_bytes:
            raise ConfigError(
                f"uploads of {upload_bytes} bytes; {config.name} takes {config.max_message_bytes} (max_message_bytes)"
            )
        round = Round(
            config.party,
            round_id,
            number,
            params,
            self.names,
            floor=config.min_clients,
            answer_s=config.peer_timeout_s,
            run_s=config.round_limit_s,
            now=self._clock(),
        )
        entry = Entry(round, session, self._store.spool(round_id, params.layout), before)
        self._entries[round_id] = entry
        while len(self._entries) > KEPT_ROUNDS:
            del self._entries[next(iter(self._entries))]
        self._log(entry)
        return entry

    def _do(self, entry: Entry, action: Action) -> None:
        if not isinstance(action, Start):
            self._send(action)
            return
        try:
            round = entry.round
            uploads = [entry.spool.get(client) for client in round.included]
            self._engine.start(round.params, uploads, round.params.weights_of(round.included))
        except SecureMedianError as error:
            self.feed(entry, Failure(error.code, str(error)))

    def _prepare(self, entry: Entry) -> None:
        """Both servers begin at once, while the clients train."""
        try:
            self._engine.prepare(entry.session, entry.round.params)
        except SecureMedianError as error:
            self.feed(entry, Failure(error.code, str(error)))

    def _entered(self, entry: Entry) -> None:
        """The round has changed its state."""
        self._log(entry)
        round = entry.round
        if round.state is State.OPEN:
            self._keep(entry.before)
            self._prepare(entry)
        elif round.state is State.PUBLISHED and entry.after:
            self._keep(entry.after)
        elif round.state is State.FAILED:
            self._engine.drop()
        if not round.live:
            entry.spool.drop()
        if entry.when_opened:
            when_opened, entry.when_opened = entry.when_opened, None
            when_opened(round, None if round.live else from_code(round.code, round.reason))

    def _log(self, entry: Entry) -> None:
        round = entry.round
        details: dict[str, Any] = {"round": round.id, "number": round.number}
        if round.state in (State.RUNNING, State.PUBLISHED):
            details |= {
                "included": [self.names[key] for key in round.included],
                "left_out": round.left_out,
            }
        if round.state is State.PUBLISHED:
            details |= {"cost": entry.cost}
        if round.state is State.FAILED:
            details |= {"code": round.code, "reason": round.reason}
        logs.event(
            f"round-{round.state}",
            logging.WARNING if round.state is State.FAILED else logging.INFO,
            **details,
        )

    def _keep(self, changed: Training) -> None:
        """S0's training run may have changed."""
        if changed is self._training or self._config.party != 0:
            return
        self._training = changed
        try:
            self._store.save_training(changed)
        except OSError as error:  # the round stands all the same; the next change tries again
            logs.event("training-not-saved", logging.ERROR, reason=str(error))

    def _take(self, entry: Entry, outcome: Outcome) -> None:
        """What the protocol gave, ready to be published."""
        params = entry.round.params
        entry.cost = outcome.cost.to_dict()
        if params.result_to == "clients":
            entry.share = ring.pack(outcome.values, params.ring_bits)
            entry.after = replace(entry.before, published=entry.before.number)
        elif self._config.party == 0:
            entry.after, entry.results = training.finish(
                entry.before, params, outcome.values, sum(params.weights_of(entry.round.included))
            )

    def _peer_changed(self, change: Change | None) -> None:
        if change is None:
            return
        logs.event(
            change,
            logging.INFO if change is Change.LINKED and not self.peer.problem else logging.WARNING,
            peer=self.peer.name,
            problem=self.peer.problem,
        )
        if change is Change.LINKED:
            return
        reason = self.peer.problem if change is Change.LOST else f"{self.peer.name} was restarted"
        if entry := self.live:
            self.feed(entry, Failure(PeerUnavailable.code, reason))
        self._engine.drop()

    def _open_there(self, message: Open) -> None:
        """S0 opens a round: one that is still in hand here has ended there."""
        try:
            if self._config.party == 0:
                raise PeerProtocolError("s0 opens rounds, and this is s0")
            self.peer.require()
            self.fail(f"was told of another round, {message.round}")
            if not message.new_session and message.session != self._engine.session_id:
                raise PeerUnavailable("s1 has no session to keep: open again, for a new one")
            params = RoundParams.from_dict(message.params)
            entry = self._add(message.round, message.number, params, message.session, Training())
            self._prepare(
                entry
            )  # before the answer: what S0 sends on a lane that is not there yet is lost
            if entry.round.live:
                self._send(Opened(message.round))
        except SecureMedianError as error:
            logs.event(
                "open-refused",
                logging.WARNING,
                round=message.round,
                code=error.code,
                reason=str(error),
            )
            self._send(control.Failed(message.round, error.code, f"{self._config.name}: {error}"))
