"""A server that dies at a moment, or loses its link to the other one: `Pair.start(module=..)`.

It is a real daemon. The file SERVER.moment beside its configuration says at which moment it dies,
or its link is cut, or its lanes break: `die state open`, or `cut lane bisect.sign 8` for the eighth
of these messages.

    state NAME   The round's new state is stored, and nothing is done about it.
    said NAME    A message has been given to the control stream.
    lane NAME    A message is to be sent on a lane.
    made NAME    A part of the work is done: "material" or "result" here, "folds" are asked for.
"""

import hashlib
import json
import os
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from securemedian import cli
from securemedian.mpc.errors import ChannelClosed
from securemedian.mpc.protocols.bisect import Lane
from securemedian.mpc.protocols.channel import Channel
from securemedian.servers import logs
from securemedian.servers.computing.folds import Folds
from securemedian.servers.computing.threads import ThreadComputation
from securemedian.servers.network.peer import Change
from securemedian.servers.rounds.peer_control import PeerControl
from securemedian.servers.rounds.register import Register
from securemedian.servers.storage.store import DATABASE
from tests.rogue.hooks import replace

LIMIT_S = 60.0
# in which state a round is stored before a message is sent
STORED = {"bisect.change": "checking", "bisect.sign": "running"}


class Moments:
    """The moments that have come, while one is waited for. Any thread may use it."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self._seen: Counter[str] = Counter()
        # a link that is to be lost, and one that is
        self.to_cut, self.is_cut = threading.Event(), threading.Event()

    def come(self, what: str, name: str) -> None:
        """Die, break off, or lose the link and go on, if this is the moment."""
        with self._lock:
            if not self._file.exists():
                return
            how, *moment = self._file.read_text().split()
            self._seen[f"{what} {name}"] += 1
            number = moment.pop() if len(moment) > 2 else "1"
            if moment != [what, name] or self._seen[f"{what} {name}"] != int(number):
                return
            self._file.unlink()
            self._seen.clear()
            match how:
                case "die":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "break":
                    raise ChannelClosed("broken on purpose")
            self.to_cut.set()
        assert self.is_cut.wait(LIMIT_S)
        self.is_cut.clear()


def stored(folder: Path) -> dict[str, Any]:
    """Return what a server's database has of its latest round."""
    with closing(sqlite3.connect(f"file:{folder / DATABASE}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT saved FROM rounds ORDER BY place DESC LIMIT 1").fetchall()
    saved: dict[str, Any] = json.loads(rows[0][0])
    return saved


def hook(moments: Moments, state: Path) -> None:
    """Let moments come in this process, and log what tests count."""

    def commit(true: Any, self: Register, entry: Any, changed: Any, *given: Any) -> None:
        before = entry.server_round
        true(self, entry, changed, *given)
        if changed.state is not before.state:
            moments.come("state", changed.state)
        if changed.computed_here and not before.computed_here:
            moments.come("made", "result")

    def say(true: Any, self: PeerControl, message: Any) -> None:
        true(self, message)
        moments.come("said", type(message).__name__.lower())

    def tick(true: Any, self: PeerControl) -> None:
        if moments.to_cut.is_set():
            moments.to_cut.clear()
            self._changed(Change.GAP)
            moments.is_cut.set()
        true(self)

    def send(true: Any, self: Channel, label: str, array: Any) -> None:
        if label in STORED and stored(state)["state"] != STORED[label]:
            logs.event("sent-unstored", label=label)
        moments.come("lane", label)
        true(self, label, array)

    def prepare(true: Any, self: ThreadComputation, *given: Any) -> Any:
        logs.event("session-begun", sessions=stored(state).get("sessions", 0))
        cost = true(self, *given)
        moments.come("made", "material")
        return cost

    def bind(true: Any, self: Lane, *given: Any) -> None:
        for chunk in self._chunks:
            drawn = chunk.bound.values, *chunk.numbers.values()
            names = [hashlib.sha256(each.tobytes()).hexdigest() for each in drawn]
            logs.event("material-used", names=names)
        true(self, *given)

    def ask(true: Any, self: Folds, *given: Any) -> None:
        true(self, *given)
        moments.come("made", "folds")

    replace(Register, "commit", commit)
    replace(PeerControl, "send", say)
    replace(PeerControl, "tick", tick)
    replace(Channel, "send", send)
    replace(ThreadComputation, "prepare", prepare)
    replace(Lane, "bind", bind)
    replace(Folds, "ask", ask)


def main(arguments: Sequence[str]) -> int:
    """Run the command line with moments."""
    path = Path(arguments[-1])
    hook(Moments(path.with_suffix(".moment")), path.with_name(f"{path.stem}-state"))
    return cli.main(list(arguments))
