"""The Python interface of a data owner: `Client` submits updates and receives results.

    with Client.from_config("client.toml") as client:
        # in every round: load its model, train, submit, load the result
        client.fit(model, train)

An update is the *trained parameters*, not their difference to the published model, because the
buckets of a bucketed round lie around that model. A server that is away costs time but no round: a
request without an answer is repeated with the same bytes (`clients.journal`). With a `state_dir`
this also holds for a client that is restarted.
"""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from numpy.typing import NDArray

from securemedian.clients import update as updates
from securemedian.clients import upload
from securemedian.clients.config import ClientConfig
from securemedian.clients.journal import (
    ROUNDS_RETAINED,
    Journal,
    Sent,
    Submission,
    fingerprint,
)
from securemedian.clients.member import Member
from securemedian.clients.rounds import (
    ROUND_LOST,
    Lookup,
    Turn,
    ask_form,
    load_round,
    trained,
)
from securemedian.clients.sharing import REFUSED, Sender, held
from securemedian.clients.spent import Spent
from securemedian.clients.upload import Round, check_group, number_of
from securemedian.common.model_form import ModelForm
from securemedian.common.policy import refuse
from securemedian.common.status import POLICY, SERVERS, check_public_metrics
from securemedian.common.terminal import Progress, Report, Teller, unseen
from securemedian.common.versions import agree
from securemedian.mpc.errors import (
    ChannelTimeout,
    ConfigError,
    DuplicateUpload,
    InputError,
    NotStored,
    PeerProtocolError,
    PolicyRefused,
    SecureMedianError,
    UnknownRound,
)
from securemedian.mpc.options import check_one_of
from securemedian.mpc.protocols import dealing
from securemedian.mpc.protocols.dealing import Dealing, OwnDealing
from securemedian.mpc.protocols.prg import Entropy
from securemedian.mpc.rounds.encode import check_finite
from securemedian.mpc.rounds.exchange import Predictions
from securemedian.mpc.rounds.params import RoundParams

if TYPE_CHECKING:
    from securemedian.clients.public import PublicSet
    from securemedian.clients.voter import Voter

_say = Teller(on_stdout=True)
# the latest Client by process and state folder
_open_here: WeakValueDictionary[tuple[int, Path], "Client"] = WeakValueDictionary()


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
                f"a round with {current.params.method.groups} groups: {current.round_id}; say "
                "which one's model you have trained (group, from Round.choose)"
            )
        return 0
    check_group(current.round_id, current.params.method.groups, group)
    return group


class Client(Member):
    """A data owner's access to the service. Not for two threads at once."""

    def __init__(
        self, config: ClientConfig, public: "PublicSet | None" = None, **options: Any
    ) -> None:
        """Connect as `config` says, with a `public` set for rounds that exchange predictions."""
        super().__init__(config, **options)
        self.public = public
        # one file for all cohorts, none of which has a folder of such a name
        self._spent = Spent(Path(f"{config.state_dir}.spent") if config.state_dir else None)
        try:
            self._journal = self._own_journal(config.state_folder)
        except BaseException:
            super().close()
            raise
        self.meanwhile = self._tend
        # looks after rounds with an upload, once there is one
        self._voter: Voter | None = None
        self._lookup = Lookup(self, self._journal)
        self._sender = Sender(self._journal, self)
        # the id of the round last waited for: the next round has another id
        self._seen = ""
        # the round last waited for, until servers have an update for it or refuse it
        self._open: Round | None = None
        # the id of the round last submitted to, which holds this client's upload
        self._submitted = ""
        # the latest rounds for which this object has shared an update
        self._shared: dict[str, _Shared] = {}

    def _own_journal(self, folder: Path | None) -> Journal:
        """Return the journal in a state folder. Raises ConfigError if another Client has it."""
        if folder is None:
            return Journal(None)
        here = os.getpid(), folder.resolve()

        def taken() -> bool:
            # asked for once, because memory may be freed between two questions
            other = _open_here.get(here)
            return other is not None and not other.closed

        if taken():
            # by one that nobody can close any more
            gc.collect()
        if taken():
            raise ConfigError(
                "another Client of this process has the state folder, perhaps one of a "
                f"notebook's cell that ran before: {folder}; close() that one, or use `with`"
            )
        made = Journal(folder, spent=self._spent)
        _open_here[here] = self
        return made

    def _tend(self) -> None:
        """Do what the servers ask of this client after its uploads."""
        if self._journal.upheld:
            # the protocol of audits takes a while to import
            from securemedian.clients.voter import Voter

            self._voter = self._voter or Voter(self._journal, self)
            self._voter.tend()

    def wait_for_round(self, timeout_s: float | None = None) -> Round:
        """Return the next open round that this object has not seen yet, with its model and range.

        If clients deal, this begins to deal in the background, while the caller trains. There
        is nothing to train if `submitted` is set, because the servers have this client's upload,
        or `dealing_lost`, because they have a dealing whose secrets a restart has lost. An upload
        that one server or none has is sent first.

        Raises ChannelTimeout if no round is opened within `timeout_s` (default: `wait_timeout_s`
        of the configuration), and ConfigError if this client lacks the round's public set. Raises
        PolicyRefused if this client's own policy refuses the round: both servers are told, and the
        next call waits for another.
        """
        limit = self.limit(timeout_s)
        while True:
            current = self.wait(
                0,
                lambda: self._lookup.new(self._seen),
                limit,
                "no new round was opened for this client",
                "a round to open at S0",
            )
            if (made := self._journal.submission(current.round_id)) is None:
                break
            try:
                self._send(made, current.params, None, patience_s=limit.left_s, again=True)
                current = replace(current, submitted=True)
                break
            except REFUSED as error:
                self._seen = current.round_id
                self.report(f"going on to the next round: {error}")
        if not current.submitted:
            try:
                self._check_takes_part(current.round_id, current.params, limit.left_s)
            except PolicyRefused:
                self._seen = current.round_id
                raise
        self._open, self._seen = current, current.round_id
        if current.submitted:
            self._submitted = self._seen
        elif not current.dealing_lost:
            self._sender.dealer_for(current)
        return current

    def check_round(self, round_id: str = "", timeout_s: float | None = None) -> None:
        """Check that this client takes part in an open round, by default the latest.

        `wait_for_round` and `submit` do so, too. Raises as these, and RoundClosed if the round is
        not open.
        """
        found = self._lookup.open_round(round_id, timeout_s)
        params = RoundParams.from_dict(found["params"])
        self._check_takes_part(found["round"], params, timeout_s)

    def deal(self, shape: Dealing, current: Round, entropy: Entropy) -> OwnDealing:
        """Return the dealing for a round that `entropy` gives. It is called on another thread."""
        return dealing.deal(shape, entropy)

    def encode(self, vector: NDArray[Any], current: Round) -> NDArray[Any]:
        """Return what the method of a round shares of a flat update (`clients.upload`).

        Raises NotFinite for NaN and, unless the method has words for them, infinite values, and
        InputError if the update does not fit the round.
        """
        if not current.params.form.infinite:
            check_finite(vector, "the update")
        return upload.encode_update(vector, current)

    def close(self) -> None:
        """End background work, and close all connections. Nothing can be asked for after it."""
        self._sender.close()
        super().close()

    def submit(
        self,
        update: Any,
        round_id: str = "",
        progress: Progress = unseen,
        public_metrics: Mapping[str, float] | None = None,
        group: int | None = None,
        keep_local: Sequence[str] = (),
        saturate: bool | None = None,
    ) -> None:
        """Share the trained parameters, in any form of `clients.update`, between the servers.

        They go to the round `round_id`, by default to the one last waited for, or otherwise to the
        next one that opens. `progress` gets the bytes sent and those in all, of the dealing and
        then of the upload.

        In a round of zoom or with security malicious, call `result` or `attend` next: both servers
        ask again.

        An update is shared once per round, because two sharings must not mix. A server that does
        not answer gets the same bytes again, for `retry_limit_s` of the configuration and in
        another call with the same update. If a server refuses them, this client is left out of the
        round.

        `public_metrics` are finite numbers by name. They go to S0 in the clear, before the upload,
        and everybody who takes part in the cohort may read them (the method `public_metrics`). A
        round takes them once, and goes on without them if S0 refuses them, which is reported.

        In a round of several groups `group` is the one, 0-based, whose model was trained
        (`Round.choose`). Nobody else learns it, unless `membership` is visible.

        Entries whose names fit a pattern of `keep_local` (`fnmatch`) are not sent, and come back
        unchanged with the result. The others go in the order of the round's form (`Round.form`), by
        their names. If the round has no form, that of the first client becomes it. Values that
        the method would cut are an error, unless `saturate`, by default that of the configuration,
        is set: then RangeWarning tells.

        Raises PolicyRefused if this client's own policy refuses the round: both servers are told.
        Raises ConfigError unless [s0] names S0 and [s1] names S1, and if this client lacks the
        round's public set. Raises InputError if the update does not fit the round or its form, or
        has values that it would cut. Raises DuplicateUpload if this client has submitted to the
        round already or has dealt for it before a restart, and RoundClosed if the round is not
        open. Raises NotAllowed if the servers have found the dealing wrong. Raises
        PeerProtocolError, before anything of the update is sent, if they contradict each other or
        have opened wrong values of the dealing.
        """
        self.check_open()
        vector, spec = updates.flatten(update, keep_local)
        metrics = check_public_metrics(public_metrics or {})
        current = self._round_for(round_id)
        self._check_takes_part(current.round_id, current.params)
        current.params.exchange.check_shape(spec.shapes, current.params.dim)
        vector, spec = updates.arrange(vector, spec, self._form_of(current, spec))
        group = _group_of(current, group)
        made = self._journal.submission(current.round_id)
        again = made is not None
        if made is not None and made.update != fingerprint(vector, group):
            raise DuplicateUpload(
                "another update of yours is on its way to a round, which takes one: "
                f"{made.round_id}; submit that one again, or wait for the next round"
            )
        try:
            if made is None:
                self._check_free(current)
                self._free(fingerprint(vector, group))
                mine = current.of_group(group)
                cuts = self.config.saturate if saturate is None else saturate
                upload.check_range(vector, mine, spec.name_at, cuts)
                values = self.encode(vector, mine)
                values = current.params.form.in_group(values, group)
                made = self._sender.make(vector, values, current, progress, group)
            if metrics:
                self._tell(current.round_id, metrics)
            self._send(made, current.params, spec, progress=progress, again=again)
        except REFUSED:
            self._open = None
            raise
        except PeerProtocolError:
            # nobody is to wait for this client, which sends nothing to servers that lie
            self.decline(current.round_id, SERVERS)
            raise
        self._open = None

    def attend(self, round_id: str = "", timeout_s: float | None = None) -> None:
        """Stay until a round, by default the one last submitted to, needs this client no more.

        With security malicious a client is asked once more after its upload, and is left out if it
        does not answer in time. In a round of zoom it votes on, and the round waits for it for
        hours. Every wait answers, that of `result` too: this is for who
        waits for nothing else. Other rounds need nothing. Raises ChannelTimeout after `timeout_s`
        (default: `wait_timeout_s` of the configuration).
        """
        round_id = round_id or self._submitted

        def over() -> bool | None:
            return None if round_id in self._journal.upheld else True

        what = f"round {round_id} did not end"
        waiting = f"the end of round {round_id} from S0"
        self.wait(0, over, self.limit(timeout_s), what, waiting)

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
        on_error: str = "raise",
        keep_local: Sequence[str] = (),
        saturate: bool | None = None,
    ) -> int:
        """Take part in rounds with a model that is trained in place, and return in how many.

        In each round the published model, if there is one, is loaded into `model`. Then
        `train(model)` is called, the trained parameters are submitted, and the result (of the first
        rank) is loaded into `model`; with an optimiser the next round's model is another one. For a
        round that has an upload of this client already, `train` is not called. `report` gets a line
        per step, and `progress` what `submit` gives it. The return value of `public_metrics` for
        the trained model is sent in the clear.

        In rounds of several groups each published model is loaded in turn, and the one with the
        smallest `loss(model)` is trained (`Round.choose`); the result is that of its group. If
        that has fewer than `min_clients`, this is reported and its model stays.

        Entries that fit a pattern of `keep_local` (`fnmatch`) are neither loaded nor sent: what is
        sent is reported once. `saturate` is that of `submit`.

        Ends after `rounds` rounds with a result, or, if that is None, when no round opens within
        `timeout_s` (default: `wait_timeout_s`). A round without a result, or without this client,
        is reported and does not count, and `model` gets back the parameters from which it was
        trained. A model with NaN, or infinite values in a round that takes none, is not submitted:
        the round goes on without this client, which declines it (`decline`). With
        `on_error="decline"` the same holds for an exception of `train` or `public_metrics`.

        Raises ChannelTimeout if fewer rounds than `rounds` come, InputError if `model` does not fit
        the round, and ConfigError if the round does not exchange parameters.
        """
        check_one_of("on_error", on_error, ("raise", "decline"))
        sent = {"progress": progress, "keep_local": keep_local, "saturate": saturate}
        done = 0
        with self.reporting(report):
            if keep_local:
                report(updates.flatten(model, keep_local)[1].summary)
            for turn in self.rounds(rounds, timeout_s):
                current, name = turn.round, f"round {turn.round.round_id}"
                group = load_round(self, current, model, loss, keep_local, goes_on=done > 0)
                start, _ = updates.flatten(model, keep_local)
                metrics: Mapping[str, float] = {}
                with turn:
                    if current.submitted:
                        report(f"{name}: your upload is stored already, waiting for the result")
                    else:
                        if not current.dealing_lost:
                            report(f"{name}: training")
                            metrics = trained(model, train, public_metrics, on_error)
                        turn.submit(model, public_metrics=metrics, group=group, **sent)
                        report(f"{name}: submitted, waiting for the result")
                    result, form = self.flat_result(current.round_id, group)
                    updates.load(result, model, keep_local, form)
                if not turn.done:
                    updates.load(start, model, keep_local)
                    continue
                done += 1
                stays = group in self.unchanged_groups(current.round_id)
                report(
                    f"{name}: too few clients have chosen group {group}, its model stays"
                    if stays
                    else f"{name}: the result is loaded"
                )
        return done

    def rounds(
        self,
        count: int | None = None,
        timeout_s: float | None = None,
        lost: tuple[type[SecureMedianError], ...] = ROUND_LOST,
        all_count: bool = False,
    ) -> Iterator[Turn]:
        """Yield a `Turn` for each round that comes, for a loop of your own.

            for turn in client.rounds(3):
                with turn:
                    turn.submit(train(turn.round.model))
                    result = turn.result()

        Ends after `count` rounds with a result, or after all that come with `all_count`. Without a
        `count` it ends when no round opens within `timeout_s` (default: `wait_timeout_s`). Errors
        of the classes `lost` (default: those of one round alone), NaN in an update, and rounds
        that this client's policy refuses cost that round alone, and are reported. Raises what
        `wait_for_round` raises.
        """
        done = 0
        while count is None or done < count:
            try:
                turn = Turn(self, self.wait_for_round(timeout_s), lost)
            except ChannelTimeout as error:
                if count is not None:
                    raise
                self.report(f"{error}: the training ends after {done} rounds")
                return
            except PolicyRefused as error:
                self.report(f"going on to the next round: {error}")
                continue
            yield turn
            done += turn.done or all_count

    def _form_of(self, current: Round, spec: updates.Spec | None) -> ModelForm | None:
        """Return the form of a round's models; without one, that of `spec` becomes the round's.

        It is None if the round has no models, or S0 is of release 1.0.
        """
        if current.form or not current.has_form:
            return current.form
        own = spec.form if spec else None
        fits = own is not None and own.size == current.params.dim
        text = own.text if own is not None and fits else ""
        return ask_form(self, current.round_id, current.params, text)

    def flat_result(
        self, round_id: str, group: int | None = None, timeout_s: float | None = None
    ) -> tuple[NDArray[Any], ModelForm | None]:
        """Wait for a round's result, and return it flat, and the form in whose order it is."""
        params, vectors = self._fetched(round_id, timeout_s)
        vector = vectors[self._wanted(round_id, params, group)]
        return vector, self._form_of_result(round_id, params)

    def _form_of_result(self, round_id: str, params: RoundParams) -> ModelForm | None:
        """Return the form in whose order a result is; None if it has none."""
        shared = self._shared.get(round_id)
        if shared and shared.spec:
            return shared.spec.form
        said = self.ask("info").fields
        if params.exchange.fixed is not None or agree("S0", said) < 3:
            return None
        return ask_form(self, round_id, params, "")

    def _tell(self, round_id: str, metrics: dict[str, float]) -> None:
        """Send public metrics to S0, and report it if it does not take them."""
        try:
            self.ask("tell", {"round": round_id, "metrics": metrics})
        except (DuplicateUpload, NotStored) as error:
            self.report(f"round {round_id} goes on without these public metrics: {error}")

    def _check_takes_part(
        self, round_id: str, params: RoundParams, timeout_s: float | None = None
    ) -> None:
        """Raise PolicyRefused or ConfigError unless this client lets itself be in a round, and can.

        Nothing is refused any more once it has made an upload. It needs the public set of a round
        that is about one.
        """
        if self._journal.submission(round_id) or self._journal.confirmed(round_id):
            return
        self.check_policy(round_id, params, timeout_s)
        exchange = params.exchange
        if isinstance(exchange, Predictions):
            if self.public is None:
                raise ConfigError(
                    "the round exchanges predictions on a public set, and this client has "
                    f"none: {round_id}; give it one (Client(config, public=..) or --public DIR)"
                )
            self.public.check(exchange)

    def _free(self, update: bytes) -> None:
        """Free an update of a round that has ended, if both servers say it has opened nothing.

        SECURITY: one of them follows the protocol, and holds this dealing in no other round.
        """
        if claimed := self._spent.round_of(update):
            round_id = claimed.partition("/")[0]
            about = {"round": round_id, "failed": True}
            with suppress(*REFUSED):
                said = [self.status(round_id, party=party) for party in (0, 1)]
                of = held([self.ask("checked", about, party=party).fields for party in (0, 1)])
                over = all(one.state == "failed" and one.opened == "nothing" for one in said)
                if over and claimed == f"{round_id}/{of}":
                    self._spent.free(update, claimed)

    def check_policy(self, round_id: str, params: RoundParams, timeout_s: float | None) -> None:
        """Raise PolicyRefused, and tell both servers, if this client's policy refuses a round."""
        policy, statuses = self.config.policy, []
        if policy.needs_statuses:
            statuses = [self.status(round_id, timeout_s, party) for party in (0, 1)]
        # a round that is voted in is among those made
        made = len(self._journal.made_within_a_day) - (round_id in self._journal.upheld)
        about = self.config.name, statuses, self.config.weight, self.keys.public.decode()
        try:
            if params.form.votes > 1 and not self.config.state_dir:
                needs = f"round {round_id} of {params.method.name} without a state_dir, in which"
                refuse(self.config.name, [f"{needs} it keeps its votes: set it in client.toml"])
            policy.check_round(params, made, *about, self._released(round_id, params, timeout_s))
        except PolicyRefused:
            self.decline(round_id)
            raise

    def _released(self, round_id: str, params: RoundParams, timeout_s: float | None) -> bool:
        """Return whether a server says that a round lifts what an earlier zoom binds clients to."""
        votes = params.form.votes > 1 or number_of(round_id) in self._spent.numbers()
        said = [self.ask("round", timeout_s=timeout_s, party=p).fields for p in (0, 1) if votes]
        return any(one["round"] == round_id and one.get("released") for one in said)

    def decline(self, round_id: str, reason: str = POLICY) -> None:
        """Tell both servers that this client takes no part in a round, so that none waits.

        `reason` is a code of `status.DECLINED`; servers of release 1.0 are told none.
        """
        self._sender.abandon(round_id)
        # S1 first, because S0 may close the round at once
        for party in (1, 0):
            fields = {"round": round_id}
            try:
                if reason != POLICY:
                    info = self.ask("info", timeout_s=0.0, party=party).fields
                    # releases that speak less know no reasons
                    fields |= {"reason": reason} if agree(f"S{party}", info) >= 3 else {}
                self.ask("decline", fields, timeout_s=0.0, party=party)
            except SecureMedianError as error:
                self.report(f"S{party} was not told of a refusal: {error}")

    def _check_free(self, current: Round) -> None:
        tried = current.round_id in self._shared or self._journal.confirmed(current.round_id)
        if current.submitted or tried:
            raise DuplicateUpload(
                f"your upload was {'stored' if current.submitted else 'attempted'} already: "
                f"round {current.round_id}; wait for its result, or for the next round"
            )
        if current.dealing_lost:
            raise DuplicateUpload(
                "you dealt before a restart, the secrets of that dealing are lost, and the "
                f"round goes on without you: {current.round_id}; wait for the next one"
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
        self,
        round_id: str = "",
        timeout_s: float | None = None,
        group: int | None = None,
        like: Any = None,
        keep_local: Sequence[str] = (),
    ) -> Any:
        """Wait for the result of a round, by default the one last submitted to, and return it.

        It has the form of the update, or is a flat vector after a restart, in the order of the
        round's layers. Give a model as `like`, and the `keep_local` of the update, and it has the
        form of that in any case, with the model's own local layers. With several groups it
        is that of `group`, 0-based, by default the one submitted to. Raises RoundFailed, with the
        reason, if the round has no result. Raises UnknownRound if the servers have forgotten the
        round (they keep four), and InputError if the round or group is not known here.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        if like is None:
            params, vectors = self._fetched(round_id, timeout_s)
            return self._formed(round_id, vectors[self._wanted(round_id, params, group)])
        vector, form = self.flat_result(round_id, group, timeout_s)
        own = updates.flatten(like, keep_local)
        return updates.unflatten(vector, updates.arrange(*own, form)[1])

    def results(self, round_id: str = "", timeout_s: float | None = None) -> list[Any]:
        """Wait for all results of a round and return them, otherwise like `result`.

        A round has one per rank, in the coordinator's order, or one per group. A group without a
        result (`unchanged_groups`) has the model that stays.
        """
        round_id = round_id or self._submitted or self._submitted_before()
        _, vectors = self._fetched(round_id, timeout_s)
        return [self._formed(round_id, vector) for vector in vectors]

    @property
    def sent(self) -> list[Sent]:
        """Return this client's latest uploads that both servers have, at most four, in order."""
        return self._journal.sent

    def chosen_group(self, round_id: str) -> int | None:
        """Return the group, 0-based, of this client's upload for a round, or None if unknown."""
        known = self._journal.submission(round_id) or self._journal.confirmed(round_id)
        return known.group if known else None

    def store(self, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Store something of your own instead of the last such call (`stored`).

        It is arrays by name, and in `fields` texts and numbers about them. With a `state_dir` they
        outlast the process. Raises ConfigError if they cannot be written.
        """
        self.check_open()
        self._journal.keep_own(fields, arrays)

    @property
    def stored(self) -> tuple[Mapping[str, Any], Mapping[str, NDArray[Any]]]:
        """Return the fields and arrays that were stored last, not to be changed, or {} and {}."""
        return self._journal.own.fields, self._journal.own.arrays

    def _fetched(
        self, round_id: str, timeout_s: float | None
    ) -> tuple[RoundParams, list[NDArray[Any]]]:
        """Wait for all results of a round, and return its parameters and them, as flat vectors."""
        limit = self.limit(timeout_s)
        if round_id in self._shared:
            params = self._shared[round_id].params
        else:
            params = self.params(round_id, limit.left_s)
        return params, list(self.fetch(round_id, limit, params))

    def _wanted(self, round_id: str, params: RoundParams, group: int | None) -> int:
        """Return the index of the result for a group, by default the one submitted to."""
        groups = params.method.groups
        if group is None:
            # several ranks are results of one group
            group = self.chosen_group(round_id) if groups > 1 else 0
        if group is None:
            raise InputError(
                f"the round has {groups} groups, and this client does not know which one your "
                f"upload is for: {round_id}; say which one's result you want (group, or --group)"
            )
        check_group(round_id, groups, group)
        return group

    def _formed(self, round_id: str, vector: NDArray[Any]) -> Any:
        """Return a flat result in the form of the update, if this object has shared one."""
        shared = self._shared.get(round_id)
        return updates.unflatten(vector, shared.spec) if shared and shared.spec else vector

    def _trained(self, round_id: str) -> tuple[bytes | None, str]:
        if sent := self._journal.confirmed(round_id):
            return sent.start, self.keys.public.decode()
        shared = self._shared.get(round_id) or self._journal.submission(round_id)
        return (shared.start if shared else None), ""

    def _submitted_before(self) -> str:
        """Return the latest round with an upload from before a restart. Raises InputError."""
        try:
            found = self.latest()
        except UnknownRound:
            found = {}
        if made := self._journal.submission(found.get("round", "")):
            self._send(made, RoundParams.from_dict(found["params"]), None, again=True)
        elif not found.get("submitted"):
            if self.sent:
                return self.sent[-1].round_id
            raise InputError(
                "no result to ask for before a submit(): round None; name the round, as in "
                "result(round_id)"
            )
        return str(found["round"])

    def _round_for(self, round_id: str) -> Round:
        """Return the open round to submit to. Raises RoundClosed if the one named is not open."""
        if self._open and round_id in ("", self._open.round_id):
            return self._open
        if not round_id:
            return self.wait_for_round()
        return self._lookup.round_of(self._lookup.open_round(round_id), trained=True)
