"""Dealt vectors of one word, eight at a time."""

from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee
from securemedian.mpc.protocols.kernels.native.emit import I8, I64, Vectors, inline, offset
from securemedian.mpc.protocols.kernels.native.processor import PERMUTES


def _emit_unpack(
    builder: ir.IRBuilder,
    words: ir.Value,
    byte: ir.Value,
    step: ir.Value,
    bits: ir.Value,
    one: ir.Value,
    ones: ir.Value,
    numbers: ir.Value,
    halves: ir.Value,
    out: ir.Value,
    positions: ir.Value,
    at: ir.Value,
) -> None:
    """Set out[at..at+7] and positions[at..at+7] as `unpack_vectors` does."""
    if not PERMUTES:
        # nothing calls it, but it would be compiled
        return
    b, v = builder, Vectors(builder, 4)

    def all_(word: ir.Value | int) -> ir.Value:
        return v.constant([word] * 8) if isinstance(word, int) else v.fill(word, word)

    def sum_(pairs: ir.Value, weights: ir.Value) -> ir.Value:
        """Return the sum of a vector's pairs of entries times weights, where the last pair was."""
        return b.lshr(b.mul(pairs, weights), all_(b.sub(step, bits)))

    def store(vector: ir.Value, array: ir.Value) -> None:
        element = array.type.pointee
        if element != I64:
            vector = b.trunc(vector, ir.VectorType(element, 8))
        pointer = b.bitcast(offset(b, array, at), vector.type.as_pointer())
        b.store(vector, pointer).align = element.width // 8

    begins = b.mul(all_(step), v.constant(range(8)))
    sides = []
    for start in (8, 0):
        place = b.add(byte, ir.Constant(I64, start))
        address = b.gep(b.bitcast(words, I8.as_pointer()), [place])
        loaded = b.load(b.bitcast(address, v.words.as_pointer()))
        loaded.align = 1
        order = b.lshr(begins, all_(6))
        sides.append(v.call("llvm.x86.avx512.permvar.di.512", v.words, loaded, order))
    packed = v.call("llvm.fshr.v8i64", v.words, *sides, b.and_(begins, all_(63)))
    packed = b.and_(packed, b.lshr(all_(2**64 - 1), b.sub(all_(64), all_(step))))
    entry = b.lshr(all_(2**64 - 1), b.sub(all_(64), all_(bits)))
    mask = b.mul(all_(ones), entry)
    even, odd = b.and_(packed, mask), b.and_(b.lshr(packed, all_(bits)), mask)
    last = b.and_(b.sub(all_(one), sum_(b.add(even, odd), all_(ones))), entry)
    store(b.or_(packed, b.shl(last, all_(step))), out)
    # the last entry is odd
    odd = b.or_(odd, b.shl(last, all_(b.sub(step, bits))))
    pairs = b.and_(b.add(even, odd), all_(halves))
    doubled = b.shl(sum_(pairs, all_(numbers)), all_(1))
    store(b.add(doubled, sum_(odd, all_(ones))), positions)


_unpack = inline(_emit_unpack, 11)


@callee
def unpack_vectors(
    words: Words,
    first: int,
    step: int,
    bits: int,
    one: int,
    ones: np.uint64,
    numbers: np.uint64,
    halves: np.uint64,
    out: NDArray[Any],
    positions: NDArray[np.uint8],
) -> int:
    """Set `out` and `positions` to packed vectors of one word, from number `first` on, and theirs.

    It does what `vectors.unpack` does, with constants that `vectors.weights` returns, eight at a
    time as long as there are words. It returns how many it did: none if the processor cannot.
    `first` is a multiple of 8. Every eight vectors, of `step` bits each, then begin at a byte. They
    lie in the same way in the 64 bytes from there on and in those from one word later on.
    """
    byte, end, at = first // 8 * step, 8 * words.shape[0] - 72, 0
    while PERMUTES and at + 8 <= out.shape[0] and byte <= end:
        _unpack(words, byte, step, bits, one, ones, numbers, halves, out, positions, at)
        at, byte = at + 8, byte + step
    return at
