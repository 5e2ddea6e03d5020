"""Work arrays that are allocated once and used again."""

import math

import numpy as np

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.native.processor import LINE


class Scratch:
    """Memory by name, each piece as large as was ever asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, Words] = {}

    def array(self, name: str, *shape: int) -> Words:
        """Return a contiguous array over the memory of a name, which still holds what was there."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            # no vector that is written from a line's first word on lies in two lines
            memory = np.empty(size + LINE // 8, np.uint64)
            first = -memory.ctypes.data % LINE // 8
            self._memory[name] = memory[first : first + size]
        return self._memory[name][:size].reshape(shape)
