"""The loop that runs rounds: it opens a round, watches it to its end, and keeps its result.

`Hooks` holds what differs: an unattended run logs and tries again, a framework leads its rounds
itself, a measurement plays the clients between opening and end.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from securemedian.clients.connection import pauses
from securemedian.common.status import RoundStatus
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import (
    NotStored,
    PeerUnavailable,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.rounds.params import RoundParams

T = TypeVar("T")

# the errors that may pass: a server is away, has no room or still has another round
PASSING = (ServerUnreachable, PeerUnavailable, NotStored, RoundBusy)
# the longest part of an error's text in the reason of an aborted round
_REASON_CHARS = 200


def nothing(*_: Any) -> None:
    """Do nothing."""


def _unasked(number: int) -> dict[str, Any]:
    raise NotImplementedError("these hooks ask for no rounds: open them with Rounds.open")


def stop(status: RoundStatus, seconds: float, attempt: int) -> bool:
    """Raise RoundFailed with the servers' reason."""
    raise RoundFailed(f"round {status.number}: {status.reason}")


@dataclass(frozen=True)
class Hooks:
    """The functions in which programs that run rounds differ. An error in one ends the loop."""

    # returns the arguments of `Coordinator.open_round` for a round, counted from 1
    ask: Callable[[int], Mapping[str, Any]] = field(default=_unasked, repr=False)
    # gets the id of a round that is open: clients of this process submit here
    opened: Callable[[str], object] = nothing
    # gets each status of a round that has not ended
    show: Callable[[RoundStatus], object] = nothing
    # returns whether an open round is to be closed before its deadline
    ready: Callable[[RoundStatus], bool | None] = nothing
    # gets the last status of a published round, and the seconds that it took
    keep: Callable[[RoundStatus, float], object] = nothing
    # gets the same of a failed round, and which attempt that was; returns whether to try again
    # (True) or to go on to the next round (False)
    lost: Callable[[RoundStatus, float, int], bool] = stop
    # is called at every look: raises if a process has died or the user has interrupted
    alive: Callable[[], object] = nothing
    # gets lines for people
    report: Callable[[str], object] = nothing


@dataclass(frozen=True)
class Patience:
    """How long, and at which errors, a request is made again."""

    limit_s: float = 0.0
    passes: tuple[type[Exception], ...] = PASSING
    # the first and the longest wait between two attempts
    first_s: float = 1.0
    longest_s: float = 60.0


class Note:
    """The note of the round under way. It ends with the process."""

    _noted = "", ""

    def under_way(self) -> tuple[str, str]:
        """Return the request that asked for the round, and its id once it is known, or "" each."""
        return self._noted

    def begin(self, request: str, round_id: str = "") -> None:
        """Note that a round is under way."""
        self._noted = request, round_id

    def withdraw(self) -> None:
        """Note that no round is under way."""
        self._noted = "", ""


class Rounds:
    """Rounds that a coordinator runs, one at a time."""

    def __init__(
        self,
        coordinator: Coordinator,
        hooks: Hooks | None = None,
        patience: Patience | None = None,
        note: Note | None = None,
        poll_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Take what differs; `poll_s` is the time between two looks (default: configuration)."""
        self._coordinator, self._hooks = coordinator, hooks or Hooks()
        self._patience, self._note = patience or Patience(), note or Note()
        self._poll_s = coordinator.config.poll_interval_s if poll_s is None else poll_s
        self._sleep = sleep

    def run(self, count: int, done: int = 0) -> None:
        """Run the rounds after the first `done` until `count` are over."""
        for number in range(done + 1, count + 1):
            attempt = 1
            while self._failed(number, attempt):
                attempt += 1

    def _failed(self, number: int, attempt: int) -> bool:
        """Run a round once, and return whether to try again."""
        begun = time.monotonic()
        round_id = self._note.under_way()[1] or self._open_for(number)
        status = self.end(round_id)
        seconds = time.monotonic() - begun
        if status.state == "published":
            # an error leaves the note, so that the next call keeps the result
            self._hooks.keep(status, seconds)
            self._note.withdraw()
            return False
        try:
            return self._hooks.lost(status, seconds, attempt)
        finally:
            self._note.withdraw()

    def _open_for(self, number: int) -> str:
        """Open a round, and let the hook `opened` play in it; an error there aborts it."""
        round_id = self.open(**self._hooks.ask(number))
        try:
            self._hooks.opened(round_id)
        except SecureMedianError as error:
            # this fails, too, if the servers are what is wrong
            with suppress(SecureMedianError):
                self._coordinator.abort_round(round_id, str(error)[:_REASON_CHARS])
            raise
        return round_id

    def open(self, params: RoundParams, model: Any = None, **options: Any) -> str:
        """Open a round as `Coordinator.open_round` does, however often that must be asked for.

        A request without an answer is repeated, and S0 answers with the same round. A request that
        S0 has refused is not repeated: the next attempt is another one.
        """

        def ask() -> str:
            request = self._note.under_way()[0] or os.urandom(16).hex()
            self._note.begin(request)
            try:
                round_id = self._coordinator.open_round(params, model, request=request, **options)
            except ServerUnreachable:
                raise
            except SecureMedianError:
                self._note.withdraw()
                raise
            self._note.begin(request, round_id)
            return round_id

        return self.patiently(ask)

    def end(self, round_id: str) -> RoundStatus:
        """Wait for the end of a round, close it when `ready` says so, and return its last status.

        A round that the servers have forgotten counts as failed.
        """
        closed = False
        # bounded: the servers end every round within its limits
        while True:
            self._hooks.alive()
            try:
                status = self.patiently(lambda: self._coordinator.status(round_id, 0.0))
            except UnknownRound as error:
                return RoundStatus(round_id, state="failed", reason=str(error))
            if status.ended:
                return status
            self._hooks.show(status)
            if not closed and status.state == "open" and self._hooks.ready(status):
                closed = True
                # it may close by itself at this moment
                with suppress(RoundClosed):
                    self.patiently(lambda: self._coordinator.close_round(round_id, 0.0))
                    uploads = len(status.complete)
                    self._hooks.report(
                        f"round {round_id} is closed: {uploads} uploads are complete"
                    )
            self._sleep(self._poll_s)

    def patiently(self, act: Callable[[], T]) -> T:
        """Return what `act` returns, and try again while it meets an error that may pass.

        Raises that error after the limit of the patience.
        """
        patience, report = self._patience, self._hooks.report
        deadline, said = time.monotonic() + patience.limit_s, ""
        for wait_s in pauses(patience.first_s, patience.longest_s):
            self._hooks.alive()
            try:
                found = act()
                break
            except patience.passes as error:
                # a round that is forgotten stays so
                if not patience.limit_s or isinstance(error, UnknownRound):
                    raise
                if time.monotonic() > deadline:
                    raise type(error)(f"{error} (waited for {patience.limit_s:g} s)") from error
                if str(error) != said:
                    report(f"{error}: trying again")
                said = str(error)
                self._sleep(wait_s)
        if said:
            report("going on")
        return found
