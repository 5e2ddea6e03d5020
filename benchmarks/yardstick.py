"""The AES of one core, measured in the same run, which figures of two processors compare by.

Seconds mislead where processors differ in what their vectors do with AES. A figure in bytes of AES
is what one core encrypts in that time.
"""

import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from statistics import median_low

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securemedian.common import terminal
from securemedian.laboratory import report
from securemedian.mpc.protocols.kernels.native import aes, hashing, processor

# Bytes that stay in the first-level cache.
SMALL = 1 << 14
# Bytes that OpenSSL encrypts at a time.
BUFFER = 1 << 16
REPEAT = 3


@dataclass(frozen=True)
class Yardstick:
    """A processor, what makes its AES, and how fast one core is at it."""

    processor: str
    made_by: str
    bytes_per_second: float

    def __str__(self) -> str:
        rate = terminal.figure(self.bytes_per_second / 1e9)
        return f"{self.processor}: one core makes {rate} GB/s of AES by {self.made_by}"


@cache
def measured(native: bool) -> Yardstick:
    """Return the yardstick of this run, by the processor's own instructions if these are taken.

    Its seconds are the processor's.
    """
    if processor.use_native(native):
        blocks, zero = np.ones((SMALL // 16, 2), np.uint64), np.uint64(0)
        given = blocks, zero, zero, aes.round_keys(bytes(16))[0], None, blocks, None
        made_by, size = processor.described(), SMALL
        encrypt: Callable[[], object] = partial(hashing.hash_blocks, *given)
    else:
        update = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor().update_into
        made_by, size = "OpenSSL", BUFFER
        encrypt = partial(update, bytes(BUFFER), bytearray(BUFFER + 15))
    timer = timeit.Timer(encrypt, timer=time.thread_time)
    number, _ = timer.autorange()
    speed = size * number / median_low(timer.repeat(REPEAT, number))
    return Yardstick(report.machine()["cpu"], made_by, speed)
