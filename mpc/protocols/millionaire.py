"""Millionaires' problem and equality on private inputs, by trees of 1-of-16 OTs.

This is Algorithm 1 of CrypTFlow2 (Rathee et al., CCS 2020; also its Section 3). Each input is cut
into leaves of 4 bits. For a leaf the sender offers, at each position i, the bits 1{a_leaf > i} and
1{a_leaf = i}, under random shares of its own; the receiver takes position c_leaf. Leaves are joined
in pairs,

    gt = gt_hi ^ (eq_hi & gt_lo),    eq = eq_hi & eq_lo;

If both are needed, the two ANDs have eq_hi in common and so take one triple of width 2. The lowest
leaf has no eq, because nothing lies below it.

Inputs and messages are in bit planes, 64 instances to a word. Every batch is cut in halves, in
which the roles are swapped. Messages are uniform: requests are
masked by random choices, replies by pads and fresh shares. The leaves take 2 rounds, and each of
the ceil(log2(leaves)) levels takes 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from securemedian.mpc.arrays import Words, XorBits
from securemedian.mpc.protocols.boolean import conjunctions, words_of
from securemedian.mpc.protocols.correlations.base import Demand
from securemedian.mpc.protocols.correlations.kinds import Tables, Triples
from securemedian.mpc.protocols.kernels import tables as kernels
from securemedian.mpc.protocols.party import Party, half_counts

LEAF_BITS = 4
GREATER, EQUAL, BOTH = "greater", "equal", "both"


@dataclass(frozen=True)
class Leaf:
    """The `bits` bits of the inputs from `shift` up, and what is asked of them."""

    shift: int
    bits: int
    asks: str

    @property
    def planes(self) -> slice:
        """Return which planes of the inputs they are."""
        return slice(self.shift, self.shift + self.bits)

    @property
    def kind(self) -> Tables:
        """Return the correlation that one leaf takes."""
        return Tables(self.bits, 2 if self.asks == BOTH else 1)


def leaves_of(bits: int, equality: bool) -> list[Leaf]:
    """Return the leaves of `bits` bits from the lowest up.

    The lowest has the remainder, so that it alone may have fewer than 4 bits.
    """
    count = -(-bits // LEAF_BITS)
    lowest = bits - LEAF_BITS * (count - 1)
    upper = [
        Leaf(lowest + LEAF_BITS * i, LEAF_BITS, EQUAL if equality else BOTH)
        for i in range(count - 1)
    ]
    return [Leaf(0, lowest, EQUAL if equality else GREATER), *upper]


def greater(party: Party, as_sender: Words, as_receiver: Words) -> XorBits:
    """Return shares of 1{a > c} over a whole batch, for unsigned inputs.

    `as_sender` holds a for the half of the batch in which this party is the sender
    (`Party.word_halves`), `as_receiver` holds c for the other half, both in bit planes
    (bits, words).
    """
    gt, eq = _leaf_shares(party, as_sender, as_receiver, leaves_of(len(as_sender), equality=False))
    while len(gt) > 1:
        # Pair p joins nodes 2p and 2p + 1, and an odd one out moves up. eq[0] is that of the lowest
        # node, which is never asked for.
        pairs = range(len(gt) // 2)
        terms = [(eq[2 * p + 1], [gt[2 * p]] + ([eq[2 * p]] if p else [])) for p in pairs]
        products = _joined(party, terms)
        odd = len(gt) % 2
        joined = [XorBits(gt[2 * p + 1] ^ products[p][0]) for p in pairs]
        gt = joined + gt[len(gt) - odd :]
        eq = [products[p][1] if p else eq[0] for p in pairs] + eq[len(eq) - odd :]
    return gt[0]


def equal(party: Party, as_sender: Words, as_receiver: Words) -> XorBits:
    """Return shares of 1{a = c}. The arguments are those of `greater`."""
    _, eq = _leaf_shares(party, as_sender, as_receiver, leaves_of(len(as_sender), equality=True))
    while len(eq) > 1:
        products = _joined(party, [(eq[2 * p + 1], [eq[2 * p]]) for p in range(len(eq) // 2)])
        eq = [product[0] for product in products] + eq[len(eq) - len(eq) % 2 :]
    return eq[0]


def greater_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `greater` on `count` pairs."""
    leaves = leaves_of(bits, equality=False)
    words, nodes = words_of(count), len(leaves)
    single = double = 0
    while nodes > 1:
        single, double, nodes = single + 1, double + nodes // 2 - 1, nodes - nodes // 2
    total = _leaf_demand(count, leaves)
    for width, terms in ((1, single), (2, double)):
        if terms:
            total = total + Demand({Triples(width): (words * terms, words * terms)})
    return total


def equal_demand(count: int, bits: int) -> Demand:
    """Return the correlations of `equal` on `count` pairs."""
    leaves = leaves_of(bits, equality=True)
    words = words_of(count) * (len(leaves) - 1)
    return _leaf_demand(count, leaves) + Demand({Triples(1): (words, words)} if words else {})


def _leaf_demand(count: int, leaves: Sequence[Leaf]) -> Demand:
    zero, one = (words_of(half) for half in half_counts(count))
    total = Demand()
    for leaf in leaves:
        total = total + Demand({leaf.kind: (zero, one)})
    return total


def _joined(party: Party, terms: list[tuple[XorBits, list[XorBits]]]) -> list[list[XorBits]]:
    """Return the ANDs of one level, made in one round: terms of the same width go together."""
    widths = sorted({len(ys) for _, ys in terms})
    groups = [[i for i, (_, ys) in enumerate(terms) if len(ys) == width] for width in widths]
    stacked = [
        (
            XorBits(np.concatenate([terms[i][0] for i in group])),
            [XorBits(np.concatenate([terms[i][1][k] for i in group])) for k in range(width)],
        )
        for width, group in zip(widths, groups, strict=True)
    ]
    results: list[list[XorBits]] = [[] for _ in terms]
    for group, products in zip(groups, conjunctions(party, stacked), strict=True):
        for product in products:
            for i, part in zip(group, np.split(product, len(group)), strict=True):
                results[i].append(XorBits(part))
    return results


def _leaf_shares(
    party: Party, as_sender: Words, as_receiver: Words, leaves: Sequence[Leaf]
) -> tuple[list[XorBits], list[XorBits]]:
    """Return shares of gt and of eq over the whole batch, per leaf.

    They are an empty array where a leaf is not asked for one of the two.
    """
    sent, received = as_sender.shape[1], as_receiver.shape[1]
    stock = [party.pool.take(leaf.kind, sent, received) for leaf in leaves]

    # the planes of all leaves are those of the inputs
    positions = np.concatenate([positions for _, positions, _ in stock])
    shape = as_sender.shape
    asked = party.channel.exchange("leaf.request", positions ^ as_receiver, shape)

    counts = [leaf.kind.width << leaf.bits for leaf in leaves]
    # the planes of each leaf's messages
    parts = [slice(*ends) for ends in pairwise(accumulate(counts, initial=0))]
    replies, own = np.empty((sum(counts), sent), np.uint64), []
    for leaf, (tables, _, _), part in zip(leaves, stock, parts, strict=True):
        shares = party.randomness.words(leaf.kind.width * sent).reshape(leaf.kind.width, sent)
        kernels.reply_leaves(
            as_sender[leaf.planes],
            asked[leaf.planes],
            tables,
            shares,
            leaf.asks != EQUAL,
            leaf.asks != GREATER,
            replies[part],
        )
        own.append(shares)
    answered = party.channel.exchange("leaf.reply", replies, (sum(counts), received))

    gt: list[XorBits] = []
    eq: list[XorBits] = []
    for leaf, (_, _, pads), sender_shares, part in zip(leaves, stock, own, parts, strict=True):
        shares = np.empty_like(pads)
        kernels.finish_leaves(as_receiver[leaf.planes], answered[part], pads, shares)
        halves = (sender_shares, shares) if party.number == 0 else (shares, sender_shares)
        whole = np.concatenate(halves, axis=1)
        none = np.empty(0, np.uint64)
        gt.append(XorBits(none if leaf.asks == EQUAL else whole[0]))
        eq.append(XorBits(none if leaf.asks == GREATER else whole[-1]))
    return gt, eq
