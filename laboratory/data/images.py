"""Images: MNIST, CIFAR-10, and scikit-learn's digits, which need no files."""

import gzip
import math
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError, InputError

Samples = tuple[NDArray[np.float32], NDArray[np.int64]]

# MNIST's IDX files (LeCun, Cortes and Burges), plain or gzipped

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
            f"not a complete gzip file: {path} ({error}); download it again"
        ) from error
    if (
        len(raw) < 4
        or raw[:3] != bytes([0, 0, _UNSIGNED_BYTES])
        or len(raw) < (header := 4 + 4 * raw[3])
    ):
        raise InputError(
            f"not an IDX file of unsigned bytes: {path}; take one of the four MNIST files"
        )
    shape = np.frombuffer(raw[4:header], ">u4").tolist()
    if len(raw) - header != math.prod(shape):
        raise InputError(
            f"a file that is not as long as it announces: {path}, shape {shape} and "
            f"{len(raw) - header:,} bytes; download it again"
        )
    return np.frombuffer(raw, np.uint8, offset=header).reshape(shape)


def _mnist(directory: Path) -> Dataset:
    def read(prefix: str) -> Samples:
        images, labels = (
            read_idx(_find(directory, f"{prefix}-{kind}-ubyte"))
            for kind in ("images-idx3", "labels-idx1")
        )
        if images.shape != (len(labels), 28, 28) or labels.max(initial=0) > 9:
            raise InputError(
                f"not MNIST: {directory}, {prefix} images of shape {images.shape} and "
                f"{len(labels):,} labels up to {labels.max(initial=0)}; download it again"
            )
        pixels = images.reshape(len(images), -1).astype(np.float32) / np.float32(255)
        return pixels, labels.astype(np.int64)

    return Dataset("mnist", *read("train"), *read("t10k"))


def _find(directory: Path, name: str) -> Path:
    for path in (directory / name, directory / f"{name}.gz"):
        if path.is_file():
            return path
    raise ConfigError(
        f"a file of MNIST is missing: {directory} has neither {name} nor {name}.gz; {MNIST.advice}"
    )


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


# CIFAR-10's binary files (Krizhevsky, "Learning Multiple Layers of Features from Tiny Images",
# 2009). A record is a label byte and 3,072 pixel bytes: 32 rows of 32 pixels for red, then for
# green, then for blue.

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_TRAINING = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"


def read_batch(path: Path) -> Samples:
    """Return the images and labels of one file.

    Raises ConfigError if the file is missing, InputError if it is damaged.
    """
    try:
        raw = np.fromfile(path, np.uint8)
    except FileNotFoundError as error:
        raise ConfigError(
            f"a file of CIFAR-10 is missing: {path.parent} has no {path.name}; {CIFAR10.advice}"
        ) from error
    if not raw.size or raw.size % _RECORD:
        raise InputError(
            f"a file that is not a multiple of a record's {_RECORD:,} bytes: {path}, "
            f"{raw.size:,} bytes; download it again"
        )
    records = raw.reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise InputError(
            f"labels beyond CIFAR-10's 0 to 9: {path} has labels up to {labels.max()}; take "
            "CIFAR-10, not CIFAR-100"
        )
    return records[:, 1:].astype(np.float32) / np.float32(255), labels


def _cifar10(directory: Path) -> Dataset:
    images, labels = zip(*(read_batch(directory / name) for name in _TRAINING), strict=True)
    return Dataset(
        "cifar10", np.concatenate(images), np.concatenate(labels), *read_batch(directory / _TEST)
    )


CIFAR10 = Source(
    "cifar10",
    _cifar10,
    files=(*_TRAINING, _TEST),
    advice="CIFAR-10 is data_batch_1.bin to data_batch_5.bin and test_batch.bin, "
    "from the 'binary version' at https://www.cs.toronto.edu/~kriz/cifar.html",
    model="cnn-cifar10",
)


# scikit-learn's 1,797 handwritten digits of 8x8 pixels in 17 grey levels

# training images; the others are the test set
_TRAINED_DIGITS = 1500


def _digits(_: Path) -> Dataset:
    found = find_spec("sklearn")
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            "scikit-learn is missing: its digits need it; run pip install '.[train]' in a "
            "clone, or name a directory with MNIST"
        )
    # the import of scikit-learn takes 4 s
    path = Path(found.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = np.loadtxt(path, delimiter=",")
    images, labels = (rows[:, :-1] / 16).astype(np.float32), rows[:, -1].astype(np.int64)
    # the bundled images go writer by writer; this shuffle is the same for everybody
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:_TRAINED_DIGITS], order[_TRAINED_DIGITS:]
    return Dataset("digits", images[train], labels[train], images[test], labels[test])


DIGITS = Source(
    "digits", _digits, files=(), advice="pip install '.[train]' in a clone", model="digits"
)
