"""Words cut into bit planes: the processor gathers a bit of 64 bytes with one instruction."""

from collections.abc import Sequence

from llvmlite import ir

from securemedian.mpc.protocols.kernels.native.emit import (
    I8,
    I32,
    I64,
    bits_at,
    inline,
    loop,
    offset,
    spread,
)


def _emit_bit_planes(
    builder: ir.IRBuilder,
    values: ir.Value,
    count: ir.Value,
    planes: ir.Value,
    stride: ir.Value,
    *,
    every: int,
) -> None:
    """Write one word of `count` planes, `stride` words apart: the low bits of 64 of the values.

    Of the values it takes every first or every second. A vector has one byte of each, whose bits at
    one place are those of a plane.
    """
    b, element = builder, values.type.pointee
    eights, bytes_ = ir.VectorType(element, 8), ir.VectorType(I8, 8)
    eight = ir.Constant(I64, 8)

    def shuffle(one: ir.Value, other: ir.Value, order: Sequence[int]) -> ir.Value:
        places = ir.Constant(ir.VectorType(I32, len(order)), list(order))
        return b.shuffle_vector(one, other, places)

    def load(at: int) -> ir.Value:
        loaded = b.load(b.bitcast(offset(b, values, at), eights.as_pointer()))
        loaded.align = element.width // 8
        return loaded

    vectors = [
        load(at) if every == 1 else shuffle(load(at), load(at + 8), range(0, 16, every))
        for at in range(0, 64 * every, 8 * every)
    ]
    with loop(b, b.udiv(b.add(count, ir.Constant(I64, 7)), eight)) as octet:
        first = b.mul(octet, eight)
        down = first if element == I64 else b.trunc(first, element)
        parts = [
            part if element == I8 else b.trunc(b.lshr(part, spread(b, down, eights)), bytes_)
            for part in vectors
        ]
        while len(parts) > 1:
            size = 2 * parts[0].type.count
            parts = [
                shuffle(*pair, range(size)) for pair in zip(parts[::2], parts[1::2], strict=True)
            ]
        rest = b.sub(count, first)
        with loop(b, b.select(b.icmp_unsigned("<", rest, eight), rest, eight)) as k:
            place = b.mul(b.add(first, k), stride)
            b.store(bits_at(b, parts[0], k), offset(b, planes, place))


# (64 values, planes, a word of the first plane, stride) writes one word of each plane of the values
word_of_planes = inline(_emit_bit_planes, 4, every=1)
# of the low words of 64 keys
word_of_key_planes = inline(_emit_bit_planes, 4, every=2)
