"""The authenticated bisect: a bit is opened only if it is the answer to the right question.

Each party s has a share X_s of cumulative counts H(0), .., H(W-2) in Z_2^l, per coordinate, and
proves to the other that all it opens is made of it. Both are prover and verifier at the same time.
MACs over Z_2^m are those of `audit.macs`, and MACs of bits those of `audit.bits`.

Ahead of time, when nothing but W, l and the coordinates are known (`Lane.prepare`):

    masks    MACs of uniform a_s, of the shape of X_s. They are made of the first tree.
    bits     For each step and coordinate, l random bits b_t with MACs over Z_2^(l-t). That it is a
             bit is proved for each t < l - 1. *Partners* are more such bits: P rows of a prime
             length L, for N bits. The bits take the last N places of a row, and the one at place j
             has the partners at j + s_p modulo L. The s_p are tossed when all are fixed. The
             partners of the first L - N places are *guards*, which are opened. Of the others
             h = b ^ partner is, so that b - partner = 0 where h is 0, and b + partner - 1 = 0 where
             it is 1. Both are wrong for one that is not a bit, unless its partner is not, either.
    ANDs     For each t < l - 1, with a and b the random bits b_t of parties 0 and 1, k = a ^ b and
             bits x that nobody knows: w_0 = a b and, for others, x and w_t = x (x ^ k), all with
             MACs (`audit.ands`).

Then X_s is fixed (`bind`): each sends X_s - a_s. Clients prove that it is the sum of their shares
(`audit.binding`). Each step asks for one count of each coordinate, H(y), at a y that the digits so
far say, whether H(y) >= k (`ask`):

    open     z_s is X_s(y), minus k at party 0. It sends d_t = b_t ^ bit t of z_s. Because b ^ d is
             d + (1 - 2 d) b over the ring, z_s - sum_t 2^t (d_t + (1 - 2 d_t) b_t) has to be 0
             modulo 2^l, and has MACs, whose digest goes along. The peer checks it before it sends
             anything else. Bit t of z_s is b_t ^ d_t, whose MAC is that of b_t modulo 2.
    carry    c_1 = a_0 b_0 and c_(t+1) = (a_t ^ c_t)(b_t ^ c_t) ^ c_t for the bits a of z_0 and b of
             z_1, which are the random ones and d. So c_1 is linear in w_0 and these. Of each other
             c_t, c_t ^ x ^ the random bit of a is opened, and c_(t+1) is linear in w_t, x and
             these. The sign is a_(l-1) ^ b_(l-1) ^ c_(l-1).
    digit    Only when the MACs of all that was opened are checked, the shares of the sign are
             opened, with theirs.

Say that for some t the numbers at places A are not bits, nor the partners at B_p of row p. All pass
only if A + s_p = B_p modulo L for each p, because only another such number goes with one. A is not
empty and has no place of a guard. As L is prime, only 0 turns A into itself, and at most one s_p of
L fits: they pass with a chance of at most L^-P, at most 2^-40.

SECURITY: a lane goes through its phases once. After any failure all that was made is dropped, with
the session. A second `bind` to the same a would tell a client's shares. Each digest is of values
that are opened, or that are 0 if the party is honest, as `audit.opening` demands.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Bits, Ring, RingShare, Words
from securemedian.mpc.canonical import digest
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit import ands, macs
from securemedian.mpc.protocols.audit.ands import AndMaker, Carry, Kept, rotations
from securemedian.mpc.protocols.audit.binding import Binder, Bound, fold_shape, padded
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits, masks_of
from securemedian.mpc.protocols.audit.macs import Prover, Verifier, packed, per_block, slot_of
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS, Opener
from securemedian.mpc.protocols.boolean import pack_bits, unpack_bits
from securemedian.mpc.protocols.channel import Channel, Planned, both_ways
from securemedian.mpc.protocols.dealing import Dealing, nothing, toss, toss_messages
from securemedian.mpc.protocols.kernels import bisecting as kernels
from securemedian.mpc.protocols.kernels import searching
from securemedian.mpc.protocols.party import Session

# SECURITY: any other number passes for a bit with a chance of 2^-CHECK_BITS
CHECK_BITS = 40
# The fewest partners of a row that are opened.
GUARDS = 64
# Elements that are compared at a time, while they are in the cache.
TILE = 1 << 13
# The fewest ANDs that are made at once, where a chunk needs as many: of so many a bucket has 3, and
# the more there are, the fewer rounds it takes.
POOL = 15 << 16
# Bytes of an AND while it is made: three leaky ones, and what comes of them.
AND_BYTES = 280
# Sees to it that something is stored before a message that depends on it is sent. Lanes may each
# call it.
Mark = Callable[[], None]
# Takes the coordinates that are done.
Report = Callable[[int], None]


def pools_of(bits: int, steps: int, width: int) -> list[int]:
    """Return how many rows of `width` ANDs are made at a time: of l - 1 bits of each step."""
    rows = (bits - 1) * steps
    pools = max(1, rows // -(-POOL // width)) if rows else 0
    return [rows // pools + (i < rows % pools) for i in range(pools)]


def partners_of(count: int) -> tuple[int, int]:
    """Return P and L: the rows of partners of `count` numbers, and the partners of each row."""
    length = count + GUARDS
    while any(length % divisor == 0 for divisor in range(2, math.isqrt(length) + 1)):
        length += 1
    return math.ceil(CHECK_BITS / math.log2(length)), length


@dataclass
class _Committed:
    """Elements of one chunk that both parties have committed to, and the peer's f, packed."""

    at: int
    their_at: int
    f: Words = field(repr=False)


# by step
Numbers = dict[int, Ring]
# by step and t
Committed = dict[tuple[int, int], _Committed]
# by step and t: w and x, or w alone, twice, of t = 0
Products = dict[tuple[int, int], tuple[Kept, Kept]]


@dataclass
class _Chunk:
    """Coordinates [start, start + dim) of a lane: their masks, then shares, and random bits."""

    # of a, then X: (W-1, dim)
    bound: Bound
    # each step's random numbers of this party (padded,), until the step takes them
    numbers: Numbers = field(repr=False)
    bits: Committed = field(repr=False)
    products: Products = field(repr=False)


class Lane:
    """One lane of one party. The phases are `prepare`, `bind`, and `ask` for each step.

    Used by one thread. Raises LocalProtocolError for a lane of this session that was made before.
    """

    def __init__(self, session: Session, number: int, channel: Channel, shape: Dealing) -> None:
        self.party, self.shape = session.party(number, channel), shape
        self.opener = Opener(
            channel, self.party.number, digest("bisect", session.session_id, number)
        )
        self.prover = Prover(session, number, channel)
        self.verifier = Verifier(session, number, channel)
        self.binder = Binder(self.prover, self.verifier, shape)
        self._ands = AndMaker(self.party, self.opener, session.entropy)
        self._entropy, self._lane = session.entropy, number
        self._slot = slot_of(shape.bits)
        self._delta = packed(self.verifier.constant(np.ones(1, np.uint8)), self._slot)[:, 0]
        self._chunks: list[_Chunk] = []
        # one step for each bit of a bucket, the highest first
        self._steps = list(reversed(range(shape.slot_bits)))
        self._bound = self._folded = False

    def __repr__(self) -> str:
        return f"Lane({self._lane}, {len(self._chunks)} chunks, <secrets>)"

    @property
    def ends(self) -> list[tuple[int, int]]:
        """Return the coordinates [start, stop) of each chunk."""
        return [(each.bound.start, each.bound.start + each.bound.dim) for each in self._chunks]

    # Ahead of time

    def prepare(
        self, chunks: Sequence[tuple[int, int]], masks: bool, report: Report = nothing
    ) -> None:
        """Make all that needs no upload, for chunks [start, stop), while the peer does the same.

        One lane of a session has the `masks` of clients' folds. Each coordinate is reported when
        its bits are made, and again when its ANDs are. Raises PeerProtocolError if the peer did not
        follow the protocol.
        """
        if self._chunks or self.binder.masks:
            raise LocalProtocolError("a lane is prepared once")
        if any((stop - start) % 64 for start, stop in chunks[:-1]):
            raise LocalProtocolError("the last chunk alone ends anywhere")
        made = [self._make(stop - start, report) for start, stop in chunks]
        # last, because these are kept, and what is made takes more memory meanwhile
        for (start, stop), kept in zip(chunks, made, strict=True):
            bound = self.binder.draw(start, self.shape.slots - 1, stop - start)
            self.binder.chunks.append(bound)
            self._chunks.append(_Chunk(bound, *kept))
        if masks:
            self.binder.masks = self.binder.draw(0, *fold_shape(self.shape))

    def _make(self, dim: int, report: Report) -> tuple[Numbers, Committed, Products]:
        """Make the random bits of all steps of a chunk, prove that they are bits, and make ANDs."""
        bits, width, steps = self.shape.bits, padded(dim), len(self._steps)
        words = self.party.randomness.words(-(-steps * width * ring.dtype(bits).itemsize // 8))
        numbers = ring.reduce(words.view(ring.dtype(bits))[: steps * width], bits)
        committed, proved = Committed(), list[AuthenticatedBits]()
        for t in range(bits):
            at, their_at, f, halves = self._prove_bits((numbers >> t & 1).astype(np.uint8), t)
            f = self.verifier.opened(f, steps * width, bits - t)
            for step in range(steps):
                first = step * width
                its = ring.pack(f[:, first : first + width], bits - t)
                blocks = first // per_block(bits - t)
                committed[step, t] = _Committed(at + blocks, their_at + blocks, its)
                if halves is not None:
                    proved.append(halves[first : first + width])
        report(dim)
        self.opener.what = f"the ANDs of lane {self._lane}"
        products, done, rows = Products(), 0, len(proved)
        for count in pools_of(bits, steps, width):
            # taken, which makes room
            some = AuthenticatedBits.joined([proved.pop(0) for _ in range(count)])
            known = max(0, min(done + count, steps) - done) * width
            w, x = self._ands.products(some, known)
            for start in range(0, count * width, width):
                t, step = divmod(done + start // width, steps)
                of_w = w[start : start + width]
                of_x = x[start - known : start - known + width] if t else of_w
                products[step, t] = of_w, of_x
            report(dim * (done + count) // rows - dim * done // rows)
            done += count
        return dict(enumerate(numbers.reshape(steps, width))), committed, products

    def _prove_bits(self, values: Bits, t: int) -> tuple[int, int, Words, AuthenticatedBits | None]:
        """Commit to bits over Z_2^(l-t), and prove them.

        Return both positions, the peer's f, and this party's halves of the sums of both parties'
        bits, with MACs modulo 2. Those of Z_2 are bits whatever they are, and have no ANDs.
        """
        bits, count, slot = self.shape.bits - t, values.size, self._slot
        if bits == 1:
            at, _ = self.prover.commit(values, 1)
            return at, *self.verifier.receive(count, 1), None
        at, tags = self.prover.commit(values, bits, slot)
        their_at, f = self.verifier.receive(count, bits)
        each, length = partners_of(count)
        drawn = self.party.randomness.words(ring.packed_words(each * length, 1))
        claims = unpack_bits(drawn, each * length)
        partner_tags = self.prover.commit(claims, bits, slot)[1]
        partners_at, partners_f = self.verifier.receive(claims.size, bits)
        seed = toss(self.party.channel, self.party.number, self._entropy)
        self.opener.mix(seed)
        # the proved bits are not turned
        turns = np.array(rotations(seed, each + 1, length)[1:])
        rows = zip(claims.reshape(each, length), turns.tolist(), strict=True)
        opened = np.stack([np.roll(row, -turn) for row, turn in rows])
        # the guards themselves, and h of the others
        opened[:, length - count :] ^= values
        words, zero = pack_bits(opened.reshape(-1)), np.zeros_like(self._delta)
        self.opener.begin(words, self._differences(tags, partner_tags, turns, opened, zero, bits))
        found = AuthenticatedBits(values, np.empty(count, np.uint64), np.empty(count, np.uint64))
        kernels.low_bits(tags, slot, found.macs)
        # tags make room for keys
        del tags, partner_tags, claims, drawn
        keys, partner_keys = (self.verifier.empty(size, slot) for size in (count, each * length))
        for where, given, out in ((their_at, f, keys), (partners_at, partners_f, partner_keys)):
            unpacked = self.verifier.opened(given, out.shape[1], bits)
            self.verifier.expand(where, unpacked, 0, bits, out, slot)
        kernels.low_bits(keys, slot, found.keys)

        def expect(words: Words) -> Iterator[Words]:
            theirs = unpack_bits(words, opened.size).reshape(opened.shape)
            return self._differences(keys, partner_keys, turns, theirs, self._delta, bits)

        self.opener.what = f"random bits {t} of lane {self._lane}"
        self.opener.exchange("bisect.claims", words, expect)
        return at, their_at, f, found

    def _differences(
        self,
        tags: Words,
        partners: Words,
        turns: NDArray[np.int64],
        opened: Bits,
        delta: Words,
        bits: int,
    ) -> Iterator[Words]:
        """Yield tags or keys of what must be 0: of guards, and of bits and each of their partners.

        Each piece lies where the one before it lay.
        """
        each, length = opened.shape
        guards = length - tags.shape[1]
        # guards are partners of nothing
        nothing = np.zeros(guards, np.uint64)
        memory = np.empty(each * TILE, np.uint64)
        for first, stop in ((0, guards), (guards, length)):
            flips = np.ascontiguousarray(opened[:, first:stop])
            for k, start in product(range(len(tags)), range(0, stop - first, TILE)):
                out = memory[: each * min(TILE, stop - first - start)].reshape(each, -1)
                upper = tags[k] if first else nothing
                rows = partners[k].reshape(each, -1)
                given = start, delta[k], self._slot, bits, out
                kernels.differences(upper, rows, turns + first, flips, *given)
                yield out

    # After the last upload

    def bind(self, sums: Callable[[int, int], RingShare], masks: Ring | None) -> None:
        """Fix this party's shares, while the peer does.

        `sums`(start, stop) returns cumulative ones, (W-1, stop - start). `masks` are the sum of
        those of the clients' folds, on the lane that has them. Raises LocalProtocolError if the
        lane is bound, because two differences with one a tell shares.
        """
        its_masks = self.binder.masks
        if self._bound or (masks is None) != (its_masks is None):
            raise LocalProtocolError("a lane is bound once, to what it is prepared for")
        self._bound = True
        for bound, ends in zip(self.binder.chunks, self.ends, strict=True):
            with self.party.reading_uploads():
                total = ring.reduce(sums(*ends), self.shape.bits)
            self.binder.shift(bound, total)
        if masks is not None and its_masks:
            self.binder.shift(its_masks, masks)

    def folds(self, coin: bytes) -> tuple[Words, Words]:
        """Return this lane's part of the tags and keys of fold(X) + R, as `Binder.folds` does.

        The coin was tossed after all that the lane is to open was fixed, by both.
        """
        if not self._bound or self._folded:
            raise LocalProtocolError("a lane is folded once, after it is bound")
        self._folded = True
        self.opener.mix(coin)
        return self.binder.folds(coin)

    def run(self, rank: int, opened: Mark, report: Report = nothing) -> NDArray[np.uint16]:
        """Return the bucket of the element of rank k in each coordinate of the lane, opened.

        `opened` is called before a share of a sign is sent. Each coordinate is reported once per
        step. Raises PeerDeviated.
        """
        if not self._folded:
            raise LocalProtocolError("a lane is bound, and folded, before it is asked")
        thresholds = self.shape.buckets - 1
        found = np.zeros(sum(chunk.bound.dim for chunk in self._chunks), np.uint16)
        while self._steps and found.size:
            # taken, so that none is asked twice
            step = self._steps.pop(0)
            rows = np.minimum(found + np.uint16((1 << step) - 1), np.uint16(thresholds - 1))
            self.opener.what = f"step {step} of lane {self._lane}"
            negative = self.ask(step, rows, rank, opened)
            searching.go_up(negative ^ np.uint8(1), 1 << step, thresholds, found)
            report(found.size)
        return found

    def ask(self, step: int, rows: NDArray[np.uint16], rank: int, opened: Mark) -> Bits:
        """Return 1 where H(y) < k for the y of each coordinate, opened, and 0 elsewhere."""
        bits = self.shape.bits
        values, masked = self._masked(step, rows, rank)
        own = (values, np.empty((bits, rows.size), np.uint64))
        peers, sent = np.empty((bits, rows.size), np.uint64), ring.pack(masked, bits)
        self.opener.begin(sent, self._zeros(step, rows, masked, rank, own[1], False))
        theirs = np.empty_like(masked)

        def expect(words: Words) -> Iterator[Words]:
            theirs[:] = ring.unpack(words, bits, rows.size)
            return self._zeros(step, rows, theirs, rank, peers, True)

        # SECURITY: checked before anything else of this step is sent
        self.opener.exchange("bisect.masked", sent, expect)
        for chunk, t in product(self._chunks, range(bits)):
            # taken: no step has them again
            del chunk.bits[step, t]
        sign = self._sign(step, own[0] ^ masked, own[1], peers, (masked, theirs))
        # SECURITY: all openings are checked before a sign is
        self.opener.settle("the openings of ANDs")
        opened()
        words = pack_bits(sign.bits)
        self.opener.begin(words, [sign.macs & MAC_MASK])

        def expect_sign(words: Words) -> list[Words]:
            its_bits = unpack_bits(words, rows.size)
            return [(sign.keys ^ masks_of(its_bits) & self._ands.delta) & MAC_MASK]

        told = self.opener.exchange("bisect.sign", words, expect_sign)
        return unpack_bits(words ^ told, rows.size)

    def _masked(self, step: int, rows: NDArray[np.uint16], rank: int) -> tuple[Ring, Ring]:
        """Return this party's z, and z ^ b, whose random numbers are taken."""
        values, masks, at = [], [], 0
        for chunk in self._chunks:
            here = rows[None, at : at + chunk.bound.dim].astype(np.intp)
            values.append(np.take_along_axis(chunk.bound.values, here, axis=0)[0])
            masks.append(chunk.numbers.pop(step)[: chunk.bound.dim])
            at += chunk.bound.dim
        z = np.concatenate(values)
        if self.party.number == 0:
            z -= z.dtype.type(rank)
        z = ring.reduce(z, self.shape.bits)
        return z, z ^ np.concatenate(masks)

    def _zeros(
        self,
        step: int,
        rows: NDArray[np.uint16],
        masked: Ring,
        rank: int,
        low: Words,
        keys: bool,
    ) -> Iterator[Words]:
        """Yield tags of what must be 0, and write the MACs of bits b_t to `low` (l, n). Or keys.

        `masked` (n,) are the numbers d of whoever proves. Each piece lies where the one before it
        lay.
        """
        bits, slot, last = self.shape.bits, self._slot, self.shape.buckets - 2
        asked = sorted({*range((1 << step) - 1, last, 2 << step), last})
        public = np.zeros_like(masked) - masked
        if self.party.number == 1:
            # party 0's number, whose keys these are, is less by k
            public -= public.dtype.type(rank)
        public, at = ring.reduce(public, bits), 0
        end = self.verifier if keys else self.prover
        for chunk in self._chunks:
            bound, random = chunk.bound, [chunk.bits[step, t] for t in range(bits)]
            f = {y: self.binder.row(bound, y) if keys else None for y in asked}
            unpacked = [
                self.verifier.opened(its.f, bound.padded, bits - t) if keys else None
                for t, its in enumerate(random)
            ]
            for start in range(0, bound.dim, macs.PIECE):
                size = min(macs.PIECE, bound.dim - start)
                here = slice(at + start, at + start + size)
                out, words = (self.prover.empty(size, slot) for _ in range(2))
                for y in asked:
                    if (rows[here] == y).any():
                        again = self.binder.again(bound, f[y], y, start)
                        kernels.choose(again, rows[here], y, out)
                for t, its in enumerate(random):
                    place = (its.their_at if keys else its.at) + start // per_block(bits - t)
                    end.expand(place, unpacked[t], start, bits - t, words, slot)
                    kernels.low_bits(words, slot, low[t, here])
                    kernels.subtract_bit(words, masked[here], t, slot, out)
                if keys:
                    kernels.add_constants(out.copy(), public[here], self._delta, slot, out)
                kernels.keep_low(out, bits, slot)
                yield out
            at += bound.dim

    def _sign(
        self, step: int, random: Ring, macs: Words, keys: Words, changes: tuple[Ring, Ring]
    ) -> AuthenticatedBits:
        """Return the signs, from the random bits b_t of both parties.

        `random` are this party's, with their `macs` (l, n) and the `keys` of the peer's. `changes`
        are this party's d, and the peer's.
        """
        carry, last = Carry.zero(random.size), self.shape.bits - 1

        def both(t: int) -> tuple[AuthenticatedBits, tuple[Words, Words]]:
            """Return the sum of the random bits t, and what is added to either, packed."""
            own = AuthenticatedBits((random >> t & 1).astype(np.uint8), macs[t], keys[t])
            mine, theirs = (pack_bits((d >> t & 1).astype(np.uint8)) for d in changes)
            return own, (mine, theirs)

        for t in range(last):
            k, added = both(t)
            w, x = self._take(step, t)
            self._ands.carried(carry, k, added, w, x, self._opened(t, carry, k, x))
        k, (mine, theirs) = both(last)
        sign = k ^ AuthenticatedBits(unpack_bits(carry.bits, random.size), carry.macs, carry.keys)
        public = unpack_bits(mine ^ theirs, random.size)
        return sign.plus(self.party.number, public, self._ands.delta)

    def _take(self, step: int, t: int) -> tuple[Kept, Kept]:
        """Take w and x of a step from all chunks: no step has them again."""
        parts = [
            [each[0 : chunk.bound.dim] for each in chunk.products.pop((step, t))]
            for chunk in self._chunks
        ]
        w, x = map(Kept.joined, zip(*parts, strict=True))
        return w, x

    def _opened(self, t: int, carry: Carry, k: AuthenticatedBits, x: Kept) -> Words | None:
        """Open a masked carry, whose MACs are checked with the next message. The first one is 0."""
        return self._ands.opened(carry, k, x) if t else None


# The messages, for `plan`: those that each party sends (True) and receives (False), in its order


def _drawn(shape: Dealing, sizes: Sequence[int], masks: bool) -> list[int]:
    """Return how many elements are drawn at a time: of each chunk, and of the masks of folds."""
    counts = [(shape.slots - 1) * padded(size) for size in sizes]
    return counts + [math.prod(fold_shape(shape))] * masks


def prepare_messages(shape: Dealing, sizes: Sequence[int], masks: bool) -> Iterator[Planned]:
    """Yield the messages of `Lane.prepare`, for chunks of so many coordinates."""
    bits, steps = shape.bits, shape.slot_bits
    for size in sizes:
        width = padded(size)
        numbers, done = steps * width, 0
        partners = math.prod(partners_of(numbers))
        for m in range(bits, 0, -1):
            yield from both_ways("mac.values", ring.packed_words(macs.TREES * numbers, m))
            if m > 1:
                yield from both_ways("mac.values", ring.packed_words(macs.TREES * partners, m))
                yield from toss_messages()
                yield from both_ways("bisect.claims", ring.packed_words(partners, 1) + DIGEST_WORDS)
        for rows in pools_of(bits, steps, width):
            known = max(0, min(done + rows, steps) - done)
            yield from ands.messages(rows * width, known * width)
            done += rows
    for count in _drawn(shape, sizes, masks):
        yield from both_ways("mac.random", ring.packed_words((macs.TREES - 1) * count, bits))


def bind_messages(shape: Dealing, sizes: Sequence[int], masks: bool) -> Iterator[Planned]:
    """Yield the messages of `Lane.bind`."""
    for count in _drawn(shape, sizes, masks):
        yield from both_ways("bisect.change", ring.packed_words(count, shape.bits))


def run_messages(shape: Dealing, dim: int) -> Iterator[Planned]:
    """Yield the messages of `Lane.run`, of a lane of `dim` coordinates."""
    words = ring.packed_words(dim, 1)
    for _ in range(shape.slot_bits if dim else 0):
        yield from both_ways("bisect.masked", ring.packed_words(dim, shape.bits) + DIGEST_WORDS)
        for _ in range(shape.bits - 2):
            yield from both_ways("and.openings", words + DIGEST_WORDS)
        yield from both_ways("opening.digest", DIGEST_WORDS)
        yield from both_ways("bisect.sign", words + DIGEST_WORDS)


def needs(shape: Dealing, sizes: Sequence[int]) -> tuple[int, int]:
    """Return how many OTs a lane takes, of both directions, and about how many bytes.

    The bytes are those that it keeps, and takes while it makes one chunk or pool more. It keeps
    ANDs, f of the random bits and of a, X, and the random numbers. Of a chunk it makes the tags or
    keys of a step's bits and their partners, and of a pool of ANDs all of it.
    """
    dim, bits, steps = sum(sizes), shape.bits, shape.slot_bits
    entries, wide = shape.slots - 1, ring.dtype(bits).itemsize
    # w of each AND, and x of all but the first of a step: a bit, its MAC, and a key
    halves = dim * steps * max(0, 2 * bits - 3)
    kept = halves * (1 + 2 * macs.MAC_BITS) // 8 + dim * steps * wide
    kept += dim * steps * macs.TREES * bits * (bits + 1) // 2 // 8
    # not yet there when ANDs are made
    drawn = dim * (entries * wide + (macs.TREES - 1) * entries * bits // 8)
    widths = [padded(size) for size in sizes]
    pools = [rows * width for width in widths for rows in pools_of(bits, steps, width)]
    made = 8 * macs.words_of(macs.MAC_BITS, macs.slot_of(bits)) + macs.TREES * wide
    tagged = max(
        (count + math.prod(partners_of(count)) for width in widths if (count := steps * width)),
        default=0,
    )
    ots = sum(ands.ots_of(count) for count in pools)
    return ots, kept + max(drawn, made * tagged, AND_BYTES * max(pools, default=0))
