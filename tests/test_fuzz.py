"""Every parser of bytes from outside, under bytes that nobody should send.

A parser gives a value or raises one of our typed errors, whose message fits in a frame; anything
else is a defect. Inputs are mutations of valid ones, random structures, and the corpus below of
what reviews have found. `--fuzz-examples 0` goes on until it is stopped.
"""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from securemedian.clients import files
from securemedian.clients.config import ClientConfig
from securemedian.mpc import wire
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.params import RoundParams
from securemedian.mpc.protocol import ProtocolParams
from securemedian.servers import config, control
from securemedian.settings.keys import load_keys

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"
LONGEST_MESSAGE = 20_000

# What reviews have found to end a server or to slip through.
CORPUS: list[Any] = [
    "x" * (wire.MAX_HEADER_BYTES - 100),
    "../../../etc/passwd",
    "1-../../../tmp",
    "\x00",
    "\ud800".encode("utf-16", "surrogatepass"),
    -1,
    2**63,
    2**64 - 1,
    True,
    None,
    float("nan"),
    float("inf"),
    [],
    {},
    [[]],
    {"": {"": {}}},
    b"",
    bytes(1 << 16),
    ["x"] * 1000,
]

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.text(max_size=30),
    st.binary(max_size=30),
    st.sampled_from(CORPUS),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def refused_or_taken(parse: Callable[[], object]) -> None:
    """Run a parser, which may raise one of our errors with a message of bounded length."""
    try:
        parse()
    except SecureMedianError as error:
        assert len(str(error)) < LONGEST_MESSAGE, "an error quotes all it was given"


def fuzz(examples: int, *strategies: Any) -> Callable[[Callable[..., None]], None]:
    """Return a decorator that runs a property at once, on `examples` inputs of the strategies."""

    def run(check: Callable[..., None]) -> None:
        quiet = list(HealthCheck)
        tried = settings(max_examples=examples, deadline=None, suppress_health_check=quiet)
        tried(given(*strategies)(check))()

    return run


@st.composite
def changed(draw: st.DrawFn, valid: dict[str, Any]) -> dict[str, Any]:
    """Draw a valid table with some values replaced, left out or added."""
    table = dict(valid)
    for key in draw(st.lists(st.sampled_from(sorted(valid)), max_size=3)):
        table[key] = draw(VALUES)
    for key in draw(st.lists(st.sampled_from(sorted(valid)), max_size=1)):
        table.pop(key, None)
    return table | draw(st.dictionaries(st.text(max_size=8), VALUES, max_size=1))


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


def test_frames(fuzz_examples: int) -> None:
    header = {
        "v": wire.VERSION,
        "t": "status",
        "b": {"id": 1, "round": ""},
        "a": [["y", "<u4", [2]]],
    }
    shapes = st.lists(st.integers(-2, 2**64 - 1), max_size=9)
    arrays = st.lists(
        st.tuples(st.text(max_size=5), st.sampled_from([*wire.DTYPES, "|O8", "", "<u3"]), shapes),
        max_size=3,
    )

    @fuzz(fuzz_examples, changed(header), arrays, st.lists(st.binary(max_size=20), max_size=3))
    def check(table: dict[str, Any], described: list[Any], parts: list[bytes]) -> None:
        for entries in (table, table | {"a": described}):
            # what msgpack does not write was no frame
            with suppress(OverflowError, ValueError):
                packed = msgpack.packb(entries)
                refused_or_taken(lambda packed=packed: wire.unpack([packed, *parts]))

    @fuzz(fuzz_examples, damaged(msgpack.packb(header)), st.binary(max_size=20))
    def check_bytes(packed: bytes, part: bytes) -> None:
        refused_or_taken(lambda: wire.unpack([packed, part]))


CONTROL = [
    control.Hello("instance", {"release": "1"}),
    control.Open("1-00000000", 1, {"method": "bucketed"}, bytes(16), True),
    control.Uploaded("1-00000000", "key"),
    control.Close("1-00000000", ["key"]),
    control.Run("1-00000000", bytes(32)),
    control.Failed("1-00000000", "timeout", "why"),
]


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_control_messages(message: control.Message, fuzz_examples: int) -> None:
    valid = wire.unpack([bytes(part) for part in control.encode(message)])

    @fuzz(fuzz_examples, changed(valid.fields))
    def check(fields: dict[str, Any]) -> None:
        with suppress(OverflowError, ValueError, SecureMedianError):
            parts = [bytes(part) for part in wire.pack(valid.type, fields)]
            refused_or_taken(lambda: control.decode(parts))


@pytest.mark.parametrize("method", ["bucketed", "pairwise", "radix", "trimmed-mean"])
def test_round_parameters(method: str, fuzz_examples: int) -> None:
    valid = RoundParams.from_dict({"method": method, "dim": 4, "max_clients": 3}).to_dict()

    @fuzz(fuzz_examples, changed(valid))
    def check(fields: dict[str, Any]) -> None:
        refused_or_taken(lambda: RoundParams.from_dict(fields))
        refused_or_taken(lambda: ProtocolParams(**{"lanes": fields.get("max_clients", 1)}))


@pytest.mark.parametrize("name", ["s0", "s1", "client"])
def test_configurations(name: str, tmp_path: Path, fuzz_examples: int) -> None:
    load: Callable[[Path], object] = ClientConfig.load if name == "client" else config.load
    valid = (SAMPLES / f"{name}.toml").read_bytes()
    path = tmp_path / "damaged.toml"
    lines = valid.decode().splitlines()
    values = st.sampled_from(
        ["-1", "1e999", "nan", '"x"', "[]", "{}", "true", "[{}]", '"' + "y" * 30_000 + '"']
    )

    @fuzz(fuzz_examples, damaged(valid))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        refused_or_taken(lambda: load(path))

    @fuzz(fuzz_examples, st.integers(0, len(lines) - 1), values)
    def check_values(at: int, value: str) -> None:
        name, equals, _ = lines[at].partition(" = ")
        if equals:
            path.write_text("\n".join([*lines[:at], f"{name} = {value}", *lines[at + 1 :]]))
            refused_or_taken(lambda: load(path))


def _saved(save: Callable[..., None], *arrays: Any, **named: Any) -> bytes:
    buffer = io.BytesIO()
    save(buffer, *arrays, **named)
    return buffer.getvalue()


VECTOR = np.arange(5, dtype=np.float32)
FILES = {
    "npy": _saved(np.save, VECTOR),
    "objects": _saved(np.save, np.array([object()], dtype=object), allow_pickle=True),
    "npz": _saved(np.savez, a=VECTOR, b=np.arange(2)),
    "compressed": _saved(np.savez_compressed, a=np.zeros(100_000, np.float32)),
}


@pytest.mark.parametrize("kind", FILES)
def test_update_files(kind: str, tmp_path: Path, fuzz_examples: int) -> None:
    path = tmp_path / "update.npz"

    @fuzz(fuzz_examples, damaged(FILES[kind]))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        refused_or_taken(lambda: files.read(path))
        refused_or_taken(lambda: files.read_vector(path))


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "update.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(SecureMedianError):
        files.read(path)


def test_key_files(tmp_path: Path, fuzz_examples: int) -> None:
    import zmq.auth

    zmq.auth.create_certificates(tmp_path, "client")
    valid = (tmp_path / "client.key_secret").read_bytes()
    path = tmp_path / "damaged.key_secret"

    @fuzz(fuzz_examples, damaged(valid))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)
        refused_or_taken(lambda: load_keys(path))
