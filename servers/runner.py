"""Does what a round's table says: to the peer, the engine, the disk, the log, the coordinator."""

import logging
from collections.abc import Callable
from typing import Any

from securemedian.mpc.errors import (
    LocalProtocolError,
    PeerProtocolError,
    SecureMedianError,
    from_code,
)
from securemedian.servers import logs
from securemedian.servers.control import Message
from securemedian.servers.engine import Engine
from securemedian.servers.keeper import TrainingKeeper
from securemedian.servers.register import Entry, Register
from securemedian.servers.round_state import Action, Effect, Event, Failure, State


class RoundRunner:
    """Feeds rounds with events and performs the actions that come back. Used by one thread."""

    def __init__(
        self,
        register: Register,
        keeper: TrainingKeeper,
        engine: Engine,
        send: Callable[[Message], None],
        clock: Callable[[], float],
    ) -> None:
        self._register, self._keeper, self._engine = register, keeper, engine
        self._send, self._clock = send, clock
        self._effects: dict[Effect, Callable[[Entry], None]] = {
            Effect.LOG: self._log,
            Effect.BEGIN: self._begin,
            Effect.PREPARE: self._prepare,
            Effect.BIND: self._bind,
            Effect.START: self._start,
            Effect.PUBLISH: self._publish,
            Effect.DROP_SESSION: lambda entry: engine.drop(),
            Effect.DROP_UPLOADS: lambda entry: entry.spool.drop(),
            Effect.ANSWER: self._answer,
        }

    def feed(self, entry: Entry, event: Event) -> None:
        """Let a round take an event, and do what it says.

        A message of the peer that cannot come now is logged, and fails a live round. Raises
        LocalProtocolError for an event of our own that cannot come.
        """
        try:
            actions = entry.round.handle(event, self._clock())
        except PeerProtocolError as error:
            logs.event("message-refused", logging.WARNING, round=entry.round.id, reason=str(error))
            if entry.round.live:
                self.feed(entry, Failure(error.code, str(error)))
            return
        for action in actions:
            try:
                self._do(entry, action)
            except Exception as error:
                failure = _failure_of(error)
                if entry.round.live:
                    self.feed(entry, failure)
                    return
                # the rest is still to be done: uploads to drop, the coordinator to answer
                logs.event(
                    "action-failed",
                    logging.ERROR,
                    round=entry.round.id,
                    action=action if isinstance(action, Effect) else type(action).__name__,
                    reason=failure.reason,
                )

    def _do(self, entry: Entry, action: Action) -> None:
        if isinstance(action, Effect):
            self._effects[action](entry)
        else:
            self._send(action)

    def _begin(self, entry: Entry) -> None:
        if entry.round.asked.start_over and self._register.release():
            logs.event("clients-released", logging.WARNING, round=entry.round.id)
        self._keeper.keep(entry.before)

    def _prepare(self, entry: Entry) -> None:
        """Both servers begin at once, while the clients train."""
        self._engine.prepare(entry.round.asked.session, entry.round.params)

    def _bind(self, entry: Entry) -> None:
        self._register.bind(entry.round.number, entry.round.included)

    def _start(self, entry: Entry) -> None:
        round_ = entry.round
        uploads = [entry.spool.get(client) for client in round_.included]
        self._engine.start(round_.params, uploads, round_.params.weights_of(round_.included))

    def _publish(self, entry: Entry) -> None:
        if entry.after:
            self._keeper.keep(entry.after)

    def _answer(self, entry: Entry) -> None:
        when_opened, entry.when_opened = entry.when_opened, None
        if when_opened:
            round_ = entry.round
            error = from_code(round_.code, round_.reason) if round_.state is State.FAILED else None
            when_opened(round_, error)

    def _log(self, entry: Entry) -> None:
        round_ = entry.round
        details: dict[str, Any] = {"round": round_.id, "number": round_.number}
        if round_.state is State.OPEN and round_.repeats:
            details |= {"repeats": round_.whom_it_repeats()}
        if round_.state in (State.RUNNING, State.PUBLISHED):
            details |= {
                "included": [self._register.names[key] for key in round_.included],
                "left_out": round_.left_out,
            }
        if round_.state is State.PUBLISHED:
            details |= {"cost": entry.cost}
        if round_.state is State.FAILED:
            details |= {"code": round_.code, "reason": round_.reason, "opened": round_.opened}
        logs.event(
            f"round-{round_.state}",
            logging.WARNING if round_.state is State.FAILED else logging.INFO,
            **details,
        )


def _failure_of(error: Exception) -> Failure:
    """Return how a round fails at an error; a defect goes to the log with its traceback."""
    if isinstance(error, SecureMedianError):
        return Failure(error.code, str(error))
    logs.event("action-error", logging.ERROR, error)
    defect = f"a defect in this server, see its log: {type(error).__name__}"
    return Failure(LocalProtocolError.code, defect)
