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
of B, by a permutation that is tossed when all are fixed and compared. Of each bucket comes one AND,
of which x is known only if all of them are guessed:

    x = XOR x_i,   y = y_1,   z = z_1 ^ XOR_(i>1) (z_i ^ d_i x_i)   with d_i = y_1 ^ y_i opened

That one of n buckets is all guessed has a chance of at most n / C(B n, B) 2^-B; B is the smallest
with which it is below 2^-40.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits
from securemedian.mpc.protocols.audit.equality import Equality, settling
from securemedian.mpc.protocols.audit.macs import TREE_BITS
from securemedian.mpc.protocols.dealing import Permutation, toss, toss_messages
from securemedian.mpc.protocols.kernels import ands as kernels
from securemedian.mpc.protocols.kernels import packing
from securemedian.mpc.protocols.ot.consistency import PROOF_WORDS
from securemedian.mpc.protocols.ot.extension import ALIGN
from securemedian.mpc.protocols.ot.scratch import Scratch
from securemedian.mpc.protocols.ot.softspoken import SoftSpokenReceiver, SoftSpokenSender
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, Stream, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS

STATISTICAL_BITS = 40
# The fewest buckets that are filled at once, so that they are small.
FEWEST = 64
# Leaky ANDs whose OTs are checked at once: so many that waiting for the peer costs little.
PORTION = 1 << 16
# Leaky ANDs that are hashed at once, and then still in the cache.
_TILE = 1 << 12
# of leaky ANDs
Order = NDArray[np.uint32]


class AuthenticatedTriples:
    """Authenticated bits x, y, z with z = x y, each of which is handed out once."""

    def __init__(self, x: AuthenticatedBits, y: AuthenticatedBits, z: AuthenticatedBits) -> None:
        self._factors, self._used = (x, y, z), 0

    def __len__(self) -> int:
        """Return how many are left."""
        return len(self._factors[0]) - self._used

    def __repr__(self) -> str:
        return f"AuthenticatedTriples({len(self)}, <secrets>)"

    def take(self, count: int) -> tuple[AuthenticatedBits, AuthenticatedBits, AuthenticatedBits]:
        """Hand out x, y and z of the next. Raises LocalProtocolError if there are not as many."""
        if count > len(self):
            raise LocalProtocolError(f"{count} triples are wanted, and {len(self)} are left")
        some = slice(self._used, self._used + count)
        self._used += count
        x, y, z = (factor[some] for factor in self._factors)
        return x, y, z


def bucket_size(count: int) -> int:
    """Return how many leaky ANDs are put into each of `count` buckets."""
    size = 2
    while count << STATISTICAL_BITS > math.comb(size * count, size) << size:
        size += 1
    return size


class AndMaker:
    """What makes authenticated triples and multiplies with them, of one party on one lane."""

    def __init__(self, party: Party, entropy: Entropy = os_entropy) -> None:
        """Take the lane of an audit's session. Raises LocalProtocolError if OTs are silent."""
        sender, receiver = party.pool.ends.sender, party.pool.ends.receiver
        if not isinstance(sender, SoftSpokenSender) or not isinstance(receiver, SoftSpokenReceiver):
            raise LocalProtocolError("authenticated bits are made with SoftSpokenOT alone")
        self._sender, self._receiver = sender, receiver
        self._channel, self._number, self._entropy = party.channel, party.number, entropy
        # the word of Delta that MACs are made with
        self.delta = np.uint64(sender.delta[0])
        self._scratch = Scratch()

    def triples(self, count: int, bucket: int | None = None) -> AuthenticatedTriples:
        """Make triples, while the other party does the same.

        `bucket` is for tests. Raises PeerProtocolError if the peer did not follow the protocol:
        PeerDeviated, unless it is OT extension that has found it.
        """
        buckets = max(count, FEWEST)
        size = bucket or bucket_size(buckets)
        leaky = _aligned(size * buckets)
        records = self._scratch.array("records", leaky, kernels.RECORD)
        shares, tests = (self._scratch.array(*each) for each in (("y", leaky // 64), ("T", leaky)))
        for start in range(0, leaky, PORTION):
            some, words = (slice(start // unit, (start + PORTION) // unit) for unit in (1, 64))
            self.leaky(records[some], shares[words], tests[some])
        equality = Equality(self._channel, self._number, self._entropy)
        equality.add(tests)
        equality.settle("leaky ANDs")
        order = permutation(toss(self._channel, self._number, self._entropy), size * buckets)
        found = self.combined(records, shares, order.reshape(size, buckets), equality)
        equality.settle("openings of buckets of ANDs")
        return AuthenticatedTriples(*(factor[:count] for factor in found))

    def leaky(self, records: Words, shares: Words, tests: Words) -> None:
        """Make leaky ANDs, PORTION of them at most: write their records, y (n/64,) and T (n,)."""
        count, delta = len(records), self.delta
        own, peers = (self._scratch.array(name, count, 2) for name in ("own", "peers"))
        own_index, peers_index = self._receiver.index, self._sender.index
        choices = self._correlated(records, own, peers)
        shares[:] = choices[1]
        sent = np.empty(count, np.uint64)
        hash_own, hash0, hash1 = (
            self._scratch.array(name, _TILE, 2) for name in ("hash own", "hash 0", "hash 1")
        )
        for start in range(0, count, _TILE):
            some = slice(start, min(start + _TILE, count))
            ours, theirs, size = own[some], peers[some], some.stop - start
            tweak = own_index + start, self._receiver.tweaks
            self._receiver.hash.blocks(ours, *tweak, hash_own[:size])
            tweak = peers_index + start, self._sender.tweaks
            difference = self._sender.sigma_delta
            self._sender.hash.blocks(theirs, *tweak, hash0[:size], difference, hash1[:size])
            words = np.ascontiguousarray(choices[:, start // 64 : some.stop // 64])
            hashes = hash_own[:size], hash0[:size], hash1[:size]
            kernels.garble(ours, theirs, *hashes, words, delta, records[some], sent[some])
        received = self._channel.exchange("and.tables", sent)
        tops = np.empty(count // 64, np.uint64)
        kernels.mask_tops(records, received, tops)
        opened = tops ^ self._channel.exchange("and.tops", tops)
        kernels.unmask(records, opened, self._number, delta, tests)

    def _correlated(self, records: Words, own: Words, peers: Words) -> Words:
        """Make and check the OTs of leaky ANDs, and return this party's shares (3, n/64).

        Those of x go to `own` and `peers`, those of y and r to the records.
        """
        sender, receiver = self._sender, self._receiver
        senders, receivers = (sender, sender.low), (receiver, receiver.low)
        choices = (
            receiver.extend_correlated(own),
            *(receiver.low.extend_correlated(records, to) for to in (2, 4)),
        )
        for each in receivers:
            each.seal()
        sender.extend_correlated(peers)
        for to in (3, 5):
            sender.low.extend_correlated(records, to)
        for end in senders:
            end.challenge()
        for each in receivers:
            each.weigh()
        for each in receivers:
            each.prove()
        for end in senders:
            end.verify()
        return np.stack(choices)

    def combined(
        self, records: Words, shares: Words, buckets: Order, equality: Equality
    ) -> list[AuthenticatedBits]:
        """Open what differs within buckets (B, n), and return x, y and z of each."""
        size, count = buckets.shape
        mine = np.empty((size - 1, -(-count // 64)), np.uint64)
        kernels.differ(shares, buckets, mine)
        theirs = self._channel.exchange("and.buckets", mine)
        bits = np.empty((3, count), np.uint8)
        macs, keys = (np.empty((3, count), np.uint64) for _ in range(2))
        proofs, wanted = (
            self._scratch.array(name, size - 1, count) for name in ("proofs", "wanted")
        )
        kernels.combine(
            records, buckets, mine, theirs, self.delta, bits, macs, keys, proofs, wanted
        )
        equality.add_macs(proofs, wanted)
        return [AuthenticatedBits(*factor) for factor in zip(bits, macs, keys, strict=True)]

    def multiply(
        self,
        a: AuthenticatedBits,
        b: AuthenticatedBits,
        triples: AuthenticatedTriples,
        equality: Equality,
    ) -> AuthenticatedBits:
        """Return a b, with as many triples, in one round.

        SECURITY: nothing that is made of it may be opened before `equality` is settled, to which
        the MACs of what is opened here are appended.
        """
        count = len(a)
        x, y, z = triples.take(count)
        mine = np.empty((2, -(-count // 64)), np.uint64)
        for factor, mask, words in zip((a, b), (x, y), mine, strict=True):
            packing.pack_bits(factor.bits ^ mask.bits, words)
        theirs = self._channel.exchange("and.openings", mine)
        for factor, mask, words in zip((a, b), (x, y), theirs, strict=True):
            proofs, wanted = np.empty(count, np.uint64), np.empty(count, np.uint64)
            halves = factor.macs, mask.macs, factor.keys, mask.keys
            kernels.authenticate(*halves, words, self.delta, MAC_MASK, proofs, wanted)
            equality.add_macs(proofs, wanted)
        # who adds d e: party 0 to its shares, party 1 to its keys of these
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


def messages(count: int) -> Iterator[tuple[bool, str, DTypeLike, tuple[int, ...]]]:
    """Yield what each party sends (True) and receives (False) in `triples`, in its order.

    With the label, dtype and shape of each message, for `plan`.
    """
    both, seed = (True, False), (SEED_BYTES,)
    # of x, y and r, and for the checks
    trees = [SECURITY_BITS // TREE_BITS, *[SECURITY_BITS // TREE_BITS // 2] * 2]
    leaky = _leaky_count(count)
    for start in range(0, leaky, PORTION):
        some = min(PORTION, leaky - start)
        for sent in both:
            for each in trees:
                yield sent, "ot.corrections", np.uint64, (each - 1, some // 64)
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
    buckets = max(count, FEWEST)
    yield from settling()
    yield from toss_messages()
    for sent in both:
        yield sent, "and.buckets", np.uint64, (bucket_size(buckets) - 1, -(-buckets // 64))
    yield from settling()


def _leaky_count(count: int) -> int:
    """Return how many leaky ANDs are made for so many triples."""
    buckets = max(count, FEWEST)
    return _aligned(bucket_size(buckets) * buckets)


def _aligned(count: int) -> int:
    return -(-count // ALIGN) * ALIGN


def permutation(seed: bytes, count: int) -> Order:
    """Return a uniformly random permutation of 0 .. `count` - 1."""
    return Permutation.at_once(Stream(seed), count)
