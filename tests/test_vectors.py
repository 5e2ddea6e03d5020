"""tests/vectors: the known answers for another implementation are those of this one."""

import json
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from securemedian.common.receipts import Receipt
from securemedian.mpc.protocols import wire
from tests.vectors import make


def cases(name: str) -> Any:
    return json.loads((make.FOLDER / f"{name}.json").read_text("utf-8"))


@pytest.mark.parametrize("name", make.FILES)
def test_the_files_are_what_is_made(name: str) -> None:
    """Remake them (`python -m tests.vectors.make`) only if the protocol is meant to change."""
    assert (make.FOLDER / f"{name}.json").read_text("utf-8") == make.text_of(name)


def test_there_is_no_other_file_and_all_are_small_and_explained() -> None:
    files = sorted(make.FOLDER.glob("*.json"))
    assert [path.stem for path in files] == sorted(make.FILES)
    assert sum(path.stat().st_size for path in files) < 100_000
    readme = (make.FOLDER / "README.md").read_text("utf-8")
    assert all(f"`{path.name}`" in readme for path in files)


def test_shares_are_what_the_readme_says() -> None:
    """Use nothing of ours except the function that takes bits out of words, one by one."""
    for case in cases("shares"):
        rows, columns, bits = len(case["values"]), len(case["values"][0]), case["bits"]
        packed = case["s1"]["packed"]
        row_bytes = 8 * packed["shape"][1]
        key, zeros = bytes.fromhex(case["s0"]["seed"]), bytes(rows * row_bytes)
        cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16)))
        masks, full = cipher.encryptor().update(zeros), bytes.fromhex(packed["bytes"])
        for row, values in enumerate(case["values"]):
            at = row * row_bytes
            one, other = (
                unpacked(half[at : at + row_bytes], bits, columns) for half in (masks, full)
            )
            joined = [a ^ b if case["xor"] else a + b for a, b in zip(one, other, strict=True)]
            assert [each % 2**bits for each in joined] == values


def test_comparisons_are_right() -> None:
    for case in cases("comparisons"):
        bits, (one, other) = case["bits"], map(numbers, case["shares"])
        sums = [(int(a) + int(b)) % 2**bits for a, b in zip(one, other, strict=True)]
        first, second = map(numbers, case["shares_of_top_bits"])
        tops = [(int(first[0] ^ second[0]) >> i) & 1 for i in range(64)]
        assert tops == [each >> (bits - 1) for each in sums]


def test_receipts_and_messages_are_read_back() -> None:
    for case in cases("receipts"):
        receipt = Receipt.from_dict(case["receipt"])
        assert receipt.encoded.hex() == case["encoded"]
        receipt.check([key["public_z85"] for key in case["signing_keys"].values()])
    for case in cases("messages"):
        message = wire.unpack([bytes.fromhex(part) for part in case["parts"]])
        assert (message.type, message.fields) == (case["type"], case["fields"])
        assert {n: make.told(each) for n, each in message.arrays.items()} == case["arrays"]


def unpacked(data: bytes, bits: int, count: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    return [whole >> bits * i & (1 << bits) - 1 for i in range(count)]


def numbers(told: dict[str, Any]) -> Any:
    data = bytes.fromhex(told["bytes"])
    return np.frombuffer(data, told["dtype"])
