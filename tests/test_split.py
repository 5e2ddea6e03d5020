"""Splits: seeded, without overlap, of the sizes and classes that they promise."""

import numpy as np
import pytest
from numpy.typing import NDArray

from securemedian.laboratory.data import split
from securemedian.mpc.errors import ConfigError

CLASSES = 10
LABELS = np.random.default_rng(1).permutation(np.repeat(np.arange(CLASSES), 60))
HOWS = ["iid", "blocks", "dirichlet:0.5", "dirichlet:100", "labels:2", "labels:3", "labels:10"]
HOWS += ["similarity:0", "similarity:0.5", "similarity:1"]


def held(part: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many images of each label."""
    return np.bincount(LABELS[part], minlength=CLASSES)


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("clients", "images"), [(1, None), (10, None), (7, 13), (3, 10)])
def test_splits_are_seeded_and_do_not_overlap(how: str, clients: int, images: int | None) -> None:
    if (clients, images) == (7, 13) and how == "labels:2":
        images = 12
    parts = split(LABELS, clients, 5, how, images)
    assert len(parts) == clients
    assert all(part.size and part.dtype == np.int64 for part in parts)
    together = np.concatenate(parts)
    assert len(set(together.tolist())) == together.size
    assert 0 <= together.min() <= together.max() < LABELS.size
    for part, again in zip(parts, split(LABELS, clients, 5, how, images), strict=True):
        assert np.array_equal(part, again)
    assert not np.array_equal(together, np.concatenate(split(LABELS, clients, 6, how, images)))
    if images is not None:
        assert together.size == clients * images


def test_iid_is_the_permutation_dealt_in_turn() -> None:
    """The split of the figures in the README, which therefore must stay."""
    order = np.random.default_rng(5).permutation(600)
    for index, part in enumerate(split(LABELS, 3, 5, images=30)):
        assert np.array_equal(part, order[30 * index : 30 * (index + 1)])
    assert [part.size for part in split(LABELS, 7, 5)] == [85] * 7


def test_dirichlet_divides_every_image_and_is_the_more_uneven_the_smaller_alpha() -> None:
    spreads = []
    for alpha in (0.1, 1, 10, 1000):
        parts = split(LABELS, 5, 1, f"dirichlet:{alpha}")
        assert sorted(np.concatenate(parts).tolist()) == list(range(600))
        spreads.append(np.std([held(part) / 60 for part in parts]))
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 0.03 < 0.2 < spreads[0]


def test_dirichlets_proportions() -> None:
    """A client's share of a class has mean 1/n and variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    labels, clients, alpha = np.zeros(10_000, np.int64), 4, 2.0
    shares = np.array(
        [
            [part.size for part in split(labels, clients, s, f"dirichlet:{alpha}")]
            for s in range(300)
        ]
    )
    shares = shares / 10_000
    assert np.allclose(shares.mean(axis=0), 1 / clients, atol=0.03)
    assert shares.var() == pytest.approx(
        1 / clients * (1 - 1 / clients) / (clients * alpha + 1), rel=0.1
    )


def test_dirichlet_that_leaves_a_client_without_images() -> None:
    with pytest.raises(ConfigError, match="one of 50 clients was left without an image"):
        split(LABELS, 50, 1, "dirichlet:0.001")
    # drawn again until it fits
    few = split(LABELS, 5, 1, "dirichlet:0.05")
    assert all(part.size for part in few)


@pytest.mark.parametrize("each", [1, 3, 10])
@pytest.mark.parametrize("clients", [1, 5, 20])
def test_every_client_has_exactly_so_many_labels(each: int, clients: int) -> None:
    parts = split(LABELS, clients, 1, f"labels:{each}")
    holders = np.sum([held(part) > 0 for part in parts], axis=0)
    assert all(np.count_nonzero(held(part)) == each for part in parts)
    assert holders.max() - holders.min() <= 1
    taken = np.sum([held(part) for part in parts], axis=0)
    # a label that somebody has is divided completely
    assert np.array_equal(taken, 60 * (holders > 0))


def test_labels_of_a_given_number_of_images() -> None:
    for part in split(LABELS, 4, 1, "labels:3", images=20):
        assert sorted(held(part)[held(part) > 0].tolist()) == [6, 7, 7]


@pytest.mark.parametrize(
    ("clients", "how", "images", "said"),
    [
        (3, "iid", 201, "choose 1 to 200 images"),
        (3, "iid", 0, "choose 1 to 200 images"),
        (601, "iid", None, "choose 1 to 0 images"),
        (0, "iid", None, "1 or more"),
        (3, "dirichlet:0", None, "ALPHA above 0"),
        (3, "dirichlet:nan", None, "ALPHA above 0"),
        (3, "dirichlet:x", None, "invalid split: 'dirichlet:x'"),
        (3, "similarity:1.1", None, "GAMMA from 0 to 1"),
        (3, "labels:0", None, "1 or more"),
        (3, "labels:11", None, "than the 10 of the data set"),
        (3, "labels:2", 1, "too few images for 2 labels: 1;"),
        (3, "labels:2", 121, "choose fewer images"),
        (3, "random", None, "take iid"),
    ],
)
def test_impossible_splits_are_refused(
    clients: int, how: str, images: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        split(LABELS, clients, 1, how, images)


def test_similarity_is_the_share_of_images_that_are_dealt_at_random() -> None:
    sizes = []
    for gamma in (0, 0.33, 0.66, 1):
        parts = split(LABELS, 10, 1, f"similarity:{gamma}")
        assert [part.size for part in parts] == [60] * 10
        sizes.append(float(np.mean([held(part).max() for part in parts])))
    # one class each; and no more than chance makes of ten
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 60
    assert sizes[-1] < 15
