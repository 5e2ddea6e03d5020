"""Every parser of bytes from outside, under bytes that nobody should send.

A parser gives a value or raises one of our typed errors, whose message fits in a frame; anything
else is a defect. Inputs are mutations of valid ones, random structures, and the corpus of what
reviews have found (tests/fuzzing.py). `--fuzz-examples 0` goes on until it is stopped.
"""

import io
import zipfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import strategies as st

from securemedian.clients import files
from securemedian.clients.config import ClientConfig
from securemedian.common.keys import SigningKey, load_keys, load_signing_key
from securemedian.common.receipts import Receipt, Record
from securemedian.mpc.canonical import build, flat
from securemedian.mpc.errors import SecureMedianError
from securemedian.mpc.protocols import wire
from securemedian.mpc.protocols.protocol import ProtocolParams
from securemedian.mpc.rounds.methods.registry import METHODS
from securemedian.mpc.rounds.params import RoundParams
from securemedian.mpc.rounds.ranges.registry import POLICIES, policy_from
from securemedian.operating import keygen
from securemedian.servers import config
from securemedian.servers.computing import shards
from securemedian.servers.network import control
from tests.fuzzing import DESCRIPTIONS, changed, damaged, fuzz, refused_or_taken

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent.parent / "docs" / "samples"


def test_frames(fuzz_examples: int) -> None:
    header = {
        "v": wire.LAYOUT,
        "t": "status",
        "b": {"id": 1, "round": ""},
        "a": [["y", "<u4", [2]]],
    }

    @fuzz(
        fuzz_examples, changed(header), DESCRIPTIONS, st.lists(st.binary(max_size=20), max_size=3)
    )
    def check(table: dict[str, Any], described: list[Any], parts: list[bytes]) -> None:
        for entries in (table, table | {"a": described}):
            # msgpack does not write these, so they were not frames
            with suppress(OverflowError, ValueError):
                packed = msgpack.packb(entries)
                frame = [packed, *parts]
                refused_or_taken(partial(wire.unpack, frame))

    @fuzz(fuzz_examples, damaged(msgpack.packb(header)), st.binary(max_size=20))
    def check_bytes(packed: bytes, part: bytes) -> None:
        refused_or_taken(lambda: wire.unpack([packed, part]))


# tests/test_fuzz_servers.py has the messages between the servers
SHARDS = [
    shards.Anew(1, 2, 3, "0" * 40),
    shards.At(1, 2, 3, "0" * 40, "tcp://10.0.0.1:7000"),
    shards.Finished(1, 2, 3),
    shards.Lost(1, 2, 3, "gone"),
]


@pytest.mark.parametrize("message", SHARDS, ids=lambda message: type(message).__name__)
def test_messages_about_shards(message: shards.Message, fuzz_examples: int) -> None:
    encoded = [bytes(part) for part in control.encode(message)]
    assert shards.decode(encoded) == message
    valid = wire.unpack(encoded)

    @fuzz(fuzz_examples // 3 + 1, changed(valid.fields))
    def check(fields: dict[str, Any]) -> None:
        with suppress(OverflowError, ValueError, SecureMedianError):
            parts = [bytes(part) for part in wire.pack(valid.type, fields)]
            refused_or_taken(lambda: shards.decode(parts))


@pytest.mark.parametrize("method", METHODS)
def test_round_parameters(method: str, fuzz_examples: int) -> None:
    valid = RoundParams.from_dict({"method": method, "dim": 4, "max_clients": 3}).to_dict()

    @fuzz(fuzz_examples // 3 + 1, changed(valid))
    def check(fields: dict[str, Any]) -> None:
        refused_or_taken(lambda: RoundParams.from_dict(fields))


def test_protocol_parameters(fuzz_examples: int) -> None:
    @fuzz(fuzz_examples, changed(flat(ProtocolParams())))
    def check(fields: dict[str, Any]) -> None:
        refused_or_taken(lambda: build(ProtocolParams, fields, "[protocol]"))


@pytest.mark.parametrize("name", POLICIES)
def test_range_policies(name: str, fuzz_examples: int) -> None:
    valid = policy_from({"policy": name}).to_dict()

    @fuzz(fuzz_examples // 3 + 1, changed(valid))
    def check(table: dict[str, Any]) -> None:
        refused_or_taken(lambda: policy_from(table))


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
        refused_or_taken(lambda: files.read_models(path))


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "update.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("notes.txt", "no array")
    with pytest.raises(SecureMedianError):
        files.read(path)


def test_key_files(tmp_path: Path, fuzz_examples: int) -> None:
    net = keygen.network(keygen.LOOPBACK, keygen.LOOPBACK, 7000)
    keygen.make(tmp_path / "s0", ["client-1", "client-2"], net, roles={"s0": "s0"})
    valid = (tmp_path / "s0" / "s0.key_secret").read_bytes()
    path = tmp_path / "damaged.key_secret"

    @fuzz(fuzz_examples, damaged(valid))
    def check(data: bytes) -> None:
        path.write_bytes(data)
        path.chmod(0o600)
        refused_or_taken(lambda: load_keys(path))
        refused_or_taken(lambda: load_signing_key(path))


def test_receipts(fuzz_examples: int) -> None:
    valid = Record("a", 1, "b", "c", 1, {"dim": 3}, ["key"], {"why": ["key"]}, b"e", b"f")
    receipt = Receipt(valid.encode()).signed("s0", SigningKey.new())

    @fuzz(fuzz_examples, damaged(receipt.to_json().encode()))
    def check_file(data: bytes) -> None:
        refused_or_taken(lambda: Receipt.from_json(data.decode("utf-8", "replace")).to_dict())

    @fuzz(fuzz_examples, damaged(receipt.encoded))
    def check_record(data: bytes) -> None:
        refused_or_taken(lambda: Record.decode(data).left_out)
