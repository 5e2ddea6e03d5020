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
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import DTypeLike

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits
from securemedian.mpc.protocols.audit.equality import settle, settling
from securemedian.mpc.protocols.audit.macs import TREE_BITS
from securemedian.mpc.protocols.audit.opening import DIGEST_WORDS, Opener
from securemedian.mpc.protocols.dealing import toss, toss_messages
from securemedian.mpc.protocols.kernels import ands as kernels
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.consistency import PROOF_WORDS
from securemedian.mpc.protocols.ot.extension import ALIGN, Scratch
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS

STATISTICAL_BITS = 40
# Leaky ANDs whose OTs are checked at once: so many that waiting for the peer costs little.
PORTION = 63 << 11
# x, y and z
Factors = Sequence[AuthenticatedBits]


class AuthenticatedTriples:
    """Authenticated bits x, y, z with z = x y, each of which is handed out once."""

    def __init__(self, *factors: AuthenticatedBits) -> None:
        """Take x, y and z, or nothing."""
        self._pools: list[Factors] = [factors] if factors else []

    def __len__(self) -> int:
        """Return how many are left."""
        return sum(len(pool[0]) for pool in self._pools)

    def __repr__(self) -> str:
        return f"AuthenticatedTriples({len(self)}, <secrets>)"

    def extend(self, others: Self) -> None:
        """Take all that others have."""
        self._pools += others._pools
        others._pools = []

    def take(self, count: int) -> tuple[AuthenticatedBits, AuthenticatedBits, AuthenticatedBits]:
        """Hand out x, y and z of the next. Raises LocalProtocolError if there are not as many."""
        if count > len(self):
            raise LocalProtocolError(f"{count} triples are wanted, and {len(self)} are left")
        taken: list[Factors] = []
        while count or not taken:
            pool = self._pools.pop(0)
            some = min(count, len(pool[0]))
            taken.append([factor[:some] for factor in pool])
            if some < len(pool[0]):
                self._pools.insert(0, [factor[some:] for factor in pool])
            count -= some
        x, y, z = (AuthenticatedBits.joined(parts) for parts in zip(*taken, strict=True))
        return x, y, z


def bucket_size(count: int) -> int:
    """Return how many leaky ANDs are put into each of `count` buckets."""
    size = 2
    while count ** (size - 1) << size < 1 << STATISTICAL_BITS:
        size += 1
    return size


class AndMaker:
    """The maker of authenticated triples, and of products with them, of one party on one lane."""

    def __init__(
        self,
        party: Party,
        opener: Opener,
        entropy: Entropy = os_entropy,
        portions: int = 1,
    ) -> None:
        """Take the lane of an audit's session. Raises LocalProtocolError if OTs are silent.

        The MACs of what is opened go to the `opener`. So many `portions` of OTs are checked at
        once: the more, the fewer rounds.
        """
        sender, receiver = party.pool.ends.sender, party.pool.ends.receiver
        if not isinstance(sender, SoftSpokenSender) or not isinstance(receiver, SoftSpokenReceiver):
            raise LocalProtocolError("authenticated bits are made with SoftSpokenOT alone")
        self._sender, self._receiver = sender, receiver
        self._channel, self._number, self._entropy = party.channel, party.number, entropy
        self._opener, self._together = opener, portions * PORTION
        # the word of Delta that MACs are made with
        self.delta = np.uint64(sender.delta[0])
        self._scratch = Scratch()

    def triples(self, count: int, bucket: int | None = None) -> AuthenticatedTriples:
        """Make triples, while the other party does the same.

        `bucket` is for tests. Raises PeerProtocolError if the peer did not follow the protocol:
        PeerDeviated, unless it is OT extension that has found it.
        """
        buckets = _buckets(count)
        size = bucket or bucket_size(buckets)
        leaky = size * buckets
        factors, tests = self._memory(leaky), self._scratch.array("T", leaky)
        for start in range(0, leaky, self._together):
            some = slice(start, start + self._together)
            self.leaky([factor[some] for factor in factors], tests[some])
        settle(self._channel, self._number, tests, "leaky ANDs", self._entropy)
        seed = toss(self._channel, self._number, self._entropy)
        self._opener.mix(seed)
        found = self.combined(factors, rotations(seed, size, buckets))
        self._opener.settle("openings of buckets of ANDs")
        return AuthenticatedTriples(*(factor[:count] for factor in found))

    def _memory(self, leaky: int) -> Factors:
        """Return memory for the factors of leaky ANDs."""
        return [
            AuthenticatedBits(
                self._scratch.array(f"bits of {name}", leaky // 8).view(np.uint8),
                *(self._scratch.array(f"{half} of {name}", leaky) for half in ("macs", "keys")),
            )
            for name in "xyz"
        ]

    def leaky(self, factors: Factors, tests: Words) -> None:
        """Make leaky ANDs, whose OTs are checked at once: write their factors and T (n,)."""
        x, y, z = factors
        count, delta = len(tests), self.delta
        own, key0, key1 = hashes = [
            self._scratch.array(f"hash of {what}", count) for what in ("own", "key 0", "key 1")
        ]
        self._correlated(factors, hashes)
        sent = np.empty(count, np.uint64)
        kernels.garble(*y.arrays, x.bits, own, key0, key1, delta, tests, sent)
        received = self._channel.exchange("and.tables", sent)
        tops = np.empty(count // 64, np.uint64)
        kernels.mask_tops(x.bits, z.bits, received, tests, tops)
        opened = tops ^ self._channel.exchange("and.tops", tops)
        kernels.unmask(opened, self._number, delta, *z.arrays, tests)

    def _correlated(self, factors: Factors, hashes: Sequence[Words]) -> None:
        """Make and check the OTs of leaky ANDs: the shares of x, y and r, with MACs and keys.

        The hashes are of the MACs of x, of its keys, and of those ^ Delta.
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

    def combined(self, leaky: Factors, turns: Sequence[int]) -> list[AuthenticatedBits]:
        """Open what differs within buckets, and return x, y and z of each.

        Row i of the leaky ANDs is turned by turns[i].
        """
        rows = [[each.reshape(len(turns), -1) for each in factor.arrays] for factor in leaky]
        x, y, z = (
            np.stack([np.roll(row, -turn) for row, turn in zip(bits, turns, strict=True)])
            for bits, _, _ in rows
        )
        own = y[0] ^ y[1:]
        its, mine = np.empty_like(own), np.empty((len(own), own.shape[1] // 64), np.uint64)
        packing.pack_bits(own.reshape(-1), mine.reshape(-1))
        theirs = self._opener.exchange("and.buckets", mine)
        packing.unpack_bits(theirs.reshape(-1), its.reshape(-1))
        d, total = own ^ its, np.bitwise_xor.reduce
        bits = [total(x), y[0], total(z) ^ total(d & x[1:])]
        macs, keys = (np.empty((3, x.shape[1]), np.uint64) for _ in range(2))
        proofs, wanted = (self._scratch.array(name, *own.shape) for name in ("proofs", "wanted"))
        for half, delta, out, opened in (
            (1, np.uint64(0), macs, proofs),
            (2, self.delta, keys, wanted),
        ):
            of_x, of_y, of_z = (row[half] for row in rows)
            kernels.combine(of_x, of_y, of_z, np.array(turns), d, its, delta, out, opened)
        self._opener.add_macs(proofs, wanted)
        return [AuthenticatedBits(*factor) for factor in zip(bits, macs, keys, strict=True)]

    def multiply(
        self, a: AuthenticatedBits, b: AuthenticatedBits, triples: AuthenticatedTriples
    ) -> AuthenticatedBits:
        """Return a b, with as many triples, in one round.

        SECURITY: nothing that is made of it may be opened before the opener is settled, to which
        the MACs of what is opened here are appended.
        """
        count = len(a)
        x, y, z = triples.take(count)
        mine = np.empty((2, -(-count // 64)), np.uint64)
        for factor, mask, words in zip((a, b), (x, y), mine, strict=True):
            packing.pack_bits(factor.bits ^ mask.bits, words)
        theirs = self._opener.exchange("and.openings", mine)
        for factor, mask, words in zip((a, b), (x, y), theirs, strict=True):
            proofs, wanted = np.empty(count, np.uint64), np.empty(count, np.uint64)
            halves = factor.macs, mask.macs, factor.keys, mask.keys
            kernels.authenticate(*halves, words, self.delta, MAC_MASK, proofs, wanted)
            self._opener.add_macs(proofs, wanted)
        # the party that adds d e: party 0 to its shares, party 1 to its keys of these
        one, zero = np.uint64(1), np.uint64(0)
        added = (one, zero, zero) if self._number == 0 else (zero, zero, self.delta)
        found = AuthenticatedBits(*(np.empty_like(each) for each in z.arrays))
        opened = mine ^ theirs
        for its_x, its_y, its_z, plus, out in zip(
            x.arrays, y.arrays, z.arrays, added, found.arrays, strict=True
        ):
            kernels.multiply(its_x, its_y, its_z, opened, plus, out)
        return found


def ots_of(count: int) -> int:
    """Return how many OTs `triples` takes, of both directions."""
    return 6 * _leaky_count(count)


def messages(
    count: int, portions: int = 1
) -> Iterator[tuple[bool, str, DTypeLike, tuple[int, ...]]]:
    """Yield what each party sends (True) and receives (False) in `triples`, in its order.

    With the label, dtype and shape of each message, for `plan`.
    """
    both, seed = (True, False), (SEED_BYTES,)
    # of x, y and r, and for the checks
    trees = [SECURITY_BITS // TREE_BITS, *[SECURITY_BITS // TREE_BITS // 2] * 2]
    leaky = _leaky_count(count)
    for start in range(0, leaky, portions * PORTION):
        some = min(portions * PORTION, leaky - start)
        sizes = [min(PORTION, some - at) for at in range(0, some, PORTION)]
        for sent in both:
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
        for label, words in (("and.tables", some), ("and.tops", some // 64)):
            for sent in both:
                yield sent, label, np.uint64, (words,)
    buckets = _buckets(count)
    yield from settling()
    yield from toss_messages()
    words = (bucket_size(buckets) - 1) * buckets // 64
    for label, size in (("and.buckets", words), ("opening.digest", 0)):
        for sent in both:
            yield sent, label, np.uint64, (size + DIGEST_WORDS,)


def _buckets(count: int) -> int:
    """Return how many buckets are filled for so many triples."""
    return -(-max(count, 1) // ALIGN) * ALIGN


def _leaky_count(count: int) -> int:
    """Return how many leaky ANDs are made for so many triples."""
    return bucket_size(_buckets(count)) * _buckets(count)


def rotations(seed: bytes, size: int, count: int) -> list[int]:
    """Return by how much each of `size` rows of `count` is turned: s_i, all but s_1 uniform."""
    stream = Stream(seed)
    # modulo numbers so large that it makes no difference
    drawn = [int.from_bytes(stream.words(2).tobytes(), "little") for _ in range(size - 1)]
    return [0, *(number % count for number in drawn)]
