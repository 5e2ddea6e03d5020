"""A server's state folder, with the uploads of the live round and, at S0, the training run.

It is for one process at a time.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.dealing import Dealing, DealtUpload
from securemedian.mpc.errors import (
    BadUpload,
    ConfigError,
    LocalProtocolError,
    SecureMedianError,
    quoted,
)
from securemedian.mpc.optimiser import optimiser_from
from securemedian.mpc.prg import SEED_BYTES
from securemedian.mpc.ranges.registry import saved_policy
from securemedian.mpc.share import Layout, SeedUpload, Upload
from securemedian.servers.control import is_round_id
from securemedian.servers.training import Training

_TRAINING = "training.npz"

# The context in which files are opened: within `Descriptors.own` they get reserved descriptors.
Opening = Callable[[], AbstractContextManager[None]]


class WordsFile:
    """One file of packed words, which many uploads share.

    It needs one descriptor however many clients there are, so that nobody who takes descriptors
    decides whose upload is stored. It is closed when the last upload that reads it is gone, which
    may be later than its folder.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w+b", buffering=0)
        self._end = 0

    def append(self, words: Words) -> int:
        """Write words at the end and return where they begin, in bytes.

        Raises OSError if they cannot all be written; what was written is overwritten by the next.
        """
        begin = self._end
        self.write(begin, words)
        self._end += 8 * words.size
        return begin

    def reserve(self, count: int) -> int:
        """Make room for `count` words at the end and return where it begins, in bytes.

        Raises OSError if the disk has no room for them.
        """
        begin = self._end
        os.posix_fallocate(self._file.fileno(), begin, 8 * count)
        self._end += 8 * count
        return begin

    def write(self, at: int, words: Words) -> None:
        """Write words from byte `at` on. Raises OSError if they cannot all be written."""
        left = words.data.cast("B")
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            left, at = left[written:], at + written

    def read(self, begin: int, count: int) -> Words:
        """Return `count` words from byte `begin` on."""
        data = os.pread(self._file.fileno(), 8 * count, begin)
        if len(data) != 8 * count:
            raise SecureMedianError("a stored upload is shorter than when it was written")
        return np.frombuffer(data, np.uint64)


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


class Spool:
    """The uploads of one round by client, and where they deal, their dealings.

    Packed words are on disk, in one file per round; seeds stay in memory. `layout` is that of the
    uploads, `shape` that of the dealings, or None where nobody deals. `native_aes` says what seeds
    are expanded with.
    """

    def __init__(
        self,
        folder: Path,
        layout: Layout,
        shape: Dealing | None = None,
        opening: Opening = nullcontext,
        native_aes: bool = False,
    ) -> None:
        self._folder, self._layout, self._shape, self._opening = folder, layout, shape, opening
        self._native_aes = native_aes
        self._uploads: dict[str, Upload] = {}
        self._dealings: dict[str, Upload] = {}
        self._partial: dict[str, _Partial] = {}
        try:
            folder.mkdir(mode=0o700)
            with opening():
                self._words_file: WordsFile | None = WordsFile(folder / "uploads.words")
        except OSError as error:
            raise _cannot_store("uploads", error) from error

    def put(self, client: str, form: str, share: NDArray[Any]) -> bytes:
        """Store one upload completely.

        Returns the digest of an upload that both servers get alike, and nothing for a share. Raises
        BadUpload if it does not have the form of the round's uploads, and SecureMedianError if it
        cannot be written; nothing of it is stored then.
        """
        words = self._layout.rows, self._layout.row_words
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = (
            {"rotations": (np.uint64, words)}
            if self._shape
            else {"seed": (np.uint8, (SEED_BYTES,)), "words": (np.uint64, words)}
        )
        _check_share("an upload", form, share, shapes)
        if form == "seed":
            self._uploads[client] = SeedUpload(self._layout, share.tobytes(), self._native_aes)
            return b""
        try:
            begin = self._file.append(np.ascontiguousarray(share).reshape(-1))
        except OSError as error:
            raise _cannot_store("the upload", error) from error
        self._uploads[client] = StoredUpload(self._layout, self._file, begin)
        return hashlib.sha256(share.tobytes()).digest() if form == "rotations" else b""

    def put_dealing(
        self, client: str, form: str, piece: int, pieces: int, share: NDArray[Any]
    ) -> bool:
        """Store one piece of a dealing, and return whether the dealing is whole.

        Piece 0 makes room for all pieces; sent again, it begins the dealing anew. The pieces are of
        one size, but for the last one. Raises BadUpload for a piece that is not the next one or has
        another form, and SecureMedianError if it cannot be written; then it is still due.
        """
        if self._shape is None:
            raise LocalProtocolError("nobody deals in this round")
        layout = self._shape.layout
        _check_piece(layout.words, form, piece, pieces, share)
        if form == "seed":
            self._partial.pop(client, None)
            self._dealings[client] = SeedUpload(layout, share.tobytes(), self._native_aes)
            return True
        begin = self._write_piece(client, layout.words, piece, pieces, share)
        if piece + 1 < pieces:
            return False
        del self._partial[client]
        self._dealings[client] = StoredUpload(layout, self._file, begin)
        return True

    def _write_piece(
        self, client: str, words: int, piece: int, pieces: int, share: NDArray[Any]
    ) -> int:
        """Write a piece of a dealing of so many words, and return where the dealing begins."""
        partial = self._partial.get(client)
        due = partial.due if partial and partial.pieces == pieces else 0
        if piece not in (0, due):
            raise BadUpload(
                f"{_piece(piece, pieces)} came where piece {due} is due: "
                "send all pieces in order, from 0 on"
            )
        try:
            begin = partial.begin if partial else self._file.reserve(words)
            self._partial[client] = _Partial(begin, pieces, piece)
            at = begin + 8 * piece * -(-words // pieces)
            self._file.write(at, np.ascontiguousarray(share))
        except OSError as error:
            raise _cannot_store("the dealing", error) from error
        self._partial[client].due += 1
        return begin

    def get(self, client: str) -> Upload:
        """Return the upload of a client, with its dealing where it has dealt."""
        if self._shape is None:
            return self._uploads[client]
        return DealtUpload(self._shape, self._dealings[client], self._uploads[client])

    def dealing(self, client: str) -> Upload:
        """Return this server's half of a client's dealing."""
        return self._dealings[client]

    @property
    def _file(self) -> WordsFile:
        if self._words_file is None:
            raise SecureMedianError("this round has ended, and its uploads are deleted")
        return self._words_file

    def drop(self) -> None:
        """Delete everything.

        A run that still reads keeps the file, which then has no name, until it stops.
        """
        self._uploads.clear()
        self._dealings.clear()
        self._partial.clear()
        self._words_file = None
        with self._opening():
            shutil.rmtree(self._folder, ignore_errors=True)


def _cannot_store(what: str, error: OSError) -> SecureMedianError:
    return SecureMedianError(f"this server cannot store {what}: {error.strerror}")


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

    A new Store deletes the uploads that an ended process has left, since their round has failed.
    Raises ConfigError if the folder cannot be used or another process uses it.
    """

    def __init__(
        self, folder: Path, opening: Opening = nullcontext, native_aes: bool = False
    ) -> None:
        self._opening, self._native_aes = opening, native_aes
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("w")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another server is running on the state folder {folder}") from error
        except OSError as error:
            raise ConfigError(f"cannot use the state folder {folder}: {error.strerror}") from error
        self._folder = folder
        self._spools = folder / "spool"
        shutil.rmtree(self._spools, ignore_errors=True)
        self._spools.mkdir(mode=0o700)

    def close(self) -> None:
        """Give the folder up, so that another process can use it."""
        self._lock.close()

    def spool(self, round_id: str, layout: Layout, shape: Dealing | None = None) -> Spool:
        """Return a new spool for a round, in a folder that is named after it."""
        if not is_round_id(round_id):
            raise SecureMedianError(f"{quoted(round_id)} is no round id and cannot name a folder")
        folder = self._spools / round_id
        return Spool(folder, layout, shape, self._opening, self._native_aes)

    def load_training(self) -> Training:
        """Return what `save_training` saved last, or a new training run if it never did.

        Raises ConfigError if the file is damaged.
        """
        path = self._folder / _TRAINING
        if not path.exists():
            return Training()
        try:
            with np.load(path, allow_pickle=False) as saved:
                # earlier releases called the scale `width`
                scale = saved["scale" if "scale" in saved else "width"]
                # and had no optimiser
                optimiser = str(saved.get("optimiser", "{}"))
                return Training(
                    saved_policy(json.loads(str(saved["policy"]))),
                    saved.get("model"),
                    scale,
                    int(saved["published"]),
                    optimiser_from(json.loads(optimiser)),
                    saved.get("moments"),
                )
        except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
            raise ConfigError(
                f"{path} is damaged: restore it, or remove it to start without a model"
            ) from error

    def save_training(self, training: Training) -> None:
        """Replace the saved training run in one step: a crash leaves the old one or the new one."""
        arrays = {
            "policy": np.array(json.dumps(training.policy.to_dict())),
            "scale": training.scale,
            "published": np.array(training.published),
            "optimiser": np.array(json.dumps(training.optimiser.to_dict())),
        }
        if training.model is not None:
            arrays["model"] = training.model
        if training.moments is not None:
            arrays["moments"] = training.moments
        new = self._folder / (_TRAINING + ".new")
        with self._opening(), new.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / _TRAINING)
