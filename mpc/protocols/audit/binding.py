"""Binding a party to the sum of its shares of the clients' uploads, with the clients' help.

Party P has a share X of the summed cumulative histogram. It proves to the other party V that this
is the sum of its vectors of the clients, X = sum_i c(v_i): c turns vectors and adds up entries.

    draw    ahead, P has MACs of random a, and of b as large as a fold (`audit.macs`)
    shift   P tells X - a, and R - b for R = sum_i rho_i, the sum of masks that it shares with each
            client
    toss    both toss g_a: coordinate -> 0 .. M-1, for t tables a
    fold    each client, once, tells V its phi_i[y,a,s] = sum_(j: g_a(j)=s) c(v_i)[y,j]
            + rho_i[y,a,s]
    compare the same sums of tags and keys show that fold(X) + R - sum_i phi_i is 0

A false X passes with a chance of at most M^-t + 2^-e: an error shows in each table in which no
other falls into its place. To V, which does not know rho_i, phi_i is uniform. Of vectors of W
entries, 0 .. W-2 are bound, because the last sum is the number of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import macs
from securemedian.mpc.protocols.audit.macs import Prover, Verifier, per_block, slot_of, words_of
from securemedian.mpc.protocols.dealing import (
    Dealing,
    DealtUpload,
    turned_sum,
)
from securemedian.mpc.protocols.kernels import macs as kernels
from securemedian.mpc.protocols.kernels import packing, vectors
from securemedian.mpc.protocols.kernels.native import macs as native
from securemedian.mpc.protocols.kernels.native.processor import use_native
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

    Another session has other masks, so a fold that is repeated under another toss tells nothing.
    """
    return Stream(digest("audit masks", seed, session_id)[:SEED_BYTES]).words(fold_words(shape))


def vote_masks(seed: bytes, vote: int, path: bytes) -> bytes:
    """Return the seed of a vote's `masks`, from that of the client and `Path.digest`.

    SECURITY: folds of two votes under the same masks would differ by what is folded.
    """
    return digest("vote masks", seed, vote, path)[:SEED_BYTES] if vote else seed


def fold(number: int, upload: DealtUpload, session_id: bytes, coin: bytes, mask: bytes) -> Words:
    """Return phi, packed: the fold of server `number`'s share of one client's cumulative vectors.

    It is hidden by the `masks` of the seed that the client shares with that server. The client
    sends it to the other server.

    SECURITY: once per upload and session, because folds under two tosses differ by what is folded.
    """
    shape = upload.shape
    totals = np.zeros((shape.slots // shape.per_word, TABLES, BUCKETS), shape.vectors(0).dtype)
    for part, start, stop in shape.pieces(upload.vote, 0, shape.dim):
        turned = turned_sum(number, [upload], part, start, stop)
        where = places(coin, start, stop)
        vectors.add_to_places(turned, where, shape.bits, shape.per_word, totals)
    entries = shape.entries(totals.reshape(len(totals), -1))[:-1]
    # the fold of sums is the sum of folds
    entries = ring.reduce(np.cumsum(entries, axis=0, dtype=entries.dtype), shape.bits)
    folded = ring.pack(entries, shape.bits)
    packing.add_packed(masks(mask, session_id, shape), ring.top_bits(shape.bits), folded)
    return folded


def total(each: Sequence[Words], shape: Dealing) -> Ring:
    """Return the sum of the clients' folds, or of their masks.

    It is in the ring of the dealing, and has the shape `fold_shape`.
    """
    entries, count = fold_shape(shape)
    found = np.zeros(entries * count, ring.dtype(shape.bits))
    for words in each:
        found += ring.unpack(words, shape.bits, found.size)
    return ring.reduce(found, shape.bits).reshape(entries, count)


@dataclass(eq=False)
class Bound:
    """A chunk that both parties have committed to: coordinates [start, start + dim)."""

    start: int
    dim: int
    # of this party's tags, and of the keys of the other's
    at: int
    their_at: int
    f: Words = field(repr=False)
    # this party's (rows, dim): what was drawn, until `shift`
    values: Ring = field(repr=False)
    # packed: what the peer has added to values that were drawn, whose f lacks the first tree's
    change: Words | None = field(default=None, repr=False)

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
        # R, where this lane has it
        self.masks: Bound | None = None
        # of the tags or keys of a piece
        self._memory = np.empty(0, np.uint64)

    def draw(self, start: int, rows: int, dim: int) -> Bound:
        """Commit to random values (rows, dim) from coordinate `start` on, as the peer does."""
        count, bits = rows * padded(dim), self.shape.bits
        at, values = self.prover.draw(count, bits)
        their_at, f = self.verifier.receive(count, bits, "mac.random")
        return Bound(start, dim, at, their_at, f, values.reshape(rows, -1)[:, :dim].copy())

    def shift(self, bound: Bound, values: Ring) -> None:
        """Tell the peer what is added to values that were drawn to make these, as it does.

        SECURITY: once, because two changes of one draw differ by what they turn it into.
        """
        wide = np.zeros((len(values), bound.padded), values.dtype)
        wide[:, : bound.dim] = values - bound.values
        words = ring.pack(ring.reduce(wide, self.shape.bits), self.shape.bits)
        bound.change, bound.values = self.prover.channel.exchange("bisect.change", words), values

    def folds(self, coin: bytes) -> tuple[Words, Words]:
        """Return this lane's part of the tags and keys of fold(X) + R: (K, elements of a fold)."""
        entries, count = fold_shape(self.shape)
        totals = np.zeros((2, entries, TABLES, BUCKETS, slot_of(self.shape.bits)), np.uint64)
        for chunk in self.chunks:
            drawn = places(coin, chunk.start, chunk.start + chunk.dim)
            self._add(chunk, drawn, totals)
        if self.masks is not None:
            # each of their elements has a place of its own
            alone = np.arange(count, dtype=np.uint16)[None]
            self._add(self.masks, alone, totals.reshape(2, entries, 1, count, -1))
        words = words_of(self.prover.mac_bits, totals.shape[-1])
        flat = totals.reshape(2, entries * count, -1)[:, :, :words].swapaxes(1, 2)
        return flat[0].copy(), flat[1].copy()

    def _add(self, chunk: Bound, where: NDArray[np.uint16], totals: Words) -> None:
        """Add the tags of a chunk to their places in totals[0], and keys in totals[1]."""
        # the processor's vectors take all words of a column, which all but tests have
        own = use_native(True) and self.prover.mac_bits == macs.MAC_BITS
        add = (native if own else kernels).add_to_places
        pieces = [np.ascontiguousarray(where[:, i : i + macs.PIECE]) for i in _pieces(chunk)]
        for total, keys in zip(totals, (False, True), strict=True):
            # entry by entry, whose tables stay in the cache
            for y in range(len(total)):
                f = self.row(chunk, y) if keys else None
                for start, its in zip(_pieces(chunk), pieces, strict=True):
                    add(self.again(chunk, f, y, start), its, total[y])

    def row(self, chunk: Bound, y: int) -> Ring:
        """Return f of row y (e/4, padded), unpacked: `again` makes keys of it."""
        bits, rows = self.shape.bits, self.shape.slots - 1
        f = chunk.f.reshape(-1, rows, chunk.padded * bits // 64)[:, y]
        found = ring.unpack(f.reshape(-1), bits, len(f) * chunk.padded)
        found = found.reshape(len(f), chunk.padded)
        assert chunk.change is not None
        change = ring.unpack(chunk.change.reshape(rows, -1)[y], bits, chunk.padded)
        return ring.reduce(np.concatenate([change[None], found + change]), bits)

    def again(self, chunk: Bound, f: Ring | None, y: int, start: int) -> Words:
        """Return tags, or keys if there is f, of a piece of row y again.

        They are in the memory of the last ones.
        """
        bits, count = self.shape.bits, min(macs.PIECE, chunk.dim - start)
        words = words_of(self.prover.mac_bits, slot_of(bits))
        if self._memory.size < words * count:
            self._memory = np.empty(words * macs.PIECE, np.uint64)
        out = self._memory[: words * count].reshape(words, count)
        at = (y * chunk.padded + start) // per_block(bits)
        end, first = (self.prover, chunk.at) if f is None else (self.verifier, chunk.their_at)
        end.expand(first + at, f, start, bits, out)
        return out


def _pieces(chunk: Bound) -> range:
    """Return where the pieces of a chunk begin whose tags or keys are made at a time."""
    return range(0, chunk.dim, macs.PIECE)
