"""The inner loops of OT extension, seeds and dealt vectors, on the processor's own instructions.

Each is one pass in registers where `mpc.kernels.extension`, `mpc.kernels.vectors` and OpenSSL make
several over memory, and each gives the same bytes: a stream is AES-128 in counter mode as
`mpc.prg.Stream` makes it, a hash that of `mpc.ot.hash`. numba has no vectors of its own, so that
what an inner loop does with them is written here as LLVM instructions, and the loops around it are
kernels like all others. `fetch` and `fetch_to_write` are for loops that know what memory they will
want, in an order that the processor cannot guess.

A vector holds LANES blocks of 128 bits: 4 with VAES and AVX-512, 2 with VAES and AVX2, 1 with
AES-NI alone. Which of these, and whether GFNI transposes bits, follows from the features that
numba compiles for. It keeps code by the same features (and the processor's name) in its cache on
disk, so that a processor never loads what was compiled for another.

The instructions take the same time whatever they work on, and there is no table and no branch on
anything but sizes and positions.

Sizes: n OTs per block (a multiple of 128), w = n / 64 words per row, 128 rows; round keys are
(.., 11, 2) words, one block per round.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.core import cgutils, errors
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from securemedian.mpc.protocols.kernels.jit import kernel
from securemedian.mpc.protocols.kernels.lpn import LOCALITY, mend_tree

# AES-128's constants of the key schedule, one per round (FIPS 197).
ROUND_CONSTANTS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1B, 0x36)
ROUNDS = len(ROUND_CONSTANTS)
# Words of one key's round keys: a block per round, and one before them.
KEY_WORDS = 2 * (ROUNDS + 1)
# Vectors that are expanded, or hashed, at once: a round key is loaded once for all of them, and no
# instruction waits for the last. A row of `mpc.ot.extension.BLOCK` OTs is a multiple of 5 and of 3
# vectors, however many lanes they have.
_ABREAST = 5
_HASHED = 4
# For trees of 2^_SMALL_BITS leaves all sums of 3 vectors are kept in registers.
_SMALL_BITS = 4
_SMALL_ABREAST = 3
# The largest k of SoftSpokenOT.
_MOST_BITS = 8

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
# numba's own helpers have no types
_TOOLS: Any = cgutils


def _features() -> frozenset[str]:
    """Return the features of the x86-64 processor that numba compiles for, by LLVM's names."""
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    compiles = not config.DISABLE_JIT  # type: ignore[attr-defined]
    if not compiles or not triple.startswith("x86_64"):
        return frozenset()
    return frozenset(name[1:] for name in features.split(",") if name.startswith("+"))


FEATURES = _features()
if {"avx512f", "avx512bw", "avx512vl", "vaes"} <= FEATURES:
    LANES = 4
elif {"avx2", "vaes"} <= FEATURES:
    LANES = 2
else:
    LANES = 1
GFNI = "gfni" in FEATURES
# Whether vectors cut words into bit planes.
SLICES = bool(FEATURES)
# Whether there are instructions that fetch memory ahead of its use: wherever kernels are compiled.
FETCHES = not config.DISABLE_JIT  # type: ignore[attr-defined]
# Bytes of a line of the cache.
LINE = 64
# Whether one instruction puts eight words in any order.
PERMUTES = "avx512f" in FEATURES
# Words of a row in a vector, and in what is expanded at once.
_VECTOR = 2 * LANES
_TILE = _ABREAST * _VECTOR
_SMALL_TILE = _SMALL_ABREAST * _VECTOR
# Words of each row that are expanded and then hashed: so few that they stay in the second-level
# cache in between.
STRIP = 168


def taken(wanted: bool) -> bool:
    """Return whether these kernels are to be used: wanted, on a processor with AES instructions."""
    return wanted and {"aes", "sse2"} <= FEATURES


class _Vectors:
    """Emit instructions on vectors of `lanes` blocks of 128 bits, each two words or 16 bytes."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.words = ir.VectorType(I64, 2 * lanes)
        self.bytes = ir.VectorType(I8, 16 * lanes)

    def call(self, name: str, kind: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call an instruction, by LLVM's name."""
        signature = ir.FunctionType(kind, [argument.type for argument in arguments])
        module = self.builder.module
        function = _TOOLS.get_or_insert_function(module, signature, name)
        return self.builder.call(function, arguments)

    def _aes(self, instruction: str, state: ir.Value, key: ir.Value) -> ir.Value:
        width = "" if self.lanes == 1 else f".{128 * self.lanes}"
        return self.call(f"llvm.x86.aesni.{instruction}{width}", self.words, state, key)

    def _shuffle(self, one: ir.Value, other: ir.Value, order: Sequence[int]) -> ir.Value:
        return self.builder.shuffle_vector(
            one, other, ir.Constant(ir.VectorType(I32, len(order)), list(order))
        )

    def memory(self, vectors: int) -> ir.Value:
        """Return the address of memory: registers, if every access is at a fixed place."""
        found = _TOOLS.alloca_once(self.builder, self.words, size=vectors)
        return self.builder.bitcast(found, I64.as_pointer())

    def constant(self, words: Sequence[int]) -> ir.Value:
        """Return a constant vector."""
        return ir.Constant(self.words, list(words))

    def load(self, address: ir.Value) -> ir.Value:
        """Load a vector from the address of its first word."""
        return self._load(address, self.words)

    def _load(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        loaded = self.builder.load(self.builder.bitcast(address, kind.as_pointer()))
        loaded.align = 8
        return loaded

    def store(self, vector: ir.Value, address: ir.Value) -> None:
        """Store a vector from the address of its first word on."""
        pointer = self.builder.bitcast(address, vector.type.as_pointer())
        self.builder.store(vector, pointer).align = 8

    def broadcast(self, address: ir.Value) -> ir.Value:
        """Load one block into all lanes."""
        block = self._load(address, ir.VectorType(I64, 2))
        return self._shuffle(block, block, [0, 1] * self.lanes)

    def fill(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Put the words of one block into all lanes."""
        block = ir.Constant(ir.VectorType(I64, 2), ir.Undefined)
        for i, word in enumerate((low, high)):
            block = self.builder.insert_element(block, word, ir.Constant(I32, i))
        return self._shuffle(block, block, [0, 1] * self.lanes)

    def lane(self, vector: ir.Value, i: int) -> ir.Value:
        """Return one block of a vector."""
        return self._shuffle(vector, vector, [2 * i, 2 * i + 1])

    def counters(self, nonce: ir.Value, counter: ir.Value, count: int) -> list[ir.Value]:
        """Return the vectors of `count` that follow each other in counter mode, big-endian."""
        swap = "llvm.bswap.i64"
        nonces = self.call(swap, I64, nonce)
        first = self.fill(ir.Constant(I64, 0), counter)
        found = []
        for i in range(count):
            steps = [step for lane in range(self.lanes) for step in (0, i * self.lanes + lane)]
            added = self.builder.add(first, self.constant(steps))
            swapped = self.call(f"llvm.bswap.v{2 * self.lanes}i64", self.words, added)
            order = [(2 * self.lanes + at if at % 2 else at) for at in range(2 * self.lanes)]
            found.append(self._shuffle(self.fill(nonces, nonces), swapped, order))
        return found

    def next_round_key(self, key: ir.Value, constant: int) -> ir.Value:
        """Return the round key that follows `key` (one lane)."""
        b, kind = self.builder, ir.VectorType(I32, 4)
        found = self.call(
            "llvm.x86.aesni.aeskeygenassist", self.words, key, ir.Constant(I8, constant)
        )
        # the last column, rotated, through the S-box and ^ the constant, for all four columns
        turned = b.bitcast(found, kind)
        turned = self._shuffle(turned, turned, [3] * 4)
        columns, zero = b.bitcast(key, kind), ir.Constant(kind, [0] * 4)
        # column c becomes the sum of the columns up to it
        for order in ([4, 0, 1, 2], [4, 4, 0, 1]):
            columns = b.xor(columns, self._shuffle(columns, zero, order))
        return b.bitcast(b.xor(columns, turned), self.words)

    def encrypt(self, states: list[ir.Value], keys: ir.Value) -> list[ir.Value]:
        """Encrypt vectors under the round keys at an address."""
        return self.encrypt_under([states], [keys])[0]

    def encrypt_under(
        self, states: list[list[ir.Value]], keys: list[ir.Value]
    ) -> list[list[ir.Value]]:
        """Encrypt lists of vectors, each under the round keys at an address, round by round."""
        for i in range(ROUNDS + 1):
            found = []
            for some, address in zip(states, keys, strict=True):
                key = self.broadcast(_offset(self.builder, address, 2 * i))
                if i == 0:
                    found.append([self.builder.xor(state, key) for state in some])
                else:
                    instruction = "aesenc" if i < ROUNDS else "aesenclast"
                    found.append([self._aes(instruction, state, key) for state in some])
            states = found
        return states

    def hash(self, tweaked: list[ir.Value], keys: ir.Value) -> list[ir.Value]:
        """Return pi(y) ^ y of vectors y = sigma(x) ^ t."""
        images = self.encrypt(tweaked, keys)
        return [self.builder.xor(y, image) for y, image in zip(tweaked, images, strict=True)]

    def sigma(self, blocks: ir.Value) -> ir.Value:
        """Return (L ^ R) || L of L || R, in every lane."""
        order = [at ^ 1 for at in range(2 * self.lanes)]
        low = self.builder.and_(blocks, self.constant([2**64 - 1, 0] * self.lanes))
        return self.builder.xor(self._shuffle(blocks, blocks, order), low)

    def interleave(self, vectors: list[ir.Value]) -> list[ir.Value]:
        """Transpose the bytes of n vectors (a power of 2) within each lane.

        The bytes at one place of all vectors, in order, become n bytes that follow each other, and
        the places follow each other in the lane and then over the n vectors that are returned.
        """
        if len(vectors) == 1:
            return vectors
        half = len(vectors) // 2
        sides: list[list[ir.Value]] = [[], []]
        for one, other in zip(vectors[:half], vectors[half:], strict=True):
            for side, found in enumerate(sides):
                places = [
                    16 * lane + 8 * side + place for lane in range(self.lanes) for place in range(8)
                ]
                order = [at for place in places for at in (place, 16 * self.lanes + place)]
                found.append(self._shuffle(one, other, order))
        return self.interleave(sides[0]) + self.interleave(sides[1])

    def lowest(self, vectors: list[ir.Value]) -> ir.Value:
        """Return the lowest bytes of each lane of 16 vectors of bytes, side by side in the lane."""
        size = 1
        while len(vectors) > 1:
            order = [
                side + 16 * lane + place + i
                for lane in range(self.lanes)
                for place in range(0, 8, size)
                for side in (0, 16 * self.lanes)
                for i in range(size)
            ]
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors, size = [self._shuffle(*pair, order) for pair in pairs], 2 * size
        return vectors[0]

    def bytes_of_lane(self, vector: ir.Value, lane: int) -> ir.Value:
        """Return the 16 bytes of one lane."""
        return self._shuffle(vector, vector, range(16 * lane, 16 * lane + 16))

    def joined(self, vectors: list[ir.Value]) -> ir.Value:
        """Return vectors, a power of two of them, as one that is longer."""
        while len(vectors) > 1:
            order = range(2 * vectors[0].type.count)
            pairs = zip(vectors[::2], vectors[1::2], strict=True)
            vectors = [self._shuffle(*pair, order) for pair in pairs]
        return vectors[0]

    def transposed(self, rows: list[ir.Value]) -> list[ir.Value]:
        """Transpose 8 vectors of bits: bit i of byte p of them becomes byte 8 p + i of the lane.

        A byte has the bits of one column, the first row's lowest; the 128 columns of a lane follow
        each other over the 8 vectors that are returned.
        """
        # the instruction wants the matrix upside down
        sources = rows[::-1] if GFNI else rows
        bytewise = self.interleave([self.builder.bitcast(row, self.bytes) for row in sources])
        return [self.builder.bitcast(self._bits(v), self.words) for v in bytewise]

    def _bits(self, matrices: ir.Value) -> ir.Value:
        """Transpose the 8x8 bits in each word of a vector of bytes."""
        b = self.builder
        if GFNI:
            units = ir.Constant(self.bytes, [1 << i for i in range(8)] * 2 * self.lanes)
            name = f"llvm.x86.vgf2p8affineqb.{128 * self.lanes}"
            return self.call(name, self.bytes, units, matrices, ir.Constant(I8, 0))
        x = b.bitcast(matrices, self.words)
        for shift, mask in (
            (7, 0x00AA00AA00AA00AA),
            (14, 0x0000CCCC0000CCCC),
            (28, 0x00000000F0F0F0F0),
        ):
            by = self.constant([shift] * 2 * self.lanes)
            swap = b.and_(b.xor(x, b.lshr(x, by)), self.constant([mask] * 2 * self.lanes))
            x = b.xor(b.xor(x, swap), b.shl(swap, by))
        return b.bitcast(x, self.bytes)


def _offset(builder: ir.IRBuilder, address: ir.Value, words: int | ir.Value) -> ir.Value:
    """Return the address of a word that is `words` further on."""
    return builder.gep(address, [ir.Constant(I64, words) if isinstance(words, int) else words])


def _spread(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Return a vector of which every element is a value."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, one, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    )


def _bits_at(builder: ir.IRBuilder, octets: ir.Value, k: ir.Value) -> ir.Value:
    """Return bit `k` of each of 64 bytes, as one word."""
    kind = octets.type
    bit = _spread(builder, builder.shl(ir.Constant(I8, 1), builder.trunc(k, I8)), kind)
    found = builder.icmp_unsigned(
        "!=", builder.and_(octets, bit), ir.Constant(kind, [0] * kind.count)
    )
    return builder.bitcast(found, I64)


@contextmanager
def _loop(builder: ir.IRBuilder, stop: ir.Value, start: int = 0) -> Iterator[ir.Value]:
    """Emit a loop with a counter from `start` to below `stop`."""
    with _TOOLS.for_range_slice(
        builder, ir.Constant(I64, start), stop, ir.Constant(I64, 1), I64
    ) as (counter, _):
        yield counter


def _inline(emit: Callable[..., None], count: int, **fixed: Any) -> Any:
    """Return a function for kernels: `emit(builder, *arguments, **fixed)` writes what it does.

    It takes `count` arguments: whole numbers of 64 bits, and contiguous arrays of words, of which
    `emit` gets the address of the first word.
    """

    def generate(context: Any, builder: ir.IRBuilder, typed: Any, arguments: Any) -> ir.Value:
        values = [
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else value
            for kind, value in zip(typed.args, arguments, strict=True)
        ]
        emit(builder, *values, **fixed)
        return context.get_dummy_value()

    def typing(_: Any, *given: Any) -> Any:
        arrays = [kind for kind in given if isinstance(kind, types.Array)]
        if any(kind.layout != "C" for kind in arrays):
            raise errors.TypingError(f"{emit.__name__} takes contiguous arrays, not {given}")
        kinds = [kind if kind in arrays else types.uint64 for kind in given]
        return types.void(*kinds), generate

    # numba reads off the signature how many there are
    names = ["context", *(f"argument{i}" for i in range(count))]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, positional) for name in names]
    )
    return intrinsic(typing)


# Fetching ahead


def _emit_fetch(builder: ir.IRBuilder, array: ir.Value, at: ir.Value, *, write: int) -> None:
    """Ask for the line of an array's element, which may lie beyond its end."""
    address = builder.bitcast(_offset(builder, array, at), I8.as_pointer())
    # into the caches of all levels, and of data
    how = [ir.Constant(I32, each) for each in (write, 3, 1)]
    signature = ir.FunctionType(ir.VoidType(), [address.type, I32, I32, I32])
    name = "llvm.prefetch.p0"
    function = _TOOLS.get_or_insert_function(builder.module, signature, name)
    builder.call(function, [address, *how])


# fetch(array, i) begins to load element i into the cache, fetch_to_write(array, i) to write to it
fetch, fetch_to_write = (_inline(_emit_fetch, 2, write=write) for write in (0, 1))


# The key schedule


def _emit_schedule(builder: ir.IRBuilder, key: ir.Value, out: ir.Value) -> None:
    """Write the round keys of one key."""
    v = _Vectors(builder, 1)
    block = v.load(key)
    v.store(block, out)
    for i, constant in enumerate(ROUND_CONSTANTS, 1):
        block = v.next_round_key(block, constant)
        v.store(block, _offset(builder, out, 2 * i))


_schedule = _inline(_emit_schedule, 2)


@kernel
def schedule(keys: NDArray[np.uint64], out: NDArray[np.uint64]) -> None:
    """Write the round keys (n, 11, 2) of AES keys (n, 2)."""
    for i in range(keys.shape[0]):
        _schedule(keys[i], out[i])


def round_keys(keys: bytes) -> NDArray[np.uint64]:
    """Return the round keys (n, 11, 2) of n AES keys that follow each other."""
    blocks = np.frombuffer(keys, np.uint64).reshape(-1, 2)
    out = np.empty((len(blocks), ROUNDS + 1, 2), np.uint64)
    schedule(blocks, out)
    return out


# Streams


def _emit_stream(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    out: ir.Value,
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Write `abreast` vectors of the stream under one key."""
    v = _Vectors(builder, lanes)
    counters = v.counters(nonce, counter, abreast)
    for i, vector in enumerate(v.encrypt(counters, keys)):
        v.store(vector, _offset(builder, out, 2 * lanes * i))


_stream_tile, _stream_block = (
    _inline(_emit_stream, 4, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, _ABREAST), (1, 1))
)


@kernel
def stream(
    key: NDArray[np.uint64], nonce: np.uint64, counter: np.uint64, out: NDArray[np.uint64]
) -> None:
    """Write the stream of an AES key (2,) from block number `counter` on."""
    keys, block = np.empty(KEY_WORDS, np.uint64), np.empty(2, np.uint64)
    _schedule(key, keys)
    start, count = 0, out.shape[0]
    while start + _TILE <= count:
        _stream_tile(keys, nonce, counter + np.uint64(start // 2), out[start:])
        start += _TILE
    while start < count:
        _stream_block(keys, nonce, counter + np.uint64(start // 2), block)
        # the last block may be wanted in half
        for i in range(min(2, count - start)):
            out[start + i] = block[i]
        start += 2


# Leaves, expanded and folded


def _emit_expand(
    builder: ir.IRBuilder,
    keys: ir.Value,
    bits: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    added: ir.Value,
    other: ir.Value,
    *,
    lanes: int,
    abreast: int,
    sender: bool,
) -> None:
    """Expand the 2^bits leaves of one tree and fold them, `abreast` vectors of each row.

    At the receiver `other` becomes the sum of all leaves ^ `added`. At the sender, which has all
    leaves but the first, `other` has a mask for each row, and row j becomes what the leaves fold to
    ^ masks[j] & `added`.

    Subtrees are added up as they end, as a binary counter carries: row j takes the sum of each
    right subtree of level j, so that a leaf is added about twice, and not once per row. Row 0 is
    kept in registers, the others and one sum per level in the first-level cache.
    """
    b, v, one = builder, _Vectors(builder, lanes), ir.Constant(I64, 1)
    counters = v.counters(nonce, counter, abreast)
    size = 2 * lanes
    places = [size * i for i in range(abreast)]

    def read(address: ir.Value) -> list[ir.Value]:
        return [v.load(_offset(b, address, place)) for place in places]

    def write(values: list[ir.Value], address: ir.Value) -> None:
        for value, place in zip(values, places, strict=True):
            v.store(value, _offset(b, address, place))

    def stream(leaf: ir.Value) -> list[ir.Value]:
        return v.encrypt(counters, _offset(b, keys, b.mul(leaf, ir.Constant(I64, KEY_WORDS))))

    def xor(values: list[ir.Value], others: list[ir.Value]) -> list[ir.Value]:
        return [b.xor(*both) for both in zip(values, others, strict=True)]

    def table() -> Callable[[ir.Value], ir.Value]:
        memory = v.memory((_MOST_BITS + 1) * abreast)
        return lambda level: _offset(b, memory, b.mul(level, ir.Constant(I64, size * abreast)))

    folded, sums, row0, total = table(), table(), v.memory(abreast), v.memory(abreast)
    with _loop(b, bits) as j:
        if sender:
            mask = b.load(_offset(b, other, j))
            write([b.and_(value, v.fill(mask, mask)) for value in read(added)], folded(j))
        else:
            write([v.constant([0] * size)] * abreast, folded(j))
    write(read(folded(ir.Constant(I64, 0))), row0)
    if sender:
        # the pair of the missing leaf
        odd = stream(one)
        write(xor(read(row0), odd), row0)
        write(odd, sums(one))
    with _loop(b, b.shl(one, b.sub(bits, one)), int(sender)) as pair:
        even, odd = stream(b.shl(pair, one)), stream(b.or_(b.shl(pair, one), one))
        write(xor(read(row0), odd), row0)
        write(xor(even, odd), total)
        # the levels at which this pair is the end of a right subtree
        top = b.add(b.cttz(b.not_(pair), ir.Constant(ir.IntType(1), 0)), one)
        with _loop(b, top, 1) as level:
            right = read(total)
            write(xor(read(folded(level)), right), folded(level))
            write(xor(read(sums(level)), right), total)
        write(read(total), sums(top))
    write(read(row0), rows)
    with _loop(b, bits, 1) as j:
        write(read(folded(j)), _offset(b, rows, b.mul(j, stride)))
    if not sender:
        write(xor(read(sums(bits)), read(added)), other)


def _emit_expand_small(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    rows: ir.Value,
    stride: ir.Value,
    added: ir.Value,
    other: ir.Value,
    *,
    sender: bool,
) -> None:
    """Do as `_emit_expand` does for trees of 2^_SMALL_BITS leaves, without a loop.

    Two leaves at a time are expanded, and added to the rows in which their pair has a part.
    """
    b, v = builder, _Vectors(builder, LANES)
    counters = v.counters(nonce, counter, _SMALL_ABREAST)
    places = [_VECTOR * i for i in range(_SMALL_ABREAST)]

    def read(address: ir.Value) -> list[ir.Value]:
        return [v.load(_offset(b, address, place)) for place in places]

    def write(values: list[ir.Value], address: ir.Value) -> None:
        for value, place in zip(values, places, strict=True):
            v.store(value, _offset(b, address, place))

    def xor(values: list[ir.Value], others: list[ir.Value]) -> list[ir.Value]:
        return [b.xor(*both) for both in zip(values, others, strict=True)]

    def row(j: int) -> ir.Value:
        return _offset(b, rows, b.mul(ir.Constant(I64, j), stride))

    sums: list[list[ir.Value] | None] = [None] * _SMALL_BITS

    def add(j: int, values: list[ir.Value]) -> None:
        had = sums[j]
        sums[j] = values if had is None else xor(had, values)

    total: list[ir.Value] | None = None
    for first in range(0, 1 << _SMALL_BITS, 2):
        # the sender misses leaf 0
        pair = [first + 1] if sender and first == 0 else [first, first + 1]
        leaves = [_offset(b, keys, KEY_WORDS * leaf) for leaf in pair]
        states = v.encrypt_under([counters] * len(pair), leaves)
        add(0, states[-1])
        both = xor(*states) if len(states) == 2 else states[0]
        for j in range(1, _SMALL_BITS):
            if first >> j & 1:
                add(j, both)
        total = both if total is None else xor(total, both)
    correction = read(added)
    for j, values in enumerate(sums):
        assert values is not None
        if sender:
            mask = b.load(_offset(b, other, j))
            values = xor(values, [b.and_(value, v.fill(mask, mask)) for value in correction])
        write(values, row(j))
    if not sender:
        assert total is not None
        write(xor(total, correction), other)


_receive_small, _send_small = (
    _inline(_emit_expand_small, 7, sender=sender) for sender in (False, True)
)
_receive_tile, _receive_block = (
    _inline(_emit_expand, 8, lanes=lanes, abreast=abreast, sender=False)
    for lanes, abreast in ((LANES, _ABREAST), (1, 1))
)
_send_tile, _send_block = (
    _inline(_emit_expand, 8, lanes=lanes, abreast=abreast, sender=True)
    for lanes, abreast in ((LANES, _ABREAST), (1, 1))
)


@kernel
def _receive_part(
    round_keys: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    first: int,
    words: int,
    rows: NDArray[np.uint64],
    choices: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
) -> None:
    """Do as `receive` does for `words` words of each row, from word `first` on.

    They become the first words of `rows`. `counter` is that of word 0.
    """
    bits, stride = 128 // round_keys.shape[0], rows.shape[1]
    flat, its = rows.reshape(-1), choices[first:]
    its[:words] = 0
    for tree in range(round_keys.shape[0]):
        keys, mine = round_keys[tree], flat[tree * bits * stride :]
        total = its if tree == 0 else corrections[tree - 1, first:]
        start = 0
        while start < words:
            block = counter + np.uint64((first + start) // 2)
            if bits == _SMALL_BITS and start + _SMALL_TILE <= words:
                _receive_small(keys, nonce, block, mine[start:], stride, its[start:], total[start:])
                start += _SMALL_TILE
            elif start + _TILE <= words:
                _receive_tile(
                    keys, bits, nonce, block, mine[start:], stride, its[start:], total[start:]
                )
                start += _TILE
            else:
                _receive_block(
                    keys, bits, nonce, block, mine[start:], stride, its[start:], total[start:]
                )
                start += 2


@kernel
def receive(
    round_keys: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    rows: NDArray[np.uint64],
    choices: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
) -> None:
    """Expand and fold the receiver's leaves: V, its choices, and its corrections.

    round_keys (128/k, 2^k, 11, 2); `counter` counts the AES blocks of the streams that were used
    before. Written: rows (128, w), choices (w,), corrections (128/k - 1, w).
    """
    _receive_part(round_keys, nonce, counter, 0, rows.shape[1], rows, choices, corrections)


@kernel
def _send_part(
    round_keys: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    first: int,
    words: int,
    rows: NDArray[np.uint64],
    masks: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
) -> None:
    """Do as `send` does for `words` words of each row, from word `first` on.

    They become the first words of `rows`. `counter` is that of word 0.
    """
    bits, stride = 128 // round_keys.shape[0], rows.shape[1]
    flat, nothing = rows.reshape(-1), np.zeros(bits, np.uint64)
    for tree in range(round_keys.shape[0]):
        keys, mine = round_keys[tree], flat[tree * bits * stride :]
        # the first tree has no correction
        correction = corrections[max(tree - 1, 0), first:]
        its = nothing if tree == 0 else masks[tree * bits : (tree + 1) * bits]
        start = 0
        while start < words:
            block = counter + np.uint64((first + start) // 2)
            if bits == _SMALL_BITS and start + _SMALL_TILE <= words:
                _send_small(keys, nonce, block, mine[start:], stride, correction[start:], its)
                start += _SMALL_TILE
            elif start + _TILE <= words:
                _send_tile(keys, bits, nonce, block, mine[start:], stride, correction[start:], its)
                start += _TILE
            else:
                _send_block(keys, bits, nonce, block, mine[start:], stride, correction[start:], its)
                start += 2


@kernel
def send(
    round_keys: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    rows: NDArray[np.uint64],
    masks: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
) -> None:
    """Expand and fold the sender's leaves, and correct the rows: W.

    round_keys (128/k, 2^k, 11, 2), of which those of the first leaf of each tree are not used;
    masks (128,) as `extension.correct` takes them, corrections (128/k - 1, w), rows (128, w),
    written.
    """
    _send_part(round_keys, nonce, counter, 0, rows.shape[1], rows, masks, corrections)


# The hash


def _columns(v: _Vectors, rows: ir.Value, stride: ir.Value) -> Callable[[ir.Value], list[ir.Value]]:
    """Transpose the 128 x lanes columns of a vector of each row, and return how to get them.

    Lane l has the columns from 128 l on, of which a call returns those from 16 t on, one per
    vector. Their bits are transposed 8 rows at a time, which gives 16 bytes of each column: vectors
    that wait in the first-level cache, and of which every 16 are then 16 columns of each lane.
    """
    b, tile = v.builder, v.memory(128)

    def slot(t: ir.Value, group: ir.Value) -> ir.Value:
        at = b.add(b.mul(t, ir.Constant(I64, 16)), group)
        return _offset(b, tile, b.mul(at, ir.Constant(I64, 2 * v.lanes)))

    with _loop(b, ir.Constant(I64, 16)) as group:
        first = _offset(b, rows, b.mul(b.mul(group, ir.Constant(I64, 8)), stride))
        eight = [
            v.load(_offset(b, first, b.mul(stride, ir.Constant(I64, row)))) for row in range(8)
        ]
        for t, vector in enumerate(v.transposed(eight)):
            v.store(vector, slot(ir.Constant(I64, t), group))

    def sixteen(t: ir.Value) -> list[ir.Value]:
        vectors = [v.load(slot(t, ir.Constant(I64, group))) for group in range(16)]
        columns = v.interleave([b.bitcast(vector, v.bytes) for vector in vectors])
        return [b.bitcast(column, v.words) for column in columns]

    return sixteen


def _emit_hash_columns(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    *more: ir.Value,
    lanes: int,
) -> None:
    """Hash the 128 x `lanes` columns of a vector of each row, as `_hash` does."""
    v = _Vectors(builder, lanes)
    columns = _columns(v, rows, stride)
    with _loop(builder, ir.Constant(I64, 8)) as t:
        at = builder.mul(t, ir.Constant(I64, 16))
        _hash(v, columns(t), _sixteen(lanes), at, index, stream, keys, *more)


def _sixteen(lanes: int) -> list[list[int]]:
    """Return the places of the columns of `_columns`, counted from the first one of lane 0."""
    return [[128 * lane + i for lane in range(lanes)] for i in range(16)]


def _emit_hash_planes(
    builder: ir.IRBuilder,
    rows: ir.Value,
    stride: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    count: ir.Value,
    step: ir.Value,
    out: ir.Value,
    *pairs: ir.Value,
    lanes: int,
) -> None:
    """Hash columns as `_emit_hash_columns` does, and keep `count` bits, 8 at most, of each hash.

    Bit k of the hashes becomes 2 x `lanes` words of plane k, which are `step` words apart. Only the
    lowest bytes of the hashes are put side by side, and none goes to memory whole.
    """
    b, v = builder, _Vectors(builder, lanes)
    columns = _columns(v, rows, stride)
    outs = [out, *pairs[2:]]
    lowest = [v.memory(8) for _ in outs]
    with _loop(b, ir.Constant(I64, 8)) as t:
        at = b.mul(t, ir.Constant(I64, 16))
        hashes: list[list[ir.Value]] = [[] for _ in outs]
        first = v.fill(b.add(index, at), stream)
        difference = v.fill(*pairs[:2]) if pairs else None
        for some, hashed in _hashes(v, columns(t), _sixteen(lanes), first, difference, keys):
            for number, vector in enumerate(hashed):
                hashes[number // len(some)].append(b.bitcast(vector, v.bytes))
        for found, memory in zip(hashes, lowest, strict=True):
            place = b.mul(t, ir.Constant(I64, 2 * lanes))
            v.store(b.bitcast(v.lowest(found), v.words), _offset(b, memory, place))
    for memory, planes in zip(lowest, outs, strict=True):
        bytes_ = [b.bitcast(v.load(_offset(b, memory, 2 * lanes * t)), v.bytes) for t in range(8)]
        # the 64 columns of half a lane
        octets = [
            v.joined([v.bytes_of_lane(one, lane) for one in bytes_[4 * half : 4 * half + 4]])
            for lane in range(lanes)
            for half in range(2)
        ]
        with _loop(b, count) as k:
            plane = _offset(b, planes, b.mul(k, step))
            for word, octet in enumerate(octets):
                b.store(_bits_at(b, octet, k), _offset(b, plane, word))


def _emit_hash_blocks(
    builder: ir.IRBuilder,
    blocks: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    *more: ir.Value,
    lanes: int,
    abreast: int,
) -> None:
    """Hash `abreast` vectors of blocks, as `_hash` does."""
    v = _Vectors(builder, lanes)
    loaded = [v.load(_offset(builder, blocks, 2 * lanes * i)) for i in range(abreast)]
    order = [[lanes * i + lane for lane in range(lanes)] for i in range(abreast)]
    _hash(v, loaded, order, ir.Constant(I64, 0), index, stream, keys, *more)


def _hashes(
    v: _Vectors,
    blocks: list[ir.Value],
    order: list[list[int]],
    first: ir.Value,
    difference: ir.Value | None,
    keys: ir.Value,
) -> Iterator[tuple[list[list[int]], list[ir.Value]]]:
    """Yield the places and hashes of a few vectors of blocks at a time.

    The tweak of lane l of vector i is `first` + order[i][l]. With a difference of hash inputs, as
    many hashes with it follow.
    """
    b = v.builder
    for begin in range(0, len(blocks), _HASHED):
        some = order[begin : begin + _HASHED]
        tweaked = [
            b.xor(
                v.sigma(block),
                b.add(first, v.constant([word for place in places for word in (place, 0)])),
            )
            for block, places in zip(blocks[begin : begin + _HASHED], some, strict=True)
        ]
        if difference is not None:
            tweaked += [b.xor(y, difference) for y in tweaked]
        yield some, v.hash(tweaked, keys)


def _hash(
    v: _Vectors,
    blocks: list[ir.Value],
    order: list[list[int]],
    at: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    out: ir.Value,
    *pairs: ir.Value,
) -> None:
    """Write the hashes of blocks under tweaks (index + place, stream), each to its place.

    The place of lane l of vector i is at + order[i][l]. `pairs`, if given, is the words of a
    difference of hash inputs, and where the other keys go: the same with that difference.
    """
    b = v.builder
    first = v.fill(b.add(index, at), stream)
    difference = v.fill(*pairs[:2]) if pairs else None
    outs = [out, *pairs[2:]]
    for some, hashed in _hashes(v, blocks, order, first, difference, keys):
        for number, vector in enumerate(hashed):
            places = some[number % len(some)]
            start = _offset(b, outs[number // len(some)], b.mul(at, ir.Constant(I64, 2)))
            if places == list(range(places[0], places[0] + v.lanes)):
                v.store(vector, _offset(b, start, 2 * places[0]))
            else:
                for lane, place in enumerate(places):
                    v.store(v.lane(vector, lane), _offset(b, start, 2 * place))


_hash_columns, _hash_columns_block = (
    _inline(_emit_hash_columns, 6, lanes=lanes) for lanes in (LANES, 1)
)
_hash_column_pairs, _hash_column_pairs_block = (
    _inline(_emit_hash_columns, 9, lanes=lanes) for lanes in (LANES, 1)
)
_hash_planes, _hash_planes_block = (
    _inline(_emit_hash_planes, 8, lanes=lanes) for lanes in (LANES, 1)
)
_hash_plane_pairs, _hash_plane_pairs_block = (
    _inline(_emit_hash_planes, 11, lanes=lanes) for lanes in (LANES, 1)
)
_hash_blocks, _hash_block = (
    _inline(_emit_hash_blocks, 5, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, _HASHED), (1, 1))
)
_hash_block_pairs, _hash_block_pair = (
    _inline(_emit_hash_blocks, 8, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, _HASHED), (1, 1))
)


@kernel
def _hash_part(
    rows: NDArray[np.uint64],
    stride: int,
    words: int,
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Do as `hash_columns` does to `words` words of each row; rows are `stride` words apart."""
    start = 0
    while start < words:
        at, here = index + np.uint64(64 * start), out[64 * start :]
        if start + _VECTOR <= words:
            _hash_columns(rows[start:], stride, at, stream, round_keys, here)
            start += _VECTOR
        else:
            _hash_columns_block(rows[start:], stride, at, stream, round_keys, here)
            start += 2


@kernel
def hash_columns(
    rows: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Set out[i] = H((index + i, stream), column i of the rows), with rows (128, w), out (n, 2)."""
    words = rows.shape[1]
    _hash_part(rows.reshape(-1), words, words, index, stream, round_keys, out)


@kernel
def _hash_part_pairs(
    rows: NDArray[np.uint64],
    stride: int,
    words: int,
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out0: NDArray[np.uint64],
    low: np.uint64,
    high: np.uint64,
    out1: NDArray[np.uint64],
) -> None:
    """Do as `hash_column_pairs` does to a part of the rows, as `_hash_part` does."""
    start = 0
    while start < words:
        at, here0, here1 = index + np.uint64(64 * start), out0[64 * start :], out1[64 * start :]
        if start + _VECTOR <= words:
            _hash_column_pairs(
                rows[start:], stride, at, stream, round_keys, here0, low, high, here1
            )
            start += _VECTOR
        else:
            _hash_column_pairs_block(
                rows[start:], stride, at, stream, round_keys, here0, low, high, here1
            )
            start += 2


@kernel
def hash_column_pairs(
    rows: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out0: NDArray[np.uint64],
    low: np.uint64,
    high: np.uint64,
    out1: NDArray[np.uint64],
) -> None:
    """Do as `hash_columns` to `out0`, and to `out1` with sigma(column) ^ (low, high)."""
    words = rows.shape[1]
    _hash_part_pairs(
        rows.reshape(-1), words, words, index, stream, round_keys, out0, low, high, out1
    )


@kernel
def hash_blocks(
    blocks: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out: NDArray[np.uint64],
) -> None:
    """Set out[i] = H((index + i, stream), blocks[i]), both (n, 2)."""
    count, start = blocks.shape[0], 0
    while start < count:
        at = index + np.uint64(start)
        if start + _HASHED * LANES <= count:
            _hash_blocks(blocks[start:], at, stream, round_keys, out[start:])
            start += _HASHED * LANES
        else:
            _hash_block(blocks[start:], at, stream, round_keys, out[start:])
            start += 1


@kernel
def hash_block_pairs(
    blocks: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    out0: NDArray[np.uint64],
    low: np.uint64,
    high: np.uint64,
    out1: NDArray[np.uint64],
) -> None:
    """Do as `hash_blocks` to `out0`, and to `out1` with sigma(block) ^ (low, high)."""
    count, start = blocks.shape[0], 0
    while start < count:
        at, here0, here1 = index + np.uint64(start), out0[start:], out1[start:]
        if start + _HASHED * LANES <= count:
            _hash_block_pairs(blocks[start:], at, stream, round_keys, here0, low, high, here1)
            start += _HASHED * LANES
        else:
            _hash_block_pair(blocks[start:], at, stream, round_keys, here0, low, high, here1)
            start += 1


# Dealt vectors


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
    b, v = builder, _Vectors(builder, 4)

    def all_(word: ir.Value | int) -> ir.Value:
        return v.constant([word] * 8) if isinstance(word, int) else v.fill(word, word)

    def sum_(pairs: ir.Value, weights: ir.Value) -> ir.Value:
        """Return the sum of a vector's pairs of entries times weights, where the last pair was."""
        return b.lshr(b.mul(pairs, weights), all_(b.sub(step, bits)))

    def store(vector: ir.Value, array: ir.Value) -> None:
        element = array.type.pointee
        if element != I64:
            vector = b.trunc(vector, ir.VectorType(element, 8))
        pointer = b.bitcast(_offset(b, array, at), vector.type.as_pointer())
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


_unpack = _inline(_emit_unpack, 11)


@kernel
def unpack_vectors(
    words: NDArray[np.uint64],
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
    time as long as there are words, and returns how many it did: none if the processor cannot.
    `first` is a multiple of 8: then every eight vectors, of `step` bits each, begin at a byte, and
    lie in the same way in the 64 bytes from there on and in those from one word later on.
    """
    byte, end, at = first // 8 * step, 8 * words.shape[0] - 72, 0
    while PERMUTES and at + 8 <= out.shape[0] and byte <= end:
        _unpack(words, byte, step, bits, one, ones, numbers, halves, out, positions, at)
        at, byte = at + 8, byte + step
    return at


# Bits of keys


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

    Of the values it takes every first or every second. A vector has one byte of each. Its bits at
    one place are those of a plane, which the processor gathers with one instruction.
    """
    b, element = builder, values.type.pointee
    eights, bytes_ = ir.VectorType(element, 8), ir.VectorType(I8, 8)
    eight = ir.Constant(I64, 8)

    def shuffle(one: ir.Value, other: ir.Value, order: Sequence[int]) -> ir.Value:
        places = ir.Constant(ir.VectorType(I32, len(order)), list(order))
        return b.shuffle_vector(one, other, places)

    def load(at: int) -> ir.Value:
        loaded = b.load(b.bitcast(_offset(b, values, at), eights.as_pointer()))
        loaded.align = element.width // 8
        return loaded

    vectors = [
        load(at) if every == 1 else shuffle(load(at), load(at + 8), range(0, 16, every))
        for at in range(0, 64 * every, 8 * every)
    ]
    with _loop(b, b.udiv(b.add(count, ir.Constant(I64, 7)), eight)) as octet:
        first = b.mul(octet, eight)
        down = first if element == I64 else b.trunc(first, element)
        parts = [
            part if element == I8 else b.trunc(b.lshr(part, _spread(b, down, eights)), bytes_)
            for part in vectors
        ]
        while len(parts) > 1:
            size = 2 * parts[0].type.count
            parts = [
                shuffle(*pair, range(size)) for pair in zip(parts[::2], parts[1::2], strict=True)
            ]
        rest = b.sub(count, first)
        with _loop(b, b.select(b.icmp_unsigned("<", rest, eight), rest, eight)) as k:
            place = b.mul(b.add(first, k), stride)
            b.store(_bits_at(b, parts[0], k), _offset(b, planes, place))


# (64 values, planes, a word of the first plane, stride) writes one word of each plane of the values
word_of_planes = _inline(_emit_bit_planes, 4, every=1)
# of the low words of 64 keys
_word_of_key_planes = _inline(_emit_bit_planes, 4, every=2)


@kernel
def bit_planes(keys: NDArray[np.uint64], planes: NDArray[np.uint64]) -> None:
    """Do as `packing.bit_planes` does."""
    flat, out, words = keys.reshape(-1), planes.reshape(-1), planes.shape[1]
    for i in range(words):
        _word_of_key_planes(flat[128 * i :], planes.shape[0], out[i:], words)


# From leaves to keys


@kernel
def receive_keys(
    leaves: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    choices: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> None:
    """Do as `receive` does with the round keys of the leaves, and hash the columns: keys (n, 2).

    `rows` (128, STRIP) is memory to work in.
    """
    for first in range(0, choices.shape[0], rows.shape[1]):
        words = min(rows.shape[1], choices.shape[0] - first)
        _receive_part(leaves, nonce, counter, first, words, rows, choices, corrections)
        at, here = index + np.uint64(64 * first), keys[64 * first :]
        _hash_part(rows.reshape(-1), rows.shape[1], words, at, stream, round_keys, here)


@kernel
def receive_planes(
    leaves: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    choices: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    begin: int,
    planes: NDArray[np.uint64],
) -> None:
    """Do as `receive_keys` does, and keep the lowest bits of the keys, from word `begin` of planes.

    planes (.., w or more).
    """
    flat, stride, width = rows.reshape(-1), rows.shape[1], choices.shape[0]
    count, step, out = planes.shape[0], planes.shape[1], planes.reshape(-1)[begin:]
    near = np.empty((64 * _VECTOR, 2), np.uint64)
    bits = near.reshape(-1)
    for first in range(0, width, stride):
        words = min(stride, width - first)
        _receive_part(leaves, nonce, counter, first, words, rows, choices, corrections)
        start = 0
        while start < words:
            at, mine, to = index + np.uint64(64 * (first + start)), flat[start:], first + start
            some = _VECTOR if start + _VECTOR <= words else 2
            if count <= 8 and some == _VECTOR:
                _hash_planes(mine, stride, at, stream, round_keys, count, step, out[to:])
            elif count <= 8:
                _hash_planes_block(mine, stride, at, stream, round_keys, count, step, out[to:])
            else:
                _hash_part(mine, stride, some, at, stream, round_keys, near)
                for i in range(some):
                    _word_of_key_planes(bits[128 * i :], count, out[to + i :], step)
            start += some


@kernel
def send_keys(
    leaves: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    masks: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    keys0: NDArray[np.uint64],
    low: np.uint64,
    high: np.uint64,
    keys1: NDArray[np.uint64],
) -> None:
    """Do as `send` does with the round keys of the leaves, and hash the columns in pairs.

    `rows` is as for `receive_keys`.
    """
    stride, width = rows.shape[1], keys0.shape[0] // 64
    for first in range(0, width, stride):
        words = min(stride, width - first)
        _send_part(leaves, nonce, counter, first, words, rows, masks, corrections)
        at, here0, here1 = index + np.uint64(64 * first), keys0[64 * first :], keys1[64 * first :]
        flat = rows.reshape(-1)
        _hash_part_pairs(flat, stride, words, at, stream, round_keys, here0, low, high, here1)


@kernel
def send_planes(
    leaves: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    masks: NDArray[np.uint64],
    corrections: NDArray[np.uint64],
    index: np.uint64,
    stream: np.uint64,
    round_keys: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    begin: int,
    planes0: NDArray[np.uint64],
    low: np.uint64,
    high: np.uint64,
    planes1: NDArray[np.uint64],
) -> None:
    """Do as `send_keys` does, and keep the lowest bits of the keys, as `receive_planes` does."""
    flat, stride, width = rows.reshape(-1), rows.shape[1], corrections.shape[1]
    count, step = planes0.shape
    out0, out1 = planes0.reshape(-1)[begin:], planes1.reshape(-1)[begin:]
    near = np.empty((2, 64 * _VECTOR, 2), np.uint64)
    near0, near1 = near[0], near[1]
    bits0, bits1 = near0.reshape(-1), near1.reshape(-1)
    for first in range(0, width, stride):
        words = min(stride, width - first)
        _send_part(leaves, nonce, counter, first, words, rows, masks, corrections)
        start = 0
        while start < words:
            at, mine, to = index + np.uint64(64 * (first + start)), flat[start:], first + start
            some = _VECTOR if start + _VECTOR <= words else 2
            here0, here1 = out0[to:], out1[to:]
            if count <= 8 and some == _VECTOR:
                _hash_plane_pairs(
                    mine, stride, at, stream, round_keys, count, step, here0, low, high, here1
                )
            elif count <= 8:
                _hash_plane_pairs_block(
                    mine, stride, at, stream, round_keys, count, step, here0, low, high, here1
                )
            else:
                _hash_part_pairs(
                    mine, stride, some, at, stream, round_keys, near0, low, high, near1
                )
                for i in range(some):
                    _word_of_key_planes(bits0[128 * i :], count, here0[i:], step)
                    _word_of_key_planes(bits1[128 * i :], count, here1[i:], step)
            start += some


# Silent OT

# Outputs of the code whose indices are the words of what is encrypted at once.
_ENCODED = 4 * _ABREAST * LANES // LOCALITY


def _emit_grow(
    builder: ir.IRBuilder,
    nodes: ir.Value,
    width: ir.Value,
    index: ir.Value,
    stream: ir.Value,
    keys: ir.Value,
    total: ir.Value,
    *,
    lanes: int,
    abreast: int,
) -> None:
    """Grow a level of `width` nodes of a half-tree, `abreast` vectors at a time.

    A node's left child, its hash under the tweak (index + its place, stream), replaces it, and its
    right child is written `width` nodes further on. `total` becomes the XOR of the left children.
    """
    b, v = builder, _Vectors(builder, lanes)
    size, step = 2 * lanes, ir.Constant(I64, lanes * abreast)
    order = [[lanes * i + lane for lane in range(lanes)] for i in range(abreast)]
    sums = [v.memory(1) for _ in range(abreast)]
    for memory in sums:
        v.store(v.constant([0] * size), memory)
    with _loop(b, b.udiv(width, step)) as i:
        at = b.mul(i, step)
        here = _offset(b, nodes, b.mul(at, ir.Constant(I64, 2)))
        there = _offset(b, here, b.mul(width, ir.Constant(I64, 2)))
        parents = [v.load(_offset(b, here, size * j)) for j in range(abreast)]
        first = v.fill(b.add(index, at), stream)
        (_, lefts), *_ = _hashes(v, parents, order, first, None, keys)
        for j, (parent, left) in enumerate(zip(parents, lefts, strict=True)):
            v.store(left, _offset(b, here, size * j))
            v.store(b.xor(parent, left), _offset(b, there, size * j))
            v.store(b.xor(v.load(sums[j]), left), sums[j])
    block = _Vectors(b, 1)
    found = block.constant([0, 0])
    for memory in sums:
        vector = v.load(memory)
        for lane in range(lanes):
            found = b.xor(found, v.lane(vector, lane))
    block.store(found, total)


_grow, _grow_pair = (
    _inline(_emit_grow, 6, lanes=lanes, abreast=abreast)
    for lanes, abreast in ((LANES, _HASHED), (1, 2))
)


def _emit_indices(
    builder: ir.IRBuilder,
    keys: ir.Value,
    nonce: ir.Value,
    counter: ir.Value,
    secrets: ir.Value,
    out: ir.Value,
) -> None:
    """Write where the next _ENCODED outputs find their secrets: the offsets in bytes, 32 bits each.

    Each 32-bit word of the stream is scaled to one of `secrets` indices of blocks.
    """
    b, v = builder, _Vectors(builder, LANES)

    def all_(word: int) -> ir.Value:
        return v.constant([word] * _VECTOR)

    count, half = v.fill(secrets, secrets), all_(32)
    for i, words in enumerate(v.encrypt(v.counters(nonce, counter, _ABREAST), keys)):
        low = b.lshr(b.mul(b.and_(words, all_(2**32 - 1)), count), half)
        high = b.and_(b.mul(b.lshr(words, half), count), all_(2**64 - 2**32))
        offsets = b.shl(b.or_(low, high), all_(4))
        v.store(offsets, _offset(b, out, _VECTOR * i))


_indices = _inline(_emit_indices, 5)


def _emit_gather(
    builder: ir.IRBuilder, offsets: ir.Value, secrets: ir.Value, out: ir.Value
) -> None:
    """Add LOCALITY blocks of the secret to each of _ENCODED leaves, of which bit 0 is cleared."""
    b, v = builder, _Vectors(builder, 1)
    blocks = b.bitcast(secrets, I8.as_pointer())
    places = b.bitcast(offsets, I32.as_pointer())
    for i in range(_ENCODED):
        address = _offset(b, out, 2 * i)
        found = b.and_(v.load(address), v.constant([2**64 - 2, 2**64 - 1]))
        for j in range(LOCALITY):
            offset = b.zext(b.load(_offset(b, places, LOCALITY * i + j)), I64)
            found = b.xor(found, v.load(b.gep(blocks, [offset])))
        v.store(found, address)


_gather = _inline(_emit_gather, 3)


@kernel
def grow_and_encode(
    nodes: NDArray[np.uint64],
    given: NDArray[np.uint64],
    paths: NDArray[np.int64],
    sums: NDArray[np.uint64],
    stream: np.uint64,
    tree_keys: NDArray[np.uint64],
    secrets: NDArray[np.uint64],
    nonce: np.uint64,
    counter: np.uint64,
    matrix_keys: NDArray[np.uint64],
) -> None:
    """Grow half-trees in place, and add the code to their leaves while these are in the cache.

    It does what `lpn.grow`, `lpn.mend` and `lpn.encode` do level by level. nodes (trees, 2^depth,
    2), with depth 3 or more, begins with the two nodes of each tree's first level, and becomes the
    outputs. sums (trees, depth - 1, 2) gets the XOR of the left children of each later level. With
    `given` of that shape and `paths` (trees,), the trees are mended; the sender has no paths (0,).
    Tweaks count the nodes of a level over all trees, level after level. `tree_keys` are the round
    keys of the hash; `nonce`, `counter` and `matrix_keys` begin the stream of indices. Where it
    mends depends on the paths, as in `lpn.mend`; nothing else depends on what is secret.
    """
    trees, size = nodes.shape[0], nodes.shape[1]
    blocks, count = secrets.reshape(-1), np.uint64(secrets.shape[0])
    offsets = np.empty(_TILE, np.uint64)
    for tree in range(trees):
        its, mine = nodes[tree].reshape(-1), nodes[tree]
        width, level = 2, 0
        while width < size:
            at, total = np.uint64(trees * (width - 2) + tree * width), sums[tree, level]
            if width >= _HASHED * LANES:
                _grow(its, width, at, stream, tree_keys, total)
            else:
                _grow_pair(its, width, at, stream, tree_keys, total)
            if paths.shape[0]:
                mend_tree(mine, width, given[tree, level], total, paths[tree])
            width, level = 2 * width, level + 1
        for first in range(0, size, _ENCODED):
            _indices(matrix_keys, nonce, counter, count, offsets)
            _gather(offsets, blocks, its[2 * first :])
            counter += np.uint64(_TILE // 2)
