"""Sums of words times public weights, without carries."""

from llvmlite import ir

from securemedian.mpc.protocols.kernels.native.emit import I64, Vectors, inline, loop, offset
from securemedian.mpc.protocols.kernels.native.processor import LANES, VECTOR


def _emit_weigh(
    builder: ir.IRBuilder, row: ir.Value, count: ir.Value, weights: ir.Value, sums: ir.Value
) -> None:
    """Add to the two words of a row's sum what its first `count` words, an even number, come to."""
    b, one = builder, Vectors(builder, 1)
    vectors, total = b.udiv(count, ir.Constant(I64, VECTOR)), one.load(sums)
    done = b.mul(vectors, ir.Constant(I64, VECTOR))
    rest = b.lshr(b.sub(count, done), ir.Constant(I64, 1))
    for lanes, first, number in ((LANES, ir.Constant(I64, 0), vectors), (1, done, rest)):
        v = Vectors(b, lanes)
        kept = v.memory(1)
        v.store(v.constant([0] * 2 * lanes), kept)
        with loop(b, number) as i:
            at = b.add(first, b.mul(i, ir.Constant(I64, 2 * lanes)))
            found = v.products(v.load(offset(b, row, at)), v.load(offset(b, weights, at)))
            v.store(b.xor(v.load(kept), found), kept)
        for lane in range(lanes):
            total = b.xor(total, v.lane(v.load(kept), lane))
    one.store(total, sums)


# (row, words, weights, sum)
weigh_row = inline(_emit_weigh, 4)
