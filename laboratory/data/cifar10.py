"""CIFAR-10, read from its binary files.

The data set is Krizhevsky's, "Learning Multiple Layers of Features from Tiny Images" (2009). A
record is a label byte and 3,072 pixel bytes: 32 rows of 32 pixels for red, then for green, then for
blue.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError, InputError

_PIXELS = 3 * 32 * 32
_RECORD = 1 + _PIXELS
_TRAINING = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = "test_batch.bin"


def read_batch(path: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images and labels of one file.

    Raises ConfigError if the file is missing, InputError if it is damaged.
    """
    try:
        raw = np.fromfile(path, np.uint8)
    except FileNotFoundError as error:
        raise ConfigError(f"{path.parent} has no {path.name}: {CIFAR10.advice}") from error
    if not raw.size or raw.size % _RECORD:
        raise InputError(
            f"{path} has {raw.size:,} bytes, which is not a multiple of a record's {_RECORD:,}: "
            "download it again"
        )
    records = raw.reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() > 9:
        raise InputError(
            f"{path} has labels up to {labels.max()}, and CIFAR-10 has 0 to 9: is it CIFAR-100?"
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
