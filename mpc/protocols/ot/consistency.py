"""The check that a receiver corrected all rows by one vector u (Roy, CRYPTO 2022, Section 5).

A correction that is wrong in block i leaves W_c = V_c + Delta_c (u + e_i), so that keys made of it
tell Delta_i to a receiver. Before any key is used, both ends weigh what they have with coefficients
chi_j of GF(2^64), one for each 64 OTs, which the sender draws ahead and tells when it has all
corrections:

    receiver:  u~ = sum_j chi_j u[j],   v~_c = sum_j chi_j V_c[j];   it sends u~ and SHA-256(v~)
    sender:    w~_c = sum_j chi_j W_c[j];   SHA-256(w~ + Delta u~) must be the same

The last OTs are made for this alone, and the last chi is 1: their words are uniform, and hide all
others. A block whose corrections are wrong passes if the receiver guesses the k bits of Delta_i,
and otherwise with 2^-63; what passes with a chance of 2^-t has told t bits of Delta.

The sender weighs rows as it makes them. The receiver keeps its rows until it is told.
"""

import hashlib

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.prg import SEED_BYTES, Stream
from securemedian.mpc.protocols.protocol import SECURITY_BITS

# u~, and the four words of the digest
PROOF_WORDS = 5


class Weighing:
    """The coefficients of one check, from the sender's seed, and the sums of an end's rows."""

    def __init__(self, seed: bytes) -> None:
        self.seed = seed
        self._stream = Stream(seed)
        # unreduced, low word first
        self.sums: Words = np.zeros((SECURITY_BITS, 2), np.uint64)

    def __repr__(self) -> str:
        return "Weighing(<secrets>)"

    def coefficients(self, words: int, last: bool = False) -> Words:
        """Return the next coefficients, which end with 1 if they are the `last`."""
        found = self._stream.words(words)
        if last:
            found[-1] = 1
        return found


def seed_of(randomness: Stream) -> bytes:
    """Draw the seed of a check."""
    return randomness.words(SEED_BYTES // 8).tobytes()


def reduced(sums: Words) -> Words:
    """Return sums (r, 2) modulo x^64 + x^4 + x^3 + x + 1: elements (r,) of GF(2^64)."""
    low, high = sums[:, 0], sums[:, 1]
    # what the shifts below push out
    high = high ^ high >> np.uint64(63) ^ high >> np.uint64(61) ^ high >> np.uint64(60)
    for shift in (0, 1, 3, 4):
        low = low ^ high << np.uint64(shift)
    return low


def digest(elements: Words) -> Words:
    """Return SHA-256 of elements, as four words."""
    return np.frombuffer(hashlib.sha256(elements.tobytes()).digest(), np.uint64)
