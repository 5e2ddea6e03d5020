"""A disk that is full: what is refused stays nowhere, and rounds can end all the same."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securemedian.mpc.errors import NotStored
from securemedian.mpc.protocols import wire
from securemedian.mpc.rounds.methods.mean import Mean
from securemedian.mpc.rounds.params import RoundParams
from securemedian.servers.storage.database import Database
from securemedian.servers.storage.files import DATABASE_BYTES, Reserve, WordsFile
from securemedian.servers.storage.store import Store
from tests.servers_alone import DEALT, PARAMS, VOTES, Server
from tests.test_cohorts import KINDS, World, coordinator, keys

WORDS = np.zeros((PARAMS.form.layout.rows, PARAMS.form.layout.row_words), np.uint64)
LIMIT_S = 300.0
# the exit status of a system that gives us no file system of our own
NOT_ALLOWED = 77


def no_room(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def upload(s0: Server, round_id: str, client: int) -> wire.Message:
    fields: dict[str, Any] = {"round": round_id, "params": PARAMS.digest, "form": "words"}
    return s0.ask(s0.keys[client], "upload", {"share": WORDS}, **fields)


@pytest.mark.parametrize("fails", ["posix_fallocate", "pwrite"])
def test_of_words_that_find_no_room_none_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    words, real = np.arange(1000, dtype=np.uint64), getattr(os, fails)
    file = WordsFile(tmp_path / "words")
    file.write(file.reserve(words.size), words)

    def in_part(descriptor: int, *given: Any) -> int:
        if fails == "pwrite":
            real(descriptor, given[0][:800], given[1])
        else:
            real(descriptor, given[0], given[1] // 2)
        return no_room()

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{fails}", in_part)
        with pytest.raises(OSError, match="No space left"):
            file.write(file.reserve(words.size), words)
    if fails == "posix_fallocate":
        assert (tmp_path / "words").stat().st_size == file.end == words.nbytes
        file.reserve(words.size)
    # a crash may leave more than was committed
    with (tmp_path / "words").open("ab") as torn:
        torn.write(bytes(500))
    assert WordsFile(tmp_path / "words", file.end).end == 2 * words.nbytes
    assert (tmp_path / "words").stat().st_size == 2 * words.nbytes


@pytest.mark.parametrize("how", ["close", "abort", "deadline"])
def test_a_round_ends_on_a_full_disk_because_uploads_leave_the_database_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nothing can be written any more, unless the reserve is given up for it."""
    s0, reserve = Server(0, tmp_path / "s0"), tmp_path / "s0" / "reserve"
    round_id = s0.open()
    assert upload(s0, round_id, 0).type == "upload"
    assert reserve.stat().st_size > DATABASE_BYTES
    transaction = s0.store.database.transaction

    @contextmanager
    def full() -> Iterator[None]:
        if reserve.stat().st_size:
            raise NotStored("no room")
        with transaction():
            yield

    monkeypatch.setattr(s0.store.database, "transaction", full)
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", no_room)
        refused = upload(s0, round_id, 1).fields
        assert refused["code"] == "not-stored"
        assert "No space left on device; have its operator look at the disk" in refused["message"]
        # they take nothing of the reserve, which is for changes of the round
        assert s0.upload(s0.keys[1], round_id).fields["code"] == "not-stored"
        assert reserve.stat().st_size > DATABASE_BYTES
        status = s0.ask(s0.coordinator, "status", round=round_id).fields
        assert status["stored_bytes"] == WORDS.nbytes
        if how == "deadline":
            s0.now += PARAMS.deadline_s
            s0.rounds.tick()
        else:
            reason: dict[str, Any] = {"reason": "no room"} if how == "abort" else {}
            answer = s0.ask(s0.coordinator, how, round=round_id, **reason)
            assert answer.type == how, answer.fields
        assert s0.state[0] == ("failed" if how == "abort" else "closing")
        # the round after it begins when there is room for its uploads
        if how == "abort":
            s0.ask_to_open()
            assert s0.replies[-1].fields["code"] == "not-stored"
            assert s0.latest.server_round.round_id == round_id
    if how == "abort":
        assert reserve.stat().st_size == 0
        monkeypatch.setattr(s0.store.database, "transaction", transaction)
        assert upload(s0, s0.open(), 0).type == "upload" and reserve.stat().st_size


@pytest.mark.parametrize("params", [PARAMS, DEALT])
def test_nothing_is_taken_until_the_reserve_is_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: RoundParams
) -> None:
    s0 = Server(0, tmp_path / "s0", params)
    round_id, client = s0.open(), s0.keys[0]

    def send() -> wire.Message:
        return s0.deal(client, round_id) if params.form.dealing else s0.upload(client, round_id)

    s0.store.reserve.give_up()
    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", no_room)
        assert send().fields["code"] == "not-stored"
    assert send().type in ("deal", "upload")
    assert (tmp_path / "s0" / "reserve").stat().st_size > DATABASE_BYTES


def test_a_server_starts_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It empties the database's log later."""
    s0 = Server(0, tmp_path / "s0")
    round_id = s0.open()

    def full(*_: object, **__: object) -> None:
        raise NotStored("no room")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "erase", full)
        s0.restart()
    assert (s0.latest.server_round.round_id, s0.state[0]) == (round_id, "open")
    # or it does not start, and forgets nothing
    with monkeypatch.context() as patch, pytest.raises(NotStored, match="no room"):
        patch.setattr(Store, "spool", full)
        s0.restart()
    s0.restart()
    assert (s0.latest.server_round.round_id, s0.state[0]) == (round_id, "open")
    assert s0.upload(s0.keys[0], round_id).type == "upload"


def test_a_round_of_votes_has_room_for_its_digits_and_its_result(tmp_path: Path) -> None:
    s0 = Server(0, tmp_path / "s0", VOTES)
    assert s0.open()
    # four words of 12 bits are packed into one, twice; the run is the model's
    leaves = 2 * 8 + 4 * 4 * VOTES.dim
    assert (tmp_path / "s0" / "reserve").stat().st_size == DATABASE_BYTES + leaves


def test_a_reserve_has_room_for_what_its_rounds_leave(tmp_path: Path) -> None:
    reserve = Reserve(tmp_path / "reserve")
    for size in (1000, 3000):
        reserve.add(tmp_path / str(size), size)
    reserve.hold()
    assert (tmp_path / "reserve").stat().st_size == DATABASE_BYTES + 4000
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= DATABASE_BYTES + 4000
    reserve.drop(tmp_path / "3000")
    assert (tmp_path / "reserve").stat().st_size == DATABASE_BYTES + 1000
    assert reserve.give_up() and not reserve.give_up()
    assert (tmp_path / "reserve").stat().st_size == 0
    reserve.hold()
    # a start may need it
    Reserve(tmp_path / "reserve")
    assert (tmp_path / "reserve").stat().st_size == 0


# A real one


def fill(folder: Path) -> None:
    """Fill a disk to the last byte, as somebody else may."""
    with suppress(OSError), (folder / "filler").open("ab", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    assert os.statvfs(folder).f_bavail == 0


def play(folder: Path) -> None:
    """Fill the disk of S0, 30 MB, with uploads and then to the last byte, and end all rounds."""
    (folder / "s0").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=30m,mode=700", "tmpfs", str(folder / "s0")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        sys.exit(NOT_ALLOWED)
    # of 4 MB an upload, and 12 for result and run
    big = KINDS["default"] = RoundParams(Mean(norm_bound=1.0), dim=500_000, max_clients=3)
    world = World(folder)
    for name in ("default", "stroke", "lung.2"):
        world.open(name)
    round_id = world.latest("default").server_round.round_id
    words = {"share": np.ones((big.form.layout.rows, big.form.layout.row_words), np.uint64)}
    fields = {"round": round_id, "params": big.digest, "form": "words"}
    answers = []
    for key in keys("default"):
        world.send("default", key, 1)
        answers.append(world.ask(0, key, "upload", words, **fields))
    assert [answer.type for answer in answers] == ["upload", "upload", "error"]
    file = folder / "s0" / "spool" / round_id / "uploads.words"
    assert (
        file.stat().st_size
        == world.latest("default").spool.stored_bytes
        == 2 * big.form.bytes_after
    )
    fill(folder / "s0")
    world.servers[0].restart()
    world.run(world.linked)
    fill(folder / "s0")
    aborted = {"round": world.latest("lung.2").server_round.round_id, "reason": "no room"}
    assert world.ask(0, coordinator("lung.2"), "abort", **aborted).type == "abort"
    assert world.ask(0, coordinator("default"), "close", round=round_id).type == "close"
    world.run(lambda: world.published("default"))
    for server in world.servers:
        server.now += KINDS["stroke"].deadline_s
    world.run(lambda: world.states("stroke") == ("failed", "failed"))
    assert "at least 2" in world.latest("stroke").server_round.reason
    (folder / "s0" / "filler").unlink()
    world.open("heart")
    world.send_all("heart")
    world.run(lambda: world.published("heart"))


def test_a_disk_that_uploads_fill_stops_no_round(tmp_path: Path) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare, for a small file system")
    command = "import pathlib, sys; from tests import test_full_disk as t; "
    done = subprocess.run(
        [
            *("unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c"),
            f"{command} t.play(pathlib.Path(sys.argv[1]))",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode == NOT_ALLOWED or "unshare" in done.stderr.partition("\n")[0]:
        pytest.skip("this system gives no file system to a user")
    assert done.returncode == 0, done.stderr
