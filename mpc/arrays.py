"""The types of arrays: what an array holds, and who may know it.

To numpy an additive share, an XOR share and an opened value of one dtype look alike. So each has a
type of its own here, which only mypy sees. The function that makes a share, or opens one, names its
type once, where it returns, because numpy returns plain arrays.

Plain, with no meaning of their own:

    Words    uint64 words: bits packed 64 per word, or values packed for the wire
    Blocks   128-bit blocks (count, 2): the low uint64 word of each first
    Bits     bits as bytes 0 and 1
    Ring     elements of Z_2^l, or l-bit words, in the smallest dtype of l bits (`ring.dtype`)

Shares, where one party's share alone reveals nothing:

    RingShare         additive share of elements of Z_2^l
    RingPlanes        the same in bit planes (l, words): plane k has bit k of each, 64 per word
    XorWords          XOR share of l-bit words
    XorBits           XOR share of bits, packed 64 per word
    UnpackedXorBits   XOR share of bits, as bytes 0 and 1

Public bits, packed bits, and values (ring elements, words or bucket indices): PublicBits,
PublicWords, PublicValues. Only `mpc.rounds.methods.reveal` (at the servers) and
`mpc.protocols.share.combine` (at the clients) turn shares into them (tests/test_types.py).
"""

from typing import Any, NewType

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
Blocks = NDArray[np.uint64]
Bits = NDArray[np.uint8]
Ring = NDArray[np.unsignedinteger[Any]]
# the global model, and what goes with it, as they are published and saved
Float32s = NDArray[np.float32]

RingShare = NewType("RingShare", Ring)
RingPlanes = NewType("RingPlanes", Words)
XorWords = NewType("XorWords", Ring)
XorBits = NewType("XorBits", Words)
UnpackedXorBits = NewType("UnpackedXorBits", Bits)

PublicBits = NewType("PublicBits", Bits)
PublicWords = NewType("PublicWords", Words)
PublicValues = NewType("PublicValues", Ring)

# A method's result at a server: opened results, or its share of results that go to the clients.
Result = PublicValues | RingShare
