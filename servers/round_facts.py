"""What one server knows of a round, and what follows from it.

That is whom it lets in, what it says to those who ask, and whom it checks and computes on. What
changes it, and when, is in `round_state`.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from securemedian.common.cohorts import DEFAULT_COHORT
from securemedian.common.receipts import Receipt
from securemedian.common.states import LIVE, State
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    MAX_QUOTE,
    BadUpload,
    ClientsDiffer,
    ConfigError,
    DuplicateUpload,
    NotAllowed,
    RoundClosed,
    TooFewClients,
    cut,
    quoted,
)
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.control import SHA256_BYTES, Open, group_of


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
    # the clients of an earlier attempt at this number that may have opened values: only these may
    # take part again. Empty if there was no such attempt.
    repeats: frozenset[str] = frozenset()
    # what this server opens, in hex digits, if it tosses for the round's result: the same in every
    # run of the protocol, and in other attempts at a number that ran
    toss_opening: str = ""
    state: State = State.NEW
    # the time at which the present state has reached its limit
    deadline: float = float("inf")
    # the time before which nothing is tried again, and until which the other server may be away
    retry_at: float = 0.0
    away_until: float = float("inf")
    # whether the two servers have yet to tell each other where they are, and at S0 whether S1 has
    # been asked
    adrift: bool = False
    resuming: bool = False
    # the session of what is under way or comes next
    session: bytes = b""
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
    # what was tossed for the check of these clients' dealings
    coins: dict[str, bytes] = field(default_factory=dict)
    # the clients of the check that is under way, what was tossed for it, and which of them have
    # failed it here and at S1
    under_check: list[str] = field(default_factory=list)
    coin: bytes = b""
    failed_here: list[str] | None = None
    failed_there: list[str] | None = None
    # the verdicts: at S0 those of both servers, which are the same; at S1 its own
    passed: set[str] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)
    # what the two servers do not agree on, though honest servers always do
    discord: str = ""
    # the clients that are computed on, in the order of their keys
    included: list[str] = field(default_factory=list)
    # the others, by name, and why they are left out
    left_out: dict[str, str] = field(default_factory=dict)
    # those of them that have failed a check or of whom a server holds an upload, on its list or
    # not: their keys by the reason, alike at both servers
    excluded: dict[str, list[str]] = field(default_factory=dict)
    # why the round has failed
    code: str = ""
    reason: str = ""
    # the number of the latest run of the protocol, and how often something has broken off
    attempt: int = 0
    setbacks: int = 0
    # whether the other server was away for too long
    abandoned: bool = False
    computed_here: bool = False
    computed_there: bool = False
    # the public signing key of the other server
    signing_key: str = ""
    # the record that this server has of the round, once it has computed: signed by itself, and once
    # the other server has computed by that one, too
    receipt: Receipt | None = None
    # the other server's signature, once it has computed
    vouched: bytes = b""
    # whether the round has ever been open, and running, here
    begun: bool = False
    ran: bool = False

    def __post_init__(self) -> None:
        self.session, self.new_session = self.asked.session, self.asked.new_session
        most = self.params.max_clients
        if self.floor > most:
            raise ConfigError(
                f"max_clients is {most}, and s{self.party} asks for at least {self.floor} clients"
            )
        if len(self.repeats) > most:
            raise ClientsDiffer(f"max_clients is {most}: {self._repeats_whom()}")
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
            raise ClientsDiffer(f"the participants are others: {self._repeats_whom()}")
        self.names = {key: name for key, name in self.names.items() if key in participants}

    @property
    def round_id(self) -> str:
        return self.asked.round

    @property
    def cohort(self) -> str:
        """The name of the cohort."""
        return self.asked.cohort

    @property
    def about(self) -> dict[str, Any]:
        """What the log says of the round in every line: its id, and its cohort if it has one."""
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

        It is "maybe" from the moment that this server runs the protocol, which is rather too early
        than too late.
        """
        if self.state is State.PUBLISHED:
            return "result"
        return "maybe" if self.ran else "nothing"

    @property
    def attempts_left(self) -> int:
        """How often what breaks off can still be tried."""
        return max(0, self.limits.max_attempts - self.setbacks) if self.live else 0

    @property
    def needed(self) -> int:
        """The fewest clients that this server runs this round with."""
        return max(self.floor, self.params.min_clients)

    @property
    def digest(self) -> bytes:
        """The digest of what must be alike at both servers before they run."""
        clients = self.included, sorted(self.failed), sorted(self.excluded.items())
        agreed = self.params.to_dict(), self.asked.participants, *clients
        return digest(self.round_id, self.number, *agreed)

    @property
    def dealt(self) -> bool:
        """Whether clients deal one-hot vectors ahead of their uploads."""
        return self.params.dealing is not None

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

    # Whether what is asked from outside may be done now

    def told(self, digest: bytes) -> bytes:
        """Return what this server tells the other one of an upload with this digest.

        It is the SHA-256 where both get the upload alike, and its group where that is visible. The
        SHA-256 of a share would let the other server try which update it is a share of.
        """
        return digest if self.dealt else digest[SHA256_BYTES:]

    @property
    def groups(self) -> list[int]:
        """The groups of the clients that take part, where groups are visible."""
        if not self.params.method.visible:
            return []
        return [group_of(self.here[key]) for key in self.included]

    def check_group(self, group: int) -> bool:
        """Return whether an upload for this group names it, because groups are visible.

        Raises BadUpload if there is no such group, or none is visible and it is not 0.
        """
        visible = self.params.method.visible
        groups = self.params.method.groups if visible else 1
        if not 0 <= group < groups:
            raise BadUpload(
                f"an upload for round {self.round_id} names a group from 0 to {groups - 1}, "
                f"not {quoted(group)}"
            )
        return visible

    def check_dealing(self, client: str) -> None:
        """Check that a dealing of this client may be stored now.

        Raises BadUpload, RoundClosed or NotAllowed if it may not.
        """
        if not self.dealt:
            raise BadUpload(f"nobody deals for round {self.round_id}: upload shares of your update")
        self._check_sender(client, "dealings")

    def repeats_upload(self, client: str, digest: bytes) -> bool:
        """Return whether this client has uploaded exactly this before, in whatever state we are.

        Raises DuplicateUpload if it has uploaded something else.
        """
        return self._is_repeated(self.here.get(client), digest, "upload")

    def repeats_dealing(self, client: str, digest: bytes) -> bool:
        """Return whether this client has dealt exactly this before, in whatever state we are.

        Raises DuplicateUpload if it has dealt something else.
        """
        return self._is_repeated(self.dealt_here.get(client), digest, "dealing")

    def _is_repeated(self, stored: bytes | None, digest: bytes, what: str) -> bool:
        if stored not in (None, digest):
            raise DuplicateUpload(
                f"another {what} of yours for round {self.round_id} is stored already; "
                "the first one counts"
            )
        return stored == digest

    def check_upload(self, client: str) -> None:
        """Check that an upload of this client may be stored now.

        Raises RoundClosed, NotAllowed or BadUpload if it may not.
        """
        self._check_sender(client, "uploads")
        if self.dealt and client not in self.dealt_here:
            raise BadUpload(
                f"no whole dealing of yours for round {self.round_id} is stored here: "
                "deal before you upload"
            )

    def _check_sender(self, client: str, what: str) -> None:
        """Check that this client may send `what` now. Raises RoundClosed or NotAllowed."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and takes no {what}")
        if client not in self.names:
            raise NotAllowed(self.why_not_for_you)
        if self.params.weights and client not in self.params.weights:
            raise NotAllowed(
                f"round {self.round_id} is weighted, and its coordinator gave you no weight"
            )
        if self.repeats and client not in self.repeats:
            raise NotAllowed(
                f"round {self.round_id} takes no upload of yours: {self._repeats_whom()}"
            )
        if client in self.failed:
            raise NotAllowed(
                f"your dealing for round {self.round_id} failed the check: "
                "you are left out of this round"
            )

    @property
    def why_not_for_you(self) -> str:
        """What a client is told that is not among the round's."""
        if self.asked.participants:
            why = "is for participants whom its coordinator has named, and you are not among them"
        else:
            why = "was opened before you were on the list of clients"
        return f"round {self.round_id} {why}: wait for the next one"

    @property
    def closed(self) -> bool:
        """Whether the round takes no more uploads, and has not failed."""
        return self.state not in (State.NEW, State.OPENING, State.OPEN, State.FAILED)

    def check_close(self) -> None:
        """Raise RoundClosed unless the coordinator may close the round now."""
        if self.state is not State.OPEN:
            raise RoundClosed(f"round {self.round_id} is {self.state} and cannot be closed")

    def check_abort(self) -> None:
        """Raise RoundClosed unless the coordinator may abort the round now.

        Once the round may have opened values, it may not.
        """
        if not self.live:
            raise RoundClosed(f"round {self.round_id} is {self.state} already")
        if self.state in (State.STARTING, State.RUNNING) or self.ran:
            raise RoundClosed(
                f"round {self.round_id} is {self.state} and may have opened values: "
                "wait for its end"
            )

    # What survives a restart

    def saved(self) -> dict[str, Any]:
        """Return as plain values what is to survive a restart.

        Of a live round that is all but what has rows of its own (`dealt_here`, `here`, `coins` and
        the verdicts), the times, and what the other server tells again on a new link.
        """
        kept = {name: getattr(self, name) for name in _SAVED}
        if not self.live:
            for name in _SAVED_AT_THE_END:
                value = getattr(self, name)
                kept[name] = (
                    {key: text.hex() for key, text in value.items()}
                    if isinstance(value, dict)
                    else sorted(value)
                )
        return kept

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take back what `saved` returned."""
        for name, value in saved.items():
            if name in _SAVED:
                setattr(self, name, value)
            elif isinstance(value, dict):
                setattr(self, name, {key: bytes.fromhex(text) for key, text in value.items()})
            else:
                setattr(self, name, set(value))
        self.state = State(self.state)

    # Whom to check, and whom to compute on

    def judge(self) -> None:
        """Take over the verdicts of the check under way, at S0 once both servers have theirs."""
        if self.failed_here is None or (self.party == 0 and self.failed_there is None):
            return
        if self.party == 0 and self.failed_here != self.failed_there:
            self.discord = "the two servers' checks have different verdicts"
            return
        self.failed |= set(self.failed_here)
        self.passed |= set(self.under_check) - self.failed
        self.under_check, self.failed_here, self.failed_there = [], None, None
        if self.state is State.CHECKING:
            self.choose()
        else:
            self.left_out = {self.names[key]: self._why_left_out(key) for key in self.failed}

    def complete_clients(self) -> set[str]:
        """Return the clients that both servers hold alike, and that have not failed a check."""
        alike = {key for key in self.here if self.there.get(key) == self.told(self.here[key])}
        if self.dealt:
            alike &= self.dealt_here.keys() & self.dealt_there
        if self.repeats:
            alike &= self.repeats
        return alike - self.failed

    def choose(self) -> None:
        """Choose whom to compute on: complete clients, in the same order at both servers.

        The verdicts may yet change the choice.
        """
        self.included = sorted(self.complete_clients())[: self.params.max_clients]
        self.left_out = {
            name: self._why_left_out(key)
            for key, name in self.names.items()
            if key not in self.included
        }
        excluded = {
            key: self._why_left_out(key)
            for key in self.here.keys() | self.there.keys() | self.failed
            if key not in self.included
        }
        # as the other server says it: nothing of them can be here
        what = "dealing" if self.dealt else "upload"
        excluded |= dict.fromkeys(self.unlisted, f"its {what} reached only s{1 - self.party}")
        self.excluded = {
            reason: sorted(key for key, why in excluded.items() if why == reason)
            for reason in sorted(set(excluded.values()))
        }

    def _why_left_out(self, key: str) -> str:
        if key in self.failed:
            return (
                "its dealing failed the check"
                if self.dealt
                else "a value of its update is out of range"
            )
        dealt = key in self.dealt_here, key in self.dealt_there
        if self.dealt and not all(dealt):
            return f"its dealing reached {self._whom(*dealt)}"
        uploaded = key in self.here, key in self.there
        if not all(uploaded):
            return f"its upload reached {self._whom(*uploaded)}"
        if self.told(self.here[key]) != self.there[key]:
            return "it sent different uploads to the two servers"
        return f"its upload is complete, but max_clients is {self.params.max_clients}"

    def _whom(self, here: bool, there: bool) -> str:
        if here or there:
            return f"only s{self.party if here else 1 - self.party}"
        return "neither server"

    def unchecked(self) -> list[str]:
        """Return whom to check now, at S0: nobody while a check is under way.

        The dealings of all of them were tossed for together, or those of none.
        """
        if self.under_check or self.adrift or not self.checks:
            return []
        if self.state is State.OPEN:
            # uploads are fixed once the round is closed, and dealings as soon as they are whole
            whole = self.dealt_here.keys() & self.dealt_there
            unchecked = sorted(whole - self.passed - self.failed)
        else:
            unchecked = [key for key in self.included if key not in self.passed]
        return [key for key in unchecked if self.coins.get(key) == self.coins.get(unchecked[0])]

    def may_check(self, clients: list[str], coin: bytes) -> bool:
        """Return whether S1 can check these clients now, as S0 asks it to.

        SECURITY: never under another coin than that of an earlier check of the same dealing.
        """
        if self.dealt:
            held = set(self.dealt_here)
        else:
            held = set(self.here) if self.state is State.CHECKING else set()
        known = {self.coins[key] for key in clients if key in self.coins}
        return (
            not self.under_check
            and set(clients) <= held - self.passed - self.failed
            and known <= {coin}
        )

    def is_lost(self, key: str) -> bool:
        """Return whether this client cannot be in the round, whatever it still sends."""
        both = key in self.here and key in self.there
        differ = both and self.told(self.here[key]) != self.there[key]
        weights = self.params.weights
        return differ or key in self.failed or (bool(weights) and key not in weights)

    def check_clients(self) -> None:
        """Check the chosen clients by this server's own rules.

        Raises ClientsDiffer, TooFewClients or ConfigError.
        """
        if self.repeats and set(self.included) != self.repeats:
            raise ClientsDiffer(f"{len(self.included)} complete uploads: {self._repeats_whom()}")
        if len(self.included) < self.needed:
            raise TooFewClients(
                f"{len(self.included)} complete uploads, "
                f"and s{self.party} asks for at least {self.needed}. {self._reasons()}"
            )
        # the method's own rules, for so many clients with these weights
        self.params.check_included(self.included)

    def _reasons(self) -> str:
        """Return who is left out and why, with the reasons of the fewest clients first."""
        names: dict[str, list[str]] = {}
        for name, why in self.left_out.items():
            names.setdefault(why, []).append(name)
        ordered = sorted(names.items(), key=lambda item: len(item[1]))
        return cut("; ".join(f"{', '.join(who)}: {why}" for why, who in ordered))

    def whom_it_repeats(self) -> list[str]:
        """Return the names of the clients of the earlier attempt that may have opened values."""
        return sorted(self.names.get(client, "one that left the list") for client in self.repeats)

    def _repeats_whom(self) -> str:
        names = self.whom_it_repeats()
        return cut(
            f"an earlier attempt at number {self.number} may have opened values of {len(names)} "
            "clients. Only these may take part again, and all of them must, unless the coordinator "
            f"starts over with reset or a model: {', '.join(names)}"
        )


_SAVED = (
    "state",
    "adrift",
    "included",
    "left_out",
    "excluded",
    "code",
    "reason",
    "attempt",
    "setbacks",
    "computed_here",
    "toss_opening",
    "begun",
    "ran",
)
_SAVED_AT_THE_END = ("dealt_here", "dealt_there", "here", "there", "passed", "failed")
