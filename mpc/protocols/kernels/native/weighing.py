"""Sums of words times public weights, without carries: the inner loop of OT extension's check."""

from llvmlite import ir

from securemedian.mpc.arrays import Words
from securemedian.mpc.protocols.kernels.jit import callee, kernel
from securemedian.mpc.protocols.kernels.native.emit import I64, Vectors, inline, loop, offset
from securemedian.mpc.protocols.kernels.native.processor import LANES, VECTOR


@callee
def add_lanes(lane_sums: Words, sums: Words) -> None:
    """Add the sums of all lanes (r, VECTOR) to one for each row: sums (r, 2)."""
    for r in range(sums.shape[0]):
        for i in range(lane_sums.shape[1]):
            sums[r, i & 1] ^= lane_sums[r, i]


def _emit_weigh(
    builder: ir.IRBuilder,
    row: ir.Value,
    vectors: ir.Value,
    weights: ir.Value,
    sums: ir.Value,
    *,
    lanes: int,
) -> None:
    """Add to the two words of a row's sum what its first words come to.

    Rows are read one after the other, as they lie in memory: that is what takes the time.
    """
    b, v, one = builder, Vectors(builder, lanes), Vectors(builder, 1)
    kept = v.memory(1)
    v.store(v.constant([0] * 2 * lanes), kept)
    with loop(b, vectors) as i:
        at = b.mul(i, ir.Constant(I64, 2 * lanes))
        found = v.products(v.load(offset(b, row, at)), v.load(offset(b, weights, at)))
        v.store(b.xor(v.load(kept), found), kept)
    whole, total = v.load(kept), one.load(sums)
    for lane in range(lanes):
        total = b.xor(total, v.lane(whole, lane))
    one.store(total, sums)


# (row, vectors, weights, sum)
_weigh_tile, _weigh_block = (inline(_emit_weigh, 4, lanes=lanes) for lanes in (LANES, 1))


@kernel("u8[3] u8[1] u8[2]!")
def weigh(rows: Words, weights: Words, sums: Words) -> None:
    """Do as `extension.weigh` does. The words of a strip are an even number."""
    width, flat = rows.shape[2], sums.reshape(-1)
    for strip in range(rows.shape[0]):
        mine = weights[strip * width :]
        vectors = min(width, mine.size) // VECTOR
        whole = vectors * VECTOR
        blocks, last = (min(width, mine.size) - whole) // 2, mine[whole:]
        for i in range(rows.shape[1]):
            row, to = rows[strip, i], flat[2 * i :]
            _weigh_tile(row, vectors, mine, to)
            _weigh_block(row[whole:], blocks, last, to)
