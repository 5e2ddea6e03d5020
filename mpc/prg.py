"""Pseudorandom bytes: AES-128 in counter mode, keyed by a 16-byte seed from the operating system."""

import os
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError

SEED_BYTES = 16
BLOCK_WORDS = 2  # an AES block is 128 bits

# Where seeds come from. Protocol objects take one as an argument so that tests can pin transcripts; nothing
# configurable reaches it.
Entropy = Callable[[int], bytes]
os_entropy: Entropy = os.urandom

ZEROS = memoryview(bytes(1 << 16))  # what the key stream is XORed to, a call at a time


class Stream:
    """The key stream of one seed: `fill` writes its next bytes. `nonce` (64 bits) separates streams of one seed,
    `block` skips 16-byte blocks.
    """

    def __init__(self, seed: bytes, nonce: int = 0, block: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise InputError(f"a seed has {SEED_BYTES} bytes, not {len(seed)}")
        start = nonce.to_bytes(8, "big") + block.to_bytes(8, "big")
        # xor(data, out): `data` XOR the next bytes of the stream, of buffers of bytes, without a detour through Python
        self.xor = Cipher(algorithms.AES(seed), modes.CTR(start)).encryptor().update_into

    def __repr__(self) -> str:
        return "Stream(<secret>)"

    def fill(self, out: NDArray[np.uint64]) -> None:
        """Overwrite a contiguous array with the next `out.nbytes` bytes of the stream."""
        view = out.data.cast("B")
        for start in range(0, len(view), len(ZEROS)):
            part = view[start : start + len(ZEROS)]
            self.xor(ZEROS[: len(part)], part)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` 64-bit words."""
        out = np.empty(count, np.uint64)
        self.fill(out)
        return out
