"""MNIST, read from its IDX files (LeCun, Cortes and Burges), plain or gzipped."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError, InputError

# the only element type of the MNIST files
_UNSIGNED_BYTES = 0x08


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array in an IDX file of unsigned bytes, which is gzipped if its name ends in .gz.

    Raises InputError if the file is damaged or of another kind.
    """
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InputError(
            f"{path} is not a complete gzip file ({error}): download it again"
        ) from error
    if (
        len(raw) < 4
        or raw[:3] != bytes([0, 0, _UNSIGNED_BYTES])
        or len(raw) < (header := 4 + 4 * raw[3])
    ):
        raise InputError(
            f"{path} does not start as an IDX file of unsigned bytes: "
            "is it one of the four MNIST files?"
        )
    shape = np.frombuffer(raw[4:header], ">u4").tolist()
    if len(raw) - header != math.prod(shape):
        raise InputError(
            f"{path} announces an array of shape {shape} "
            f"and has {len(raw) - header:,} bytes for it: download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _mnist(directory: Path) -> Dataset:
    def read(prefix: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        images, labels = (
            read_idx(_find(directory, f"{prefix}-{kind}-ubyte"))
            for kind in ("images-idx3", "labels-idx1")
        )
        if images.shape != (len(labels), 28, 28) or labels.max(initial=0) > 9:
            raise InputError(
                f"{directory}: {prefix} images of shape {images.shape} "
                f"and {len(labels):,} labels up to {labels.max(initial=0)} are not MNIST"
            )
        return images.reshape(len(images), -1).astype(np.float32) / np.float32(255), labels.astype(
            np.int64
        )

    return Dataset("mnist", *read("train"), *read("t10k"))


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(f"{directory} has neither {name} nor {name}.gz: {MNIST.advice}")


MNIST = Source(
    "mnist",
    _mnist,
    files=tuple(
        f"{part}-{kind}-ubyte{end}"
        for part in ("train", "t10k")
        for kind in ("images-idx3", "labels-idx1")
        for end in ("", ".gz")
    ),
    advice="MNIST is {train,t10k}-images-idx3-ubyte.gz and {train,t10k}-labels-idx1-ubyte.gz, "
    "unpacked or not, from https://ossci-datasets.s3.amazonaws.com/mnist/",
    model="mlp",
)
