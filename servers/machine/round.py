"""A round as one server knows it: plain data, and what follows from it alone."""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from securemedian.common.receipts import Receipt, for_those_left
from securemedian.common.states import LIVE, State
from securemedian.common.status import DEFAULT_COHORT, POLICY
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import MAX_QUOTE, ClientsDiffer, ConfigError, cut
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network.control import SHA256_BYTES, Open, group_of

# The sessions that a round with security malicious may have, beside one for each run.
SESSIONS = 4


@dataclass(frozen=True)
class Limits:
    """The time limits of a round at a server, and how often what breaks off is tried."""

    # for an answer of the peer, and for a run of the protocol
    answer_s: float
    run_s: float
    # how long the other server may be away
    resume_s: float
    # the wait before the second attempt; it doubles with each further one
    retry_wait_s: float
    max_attempts: int


@dataclass(frozen=True)
class Member:
    """One client of a round, as a server knows it."""

    name: str
    # the SHA-256 of its whole dealing and the `upload_digest` of its upload, once stored here
    dealt: bytes | None = None
    uploaded: bytes | None = None
    # whether the other server holds its dealing, and what that server tells of its upload (`told`)
    dealt_there: bool | None = None
    uploaded_there: bytes | None = None
    # the coin of the check of its dealing, and the other server's `token` of it
    coin: bytes | None = field(default=None, repr=False)
    token: bytes | None = field(default=None, repr=False)
    # the verdict: at S0 that of both servers, which is the same; at S1 its own
    passed: bool | None = None
    # in an audited round: why it is left out, if its fold has not come or does not fit
    unfolded: str | None = None
    # why it takes no part, as it has told this server (`status.DECLINED`)
    declined: str | None = None


@dataclass(frozen=True)
class ChecksNow:
    """The check that is under way."""

    clients: list[str]
    coin: bytes = field(default=b"", repr=False)
    # the clients that failed it here and at S1, once known, and those that sent no fold
    failed_here: list[str] | None = None
    failed_there: list[str] | None = None
    silent: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ServerRound:
    """A round as one server knows it, which `step.step` replaces at each event.

    Clients are known by their public keys.
    """

    party: int
    # the message with which S0 asks S1 to take part
    asked: Open
    params: RoundParams
    # the clients of the cohort on this server's list, by public key; only the participants if the
    # coordinator has named any
    members: Mapping[str, Member]
    # the fewest clients that this server ever computes with
    floor: int
    limits: Limits
    # the session of what is under way or comes next
    session: bytes = field(repr=False)
    new_session: bool
    # how often the protocol runs for this round at most: the smaller of both servers' limits, once
    # both know them
    runs: int
    # the clients of an earlier attempt at this number that may have opened values: only these may
    # take part again
    repeats: frozenset[str] = frozenset()
    # this server's opening, in hex digits, if it tosses for the round's result: the same in every
    # attempt at the number, once one has run
    toss_opening: str = field(default="", repr=False)
    # the secret from which this server makes its noise, in hex digits: the same in every attempt
    noise_secret: str = field(default="", repr=False)
    # the cost of the cohort's earlier results for each client, as far as either server knows
    spent: float = 0.0
    # the public signing key of the other server
    signing_key: str = ""
    state: State = State.NEW
    # whether the round has ever been open, and running, here
    begun: bool = False
    ran: bool = False
    # when the present state reaches its time limit
    deadline: float = float("inf")
    # when the next attempt may begin, and until when the other server may be away
    retry_at: float = 0.0
    away_until: float = float("inf")
    # whether the two servers have yet to resynchronise, and at S0 whether it has asked S1 to
    adrift: bool = False
    resuming: bool = False
    # clients that are not on this server's list, and whose uploads the other server holds
    unlisted: list[str] = field(default_factory=list)
    check: ChecksNow | None = None
    # in an audited round: the clients whose folds fit what both servers are bound to in the session
    folded: list[str] = field(default_factory=list)
    # how many sessions have begun with security malicious, and whether the latest is not used yet
    sessions: int = 0
    unused: bool = False
    # in a round of several votes: the one that is taken or computed now, from 0 on; once the
    # protocol has run, the time limit of all votes
    level: int = 0
    until: float = float("inf")
    # the digest of the digits of the votes before, in hex digits, and this server's signature of
    # the record of them
    path: str = ""
    vouch: str = ""
    # the clients that are computed on, in the order of their keys
    included: list[str] = field(default_factory=list)
    # the others, by name, and why they are left out
    left_out: dict[str, str] = field(default_factory=dict)
    # the keys of those that failed a check or have an upload at a server, listed there or not, by
    # the reason; the same at both servers
    excluded: dict[str, list[str]] = field(default_factory=dict)
    # the number of the latest attempt, and how often something has broken off
    attempt: int = 0
    setbacks: int = 0
    # why the round has failed, or broken off last
    code: str = ""
    reason: str = ""
    # a disagreement that honest servers cannot have, and whether the other server was away too long
    discord: str = ""
    abandoned: bool = False
    # this server's signed record if the other one has deviated (`common.deviations`)
    deviation: dict[str, str] = field(default_factory=dict)
    # this server's signed record once it has computed, with the other server's signature once that
    # has computed, too
    receipt: Receipt | None = None
    vouched: bytes | None = None
    # the SHA-256 of the first record that this server has signed for the round, in hex digits
    signed: str = ""

    @classmethod
    def asked_for(
        cls,
        party: int,
        asked: Open,
        params: RoundParams,
        names: Mapping[str, str],
        floor: int,
        limits: Limits,
        **own: Any,
    ) -> Self:
        """Return a new round of the clients with these names by key.

        Raises ConfigError if there are too few clients for this server. Raises ClientsDiffer if it
        does not list a participant, or if clients of an earlier attempt cannot all take part.
        """
        members = {key: Member(name) for key, name in names.items()}
        runs = min(asked.runs, limits.max_attempts)
        session, new = asked.session, asked.new_session
        made = cls(party, asked, params, members, floor, limits, session, new, runs, **own)
        if floor > params.max_clients:
            raise ConfigError(
                f"max_clients is below the {floor} clients that s{party} asks for: "
                f"{params.max_clients}; for fewer lower min_clients in the files of both servers"
            )
        if len(made.repeats) > params.max_clients:
            raise ClientsDiffer(
                f"other clients could take part with max_clients {params.max_clients}: "
                f"{made.repeats_whom()}; repeat the round with the same clients"
            )
        if not asked.participants:
            return made
        participants = set(asked.participants)
        if unlisted := sorted(participants - members.keys()):
            raise ClientsDiffer(
                f"participants that s{party} does not have in cohort {made.cohort}: "
                f"{cut(', '.join(unlisted), MAX_QUOTE)}; correct the names"
            )
        if len(participants) < made.needed:
            raise ConfigError(
                f"fewer participants than the {made.needed} that s{party} asks for "
                f"(min_clients): {len(participants)}; name more"
            )
        if not made.repeats <= participants:
            raise ClientsDiffer(
                f"the participants are others: {made.repeats_whom()}; repeat the round with the "
                "same clients"
            )
        return replace(made, members={k: one for k, one in members.items() if k in participants})

    @property
    def round_id(self) -> str:
        return self.asked.round

    @property
    def cohort(self) -> str:
        return self.asked.cohort

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def about(self) -> dict[str, Any]:
        """The fields of every log line of the round: its id, and its cohort unless the default."""
        named = self.cohort != DEFAULT_COHORT
        return {"round": self.round_id} | ({"cohort": self.cohort} if named else {})

    @property
    def live(self) -> bool:
        """Whether the round has begun, and is neither published nor failed."""
        return self.state in LIVE

    @property
    def closed(self) -> bool:
        """Whether the round takes no more uploads, and has not failed."""
        return self.state not in (State.NEW, State.OPENING, State.OPEN, State.FAILED)

    @property
    def opened(self) -> str:
        """The values that the servers may have learned: "nothing", "maybe" or the "result".

        It is "maybe" from the moment at which this server starts to run the protocol.
        """
        if self.state is State.PUBLISHED:
            return "result"
        return "maybe" if self.ran else "nothing"

    @property
    def attempts_left(self) -> int:
        """How often what breaks off can still be tried."""
        return max(0, self.runs - self.broken) if self.live else 0

    @property
    def broken(self) -> int:
        """How often something has broken off: at this vote, or runs of all votes."""
        return max(self.setbacks, self.attempt - self.level) if self.votes > 1 else self.setbacks

    @property
    def needed(self) -> int:
        """The fewest clients that this server runs this round with."""
        return max(self.floor, self.params.min_clients)

    # Clients

    def known(self, name: str) -> dict[str, Any]:
        """Return by key what is known of this field of clients, where anything is."""
        values = ((key, getattr(member, name)) for key, member in self.members.items())
        return {key: value for key, value in values if value is not None}

    def with_each(self, changes: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the round with changes of fields by key, of those that are its clients."""
        changed = {
            key: replace(self.members[key], **new)
            for key, new in changes.items()
            if key in self.members
        }
        return replace(self, members={**self.members, **changed})

    def with_all(self, keys: Iterable[str], **changes: Any) -> Self:
        """Return the round with the same changes of several clients."""
        return self.with_each(dict.fromkeys(keys, changes))

    @cached_property
    def names(self) -> dict[str, str]:
        return self.known("name")

    @cached_property
    def here(self) -> dict[str, bytes]:
        """The digests of the uploads that are stored here."""
        return self.known("uploaded")

    @cached_property
    def there(self) -> dict[str, bytes]:
        """The uploads at the other server, with what that server tells of them (`told`)."""
        return self.known("uploaded_there")

    @cached_property
    def dealt_here(self) -> dict[str, bytes]:
        """The digests of the whole dealings that are stored here."""
        return self.known("dealt")

    @cached_property
    def dealt_there(self) -> set[str]:
        return set(self.known("dealt_there"))

    @cached_property
    def passed(self) -> set[str]:
        return {key for key, passed in self.known("passed").items() if passed}

    @cached_property
    def failed(self) -> set[str]:
        return self.known("passed").keys() - self.passed

    def whereabouts(self) -> dict[str, str]:
        """Return by name where each client's upload is: "both", "here", "there" or "none"."""
        return self._places(self.here, self.there)

    def whereabouts_of_dealings(self) -> dict[str, str]:
        """Return by name where each client's dealing is. It is empty where nobody deals."""
        return self._places(self.dealt_here, self.dealt_there) if self.dealt else {}

    def _places(self, here: Container[str], there: Container[str]) -> dict[str, str]:
        words = (("none", "there"), ("here", "both"))
        return {name: words[key in here][key in there] for key, name in self.names.items()}

    def told(self, digest: bytes) -> bytes:
        """Return the part of an upload's digest that this server tells the other one.

        That is the SHA-256 where both get the same upload, and the group where it is visible. The
        SHA-256 of a share would let the other server test guesses of the update.
        """
        return digest if self.dealt else digest[SHA256_BYTES:]

    @property
    def groups(self) -> list[int]:
        """The groups of the included clients, where groups are visible."""
        return [group_of(self.here[k]) for k in self.included if self.params.method.visible]

    def whom_it_repeats(self) -> list[str]:
        """Return the names of the clients of the earlier attempt that may have opened values."""
        names = self.names
        return sorted(names.get(client, "one that left the list") for client in self.repeats)

    def repeats_whom(self) -> str:
        names = self.whom_it_repeats()
        return cut(
            f"an earlier attempt at number {self.number} may have opened values of {len(names)} "
            "clients. Only these may take part again, and all of them must, unless the coordinator "
            f"starts over from another model, or opens with --release: {', '.join(names)}"
        )

    # Votes, checks and folds

    @property
    def votes(self) -> int:
        """How many votes a client has, each within the digits that the one before has opened."""
        return self.params.form.votes

    @property
    def last(self) -> bool:
        """Whether the vote that is taken now is the last, so that its run has the result."""
        return self.level + 1 == self.votes

    @property
    def dealt(self) -> bool:
        """Whether clients deal one-hot vectors ahead of their uploads."""
        return self.params.form.dealing is not None

    @property
    def audited(self) -> bool:
        """Whether the round has security malicious."""
        return self.params.form.audited

    @property
    def exhausted(self) -> bool:
        """Whether more sessions have begun than a round may have.

        SECURITY: in each, a server that deviates may guess once, and break the link off in time.
        """
        return self.sessions > SESSIONS + self.runs + self.votes - 1

    @property
    def checks(self) -> bool:
        """Whether the servers check what clients send."""
        return self.dealt or self.params.form.checks

    @property
    def under_check(self) -> list[str]:
        return self.check.clients if self.check else []

    @property
    def folding(self) -> bool:
        """Whether the check under way is of folds: all these clients' dealings have passed."""
        return self.check is not None and self.may_fold(self.check.clients)

    def may_fold(self, clients: Collection[str]) -> bool:
        """Return whether a check of these clients is of their folds, and not of dealings."""
        return self.audited and self.passed.issuperset(clients)

    @property
    def values_checked(self) -> bool:
        """Whether a check has opened verdicts on uploads, or is about to."""
        return not self.dealt and bool(self.check or self.passed or self.failed)

    # Results

    @property
    def computed_here(self) -> bool:
        return self.receipt is not None

    @property
    def computed_there(self) -> bool:
        return self.vouched is not None

    @property
    def computed(self) -> RoundParams:
        """The parameters that the chosen clients are computed on with."""
        reasons = [why for why, keys in self.excluded.items() for _ in keys]
        return for_those_left(self.params, reasons)

    @property
    def digest(self) -> bytes:
        """The digest of what must be the same at both servers before they run the protocol."""
        clients = self.included, sorted(self.failed), sorted(self.excluded.items())
        agreed: tuple[Any, ...] = self.params.to_dict(), self.asked.participants, *clients
        if self.votes > 1:
            votes = [self.here.get(key, b"") for key in self.included]
            agreed = *agreed, self.level, self.path, votes
        return digest(self.round_id, self.number, *agreed)

    def token(self, client: str, coin: bytes) -> bytes:
        """Return what this server alone can make, and knows its own toss for a client again by.

        The other server stores it with the coin. It tells nothing of the secret that makes it,
        which no round opens in which clients deal.
        """
        return digest("coin", self.toss_opening, self.round_id, client, coin)

    def tokens_of(self, coin: bytes) -> bytes:
        """Return the tokens of the clients that are checked, one after the other."""
        return b"".join(self.token(client, coin) for client in self.under_check)

    @property
    def noise(self) -> bytes:
        """The seed of this server's noise; empty where there is none.

        SECURITY: the same clients get the same noise, so that another attempt tells nothing more.
        Others get another, because the difference of two sums with one noise has none.
        """
        if not self.noise_secret:
            return b""
        return digest(self.noise_secret, self.digest)[:SEED_BYTES]

    @property
    def spent_after(self) -> float:
        """The cost of the cohort's results for each client, with that of this round."""
        return self.spent + self.params.method.noise.rho

    # Values that survive a restart

    def saved(self) -> dict[str, Any]:
        """Return the plain values that survive a restart.

        A live round leaves out the values that have rows of their own (dealings, uploads, coins and
        verdicts). The times, and all that the other server tells again, are left out, too.
        """
        kept = {name: getattr(self, name) for name in _SAVED}
        kept |= {name: value for name in _SAVED_IF_SET if (value := getattr(self, name))}
        if not self.live:
            kept["noise_secret"] = ""
            for name in _SAVED_AT_THE_END:
                value = getattr(self, name)
                kept[name] = (
                    {key: stored.hex() for key, stored in value.items()}
                    if isinstance(value, dict)
                    else sorted(value)
                )
        return kept

    def restored(self, saved: Mapping[str, Any]) -> Self:
        """Return the round with the values that were `saved`; the receipt is in a file."""
        names = {*_SAVED, *_SAVED_IF_SET} - {*_DERIVED}
        own = {name: saved[name] for name in names if name in saved}
        declined = saved.get("declined", {})
        if isinstance(declined, list):
            # release 1.0 keeps no reasons
            declined = dict.fromkeys(declined, POLICY)
        stored = {
            name: {key: bytes.fromhex(text) for key, text in saved.get(column, {}).items()}
            for name, column in _DIGESTS.items()
        }
        verdicts = dict.fromkeys(saved.get("passed", ()), True)
        known: dict[str, dict[str, Any]] = {
            **stored,
            "declined": declined,
            "unfolded": saved.get("unfolded", {}),
            "dealt_there": dict.fromkeys(saved.get("dealt_there", ()), True),
            "passed": verdicts | dict.fromkeys(saved.get("failed", ()), False),
        }
        changes = {
            key: {name: of[key] for name, of in known.items() if key in of} for key in self.members
        }
        return replace(self, **own | {"state": State(saved["state"])}).with_each(changes)

    @cached_property
    def declined(self) -> dict[str, str]:
        """The clients that take no part, as they have told this server, and why."""
        return self.known("declined")

    @cached_property
    def unfolded(self) -> dict[str, str]:
        """The clients that are left out for want of a fold, and why."""
        return self.known("unfolded")


_SAVED = (
    "state",
    "adrift",
    "declined",
    "unfolded",
    "deviation",
    "included",
    "left_out",
    "excluded",
    "code",
    "reason",
    "attempt",
    "setbacks",
    "computed_here",
    "toss_opening",
    "noise_secret",
    "runs",
    "spent",
    "signed",
    "begun",
    "ran",
)
_SAVED_IF_SET = ("sessions", "level", "path", "vouch")
# those of them that the clients and the receipt have
_DERIVED = ("declined", "unfolded", "computed_here")
# the digests of an ended round, whose rows are gone, by the field of a client
_DIGESTS = {"dealt": "dealt_here", "uploaded": "here", "uploaded_there": "there"}
_SAVED_AT_THE_END = ("dealt_here", "dealt_there", "here", "there", "passed", "failed")
