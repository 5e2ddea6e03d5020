"""A client's dealing for one round, in the background (docs/protocols.md, section 2)."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from securemedian.clients import upload
from securemedian.clients.connection import (
    Connection,
    Progress,
    ask_parties,
    check_s1,
    pauses,
    unseen,
)
from securemedian.clients.service import Limit
from securemedian.clients.upload import Round, ShareHalf
from securemedian.mpc.errors import (
    BadUpload,
    LocalProtocolError,
    NotAllowed,
    PeerProtocolError,
    RoundClosed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import SEED_BYTES

# the most bytes of a piece, each of which is answered before the next one is sent
PIECE_BYTES = 4 << 20
# how long `close` waits for the thread, which looks more often than that
STOP_S = 5.0
# how often `join` tells how much has been sent
TELL_S = 0.2
# the first wait before it is asked again whether a dealing is checked, which takes milliseconds
FIRST_POLL_S = 0.02


class Dealer:
    """Deals for one round, on a thread and with connections of its own, and closes these.

    `deal` makes the dealing, which is for this round and one update. A server that is away is
    waited for up to `patience_s`, and asked every `poll_s` whether the dealing is checked. With
    `resumed` the same dealing may have been sent before, and a server that has it is left out.
    """

    def __init__(
        self,
        current: Round,
        shape: Dealing,
        servers: Sequence[Connection],
        deal: Callable[[Dealing, Round], OwnDealing],
        patience_s: float,
        poll_s: float,
        resumed: bool,
    ) -> None:
        self.round_id = current.round_id
        # the bytes of both halves: those to be sent, and those that servers have
        self.total, self.sent = shape.bytes_ahead, 0
        self._current, self._shape, self._servers, self._deal = current, shape, servers, deal
        self._patience_s, self._poll_s, self._resumed = patience_s, poll_s, resumed
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
        """Return the dealing once both servers have checked it, and it has checked them.

        Raises the error that ended it.
        """
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
            self.sent = self.total
            self._confirm(dealt)
            self._outcome = dealt
        except SecureMedianError as error:
            self._outcome = error
        finally:
            for server in self._servers:
                server.close()

    def _confirm(self, dealt: OwnDealing) -> None:
        """Wait for both servers' checks of the dealing, and check them.

        SECURITY: a server that opens other differences of the vectors than there are may find where
        they have their 1. It gains nothing by that if this client then sends no rotations.

        Raises NotAllowed if a server has found the dealing wrong, and PeerProtocolError if the two
        have not opened what they should have.
        """
        limit = Limit(self._current.params.deadline_s)
        answers = [self._verdict(server, limit) for server in self._servers]
        coin, other = (answer.get("coin") for answer in answers)
        right = False
        if isinstance(coin, bytes) and len(coin) == SEED_BYTES and coin == other:
            opened = dealt.opened(coin)
            right = all(answer.get("opened") == opened for answer in answers)
        if any(answer["verdict"] == "failed" for answer in answers):
            why = (
                "both servers have opened what this program has dealt, and so one of them does not "
                "follow the protocol"
                if right
                else "the servers have not opened what this program has dealt"
            )
            raise NotAllowed(
                f"your dealing for round {self.round_id} failed the check ({why}): you are left "
                "out of this round"
            )
        if not right:
            raise PeerProtocolError(
                f"S0 and S1 have not opened what they should have of your dealing for round "
                f"{self.round_id}: one of them does not follow the protocol. Nothing of your "
                "update was sent"
            )

    def _verdict(self, server: Connection, limit: Limit) -> Mapping[str, Any]:
        """Return what a server says of the check, once it is over. Raises RoundClosed."""
        for pause in pauses(FIRST_POLL_S, self._poll_s):
            said = server.ask("checked", {"round": self.round_id}, patience_s=self._patience_s)
            if said.fields.get("verdict") in ("passed", "failed"):
                return said.fields
            if limit.left_s <= 0:
                break
            server.pause(pause)
        raise RoundClosed(
            f"{server.label} has not checked your dealing for round {self.round_id} within "
            f"{limit.seconds:g} s: you are left out of this round"
        )

    def _send(self, server: Connection, half: ShareHalf, limit: int) -> None:
        """Send a half piece by piece, and all pieces again if the server has lost those before."""
        about = {
            "round": self.round_id,
            "params": self._current.params.digest,
            "start": self._current.start,
        }
        share, before = half.share.reshape(-1), self.sent
        # half of the limit leaves room for what comes with a piece
        most = min(PIECE_BYTES, limit // 2)
        pieces = max(1, -(-share.nbytes // most))
        size = -(-share.size // pieces)
        # in pieces of that size there may be fewer
        pieces = -(-share.size // size)
        piece = links = 0
        while piece < pieces:
            fields = {**about, "form": half.form, "piece": piece, "pieces": pieces}
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
