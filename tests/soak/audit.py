"""The claims that a soak checks, and the findings.

- An upload that both servers acknowledged is in its round's result, or its client is named with a
  reason. The reason never says that the upload was missing, even if the round fails.
- A published result equals the one computed in the clear, all who ask get the same one, and the
  next round goes on from it.
- No session is established twice at a server, no round runs twice in one session, and no session
  has rounds of two cohorts. Correlations can repeat in no other way: a process takes every block
  of its pools once (`tests/test_correlations.py`).
- A dealing is checked under one coin: a second one would open what the first has left hidden.
- Every round ends by itself within its limit.
"""

import statistics
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from securemedian.common.status import DEFAULT_COHORT

# reasons for which a client is left out that say that a server has not got what it acknowledged
MISSING = ("reached neither server", "reached only s")
# part of the reason of a round that fails for want of clients
TOO_FEW = " asks for at least "
# samples of one life of a server from which its growth is told
SAMPLES = 8


@dataclass(frozen=True)
class Ended:
    """How a round has ended, as S0 says it."""

    round_id: str
    method: str
    # "published", "failed", or where it has not ended, "stuck" or "forgotten"
    state: str
    reason: str = ""
    included: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    # whether what was published is what must be
    right: bool = True
    # the SHA-256 of what S0 published
    digest: str = ""
    # the fewest clients that the round could do with
    min_clients: int = 2
    cohort: str = DEFAULT_COHORT


@dataclass
class _Life:
    started: float
    # when it was ready for the other server, and when it was linked
    ready: float | None = None
    linked: float | None = None
    compile_s: float = 0.0
    # whether nothing but this server's own start was in the way of the link
    alone: bool = False
    sizes: list[tuple[int, int]] = field(default_factory=list)


class Audit:
    """The book of a soak. Any thread may write to it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.faults: Counter[str] = Counter()
        self.ended: list[Ended] = []
        # each finding in words
        self.findings: list[str] = []
        # how often a server has ended by itself
        self.exits = 0
        self.uploads_lost = self.wrong_results = self.reused_correlations = self.stuck = 0
        # by round, what is known before it has ended
        self._acknowledged: dict[str, set[str]] = {}
        self._results: dict[str, dict[str, str]] = {}
        self._sessions: dict[str, set[str]] = {"s0": set(), "s1": set()}
        self._runs: set[tuple[str, str, int, str]] = set()
        # by server and round, the session of its last run
        self._ran_in: dict[tuple[str, str], str] = {}
        # by session, the cohort whose rounds run in it
        self._cohort_of: dict[str, str] = {}
        # by round and client, the coins under which either server has checked the dealing
        self._coins: dict[tuple[str, str], set[str]] = {}
        self._lives: dict[str, list[_Life]] = {"s0": [], "s1": []}
        # bytes of the state folders when a round had ended
        self._disk: list[int] = []
        # the last time at which something was in the way of the link, and whether it still is
        self._disturbed, self._disturbing = 0.0, 0

    # Events

    def fault(self, kind: str) -> None:
        with self._lock:
            self.faults[kind] += 1

    def disturb(self, begins: bool, now: float) -> None:
        """Note that something is in the way of the link from now on, or no longer."""
        with self._lock:
            self._disturbing += 1 if begins else -1
            self._disturbed = now

    def acknowledged(self, client: str, round_id: str) -> None:
        """Note that both servers have told a client that they hold its upload."""
        with self._lock:
            if ended := self._closed(round_id):
                self._check_uploads(ended, {client})
            else:
                self._acknowledged.setdefault(round_id, set()).add(client)

    def result(self, client: str, round_id: str, digest: str) -> None:
        """Note the result that a client got."""
        with self._lock:
            if ended := self._closed(round_id):
                self._check_result(ended, client, digest)
            else:
                self._results.setdefault(round_id, {})[client] = digest

    def size(self, server: str, memory: int, descriptors: int, disk: int) -> None:
        """Note what a server takes when a round has ended; memory and disk are in bytes."""
        with self._lock:
            self._disk.append(disk)
            if lives := self._lives[server]:
                lives[-1].sizes.append((memory, descriptors))

    def logged(self, server: str, event: dict[str, Any], now: float) -> None:
        with self._lock:
            lives = self._lives[server]
            life = lives[-1] if lives else _Life(now)
            match event.get("event"):
                case "compiled":
                    life.ready, life.compile_s = now, float(event["seconds"])
                case "started":
                    lives.append(_Life(now))
                case "peer-linked" if life.linked is None:
                    life.linked, life.alone = now, self._is_alone(server, life)
                case "session-established":
                    self._session(server, str(event["session"]))
                case "round-running":
                    vote = event.get("vote", 1)
                    self._run(server, event["round"], vote, cohort_of(event), event["session"])
                case "round-published":
                    self._published(server, event["round"])
                case "check-begun":
                    for client in event["clients"]:
                        self._check_begun(event["round"], client, event["coin"])

    def _session(self, server: str, session: str) -> None:
        if session in self._sessions[server]:
            self._reused(f"{server} established session {session} twice")
        self._sessions[server].add(session)

    def _run(self, server: str, round_id: str, vote: int, cohort: str, session: str) -> None:
        run = server, round_id, vote, session
        if run in self._runs:
            self._reused(f"{server} ran round {round_id} twice in session {session}")
        self._runs.add(run)
        self._ran_in[server, round_id] = session
        owner = self._cohort_of.setdefault(session, cohort)
        if owner != cohort:
            self._reused(f"{server} ran round {round_id} of {cohort} in a session of {owner}")

    def _published(self, server: str, round_id: str) -> None:
        session = self._ran_in.get((server, round_id))
        if session not in self._sessions[server]:
            self._reused(f"{server} has a result of round {round_id} from no session of its own")

    def _check_begun(self, round_id: str, client: str, coin: str) -> None:
        coins = self._coins.setdefault((round_id, client), set())
        if coins and coin not in coins:
            self._reused(f"{client}'s dealing for round {round_id} was checked under another coin")
        coins.add(coin)

    def _is_alone(self, server: str, life: _Life) -> bool:
        """Return whether the other server and the link were there during all of this start."""
        other = self._lives["s1" if server == "s0" else "s0"][-1:]
        there = all(one.ready is not None and one.ready < life.started for one in other)
        return there and bool(other) and not self._disturbing and self._disturbed < life.started

    def closed(self, ended: Ended) -> None:
        """Note the end of a round, and check what it did with its uploads and its result."""
        with self._lock:
            self.ended.append(ended)
            if ended.state not in ("published", "failed"):
                self.stuck += 1
                self.findings.append(f"round {ended.round_id} is {ended.state}: {ended.reason}")
            if not ended.right:
                self._wrong(f"round {ended.round_id} ({ended.method}) published something else")
            self._check_uploads(ended, self._acknowledged.pop(ended.round_id, set()))
            for client, digest in self._results.pop(ended.round_id, {}).items():
                self._check_result(ended, client, digest)

    def _closed(self, round_id: str) -> Ended | None:
        return next((ended for ended in reversed(self.ended) if ended.round_id == round_id), None)

    def _check_uploads(self, ended: Ended, acknowledged: set[str]) -> None:
        """Count the clients whose uploads both servers acknowledged and one has not got."""
        too_few = TOO_FEW in ended.reason and len(acknowledged) >= ended.min_clients
        for client in sorted(acknowledged - set(ended.included)):
            why = ended.left_out.get(client, "")
            missing = not why or any(text in why for text in MISSING)
            if ended.state == "forgotten" or too_few or (ended.state == "published" and missing):
                self._lost(ended.round_id, client, why or ended.reason or "nobody says why")

    def _check_result(self, ended: Ended, client: str, digest: str) -> None:
        if ended.state == "failed":
            self._wrong(f"round {ended.round_id} has failed, and {client} got a result")
        elif ended.state == "published" and digest != ended.digest:
            self._wrong(f"{client} got another result of round {ended.round_id} than was published")

    def goes_on(self, round_id: str, right: bool) -> None:
        """Note whether a round goes on from the result of the round before it."""
        with self._lock:
            if not right:
                self._wrong(f"round {round_id} does not go on from the last result")

    def _lost(self, round_id: str, client: str, why: str) -> None:
        self.uploads_lost += 1
        self.findings.append(f"the upload of {client} for round {round_id} was lost: {why}")

    def _reused(self, what: str) -> None:
        self.reused_correlations += 1
        self.findings.append(what)

    def _wrong(self, what: str) -> None:
        self.wrong_results += 1
        self.findings.append(what)

    # Findings

    @property
    def clean(self) -> bool:
        """Return whether nothing was lost, wrong, reused or stuck."""
        return not (
            self.uploads_lost or self.wrong_results or self.reused_correlations or self.stuck
        )

    def report(self) -> dict[str, Any]:
        """Return all figures, as --json writes them."""
        with self._lock:
            lives = [life for server in self._lives.values() for life in server]
            recovered = [
                (life.linked - life.started, life.compile_s)
                for life in lives
                if life.alone and life.linked is not None
            ]
            beside = [seconds - compiling for seconds, compiling in recovered]
            states = Counter(ended.state for ended in self.ended)
            cohorts = dict.fromkeys(ended.cohort for ended in self.ended)
            return {
                "faults": self.faults.total(),
                "rounds": len(self.ended),
                "published": states["published"],
                "failed": states["failed"],
                "uploads_lost": self.uploads_lost,
                "wrong_results": self.wrong_results,
                "reused_correlations": self.reused_correlations,
                "stuck": self.stuck,
                "recovery_seconds": round(max(beside, default=0.0), 2),
                "recovery": {
                    "restarts": len(recovered),
                    "median_seconds": _median(beside),
                    "median_seconds_with_compiling": _median([all_ for all_, _ in recovered]),
                    "worst_seconds_with_compiling": round(
                        max((all_ for all_, _ in recovered), default=0.0), 2
                    ),
                },
                "sessions": len(self._sessions["s0"] | self._sessions["s1"]),
                "dealings_checked": len(self._coins),
                "exits": self.exits,
                "cohorts": {name: self._rounds_of(name) for name in cohorts},
                "faults_by_kind": dict(sorted(self.faults.items())),
                "reasons": dict(
                    Counter(
                        ended.reason for ended in self.ended if ended.state == "failed"
                    ).most_common()
                ),
                "growth": self._growth(lives),
                "findings": list(self.findings),
            }

    def _rounds_of(self, cohort: str) -> dict[str, int]:
        states = Counter(ended.state for ended in self.ended if ended.cohort == cohort)
        return {
            "rounds": states.total(),
            "published": states["published"],
            "failed": states["failed"],
        }

    def _growth(self, lives: list[_Life]) -> dict[str, Any]:
        """Return how much more a server took in the second half of a life than in the first."""
        halves = [
            (life.sizes[: len(life.sizes) // 2], life.sizes[len(life.sizes) // 2 :])
            for life in lives
            if len(life.sizes) >= SAMPLES
        ]
        peaks = [size for life in lives for size in life.sizes]
        grown = [
            [max(late)[0] - max(early)[0] for early, late in halves],
            [max(d for _, d in late) - max(d for _, d in early) for early, late in halves],
        ]
        return {
            "lives": len(halves),
            "memory_mb": round(max(grown[0], default=0) / 1e6, 1),
            "descriptors": max(grown[1], default=0),
            "peak_memory_mb": round(max((size for size, _ in peaks), default=0) / 1e6, 1),
            "peak_descriptors": max((count for _, count in peaks), default=0),
            "peak_disk_mb": round(max(self._disk, default=0) / 1e6, 1),
            "last_disk_mb": round(max(self._disk[-2:], default=0) / 1e6, 1),
        }


def cohort_of(event: dict[str, Any]) -> str:
    """Return which cohort a line of a server's log is about."""
    return str(event.get("cohort", DEFAULT_COHORT))


def _median(values: list[float]) -> float:
    return round(statistics.median(values), 2) if values else 0.0
