"""The runner, which does what a round's table says.

It acts on the peer, the engine, the disk, the log and the coordinator.
"""

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
    """Feeds events to rounds and does the actions that they return. Used by one thread."""

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
        self._bounded_log = logs.BoundedLog(clock)
        self._effects: dict[Effect, Callable[[Entry], None]] = {
            Effect.LOG: self._log,
            Effect.BEGIN: self._begin,
            Effect.PREPARE: self._prepare,
            Effect.CHECK: self._check,
            Effect.BIND: self._bind,
            Effect.START: self._start,
            Effect.PUBLISH: self._publish,
            Effect.DROP_SESSION: lambda entry: engine.drop(),
            Effect.DROP_UPLOADS: lambda entry: entry.spool.drop(),
            Effect.ANSWER: self._answer,
        }

    def feed(self, entry: Entry, event: Event) -> None:
        """Let a round take an event, and do the actions that it returns.

        A message of the peer that cannot come now is logged, and fails a live round. Raises
        LocalProtocolError for an event of this server itself that cannot come.
        """
        try:
            actions = entry.server_round.handle(event, self._clock())
        except PeerProtocolError as error:
            self._bounded_log.event(
                "message-refused",
                "peer",
                round=entry.server_round.round_id,
                reason=str(error),
            )
            if entry.server_round.live:
                self.feed(entry, Failure(error.code, str(error)))
            return
        for action in actions:
            try:
                self._do(entry, action)
            except Exception as error:
                failure = _failure_of(error)
                if entry.server_round.live:
                    self.feed(entry, failure)
                    return
                # The other actions remain to be done, such as deleting uploads and answering the
                # coordinator.
                logs.event(
                    "action-failed",
                    logging.ERROR,
                    round=entry.server_round.round_id,
                    action=action if isinstance(action, Effect) else type(action).__name__,
                    reason=failure.reason,
                )

    def _do(self, entry: Entry, action: Action) -> None:
        if isinstance(action, Effect):
            self._effects[action](entry)
        else:
            self._send(action)

    def _begin(self, entry: Entry) -> None:
        self._register.begin()
        if entry.server_round.asked.start_over and self._register.release():
            logs.event("clients-released", logging.WARNING, round=entry.server_round.round_id)
        self._keeper.keep(entry.before)

    def _prepare(self, entry: Entry) -> None:
        """Let the engine prepare the round. Both servers do so at once, while the clients train."""
        self._engine.prepare(entry.server_round.asked.session, entry.server_round.params)

    def _check(self, entry: Entry) -> None:
        """Let the engine check clients. Both servers do so at once."""
        server_round = entry.server_round
        clients, shape = server_round.under_check, server_round.params.dealing
        if shape:
            self._engine.check_dealings(shape, [entry.spool.dealing(key) for key in clients])
        else:
            uploads = [entry.spool.get(key) for key in clients]
            self._engine.check_values(server_round.params, uploads)

    def _bind(self, entry: Entry) -> None:
        self._register.bind(entry.server_round.number, entry.server_round.included)

    def _start(self, entry: Entry) -> None:
        server_round = entry.server_round
        uploads = [entry.spool.get(client) for client in server_round.included]
        self._engine.start(
            server_round.params, uploads, server_round.params.weights_of(server_round.included)
        )

    def _publish(self, entry: Entry) -> None:
        if entry.after:
            self._keeper.keep(entry.after)

    def _answer(self, entry: Entry) -> None:
        when_opened, entry.when_opened = entry.when_opened, None
        if when_opened:
            server_round = entry.server_round
            error = (
                from_code(server_round.code, server_round.reason)
                if server_round.state is State.FAILED
                else None
            )
            when_opened(server_round, error)

    def _log(self, entry: Entry) -> None:
        server_round = entry.server_round
        details: dict[str, Any] = {"round": server_round.round_id, "number": server_round.number}
        if server_round.state is State.OPEN and server_round.repeats:
            details |= {"repeats": server_round.whom_it_repeats()}
        if server_round.state in (State.RUNNING, State.PUBLISHED):
            details |= {
                "included": [server_round.names[key] for key in server_round.included],
                "left_out": server_round.left_out,
            }
        if server_round.state is State.PUBLISHED:
            details |= {"cost": entry.result.cost if entry.result else {}}
        if server_round.state is State.FAILED:
            details |= {
                "code": server_round.code,
                "reason": server_round.reason,
                "opened": server_round.opened,
                "left_out": server_round.left_out,
            }
        logs.event(
            f"round-{server_round.state}",
            logging.WARNING if server_round.state is State.FAILED else logging.INFO,
            **details,
        )


def _failure_of(error: Exception) -> Failure:
    """Return how a round fails with this error; a defect is logged with its traceback."""
    if isinstance(error, SecureMedianError):
        return Failure(error.code, str(error))
    logs.event("action-error", logging.ERROR, error)
    defect = f"a defect in this server, see its log: {type(error).__name__}"
    return Failure(LocalProtocolError.code, defect)
