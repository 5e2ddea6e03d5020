"""SoftSpokenOT: millions of random 1-of-2 OTs from 128 base OTs (Roy, CRYPTO 2022, Sections 3 and 4; semi-honest,
repetition code).

With k = `ot_field_bits`, q = 2^k and 128/k blocks. In block i the extension *receiver* knows q leaves r_x of a GGM
tree, the *sender* all but the one at its secret Delta_i. Expanding every leaf to n bits,

    receiver:  u_i = XOR_x r_x,   v_i = XOR_x x r_x
    sender:    w_i = XOR_x (Delta_i ^ x) r_x = v_i ^ Delta_i u_i

since the missing leaf has factor 0. The receiver takes u = u_0 as its choice bits and sends c_i = u_i ^ u for the other
blocks, n bits each, so that the sender gets w_i = v_i ^ Delta_i u. Column by column that is W = V ^ u Delta over 128
bits, and

    the sender's keys are H(t, W), H(t, W ^ Delta), the receiver's is H(t, V) = the key of choice u,

H(t, x) = pi(sigma(x) ^ t) ^ sigma(x) ^ t with pi = AES under a public key of the session (Guo, Katz, Wang, Yu, S&P
2020). The tweak t = (index, lane and direction) is unique in a session: `index` only grows, a lane's streams are
expanded once, in order, and `expand` counts its blocks in a part of t that is 0 elsewhere. Between semi-honest parties
the columns are pseudorandom, and nobody chooses x against t.

Wire: 128/k - 1 bits an OT, from receiver to sender, uniform. One message a block; blocks do not wait for each other.
"""

import hashlib
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from securemedian.mpc.channel import Channel
from securemedian.mpc.errors import LocalProtocolError
from securemedian.mpc.kernels import extension as kernels
from securemedian.mpc.ot.base import BaseOtReceiver, BaseOtSender
from securemedian.mpc.prg import SEED_BYTES, ZEROS, Entropy, Stream, os_entropy
from securemedian.mpc.protocol import SECURITY_BITS

ALIGN = 128  # OTs: a row of a block is whole AES blocks
# OTs in one call of `extend` at most: AES calls long enough to cost nothing beside their work, rows short enough for
# the cache. A row is an odd number of cache lines, so that a column of rows does not fall on the same few cache sets.
BLOCK = 255 * 512


def corrections_shape(field_bits: int, count: int) -> tuple[int, int]:
    """Words of the one message of `extend`, a row for every block but the first."""
    return SECURITY_BITS // field_bits - 1, count // 64


def _double(node: bytes) -> tuple[bytes, bytes]:
    children = Stream(node).words(4).tobytes()
    return children[:SEED_BYTES], children[SEED_BYTES:]


def _xor(values: list[bytes]) -> bytes:
    return np.bitwise_xor.reduce(
        np.frombuffer(b"".join(values), np.uint64).reshape(len(values), -1), axis=0
    ).tobytes()


def receiver_setup(
    channel: Channel, session: bytes, field_bits: int, entropy: Entropy = os_entropy
) -> list[list[bytes]]:
    """The extension receiver's GGM leaves, blocks x q. It is the base OT *sender*: per tree level it offers the XOR of
    all left and of all right nodes.
    """
    base = BaseOtSender(channel, session, entropy)
    base.announce()
    keys = base.keys(SECURITY_BITS)
    leaves, masked = [], []
    for block in range(SECURITY_BITS // field_bits):
        nodes = [entropy(SEED_BYTES)]
        for level in range(field_bits):
            nodes = [child for node in nodes for child in _double(node)]
            for side, key in enumerate(keys[block * field_bits + level]):
                masked.append(_xor([*nodes[side::2], key]))
        leaves.append(nodes)
    channel.send("ggm.sums", np.frombuffer(b"".join(masked), np.uint8))
    return leaves


def sender_setup(
    channel: Channel, session: bytes, field_bits: int, entropy: Entropy = os_entropy
) -> tuple[NDArray[np.uint8], list[list[bytes]]]:
    """Delta as 128 bits (bit j of block i at i k + j), and per block the leaves with the one at Delta_i left empty.
    Base OT *receiver*.
    """
    delta = np.unpackbits(np.frombuffer(entropy(SECURITY_BITS // 8), np.uint8), bitorder="little")
    paths = delta.reshape(-1, field_bits)[:, ::-1]  # the root's bit is the index's top bit
    keys = BaseOtReceiver(channel, session, entropy).keys(1 - paths.reshape(-1))
    sums = channel.recv("ggm.sums", np.uint8, (SECURITY_BITS * 2 * SEED_BYTES,)).reshape(
        -1, 2, SEED_BYTES
    )
    leaves = []
    for block, path in enumerate(paths):
        known: dict[int, bytes] = {}  # index at this level -> node; the one on the path is missing
        missing = 0
        for level, bit in enumerate(path):
            known = {
                2 * x + side: child
                for x, node in known.items()
                for side, child in enumerate(_double(node))
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


class _Extension:
    """What both ends share: streams, buffers, the index and the hash."""

    sender_speaks = False  # in `extend`: here the receiver does, and the sender waits
    left = 0  # OTs that `extend` gives before it next speaks or waits

    def __init__(
        self, channel: Channel, session: bytes, leaves: list[list[bytes]], lane: int, direction: int
    ) -> None:
        self._channel = channel
        self._streams = [
            [Stream(leaf, nonce=lane) if leaf else None for leaf in tree] for tree in leaves
        ]
        self.field_bits = SECURITY_BITS // len(leaves)
        self._stream = np.uint64(2 * lane + direction)
        self.index = 0  # OTs made so far: the next tweak
        key = hashlib.sha256(b"securemedian pi" + session).digest()[:16]
        self._pi = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update_into
        self._buffers: dict[str, NDArray[np.uint64]] = {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(index={self.index}, <secrets>)"

    def _buffer(self, name: str, *shape: int) -> NDArray[np.uint64]:
        """A contiguous array from a block that is allocated once; its content is whatever the last use left."""
        size = int(np.prod(shape))
        if name not in self._buffers or self._buffers[name].size < size:
            self._buffers[name] = np.empty(size, np.uint64)
        return self._buffers[name][:size].reshape(shape)

    def prepare(self) -> None:
        """Say, or wait for, what the two ends must have before the first `extend`: here nothing."""

    def _check(self, count: int) -> int:
        if count <= 0 or count % ALIGN or count > BLOCK:
            raise LocalProtocolError(
                f"extend takes a positive multiple of {ALIGN} up to {BLOCK}, not {count}"
            )
        return count // 64

    def expand(self, keys: NDArray[np.uint64], blocks: int) -> NDArray[np.uint64]:
        """H under `blocks` fresh tweaks of each key of the last `extend`: (count, 2 blocks) words where 128 bits are
        too few.
        """
        first = self.index - len(keys)
        out = np.empty((len(keys), blocks, 2), np.uint64)
        for block in range(blocks):
            tweaked = np.empty_like(keys)
            kernels.sigma_and_tweak(
                keys, np.uint64(first), self._stream | np.uint64((block + 1) << 32), tweaked
            )
            out[:, block] = self._encrypt(tweaked)
        return out.reshape(len(keys), -1)

    def _encrypt(self, blocks: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """blocks ^= pi(blocks), in place: the last step of H."""
        images = self._buffer(
            "pi", len(blocks) + 1, 2
        )  # one block more than is written: `update_into` asks for the room
        self._pi(_bytes(blocks), _bytes(images))
        kernels.xor_into(blocks, images[:-1])
        return blocks


def _bytes(array: NDArray[Any]) -> memoryview:
    return array.data.cast("B")


class RandomOtReceiver(_Extension):
    """Makes random choice bits and the key of each choice."""

    def extend(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """`count` OTs (a multiple of ALIGN, at most BLOCK): packed choices (count/64,) and keys (count, 2), views that
        the next call overwrites.
        """
        choices, rows = self._correlate(count)
        keys = self._buffer("keys", count, 2)
        kernels.transpose_and_tweak(rows, np.uint64(self.index), self._stream, keys)
        self.index += count
        return choices, self._encrypt(keys)

    def _correlate(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """u (count/64,) and the rows of V (128, count/64). Sends the corrections."""
        words = self._check(count)
        k, q = self.field_bits, 1 << self.field_bits
        rows = self._buffer("rows", SECURITY_BITS, words)
        leaves = self._buffer("leaves", q, words)
        choices = self._buffer("choices", words)
        # new each time: the channel may still be sending the last
        corrections = np.empty(corrections_shape(k, count), np.uint64)
        zeros, views = ZEROS[: 8 * words], [_bytes(leaf) for leaf in leaves]
        for block, tree in enumerate(self._streams):
            for stream, view in zip(tree, views, strict=True):
                assert stream is not None  # the receiver knows every leaf
                stream.xor(zeros, view)
            kernels.fold(leaves, rows[block * k : (block + 1) * k])
            if block == 0:
                choices[:] = leaves[0]
            else:
                np.bitwise_xor(leaves[0], choices, out=corrections[block - 1])
        self._channel.send("ot.corrections", corrections)
        return choices, rows


class RandomOtSender(_Extension):
    """Makes two random keys per OT. Holds Delta, which never leaves this object."""

    def __init__(
        self,
        channel: Channel,
        session: bytes,
        delta: NDArray[np.uint8],
        leaves: list[list[bytes]],
        lane: int,
        direction: int,
    ) -> None:
        # fold() weighs leaf y with y; storing leaf x at x ^ Delta_i weighs it with Delta_i ^ x, and the missing one
        # with 0
        weights = (
            delta.reshape(len(leaves), -1).astype(np.int64) << np.arange(delta.size // len(leaves))
        ).sum(axis=1)
        super().__init__(
            channel,
            session,
            [
                [tree[y ^ int(d)] for y in range(len(tree))]
                for tree, d in zip(leaves, weights, strict=True)
            ],
            lane,
            direction,
        )
        self._masks = np.uint64(0) - delta.astype(np.uint64)
        low, high = np.packbits(delta, bitorder="little").view(np.uint64)
        self._sigma_delta = (low ^ high, low)

    def extend(self, count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """`count` OTs: the keys of choice 0 and of choice 1, each (count, 2), views that the next call overwrites.
        Waits for the receiver's corrections.
        """
        rows = self._correlate(count)
        keys0 = self._buffer("keys0", count, 2)
        keys1 = self._buffer("keys1", count, 2)
        kernels.transpose_and_tweak(rows, np.uint64(self.index), self._stream, keys0)
        kernels.xor_constant(keys0, *self._sigma_delta, keys1)
        self.index += count
        return self._encrypt(keys0), self._encrypt(keys1)

    def _correlate(self, count: int) -> NDArray[np.uint64]:
        """The rows of W (128, count/64). Waits for the receiver's corrections."""
        words = self._check(count)
        k, q = self.field_bits, 1 << self.field_bits
        rows = self._buffer("rows", SECURITY_BITS, words)
        leaves = self._buffer("leaves", q, words)
        corrections = self._channel.recv("ot.corrections", np.uint64, corrections_shape(k, count))
        zeros, views = ZEROS[: 8 * words], [_bytes(leaf) for leaf in leaves]
        for block, tree in enumerate(self._streams):
            leaves[0] = 0
            for stream, view in zip(tree[1:], views[1:], strict=True):
                assert stream is not None  # only y = 0, x = Delta_i, is missing
                stream.xor(zeros, view)
            mine = rows[block * k : (block + 1) * k]
            kernels.fold(leaves, mine)
            if block > 0:
                kernels.correct(
                    mine, corrections[block - 1], self._masks[block * k : (block + 1) * k]
                )
        return rows
