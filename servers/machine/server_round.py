"""A round at one server: it takes events and says what to do, as its `table` has it."""

import copy
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from securemedian.common.receipts import Receipt
from securemedian.common.states import State
from securemedian.mpc.errors import (
    ChannelTimeout,
    LocalProtocolError,
    PeerProtocolError,
    PeerUnavailable,
    cut,
)
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.servers.machine import events
from securemedian.servers.machine.conditions import obstacle
from securemedian.servers.machine.selection import RoundSelection
from securemedian.servers.machine.table import LATE, TABLE
from securemedian.servers.network import control
from securemedian.servers.network.control import SHA256_BYTES

# by the state of S0, the states in which S1 may be when they resynchronise
BESIDE: dict[str, tuple[str, ...]] = {
    State.OPEN: (State.OPEN,),
    State.CLOSING: (State.OPEN, State.CHECKING, State.QUEUED),
    State.CHECKING: (State.CHECKING, State.QUEUED),
    State.QUEUED: (State.CHECKING, State.QUEUED, State.RUNNING),
    State.RUNNING: (State.QUEUED, State.RUNNING, State.PUBLISHED),
    State.PUBLISHED: (State.RUNNING,),
}

# The longest wait before another attempt.
MOST_WAIT_S = 60.0


class ServerRound(RoundSelection):
    """A round at one server, which takes events and says what to do."""

    def awaits_turn(self, now: float) -> bool:
        """Return whether S0 may give the round a turn, if S1 is linked and the resource is free."""
        if self.party == 1 or not self.live or now < self.retry_at:
            return False
        return not self.resuming if self.adrift else self.next_use is not None

    @property
    def use(self) -> events.Use | None:
        """The resource that the round uses now."""
        if self.under_check:
            return self._use_of(self.under_check)
        runs = self.state is State.RUNNING and not self.computed_here
        return events.Use.PROTOCOL if runs or self.state is State.STARTING else None

    @property
    def next_use(self) -> events.Use | None:
        """The resource that the next turn needs; None while the servers resynchronise."""
        if self.adrift or self.state not in (State.OPEN, State.CHECKING, State.QUEUED):
            return None
        if unchecked := self.unchecked():
            return self._use_of(unchecked)
        return events.Use.PROTOCOL if self.state is State.QUEUED else None

    def _use_of(self, clients: Sequence[str]) -> events.Use:
        if self.may_fold(clients):
            return events.Use.FOLDS
        return events.Use.CHECK if self.dealt else events.Use.PROTOCOL

    def told_again(self) -> control.RoundMessage | None:
        """Return how a round has ended, as S0 repeats it on a new link: S1 may not know it."""
        kinds = {State.PUBLISHED: control.Resume, State.FAILED: control.Failed}
        if self.party == 1 or self.state not in kinds:
            return None
        return self._message(kinds[self.state], events.Unlinked(""))

    def after(
        self, came: Iterable[events.Event], now: float
    ) -> tuple["ServerRound", list[events.Action]]:
        """Return the round as the events leave it, and the actions to do, in order.

        This round stays as it is. Raises what `handle` raises.
        """
        made = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict | set):
                setattr(made, name, value.copy())
        return made, [action for event in came for action in made.handle(event, now)]

    def handle(self, event: events.Event, now: float) -> list[events.Action]:
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
            raise (
                PeerProtocolError(what)
                if isinstance(event, control.RoundMessage)
                else LocalProtocolError(what)
            )
        was_adrift, was_checking = self.adrift, bool(self.under_check)
        self.note(event, now)
        line = next(line for line in TABLE[self.party][pair] if line.when(self, event))
        if self.live and line.to is State.FAILED and (cause := obstacle(self, event)):
            self.code, self.reason = cut(cause.code), cut(cause.reason)
        if control.Check in line.actions:
            self.under_check = self.unchecked()
            self.coin = b"" if self.folding else self.coins.get(self.under_check[0], b"")
        if line.to is not self.state:
            self._enter(line.to, now)
        elif self.state is not State.OPEN and (
            isinstance(event, control.Resume) or was_checking != bool(self.under_check)
        ):
            # what it waits for begins only now
            self._limit(now)
        return [
            action if isinstance(action, events.Effect) else self._message(action, event)
            for action in line.actions
            if not (was_adrift and self.adrift and action in events.OF_A_LINK)
        ]

    def _is_of_another_link(self, event: events.Event) -> bool:
        """Return whether a message is from before the servers have resynchronised."""
        if self.party == 0 and isinstance(event, control.Resume) and self.live:
            return not self.resuming or event.session != self.session
        # S1 asks to be asked once more
        anew = self.resuming and isinstance(event, control.Again) and event.attempt == 0
        return self.adrift and isinstance(event, events.OF_A_LINK) and not anew

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

    def _message(
        self, kind: type[control.RoundMessage], event: events.Event
    ) -> control.RoundMessage:
        """Return the message of this kind that this server sends at `event`."""
        if kind is control.Open:
            return replace(self.asked, session=self.session, new_session=self.new_session)
        if kind is control.Opened:
            return control.Opened(self.round_id, self.session, self.spent, self.runs)
        if kind is control.Resume:
            return control.Resume(
                self.round_id,
                self.session,
                self.state,
                self.attempt,
                self._signature(),
                self._held(),
                sorted(self.dealt_here),
                sorted(self.passed),
                sorted(self.failed | self.unfolded.keys()),
                {
                    key: coin + self.tokens.get(key, bytes(SHA256_BYTES))
                    for key, coin in sorted(self.coins.items())
                },
            )
        if kind is control.Dealt and isinstance(event, events.DealingStored):
            return control.Dealt(self.round_id, event.client)
        if kind is control.Uploaded and isinstance(event, events.Stored):
            return control.Uploaded(self.round_id, event.client, self.told(event.digest))
        if kind is control.Check:
            return control.Check(self.round_id, self.under_check, self.coin)
        if kind is control.Verdicts and isinstance(event, events.CheckEnded):
            return control.Verdicts(self.round_id, event.clients, event.failed)
        if kind is control.Close or kind is control.Held:
            return kind(self.round_id, self._held())
        if kind is control.Compute:
            return control.Compute(
                self.round_id, self.digest, self.attempt, self.session, self.new_session
            )
        if kind is control.Ready:
            return control.Ready(self.round_id, self.attempt)
        if kind is control.Done:
            return control.Done(self.round_id, self.attempt, self._signature())
        if kind is control.Again:
            # an audited round may be checked again after a run
            attempt = 0 if self.state is State.CHECKING else self.attempt
            return control.Again(
                self.round_id, attempt, self.code, cut(f"s{self.party}: {self.reason}")
            )
        if kind is control.Failed:
            return control.Failed(self.round_id, self.code, cut(f"s{self.party}: {self.reason}"))
        return kind(self.round_id)

    def _held(self) -> dict[str, bytes]:
        return {key: self.told(digest) for key, digest in sorted(self.here.items())}

    def _signature(self) -> bytes:
        """Return this server's signature of its record, if it has its result."""
        return self.receipt.signatures[f"s{self.party}"] if self.receipt else b""

    # What events change before the conditions of the table are evaluated

    def note(self, event: events.Event, now: float) -> None:
        """Note what an event says, before the conditions of the table are evaluated."""
        match event:
            case events.DealingStored():
                self.dealt_here[event.client] = event.digest
            case events.Stored():
                self.here[event.client] = event.digest
            case events.Declined():
                self.declined = self.declined | {event.client: event.reason}
                self.leave_out_early()
            # only of listed clients: the other server could invent any number of others
            case control.Dealt():
                self.dealt_there |= {event.client} & self.names.keys()
            case control.Uploaded():
                self._note_there({**self.there, event.client: event.digest})
            case control.Close() if self.ran or self.values_checked:
                self.discord = "s0 closes a round that is checked, or has run already"
            case control.Close() | control.Held():
                self._note_held(event.held)
                self.choose()
            case control.Opened():
                self.spent = max(self.spent, event.spent)
                self.runs = min(self.runs, event.runs)
            case control.Check() if self.may_check(event.clients, event.coin):
                self.under_check = event.clients
                self._keep_coin(event.coin)
            case control.Check():
                self.discord = "s0 asks to check clients that cannot be checked now"
            case events.Tossed():
                self._keep_coin(event.coin)
                self.tokens |= {
                    key: event.tokens[SHA256_BYTES * at : SHA256_BYTES * (at + 1)]
                    for at, key in enumerate(self.under_check if event.tokens else [])
                }
            case control.Verdicts() if (
                event.clients == self.under_check and self.failed_there is None
            ):
                self.failed_there = event.failed
                self.judge()
            case control.Verdicts():
                self.discord = "s1 has checked other clients than it was asked to check"
            case events.CheckEnded():
                self.failed_here, self.silent = event.failed, event.silent
                self.judge()
            case events.Failure() if event.deviation:
                self.deviation = dict(event.deviation)
                # also of a round that has failed before
                self.code, self.reason = cut(event.code), cut(event.reason)
            case events.Computed():
                self.computed_here, self.receipt = True, event.receipt
                self._keep_signed(event.receipt)
                self._countersign()
                if self.party == 1:
                    # S0 may publish, so that only S0 can end this attempt
                    self.deadline = now + self.limits.resume_s
            case control.Done() if event.attempt == self.attempt:
                self._note_vouched(event.signature)
            case control.Compute() if event.attempt <= self.attempt:
                self.discord = "s0 asks for a run of the protocol that has been before"
            case control.Compute():
                self.attempt = event.attempt
                self.session, self.new_session = event.session, event.new_session
            case _:
                self._note_link(event, now)

    def _note_link(self, event: events.Event, now: float) -> None:
        """Note what an event says of the link and of what has broken off."""
        match event:
            case control.Open():
                self.session, self.new_session = event.session, event.new_session
                self.adrift = False
            case events.Turn():
                self.session, self.new_session = event.session, event.new_session
                if event.new_session and self.audited and self.state is State.QUEUED:
                    # what both are bound to is gone with the session, and S1 has to prepare another
                    self.drift(now)
                self.adrift = self.adrift and self.state is not State.OPENING
                self.resuming = self.adrift
                if self.state is not State.OPEN:
                    self.deadline = now + self.limits.answer_s
            case control.Resume():
                if self.party == 1:
                    self.session, self.new_session = event.session, True
                if self.live:
                    self._note_resume(event, now)
            case events.Unlinked():
                runs = self.state in (State.STARTING, State.RUNNING) and not self.computed_here
                # a check of values has opened verdicts, perhaps, and its repetition opens others
                if runs or (self.under_check and not self.dealt):
                    self.set_back(PeerUnavailable.code, event.reason, now)
                self.drift(now)
            case events.Interrupted():
                self._note_break(event.code, event.reason, now)
            case control.Again() if event.attempt == 0:
                # S1 has not been asked to run the protocol, and is adrift
                self.set_back(event.code, event.reason, now)
                self.drift(now)
            case control.Again() if event.attempt == self.attempt:
                self.set_back(event.code, event.reason, now)
            case events.Overdue():
                self._note_overdue(now)

    def _note_overdue(self, now: float) -> None:
        if self.state in (State.OPENING, State.OPEN) and self.party == 0:
            return
        if self.party == 0:
            self.abandoned = self.adrift and not self.resuming
        else:
            self.abandoned = self.computed_here or self.state is not State.RUNNING
        if self.abandoned:
            return
        reason = f"round {self.round_id} was {self.state} for longer than its limit"
        self._note_break(ChannelTimeout.code, reason, now)
        if self.computed_here:
            self.drift(now)

    def _note_break(self, code: str, reason: str, now: float) -> None:
        """Note that what was under way has broken off, if there was anything."""
        waits = self.computed_here or self.state is State.QUEUED
        if (self.adrift or waits) and not self.resuming:
            return
        self.set_back(code, reason, now)
        if self.state not in (State.STARTING, State.RUNNING):
            self.drift(now)

    def _note_resume(self, said: control.Resume, now: float) -> None:
        """Go on from the earlier of the two servers' states."""
        leader, follower = (self, said) if self.party == 0 else (said, self)
        if follower.state not in BESIDE.get(leader.state, ()):
            self.discord = (
                f"s0 is {leader.state} where s1 is {follower.state}: "
                "the state folder of one of them is not its latest"
            )
            return
        coins = {key: coin[:SEED_BYTES] for key, coin in said.coins.items()}
        if any(self.coins.get(key, coin) != coin for key, coin in coins.items()):
            self.discord = "the two servers have tossed differently for the same client"
            return
        # SECURITY: otherwise the other server could choose one that suits a client that helps it
        unknown = {key: coins[key] for key in coins.keys() & self.dealt_here.keys() - self.coins}
        if any(said.coins[key][SEED_BYTES:] != self.token(key, unknown[key]) for key in unknown):
            self.discord = f"s{1 - self.party} names a coin that s{self.party} has not tossed"
            return
        self.computed_there = False
        if said.signature and said.attempt == self.attempt:
            self._note_vouched(said.signature)
        if self.party == 0 and self.state is State.RUNNING and not self.computed_there:
            self.set_back(PeerUnavailable.code, "s1 has lost its run of the protocol", now)
        # SECURITY: it may be made again, or of other clients, and opens others if S0 deviates
        if self.party == 1 and self.values_checked and not self.ran:
            self.set_back(PeerUnavailable.code, "s0 has lost a check of uploads", now)
        self.drift(now)
        self.adrift = False
        self.dealt_there = set(said.dealt) & self.names.keys()
        self._note_held(said.held)
        self.coins |= unknown
        if self.party == 1 and not self.ran:
            # verdicts that S0 does not have are found again
            self.passed &= set(said.passed)
            self.failed &= set(said.failed)
            self.unfolded = {k: why for k, why in self.unfolded.items() if k in said.failed}
            if self.state is State.CHECKING:
                self.choose()

    def _note_held(self, held: Mapping[str, bytes]) -> None:
        """Note all uploads that the other server holds."""
        self._note_there(held)
        self.unlisted = sorted(held.keys() - self.names.keys())

    def _note_there(self, held: Mapping[str, bytes]) -> None:
        self.there = {key: held[key] for key in held.keys() & self.names.keys()}
        if self.dealt:
            # nobody uploads before its whole dealing is stored
            self.dealt_there |= self.there.keys()

    def _note_vouched(self, signature: bytes) -> None:
        """Note that the other server has its result, and what it has signed."""
        self.computed_there, self.vouched = True, signature
        self._countersign()

    def _countersign(self) -> None:
        """Add the other server's signature to the record, once both are there."""
        if self.receipt and self.computed_there:
            self.receipt = self.receipt.with_signature(f"s{1 - self.party}", self.vouched)

    def _keep_signed(self, receipt: Receipt) -> None:
        """Note the first record that this server signs for the round, the only one it may sign.

        SECURITY: two of them, and a corrupt server could give each client another result.
        """
        digest = hashlib.sha256(receipt.encoded).hexdigest()
        if digest != (self.signed or digest):
            self.discord = f"s{self.party} has signed another record of this round before"
        self.signed = self.signed or digest

    def _keep_coin(self, coin: bytes) -> None:
        """Note what was tossed for the check that is under way."""
        self.coin = coin
        if coin:
            self.coins |= dict.fromkeys(self.under_check, coin)

    def drift(self, now: float) -> None:
        """Forget what is under way, but for verdicts and coins."""
        if not self.adrift:
            self.away_until = now + self.limits.resume_s
        self.adrift, self.resuming = True, False
        self.under_check, self.failed_here, self.failed_there = [], None, None
        self.folded = []
        if self.state is not State.OPEN:
            self.deadline = self.away_until

    def set_back(self, code: str, reason: str, now: float) -> None:
        """Note why something has broken off, and when it may be tried again."""
        self.setbacks += 1
        wait = self.limits.retry_wait_s * 2.0 ** min(self.setbacks - 1, 30)
        self.retry_at = now + min(wait, MOST_WAIT_S)
        self.code, self.reason = cut(code), cut(reason)
