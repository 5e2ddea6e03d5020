"""Inputs and helpers that the fuzzers share.

There are a corpus of what reviews have found, strategies that change what is valid, and the rule
for a parser of bytes from outside.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgpack
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from securemedian.mpc.errors import MAX_TEXT, SecureMedianError
from securemedian.mpc.protocols import wire

# A text may be cut, named and quoted in another one, and none of that may make it a long one.
LONGEST_TEXT = 3 * MAX_TEXT

# Inputs that reviews found to end a server or to slip through.
CORPUS: list[Any] = [
    "x" * (wire.MAX_HEADER_BYTES - 1000),
    "x" * 2000,
    "\x00" * 2000,
    "../../../etc/passwd",
    "1-../../../tmp",
    "1-0000000a/..",
    "0-0000000a",
    "1-0000000A",
    "1-0000000a\n",
    "999999999999999999-0000000a",
    "\ud800".encode("utf-16", "surrogatepass"),
    -1,
    0,
    2**31,
    2**63,
    2**64 - 1,
    True,
    None,
    float("nan"),
    float("inf"),
    1e308,
    [],
    {},
    [[]],
    [{}],
    {"": {"": {}}},
    {1: []},
    {b"x": [[]]},
    b"",
    bytes(300),
    bytes(1 << 16),
    ["x"] * 1000,
    [["x" * 2000]] * 100,
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    # by number: a strategy shows what it samples from, a megabyte of it
    st.integers(0, len(CORPUS) - 1).map(CORPUS.__getitem__),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
NAMES = st.text(max_size=8) | st.integers(0, 2).map(["x" * 9000, b"x", 1].__getitem__)
ADDED = st.dictionaries(NAMES, VALUES, max_size=2)
# Descriptions of arrays, of which few fit what is sent with them.
DESCRIPTIONS = st.lists(
    st.tuples(
        st.text(max_size=5),
        st.sampled_from([*wire.DTYPES, "|O8", "", "<u3"]),
        st.lists(st.integers(-2, 2**64 - 1), max_size=9),
    ),
    max_size=3,
)


def refused_or_taken(parse: Callable[[], object]) -> None:
    """Run a parser, which may raise one of our errors with a message of bounded length."""
    try:
        parse()
    except SecureMedianError as error:
        assert len(str(error)) < LONGEST_TEXT, "an error quotes all it was given"


def fuzz(examples: int, *strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that runs a property at once, on `examples` inputs of the strategies."""

    def run(check: Callable[..., None]) -> None:
        quiet = list(HealthCheck)
        tried = settings(max_examples=examples, deadline=None, suppress_health_check=quiet)
        tried(given(*strategies)(check))()

    return run


@st.composite
def changed(draw: st.DrawFn, valid: Mapping[str, Any]) -> dict[Any, Any]:
    """Draw a valid table with some values replaced, left out or added."""
    table: dict[Any, Any] = dict(valid)
    if valid:
        names = st.sampled_from(sorted(valid))
        for key in draw(st.lists(names, max_size=3)):
            table[key] = draw(VALUES)
        for key in draw(st.lists(names, max_size=1)):
            table.pop(key, None)
    return table | (draw(ADDED) if draw(st.integers(0, 3)) == 0 else {})


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Draw valid bytes that are cut or flipped in places, or have others put in or left out."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(st.sampled_from(["flip", "cut", "insert", "drop"])):
            case "flip" if data:
                data[at] ^= draw(st.integers(1, 255))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=20))
            case _:
                del data[at : at + draw(st.integers(1, 20))]
    return bytes(data)


@st.composite
def frames(
    draw: st.DrawFn,
    kind: str,
    valid: Mapping[str, Any],
    arrays: Mapping[str, NDArray[Any]] | None = None,
) -> list[bytes]:
    """Draw a frame of this kind, often with changed fields, sometimes with a damaged header."""
    # whole ones too: what is valid may come when it must not
    fields, sent = draw(st.just(dict(valid)) | changed(valid)), arrays or {}
    described: Sequence[Any] = [(n, a.dtype.str, a.shape) for n, a in sent.items()]
    described = [(n, dtype.replace("|", "<"), list(shape)) for n, dtype, shape in described]
    parts = [np.ascontiguousarray(array).tobytes() for array in sent.values()]
    how = draw(st.sampled_from(["fields", "fields", "fields", "arrays", "kind", "bytes"]))
    if how == "arrays":
        described = draw(DESCRIPTIONS)
        parts = draw(st.lists(st.binary(max_size=20), max_size=3))
    header = {"v": wire.LAYOUT, "t": kind, "b": fields, "a": described}
    if how == "kind":
        header |= draw(st.dictionaries(st.sampled_from("vtbac"), VALUES, max_size=2))
    packed: bytes = msgpack.packb(header)
    return [draw(damaged(packed)) if how == "bytes" else packed, *parts]
