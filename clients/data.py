"""Real images to train on, MNIST from its IDX files or scikit-learn's 8x8 digits, and a client's part of them."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpc.errors import ConfigError, InputError

_DIGITS_TRAINING = 1500  # of the 1,797 digits; the others are the test set
_UNSIGNED_BYTES = 0x08  # the only element type of the MNIST files


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32 in [0, 1], labels as int64."""

    name: str  # "mnist" or "digits"
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def load(directory: str | Path | None) -> Dataset:
    """MNIST from the four IDX files in `directory`, plain or .gz; without a directory, scikit-learn's digits."""
    return _digits() if directory is None else _mnist(Path(directory))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """An IDX file of unsigned bytes, gzipped if its name ends in .gz. InputError says what is wrong with it."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(f"{path} is no complete gzip file ({error}): download it again") from error
    if len(raw) < 4 or raw[:3] != bytes([0, 0, _UNSIGNED_BYTES]) or len(raw) < (header := 4 + 4 * raw[3]):
        raise InputError(f"{path} does not start as an IDX file of unsigned bytes: is it one of the four MNIST files?")
    shape = np.frombuffer(raw[4:header], ">u4").tolist()
    if len(raw) - header != math.prod(shape):
        raise InputError(
            f"{path} announces an array of shape {shape} and has {len(raw) - header:,} bytes for it: download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def part(count: int, index: int, parts: int, seed: int, images: int | None = None) -> NDArray[np.int64]:
    """Which of `count` images are client `index`'s (0-based, of `parts`).

    A seeded iid split without overlap, of `images` each or all there are.
    """
    if not 0 <= index < parts:
        raise ConfigError(f"there is no part {index + 1} of {parts}: parts are counted from 1")
    each = count // parts if images is None else images
    if not 1 <= each * parts <= count:
        raise ConfigError(
            f"{parts} clients of {each:,} images are not in {count:,}: choose 1 to {count // parts:,} images a client"
        )
    return np.random.default_rng(seed).permutation(count)[index * each : (index + 1) * each]


def _mnist(directory: Path) -> Dataset:
    def read(prefix: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        images, labels = (
            read_idx(_find(directory, f"{prefix}-{kind}-ubyte")) for kind in ("images-idx3", "labels-idx1")
        )
        if images.shape != (len(labels), 28, 28) or labels.max() > 9:
            raise InputError(
                f"{directory}: {prefix} images of shape {images.shape} "
                f"and {len(labels):,} labels up to {labels.max()} are not MNIST"
            )
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255), labels.astype(np.int64)

    return Dataset("mnist", *read("train"), *read("t10k"))


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(
        f"{directory} has neither {name} nor {name}.gz: "
        "MNIST is {train,t10k}-images-idx3-ubyte and {train,t10k}-labels-idx1-ubyte"
    )


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "scikit-learn's digits need the extra: pip install 'securemedian[train]'. Or name a directory with MNIST"
        ) from error
    bunch = load_digits()
    images, labels = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64)
    # the bundled order runs through the writers: shuffled, the same for everybody
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:_DIGITS_TRAINING], order[_DIGITS_TRAINING:]
    return Dataset("digits", images[train], labels[train], images[test], labels[test])
