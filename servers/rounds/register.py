"""The register of a server's rounds, in memory and in the database."""

import json
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any

from securemedian.common.model_form import ModelForm
from securemedian.common.policy import Security, forbidden, of_switch, refuse
from securemedian.common.states import State
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import (
    MAX_QUOTE,
    ConfigError,
    DuplicateUpload,
    LocalProtocolError,
    NotStored,
    PeerProtocolError,
    RoundBusy,
    SecureMedianError,
    UnknownRound,
    cut,
    quoted,
)
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.dealing import OPENING_BYTES
from securemedian.mpc.protocols.prg import SEED_BYTES, SESSION_BYTES, os_entropy
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path
from securemedian.mpc.rounds.plan import disk_bytes
from securemedian.mpc.rounds.privacy import epsilon_of
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers import logs
from securemedian.servers.config import ServerConfig
from securemedian.servers.machine.events import Action, Effect
from securemedian.servers.machine.round import Limits, Member, ServerRound
from securemedian.servers.network.control import Open, RoundMessage
from securemedian.servers.rounds.runs import path_of
from securemedian.servers.storage.database import UNBOUND, Bound, Row, SavedRound, Verdict
from securemedian.servers.storage.files import storing
from securemedian.servers.storage.spool import DEALING, Spool, kind_of
from securemedian.servers.storage.store import Result, Store

# the number of rounds of each cohort whose status and result can still be asked for
ROUNDS_RETAINED = 4
HOUR_S = 3600.0
# The bytes of an upload besides its words: a short header, and 33 that CURVE adds to each part.
ENVELOPE_BYTES = 1024

WhenOpened = Callable[[ServerRound, SecureMedianError | None], None]


@dataclass(eq=False)
class Entry:
    """A round, and the data that this server keeps for it."""

    server_round: ServerRound
    spool: Spool
    # S0's run as the round finds it
    before: RunState
    # the id of the coordinator's request at S0, if it gave one
    request: str = ""
    # called once S1 has answered, with the error if there is one
    when_opened: list[WhenOpened] = field(default_factory=list)
    # S0's run as the round leaves it
    after: RunState | None = None
    # the protocol's result, or what its runs for votes have left so far
    result: Result | None = None
    # in a round of several votes, the digits that clients may be told
    path: Path | None = None
    # the public metrics that clients have sent to S0, by their keys
    public_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    # the names of the files of `before`, `after` and `result`
    files: dict[str, str] = field(default_factory=dict)
    # the clients that have asked S0 for the form of the round's model
    informed: set[str] = field(default_factory=set)
    # the first message of each kind that waits for the computation here, and until when
    heard: dict[type, RoundMessage] = field(default_factory=dict)
    heard_until: float = 0.0
    # the round itself as the database has it (JSON)
    saved: str = field(default="", repr=False)

    def check_stored(self, state: State, sessions: int) -> None:
        """Raise LocalProtocolError unless the database has the round in this state.

        It has to have counted so many sessions, too. Any thread may call it.
        """
        saved = json.loads(self.saved)
        if (saved["state"], saved.get("sessions", 0)) != (state, sessions):
            raise LocalProtocolError(
                f"session {sessions} of a round that is {state} was not stored: nothing was sent"
            )


class Register:
    """Admits rounds, keeps them in the database, and finds them again.

    At most one round of a cohort is live, and then it is its latest.
    """

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        clock: Callable[[], float],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Take up the rounds that the database has. Raises NotStored, and what `check` raises."""
        self._store, self._clock, self._wall = store, clock, wall
        self.reload(config)
        self._entries: dict[str, Entry] = {}
        # the current run of each cohort; S1 has none
        self.runs: defaultdict[str, RunState] = defaultdict(RunState)
        if config.party == 0:
            named = store.database.current_runs()
            self.runs |= {cohort: store.read_run(name) for cohort, name in named.items()}
        # whether no more rounds are admitted, because this server stops
        self.closed = False
        # when the rounds of the last hour began
        self._begun: defaultdict[str, deque[float]] = defaultdict(deque)
        self._load()

    def check(self, config: ServerConfig) -> None:
        """Raise ConfigError if a configuration lacks the cohort of a live round.

        Otherwise nobody could close, abort or fetch that round.
        """
        for entry in self.live:
            cohort = entry.server_round.cohort
            if cohort not in config.members:
                raise ConfigError(
                    "a cohort with a round that has not ended lacks its table: "
                    f"{quoted(cohort)}, round {entry.server_round.round_id}; put the table back "
                    "into [[cohorts]] until the round has ended, or abort the round"
                )

    def reload(self, config: ServerConfig) -> None:
        """Use a new configuration for later rounds; existing ones keep theirs."""
        self._config = config
        self._limits = Limits(
            config.peer_timeout_s,
            config.round_limit_s,
            config.resume_limit_s,
            config.retry_wait_s,
            config.max_attempts,
        )

    @property
    def entries(self) -> list[Entry]:
        """All rounds that this server knows, the earliest first."""
        return list(self._entries.values())

    def rounds_of(self, cohort: str) -> list[Entry]:
        """Return the rounds of a cohort, the earliest first."""
        return [one for one in self._entries.values() if one.server_round.cohort == cohort]

    def latest(self, cohort: str) -> Entry | None:
        rounds = self.rounds_of(cohort)
        return rounds[-1] if rounds else None

    @property
    def live(self) -> list[Entry]:
        """The rounds that have begun and not ended, the earliest first."""
        return [one for one in self._entries.values() if one.server_round.live]

    def live_of(self, cohort: str) -> Entry | None:
        entry = self.latest(cohort)
        return entry if entry and entry.server_round.live else None

    def get(self, round_id: str) -> Entry | None:
        return self._entries.get(round_id)

    def find(self, round_id: str, key: str) -> Entry:
        """Return a round of a cohort in which the owner of a key takes part, by its id.

        Raises UnknownRound if there is none. The refusal does not tell whether another cohort has
        such a round.
        """
        cohorts = {name for name, members in self._config.members.items() if key in members}
        mine = [one for one in self._entries.values() if one.server_round.cohort in cohorts]
        for entry in mine:
            if entry.server_round.round_id == round_id:
                return entry
        known = (
            f"the latest is {mine[-1].server_round.round_id}" if mine else "there has been none yet"
        )
        raise UnknownRound(f"{self._config.name} knows no such round: {quoted(round_id)}; {known}")

    def has(self, cohort: str) -> bool:
        return cohort in self._config.members

    def spent(self, cohort: str) -> float:
        """Return what the results of a cohort have cost each client (`mpc.rounds.privacy`)."""
        return self._store.database.spent(cohort)

    @property
    def epsilons(self) -> dict[str, float]:
        """Return by cohort the epsilon of its results, where there are any and all have noise."""
        spent = {cohort: self.spent(cohort) for cohort in self._config.members}
        return {cohort: epsilon_of(rho) for cohort, rho in spent.items() if 0 < rho < inf}

    def admit(self, asked: Open, params: RoundParams, before: RunState, request: str = "") -> Entry:
        """Admit a new round, unless this server's own limits forbid it.

        SECURITY: an attempt at a number that ran has the coin of the earlier attempt, because two
        results of the same updates under two coins reveal more than one.

        `commit` stores it with its first transition. Raises RoundBusy if this server stops,
        PolicyRefused, and NotStored if the disk is full. Raises PeerProtocolError if S0 asks for a
        round with another `security`, and InputError for the form of another model. Raises
        ConfigError if it lacks what security malicious needs, or if uploads are too long. It also
        does so if `max_clients`, the participants or the clients on its list are fewer than the
        round needs. Raises ClientsDiffer if they leave out clients of an earlier attempt that must
        take part again, or if this server does not list a participant.
        """
        config = self._config
        if self.closed:
            raise RoundBusy(
                f"no round opens while a server stops: {config.name}; wait until it is back"
            )
        begun = self._begun[asked.cohort]
        while begun and begun[0] <= self._clock() - HOUR_S:
            begun.popleft()
        spent = max(self.spent(asked.cohort), asked.spent)
        params.method.check_settled()
        config.policy.check(
            params,
            len(begun),
            config.name,
            epsilon_of(spent + params.method.noise.rho),
            self._releases_votes(asked),
        )
        if asked.one_malicious_server != config.bounded:
            raise PeerProtocolError(
                f"{config.name} has {Security(config.security).line}, and is asked for a round "
                f"with {of_switch(asked.one_malicious_server).line}; write the same line into "
                "s0.toml and s1.toml"
            )
        refuse(config.name, forbidden(config.security, params, config.policy.zoom))
        if params.form.audited:
            config.check_malicious()
        if params.form.votes > 1:
            self._check_votes(asked, params)
        if asked.model_form:
            ModelForm.parse(asked.model_form, params.dim)
        upload_bytes = 8 * params.form.layout.words + ENVELOPE_BYTES
        if upload_bytes > config.max_message_bytes:
            raise ConfigError(
                f"an upload has more bytes than max_message_bytes of {config.name} "
                f"({config.max_message_bytes}): {upload_bytes}; raise that at both servers"
            )
        if params.method.groups > 1 and params.min_clients < config.min_clients:
            raise ConfigError(
                f"min_clients for each group is below the {config.min_clients} clients that "
                f"{config.name} asks for: {params.min_clients}; raise it"
            )
        bound = self._store.database.bound(asked.cohort)
        if bound.number != asked.number or _lifts(asked, bound):
            bound = UNBOUND
        server_round = ServerRound.asked_for(
            config.party,
            asked,
            params,
            config.members[asked.cohort].clients,
            config.min_clients,
            self._limits,
            signing_key=config.peer.signing_key,
            repeats=bound.clients,
            toss_opening=bound.opening or os_entropy(OPENING_BYTES).hex(),
            noise_secret=os_entropy(SEED_BYTES).hex() if isfinite(params.method.noise.rho) else "",
            spent=spent,
        )
        _check_enough(server_round, config.name)
        params.method.check_members(server_round.names)
        spool = self._spool(asked.round, params)
        try:
            with storing("uploads"):
                self._store.reserve.hold()
        except NotStored:
            spool.drop()
            raise
        return Entry(server_round, spool, before, request)

    def _releases_votes(self, asked: Open) -> bool:
        """Return whether a round lifts what a round of several votes binds it to.

        SECURITY: one that is not retained any more may have had several. The earliest retained
        tells whether one of this number may be.
        """
        bound = self._store.database.bound(asked.cohort)
        if not (asked.release and bound.clients and bound.number == asked.number):
            return False
        known = [one.server_round for one in self.rounds_of(asked.cohort)]
        ran = [one.votes for one in known if one.ran and one.number == asked.number]
        forgotten = len(known) >= ROUNDS_RETAINED and known[0].number == asked.number
        return forgotten or not ran or max(ran) > 1

    def _check_votes(self, asked: Open, params: RoundParams) -> None:
        """Raise ConfigError or NotStored unless this server can hold a round of several votes."""
        config, clients = self._config, self._config.members[asked.cohort].clients
        if config.engine.kind == "ray":
            raise ConfigError(
                f"no zoom has workers on Ray: {config.name}; set kind = "
                '"threads" in [engine] at both servers, or take another method'
            )
        senders = len(asked.participants) or len(clients)
        needed, free = disk_bytes(params, senders), self._store.free_bytes
        if needed > free:
            raise NotStored(
                f"the dealings of {senders} clients do not fit on the disk of {config.name}: "
                f"{needed} bytes, and {free} are free; make room, or take fewer slots"
            )

    def _spool(self, round_id: str, params: RoundParams, rows: Iterable[Row] = ()) -> Spool:
        """Return the spool of a round, which leaves room for the round's result and run."""
        method, dim = params.method, params.dim
        values = method.opened_rows(params.max_total) * dim
        leaves = 8 * ring.packed_words(values, params.form.opened_bits)
        if params.form.votes > 1:
            # beside the digits of the last vote
            leaves *= 2
        if self._config.party == 0:
            # model, scale and up to two moments
            leaves += 4 * 4 * dim * method.groups
        return self._store.spool(round_id, params.form.layout, params.form.dealing, rows, leaves)

    def take_model_form(self, entry: Entry, text: str) -> None:
        """Make the form of a client's model that of a round that has none, and store it.

        Raises InputError for the form of another model, and NotStored if the disk is full.
        """
        server_round = entry.server_round
        ModelForm.parse(text, server_round.params.dim)
        asked = replace(server_round.asked, model_form=text)
        with self._store.database.transaction():
            self._store.database.set_asked(server_round.round_id, flat(asked) | {"session": ""})
        entry.server_round = replace(server_round, asked=asked)

    def take_public_metrics(self, entry: Entry, key: str, metrics: dict[str, float]) -> None:
        """Store the public metrics of a client for a round.

        Raises DuplicateUpload if it has sent others before, and NotStored if the disk is full.
        """
        round_id = entry.server_round.round_id
        if (before := entry.public_metrics.get(key)) is not None:
            if before != metrics:
                raise DuplicateUpload(
                    f"you have sent other public metrics already: round {round_id}; leave them, "
                    "for the first ones count"
                )
            return
        with self._store.database.transaction():
            self._store.database.add_public_metrics(round_id, key, metrics)
        entry.public_metrics[key] = metrics

    # The database

    def commit(
        self,
        entry: Entry,
        changed: ServerRound,
        actions: Collection[Action] = (),
        rows: Sequence[Row] = (),
    ) -> None:
        """Store a changed round in one transaction, and make it the entry's.

        The transaction includes what `BEGIN`, `BIND` and `PUBLISH` keep, and the `rows` of clients'
        shares. Changes that the other server tells again on a new link need no transaction of their
        own. State changes may use the reserve; new rounds and shares may not. Raises NotStored;
        then nothing has changed.
        """
        try:
            self._commit(entry, changed, actions, rows)
        except NotStored:
            uploads = rows or changed.round_id not in self._entries
            if uploads or not self._store.reserve.give_up():
                raise
            self._commit(entry, changed, actions, rows)

    def _commit(
        self, entry: Entry, changed: ServerRound, actions: Collection[Action], rows: Sequence[Row]
    ) -> None:
        database, round_id, cohort = self._store.database, changed.round_id, changed.cohort
        verdicts = _changed_verdicts(entry.server_round, changed)
        saved, new = json.dumps(changed.saved()), round_id not in self._entries
        lifted = Effect.BEGIN in actions and _lifts(changed.asked, database.bound(cohort))
        released = lifted and bool(database.bound(cohort).clients)
        # with the signatures that there are now
        result = entry.result
        if result and changed.receipt:
            result = replace(result, receipt=changed.receipt)
        if new or rows or verdicts or saved != entry.saved:
            files = self._write_files(entry, changed, result)
            with database.transaction():
                if new:
                    self._add(entry, changed, saved, files)
                else:
                    after, of = files.get("after"), files.get("result")
                    database.update_round(round_id, saved, self._times(changed), after, of)
                database.add_uploads(round_id, rows)
                if lifted:
                    database.bind(cohort, UNBOUND)
                self._write_cohort(changed, actions, files)
                database.set_verdicts(round_id, verdicts)
                if not changed.live:
                    database.drop_uploads(round_id)
            entry.files, entry.saved = files, saved
        if changed.votes > 1 and (new or changed.level > entry.server_round.level):
            entry.path = path_of(changed, result)
        entry.server_round, entry.result = changed, result
        if not changed.computed_here:
            entry.after = None
            entry.result = result if _votes_on(changed) else None
        for row in rows:
            entry.spool.add(row)
        if new:
            self._entries[round_id] = entry
            for earlier in self.rounds_of(cohort)[:-ROUNDS_RETAINED]:
                del self._entries[earlier.server_round.round_id]
        if Effect.BEGIN in actions:
            # for the policy's rounds per hour
            self._begun[cohort].append(self._clock())
            self.runs[cohort] = entry.before
        if Effect.PUBLISH in actions and entry.after:
            self.runs[cohort] = entry.after
        if released:
            logs.event("clients-released", logging.WARNING, **changed.about)

    def _add(self, entry: Entry, made: ServerRound, saved: str, files: dict[str, str]) -> None:
        """Store a new round, and forget the earliest of its cohort."""
        for earlier in self.rounds_of(made.cohort)[: 1 - ROUNDS_RETAINED]:
            self._store.database.forget_round(earlier.server_round.round_id)
        asked = flat(made.asked) | {"session": ""}
        names, repeats = dict(made.names), sorted(made.repeats)
        given = made.round_id, made.cohort, entry.request, asked, names, repeats
        self._store.database.add_round(
            SavedRound(*given, saved, self._times(made), files.get("before"))
        )

    def _write_cohort(
        self, changed: ServerRound, actions: Collection[Action], files: dict[str, str]
    ) -> None:
        """Store what the actions of a round change for later rounds of its cohort."""
        database, cohort = self._store.database, changed.cohort
        if Effect.BEGIN in actions and "before" in files:
            database.set_current_run(cohort, files["before"])
        if Effect.BIND in actions:
            clients, start = frozenset(changed.included), changed.asked.start
            database.bind(cohort, Bound(changed.number, clients, changed.toss_opening, start))
            # the cost of the run counts from now on, however it ends
            database.spend(cohort, changed.spent_after)
        if Effect.PUBLISH in actions:
            database.bind(cohort, replace(database.bound(cohort), start=""))
            if "after" in files:
                database.set_current_run(cohort, files["after"])

    def _write_files(
        self, entry: Entry, changed: ServerRound, result: Result | None
    ) -> dict[str, str]:
        """Write the files of a round that are not there yet, and return the names of all."""
        files = dict(entry.files)
        if self._config.party == 0 and "before" not in files:
            files["before"] = self._store.write_run(entry.before)
        if result and (changed.computed_here or changed.level > entry.server_round.level):
            files["result"] = self._store.write_result(result)
            if entry.after is not None:
                files["after"] = self._store.write_run(entry.after)
        elif not _votes_on(changed):
            files.pop("result", None)
            files.pop("after", None)
        return files

    def tidy(self) -> None:
        """Delete files that no round needs any more."""
        entries = self._entries.values()
        current = self._store.database.current_runs().values()
        self._store.tidy(
            {one.server_round.round_id for one in entries if one.server_round.live},
            {name for one in entries for name in one.files.values()} | {*current},
        )
        try:
            self._store.database.erase()
            with storing("uploads"):
                self._store.reserve.hold()
        except NotStored as error:
            # later, when there is room
            logs.event("not-stored", logging.ERROR, reason=str(error))

    def _times(self, changed: ServerRound) -> dict[str, float | None]:
        """Return the times of a round as seconds of the epoch, None for never."""
        shift = self._wall() - self._clock()
        times = {name: getattr(changed, name) for name in _TIMES}
        if changed.until < inf:
            times["until"] = changed.until
        return {name: None if at == inf else at + shift for name, at in times.items()}

    def _load(self) -> None:
        for made in self._store.database.rounds():
            try:
                self._entries[made.round] = self._entry(made)
            except NotStored:
                # a full disk damages no round
                raise
            except SecureMedianError as error:
                # damaged, or of another release with parameters that this one does not know: what
                # clients have sent must not stay for ever
                with self._store.database.transaction():
                    self._store.database.forget_round(made.round)
                logs.event("round-not-loaded", logging.ERROR, round=made.round, reason=str(error))
        self.check(self._config)

    def _entry(self, made: SavedRound) -> Entry:
        database = self._store.database
        asked = build(Open, made.asked | {"session": bytes(SESSION_BYTES)}, "a saved round")
        params = RoundParams.from_dict(asked.params)
        most = min(params.max_clients, len(asked.participants) or params.max_clients)
        server_round = ServerRound.asked_for(
            self._config.party,
            asked,
            params,
            made.names,
            # it was admitted under an earlier floor; today's holds for the clients that are chosen
            min(self._config.min_clients, most),
            self._limits,
            repeats=frozenset(made.repeats),
            signing_key=self._config.peer.signing_key,
        ).restored(json.loads(made.saved))
        rows = database.uploads(made.round)
        changes: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        fields_of = {DEALING: "dealt", kind_of(server_round.level): "uploaded"}
        for row in rows:
            if row.kind in fields_of:
                changes[row.client][fields_of[row.kind]] = row.sha256
        for client, verdict in database.verdicts(made.round).items():
            changes[client] |= {"passed": verdict.passed}
            if verdict.coin is not None:
                token = verdict.coin[SEED_BYTES:] or None
                changes[client] |= {"coin": verdict.coin[:SEED_BYTES], "token": token}
        files = {
            kind: name for kind in ("before", "after", "result") if (name := getattr(made, kind))
        }
        result = self._store.read_result(files["result"]) if "result" in files else None
        votes = server_round.live and server_round.votes > 1
        computed = result and json.loads(made.saved)["computed_here"]
        shift = self._clock() - self._wall()
        times = {name: inf if at is None else at + shift for name, at in made.times.items()}
        server_round = replace(
            server_round.with_each(changes),
            receipt=result.receipt if result and computed else None,
            deadline=times["deadline"],
            retry_at=times["retry_at"],
            away_until=times["away_until"],
            until=times.get("until", inf),
        )
        spool = self._spool(made.round, params, rows)
        if not server_round.live:
            spool.drop()
        return Entry(
            server_round,
            spool,
            self._store.read_run(files["before"]) if "before" in files else RunState(),
            made.request,
            after=self._store.read_run(files["after"])
            if server_round.live and "after" in files
            else None,
            result=result,
            path=path_of(server_round, result) if votes else None,
            public_metrics=database.public_metrics(made.round),
            files=files,
            saved=json.dumps(server_round.saved()),
        )


_TIMES = ("deadline", "retry_at", "away_until")


def _votes_on(here: ServerRound) -> bool:
    """Return whether a round goes on from what its votes have left."""
    return here.live and here.level > 0


def _check_enough(server_round: ServerRound, server: str) -> None:
    """Raise ConfigError if too few of a server's clients could ever take part in a round."""
    names, weights = server_round.names, server_round.params.weights
    able = [name for key, name in names.items() if not weights or key in weights]
    if len(able) >= server_round.needed:
        return
    without = [name for name in names.values() if name not in able]
    raise ConfigError(
        f"the round needs {server_round.needed} clients (min_clients), and {server} lists "
        f"{len(able)} for it: {cut(', '.join(sorted(able)), MAX_QUOTE)}"
        + (f"; without a weight: {cut(', '.join(sorted(without)), MAX_QUOTE)}" if without else "")
        + f"; list {server_round.needed - len(able)} more at both servers, or lower min_clients"
    )


def _lifts(asked: Open, bound: Bound) -> bool:
    """Return whether a round lifts what an earlier attempt at its number binds it to.

    SECURITY: who starts over from the same model may only try again, with the same updates.
    """
    return asked.release or (asked.start_over and asked.start != bound.start)


def _changed_verdicts(old: ServerRound, new: ServerRound) -> dict[str, Verdict]:
    return {
        key: verdict
        for key, member in new.members.items()
        if member is not old.members[key]
        and (verdict := _verdict(member)) != _verdict(old.members[key])
    }


def _verdict(member: Member) -> Verdict:
    coin = None if member.coin is None else member.coin + (member.token or b"")
    return Verdict(coin, member.passed)
