"""A client's dealing for one round, in the background (docs/protocols.md, section 2)."""

import threading
from collections.abc import Callable, Sequence

from securemedian.clients import upload
from securemedian.clients.connection import Connection, Progress, ask_parties, check_s1, unseen
from securemedian.clients.upload import Round, ShareHalf
from securemedian.mpc.errors import (
    BadUpload,
    LocalProtocolError,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing

# the most bytes of a piece, each of which is answered before the next one is sent
PIECE_BYTES = 4 << 20
# how long `close` waits for the thread, which looks more often than that
STOP_S = 5.0
# how often `join` tells how much has been sent
TELL_S = 0.2


class Dealer:
    """Deals for one round, on a thread and with connections of its own, and closes these.

    `deal` makes the dealing, which is for this round and one update. A server that is away is
    waited for up to `patience_s`. With `resumed` the same dealing may have been sent before, and a
    server that has it is left out.
    """

    def __init__(
        self,
        current: Round,
        shape: Dealing,
        servers: Sequence[Connection],
        deal: Callable[[Dealing, Round], OwnDealing],
        patience_s: float,
        resumed: bool,
    ) -> None:
        self.round_id = current.round_id
        # the bytes of both halves: those to be sent, and those that servers have
        self.total, self.sent = shape.bytes_ahead, 0
        self._current, self._shape, self._servers, self._deal = current, shape, servers, deal
        self._patience_s, self._resumed = patience_s, resumed
        self._outcome: OwnDealing | SecureMedianError = LocalProtocolError(
            "a defect here: the dealing ended without a result"
        )
        self._thread = threading.Thread(target=self._run, name="dealing", daemon=True)
        self._thread.start()

    @property
    def unanswered(self) -> bool:
        """Return whether it has ended because a server did not answer."""
        return not self._thread.is_alive() and isinstance(self._outcome, ServerUnreachable)

    def join(self, progress: Progress = unseen) -> OwnDealing:
        """Return the dealing once both servers have it. Raises the error that ended it."""
        while self._thread.is_alive():
            self._thread.join(TELL_S)
            progress(self.sent, self.total)
        if isinstance(self._outcome, SecureMedianError):
            raise self._outcome
        return self._outcome

    def close(self) -> None:
        """Stop dealing, if that is still going on."""
        for server in self._servers:
            server.cancel()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            infos = ask_parties(self._servers, self._patience_s)
            limits = [info["max_message_bytes"] for info in infos]
            check_s1(self._servers[1], self._current, self._patience_s)
            dealt = self._deal(self._shape, self._current)
            halves = upload.halves(dealt.seeded, dealt.words, self._current)
            whole = zip(self._servers, halves, limits, strict=True)
            # the seed last: before it is sent, an interrupted dealing can still be made anew
            for server, half, limit in sorted(whole, key=lambda one: one[1].form == "seed"):
                if not (self._resumed and holds(server, self.round_id, "dealt", self._patience_s)):
                    self._send(server, half, limit)
            self.sent, self._outcome = self.total, dealt
        except SecureMedianError as error:
            self._outcome = error
        finally:
            for server in self._servers:
                server.close()

    def _send(self, server: Connection, half: ShareHalf, limit: int) -> None:
        """Send a half piece by piece, and anew if the server no longer has the pieces before."""
        # half of the limit leaves room for what comes with a piece
        most = min(PIECE_BYTES, limit // 2)
        share = half.share.reshape(-1)
        pieces = max(1, -(-share.nbytes // most))
        size = -(-share.size // pieces)
        # in pieces of that size there may be fewer
        pieces = -(-share.size // size)
        before, piece, links = self.sent, 0, 0
        while piece < pieces:
            fields = {
                "round": self.round_id,
                "params": self._current.params.digest,
                "start": self._current.start,
                "form": half.form,
                "piece": piece,
                "pieces": pieces,
            }
            array = {"share": share[piece * size : (piece + 1) * size]}
            try:
                server.ask("deal", fields, array, patience_s=self._patience_s)
                piece, links = piece + 1, links or server.links
            except BadUpload:
                # A server that was restarted has forgotten an incomplete dealing. One whose
                # connection has lasted since the first piece has another reason.
                if piece == 0 or links == server.links:
                    raise
                piece = links = 0
            if half.form == "words":
                self.sent = before + min(share.nbytes, piece * size * share.itemsize)


def holds(server: Connection, round_id: str, what: str, patience_s: float) -> bool:
    """Return whether a server has `what` of this client for a round: "dealt" or "submitted"."""
    try:
        found = server.ask("round", patience_s=patience_s).fields
    except UnknownRound:
        return False
    return found["round"] == round_id and bool(found[what])
