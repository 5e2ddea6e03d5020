"""A client's later parts in a round: it answers for its uploads, and votes on what was told before.

With security malicious, each server is bound to the sum that it computes with once the uploads are
closed, and both toss a coin. Each client folds its upload as the coin says, under the masks that it
has given the servers with the upload. It sends the fold of one server's half to the other server,
which compares the sum of them. It may be asked again, for another binding, until a server has
opened something.

The clients of a round of several votes are those of its first one. After each vote both servers
tell the same digits, and sign them in one record with all else that they agree on. A client then
votes for the next digits of its update, until the round ends, and folds each vote.

SECURITY: a client asks both servers itself. It folds once for a binding, and only if both servers
name the same binding, coin and set of clients, so that all who fold answer for one sum. A server
names them only to a client that is in the set. The masks are those of the vote and of the digits
before it.

SECURITY: it votes once after each vote, and only if both have signed the same record. This must be
of the round and the set of clients that it knows, of the next level, and of all digits that it was
told. Before its second vote it applies its policy to that set. It keeps a vote before it sends it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from securemedian.clients import outcomes
from securemedian.clients.journal import Ballot, Journal, Upheld
from securemedian.clients.upload import by_server
from securemedian.common import keys, status
from securemedian.common.receipts import Receipt, Record, differences
from securemedian.mpc.errors import (
    BadUpload,
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
from securemedian.mpc.protocols import dealing, wire
from securemedian.mpc.protocols.audit.binding import fold, vote_masks
from securemedian.mpc.protocols.dealing import DealtUpload, OwnDealing
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES
from securemedian.mpc.protocols.share import Upload, WordsUpload

if TYPE_CHECKING:
    from securemedian.clients.client import Client

# of a binding, its coin and the digest of its clients
_LENGTHS = [SESSION_BYTES, SEED_BYTES, 32]
# raised where a server does not follow the protocol, or somebody else votes with this key
_WRONG = (PeerProtocolError, ReceiptInvalid, TooFewClients, BadUpload, DuplicateUpload)


class Voter:
    """Folds and votes in the rounds of a client's `journal`, whenever somebody waits."""

    def __init__(self, journal: Journal, client: "Client") -> None:
        self._journal, self._client = journal, client
        # of each server the latest vote that it has: its round and number
        self._sent = [("", 0), ("", 0)]
        # of the round that was looked after last
        self._dealt: dict[str, OwnDealing] = {}

    def tend(self) -> None:
        """Do what both servers ask, as long as they go on, and forget rounds that have ended.

        Raises the `_WRONG` errors, after which this client takes no part in the round, and
        ConfigError if what must be remembered cannot be written.
        """
        for round_id in self._journal.upheld:
            try:
                with suppress(ServerUnreachable, NotStored):
                    while self._turn(round_id):
                        pass
            except (UnknownRound, RoundFailed, NotAllowed):
                # it has ended, or goes on without this client
                self._let_go(round_id)
            except RoundClosed as error:
                # another binding may come
                self._client.report(f"round {round_id}: {error}")
            except PolicyRefused as error:
                self._client.report(f"round {round_id} ends, and has no result: {error}")
            except _WRONG:
                self._client.decline(round_id, status.SERVERS)
                raise

    def _turn(self, round_id: str) -> bool:
        """Do what both servers ask now, and return whether to look again at once.

        In a round of several votes each holds its answer for a while, until it asks something.
        """
        upheld = self._journal.upheld[round_id]
        self._send(round_id, upheld)
        one, vote = self._told(round_id, upheld, 0), upheld.vote
        if one.fields["state"] in ("published", "failed"):
            self._let_go(round_id)
            return False
        asks = one.fields["binding"] and not one.fields["folded"]
        if one.fields["level"] == vote and not asks:
            return False
        other = self._told(round_id, upheld, 1)
        levels = [told.fields["level"] for told in (one, other)]
        if min(levels) < vote or max(levels) > vote + 1:
            raise _contradiction(round_id, f"S0 and S1 are at the levels {levels}")
        if upheld.ballot and min(levels) > vote:
            self._vote(round_id, upheld, self._after(round_id, upheld.ballot, (one, other)))
            return True
        return self._fold(round_id, upheld, one.fields, other.fields)

    def _told(self, round_id: str, upheld: Upheld, party: int) -> wire.Message:
        """Return what a server asks of this client, and the digits that it does not know yet."""
        values = party == self._client.source
        fields = {"round": round_id, "after": upheld.vote, "values": values}
        told = self._client.ask("bound", fields, timeout_s=0.0, party=party)
        match told.fields:
            case {
                "state": str(),
                "level": int(),
                "binding": bytes(binding),
                "coin": bytes(coin),
                "set": bytes(clients),
                "folded": bool(),
                "record": bytes(),
                "signature": bytes(),
            }:
                if not binding or [*map(len, (binding, coin, clients))] == _LENGTHS:
                    return told
        raise _contradiction(round_id, f"S{party} does not say what it is bound to")

    # Folds

    def _fold(
        self, round_id: str, upheld: Upheld, one: Mapping[str, Any], other: Mapping[str, Any]
    ) -> bool:
        """Send the folds for what both servers are bound to, if they say the same.

        S0 asks until it has its own, which it gets last. Return whether both lacked theirs: a
        server that always does must not hold this client up.

        SECURITY: of two folds with the same masks under two coins the difference is that of the
        client's shares. Without masks a fold would give them away.
        """
        binding, coin, before = one["binding"], one["coin"], upheld.before
        if not upheld.masks[0] or other["binding"] != binding or one["level"] != upheld.vote:
            # one of them has gone on
            return False
        for name, what in (
            ("level", "S0 and S1 name different levels"),
            ("coin", "S0 and S1 name different coins"),
            ("set", "S0 and S1 name different sets of clients"),
        ):
            if other[name] != one[name]:
                raise _contradiction(round_id, what)
        self._journal.note_fold(round_id, binding, coin + one["set"] + before)
        if not upheld.ballot:
            self._client.report(f"round {round_id}: answering for the upload")
        held, fields = self._held(round_id, upheld), {"round": round_id, "binding": binding}
        for party, said in ((1, other), (0, one)):
            if not said["folded"]:
                # the fold of the other server's half
                of = 1 - party
                masks = vote_masks(upheld.masks[of], upheld.vote, before)
                arrays = {"fold": fold(of, held[of], binding, coin, masks)}
                self._client.ask("folded", fields, arrays, timeout_s=0.0, party=party)
        return not (one["folded"] or other["folded"])

    def _held(self, round_id: str, upheld: Upheld) -> list[DealtUpload]:
        """Return what S0 and S1 hold of this client, made again."""
        shape, dealt = upheld.shape, self._own(round_id, upheld)
        rotations = WordsUpload(shape.rotations_layout, upheld.rotations)
        halves: tuple[Upload, Upload] = by_server(dealt.seeded, dealt.words, upheld.draw.index)
        return [DealtUpload(shape, half, rotations, upheld.vote) for half in halves]

    def _own(self, round_id: str, upheld: Upheld) -> OwnDealing:
        """Return the dealing of a round, made again once in this process."""
        if round_id not in self._dealt:
            self._dealt = {round_id: dealing.deal(upheld.shape, upheld.draw.entropy())}
        return self._dealt[round_id]

    # Votes

    def _vote(self, round_id: str, upheld: Upheld, after: Ballot) -> None:
        """Keep the next vote; the next turn sends it."""
        dealt, vote = self._own(round_id, upheld), after.path.votes
        # it makes each vote once, and is made again if this one cannot be kept
        self._dealt = {}
        self._journal.vote(round_id, dealt.rotations(after.path.slots(after.words), vote), after)
        self._dealt = {round_id: dealt}
        self._client.report(f"round {round_id}: level {vote + 1} of {upheld.shape.votes}")

    def _send(self, round_id: str, upheld: Upheld) -> None:
        """Send the present vote to each server that may lack it; `Sender` sends the first one."""
        if not (upheld.vote and (ballot := upheld.ballot)):
            return
        fields = {
            "round": round_id,
            "params": ballot.path.params.digest,
            "start": ballot.start,
            "form": "rotations",
            "level": upheld.vote,
            "path": upheld.before,
        }
        for party in (0, 1):
            if self._sent[party] != (vote := (round_id, upheld.vote)):
                # a server that has gone on has it, and one that has not yet is asked again
                with suppress(RoundClosed):
                    arrays = {"share": upheld.rotations}
                    self._client.ask("upload", fields, arrays, timeout_s=0.0, party=party)
                    self._sent[party] = vote

    def _after(self, round_id: str, ballot: Ballot, said: Sequence[wire.Message]) -> Ballot:
        """Return where this client votes next, if both servers vouch for the same.

        Raises what is wrong with their records, and PolicyRefused.
        """
        client, party = self._client, self._client.source
        # each server's own signature fits one record alone
        encoded, signatures = said[0].fields["record"], [told.fields["signature"] for told in said]
        receipt = Receipt(encoded, dict(zip(keys.SERVERS, signatures, strict=True)))
        receipt.check((client.config.s0.signing_key, client.config.s1.signing_key), vote=True)
        record, own, params = receipt.record, client.keys.public.decode(), ballot.path.params
        outcomes.check_record(record, client.config.cohort, round_id, params, ballot.start, own)
        if own not in record.included:
            raise _contradiction(round_id, "S0 and S1 ask a client that they have left out")
        before = Record.decode(ballot.record) if ballot.record else record
        if changed := differences(replace(before, opened=record.opened), record):
            raise _contradiction(round_id, f"both servers have changed {changed}")
        path = ballot.path.with_last(said[party].arrays.get("digits", np.empty(0, np.uint64)))
        if path.digest != record.opened:
            raise _contradiction(round_id, f"S{party} tells other digits than both vouch for")
        if not ballot.record:
            client.check_policy(round_id, params, 0.0)
        return replace(ballot, path=path, record=encoded)

    def _let_go(self, round_id: str) -> None:
        self._journal.let_go(round_id)
        self._dealt.pop(round_id, None)


def _contradiction(round_id: str, what: str) -> PeerProtocolError:
    return PeerProtocolError(
        f"{what} in round {round_id}: one of them does not tell the truth, and nothing was sent"
    )
