"""The types of a data set and of the place that it is read from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32, labels as int64 from 0 to `classes` - 1.

    Pixels lie in [0, 1]. A table's rows stand for images, too, and its columns have units of their
    own.
    """

    name: str
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int = 10


@dataclass(frozen=True)
class Source:
    """A data set that can be read, and the kind of folder that holds it."""

    name: str
    read: Callable[[Path], Dataset]
    # any of these shows that a folder holds the data set; empty if it needs no folder
    files: tuple[str, ...]
    # for error messages: which files are needed, and where to get them
    advice: str
    # the name of the model that is trained on it unless another is named
    model: str

    def recognises(self, directory: Path) -> bool:
        """Return whether the folder holds this data set."""
        return any((directory / name).is_file() for name in self.files)
