"""A server's state folder: the database, clients' shares, runs and results.

It is for one process at a time. The words of a round's shares are in one file, and the database
says whose they are: a share counts once it is on the disk and its row is committed. Runs
and results are files that are named by their SHA-256, written beside, synchronised and renamed.
"""

import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.common.cohorts import DEFAULT_COHORT
from securemedian.common.durable import lock_folder, replace_file, sync_folder
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    DamagedUpload,
    DuplicateUpload,
    LocalProtocolError,
    NotStored,
    SecureMedianError,
    quoted,
)
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.share import Layout, SeedUpload, Upload
from securemedian.mpc.rounds.optimiser import optimiser_from
from securemedian.mpc.rounds.ranges.registry import policy_from
from securemedian.mpc.rounds.run_state import RunState
from securemedian.servers.control import SHA256_BYTES, is_round_id
from securemedian.servers.database import Database, Row
from securemedian.servers.outcome import Result

# bytes that are hashed at a time, and that are worth being synchronised beside the caller
_CHUNK_BYTES = 1 << 20
# Synchronises beside the servers' loops, which wait for it: examinations, which may take seconds,
# have threads of their own.
_DISK = ThreadPoolExecutor(1, "disk")
_EXAMINERS = ThreadPoolExecutor(2, "examiner")

# the file of the database
DATABASE = "state.db"
# the name of a file's plain fields, which no array has
_FIELDS = "fields"

DEALING, UPLOAD = "dealing", "upload"

# The context in which files are opened: within `Descriptors.own` they get reserved descriptors.
Opening = Callable[[], AbstractContextManager[None]]


class WordsFile:
    """One file of packed words, which many uploads share.

    It needs one descriptor however many clients there are, so that nobody who takes descriptors
    decides whose upload is stored, and one call synchronises all that has come. A thread brings to
    the disk what is written while the caller goes on, so that `sync` has little to wait for. It is
    closed when the last upload that reads it is gone, which may be later than its folder.
    """

    def __init__(self, path: Path, end: int = 0) -> None:
        """Open a file, or make it; what lies from byte `end` on is overwritten."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        # where the next words begin
        self.end = end
        # what is written and not being brought to the disk, in bytes
        self._unsynced = 0
        self._syncing: Future[None] | None = None

    def append(self, words: Words) -> int:
        """Write words at the end and return where they begin, in bytes.

        Raises OSError if they cannot all be written; what was written is overwritten by the next.
        """
        begin = self.end
        self.write(begin, words)
        self.end += 8 * words.size
        return begin

    def give_back(self, begin: int, size: int) -> None:
        """Let the next words overwrite what was appended last, if it is this."""
        if begin + size == self.end:
            self.end = begin

    def sync(self) -> None:
        """Wait until all that was written is on the disk. Raises OSError if it cannot be."""
        syncing, self._syncing = self._syncing, None
        if syncing:
            syncing.result()
        if self._unsynced:
            os.fdatasync(self._file)
            self._unsynced = 0

    def _sync_beside(self) -> None:
        """Begin to bring to the disk what is written, if it is much and the last time was fine."""
        done = self._syncing is None or (self._syncing.done() and not self._syncing.exception())
        if done and self._unsynced >= _CHUNK_BYTES:
            self._unsynced = 0
            # it keeps the file open until it is done
            self._syncing = _DISK.submit(os.fdatasync, self._file)

    def reserve(self, count: int) -> int:
        """Make room for `count` words at the end and return where it begins, in bytes.

        Raises OSError if the disk has no room for them.
        """
        begin = self.end
        os.posix_fallocate(self._file.fileno(), begin, 8 * count)
        self.end += 8 * count
        return begin

    def write(self, at: int, words: Words) -> None:
        """Write words from byte `at` on. Raises OSError if they cannot all be written."""
        left = words.data.cast("B")
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            self._unsynced += written
            left, at = left[written:], at + written
        self._sync_beside()

    def read(self, begin: int, count: int) -> Words:
        """Return `count` words from byte `begin` on."""
        return np.frombuffer(self.read_bytes(begin, 8 * count), np.uint64)

    def read_bytes(self, begin: int, count: int) -> bytes:
        """Return `count` bytes from byte `begin` on. Raises DamagedUpload if they are not there."""
        try:
            data = os.pread(self._file.fileno(), count, begin)
        except OSError as error:
            raise DamagedUpload(f"a stored upload cannot be read: {error.strerror}") from error
        if len(data) != count:
            raise DamagedUpload("a stored upload is shorter than when it was written")
        return data

    def chunks(self, begin: int, count: int) -> Iterator[bytes]:
        """Yield `count` bytes from byte `begin` on, by and by. Raises what `read_bytes` raises."""
        for at in range(begin, begin + count, _CHUNK_BYTES):
            yield self.read_bytes(at, min(_CHUNK_BYTES, begin + count - at))


@dataclass(frozen=True)
class StoredUpload:
    """A share that was given in full, as packed words on disk."""

    layout: Layout
    source: WordsFile = field(repr=False)
    begin: int

    def words(self, row: int, start: int, stop: int) -> Words:
        """Read words [start, stop) of row `row` from the disk."""
        first = row * self.layout.row_words + start
        return self.source.read(self.begin + 8 * first, stop - start)


@dataclass
class _Partial:
    """A dealing of which pieces are missing; `due` is the number of the next one."""

    begin: int
    pieces: int
    due: int = 0
    # the SHA-256 of those that came, and of all but the last
    sha256: Any = field(default_factory=hashlib.sha256)
    sha256_before: Any = None


class Spool:
    """The uploads of one round by client, and where they deal, their dealings.

    Packed words are in one file per round, and all else is in rows of the database. `layout` is
    that of the uploads, `shape` that of the dealings, or None where nobody deals, and `native_aes`
    says what seeds are expanded with. A share is written by `put` or `put_dealing`, is on the disk
    after `sync`, and counts after `add`, for which its row must be committed.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        shape: Dealing | None = None,
        opening: Opening = nullcontext,
        rows: Iterable[Row] = (),
        native_aes: bool = False,
    ) -> None:
        self._folder, self._layout, self._shape, self._opening = folder, layout, shape, opening
        self._native_aes = native_aes
        self._rows: dict[tuple[str, str], Row] = {(row.client, row.kind): row for row in rows}
        self._partial: dict[str, _Partial] = {}
        end = max((row.begin + row.size for row in self._rows.values()), default=0)
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            with opening():
                self._words_file: WordsFile | None = WordsFile(folder / "uploads.words", end)
                for each in (folder, folder.parent):
                    sync_folder(each)
        except OSError as error:
            raise _cannot_store("uploads", error) from error

    def put(self, client: str, form: str, share: NDArray[Any], digest: bytes | None = None) -> Row:
        """Write one upload, and return its row. `digest` is its `upload_digest`, if it is known.

        Raises BadUpload if it does not have the form of the round's uploads, and NotStored if it
        cannot be written; nothing of it is stored then.
        """
        words = self._layout.rows, self._layout.row_words
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = (
            {"rotations": (np.uint64, words)}
            if self._shape
            else {"seed": (np.uint8, (SEED_BYTES,)), "words": (np.uint64, words)}
        )
        _check_share("an upload", form, share, shapes)
        known = digest or sha256(share)
        if form == "seed":
            return _seed_row(client, UPLOAD, share, known)
        packed = np.ascontiguousarray(share).reshape(-1)
        try:
            begin = self._file.append(packed)
        except OSError as error:
            raise _cannot_store("the upload", error) from error
        return Row(client, UPLOAD, form, begin, packed.nbytes, known, time.time())

    def put_dealing(
        self, client: str, form: str, piece: int, pieces: int, share: NDArray[Any]
    ) -> Row | None:
        """Write one piece of a dealing, and return the row of the dealing once it is whole.

        Piece 0 makes room for all pieces; sent again, it begins the dealing anew. The pieces are of
        one size, but for the last one. Raises BadUpload for a piece that is not the next one or has
        another form, and NotStored if it cannot be written; then it is still due.
        """
        words = self._check_piece(form, piece, pieces, share)
        if form == "seed":
            self._partial.pop(client, None)
            return _seed_row(client, DEALING, share, sha256(share))
        partial = self._write_piece(client, words, piece, pieces, share)
        if piece + 1 < pieces:
            return None
        digest = partial.sha256.digest()
        return Row(client, DEALING, form, partial.begin, 8 * words, digest, time.time())

    def repeats_piece(
        self, client: str, form: str, piece: int, pieces: int, share: NDArray[Any]
    ) -> bool:
        """Return whether exactly this piece of a dealing is stored already, and the latest one.

        Raises BadUpload for a piece that cannot be, and DuplicateUpload if the client's dealing is
        whole and another one.
        """
        words = self._check_piece(form, piece, pieces, share)
        row, partial = self._rows.get((client, DEALING)), self._partial.get(client)
        at = 8 * piece * -(-words // pieces)
        if row is None:
            if not partial or (partial.pieces, partial.due) != (pieces, piece + 1):
                return False
            return form == "words" and self._holds(partial.begin + at, share)
        if form == "seed":
            same = row.seed == share.tobytes()
        else:
            same = row.form == form and self._holds(row.begin + at, share)
        if not same:
            raise DuplicateUpload(
                "another dealing of yours for this round is stored already; the first one counts"
            )
        return True

    def _holds(self, at: int, share: NDArray[Any]) -> bool:
        return self._file.read_bytes(at, share.nbytes) == share.tobytes()

    def _check_piece(self, form: str, piece: int, pieces: int, share: NDArray[Any]) -> int:
        """Check a piece of a dealing, and return how many words the dealing has."""
        if self._shape is None:
            raise LocalProtocolError("nobody deals in this round")
        words = self._shape.layout.words
        _check_piece(words, form, piece, pieces, share)
        return words

    def _write_piece(
        self, client: str, words: int, piece: int, pieces: int, share: NDArray[Any]
    ) -> _Partial:
        """Write a piece of a dealing of so many words, and return what there is of it."""
        partial = self._partial.get(client)
        due = partial.due if partial and partial.pieces == pieces else 0
        if piece not in (0, due):
            raise BadUpload(
                f"{_piece(piece, pieces)} came where piece {due} is due: "
                "send all pieces in order, from 0 on"
            )
        packed = np.ascontiguousarray(share)
        try:
            begin = partial.begin if partial else self._file.reserve(words)
            if piece == 0 or partial is None:
                partial = self._partial[client] = _Partial(begin, pieces)
            self._file.write(begin + 8 * piece * -(-words // pieces), packed)
        except OSError as error:
            raise _cannot_store("the dealing", error) from error
        partial.sha256_before = partial.sha256.copy()
        partial.sha256.update(packed.data)
        partial.due += 1
        return partial

    def sync(self) -> None:
        """Wait until all words are on the disk. Raises NotStored if they cannot be."""
        try:
            self._file.sync()
        except OSError as error:
            raise _cannot_store("the upload", error) from error

    @property
    def stored_bytes(self) -> int:
        """What the shares take on the disk, and of incomplete dealings the room that they have."""
        words = self._words_file
        return words.end if words else 0

    def add(self, row: Row) -> None:
        """Let a share count whose row is committed."""
        self._rows[row.client, row.kind] = row
        if row.kind == DEALING:
            self._partial.pop(row.client, None)

    def discard(self, row: Row) -> None:
        """Forget a share that cannot be stored. The last piece of a dealing is due once more."""
        if row.kind == UPLOAD:
            self._file.give_back(row.begin, row.size)
        elif partial := self._partial.get(row.client):
            partial.sha256, partial.due = partial.sha256_before, partial.due - 1

    def get(self, client: str) -> Upload:
        """Return the upload of a client, with its dealing where it has dealt."""
        upload = self._upload(self._rows[client, UPLOAD], self._layout)
        if self._shape is None:
            return upload
        return DealtUpload(self._shape, self.dealing(client), upload)

    def dealing(self, client: str) -> Upload:
        """Return this server's half of a client's dealing."""
        if self._shape is None:
            raise LocalProtocolError("nobody deals in this round")
        return self._upload(self._rows[client, DEALING], self._shape.layout)

    def _upload(self, row: Row, layout: Layout) -> Upload:
        if row.seed is not None:
            return SeedUpload(layout, row.seed, self._native_aes)
        return StoredUpload(layout, self._file, row.begin)

    def examination(self, clients: Container[str]) -> Callable[[], None]:
        """Return a function that checks what these clients have sent against its SHA-256.

        It is for another thread, since it reads all of it. It raises DamagedUpload.
        """
        file = self._file
        rows = [row for row in self._rows.values() if row.client in clients and row.seed is None]

        def examine_one(row: Row) -> None:
            digest = hashlib.sha256()
            for chunk in file.chunks(row.begin, row.size):
                digest.update(chunk)
            if digest.digest() != row.sha256[:SHA256_BYTES]:
                raise DamagedUpload(
                    f"the {row.kind} of a client is not what it has sent: the disk of this "
                    "server is damaged. The round has failed for good, open a new one"
                )

        def examine() -> None:
            # hashing releases the GIL
            for _ in _EXAMINERS.map(examine_one, rows):
                pass

        return examine

    @property
    def _file(self) -> WordsFile:
        if self._words_file is None:
            raise SecureMedianError("this round has ended, and its uploads are deleted")
        return self._words_file

    def drop(self) -> None:
        """Delete everything.

        A run that still reads keeps the file, which then has no name, until it stops.
        """
        self._rows.clear()
        self._partial.clear()
        self._words_file = None
        with self._opening():
            shutil.rmtree(self._folder, ignore_errors=True)


def sha256(share: NDArray[Any]) -> bytes:
    """Return the SHA-256 of a share as it was sent."""
    return hashlib.sha256(np.ascontiguousarray(share).reshape(-1).data).digest()


def _seed_row(client: str, kind: str, share: NDArray[Any], digest: bytes) -> Row:
    return Row(client, kind, "seed", 0, 0, digest, time.time(), share.tobytes())


def _cannot_store(what: str, error: OSError) -> NotStored:
    return NotStored(f"this server cannot store {what}: {error.strerror}")


def _piece(piece: int, pieces: int) -> str:
    return f"piece {quoted(piece)} of {quoted(pieces)} of a dealing"


def _check_piece(words: int, form: str, piece: int, pieces: int, share: NDArray[Any]) -> None:
    """Raise BadUpload unless `share` is such a piece of a dealing of so many words."""
    # how much there is to be cut into pieces
    whole = 1 if form == "seed" else words
    if not 0 <= piece < pieces or (pieces - 1) * -(-whole // pieces) >= whole:
        raise BadUpload(
            f"there is no {_piece(piece, pieces)}, which has {whole} words or is one seed"
        )
    size = -(-words // pieces)
    length = min(size, words - piece * size)
    shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
        "seed": (np.uint8, (SEED_BYTES,)),
        "words": (np.uint64, (length,)),
    }
    _check_share(_piece(piece, pieces), form, share, shapes)


def _check_share(
    what: str, form: str, share: NDArray[Any], shapes: Mapping[str, tuple[Any, tuple[int, ...]]]
) -> None:
    """Raise BadUpload unless `share` has the dtype and shape of its form."""
    if form not in shapes:
        raise BadUpload(
            f"the form of {what} for this round is {' or '.join(shapes)}, not {quoted(form)}"
        )
    dtype, shape = shapes[form]
    if share.dtype != dtype or share.shape != shape:
        raise BadUpload(
            f"{what} of form {quoted(form)} for this round is {np.dtype(dtype)} {shape}, "
            f"not {share.dtype} {share.shape}: "
            "encode it with the parameters that the server gave"
        )


class Store:
    """The state folder of one server.

    Raises ConfigError if the folder cannot be used or another process uses it.
    """

    def __init__(
        self, folder: Path, opening: Opening = nullcontext, native_aes: bool = False
    ) -> None:
        self._opening, self._native_aes = opening, native_aes
        self._folder, self._spools, self._kept = folder, folder / "spool", folder / "kept"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            refusal = f"another server is running on the state folder {folder}"
            self._lock = lock_folder(folder, refusal)
            for inner in (self._spools, self._kept):
                inner.mkdir(mode=0o700, exist_ok=True)
            # SQLite gives the files beside the database its mode
            os.close(os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT, 0o600))
            sync_folder(folder)
        except OSError as error:
            raise ConfigError(f"cannot use the state folder {folder}: {error.strerror}") from error
        self.database = Database(folder / DATABASE)

    def close(self) -> None:
        """Give the folder up, so that another process can use it."""
        self.database.close()
        self._lock.close()

    def spool(
        self,
        round_id: str,
        layout: Layout,
        shape: Dealing | None = None,
        rows: Iterable[Row] = (),
    ) -> Spool:
        """Return the spool of a round, in a folder that is named after it; `rows` are in it."""
        if not is_round_id(round_id):
            raise SecureMedianError(f"{quoted(round_id)} is no round id and cannot name a folder")
        spool = self._spools / round_id
        return Spool(spool, layout, shape, self._opening, rows, self._native_aes)

    def tidy(self, live: Container[str], kept: Container[str]) -> None:
        """Delete the spools of rounds that are not `live`, and files that are not `kept`."""
        for folder in self._spools.iterdir():
            if folder.name not in live:
                shutil.rmtree(folder, ignore_errors=True)
        for file in self._kept.iterdir():
            if file.name not in kept:
                file.unlink(missing_ok=True)

    # Runs and results

    def load_run(self, cohort: str = DEFAULT_COHORT) -> RunState:
        """Return the current run of a cohort, or a new one if there is none.

        Raises ConfigError if the file is damaged.
        """
        name = self.database.current_runs().get(cohort)
        return self.read_run(name) if name else RunState()

    def save_run(self, run: RunState, cohort: str = DEFAULT_COHORT) -> None:
        """Make a run the current one: a crash leaves the old one or the new one."""
        name = self.write_run(run)
        with self.database.transaction():
            self.database.set_current_run(cohort, name)

    def write_run(self, run: RunState) -> str:
        """Keep a run, and return the name of its file. Raises NotStored."""
        return self._keep(
            {
                "policy": run.policy.to_dict(),
                "published": run.published,
                "optimiser": run.optimiser.to_dict(),
            },
            run.arrays,
        )

    def read_run(self, name: str) -> RunState:
        """Return a run by the name of its file. Raises ConfigError if it is damaged."""
        fields, arrays = self._load(name)
        return RunState.of_arrays(
            policy_from(fields["policy"]),
            fields["published"],
            optimiser_from(fields["optimiser"]),
            arrays,
        )

    def write_result(self, result: Result) -> str:
        """Keep a result, and return the name of its file. Raises NotStored."""
        fields, arrays = result.to_parts()
        return self._keep(fields, arrays)

    def read_result(self, name: str) -> Result:
        """Return a result by the name of its file. Raises ConfigError if it is damaged."""
        return Result.from_parts(*self._load(name))

    def _keep(self, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
        """Write a file of fields and arrays in one step, and return its name."""
        content = io.BytesIO()
        np.savez(content, **{_FIELDS: np.array(json.dumps(fields))}, **arrays)  # type: ignore[arg-type]
        data = content.getbuffer()
        name = hashlib.sha256(data).hexdigest()
        path = self._kept / name
        if path.exists():
            return name
        try:
            with self._opening():
                replace_file(path, [data])
        except OSError as error:
            raise _cannot_store("a model or a result", error) from error
        return name

    def _load(self, name: str) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        path = self._kept / name
        try:
            data = path.read_bytes()
            if hashlib.sha256(data).hexdigest() != name:
                raise ValueError
            with np.load(io.BytesIO(data), allow_pickle=False) as saved:
                arrays = dict(saved.items())
            return json.loads(str(arrays.pop(_FIELDS))), arrays
        except (OSError, ValueError, KeyError) as error:
            raise ConfigError(
                f"{path} is missing or damaged: restore the state folder from a backup, "
                "or remove it to start without a model"
            ) from error
