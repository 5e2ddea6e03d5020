"""Pseudorandom bytes: AES-128 in counter mode under a 16-byte seed from the operating system."""

import os
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securemedian.mpc.errors import InputError
from securemedian.mpc.protocols import kernels

SEED_BYTES = 16
# of the id that both parties give a session
SESSION_BYTES = 16
# An AES block is 128 bits, two 64-bit words.
BLOCK_WORDS = 2

# The source of seeds. Protocol objects take one as an argument so that tests can pin transcripts;
# nothing configurable reaches it.
Entropy = Callable[[int], bytes]
os_entropy: Entropy = os.urandom

# Zeros, for the cipher to XOR the key stream to: at most this many bytes per call.
ZEROS = memoryview(bytes(1 << 16))


class Stream:
    """The key stream of one seed, from which `fill` writes the next bytes.

    `nonce` (64 bits) separates streams of one seed; `block` skips that many 16-byte blocks.
    """

    def __init__(self, seed: bytes, nonce: int = 0, block: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise InputError(f"a seed of the wrong length: {len(seed)} bytes; give {SEED_BYTES}")
        start = nonce.to_bytes(8, "big") + block.to_bytes(8, "big")
        # xor(data, out) writes `data` XOR the next bytes of the stream; both are buffers of bytes.
        # It is the cipher's own method, so that a call takes no detour through Python.
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
        """Return the next `count` 64-bit words."""
        out = np.empty(count, np.uint64)
        self.fill(out)
        return out


def expand(seed: bytes, block: int, count: int, native_aes: bool) -> NDArray[np.uint64]:
    """Return `count` words of the stream of a seed from block number `block` on.

    With `native_aes`, the processor's own AES instructions are used where it has them: the bytes
    are those of OpenSSL. Long streams that are read in large pieces gain most.
    """
    if not kernels.native.processor.use_native(native_aes):
        return Stream(seed, block=block).words(count)
    out = np.empty(count, np.uint64)
    kernels.native.aes.stream(np.frombuffer(seed, np.uint64), np.uint64(0), np.uint64(block), out)
    return out
