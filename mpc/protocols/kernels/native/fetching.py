"""Fetching memory ahead of its use, in an order that the processor cannot guess."""

from llvmlite import ir

from securemedian.mpc.protocols.kernels.native.emit import I8, I32, Vectors, inline, offset


def emit_fetch(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, *, write: int) -> None:
    """Ask for the line of an array's element, which may lie beyond its end."""
    address = builder.bitcast(offset(builder, array, at), I8.as_pointer())
    # into the caches of all levels, and of data
    how = [ir.Constant(I32, each) for each in (write, 3, 1)]
    Vectors(builder, 1).call("llvm.prefetch.p0", ir.VoidType(), address, *how)


# fetch(array, i) begins to load element i into the cache, fetch_to_write(array, i) to write to it
fetch, fetch_to_write = (inline(emit_fetch, 2, write=write) for write in (0, 1))
