"""Writers of LLVM instructions: vectors of blocks of 128 bits, loops, and functions for kernels.

numba compiles a kernel again when its own file changes. After a change here, remove the compiled
code of the modules beside it (`__pycache__`, or NUMBA_CACHE_DIR).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from securemedian.mpc.protocols.kernels.jit import TOOLS, TypingError
from securemedian.mpc.protocols.kernels.native.processor import GFNI, LANES

# AES-128's constants of the key schedule, one per round (FIPS 197).
ROUND_CONSTANTS = (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1B, 0x36)
ROUNDS = len(ROUND_CONSTANTS)
# Words of one key's round keys: a block per round, and one before them.
KEY_WORDS = 2 * (ROUNDS + 1)

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


class Vectors:
    """Emit instructions on vectors of `lanes` blocks of 128 bits, each two words or 16 bytes."""

    def __init__(self, builder: ir.IRBuilder, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.words = ir.VectorType(I64, 2 * lanes)
        self.bytes = ir.VectorType(I8, 16 * lanes)

    def call(self, name: str, kind: ir.Type, *arguments: ir.Value) -> ir.Value:
        """Call an instruction, by LLVM's name."""
        signature = ir.FunctionType(kind, [argument.type for argument in arguments])
        module = self.builder.module
        function = TOOLS.get_or_insert_function(module, signature, name)
        return self.builder.call(function, arguments)

    @property
    def _width(self) -> str:
        return "" if self.lanes == 1 else f".{128 * self.lanes}"

    def _aes(self, instruction: str, state: ir.Value, key: ir.Value) -> ir.Value:
        return self.call(f"llvm.x86.aesni.{instruction}{self._width}", self.words, state, key)

    def products(self, vector: ir.Value, other: ir.Value) -> ir.Value:
        """Return, in every lane, the sum of the carry-less products of low and of high words."""
        name = f"llvm.x86.pclmulqdq{self._width}"
        low, high = (
            self.call(name, self.words, vector, other, ir.Constant(I8, words))
            for words in (0x00, 0x11)
        )
        return self.builder.xor(low, high)

    def _shuffle(self, one: ir.Value, other: ir.Value, order: Sequence[int]) -> ir.Value:
        return self.builder.shuffle_vector(
            one, other, ir.Constant(ir.VectorType(I32, len(order)), list(order))
        )

    def memory(self, vectors: int) -> ir.Value:
        """Return the address of memory: registers, if every access is at a fixed place."""
        found = TOOLS.alloca_once(self.builder, self.words, size=vectors)
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

    def loads(self, address: ir.Value, count: int) -> list[ir.Value]:
        """Load `count` vectors that follow each other from the address of their first word."""
        size = 2 * self.lanes
        return [self.load(offset(self.builder, address, size * i)) for i in range(count)]

    def stores(self, vectors: Sequence[ir.Value], address: ir.Value) -> None:
        """Store vectors one behind the other from the address of their first word on."""
        for i, vector in enumerate(vectors):
            self.store(vector, offset(self.builder, address, 2 * self.lanes * i))

    def xors(self, vectors: Sequence[ir.Value], others: Sequence[ir.Value]) -> list[ir.Value]:
        """XOR vectors with others, one with one."""
        return [self.builder.xor(*pair) for pair in zip(vectors, others, strict=True)]

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

    def encrypt(
        self, states: list[ir.Value], keys: ir.Value, added: list[ir.Value] | None = None
    ) -> list[ir.Value]:
        """Encrypt vectors under the round keys at an address, and add others if there are any."""
        return self.encrypt_under([states], [keys], added)[0]

    def encrypt_under(
        self,
        states: list[list[ir.Value]],
        keys: list[ir.Value],
        added: list[ir.Value] | None = None,
    ) -> list[list[ir.Value]]:
        """Encrypt lists of vectors, each under the round keys at an address, round by round.

        With vectors to be added to the first list, each later list is added to the one before it.
        The last round key takes them up, and so no sum waits for the rounds.
        """
        for i in range(ROUNDS + 1):
            found: list[list[ir.Value]] = []
            for some, address in zip(states, keys, strict=True):
                key = [self.broadcast(offset(self.builder, address, 2 * i))] * len(some)
                if i == 0:
                    found.append(self.xors(some, key))
                    continue
                if i == ROUNDS and added is not None:
                    key = self.xors(found[-1] if found else added, key)
                instruction = "aesenc" if i < ROUNDS else "aesenclast"
                pairs = zip(some, key, strict=True)
                found.append([self._aes(instruction, *pair) for pair in pairs])
            states = found
        return states

    def hash(self, tweaked: list[ir.Value], keys: ir.Value) -> list[ir.Value]:
        """Return pi(y) ^ y of vectors y = sigma(x) ^ t."""
        return self.encrypt(tweaked, keys, tweaked)

    def sigma(self, blocks: ir.Value) -> ir.Value:
        """Return (L ^ R) || L of L || R, in every lane."""
        order = [at ^ 1 for at in range(2 * self.lanes)]
        low = self.builder.and_(blocks, self.constant([2**64 - 1, 0] * self.lanes))
        return self.builder.xor(self._shuffle(blocks, blocks, order), low)

    def interleave(self, vectors: list[ir.Value]) -> list[ir.Value]:
        """Transpose the elements of n vectors (a power of 2) within each lane: bytes, or others.

        Elements at one place of all vectors, in order, become n that follow each other. The places
        follow each other in the lane and then over the n vectors that are returned.
        """
        if len(vectors) == 1:
            return vectors
        half, count = len(vectors) // 2, vectors[0].type.count
        lane_size = count // self.lanes
        sides: list[list[ir.Value]] = [[], []]
        for one, other in zip(vectors[:half], vectors[half:], strict=True):
            for side, found in enumerate(sides):
                begins = range(side * lane_size // 2, count, lane_size)
                places = [begin + place for begin in begins for place in range(lane_size // 2)]
                order = [at for place in places for at in (place, count + place)]
                found.append(self._shuffle(one, other, order))
        return self.interleave(sides[0]) + self.interleave(sides[1])

    def lanes_apart(self, vectors: list[ir.Value]) -> list[ir.Value]:
        """Transpose the blocks of as many vectors as there are lanes: vector l has all lanes l."""
        found, apart = list(vectors), 1
        while apart < self.lanes:
            for i in (i for i in range(self.lanes) if not i & apart):
                one, other = found[i], found[i + apart]
                for side in range(2):
                    # lanes from `side` on of the two in turns, `apart` at a time
                    blocks = [
                        lane + apart * side
                        if not lane & apart
                        else self.lanes + lane + apart * (side - 1)
                        for lane in range(self.lanes)
                    ]
                    order = [2 * block + word for block in blocks for word in range(2)]
                    found[i + apart * side] = self._shuffle(one, other, order)
            apart *= 2
        return found

    def low_words(self, one: ir.Value, other: ir.Value) -> ir.Value:
        """Return the low words of two vectors, side by side in each lane."""
        return self._shuffle(
            one, other, [at + 2 * lane for lane in range(self.lanes) for at in (0, 2 * self.lanes)]
        )

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
        """Transpose 8 vectors of bits to bytes of one column each, with the lowest row lowest.

        With GFNI bit i of byte p becomes byte 8 p + i of the lane, over the 8 vectors that are
        returned, and without byte p of vector i.
        """
        b = self.builder
        if not GFNI:
            return self._swapped(rows)
        # the instruction wants the matrix upside down
        bytewise = self.interleave([b.bitcast(row, self.bytes) for row in rows[::-1]])
        units = ir.Constant(self.bytes, [1 << i for i in range(8)] * 2 * self.lanes)
        name = f"llvm.x86.vgf2p8affineqb.{128 * self.lanes}"
        found = [self.call(name, self.bytes, units, v, ir.Constant(I8, 0)) for v in bytewise]
        return [b.bitcast(v, self.words) for v in found]

    def _swapped(self, rows: list[ir.Value]) -> list[ir.Value]:
        """Exchange bit j of each byte of vector i and bit i of that of vector j, of 8 vectors.

        Between two vectors this takes half of what it takes within words.
        """
        b, rows = self.builder, list(rows)
        for apart, mask in ((4, 0x0F), (2, 0x33), (1, 0x55)):
            low = self.constant([mask * 0x0101010101010101] * 2 * self.lanes)
            by = self.constant([apart] * 2 * self.lanes)
            for i in (i for i in range(8) if not i & apart):
                one, other = rows[i], rows[i + apart]
                swap = b.and_(b.xor(b.lshr(one, by), other), low)
                rows[i], rows[i + apart] = b.xor(one, b.shl(swap, by)), b.xor(other, swap)
        return rows


def offset(builder: ir.IRBuilder, address: ir.Value, words: int | ir.Value) -> ir.Value:
    """Return the address of a word that is `words` further on."""
    return builder.gep(address, [ir.Constant(I64, words) if isinstance(words, int) else words])


def spread(builder: ir.IRBuilder, value: ir.Value, kind: ir.VectorType) -> ir.Value:
    """Return a vector of which every element is a value."""
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(
        one, one, ir.Constant(ir.VectorType(I32, kind.count), [0] * kind.count)
    )


def bits_at(builder: ir.IRBuilder, octets: ir.Value, k: ir.Value) -> ir.Value:
    """Return bit `k` of each of 64 bytes, as one word."""
    kind = octets.type
    bit = spread(builder, builder.shl(ir.Constant(I8, 1), builder.trunc(k, I8)), kind)
    found = builder.icmp_unsigned(
        "!=", builder.and_(octets, bit), ir.Constant(kind, [0] * kind.count)
    )
    return builder.bitcast(found, I64)


@contextmanager
def loop(builder: ir.IRBuilder, stop: ir.Value, start: int = 0) -> Iterator[ir.Value]:
    """Emit a loop with a counter from `start` to below `stop`."""
    with TOOLS.for_range_slice(
        builder, ir.Constant(I64, start), stop, ir.Constant(I64, 1), I64
    ) as (counter, _):
        yield counter


def tiles(
    builder: ir.IRBuilder, blocks: ir.Value, abreast: int = 1
) -> Iterator[tuple[Vectors, int, ir.Value]]:
    """Emit loops over blocks of 128 bits: over tiles of `abreast` vectors, and then block by block.

    The caller writes the body of each loop, with its vectors, how many they are, and the number of
    the first block.
    """
    done: ir.Value = ir.Constant(I64, 0)
    for lanes, vectors in dict.fromkeys(((LANES, abreast), (1, 1))):
        size = ir.Constant(I64, lanes * vectors)
        count = builder.udiv(builder.sub(blocks, done), size)
        with loop(builder, count) as i:
            yield Vectors(builder, lanes), vectors, builder.add(done, builder.mul(i, size))
        done = builder.add(done, builder.mul(count, size))


def inline(emit: Callable[..., None], count: int, **fixed: Any) -> Any:
    """Return a function for kernels: `emit(builder, *arguments, **fixed)` writes what it does.

    It takes `count` arguments: whole numbers of 64 bits, contiguous arrays of words, of which
    `emit` gets the address of the first word, and None, which it gets as such. So what it writes
    may depend on which arrays there are, as a kernel may (`if array is None`).
    """

    def generate(context: Any, builder: ir.IRBuilder, typed: Any, arguments: Any) -> ir.Value:
        values = [
            context.make_array(kind)(context, builder, value).data
            if isinstance(kind, types.Array)
            else None
            if kind is types.none
            else value
            for kind, value in zip(typed.args, arguments, strict=True)
        ]
        emit(builder, *values, **fixed)
        return context.get_dummy_value()

    def typing(_: Any, *given: Any) -> Any:
        arrays = [kind for kind in given if isinstance(kind, types.Array)]
        if any(kind.layout != "C" for kind in arrays):
            raise TypingError(f"{emit.__name__} takes contiguous arrays, not {given}")
        if any(isinstance(kind, types.Optional) for kind in given):
            raise TypingError(f"{emit.__name__} takes arrays or None, known before it runs")
        kept = (*arrays, types.none)
        kinds = [kind if kind in kept else types.uint64 for kind in given]
        return types.void(*kinds), generate

    # numba reads off the signature how many there are
    names = ["context", *(f"argument{i}" for i in range(count))]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    typing.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, positional) for name in names]
    )
    return intrinsic(typing)
