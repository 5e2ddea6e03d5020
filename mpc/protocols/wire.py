"""Frames: a small msgpack header, followed by raw array buffers.

A frame is a list of byte strings (the parts of one zmq message). Part 0 is the header, a msgpack
map `{"v": LAYOUT, "t": type, "b": fields, "a": [[name, dtype, shape], ...]}`. Parts 1, 2, .. are
the bytes of the arrays, little-endian and C-contiguous, in the order of `a`, each cut into parts of
PIECE_BYTES and a rest. So no socket need take longer ones from strangers. Nothing is left over and
nothing is guessed: `unpack` refuses another layout, an unknown dtype, a length that is not the
shape's, a missing part and a surplus one. Nothing is pickled. Texts arrive so that they can be
printed, whoever wrote them: what commands a terminal is written out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np
from numpy.typing import DTypeLike, NDArray

from securemedian.mpc.errors import FrameError, LocalProtocolError, cut, quoted

# of frames alone: what they say has a version of its own (`common.versions`)
LAYOUT = 1
MAX_HEADER_BYTES = 1 << 20
PIECE_BYTES = 4 << 20
# the longest part that a socket has to take: CURVE adds 33 bytes
MAX_PART_BYTES = PIECE_BYTES + 64
DTYPES = {name: np.dtype(name) for name in ("<u1", "<u2", "<u4", "<u8", "<i4", "<i8", "<f4", "<f8")}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

Part = bytes | bytearray | memoryview


@dataclass(frozen=True)
class Message:
    """A decoded frame. Its `arrays` are read-only views into the received buffers."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        # arrays may be shares, so only their shapes are printed
        shapes = {name: (array.dtype.str, array.shape) for name, array in self.arrays.items()}
        return f"Message({self.type!r}, fields={sorted(self.fields)}, arrays={shapes})"


def pack(
    kind: str,
    fields: Mapping[str, Any] | None = None,
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> list[Part]:
    """Return the parts of one frame of a type, here `kind`.

    Raises LocalProtocolError for a dtype that has no name on the wire.
    """
    described: list[tuple[str, str, list[int]]] = []
    buffers: list[Part] = []
    for name, array in (arrays or {}).items():
        # looked up by the dtype, because numpy prints one-byte and native dtypes without '<'
        dtype_name = _NAMES.get(array.dtype)
        if dtype_name is None:
            raise LocalProtocolError(f"array {name!r}: dtype {array.dtype} has no name on the wire")
        flat = np.ascontiguousarray(array).reshape(-1)
        described.append((name, dtype_name, list(array.shape)))
        whole = flat.view(np.uint8).data
        buffers += [
            whole[at : at + PIECE_BYTES] for at in range(0, max(1, len(whole)), PIECE_BYTES)
        ]
    return [_header(kind, fields or {}, described), *buffers]


def unpack(parts: Sequence[Part]) -> Message:
    """Return the message of one frame, whole. Raises FrameError, which names what is wrong."""
    if not parts:
        raise FrameError("an empty frame")
    if len(parts[0]) > MAX_HEADER_BYTES:
        raise FrameError(f"a header of {len(parts[0])} bytes, more than {MAX_HEADER_BYTES}")
    try:
        header = msgpack.unpackb(parts[0])
    except (msgpack.UnpackException, ValueError) as error:
        raise FrameError("the header is not msgpack: random or truncated bytes") from error
    if not isinstance(header, dict) or set(header) != {"v", "t", "b", "a"}:
        raise FrameError("the header does not have exactly the keys v, t, b, a")
    if header["v"] != LAYOUT:
        raise FrameError(
            f"a frame of layout {quoted(header['v'])}, and this program reads {LAYOUT}: "
            "update the older of both ends"
        )
    kind, fields, described = header["t"], header["b"], header["a"]
    if not isinstance(kind, str) or not isinstance(fields, dict) or not isinstance(described, list):
        raise FrameError("the header's values have the wrong types")
    arrays: dict[str, NDArray[Any]] = {}
    at = 1
    for entry in described:
        name, array, count = _array(entry, parts, at)
        if name in arrays:
            raise FrameError(f"array {quoted(name)} twice in one frame")
        arrays[name] = array
        at += count
    if at != len(parts):
        raise FrameError(f"{len(parts)} parts, and {at} are described")
    try:
        return Message(_printable(kind), _printable(fields), arrays)
    except RecursionError:
        raise FrameError("the header is nested too deeply") from None


def _printable(value: Any) -> Any:
    """Return a value of a header with texts that can be printed."""
    if isinstance(value, str):
        return value if value.isprintable() else cut(value)
    if isinstance(value, list):
        return [_printable(one) for one in value]
    if isinstance(value, dict):
        return {_printable(name): _printable(one) for name, one in value.items()}
    return value


def size(parts: Sequence[Part]) -> int:
    """Return the bytes of a frame, its header included. Counters of traffic count these."""
    return sum(len(part) for part in parts)


def frame_size(
    kind: str, fields: Mapping[str, Any], arrays: Mapping[str, tuple[DTypeLike, Sequence[int]]]
) -> int:
    """Return the `size` of the frame that `pack` makes of arrays of these dtypes and shapes."""
    described = [
        (name, _NAMES[np.dtype(dtype)], list(shape)) for name, (dtype, shape) in arrays.items()
    ]
    payload = sum(DTYPES[name].itemsize * math.prod(shape) for _, name, shape in described)
    return len(_header(kind, fields, described)) + payload


def _header(
    kind: str, fields: Mapping[str, Any], described: list[tuple[str, str, list[int]]]
) -> bytes:
    header: bytes = msgpack.packb({"v": LAYOUT, "t": kind, "b": dict(fields), "a": described})
    if len(header) > MAX_HEADER_BYTES:
        raise LocalProtocolError(
            f"the header of a {quoted(kind)} frame has {len(header)} bytes, "
            f"more than {MAX_HEADER_BYTES}"
        )
    return header


def _array(entry: object, parts: Sequence[Part], at: int) -> tuple[str, NDArray[Any], int]:
    """Return the name of an array, the array, and in how many parts from `at` on it came."""
    if not (isinstance(entry, list) and len(entry) == 3):
        raise FrameError("an array description is not [name, dtype, shape]")
    name, dtype_name, shape = entry
    if not isinstance(name, str) or not isinstance(dtype_name, str) or dtype_name not in DTYPES:
        raise FrameError(f"array {quoted(name)}: unknown dtype {quoted(dtype_name)}")
    if (
        not isinstance(shape, list)
        or len(shape) > 8
        or not all(type(s) is int and 0 <= s < 1 << 48 for s in shape)
    ):
        raise FrameError(f"array {quoted(name)}: bad shape {quoted(shape)}")
    dtype = DTYPES[dtype_name]
    expected = dtype.itemsize * math.prod(shape)
    count = max(1, -(-expected // PIECE_BYTES))
    pieces = parts[at : at + count]
    if (
        sum(map(len, pieces)) != expected
        or len(pieces) != count
        or any(len(piece) != PIECE_BYTES for piece in pieces[:-1])
    ):
        raise FrameError(
            f"array {quoted(name)}: {sum(map(len, pieces))} bytes in {len(pieces)} parts, "
            f"shape {shape} of {dtype_name} needs {expected} in {count}"
        )
    whole = pieces[0] if count == 1 else b"".join(pieces)
    try:
        return name, np.frombuffer(whole, dtype=dtype).reshape(shape), count
    except ValueError as error:
        # a shape with a 0 needs no bytes, and its other lengths may be beyond numpy
        raise FrameError(f"array {quoted(name)}: bad shape {quoted(shape)}") from error
