"""The watch over a service: the status of both servers, and a bounded history of rounds.

One thread per server asks `status`, all together at most once a second for any number of viewers.
Once a round is published, S0 is asked for its receipt instead of one `status`. The rounds of a run
that `coordinate` leads come from its folder too, with their receipts and evaluations.
"""

import calendar
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any, Self

from securemedian.clients import outcomes, receipts
from securemedian.clients.connection import Connection
from securemedian.clients.start import in_one_line
from securemedian.common.receipts import Receipt
from securemedian.common.states import LIVE
from securemedian.common.status import RoundStatus
from securemedian.coordinator.unattended import LINES, attempts
from securemedian.mpc.errors import ReceiptInvalid, SecureMedianError, UnknownRound

# The time between two requests to S0 and to S1: 0.8 and 0.2 per second.
PERIODS_S = (1.25, 5.0)
# how long a server may take to answer
ANSWER_S = 5.0
# the rounds that are shown, and the most that are remembered
ROUNDS_SHOWN = 50
# how long the end of a thread is waited for
END_S = 2.0

# The part of a client in a round, by letter: a sign, a word and an explanation.
KINDS = {
    "i": ("✓", "in", "its update is part of the result"),
    "s": ("●", "sent", "both servers have its upload"),
    "d": ("◔", "dealt", "both servers have its dealing; its upload is still to come"),
    "w": ("○", "waiting", "nothing has come from it"),
    "o": ("◐", "one server", "only one server has its upload or dealing"),
    "l": ("–", "late", "neither server had its upload or dealing when the round closed"),
    "x": ("✕", "left out", "its upload was not taken into the result"),
}
# the fields of a round's status that the page shows
SHOWN = (
    *("round", "number", "state", "reason", "opened", "left_out", "phase", "progress", "attempt"),
    *("attempts_left", "cost", "outermost", "epsilon", "level", "levels", "lacking"),
)


def kind_of(name: str, status: RoundStatus) -> str:
    """Return what a client is in a round, as a letter of `KINDS`."""
    why = status.left_out.get(name, "")
    if "reached only" in why:
        return "o"
    if why:
        return "l" if "reached neither" in why else "x"
    if name in status.included and status.state != "failed":
        return "i"
    upload = status.clients.get(name, "none")
    dealing = status.dealt.get(name, "none")
    if upload == "both":
        return "s"
    if upload != "none" or dealing not in ("none", "both"):
        return "o"
    if dealing == "both":
        return "d"
    # nobody waits for it any more
    return "l" if status.ended else "w"


@dataclass(frozen=True)
class Vouching:
    """Says whether both servers vouch for a round, as far as its receipt is known."""

    # None where the receipt cannot be had any more
    valid: bool | None
    says: str
    # the SHA-256 of the opened values, in hex digits
    opened: str = ""


@dataclass
class Seen:
    """The latest view of a round. Times are seconds of Unix time."""

    status: RoundStatus
    # when it was seen first, and when it was seen to have ended
    began: float
    ended: float | None = None
    # the measures of its model by `coordinate`: numbers, and texts where that failed
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    # when it takes no more uploads or votes
    closes: float | None = None
    # the state that it was last seen in while it was live
    reached: str = ""
    # the content of its receipt, once that has been fetched
    receipt: Vouching | None = None

    @property
    def live(self) -> bool:
        return self.status.state in LIVE

    @property
    def lacks_receipt(self) -> bool:
        return self.status.state == "published" and self.receipt is None

    @property
    def names(self) -> dict[str, None]:
        """The names of its clients, as a set that keeps their order."""
        return dict.fromkeys([*self.status.clients, *self.status.included, *self.status.left_out])

    def to_dict(self, clients: Sequence[str]) -> dict[str, Any]:
        """Return what the page shows, with a letter for each of the clients or a blank."""
        status, names = self.status, self.names
        return {name: getattr(status, name) for name in SHOWN} | {
            "params": {name: value for name, value in status.params.items() if name != "weights"},
            "cells": "".join(kind_of(name, status) if name in names else " " for name in clients),
            "began": self.began,
            "ended": self.ended,
            "closes": self.closes,
            "reached": self.reached,
            "evaluation": dict(self.evaluation),
            "receipt": vars(self.receipt) if self.receipt else None,
        }


class History:
    """The rounds that were seen, at most `ROUNDS_SHOWN`. Used under the watch's lock."""

    def __init__(self) -> None:
        self._seen: dict[str, Seen] = {}

    @property
    def rounds(self) -> list[Seen]:
        """The rounds in the order in which they began.

        A line of `coordinate` tells about when a round began, and a watch that starts late sees
        one later than that: within a run the numbers tell the order.
        """
        ordered: list[Seen] = []
        for seen in sorted(self._seen.values(), key=lambda seen: seen.began):
            place = len(ordered)
            # a run that starts over begins with 1
            while place and 1 < seen.status.number < ordered[place - 1].status.number:
                place -= 1
            ordered.insert(place, seen)
        return ordered

    def find(self, round_id: str) -> Seen | None:
        return self._seen.get(round_id)

    def take(self, status: RoundStatus, now: float) -> None:
        """Take what S0 says of a round."""
        seen = self._of(status, now)
        seen.status = status
        waits = status.state in ("open", "voting")
        seen.closes = now + status.deadline_in_s if waits else None
        if seen.live:
            seen.reached = status.state
        else:
            seen.ended = seen.ended or now

    def lose(self, round_id: str, why: str, now: float) -> None:
        """Take it that a round has ended, and that nobody knows how."""
        if seen := self.find(round_id):
            seen.status = replace(seen.status, state="failed", reason=why)
            seen.ended, seen.closes = now, None

    def remember(self, line: Mapping[str, Any], now: float) -> Seen:
        """Take a line of `coordinate` about a round that has ended."""
        try:
            stamp = time.strptime(str(line.get("time", "")), "%Y-%m-%dT%H:%M:%SZ")
            ended = float(calendar.timegm(stamp))
        except ValueError:
            ended = now
        began = ended - float(line.get("seconds", 0.0))
        said = {**line, "round": str(line["round"])}
        seen = self._of(RoundStatus.from_answer(said), began, ended)
        seen.evaluation = {
            name: value if isinstance(value, str) or isfinite(value) else str(value)
            for name, value in line.get("evaluation", {}).items()
        }
        return seen

    def _of(self, status: RoundStatus, began: float, ended: float | None = None) -> Seen:
        seen = self._seen.setdefault(status.round, Seen(status, began, ended))
        if len(self._seen) > ROUNDS_SHOWN:
            del self._seen[min(self._seen, key=lambda each: self._seen[each].began)]
        return seen


@dataclass
class ServerSeen:
    """The facts about one server."""

    name: str
    address: str
    # whether it has answered the last request; None before the first
    answers: bool | None = None
    # why it has not, or why it can open no round
    problem: str = ""
    # whether it sees the other server
    linked: bool = False
    # when it answered last, in seconds of Unix time
    seen: float | None = None


class Watch:
    """Watches a service from a thread per server, between `with` and its end."""

    def __init__(
        self,
        servers: Sequence[Connection],
        signing_keys: Sequence[str],
        folder: Path | None = None,
        periods_s: Sequence[float] = PERIODS_S,
    ) -> None:
        """Prepare to watch S0 and S1, with their signing keys, and the folder of a run."""
        self._servers, self._signing_keys, self._folder = servers, signing_keys, folder
        self._lock, self._stopped = threading.RLock(), threading.Event()
        self._history = History()
        self._links = [ServerSeen(f"s{i}", server.address) for i, server in enumerate(servers)]
        # the requests to S0 before its latest round again, and the rounds that they are about
        self._errands: list[tuple[str, str]] = []
        self._read: tuple[int, int] = (0, 0)
        self._problem = ""
        self._view: bytes | None = None
        self._threads = [
            threading.Thread(
                target=self._watch, args=(party, period_s), name=f"watch-s{party}", daemon=True
            )
            for party, period_s in enumerate(periods_s)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for server in self._servers:
            server.cancel()
        for thread in self._threads:
            thread.join(END_S)

    def view(self) -> bytes:
        """Return all that is known, as JSON. It is made once per answer of a server."""
        with self._lock:
            if self._view is None:
                self._view = json.dumps(self._all(), separators=(",", ":")).encode()
            return self._view

    def look(self, party: int) -> None:
        """Ask one server once."""
        op, round_id = self._errands.pop(0) if party == 0 and self._errands else ("status", "")
        now, ask, about = time.time(), self._servers[party].ask, {"round": round_id}
        try:
            if op == "result":
                wanted = about | {"values": False}
                self._vouch(round_id, lambda: outcomes.receipt_of(ask("result", wanted)))
            else:
                status = RoundStatus.from_answer(ask("status", about).fields)
                with self._lock:
                    self._take(party, round_id, status, now)
        except UnknownRound as error:
            with self._lock:
                self._history.lose(round_id, str(error), now)
        # also an answer that this release does not understand
        except Exception as error:
            known = isinstance(error, SecureMedianError)
            with self._lock:
                link = self._links[party]
                link.answers, link.linked = False, False
                link.problem = str(error) if known else in_one_line(error)
        with self._lock:
            if party == 0:
                self._read_run(now)
            self._view = None

    def _vouch(self, round_id: str, find: Callable[[], Receipt]) -> None:
        """Verify the receipt of a published round that `find` returns, and note what it says."""
        with self._lock:
            seen = self._history.find(round_id)
        if seen is None:
            return
        try:
            receipt = find()
            receipt.check(self._signing_keys)
            record, clients = receipt.record, len(receipt.record.included)
            if (record.round, clients) != (round_id, len(seen.status.included)):
                raise ReceiptInvalid(
                    f"the receipt is that of another round: {record.round} of {clients} clients; "
                    "remove the file"
                )
            says = f"both servers have signed it, for {clients} clients"
            found = Vouching(True, says, record.opened.hex())
        except ReceiptInvalid as error:
            found = Vouching(False, str(error))
        # S0 keeps the latest rounds alone
        except UnknownRound as error:
            found = Vouching(None, str(error))
        with self._lock:
            seen.receipt = found

    def _take(self, party: int, wanted: str, status: RoundStatus, now: float) -> None:
        link = self._links[party]
        link.answers, link.seen = True, now
        link.linked, link.problem = status.peer_linked, status.peer_problem
        if party == 0 and status.round:
            self._history.take(status, now)
        if party == 0 and not wanted:
            # rounds that were live when another one began: how did they end?
            known = {seen.status.round: seen for seen in self._history.rounds}
            others = [each for each, seen in known.items() if seen.live and each != status.round]
            self._errands = [("status", each) for each in others]
            self._errands += [("result", each) for each in known if known[each].lacks_receipt]

    def _read_run(self, now: float) -> None:
        """Read what `coordinate` has written, if it has written since the last time."""
        if self._folder is None:
            return
        try:
            found = (self._folder / LINES).stat()
        # there has been no round yet
        except OSError:
            return
        state = found.st_mtime_ns, found.st_size
        if self._read == state:
            return
        self._read, self._problem = state, ""
        try:
            for line in attempts(self._folder)[-ROUNDS_SHOWN:]:
                seen = self._history.remember(line, now)
                round_id = seen.status.round
                file = self._folder / f"receipt-{round_id.partition('-')[0]}.json"
                if seen.lacks_receipt and file.exists():
                    self._vouch(round_id, partial(receipts.load, file))
        except SecureMedianError as error:
            self._problem = str(error)
        # lines of another release
        except Exception as error:
            self._problem = f"{self._folder / LINES}: {in_one_line(error)}"

    def _watch(self, party: int, period_s: float) -> None:
        while not self._stopped.is_set():
            begun = time.monotonic()
            self.look(party)
            self._stopped.wait(max(0.0, begun + period_s - time.monotonic()))
        self._servers[party].close()

    def _all(self) -> dict[str, Any]:
        rounds = self._history.rounds
        # the latest round's order first
        clients = list(dict.fromkeys(name for seen in reversed(rounds) for name in seen.names))
        folder = str(self._folder) if self._folder else ""
        return {
            "kinds": KINDS,
            "servers": [vars(link) for link in self._links],
            "clients": clients,
            "rounds": [seen.to_dict(clients) for seen in rounds],
            "live": list(LIVE),
            "run": {"folder": folder, "problem": self._problem},
        }
