"""A client's uploads: made once per round, and sent until both servers have them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import upload
from securemedian.clients.connection import Progress, ask_parties, check_s1, unseen
from securemedian.clients.dealer import Dealer, holds
from securemedian.clients.journal import Journal, Submission, Upheld, fingerprint
from securemedian.clients.service import Service
from securemedian.clients.upload import Round, ShareHalf
from securemedian.mpc.errors import (
    BadUpload,
    DuplicateUpload,
    NotAllowed,
    RoundClosed,
    RoundFailed,
    UnknownRound,
)
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, os_entropy

# answers with which a server takes nothing more of a client for a round
REFUSED = (BadUpload, DuplicateUpload, NotAllowed, RoundClosed, RoundFailed, UnknownRound)


class Sender:
    """Makes uploads of dealings by `deal`, sends them, and keeps them in `journal`, its own."""

    def __init__(
        self,
        journal: Journal,
        service: Service,
        deal: Callable[[Dealing, Round, Entropy], OwnDealing],
    ) -> None:
        self._journal, self._service, self._deal = journal, service, deal
        self._servers, self._patience_s = service.servers, service.config.retry_limit_s
        # what deals for a round, until its upload is made
        self._dealer: Dealer | None = None
        # whether both servers have said which party they are
        self._parties_known = False
        if journal.rounds or journal.sent:
            # an earlier process has reached them
            for server in self._servers:
                server.reached = True

    def begin(self, current: Round) -> None:
        """Deal for a round in the background, where clients deal."""
        self._dealer_for(current)

    def make(
        self,
        vector: NDArray[Any],
        values: NDArray[Any],
        current: Round,
        progress: Progress = unseen,
        group: int = 0,
    ) -> Submission:
        """Return the upload of a flat update and its encoded `values`, once both have its dealing.

        Raises the error with which they refuse the dealing, which is then forgotten.
        """
        if not self._parties_known:
            ask_parties(self._servers, self._patience_s)
            self._parties_known = True
        halves = self._halves(values, current, progress)
        update = fingerprint(vector, group)
        upheld = None
        if current.params.method.audited and (shape := current.params.dealing):
            draw = self._journal.draw(current.round_id, current.params.digest, current.index)
            masks = os_entropy(SEED_BYTES), os_entropy(SEED_BYTES)
            upheld = Upheld(shape, draw, halves[0].share, masks)
        submission = Submission(
            current.round_id,
            current.params.digest,
            current.start,
            update,
            halves,
            group,
            group if current.params.method.visible else 0,
            upheld,
        )
        self._journal.keep(submission)
        self._stop_dealing()
        return submission

    def send(
        self,
        made: Submission,
        patience_s: float | None = None,
        progress: Progress = unseen,
        again: bool = False,
    ) -> None:
        """Send an upload to both servers, and forget its halves once they have acknowledged it.

        With `again` a server that has it already is left out. Raises what a server answers; an
        upload that is refused is forgotten, too.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        total, before = sum(half.share.nbytes for half in made.halves), 0
        # it may not have been written before
        self._journal.keep(made)
        try:
            for party, (server, half) in enumerate(zip(self._servers, made.halves, strict=True)):
                if not (again and holds(server, made.round_id, "submitted", patience_s)):
                    sent = partial(_part_sent, progress, before, half.share.nbytes, total)
                    self._send_half(party, made, half, patience_s, sent)
                before += half.share.nbytes
                progress(before, total)
        except REFUSED:
            self._journal.forget(made.round_id)
            raise
        self._journal.confirm(made)

    def _send_half(
        self,
        party: int,
        made: Submission,
        half: ShareHalf,
        patience_s: float,
        sent: Progress,
    ) -> None:
        fields = {
            "round": made.round_id,
            "params": made.params,
            "start": made.start,
            "form": half.form,
            "group": made.told,
        }
        arrays = {"share": half.share}
        if made.upheld:
            arrays["masks"] = np.frombuffer(made.upheld.masks[party], np.uint8)
        self._servers[party].ask("upload", fields, arrays, patience_s, sent)

    def abandon(self, round_id: str) -> None:
        """Forget what was made for a round, and deal for it no more: this client declines it."""
        self._journal.forget(round_id)
        if self._dealer and self._dealer.round_id == round_id:
            self._stop_dealing()

    def close(self) -> None:
        """End what goes on in the background. What is kept on disk stays."""
        self._stop_dealing()
        self._journal.close()

    def _halves(
        self, values: NDArray[Any], current: Round, progress: Progress
    ) -> tuple[ShareHalf, ShareHalf]:
        """Return what S0 and S1 get of encoded values, once both have the dealing for them."""
        dealer = self._dealer_for(current)
        if dealer is None:
            check_s1(self._servers[1], current, self._patience_s)
            return upload.split(values, current)
        try:
            return upload.rotate(dealer.join(progress), values)
        except REFUSED:
            self._journal.forget(current.round_id)
            self._stop_dealing()
            raise

    def _dealer_for(self, current: Round) -> Dealer | None:
        """Return what deals for a round, begun at the first call or after it got no answers."""
        dealer = self._dealer
        if dealer and dealer.round_id == current.round_id and not dealer.unanswered:
            return dealer
        self._stop_dealing()
        if shape := current.params.dealing:
            resumed = current.round_id in self._journal.rounds
            draw = self._journal.draw(current.round_id, current.params.digest, current.index)
            connections = self._service.connect()
            for connection, server in zip(connections, self._servers, strict=True):
                connection.reached = server.reached
            self._dealer = Dealer(
                # each server gets the half that it got the first time, even if S0 says another
                # index
                replace(current, index=draw.index),
                shape,
                connections,
                lambda shape, current: self._deal(shape, current, draw.entropy()),
                self._patience_s,
                self._service.config.poll_interval_s,
                resumed,
            )
        return self._dealer

    def _stop_dealing(self) -> None:
        if self._dealer:
            self._dealer.close()
            self._dealer = None


def _part_sent(
    progress: Progress, before: int, half: int, total: int, sent: int, size: int
) -> None:
    """Tell how much of `total` bytes is sent, with a request of `size` for `half` under way."""
    progress(before + min(half, sent), total)
