"""Uploads that cannot lie: random one-hot vectors, dealt ahead of the upload and checked.

A client shares random one-hot vectors e_r of W slots over Z_2^l ahead of its upload. Later it sends
the rotation m = y - r mod W for each bucket y. Each server rotates its share of e_r by m and has
one of e_y. Nothing of m can be malformed, and the two servers check the vectors between them:

    deal    per coordinate one *kept* vector, and (B-1) N + g *others*, r uniform in 0..W-1. The
            entries 0..W-2 are shared; the last is 1 minus their sum, so every vector sums to 1.
    toss    when both servers hold the dealing, they commit to a random seed and open it. It gives
            a random permutation of the others.
    guards  the first g others are opened. Each must be a one-hot vector.
    turns   the rest are *partners*, B-1 per kept vector in order. The position y(v) = sum_j j v_j
            mod W is linear, because W divides 2^l. t = y(v) - y(v') mod W is opened per pair.
    digests rot_t(v') - v must be 0 in every entry. Server 0 hashes its shares of all those
            differences, server 1 the negatives of its own; the digests are equal if all are 0.
            The hash is universal, and its keys come from the toss, too: see `Differences`.

    client  asks both servers for the coin, the SHA-256 of what each has opened, and the verdict. It
            knows what has to be opened, and sends its rotations only if both opened just that
            (`OwnDealing.opened`) and both let it pass.

A pair passes exactly if v' is a rotation of v. If k kept vectors of a client are not one-hot, its
dealing passes only if exactly their (B-1) k partners are wrong in the same way and no guard is. B
is the smallest with which that has a chance of at most 2^-check_bits for every k. A server sees
uniform values of an honest client: t is a difference of fresh random positions, guards are thrown
away, and it can compute the peer's digest itself. A server that opens a wrong t can test a guess of
a difference, and so of r, against the peer's digest. It gains nothing: the peer has then opened
something else, and r says nothing of an update without m. SECURITY: for that a server notes what it
has opened before it sends a digest (`note`), and sends none after it has opened something else of
the same dealing.

A dealing may be cut into parts of many coordinates, each checked by itself, to bound the memory.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Ring, RingShare, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import InputError, LocalProtocolError
from securemedian.mpc.protocols import kernels, ring
from securemedian.mpc.protocols.prg import BLOCK_WORDS, SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.share import (
    SLICE_ALIGN,
    Layout,
    SeedUpload,
    Upload,
    WordsUpload,
    words_of,
)

if TYPE_CHECKING:
    from securemedian.mpc.protocols.channel import Channel, Planned

# The most buckets: a dealing grows with them, and B with it.
MAX_BUCKETS = 32
# Parts have at least this many coordinates, because B falls with their number.
PART = 750_000
# Bytes of what a server commits to and opens in a toss.
OPENING_BYTES = 32
DIGEST_WORDS = 4
# Random words that a shuffle takes at a time.
DRAWS = 1 << 13
# The binary logarithm of about how many vectors a shuffle moves at random: they fit a core's cache.
NEAR = 14
# Vectors that are read, or hashed, at a time: they fit, too. A multiple of SLICE_ALIGN.
CHUNK = 1 << 16
# Clients whose messages are under way while one waits for the peer's.
AHEAD = 2


@dataclass(frozen=True)
class Part:
    """Coordinates [start, stop) of a dealing, which are checked together.

    Its vectors begin at word `first` of the dealing, each of `packed_bits` bits: the kept ones,
    padded to whole AES blocks, and then the others, padded likewise.
    """

    start: int
    stop: int
    # partners per kept vector, B-1
    partners: int
    guards: int
    packed_bits: int
    first: int

    @property
    def kept(self) -> int:
        """Return the number of kept vectors, one per coordinate."""
        return self.stop - self.start

    @property
    def others(self) -> int:
        """Return the number of other vectors: partners and guards."""
        return self.partners * self.kept + self.guards

    @property
    def middle(self) -> int:
        """Return the word where the others begin."""
        return self.first + self._words(self.kept)

    @property
    def end(self) -> int:
        """Return the word after the last."""
        return self.middle + self._words(self.others)

    def words_of(self, start: int, stop: int) -> tuple[int, int]:
        """Return which words, [first, last), hold the kept vectors of coordinates [start, stop).

        The coordinates are the part's, and `start` is a multiple of SLICE_ALIGN.
        """
        first = self.first + (start - self.start) * self.packed_bits // 64
        return first, first + ring.packed_words(stop - start, self.packed_bits)

    def _words(self, count: int) -> int:
        words = ring.packed_words(count, self.packed_bits)
        return -(-words // BLOCK_WORDS) * BLOCK_WORDS


@dataclass(frozen=True)
class Dealing:
    """The public shape of a client's dealing.

    `bits` is l of the dealing ring, with 2^l >= W. A share of the dealing is one flat stream of
    64-bit words, `layout`, as of an upload. The upload after training is one rotation per
    coordinate, `rotations_layout`. A client may send several of these, its `votes`: each rotates
    kept vectors of its own.
    """

    # coordinates of one vote
    dim: int
    buckets: int
    bits: int
    # SECURITY: a wrong dealing passes with a chance of at most 2^-check_bits
    check_bits: int = 40
    votes: int = 1

    # vectors that are opened, per part
    guards: ClassVar[int] = 64

    @property
    def slot_bits(self) -> int:
        """Return w, the bits of a slot number."""
        return (self.buckets - 1).bit_length()

    @property
    def slots(self) -> int:
        """Return W, the entries of a vector: the smallest power of two with a slot per bucket."""
        return 1 << self.slot_bits

    @property
    def per_word(self) -> int:
        """Return how many entries of a vector share a machine word: a power of two."""
        return min(self.slots, 1 << (64 // self.bits).bit_length() - 1)

    @property
    def packed_bits(self) -> int:
        """Return the bits of a packed vector, of which the last entry is left out."""
        return (self.slots - 1) * self.bits

    @property
    def stride(self) -> int:
        """Return the kept vectors from one vote's first to the next one's: slices are whole."""
        return self.dim if self.votes == 1 else -(-self.dim // SLICE_ALIGN) * SLICE_ALIGN

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts, cut evenly at multiples of SLICE_ALIGN coordinates of all votes."""
        total = self.stride * self.votes
        count = max(1, total // PART)
        borders = [i * total // count // SLICE_ALIGN * SLICE_ALIGN for i in range(count)]
        parts: list[Part] = []
        for start, stop in zip(borders, [*borders[1:], total], strict=True):
            first = parts[-1].end if parts else 0
            partners = self.partners(stop - start)
            parts.append(Part(start, stop, partners, self.guards, self.packed_bits, first))
        return tuple(parts)

    def pieces(self, vote: int, start: int, stop: int) -> Iterator[tuple[Part, int, int]]:
        """Yield a vote's coordinates [start, stop) by CHUNK: the part, the first and the end."""
        at = vote * self.stride
        for part in self.parts:
            for low in range(max(start, part.start - at), min(stop, part.stop - at), CHUNK):
                yield part, low, min(low + CHUNK, stop, part.stop - at)

    def partners(self, kept: int) -> int:
        """Return B-1, the partners per vector in a part of N = `kept` coordinates.

        It is the smallest for which k wrong vectors pass with a chance of 1 / C((B-1) N + g,
        (B-1) k) <= 2^-check_bits for every k. A cheat's wrong others must be at just these places.
        The binomial is smallest at k = 1 or at k = N.
        """
        partners, least = 0, 0
        while least < 1 << self.check_bits:
            partners += 1
            others = partners * kept + self.guards
            least = min(math.comb(others, partners), math.comb(others, self.guards))
        return partners

    @property
    def layout(self) -> Layout:
        """Return the shape of a share: one row of words."""
        return Layout(1, self.parts[-1].end, 64)

    @property
    def rotations_layout(self) -> Layout:
        """Return the shape of a vote, which is sent after training: w bits per coordinate."""
        return Layout(1, self.dim, self.slot_bits)

    @property
    def bytes_ahead(self) -> int:
        """Return the bytes of the half that is words, which one server gets ahead."""
        return 8 * self.layout.words

    def vectors(self, count: int) -> Ring:
        """Return an array for `count` vectors, as `kernels.vectors` has them: shape (K, count)."""
        dtype = np.uint32 if self.per_word * self.bits <= 32 else np.uint64
        return np.empty((self.slots // self.per_word, count), dtype)

    def entries(self, those: Ring) -> NDArray[np.uint64]:
        """Return the entries of vectors, shape (W, count)."""
        shifts = np.arange(0, self.per_word * self.bits, self.bits, dtype=np.uint64)
        parts = those.astype(np.uint64)[:, None] >> shifts[:, None]
        return (parts & np.uint64((1 << self.bits) - 1)).reshape(self.slots, those.shape[1])


class OwnDealing:
    """A client's own dealing: both halves, and the seed of the secret slots of its vectors."""

    def __init__(
        self, shape: Dealing, seeded: SeedUpload, words: WordsUpload, secret: bytes
    ) -> None:
        self.shape, self.seeded, self.words = shape, seeded, words
        self._secret, self._rotated = secret, set[int]()

    def __repr__(self) -> str:
        return f"OwnDealing({self.shape}, <secrets>)"

    def rotations(self, index: NDArray[Any], vote: int = 0) -> Words:
        """Return m = y - r mod W for the buckets `index` (d,), packed: shape (1, row words).

        Both servers get the same. Raises InputError for an invalid bucket or another number of
        them, and LocalProtocolError at a second call for a vote. Two rotations by the same r would
        tell how two updates differ.
        """
        shape = self.shape
        if index.shape != (shape.dim,) or (index >= shape.buckets).any():
            raise InputError(
                f"invalid bucket indices: shape {index.shape}; give {shape.dim} below "
                f"{shape.buckets}"
            )
        if vote in self._rotated or not 0 <= vote < shape.votes:
            raise LocalProtocolError("a dealing rotates one update only: deal again")
        self._rotated.add(vote)
        slots = np.concatenate([kept for _, kept, _ in _slots(shape, self._secret)])
        slots = slots[vote * shape.stride :][: shape.dim]
        turns = (index.astype(np.uint8) - slots) & np.uint8(shape.slots - 1)
        layout = shape.rotations_layout
        packed = np.zeros((1, layout.row_words), np.uint64)
        words = ring.pack(turns, layout.bits)
        packed[0, : words.size] = words
        return packed

    def opened(self, coin: bytes) -> bytes:
        """Return the SHA-256 of what the servers must open of each part under a coin."""
        shape, hashes = self.shape, b""
        for number, (part, kept, others) in enumerate(_slots(shape, self._secret)):
            order = Permutation.uniform(Stream(coin, nonce=number), part.others)
            guards, rest = np.split(others[order.sources], [part.guards])
            turns = (kept - rest.reshape(part.partners, part.kept)) & np.uint8(shape.slots - 1)
            ones = (np.arange(shape.slots)[:, None] == guards).astype(np.uint64)
            hashes += _hash(ones, ring.pack(turns, shape.slot_bits))
        return hashes


def _slots(
    shape: Dealing, secret: bytes
) -> Iterator[tuple[Part, NDArray[np.uint8], NDArray[np.uint8]]]:
    """Yield each part with the secret slots of its kept vectors, and of its others."""
    drawn = Stream(secret)
    for part in shape.parts:
        kept, others = (
            ring.unpack(
                drawn.words(ring.packed_words(count, shape.slot_bits)), shape.slot_bits, count
            ).astype(np.uint8, copy=False)
            for count in (part.kept, part.others)
        )
        yield part, kept, others


def _hash(guards: NDArray[Any], turns: Words) -> bytes:
    """Return the SHA-256 of opened guards (W, g) and packed turns (B-1, N), as 64-bit words."""
    found = hashlib.sha256(guards.astype("<u8", copy=False).tobytes())
    found.update(turns.astype("<u8", copy=False).data.cast("B"))
    return found.digest()


def deal(shape: Dealing, entropy: Entropy = os_entropy) -> OwnDealing:
    """Deal random one-hot vectors, shared: a seed for one server, words for the other.

    The slots come from a secret of their own, which neither half gives away. Each half alone is
    uniform.
    """
    seeded = SeedUpload(shape.layout, entropy(SEED_BYTES))
    secret = entropy(SEED_BYTES)
    packed = np.zeros((1, shape.layout.row_words), np.uint64)
    tops = ring.top_bits(shape.bits)
    for part, kept, others in _slots(shape, secret):
        for first, slots in ((part.first, kept), (part.middle, others)):
            stop = first + ring.packed_words(slots.size, shape.packed_bits)
            section = packed[0, first:stop]
            kernels.vectors.set_ones(slots, shape.bits, shape.slots - 1, section)
            kernels.packing.subtract_packed(seeded.words(0, first, stop), tops, section)
    return OwnDealing(shape, seeded, WordsUpload(shape.layout, packed), secret)


@dataclass(frozen=True)
class Opened:
    """A party's openings of one client's dealing, or of some parts of it."""

    # the SHA-256 of guards and turns, part by part
    hashes: bytes
    # of this party's shares of the differences
    digest: bytes = field(repr=False)
    # whether all guards are one-hot
    guarded: bool


# Notes the `Opened.hashes` of all clients of a check, or raises PeerProtocolError if others of one
# of them were noted before. It is called after `open_pairs` and before `compare`.
Note = Callable[[Sequence[bytes]], None]


def nothing(*_: object) -> None:
    """Do nothing, where nobody asks for a call."""


def open_pairs(
    channel: Channel,
    number: int,
    shape: Dealing,
    halves: Sequence[Upload],
    coin: bytes,
    parts: Sequence[int] | None = None,
) -> list[Opened]:
    """Open the guards and turns of clients' dealings, while the other party does the same.

    `halves` are this party's, of all clients in the order that both agreed on. Both hold them all
    before they `toss` for the `coin`, because clients must not know it. SECURITY: a check that
    breaks off may be repeated under the same coin only. Turns under two permutations tell the
    differences of kept vectors, and so of an honest client's updates.

    `parts` are the numbers of the parts that are checked, by default all. A dealing has passed only
    if all have; they may be checked apart, under the same coin.
    """
    checks = [_Check(coin) for _ in halves]
    waiting: deque[_Pairs] = deque()
    spare = [_Pairs(channel, number, shape) for _ in halves[: AHEAD + 1]]
    for index in range(len(shape.parts)) if parts is None else parts:
        part = shape.parts[index]
        order = Permutation.uniform(Stream(coin, nonce=index), part.others)
        for half, check in zip(halves, checks, strict=True):
            # the next clients' messages are under way while one waits for the peer's
            if len(waiting) > AHEAD:
                spare.append(waiting.popleft().finish())
            waiting.append(spare.pop().send(part, order, half, check))
        while waiting:
            spare.append(waiting.popleft().finish())
    return [Opened(each.hashes, each.differences.digest(), each.guarded) for each in checks]


def compare(channel: Channel, opened: Sequence[Opened]) -> list[bool]:
    """Return whose dealings passed, by the digests of both parties. Both get the same list."""
    mine = np.frombuffer(b"".join(each.digest for each in opened), np.uint64)
    theirs = channel.exchange("dealing.digests", mine)
    equal = (mine == theirs).reshape(len(opened), -1).all(axis=1)
    return [bool(same) and each.guarded for same, each in zip(equal, opened, strict=True)]


def messages(shape: Dealing, clients: int, parts: Sequence[int] | None = None) -> Iterator[Planned]:
    """Yield what each party sends (True) and receives (False) in a check, after the toss, in order.

    The check is `open_pairs`, with the same `parts`, and `compare`.
    """
    from securemedian.mpc.protocols.channel import both_ways

    for part in shape.parts if parts is None else [shape.parts[index] for index in parts]:
        guards = shape.vectors(part.guards)
        words = ring.packed_words(part.partners * part.kept, shape.slot_bits)
        pairs: list[tuple[str, DTypeLike, tuple[int, ...]]] = [
            ("dealing.guards", guards.dtype, guards.shape),
            ("dealing.turns", np.uint64, (words,)),
        ]
        for at in range(clients + AHEAD + 1):
            if at > AHEAD:
                yield from ((False, *message) for message in pairs)
            if at < clients:
                yield from ((True, *message) for message in pairs)
    yield from both_ways("dealing.digests", DIGEST_WORDS * clients)


def toss(channel: Channel, number: int, entropy: Entropy = os_entropy) -> bytes:
    """Return a random seed that neither party chose, with the other party.

    Each commits to its part and then opens it. Raises PeerDeviated if the peer opens something
    else.
    """
    opening = entropy(OPENING_BYTES)
    # the opened values are random, and need nothing that hides them
    theirs = channel.open("toss.open", number, _words(opening), _words(b"")).tobytes()
    openings = (opening, theirs) if number == 0 else (theirs, opening)
    return digest("toss", *openings)[:SEED_BYTES]


def toss_messages() -> Iterator[Planned]:
    """Yield what each party sends and receives in `toss`, as `messages` does."""
    from securemedian.mpc.protocols.channel import opening_messages

    yield from opening_messages("toss.open", OPENING_BYTES // 8)


def _words(data: bytes) -> Words:
    return np.frombuffer(data, np.uint64)


@dataclass(frozen=True)
class Permutation:
    """A permutation of vectors in two steps, neither of which leaves the cache.

    Vector i first goes to places[i], where vectors with the same label lie together. Item i of the
    permutation is then what lies at order[i], which has the same label as what lies at i.
    """

    places: NDArray[np.uint32]
    order: NDArray[np.uint32]

    @classmethod
    def uniform(cls, stream: Stream, count: int, near: int = NEAR) -> Self:
        """Return a uniformly random permutation of `count` vectors.

        Labels are uniform, and a Fisher-Yates shuffle permutes the vectors of each: all together
        are then uniform (Rao, 1961; Sandelius, 1962). There are about 2^near vectors per label.
        """
        labels = stream.words(-(-count // 8)).view(np.uint8)[:count]
        labels &= np.uint8(min(255, (1 << (count >> near).bit_length()) - 1))
        borders = np.empty(257, np.uint32)
        places, order = np.empty(count, np.uint32), np.arange(count, dtype=np.uint32)
        kernels.vectors.places(labels, borders, places)
        for first, stop in pairwise(borders.tolist()):
            last = stop - 1
            while last > first:
                draws = stream.words(DRAWS).view(np.uint32)
                last = kernels.vectors.shuffle(order, first, last, draws)
        return cls(places, order)

    @property
    def sources(self) -> NDArray[np.uint32]:
        """Return which vector stands at each place of the permutation."""
        lying = np.empty_like(self.order)
        lying[self.places] = np.arange(lying.size, dtype=np.uint32)
        return lying[self.order]


class Differences:
    """A digest of one client's differences, under keys that the client could not know.

    It hashes GHASH of all of them under `KEYS` keys, each as the tag of AES-GCM on associated data
    alone. Different strings of m blocks have the same GHASH with a chance of at most (m + 1) /
    2^128 per random key that they do not depend on. With two keys that is less than 2^-128 up to m
    = 2^63. The hash on top keeps what a server can learn from the peer's digest of other
    differences than its own to testing guesses, one by one.
    """

    KEYS: ClassVar[int] = 2

    def __init__(self, seed: bytes) -> None:
        """Draw the keys from a tossed seed."""
        keys = [digest("dealing differences", seed, key)[:SEED_BYTES] for key in range(self.KEYS)]
        # no nonce is needed where nobody has to be kept from forging tags
        mode = modes.GCM(bytes(12))
        self._tags = [Cipher(algorithms.AES(key), mode).encryptor() for key in keys]

    def update(self, differences: Ring) -> None:
        """Append the bytes of a contiguous array."""
        for tag in self._tags:
            tag.authenticate_additional_data(differences.data.cast("B"))

    def digest(self) -> bytes:
        """Return the digest of all that was appended, which ends here."""
        for tag in self._tags:
            tag.finalize()
        return digest("dealing digest", *(tag.tag for tag in self._tags))


class _Check:
    """The state of the check of one client's dealing."""

    def __init__(self, coin: bytes) -> None:
        self.differences, self.guarded, self.hashes = Differences(coin), True, b""


class _Pairs:
    """The pairs of one client's part, whose turns and guards are opened."""

    def __init__(self, channel: Channel, number: int, shape: Dealing) -> None:
        self._channel, self._number, self._shape = channel, number, shape
        # taken once for all parts, because new pages cost more than what is done with them
        kept = max(part.kept for part in shape.parts)
        others = max(part.others for part in shape.parts)
        self._kept_memory, self._others_memory = shape.vectors(kept), shape.vectors(others)
        self._kept_slots, self._other_slots = np.empty(kept, np.uint8), np.empty(others, np.uint8)

    def send(self, part: Part, order: Permutation, half: Upload, check: _Check) -> Self:
        """Send the shares of a client's guards and turns."""
        shape, self._part, self._check = self._shape, part, check
        self._kept = _first(self._kept_memory, part.kept)
        self._others = _first(self._others_memory, part.others)
        slots, others = self._kept_slots[: part.kept], self._other_slots[: part.others]
        bits, per_word, one = shape.bits, shape.per_word, int(self._number == 0)
        for start, stop, words in _chunks(half, part.first, part.kept, part.packed_bits):
            given = words, bits, per_word, one, self._kept
            kernels.vectors.unpack(*given, start, stop, slots[start:stop])
        for start, stop, words in _chunks(half, part.middle, part.others, part.packed_bits):
            to = order.places[start:stop]
            kernels.vectors.scatter(words, bits, per_word, one, to, self._others, others)
        guards, self._rest = np.split(order.order, [part.guards])
        self._guards = shape.vectors(part.guards)
        kernels.vectors.gather(self._others, guards, 0, self._guards)
        # partner p of vector i stands at p N + i
        self._turns = np.empty((part.partners, part.kept), np.uint8)
        kernels.vectors.gather(others[None], self._rest, part.guards, self._turns.reshape(1, -1))
        np.subtract(slots, self._turns, out=self._turns)
        self._channel.send("dealing.guards", self._guards)
        self._channel.send("dealing.turns", ring.pack(self._turns, shape.slot_bits))
        return self

    def finish(self) -> Self:
        """Receive the peer's shares of guards and turns, and hash the differences."""
        shape, part, channel = self._shape, self._part, self._channel
        guards = channel.recv("dealing.guards", self._guards.dtype, self._guards.shape)
        entries = ring.reduce(shape.entries(self._guards) + shape.entries(guards), shape.bits)
        self._check.guarded &= one_hot(entries, shape.bits)
        words = (ring.packed_words(self._turns.size, shape.slot_bits),)
        packed = channel.recv("dealing.turns", np.uint64, words)
        theirs = ring.unpack(packed, shape.slot_bits, self._turns.size)
        self._turns += theirs.reshape(self._turns.shape)
        self._turns &= np.uint8(shape.slots - 1)
        self._check.hashes += _hash(entries, ring.pack(self._turns, shape.slot_bits))
        bits, per_word, negated = shape.bits, shape.per_word, self._number == 1
        orders = self._rest.reshape(self._turns.shape)
        # chunk by chunk, so that a kept vector is in the cache for all its partners
        for at in range(0, part.kept, CHUNK):
            for partner, order in enumerate(orders):
                some, by = order[at : at + CHUNK], self._turns[partner, at : at + CHUNK]
                number, out = part.guards + partner * part.kept + at, shape.vectors(some.size)
                kernels.vectors.differences(
                    self._others, some, number, by, self._kept, at, bits, per_word, negated, out
                )
                self._check.differences.update(out)
        return self


def _first(memory: Ring, count: int) -> Ring:
    """Return a contiguous array for `count` vectors in memory for at least as many."""
    return memory.reshape(-1)[: len(memory) * count].reshape(-1, count)


def _chunks(
    half: Upload, first: int, count: int, packed_bits: int
) -> Iterator[tuple[int, int, Words]]:
    """Yield the words of a share of `count` packed vectors from word `first` on, by and by.

    With them come the numbers of the first of their vectors, and of the one after the last.
    """
    for start in range(0, count, CHUNK):
        stop = min(start + CHUNK, count)
        begin = first + start * packed_bits // 64
        words = half.words(0, begin, begin + ring.packed_words(stop - start, packed_bits))
        yield start, stop, words


def one_hot(values: NDArray[np.uint64], bits: int) -> bool:
    """Tell whether each column modulo 2^bits is one 1 among zeros."""
    reduced = ring.reduce(values, bits)
    return bool(((reduced == 1).sum(axis=0) == 1).all() and (reduced <= 1).all())


@dataclass(frozen=True)
class DealtUpload:
    """A server's half of a client whose dealing passed: an upload of one vote's rotations."""

    shape: Dealing
    half: Upload
    rotations: Upload = field(repr=False)
    vote: int = 0

    def words(self, row: int, start: int, stop: int) -> Words:
        return self.rotations.words(row, start, stop)


def histogram(
    number: int,
    uploads: Sequence[DealtUpload],
    weights: Sequence[int],
    bits: int,
    start: int,
    stop: int,
    cumulative: bool,
) -> RingShare:
    """Return party `number`'s share of the clients' histogram in the coordinates [start, stop).

    It is in the ring of `bits` bits. If it is `cumulative`, it has the weight of the clients in the
    buckets 0..y, for y below b-1. The slots b..W-1 count as the last bucket, which has no count of
    its own. Otherwise it has the weight of those in each of the slots 0..W-2. The rows are those of
    y, or of slots. Raises InputError unless `start` is a multiple of SLICE_ALIGN, and all uploads
    are of one vote.
    """
    shape, vote = uploads[0].shape, uploads[0].vote
    if any(upload.vote != vote for upload in uploads):
        raise InputError(f"votes of several levels in one sum: level {vote} and others; give one")
    rows = (shape.buckets if cumulative else shape.slots) - 1
    found, mask = np.zeros((rows, stop - start), ring.dtype(bits)), ring.mask(bits)
    for part, low, high in shape.pieces(vote, start, stop):
        for weight in sorted(set(weights)):
            members = [up for up, own in zip(uploads, weights, strict=True) if own == weight]
            total = turned_sum(number, members, part, low, high)
            weighed = found.dtype.type(weight & int(mask))
            given = total, shape.bits, shape.per_word, weighed, mask
            kernels.vectors.add_entries(*given, cumulative, low - start, found)
    return RingShare(found)


def turned_sum(
    number: int, uploads: Sequence[DealtUpload], part: Part, start: int, stop: int
) -> Ring:
    """Return shares of the sum of the clients' one-hot vectors in the coordinates [start, stop).

    Raises InputError unless `start` is a multiple of SLICE_ALIGN.
    """
    shape, at = uploads[0].shape, uploads[0].vote * uploads[0].shape.stride
    first, last = part.words_of(at + start, at + stop)
    first_turn, last_turn = words_of(shape.rotations_layout, start, stop)
    total = shape.vectors(stop - start)
    total[...] = 0
    for upload in uploads:
        kept = upload.half.words(0, first, last)
        turns = upload.rotations.words(0, first_turn, last_turn)
        kernels.vectors.add_turned(kept, turns, shape.bits, shape.per_word, int(number == 0), total)
    return total
