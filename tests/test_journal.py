"""A client's files for a restart: `clients.journal`."""

import gc
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from securemedian.clients import client, journal
from securemedian.clients.client import Client
from securemedian.clients.journal import (
    DAY_S,
    ROUNDS_RETAINED,
    Journal,
    Sent,
    Submission,
    fingerprint,
)
from securemedian.clients.spent import Spent
from securemedian.clients.upload import ShareHalf
from securemedian.common import durable
from securemedian.common.versions import STORE
from securemedian.mpc.errors import ConfigError, LocalProtocolError, PeerProtocolError
from securemedian.mpc.protocols import dealing
from securemedian.mpc.protocols.dealing import Dealing

ROUND, PARAMS, START = "7-3fa9c1d2", bytes(range(32)), bytes(range(32, 64))
VECTOR = np.arange(5, dtype=np.float32)
HALVES = (
    ShareHalf("seed", np.arange(16, dtype=np.uint8)),
    ShareHalf("words", np.arange(6, dtype=np.uint64).reshape(2, 3)),
)
SUBMISSION = Submission(ROUND, PARAMS, START, fingerprint(VECTOR, 2), HALVES, group=2)


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "client-1-state"


def again(kept: Journal, folder: Path) -> Journal:
    """Return what the next process has."""
    kept.close()
    return Journal(folder)


def test_an_upload_outlasts_the_process_and_is_deleted(folder: Path) -> None:
    kept = Journal(folder)
    kept.keep(SUBMISSION)
    kept = again(kept, folder)
    found = kept.submission(ROUND)
    assert found is not None and kept.rounds == [ROUND]
    assert (found.round_id, found.params, found.start) == (ROUND, PARAMS, START)
    assert found.update == fingerprint(VECTOR, 2) and (found.group, found.told) == (2, 0)
    for half, before in zip(found.halves, HALVES, strict=True):
        assert (half.form, half.share.dtype) == (before.form, before.share.dtype)
        assert np.array_equal(half.share, before.share)
    kept.forget(ROUND)
    assert {path.name for path in folder.iterdir()} == {"days", "lock"}
    assert again(kept, folder).rounds == []


def test_of_an_upload_that_servers_have_no_half_is_kept_but_what_its_result_has_to_fit(
    folder: Path,
) -> None:
    kept = Journal(folder)
    kept.keep(SUBMISSION)
    path = folder / f"{ROUND}.kept"
    halves = [half.share.tobytes() for half in HALVES]
    assert all(half in path.read_bytes() for half in halves)
    kept.confirm(SUBMISSION)
    assert not any(half in path.read_bytes() for half in halves)
    for one in (kept, again(kept, folder)):
        assert one.rounds == [] and one.submission(ROUND) is None
        assert one.sent == [Sent(ROUND, START, 2, 1)] == [one.confirmed(ROUND)]


@pytest.mark.parametrize("keeps", [True, False])
def test_as_many_uploads_are_remembered_as_servers_keep_results(folder: Path, keeps: bool) -> None:
    """Sort by the order of sending: a service that is set up again counts from 1."""
    kept = Journal(folder if keeps else None)
    rounds = [f"{number}-3fa9c1d2" for number in (8, 9, 10, 11, 1, 2)]
    for group, round_id in enumerate(rounds):
        made = replace(SUBMISSION, round_id=round_id, group=group)
        kept.keep(made)
        kept.confirm(made)
        if keeps:
            kept = again(kept, folder)
    assert [sent.round_id for sent in kept.sent] == rounds[-ROUNDS_RETAINED:]
    assert [sent.group for sent in kept.sent] == [2, 3, 4, 5]
    if keeps:
        names = {path.stem for path in folder.glob("*.kept")}
        assert names == {*rounds[-ROUNDS_RETAINED:]}


def test_halves_that_servers_have_are_deleted_even_if_nothing_can_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Journal(folder)
    kept.keep(SUBMISSION)

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", _full)
        kept.confirm(SUBMISSION)
    assert [sent.group for sent in kept.sent] == [2]
    assert {path.name for path in folder.iterdir()} == {"days", "lock"}
    assert again(kept, folder).sent == []


@pytest.mark.parametrize("keeps", [True, False])
def test_the_rounds_of_a_day_are_counted_once_each(folder: Path, keeps: bool) -> None:
    now = [1e9]
    kept = Journal(folder if keeps else None, lambda: now[0])

    def restarted() -> Journal:
        if not keeps:
            return kept
        kept.close()
        return Journal(folder, lambda: now[0])

    assert len(kept.made_within_a_day) == 0
    for number in range(1, 4):
        made = replace(SUBMISSION, round_id=f"{number}-3fa9c1d2")
        for _ in range(2):
            # as an upload that is sent again
            kept.keep(made)
            kept = restarted()
            made = kept.submission(made.round_id) or made
        assert len(kept.made_within_a_day) == number
        # whatever has become of it
        if number == 1:
            kept.confirm(made)
        else:
            kept.forget(made.round_id)
        now[0] += 3600
    kept = restarted()
    assert len(kept.made_within_a_day) == 3
    now[0] += DAY_S - 3 * 3600
    assert len(kept.made_within_a_day) == 2
    now[0] += DAY_S
    assert len(restarted().made_within_a_day) == 0


@pytest.mark.parametrize("keeps", [True, False])
def test_a_clock_that_was_a_year_ahead_counts_for_a_day(folder: Path, keeps: bool) -> None:
    right = 1e9
    now = [right + 365 * DAY_S]
    kept = Journal(folder if keeps else None, lambda: now[0])
    kept.keep(SUBMISSION)
    now[0] = right
    # hourly restarts, as of a client that cron starts
    for hour in range(24):
        if keeps:
            kept.close()
            kept = Journal(folder, lambda: now[0])
        assert len(kept.made_within_a_day) == 1, hour
        now[0] += 3600
    if keeps:
        kept.close()
        kept = Journal(folder, lambda: now[0])
    assert len(kept.made_within_a_day) == 0


def test_an_upload_that_is_not_counted_is_not_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Journal(folder)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "replace_file", _full)
        with pytest.raises(ConfigError, match="No space left on device.*make room. Nothing"):
            kept.keep(SUBMISSION)
    assert len(kept.made_within_a_day) == 0 and kept.submission(ROUND) is None
    (folder / "days").write_bytes(b"?" * 40)
    with pytest.raises(ConfigError, match="days; remove it. Rounds of the last day"):
        again(kept, folder)


@pytest.mark.parametrize("keeps", [True, False])
def test_what_the_caller_keeps_outlasts_the_process_and_rounds(folder: Path, keeps: bool) -> None:
    kept = Journal(folder if keeps else None)
    assert (kept.own.fields, kept.own.arrays) == ({}, {})
    network = np.arange(4, dtype=np.float32)
    kept.keep_own({"round": ROUND, "seed": [1, 2]}, {"network": network})
    # a caller's later changes to its array are not kept
    network += 1
    kept.keep(SUBMISSION)
    kept.forget(ROUND)
    if keeps:
        kept = again(kept, folder)
    assert kept.own.fields == {"round": ROUND, "seed": [1, 2]}
    assert kept.own.arrays["network"].tolist() == [0, 1, 2, 3]
    assert kept.own.arrays["network"].dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        kept.own.arrays["network"][0] = 9
    kept.keep_own({}, {"other": network})
    if keeps:
        kept = again(kept, folder)
    assert kept.own.fields == {} and [*kept.own.arrays] == ["other"]


def test_what_the_caller_keeps_is_named_if_it_is_damaged_or_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Journal(folder)
    kept.keep_own({}, {"network": VECTOR})

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", _full)
        with pytest.raises(ConfigError, match="No space left on device.; make room$"):
            kept.keep_own({}, {"network": VECTOR + 1})
    assert np.array_equal(kept.own.arrays["network"], VECTOR)
    kept.close()
    path = folder / "own"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="own; remove it"):
        Journal(folder)


def test_a_dealing_is_drawn_again_alike(folder: Path) -> None:
    shape = Dealing(40, 4, 3)
    kept = Journal(folder)
    draw = kept.draw(ROUND, PARAMS, 5)
    assert kept.draw(ROUND, PARAMS, 5) == draw
    one = dealing.deal(shape, draw.entropy())
    # whatever S0 says about this client's place: the other half must not go to the same server
    later = again(kept, folder).draw(ROUND, PARAMS, 4)
    assert later == draw and later.index == 5
    other = dealing.deal(shape, later.entropy())
    assert one.seeded.seed == other.seeded.seed
    assert np.array_equal(one.words.packed, other.words.packed)
    index = np.arange(40) % 4
    assert np.array_equal(one.rotations(index), other.rotations(index))
    # the halves' randomness has nothing of the secret in it, and rounds differ
    assert draw.entropy()(16) not in draw.secret
    assert Journal(None).draw(ROUND, PARAMS, 5).secret != draw.secret


def test_one_secret_serves_one_dealing(folder: Path) -> None:
    kept = Journal(folder)
    kept.draw(ROUND, PARAMS, 0)
    for one in (kept, again(kept, folder)):
        with pytest.raises(PeerProtocolError, match="other parameters than before"):
            one.draw(ROUND, bytes(32), 0)


@pytest.mark.parametrize("keeps", [True, False])
def test_a_dealing_that_has_rotated_rotates_no_other_update(folder: Path, keeps: bool) -> None:
    kept = Journal(folder if keeps else None)
    secret = kept.draw(ROUND, PARAMS, 0).secret
    if keeps:
        assert secret in (folder / f"{ROUND}.kept").read_bytes()
    kept.keep(SUBMISSION)
    if keeps:
        # before the first rotation is sent there is nothing left to rotate with
        assert secret not in (folder / f"{ROUND}.kept").read_bytes()
        kept = again(kept, folder)
    with pytest.raises(LocalProtocolError, match="one update only"):
        kept.draw(ROUND, PARAMS, 0)
    with pytest.raises(LocalProtocolError, match="another upload"):
        kept.keep(Submission(ROUND, PARAMS, START, bytes(32), HALVES))


def test_what_a_later_release_kept_is_refused_and_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "STORE", STORE + 1)
    kept = Journal(folder)
    kept.draw(ROUND, PARAMS, 0)
    kept.keep_own({"round": 7}, {"model": VECTOR})
    kept.close()
    monkeypatch.undo()
    for path in (folder / f"{ROUND}.kept", folder / "own"):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=f"{path.name} is of another release"):
            Journal(folder)
        assert path.read_bytes() == before
        path.unlink()
    Journal(folder).close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "other"])
def test_a_damaged_file_is_named_with_what_to_do(folder: Path, damage: str) -> None:
    kept = Journal(folder)
    kept.keep(SUBMISSION)
    kept.close()
    path = folder / f"{ROUND}.kept"
    data = path.read_bytes()
    damaged = {
        "flip": data[:-1] + bytes([data[-1] ^ 1]),
        "cut": data[:-1],
        "empty": b"",
        "other": b"x" * 100,
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(ConfigError, match=f"{ROUND}.kept; remove it"):
        Journal(folder)
    path.unlink()
    Journal(folder).close()


def test_the_folder_is_for_one_process_and_one_user(folder: Path) -> None:
    kept = Journal(folder)
    kept.keep(SUBMISSION)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    with pytest.raises(ConfigError, match="another process runs on the state folder"):
        Journal(folder)
    kept.close()
    folder.chmod(0o750)
    with pytest.raises(ConfigError, match="run chmod 700"):
        Journal(folder)


def test_what_cannot_be_written_is_not_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Journal(folder)

    with monkeypatch.context() as patch:
        patch.setattr(durable.os, "fsync", _full)
        with pytest.raises(ConfigError, match="No space left on device.*make room. Nothing"):
            kept.keep(SUBMISSION)
    # the next attempt writes the same
    kept.keep(SUBMISSION)
    (folder / "9-3fa9c1d2.kept.new").write_bytes(b"of a crash")
    assert again(kept, folder).rounds == [ROUND]
    assert not list(folder.glob("*.new"))


@pytest.mark.parametrize("name", ["../7", "7/3", "", ".kept", "a" * 100])
def test_an_id_that_is_no_file_name_is_refused(folder: Path, name: str) -> None:
    given: dict[str, Any] = {"params": PARAMS, "index": 0}
    with pytest.raises(PeerProtocolError, match="invalid round id"):
        Journal(folder).draw(name, **given)


def test_a_client_that_is_freed_while_another_asks_holds_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = object.__new__(Client), object.__new__(Client)
    before.closed, after._spent = False, Spent(None)
    held = [before]
    del before

    class Freed(WeakValueDictionary[Any, Client]):
        def __contains__(self, key: object) -> bool:
            found = super().__contains__(key)
            held.clear()
            return found

    others = Freed({(os.getpid(), folder.resolve()): held[0]})
    monkeypatch.setattr(client, "_open_here", others)
    monkeypatch.setattr(gc, "collect", held.clear)
    after._own_journal(folder).close()
    assert others[os.getpid(), folder.resolve()] is after
