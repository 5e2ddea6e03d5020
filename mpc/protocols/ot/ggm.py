"""GGM trees from base OTs: the receiver of OT extension knows all leaves, the sender all but one.

The receiver grows a tree from a seed. Per level it offers the XOR of all left nodes and the XOR of
all right ones in a base OT. The sender takes the side that leads off its path.

Each leaf gives 256 bits s_x more, so that wrong sums cannot tell Delta by later failures (Roy,
CRYPTO 2022, Section 5). The receiver sends XOR_x s_x and SHA-256(s_0 .. s_(q-1)). The sender makes
its missing s_x and the rest of these, and compares. Sums that are wrong pass with the chance that
Delta_i avoids them, which the receiver may guess, as it may guess bits of Delta_i elsewhere.

Then the sender tosses a coin, and streams are made of SHA-256(coin, block, x, leaf). A receiver
fixes the leaves before it knows the coin. So it cannot choose them such that columns of V collide
under the tweaks of OT extension's hash, nor make two leaves equal.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import PeerProtocolError
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.ot.base import BaseOtReceiver, BaseOtSender
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, expand, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS

# The bit of Delta that is fixed where it has to be (`audit.ands`). It is not among those that MACs
# of rings are made with (`audit.bits`).
FIXED_BIT = 63

DIGEST_BYTES = hashlib.sha256().digest_size


def receiver_setup(
    channel: Channel,
    session: bytes,
    field_bits: int,
    entropy: Entropy = os_entropy,
    native_aes: bool = True,
) -> list[list[bytes]]:
    """Return the seeds of the extension receiver's streams, blocks x q.

    It is the *sender* of the base OTs.
    """
    trees = receiver_trees(channel, session, field_bits, entropy, native_aes)
    checks = [_check([_more(leaf, native_aes) for leaf in tree]) for tree in trees]
    channel.send("ggm.checks", np.frombuffer(b"".join(checks), np.uint8))
    coin = channel.recv("ggm.coin", np.uint8, (SEED_BYTES,)).tobytes()
    return _seeds(coin, trees)


def sender_setup(
    channel: Channel,
    session: bytes,
    field_bits: int,
    entropy: Entropy = os_entropy,
    native_aes: bool = True,
    fixed: int | None = None,
) -> tuple[NDArray[np.uint8], list[list[bytes]]]:
    """Return the extension sender's Delta and the seeds of its streams.

    Delta has 128 bits, with bit j of block i at i k + j, of which FIXED_BIT is `fixed` unless this
    is None. The seed at Delta_i of each block i is
    empty. The extension sender is the *receiver* of the base OTs. Raises PeerProtocolError for
    trees that are not those that the peer's check is of.
    """
    delta, trees = sender_trees(channel, session, field_bits, entropy, native_aes, fixed)
    size = 2 * DIGEST_BYTES
    checks = channel.recv("ggm.checks", np.uint8, (len(trees) * size,)).reshape(-1, size)
    wrong = [
        block
        for block, (tree, check) in enumerate(zip(trees, checks, strict=True))
        if not _passes(tree, check.tobytes(), native_aes)
    ]
    if wrong:
        raise PeerProtocolError(
            f"the peer's sums of GGM trees are wrong (of blocks {wrong}): it did not follow the "
            "protocol, and no OT is made of them"
        )
    coin = entropy(SEED_BYTES)
    channel.send("ggm.coin", np.frombuffer(coin, np.uint8))
    return delta, _seeds(coin, trees)


def receiver_trees(
    channel: Channel, session: bytes, field_bits: int, entropy: Entropy, native_aes: bool
) -> list[list[bytes]]:
    """Grow the receiver's trees, offer their sums, and return the leaves."""
    base = BaseOtSender(channel, session, entropy)
    base.announce()
    keys = base.keys(SECURITY_BITS)
    leaves, masked = [], []
    for block in range(SECURITY_BITS // field_bits):
        nodes = [entropy(SEED_BYTES)]
        for level in range(field_bits):
            nodes = [child for node in nodes for child in _double(node, native_aes)]
            for side, key in enumerate(keys[block * field_bits + level]):
                masked.append(_xor([*nodes[side::2], key]))
        leaves.append(nodes)
    channel.send("ggm.sums", np.frombuffer(b"".join(masked), np.uint8))
    return leaves


def sender_trees(
    channel: Channel,
    session: bytes,
    field_bits: int,
    entropy: Entropy,
    native_aes: bool,
    fixed: int | None = None,
) -> tuple[NDArray[np.uint8], list[list[bytes]]]:
    """Draw Delta, and return it with the leaves that the sender knows; the missing are empty."""
    delta = np.unpackbits(np.frombuffer(entropy(SECURITY_BITS // 8), np.uint8), bitorder="little")
    if fixed is not None:
        delta[FIXED_BIT] = fixed
    # the root's bit is the top bit of the index
    paths = delta.reshape(-1, field_bits)[:, ::-1]
    keys = BaseOtReceiver(channel, session, entropy).keys(1 - paths.reshape(-1))
    sums = channel.recv("ggm.sums", np.uint8, (SECURITY_BITS * 2 * SEED_BYTES,)).reshape(
        -1, 2, SEED_BYTES
    )
    leaves = []
    for block, path in enumerate(paths):
        # by index at this level, all nodes but the one on the path
        known: dict[int, bytes] = {}
        missing = 0
        for level, bit in enumerate(path):
            known = {
                2 * x + side: child
                for x, node in known.items()
                for side, child in enumerate(_double(node, native_aes))
            }
            side = 1 - int(bit)
            position = block * field_bits + level
            same_side = [node for x, node in known.items() if x & 1 == side]
            known[2 * missing + side] = _xor(
                [*same_side, sums[position, side].tobytes(), keys[position]]
            )
            missing = 2 * missing + int(bit)
        leaves.append([known.get(x, b"") for x in range(1 << field_bits)])
    return delta, leaves


def _double(node: bytes, native_aes: bool) -> tuple[bytes, bytes]:
    children = expand(node, 0, 4, native_aes).tobytes()
    return children[:SEED_BYTES], children[SEED_BYTES:]


def _more(leaf: bytes, native_aes: bool) -> bytes:
    """Return the 256 bits of a leaf that are for the check alone."""
    return expand(leaf, 0, DIGEST_BYTES // 8, native_aes).tobytes()


def _check(more: list[bytes]) -> bytes:
    """Return what the sender checks a tree with: a sum and a digest."""
    return _xor(more) + hashlib.sha256(b"".join(more)).digest()


def _passes(tree: list[bytes], check: bytes, native_aes: bool) -> bool:
    """Return whether the leaves that the sender knows, and the sum, come to the digest."""
    more = [_more(leaf, native_aes) if leaf else b"" for leaf in tree]
    missing = _xor([check[:DIGEST_BYTES], *(found for found in more if found)])
    return _check([found or missing for found in more]) == check


def _seeds(coin: bytes, trees: list[list[bytes]]) -> list[list[bytes]]:
    """Return the seeds of the streams of leaves."""

    def seed(block: int, x: int, leaf: bytes) -> bytes:
        place = block.to_bytes(1, "little") + x.to_bytes(1, "little")
        return hashlib.sha256(b"securemedian leaf" + coin + place + leaf).digest()[:SEED_BYTES]

    return [
        [seed(block, x, leaf) if leaf else b"" for x, leaf in enumerate(tree)]
        for block, tree in enumerate(trees)
    ]


def _xor(values: list[bytes]) -> bytes:
    return np.bitwise_xor.reduce(
        np.frombuffer(b"".join(values), np.uint64).reshape(len(values), -1), axis=0
    ).tobytes()
