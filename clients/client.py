"""The Python interface: `Client` submits updates and receives results, `Coordinator` opens rounds.

    with Client.from_config("client.toml") as client:
        # in every round: load its model, train, submit, load the result
        client.fit(model, train)

`Client.wait_for_round`, `submit` and `result` are its steps, for a loop of your own.

An update is the *trained parameters*, not their difference to the published model, because the
buckets of a bucketed round lie around that model.

A server that is away, or a connection that is lost, costs time and no round: what got no answer is
sent again, the same bytes (`clients.memory`). With a `state_dir` this holds for a client that is
restarted, too.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.clients import upload
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import (
    Connection,
    Progress,
    Report,
    ask_parties,
    unseen,
)
from securemedian.clients.dealer import Dealer
from securemedian.clients.memory import Memory, Submission, fingerprint
from securemedian.clients.upload import Round, ShareHalf
from securemedian.mpc import dealing, wire
from securemedian.mpc.dealing import Dealing, Dealt
from securemedian.mpc.errors import (
    BadUpload,
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    InputError,
    NotAllowed,
    PeerProtocolError,
    RoundClosed,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.methods.base import Published
from securemedian.mpc.optimiser import Optimiser
from securemedian.mpc.params import RoundParams
from securemedian.mpc.prg import Entropy
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.mpc.ranges.registry import policy_from
from securemedian.settings.keys import load_keys

T = TypeVar("T")

# the rounds whose results a client can give the form of its update: servers keep no more of them
_KEPT_ROUNDS = 4
# answers with which a server takes nothing more of a client for a round
_REFUSED = (BadUpload, DuplicateUpload, NotAllowed, RoundClosed, RoundFailed, UnknownRound)
# what costs a client one round, and nothing beyond it
_ROUND_LOST = (*_REFUSED, ServerUnreachable)


_log = logging.getLogger("securemedian")


def _say(text: str) -> None:
    print(text, flush=True)


def _part_sent(progress: Progress, before: int, total: int, sent: int, _: int) -> None:
    """Tell how much of two halves has been sent; `sent` are bytes of the one that is under way."""
    progress(min(total, before + sent), total)


class _Limit:
    """The time that a wait may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, or 0."""
        return max(0.0, self.deadline - time.monotonic())


class _Member:
    """What a client and the coordinator have in common: a key, and a connection to each server.

    `report` gets a line when a server is away and is waited for, and another one when it is back.
    """

    def __init__(
        self,
        config: ClientConfig,
        report: Report = _log.warning,
    ) -> None:
        self._keys = load_keys(config.key_file)
        self.config, self.report = config, report
        self.servers = self._connect()

    def _connect(self) -> tuple[Connection, ...]:
        """Return new connections to S0 and S1."""
        config = self.config
        return tuple(
            Connection(
                label,
                server,
                self._keys,
                config.reply_timeout_s,
                other.public_key,
                lambda text: self.report(text),
            )
            for label, server, other in (
                ("S0", config.s0, config.s1),
                ("S1", config.s1, config.s0),
            )
        )

    @classmethod
    def from_config(cls, path: str | Path, **options: Any) -> Self:
        """Return a member that connects as a TOML configuration says.

        `options` are those of the constructor. Raises ConfigError if there is a mistake in the
        configuration or the key file.
        """
        return cls(ClientConfig.load(path), **options)

    def close(self) -> None:
        """Close both connections."""
        for server in self.servers:
            server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def model(self, round_id: str) -> Published:
        """Return what S0 published for a round: the global model, and how the buckets lie.

        Only rounds on buckets have a scale and a policy; other rounds may have no model either.
        """
        return self._published_for(round_id, self.config.retry_limit_s)

    def _published_for(self, round_id: str, patience_s: float) -> Published:
        answer = self.servers[0].ask("model", {"round": round_id}, patience_s=patience_s)
        policy = answer.fields.get("policy")
        return Published(
            answer.arrays.get("model"),
            answer.arrays.get("range"),
            policy_from(policy) if policy else None,
        )

    def left_out(self, round_id: str) -> dict[str, str]:
        """Return by name who is left out of a round, and why.

        As long as the round is open, these are the clients that have failed a check.
        """
        status = self._status(round_id, self.config.retry_limit_s)
        return {str(name): str(why) for name, why in status["left_out"].items()}

    def _status(self, round_id: str, patience_s: float) -> dict[str, Any]:
        return self.servers[0].ask("status", {"round": round_id}, patience_s=patience_s).fields

    def _limit(self, timeout_s: float | None) -> _Limit:
        """Return the limit of a wait, by default `wait_timeout_s`."""
        return _Limit(self.config.wait_timeout_s if timeout_s is None else timeout_s)

    def _wait(
        self, server: Connection, look: Callable[[], T | None], limit: _Limit, what: str
    ) -> T:
        """Call `look` again and again until it returns something other than None.

        A server that has been reached before may be away for as long. Raises ChannelTimeout with
        `what`, which says what has not come, if the limit is reached.
        """
        while True:
            try:
                if (seen := look()) is not None:
                    return seen
            except ServerUnreachable as error:
                server.outlast(error, limit.deadline)
            if limit.left_s <= 0:
                raise ChannelTimeout(f"{what} within {limit.seconds:g} s")
            time.sleep(self.config.poll_interval_s)

    def _published(
        self, server: Connection, round_id: str, timeout_s: float | None
    ) -> wire.Message:
        """Return a server's answer once the round is published.

        Raises RoundFailed, with the reason, if the round has failed.
        """

        def look() -> wire.Message | None:
            try:
                message = server.ask("result", {"round": round_id})
            except RoundFailed as error:
                raise RoundFailed(f"round {round_id} has no result: {error}") from None
            return None if message.fields["form"] == "pending" else message

        limit = self._limit(timeout_s)
        return self._wait(server, look, limit, f"round {round_id} was not published")


class Client(_Member):
    """A data owner's access to the service. Not for two threads at once."""

    def __init__(self, config: ClientConfig, **options: Any) -> None:
        super().__init__(config, **options)
        try:
            self._memory = Memory(Path(config.state_dir) if config.state_dir else None)
        except BaseException:
            super().close()
            raise
        if self._memory.rounds:
            # an earlier process has reached them
            for server in self.servers:
                server.reached = True
        # the id of the round last waited for: the next round has another id
        self._seen = ""
        # the round last waited for, until servers have an update for it or refuse it
        self._open: Round | None = None
        # what deals for a round that this object has seen, until an update is submitted to it
        self._dealer: Dealer | None = None
        # the id of the round last submitted to, which holds this client's upload
        self._submitted = ""
        # the latest rounds for which this object has shared an update, and the form of the update
        self._shared: dict[str, tuple[RoundParams, updates.Spec]] = {}
        # whether both servers have said which party they are
        self._parties_known = False

    def wait_for_round(self, timeout_s: float | None = None) -> Round:
        """Return the next open round that this object has not seen yet.

        It has the published model and range to train from. Where clients deal, this begins to deal
        in the background, while the caller trains.

        If `submitted` is set, the servers have an upload of this client already: there is nothing
        to train, and `result` waits for the round's result. An upload that was made before and has
        reached one server or none is sent first. If `dealing_lost` is set, the servers have a
        dealing from before a restart whose secrets this client has not kept: there is nothing to
        train either, because it cannot submit to this round.

        Raises ChannelTimeout if no round is opened within `timeout_s` (default: `wait_timeout_s` of
        the configuration).
        """
        limit = self._limit(timeout_s)
        while True:
            current = self._wait(
                self.servers[0], self._look_for_round, limit, "no new round was opened"
            )
            if (made := self._memory.submission(current.round_id)) is None:
                break
            try:
                self._send_again(made, limit.left_s)
                current = replace(current, submitted=True)
                break
            except _REFUSED as error:
                self._seen = current.round_id
                self.report(f"going on to the next round: {error}")
        self._open, self._seen = current, current.round_id
        if current.submitted:
            self._submitted = self._seen
        elif not current.dealing_lost:
            self._dealer_for(current)
        return current

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> Dealt:
        """Return the dealing for a round that `entropy` gives. It is called on another thread."""
        return dealing.deal(shape, entropy)

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return what the method of a round shares of a flat update (`clients.upload`)."""
        return upload.encode_update(vector, current)

    def close(self) -> None:
        """End what goes on in the background, and close all connections."""
        self._stop_dealing()
        self._memory.close()
        super().close()

    def submit(self, update: Any, round_id: str = "", progress: Progress = unseen) -> None:
        """Share the trained parameters between the servers.

        They go to the round `round_id`, by default to the round last waited for, or otherwise to
        the next one that opens. `update` is anything that `clients.update` takes. `progress` gets
        the bytes that have been sent and those in all, of the dealing and then of the upload.

        An update is shared once per round, because two sharings must not mix. A server that does
        not answer gets the same bytes again, for `retry_limit_s` of the configuration. If that ends
        with ServerUnreachable, another call with the same update goes on with them. If a server
        refuses them, this client is left out of the round, and the next call goes to the next one.

        Where clients deal, this waits for the dealing that `wait_for_round` has begun, or deals,
        and then sends the few bits that are left to send.

        Before the first upload both servers are asked which party they are. Raises ConfigError
        unless [s0] names S0 and [s1] names S1, InputError if the update does not fit the round,
        DuplicateUpload if this client has submitted to the round already or has dealt for it before
        a restart, RoundClosed if the round `round_id` is not open, and NotAllowed if the servers
        have found the dealing wrong.
        """
        vector, spec = updates.flatten(update)
        current = self._round_for(round_id)
        made = self._memory.submission(current.round_id)
        if made is None:
            self._check_free(current)
            values = self.encode(vector, current)
            self._check_parties()
        elif made.update != fingerprint(vector):
            raise DuplicateUpload(
                f"another update of yours is on its way to round {current.round_id}, which takes "
                "one: submit that one again, or wait for the next round"
            )
        try:
            if made is None:
                halves = self._halves(values, current, progress)
                made = Submission(
                    current.round_id, current.params.digest, fingerprint(vector), halves
                )
            self._remember(current, spec)
            self._memory.keep(made)
            self._stop_dealing()
            self._send(made, self.servers, self.config.retry_limit_s, progress)
        except _REFUSED:
            self._remember(current, spec)
            self._memory.forget(current.round_id)
            self._stop_dealing()
            self._open = None
            raise
        self._open = None

    def fit(
        self,
        model: Any,
        train: Callable[[Any], object],
        rounds: int | None = None,
        timeout_s: float | None = None,
        report: Report = _say,
        progress: Progress = unseen,
    ) -> int:
        """Take part in rounds with a model that is trained in place, and return in how many.

        In each round the published model is loaded into `model`, `train(model)` is called, the
        trained parameters are submitted, and the result (of the first rank) is loaded into
        `model`. With an optimiser, the model of the next round is another than this result. Where a
        round publishes no model, training starts from the parameters that `model` has. For a round
        that has an upload of this client already, from before a restart, `train` is not called.
        `report` gets a line per step, and `progress` what `submit` gives it.

        Ends after `rounds` rounds with a result, or, if that is None, when no round opens within
        `timeout_s` (default: `wait_timeout_s` of the configuration). A round without a result, or
        one that this client is left out of, is reported and does not count, and `model` gets back
        the parameters from which it was trained. Raises ChannelTimeout if fewer rounds than
        `rounds` come, and InputError if `model` does not fit the round.
        """
        with self._reporting(report):
            return self._fit(model, train, rounds, timeout_s, progress)

    @contextmanager
    def _reporting(self, report: Report) -> Iterator[None]:
        """Report to `report` within the context."""
        before, self.report = self.report, report
        try:
            yield
        finally:
            self.report = before

    def _fit(
        self,
        model: Any,
        train: Callable[[Any], object],
        rounds: int | None,
        timeout_s: float | None,
        progress: Progress,
    ) -> int:
        # whether `model` holds a result, which is known to the clients alone in some rounds
        trained = False
        done = 0
        while rounds is None or done < rounds:
            self.report("waiting for a round to open")
            try:
                current = self.wait_for_round(timeout_s)
            except ChannelTimeout as error:
                if rounds is not None:
                    raise
                self.report(f"{error}: the training ends after {done} rounds")
                return done
            name = f"round {current.round_id}"
            private = current.params.result_to == "clients"
            goes_on = private and trained and current.number > 1
            if current.model is not None and not goes_on:
                current.load_into(model)
            start, _ = updates.flatten(model)
            try:
                if current.submitted:
                    self.report(
                        f"{name}: an upload of yours is stored already, waiting for the result"
                    )
                else:
                    if not current.dealing_lost:
                        self.report(f"{name}: training")
                        train(model)
                    self.submit(model, current.round_id, progress)
                    self.report(f"{name}: submitted, waiting for the result")
                updates.load(self._vectors(current.round_id, None)[0], model)
            except _ROUND_LOST as error:
                updates.load(start, model)
                self.report(f"going on to the next round: {error}")
                continue
            trained = True
            done += 1
            self.report(f"{name}: the result is loaded")
        return done

    def _check_parties(self) -> None:
        """Raise ConfigError unless [s0] is party 0 and [s1] is party 1. Asks both once."""
        if not self._parties_known:
            ask_parties(self.servers, self.config.retry_limit_s)
            self._parties_known = True

    def _check_free(self, current: Round) -> None:
        """Raise DuplicateUpload if this client cannot make an upload for the round any more."""
        tried = current.round_id in self._shared
        if current.submitted or tried:
            self._open = None
            raise DuplicateUpload(
                f"an upload of yours for round {current.round_id} was "
                f"{'stored' if current.submitted else 'attempted'} already: "
                "wait for its result, or for the next round"
            )
        if current.dealing_lost:
            self._open = None
            raise DuplicateUpload(
                f"you dealt for round {current.round_id} before a restart, and the secrets of that "
                "dealing are lost: this round goes on without you, wait for the next one"
            )

    def _halves(
        self, values: NDArray[Any], current: Round, progress: Progress
    ) -> tuple[ShareHalf, ShareHalf]:
        """Return what S0 and S1 get of encoded values, once both have the dealing for them."""
        dealer = self._dealer_for(current)
        if dealer is None:
            return upload.split(values, current)
        return upload.rotate(dealer.join(progress), values)

    def _remember(self, current: Round, spec: updates.Spec) -> None:
        """Note that an update was shared for a round, and the form that it had."""
        self._seen, self._submitted = current.round_id, ""
        self._shared[current.round_id] = current.params, spec
        while len(self._shared) > _KEPT_ROUNDS:
            del self._shared[next(iter(self._shared))]

    def _send(
        self,
        made: Submission,
        servers: Sequence[Connection],
        patience_s: float,
        progress: Progress = unseen,
    ) -> None:
        """Send an upload to these servers, and forget it once they have acknowledged it."""
        total, before = sum(half.share.nbytes for half in made.halves), 0
        for server, half in zip(self.servers, made.halves, strict=True):
            if server in servers:
                fields = {"round": made.round_id, "params": made.params, "form": half.form}
                server.ask(
                    "upload",
                    fields,
                    {"share": half.share},
                    patience_s,
                    partial(_part_sent, progress, before, total),
                )
            before += half.share.nbytes
            progress(before, total)
        self._memory.forget(made.round_id)
        self._submitted = made.round_id

    def _send_again(self, made: Submission, patience_s: float) -> None:
        """Send an upload to the servers that lack it. Raises what they answer, and forgets it."""

        def lacks(server: Connection) -> bool:
            try:
                found = server.ask("round", patience_s=patience_s).fields
            except UnknownRound:
                return True
            return found["round"] != made.round_id or not found["submitted"]

        try:
            self._send(made, [server for server in self.servers if lacks(server)], patience_s)
        except _REFUSED:
            self._memory.forget(made.round_id)
            raise

    def _dealer_for(self, current: Round) -> Dealer | None:
        """Return what deals for a round, or None if nobody deals. It begins at the first call.

        One that got no answers begins anew, with the same dealing.
        """
        if (
            self._dealer
            and self._dealer.round_id == current.round_id
            and not self._dealer.unanswered
        ):
            return self._dealer
        self._stop_dealing()
        if shape := current.params.dealing:
            draw = self._memory.draw(current.round_id, current.params.digest, current.index)
            connections = self._connect()
            for connection, server in zip(connections, self.servers, strict=True):
                connection.reached = server.reached
            self._dealer = Dealer(
                # each server gets the half that it got the first time, whatever S0 says now
                replace(current, index=draw.index),
                shape,
                connections,
                lambda shape, current: self.deal(shape, current, draw.entropy()),
                self.config.retry_limit_s,
            )
        return self._dealer

    def _stop_dealing(self) -> None:
        if self._dealer:
            self._dealer.close()
            self._dealer = None

    def result(self, round_id: str = "", timeout_s: float | None = None) -> Any:
        """Wait for the result of a round, by default the one last submitted to, and return it.

        It has the form of the update, or is a flat vector if the update was submitted before a
        restart (`unflatten` gives it a form). Servers keep their last four rounds. Raises
        RoundFailed, with the reason, if there will be no result, UnknownRound if the servers do
        not know the round, and InputError if no round is named and none was submitted to.
        """
        return self.results(round_id, timeout_s)[0]

    def results(self, round_id: str = "", timeout_s: float | None = None) -> list[Any]:
        """Wait for all results of a round and return them.

        There is one per rank, in the order in which the coordinator asked for the ranks. Otherwise
        this is `result`.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        vectors = self._vectors(round_id, timeout_s)
        if round_id not in self._shared:
            return vectors
        spec = self._shared[round_id][1]
        return [updates.unflatten(vector, spec) for vector in vectors]

    def _vectors(self, round_id: str, timeout_s: float | None) -> list[NDArray[Any]]:
        """Wait for all results of a round and return them as flat vectors."""
        if round_id in self._shared:
            params = self._shared[round_id][0]
        else:
            status = self._status(round_id, self._limit(timeout_s).left_s)
            params = RoundParams.from_dict(status["params"])
        if params.result_to == "servers":
            return list(_results(self._published(self.servers[0], round_id, timeout_s)))
        answers = [self._published(server, round_id, timeout_s) for server in self.servers]
        one, other = (answer.arrays.get("share", np.empty(0)) for answer in answers)
        return [upload.combine(one, other, params)]

    def _submitted_before(self) -> str:
        """Return the id of the latest round if it holds an upload from before a restart.

        What a server lacks of it is sent first. Raises InputError if it does not.
        """
        try:
            found = self._latest(self.config.retry_limit_s)
        except UnknownRound:
            found = {}
        if made := self._memory.submission(found.get("round", "")):
            self._send_again(made, self.config.retry_limit_s)
        elif not found.get("submitted"):
            raise InputError(
                "there is no result to ask for before a submit(): "
                "name the round, as in result(round_id)"
            )
        return str(found["round"])

    def _latest(self, patience_s: float) -> dict[str, Any]:
        """Return what S0 says about the latest round. Raises UnknownRound if there is none."""
        return self.servers[0].ask("round", patience_s=patience_s).fields

    def _round_for(self, round_id: str) -> Round:
        """Return the open round to submit to, and wait for it if it is not named.

        Raises RoundClosed if it is named and not open.
        """
        if self._open and round_id in ("", self._open.round_id):
            return self._open
        if not round_id:
            return self.wait_for_round()
        found = self._latest(self.config.retry_limit_s)
        if found["round"] != round_id:
            raise RoundClosed(
                f"round {round_id} takes no uploads: the latest round is {found['round']}"
            )
        if found["state"] != "open":
            raise RoundClosed(f"round {round_id} is {found['state']} and takes no uploads")
        return self._round(found, self.config.retry_limit_s)

    def _look_for_round(self) -> Round | None:
        try:
            # `_wait` asks again where there is no answer
            found = self._latest(0.0)
            seen = found["round"] == self._seen and not self._memory.submission(self._seen)
            if found["state"] != "open" or seen:
                return None
            return self._round(found, 0.0)
        # there has been no round yet, or it has ended between the two requests
        except (UnknownRound, RoundClosed):
            return None

    def _round(self, found: dict[str, Any], patience_s: float) -> Round:
        """Return the round that S0 describes, with its model and range."""
        self._forget_ended(found["round"], patience_s)
        submitted = bool(found.get("submitted"))
        kept = found["round"] in self._memory.rounds
        published = self._published_for(found["round"], patience_s)
        return Round(
            found["round"],
            found["number"],
            RoundParams.from_dict(found["params"]),
            found["index"],
            published.model,
            published.scale,
            published.policy,
            submitted=submitted,
            dealing_lost=bool(found.get("dealt")) and not submitted and not kept,
        )

    def _forget_ended(self, latest: str, patience_s: float) -> None:
        """Delete what is kept for rounds before the latest, if they have ended."""
        for round_id in self._memory.rounds:
            if round_id == latest:
                continue
            try:
                state = self._status(round_id, patience_s)["state"]
            except UnknownRound:
                state = "forgotten"
            if state in ("published", "failed", "forgotten"):
                self._memory.forget(round_id)


class Coordinator(_Member):
    """The coordinator's access to the service. It asks S0, which leads and tells S1."""

    def open(
        self,
        params: RoundParams,
        model: NDArray[Any] | None = None,
        range_policy: RangePolicy | None = None,
        reset: bool = False,
        optimiser: Optimiser | None = None,
        request: str = "",
    ) -> str:
        """Open a round and return its id.

        A `request`, 32 hex digits that the caller draws, makes it safe to call this again when
        there was no answer: S0 answers the same request in the same way each time.

        A `model` (flat) starts a new training run, and so does `reset`; without them the last
        training run goes on. Without a `range_policy` or an `optimiser` the current one is kept.
        The optimiser makes the next round's model of this one's result.
        """
        arrays = {} if model is None else {"model": np.asarray(model, np.float32)}
        fields = {
            "params": params.to_dict(),
            "range": range_policy.to_dict() if range_policy else {},
            "optimiser": optimiser.to_dict() if optimiser else {},
            "reset": reset,
            "request": request,
        }
        return str(self.servers[0].ask("open", fields, arrays).fields["round"])

    def dim(self) -> int:
        """Return how many values the model has that S0 keeps, or otherwise the latest round.

        Raises ConfigError if S0 has neither.
        """
        dim = int(self.servers[0].ask("info").fields["dim"])
        if not dim:
            raise ConfigError(
                "S0 keeps no model: say how many values an update has, "
                "or give the model to start from (--dim N or --model FILE.npy)"
            )
        return dim

    def status(self, round_id: str = "") -> dict[str, Any]:
        """Return what S0 says about a round, by default the latest.

        This is its state and the reason for it, who is included and left out, progress and cost
        (docs/wire.md).
        """
        return self.servers[0].ask("status", {"round": round_id}).fields

    def close_round(self, round_id: str) -> None:
        """Close a round before its deadline, so that it runs with the complete uploads."""
        self.servers[0].ask("close", {"round": round_id})

    def abort(self, round_id: str, reason: str) -> None:
        """Fail a round on purpose. Everybody is told the reason."""
        self.servers[0].ask("abort", {"round": round_id, "reason": reason})

    def result(self, round_id: str, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for a round's result and return it: the published model.

        Raises RoundFailed, with the reason, if there will be none.
        """
        model: NDArray[np.float32] = self.results(round_id, timeout_s)[0]
        return model

    def results(self, round_id: str, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for all results of a round and return them, shape (ranks, d).

        They are in the order in which the ranks were asked for. Otherwise this is `result`.
        """
        return _results(self._published(self.servers[0], round_id, timeout_s))


def _results(message: wire.Message) -> NDArray[np.float32]:
    """Return the results in S0's answer. Raises PeerProtocolError if there are none."""
    results = message.arrays.get("results")
    if results is None or results.dtype != np.float32 or results.ndim != 2 or not len(results):
        raise PeerProtocolError("S0 published a result without a model in it")
    return np.asarray(results)
