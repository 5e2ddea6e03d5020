"""A round as servers and callers speak of it: its cohort, status and public metrics.

`RoundStatus` is the answer to `status` (docs/wire.md).
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, Self

from securemedian.common.states import State
from securemedian.common.terminal import clock
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import ConfigError, InputError, PeerProtocolError, cut, quoted

# the cohort that is always there, and needs no name
DEFAULT_COHORT = "default"
_COHORT = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,38}[a-z0-9])?", re.ASCII)

# public metrics per client and round, and characters in the name of one
MOST_METRICS = 16
LONGEST_NAME = 64

# how the problem of a server begins whose kernels are not compiled yet
COMPILING = "this server still compiles its kernels"

# Why a client takes no part in a round, by the code that it sends: no text of the client's own,
# which could tell of its data.
POLICY, NOT_FINITE, TRAINING, SERVERS = "policy", "not-finite", "training-failed", "servers-differ"
DECLINED = {
    POLICY: "its own policy refuses the round",
    NOT_FINITE: "its update has NaN or infinite values",
    TRAINING: "its training failed",
    SERVERS: "it found that the servers do not follow the protocol",
}


def by_reason(left_out: Mapping[str, str]) -> list[str]:
    """Return who is left out and why, a text per reason, that of the fewest clients first."""
    names: dict[str, list[str]] = {}
    for name, why in left_out.items():
        names.setdefault(why, []).append(name)
    ordered = sorted(names.items(), key=lambda item: len(item[1]))
    # a reason is about one client: "its upload"
    return [f"{'each of ' if len(who) > 1 else ''}{', '.join(who)}: {why}" for why, who in ordered]


@dataclass(frozen=True)
class RoundStatus:
    """The state of a round at one server, and of its link to the other. Names are those of clients.

    The defaults are those of a cohort that has had no round.
    """

    # the id of the round
    round: str = ""
    # the name of its cohort
    cohort: str = DEFAULT_COHORT
    # its number in the run
    number: int = 0
    # see `common.states.State`; none before the first round
    state: str = "none"
    # as `RoundParams.to_dict` returns them
    params: dict[str, Any] = field(default_factory=dict)
    # why the round is in this state
    reason: str = ""
    # the values that have been opened: nothing, maybe, result
    opened: str = "nothing"
    # the digest of the run that the round starts from, in hex digits
    start: str = ""
    # the servers that have a client's upload, by its name: both, here, there, none
    clients: dict[str, str] = field(default_factory=dict)
    # likewise for its dealing; empty where clients do not deal
    dealt: dict[str, str] = field(default_factory=dict)
    # whether one server that deviates learns no more of it than is bounded
    one_malicious_server: bool = False
    # the clients computed on
    included: list[str] = field(default_factory=list)
    # the groups of the clients in `included`, where groups are visible
    groups: list[int] = field(default_factory=list)
    # the reason by name
    left_out: dict[str, str] = field(default_factory=dict)
    # how often the protocol has run, and may still be run
    attempt: int = 0
    attempts_left: int = 0
    # seconds until it runs again
    retry_in_s: float = 0.0
    # the present work of the servers, and [done, total] of it
    phase: str = ""
    progress: list[int] = field(default_factory=lambda: [0, 0])
    # the cost of the result: seconds, bytes, OTs, ..
    cost: dict[str, Any] = field(default_factory=dict)
    # coordinates of the result that are in an outermost bucket
    outermost: int = 0
    # groups whose model stays, because fewer than `min_clients` chose them
    unchanged_groups: list[int] = field(default_factory=list)
    # the coin that the servers tossed for the result, in hex digits, for methods that toss
    coin: str = ""
    # the epsilon, at delta 1e-5, of the cohort's results up to that of this round; None if one of
    # them has no noise
    epsilon: float | None = None
    # the record that this server has signed if the other one has deviated (`common.deviations`)
    deviation: dict[str, str] = field(default_factory=dict, metadata={"since": 2})
    # seconds until it closes, or until it fails for want of a vote
    deadline_in_s: float = 0.0
    # in a round of several votes: the one that is taken or computed, and of how many
    level: int = field(default=0, metadata={"since": 3})
    levels: int = field(default=0, metadata={"since": 3})
    # the clients that a later vote waits for
    lacking: list[str] = field(default_factory=list, metadata={"since": 3})
    # the bytes of the round's uploads on this server's disk
    stored_bytes: int = 0
    # whether the server is linked to the other one, and otherwise what is wrong
    peer_linked: bool = False
    peer_problem: str = ""

    @property
    def ended(self) -> bool:
        """Whether the round has a result, or will never have one."""
        return self.state in ("published", "failed")

    @property
    def of_levels(self) -> str:
        """The level that a round of several votes is at, and whom it waits for; "" for others."""
        if not self.levels:
            return ""
        level = f"level {self.level} of {self.levels}"
        if self.state != State.VOTING:
            return level
        lacking = cut(", ".join(self.lacking) or "both servers")
        return f"{level}, waiting for {lacking}, until {clock(self.deadline_in_s)}"

    @property
    def complete(self) -> list[str]:
        """The clients whose uploads both servers have."""
        return [name for name, where in self.clients.items() if where == "both"]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name, as they are sent and shown."""
        return flat(self)

    @classmethod
    def from_answer(cls, said: Mapping[str, Any]) -> Self:
        """Return what a server said. Raises PeerProtocolError for a field of another type."""
        known = {f.name: said[f.name] for f in fields(cls) if f.name in said}
        try:
            return build(cls, known, "status")
        except ConfigError as error:
            raise PeerProtocolError(f"a server sent no status of a round: {error}") from error


def check_cohort(name: str) -> None:
    """Raise ConfigError unless a cohort can have this name."""
    if not _COHORT.fullmatch(name):
        raise ConfigError(
            f"invalid cohort name: {quoted(name)}; use a to z, digits, dots and dashes, at most "
            "40 characters, with a letter or a digit at both ends"
        )


def check_public_metrics(metrics: Mapping[str, object]) -> dict[str, float]:
    """Return finite numbers by name, as they are sent. Raises InputError for anything else."""
    if len(metrics) > MOST_METRICS:
        raise InputError(f"too many public metrics: {len(metrics)}; send at most {MOST_METRICS}")
    return {_name(name): _number(name, value) for name, value in metrics.items()}


def _name(name: object) -> str:
    if not (isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()):
        raise InputError(
            f"invalid name of a public metric: {quoted(name)}; use 1 to {LONGEST_NAME} "
            "printable characters"
        )
    return name


def _number(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise InputError(
        f"the public metric {quoted(name)} is not a finite number: {quoted(value)}; leave it "
        "out or correct it"
    )
