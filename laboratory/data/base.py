"""What a data set is, and where one comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32 in [0, 1], labels as int64 from 0 to `classes` - 1."""

    name: str
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int = 10


@dataclass(frozen=True)
class Source:
    """A kind of folder with one data set in it."""

    name: str
    read: Callable[[Path], Dataset]
    files: tuple[
        str, ...
    ]  # by any of which the folder is recognised; none for a data set that needs no folder
    advice: str  # what is needed and how people get it
    model: str  # trained on it unless another is named

    def recognises(self, directory: Path) -> bool:
        return any((directory / name).is_file() for name in self.files)
