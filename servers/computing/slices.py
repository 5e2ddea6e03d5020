"""The slice of a client's upload that a shard needs, so that no worker is sent more.

A share in full becomes windows of its words, kept where workers can fetch them. A share as a
seed stays the seed: what a worker expands begins at the place in the stream where the slice does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.dealing import Dealing, DealtUpload
from securemedian.mpc.protocols.share import Layout, SeedUpload, Upload, words_of
from securemedian.mpc.rounds.cutting import Shard


class Kept(Protocol):
    """Words that lie where workers can fetch them."""

    def words(self) -> Words:
        """Fetch the words, which must not be written to."""


# takes words (`Parcels.add`)
Keep = Callable[[Words], Kept]


class Parcels(Protocol):
    """Words on their way to where workers can fetch them, many at a time."""

    def add(self, words: Words) -> Kept:
        """Take words; workers can fetch them once they are sent, for as long as that is held."""

    def send(self) -> None:
        """Send what was added."""


@dataclass(frozen=True)
class Window:
    """The words [first, last) of a row of a share."""

    row: int
    first: int
    last: int
    kept: Kept = field(repr=False)


@dataclass(frozen=True)
class SlicedUpload:
    """A share in full, of which only windows are here: an `Upload`."""

    windows: Sequence[Window]

    def words(self, row: int, start: int, stop: int) -> Words:
        """Return the words [start, stop) of row `row`.

        Raises LocalProtocolError if they do not lie in one window.
        """
        for window in self.windows:
            if window.row == row and window.first <= start and stop <= window.last:
                return window.kept.words()[start - window.first : stop - window.first]
        raise LocalProtocolError(f"a shard has no words {start} to {stop} of row {row}")


def for_shard(upload: Upload, layout: Layout, shard: Shard, keep: Keep) -> Upload:
    """Return what `pipeline.run_round` reads of an upload in a shard."""
    if isinstance(upload, SeedUpload):
        return upload
    if isinstance(upload, DealtUpload):
        shape = upload.shape
        kept = [
            part.words_of(max(part.start, shard.begin), min(part.stop, shard.end))
            for part in shape.parts
            if part.start < shard.end and shard.begin < part.stop
        ]
        return replace(
            upload,
            half=_windows(upload.half, [0], kept, keep),
            rotations=for_shard(upload.rotations, shape.rotations_layout, shard, keep),
        )
    spans = [words_of(layout, shard.begin, shard.end)]
    return _windows(upload, range(layout.rows), spans, keep)


def for_check(half: Upload, shape: Dealing, shard: Shard, keep: Keep) -> Upload:
    """Return what a check reads of a client's dealing for the parts of a shard."""
    parts = [shape.parts[number] for number in shard.parts(shape)]
    return _windows(half, [0], [(part.first, part.end) for part in parts], keep)


def _windows(
    upload: Upload, rows: Sequence[int], spans: Sequence[tuple[int, int]], keep: Keep
) -> Upload:
    """Return an upload with only these spans of words of each row."""
    if isinstance(upload, SeedUpload):
        return upload
    return SlicedUpload(
        [
            Window(row, first, last, keep(upload.words(row, first, last)))
            for row in rows
            for first, last in spans
        ]
    )
