"""The check that a receiver corrected all rows by one vector u (Roy, CRYPTO 2022, Section 5).

A correction that is wrong in block i leaves W_c = V_c + Delta_c (u + e_i), so that keys made of it
tell Delta_i to a receiver. Before any key is used, both ends weigh what they have with coefficients
chi_j of GF(2^64), one for each 64 OTs. The sender draws them ahead, with a seed for each portion of
OTs, and tells the seed when it has all corrections of the portion. At the end

    receiver:  u~ = sum_j chi_j u[j],   v~_c = sum_j chi_j V_c[j];   it sends u~ and SHA-256(v~)
    sender:    w~_c = sum_j chi_j W_c[j];   SHA-256(w~ + Delta u~) must be the same

over all portions. The last OTs of the first portion are made for this alone, and their chi is 1:
their words are uniform, and hide all others. They are fixed before any seed is told, so that they
make up for nothing.

A block whose corrections are wrong passes if the receiver guesses the k bits of Delta_i; what
passes with a chance of 2^-t has told t bits of Delta. Otherwise sum_j chi_j e[j] has to be the same
for two blocks whose e differ. Whatever seeds are told so far, that of the next portion in which
they differ makes the difference uniform. It is 0 after one of m portions with at most m 2^-64.

The sender weighs rows as it makes them. The receiver keeps its rows until it knows the seed, which
are so few portions that rows are still in the cache.
"""

import hashlib

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.prg import Stream
from securemedian.mpc.protocols.protocol import SECURITY_BITS

# u~, and the four words of the digest
PROOF_WORDS = 5


class Weighing:
    """The sums of one check at one end, and the coefficients of the portion in hand."""

    def __init__(self, rows: int = SECURITY_BITS) -> None:
        # unreduced, low word first: of the rows, and at the receiver of its choices
        self.rows: Words = np.zeros((rows, 2), np.uint64)
        self.choices: Words = np.zeros((1, 2), np.uint64)
        # of the portion in hand
        self.seed = b""
        # those that have begun
        self.portions = 0

    def begin(self, seed: bytes) -> None:
        """Begin a portion, whose coefficients come from a seed."""
        self.seed, self._stream = seed, Stream(seed)
        self.portions += 1

    def end(self) -> None:
        """End the portion in hand."""
        self.seed = b""

    def coefficients(self, words: int, last: bool = False) -> Words:
        """Return the next coefficients, which end with 1 if they are the `last` of a portion."""
        found = self._stream.words(words)
        if last:
            found[-1] = 1
        return found


def reduced(sums: Words) -> Words:
    """Return sums (r, 2) modulo x^64 + x^4 + x^3 + x + 1: elements (r,) of GF(2^64)."""
    low, high = sums[:, 0], sums[:, 1]
    # the bits that the shifts below push out
    high = high ^ high >> np.uint64(63) ^ high >> np.uint64(61) ^ high >> np.uint64(60)
    for shift in (0, 1, 3, 4):
        low = low ^ high << np.uint64(shift)
    return low


def digest(elements: Words) -> Words:
    """Return SHA-256 of elements, as four words."""
    return np.frombuffer(hashlib.sha256(elements.tobytes()).digest(), np.uint64)
