"""The array types of mpc, each named once.

`Words`    uint64 words: bits packed 64 to a word, or what is packed for the wire
`Blocks`   128-bit blocks (count, 2): the low uint64 word of each first
`Bits`     bits as bytes 0 and 1
`Ring`     elements of Z_2^l in the smallest dtype that holds l bits (`mpc.ring.dtype`)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Blocks = NDArray[np.uint64]
Bits = NDArray[np.uint8]
Ring = NDArray[Any]
