"""The authenticated bisect: results are numpy's, and a server that deviates learns nothing."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.arrays import RingShare
from securemedian.mpc.errors import (
    ChannelClosed,
    ConfigError,
    InputError,
    LocalProtocolError,
    PeerDeviated,
    SecureMedianError,
)
from securemedian.mpc.protocols import bisect, dealing, ring
from securemedian.mpc.protocols.audit import ands, binding
from securemedian.mpc.protocols.audit.ands import AndMaker, Carry, bucket_size
from securemedian.mpc.protocols.audit.binding import Binder, fold
from securemedian.mpc.protocols.audit.bits import AuthenticatedBits
from securemedian.mpc.protocols.audit.macs import TREE_BITS, Prover, Verifier, packed, unpacked
from securemedian.mpc.protocols.audit.opening import Opener
from securemedian.mpc.protocols.bisect import POOL, Lane, partners_of, pools_of
from securemedian.mpc.protocols.boolean import unpack_bits
from securemedian.mpc.protocols.channel import Channel, Link, local_pair
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, OwnDealing, deal
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import os_entropy
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.protocols.share import Upload, WordsUpload
from securemedian.mpc.protocols.wire import Part
from securemedian.mpc.rounds.bisecting import Bisection, dealing_of
from securemedian.mpc.rounds.lanes import run_lanes
from securemedian.mpc.rounds.methods.bucketed import Bucketed
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.plan import _check_of_dealings, predict
from securemedian.servers.computing.base import RoundInput
from securemedian.servers.computing.folds import Folds
from securemedian.servers.computing.threads import ThreadComputation
from tests.parties import check_planned, run_both
from tests.rates import check_rate
from tests.rogue.bisecting import Cheat, cancelling
from tests.test_ot import Lying
from tests.uniformity import check_uniform

RNG = np.random.default_rng(41)
# about how many messages a small session has on a lane
MESSAGES = 130


def sessions(native_aes: bool = True) -> list[Session]:
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
    params = ProtocolParams(native_aes=native_aes)
    return [Session(j, id_, trees[j], deltas[j], holes[j], os_entropy, params) for j in (0, 1)]


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
        assert self.params.form.dealing is not None
        self.shape = self.params.form.dealing
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
        given = self.sessions[number], self.channels(number), self.shape, self.session_id
        found = Bisection(*given)
        found.prepare(chunks)
        return found

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
        (16, 2, 1, 0),
        (3, 7, 64, 0),
        (32, 5, 600, 0),
        (4, 100, 90, 0),
        # as many clients as l bits count, and one more
        (5, 31, 64, 0),
        (5, 32, 64, 0),
        # l = 9 and 16
        (5, 4, 64, 300),
        (3, 4, 64, 60_000),
    ],
)
def test_results_are_numpys(buckets: int, clients: int, dim: int, most: int) -> None:
    round_ = Round(chosen(buckets, clients, dim), buckets, most)
    for found in run_both(round_.run):
        assert (found == round_.medians()).all()
    # each lane may see to it that something is opened
    assert sorted({*round_.marks}) == ["opened 0", "opened 1", "used 0", "used 1"]
    assert sum(mark.startswith("used") for mark in round_.marks) == 2


def test_base_ots_and_any_processor() -> None:
    """Take real base OTs, and AES of OpenSSL."""
    round_ = Round(chosen(16, 5, 100), lanes=1)
    given = round_.session_id, ProtocolParams()
    round_.sessions = list(
        run_both(lambda j: Session.establish(j, round_.pairs[0][j], *given, audit=True))
    )
    for found in run_both(round_.run):
        assert (found == round_.medians()).all()
    round_.again()
    round_.sessions = sessions(native_aes=False)
    for found in run_both(round_.run):
        assert (found == round_.medians()).all()


rotations = OwnDealing.rotations


def turned(own: OwnDealing, index: np.ndarray) -> np.ndarray:
    """Return rotations as `OwnDealing.rotations` does, also to slots beyond the last bucket."""
    shape = own.shape
    # those to slot 0 say where the vectors have their ones
    packed = rotations(own, np.zeros(shape.dim, np.uint8))
    turns = ring.unpack(packed[0], shape.slot_bits, shape.dim).astype(np.uint8)
    turns = (turns + index.astype(np.uint8)) & np.uint8(shape.slots - 1)
    words = ring.pack(turns, shape.slot_bits)
    packed[0, : words.size] = words
    return packed


@pytest.mark.parametrize(("buckets", "lying"), [(10, 3), (17, 5), (3, 1)])
def test_clients_beyond_the_last_bucket_set_no_server_against_the_other(
    buckets: int, lying: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots beyond it, which a client may turn to all the same, count as the last."""
    index = RNG.integers(0, buckets, (5, 64))
    index[:lying] = RNG.integers(buckets, 1 << (buckets - 1).bit_length(), (lying, 64))
    monkeypatch.setattr(OwnDealing, "rotations", turned)
    round_ = Round(index, buckets)
    for found in run_both(round_.run):
        assert (found == np.minimum(round_.medians(), buckets - 1)).all()


@pytest.mark.parametrize(
    ("clients", "dim", "lanes", "buckets"), [(3, 64, 2, 16), (9, 1000, 2, 5), (2, 130, 3, 16)]
)
def test_a_plan_has_all_that_is_said(clients: int, dim: int, lanes: int, buckets: int) -> None:
    """Of each phase, with several chunks of a lane, and with pools of ANDs of several portions."""
    round_ = Round(chosen(buckets, clients, dim), buckets, lanes=lanes)
    protocol = ProtocolParams(lanes=lanes, chunk=192)

    def run(number: int) -> Bisection:
        given = number, round_.channels(number), round_.params
        found = Bisection.establish(*given, protocol)
        round_.session_id = found.session_id
        found.bind(round_.uploads[number], round_.masks[number], lambda: None)
        found.compare(round_.folds(number, found.toss()))
        assert (found.run(lambda: None) == round_.medians()).all()
        return found

    ends = run_both(run)
    audited = replace(round_.params, method=Bucketed(buckets=buckets, security="malicious"))
    dealt = _check_of_dealings(round_.shape, clients).as_checking()
    planned = predict(audited, [1] * clients, protocol)
    costs = [dealt.after(end.ran.after(end.checked).after(end.ahead)) for end in ends]
    check_planned([planned.cost] * 2, costs)
    for name in ("preprocessing_bytes_sent", "preprocessing_rounds", "checking_bytes_sent"):
        assert {getattr(cost, name) for cost in costs} == {getattr(planned.cost, name)}


class Cut:
    """A link that loses message `left` of this end, and breaks at what this end does next."""

    def __init__(self, link: Link, left: int) -> None:
        self._link, self._left = link, left

    def send(self, parts: Sequence[Part]) -> None:
        self._left -= 1
        if self._left == -1:
            return
        self._link.send(parts)
        self._break()

    def recv(self) -> Sequence[Part]:
        self._break()
        return self._link.recv()

    def _break(self) -> None:
        if self._left < 0:
            self.close()
            raise ChannelClosed("broken on purpose")

    def close(self) -> None:
        self._link.close()


def cut_session(round_: Round, who: Sequence[int]) -> None:
    """Lose the link at any message of a session. No server accuses the other one."""
    lane, end = int(RNG.integers(round_.lanes)), int(RNG.integers(2))
    pair = round_.pairs[lane]
    cut = Channel(Cut(pair[end]._link, int(RNG.integers(MESSAGES))))
    round_.pairs[lane] = (pair[0], cut) if end else (cut, pair[1])
    errors: dict[int, BaseException] = {}
    for found in rogue_run(round_, errors, who).values():
        assert (found == round_.medians(who)).all()
    assert all(type(error) is ChannelClosed for error in errors.values()), errors


def leave_out(round_: Round, who: list[int]) -> None:
    """Take out a client whose fold at one server is wrong, as both find."""
    liar, told = int(RNG.integers(len(who))), int(RNG.integers(2))

    def run(number: int) -> list[bool]:
        one = round_.bind(number, who)
        folds = round_.folds(number, one.toss(), who)
        folds[liar] = folds[liar] ^ np.uint64(number == told)
        return one.compare(folds)

    for agree in run_both(run):
        assert agree == [place != liar for place in range(len(who))]
    who.pop(liar)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("buckets", range(4, 17))
def test_small_rounds_are_numpys(buckets: int, honest_rounds: int) -> None:
    """Run 60 in all, or as many as `--honest-rounds` asks for.

    Folds are wrong, or links break at any message, before a session that comes to its end. Clients
    are left out while nothing is opened.
    """
    for _ in range(-(-honest_rounds // 13)):
        clients = int(RNG.choice([1, 2, 3, 4, 5, 8, 9, 16, 17, 33, 65]))
        most, dim = int(RNG.choice([clients, 2 * clients, 127])), int(RNG.integers(1, 300))
        round_ = Round(chosen(buckets, clients, dim), buckets, most, chunk=128)
        who = list(range(clients))
        while RNG.integers(2):
            several = len(who) > 1 and not any("opened" in mark for mark in round_.marks)
            if several and RNG.integers(4) == 0:
                leave_out(round_, who)
            else:
                if several and RNG.integers(2):
                    who.pop(int(RNG.integers(len(who))))
                cut_session(round_, who)
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

    def of(self, label: str) -> list[np.ndarray]:
        return [array for seen, array in self.received if seen == label]


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
    Deviation("opening.digest", "step 3 of lane 0", "bisect.sign", "run"),
    Deviation("bisect.sign", "step 3 of lane 0", "", "run"),
    Deviation("bisect.masked", "step 2 of lane 0", "", "run", 1),
    Deviation("and.openings", "step 1 of lane 0", "", "run", 5),
    Deviation("bisect.sign", "step 0 of lane 0", "", "run", 3),
]


@pytest.mark.parametrize("deviation", ALL, ids=lambda d: f"{d.label}-{d.number}")
def test_a_message_that_is_changed_is_found(deviation: Deviation) -> None:
    """The honest server says so, and the bits that it opens are of what has been right."""
    round_ = Round(RNG.integers(0, 16, (8, 64)), lanes=1)
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
                with pytest.raises(LocalProtocolError), ended._phase(name):
                    pass

    run_both(run)
    assert seen[0] > deviation.number
    assert deviation.never not in ear.sent
    if deviation.phase == "run":
        # a share of a sign for each step that went well
        done = deviation.number // (2 if deviation.label == "and.openings" else 1)
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


def rogue_run(
    round_: Round, errors: dict[int, BaseException], who: Sequence[int] | None = None
) -> dict[int, np.ndarray]:
    """Go through all phases at both servers, and keep what each found, or how it ended."""
    found: dict[int, np.ndarray] = {}

    def run(number: int) -> None:
        try:
            found[number] = round_.run(number, who)
        except SecureMedianError as error:
            errors[number] = error

    run_both(run)
    return found


def test_a_server_that_waits_sees_the_right_digits_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes server 0's share of a sign and sends another; server 0 goes no further."""
    round_ = Round(RNG.integers(0, 16, (5, 64)), lanes=1)
    ear = Ear(round_.pairs[0][0])

    class Rushing(Channel):
        """A channel whose party sends last, and lies of its shares of signs."""

        def exchange(self, label: str, array: np.ndarray, shape: Any = None) -> np.ndarray:
            if label != "bisect.sign":
                return super().exchange(label, array, shape)
            theirs = self.recv(label, array.dtype, array.shape if shape is None else shape)
            lie = array.copy()
            lie[:-4] ^= np.uint64(3)
            self.send(label, lie)
            return theirs

    round_.pairs = [(ear, Rushing(round_.pairs[0][1]._link))]
    errors: dict[int, BaseException] = {}
    rogue_run(round_, errors)
    assert isinstance(errors[0], PeerDeviated)
    assert ear.sent.count("bisect.sign") == 1


def test_a_server_with_another_number_is_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Party 0's number is less by another k, to server 1, which accuses and learns nothing."""
    round_ = Round(np.full((5, 4096), 7), lanes=1, chunk=4096)
    ear, true, errors = Ear(round_.pairs[0][0]), Lane.run, dict[int, BaseException]()
    round_.pairs = [(ear, round_.pairs[0][1])]
    another = lambda self, k, *given: true(self, k - self.party.number, *given)  # noqa: E731
    monkeypatch.setattr(Lane, "run", another)
    assert not rogue_run(round_, errors) and "bisect.sign" not in ear.sent
    assert isinstance(errors[1], PeerDeviated)


def test_a_client_that_helps_moves_the_sum_that_was_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the claim says: server 1 adds e to its share, and client 3 the fold of e to its own.

    All that is opened are the digits of the bucket of H + e, with e fixed before the coin.
    """
    round_, e = Round(RNG.integers(0, 16, (8, 64)), lanes=1), RNG.integers(0, 16, (15, 64))
    e, true = e.astype(np.uint8), Bisection._sums
    ear = Ear(round_.pairs[0][1])
    round_.pairs = [(round_.pairs[0][0], ear)]

    def sums(self: Bisection, start: int, stop: int) -> Any:
        found = true(self, start, stop)
        return found + e[:, start:stop] if self._number == 1 else found

    monkeypatch.setattr(Bisection, "_sums", sums)

    def run(number: int) -> np.ndarray:
        one = round_.bind(number)
        coin = one.toss()
        folds = round_.folds(number, coin)
        if number == 0:
            totals = np.zeros((15, binding.TABLES, binding.BUCKETS), np.uint8)
            for (y, t), g in product(np.ndindex(15, binding.TABLES), [binding.places(coin, 0, 64)]):
                np.add.at(totals[y, t], g[t], e[y])
            count = totals.size
            moved = ring.unpack(folds[3], 4, count) + totals.reshape(-1)
            folds[3] = ring.pack(ring.reduce(moved, 4), 4)
        assert one.compare(folds) == [True] * 8
        return one.run(lambda: None)

    found = run_both(run)[0]
    counts = (round_.index[:, None] <= np.arange(15)[None, :, None]).sum(axis=0) + e
    below = (counts - 4) % 16 >= 8
    wanted = np.zeros(64, int)
    for step in (8, 4, 2, 1):
        wanted += np.where(below[wanted + step - 1, np.arange(64)], step, 0)
    assert (found == wanted).all()
    # of one word of 64 coordinates each
    assert [len(words) for words in ear.of("bisect.sign")] == [1 + 4] * 4


def test_a_threshold_that_is_asked_again_tells_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask the last one again, where W is not a power of two, for any sum that is bound."""
    round_, true, asked = Round(chosen(5, 6, 600), 5, lanes=1, chunk=600), Lane.ask, list[Any]()
    off, true_sums = RNG.integers(0, 16, (7, 600)).astype(np.uint8), Bisection._sums

    def ask(self: Lane, step: int, rows: np.ndarray, *given: Any) -> Any:
        found = true(self, step, rows, *given)
        asked.append((rows.copy(), found))
        return found

    def sums(self: Bisection, start: int, stop: int) -> Any:
        return true_sums(self, start, stop) + off[:, start:stop] * np.uint8(self._number)

    monkeypatch.setattr(Lane, "ask", ask)
    monkeypatch.setattr(Bisection, "_sums", sums)
    true_agree = Bisection._sums_agree
    monkeypatch.setattr(Bisection, "_sums_agree", lambda *given: true_agree(*given) or True)
    run_both(round_.run)
    again = 0
    for rows, answers in asked:
        for others, theirs in asked:
            assert (answers == theirs)[rows == others].all()
            again += int((rows == others).sum())
    # beside each step with itself, at both servers
    assert again > 2 * 2 * 3 * 600


# Use once


def test_a_session_is_used_once() -> None:
    round_ = Round(RNG.integers(0, 16, (3, 64)), lanes=1)

    def run(number: int) -> None:
        one = round_.prepare(number)
        lane = one._lanes[0]
        for name in ("toss", "compare", "run"):
            with pytest.raises(LocalProtocolError, match="before bind"), one._phase(name):
                pass
        given = round_.uploads[number], round_.masks[number], lambda: None
        with pytest.raises(InputError, match="one mask per upload"):
            one.bind(given[0], given[1][1:], given[2])
        with pytest.raises(LocalProtocolError, match="prepared once"):
            lane.prepare([(0, 64)], True)
        with pytest.raises(LocalProtocolError, match="after it is bound"):
            lane.folds(bytes(16))
        one.bind(*given)
        with pytest.raises(LocalProtocolError, match="before it is asked"):
            lane.run(2, lambda: None)
        with pytest.raises(LocalProtocolError, match="before toss"):
            one.bind(*given)
        with pytest.raises(LocalProtocolError, match="bound once"):
            lane.bind(one._sums, np.zeros((15, 2560), np.uint8))
        folds = round_.folds(number, one.toss())
        with pytest.raises(LocalProtocolError, match="before compare"):
            one.run(lambda: None)
        with pytest.raises(InputError, match="one fold per client"):
            one.compare(folds[1:])
        one.compare(folds)
        with pytest.raises(LocalProtocolError, match="folded once"):
            lane.folds(bytes(16))
        one.run(lambda: None)
        with pytest.raises(LocalProtocolError, match="before nothing"):
            one.run(lambda: None)
        # nothing that was made is left
        assert not lane._steps and not one._lanes
        assert not any(each.numbers or each.bits or each.products for each in lane._chunks)
        with pytest.raises(LocalProtocolError, match="made before"):
            round_.prepare(number)
        assert "secret" in repr(lane) and "secret" in repr(lane.opener)

    run_both(run)


class Full(Exception):
    pass


@pytest.mark.parametrize(("mark", "label"), [("used", "bisect.change"), ("opened", "bisect.sign")])
def test_a_mark_is_stored_before_anything_that_it_is_about(mark: str, label: str) -> None:
    """If it cannot be stored, nothing is sent, on any lane."""
    round_ = Round(RNG.integers(0, 16, (3, 600)))
    round_.pairs = [(Ear(one), other) for one, other in round_.pairs]

    def store(name: str) -> None:
        if name == mark:
            raise Full

    def run(number: int) -> None:
        one = round_.prepare(number)
        try:
            given = round_.uploads[number], round_.masks[number]
            one.bind(*given, lambda: store("used") if number == 0 else None)
            one.compare(round_.folds(number, one.toss()))
            one.run(lambda: store("opened") if number == 0 else None)
        except (Full, ChannelClosed):
            # as a server that drops its session does
            for channel in round_.channels(number):
                channel.close()
            return
        raise AssertionError("it goes on")

    run_both(run)
    for channel, _ in round_.pairs:
        assert isinstance(channel, Ear) and label not in channel.sent


# Digests


@pytest.mark.parametrize("lies", ["none", "claims", "buckets", "products", "ANDs", "signs"])
def test_a_digest_is_what_the_other_server_computes_by_itself(
    lies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever server 1 has sent before, each digest of server 0 is a function of its keys.

    So none tells it anything. It lies in all of its openings of a kind, takes its lies into account
    and goes on until server 0 ends the round.
    """
    round_ = Round(RNG.integers(0, 16, (3, 64)), lanes=1)
    told: list[tuple[str, bool]] = []
    true_tell, true_opened = Opener.tell, Lane._opened
    true_roll = np.roll

    def tell(self: Opener, label: str, *given: Any) -> Any:
        theirs, right = true_tell(self, label, *given)
        if self._number == 1:
            told.append((label, right))
        return theirs, right or self._number == 1

    def opened(self: Lane, t: int, carry: Carry, *given: Any) -> Any:
        if self.party.number == 1 and lies == "ANDs":
            lie = RNG.integers(0, 2**64, carry.bits.size, np.uint64)
            carry = Carry(carry.bits ^ lie, carry.macs, carry.keys)
        return true_opened(self, t, carry, *given)

    def roll(array: np.ndarray, turn: int) -> np.ndarray:
        # one claim of server 1
        out = true_roll(array, turn)
        if lies == "claims" and threading.current_thread() in rogue and out.dtype == np.uint8:
            out[70] ^= 1
        return out

    def combined(self: AndMaker, leaky: Any, turns: Any, bits: Any, known: int) -> Any:
        if self._number == 1 and lies == "buckets":
            leaky[1].bits[-1] ^= 1
        if self._number == 1 and lies == "products":
            # one of each kind: of x ^ a ^ b ^ y
            bits.bits[[3, -1]] ^= 1
        return true_combined(self, leaky, turns, bits, known)

    def sign(self: Lane, *given: Any) -> AuthenticatedBits:
        found = true_sign(self, *given)
        if self.party.number == 1 and lies == "signs":
            found.bits[3] ^= 1
        return found

    true_combined, true_sign = AndMaker.combined, Lane._sign
    monkeypatch.setattr(AndMaker, "combined", combined)
    monkeypatch.setattr(Lane, "_sign", sign)
    rogue: list[threading.Thread] = []
    monkeypatch.setattr(Opener, "tell", tell)
    monkeypatch.setattr(Lane, "_opened", opened)
    true_prepare = Lane.prepare

    def prepare(self: Lane, *given: Any) -> None:
        if self.party.number == 1:
            rogue.append(threading.current_thread())
        true_prepare(self, *given)

    monkeypatch.setattr(Lane, "prepare", prepare)
    monkeypatch.setattr(np, "roll", roll)
    errors: dict[int, BaseException] = {}
    rogue_run(round_, errors)
    assert (0 in errors) == (lies != "none")
    assert lies == "none" or isinstance(errors[0], PeerDeviated)
    assert told and all(right for _, right in told)


def heard() -> tuple[Round, list[Ear], dict[int, np.ndarray]]:
    """Go through a round of 4 buckets, as far as it goes: return what each server received.

    And the numbers of their random bits.
    """
    round_ = Round(np.full((5, 1 << 13), 2), buckets=4, lanes=1, chunk=1 << 13)
    ears = [Ear(channel) for channel in round_.pairs[0]]
    round_.pairs = [(ears[0], ears[1])]
    numbers: dict[int, np.ndarray] = {}

    def run(number: int) -> None:
        one = round_.prepare(number)
        numbers[number] = np.concatenate([*one._lanes[0]._chunks[0].numbers.values()])
        one.bind(round_.uploads[number], round_.masks[number], lambda: None)
        # without a mask, a round ends sooner
        with suppress(SecureMedianError):
            one.compare(round_.folds(number, one.toss()))
            one.run(lambda: None)

    run_both(run)
    return round_, ears, numbers


def what_is_received_is_uniform() -> None:
    """Raise Leak unless what each server receives tells nothing of what the other one has."""
    round_, ears, numbers = heard()
    bits, dim = round_.shape.bits, 1 << 13
    for ear, other in zip(ears, (1, 0), strict=True):
        given = other, round_.uploads[other], [1] * 5, bits, 0, dim
        sums = dealing.histogram(*given, cumulative=False)
        secret = np.cumsum(sums, axis=0, dtype=np.uint8)[1]
        known = {f"bit {t}": secret >> t & 1 for t in range(bits)}
        row, masks = (
            ring.unpack(words, bits, 3 * size)
            for words, size in zip(ear.of("bisect.change"), (dim, 2560), strict=True)
        )
        check_uniform(columns(row.reshape(3, -1)[1], bits), known)
        seeds = [binding.masks(s, round_.session_id, round_.shape) for s in round_.masks[other]]
        total = binding.total(seeds, round_.shape).reshape(-1)
        check_uniform(columns(masks[: total.size], bits), columns(total, bits, "R"))
        last = bisect.partners_of(2 * dim)[1]
        h = unpack_bits(ear.of("bisect.claims")[0], last)[last - 2 * dim :]
        check_uniform({"h": h}, {"b": numbers[other] & 1})
        masked = ear.of("bisect.masked")
        if masked:
            check_uniform(columns(ring.unpack(masked[0], bits, dim), bits), known)
        for opened in ear.of("and.openings"):
            check_uniform({"c": unpack_bits(opened, dim)}, known)


def columns(values: np.ndarray, bits: int, name: str = "seen") -> dict[str, np.ndarray]:
    return {f"{name} {t}": values >> t & 1 for t in range(bits)}


def test_what_is_received_is_uniform() -> None:
    what_is_received_is_uniform()


# Bits


def small_lanes(monkeypatch: pytest.MonkeyPatch, partners: int, mac_bits: int) -> list[Lane]:
    """Return lanes whose bits are in Z_4 and have few partners, one guard, and short MACs."""
    monkeypatch.setattr(bisect, "GUARDS", 1)
    found = bisect.partners_of
    monkeypatch.setattr(bisect, "partners_of", lambda count: (partners, found(count)[1]))
    shape = Dealing(64, 4, 2)
    lanes = []
    for session, channel in zip(sessions(), local_pair(20), strict=True):
        lane = Lane(session, 0, channel, shape)
        few = slice(mac_bits // TREE_BITS)
        its = session.receiver_leaves[few], session.sender_leaves[few]
        short = replace(session, receiver_leaves=its[0], sender_leaves=its[1])
        lane.prover, lane.verifier = Prover(short, 1, channel), Verifier(short, 1, channel)
        lane._delta = packed(lane.verifier.constant(np.ones(1, np.uint8)), lane._slot)[:, 0]
        lanes.append(lane)
    return lanes


def test_a_wrong_number_passes_only_if_delta_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 guesses of 8 bits one passes: for each wrong coordinate, and for all together.

    The number that MACs are of may be another in each of the two blocks of 4 bits.
    """
    lanes, none = small_lanes(monkeypatch, 1, 8), np.zeros((3, 64), np.uint8)
    rows = np.ones(64, np.uint16)
    monkeypatch.setattr(ands, "MAC_MASK", np.uint64(255))

    def run(number: int) -> None:
        lane = lanes[number]
        lane.binder = Binder(lane.prover, lane.verifier, lane.shape)
        lane.prepare([(0, 64)], False)
        lane.bind(lambda *_: RingShare(none), None)

    run_both(run)
    z, d = lanes[0]._masked(1, rows, 2)
    masks, low = z ^ d, np.empty((2, 64), np.uint64)

    def macs(lane: Lane, claimed: np.ndarray, keys: bool) -> np.ndarray:
        (piece,) = lane._zeros(1, rows, claimed ^ masks, 2, low, keys)
        return unpacked(piece, 2, 8).copy()

    assert (macs(lanes[0], z, False) == macs(lanes[1], z, True)).all()

    def passing(off: dict[int, Sequence[int]]) -> set[tuple[int, ...]]:
        """Return which guesses of Delta pass, if coordinates are off by so much in each block."""
        found = set()
        for guess in product((0, 1), repeat=8):
            forged, wrong = tags.copy(), wanted.copy()
            for place, each in off.items():
                # z less what is claimed, times Delta
                by = np.repeat(np.array(each, np.uint8), 4)
                forged[:, place] = (forged[:, place] - by * np.array(guess, np.uint8)) % 4
                wrong[:, place] = (wrong[:, place] - by * delta) % 4
            if (forged == wrong).all():
                found.add(guess)
        return found

    delta = lanes[1].verifier.constant(np.ones(1, np.uint8))[:, 0] & 1
    tags, wanted = macs(lanes[0], z, False), macs(lanes[1], z, True)
    assert (tags == wanted).all()
    for off in (1, 2, 3):
        claimed = z.copy()
        claimed[5] = (z[5] + off) % 4
        # the keys of a wrong number differ from the tags by Delta times it
        other, own = (macs(lanes[j], claimed, bool(j))[:, 5] for j in (1, 0))
        assert (other == (own - off * delta) % 4).all()
    assert passing({5: (1, 1)}) == passing({5: (2, 2)}) == {tuple(delta)}
    # a block that is wrong anywhere has to be guessed, and no other
    assert passing({5: (3, 0), 9: (0, 2)}) == {tuple(delta)}
    one_block = passing({5: (0, 2), 9: (0, 1), 11: (0, 3)})
    assert one_block == {(*first, *delta[4:]) for first in product((0, 1), repeat=4)}


@pytest.mark.parametrize(("count", "partners", "wrong"), [(6, 1, 2), (4, 2, 1), (6, 1, 6)])
def test_what_is_no_bit_passes_as_often_as_predicted(
    count: int, partners: int, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Party 0 commits to 2 and to as many partners that are 2, and claims that all are 0."""
    lanes, trials = small_lanes(monkeypatch, partners, 48), 400
    passed = passing(lanes, count, partners, wrong, wrong, trials)
    check_rate(passed, trials, (count + 1.0) ** -partners)


def test_guards_find_that_all_partners_are_no_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = small_lanes(monkeypatch, 1, 48)
    assert passing(lanes, 6, 1, 6, 7, 20) == 0


def test_what_is_no_bit_is_found_without_wrong_partners(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = small_lanes(monkeypatch, 1, 48)
    assert passing(lanes, 6, 1, 1, 0, 20) == 0


def test_wrong_partners_are_at_the_right_places_by_one_turn_at_most() -> None:
    """Try a row as long as a prime; in one of six, every second place is right by three turns."""

    def most(length: int) -> int:
        """Return how many turns take one set of places, without the first, to another at most."""
        sets = [
            frozenset(chosen)
            for size in range(1, length)
            for chosen in combinations(range(1, length), size)
        ]
        turned = Counter(
            (places, frozenset((place + turn) % length for place in places))
            for places in sets
            for turn in range(length)
        )
        return max(turned.values())

    assert [most(length) for length in (2, 3, 5, 7, 11)] == [1] * 5
    assert most(6) == 3
    for count in (1, 2, 3, 64, 4096, 65536, 1 << 20):
        each, length = partners_of(count)
        assert length >= count + 64 and all(length % d for d in range(2, math.isqrt(length) + 1))
        assert length**each >= 1 << 40 > length ** (each - 1)


def passing(
    lanes: list[Lane], count: int, partners: int, wrong: int, wrong_partners: int, trials: int
) -> int:
    """Return how often party 0 passes with so many numbers, and partners in each row, of 2."""
    values = np.zeros(count, np.uint8)
    values[:wrong] = 2
    others = np.zeros((partners, count + 1), np.uint8)
    others[:, :wrong_partners] = 2

    def run(number: int) -> int:
        lane, passed = lanes[number], 0
        randomness: Any = lane.party.randomness
        randomness.words = lambda size: np.zeros(size, np.uint64)
        true = lane.prover
        for _ in range(trials):
            if number == 0:
                lane.prover = Cheat(true, [values, others.reshape(-1)])  # type: ignore[assignment]
            try:
                lane._prove_bits(np.zeros(count, np.uint8), 0)
            except PeerDeviated:
                assert number == 1
            else:
                passed += 1
        return passed

    honest, passed = run_both(run)
    assert honest == trials
    return int(passed)


# Errors that are chosen for the key of the hash: they cancel in it, whatever Delta is.


def test_numbers_that_are_no_bits_do_not_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server 1 knows what it will claim: that all are 0. So it could know the key ahead.

    It commits to 8 in coordinate 0 of the first step, and where only padding is, to turn the sign.
    """
    round_, dim = Round(np.full((5, 24), 7), lanes=1), 24
    true_prove, true_make, true_masked = Lane._prove_bits, Lane._make, Lane._masked
    off = np.zeros((4, 64), np.uint8)

    def make(self: Lane, *given: Any) -> Any:
        with monkeypatch.context() as patch:
            if self.party.number == 1:
                zeros = partial(np.zeros, dtype=np.uint64)
                patch.setattr(self.party.randomness, "words", zeros, raising=False)
            return true_make(self, *given)

    def prove(self: Lane, values: np.ndarray, t: int) -> Any:
        if self.party.number == 0 or t:
            return true_prove(self, values, t)
        rows, length = bisect.partners_of(256)
        guards = 3 * rows * (length - 256)
        places = [*(64 * step + i for step in range(4) for i in range(dim, 64)), 3 * 64]
        errors = np.zeros((len(places), guards + 3 * rows * 256), np.uint64)
        for error, place in zip(errors, places, strict=True):
            error[guards + place :: 256][:rows] = 8
        words = np.zeros(-(-rows * length // 64), np.uint64)
        off.reshape(-1)[places] = 8 * cancelling(self.opener, 1, words, errors)
        true = self.prover
        claims = np.zeros(rows * length, np.uint8)
        self.prover = Cheat(true, [off.reshape(-1), claims])  # type: ignore[assignment]
        found = true_prove(self, values, t)
        self.prover = true
        return found

    def masked(self: Lane, step: int, *given: Any) -> Any:
        return [
            each ^ off[step, :dim] * self.party.number for each in true_masked(self, step, *given)
        ]

    for name, changed in (("_make", make), ("_prove_bits", prove), ("_masked", masked)):
        monkeypatch.setattr(Lane, name, changed)
    errors: dict[int, BaseException] = {}
    assert not rogue_run(round_, errors) and off[3, 0] == 8
    assert isinstance(errors[0], PeerDeviated) and "random bits 0" in str(errors[0])


def test_folds_that_differ_do_not_cancel() -> None:
    """A client knows the key when it folds: it sends another fold, whose errors cancel in it."""
    round_ = Round(RNG.integers(0, 16, (4, 64)), lanes=1)

    def run(number: int) -> None:
        one = round_.bind(number)
        coin = one.toss()
        folds = round_.folds(number, coin)
        if number == 0:
            opener = Opener(round_.pairs[0][0], 0, one._lanes[0].opener._context)
            opener._count = one._lanes[0].opener._count
            opener.mix(coin)
            off = np.zeros(15 * 2560, np.uint8)
            errors = np.zeros((170, off.size), np.uint8)
            np.fill_diagonal(errors, 8)
            # of a component, and those of all others have the same factor
            whole = np.pad(errors, ((0, 0), (0, 47 * off.size)))
            off[:170] = 8 * cancelling(opener, 1, np.frombuffer(coin, np.uint64), whole)
            folds[2] = ring.pack(ring.unpack(folds[2], 4, off.size) ^ off, 4)
        assert one.compare(folds) == [True, True, False, True]

    run_both(run)


def test_keys_depend_on_all_that_was_tossed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each kind of commitment, and at both servers."""
    mixed: list[list[bytes]] = [[], []]
    true_toss, true_mix, seeds = dealing.toss, Opener.mix, [list[bytes](), list[bytes]()]

    def toss(channel: Channel, number: int, *given: Any) -> bytes:
        seeds[number].append(true_toss(channel, number, *given))
        return seeds[number][-1]

    def mix(self: Opener, seed: bytes) -> None:
        before = self._context
        true_mix(self, seed)
        assert self._context != before
        mixed[self._number].append(seed)

    monkeypatch.setattr(Opener, "mix", mix)
    for module in (dealing, ands, bisect):
        monkeypatch.setattr(module, "toss", toss)
    round_ = Round(RNG.integers(0, 16, (4, 64)), lanes=1)
    run_both(round_.run)
    # of bits, buckets of ANDs, and folds
    assert mixed[0] == mixed[1] == seeds[0] and len(mixed[0]) == 3 + 1 + 1


def test_a_server_names_the_coin_of_its_fold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it could choose the key of its digest."""
    round_, true = Round(RNG.integers(0, 16, (4, 64)), lanes=1), Opener.tell

    def tell(self: Opener, label: str, mine: np.ndarray, *given: Any) -> Any:
        if (label, self._number) == ("bisect.folds", 1):
            mine = mine ^ np.uint64(1)
            self.begin(mine, owns.pop())
        return true(self, label, mine, *given)

    owns: list[list[np.ndarray]] = []
    true_begin = Opener.begin

    def begin(self: Opener, mine: np.ndarray, macs: Iterable[np.ndarray]) -> None:
        if self._number == 1:
            owns.append([each.copy() for each in macs])
            macs = owns[-1]
        true_begin(self, mine, macs)

    monkeypatch.setattr(Opener, "tell", tell)
    monkeypatch.setattr(Opener, "begin", begin)
    errors: dict[int, BaseException] = {}
    assert not rogue_run(round_, errors)
    assert "the sums of the clients' shares" in str(errors[0])


def test_a_digest_is_good_for_one_place() -> None:
    """The same MACs have others for another party, number, opening, lane and session."""
    channel, macs = local_pair()[0], np.arange(8, dtype=np.uint64)

    def of(context: bytes, who: int, count: int, words: np.ndarray) -> bytes:
        opener = Opener(channel, 0, context)
        opener._count = count
        hashed = opener._hash(who, words)
        hashed.update(macs)
        return hashed.digest()

    first, second = sessions()[0], sessions()[0]
    contexts = [
        Lane(session, lane, channel, Dealing(64, 4, 2)).opener._context
        for session, lane in ((first, 0), (first, 1), (second, 0))
    ]
    zero, one = np.zeros(1, np.uint64), np.ones(1, np.uint64)
    found = {of(context, 0, 3, zero) for context in contexts}
    found |= {of(contexts[0], *place) for place in ((1, 3, zero), (0, 4, zero), (0, 3, one))}
    assert len(found) == 6


def test_macs_that_wait_are_not_dropped() -> None:
    opener = Opener(local_pair()[0], 0, bytes(32))
    opener.begin(np.zeros(1, np.uint64), [])
    opener.add_macs(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    with pytest.raises(LocalProtocolError, match="not compared"):
        opener.begin(np.zeros(1, np.uint64), [])


def test_masks_of_folds_are_of_one_session() -> None:
    """Else two folds under two coins would differ by what is folded."""
    round_ = Round(RNG.integers(0, 16, (1, 64)))
    upload, mask = round_.uploads[0][0], round_.masks[0][0]
    one, other = (fold(0, upload, id_, bytes(16), mask) for id_ in (bytes(16), bytes(15) + b"1"))
    assert (one != other).mean() > 0.9


def test_small_models_take_larger_buckets_of_ands() -> None:
    # of 3 bits and 4 steps, one row after the other
    assert pools_of(4, 4, 64) == [12] and pools_of(4, 4, POOL) == [1] * 12
    assert pools_of(4, 4, POOL // 5) == [6, 6] and pools_of(4, 3, POOL // 4) == [5, 4]
    assert pools_of(1, 4, POOL) == []
    for bits, steps, width in product((2, 4, 7), (2, 4, 5), (64, 1000, POOL // 3, POOL)):
        pools = pools_of(bits, steps, width)
        assert sum(pools) == (bits - 1) * steps
        for rows in pools:
            size = bucket_size(rows * width)
            assert (rows * width) ** (size - 1) << size >= 1 << 40
            assert len(pools) == 1 or rows * width >= POOL


def test_that_the_peer_deviated_is_said_before_that_a_channel_is_closed() -> None:
    """The first lane that ends closes the channels of the others, one of which knows why."""

    def lane(number: int) -> None:
        if number == 0:
            raise ChannelClosed("closed by another lane")
        time.sleep(0.1)
        raise PeerDeviated("found here")

    with pytest.raises(PeerDeviated):
        run_lanes([local_pair(20)[0] for _ in range(2)], lane)


def test_an_audited_round_is_bound_before_it_runs() -> None:
    nothing: Any = None
    params = RoundParams(Bucketed(security="malicious"), dim=64, max_clients=3)
    computation = ThreadComputation(0, ProtocolParams(), bytes(16), [], nothing)
    with pytest.raises(LocalProtocolError, match="before its folds were compared"):
        computation.run_round(RoundInput(params, [], []), nothing)


def test_what_is_said_of_folds_is_of_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that says anything else while folds are waited for has deviated."""
    round_, true = Round(RNG.integers(0, 16, (3, 64)), lanes=1), Folds.gather
    said: dict[int, BaseException] = {}

    def gather(self: Folds, channel: Channel, number: int, limit_s: float) -> list[bool]:
        if number == 1:
            channel.send("anything", np.zeros(1, np.uint8))
        return true(self, channel, number, limit_s)

    def run(number: int) -> None:
        nothing: Any = lambda *_: None  # noqa: E731
        one = ThreadComputation(number, ProtocolParams(lanes=1), bytes(16), [], nothing)
        one._channels, one._prepared = round_.channels(number), round_.prepare(number)
        given = RoundInput(round_.params, round_.uploads[number], [1] * 3)
        given = replace(given, masks=round_.masks[number])
        try:
            one.bind(given, Folds("abc", binding.fold_words(round_.shape)), 0.0, nothing)
        except SecureMedianError as error:
            said[number] = error
            round_.channels(number)[0].close()

    monkeypatch.setattr(Folds, "gather", gather)
    run_both(run)
    assert isinstance(said[0], PeerDeviated) and "folds: expected message" in str(said[0])


@pytest.mark.parametrize(
    "method",
    [
        Mean(),
        Bucketed(uploads="unverified"),
        Bucketed(groups=2),
        Bucketed(ring_bits=17),
        Bucketed(weights=dict.fromkeys("abcd", 2)),
    ],
)
def test_other_rounds_cannot_be_bisected(method: Any) -> None:
    params = RoundParams(method, dim=64, max_clients=4)
    with pytest.raises(ConfigError, match="security malicious takes zoom, or bucketed"):
        dealing_of(params)
