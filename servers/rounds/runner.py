"""The runner, which feeds events to rounds and does the actions of their tables."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from securemedian.common.states import State
from securemedian.mpc.errors import (
    ChannelClosed,
    ChannelTimeout,
    LocalProtocolError,
    NoSocket,
    NotStored,
    NoWorker,
    PeerProtocolError,
    PeerUnavailable,
    SecureMedianError,
    from_code,
)
from securemedian.mpc.protocols.audit.binding import fold_words, vote_masks
from securemedian.mpc.protocols.dealing import nothing
from securemedian.servers import logs
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.engine import Engine, Engines
from securemedian.servers.computing.folds import Folds
from securemedian.servers.machine.events import Effect, Event, Failure, Interrupted
from securemedian.servers.machine.step import fold
from securemedian.servers.network.control import RoundMessage
from securemedian.servers.rounds.register import Entry, Register, WhenOpened
from securemedian.servers.storage.database import Row

# the wait before an event that could not be stored is tried again
AGAIN_S = 1.0
# The errors after which another attempt may succeed. All others are final.
TRANSIENT = (ChannelClosed, ChannelTimeout, PeerUnavailable, NoSocket, NoWorker, NotStored)


@dataclass
class _Queue:
    """The events that a round has yet to take, in their order."""

    entry: Entry
    events: deque[Event] = field(default_factory=deque)
    # when one that could not be stored is tried again
    again: float = 0.0
    # whether the round is taking the first of them
    taking: bool = False


class RoundRunner:
    """Feeds events to rounds and does the actions that they return. Used by one thread."""

    def __init__(
        self,
        register: Register,
        engines: Engines,
        send: Callable[[RoundMessage], None],
        clock: Callable[[], float],
    ) -> None:
        self._register, self._engines = register, engines
        self._send, self._clock = send, clock
        self._bounded_log = logs.BoundedLog(clock)
        # `Register.commit` does the others
        self._effects: dict[Effect, Callable[[Entry], None]] = {
            Effect.LOG: self._log,
            Effect.PREPARE: self._prepare,
            Effect.CHECK: self._check,
            Effect.START: self._start,
            Effect.DROP_SESSION: lambda entry: self._engine(entry).drop(),
            Effect.DROP_UPLOADS: self._drop_uploads,
            Effect.ANSWER: self._answer,
        }
        self._queues: dict[str, _Queue] = {}

    def take(self, entry: Entry, event: Event) -> None:
        """Let a round take an event, store the round, and do the actions that it returns.

        While it cannot be stored, the event and later ones of the same round wait. A message of the
        peer that cannot come now is logged, and fails a live round.
        """
        queue = self._queue(entry)
        queue.events.append(event)
        self._go_on(queue)

    def idle(self, entry: Entry) -> bool:
        return not self._queue(entry).events

    def tick(self) -> None:
        """Try again to store what could not be stored."""
        for queue in list(self._queues.values()):
            self._go_on(queue)
        self._queues = {name: queue for name, queue in self._queues.items() if queue.events}

    def feed(self, entry: Entry, events: Sequence[Event], rows: Sequence[Row] = ()) -> None:
        """Let a round take events and the rows of its clients' shares, all or nothing.

        Raises NotStored if they cannot be stored, and LocalProtocolError for a local event that
        cannot come now; then nothing has changed.
        """
        queue = self._queue(entry)
        self._feed(queue, events, rows)
        self._go_on(queue)

    def _queue(self, entry: Entry) -> _Queue:
        return self._queues.setdefault(entry.server_round.round_id, _Queue(entry))

    def _go_on(self, queue: _Queue) -> None:
        """Let a round take its waiting events, unless it is too early to try again."""
        if queue.taking or self._clock() < queue.again:
            return
        queue.taking = True
        about = queue.entry.server_round.about
        try:
            while queue.events:
                try:
                    self._feed(queue, [queue.events[0]])
                except NotStored as error:
                    queue.again = self._clock() + AGAIN_S
                    told = about | {"waiting": len(queue.events), "reason": str(error)}
                    self._bounded_log.event("not-stored", "disk", logging.ERROR, **told)
                    return
                except PeerProtocolError as error:
                    self._bounded_log.event("message-refused", "peer", **about, reason=str(error))
                    if queue.entry.server_round.live:
                        queue.events.insert(1, Failure(error.code, str(error)))
                except Exception:
                    queue.events.popleft()
                    raise
                queue.events.popleft()
        finally:
            queue.taking = False

    def _feed(self, queue: _Queue, events: Sequence[Event], rows: Sequence[Row] = ()) -> None:
        entry = queue.entry
        changed, actions = fold(entry.server_round, events, self._clock())
        self._register.commit(entry, changed, actions, rows)
        for action in actions:
            try:
                if not isinstance(action, Effect):
                    self._send(action)
                elif action in self._effects:
                    self._effects[action](entry)
            except Exception as error:
                event = event_of(error)
                if entry.server_round.live:
                    # before the events that came meanwhile; the present one is still the first
                    queue.events.insert(1 if queue.taking else 0, event)
                    return
                # go on with the other actions, such as deleting uploads
                name = action if isinstance(action, Effect) else type(action).__name__
                told = entry.server_round.about | {"action": name, "reason": event.reason}
                logs.event("action-failed", logging.ERROR, **told)

    def _engine(self, entry: Entry) -> Engine:
        return self._engines.of(entry.server_round.cohort)

    def _prepare(self, entry: Entry) -> None:
        """Let the engine prepare the round, at both servers, while the clients train."""
        self._engine(entry).prepare(entry.server_round.session, entry.server_round.params)

    def _check(self, entry: Entry) -> None:
        """Let the engine check clients, or toss for it first, at both servers."""
        here, spool, engine = entry.server_round, entry.spool, self._engine(entry)
        clients, params, shape = here.under_check, here.params, here.params.form.dealing
        coin = here.check.coin if here.check else b""
        self._require_session(entry)
        examine = spool.examination(clients, here.level)
        if shape and here.folding:
            # a check must not take longer than run_s
            limit_s = min(params.deadline_s, here.limits.run_s / 2)
            if here.level:
                limit_s = max(0.0, here.until - self._clock())
            if engine.prepares:
                done, total = engine.progress
                logs.event("waiting-for-material", **here.about, done=done, total=total)
            engine.bind(self._input(entry), Folds(clients, fold_words(shape)), limit_s, examine)
        elif shape and not coin:
            engine.toss(here.tokens_of)
        elif shape:
            # before anything is opened under the coin
            names = [here.names[key] for key in clients]
            mark = logs.fingerprint("coin", coin)
            logs.event("check-begun", **here.about, clients=names, coin=mark)
            halves = [spool.dealing(key) for key in clients]
            engine.check_dealings(shape, halves, coin, examine, spool.noting(clients))
        else:
            uploads = [spool.get(key) for key in clients]
            weights = [params.method.weighing.one(key) for key in clients]
            opening = bytes.fromhex(here.toss_opening)
            engine.check_values(RoundInput(params, uploads, weights, opening=opening), examine)

    def _start(self, entry: Entry) -> None:
        here, engine = entry.server_round, self._engine(entry)
        if here.new_session:
            engine.prepare(here.session, here.params)
        self._require_session(entry)
        engine.start(self._input(entry), entry.spool.examination(here.included, here.level))

    def _input(self, entry: Entry) -> RoundInput:
        """Return what the chosen clients of a round have sent, and what the method needs of it."""
        server_round, spool = entry.server_round, entry.spool
        included, audited = server_round.included, server_round.audited
        vote, path = server_round.level, bytes.fromhex(server_round.path)
        check = partial(entry.check_stored, server_round.state, server_round.sessions)
        return RoundInput(
            server_round.computed,
            [spool.get(client, vote) for client in included],
            server_round.params.method.weights_of(included),
            server_round.groups,
            bytes.fromhex(server_round.toss_opening),
            server_round.noise,
            [vote_masks(spool.masks(client), vote, path) for client in included] if audited else (),
            # of others the input goes to workers, also on other hosts
            check if audited else nothing,
        )

    def _require_session(self, entry: Entry) -> None:
        """Raise PeerUnavailable if the session is gone.

        The link may have broken while an event was stored.
        """
        if self._engine(entry).opened_session != entry.server_round.session:
            raise PeerUnavailable(
                "the session that was prepared is gone: the link broke; wait, for the servers "
                "make another"
            )

    def _drop_uploads(self, entry: Entry) -> None:
        entry.spool.drop()
        self._register.tidy()

    def _answer(self, entry: Entry) -> None:
        waiting, entry.when_opened = entry.when_opened, []
        for when_opened in waiting:
            self.answer(entry, when_opened)

    def answer(self, entry: Entry, when_opened: WhenOpened) -> None:
        """Tell whether a round was opened, even if it has ended since."""
        server_round = entry.server_round
        error = None if server_round.begun else from_code(server_round.code, server_round.reason)
        when_opened(server_round, error)

    def _log(self, entry: Entry) -> None:
        here, state, result = entry.server_round, entry.server_round.state, entry.result
        failed = state is State.FAILED
        why = {"code": here.code, "reason": here.reason}
        told: dict[str, Any] = here.about | {"number": here.number}
        if state is State.OPEN and here.repeats:
            told |= {"repeats": here.whom_it_repeats()}
        if state in (State.STARTING, State.RUNNING):
            session = logs.fingerprint("session", here.session)
            told |= {"attempt": here.attempt, "session": session}
        if state is State.QUEUED and here.reason:
            told |= {"setbacks": here.setbacks} | why
        if state in (State.RUNNING, State.PUBLISHED):
            included = [here.names[key] for key in here.included]
            told |= {"included": included, "left_out": here.left_out}
        if state is State.PUBLISHED:
            told |= {"cost": result.cost if result else {}}
            if result and result.unchanged_groups:
                told |= {"unchanged_groups": list(result.unchanged_groups)}
        if here.votes > 1 and state is not State.OPENING:
            told |= {"vote": here.level + 1, "votes": here.votes}
        if failed:
            told |= why | {"opened": here.opened, "left_out": here.left_out}
        logs.event(f"round-{state}", logging.WARNING if failed else logging.INFO, **told)


def event_of(error: Exception) -> Failure | Interrupted:
    """Return the event for an error: final, or worth another attempt. Log a defect."""
    if not isinstance(error, SecureMedianError):
        logs.event("action-error", logging.ERROR, error)
        defect = f"a defect in this server, see its log: {type(error).__name__}"
        return Failure(LocalProtocolError.code, defect)
    kind = Interrupted if isinstance(error, TRANSIENT) else Failure
    return kind(error.code, str(error))
