"""The journal of a client: what it needs to go on with its rounds after a restart.

An upload is kept until both servers have acknowledged it, so that a repeated request has the same
bytes. Two sharings of one update, or two rotations by one dealing, must never be mixed. With a
folder all of it outlasts the process, in one file per round, `ROUND.kept`, in one of three states:

    dealing  the secret from which the round's dealing is drawn, and who gets which half of it.
    upload   both halves of the update. They take the place of the dealing's secret before the first
             of them is sent, so that no dealing can rotate a second update.
    sent     what the round's result has to fit, for as many rounds as servers keep results.

In an audited round, and in one of several votes, the last two have more until it ends. They have
what its folds and votes are made of (`Upheld`), the dealing's secret included, and under which coin
each binding was answered. A vote takes the place of the one before it, before it is sent.

The file `own` holds the arrays that the caller keeps (`Client.store`), and `days` when updates were
shared within the last day, which a client's policy may limit. A file is the SHA-256 of its content,
and then a msgpack list of its version (`versions.STORE`) and the parts of one frame (`wire`). Only
its owner may read it, because together the halves are the update.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import numpy as np
from numpy.typing import NDArray

from securemedian.clients.spent import Spent
from securemedian.clients.upload import ShareHalf
from securemedian.common.durable import (
    Lock,
    check_process,
    lock_folder,
    others_may,
    replace_file,
)
from securemedian.common.versions import STORE, check_store
from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import (
    ConfigError,
    FrameError,
    LocalProtocolError,
    PeerProtocolError,
    quoted,
)
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.dealing import Dealing
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, os_entropy
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.path import Path as Digits

T = TypeVar("T")

SECRET_BYTES = 32
# the rounds whose results a client can ask for: servers keep no more of them
ROUNDS_RETAINED = 4
_SUFFIX = ".kept"
_OWN, _DAYS = "own", "days"
DAY_S = 86400.0
_NOTHING_SENT = ". Nothing was sent"
_DIGEST_BYTES = 32
# an id that may name a file
_NAME = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")


@dataclass(frozen=True)
class Draw:
    """The secret from which a client's dealing for one round is drawn."""

    # the digest of the parameters that it is for
    params: bytes
    # the client's position in S0's list, which decides on which server gets the seed
    index: int
    secret: bytes = field(repr=False)

    def entropy(self) -> Entropy:
        """Return a source of the same bytes each time; no draw reveals anything of another."""
        draws = 0

        def entropy(count: int) -> bytes:
            nonlocal draws
            block = digest("client randomness", self.secret, draws)
            draws += 1
            if count > len(block):
                raise LocalProtocolError(f"{count} bytes are more than one draw has")
            return block[:count]

        return entropy


@dataclass(frozen=True)
class Ballot:
    """A client's part in one round of several votes, as far as both servers have told digits."""

    # those of its update
    words: Ring = field(repr=False)
    # the digest of the run that it was trained from
    start: bytes
    # the digits told, after which it votes now
    path: Digits
    # the record of the last ones, which both servers have signed; empty before there are any
    record: bytes = field(default=b"", repr=False)


@dataclass(frozen=True)
class Upheld:
    """The parts of a client's folds in one audited round, and of its votes where it has several."""

    shape: Dealing
    draw: Draw
    # its upload, or its present vote, the same for both servers
    rotations: Words = field(repr=False)
    # the seeds of masks, which S0 and S1 have got with the upload; empty unless it is audited
    masks: tuple[bytes, bytes] = field(repr=False)
    # in a round of several votes
    ballot: Ballot | None = None

    @property
    def vote(self) -> int:
        """The vote that is folded and sent now, from 0 on."""
        return self.ballot.path.votes if self.ballot else 0

    @property
    def before(self) -> bytes:
        """The digest of the digits before it; empty in a round of one vote."""
        return self.ballot.path.digest if self.ballot else b""


@dataclass(frozen=True)
class Submission:
    """The halves of one update for one round, as they were made the first time."""

    round_id: str
    # the digest of the parameters that the update was encoded for
    params: bytes
    # the digest of the run that it was trained from
    start: bytes
    # `fingerprint` of the update
    update: bytes = field(repr=False)
    # for S0 and for S1
    halves: tuple[ShareHalf, ShareHalf]
    # the group that the update is for, 0-based
    group: int = 0
    # the group that both servers are told: this one where groups are visible, 0 otherwise
    told: int = 0
    # in an audited round, and in one of several votes
    upheld: Upheld | None = None


@dataclass(frozen=True)
class Sent:
    """A client's facts of an upload of its own that both servers have."""

    round_id: str
    # the digest of the run that it was trained from
    start: bytes
    # the group that it is for, as in `Submission`
    group: int
    # later uploads have greater ones
    order: int


def fingerprint(vector: NDArray[Any], group: int = 0) -> bytes:
    """Return a digest of a flat update for a group."""
    data = hashlib.sha256(np.ascontiguousarray(vector).data.cast("B"))
    if group:
        data.update(group.to_bytes(8, "little"))
    return data.digest()


@dataclass
class _Kept:
    """The knowledge of one round, of which its file has the latest state."""

    draw: Draw | None = None
    made: Submission | None = None
    sent: Sent | None = None
    # in such a round that may not have ended, and there by binding the coin and set of the answer
    upheld: Upheld | None = None
    coins: dict[bytes, bytes] = field(default_factory=dict, repr=False)
    # whether the file has this
    written: bool = False

    @classmethod
    def of(cls, round_id: str, message: wire.Message) -> "_Kept":
        """Return what the file of a round has. Raises KeyError, TypeError or ValueError."""
        fields, arrays = message.fields, message.arrays
        if message.type == "dealing":
            secret = arrays["secret"].tobytes()
            return cls(Draw(fields["params"], fields["index"], secret), written=True)
        kept = cls(written=True)
        if "shape" in fields:
            ballot, masks = None, arrays["masks"].tobytes()
            if "votes" in fields:
                params = RoundParams.from_dict(fields["of"])
                path = Digits.restored(params, fields["votes"], arrays["path"])
                ballot = Ballot(arrays["words"], fields["start"], path, fields["record"])
            kept.upheld = Upheld(
                Dealing(**fields["shape"]),
                # the parameters are those of the upload, and nobody deals again
                Draw(b"", fields["index"], arrays["secret"].tobytes()),
                arrays["rotations"],
                (masks[:SEED_BYTES], masks[SEED_BYTES:]),
                ballot,
            )
            of_hex = bytes.fromhex
            kept.coins = {of_hex(one): of_hex(coin) for one, coin in fields["coins"].items()}
        if message.type == "sent":
            kept.sent = Sent(round_id, fields["start"], fields["chosen"], fields["order"])
            return kept
        one, other = map(ShareHalf, fields["forms"], (arrays["s0"], arrays["s1"]))
        kept.made = Submission(
            round_id,
            fields["params"],
            fields["start"],
            fields["update"],
            (one, other),
            fields["chosen"],
            fields["group"],
            kept.upheld,
        )
        return kept

    def message(self) -> wire.Message:
        """Return what the file of the round is to have."""
        fields: dict[str, Any]
        arrays: dict[str, NDArray[Any]] = {}
        if made := self.made:
            kind, (one, other) = "upload", made.halves
            fields = {
                "params": made.params,
                "start": made.start,
                "update": made.update,
                "forms": [one.form, other.form],
                "chosen": made.group,
                "group": made.told,
            }
            arrays = {"s0": one.share, "s1": other.share}
        elif sent := self.sent:
            kind = "sent"
            fields = {"start": sent.start, "chosen": sent.group, "order": sent.order}
        else:
            assert self.draw
            fields = {"params": self.draw.params, "index": self.draw.index}
            return wire.Message("dealing", fields, {"secret": _bytes(self.draw.secret)})
        if upheld := self.upheld:
            fields |= {
                "shape": asdict(upheld.shape),
                "index": upheld.draw.index,
                "coins": {one.hex(): coin.hex() for one, coin in self.coins.items()},
            }
            arrays |= {
                "secret": _bytes(upheld.draw.secret),
                "masks": _bytes(b"".join(upheld.masks)),
                "rotations": upheld.rotations,
            }
            if ballot := upheld.ballot:
                fields |= {
                    "of": ballot.path.params.to_dict(),
                    "votes": ballot.path.votes,
                    "record": ballot.record,
                }
                arrays |= {"words": ballot.words, "path": ballot.path.saved()}
        return wire.Message(kind, fields, arrays)


class Journal:
    """Keeps dealings and uploads by round, and what the caller keeps. Raises ConfigError."""

    def __init__(
        self,
        folder: Path | None,
        wall: Callable[[], float] = time.time,
        spent: Spent | None = None,
    ) -> None:
        self._folder, self._wall, self._spent = folder, wall, spent or Spent(None)
        self._pid = os.getpid()
        self._lock: Lock | None = None
        self._rounds: dict[str, _Kept] = {}
        # when the first upload of each round of the last day was made, in seconds of the epoch
        self._made: list[float] = []
        # the fields and arrays that the caller has kept last, which nobody must change
        self.own = wire.Message(_OWN, {}, {})
        if folder is None:
            return
        try:
            self._load(folder)
        except OSError as error:
            self.close()
            raise ConfigError(
                f"cannot use the state folder: {folder} ({error.strerror}); choose one that "
                "this user may write to"
            ) from error
        except BaseException:
            self.close()
            raise

    def _load(self, folder: Path) -> None:
        """Make the folder, lock it for this process, and read it.

        Raises ConfigError if others may look into it.
        """
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if others_may(folder, 0o077):
            raise ConfigError(
                "others may look into the state folder, which holds updates until both servers "
                f"have them: {folder}; run chmod 700 {folder}"
            )
        refusal = f"another process runs on the state folder {folder}: one process per key"
        self._lock = lock_folder(folder, refusal)
        for unfinished in folder.glob("*.new"):
            unfinished.unlink()
        for path in sorted(folder.glob(f"*{_SUFFIX}")):
            round_id = path.name.removesuffix(_SUFFIX)
            lost = "If that round is still open, this client is left out of it"
            self._rounds[round_id] = _read(path, partial(_Kept.of, round_id), lost)
        if (path := folder / _OWN).exists():
            self.own = _read(path, lambda own: own, "The arrays that this client kept are lost")
        if (path := folder / _DAYS).exists():
            lost = "Rounds of the last day are then not counted"
            self._made = _read(path, lambda days: days.arrays["made"].tolist(), lost)

    def close(self) -> None:
        """Give the folder up, so that another process can use it."""
        if self._lock:
            self._lock.close()

    @property
    def rounds(self) -> list[str]:
        """Return the ids of the rounds with a dealing or upload that servers may lack."""
        return [round_id for round_id, kept in self._rounds.items() if kept.draw or kept.made]

    @property
    def sent(self) -> list[Sent]:
        """Return the latest uploads that both servers have, the oldest first."""
        found = [kept.sent for kept in self._rounds.values() if kept.sent]
        return sorted(found, key=lambda sent: sent.order)

    @property
    def upheld(self) -> dict[str, Upheld]:
        """Return by id what folds and votes are made of, of rounds that may not have ended."""
        return {name: kept.upheld for name, kept in self._rounds.items() if kept.upheld}

    @property
    def made_within_a_day(self) -> list[float]:
        """Return when the uploads of the last day were made, in seconds of the epoch.

        Raises ConfigError if what a clock that was ahead has noted cannot be corrected.
        """
        now = self._wall()
        if any(made > now for made in self._made):
            # The clock was ahead then. These count as made now, for a day and not for years.
            self._keep_days([min(made, now) for made in self._made])
        return [made for made in self._made if made > now - DAY_S]

    def submission(self, round_id: str) -> Submission | None:
        """Return the upload for this round, if it was made and is not with both servers yet."""
        return self._rounds.get(round_id, _Kept()).made

    def confirmed(self, round_id: str) -> Sent | None:
        """Return what is known of the upload for this round, if both servers have it."""
        return self._rounds.get(round_id, _Kept()).sent

    def draw(self, round_id: str, params: bytes, index: int) -> Draw:
        """Return the draw of this client's dealing for a round, always that of the first call.

        Raises PeerProtocolError if the first one was for other parameters, because two dealings
        from one secret give it away, and ConfigError if it cannot be written.
        """
        kept = self._rounds.setdefault(round_id, _Kept())
        if kept.made:
            raise LocalProtocolError("a dealing rotates one update only, and this one has")
        kept.draw = kept.draw or Draw(params, index, os_entropy(SECRET_BYTES))
        if kept.draw.params != params:
            raise PeerProtocolError(
                f"S0 gives round {round_id} other parameters than before: nothing was sent"
            )
        self._write(round_id, kept)
        return kept.draw

    def keep(self, submission: Submission, held: str = "") -> None:
        """Keep an upload, and forget the secret of the dealing, of which servers have `held`.

        Raises LocalProtocolError if another one is kept for the round, UpdateSpent if another round
        of several votes has its update, and ConfigError if it cannot be written. It may be sent
        once this returns.
        """
        round_id, upheld = submission.round_id, submission.upheld
        kept = self._rounds.setdefault(round_id, _Kept())
        if kept.made is None:
            if upheld and upheld.ballot:
                self._spent.claim(submission.update, f"{round_id}/{held}")
            self._keep_days([*self.made_within_a_day, self._wall()])
            kept.made = submission
        elif kept.made is not submission:
            raise LocalProtocolError(f"there is another upload for round {round_id}")
        if kept.draw:
            kept.draw, kept.written = None, False
        kept.upheld = kept.upheld or upheld
        self._write(round_id, kept)

    def confirm(self, submission: Submission) -> None:
        """Replace an upload that both servers have by what its result has to fit."""
        round_id = submission.round_id
        kept = self._rounds.setdefault(round_id, _Kept())
        order = 1 + max((sent.order for sent in self.sent), default=0)
        kept.made, kept.sent = None, Sent(round_id, submission.start, submission.group, order)
        was_written, kept.written = kept.written, False
        try:
            self._write(round_id, kept)
        except ConfigError:
            # the halves must go in any case; the next process knows nothing of this upload
            if was_written:
                self._path(round_id).unlink(missing_ok=True)
        for old in self.sent[:-ROUNDS_RETAINED]:
            self._delete(old.round_id)
            del self._rounds[old.round_id]

    def forget(self, round_id: str) -> None:
        """Delete a dealing or upload that servers lack: the round has ended, or they refuse it."""
        self._delete(round_id)
        if (kept := self._rounds.pop(round_id, None)) and kept.sent:
            self._rounds[round_id] = _Kept(sent=kept.sent)

    def note_fold(self, round_id: str, binding: bytes, under: bytes) -> None:
        """Note that a binding is answered `under` a coin and set, before it is. Raises ConfigError.

        SECURITY: raises PeerProtocolError if it was answered under others, because two folds under
        the same masks would give the client's shares away.
        """
        kept = self._rounds[round_id]
        if kept.coins.setdefault(binding, under) != under:
            raise PeerProtocolError(
                "the servers name another coin or set for what they are bound to in round "
                f"{round_id} than before: nothing was sent"
            )
        kept.written = False
        self._write(round_id, kept)

    def vote(self, round_id: str, rotations: Words, ballot: Ballot) -> None:
        """Keep the next vote of a round, and what it follows. It may be sent once this returns.

        SECURITY: raises LocalProtocolError for another vote, because two with the same vectors
        would tell how they differ. Raises ConfigError, and keeps the last one, if it cannot be
        written.
        """
        kept = self._rounds[round_id]
        upheld = kept.upheld
        if not (upheld and upheld.ballot and ballot.path.votes == upheld.vote + 1):
            raise LocalProtocolError("a client votes once after each vote of a round")
        upheld = replace(upheld, rotations=rotations, ballot=ballot)
        self._write(round_id, replace(kept, upheld=upheld, written=False))

    def let_go(self, round_id: str) -> None:
        """Forget what the folds and votes of a round are made of: it has ended."""
        kept = self._rounds[round_id]
        kept.upheld, kept.coins, kept.written = None, {}, False
        self._write(round_id, kept)

    def keep_own(self, fields: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep copies of the caller's fields and arrays alone. Raises ConfigError if it cannot."""
        copies = {name: np.array(array) for name, array in arrays.items()}
        for copy in copies.values():
            copy.flags.writeable = False
        own = wire.Message(_OWN, dict(fields), copies)
        if self._folder:
            self._replace(self._folder / _OWN, own)
        self.own = own

    def _keep_days(self, made: list[float]) -> None:
        if self._folder:
            days = wire.Message(_DAYS, {}, {"made": np.array(made)})
            self._replace(self._folder / _DAYS, days, _NOTHING_SENT)
        self._made = made

    def _write(self, round_id: str, kept: _Kept) -> None:
        """Replace the file of a round in one step, unless it has this content already."""
        if self._folder and not kept.written:
            self._replace(self._path(round_id), kept.message(), _NOTHING_SENT)
            kept.written = True
        self._rounds[round_id] = kept

    def _delete(self, round_id: str) -> None:
        if self._rounds.get(round_id, _Kept()).written:
            # the next process finds a file that cannot be deleted now
            self._path(round_id).unlink(missing_ok=True)

    def _path(self, round_id: str) -> Path:
        """Return the file of a round. Raises PeerProtocolError if its id cannot name one."""
        assert self._folder is not None
        if not _NAME.fullmatch(round_id):
            raise PeerProtocolError(f"invalid round id: {quoted(round_id)}; ask who runs S0")
        return self._folder / f"{round_id}{_SUFFIX}"

    def _replace(self, path: Path, message: wire.Message, then: str = "") -> None:
        """Replace a file in one step. Raises ConfigError, which ends with `then`, if it cannot."""
        check_process(self._pid, f"the journal in {self._folder}")
        parts = wire.pack(message.type, message.fields, message.arrays)
        content = msgpack.packb([STORE, [bytes(part) for part in parts]])
        try:
            replace_file(path, (hashlib.sha256(content).digest(), content))
        except OSError as error:
            raise ConfigError(
                f"cannot write to the state folder: {self._folder} ({error.strerror}); make "
                f"room{then}"
            ) from error


def _bytes(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def _read(path: Path, take: Callable[[wire.Message], T], lost: str) -> T:
    """Return what `take` finds in a file.

    Raises ConfigError if it is damaged, after which something is `lost`, or of another version.
    """
    data = path.read_bytes()
    content = data[_DIGEST_BYTES:]
    try:
        if hashlib.sha256(content).digest() != data[:_DIGEST_BYTES]:
            raise FrameError("the content has another digest")
        found = msgpack.unpackb(content)
        # a release before 1.0 wrote the parts alone
        number, parts = found if type(found[0]) is int else (None, [])
        check_store(str(path), number)
        return take(wire.unpack(parts))
    except (FrameError, LookupError, ValueError, TypeError) as error:
        raise ConfigError(f"damaged journal: {path}; remove it. {lost}") from error
