"""Proofs of the signs of numbers that the two parties share, without any number being opened.

z = z_0 + z_1 mod 2^l, and each party has MACs of its share over Z_2^l (`audit.macs`). Both prove at
the same time that their shares add up to numbers with the signs that are public:

    halves    A party has MACs of q_t = z_s >> t in Z_2^(l-t) made, for t = 1 .. l-1; q_0 is z_s.
    bits      d_t = q_t - 2 q_(t+1) in Z_2^(l-t) must be a bit, which is bit t of z_s. *Partners*
              are random bits beta with MACs in the same ring: P rows of L, for N numbers. The
              numbers take the last N places of a row, and the number at place j has the partners
              at j + s_p modulo L. The s_p are tossed when all are fixed. Those of the first L - N
              places are *guards*, which are opened; of the others h = d_t ^ beta is. Then
              d_t - beta = 0 where h is 0, and d_t + beta - 1 = 0 where it is 1; if d_t is no bit,
              only if beta is none either.
    modulo 2  The MAC of q_t is, modulo 2, the MAC of bit t of z_s over GF(2), which makes the bit
              an authenticated one (`audit.bits`).
    carries   c_1 = a_0 b_0 and c_(t+1) = (a_t ^ c_t)(b_t ^ c_t) ^ c_t by authenticated ANDs, for
              the bits a of z_0 and b of z_1. The sign is a_(l-1) ^ b_(l-1) ^ c_(l-1).
    signs     Each party has a share of it, and so knows what the peer's has to be. They are not
              opened: the MACs that these shares must have are compared.

Say that for some t the numbers at places A are not bits, nor are the partners at B_p of row p. All
pass only if A + s_p = B_p modulo L for each p, because only another such number goes with one. A is
not empty and has no place of a guard. As L is prime, only 0 turns A into itself, and at most one
s_p of L fits. So they pass with a chance of at most L^-P, and P is the smallest with which that is
at most 2^-CHECK_BITS. It needs no permutation: memory is read in order.

The guards, h and what ANDs open are uniform. Each step is settled before the next opens anything
that the step was to make sure of.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.arrays import Bits, Ring, RingShare, Words
from securemedian.mpc.protocols import ring
from securemedian.mpc.protocols.audit.ands import AndMaker, AuthenticatedTriples, rotations
from securemedian.mpc.protocols.audit.bits import MAC_MASK, AuthenticatedBits, masks_of
from securemedian.mpc.protocols.audit.equality import Equality, settling
from securemedian.mpc.protocols.audit.macs import Prover, Verifier, message, packed, slot_of
from securemedian.mpc.protocols.dealing import toss, toss_messages
from securemedian.mpc.protocols.kernels import comparing as kernels
from securemedian.mpc.protocols.party import Party
from securemedian.mpc.protocols.prg import Entropy, os_entropy

# SECURITY: any other number passes for a bit with a chance of 2^-CHECK_BITS
CHECK_BITS = 40
# The fewest partners of a row that are opened.
GUARDS = 64
# Elements that are compared at a time, while they are in the cache.
TILE = 1 << 13
# how far rows of partners are turned
Turns = NDArray[np.int64]


def carries(bits: int) -> int:
    """Return how many ANDs the sign of one number of `bits` bits takes."""
    return bits - 1


def partners_of(count: int) -> tuple[int, int]:
    """Return P and L: the rows of partners of `count` numbers, and the partners of each row."""
    length = count + GUARDS
    while any(length % divisor == 0 for divisor in range(2, math.isqrt(length) + 1)):
        length += 1
    return math.ceil(CHECK_BITS / math.log2(length)), length


def around(rows: Ring, found: NDArray[np.uint16], buckets: int) -> Ring:
    """Return shares of H(M) and H(M-1) of each coordinate: (2n,) from rows (W-1, n) of entries.

    M is `found`, (n,). H(M) is 0 where M is the last bucket, which has no entry.
    """
    ends = np.where(found == buckets - 1, 0, found + 1), found
    totals = np.zeros((2, found.size), rows.dtype)
    for number, entries in enumerate(rows):
        for total, end in zip(totals, ends, strict=True):
            total += entries * (number < end)
    return totals.reshape(-1)


def centring(found: NDArray[np.uint16], buckets: int, total: int, rank: int, bits: int) -> Ring:
    """Return what turns `around` into H(M) - k and H(M-1) - k modulo 2^bits: (2n,), public.

    That is -k and, where H(M) is that of the last bucket, n - k.
    """
    added = np.full(2 * found.size, -rank)
    added[: found.size] += np.where(found == buckets - 1, total, 0)
    return ring.reduce(added, bits)


@dataclass(repr=False)
class _Side:
    """A party's side of the numbers of one of the two: tags of its own, or keys of the peer's.

    They are packed, those of q_t and of its partners at place t. `delta` is 0 for tags.
    """

    delta: Words
    halves: list[Words]
    partners: list[Words] = field(default_factory=list)


class SignProver:
    """The prover of signs, one after another, on one lane of an audit's session.

    Both parties are prover and verifier at the same time. Used by one thread.
    """

    def __init__(
        self,
        party: Party,
        prover: Prover,
        verifier: Verifier,
        ands: AndMaker,
        entropy: Entropy = os_entropy,
    ) -> None:
        self._channel, self._number = party.channel, party.number
        self._randomness, self._entropy = party.randomness, entropy
        self._prover, self._verifier, self._ands = prover, verifier, ands
        self._equality = Equality(party.channel, party.number, entropy)

    def prove(
        self,
        shares: RingShare,
        tags: Words,
        keys: Words,
        public: Ring,
        bits: int,
        negative: Bits,
        triples: AuthenticatedTriples,
    ) -> None:
        """Prove the signs of n numbers modulo 2^bits, while the other party does the same.

        The numbers are the sums of both `shares` (n,) and of `public` (n,). `tags` (K, n) are those
        of this party's shares, `keys` (K, n) those of the peer's, which are overwritten: packed as
        this ring has them. `negative` (n,) is 1 where a number is negative. Takes `carries` triples
        per number. Raises PeerDeviated if the peer did not follow the protocol, or if a sign is
        another.
        """
        slot = slot_of(bits)
        delta = packed(self._verifier.constant(np.ones(1, np.uint8)), slot)[:, 0]
        own = _Side(np.zeros_like(delta), [tags])
        peers = _Side(delta, [keys])
        if self._number == 0:
            shares = RingShare(shares + public)
        else:
            # party 0's number is another by `public`
            kernels.add_constants(peers.halves[0].copy(), public, delta, slot, peers.halves[0])
        shares = RingShare(ring.reduce(shares, bits))
        self._halve(shares, bits, own, peers)
        self._prove_bits(shares, bits, own, peers)
        self._prove_sign(self._signs(shares, bits, own, peers, triples), negative)

    def _halve(self, shares: RingShare, bits: int, own: _Side, peers: _Side) -> None:
        """Make MACs of q_t, the shares shifted down by t."""
        slot, downs = slot_of(bits), range(1, bits)
        for t in downs:
            half = ring.reduce(shares >> t, bits - t)
            own.halves.append(self._prover.commit(half, bits - t, slot)[1])
        for t in downs:
            peers.halves.append(self._verifier.accept(shares.size, bits - t, slot))

    def _prove_bits(self, shares: RingShare, bits: int, own: _Side, peers: _Side) -> None:
        """Prove that each q_t - 2 q_(t+1) is a bit."""
        each, length = shape = partners_of(shares.size)
        claims = self._make_partners(each * length, bits, own, peers)
        seed = toss(self._channel, self._number, self._entropy)
        # the proved part is not turned
        turns = np.array(rotations(seed, len(claims) * each + 1, length)[1:]).reshape(-1, each)
        for t, (claimed, turned) in enumerate(zip(claims, turns, strict=True)):
            rows = zip(claimed.reshape(shape), turned.tolist(), strict=True)
            opened = np.stack([np.roll(row, -turn) for row, turn in rows])
            # the guards themselves, and h of the others
            opened[:, length - shares.size :] ^= (shares >> t & 1).astype(np.uint8)
            words = self._channel.exchange("audit.claims", ring.pack(opened.reshape(-1), 1))
            theirs = ring.unpack(words, 1, opened.size).reshape(shape)
            sides = [(own, opened), (peers, theirs)]
            # in the same order at both: what party 0 proves comes first
            for side, bits_of in sides if self._number == 0 else reversed(sides):
                self._equality.add_pieces(_differences(side, t, bits, turned, bits_of))
        self._equality.settle("the bits of shares")

    def _make_partners(self, count: int, bits: int, own: _Side, peers: _Side) -> list[Bits]:
        """Return random bits for each t, of which MACs were made."""
        slot, claims = slot_of(bits), []
        for t in range(bits - 1):
            words = self._randomness.words(ring.packed_words(count, 1))
            claims.append(ring.unpack(words, 1, count).astype(np.uint8, copy=False))
            own.partners.append(self._prover.commit(claims[t], bits - t, slot)[1])
        for t in range(bits - 1):
            peers.partners.append(self._verifier.accept(count, bits - t, slot))
        return claims

    def _signs(
        self,
        shares: RingShare,
        bits: int,
        own: _Side,
        peers: _Side,
        triples: AuthenticatedTriples,
    ) -> AuthenticatedBits:
        """Return shares of the signs, of which ANDs are right."""
        slot = slot_of(bits)

        def both(t: int) -> tuple[AuthenticatedBits, AuthenticatedBits]:
            """Return bit t of z_0, and of z_1."""
            mine = (shares >> t & 1).astype(np.uint8)
            sides = (
                AuthenticatedBits.of_own(mine, _low_bits(own.halves[t], slot)),
                AuthenticatedBits.of_peer(_low_bits(peers.halves[t], slot)),
            )
            return sides if self._number == 0 else sides[::-1]

        carry = self._ands.multiply(*both(0), triples, self._equality)
        for t in range(1, bits - 1):
            a, b = both(t)
            carry ^= self._ands.multiply(a ^ carry, b ^ carry, triples, self._equality)
        self._equality.settle("the openings of ANDs")
        a, b = both(bits - 1)
        return a ^ b ^ carry

    def _prove_sign(self, sign: AuthenticatedBits, negative: Bits) -> None:
        """Compare the MACs of the shares of signs that are public."""
        needed = sign.keys ^ masks_of(sign.bits ^ negative) & self._ands.delta
        self._equality.add_macs(sign.macs & MAC_MASK, needed & MAC_MASK)
        self._equality.settle("the published buckets")


def messages(count: int, bits: int) -> Iterator[tuple[bool, str, DTypeLike, tuple[int, ...]]]:
    """Yield what each party sends (True) and receives (False) in `SignProver.prove`, in its order.

    With the label, dtype and shape of each message, for `plan`.
    """
    both = (True, False)
    partners = math.prod(partners_of(count))
    for values, widths in ((count, range(bits - 1, 0, -1)), (partners, range(bits, 1, -1))):
        for sent in both:
            yield from ((sent, *message(values, width)) for width in widths)
    yield from toss_messages()
    for label, rows, items in (("audit.claims", (), partners), ("and.openings", (2,), count)):
        for _ in range(carries(bits)):
            for sent in both:
                yield sent, label, np.uint64, (*rows, ring.packed_words(items, 1))
        yield from settling()
    yield from settling()


def _differences(side: _Side, t: int, bits: int, turns: Turns, opened: Bits) -> Iterator[Words]:
    """Yield tags or keys of what must be 0: of the guards, and of d_t and each of its partners."""
    halves, lower = side.halves[t], side.halves[t + 1]
    each, length = opened.shape
    guards = length - halves.shape[1]
    memory = np.empty(each * TILE, np.uint64)
    # guards are partners of nothing
    nothing = np.zeros((len(halves), guards), np.uint64)
    for upper, under, first in ((nothing, nothing, 0), (halves, lower, guards)):
        flips = np.ascontiguousarray(opened[:, first : first + upper.shape[1]])
        for k, start in product(range(len(upper)), range(0, upper.shape[1], TILE)):
            out = memory[: each * min(TILE, upper.shape[1] - start)].reshape(each, -1)
            rows = upper[k], under[k], side.partners[t][k].reshape(each, -1), turns + first, flips
            kernels.differences(*rows, start, side.delta[k], slot_of(bits), bits - t, out)
            yield out


def _low_bits(tags: Words, slot: int) -> Words:
    """Return the words of MACs over GF(2): packed tags or keys modulo 2."""
    out = np.empty(tags.shape[1], np.uint64)
    kernels.low_bits(tags, slot, out)
    return out
