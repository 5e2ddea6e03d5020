"""The correlation-robust hash of OT extension (Guo, Katz, Wang, Yu, S&P 2020).

    H(t, x) = pi(sigma(x) ^ t) ^ sigma(x) ^ t,    pi = AES-128 under a public key.

A tweak t = (index, stream) is used once per key: `tweak_stream` gives each lane and direction
streams of its own, and whoever hashes counts the index up. The kernels (`transpose_and_tweak`,
`sigma_and_tweak`) apply sigma and the tweak and leave sigma(x) ^ t; `finish` does the rest.

Whoever sees N values of H under one key, each of an unknown input, can look for all of them at
once: it compares every evaluation of pi with a table of the N values, and expects one hit after
2^128 / N evaluations. So where values are given away by the thousand (`mpc.ot.ferret`), each key
serves only a few of them.
"""

import hashlib
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.kernels import extension as kernels
from securemedian.mpc.ot.scratch import Scratch


def tweak_stream(lane: int, direction: int) -> np.uint64:
    """Return the upper word of the tweaks of a lane and direction.

    It is below 2^32, because lanes have 16 bits.
    """
    return np.uint64(2 * lane + direction)


class Hash:
    """The hash H under one public key."""

    def __init__(self, scratch: Scratch, label: bytes, *parts: bytes) -> None:
        """Derive the key from a label, which tells uses apart, and from `parts`.

        `scratch` lends memory for AES's output, which hashes that take turns may share.
        """
        self.key = hashlib.sha256(label + b"".join(parts)).digest()[:16]
        self._pi = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor().update_into
        self._scratch = scratch

    def finish(self, blocks: Blocks) -> Blocks:
        """Turn sigma(x) ^ t into H(t, x), in place."""
        # one block more than is written, because `update_into` asks for the room
        images = self._scratch.array("images", len(blocks) + 1, 2)
        self._pi(as_bytes(blocks), as_bytes(images))
        kernels.xor_into(blocks, images[:-1])
        return blocks

    def expand(self, keys: Blocks, first: int, stream: np.uint64, blocks: int) -> Words:
        """Return (count, 2 `blocks`) words: H of each key under streams that no OT uses."""
        out = np.empty((len(keys), blocks, 2), np.uint64)
        for block in range(blocks):
            tweaked = np.empty_like(keys)
            kernels.sigma_and_tweak(
                keys, np.uint64(first), stream | np.uint64((block + 1) << 32), tweaked
            )
            out[:, block] = self.finish(tweaked)
        return out.reshape(len(keys), -1)


def as_bytes(array: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array, as ciphers take it."""
    return array.data.cast("B")
