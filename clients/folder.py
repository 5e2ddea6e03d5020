"""A client's second part in a round with security malicious: it answers for its upload.

Once the uploads are closed, each server is bound to the sum that it computes with, and both toss a
coin. Each client folds its upload as the coin says, under the masks that it has given the servers
with the upload. It sends the fold of one server's half to the other server, which compares the sum
of them. It may be asked again, for another binding, until a server has opened something.

SECURITY: a client folds once for a binding, and only if both servers name the same binding, coin
and set of clients, so that all who fold answer for one sum. A server names them only to a client
that is in the set.
"""

from contextlib import suppress
from typing import Any

from securemedian.clients.journal import Journal, Upheld
from securemedian.clients.member import Member
from securemedian.clients.upload import by_server
from securemedian.mpc.errors import PeerProtocolError, RoundClosed, ServerUnreachable, UnknownRound
from securemedian.mpc.protocols import dealing
from securemedian.mpc.protocols.audit.binding import fold
from securemedian.mpc.protocols.dealing import DealtUpload
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES
from securemedian.mpc.protocols.share import Upload, WordsUpload

ENDED = "published", "failed"
# of a binding, its coin and the digest of its clients
_LENGTHS = [SESSION_BYTES, SEED_BYTES, 32]


class Folder:
    """Answers the bindings of the audited rounds in `journal`, whenever somebody waits."""

    def __init__(self, journal: Journal, member: Member) -> None:
        self._journal, self._member = journal, member

    def tend(self) -> None:
        """Answer what the servers ask now, and forget rounds that have ended.

        Raises PeerProtocolError if the servers say different things, and ConfigError if what must
        be remembered cannot be written.
        """
        for round_id, upheld in self._journal.upheld.items():
            with suppress(ServerUnreachable):
                self._tend(round_id, upheld)

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
                    return said
        raise PeerProtocolError(f"S{party} does not say what it is bound to in round {round_id}")

    def _answer(
        self, round_id: str, upheld: Upheld, one: dict[str, Any], other: dict[str, Any]
    ) -> None:
        """Send the folds for what both servers are bound to, if they say the same.

        SECURITY: of two folds with the same masks under two coins the difference is that of the
        client's shares.
        """
        binding, coin = one["binding"], one["coin"]
        if other["binding"] != binding or (one["folded"] and other["folded"]):
            # one of them has gone on, or both have answers
            return
        for name, what in (
            ("coin", "S0 and S1 name different coins"),
            ("set", "S0 and S1 name different sets of clients"),
        ):
            if other[name] != one[name]:
                raise PeerProtocolError(
                    f"{what} in round {round_id}: one of them does not tell the truth, and nothing "
                    "was sent"
                )
        self._journal.note_fold(round_id, binding, coin + one["set"])
        self._member.report(f"round {round_id}: answering for the upload")
        held, fields = self._held(upheld), {"round": round_id, "binding": binding}
        for party, said in enumerate((one, other)):
            if not said["folded"]:
                # the fold of the other server's half
                of = 1 - party
                arrays = {"fold": fold(of, held[of], binding, coin, upheld.masks[of])}
                self._member.ask("folded", fields, arrays, timeout_s=0.0, party=party)

    def _held(self, upheld: Upheld) -> list[DealtUpload]:
        """Return what S0 and S1 hold of this client, made again."""
        shape, draw = upheld.shape, upheld.draw
        dealt = dealing.deal(shape, draw.entropy())
        rotations = WordsUpload(shape.rotations_layout, upheld.rotations)
        halves: tuple[Upload, Upload] = by_server(dealt.seeded, dealt.words, draw.index)
        return [DealtUpload(shape, half, rotations) for half in halves]
