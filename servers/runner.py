"""The runner, which does what a round's table says.

It acts on the peer, the engine, the disk, the log and the coordinator.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    LocalProtocolError,
    NoSocket,
    NotStored,
    PeerProtocolError,
    PeerUnavailable,
    SecureMedianError,
    from_code,
)
from securemedian.servers import logs
from securemedian.servers.control import Message
from securemedian.servers.database import Row
from securemedian.servers.engine import Engine, session_name
from securemedian.servers.keeper import TrainingKeeper
from securemedian.servers.register import Entry, Register, WhenOpened
from securemedian.servers.round_state import (
    Action,
    Effect,
    Event,
    Failure,
    Interrupted,
    State,
)

# how long an event waits that could not be stored
AGAIN_S = 1.0
# What may go well when it is tried again. All other errors are final.
TRANSIENT = (ChannelClosed, ChannelTimeout, PeerUnavailable, NoSocket, NotStored)


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
            Effect.DROP_UPLOADS: self._drop_uploads,
            Effect.ANSWER: self._answer,
        }
        # events that have yet to be taken, in their order, and when those that could not be stored
        # are tried again
        self._events: deque[tuple[Entry, Event]] = deque()
        self._again = 0.0
        self._taking = False

    def take(self, entry: Entry, event: Event) -> None:
        """Let a round take an event, and do the actions that it returns, once it is stored.

        While it cannot be stored it is kept, and so is what comes after it. A message of the peer
        that cannot come now is logged, and fails a live round.
        """
        self._events.append((entry, event))
        if not self.waits:
            self._go_on()

    @property
    def waits(self) -> bool:
        """Whether there is an event that could not be stored, and whose time has not come."""
        return len(self._events) > 0 and self._clock() < self._again

    @property
    def idle(self) -> bool:
        """Whether there is no event that has yet to be taken."""
        return not self._events

    def tick(self) -> None:
        """Try again what could not be stored."""
        if not self.waits:
            self._go_on()

    def feed(self, entry: Entry, events: Sequence[Event], rows: Sequence[Row] = ()) -> None:
        """Let a round take events and the rows of what its clients have sent, all or nothing.

        Raises NotStored if they cannot be stored, and LocalProtocolError for an event of this
        server itself that cannot come; then nothing has changed.
        """
        self._feed(entry, events, rows)
        self._go_on()

    def _go_on(self) -> None:
        if self._taking:
            return
        self._taking = True
        try:
            while self._events:
                entry, event = self._events[0]
                try:
                    self._feed(entry, [event])
                except NotStored as error:
                    self._again = self._clock() + AGAIN_S
                    self._bounded_log.event(
                        "not-stored",
                        "disk",
                        logging.ERROR,
                        round=entry.server_round.round_id,
                        waiting=len(self._events),
                        reason=str(error),
                    )
                    return
                except PeerProtocolError as error:
                    self._bounded_log.event(
                        "message-refused",
                        "peer",
                        round=entry.server_round.round_id,
                        reason=str(error),
                    )
                    if entry.server_round.live:
                        self._events.insert(1, (entry, Failure(error.code, str(error))))
                except Exception:
                    self._events.popleft()
                    raise
                self._events.popleft()
        finally:
            self._taking = False

    def _feed(self, entry: Entry, events: Sequence[Event], rows: Sequence[Row] = ()) -> None:
        changed, actions = entry.server_round.after(events, self._clock())
        if self._register.commit(entry, changed, actions, rows):
            logs.event("clients-released", logging.WARNING, round=changed.round_id)
        for action in actions:
            try:
                self._do(entry, action)
            except Exception as error:
                event = _event_of(error)
                if entry.server_round.live:
                    # before all that has come meanwhile; the present event is still the first one
                    self._events.insert(1 if self._taking else 0, (entry, event))
                    return
                # The other actions remain to be done, such as deleting uploads and answering the
                # coordinator.
                logs.event(
                    "action-failed",
                    logging.ERROR,
                    round=entry.server_round.round_id,
                    action=action if isinstance(action, Effect) else type(action).__name__,
                    reason=event.reason,
                )

    def _do(self, entry: Entry, action: Action) -> None:
        if isinstance(action, Effect):
            self._effects[action](entry)
        else:
            self._send(action)

    def _begin(self, entry: Entry) -> None:
        self._register.begin()
        self._keeper.keep(entry.before)

    def _prepare(self, entry: Entry) -> None:
        """Let the engine prepare the round. Both servers do so at once, while the clients train."""
        self._engine.prepare(entry.server_round.session, entry.server_round.params)

    def _check(self, entry: Entry) -> None:
        """Let the engine check clients, or toss for it first. Both servers do so at once."""
        server_round, spool = entry.server_round, entry.spool
        clients, shape = server_round.under_check, server_round.params.dealing
        if shape and not server_round.coin:
            self._engine.toss()
        elif shape:
            halves = [spool.dealing(key) for key in clients]
            examine = spool.examination(clients)
            self._engine.check_dealings(shape, halves, server_round.coin, examine)
        else:
            uploads = [spool.get(key) for key in clients]
            self._engine.check_values(server_round.params, uploads, spool.examination(clients))

    def _bind(self, entry: Entry) -> None:
        """`Register.commit` has bound the clients."""

    def _start(self, entry: Entry) -> None:
        server_round, engine = entry.server_round, self._engine
        if server_round.new_session:
            engine.prepare(server_round.session, server_round.params)
        elif engine.opened_session != server_round.session:
            raise PeerUnavailable("the session that was prepared is gone: another one is made")
        uploads = [entry.spool.get(client) for client in server_round.included]
        engine.start(
            server_round.params,
            uploads,
            server_round.params.weights_of(server_round.included),
            entry.spool.examination(server_round.included),
        )

    def _publish(self, entry: Entry) -> None:
        if entry.after:
            self._keeper.keep(entry.after)

    def _drop_uploads(self, entry: Entry) -> None:
        entry.spool.drop()
        self._register.tidy()

    def _answer(self, entry: Entry) -> None:
        """Answer all who have asked for the round to be opened."""
        waiting, entry.when_opened = entry.when_opened, []
        for when_opened in waiting:
            self.answer(entry, when_opened)

    def answer(self, entry: Entry, when_opened: WhenOpened) -> None:
        """Tell whether a round was opened, whatever has become of it since."""
        server_round = entry.server_round
        error = None if server_round.begun else from_code(server_round.code, server_round.reason)
        when_opened(server_round, error)

    def _log(self, entry: Entry) -> None:
        server_round = entry.server_round
        details: dict[str, Any] = {"round": server_round.round_id, "number": server_round.number}
        if server_round.state is State.OPEN and server_round.repeats:
            details |= {"repeats": server_round.whom_it_repeats()}
        if server_round.state in (State.STARTING, State.RUNNING):
            details |= {
                "attempt": server_round.attempt,
                "session": session_name(server_round.session),
            }
        if server_round.state is State.QUEUED and server_round.reason:
            details |= {
                "setbacks": server_round.setbacks,
                "code": server_round.code,
                "reason": server_round.reason,
            }
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


def _event_of(error: Exception) -> Failure | Interrupted:
    """Return what an error is for a round; a defect is logged with its traceback."""
    if isinstance(error, SecureMedianError):
        return event_of(error)
    logs.event("action-error", logging.ERROR, error)
    defect = f"a defect in this server, see its log: {type(error).__name__}"
    return Failure(LocalProtocolError.code, defect)


def event_of(error: SecureMedianError) -> Failure | Interrupted:
    """Return what an error of a computation is for a round: final, or worth another attempt."""
    kind = Interrupted if isinstance(error, TRANSIENT) else Failure
    return kind(error.code, str(error))
