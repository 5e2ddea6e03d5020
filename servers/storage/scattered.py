"""Shares whose blocks lie on several machines, where the doors of a cluster have stored them.

A round has a file on each machine (*node*) that stores something of it, all with the same places.
The one of the daemon's own machine is HERE.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgpack
import numpy as np

from securemedian.common.blocks import BLOCK_BYTES, block_digest
from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import DamagedUpload
from securemedian.mpc.protocols.share import Layout
from securemedian.servers.storage.files import WordsFile

# the daemon's own machine
HERE = ""
LOST = (
    "the share of a client lies on the nodes of a cluster, which [engine] of this server names no "
    "longer"
)


class Kept(Protocol):
    """Words that lie where workers can fetch them."""

    def words(self) -> Words:
        """Fetch the words, which must not be written to. Raises what says that they are lost."""


class Nodes(Protocol):
    """What reads, and deletes, the files of rounds on other machines."""

    def at(self, node: str, path: Path, begin: int, count: int) -> Kept:
        """Return `count` words from byte `begin` of a file on, which are fetched when wanted."""

    def digests(self, node: str, path: Path, begin: int, size: int) -> Iterable[bytes]:
        """Begin to make the digests of blocks of a file, and return what yields them.

        That raises DamagedUpload if the blocks cannot be read.
        """

    def drop(self, folder: Path) -> None:
        """Delete the folder of a round on all machines, in the background."""


class NoNodes:
    """The `Nodes` of a server that has no cluster."""

    def at(self, node: str, path: Path, begin: int, count: int) -> Kept:
        raise DamagedUpload(LOST)

    def digests(self, node: str, path: Path, begin: int, size: int) -> Iterable[bytes]:
        raise DamagedUpload(LOST)

    def drop(self, folder: Path) -> None:
        """Delete nothing."""


def words_path(folder: Path, node: str) -> Path:
    """Return the file of a round's words on a node.

    The name is another one on each, because several nodes may have one disk.
    """
    return folder / (f"{node}.words" if node else "uploads.words")


@dataclass(frozen=True)
class Extent:
    """Words of a share that lie on one machine: `count` from byte `begin` of its file on."""

    node: str
    begin: int
    count: int


def digests_of(extent: Extent, file: WordsFile, folder: Path, nodes: Nodes) -> Iterable[bytes]:
    """Begin to make the digests of the blocks of an extent (`Nodes.digests`)."""
    if extent.node == HERE:
        return block_digests(file, extent.begin, 8 * extent.count)
    path = words_path(folder, extent.node)
    return nodes.digests(extent.node, path, extent.begin, 8 * extent.count)


def block_digests(file: WordsFile, begin: int, size: int) -> Iterable[bytes]:
    """Return the digests of the blocks in a part of a file, which begins with a block."""
    return map(block_digest, file.chunks(begin, size, BLOCK_BYTES))


@dataclass(frozen=True)
class ScatteredUpload:
    """A share in full, as packed words on several machines: an `Upload`."""

    layout: Layout
    folder: Path
    # of this machine
    file: WordsFile = field(repr=False)
    nodes: Nodes = field(repr=False)
    extents: Sequence[Extent]

    def pieces(self, row: int, start: int, stop: int) -> Iterator[Words | Kept]:
        """Yield the words [start, stop) of row `row`: read, where they lie here."""
        at = row * self.layout.row_words
        start, stop, before = at + start, at + stop, 0
        for extent in self.extents:
            first, last = max(start, before), min(stop, before + extent.count)
            if first < last:
                begin, count = extent.begin + 8 * (first - before), last - first
                if extent.node == HERE:
                    yield self.file.read(begin, count)
                else:
                    path = words_path(self.folder, extent.node)
                    yield self.nodes.at(extent.node, path, begin, count)
            before += extent.count

    def words(self, row: int, start: int, stop: int) -> Words:
        """Fetch the words [start, stop) of row `row`."""
        pieces = self.pieces(row, start, stop)
        return np.concatenate(
            [each if isinstance(each, np.ndarray) else each.words() for each in pieces]
        )


def pack_nodes(nodes: Sequence[str]) -> bytes | None:
    """Return on which machines the blocks of a share lie, as a row has it; None for all here."""
    if set(nodes) == {HERE}:
        return None
    runs = [[node, len(list(run))] for node, run in itertools.groupby(nodes)]
    return bytes(msgpack.packb(runs))


def extents_of(packed: bytes | None, begin: int, size: int) -> list[Extent]:
    """Return where a share of `size` bytes lies, which begins at byte `begin` of each file."""
    if packed is None:
        return [Extent(HERE, begin, size // 8)]
    extents, end = [], begin + size
    for node, blocks in msgpack.unpackb(packed):
        length = min(blocks * BLOCK_BYTES, end - begin)
        extents.append(Extent(node, begin, length // 8))
        begin += length
    return extents
