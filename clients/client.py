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

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from securemedian.clients import results, upload
from securemedian.clients import update as updates
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Connection, Progress, Report, connect, unseen
from securemedian.clients.memory import Memory, Submission, fingerprint
from securemedian.clients.public import PublicSet
from securemedian.clients.results import Trainings
from securemedian.clients.sender import REFUSED, Sender
from securemedian.clients.upload import Round
from securemedian.mpc import dealing, wire
from securemedian.mpc.dealing import Dealing, Dealt
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    InputError,
    NotStored,
    PeerProtocolError,
    RoundClosed,
    RoundFailed,
    ServerUnreachable,
    UnknownRound,
)
from securemedian.mpc.exchange import Predictions
from securemedian.mpc.methods.base import Published
from securemedian.mpc.optimiser import Optimiser
from securemedian.mpc.params import RoundParams
from securemedian.mpc.prg import Entropy
from securemedian.mpc.ranges.base import RangePolicy
from securemedian.mpc.training import Training, finish
from securemedian.settings.keys import load_keys
from securemedian.settings.public_metrics import check_public_metrics
from securemedian.settings.receipts import Receipt

T = TypeVar("T")

# the rounds whose results a client can give the form of its update: servers keep no more of them
_KEPT_ROUNDS = 4
# what costs a client one round, and nothing beyond it
_ROUND_LOST = (*REFUSED, NotStored, ServerUnreachable)


_log = logging.getLogger("securemedian")


def _say(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class _Shared:
    """A round for which an update was shared."""

    params: RoundParams
    # the form of the update, or None if an earlier process made it
    spec: updates.Spec | None
    # the digest of the training run that it was trained from
    start: bytes
    # the group it is for, 0-based, or None if an earlier process chose it
    group: int | None


def _group_of(current: Round, group: int | None) -> int:
    """Return the group that an update is for. Raises InputError if it must be said and is not."""
    if group is None:
        if current.params.method.groups > 1:
            raise InputError(
                f"round {current.round_id} has {current.params.method.groups} groups: say which "
                "one's model you have trained (group, from Round.choose)"
            )
        return 0
    current.of_group(group)
    return group


def _chosen(current: Round, model: Any, loss: Callable[[Any], float] | None) -> int:
    """Return the group whose model has the smallest loss, which `model` is used to compute."""
    if current.params.method.groups == 1:
        return 0
    if loss is None:
        raise InputError(
            f"round {current.round_id} has {current.params.method.groups} groups: give fit() the "
            "function `loss`, which says how well a model fits your data"
        )

    def loss_of(vector: NDArray[np.float32]) -> float:
        updates.load(vector, model)
        return loss(model)

    return current.choose(loss_of)


def _check_same(made: Submission, vector: NDArray[Any], group: int) -> None:
    """Raise DuplicateUpload unless an upload is that of this flat update for this group."""
    if made.update != fingerprint(vector, group):
        raise DuplicateUpload(
            f"another update of yours is on its way to round {made.round_id}, which takes one: "
            "submit that one again, or wait for the next round"
        )


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
        self._trainings = Trainings()
        # which server is asked for values: one or the other, as the key has it, so that both
        # servers' links carry the same load
        self._source = self._keys.public[-1] % 2
        # of the round whose results were fetched last, the groups without one
        self._kept_groups: tuple[str, list[int]] = "", []

    def _connect(self) -> tuple[Connection, ...]:
        """Return new connections to S0 and S1."""
        return connect(self.config, self._keys, report=lambda text: self.report(text))

    @classmethod
    def from_config(cls, path: str | Path, training: str = "", **options: Any) -> Self:
        """Return a member that connects as a TOML configuration says.

        A `training` replaces the one that the configuration names. `options` are those of the
        constructor. Raises ConfigError if there is a mistake in the configuration or the key file.
        """
        return cls(ClientConfig.load(path, training), **options)

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

    def name(self) -> str:
        """Return the name that this side's key has at S0."""
        answer = self.servers[0].ask("info", patience_s=self.config.retry_limit_s)
        return str(answer.fields["name"])

    def model(self, round_id: str) -> Published:
        """Return what S0 published for a round: the global model, and how the buckets lie.

        Only rounds on buckets have a scale and a policy; other rounds may have no model either.
        """
        patience_s = self.config.retry_limit_s
        status = self._status(round_id, patience_s)
        training = self._training(round_id, bytes.fromhex(status["start"]), patience_s)
        return training.published_for(RoundParams.from_dict(status["params"]))

    def receipt(self, round_id: str, timeout_s: float | None = None) -> Receipt:
        """Wait for a round's result and return its receipt, with the signatures of both servers.

        Raises what `results` raises.
        """
        limit = self._limit(timeout_s)
        answers = self._answers(round_id, limit, values=False)
        return self._checked(round_id, answers, self._params(round_id, limit.left_s))

    def _training(self, round_id: str, digest: bytes, patience_s: float) -> Training:
        """Return the training run that a round starts from, which has this digest.

        It is downloaded unless it is kept here. Raises ReceiptInvalid if S0 sends another one.
        """
        training = self._trainings.find(digest)
        if training is None:
            answer = self.servers[0].ask("model", {"round": round_id}, patience_s=patience_s)
            training = results.training_of(answer, round_id, digest)
        self._trainings.keep(training)
        return training

    def _params(self, round_id: str, patience_s: float) -> RoundParams:
        """Return the parameters that a server gives for a round, to be compared with its record."""
        try:
            status = self._status(round_id, 0.0)
        except ServerUnreachable:
            answer = self.servers[1].ask("status", {"round": round_id}, patience_s=patience_s)
            status = answer.fields
        return RoundParams.from_dict(status["params"])

    def _checked(
        self, round_id: str, answers: Mapping[int, wire.Message], params: RoundParams
    ) -> Receipt:
        """Return the receipt in the answers, which fits the round as this side knows it."""
        signing_keys = [self.config.s0.signing_key, self.config.s1.signing_key]
        receipt = results.agreed(answers, signing_keys)
        results.check_record(
            receipt.record, self.config.training, round_id, params, *self._trained(round_id)
        )
        return receipt

    def _trained(self, round_id: str) -> tuple[bytes | None, str]:
        """Return the digest of what this side trained from for a round, and its own public key.

        Each is empty where it has not trained, or both servers have not confirmed its upload.
        """
        return None, ""

    def _fetch(
        self, round_id: str, limit: _Limit, params: RoundParams
    ) -> NDArray[np.float32] | NDArray[np.float64]:
        """Wait for all results of a round and return them, checked, shape (results, d).

        Those of a round that is for the clients alone are float64.
        """
        if params.result_to != "clients":
            # the new model may be a part of them
            return self._finish(round_id, limit, params)[1].copy()
        answers = self._answers(round_id, limit, both=True)
        record = self._checked(round_id, answers, params).record
        if start := self._trainings.find(record.start):
            self._trainings.keep(start.counted())
        one, other = (answers[party].arrays.get("share", np.empty(0)) for party in (0, 1))
        return upload.combine(one, other, params)[None]

    def _finish(
        self, round_id: str, limit: _Limit, params: RoundParams
    ) -> tuple[Training, NDArray[np.float32]]:
        """Wait for what a round has opened, and return the training run after it and its results.

        Both are checked; the results have shape (results, d).
        """
        answers = self._answers(round_id, limit)
        record = self._checked(round_id, answers, params).record
        start = self._training(round_id, record.start, limit.left_s)
        party = next((party for party in answers if answers[party].arrays), 0)
        opened = results.opened_of(answers[party], party, record, params)
        total = results.total_of(record, params)
        after, published = finish(start, params, opened, total, record.groups)
        with_result = params.published_groups(opened, record.groups)
        every = range(params.method.groups)
        self._kept_groups = round_id, [group for group in every if group not in with_result]
        self._trainings.keep(after)
        return after, published

    def public_metrics(self, round_id: str) -> dict[str, dict[str, float]]:
        """Return the public metrics that clients have sent along, by the name of the client.

        They are what the clients claim: S0 passes them on, and nobody vouches for them.
        """
        fields, patience_s = {"round": round_id}, self.config.retry_limit_s
        answer = self.servers[0].ask("metrics", fields, patience_s=patience_s)
        try:
            said = json.loads(answer.arrays["metrics"].tobytes())
            return {name: check_public_metrics(metrics) for name, metrics in said.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise PeerProtocolError(
                f"S0 sent no public metrics of round {round_id}: {error!r:.200}"
            ) from error

    def kept_groups(self, round_id: str, timeout_s: float | None = None) -> list[int]:
        """Return the groups, 0-based, without a result: fewer than `min_clients` chose them.

        Their models stay, and `results` has these in their place. Waits as `results` does.
        """
        if self._kept_groups[0] != round_id:
            limit = self._limit(timeout_s)
            self._fetch(round_id, limit, self._params(round_id, limit.left_s))
        return list(self._kept_groups[1])

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

    def _answers(
        self, round_id: str, limit: _Limit, values: bool = True, both: bool = False
    ) -> dict[int, wire.Message]:
        """Return the answers by party once a round is published, of both servers if they are there.

        One of them has the values if `values`, and with `both` the other one as well: then both
        servers must answer. Otherwise one is enough, because it has the signatures of both. S0
        leads, so that it is waited for, and if it is away S1. Raises RoundFailed, with the reason,
        if the round has failed.
        """
        what = f"round {round_id} was not published"

        def ask(party: int, wanted: bool) -> dict[int, wire.Message] | None:
            fields = {"round": round_id, "values": wanted}
            try:
                message = self.servers[party].ask("result", fields)
            except RoundFailed as error:
                raise RoundFailed(f"round {round_id} has no result: {error}") from None
            return None if message.fields["form"] == "pending" else {party: message}

        def first() -> dict[int, wire.Message] | None:
            try:
                return ask(0, both or (values and self._source == 0))
            except (ServerUnreachable, UnknownRound) as error:
                try:
                    return ask(1, values)
                except (ServerUnreachable, UnknownRound):
                    raise error from None

        answers = self._wait(self.servers[0], first, limit, what)
        (party,) = answers

        def second() -> dict[int, wire.Message] | None:
            try:
                return ask(1 - party, both or (values and not answers[party].arrays))
            except (ServerUnreachable, UnknownRound, RoundFailed):
                if both:
                    raise
                return {}

        answers |= self._wait(self.servers[1 - party], second, limit, what)
        if values and not any(answer.arrays for answer in answers.values()):
            answers |= ask(party, values) or {}
        return answers


class Client(_Member):
    """A data owner's access to the service. Not for two threads at once."""

    def __init__(
        self, config: ClientConfig, public: PublicSet | None = None, **options: Any
    ) -> None:
        """Connect as `config` says, with a `public` set for rounds that exchange predictions."""
        super().__init__(config, **options)
        self.public = public
        try:
            memory = Memory(config.state_folder)
        except BaseException:
            super().close()
            raise
        self._sender = Sender(
            memory,
            self.servers,
            self._connect,
            lambda *given: self.deal(*given),
            config.retry_limit_s,
        )
        # the id of the round last waited for: the next round has another id
        self._seen = ""
        # the round last waited for, until servers have an update for it or refuse it
        self._open: Round | None = None
        # the id of the round last submitted to, which holds this client's upload
        self._submitted = ""
        # the latest rounds for which this object has shared an update
        self._shared: dict[str, _Shared] = {}

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
        the configuration), and ConfigError if the round exchanges predictions on a public set that
        this client does not have.
        """
        limit = self._limit(timeout_s)
        while True:
            current = self._wait(
                self.servers[0],
                self._look_for_round,
                limit,
                "no new round was opened for this client",
            )
            if (made := self._sender.made(current.round_id)) is None:
                break
            try:
                self._send(made, current.params, patience_s=limit.left_s, again=True)
                current = replace(current, submitted=True)
                break
            except REFUSED as error:
                self._seen = current.round_id
                self.report(f"going on to the next round: {error}")
        if not current.submitted:
            self._check_public(current)
        self._open, self._seen = current, current.round_id
        if current.submitted:
            self._submitted = self._seen
        elif not current.dealing_lost:
            self._sender.begin(current)
        return current

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> Dealt:
        """Return the dealing for a round that `entropy` gives. It is called on another thread."""
        return dealing.deal(shape, entropy)

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return what the method of a round shares of a flat update (`clients.upload`)."""
        return upload.encode_update(vector, current)

    def close(self) -> None:
        """End what goes on in the background, and close all connections."""
        self._sender.close()
        super().close()

    def submit(
        self,
        update: Any,
        round_id: str = "",
        progress: Progress = unseen,
        public_metrics: Mapping[str, float] | None = None,
        group: int | None = None,
    ) -> None:
        """Share the trained parameters between the servers.

        They go to the round `round_id`, by default to the round last waited for, or otherwise to
        the next one that opens. `update` is anything that `clients.update` takes. `progress` gets
        the bytes that have been sent and those in all, of the dealing and then of the upload.

        An update is shared once per round, because two sharings must not mix. A server that does
        not answer gets the same bytes again, for `retry_limit_s` of the configuration. If that ends
        with ServerUnreachable, another call with the same update goes on with them. If a server
        refuses them, this client is left out of the round, and the next call goes to the next one.

        `public_metrics` are finite numbers by name, such as that of the examples and the loss. They
        go to S0 in the clear, before the upload, and everybody who takes part in the training may
        read them (the method `public_metrics`). A round takes them once, and goes on without them
        if S0 refuses them, which is reported.

        Where clients deal, this waits for the dealing that `wait_for_round` has begun, or deals,
        and then sends the few bits that are left to send.

        In a round of several groups `group` is the one, 0-based, whose model was trained
        (`Round.choose`). Nobody else learns it, unless `membership` is visible.

        Before the first upload both servers are asked which party they are. Raises ConfigError
        unless [s0] names S0 and [s1] names S1, and if the round exchanges predictions on a public
        set that this client does not have, InputError if the update does not fit the round,
        DuplicateUpload if this client has submitted to the round already or has dealt for it before
        a restart, RoundClosed if the round `round_id` is not open, and NotAllowed if the servers
        have found the dealing wrong.
        """
        vector, spec = updates.flatten(update)
        metrics = check_public_metrics(public_metrics or {})
        current = self._round_for(round_id)
        self._check_form(spec, current)
        group = _group_of(current, group)
        made = self._sender.made(current.round_id)
        again = made is not None
        if made is not None:
            _check_same(made, vector, group)
        try:
            if made is None:
                self._check_free(current)
                values = self.encode(vector, current.of_group(group))
                values = current.params.method.in_group(values, group)
                made = self._sender.make(vector, values, current, progress, group)
            if metrics:
                self._tell(current.round_id, metrics)
            self._send(made, current.params, spec, group, progress=progress, again=again)
        except REFUSED:
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
        public_metrics: Callable[[Any], Mapping[str, float]] | None = None,
        loss: Callable[[Any], float] | None = None,
    ) -> int:
        """Take part in rounds with a model that is trained in place, and return in how many.

        In each round the published model is loaded into `model`, `train(model)` is called, the
        trained parameters are submitted, and the result (of the first rank) is loaded into
        `model`. With an optimiser, the model of the next round is another than this result. Where a
        round publishes no model, training starts from the parameters that `model` has. For a round
        that has an upload of this client already, from before a restart, `train` is not called.
        `report` gets a line per step, and `progress` what `submit` gives it. `public_metrics` is
        called with the trained model, and what it returns is sent along in the clear (`submit`).

        In rounds of several groups each published model is loaded into `model` in turn, and the one
        with the smallest `loss(model)` on this client's own data is trained (`Round.choose`); the
        result is that of its group. If that has fewer than `min_clients`, this is reported and its
        model stays.

        Ends after `rounds` rounds with a result, or, if that is None, when no round opens within
        `timeout_s` (default: `wait_timeout_s` of the configuration). A round without a result, or
        one that this client is left out of, is reported and does not count, and `model` gets back
        the parameters from which it was trained. Raises ChannelTimeout if fewer rounds than
        `rounds` come, InputError if `model` does not fit the round, and ConfigError if the round
        does not exchange parameters.
        """
        with self._reporting(report):
            return self._fit(model, train, rounds, timeout_s, progress, public_metrics, loss)

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
        public_metrics: Callable[[Any], Mapping[str, float]] | None,
        loss: Callable[[Any], float] | None,
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
            if current.params.exchange.fixed is not None:
                raise ConfigError(
                    f"{name} exchanges {current.params.exchange.name}, and fit() parameters: "
                    "call wait_for_round(), submit() and result() in a loop of your own"
                )
            private = current.params.result_to == "clients"
            goes_on = private and trained and current.number > 1
            group = _chosen(current, model, loss)
            mine = current.of_group(group)
            if mine.model is not None and not goes_on:
                mine.load_into(model)
            start, _ = updates.flatten(model)
            try:
                if current.submitted:
                    self.report(
                        f"{name}: an upload of yours is stored already, waiting for the result"
                    )
                else:
                    metrics: Mapping[str, float] = {}
                    if not current.dealing_lost:
                        self.report(f"{name}: training")
                        train(model)
                        metrics = public_metrics(model) if public_metrics else {}
                    self.submit(model, current.round_id, progress, metrics, group)
                    self.report(f"{name}: submitted, waiting for the result")
                vectors = self._vectors(current.round_id, None)
                updates.load(vectors[group], model)
            except _ROUND_LOST as error:
                updates.load(start, model)
                self.report(f"going on to the next round: {error}")
                continue
            trained = True
            done += 1
            stays = group in self.kept_groups(current.round_id)
            self.report(
                f"{name}: too few clients have chosen group {group}, its model stays"
                if stays
                else f"{name}: the result is loaded"
            )
        return done

    def _tell(self, round_id: str, metrics: dict[str, float]) -> None:
        """Send public metrics to S0, and report it if it does not take them.

        Raises ServerUnreachable if S0 does not answer.
        """
        fields, patience_s = {"round": round_id, "metrics": metrics}, self.config.retry_limit_s
        try:
            self.servers[0].ask("tell", fields, patience_s=patience_s)
        except (DuplicateUpload, NotStored) as error:
            self.report(f"round {round_id} goes on without these public metrics: {error}")

    def _check_form(self, spec: updates.Spec, current: Round) -> None:
        """Raise an error unless an update of this form is what the clients of a round exchange."""
        self._check_public(current)
        current.params.exchange.check_shape(spec.shapes, current.params.dim)

    def _check_public(self, current: Round) -> None:
        """Raise ConfigError unless this client has the public set of a round that is about one."""
        exchange = current.params.exchange
        if isinstance(exchange, Predictions):
            if self.public is None:
                raise ConfigError(
                    f"round {current.round_id} exchanges predictions on a public set, and this "
                    "client has none: give it one (Client(config, public=..) or --public DIR)"
                )
            self.public.check(exchange)

    def _check_free(self, current: Round) -> None:
        """Raise DuplicateUpload if this client cannot make an upload for the round any more."""
        tried = current.round_id in self._shared
        if current.submitted or tried:
            raise DuplicateUpload(
                f"an upload of yours for round {current.round_id} was "
                f"{'stored' if current.submitted else 'attempted'} already: "
                "wait for its result, or for the next round"
            )
        if current.dealing_lost:
            raise DuplicateUpload(
                f"you dealt for round {current.round_id} before a restart, and the secrets of that "
                "dealing are lost: this round goes on without you, wait for the next one"
            )

    def _send(
        self,
        made: Submission,
        params: RoundParams,
        spec: updates.Spec | None = None,
        group: int | None = None,
        **options: Any,
    ) -> None:
        """Send an upload (`Sender.send`), and note what its result will have to fit."""
        self._seen, self._submitted = made.round_id, ""
        if spec is not None or made.round_id not in self._shared:
            self._shared[made.round_id] = _Shared(params, spec, made.start, group)
        while len(self._shared) > _KEPT_ROUNDS:
            del self._shared[next(iter(self._shared))]
        self._sender.send(made, **options)
        self._submitted = made.round_id

    def result(self, round_id: str = "", timeout_s: float | None = None) -> Any:
        """Wait for the result of a round, by default the one last submitted to, and return it.

        It has the form of the update, or is a flat vector if the update was submitted before a
        restart (`unflatten` gives it a form). Servers keep their last four rounds. Raises
        RoundFailed, with the reason, if there will be no result, UnknownRound if the servers do
        not know the round, and InputError if no round is named and none was submitted to.

        In a round of several groups it is that of the group submitted to. Raises InputError if an
        earlier process chose it: `results` has all of them.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        results = self.results(round_id, timeout_s)
        if len(results) == 1 or round_id not in self._shared:
            return results[0]
        shared = self._shared[round_id]
        if shared.params.method.groups == 1:
            return results[0]
        if shared.group is None:
            raise InputError(
                f"the group of your upload for round {round_id} was chosen before a restart: "
                "take it from results()"
            )
        return results[shared.group]

    def results(self, round_id: str = "", timeout_s: float | None = None) -> list[Any]:
        """Wait for all results of a round and return them.

        There is one per rank, in the order in which the coordinator asked for the ranks, or one per
        group: of a group without a result (`kept_groups`) the model that stays. Otherwise this is
        `result`.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        vectors = self._vectors(round_id, timeout_s)
        if round_id not in self._shared:
            return vectors
        if (spec := self._shared[round_id].spec) is None:
            return vectors
        return [updates.unflatten(vector, spec) for vector in vectors]

    def _vectors(self, round_id: str, timeout_s: float | None) -> list[NDArray[Any]]:
        """Wait for all results of a round and return them as flat vectors."""
        limit = self._limit(timeout_s)
        if round_id in self._shared:
            params = self._shared[round_id].params
        else:
            params = self._params(round_id, limit.left_s)
        return list(self._fetch(round_id, limit, params))

    def _trained(self, round_id: str) -> tuple[bytes | None, str]:
        if round_id not in self._shared:
            return None, ""
        confirmed = round_id == self._submitted
        return self._shared[round_id].start, self._keys.public.decode() if confirmed else ""

    def _submitted_before(self) -> str:
        """Return the id of the latest round if it holds an upload from before a restart.

        What a server lacks of it is sent first. Raises InputError if it does not.
        """
        try:
            found = self._latest(self.config.retry_limit_s)
        except UnknownRound:
            found = {}
        if made := self._sender.made(found.get("round", "")):
            self._send(made, RoundParams.from_dict(found["params"]), again=True)
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
        return self._round(found, self.config.retry_limit_s, trained=True)

    def _look_for_round(self) -> Round | None:
        try:
            # `_wait` asks again where there is no answer
            found = self._latest(0.0)
            seen = found["round"] == self._seen and not self._sender.made(self._seen)
            if found["state"] != "open" or seen:
                return None
            return self._round(found, 0.0)
        # there has been no round yet, or it has ended between the two requests
        except (UnknownRound, RoundClosed):
            return None

    def _round(self, found: dict[str, Any], patience_s: float, trained: bool = False) -> Round:
        """Return the round that S0 describes, with its model and range.

        If the caller has `trained` already, it gets no model that the upload does not need.
        """
        self._forget_ended(found["round"], patience_s)
        submitted = bool(found.get("submitted"))
        kept = found["round"] in self._sender.rounds
        params = RoundParams.from_dict(found["params"])
        start, published = bytes.fromhex(found["start"]), Published(None)
        # otherwise everybody knows what the values lie around, and there is no model
        of_model = params.exchange.fixed is None
        if of_model and (params.uses_model or not trained):
            training = self._training(found["round"], start, patience_s)
            published = training.published_for(params)
        return Round(
            found["round"],
            found["number"],
            params,
            found["index"],
            published.model,
            published.scale,
            published.policy,
            published.groups,
            start,
            submitted=submitted,
            dealing_lost=bool(found.get("dealt")) and not submitted and not kept,
        )

    def _forget_ended(self, latest: str, patience_s: float) -> None:
        """Delete what is kept for rounds before the latest, if they have ended."""
        for round_id in self._sender.rounds:
            if round_id == latest:
                continue
            try:
                state = self._status(round_id, patience_s)["state"]
            except UnknownRound:
                state = "forgotten"
            if state in ("published", "failed", "forgotten"):
                self._sender.forget(round_id)


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
        keep_range: bool = False,
        participants: Sequence[str] | None = None,
    ) -> str:
        """Open a round and return its id.

        If S0 is away for a while, it is asked again, and opens one round only. With a `request`, 32
        hex digits that the caller draws and keeps, the caller can do so, too, when there was no
        answer, or after its own restart: S0 answers a request in the same way each time.

        A `model` (flat) starts a new training run, and so does `reset`; without them the last
        training run goes on. With `keep_range` it goes on as well, with the `model` in place of its
        own. Without a `range_policy` or an `optimiser` the current one is kept.
        The optimiser makes the next round's model of this one's result.

        `participants` are the names of clients, as S0 has them. Only they can take part then, and
        the round closes by itself once all of them have uploaded. Raises ConfigError if S0 does not
        know all of them, or if they are fewer than the round or a server asks for.
        """
        if participants is not None and not participants:
            raise ConfigError("`participants` is empty: leave it out for a round of all clients")
        arrays = {} if model is None else {"model": np.asarray(model, np.float32)}
        fields = {
            "params": params.to_dict(),
            "range": range_policy.to_dict() if range_policy else {},
            "optimiser": optimiser.to_dict() if optimiser else {},
            "reset": reset,
            "keep_range": keep_range,
            "request": request or os.urandom(16).hex(),
            "participants": list(participants or ()),
        }
        answer = self.servers[0].ask("open", fields, arrays, self.config.retry_limit_s)
        return str(answer.fields["round"])

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
        """Wait for a round's result and return it: the published model, or one row per group.

        Raises RoundFailed, with the reason, if there will be none.
        """
        limit = self._limit(timeout_s)
        params = self._params(round_id, limit.left_s)
        fetched = np.asarray(self._fetch(round_id, limit, params), np.float32)
        model: NDArray[np.float32] = fetched if params.method.groups > 1 else fetched[0]
        return model

    def results(self, round_id: str, timeout_s: float | None = None) -> NDArray[np.float32]:
        """Wait for all results of a round and return them, shape (ranks or groups, d).

        They are in the order in which the ranks were asked for, or in that of the groups. Otherwise
        this is `result`.
        """
        limit = self._limit(timeout_s)
        fetched = self._fetch(round_id, limit, self._params(round_id, limit.left_s))
        return np.asarray(fetched, np.float32)

    def outcome(
        self, round_id: str, timeout_s: float | None = None
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Wait for a round's result, and return the model that the next round starts from with it.

        The model has shape (d,). It is the first of the results, shape (ranks, d), unless the round
        has an optimiser. With several groups both have a row per group. Raises what `results`
        raises, and ConfigError where the round exchanges no parameters.
        """
        limit = self._limit(timeout_s)
        after, published = self._finish(round_id, limit, self._params(round_id, limit.left_s))
        models = after.models
        if not models:
            raise ConfigError(f"round {round_id} has no model: ask for its results")
        return np.stack(models) if after.groups else models[0].copy(), published.copy()
