"""A client's second part in a round with security malicious: it answers for its upload.

Once the uploads are closed, each server is bound to the sum that it computes with, and both toss a
coin. Each client folds its upload as the coin says, under the masks that it has given the servers
with the upload. It sends the fold of one server's half to the other server, which compares the sum
of them. It may be asked again, for another binding, until a server has opened something.

SECURITY: a client folds once for a binding, and only if both servers name the same binding, coin
and set of clients, so that all who fold answer for one sum. A server names them only to a client
that is in the set. In a round of several votes it folds its present vote alone, under masks of that
vote and of the digits before it.
"""

from contextlib import suppress
from typing import Any

from securemedian.clients.journal import Journal, Upheld
from securemedian.clients.member import Member
from securemedian.clients.upload import by_server
from securemedian.mpc.errors import PeerProtocolError, RoundClosed, ServerUnreachable, UnknownRound
from securemedian.mpc.protocols import dealing
from securemedian.mpc.protocols.audit.binding import fold, vote_masks
from securemedian.mpc.protocols.dealing import DealtUpload, OwnDealing
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES
from securemedian.mpc.protocols.share import Upload, WordsUpload

ENDED = "published", "failed"
# of a binding, its coin and the digest of its clients
_LENGTHS = [SESSION_BYTES, SEED_BYTES, 32]


class Folder:
    """Answers the bindings of the audited rounds in `journal`, whenever somebody waits."""

    def __init__(self, journal: Journal, member: Member) -> None:
        self._journal, self._member = journal, member
        # of the round of several votes that was looked after last
        self._dealt: dict[str, OwnDealing] = {}

    def tend(self) -> None:
        """Answer what the servers ask now, and forget rounds that have ended.

        `Voter` looks after the rounds of several votes. Raises PeerProtocolError if the servers say
        different things, and ConfigError if what must be remembered cannot be written.
        """
        for round_id, upheld in self._journal.upheld.items():
            if upheld.ballot is None:
                with suppress(ServerUnreachable):
                    self._tend(round_id, upheld)

    def answer(self, round_id: str, upheld: Upheld) -> bool:
        """Answer for the present vote of a round, and return whether it was. Raises as `tend`."""
        one, other = (self._asked(round_id, party) for party in (0, 1))
        return bool(one["binding"]) and self._answer(round_id, upheld, one, other)

    def dealt(self, round_id: str, upheld: Upheld) -> OwnDealing:
        """Return the dealing of a round of several votes, made again once in this process."""
        if round_id not in self._dealt:
            self._dealt = {round_id: dealing.deal(upheld.shape, upheld.draw.entropy())}
        return self._dealt[round_id]

    def forget(self, round_id: str) -> None:
        """Forget the dealing of a round."""
        self._dealt.pop(round_id, None)

    def _tend(self, round_id: str, upheld: Upheld) -> None:
        try:
            said = self._asked(round_id, 0)
            if said["state"] in ENDED:
                self._journal.let_go(round_id)
            elif said["binding"]:
                self._answer(round_id, upheld, said, self._asked(round_id, 1))
        except UnknownRound:
            self._journal.let_go(round_id)
        except RoundClosed as error:
            # another binding may come
            self._member.report(f"round {round_id}: {error}")

    def _asked(self, round_id: str, party: int) -> dict[str, Any]:
        """Return what a server says that it is bound to."""
        said = self._member.ask("bound", {"round": round_id}, timeout_s=0.0, party=party).fields
        match said:
            case {
                "state": str(),
                "binding": bytes(binding),
                "coin": bytes(coin),
                "set": bytes(clients),
                "folded": bool(),
            }:
                if not binding or [*map(len, (binding, coin, clients))] == _LENGTHS:
                    return {"level": 0} | said
        raise PeerProtocolError(f"S{party} does not say what it is bound to in round {round_id}")

    def _answer(
        self, round_id: str, upheld: Upheld, one: dict[str, Any], other: dict[str, Any]
    ) -> bool:
        """Send the folds for what both servers are bound to, if they say the same.

        Return whether that was done.

        SECURITY: of two folds with the same masks under two coins the difference is that of the
        client's shares.
        """
        binding, coin = one["binding"], one["coin"]
        if other["binding"] != binding or (one["folded"] and other["folded"]):
            # one of them has gone on, or both have answers
            return False
        path = upheld.ballot.path if upheld.ballot else None
        vote, before = (path.votes, path.digest) if path else (0, b"")
        if one["level"] != vote:
            # this client has not voted there yet
            return False
        for name, what in (
            ("level", "S0 and S1 name different levels"),
            ("coin", "S0 and S1 name different coins"),
            ("set", "S0 and S1 name different sets of clients"),
        ):
            if other[name] != one[name]:
                raise PeerProtocolError(
                    f"{what} in round {round_id}: one of them does not tell the truth, and nothing "
                    "was sent"
                )
        self._journal.note_fold(round_id, binding, coin + one["set"] + before)
        if not path:
            self._member.report(f"round {round_id}: answering for the upload")
        held, fields = self._held(round_id, upheld, vote), {"round": round_id, "binding": binding}
        for party, said in enumerate((one, other)):
            if not said["folded"]:
                # the fold of the other server's half
                of = 1 - party
                masks = vote_masks(upheld.masks[of], vote, before)
                arrays = {"fold": fold(of, held[of], binding, coin, masks)}
                self._member.ask("folded", fields, arrays, timeout_s=0.0, party=party)
        return True

    def _held(self, round_id: str, upheld: Upheld, vote: int) -> list[DealtUpload]:
        """Return what S0 and S1 hold of this client, made again."""
        shape, draw = upheld.shape, upheld.draw
        dealt = self.dealt(round_id, upheld)
        if upheld.ballot is None:
            self.forget(round_id)
        rotations = WordsUpload(shape.rotations_layout, upheld.rotations)
        halves: tuple[Upload, Upload] = by_server(dealt.seeded, dealt.words, draw.index)
        return [DealtUpload(shape, half, rotations, vote) for half in halves]
