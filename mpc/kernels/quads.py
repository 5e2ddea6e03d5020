"""The inner loops of 1-of-4 OTs of ring elements, which the radix median uses.

They turn the AND of two XOR-shared bits into an additive share, without a conversion of its own.

Position p of an item stands for the receiver's shares of both bits, p = c + 2 z. Bits come packed,
ring elements in their dtype, and `mask` is 2^l - 1.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.kernels.jit import kernel


@kernel
def split_tables(
    tables: NDArray[np.uint64], slot: int, mask: np.uint64, pads: NDArray[Any]
) -> None:
    """Set pads[p, i] to chunk p of table i: tables (items, W), pads (4, items)."""
    for p in range(4):
        word = (p * slot) >> 6
        shift = np.uint64((p * slot) & 63)
        for i in range(tables.shape[0]):
            pads[p, i] = (tables[i, word] >> shift) & mask


@kernel
def request(
    c: NDArray[np.uint64], z: NDArray[np.uint64], choices: NDArray[np.uint8], out: NDArray[np.uint8]
) -> None:
    """Write the receiver's requests, out[i] = choices[i] ^ position i."""
    for i in range(choices.shape[0]):
        shift = np.uint64(i & 63)
        low = (c[i >> 6] >> shift) & np.uint64(1)
        high = (z[i >> 6] >> shift) & np.uint64(1)
        out[i] = choices[i] ^ np.uint8(low | (high << np.uint64(1)))


@kernel
def reply(
    c: NDArray[np.uint64],
    z: NDArray[np.uint64],
    pads: NDArray[Any],
    requests: NDArray[np.uint8],
    mask: np.uint64,
    messages: NDArray[Any],
    shares: NDArray[Any],
) -> None:
    """Write the sender's shares and its messages, in reply to the requests d.

    share = f(0) + pad[d], and message p = f(p) - share + pad[p ^ d] for p = 1, 2, 3, with
    f(p) = (c ^ p_0) & (z ^ p_1). Message 0 is always 0 and is not sent.
    """
    one = np.uint64(1)
    for i in range(requests.shape[0]):
        shift = np.uint64(i & 63)
        own_c = (c[i >> 6] >> shift) & one
        own_z = (z[i >> 6] >> shift) & one
        d = requests[i]
        share = (own_c & own_z) + np.uint64(pads[d, i])
        shares[i] = share & mask
        messages[0, i] = (((own_c ^ one) & own_z) - share + np.uint64(pads[d ^ 1, i])) & mask
        messages[1, i] = ((own_c & (own_z ^ one)) - share + np.uint64(pads[d ^ 2, i])) & mask
        messages[2, i] = (
            ((own_c ^ one) & (own_z ^ one)) - share + np.uint64(pads[d ^ 3, i])
        ) & mask


@kernel
def finish(
    c: NDArray[np.uint64],
    z: NDArray[np.uint64],
    pads: NDArray[Any],
    messages: NDArray[Any],
    mask: np.uint64,
    shares: NDArray[Any],
) -> None:
    """Write the receiver's shares: the message at its position minus its pad."""
    for i in range(shares.shape[0]):
        shift = np.uint64(i & 63)
        low = (c[i >> 6] >> shift) & np.uint64(1)
        high = (z[i >> 6] >> shift) & np.uint64(1)
        # all three are read whatever the position is: no access depends on a secret
        message = (
            np.uint64(messages[0, i]) * (low & (high ^ np.uint64(1)))
            + np.uint64(messages[1, i]) * (high & (low ^ np.uint64(1)))
            + np.uint64(messages[2, i]) * (low & high)
        )
        shares[i] = (message - np.uint64(pads[i])) & mask
