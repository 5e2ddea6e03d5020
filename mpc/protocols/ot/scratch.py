"""Work arrays that are allocated once and used again."""

import math

import numpy as np

from securemedian.mpc.arrays import Words


class Scratch:
    """Memory by name, each piece as large as was ever asked for."""

    def __init__(self) -> None:
        self._memory: dict[str, Words] = {}

    def array(self, name: str, *shape: int) -> Words:
        """Return a contiguous array over the memory of a name, which still holds what was there."""
        size = math.prod(shape)
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = np.empty(size, np.uint64)
        return self._memory[name][:size].reshape(shape)
