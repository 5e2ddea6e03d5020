"""The Python interface of a data owner: `Client` submits updates and receives results.

    with Client.from_config("client.toml") as client:
        # in every round: load its model, train, submit, load the result
        client.fit(model, train)

`Client.wait_for_round`, `submit` and `result` are its steps, for a loop of your own.

An update is the *trained parameters*, not their difference to the published model, because the
buckets of a bucketed round lie around that model.

A server that is away, or a lost connection, costs time but no round: a request without an answer is
repeated with the same bytes (`clients.journal`). With a `state_dir` this also holds for a client
that is restarted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from securemedian.clients import fit, upload
from securemedian.clients import update as updates
from securemedian.clients.config import ClientConfig
from securemedian.clients.connection import Progress, Report, unseen
from securemedian.clients.journal import ROUNDS_RETAINED, Journal, Sent, Submission, fingerprint
from securemedian.clients.lookup import Lookup
from securemedian.clients.member import Member
from securemedian.clients.public import PublicSet
from securemedian.clients.sender import REFUSED, Sender
from securemedian.clients.upload import Round, check_group
from securemedian.common.public_metrics import check_public_metrics
from securemedian.mpc.errors import (
    ConfigError,
    DuplicateUpload,
    InputError,
    NotStored,
    UnknownRound,
)
from securemedian.mpc.protocols import dealing
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import Entropy
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.params import RoundParams


def _say(text: str) -> None:
    print(text, flush=True)


@dataclass(frozen=True)
class _Shared:
    """A round for which an update was shared."""

    params: RoundParams
    # the form of the update, or None if an earlier process made it
    spec: updates.Spec | None
    # the digest of the run that it was trained from
    start: bytes


def _group_of(current: Round, group: int | None) -> int:
    """Return the group that an update is for. Raises InputError if it must be given and is not."""
    if group is None:
        if current.params.method.groups > 1:
            raise InputError(
                f"round {current.round_id} has {current.params.method.groups} groups: say which "
                "one's model you have trained (group, from Round.choose)"
            )
        return 0
    check_group(current.round_id, current.params.method.groups, group)
    return group


def _check_same(made: Submission, vector: NDArray[Any], group: int) -> None:
    """Raise DuplicateUpload unless an upload is that of this flat update for this group."""
    if made.update != fingerprint(vector, group):
        raise DuplicateUpload(
            f"another update of yours is on its way to round {made.round_id}, which takes one: "
            "submit that one again, or wait for the next round"
        )


class Client(Member):
    """A data owner's access to the service. Not for two threads at once."""

    def __init__(
        self, config: ClientConfig, public: PublicSet | None = None, **options: Any
    ) -> None:
        """Connect as `config` says, with a `public` set for rounds that exchange predictions."""
        super().__init__(config, trained=self._trained, **options)
        self.public = public
        try:
            self._journal = Journal(config.state_folder)
        except BaseException:
            super().close()
            raise
        self._lookup = Lookup(self.service, self.outcomes, self._journal)
        self._sender = Sender(self._journal, self.service, lambda *given: self.deal(*given))
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
        dealing from before a restart whose secrets this client has lost: it cannot submit to this
        round, so there is nothing to train either.

        Raises ChannelTimeout if no round is opened within `timeout_s` (default: `wait_timeout_s` of
        the configuration), and ConfigError if the round exchanges predictions on a public set that
        this client does not have.
        """
        limit = self.service.limit(timeout_s)
        while True:
            current = self.service.wait(
                0,
                lambda: self._lookup.new(self._seen),
                limit,
                "no new round was opened for this client",
            )
            if (made := self._journal.submission(current.round_id)) is None:
                break
            try:
                self._send(made, current.params, None, patience_s=limit.left_s, again=True)
                current = replace(current, submitted=True)
                break
            except REFUSED as error:
                self._seen = current.round_id
                self.service.report(f"going on to the next round: {error}")
        if not current.submitted:
            self._check_takes_part(current)
        self._open, self._seen = current, current.round_id
        if current.submitted:
            self._submitted = self._seen
        elif not current.dealing_lost:
            self._sender.begin(current)
        return current

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> OwnDealing:
        """Return the dealing for a round that `entropy` gives. It is called on another thread."""
        return dealing.deal(shape, entropy)

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return what the method of a round shares of a flat update (`clients.upload`)."""
        return upload.encode_update(vector, current)

    def close(self) -> None:
        """End background work, and close all connections."""
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
        go to S0 in the clear, before the upload, and everybody who takes part in the cohort may
        read them (the method `public_metrics`). A round takes them once, and goes on without them
        if S0 refuses them, which is reported.

        Where clients deal, this waits for the dealing that `wait_for_round` has begun, or deals,
        and then sends the remaining few bits.

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
        made = self._journal.submission(current.round_id)
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
            self._send(made, current.params, spec, progress=progress, again=again)
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
        with self.service.reporting(report):
            return fit.fit(
                self, model, train, rounds, timeout_s, report, progress, public_metrics, loss
            )

    def _tell(self, round_id: str, metrics: dict[str, float]) -> None:
        """Send public metrics to S0, and report it if it does not take them."""
        try:
            self.service.ask("tell", {"round": round_id, "metrics": metrics})
        except (DuplicateUpload, NotStored) as error:
            self.service.report(f"round {round_id} goes on without these public metrics: {error}")

    def _check_form(self, spec: updates.Spec, current: Round) -> None:
        """Raise an error unless an update of this form is what the clients of a round exchange."""
        self._check_takes_part(current)
        current.params.exchange.check_shape(spec.shapes, current.params.dim)

    def _check_takes_part(self, current: Round) -> None:
        """Raise ConfigError unless this client can be in a round, and its configuration lets it.

        It needs the public set of a round that is about one. SECURITY: both servers see the whole
        update of a validator, whom the coordinator alone names.
        """
        validator = getattr(current.params.method, "validator", "")
        if validator == self.service.keys.public.decode() and not self.config.validator:
            raise ConfigError(
                f"round {current.round_id} names this client its validator, and both servers would "
                "see its whole update: to allow that, set validator = true in client.toml"
            )
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
        tried = current.round_id in self._shared or self._journal.confirmed(current.round_id)
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
        spec: updates.Spec | None,
        **options: Any,
    ) -> None:
        """Send an upload (`Sender.send`), and note the start and form for its result."""
        self._seen, self._submitted = made.round_id, ""
        if spec is not None or made.round_id not in self._shared:
            self._shared[made.round_id] = _Shared(params, spec, made.start)
        while len(self._shared) > ROUNDS_RETAINED:
            del self._shared[next(iter(self._shared))]
        self._sender.send(made, **options)
        self._submitted = made.round_id

    def result(
        self, round_id: str = "", timeout_s: float | None = None, group: int | None = None
    ) -> Any:
        """Wait for the result of a round, by default the one last submitted to, and return it.

        It has the form of the update, or is a flat vector if the update was submitted before a
        restart (`unflatten` gives it a form). Servers keep their last four rounds. Raises
        RoundFailed, with the reason, if there will be no result, UnknownRound if the servers do
        not know the round, and InputError if no round is named and none was submitted to.

        In a round of several groups it is that of `group`, 0-based, by default the one submitted
        to. Raises InputError if there is no such group, or this client does not know which one it
        has submitted to: it knows that after a restart, too, if it has a `state_dir`.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        params, vectors = self._fetched(round_id, timeout_s)
        return self._formed(round_id, vectors[self._wanted(round_id, params, group)])

    def results(self, round_id: str = "", timeout_s: float | None = None) -> list[Any]:
        """Wait for all results of a round and return them.

        There is one per rank, in the order in which the coordinator asked for the ranks, or one per
        group: of a group without a result (`unchanged_groups`) the model that stays. Otherwise this
        is `result`.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        _, vectors = self._fetched(round_id, timeout_s)
        return [self._formed(round_id, vector) for vector in vectors]

    @property
    def sent(self) -> list[Sent]:
        """Return this client's latest uploads, also those of an earlier process, the oldest first.

        These are uploads that both servers have, for at most the four latest rounds.
        """
        return self._journal.sent

    def chosen_group(self, round_id: str) -> int | None:
        """Return the group, 0-based, of this client's upload for a round, or None if it is unknown.

        With a `state_dir` that of an earlier process is known, too.
        """
        known = self._journal.submission(round_id) or self._journal.confirmed(round_id)
        return known.group if known else None

    def store(self, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store something of your own, in place of what was stored before (`stored`).

        That may be a network that nobody else sees, in rounds that exchange predictions: arrays by
        name, and in `fields` texts and numbers about them. With a `state_dir` they outlast the
        process. Raises ConfigError if they cannot be written.
        """
        self._journal.keep_own(fields, arrays)

    @property
    def stored(self) -> tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the fields and arrays that were stored last, none of which must be changed.

        Both are empty if there are none.
        """
        return self._journal.own.fields, self._journal.own.arrays

    def _fetched(
        self, round_id: str, timeout_s: float | None
    ) -> tuple[RoundParams, list[NDArray[Any]]]:
        """Wait for all results of a round, and return its parameters and them, as flat vectors."""
        limit = self.service.limit(timeout_s)
        if round_id in self._shared:
            params = self._shared[round_id].params
        else:
            params = self.service.params(round_id, limit.left_s)
        return params, list(self.outcomes.fetch(round_id, limit, params))

    def _wanted(self, round_id: str, params: RoundParams, group: int | None) -> int:
        """Return the index of the result for a group, by default the one submitted to."""
        groups = params.method.groups
        if group is None:
            # several ranks are results of one group
            group = self.chosen_group(round_id) if groups > 1 else 0
        if group is None:
            raise InputError(
                f"round {round_id} has {groups} groups, and it is not known here which one your "
                "upload is for: say which one's result you want (group, or --group)"
            )
        check_group(round_id, groups, group)
        return group

    def _formed(self, round_id: str, vector: NDArray[Any]) -> Any:
        """Return a flat result in the form of the update, if this object has shared one."""
        shared = self._shared.get(round_id)
        return updates.unflatten(vector, shared.spec) if shared and shared.spec else vector

    def _trained(self, round_id: str) -> tuple[bytes | None, str]:
        """Return what the receipt of a round must fit (`outcomes.Trained`)."""
        if sent := self._journal.confirmed(round_id):
            return sent.start, self.service.keys.public.decode()
        shared = self._shared.get(round_id) or self._journal.submission(round_id)
        return (shared.start if shared else None), ""

    def _submitted_before(self) -> str:
        """Return the id of the latest round that holds an upload from before a restart.

        What a server lacks of it is sent first. Raises InputError if no round is known to hold one.
        """
        try:
            found = self.service.latest()
        except UnknownRound:
            found = {}
        if made := self._journal.submission(found.get("round", "")):
            self._send(made, RoundParams.from_dict(found["params"]), None, again=True)
        elif not found.get("submitted"):
            if self.sent:
                return self.sent[-1].round_id
            raise InputError(
                "there is no result to ask for before a submit(): "
                "name the round, as in result(round_id)"
            )
        return str(found["round"])

    def _round_for(self, round_id: str) -> Round:
        """Return the open round to submit to. Raises RoundClosed if the one named is not open."""
        if self._open and round_id in ("", self._open.round_id):
            return self._open
        if not round_id:
            return self.wait_for_round()
        return self._lookup.named(round_id)
