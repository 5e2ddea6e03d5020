"""Rounds that outlive their servers: two without sockets, which are killed and started again.

Each runs on its own state folder, and what they say to each other goes through a queue that loses
what the test says. tests/test_daemons.py kills real ones.
"""

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.common import versions
from securemedian.common.states import State
from securemedian.common.versions import STORE
from securemedian.mpc.arrays import PublicValues
from securemedian.mpc.errors import ChannelClosed, ConfigError, DamagedUpload, NotStored
from securemedian.mpc.protocols import ring, wire
from securemedian.mpc.rounds.cost import Cost
from securemedian.mpc.rounds.methods.zoom import Zoom
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.pipeline import Outcome
from securemedian.servers.machine.round import Member, ServerRound
from securemedian.servers.network import control
from securemedian.servers.network.control import Again, Bye, Hello, RoundMessage
from securemedian.servers.rounds.register import Entry
from securemedian.servers.storage.database import UPGRADES, Database, Row
from securemedian.servers.storage.files import Reserve
from securemedian.servers.storage.spool import Piece, Spool
from tests.servers_alone import DEALT, DIM, PARAMS, VOTES, Server

# a round of two votes, whose clients deal, too
SHORT = RoundParams(Zoom(encoding="fixed", word_bits=8, fraction_bits=4), dim=DIM, max_clients=3)
KINDS = [
    pytest.param(PARAMS, id="plain"),
    pytest.param(SHORT, id="votes", marks=pytest.mark.slow),
]
# those that the votes of a round open
DIGITS = 5, 3, 9
STEP_S = 0.25
LIMIT_S = 120.0


@pytest.fixture(autouse=True)
def no_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for no disk: a machine does not crash within a test."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _: None)


class Killed(BaseException):
    """A server is killed in the middle of what it does."""


class Two:
    """Two servers, and what is on its way between them. Time passes in `run` alone."""

    def __init__(self, folder: Path, params: RoundParams = PARAMS, **changes: Any) -> None:
        """Start both, with `changes` in their configurations."""
        self.servers = [Server(party, folder / f"s{party}", params, **changes) for party in (0, 1)]
        self.params = params
        # called with each message about a round; one for which it is true is lost
        self.lose: Callable[[RoundMessage], bool] = lambda message: False
        self.restarts = 0
        # by server: the sessions in which it has run the protocol, with the vote, and the coins
        # under which it has opened something, over all its lives
        self.runs: list[list[tuple[int, bytes]]] = [[], []]
        self.coins: list[set[bytes]] = [set(), set()]

    def survive(self, party: int, what: Callable[[], Any]) -> Any:
        """Let a server do something. If it is killed meanwhile, start it again."""
        server = self.servers[party]
        try:
            return what()
        except Killed:
            self.restarts += 1
            server.sent.clear()
            server.restart()

    def run(self, until: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Let time pass until something is so."""
        for _ in range(int(limit_s / STEP_S)):
            if until():
                return
            for party, server in enumerate(self.servers):
                server.now += STEP_S
                self.survive(party, server.rounds.tick)
            self.settle()
        raise AssertionError([server.state for server in self.servers])

    def settle(self) -> None:
        """Pass messages on and let the engines end what they do, until nothing happens."""
        busy = True
        while busy:
            busy = False
            # the engines toss as if both servers had one secret
            if all(server.rounds.register.entries for server in self.servers):
                s0, s1 = (server.latest for server in self.servers)
                opening = s0.server_round.toss_opening
                s1.server_round = replace(s1.server_round, toss_opening=opening)
            for party, server in enumerate(self.servers):
                sent = list(server.sent)
                server.sent.clear()
                for message in sent:
                    busy = True
                    if isinstance(message, Hello | Bye) or not self.lose(message):
                        parts = control.encode(message)
                        other = self.servers[1 - party]
                        self.survive(1 - party, partial(other.rounds.control, parts))
            for party, server in enumerate(self.servers):
                busy |= self._compute(party, server)

    def _compute(self, party: int, server: Server) -> bool:
        engine = server.engine
        self.coins[party] |= set(engine.coins)
        if engine.checked:
            engine.end_check()
        elif self._run_together():
            for number, one in enumerate(self.servers):
                latest = one.latest.server_round
                values = PublicValues(np.full((1, DIM), DIGITS[latest.level], np.uint64))
                self.runs[number].append((latest.level, latest.session))
                one.engine.result, one.engine.uploads = Outcome(values, Cost()), None
        if engine.result is None:
            return False
        self.survive(party, server.rounds.engine_ended)
        return True

    def _run_together(self) -> bool:
        engines = [server.engine for server in self.servers]
        started = all(engine.uploads is not None for engine in engines)
        return started and len({engine.session_id for engine in engines}) == 1

    def linked(self) -> bool:
        return all(server.rounds.peer.linked for server in self.servers) and all(
            server.rounds.peer.instance not in ("", "one") for server in self.servers
        )

    def ask(self, party: int, key: str, op: str, share: Any = None, **fields: Any) -> wire.Message:
        """Ask until there is an answer, as a client does whose server is killed."""
        server = self.servers[party]
        arrays = {} if share is None else {"share": share}
        before = len(server.replies)
        for _ in range(3):
            self.survive(party, lambda: server.ask(key, op, arrays, **fields))
            self.settle()
            if len(server.replies) > before:
                return server.replies[-1]
        raise AssertionError("no answer")

    def open(self) -> str:
        """Open a round, under an id of the request, and return the round's id."""
        s0 = self.servers[0]
        self.run(self.linked)
        fields = {"params": self.params.to_dict(), "range": {}, "request": "0" * 31 + "1"}
        arrays = {"model": np.zeros(DIM, np.float32)} if self.params.form.buckets else {}
        for _ in range(3):
            before = len(s0.replies)
            self.survive(0, lambda: s0.ask(s0.coordinator, "open", arrays, **fields))
            self.settle()
            self.run(lambda: not s0.rounds.live or self.state(0) != "opening")
            if len(s0.replies) > before and s0.replies[-1].type == "open":
                return str(s0.replies[-1].fields["round"])
            self.run(self.linked)
        raise AssertionError(s0.replies[-1].fields)

    def send_all(self, round_id: str, uploads: bool = True) -> None:
        """Send what all clients send, to both servers, and again where there was no answer.

        Without `uploads` they only deal.
        """
        layout = self.params.form.layout
        fields = {"round": round_id, "params": self.params.digest}
        seed = np.zeros(16, np.uint8)
        words = np.zeros((layout.rows, layout.row_words), np.uint64)
        for key, party in itertools.product(self.servers[0].keys, (0, 1)):
            if self.params.form.dealing:
                dealt: dict[str, Any] = {"form": "seed", "piece": 0, "pieces": 1} | fields
                assert self.ask(party, key, "deal", seed, **dealt).type == "deal"
            if not uploads:
                continue
            form = "rotations" if self.params.form.dealing else "words"
            answer = self.ask(party, key, "upload", words, form=form, **fields)
            assert answer.type == "upload", answer.fields

    def vote(self, round_id: str) -> None:
        """Send later votes of all clients, within what both servers tell."""
        layout, heres = self.params.form.layout, [one.latest.server_round for one in self.servers]
        assert len({(here.level, here.path) for here in heres}) == 1
        fields: dict[str, Any] = {"round": round_id, "params": self.params.digest}
        fields |= {
            "form": "rotations",
            "level": heres[0].level,
            "path": bytes.fromhex(heres[0].path),
        }
        words = np.zeros((layout.rows, layout.row_words), np.uint64)
        for key, party in itertools.product(self.servers[0].keys, (0, 1)):
            answer = self.ask(party, key, "upload", words, **fields)
            # the run may have begun
            assert answer.type == "upload", answer.fields

    def takes(self, level: int) -> bool:
        """Return whether both servers take the votes of a level, or the round has ended."""
        heres = [server.latest.server_round for server in self.servers]
        votes = all((here.state, here.level) == (State.VOTING, level) for here in heres)
        return votes or self.ended()

    def state(self, party: int) -> str:
        return self.servers[party].state[0] if self.servers[party].rounds.register.entries else ""

    def ended(self) -> bool:
        return all(self.state(party) in ("published", "failed") for party in (0, 1))

    def check(self, round_id: str) -> None:
        """Check that the round has gone well, whatever happened meanwhile."""
        for party, server in enumerate(self.servers):
            latest = server.latest.server_round
            assert (latest.round_id, latest.state) == (round_id, State.PUBLISHED), latest.reason
            assert latest.included == server.keys
            # a run that breaks off is made again in a session of its own
            assert len(set(self.runs[party])) == len(self.runs[party])
            assert not list((server.folder / "spool").iterdir())
            assert len(self.coins[party]) <= len(server.keys)
        results = self.ask(0, self.servers[0].keys[0], "result", round=round_id)
        assert results.fields["form"] != "pending"
        if (votes := self.params.form.votes) > 1:
            words = ring.unpack(results.arrays["opened"].reshape(-1), 4 * votes, DIM)
            assert {f"{word:x}" for word in words.tolist()} == {"539"[:votes]}

    def close(self) -> None:
        for server in self.servers:
            server.store.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


def go(two: Two) -> str:
    """Run a whole round and return its id."""
    round_id = two.open()
    two.send_all(round_id)
    for level in range(1, two.params.form.votes):
        two.run(partial(two.takes, level))
        two.vote(round_id)
    two.run(two.ended)
    two.check(round_id)
    return round_id


def _the(place: int) -> Callable[[RoundMessage], bool]:
    """Return what is true for one message of all."""
    number = itertools.count()
    return lambda message: next(number) == place


@pytest.mark.parametrize("params", KINDS)
def test_one_lost_message_puts_nobody_out_of_step(tmp_path: Path, params: RoundParams) -> None:
    """Lose each message in its turn. In divviup/janus#2605 one lost reply lost the batch."""
    counted = Two(tmp_path / "all", params)
    said: list[RoundMessage] = []

    def note(message: RoundMessage) -> bool:
        said.append(message)
        return False

    counted.lose = note
    go(counted)
    counted.close()
    assert len(said) > 12
    for lost in range(len(said)):
        two = Two(tmp_path / str(lost), params)
        two.lose = _the(lost)
        go(two)
        two.close()


@pytest.mark.parametrize("params", KINDS)
def test_no_lost_message_puts_out_of_step_who_runs_the_protocol_again(
    tmp_path: Path, params: RoundParams
) -> None:
    """S0's run breaks off, and its next one follows at once, before a hello tells of the loss."""

    def broken(folder: str, lose: Callable[[RoundMessage], bool]) -> None:
        two = Two(tmp_path / folder, params, retry_wait_s=0.1)
        two.lose, engine = lose, two.servers[0].engine
        start, breaks = engine.start, [ChannelClosed("a lane is gone")]

        def once(*arguments: Any) -> None:
            if breaks:
                raise breaks.pop()
            start(*arguments)

        engine.start = once  # type: ignore[method-assign,assignment]
        go(two)
        assert not breaks
        two.close()

    said: list[RoundMessage] = []
    broken("all", said.append)  # type: ignore[arg-type]
    assert Again in map(type, said)
    for lost in range(len(said)):
        broken(str(lost), _the(lost))


def fill_the_disk(server: Server) -> list[bool]:
    """Let a server store nothing as long as the one item that is returned is true."""
    transaction, full = server.store.database.transaction, [True]

    @contextmanager
    def no_room() -> Iterator[None]:
        if full[0]:
            raise NotStored("no room")
        with transaction():
            yield

    server.store.database.transaction = no_room  # type: ignore[method-assign]
    return full


def test_a_check_whose_session_has_gone_is_made_in_another(tmp_path: Path) -> None:
    """The link breaks while the toss for the check cannot be stored, and the disk has room again.

    It takes first what was tossed.
    """
    two = Two(tmp_path, DEALT)
    round_id = two.open()
    server = two.servers[0]
    full = fill_the_disk(server)
    full[0] = False
    toss = server.engine.toss

    def no_room(vouch: Callable[[bytes], bytes]) -> None:
        toss(vouch)
        full[0] = len(server.latest.server_round.dealt_there) == len(server.keys)

    server.engine.toss = no_room  # type: ignore[method-assign]
    two.send_all(round_id, uploads=False)
    two.run(lambda: full[0])
    server.rounds.control(control.encode(Bye()))
    assert server.engine.session_id is None
    full[0], server.engine.toss = False, toss  # type: ignore[method-assign]
    two.send_all(round_id)
    two.run(two.ended)
    two.check(round_id)
    two.close()


def killing(two: Two, party: int, at: int, after: bool) -> list[int]:
    """Kill a server at its `at`-th commit, before or after it; count the commits."""
    count = [0]
    server = two.servers[party]

    def arm() -> None:
        transaction = server.store.database.transaction

        @contextmanager
        def dying() -> Iterator[None]:
            count[0] += 1
            now = count[0]
            if now == at and not after:
                raise Killed
            with transaction():
                yield
            if now == at:
                raise Killed

        server.store.database.transaction = dying  # type: ignore[method-assign]

    arm()
    restart = server.restart

    def again() -> None:
        restart()
        arm()

    server.restart = again  # type: ignore[method-assign]
    return count


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("party", [0, 1])
def test_a_server_that_is_killed_at_any_commit_takes_the_round_up_again(
    tmp_path: Path, party: int, after: bool
) -> None:
    """A round of votes has all that others have: dealings, their check, uploads, and runs."""
    params = SHORT
    counted = Two(tmp_path / "all", params)
    commits = killing(counted, party, 0, after)
    go(counted)
    counted.close()
    assert commits[0] > 6
    for at in range(1, commits[0] + 1):
        two = Two(tmp_path / str(at), params)
        killing(two, party, at, after)
        go(two)
        assert two.restarts == 1
        two.close()


def test_both_servers_killed_keep_what_they_have_acknowledged(two: Two) -> None:
    round_id = two.open()
    two.send_all(round_id)
    two.run(lambda: two.state(0) == two.state(1) == "published")
    status = [two.ask(party, two.servers[0].coordinator, "status").fields for party in (0, 1)]
    result = two.ask(0, two.servers[0].keys[0], "result", round=round_id)
    for server in two.servers:
        server.restart()
    for party, before in enumerate(status):
        now = two.ask(party, two.servers[0].coordinator, "status").fields
        assert {**now, "id": 0, "peer_linked": 0} == {**before, "id": 0, "peer_linked": 0}
    again = two.ask(0, two.servers[0].keys[0], "result", round=round_id)
    assert np.array_equal(again.arrays["opened"], result.arrays["opened"])
    assert {**again.fields, "id": 0} == {**result.fields, "id": 0}
    # the next one has the next number
    two.run(two.linked)
    assert two.servers[0].open().startswith("2-")


# Repeated requests


def test_what_is_asked_once_more_is_answered_as_the_first_time_and_counted_once(two: Two) -> None:
    """Retry requests. In divviup/janus#3142 a retried request was aggregated twice."""
    s0, (first, *_) = two.servers[0], two.servers[0].keys
    round_id = two.open()
    two.send_all(round_id)
    two.run(two.ended)
    two.check(round_id)
    # in a later state, at both servers
    words = np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64)
    fields = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    for party in (0, 1):
        assert two.ask(party, first, "upload", words, **fields).type == "upload"
        other = two.ask(party, first, "upload", words + np.uint64(1), **fields)
        assert other.fields["code"] == "duplicate-upload"
        two.servers[party].restart()
        assert two.ask(party, first, "upload", words, **fields).type == "upload"
    open_fields = {"params": PARAMS.to_dict(), "range": {}, "request": "0" * 31 + "1"}
    assert two.ask(0, s0.coordinator, "open", **open_fields).fields["round"] == round_id
    assert two.ask(0, s0.coordinator, "close", round=round_id).type == "close"
    refused = two.ask(0, s0.coordinator, "abort", round=round_id, reason="why")
    assert refused.fields["code"] == "round-closed"
    two.run(two.linked)
    bad = two.ask(0, s0.coordinator, "open", **open_fields | {"request": "no id"})
    assert bad.fields["code"] == "bad-config" and "32 hex digits" in bad.fields["message"]
    another = two.ask(0, s0.coordinator, "open", **open_fields | {"request": "2" * 32})
    for _ in range(2):
        aborted = two.ask(
            0, s0.coordinator, "abort", round=another.fields["round"], reason="enough"
        )
        assert aborted.type == "abort"
    assert two.state(0) == two.state(1) == "failed"
    assert s0.latest.server_round.code == "round-aborted"


def test_only_what_was_committed_is_counted(two: Two) -> None:
    """Fill the disk. In divviup/janus#1414 unvalidated reports were counted."""
    s0, (first, second, third) = two.servers[0], two.servers[0].keys
    round_id = two.open()
    words = np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64)
    fields = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    full = fill_the_disk(s0)
    two.ask(1, first, "upload", words, **fields)
    for _ in range(3):
        assert two.ask(0, first, "upload", words, **fields).fields["code"] == "not-stored"
    assert not s0.latest.server_round.here
    # nothing piles up either: the upload keeps its place
    assert (s0.folder / "spool" / round_id / "uploads.words").stat().st_size == words.nbytes
    refused = two.ask(0, s0.coordinator, "close", round=round_id)
    assert refused.fields["code"] == "not-stored" and two.state(0) == "open"
    # the other server's messages are kept until there is room
    full[0] = False
    for key, party in itertools.product((first, second), (0, 1)):
        assert two.ask(party, key, "upload", words, **fields).type == "upload"
    two.ask(0, s0.coordinator, "close", round=round_id)
    two.run(lambda: two.state(0) == "failed")
    assert "at least 3" in s0.state[1]
    assert third not in s0.latest.server_round.here


def test_a_server_without_room_goes_on_when_there_is_some(two: Two) -> None:
    """Whichever transition could not be stored, nothing of it is sent or done before."""
    s1 = two.servers[1]
    round_id = two.open()
    two.send_all(round_id)
    full = fill_the_disk(s1)
    before = two.state(1)
    for _ in range(8):
        for party, server in enumerate(two.servers):
            server.now += STEP_S
            two.survive(party, server.rounds.tick)
        two.settle()
        assert two.state(1) == before
    full[0] = False
    two.run(two.ended)
    two.check(round_id)


@pytest.mark.parametrize("party", [0, 1])
def test_digits_are_told_when_a_full_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, party: int
) -> None:
    """No run is lost: the server is where it was until it can note that both have the digits."""
    two = Two(tmp_path, VOTES)
    server, full, refused = two.servers[party], [True], [0]
    commit = server.rounds.register.commit

    def no_room(entry: Entry, changed: ServerRound, *given: Any) -> None:
        if full[0] and changed.state is State.VOTING:
            refused[0] += 1
            raise NotStored("no room")
        commit(entry, changed, *given)

    monkeypatch.setattr(server.rounds.register, "commit", no_room)
    round_id = two.open()
    two.send_all(round_id)
    two.run(lambda: refused[0] > 2)
    assert two.state(party) == "running" and two.state(1 - party) == "voting"
    # it tells no digits
    assert server.latest.path and server.latest.path.votes == 0
    full[0] = False
    for level in (1, 2):
        two.run(partial(two.takes, level))
        assert server.latest.server_round.attempt == level
        two.vote(round_id)
    two.run(two.ended)
    two.check(round_id)
    two.close()


# The disk


def test_a_damaged_share_fails_the_round_for_good(two: Two) -> None:
    s0, (first, second, _) = two.servers[0], two.servers[0].keys
    round_id = two.open()
    words_of = np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64)
    fields = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    for key in (first, second):
        assert two.ask(0, key, "upload", words_of, **fields).type == "upload"
    file = s0.folder / "spool" / round_id / "uploads.words"
    examine = s0.latest.spool.examination(s0.keys)
    examine()
    with file.open("r+b") as words:
        words.seek(8)
        words.write(b"\x01")
    with pytest.raises(DamagedUpload, match="damaged"):
        examine()
    os.truncate(file, 8)
    with pytest.raises(DamagedUpload, match="shorter"):
        examine()
    s0.engine.result = DamagedUpload("the upload of a client is not what it has sent")
    s0.rounds.engine_ended()
    two.run(two.ended)
    assert two.state(0) == two.state(1) == "failed"


def test_dealings_are_read_at_the_first_vote_and_once_after_a_start(tmp_path: Path) -> None:
    layout, shape = VOTES.form.layout, VOTES.form.dealing
    assert shape is not None
    reserve, rows = Reserve(tmp_path / "reserve"), list[Row]()
    words = np.ones((layout.rows, layout.row_words), np.uint64)
    pieces = [
        Piece("dealing", "words", np.ones(shape.layout.words, np.uint64)),
        Piece("upload", "rotations", words),
        Piece("vote-1", "rotations", words),
    ]

    def opened() -> Spool:
        return Spool(tmp_path / "spool", reserve, layout, shape, rows=rows)

    spool = opened()
    for piece in pieces:
        assert (row := spool.put("key", piece))
        rows.append(row)
        spool.add(row)
    for vote in (0, 1):
        spool.examination(["key"], vote)()
    with (tmp_path / "spool" / "uploads.words").open("r+b") as file:
        file.write(b"\x02")
    spool.examination(["key"], 1)()
    for one, vote in ((spool, 0), (opened(), 1)):
        with pytest.raises(DamagedUpload, match="dealing is not"):
            one.examination(["key"], vote)()


@pytest.mark.parametrize("party", [0, 1])
def test_a_round_with_shares_as_release_1_0_stores_them_fails_in_words(
    two: Two, party: int
) -> None:
    """Its digests of long shares are not SHA-256."""
    server = two.servers[party]
    round_id = two.open()
    words_of = np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64)
    fields = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    assert two.ask(party, server.keys[0], "upload", words_of, **fields).type == "upload"
    server.store.database._connection.execute("UPDATE uploads SET form = 'blocks'")
    server.restart()
    two.run(two.ended)
    assert two.state(0) == two.state(1) == "failed"
    for each in two.servers:
        reason = each.latest.server_round.reason
        assert f"s{party} was updated while it had long shares as release 1.0.0" in reason


def test_what_is_stored_is_for_its_owner_and_is_gone_after_the_round(two: Two) -> None:
    s0 = two.servers[0]
    secret = np.frombuffer(b"a secret seed :)", np.uint8)
    round_id = two.open()
    fields = {"round": round_id, "params": PARAMS.digest, "form": "seed"}
    assert two.ask(0, s0.keys[0], "upload", secret, **fields).type == "upload"

    def holding() -> list[str]:
        files = [path for path in s0.folder.rglob("*") if path.is_file()]
        return [path.name for path in files if secret.tobytes() in path.read_bytes()]

    assert holding()
    for path in s0.folder.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.name == "lock", path
    two.ask(0, s0.coordinator, "abort", round=round_id, reason="why")
    assert not holding()


def _has_no_live_round(server: Server) -> bool:
    return not server.rounds.live


def test_a_state_folder_that_is_not_its_latest_fails_the_round_for_good(two: Two) -> None:
    """S0's is gone; S1's is gone."""
    two.open()
    for party in (1, 0):
        server, other = two.servers[party], two.servers[1 - party]
        server.store.close()
        for path in sorted(server.folder.rglob("*"), reverse=True):
            path.unlink() if path.is_file() else path.rmdir()
        server._start(ready=True)
        two.run(partial(_has_no_live_round, other))
        state, reason = other.state
        assert state == "failed" and "for good" in reason and "knows" in reason
        if party == 1:
            s0 = two.servers[0]
            two.run(two.linked)
            s0.ask(s0.coordinator, "open", params=PARAMS.to_dict(), range={}, request="3" * 32)
            two.settle()
            assert two.state(0) == two.state(1) == "open"


# The database


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (f"PRAGMA user_version = {STORE + 1}", f"another release .*version {STORE + 1} on disk"),
        ("PRAGMA user_version = 0", "install that release again"),
        ("DROP TABLE cohorts", "not a database of a server"),
    ],
)
def test_a_database_of_another_release_is_refused(other: str, said: str, tmp_path: Path) -> None:
    Database(tmp_path / "state.db").close()
    connection = sqlite3.connect(tmp_path / "state.db")
    connection.execute(other)
    connection.close()
    before = (tmp_path / "state.db").read_bytes()
    with pytest.raises(ConfigError, match=said):
        Database(tmp_path / "state.db")
    assert (tmp_path / "state.db").read_bytes() == before


def test_a_database_of_the_release_before_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Database(tmp_path / "state.db")
    with made.transaction():
        made.spend("default", 7.0)
    made.close()
    monkeypatch.setattr(versions, "LOWEST_STORE", STORE)
    monkeypatch.setattr(versions, "STORE", STORE + 1)
    monkeypatch.setitem(UPGRADES, STORE, "ALTER TABLE cohorts ADD extra TEXT DEFAULT 'x';")
    for _ in range(2):
        made = Database(tmp_path / "state.db")
        assert made.spent("default") == 7.0
        assert made._connection.execute("SELECT extra FROM cohorts").fetchall() == [("x",)]
        made.close()
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="another release"):
        Database(tmp_path / "state.db")


def test_a_damaged_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(ConfigError, match="restore"):
        Database(tmp_path / "junk.db")


def test_all_that_changes_of_a_round_survives_or_is_known_not_to() -> None:
    """A new field of `ServerRound` has to be stored, or to be told again on a new link."""
    fields = set(ServerRound.__dataclass_fields__)
    given = {"party", "asked", "params", "floor", "limits", "repeats", "signing_key"}
    times = {"deadline", "retry_at", "away_until", "until"}
    rows = {"dealt", "uploaded", "coin", "token", "passed"}
    of_a_link = {"resuming", "session", "new_session", "check", "vouched", "unlisted", "folded"}
    of_a_link |= {"unused"}
    there = {"dealt_there", "uploaded_there"}
    # in the file of the result
    of_the_result = {"receipt"}
    # they end the round at once
    at_the_end = {"discord", "abandoned"}
    from tests.test_round_state import a_round

    # an audited one, whose sessions are counted, at a later vote
    audited = a_round(0, State.OPEN)
    audited.round_is(sessions=1, level=1, path="ab", vouch="cd")
    saved = audited.saved().keys()
    derived = {"declined", "unfolded", "computed_here"}
    kept = given | times | of_a_link | of_the_result | at_the_end | saved - derived
    assert fields == kept | {"members"}
    assert set(Member.__dataclass_fields__) == rows | there | {"name", "declined", "unfolded"}
