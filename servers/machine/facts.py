"""The facts that one server has of a round, and what follows from them alone."""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from securemedian.common.cohorts import DEFAULT_COHORT
from securemedian.common.receipts import Receipt
from securemedian.common.states import LIVE, State
from securemedian.common.status import POLICY
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import MAX_QUOTE, ClientsDiffer, ConfigError, cut
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.network.control import SHA256_BYTES, Open, group_of


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


@dataclass
class RoundFacts:
    """A round as one server knows it. Its clients are known by their public keys."""

    party: int
    # the message with which S0 asks S1 to take part
    asked: Open
    params: RoundParams
    # the name of each client of the cohort on this server's list, by public key; only those of
    # the participants if the coordinator has named any
    names: Mapping[str, str]
    # the fewest clients that this server ever computes with
    floor: int
    limits: Limits
    # if an earlier attempt at this number may have opened values, its clients: only these may take
    # part again
    repeats: frozenset[str] = frozenset()
    # what this server opens, in hex digits, if it tosses for the round's result: the same in every
    # attempt at the number, once one has run
    toss_opening: str = ""
    # where the round has noise, what this server makes its own from, in hex digits: the same in
    # every attempt
    noise_secret: str = ""
    # how often the protocol runs for this round at most: the smaller of both servers' limits, once
    # both know them
    runs: int = 0
    # what the cohort's earlier results may have cost each client, as far as either server knows
    spent: float = 0.0
    state: State = State.NEW
    # when the present state reaches its time limit
    deadline: float = float("inf")
    # when the next attempt may begin, and until when the other server may be away
    retry_at: float = 0.0
    away_until: float = float("inf")
    # whether the two servers have yet to resynchronise, and at S0 whether it has asked S1 to
    adrift: bool = False
    resuming: bool = False
    # the session of what is under way or comes next
    session: bytes = field(default=b"", repr=False)
    new_session: bool = False
    # the clients whose whole dealings are stored here, with their SHA-256, and at the other server
    dealt_here: dict[str, bytes] = field(default_factory=dict)
    dealt_there: set[str] = field(default_factory=set)
    # the clients whose uploads are stored here, with their `upload_digest`, and at the other
    # server, with what that server tells of them (`told`)
    here: dict[str, bytes] = field(default_factory=dict)
    there: dict[str, bytes] = field(default_factory=dict)
    # clients that are not on this server's list, and whose uploads the other server holds
    unlisted: list[str] = field(default_factory=list)
    # the coin of the check of these clients' dealings
    coins: dict[str, bytes] = field(default_factory=dict, repr=False)
    # the other server's `token` of each of these coins
    tokens: dict[str, bytes] = field(default_factory=dict, repr=False)
    # the clients of the current check, its coin, and the clients that failed it here and at S1
    under_check: list[str] = field(default_factory=list)
    coin: bytes = field(default=b"", repr=False)
    failed_here: list[str] | None = None
    failed_there: list[str] | None = None
    # the verdicts: at S0 those of both servers, which are the same; at S1 its own
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    # in an audited round: the clients whose folds fit what both servers are bound to in the present
    # session, and why others are left out, whose folds have not come or do not fit
    folded: list[str] = field(default_factory=list)
    unfolded: dict[str, str] = field(default_factory=dict)
    # those of `failed_here` whose folds have not come
    silent: list[str] = field(default_factory=list)
    # what this server has signed if the other one has deviated (`common.deviations`)
    deviation: dict[str, str] = field(default_factory=dict)
    # a disagreement of the two servers that honest servers cannot have
    discord: str = ""
    # the clients that take no part, as they have told this server, and why (`status.DECLINED`)
    declined: dict[str, str] = field(default_factory=dict)
    # the clients that are computed on, in the order of their keys
    included: list[str] = field(default_factory=list)
    # the others, by name, and why they are left out
    left_out: dict[str, str] = field(default_factory=dict)
    # the keys of those that failed a check or have an upload at a server, listed there or not, by
    # the reason; the same at both servers
    excluded: dict[str, list[str]] = field(default_factory=dict)
    # why the round has failed
    code: str = ""
    reason: str = ""
    # the number of the latest attempt, and how often something has broken off
    attempt: int = 0
    setbacks: int = 0
    # whether the other server was away for too long
    abandoned: bool = False
    computed_here: bool = False
    computed_there: bool = False
    # the public signing key of the other server
    signing_key: str = ""
    # this server's record of the round once it has computed, signed by itself, and by the other
    # server once that has computed
    receipt: Receipt | None = None
    # the SHA-256 of the first record that this server has signed for the round, in hex digits
    signed: str = ""
    # the other server's signature, once it has computed
    vouched: bytes = b""
    # whether the round has ever been open, and running, here
    begun: bool = False
    ran: bool = False

    def __post_init__(self) -> None:
        self.session, self.new_session = self.asked.session, self.asked.new_session
        self.runs = min(self.asked.runs, self.limits.max_attempts)
        most = self.params.max_clients
        if self.floor > most:
            raise ConfigError(
                f"max_clients is {most}, and s{self.party} asks for at least {self.floor} clients: "
                "for fewer the files of both servers need min_clients"
            )
        if len(self.repeats) > most:
            raise ClientsDiffer(f"max_clients is {most}: {self.repeats_whom()}")
        if self.asked.participants:
            self._leave_out_others(set(self.asked.participants))

    def _leave_out_others(self, participants: set[str]) -> None:
        """Keep the names of the participants alone.

        Raises ClientsDiffer if one of them is not on this server's list, or if a client is not
        among them whom an earlier attempt binds, and ConfigError if they are too few for this
        server.
        """
        if unlisted := sorted(participants - self.names.keys()):
            raise ClientsDiffer(
                f"s{self.party} has no such clients of cohort {self.cohort} as some of the "
                f"participants: {cut(', '.join(unlisted), MAX_QUOTE)}"
            )
        if len(participants) < self.needed:
            raise ConfigError(
                f"there are {len(participants)} participants, and s{self.party} asks for at least "
                f"{self.needed} clients (min_clients)"
            )
        if not self.repeats <= participants:
            raise ClientsDiffer(f"the participants are others: {self.repeats_whom()}")
        self.names = {key: name for key, name in self.names.items() if key in participants}

    @property
    def round_id(self) -> str:
        return self.asked.round

    @property
    def cohort(self) -> str:
        return self.asked.cohort

    @property
    def about(self) -> dict[str, Any]:
        """The fields of every log line of the round: its id, and its cohort unless the default."""
        named = self.cohort != DEFAULT_COHORT
        return {"round": self.round_id} | ({"cohort": self.cohort} if named else {})

    @property
    def number(self) -> int:
        return self.asked.number

    @property
    def live(self) -> bool:
        """Whether the round has begun, and is neither published nor failed."""
        return self.state in LIVE

    @property
    def opened(self) -> str:
        """What the servers may have learned of values: "nothing", "maybe" or the "result".

        It is "maybe" from the moment at which this server starts to run the protocol.
        """
        if self.state is State.PUBLISHED:
            return "result"
        return "maybe" if self.ran else "nothing"

    @property
    def attempts_left(self) -> int:
        """How often what breaks off can still be tried."""
        return max(0, self.runs - self.setbacks) if self.live else 0

    @property
    def needed(self) -> int:
        """The fewest clients that this server runs this round with."""
        return max(self.floor, self.params.min_clients)

    @property
    def digest(self) -> bytes:
        """The digest of what must be the same at both servers before they run the protocol."""
        clients = self.included, sorted(self.failed), sorted(self.excluded.items())
        agreed = self.params.to_dict(), self.asked.participants, *clients
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

        SECURITY: of the same clients it is the same, so that another attempt tells nothing more,
        and of others it is another, because the difference of two sums with one noise has none.
        """
        if not self.noise_secret:
            return b""
        return digest(self.noise_secret, self.digest)[:SEED_BYTES]

    @property
    def dealt(self) -> bool:
        """Whether clients deal one-hot vectors ahead of their uploads."""
        return self.params.dealing is not None

    @property
    def audited(self) -> bool:
        """Whether the servers prove the result to each other before they sign it."""
        return self.params.method.audited

    @property
    def folding(self) -> bool:
        """Whether the check under way is of folds: all these clients' dealings have passed."""
        return bool(self.under_check) and self.may_fold(self.under_check)

    def may_fold(self, clients: Collection[str]) -> bool:
        """Return whether a check of these clients is of their folds, and not of dealings."""
        return self.audited and self.passed.issuperset(clients)

    @property
    def checks(self) -> bool:
        """Whether the servers check what clients send."""
        return self.dealt or self.params.method.checks_values

    def whereabouts(self) -> dict[str, str]:
        """Return by name where each client's upload is: "both", "here", "there" or "none"."""
        return self._places(self.here, self.there)

    def whereabouts_of_dealings(self) -> dict[str, str]:
        """Return by name where each client's dealing is. It is empty where nobody deals."""
        return self._places(self.dealt_here, self.dealt_there) if self.dealt else {}

    def _places(self, here: Container[str], there: Container[str]) -> dict[str, str]:
        words = {
            (True, True): "both",
            (True, False): "here",
            (False, True): "there",
            (False, False): "none",
        }
        return {name: words[key in here, key in there] for key, name in self.names.items()}

    def told(self, digest: bytes) -> bytes:
        """Return the part of an upload's digest that this server tells the other one.

        That is the SHA-256 where both get the same upload, and the group where it is visible. The
        SHA-256 of a share would let the other server test guesses of the update.
        """
        return digest if self.dealt else digest[SHA256_BYTES:]

    @property
    def groups(self) -> list[int]:
        if not self.params.method.visible:
            return []
        return [group_of(self.here[key]) for key in self.included]

    @property
    def spent_after(self) -> float:
        """What the cohort's results have cost each client with that of this round."""
        return self.spent + self.params.method.zcdp_rho

    @property
    def closed(self) -> bool:
        """Whether the round takes no more uploads, and has not failed."""
        return self.state not in (State.NEW, State.OPENING, State.OPEN, State.FAILED)

    def whom_it_repeats(self) -> list[str]:
        """Return the names of the clients of the earlier attempt that may have opened values."""
        return sorted(self.names.get(client, "one that left the list") for client in self.repeats)

    def repeats_whom(self) -> str:
        names = self.whom_it_repeats()
        return cut(
            f"an earlier attempt at number {self.number} may have opened values of {len(names)} "
            "clients. Only these may take part again, and all of them must, unless the coordinator "
            f"starts over from another model, or opens with --release: {', '.join(names)}"
        )

    # What survives a restart

    def saved(self) -> dict[str, Any]:
        """Return the plain values that survive a restart.

        Left out are, of a live round, what has rows of its own (`dealt_here`, `here`, `coins` and
        the verdicts); the times; and what the other server tells again on a new link.
        """
        kept = {name: getattr(self, name) for name in _SAVED}
        if not self.live:
            kept["noise_secret"] = ""
            for name in _SAVED_AT_THE_END:
                value = getattr(self, name)
                kept[name] = (
                    {key: text.hex() for key, text in value.items()}
                    if isinstance(value, dict)
                    else sorted(value)
                )
        return kept

    def restore(self, saved: Mapping[str, Any]) -> None:
        for name, value in saved.items():
            if name in _SAVED:
                setattr(self, name, value)
            elif isinstance(value, dict):
                setattr(self, name, {key: bytes.fromhex(text) for key, text in value.items()})
            else:
                setattr(self, name, set(value))
        if isinstance(self.declined, list):
            # release 1.0 keeps no reasons
            self.declined = dict.fromkeys(self.declined, POLICY)
        self.state = State(self.state)


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
_SAVED_AT_THE_END = ("dealt_here", "dealt_there", "here", "there", "passed", "failed")
