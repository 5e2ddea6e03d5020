"""Binding a party to the sum of its shares of the clients' uploads, with the clients' help.

Party P proves that its share X of the summed histogram is the sum of what it holds of the clients,
X = sum_i w_i rot(v_i), to the other party V:

    F2  P commits by MACs (`audit.macs`) to X and to R = sum_i w_i rho_i, the sum of masks that it
        shares with each client
    F3  both toss g_a: coordinate -> 0 .. M-1, for t tables a
    F4  each client, once, tells V its phi_i[y,a,s] = sum_(j: g_a(j)=s) rot(v_i)[y,j] + rho_i[y,a,s]
    F5  the same sums of tags and keys show that fold(X) + R - sum_i w_i phi_i is 0

X that is not the sum passes with a chance of at most M^-t + 2^-e: an error shows in each table in
which no other falls into its place. phi_i is uniform to V, which does not know rho_i. Of vectors of
W entries, 0 .. W-2 are bound, because the last follows from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import macs
from securemedian.mpc.protocols.audit.equality import Equality
from securemedian.mpc.protocols.audit.macs import Prover, Verifier, per_block
from securemedian.mpc.protocols.dealing import (
    CHUNK,
    Dealing,
    DealtUpload,
    turned_sum,
)
from securemedian.mpc.protocols.kernels import macs as kernels
from securemedian.mpc.protocols.kernels import packing, vectors
from securemedian.mpc.protocols.kernels.native import macs as native
from securemedian.mpc.protocols.kernels.native.processor import taken
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream

# SECURITY: t and M, so that a wrong sum passes with M^-t = 2^-45; M is a power of two
TABLES = 5
BUCKETS = 512


def places(coin: bytes, start: int, stop: int) -> NDArray[np.uint16]:
    """Return g (t, stop - start) for coordinates from `start` on, a multiple of 8, of a toss."""
    found = np.empty((TABLES, stop - start), np.uint16)
    for table, out in enumerate(found):
        drawn = Stream(coin, nonce=table, block=start // 8).words(-(-out.size // 4))
        out[:] = drawn.view(np.uint16)[: out.size]
    found &= np.uint16(BUCKETS - 1)
    return found


def fold_shape(shape: Dealing) -> tuple[int, int]:
    """Return the shape of the fold of one upload: entries, and the places of all tables."""
    return shape.slots - 1, TABLES * BUCKETS


def fold_words(shape: Dealing) -> int:
    """Return the words of a packed fold: what a client sends to each server."""
    entries, count = fold_shape(shape)
    return ring.packed_words(entries * count, shape.bits)


def masks(seed: bytes, session_id: bytes, shape: Dealing) -> Words:
    """Return rho of a client, packed as a fold, from the seed that it shares with one server.

    `session_id` is that of the audit: another one has other masks, so that a fold that is repeated
    under another toss tells nothing.
    """
    return Stream(digest("audit masks", seed, session_id)[:SEED_BYTES]).words(fold_words(shape))


def fold(number: int, upload: DealtUpload, session_id: bytes, coin: bytes, mask: bytes) -> Words:
    """Return phi, packed: the fold of server `number`'s share of one client's rotated vectors.

    It is hidden by the `masks` of the seed that the client shares with that server. The client
    sends it to the other server.

    SECURITY: once per upload and session, because folds under two tosses differ by what is folded.
    """
    shape = upload.shape
    totals = np.zeros((shape.slots // shape.per_word, TABLES, BUCKETS), shape.vectors(0).dtype)
    for part in shape.parts:
        for start in range(part.start, part.stop, CHUNK):
            stop = min(start + CHUNK, part.stop)
            turned = turned_sum(number, [upload], part, start, stop)
            where = places(coin, start, stop)
            vectors.add_to_places(turned, where, shape.bits, shape.per_word, totals)
    folded = ring.pack(shape.entries(totals.reshape(len(totals), -1))[:-1], shape.bits)
    packing.add_packed(masks(mask, session_id, shape), ring.top_bits(shape.bits), folded)
    return folded


def weighted(each: Sequence[Words], weights: Sequence[int], shape: Dealing) -> Ring:
    """Return the sum of the clients' folds, or of their masks, each times its weight.

    It is in the ring of the dealing, and has the shape `fold_shape`.
    """
    entries, count = fold_shape(shape)
    total = np.zeros(entries * count, ring.dtype(shape.bits))
    for words, weight in zip(each, weights, strict=True):
        one = ring.unpack(words, shape.bits, total.size)
        total += one * total.dtype.type(weight & int(ring.mask(shape.bits)))
    return ring.reduce(total, shape.bits).reshape(entries, count)


@dataclass(frozen=True)
class Bound:
    """A chunk that both parties have committed to: coordinates [start, start + dim)."""

    start: int
    dim: int
    # of this party's tags, and of the keys of the other's
    at: int
    their_at: int
    f: Words

    @property
    def padded(self) -> int:
        """Return the elements of a row, which begins at a whole AES block."""
        return padded(self.dim)


def padded(dim: int) -> int:
    """Return to how many elements a row of `dim` is padded."""
    return -(-dim // 64) * 64


class Binder:
    """Both roles of one party on one lane: its own sum is proved, and the other's is checked."""

    def __init__(self, prover: Prover, verifier: Verifier, shape: Dealing) -> None:
        self.prover, self.verifier, self.shape = prover, verifier, shape
        self.chunks: list[Bound] = []
        # of R, where this lane has it
        self._masks: Bound | None = None

    def __repr__(self) -> str:
        return f"Binder({len(self.chunks)} chunks, <secrets>)"

    def commit(self, start: int, values: Ring) -> Bound:
        """Commit to shares (W-1, d) of the sum from coordinate `start` on, as the peer does."""
        chunk = self._commit(start, values)
        self.chunks.append(chunk)
        return chunk

    def commit_masks(self, total: Ring) -> None:
        """Commit to R, as the peer does: on one lane alone."""
        self._masks = self._commit(0, total)

    def _commit(self, start: int, values: Ring) -> Bound:
        rows, dim = values.shape
        wide = np.zeros((rows, padded(dim)), values.dtype)
        wide[:, :dim] = values
        at = self.prover.send(wide.reshape(-1), self.shape.bits)
        their_at, f = self.verifier.receive(wide.size, self.shape.bits)
        return Bound(start, dim, at, their_at, f)

    def tags(self, chunk: Bound) -> Ring:
        """Return the tags of a chunk again: (e, W-1, d)."""
        count = (self.shape.slots - 1) * chunk.padded
        return self._in_rows(chunk, self.prover.tags(chunk.at, count, self.shape.bits))

    def keys(self, chunk: Bound) -> Ring:
        """Return the keys of the peer's chunk again: (e, W-1, d)."""
        count = (self.shape.slots - 1) * chunk.padded
        found = self.verifier.keys(chunk.their_at, chunk.f, count, self.shape.bits)
        return self._in_rows(chunk, found)

    def _in_rows(self, chunk: Bound, found: Ring) -> Ring:
        return found.reshape(len(found), -1, chunk.padded)[:, :, : chunk.dim]

    def folds(self, coin: bytes) -> tuple[Ring, Ring]:
        """Return this lane's part of the tags and keys of fold(X) + R: (e, elements of a fold)."""
        entries, count = fold_shape(self.shape)
        size = 2, entries, TABLES, BUCKETS, kernels.COLUMN
        both = np.zeros(size, ring.dtype(self.shape.bits))
        memory = np.empty(macs.PIECE * self.prover.mac_bits, ring.dtype(self.shape.bits))
        for chunk in self.chunks:
            self._add(chunk, coin, both, memory)
        flat = both.reshape(2, entries * count, -1)[:, :, : self.prover.mac_bits].swapaxes(1, 2)
        if self._masks is not None:
            own = self.tags(self._masks), self.keys(self._masks)
            flat = flat + np.stack(own).reshape(flat.shape)
        return flat[0], flat[1]

    def _add(self, chunk: Bound, coin: bytes, totals: Ring, memory: Ring) -> None:
        """Add tags to totals[0], and keys to totals[1], by pieces that fit the cache."""
        bits, entries = self.shape.bits, totals.shape[1]
        f = self.verifier.opened(chunk.f, entries * chunk.padded, bits)
        f = f.reshape(-1, entries, chunk.padded)
        # the processor's vectors take groups of 16 rows, which all but tests have
        own = taken(True) and self.prover.mac_bits % 16 == 0
        add = (native if own else kernels).add_to_places
        for start in range(0, chunk.dim, macs.PIECE):
            stop = min(start + macs.PIECE, chunk.dim)
            where = places(coin, chunk.start + start, chunk.start + stop)
            for y in range(entries):
                first = (y * chunk.padded + start) // per_block(bits)
                tags = self.prover.tags(chunk.at + first, stop - start, bits, memory)
                add(tags, where, totals[0, y])
                some = np.ascontiguousarray(f[:, y, start:stop])
                keys = self.verifier.expanded(chunk.their_at + first, some, bits, memory)
                add(keys, where, totals[1, y])


def compare(
    equality: Equality,
    number: int,
    verifier: Verifier,
    folds: Sequence[tuple[Ring, Ring]],
    theirs: Ring,
    bits: int,
) -> None:
    """Add to `equality` what shows that both parties' sums are those of the clients.

    `folds` are those of all lanes. `theirs` is the `weighted` sum of the phi that this party got.
    """
    tags, keys = (
        np.stack(each).sum(axis=0, dtype=theirs.dtype) for each in zip(*folds, strict=True)
    )
    keys -= verifier.constant(theirs.reshape(-1))
    # that of party 0's sum first
    for rows in (tags, keys) if number == 0 else (keys, tags):
        equality.add(ring.reduce(rows, bits))
