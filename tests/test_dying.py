"""A server that dies, or loses link or lanes, at any moment of a round with security malicious."""

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.clients.client import Client
from securemedian.coordinator.coordinator import Coordinator
from securemedian.mpc.errors import RoundFailed
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.uniform import ConstantRange
from securemedian.servers.machine.members import MISFOLDED
from securemedian.servers.machine.round import SESSIONS
from tests.daemons import SETTINGS, START_S, Pair, in_background, wait_until
from tests.dying import stored

pytestmark = pytest.mark.slow

DIM, RUNS = 200, 2
MODEL = np.zeros(DIM, np.float32)
PARAMS = RoundParams(Bucketed(security="malicious"), dim=DIM, max_clients=3, min_clients=2)
# no silence is taken for an end, however slow the machine is
LIMITS = SETTINGS | {"max_attempts": RUNS, "peer_timeout_s": 60, "channel_timeout_s": 60}
SERVERS = ("s0", "s1")

# Moments in the order of a round
ALIKE = [
    "state open",
    "lane bisect.session",
    "lane mac.random",
    "lane bisect.claims",
    "lane and.tables",
    "made material",
    "lane dealing.digests",
    "state checking",
    "lane bisect.change",
    "lane toss.open",
    "made folds",
    "lane audit.folds",
    "lane bisect.folds",
    "lane bisect.answer",
    "state running",
    "lane bisect.masked",
    "lane opening.digest",
    "lane bisect.sign",
    "lane bisect.sign 8",
    "made result",
    "said done",
    "state published",
]
OWN = {
    "s0": ["state opening", "said open", "state closing", "said close", "said check"]
    + ["state queued", "state starting", "said compute"],
    "s1": ["said opened", "said held", "said verdicts", "said ready"],
}
LANES = [moment for moment in ALIKE if moment.startswith("lane")]
# server and loss take turns
LOST = cycle([("s0", "cut"), ("s1", "break"), ("s1", "cut"), ("s0", "break")])
CASES = [
    *([(server, f"die {moment}") for moment in ALIKE + OWN[server]] for server in SERVERS),
    [(server, f"{how} {at}") for at, (server, how) in zip(LANES, LOST, strict=False)],
]
RNG = random.Random(10)
# two of each list; the others are for a release
FEW = [case for some in CASES for case in RNG.sample(some, 2)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("dying") / "keys", settings=LIMITS)
    try:
        start(made, *SERVERS)
        made.link()
        yield made
    finally:
        made.close()


def start(pair: Pair, *servers: str) -> None:
    pair.start(*servers, module="tests.dying")


def update(number: int) -> NDArray[np.float32]:
    return (MODEL + np.linspace(-1, 1, DIM) * number / 10).astype(np.float32)


UPDATES = [update(number) for number in (1, 2, 3)]


class Play:
    """A round and its clients, while a server comes to a moment."""

    def __init__(self, pair: Pair, opened: ExitStack, server: str, moment: str) -> None:
        self.pair, self._server, self._dies = pair, server, moment.startswith("die")
        # the last one may have been published before the servers saw each other again
        pair.link()
        self._before = {server: len(pair.events(server)) for server in SERVERS}
        self.coordinator = opened.enter_context(Coordinator(pair.config("coordinator")))
        self.clients = [opened.enter_context(Client(pair.config(name))) for name in pair.names]
        self.round_id = ""
        self.results: dict[int, NDArray[np.float32]] = {}
        self._over = threading.Event()
        self.arm(moment)
        self.join = in_background(self._run, START_S)

    def arm(self, moment: str) -> None:
        self._moment = self.pair.folder / f"{self._server}.moment"
        self._moment.write_text(moment)

    def _run(self) -> None:
        """Open the round, and take part as all clients."""
        try:
            given = MODEL, ConstantRange(1.0)
            self.round_id = self.coordinator.open_round(PARAMS, *given, timeout_s=START_S)
            for client, values in zip(self.clients, UPDATES, strict=True):
                client.submit(values, self.round_id)
            for join in [in_background(partial(self._wait, i), START_S) for i in range(3)]:
                join()
        finally:
            self._over.set()

    def _wait(self, number: int) -> None:
        self.results[number] = self.clients[number].result(self.round_id, START_S)

    def ends(self) -> None:
        """Wait until the moment comes, and the server has died."""
        wait_until(lambda: self._over.is_set() or not self._moment.exists(), START_S)
        if self._moment.exists():
            self.join()
            raise AssertionError(f"no such moment: {self._moment.read_text()}")
        if self._dies:
            assert self.pair.ended(self._server, START_S) == -signal.SIGKILL

    def events(self, server: str, name: str) -> list[dict[str, Any]]:
        """Return what a server has logged of this round, in all its processes."""
        events = self.pair.events(server)[self._before[server] :]
        return [event for event in events if event["event"] == name]

    def check(self) -> None:
        """Check that no server accuses the other, and that sessions are counted, and used once."""
        for server in SERVERS:
            assert not self.events(server, "peer-deviated")
            assert not self.events(server, "sent-unstored")
            counted = stored(self.pair.folder / f"{server}-state")["sessions"]
            begun = [event["sessions"] for event in self.events(server, "session-begun")]
            # each is stored before it begins
            assert begun == sorted(set(begun)) and begun[-1] <= counted <= SESSIONS + RUNS + 1
            used = [name for each in self.events(server, "material-used") for name in each["names"]]
            assert len(set(used)) == len(used)


@pytest.mark.parametrize(
    ("server", "moment"),
    [
        pytest.param(*case, marks=() if case in FEW else pytest.mark.release)
        for some in CASES
        for case in some
    ],
)
def test_a_round_goes_on(pair: Pair, server: str, moment: str) -> None:
    with ExitStack() as opened:
        play = Play(pair, opened, server, moment)
        play.ends()
        if server not in pair.running:
            start(pair, server)
        play.join()
        for result in play.results.values():
            assert np.array_equal(result, play.results[0])
        status, results = pair.published_as(play.round_id, UPDATES)
        assert np.array_equal(results[0], play.results[0])
        assert len(status["included"]) == 3 and "deviation" not in status
        assert play.events("s0", "material-used") and play.events("s1", "material-used")
        play.check()


def test_clients_are_those_of_what_may_be_opened(pair: Pair) -> None:
    """Both servers die when shares of signs are on their way. Then a client's fold is wrong."""
    with ExitStack() as opened:
        play = Play(pair, opened, "s0", "die lane bisect.sign 3")
        play.ends()
        assert pair.stop("s1", signal.SIGKILL) == -signal.SIGKILL
        liar = play.clients[1]._journal
        (upheld,) = liar.upheld.values()
        other = replace(upheld, rotations=upheld.rotations ^ np.uint64(1))
        liar._rounds[play.round_id].upheld = other
        start(pair, *SERVERS)
        with pytest.raises(RoundFailed, match=rf"folds of all its clients: client-2 \({MISFOLDED}"):
            play.join()
        assert not play.results and pair.status()["opened"] == "maybe"
        play.check()


@pytest.mark.release
def test_a_round_whose_sessions_are_used_up_has_failed(pair: Pair) -> None:
    """In each, S1 dies while material is made, and nobody is accused."""
    with ExitStack() as opened:
        play = Play(pair, opened, "s1", "die lane bisect.claims")
        for left in reversed(range(SESSIONS + RUNS)):
            play.ends()
            if left:
                play.arm("die lane bisect.claims")
            start(pair, "s1")
        with pytest.raises(RoundFailed, match=f"{SESSIONS + RUNS} sessions .* have ended"):
            play.join()
        status = pair.status()
        assert (status["state"], status["opened"]) == ("failed", "nothing")
        begun = [event["sessions"] for event in play.events("s1", "session-begun")]
        assert begun == list(range(1, SESSIONS + RUNS + 1))
        assert not play.events("s0", "material-used") + play.events("s1", "material-used")
        play.check()
