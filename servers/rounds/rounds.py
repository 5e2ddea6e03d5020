"""A server's rounds, from opening to result.

The coordinator, the clients, the engine, the peer and the clock all become events of a round here.
The parts are `register` (which rounds exist), `runs` (the runs), `peer_control` (the other
server) and `runner`, which feeds events to a round and does the actions of its `machine.table`.
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from securemedian.common.deviations import Deviation
from securemedian.common.keys import SigningKey
from securemedian.common.receipts import SERVICE
from securemedian.common.states import State
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import (
    ConfigError,
    LocalProtocolError,
    PeerDeviated,
    RoundAborted,
    RoundBusy,
    RoundClosed,
    RoundFailed,
    SecureMedianError,
    cut,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.prg import SESSION_BYTES
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Checked
from securemedian.servers import logs
from securemedian.servers.computing.engine import Coin, Engines, Result
from securemedian.servers.config import ServerConfig
from securemedian.servers.machine import events, members, step
from securemedian.servers.network.control import (
    Message,
    Open,
    new_round_id,
)
from securemedian.servers.network.peer import PeerWatch, Told
from securemedian.servers.rounds.peer_control import PeerControl
from securemedian.servers.rounds.register import Entry, Register, WhenOpened
from securemedian.servers.rounds.runner import RoundRunner, event_of
from securemedian.servers.rounds.runs import Opening, begin_as_asked, finish_run
from securemedian.servers.storage.database import Row
from securemedian.servers.storage.spool import DEALING, Piece
from securemedian.servers.storage.store import Store

# why a round that has begun with release 1.0.0 may end with the update from it
OF_RELEASE_1_0 = (
    "was updated while it had long shares as release 1.0.0 stores them: the round has failed for "
    "good, open a new one"
)

WhenStored = Callable[[SecureMedianError | None], None]


@dataclass(frozen=True)
class _Share:
    """A share that a client has sent, which is written and has yet to be committed."""

    entry: Entry
    row: Row
    when_stored: WhenStored

    @property
    def event(self) -> events.Event:
        kind = events.DealingStored if self.row.kind == DEALING else events.Stored
        return kind(self.row.client, self.row.sha256)


class Rounds:
    """The rounds of one server, of which one per cohort may be live. Used by one thread.

    `signing` is this server's signing key, and `send` sends a message to the peer.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        engines: Engines,
        signing: SigningKey,
        send: Callable[[Message], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config, self._engines, self._clock = config, engines, clock
        self._signing, self._wall = signing, wall
        self.register = Register(config, store, clock, wall)
        self._runner = RoundRunner(
            self.register, engines, lambda message: self._peer_control.send(message), clock
        )
        self._peer_control = PeerControl(
            config, self.register, self._runner, engines, signing.public, send, clock
        )
        # the shares that `flush` commits
        self._shares: list[_Share] = []
        # the rounds that await a turn at S0, each with the resource that it needs, in the order in
        # which they became ready
        self._queue: list[tuple[Entry, events.Use | None]] = []
        self.register.tidy()
        for entry in self.live:
            event: events.Event = events.Unlinked(f"{config.name} was restarted")
            if entry.spool.has_blocks:
                event = events.Failure(RoundFailed.code, f"{config.name} {OF_RELEASE_1_0}")
            self._runner.take(entry, event)

    @property
    def live(self) -> list[Entry]:
        """The rounds that have begun and not ended."""
        return self.register.live

    @property
    def peer(self) -> PeerWatch:
        return self._peer_control.watch

    def dim(self, cohort: str) -> int:
        """Return how many values the model of a cohort has.

        It is the model that S0 keeps, or otherwise that of the latest round; 0 if there is neither.
        """
        if models := self.register.runs[cohort].models:
            return models[0].size
        latest = self.register.latest(cohort)
        return latest.server_round.params.dim if latest else 0

    def waits(self, entry: Entry) -> tuple[float, float]:
        """Return the seconds until the deadline of uploads or votes, and until the next attempt."""
        here, now = entry.server_round, self._clock()
        left_s = here.deadline - now if here.state in (State.OPEN, State.VOTING) else 0.0
        return left_s, max(0.0, here.retry_at - now) if here.live else 0.0

    def measure_link(self, told: Told) -> None:
        """Measure the link to S1. Raises what `PeerControl.measure` raises."""
        self._peer_control.measure(told)

    # Requests of the coordinator and of clients

    def open(
        self,
        opening: Opening,
        params: RoundParams,
        participants: Iterable[str],
        model: Float32s | None,
        when_opened: WhenOpened,
    ) -> None:
        """Open a round of a cohort, at S0; `when_opened` is called once S1 has answered.

        `params` and `participants` name clients by their public keys, and `opening` by name.
        A repeated `request` is answered with the round that the first one opened. Raises
        PeerUnavailable, ParametersDiffer or VersionsDiffer if S1 is not ready, RoundBusy if a round
        of the cohort is live, and InputError, ConfigError or ClientsDiffer if the round cannot be
        computed.
        """
        cohort, request = opening.cohort, opening.request
        self.flush()
        known = self.register.rounds_of(cohort) if request else []
        if made := next((entry for entry in known if entry.request == request), None):
            if made.server_round.state is State.OPENING:
                made.when_opened.append(when_opened)
            else:
                self._runner.answer(made, when_opened)
            return
        before = begin_as_asked(self.register.runs[cohort], opening, params, model)
        params = before.settled(params)
        self.peer.require(params)
        if entry := self.register.live_of(cohort):
            raise RoundBusy(
                f"the last round has not ended: {entry.server_round.round_id} is "
                f"{entry.server_round.state}; close or abort it, or wait for its end"
            )
        kept = self._engines.of(cohort).session_id
        asked = Open(
            new_round_id(before.number),
            before.number,
            params.to_dict(),
            kept or os.urandom(SESSION_BYTES),
            new_session=kept is None,
            start_over=opening.reset or (model is not None and not opening.keep_range),
            start=before.digest.hex(),
            cohort=cohort,
            participants=sorted(set(participants)),
            release=opening.release,
            spent=self.register.spent(cohort),
            one_malicious_server=self._config.bounded,
            runs=self._config.max_attempts,
            model_form=self._model_form(opening, params, model is not None),
        )
        entry = self.register.admit(asked, params, before, request)
        entry.when_opened = [when_opened]
        try:
            self._runner.feed(entry, [events.OpenAsked()])
        except SecureMedianError:
            entry.spool.drop()
            raise

    def _model_form(self, opening: Opening, params: RoundParams, new_model: bool) -> str:
        """Return the form of models that a round begins with: the one given, or that of the run.

        A server of release 1.0 cannot be told one: then the first client's counts.
        """
        form = opening.model_form
        if params.exchange.fixed is not None:
            if form:
                raise ConfigError(
                    f"a round of this exchange has no model: {params.exchange.name}; leave out "
                    "`model_form`"
                )
            return ""
        goes_on = not opening.reset and (not new_model or opening.keep_range)
        latest = self.register.latest(opening.cohort)
        if latest and goes_on and latest.server_round.params.dim == params.dim:
            form = form or latest.server_round.asked.model_form
        return form if self.peer.knows(3) else ""

    def model_form(self, entry: Entry, client: str, text: str) -> str:
        """Return the form of a round's models, which the first client's becomes if there is none.

        `text` is the form of the client's own model, or "". Raises what
        `Register.take_model_form` raises.
        """
        here = entry.server_round
        entry.informed.add(client)
        takes = here.state is State.OPEN and here.params.exchange.fixed is None
        if text and takes and not here.asked.model_form:
            self.register.take_model_form(entry, text)
            logs.event("model-form-taken", **here.about, client=here.names[client])
        return entry.server_round.asked.model_form

    def put(self, entry: Entry, client: str, piece: Piece, when_stored: WhenStored) -> None:
        """Store a share of a client, or a piece of one.

        `when_stored` is called once the share is stored (`flush`), with the error if there is one,
        and at once while pieces are missing. A repeated share is answered in the same way, in any
        state of the round. Raises what `members.check_dealing`, `members.check_upload` and
        `Spool.put` raise, and DuplicateUpload.
        """
        if any(share.row.client == client for share in self._shares):
            # its earlier shares come first
            self.flush()
        if not self._is_repeated(entry, client, piece):
            if piece.kind == DEALING:
                members.check_dealing(entry.server_round, client)
            else:
                members.check_upload(entry.server_round, client, piece.vote, piece.path)
            if row := entry.spool.put(client, piece):
                self._shares.append(_Share(entry, row, when_stored))
                return
        when_stored(None)

    def _is_repeated(self, entry: Entry, client: str, piece: Piece) -> bool:
        """Return whether a client has sent this piece before. Raises DuplicateUpload for another.

        A round that has ended has deleted the shares but kept their digests.
        """
        here, spool = entry.server_round, entry.spool
        if piece.kind != DEALING:
            own = spool.digest(client, piece.vote)
            stored = own if here.live else here.here.get(client)
            repeated = members.is_repeated(here, stored, piece.digest, "upload")
            if repeated and not piece.vote:
                spool.check_masks(client, piece.masks or b"")
            return repeated
        if client in here.failed:
            # tell it why it is left out
            members.check_dealing(here, client)
        if here.live and here.dealt:
            return spool.repeats_piece(client, piece)
        dealt = here.dealt_here.get(client)
        return piece.count == 1 and members.is_repeated(here, dealt, piece.digest, piece.kind)

    def decline(self, entry: Entry, client: str, reason: str) -> None:
        """Note that a client takes no part in a round, for a reason of `status.DECLINED`.

        Raises what `members.check_decline` raises.
        """
        self.flush()
        here = entry.server_round
        if client in here.declined:
            return
        members.check_decline(here, client)
        self._runner.feed(entry, [events.Declined(client, reason)])
        told = here.about | {"client": here.names[client], "reason": reason}
        logs.event("client-declined", logging.WARNING, **told)
        self._go_on()

    def flush(self) -> None:
        """Commit the shares that have come, those of a round in one transaction, and answer them.

        An error with the shares of one round does not affect other rounds.
        """
        shares, self._shares = self._shares, []
        for entry in dict.fromkeys(share.entry for share in shares):
            of_round = [share for share in shares if share.entry is entry]
            if not self._store(entry, of_round):
                # those before it have closed the round
                late = [share for share in of_round if not self._store(entry, [share])]
                closed = RoundClosed(
                    "the round has just been closed: it has all its clients; wait for the next"
                )
                for share in late:
                    share.when_stored(closed)
        if shares:
            self._go_on()

    def _store(self, entry: Entry, shares: Sequence[_Share]) -> bool:
        """Store shares and answer them, and return True unless the round takes no more of them."""
        error: SecureMedianError | None = None
        if not entry.server_round.live:
            return False
        try:
            entry.spool.sync()
            rows = [share.row for share in shares]
            self._runner.feed(entry, [share.event for share in shares], rows)
        except LocalProtocolError:
            return False
        except SecureMedianError as failed:
            error = failed
            for share in reversed(shares):
                entry.spool.discard(share.row)
        for share in shares:
            about = entry.server_round.about
            name = entry.server_round.names[share.row.client]
            if error is None and share.row.kind == DEALING:
                logs.event("dealing-stored", **about, client=name)
            elif error is None:
                logs.event("upload-stored", **about, client=name)
            share.when_stored(error)
        return True

    def close(self, entry: Entry) -> None:
        """Take no more uploads and run the protocol, at S0. Raises RoundClosed if it has failed."""
        self.flush()
        if not entry.server_round.closed:
            members.check_close(entry.server_round)
            self._runner.feed(entry, [events.CloseAsked()])
        self._go_on()

    def abort(self, entry: Entry, why: str) -> None:
        """Fail a round on purpose, at S0.

        Raises RoundClosed if it has ended otherwise, or may have opened values.
        """
        self.flush()
        if entry.server_round.code == RoundAborted.code:
            return
        members.check_abort(entry.server_round)
        self._runner.feed(entry, [events.Failure(RoundAborted.code, why)])

    # Other events

    def control(self, parts: Sequence[wire.Part]) -> None:
        self.flush()
        self._peer_control.receive(parts)
        self._go_on()

    def engine_ended(self) -> None:
        """Take coins, verdicts, results and errors from the engines."""
        while (ended := self._engines.poll()) is not None:
            cohort, result = ended
            entry = self.register.latest(cohort)
            # a deviation is reported of a round that has failed since, too
            found = isinstance(result, PeerDeviated)
            if entry and (entry.server_round.begun if found else entry.server_round.live):
                self._take(entry, result)
        self._go_on()

    def _take(self, entry: Entry, result: Result | SecureMedianError) -> None:
        match result:
            case PeerDeviated():
                event: events.Event = self._deviated(entry, result)
            case SecureMedianError():
                event = event_of(result)
            case Coin():
                event = events.Tossed(result.seed, result.tokens)
            case Checked():
                event = self._verdicts(entry, result)
            case _:
                try:
                    given = entry.server_round, entry.before, entry.path, entry.result
                    entry.result, entry.after = finish_run(*given, result, self._signing)
                    event = events.Computed(entry.result.receipt)
                except SecureMedianError as error:
                    event = events.Failure(error.code, str(error))
        self._runner.take(entry, event)
        self._peer_control.release(entry)

    def _verdicts(self, entry: Entry, checked: Checked) -> events.CheckEnded:
        here, clients = entry.server_round, list(entry.server_round.under_check)
        failed = [key for key, passed in zip(clients, checked.passed, strict=True) if not passed]
        silent = [key for key, none in zip(clients, checked.silent, strict=False) if none]
        level = logging.WARNING if failed else logging.INFO
        lists = {"checked": clients, "failed": failed}
        names = {what: [here.names[key] for key in keys] for what, keys in lists.items()}
        told = here.about | names
        if here.folding:
            logs.event("clients-folded", level, **told)
        else:
            logs.event("clients-checked", level, **told)
        return events.CheckEnded(clients, failed, silent)

    def _deviated(self, entry: Entry, error: PeerDeviated) -> events.Failure:
        """Log and sign what the other server has done, which fails the round for good."""
        here, reason = entry.server_round, str(error)
        of = here.cohort, here.round_id, here.params.digest.hex()
        found = Deviation(SERVICE, self._config.name, *of, cut(reason), self._wall())
        deviation = found.signed(self._signing)
        told = here.about | {"peer": self.peer.name, "reason": reason} | deviation
        logs.event("peer-deviated", logging.ERROR, **told)
        reason = (
            f"the peer deviated: {self._config.name} has signed that {self.peer.name} does not "
            f"follow the protocol ({reason})"
        )
        return events.Failure(error.code, reason, deviation)

    def tick(self) -> None:
        """Let time pass.

        Raises PeerUnavailable if the peer has not appeared within its limit.
        """
        self.flush()
        self._peer_control.tick()
        self._runner.tick()
        for entry in self.live:
            if self._runner.idle(entry) and self._clock() >= entry.server_round.deadline:
                self._runner.take(entry, events.Overdue())
        self._go_on()

    def _go_on(self) -> None:
        """Give a turn at S0 to each waiting round whose resource is free, first ready first."""
        now = self._clock()
        ready = [
            (entry, step.next_use(entry.server_round))
            for entry in self.live
            if step.awaits_turn(entry.server_round, now)
        ]
        self._queue = [one for one in self._queue if one in ready]
        self._queue += [one for one in ready if one not in self._queue]
        if self.register.closed or self.peer.problem:
            return
        for one in list(self._queue):
            entry, use = one
            engine = self._engines.of(entry.server_round.cohort)
            in_use = [step.use(other.server_round) for other in self.live]
            taken = use is not None and use in in_use
            if taken or engine.stopping or not self._runner.idle(entry):
                continue
            self._queue.remove(one)
            kept = None if entry.server_round.adrift else engine.opened_session
            turn = events.Turn(kept or os.urandom(SESSION_BYTES), new_session=kept is None)
            self._runner.take(entry, turn)

    def stop(self) -> None:
        """Take no more rounds and begin no more runs. A running protocol may finish."""
        self.register.closed = True

    @property
    def running(self) -> bool:
        runs = (State.STARTING, State.RUNNING)
        return any(entry.server_round.state in runs for entry in self.live)

    def interrupt(self, why: str) -> None:
        """Interrupt all rounds, to be tried again, because something failed at this server."""
        interrupted = events.Interrupted(RoundFailed.code, f"{self._config.name} {why}")
        for entry in self.live:
            self._runner.take(entry, interrupted)
