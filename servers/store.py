"""A server's state folder, with the uploads of the live round and, at S0, the training run.

It is for one process at a time.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import BadUpload, ConfigError, SecureMedianError, quoted
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
        left, at = words.data.cast("B"), self._end
        while left:
            written = os.pwrite(self._file.fileno(), left, at)
            left, at = left[written:], at + written
        begin, self._end = self._end, at
        return begin

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


class Spool:
    """The uploads of one round, by client.

    Packed words are on disk, in one file per round; seeds stay in memory.
    """

    def __init__(self, folder: Path, layout: Layout, opening: Opening = nullcontext) -> None:
        self._folder, self._layout, self._opening = folder, layout, opening
        self._uploads: dict[str, Upload] = {}
        try:
            folder.mkdir(mode=0o700)
            with opening():
                self._words_file: WordsFile | None = WordsFile(folder / "uploads.words")
        except OSError as error:
            raise SecureMedianError(
                f"this server cannot store uploads: {error.strerror}"
            ) from error

    def put(self, client: str, form: str, share: NDArray[Any]) -> None:
        """Store one upload completely.

        Raises BadUpload if it does not have the form of the round's uploads, and SecureMedianError
        if it cannot be written; nothing of it is stored then.
        """
        shapes = {
            "seed": (np.uint8, (SEED_BYTES,)),
            "words": (np.uint64, (self._layout.rows, self._layout.row_words)),
        }
        if form not in shapes:
            raise BadUpload(f"the form of an upload is seed or words, not {quoted(form)}")
        dtype, shape = shapes[form]
        if share.dtype != dtype or share.shape != shape:
            raise BadUpload(
                f"an upload of form {quoted(form)} for this round is {np.dtype(dtype)} {shape}, "
                f"not {share.dtype} {share.shape}: "
                "encode it with the parameters that the server gave"
            )
        if form == "seed":
            self._uploads[client] = SeedUpload(self._layout, share.tobytes())
            return
        if self._words_file is None:
            raise SecureMedianError("this round has ended, and its uploads are deleted")
        try:
            begin = self._words_file.append(np.ascontiguousarray(share).reshape(-1))
        except OSError as error:
            raise SecureMedianError(
                f"this server cannot store the upload: {error.strerror}"
            ) from error
        self._uploads[client] = StoredUpload(self._layout, self._words_file, begin)

    def get(self, client: str) -> Upload:
        """Return the upload of a client."""
        return self._uploads[client]

    def drop(self) -> None:
        """Delete everything.

        A run that still reads keeps the file, which then has no name, until it stops.
        """
        self._uploads.clear()
        self._words_file = None
        with self._opening():
            shutil.rmtree(self._folder, ignore_errors=True)


class Store:
    """The state folder of one server.

    A new Store deletes the uploads that an ended process has left, since their round has failed.
    Raises ConfigError if the folder cannot be used or another process uses it.
    """

    def __init__(self, folder: Path, opening: Opening = nullcontext) -> None:
        self._opening = opening
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

    def spool(self, round_id: str, layout: Layout) -> Spool:
        """Return a new spool for a round, in a folder that is named after it."""
        if not is_round_id(round_id):
            raise SecureMedianError(f"{quoted(round_id)} is no round id and cannot name a folder")
        return Spool(self._spools / round_id, layout, self._opening)

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
                return Training(
                    saved_policy(json.loads(str(saved["policy"]))),
                    saved.get("model"),
                    scale,
                    int(saved["published"]),
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
        }
        if training.model is not None:
            arrays["model"] = training.model
        new = self._folder / (_TRAINING + ".new")
        with self._opening(), new.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._folder / _TRAINING)
