"""The uploads of one round: packed words in one file, and rows of the database."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from securemedian.common.durable import sync_folder
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import (
    BadUpload,
    DamagedUpload,
    DuplicateUpload,
    LocalProtocolError,
    NotStored,
    PeerProtocolError,
    SecureMedianError,
    quoted,
)
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload, Note
from securemedian.mpc.protocols.prg import SEED_BYTES
from securemedian.mpc.protocols.share import Layout, SeedUpload, Upload
from securemedian.servers.network.control import SHA256_BYTES, upload_digest
from securemedian.servers.storage.database import Row
from securemedian.servers.storage.files import Reserve, WordsFile, storing

# Examinations may take seconds: they have threads of their own.
_EXAMINERS = ThreadPoolExecutor(2, "examiner")

DEALING, UPLOAD = "dealing", "upload"


def kind_of(vote: int) -> str:
    """Return the kind of a row with a client's vote, from 0 on."""
    return f"vote-{vote}" if vote else UPLOAD


# The context in which files are opened: within `Descriptors.own` they get reserved descriptors.
Opening = Callable[[], AbstractContextManager[None]]


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


@dataclass(frozen=True)
class Piece:
    """A share that a client has sent, or a piece of one: an upload is one piece."""

    # DEALING, or `kind_of` a vote
    kind: str
    # "seed" or "words", or of an upload where clients deal "rotations"
    form: str
    share: NDArray[Any] = field(repr=False)
    # the number of the piece, from 0 on, and how many there are
    number: int = 0
    count: int = 1
    # the client's group, where it is visible
    group: int | None = None
    # the seed of the masks of the client's folds, in an audited round
    masks: bytes | None = field(default=None, repr=False)
    # the vote, and the digest of the digits that its client was told (`ServerRound.path`)
    vote: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.kind != DEALING:
            return "an upload"
        return f"piece {quoted(self.number)} of {quoted(self.count)} of a dealing"

    @cached_property
    def digest(self) -> bytes:
        """The `upload_digest` of this piece."""
        packed = np.ascontiguousarray(self.share).reshape(-1)
        return upload_digest(hashlib.sha256(packed.data).digest(), self.group)

    def offset(self, words: int) -> int:
        """Return the byte at which it begins in a share of so many words."""
        return 8 * self.number * -(-words // self.count)


@dataclass
class _Incoming:
    """A share of which pieces are missing; `due` is the number of the next one."""

    begin: int
    pieces: int
    due: int = 0
    # the SHA-256 of those that came, and of all but the last
    sha256: Any = field(default_factory=hashlib.sha256)
    sha256_before: Any = None


class OpenedFile:
    """The file of what checks have opened of each client's dealing: `dealing.Opened.hashes`."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it; a record that a crash has cut is cut off."""
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)
        # by client
        self.of: dict[str, bytes] = {}
        records, whole = msgpack.Unpacker(), 0
        records.feed(self._file.read())
        for client, hashes in records:
            self.of[client], whole = hashes, records.tell()
        self._file.truncate(whole)
        self._file.seek(whole)

    def note(self, clients: Sequence[str], hashes: Sequence[bytes]) -> None:
        """Note what was opened of these clients' dealings, on the disk, once for each.

        Raises NotStored if it cannot be written, and PeerProtocolError if something else was opened
        before: whatever was a guess then must not be answered now.
        """
        opened = dict(zip(clients, hashes, strict=True))
        if any(self.of.get(client, now) != now for client, now in opened.items()):
            raise PeerProtocolError(
                "the other server has opened other differences of a client's vectors than in the "
                "check that broke off: it does not follow the protocol"
            )
        new = {client: now for client, now in opened.items() if client not in self.of}
        end = self._file.tell()
        try:
            with storing("the openings of a check"):
                self._file.write(b"".join(map(msgpack.packb, new.items())))
                os.fdatasync(self._file)
        except NotStored:
            self._file.truncate(end)
            self._file.seek(end)
            raise
        self.of |= new


class Spool:
    """The uploads of one round by client, and where they deal, their dealings.

    Packed words are in one file per round, everything else in rows of the database. `layout` is
    that of the uploads, `shape` that of the dealings, or None where nobody deals, and `native_aes`
    selects the AES that expands seeds. `put` writes a share, `sync` brings it to the disk, and it
    counts after `add`, once its row is committed.
    """

    def __init__(
        self,
        folder: Path,
        reserve: Reserve,
        layout: Layout,
        shape: Dealing | None = None,
        opening: Opening = nullcontext,
        rows: Iterable[Row] = (),
        native_aes: bool = False,
    ) -> None:
        self._folder, self._layout, self._shape, self._opening = folder, layout, shape, opening
        self._reserve = reserve
        self._native_aes = native_aes
        self._rows: dict[tuple[str, str], Row] = {(row.client, row.kind): row for row in rows}
        self._incoming: dict[tuple[str, str], _Incoming] = {}
        # the clients whose dealings have passed an `examination`
        self._examined: set[str] = set()
        end = max((row.begin + row.size for row in self._rows.values()), default=0)
        with storing("uploads"):
            folder.mkdir(mode=0o700, exist_ok=True)
            with opening():
                self._words_file: WordsFile | None = WordsFile(folder / "uploads.words", end)
                self._opened = OpenedFile(folder / "opened") if shape else None
                for each in (folder, folder.parent):
                    sync_folder(each)

    def put(self, client: str, piece: Piece) -> Row | None:
        """Write one piece of a share, and return the row of the share once it is whole.

        Piece 0 makes room for all pieces; a repeated one begins the share again. All pieces but
        the last have the same size. Raises BadUpload for a piece that is not the next one or has
        another form, and NotStored if it cannot be written; then it is still due.
        """
        words, key = self._check_piece(piece), (client, piece.kind)
        with storing(f"the {piece.kind}"):
            self._reserve.hold()
        if piece.form == "seed":
            self._incoming.pop(key, None)
            seed = piece.share.tobytes()
            return Row(client, piece.kind, piece.form, 0, 0, piece.digest, time.time(), seed)
        incoming = self._write(key, words, piece)
        if piece.number + 1 < piece.count:
            return None
        digest = piece.digest if piece.count == 1 else incoming.sha256.digest()
        place = incoming.begin, 8 * words
        return Row(client, piece.kind, piece.form, *place, digest, time.time(), piece.masks)

    def repeats_piece(self, client: str, piece: Piece) -> bool:
        """Return whether exactly this piece of a dealing is stored already, and the latest one.

        Raises BadUpload for a piece that cannot be, and DuplicateUpload if the client's dealing is
        whole and another one.
        """
        words = self._check_piece(piece)
        row, incoming = self._rows.get((client, DEALING)), self._incoming.get((client, DEALING))
        if row is None:
            if not incoming or (incoming.pieces, incoming.due) != (piece.count, piece.number + 1):
                return False
            return piece.form == "words" and self._holds(incoming.begin, words, piece)
        if piece.form == "seed":
            same = row.seed == piece.share.tobytes()
        else:
            same = row.seed is None and self._holds(row.begin, words, piece)
        if not same:
            raise DuplicateUpload(
                f"another dealing of yours is stored already for this round: {client}; leave "
                "it, for the first one counts"
            )
        return True

    def _holds(self, begin: int, words: int, piece: Piece) -> bool:
        held = self._file.read_bytes(begin + piece.offset(words), piece.share.nbytes)
        return held == piece.share.tobytes()

    def _check_piece(self, piece: Piece) -> int:
        """Return how many words the share has. Raises BadUpload unless this is a piece of one."""
        if piece.kind != DEALING:
            layout, words_form = self._layout, "rotations" if self._shape else "words"
            length: tuple[int, ...] = (layout.rows, layout.row_words)
        elif self._shape is None:
            raise LocalProtocolError("nobody deals in this round")
        else:
            layout, words_form = self._shape.layout, "words"
            # how much there is to be cut into pieces
            whole, count = 1 if piece.form == "seed" else layout.words, piece.count
            if not 0 <= piece.number < count or (count - 1) * -(-whole // count) >= whole:
                raise BadUpload(
                    f"an unknown piece: {piece}; send those of {whole} words or one seed"
                )
            size = -(-layout.words // count)
            length = (min(size, layout.words - piece.number * size),)
        shapes: dict[str, tuple[Any, tuple[int, ...]]] = {
            "seed": (np.uint8, (SEED_BYTES,)),
            words_form: (np.uint64, length),
        }
        if words_form == "rotations":
            del shapes["seed"]
        _check_share(str(piece), piece.form, piece.share, shapes)
        return layout.words

    def _write(self, key: tuple[str, str], words: int, piece: Piece) -> _Incoming:
        """Write a piece of a share of so many words, and return the share so far."""
        incoming = self._incoming.get(key)
        due = incoming.due if incoming and incoming.pieces == piece.count else 0
        if piece.number not in (0, due):
            raise BadUpload(
                f"a piece out of order: {piece}, where piece {due} is due; send all pieces in "
                "order, from 0 on"
            )
        packed = np.ascontiguousarray(piece.share).reshape(-1)
        with storing(f"the {piece.kind}"):
            begin = incoming.begin if incoming else self._file.reserve(words)
            if piece.number == 0 or incoming is None:
                incoming = self._incoming[key] = _Incoming(begin, piece.count)
            sha256 = incoming.sha256.copy()
            self._file.write(begin + piece.offset(words), packed)
            if piece.count > 1:
                sha256.update(packed.data)
        incoming.sha256_before, incoming.sha256 = incoming.sha256, sha256
        incoming.due += 1
        return incoming

    def sync(self) -> None:
        """Wait until all words are on the disk. Raises NotStored if they cannot be."""
        with storing("the upload"):
            self._file.sync()

    @property
    def has_blocks(self) -> bool:
        """Return whether there are shares of form "blocks", which release 1.0.0 alone reads."""
        return any(row.form == "blocks" for row in self._rows.values())

    @property
    def stored_bytes(self) -> int:
        """The bytes of the shares on the disk, with the room of incomplete dealings."""
        words = self._words_file
        return words.end if words else 0

    def add(self, row: Row) -> None:
        """Let a share count whose row is committed."""
        self._rows[row.client, row.kind] = row
        self._incoming.pop((row.client, row.kind), None)

    def discard(self, row: Row) -> None:
        """Forget a share that cannot be stored. Its last piece is due once more."""
        if incoming := self._incoming.get((row.client, row.kind)):
            incoming.sha256, incoming.due = incoming.sha256_before, incoming.due - 1

    def get(self, client: str, vote: int = 0) -> Upload:
        """Return the upload of a client, or a later vote, with its dealing where it has dealt."""
        upload = self._upload(self._rows[client, kind_of(vote)], self._layout)
        if self._shape is None:
            return upload
        return DealtUpload(self._shape, self.dealing(client), upload, vote)

    def digest(self, client: str, vote: int) -> bytes | None:
        """Return the digest of a vote of a client that is stored, if it is."""
        row = self._rows.get((client, kind_of(vote)))
        return row.sha256 if row else None

    def masks(self, client: str) -> bytes:
        """Return the seed of the masks of a client's folds for this server."""
        return self._rows[client, UPLOAD].seed or b""

    def check_masks(self, client: str, masks: bytes) -> None:
        """Raise DuplicateUpload if the upload of a client has come with other masks."""
        row = self._rows.get((client, UPLOAD))
        if row and row.form != "seed" and (row.seed or b"") != masks:
            raise DuplicateUpload(
                f"your upload is stored already for this round, with other masks: {client}; "
                "leave it, for the first ones count"
            )

    def dealing(self, client: str) -> Upload:
        """Return this server's half of a client's dealing."""
        if self._shape is None:
            raise LocalProtocolError("nobody deals in this round")
        return self._upload(self._rows[client, DEALING], self._shape.layout)

    def _upload(self, row: Row, layout: Layout) -> Upload:
        if row.form == "seed" and row.seed is not None:
            return SeedUpload(layout, row.seed, self._native_aes)
        return StoredUpload(layout, self._file, row.begin)

    def noting(self, clients: Sequence[str]) -> Note:
        """Return what notes what a check opens of these clients' dealings, for another thread."""
        if self._opened is None:
            raise LocalProtocolError("nobody deals in this round")
        return partial(self._opened.note, clients)

    def opened(self, client: str) -> bytes:
        """Return the hashes of what checks have opened of a client's dealing; empty if nothing."""
        return self._opened.of.get(client, b"") if self._opened else b""

    def examination(self, clients: Container[str], vote: int = 0) -> Callable[[], None]:
        """Return a function that checks dealings, and uploads of a vote, against their SHA-256.

        It reads all of it, and is meant for another thread. Of a later vote it leaves out dealings
        that have passed since this server began. It raises DamagedUpload.
        """
        kinds, examined, file = (DEALING, kind_of(vote)), self._examined, self._file
        rows = [
            row
            for row in self._rows.values()
            if row.client in clients and row.kind in kinds and row.form != "seed"
            if not (vote and row.kind == DEALING and row.client in examined)
        ]

        def examine_one(row: Row) -> None:
            digest = hashlib.sha256()
            for chunk in file.chunks(row.begin, row.size):
                digest.update(chunk)
            if digest.digest() != row.sha256[:SHA256_BYTES]:
                raise DamagedUpload(
                    f"the disk of this server is damaged, for a stored {row.kind} is not what "
                    f"the client sent: {row.client}; the round has failed for good, open a new one"
                )

        def examine() -> None:
            # hashing releases the GIL
            for _ in _EXAMINERS.map(examine_one, rows):
                pass
            examined.update(row.client for row in rows if row.kind == DEALING)

        return examine

    @property
    def _file(self) -> WordsFile:
        if self._words_file is None:
            raise SecureMedianError(
                f"this round has ended, and its uploads are deleted: {self._folder.name}; open "
                "another"
            )
        return self._words_file

    def drop(self) -> None:
        """Delete everything.

        A computation that still reads keeps the file, which then has no name, until it stops.
        """
        self._rows.clear()
        self._incoming.clear()
        self._words_file = self._opened = None
        self._reserve.drop(self._folder)
        with self._opening():
            shutil.rmtree(self._folder, ignore_errors=True)


def _check_share(
    what: str, form: str, share: NDArray[Any], shapes: Mapping[str, tuple[Any, tuple[int, ...]]]
) -> None:
    if form not in shapes:
        raise BadUpload(
            f"{what} for this round has an unknown form: {quoted(form)}; send {' or '.join(shapes)}"
        )
    dtype, shape = shapes[form]
    if share.dtype != dtype or share.shape != shape:
        raise BadUpload(
            f"{what} of form {quoted(form)} is not {np.dtype(dtype)} {shape}: {share.dtype} "
            f"{share.shape}; encode it with the parameters that the server gave"
        )
