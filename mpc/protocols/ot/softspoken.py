"""SoftSpokenOT: millions of random 1-of-2 OTs from 128 base OTs.

Roy, CRYPTO 2022, Sections 3 and 4; semi-honest, with the repetition code.

With k = `ot_field_bits` there are 128/k blocks and q = 2^k. In block i the extension *receiver*
knows q leaves r_x of a GGM tree, the *sender* all but the one at its secret Delta_i. With every
leaf expanded to n bits,

    receiver:  u_i = XOR_x r_x,   v_i = XOR_x x r_x
    sender:    w_i = XOR_x (Delta_i ^ x) r_x = v_i ^ Delta_i u_i

since the missing leaf has factor 0. The receiver takes u = u_0 as its choice bits and sends
c_i = u_i ^ u for the other blocks, n bits each, so that the sender gets w_i = v_i ^ Delta_i u.
Column by column that is W = V ^ u Delta over 128 bits, and

    the sender's keys are H(t, W) and H(t, W ^ Delta),
    the receiver's is H(t, V), the key of choice u,

with the hash H of `ot.hash` under a key of the session. The tweak t is unique in a session:
`index` only grows, and a lane's streams are expanded once, in order. Between semi-honest parties
the columns are pseudorandom, and nobody chooses x against t.

The receiver sends 128/k - 1 uniform bits per OT: one message per `extend`, and these messages do
not wait for each other.
"""

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.arrays import Blocks, Words
from securemedian.mpc.protocols.channel import Channel
from securemedian.mpc.protocols.ot.base import BaseOtReceiver, BaseOtSender
from securemedian.mpc.protocols.ot.extension import (
    Direction,
    RandomOtEnd,
    RandomOtReceiver,
    RandomOtSender,
    blocks_of,
    checked_block,
)
from securemedian.mpc.protocols.ot.hash import Hash
from securemedian.mpc.protocols.ot.leaves import Tweaked, expander
from securemedian.mpc.protocols.ot.scratch import Scratch
from securemedian.mpc.protocols.prg import SEED_BYTES, Entropy, expand, os_entropy
from securemedian.mpc.protocols.protocol import SECURITY_BITS


def corrections_shape(field_bits: int, count: int) -> tuple[int, int]:
    """Return the shape in words of the one message of `extend`: one row per block but the first."""
    return SECURITY_BITS // field_bits - 1, count // 64


def _double(node: bytes, native_aes: bool) -> tuple[bytes, bytes]:
    children = expand(node, 0, 4, native_aes).tobytes()
    return children[:SEED_BYTES], children[SEED_BYTES:]


def _xor(values: list[bytes]) -> bytes:
    return np.bitwise_xor.reduce(
        np.frombuffer(b"".join(values), np.uint64).reshape(len(values), -1), axis=0
    ).tobytes()


def receiver_setup(
    channel: Channel,
    session: bytes,
    field_bits: int,
    entropy: Entropy = os_entropy,
    native_aes: bool = True,
) -> list[list[bytes]]:
    """Return the extension receiver's GGM leaves, blocks x q.

    It is the *sender* of the base OTs: per level of a tree it offers the XOR of all left nodes and
    the XOR of all right ones.
    """
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


def sender_setup(
    channel: Channel,
    session: bytes,
    field_bits: int,
    entropy: Entropy = os_entropy,
    native_aes: bool = True,
) -> tuple[NDArray[np.uint8], list[list[bytes]]]:
    """Return the extension sender's Delta and GGM leaves.

    Delta has 128 bits, with bit j of block i at i k + j. The leaf at Delta_i of each block i is
    empty. The extension sender is the *receiver* of the base OTs.
    """
    delta = np.unpackbits(np.frombuffer(entropy(SECURITY_BITS // 8), np.uint8), bitorder="little")
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


class _SoftSpoken(RandomOtEnd):
    """What both ends have: the streams of the leaves, and the hash."""

    sender_speaks = False

    def __init__(self, direction: Direction, leaves: list[list[bytes]]) -> None:
        self._channel, native_aes = direction.channel, direction.native_aes
        self._leaves = expander(leaves, direction.lane, native_aes)
        self._field_bits = SECURITY_BITS // len(leaves)
        self._tweaks = direction.tweaks
        self._scratch, label = Scratch(), b"securemedian pi"
        self._hash = Hash(self._scratch, label, direction.session, native_aes=native_aes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(index={self.index}, <secrets>)"

    def _tweaked(self) -> Tweaked:
        """Return the hash with the tweaks of the next OTs."""
        return Tweaked(self._hash, self.index, self._tweaks)


class SoftSpokenReceiver(_SoftSpoken, RandomOtReceiver):
    """The receiver's end, which sends one message of corrections per `extend`."""

    def extend(self, count: int) -> tuple[Words, Blocks]:
        choices = self._scratch.array("choices", checked_block(count) // 64)
        keys, corrections = self._scratch.array("keys", count, 2), self._corrections(count)
        self._leaves.keys(self._tweaked(), choices, None, corrections, keys)
        self._sent(corrections, count)
        return choices, keys

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        choices = np.empty(count // 64, np.uint64)
        planes = np.empty((width, choices.size), np.uint64)
        for words in blocks_of(count):
            mine = choices[words]
            corrections = self._corrections(64 * mine.size)
            self._leaves.planes(self._tweaked(), mine, None, corrections, words.start, planes)
            self._sent(corrections, 64 * mine.size)
        return choices, planes

    def _corrections(self, count: int) -> Words:
        # new each time, because the channel may still be sending the last ones
        return np.empty(corrections_shape(self._field_bits, count), np.uint64)

    def _sent(self, corrections: Words, count: int) -> None:
        """Send the corrections of `count` OTs that were made, and count these."""
        self._channel.send("ot.corrections", corrections)
        self.index += count

    def correlate(self, count: int) -> tuple[Words, Words]:
        """Return the correlated OTs that `extend` would hash: u (count/64,) and V (128, count/64).

        Sends the corrections. The next call overwrites what this one returned.
        """
        words = checked_block(count) // 64
        rows = self._scratch.array("rows", SECURITY_BITS, words)
        choices = self._scratch.array("choices", words)
        corrections = self._corrections(count)
        self._leaves.rows(choices, None, corrections, rows)
        self._channel.send("ot.corrections", corrections)
        return choices, rows


class SoftSpokenSender(_SoftSpoken, RandomOtSender):
    """The sender's end, which waits for the corrections and holds Delta.

    `sigma_delta` is sigma(Delta), low word first: the difference of the hash's inputs for the two
    keys of an OT. It is as secret as Delta.
    """

    def __init__(
        self, direction: Direction, delta: NDArray[np.uint8], leaves: list[list[bytes]]
    ) -> None:
        # folding weighs leaf y with y; storing leaf x at x ^ Delta_i weighs it with Delta_i ^ x,
        # and the missing one with 0
        weights = (
            delta.reshape(len(leaves), -1).astype(np.int64) << np.arange(delta.size // len(leaves))
        ).sum(axis=1)
        moved = [
            [tree[y ^ int(d)] for y in range(len(tree))]
            for tree, d in zip(leaves, weights, strict=True)
        ]
        super().__init__(direction, moved)
        self._masks = np.uint64(0) - delta.astype(np.uint64)
        low, high = np.packbits(delta, bitorder="little").view(np.uint64)
        self.sigma_delta: Words = np.array([low ^ high, low])

    def extend(self, count: int) -> tuple[Blocks, Blocks]:
        corrections = self._corrections(count)
        keys0, keys1 = (self._scratch.array(name, count, 2) for name in ("keys0", "keys1"))
        given = self._tweaked(), None, self._masks, corrections
        self._leaves.keys(*given, keys0, self.sigma_delta, keys1)
        self.index += count
        return keys0, keys1

    def extend_planes(self, count: int, width: int) -> tuple[Words, Words]:
        planes0, planes1 = (np.empty((width, count // 64), np.uint64) for _ in range(2))
        for words in blocks_of(count):
            ots = 64 * (words.stop - words.start)
            given = self._tweaked(), None, self._masks, self._corrections(ots)
            self._leaves.planes(*given, words.start, planes0, self.sigma_delta, planes1)
            self.index += ots
        return planes0, planes1

    def correlate(self, count: int) -> Words:
        """Return the correlated OTs that `extend` would hash: W (128, count/64).

        Waits for the receiver's corrections. The next call overwrites what this one returned.
        """
        corrections = self._corrections(count)
        rows = self._scratch.array("rows", SECURITY_BITS, count // 64)
        self._leaves.rows(None, self._masks, corrections, rows)
        return rows

    def _corrections(self, count: int) -> Words:
        """Wait for the receiver's corrections of `count` OTs."""
        shape = corrections_shape(self._field_bits, checked_block(count))
        return self._channel.recv("ot.corrections", np.uint64, shape)
