"""The types of a data set and of the place that it is read from."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError

SPLITS = "iid, blocks, dirichlet:ALPHA, similarity:GAMMA or labels:C"

# of Dirichlet proportions, at most, until every client has an image
_DRAWS = 100

Part = NDArray[np.int64]


def split(
    labels: Part, clients: int, seed: int, how: str = "iid", images: int | None = None
) -> list[Part]:
    """Return the images of each client, as indices into `labels`.

    `images` is their number per client, None for all there are. `how` is one of

    - `iid`: at random, the same number to everybody;
    - `blocks`: consecutive images, the same number to everybody, for data that are ordered by whom
      they come from. Of its block a client has `images` at random;
    - `dirichlet:ALPHA`: every class is divided in proportions from a symmetric Dirichlet(ALPHA)
      distribution (Yurochkin et al., ICML 2019). The smaller ALPHA, the fewer classes a client has.
      The clients' numbers of images differ, and `images` is their mean: `images` times the number
      of clients are drawn at random and then divided;
    - `similarity:GAMMA`: a share GAMMA of everybody's images is at random, and the others are in
      the order of their labels. At 0 a client has one class or two (ByzFL's protocol, after Hsu, Qi
      and Brown, 2019). Everybody has the same number;
    - `labels:C`: every client has exactly C classes. Every class is divided evenly among the
      clients that have it, and the numbers of clients per class differ by one at most (Li, Diao,
      Chen and He, ICDE 2022). With few clients and few classes per client, some classes go to
      nobody.

    Raises ConfigError if `how` is none of these or the images do not suffice.
    """
    kind, _, value = how.partition(":")
    rng = np.random.default_rng(seed)
    if clients < 1:
        raise ConfigError(f"images are split among 1 or more clients: {clients}; give more")
    if how == "iid":
        return _iid(len(labels), clients, rng, images)
    if how == "blocks":
        return _blocks(len(labels), clients, rng, images)
    if kind == "dirichlet" and 0 < (alpha := _number(value)) < math.inf:
        return _dirichlet(labels, clients, rng, alpha, images)
    if kind == "similarity" and 0 <= (gamma := _number(value, -1)) <= 1:
        return _similar(labels, clients, rng, gamma, images)
    if kind == "labels" and value.isdecimal() and int(value) >= 1:
        return _by_labels(labels, clients, rng, int(value), images)
    raise ConfigError(
        f"invalid split: {how!r}; take {SPLITS}, with ALPHA above 0, GAMMA from 0 to 1 and C of "
        "1 or more"
    )


def _iid(count: int, clients: int, rng: np.random.Generator, images: int | None) -> list[Part]:
    each = _images_each(count, clients, images)
    return list(rng.permutation(count)[: each * clients].reshape(clients, each))


def _blocks(count: int, clients: int, rng: np.random.Generator, images: int | None) -> list[Part]:
    each, size = _images_each(count, clients, images), count // clients
    return [size * client + rng.permutation(size)[:each] for client in range(clients)]


def _images_each(count: int, clients: int, images: int | None) -> int:
    """Return the images per client, all of whom have the same number, or raise ConfigError."""
    each = count // clients if images is None else images
    if not 1 <= each * clients <= count:
        raise ConfigError(
            f"too few images for {clients} clients of {each:,}: {count:,}; choose 1 to "
            f"{count // clients:,} images per client"
        )
    return each


def _dirichlet(
    labels: Part, clients: int, rng: np.random.Generator, alpha: float, images: int | None
) -> list[Part]:
    dealt = (
        np.concatenate(_iid(len(labels), clients, rng, images))
        if images is not None
        else rng.permutation(len(labels))
    )
    classes = [dealt[labels[dealt] == label] for label in np.unique(labels)]
    for _ in range(_DRAWS):
        shares = [rng.dirichlet(np.full(clients, alpha)) for _ in classes]
        cuts = [
            np.round(np.cumsum(share)[:-1] * len(members)).astype(np.int64)
            for share, members in zip(shares, classes, strict=True)
        ]
        pieces = [np.split(members, cut) for members, cut in zip(classes, cuts, strict=True)]
        parts = [np.concatenate(piece) for piece in zip(*pieces, strict=True)]
        if all(part.size for part in parts):
            return parts
    raise ConfigError(
        f"in each of {_DRAWS} draws, one of {clients} clients was left without an image: "
        f"Dirichlet({alpha:g}); choose a larger ALPHA, fewer clients or more images"
    )


def _similar(
    labels: Part, clients: int, rng: np.random.Generator, gamma: float, images: int | None
) -> list[Part]:
    parts = np.stack(_iid(len(labels), clients, rng, images))
    alike = round(gamma * parts.shape[1])
    rest = parts[:, alike:].reshape(-1)
    parts[:, alike:] = rest[np.argsort(labels[rest], kind="stable")].reshape(clients, -1)
    return list(parts)


def _by_labels(
    labels: Part, clients: int, rng: np.random.Generator, each: int, images: int | None
) -> list[Part]:
    classes = rng.permutation(np.unique(labels))
    if each > len(classes):
        raise ConfigError(
            f"more labels than the {len(classes)} of the data set: labels:{each}; ask for fewer"
        )
    if images is not None and images < each:
        raise ConfigError(
            f"too few images for {each} labels: {images}; choose {each} images per client or more"
        )
    # labels are dealt in turn: a client's are all different, and each label is dealt equally often
    holders: dict[int, list[int]] = {label: [] for label in classes.tolist()}
    for turn in range(clients * each):
        holders[int(classes[turn % len(classes)])].append(turn // each)
    parts: list[list[Part]] = [[] for _ in range(clients)]
    for label, owners in holders.items():
        members = rng.permutation(np.flatnonzero(labels == label))
        for owner, piece in zip(owners, np.array_split(members, max(len(owners), 1)), strict=False):
            # a client's first labels have one image more if `images` is not a multiple of `each`
            wanted = (
                max(len(piece), 1)
                if images is None
                else len(range(len(parts[owner]), images, each))
            )
            if wanted > len(piece):
                raise ConfigError(
                    f"too few images of label {label} for {len(owners)} clients of {wanted:,} "
                    f"each: {len(members):,}; choose fewer images or clients"
                )
            parts[owner].append(piece[:wanted])
    return [np.concatenate(part) for part in parts]


def _number(text: str, wrong: float = 0.0) -> float:
    try:
        return float(text)
    except ValueError:
        return wrong


@dataclass(frozen=True)
class Dataset:
    """Images as rows of float32, labels as int64 from 0 to `classes` - 1.

    Pixels lie in [0, 1]. The rows of a table stand for images, too, in units of their own. So do
    stretches of text, where each value is the code of a character. NaN stands for unknown.
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

    Public images are nobody's own.
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
