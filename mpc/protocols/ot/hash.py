"""The correlation-robust hash of OT extension (Guo, Katz, Wang, Yu, S&P 2020).

    H(t, x) = pi(sigma(x) ^ t) ^ sigma(x) ^ t,    pi = AES-128 under a public key.

A tweak t = (index, stream) is used once per key: each lane and direction has streams of its
own, and whoever hashes counts the index up.

A party that sees N values of H under one key, each of an unknown input, can look for all of them at
once. It compares every evaluation of pi with a table of the N values, and expects one hit after
2^128 / N evaluations. So where values are given away by the thousand (`ot.ferret`), each key serves
only a few of them.
"""

import hashlib
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols.kernels import extension as kernels
from securemedian.mpc.protocols.kernels.native import aes, hashing
from securemedian.mpc.protocols.kernels.native.processor import use_native
from securemedian.mpc.protocols.ot.extension import Scratch


class Hash:
    """The hash H under one public key.

    Its methods take the first index of the tweaks, the stream, and where the hashes go: `out0`
    (n, 2). With `difference` (2,), the hashes of inputs whose sigma differs by it go to `out1`.

    With `native_aes`, and where the processor has the instructions, all of a hash is computed in
    registers; otherwise AES is OpenSSL's. The hashes are the same.
    """

    def __init__(
        self, scratch: Scratch, label: bytes, *parts: bytes, native_aes: bool = True
    ) -> None:
        """Derive the key from a label, which tells uses apart, and from `parts`.

        `scratch` lends memory for AES's output, which hashes that take turns may share.
        """
        self.key = hashlib.sha256(label + b"".join(parts)).digest()[:16]
        self._pi = Cipher(algorithms.AES(self.key), modes.ECB()).encryptor().update_into
        # None where AES is OpenSSL's
        self.round_keys = aes.round_keys(self.key)[0] if use_native(native_aes) else None
        self._scratch = scratch

    def columns(
        self,
        rows: Words,
        index: int,
        stream: np.uint64,
        out0: Blocks,
        difference: Words | None = None,
        out1: Blocks | None = None,
    ) -> None:
        """Hash the columns of 128 rows of bits (128, n / 64), with OpenSSL.

        Leaves that the processor's AES expands are hashed in the same pass.
        """
        kernels.transpose_and_tweak(rows, np.uint64(index), stream, out0)
        self._finish_all(out0, difference, out1)

    def blocks(
        self,
        blocks: Blocks,
        index: int,
        stream: np.uint64,
        out0: Blocks,
        difference: Words | None = None,
        out1: Blocks | None = None,
    ) -> None:
        """Hash blocks (n, 2)."""
        given = blocks, np.uint64(index), stream
        if self.round_keys is not None:
            hashing.hash_blocks(*given, self.round_keys, difference, out0, out1)
        else:
            kernels.sigma_and_tweak(*given, out0)
            self._finish_all(out0, difference, out1)

    def _finish_all(self, out0: Blocks, difference: Words | None, out1: Blocks | None) -> None:
        if difference is not None and out1 is not None:
            kernels.xor_constant(out0, difference, out1)
            self.finish(out1)
        self.finish(out0)

    def finish(self, blocks: Blocks) -> Blocks:
        """Turn sigma(x) ^ t into H(t, x), in place, with OpenSSL."""
        # one block more than is written, because `update_into` asks for the room
        images = self._scratch.array("images", len(blocks) + 1, 2)
        self._pi(as_bytes(blocks), as_bytes(images))
        blocks ^= images[:-1]
        return blocks


def as_bytes(array: NDArray[Any]) -> memoryview:
    """Return the memory of a contiguous array, as ciphers take it."""
    return array.data.cast("B")
