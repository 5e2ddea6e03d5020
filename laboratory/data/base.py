"""The types of a data set and of the place that it is read from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.laboratory.data.split import split
from securemedian.mpc.errors import ConfigError


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32, labels as int64 from 0 to `classes` - 1.

    Pixels lie in [0, 1]. A table's rows stand for images, too, and its columns have units of their
    own; and so do stretches of text, of which each value is the code of a character. What is not a
    number is not known.
    """

    name: str
    images: NDArray[np.float32]
    labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]
    classes: int = 10
    # of data that are somebody's: for each training image the place of whose it is in `holders`
    owners: NDArray[np.int64] | None = None
    holders: tuple[str, ...] = ()

    def parts(
        self, clients: int, seed: int, how: str = "iid", images: int | None = None
    ) -> list[NDArray[np.int64]]:
        """Return the training images of each client, as indices, divided as in `split`.

        Data that are somebody's are not divided: every owner is a client. Raises ConfigError for
        other numbers of clients, and as `split` does.
        """
        if self.owners is None:
            return split(self.labels, clients, seed, how, images)
        if clients != len(self.holders) or how != "iid" or images is not None:
            raise ConfigError(
                "a data set that is divided by itself, into the patients of "
                f"{', '.join(self.holders)}: {self.name}; take {len(self.holders)} clients, and "
                "leave split and images out"
            )
        return [np.flatnonzero(self.owners == owner) for owner in range(clients)]


def draw_public(data: Dataset, samples: int, seed: int) -> NDArray[np.float32]:
    """Return training images that are drawn at random, (samples, values), as a public set.

    Raises ConfigError if there are too few.
    """
    count = len(data.images)
    if not 1 <= samples < count:
        raise ConfigError(
            f"a public set of {data.name} takes 1 to {count - 1:,} of its {count:,} training "
            f"images, for the others are the clients' own: {samples:,}; take fewer"
        )
    # no split has this seed
    return data.images[np.random.default_rng((seed, samples)).permutation(count)[:samples]]


def without(data: Dataset, public: NDArray[np.float32]) -> Dataset:
    """Return the data set without the training images that are in a public set, too.

    What is public is nobody's own.
    """
    known = {row.tobytes() for row in public}
    own = np.array([row.tobytes() not in known for row in data.images], np.bool_)
    owners = None if data.owners is None else data.owners[own]
    return replace(data, images=data.images[own], labels=data.labels[own], owners=owners)


def with_fewer_tests(data: Dataset, count: int) -> Dataset:
    """Return the data set with so many of its test images, drawn at random, always the same.

    Raises ConfigError if there are fewer.
    """
    known = len(data.test_labels)
    if not 1 <= count <= known:
        raise ConfigError(
            f"more test images than {data.name} has: {count:,}; take 1 to {known:,} of them"
        )
    drawn = np.sort(np.random.default_rng(count).permutation(known)[:count])
    return replace(data, test_images=data.test_images[drawn], test_labels=data.test_labels[drawn])


def rotate(images: NDArray[np.float32], quarters: int) -> NDArray[np.float32]:
    """Return square images, one channel in rows of float32, turned by so many times 90 degrees.

    Raises ConfigError if the rows are not square.
    """
    if not quarters:
        return images
    side = int(images.shape[1] ** 0.5)
    if side * side != images.shape[1]:
        raise ConfigError(
            "groups of clients see the same images turned by 0, 90, 180 and 270 degrees, and "
            f"these cannot be turned: rows of {images.shape[1]:,} values; take digits or MNIST"
        )
    turned = np.rot90(images.reshape(-1, side, side), quarters, axes=(1, 2))
    return np.ascontiguousarray(turned).reshape(images.shape)


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
        return any((directory / name).is_file() for name in self.files)
