"""Eight rows of a sketch at a time, for eight clients whose shares fill a vector."""

from llvmlite import ir

from securemedian.mpc.protocols.kernels.native.emit import I64, Vectors, inline, loop, offset


def _emit_eight_rows(
    builder: ir.IRBuilder,
    tables: ir.Value,
    signs: ir.Value,
    at: ir.Value,
    stride: ir.Value,
    count: ir.Value,
    sums: ir.Value,
) -> None:
    """Add to eight rows' sums what `count` tables have at their bytes, which are one word each.

    The sums stay in registers meanwhile.
    """
    b, v = builder, Vectors(builder, 4)
    rows = v.loads(sums, 8)
    kept = [v.memory(1) for _ in rows]
    for row, memory in zip(rows, kept, strict=True):
        v.store(row, memory)
    with loop(b, count) as g:
        table = offset(b, tables, b.mul(g, ir.Constant(I64, 16 * 8)))
        word = b.load(offset(b, signs, b.add(at, b.mul(g, stride))))
        for i, memory in enumerate(kept):
            # times 8 words, of which an entry is
            added, taken = (
                v.load(
                    offset(b, table, b.and_(_shifted(b, word, bit - 3), ir.Constant(I64, 15 << 3)))
                )
                for bit in (8 * i, 8 * i + 4)
            )
            v.store(b.sub(b.add(v.load(memory), added), taken), memory)
    v.stores([v.load(memory) for memory in kept], sums)


def _shifted(builder: ir.IRBuilder, word: ir.Value, by: int) -> ir.Value:
    """Return a word shifted to the right, or to the left by what is below 0."""
    if by < 0:
        return builder.shl(word, ir.Constant(I64, -by))
    return builder.lshr(word, ir.Constant(I64, by))


# (tables, words of signs, the first of them, words per table, tables, sums)
eight_rows = inline(_emit_eight_rows, 6)
