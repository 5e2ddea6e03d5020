"""A round at one server: it takes events and says what to do, as its `table` has it."""

import copy
from collections.abc import Iterable
from dataclasses import replace

from securemedian.common.states import State
from securemedian.mpc.errors import LocalProtocolError, PeerProtocolError, cut
from securemedian.servers.machine.conditions import obstacle
from securemedian.servers.machine.events import (
    OF_A_LINK,
    Action,
    CheckEnded,
    DealingStored,
    Effect,
    Event,
    Stored,
    Unlinked,
    Use,
    is_message,
)
from securemedian.servers.machine.notes import RoundNotes
from securemedian.servers.machine.table import LATE, TABLE
from securemedian.servers.network.control import (
    Again,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Failed,
    Held,
    Open,
    Opened,
    Ready,
    Resume,
    RoundMessage,
    Uploaded,
    Verdicts,
)


class ServerRound(RoundNotes):
    """A round at one server, which takes events and says what to do."""

    def awaits_turn(self, now: float) -> bool:
        """Return whether S0 may give the round a turn, if S1 is linked and the resource is free."""
        if self.party == 1 or not self.live or now < self.retry_at:
            return False
        return not self.resuming if self.adrift else self.next_use is not None

    @property
    def use(self) -> Use | None:
        """The resource that the round uses now."""
        if self.under_check:
            return self._use_of_checks
        runs = self.state is State.RUNNING and not self.computed_here
        return Use.PROTOCOL if runs or self.state is State.STARTING else None

    @property
    def next_use(self) -> Use | None:
        """The resource that the next turn needs; None while the servers resynchronise."""
        if self.adrift:
            return None
        if self.state is State.QUEUED:
            return Use.PROTOCOL
        checks = self.state in (State.OPEN, State.CHECKING) and self.unchecked()
        return self._use_of_checks if checks else None

    @property
    def _use_of_checks(self) -> Use:
        return Use.CHECK if self.dealt else Use.PROTOCOL

    def told_again(self) -> RoundMessage | None:
        """Return how a round has ended, as S0 repeats it on a new link: S1 may not know it."""
        kinds = {State.PUBLISHED: Resume, State.FAILED: Failed}
        if self.party == 1 or self.state not in kinds:
            return None
        return self._message(kinds[self.state], Unlinked(""))

    def after(self, events: Iterable[Event], now: float) -> tuple["ServerRound", list[Action]]:
        """Return the round as the events leave it, and the actions to do, in order.

        This round stays as it is. Raises what `handle` raises.
        """
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set):
                setattr(made, name, value.copy())
        return made, [action for event in events for action in made.handle(event, now)]

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take one event, and return the actions to do, in order.

        Raises PeerProtocolError or LocalProtocolError for an event that cannot come now; nothing
        has changed then.
        """
        pair = self.state, type(event)
        if pair in LATE[self.party] or self._is_of_another_link(event):
            return []
        if pair not in TABLE[self.party]:
            kind = type(event).__name__.lower()
            what = f"{kind!r} cannot come while round {self.round_id} is {self.state}"
            raise PeerProtocolError(what) if is_message(event) else LocalProtocolError(what)
        was_adrift, was_checking = self.adrift, bool(self.under_check)
        self.note(event, now)
        line = next(line for line in TABLE[self.party][pair] if line.when(self, event))
        if self.live and line.to is State.FAILED and (cause := obstacle(self, event)):
            self.code, self.reason = cut(cause.code), cut(cause.reason)
        if Check in line.actions:
            self.under_check = self.unchecked()
            self.coin = self.coins.get(self.under_check[0], b"")
        if line.to is not self.state:
            self._enter(line.to, now)
        elif self.state is not State.OPEN and (
            isinstance(event, Resume) or was_checking != bool(self.under_check)
        ):
            # what it waits for begins only now
            self._limit(now)
        return [
            action if isinstance(action, Effect) else self._message(action, event)
            for action in line.actions
            if not (was_adrift and self.adrift and action in OF_A_LINK)
        ]

    def _is_of_another_link(self, event: Event) -> bool:
        """Return whether a message is from before the servers have resynchronised."""
        if self.party == 0 and isinstance(event, Resume) and self.live:
            return not self.resuming or event.session != self.session
        # S1 asks to be asked once more
        anew = self.resuming and isinstance(event, Again) and event.attempt == 0
        return self.adrift and isinstance(event, OF_A_LINK) and not anew

    def _enter(self, state: State, now: float) -> None:
        self.state = state
        self.begun = self.begun or state is State.OPEN
        self.ran = self.ran or state is State.RUNNING
        if state is State.STARTING:
            self.attempt += 1
        if state in (State.QUEUED, State.RUNNING):
            self.computed_here = self.computed_there = False
            self.receipt, self.vouched = None, b""
        if state is State.PUBLISHED:
            self.code = self.reason = ""
        if not self.live:
            self.adrift = self.resuming = False
        self._limit(now)

    def _limit(self, now: float) -> None:
        """Let the time limit of the present state begin."""
        limits = self.limits
        seconds = {
            State.OPENING: limits.answer_s,
            State.OPEN: self.params.deadline_s,
            State.CLOSING: limits.answer_s,
            # before and after it, the round waits for its turn
            State.CHECKING: limits.run_s if self.under_check else float("inf"),
            State.STARTING: limits.answer_s,
            State.RUNNING: limits.run_s,
        }
        if self.party == 1:
            # S0 leads, and S1 only sees to it that it does not wait for ever
            seconds |= {
                State.OPEN: self.params.deadline_s + limits.resume_s,
                State.CHECKING: limits.resume_s,
                State.QUEUED: limits.resume_s,
            }
        self.deadline = now + seconds.get(self.state, float("inf"))
        if self.adrift:
            self.deadline = self.away_until

    def _message(self, kind: type[RoundMessage], event: Event) -> RoundMessage:
        """Return the message of this kind that this server sends at `event`."""
        if kind is Open:
            return replace(self.asked, session=self.session, new_session=self.new_session)
        if kind is Opened:
            return Opened(self.round_id, self.session)
        if kind is Resume:
            return Resume(
                self.round_id,
                self.session,
                self.state,
                self.attempt,
                self._signature(),
                self._held(),
                sorted(self.dealt_here),
                sorted(self.passed),
                sorted(self.failed),
                dict(sorted(self.coins.items())),
            )
        if kind is Dealt and isinstance(event, DealingStored):
            return Dealt(self.round_id, event.client)
        if kind is Uploaded and isinstance(event, Stored):
            return Uploaded(self.round_id, event.client, self.told(event.digest))
        if kind is Check:
            return Check(self.round_id, self.under_check, self.coin)
        if kind is Verdicts and isinstance(event, CheckEnded):
            return Verdicts(self.round_id, event.clients, event.failed)
        if kind is Close or kind is Held:
            return kind(self.round_id, self._held())
        if kind is Compute:
            return Compute(self.round_id, self.digest, self.attempt, self.session, self.new_session)
        if kind is Ready:
            return Ready(self.round_id, self.attempt)
        if kind is Done:
            return Done(self.round_id, self.attempt, self._signature())
        if kind is Again:
            return Again(
                self.round_id, self.attempt, self.code, cut(f"s{self.party}: {self.reason}")
            )
        if kind is Failed:
            return Failed(self.round_id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.round_id)

    def _held(self) -> dict[str, bytes]:
        return {key: self.told(digest) for key, digest in sorted(self.here.items())}

    def _signature(self) -> bytes:
        """Return this server's signature of its record, if it has its result."""
        return self.receipt.signatures[f"s{self.party}"] if self.receipt else b""
