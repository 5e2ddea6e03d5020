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
from typing import Any

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
    """Return the yardstick of this run, by the processor's own instructions if these are taken."""
    own = processor.use_native(native)
    made_by = processor.described() if own else "OpenSSL"
    speed = _native_rate() if own else _openssl_rate()
    return Yardstick(report.machine()["cpu"], made_by, speed)


def _rate(size: int, function: Callable[[], Any]) -> float:
    """Return the bytes per second of processor time of a function that does `size` at a time."""
    timer = timeit.Timer(function, timer=time.thread_time)
    number, _ = timer.autorange()
    return size * number / median_low(timer.repeat(REPEAT, number))


def _native_rate() -> float:
    """Return the bytes per second that are hashed by the processor's own instructions."""
    blocks, zero = np.ones((SMALL // 16, 2), np.uint64), np.uint64(0)
    given = blocks, zero, zero, aes.round_keys(bytes(16))[0], None, blocks, None
    return _rate(SMALL, partial(hashing.hash_blocks, *given))


def _openssl_rate() -> float:
    """Return the bytes per second of OpenSSL's AES-128 in counter mode."""
    update = Cipher(algorithms.AES(bytes(16)), modes.CTR(bytes(16))).encryptor().update_into
    return _rate(BUFFER, partial(update, bytes(BUFFER), bytearray(BUFFER + 15)))
