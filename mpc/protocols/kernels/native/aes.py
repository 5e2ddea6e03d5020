"""AES-128's key schedule, and streams in counter mode as `mpc.protocols.prg.Stream` makes them."""

import numpy as np
from llvmlite import ir

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.native.emit import (
    I64,
    KEY_WORDS,
    ROUND_CONSTANTS,
    ROUNDS,
    Vectors,
    inline,
    offset,
    tiles,
)
from securemedian.mpc.protocols.kernels.native.processor import ABREAST


def _emit_schedule(builder: ir.IRBuilder, key: ir.Value, out: ir.Value) -> None:
    """Write the round keys of one key."""
    v = Vectors(builder, 1)
    block = v.load(key)
    v.store(block, out)
    for i, constant in enumerate(ROUND_CONSTANTS, 1):
        block = v.next_round_key(block, constant)
        v.store(block, offset(builder, out, 2 * i))


_schedule = inline(_emit_schedule, 2)


@kernel("u8[2] u8[3]!")
def schedule(keys: Words, out: Words) -> None:
    """Write the round keys (n, 11, 2) of AES keys (n, 2)."""
    for i in range(keys.shape[0]):
        _schedule(keys[i], out[i])


def round_keys(keys: bytes) -> Words:
    """Return the round keys (n, 11, 2) of n AES keys that follow each other."""
    blocks = np.frombuffer(keys, np.uint64).reshape(-1, 2)
    out = np.empty((len(blocks), ROUNDS + 1, 2), np.uint64)
    schedule(blocks, out)
    return out


def _emit_stream(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    blocks: ir.Value,
    out: ir.Value,
) -> None:
    """Write so many blocks of the stream under one key."""
    b = builder
    for v, abreast, block in tiles(b, blocks, ABREAST):
        found = v.encrypt(v.counters(nonce, b.add(counter, block), abreast), keys)
        v.stores(found, offset(b, out, b.shl(block, ir.Constant(I64, 1))))


_stream = inline(_emit_stream, 5)


@kernel("u8[1] u8 u8 u8[1]!")
def stream(key: Words, nonce: np.uint64, counter: np.uint64, out: Words) -> None:
    """Write the stream of an AES key (2,) from block number `counter` on."""
    keys, block = np.empty(KEY_WORDS, np.uint64), np.empty(2, np.uint64)
    _schedule(key, keys)
    whole = out.shape[0] // 2
    _stream(keys, nonce, counter, whole, out)
    if out.shape[0] > 2 * whole:
        _stream(keys, nonce, counter + np.uint64(whole), 1, block)
        out[2 * whole] = block[0]
