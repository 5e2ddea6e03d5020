"""A client's shares: dealt ahead in the background, made once per round, sent to both servers.

docs/protocols.md, section 2. The dealing of a round and the upload go the same way. A server that
has its half already is left out. A request without an answer is repeated with the same bytes.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import upload
from securemedian.clients.connection import Connection, Limit, pauses
from securemedian.clients.journal import Ballot, Journal, Submission, Upheld, fingerprint
from securemedian.clients.upload import Round, ShareHalf
from securemedian.common.terminal import Progress, unseen
from securemedian.common.versions import agree
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    DuplicateUpload,
    LocalProtocolError,
    NotAllowed,
    PeerProtocolError,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.protocols.dealing import OwnDealing
from securemedian.mpc.protocols.prg import SEED_BYTES, os_entropy
from securemedian.mpc.protocols.wire import Message
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path

if TYPE_CHECKING:
    from securemedian.clients.client import Client

# answers with which a server takes nothing more of a client for a round
REFUSED = (BadUpload, DuplicateUpload, NotAllowed, RoundClosed, RoundFailed, UnknownRound)
# the most bytes of a piece, each of which is answered before the next one is sent
PIECE_BYTES = 4 << 20
# how long `close` waits for the thread, which looks more often than that
STOP_S = 5.0
# how often `join` tells how much has been sent
TELL_S = 0.2
# the first wait before it is asked again whether a dealing is checked, which takes milliseconds
FIRST_POLL_S = 0.02


@dataclass(frozen=True)
class _Way:
    """The way of one half to a server: the request, and the fact by which the server has it."""

    request: str
    held: str
    # the fields that come with every request
    about: Mapping[str, Any] = field(repr=False)
    patience_s: float
    # whether the half may have been sent before
    again: bool
    # ends a request
    stop: threading.Event | None = None

    def send(
        self,
        server: Connection,
        half: ShareHalf,
        progress: Progress,
        most: int = 0,
        masks: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Send a half whole, or in numbered pieces of `most` bytes, and tell the bytes sent.

        All pieces are sent again if a server that was restarted has lost those before.
        """
        if self.again and self._holds(server):
            return
        about = {**self.about, "form": half.form}
        if not most:
            arrays = {"share": half.share, **(masks or {})}
            server.ask(self.request, about, arrays, self.patience_s, progress)
            return
        share = half.share.reshape(-1)
        size = -(-share.size // max(1, -(-share.nbytes // most)))
        # in pieces of that size there may be fewer
        pieces = -(-share.size // size)
        piece = links = 0
        while piece < pieces:
            fields = {**about, "piece": piece, "pieces": pieces}
            array = {"share": share[piece * size : (piece + 1) * size]}
            try:
                server.ask(self.request, fields, array, self.patience_s, stop=self.stop)
                piece, links = piece + 1, links or server.links
            except BadUpload:
                # A server that was restarted has forgotten an incomplete dealing. One whose
                # connection has lasted since the first piece has another reason.
                if piece == 0 or links == server.links:
                    raise
                piece = links = 0
            progress(min(share.nbytes, piece * size * share.itemsize), share.nbytes)

    def _holds(self, server: Connection) -> bool:
        try:
            found = server.ask("round", patience_s=self.patience_s, stop=self.stop).fields
        except UnknownRound:
            return False
        return found["round"] == self.about["round"] and bool(found[self.held])


class Sender:
    """Makes uploads of a client's dealings, sends them, and keeps them in its `journal`."""

    def __init__(self, journal: Journal, client: "Client") -> None:
        self._journal, self._client = journal, client
        self.servers, self.config = client.servers, client.config
        self._patience_s = client.config.retry_limit_s
        # the dealing for a round, until its upload is made
        self._dealer: Dealer | None = None
        # the longest messages of S0 and S1, once both have said which party they are
        self._limits: list[int] = []
        if journal.rounds or journal.sent:
            # an earlier process has reached them
            for server in self.servers:
                server.reached = True

    def make(
        self,
        vector: NDArray[Any],
        values: NDArray[Any],
        current: Round,
        progress: Progress = unseen,
        group: int = 0,
    ) -> Submission:
        """Return the upload of a flat update and its encoded `values`, once both have its dealing.

        If clients deal, the values are the indices of buckets, shape (1, d), and both servers get
        the same. Raises the error with which they refuse the dealing, which is then forgotten.
        """
        dealer = self.dealer_for(current)
        if dealer is None:
            self.check_servers(current)
            halves = upload.split(values, current)
        else:
            try:
                half = ShareHalf("rotations", dealer.join(progress).rotations(values[0]))
            except REFUSED:
                self._journal.forget(current.round_id)
                self._stop_dealing()
                raise
            halves = half, half
        upheld, ballot, params = None, None, current.params
        audited = params.form.audited
        if params.form.votes > 1:
            path = Path.begin(params)
            ballot = Ballot(path.zoom.words(vector), current.start, path)
        if (audited or ballot) and (shape := params.form.dealing):
            draw = self._journal.draw(current.round_id, params.digest, current.index)
            masks = (os_entropy(SEED_BYTES), os_entropy(SEED_BYTES)) if audited else (b"", b"")
            upheld = Upheld(shape, draw, halves[0].share, masks, ballot)
        submission = Submission(
            current.round_id,
            current.params.digest,
            current.start,
            fingerprint(vector, group),
            halves,
            group,
            group if current.params.method.visible else 0,
            upheld,
        )
        try:
            self._journal.keep(submission, dealer.held if dealer else "")
        finally:
            # of an update that may not be sent it was for nothing
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
        about = {
            "round": made.round_id,
            "params": made.params,
            "start": made.start,
            # of each half
            "form": "",
            "group": made.told,
        }
        way = _Way("upload", "submitted", about, patience_s, again)

        def sent(count: int, _: int) -> None:
            # of a request that is a little longer than the half
            progress(before + min(half.share.nbytes, count), total)

        # it may not have been written before
        self._journal.keep(made)
        try:
            for party, (server, half) in enumerate(zip(self.servers, made.halves, strict=True)):
                seed = made.upheld.masks[party] if made.upheld else b""
                masks = {"masks": np.frombuffer(seed, np.uint8)} if seed else None
                way.send(server, half, sent, masks=masks)
                before += half.share.nbytes
                progress(before, total)
        except REFUSED:
            self._journal.forget(made.round_id)
            raise
        self._journal.confirm(made)

    def abandon(self, round_id: str) -> None:
        """Forget what was made for a round, and stop dealing for it: this client declines it."""
        self._journal.forget(round_id)
        if self._dealer and self._dealer.round_id == round_id:
            self._stop_dealing()

    def close(self) -> None:
        """End the work in the background. Files on disk stay."""
        self._stop_dealing()
        self._journal.close()

    def check_servers(self, current: Round, stop: threading.Event | None = None) -> list[int]:
        """Return the longest messages of both servers, which agree on an open round.

        Raises ConfigError if [s0] and [s1] are exchanged, VersionsDiffer if this release cannot
        work with them, and what `check_s1` raises.
        """
        if not self._limits:
            said = [one.ask("info", patience_s=self._patience_s, stop=stop) for one in self.servers]
            for party, (server, about) in enumerate(zip(self.servers, said, strict=True)):
                if (answered := about.fields.get("party")) != party:
                    raise ConfigError(
                        f"[s{party}] names a server that answers as another party, and nothing was "
                        f"uploaded: {server.address} is party {answered!r:.20}; correct [s0] and "
                        "[s1]"
                    )
                agree(server.label, about.fields)
            self._limits = [about.fields.get("max_message_bytes", 0) for about in said]
        check_s1(self.servers[1].ask("round", patience_s=self._patience_s, stop=stop), current)
        return self._limits

    def dealer_for(self, current: Round) -> "Dealer | None":
        """Return the dealer for a round, where clients deal. It works in the background.

        It begins at the first call, and again after it got no answers.
        """
        dealer = self._dealer
        if dealer and dealer.round_id == current.round_id and not dealer.unanswered:
            return dealer
        self._stop_dealing()
        if shape := current.params.form.dealing:
            resumed = current.round_id in self._journal.rounds
            draw = self._journal.draw(current.round_id, current.params.digest, current.index)
            # each server gets the half that it got the first time, even if S0 says another index
            self._dealer = Dealer(
                replace(current, index=draw.index),
                self,
                lambda current: self._client.deal(shape, current, draw.entropy()),
                resumed,
            )
        return self._dealer

    def _stop_dealing(self) -> None:
        if self._dealer:
            self._dealer.close()
            self._dealer = None


class Dealer:
    """Deals for one round on a thread. `deal` makes the dealing, which is for one update.

    With `resumed` the same dealing may have been sent before, and a server that has it is left out.
    """

    def __init__(
        self, current: Round, sender: Sender, deal: Callable[[Round], OwnDealing], resumed: bool
    ) -> None:
        shape = current.params.form.dealing
        assert shape
        self.round_id = current.round_id
        # the bytes of both halves: those to be sent, and those that servers have
        self.total, self.sent = shape.bytes_ahead, 0
        self._current, self._sender, self._deal, self._resumed = current, sender, deal, resumed
        self._patience_s, self._stop = sender.config.retry_limit_s, threading.Event()
        # the digest of both halves, as both servers say
        self.held = ""
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
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            limits = self._sender.check_servers(self._current, self._stop)
            dealt = self._deal(self._current)
            self._send(dealt, limits)
            self._confirm(dealt)
            self._outcome = dealt
        except SecureMedianError as error:
            self._outcome = error

    def _send(self, dealt: OwnDealing, limits: Sequence[int]) -> None:
        """Send both halves, those of words in pieces."""
        about = {
            "round": self.round_id,
            "params": self._current.params.digest,
            "start": self._current.start,
        }
        way = _Way("deal", "dealt", about, self._patience_s, self._resumed, self._stop)
        halves = upload.halves(dealt.seeded, dealt.words, self._current)
        whole = zip(self._sender.servers, halves, limits, strict=True)
        # the seed last: before it is sent, an interrupted dealing can still be made again
        for server, half, limit in sorted(whole, key=lambda one: one[1].form == "seed"):

            def sent(count: int, _: int, counts: bool = half.form == "words") -> None:
                self.sent = count if counts else self.sent

            # half of the limit leaves room for what comes with a piece
            way.send(server, half, sent, min(PIECE_BYTES, limit // 2))
        self.sent = self.total

    def _confirm(self, dealt: OwnDealing) -> None:
        """Wait for both servers' checks of the dealing, and check them.

        SECURITY: a server that opens other differences of the vectors than there are may find where
        they have their 1. It gains nothing by that if this client then sends no rotations.

        Raises NotAllowed if a server has found the dealing wrong, and PeerProtocolError if the two
        have not opened what they should have.
        """
        limit = Limit(self._current.params.deadline_s)
        answers = [self._verdict(server, limit) for server in self._sender.servers]
        self.held = held(answers)
        coin, other = (answer.get("coin") for answer in answers)
        right = False
        if isinstance(coin, bytes) and len(coin) == SEED_BYTES and coin == other:
            opened = dealt.opened(coin)
            right = all(answer.get("opened") == opened for answer in answers)
        if any(answer["verdict"] == "failed" for answer in answers):
            why = "the servers have not opened what this program has dealt"
            if right:
                why = (
                    "both servers have opened what this program has dealt, and so one of them does "
                    "not follow the protocol"
                )
            elif not all(answer.get("opened") for answer in answers):
                why = "the round has ended, and a server no longer has what it opened"
            raise NotAllowed(
                f"your dealing failed the check ({why}), and you are left out: round "
                f"{self.round_id}; wait for the next round, and report it if it comes again"
            )
        if not right:
            raise PeerProtocolError(
                f"S0 and S1 have not opened what they should have of your dealing for round "
                f"{self.round_id}: one of them does not follow the protocol. Nothing of your "
                "update was sent"
            )

    def _verdict(self, server: Connection, limit: Limit) -> Mapping[str, Any]:
        """Return a server's answer about the check, once it is over. Raises RoundClosed."""
        about = {"round": self.round_id}
        for pause in pauses(FIRST_POLL_S, self._sender.config.poll_interval_s):
            said = server.ask("checked", about, patience_s=self._patience_s, stop=self._stop)
            if said.fields.get("verdict") in ("passed", "failed"):
                return said.fields
            if limit.left_s <= 0:
                break
            self._stop.wait(pause)
        raise RoundClosed(
            f"{server.label} has not checked your dealing within {limit.seconds:g} s, and you "
            f"are left out: round {self.round_id}; wait for the next round"
        )


def held(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return what both servers hold of a dealing, of their answers about its check."""
    return digest("held", [answer.get("dealing") for answer in answers]).hex()


def check_s1(answer: Message, current: Round) -> None:
    """Compare what S1 says of the latest round with what S0 has said of it.

    Raises VersionsDiffer if S1 takes another release, and RoundClosed if it is at another round.
    Raises PeerProtocolError if parameters, start or the form of models differ: a corrupt S0 could
    give some clients another model than the others.
    """
    found = answer.fields
    agree("S1", found)
    if found["round"] != current.round_id:
        raise RoundClosed(
            f"S1 is not at round {current.round_id}: it is at {found['round']}; wait for the "
            "next round"
        )
    form = found.get("model_form")
    if form and form != (current.form.digest if current.form else ""):
        raise PeerProtocolError(
            f"S0 and S1 give round {current.round_id} other forms of the model: "
            "one of them does not tell the truth, and nothing was sent"
        )
    theirs = RoundParams.from_dict(found["params"]).digest, found["start"]
    if theirs != (current.params.digest, current.start.hex()):
        raise PeerProtocolError(
            f"S0 and S1 give round {current.round_id} other parameters or another start: "
            "one of them does not tell the truth, and nothing was sent"
        )
