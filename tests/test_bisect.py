"""The authenticated bisect: results are numpy's, and a server that deviates learns nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import LocalProtocolError, PeerDeviated, SecureMedianError
from securemedian.mpc.protocols.channel import Channel, local_pair
from securemedian.mpc.protocols.dealing import DealtUpload, deal
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import Upload, WordsUpload
from securemedian.mpc.rounds.bisecting import Bisection, fold
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.params import RoundParams
from tests.parties import run_both
from tests.test_ot import Lying

RNG = np.random.default_rng(41)


def sessions(entropy: Any = os_entropy) -> list[Session]:
    """Return both ends of an audit's session, made without public keys, in no time."""
    deltas = RNG.integers(0, 2, (2, 128)).astype(np.uint8)
    deltas[:, 63] = 1, 0
    trees = [[[RNG.bytes(16) for _ in range(16)] for _ in range(32)] for _ in range(2)]
    holes = [
        [[b"" if z == hole else leaf for z, leaf in enumerate(tree)] for tree, hole in pairs]
        for pairs in (
            list(zip(forest, delta.reshape(-1, 4) @ (1 << np.arange(4)), strict=True))
            for forest, delta in zip(trees[::-1], deltas, strict=True)
        )
    ]
    id_ = RNG.bytes(32)
    return [
        Session(j, id_, trees[j], deltas[j], holes[j], entropy, ProtocolParams()) for j in (0, 1)
    ]


@dataclass
class Round:
    """A round of clients with these buckets, (n, dim), and all that they and the servers have."""

    index: np.ndarray
    buckets: int = 16
    max_clients: int = 0
    lanes: int = 2
    chunk: int = 256
    marks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        clients, dim = self.index.shape
        method = Bucketed(buckets=self.buckets)
        most = max(2, clients, self.max_clients)
        self.params = RoundParams(method, dim=dim, max_clients=most)
        assert self.params.dealing is not None
        self.shape = self.params.dealing
        self.uploads: list[list[DealtUpload]] = [[], []]
        for row in self.index:
            own = deal(self.shape)
            turns = WordsUpload(self.shape.rotations_layout, own.rotations(row))
            halves: list[Upload] = [own.seeded, own.words]
            for j, half in enumerate(halves):
                self.uploads[j].append(DealtUpload(self.shape, half, turns))
        self.masks = [[os_entropy(16) for _ in self.index] for _ in range(2)]
        self.again()

    def again(self) -> None:
        """Take another session."""
        self.session_id, self.sessions = os_entropy(16), sessions()
        self.pairs = [local_pair(20) for _ in range(self.lanes)]

    def channels(self, number: int) -> list[Channel]:
        return [pair[number] for pair in self.pairs]

    def medians(self, who: Sequence[int] | None = None) -> np.ndarray:
        ranked = np.sort(self.index if who is None else self.index[list(who)], axis=0)
        return np.asarray(ranked[(len(ranked) - 1) // 2])

    def prepare(self, number: int) -> Bisection:
        dim = self.index.shape[1]
        chunks = [(i, min(i + self.chunk, dim)) for i in range(0, dim, self.chunk)]
        return Bisection.prepare(
            self.sessions[number], self.channels(number), chunks, self.shape, self.session_id
        )

    def bind(self, number: int, who: Sequence[int] | None = None) -> Bisection:
        found = self.prepare(number)
        some = range(len(self.index)) if who is None else who
        found.bind(
            [self.uploads[number][i] for i in some],
            [self.masks[number][i] for i in some],
            lambda: self.marks.append(f"used {number}"),
        )
        return found

    def folds(self, number: int, coin: bytes, who: Sequence[int] | None = None) -> list[np.ndarray]:
        """Return what the clients send to a server: of what the other one holds."""
        other, some = 1 - number, range(len(self.index)) if who is None else who
        return [
            fold(other, self.uploads[other][i], self.session_id, coin, self.masks[other][i])
            for i in some
        ]

    def run(self, number: int, who: Sequence[int] | None = None) -> np.ndarray:
        """Go through all phases."""
        found = self.bind(number, who)
        folds = self.folds(number, found.toss(), who)
        assert found.compare(folds) == [True] * len(folds)
        return found.run(lambda: self.marks.append(f"opened {number}"))


def chosen(buckets: int, clients: int, dim: int) -> np.ndarray:
    """Return buckets of clients: random, and the extremes and a tie where there is room."""
    index = RNG.integers(0, buckets, (clients, dim))
    index[:, : dim // 8] = 0
    index[:, dim // 8 : dim // 4] = buckets - 1
    index[:, dim // 4 : dim // 3] = index[:1, dim // 4 : dim // 3]
    # half at one end, half at the other
    index[: clients // 2, dim // 3 : dim // 2] = 0
    index[clients // 2 :, dim // 3 : dim // 2] = buckets - 1
    return index


@pytest.mark.parametrize(
    ("buckets", "clients", "dim", "most"),
    [
        (16, 8, 1000, 0),
        (16, 1, 64, 0),
        (16, 2, 1, 0),
        (3, 7, 64, 0),
        (5, 4, 64, 0),
        (4, 3, 70, 0),
        (32, 5, 600, 0),
        (16, 3, 300, 100),
        (10, 20, 300, 0),
        (16, 40, 90, 0),
        (4, 100, 90, 0),
    ],
)
def test_results_are_numpys(buckets: int, clients: int, dim: int, most: int) -> None:
    round_ = Round(chosen(buckets, clients, dim), buckets, most)
    for found in run_both(round_.run):
        assert (found == round_.medians()).all()
    assert sorted(round_.marks) == ["opened 0", "opened 1", "used 0", "used 1"]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("buckets", range(4, 17))
def test_small_rounds_are_numpys(buckets: int, honest_audits: int) -> None:
    """Run 60 in all, or as many as `--honest-audits` asks for: some end, and begin again."""
    for _ in range(-(-honest_audits // 13)):
        clients = int(RNG.choice([1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 65]))
        most = int(RNG.choice([clients, 2 * clients, 127]))
        round_ = Round(chosen(buckets, clients, int(RNG.integers(1, 40))), buckets, most)
        who = list(range(clients))
        while len(who) > 1 and RNG.integers(3) == 0:
            # sessions that end before they are bound, or after it, tell nothing and cost nothing
            if RNG.integers(2):
                run_both(round_.prepare)
            else:
                run_both(partial(round_.bind, who=who))
                who.pop(int(RNG.integers(len(who))))
            round_.again()
        for found in run_both(partial(round_.run, who=who)):
            assert (found == round_.medians(who)).all()


# Deviations. Server 0 is honest.

Change = Callable[[str, np.ndarray], None]


class Ear(Lying):
    """A channel that keeps the labels that are sent on it, and what is received."""

    def __init__(self, channel: Channel, change: Change = lambda label, array: None) -> None:
        super().__init__(channel, change)
        self.received: list[tuple[str, np.ndarray]] = []

    def recv(self, label: str, *given: Any) -> np.ndarray:
        array = super().recv(label, *given)
        self.received.append((label, array))
        return array


@dataclass
class Deviation:
    """A flip of a bit of one of server 1's messages, and what the honest server 0 makes of it."""

    label: str
    said: str
    # the first message that server 0 must not send any more
    never: str
    # in which phase
    phase: str = "prepare"
    # of how many such messages in that phase
    number: int = 0
    # all words, where a flip may do nothing
    everywhere: bool = False


ALL = [
    Deviation("mac.values", "random bits", "bisect.change", everywhere=True),
    Deviation("bisect.claims", "random bits", "bisect.change"),
    Deviation("bisect.claims", "random bits", "bisect.change", number=2),
    Deviation("ot.corrections", "corrections", "bisect.change", everywhere=True),
    Deviation("and.tables", "leaky ANDs", "bisect.change", everywhere=True),
    Deviation("and.tops", "leaky ANDs", "bisect.change"),
    Deviation("and.buckets", "buckets of ANDs", "bisect.change"),
    Deviation("opening.digest", "buckets of ANDs", "bisect.change"),
    Deviation("mac.random", "the sums of the clients' shares", "bisect.masked", everywhere=True),
    Deviation("bisect.change", "the sums of the clients'", "bisect.masked", "bind"),
    Deviation("toss.open", "committed", "bisect.folds", "toss"),
    Deviation("bisect.folds", "the sums of the clients'", "bisect.masked", "compare"),
    Deviation("bisect.answer", "compare", "bisect.masked", "compare"),
    Deviation("bisect.masked", "step 3 of lane 0", "and.openings", "run"),
    Deviation("and.openings", "step 3 of lane 0", "bisect.sign", "run"),
    Deviation("and.openings", "step 3 of lane 0", "bisect.sign", "run", 1),
    Deviation("and.openings", "step 3 of lane 0", "bisect.sign", "run", 2),
    Deviation("opening.digest", "step 3 of lane 0", "bisect.sign", "run"),
    Deviation("bisect.sign", "step 3 of lane 0", "", "run"),
    Deviation("bisect.masked", "step 2 of lane 0", "", "run", 1),
    Deviation("and.openings", "step 1 of lane 0", "", "run", 8),
    Deviation("bisect.sign", "step 0 of lane 0", "", "run", 3),
]


@pytest.mark.parametrize("deviation", ALL, ids=lambda d: f"{d.label}-{d.number}")
def test_a_message_that_is_changed_is_found(deviation: Deviation) -> None:
    """The honest server says so, and the bits that it opens are of what has been right."""
    round_ = Round(RNG.integers(0, 16, (4, 64)), lanes=1)
    phase, seen = ["prepare"], [0]

    def change(label: str, array: np.ndarray) -> None:
        if (label, phase[0]) == (deviation.label, deviation.phase):
            if seen[0] == deviation.number:
                if deviation.everywhere:
                    array ^= np.uint64(0x0101010101010101)
                else:
                    array.reshape(-1).view(np.uint8)[0] ^= 1
            seen[0] += 1

    ear = Ear(round_.pairs[0][0])
    round_.pairs = [(ear, Lying(round_.pairs[0][1], change))]

    def run(number: int) -> None:
        held: list[Bisection] = []
        try:
            deviates(round_, number, phase, held)
        except SecureMedianError as error:
            if number == 0:
                assert isinstance(error, PeerDeviated) and deviation.said in str(error)
        else:
            # it has its digits, which are the right ones
            assert number == 1 and deviation.label == "bisect.sign"
        for ended in held:
            # dropped: no phase begins again
            for name in ("bind", "toss", "compare", "run"):
                with pytest.raises(LocalProtocolError):
                    ended._begin(name)

    run_both(run)
    assert seen[0] > deviation.number
    assert deviation.never not in ear.sent
    if deviation.phase == "run":
        # a share of a sign for each step that went well
        done = deviation.number // (3 if deviation.label == "and.openings" else 1)
        assert ear.sent.count("bisect.sign") == done + (deviation.label == "bisect.sign")


def deviates(round_: Round, number: int, phase: list[str], held: list[Bisection]) -> None:
    """Go through all phases, in step with the other server."""
    one = round_.prepare(number)
    held.append(one)
    phase[0] = "bind"
    one.bind(round_.uploads[number], round_.masks[number], lambda: None)
    phase[0] = "toss"
    coin = one.toss()
    folds = round_.folds(number, coin)
    phase[0] = "compare"
    one.compare(folds)
    phase[0] = "run"
    one.run(lambda: None)
