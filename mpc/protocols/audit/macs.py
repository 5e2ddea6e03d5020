"""Message authentication codes over Z_2^m, from the leaves of SoftSpokenOT's trees.

A *prover* has values x, which a *verifier* is not to see. The verifier has a secret Delta of e bits
(`MAC_BITS`), the same for all values. For each bit c the prover has a tag v_c of a value and the
verifier a key w_c, with

    w_c = v_c + Delta_c x   (mod 2^m).

So who claims another x' has to know Delta_c wherever (x - x') Delta_c is not 0 modulo 2^m: it
passes with a chance of 2^-e at most. Linear maps act on x, v and w alike; a public constant a adds
Delta_c a to w_c. Modulo 2 it is the MAC of a bit.

The prover knows the leaves of e/k trees (`ot.ggm`, k = 4). In each tree, B, the verifier knows all
except that at Delta_B. With r_(B,z) a number made of leaf z,

    prover    u_B = sum_z r_(B,z),   v_(B,t) = - sum_z z_t r_(B,z);   sends f_B = x - u_B
    verifier  w_(B,t) = sum_(z != Delta_B) (Delta_(B,t) - z_t) r_(B,z) + Delta_(B,t) f_B

f is uniform to the verifier, whose missing leaf hides u_B. Leaves are expanded from any position on
again, so tags and keys need not be kept: the position and f are enough.

Tags and keys are *packed* as `kernels.macs` has them, (K, n), into slots of 4, 8 or 16 bits. Only
the lowest m of these count (m <= 16): they are `unpacked` before they are compared.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from securemedian.mpc.arrays import Ring, Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.kernels import macs as kernels
from securemedian.mpc.protocols.kernels.native import macs as native
from securemedian.mpc.protocols.kernels.native.aes import round_keys
from securemedian.mpc.protocols.kernels.native.emit import ROUNDS
from securemedian.mpc.protocols.kernels.native.processor import use_native
from securemedian.mpc.protocols.ot.extension import Scratch
from securemedian.mpc.protocols.ot.hash import as_bytes
from securemedian.mpc.protocols.party import Session
from securemedian.mpc.protocols.prg import BLOCK_WORDS, SEED_BYTES, ZEROS, Stream

# SECURITY: bits of Delta that MACs take, e: a forgery passes with a chance of 2^-MAC_BITS
MAC_BITS = 48
# k, bits of Delta per tree
TREE_BITS = 4
# e/k, where a session has as many, which those of tests may not
TREES = MAC_BITS // TREE_BITS
# The streams of MACs have nonces from here on, and those of OTs below: lane numbers.
NONCE = 1 << 32
# The most bits of an element.
MAX_BITS = 16
# Elements whose tags or keys are made at a time if none are kept, so that they fit the cache. It is
# a multiple of 64, but not a power of two, with which all rows would be in the same few cache sets.
PIECE = 132 * 64
# AES blocks of a leaf that are expanded at a time: all leaves of a tree stay in the cache.
STRIP = 1 << 9

Trees = list[list[bytes]]


def per_block(bits: int) -> int:
    """Return how many elements of `bits` bits an AES block of each leaf gives."""
    return 32 if bits <= 4 else 16 // ring.dtype(bits).itemsize


def blocks_of(count: int, bits: int) -> int:
    """Return how many AES blocks of each leaf `count` elements take."""
    return -(-count // per_block(bits))


def slot_of(bits: int) -> int:
    """Return the bits of a slot of packed tags in the ring of `bits` bits: 4, 8 or 16."""
    return max(4, 1 << (bits - 1).bit_length())


def packed(rows: Ring, slot: int) -> Words:
    """Return component rows (e, n), packed: (K, n)."""
    out = np.empty((words_of(len(rows), slot), rows.shape[1]), np.uint64)
    kernels.pack(rows, slot, out)
    return out


def unpacked(words: Words, bits: int, mac_bits: int = MAC_BITS) -> Ring:
    """Return tags or keys (K, n), packed for this ring, as component rows (e, n) modulo 2^bits."""
    rows = np.empty((mac_bits, words.shape[1]), ring.dtype(bits))
    kernels.unpack(words, slot_of(bits), bits, rows)
    return rows


def words_of(mac_bits: int, slot: int) -> int:
    """Return K, the words of the tags of an element."""
    return -(-mac_bits * slot // 64)


class Expander(ABC):
    """The expansion of the leaves of all trees of one lane."""

    @abstractmethod
    def commit(
        self, at: int, bits: int, values: Ring, f: Ring, slot: int, out: Words | None
    ) -> None:
        """Write f = x - u (e/k, n) and the tags (K, n), if any, of values x (n,), at a position."""

    @abstractmethod
    def keys(
        self, at: int, bits: int, masks: Ring, f: Ring | None, first: int, slot: int, out: Words
    ) -> None:
        """Write the verifier's keys (K, n), with `masks` (e,) all ones where Delta_c is 1.

        Column `first` of f is that of the first element. Leaf z of each tree lies at z ^ Delta_B,
        so the missing leaf is the first, which adds to no row. With S_t the sum of those with bit t
        set, w_t is S_t + f_B or - S_t. If all masks are 0 these are the prover's tags, which take
        no f.
        """


class PortableExpander(Expander):
    """Leaves that OpenSSL expands, on any processor."""

    def __init__(self, trees: Trees, nonce: int) -> None:
        self._trees, self._nonce, self._scratch = trees, nonce, Scratch()

    def commit(
        self, at: int, bits: int, values: Ring, f: Ring, slot: int, out: Words | None
    ) -> None:
        rows = np.empty((TREE_BITS * len(f), values.size), values.dtype)
        for block, some, total, sums in self._folded(at, bits, values.size):
            np.subtract(values[some], total, out=f[block, some])
            np.negative(sums, out=rows[_rows_of(block), some])
        if out is not None:
            kernels.pack(rows, slot, out)

    def keys(
        self, at: int, bits: int, masks: Ring, f: Ring | None, first: int, slot: int, out: Words
    ) -> None:
        rows = np.empty((masks.size, out.shape[1]), masks.dtype)
        for block, some, _, sums in self._folded(at, bits, out.shape[1]):
            mask = masks[_rows_of(block), None]
            rows[_rows_of(block), some] = (sums ^ ~mask) - ~mask
            if f is not None:
                rows[_rows_of(block), some] += f[block, first:][some] & mask
        kernels.pack(rows, slot, out)

    def _folded(self, at: int, bits: int, count: int) -> Iterator[tuple[int, slice, Ring, Ring]]:
        """Yield trees and slices of elements, with the sum of the leaves and that of each row."""
        dtype, each = ring.dtype(bits), per_block(bits)
        for block, tree in enumerate(self._trees):
            # the missing leaf, of which no sum is used
            streams = [Stream(leaf or bytes(SEED_BYTES), self._nonce, at) for leaf in tree]
            for start in range(0, count, STRIP * each):
                stop = min(start + STRIP * each, count)
                words = 2 * blocks_of(stop - start, bits)
                leaves = self._scratch.array("leaves", len(tree), words)
                for stream, leaf in zip(streams, leaves, strict=True):
                    stream.xor(ZEROS[: 8 * words], as_bytes(leaf))
                total = np.empty(stop - start, dtype)
                sums = np.empty((TREE_BITS, stop - start), dtype)
                kernels.fold(leaves.view(dtype), bits <= 4, total, sums)
                yield block, slice(start, stop), total, sums


class NativeExpander(Expander):
    """Leaves that the processor's AES instructions expand."""

    def __init__(self, trees: Trees, nonce: int) -> None:
        keys = b"".join(leaf or bytes(SEED_BYTES) for tree in trees for leaf in tree)
        self._keys = round_keys(keys).reshape(len(trees), -1, ROUNDS + 1, BLOCK_WORDS)
        self._nonce = np.uint64(nonce)

    def commit(
        self, at: int, bits: int, values: Ring, f: Ring, slot: int, out: Words | None
    ) -> None:
        given = values.size, values, None, f, 0, slot, out
        native.expand(self._keys, self._nonce, np.uint64(at), bits <= 4, *given)

    def keys(
        self, at: int, bits: int, masks: Ring, f: Ring | None, first: int, slot: int, out: Words
    ) -> None:
        given = out.shape[1], None, masks, f, first, slot, out
        native.expand(self._keys, self._nonce, np.uint64(at), bits <= 4, *given)


def _rows_of(block: int) -> slice:
    return slice(TREE_BITS * block, TREE_BITS * (block + 1))


class _End:
    """The common part of both ends: the leaves of their trees, and the next elements' place."""

    def __init__(self, session: Session, lane: int, channel: Channel, trees: Trees) -> None:
        if session.params.ot_field_bits != TREE_BITS:
            raise LocalProtocolError(f"MACs take base OTs with ot_field_bits {TREE_BITS}")
        self.channel = channel
        self.mac_bits = TREE_BITS * len(trees)
        # the processor's vectors fill whole words, which all but tests do
        own = use_native(session.params.native_aes) and self.mac_bits % 16 == 0
        expander = NativeExpander if own else PortableExpander
        self._expander: Expander = expander(trees, NONCE + lane)
        # AES blocks of each leaf that were used
        self._used = 0
        # all ones where a bit of Delta is 1, which the verifier has
        self._masks = np.zeros(self.mac_bits, np.uint16)

    def _next(self, count: int, bits: int) -> int:
        """Return the position of the next elements."""
        if not 1 <= bits <= MAX_BITS:
            raise LocalProtocolError(f"MACs are of 1 to {MAX_BITS} bits, not of {bits}")
        at, self._used = self._used, self._used + blocks_of(count, bits)
        return at

    def expand(
        self, at: int, f: Ring | None, first: int, bits: int, out: Words, slot: int | None = None
    ) -> None:
        """Write tags, or the verifier's keys, of the elements from a position on, also again.

        They are packed into slots of `slot` bits, or of those of this ring. For keys there is f,
        from column `first` on.
        """
        masks = self._masks.astype(ring.dtype(bits))
        self._expander.keys(at, bits, masks, f, first, slot or slot_of(bits), out)

    def empty(self, count: int, slot: int) -> Words:
        """Return memory for tags or keys of `count` elements: (K, n)."""
        return np.empty((words_of(self.mac_bits, slot), count), np.uint64)


class Prover(_End):
    """The end that has the values, one lane of it, used by one thread.

    Raises LocalProtocolError for a lane that has had a prover of this session, because the same u
    would hide other values.
    """

    def __init__(self, session: Session, lane: int, channel: Channel) -> None:
        if NONCE + lane in session.lanes or not 0 <= lane < 1 << 16:
            raise LocalProtocolError(f"lane {lane} has had a prover, or is not in 0..65535")
        session.lanes.add(NONCE + lane)
        super().__init__(session, lane, channel, session.receiver_leaves[:TREES])

    def commit(self, values: Ring, bits: int, slot: int | None = None) -> tuple[int, Words]:
        """Send f of values (n,), and return their position and their tags (K, n).

        They are packed into slots of `slot` bits, or of those of this ring.
        """
        slot = slot or slot_of(bits)
        at, values = self._next(values.size, bits), ring.reduce(values, bits)
        f = np.empty((self.mac_bits // TREE_BITS, values.size), values.dtype)
        out = self.empty(values.size, slot)
        self._expander.commit(at, bits, values, f, slot, out)
        self.channel.send("mac.values", ring.pack(f, bits))
        return at, out

    def draw(self, count: int, bits: int) -> tuple[int, Ring]:
        """Commit to random values (n,): return their position and them.

        They are u of the first tree, whose f is 0 and is not sent.
        """
        at, dtype = self._next(count, bits), ring.dtype(bits)
        f = np.empty((self.mac_bits // TREE_BITS, count), dtype)
        self._expander.commit(at, bits, np.zeros(count, dtype), f, slot_of(bits), None)
        values = ring.reduce(-f[0], bits)
        f[1:] += values
        self.channel.send("mac.random", ring.pack(ring.reduce(f[1:], bits), bits))
        return at, values


class Verifier(_End):
    """The end that has Delta, of the other party's prover."""

    def __init__(self, session: Session, lane: int, channel: Channel) -> None:
        moved = [
            [tree[y ^ tree.index(b"")] for y in range(len(tree))]
            for tree in session.sender_leaves[:TREES]
        ]
        super().__init__(session, lane, channel, moved)
        self._masks = np.uint16(0) - session.delta[: self.mac_bits].astype(np.uint16)

    def receive(self, count: int, bits: int, label: str = "mac.values") -> tuple[int, Words]:
        """Return the position and f, packed, of what the prover commits to: `expand` takes both.

        Values that it draws have the label "mac.random", and f of all trees but the first.
        """
        trees = self.mac_bits // TREE_BITS - (label == "mac.random")
        words = ring.packed_words(trees * count, bits)
        return self._next(count, bits), self.channel.recv(label, np.uint64, (words,))

    def opened(self, f: Words, count: int, bits: int) -> Ring:
        """Return f of `count` elements unpacked (e/4, n), as `expand` takes it."""
        trees = self.mac_bits // TREE_BITS
        return ring.unpack(f, bits, trees * count).reshape(trees, count)

    def constant(self, values: Ring) -> Ring:
        """Return Delta_c a (e, n) for public a (n,), which is added to the keys of x for x + a."""
        return self._masks.astype(values.dtype)[:, None] & values
