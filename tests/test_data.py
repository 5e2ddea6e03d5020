"""Images: IDX files with all their faults, the bundled digits, and each client's part."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from clients import data
from mpc.errors import ConfigError, InputError

MNIST = Path(__file__).parents[2] / "shared" / "data" / "mnist"


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def small_mnist(directory: Path, test_labels: int = 4) -> None:
    rng = np.random.default_rng(1)
    for prefix, images, labels in (("train", 6, 6), ("t10k", 4, test_labels)):
        (directory / f"{prefix}-images-idx3-ubyte").write_bytes(idx(rng.integers(0, 256, (images, 28, 28), np.uint8)))
        (directory / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(
            gzip.compress(idx(rng.integers(0, 10, labels, np.uint8)))
        )


def test_plain_and_gzipped_files(tmp_path: Path) -> None:
    small_mnist(tmp_path)
    loaded = data.load(tmp_path)
    assert (loaded.name, loaded.images.shape, loaded.test_labels.shape) == ("mnist", (6, 784), (4,))
    assert loaded.images.dtype == np.float32
    assert 0 <= loaded.images.min() < loaded.images.max() <= 1


@pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not there")
def test_the_real_mnist() -> None:
    loaded = data.load(MNIST)
    assert loaded.images.shape == (60_000, 784)
    assert loaded.test_images.shape == (10_000, 784)
    assert np.bincount(loaded.labels).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="train-images-idx3-ubyte.gz"):
        data.load(tmp_path)


def test_labels_that_do_not_fit_the_images(tmp_path: Path) -> None:
    small_mnist(tmp_path, test_labels=3)
    with pytest.raises(InputError, match="not MNIST"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "raw", "said"),
    [
        ("a", b"", "does not start as an IDX file"),
        ("a", b"<html>not found</html>", "does not start as an IDX file"),
        ("a", idx(np.zeros((2, 3), np.uint8))[:-1], "download it again"),
        ("a", idx(np.zeros((2, 3), np.uint8)) + b"x", "download it again"),
        ("a", idx(np.zeros((2, 3), np.uint8))[:9], "does not start as an IDX file"),
        ("a.gz", b"plain", "no complete gzip"),
        ("a.gz", gzip.compress(idx(np.zeros((2, 3), np.uint8)))[:-12], "no complete gzip"),
        ("a.gz", gzip.compress(b"")[:10] + b"\xff" * 20, "no complete gzip"),
    ],
)
def test_bad_idx_files(tmp_path: Path, name: str, raw: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(InputError, match=said):
        data.read_idx(path)


def test_digits_are_real_and_shuffled_alike() -> None:
    pytest.importorskip("sklearn")
    one, two = data.load(None), data.load(None)
    assert (one.images.shape, one.test_images.shape) == ((1500, 64), (297, 64))
    assert np.array_equal(one.images, two.images)


def test_parts_are_seeded_and_do_not_overlap() -> None:
    parts = [data.part(100, index, 3, seed=5, images=30) for index in range(3)]
    assert len(set(np.concatenate(parts).tolist())) == 90
    assert np.array_equal(parts[1], data.part(100, 1, 3, seed=5, images=30))
    assert not np.array_equal(parts[1], data.part(100, 1, 3, seed=6, images=30))
    assert [len(data.part(100, index, 3, seed=5)) for index in range(3)] == [33, 33, 33]


@pytest.mark.parametrize(("index", "images"), [(3, None), (-1, None), (0, 34), (0, 0)])
def test_impossible_parts_are_refused(index: int, images: int | None) -> None:
    with pytest.raises(ConfigError):
        data.part(100, index, 3, seed=1, images=images)
