"""A client's later parts in a round of several votes: it votes on inside what was told before.

The clients of a round are those of its first vote. After each vote both servers tell the same
digits, and sign them in one record with all else that they agree on. A client then votes for the
next digits of its update, until the round ends.

SECURITY: a client asks both servers itself. It votes once after each vote, and only if both have
signed the same record. This must be of the round and the set of clients that it knows, of the next
level, and of all digits that it was told. Before its second vote it applies its policy to that set.
It keeps a vote before it sends it.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from securemedian.clients import outcomes
from securemedian.clients.folder import ENDED, Folder
from securemedian.clients.journal import Ballot, Journal, Upheld
from securemedian.clients.member import Member
from securemedian.common import keys, status
from securemedian.common.receipts import Receipt, Record, differences
from securemedian.common.versions import VOTE
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    DuplicateUpload,
    NotAllowed,
    NotStored,
    PeerProtocolError,
    PolicyRefused,
    ReceiptInvalid,
    RoundClosed,
    RoundFailed,
    ServerUnreachable,
    TooFewClients,
    UnknownRound,
)
from securemedian.mpc.protocols import wire

# raised where a server does not follow the protocol, or somebody else votes with this key
_WRONG = (PeerProtocolError, ReceiptInvalid, TooFewClients, BadUpload, DuplicateUpload)


class Voter:
    """Votes in the rounds of several votes in `journal`, whenever somebody waits.

    `admit` raises PolicyRefused unless this client votes on among those whom a record includes.
    `decline` tells both servers that it does not vote on, with a code of `status.DECLINED`.
    """

    def __init__(
        self,
        journal: Journal,
        member: Member,
        folder: Folder,
        admit: Callable[[str, Ballot, Record], None],
        decline: Callable[[str, str], None],
    ) -> None:
        self._journal, self._member, self._folder = journal, member, folder
        self._admit, self._decline = admit, decline
        # the round, vote and server of votes that are there
        self._sent: set[tuple[str, int, int]] = set()

    def tend(self) -> None:
        """Vote, and answer for votes, as long as both servers go on, and forget what has ended.

        Raises the `_WRONG` errors, after which this client takes no part in the round, and
        ConfigError if what must be remembered cannot be written.
        """
        for round_id in self._journal.upheld:
            try:
                with suppress(ServerUnreachable, NotStored):
                    while self._turn(round_id):
                        pass
            except (UnknownRound, RoundFailed):
                self._let_go(round_id)
            except NotAllowed as error:
                self._member.report(f"round {round_id} goes on without this client: {error}")
                self._let_go(round_id)
            except PolicyRefused as error:
                self._member.report(f"round {round_id} ends, and has no result: {error}")
                self._decline(round_id, status.POLICY)
            except _WRONG:
                self._decline(round_id, status.SERVERS)
                raise

    def _turn(self, round_id: str) -> bool:
        """Do what both servers ask now, and return whether to look again at once.

        Each holds its answer for a while, until there is something to do.
        """
        upheld = self._journal.upheld.get(round_id)
        if not (upheld and (ballot := upheld.ballot)):
            return False
        self._send(round_id, upheld, ballot)
        own, said = ballot.path.votes, list[wire.Message]()
        for party in (0, 1):
            told = self._told(round_id, ballot, party)
            if told.fields["state"] in ENDED:
                self._let_go(round_id)
                return False
            if told.fields["level"] == own and not told.fields["asked"]:
                # one server may have the fold that the other lacks
                self._fold(round_id, upheld, ballot)
                return False
            said.append(told)
        levels = [told.fields["level"] for told in said]
        if levels == [own, own]:
            return self._fold(round_id, upheld, ballot)
        if levels != [own + 1, own + 1]:
            raise _contradiction(round_id, f"S0 and S1 are at the levels {levels}, not {own + 1},")
        after = self._after(round_id, ballot, said)
        slots, dealt = after.path.slots(after.words), self._folder.dealt(round_id, upheld)
        try:
            self._journal.vote(round_id, dealt.rotations(slots, own + 1), after)
        except ConfigError:
            # it makes each vote once
            self._folder.forget(round_id)
            raise
        self._member.report(f"round {round_id}: level {own + 2} of {upheld.shape.votes}")
        return True

    def _fold(self, round_id: str, upheld: Upheld, ballot: Ballot) -> bool:
        """Answer for the present vote where a server asks, and return whether that was done."""
        # SECURITY: masks that no server has would hide nothing
        return ballot.path.params.form.audited and self._folder.answer(round_id, upheld)

    def _send(self, round_id: str, upheld: Upheld, ballot: Ballot) -> None:
        """Send the present vote to each server that may lack it; `Sender` sends the first one."""
        path = ballot.path
        fields = {
            "round": round_id,
            "params": path.params.digest,
            "start": ballot.start,
            "form": "rotations",
            "level": path.votes,
            "path": path.digest,
        }
        for party in (0, 1) if path.votes else ():
            if (vote := (round_id, path.votes, party)) not in self._sent:
                # a server that has gone on has it, and one that has not yet is asked again
                with suppress(RoundClosed):
                    arrays = {"share": upheld.rotations}
                    self._member.ask("upload", fields, arrays, timeout_s=0.0, party=party)
                    self._sent.add(vote)

    def _told(self, round_id: str, ballot: Ballot, party: int) -> wire.Message:
        """Return what a server tells after the digits that this client knows."""
        values = party == self._member.source
        fields = {"round": round_id, "after": ballot.path.votes, "values": values}
        told = self._member.ask("level", fields, timeout_s=0.0, party=party)
        match told.fields:
            case {
                "state": str(),
                "level": int(),
                "record": bytes(),
                "signature": bytes(),
                "asked": bool(),
            }:
                return told
        raise _contradiction(round_id, f"S{party} does not say at which level it is")

    def _after(self, round_id: str, ballot: Ballot, said: Sequence[wire.Message]) -> Ballot:
        """Return where this client votes next, if both servers vouch for the same.

        Raises what is wrong with their records, and PolicyRefused.
        """
        member, party = self._member, self._member.source
        # each server's own signature fits one record alone
        encoded, signatures = said[0].fields["record"], [told.fields["signature"] for told in said]
        receipt = Receipt(encoded, dict(zip(keys.SERVERS, signatures, strict=True)))
        receipt.check((member.config.s0.signing_key, member.config.s1.signing_key))
        record, own, params = receipt.record, member.keys.public.decode(), ballot.path.params
        about = member.config.cohort, round_id, params, ballot.start, own
        outcomes.check_record(record, *about, VOTE)
        if own not in record.included:
            raise _contradiction(round_id, "S0 and S1 ask a client that they have left out")
        before = Record.decode(ballot.record) if ballot.record else record
        if changed := differences(replace(before, opened=record.opened), record):
            raise _contradiction(round_id, f"both servers have changed {changed}")
        path = ballot.path.with_last(said[party].arrays.get("digits", np.empty(0, np.uint64)))
        if path.digest != record.opened:
            raise _contradiction(round_id, f"S{party} tells other digits than both vouch for")
        after = replace(ballot, path=path, record=encoded)
        if not ballot.record:
            self._admit(round_id, after, record)
        return after

    def _let_go(self, round_id: str) -> None:
        self._journal.let_go(round_id)
        self._folder.forget(round_id)
        self._sent = {vote for vote in self._sent if vote[0] != round_id}


def _contradiction(round_id: str, what: str) -> PeerProtocolError:
    return PeerProtocolError(
        f"{what} in round {round_id}: a server does not tell the truth, and nothing was sent"
    )
