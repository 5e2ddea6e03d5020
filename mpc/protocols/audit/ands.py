"""ANDs of authenticated bits (Katz, Ranellucci, Rosulek, Wang, CRYPTO 2018).

A leaky AND is made of three authenticated bits x, y, r, with 128 bits of correlation for x, whose
hashes are the only ones. Delta_0 ^ Delta_1 is 1 at the top of the word that MACs are, which
`Session.establish` sees to in the session of an audit. With H of OT extension, at the tweaks of the
OTs of x, party j computes

    C_j = y_j Delta_j ^ K_j[y] ^ M_j[y]
    G_j = H(K_j[x]) ^ H(K_j[x] ^ Delta_j) ^ C_j                     sent, 64 bits
    S_j = H(K_j[x]) ^ H(M_j[x]) ^ x_j (G_(1-j) ^ C_j)        S_0 ^ S_1 = x y (Delta_0 ^ Delta_1)
    d_j = top(S_j) ^ r_j                                            sent, 1 bit
    z   = r ^ d_0 ^ d_1
    T_j = S_j ^ z_j Delta_j ^ K_j[z] ^ M_j[z]                       equal if z = x y

T_0 = T_1 is compared. A wrong d is always found. A wrong G is not found where the peer's x is 0:
who sends one guesses x, and is found with a chance of one half. So leaky ANDs are put into buckets
of B, of each of which comes one AND, and its x is known only if all of them are guessed:

    x = XOR x_i,   y = y_1,   z = z_1 ^ XOR_(i>1) (z_i ^ d_i x_i)   with d_i = y_1 ^ y_i opened

The leaky ANDs lie in B rows of n, and bucket b has number b + s_i modulo n of row i. The first
shift is 0, and the others are uniform: they are tossed when all is fixed and compared. Say that a_i
of row i are guessed. That no guess is found has a chance of 2^-a_1 .. 2^-a_B. A bucket whose first
is guessed has a guessed one of row i with a chance of a_i / n, independently for each i > 1. There
are a_1 such buckets: that any of them is all guessed has a chance of at most a_1 .. a_B / n^(B-1).
Because a 2^-a is at most 1/2, both together have at most 2^-B / n^(B-1), and B is the smallest with
which this is at most 2^-40. It needs no more of s than this, no permutation of rows: memory is read
in order.

Of these come products of bits that are known already: a of party 0 and b of party 1, both with
MACs. With k = a ^ b, what is opened beside the d_i is q = k ^ x ^ y, which y hides, and

    w = z ^ q x = x (x ^ k)                    with x as random as before, which nobody knows
    w ^ (x ^ a) (k ^ 1) = a b                  where x ^ a is opened, too, which x hides

So y is used up. Of MACs and keys, `audit.bits.MAC_BITS` bits are kept.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits
from securemedian.mpc.protocols.audit.equality import settle, settling
from securemedian.mpc.protocols.audit.macs import TREE_BITS
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS, Opener
from securemedian.mpc.protocols.boolean import pack_bits, unpack_bits
from securemedian.mpc.protocols.channel import Planned, both_ways
from securemedian.mpc.protocols.dealing import toss, toss_messages
from securemedian.mpc.protocols.kernels import ands as kernels
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.consistency import PROOF_WORDS
from securemedian.mpc.protocols.ot.extension import ALIGN, Scratch
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS
from securemedian.mpc.protocols.ring import packed_words

STATISTICAL_BITS = 40
# Leaky ANDs whose OTs are made one after the other, and how many times as many are checked at once:
# the more, the fewer rounds.
PORTION, PORTIONS = 63 << 11, 14
# Buckets whose MACs are combined at a time: they stay in the second-level cache.
TILE = 1 << 13
# x, y and z
Factors = Sequence[AuthenticatedBits]


@dataclass(frozen=True, eq=False)
class Kept:
    """One party's halves of n authenticated bits, kept in few bytes.

    `bits` are packed. Of MACs (row 0) and keys (row 1) there are the lowest 32 bits, and 16 more.
    """

    bits: Words = field(repr=False)
    low: NDArray[np.uint32] = field(repr=False)
    high: NDArray[np.uint16] = field(repr=False)

    @classmethod
    def empty(cls, count: int) -> Self:
        """Return memory for so many."""
        halves = np.empty((2, count), np.uint32), np.empty((2, count), np.uint16)
        return cls(np.empty(-(-count // 64), np.uint64), *halves)

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return bits one after another: all parts but the last have a multiple of 64."""
        if len(parts) == 1:
            return parts[0]
        each = zip(*((part.bits, part.low, part.high) for part in parts), strict=True)
        return cls(*(np.concatenate(arrays, axis=-1) for arrays in each))

    def put(self, half: int, start: int, words: Words) -> None:
        """Keep MACs, or keys, from place `start` on."""
        some = slice(start, start + len(words))
        self.low[half, some], self.high[half, some] = words, words >> np.uint64(32)

    def __getitem__(self, some: slice) -> Self:
        """Return some of the bits, from a multiple of 64 on."""
        words = slice(some.start // 64, -(-some.stop // 64))
        return type(self)(self.bits[words], self.low[:, some], self.high[:, some])


@dataclass(eq=False)
class Carry:
    """One party's halves of authenticated bits: `bits` packed, MACs and keys (n,)."""

    bits: Words = field(repr=False)
    macs: Words = field(repr=False)
    keys: Words = field(repr=False)

    @classmethod
    def zero(cls, count: int) -> Self:
        """Return so many zeros."""
        return cls(np.zeros(-(-count // 64), np.uint64), *np.zeros((2, count), np.uint64))


class _Half(NamedTuple):
    """The changes to MACs, or to keys, which depend on whose bits they are of."""

    # all ones if they are of party 0's bits, and else 0
    whose: np.uint64
    # the change for a public one, which is added to party 0's share
    added: np.uint64
    # the change for a one that the peer opens
    delta: np.uint64


def bucket_size(count: int) -> int:
    """Return how many leaky ANDs are put into each of `count` buckets."""
    size = 2
    while count ** (size - 1) << size < 1 << STATISTICAL_BITS:
        size += 1
    return size


class AndMaker:
    """The maker of leaky ANDs, and of `products` with them, of one party on one lane."""

    def __init__(self, party: Party, opener: Opener, entropy: Entropy = os_entropy) -> None:
        """Take the lane of an audit's session, and what the MACs of what is opened go to.

        Raises LocalProtocolError if OTs are silent.
        """
        sender, receiver = party.pool.ends.sender, party.pool.ends.receiver
        if not isinstance(sender, SoftSpokenSender) or not isinstance(receiver, SoftSpokenReceiver):
            raise LocalProtocolError("authenticated bits are made with SoftSpokenOT alone")
        self._sender, self._receiver = sender, receiver
        self._channel, self._number, self._entropy = party.channel, party.number, entropy
        self._opener = opener
        # the word of Delta that MACs are made with
        self.delta = np.uint64(sender.delta[0])

    def products(self, bits: AuthenticatedBits, known: int) -> tuple[Kept, Kept]:
        """Return w and x for k = a ^ b, while the other party does the same.

        The `bits` are k as each party holds it: its own bits and their MACs, and the keys of the
        other's. w is a b for the first `known` ones, whose x are not returned, and x (x ^ k) for
        the rest. Raises PeerProtocolError if the peer did not follow the protocol: PeerDeviated,
        unless it is OT extension that has found it.
        """
        buckets = _buckets(len(bits))
        size = bucket_size(buckets)
        leaky = size * buckets
        factors, tests = _memory(leaky), Scratch().array("T", leaky)
        self.leaky(factors, tests)
        settle(self._channel, self._number, tests, "leaky ANDs", self._entropy)
        # makes room
        del tests
        seed = toss(self._channel, self._number, self._entropy)
        self._opener.mix(seed)
        found = self.combined(factors, rotations(seed, size, buckets), bits, known)
        self._opener.settle("openings of buckets of ANDs")
        return found

    def leaky(self, factors: Factors, tests: Words) -> None:
        """Make leaky ANDs: write their factors and T (n,).

        All OTs of a group are checked before its tables are sent. They are waited for only when
        the corrections of the next group are on their way.
        """
        x, y, z = factors
        delta, tops = self.delta, np.empty(len(tests) // 64, np.uint64)
        waiting, scratch = list[slice](), Scratch()

        def wait() -> None:
            """Finish S of the last group."""
            for some in waiting:
                shape, words = (some.stop - some.start,), slice(some.start // 64, some.stop // 64)
                received = self._channel.recv("and.tables", np.uint64, shape)
                kernels.mask_tops(x.bits[some], z.bits[some], received, tests[some], tops[words])
            waiting.clear()

        for some in _groups(len(tests)):
            own, key0, key1 = hashes = [
                scratch.array(f"hash of {what}", some.stop - some.start)
                for what in ("own", "key 0", "key 1")
            ]
            self._correlated([factor[some] for factor in factors], hashes, wait)
            # new each time, because the channel may still be sending the last ones
            sent = np.empty(len(own), np.uint64)
            given = *y[some].arrays, x.bits[some], own, key0, key1, delta
            kernels.garble(*given, tests[some], sent)
            self._channel.send("and.tables", sent)
            waiting.append(some)
        wait()
        opened = tops ^ self._channel.exchange("and.tops", tops)
        kernels.unmask(opened, self._number, delta, *z.arrays, tests)

    def _correlated(
        self, factors: Factors, hashes: Sequence[Words], wait: Callable[[], None]
    ) -> None:
        """Make and check the OTs of leaky ANDs: the shares of x, y and r, with MACs and keys.

        The hashes are of the MACs of x, of its keys, and of those ^ Delta. `wait` receives what was
        sent before.
        """
        sender, receiver = self._sender, self._receiver
        senders, receivers = (sender, sender.low), (receiver, receiver.low)
        pieces = [slice(i, i + PORTION) for i in range(0, len(hashes[0]), PORTION)]
        for some in pieces:
            x, *rest = (factor[some] for factor in factors)
            choices = (
                receiver.extend_correlated(x.macs, hashes[0][some]),
                *(receiver.low.extend_correlated(each.macs) for each in rest),
            )
            for factor, words in zip((x, *rest), choices, strict=True):
                packing.unpack_bits(words, factor.bits)
        for each in receivers:
            each.seal()
        wait()
        for some in pieces:
            x, *rest = (factor[some] for factor in factors)
            sender.extend_correlated(x.keys, *(each[some] for each in hashes[1:]))
            for half in rest:
                sender.low.extend_correlated(half.keys)
        for end in senders:
            end.challenge()
        for each in receivers:
            each.weigh()
        for each in receivers:
            each.prove()
        for end in senders:
            end.verify()

    def combined(
        self, leaky: Factors, turns: Sequence[int], given: AuthenticatedBits, known: int
    ) -> tuple[Kept, Kept]:
        """Open what differs within buckets, and what makes `products` of each: return these.

        Row i of the leaky ANDs is turned by turns[i].
        """
        rows = [[each.reshape(len(turns), -1) for each in factor.arrays] for factor in leaky]
        count, buckets, number = len(given), rows[0][0].shape[1], self._number
        x, y, z = (
            np.stack([np.roll(row, -turn) for row, turn in zip(bits, turns, strict=True)])
            for bits, _, _ in rows
        )
        total = np.bitwise_xor.reduce
        first, a = total(x), given.bits[:known] * np.uint8(number == 0)
        masked = given.bits ^ first[:count] ^ y[0, :count], a ^ first[:known]
        opened = np.concatenate([(y[0] ^ y[1:]).reshape(-1), *masked])
        its = unpack_bits(self._opener.exchange("and.buckets", pack_bits(opened)), opened.size)
        opened ^= its
        ends = [(len(turns) - 1) * buckets, (len(turns) - 1) * buckets + count]
        (d, q, p), (its_d, its_q, its_p) = (np.split(each, ends) for each in (opened, its))
        d, its_d = (each.reshape(-1, buckets) for each in (d, its_d))
        bits = (total(z) ^ total(d & x[1:]))[:count] ^ q & first[:count]
        bits[:known] ^= p & (given.bits[:known] ^ np.uint8(number == 0))
        w, free = Kept.empty(count), Kept.empty(count - known)
        w.bits[:], free.bits[:] = pack_bits(bits), pack_bits(first[known:count])
        shifts = np.array(turns)
        tiles = [
            slice(start, min(start + TILE, stop))
            for begin, stop in ((0, known), (known, count))
            for start in range(begin, stop, TILE)
        ]
        for some in tiles:
            proved = []
            for half, deltas in enumerate(self._deltas()):
                of_x, of_y, of_z = (row[1 + half] for row in rows)
                found = np.empty((3, some.stop - some.start), np.uint64)
                proofs = np.empty((len(d) + 2, found.shape[1]), np.uint64)
                given_d = shifts, d, its_d, deltas.delta, some.start
                kernels.combine(of_x, of_y, of_z, *given_d, found, proofs[:-2])
                k = (given.macs, given.keys)[half][some]
                kernels.mask_products(found, k, q[some], its_q[some], deltas.delta, MAC_MASK)
                proofs[-2] = found[1]
                if some.start < known:
                    kernels.unmask_products(found, k, p[some], its_p[some], *deltas, MAC_MASK)
                    proofs[-1] = found[0]
                else:
                    free.put(half, some.start - known, found[0])
                w.put(half, some.start, found[2])
                proved.append(proofs if some.start < known else proofs[:-1])
            self._opener.add_macs(*proved)
        return w, free

    def _deltas(self) -> tuple[_Half, _Half]:
        """Return what MACs, and then keys, are changed by."""
        none, every = np.uint64(0), np.uint64(2**64 - 1)
        if self._number == 0:
            return _Half(every, none, none), _Half(none, none, self.delta)
        return _Half(none, none, none), _Half(every, self.delta, self.delta)

    def opened(self, carry: Carry, k: AuthenticatedBits, x: Kept) -> Words:
        """Open c + x + a, packed.

        SECURITY: nothing that is made of it may be opened before the opener is settled, to which
        the MACs of what is opened here are appended. Unless an x hides it.
        """
        mine = carry.bits ^ x.bits
        if self._number == 0:
            mine ^= pack_bits(k.bits)
        theirs = self._opener.exchange("and.openings", mine)
        proofs = np.empty((2, len(k)), np.uint64)
        for half, (whose, _, delta) in enumerate(self._deltas()):
            c, sums = (carry.macs, carry.keys)[half], (k.macs, k.keys)[half]
            given = c, x.low[half], x.high[half], sums, theirs, whose, delta
            kernels.authenticate(*given, MAC_MASK, proofs[half])
        self._opener.add_macs(*proofs)
        return mine ^ theirs

    def carried(
        self,
        carry: Carry,
        k: AuthenticatedBits,
        changes: tuple[Words, Words],
        w: Kept,
        x: Kept,
        opened: Words | None,
    ) -> None:
        """Turn a carry c into the next: (a + c) (b + c) + c, for bits a and b that were changed.

        `changes` are what is added to this party's bit of k, and to the other's, packed. `opened`
        is c + x + a, before the change, for w = x (x + k). Or it is None for the first, of which c
        is 0 and w = a b.
        """
        p, q = changes if self._number == 0 else changes[::-1]
        if opened is not None:
            # (x + p) (x + k + q)
            p, q = p ^ opened, q ^ opened
            public = [np.stack([p ^ q, p, p & q])] * 2
        else:
            # each bit is multiplied by what is added to the other one
            public = [np.stack([np.zeros_like(e), e, p & q]) for e in changes[::-1]]
        s, e, r = public[0]
        carry.bits ^= w.bits ^ s & x.bits ^ e & pack_bits(k.bits)
        if self._number == 0:
            carry.bits ^= r
        for half, (_, added, _) in enumerate(self._deltas()):
            c, sums = (carry.macs, carry.keys)[half], (k.macs, k.keys)[half]
            parts = w.low[half], w.high[half], x.low[half], x.high[half]
            kernels.add_product(public[half], *parts, sums, added, c)


def ots_of(count: int) -> int:
    """Return how many OTs `products` takes, of both directions."""
    return 6 * _leaky_count(count)


def messages(count: int, known: int) -> Iterator[Planned]:
    """Yield what each party sends (True) and receives (False) in `products`, in its order."""
    both, seed = (True, False), (SEED_BYTES,)
    # of x, y and r, and for the checks
    trees = [SECURITY_BITS // TREE_BITS, *[SECURITY_BITS // TREE_BITS // 2] * 2]
    leaky = _leaky_count(count)
    tables: list[Planned] = []
    for some in _groups(leaky):
        group = some.stop - some.start
        sizes = [min(PORTION, group - at) for at in range(0, group, PORTION)]
        for sent in both:
            if not sent:
                yield from tables
            for size, each in product(sizes, trees):
                yield sent, "ot.corrections", np.uint64, (each - 1, size // 64)
            for each in trees[:2]:
                yield sent, "ot.corrections", np.uint64, (each - 1, ALIGN // 64)
        for label, dtype, shape in (
            ("ot.challenge", np.uint8, seed),
            ("ot.proof", np.uint64, (PROOF_WORDS,)),
        ):
            for sent in both:
                yield from [(sent, label, dtype, shape)] * 2
        sent_tables, *tables = both_ways("and.tables", group)
        yield sent_tables
    yield from tables
    yield from both_ways("and.tops", leaky // 64)
    buckets = _buckets(count)
    yield from settling()
    yield from toss_messages()
    words = packed_words((bucket_size(buckets) - 1) * buckets + count + known, 1)
    yield from both_ways("and.buckets", words + DIGEST_WORDS)
    yield from both_ways("opening.digest", DIGEST_WORDS)


def _memory(leaky: int) -> Factors:
    """Return memory for the factors of leaky ANDs."""
    scratch = Scratch()
    return [
        AuthenticatedBits(
            scratch.array(f"bits of {name}", leaky // 8).view(np.uint8),
            *(scratch.array(f"{half} of {name}", leaky) for half in ("macs", "keys")),
        )
        for name in "xyz"
    ]


def _groups(leaky: int) -> Iterator[slice]:
    """Yield which of so many leaky ANDs have their OTs checked at once: even parts of them."""
    whole = -(-leaky // PORTION)
    together = -(-whole // -(-whole // PORTIONS)) * PORTION
    for start in range(0, leaky, together):
        yield slice(start, min(start + together, leaky))


def _buckets(count: int) -> int:
    """Return how many buckets are filled for so many products."""
    return -(-max(count, 1) // ALIGN) * ALIGN


def _leaky_count(count: int) -> int:
    """Return how many leaky ANDs are made for so many products."""
    return bucket_size(_buckets(count)) * _buckets(count)


def rotations(seed: bytes, size: int, count: int) -> list[int]:
    """Return by how much each of `size` rows of `count` is turned: s_i, all but s_1 uniform."""
    stream = Stream(seed)
    # modulo numbers so large that it makes no difference
    drawn = [int.from_bytes(stream.words(2).tobytes(), "little") for _ in range(size - 1)]
    return [0, *(number % count for number in drawn)]
