"""The authenticated bisect: results are numpy's, and a server that deviates learns nothing."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.protocols import ring
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
