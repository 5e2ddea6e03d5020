"""The changes that an event makes to a round before the table's conditions are evaluated."""

import hashlib
from collections.abc import Mapping

from securemedian.common.receipts import Receipt
from securemedian.common.states import State
from securemedian.mpc.errors import ChannelTimeout, PeerUnavailable, cut
from securemedian.servers.machine.events import (
    CheckEnded,
    Computed,
    DealingStored,
    Event,
    Interrupted,
    Overdue,
    Stored,
    Tossed,
    Turn,
    Unlinked,
)
from securemedian.servers.machine.selection import RoundSelection
from securemedian.servers.network.control import (
    Again,
    Check,
    Close,
    Compute,
    Dealt,
    Done,
    Held,
    Open,
    Resume,
    Uploaded,
    Verdicts,
)

# by the state of S0, the states in which S1 may be when they resynchronise
BESIDE: dict[str, tuple[str, ...]] = {
    State.OPEN: (State.OPEN,),
    State.CLOSING: (State.OPEN, State.CHECKING, State.QUEUED),
    State.CHECKING: (State.CHECKING,),
    State.QUEUED: (State.CHECKING, State.QUEUED, State.RUNNING),
    State.RUNNING: (State.QUEUED, State.RUNNING, State.PUBLISHED),
    State.PUBLISHED: (State.RUNNING,),
}

# The longest wait before another attempt.
MOST_WAIT_S = 60.0


class RoundNotes(RoundSelection):
    """A round that takes over what events tell it."""

    def note(self, event: Event, now: float) -> None:
        """Note what an event says, before the conditions of the table are evaluated."""
        match event:
            case DealingStored():
                self.dealt_here[event.client] = event.digest
            case Stored():
                self.here[event.client] = event.digest
            # only of listed clients: the other server could invent any number of others
            case Dealt():
                self.dealt_there |= {event.client} & self.names.keys()
            case Uploaded():
                self._note_there({**self.there, event.client: event.digest})
            case Close() if self.ran:
                self.discord = "s0 closes a round that has run already"
            case Close() | Held():
                self._note_held(event.held)
                self.choose()
            case Check() if self.may_check(event.clients, event.coin):
                self.under_check = event.clients
                self._keep_coin(event.coin)
            case Check():
                self.discord = "s0 asks to check clients that cannot be checked now"
            case Tossed():
                self._keep_coin(event.coin)
            case Verdicts() if event.clients == self.under_check and self.failed_there is None:
                self.failed_there = event.failed
                self.judge()
            case Verdicts():
                self.discord = "s1 has checked other clients than it was asked to check"
            case CheckEnded():
                self.failed_here = event.failed
                self.judge()
            case Computed():
                self.computed_here, self.receipt = True, event.receipt
                self._keep_signed(event.receipt)
                self._countersign()
                if self.party == 1:
                    # S0 may publish, so that only S0 can end this attempt
                    self.deadline = now + self.limits.resume_s
            case Done() if event.attempt == self.attempt:
                self._note_vouched(event.signature)
            case Compute() if event.attempt <= self.attempt:
                self.discord = "s0 asks for a run of the protocol that has been before"
            case Compute():
                self.attempt = event.attempt
                self.session, self.new_session = event.session, event.new_session
            case _:
                self._note_link(event, now)

    def _note_link(self, event: Event, now: float) -> None:
        """Note what an event says of the link and of what has broken off."""
        match event:
            case Open():
                self.session, self.new_session = event.session, event.new_session
                self.adrift = False
            case Turn():
                self.session, self.new_session = event.session, event.new_session
                self.adrift = self.adrift and self.state is not State.OPENING
                self.resuming = self.adrift
                if self.state is not State.OPEN:
                    self.deadline = now + self.limits.answer_s
            case Resume():
                if self.party == 1:
                    self.session, self.new_session = event.session, True
                if self.live:
                    self._note_resume(event, now)
            case Unlinked():
                if self.state in (State.STARTING, State.RUNNING) and not self.computed_here:
                    self.set_back(PeerUnavailable.code, event.reason, now)
                self.drift(now)
            case Interrupted():
                self._note_break(event.code, event.reason, now)
            case Again() if event.attempt == 0:
                # S1 has not been asked to run the protocol, and is adrift
                self.set_back(event.code, event.reason, now)
                self.drift(now)
            case Again() if event.attempt == self.attempt:
                self.set_back(event.code, event.reason, now)
            case Overdue():
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

    def _note_resume(self, said: Resume, now: float) -> None:
        """Go on from the earlier of the two servers' states."""
        leader, follower = (self, said) if self.party == 0 else (said, self)
        if follower.state not in BESIDE.get(leader.state, ()):
            self.discord = (
                f"s0 is {leader.state} where s1 is {follower.state}: "
                "the state folder of one of them is not its latest"
            )
            return
        if any(self.coins.get(key, coin) != coin for key, coin in said.coins.items()):
            self.discord = "the two servers have tossed differently for the same client"
            return
        self.computed_there = False
        if said.signature and said.attempt == self.attempt:
            self._note_vouched(said.signature)
        if self.party == 0 and self.state is State.RUNNING and not self.computed_there:
            self.set_back(PeerUnavailable.code, "s1 has lost its run of the protocol", now)
        self.drift(now)
        self.adrift = False
        self.dealt_there = set(said.dealt) & self.names.keys()
        self._note_held(said.held)
        self.coins |= {key: said.coins[key] for key in said.coins.keys() & self.dealt_here.keys()}
        if self.party == 1 and not self.ran:
            # verdicts that S0 does not have are found again
            self.passed &= set(said.passed)
            self.failed &= set(said.failed)
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
        if self.state is not State.OPEN:
            self.deadline = self.away_until

    def set_back(self, code: str, reason: str, now: float) -> None:
        """Note why something has broken off, and when it may be tried again."""
        self.setbacks += 1
        wait = self.limits.retry_wait_s * 2.0 ** min(self.setbacks - 1, 30)
        self.retry_at = now + min(wait, MOST_WAIT_S)
        self.code, self.reason = cut(code), cut(reason)
