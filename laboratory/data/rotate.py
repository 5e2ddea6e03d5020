"""The rotation of images, which gives groups of clients data that one model cannot fit."""

import numpy as np
from numpy.typing import NDArray

from securemedian.mpc.errors import ConfigError


def rotate(images: NDArray[np.float32], quarters: int) -> NDArray[np.float32]:
    """Return square images, one channel in rows of float32, turned by so many times 90 degrees.

    Raises ConfigError if the rows are not square.
    """
    if not quarters:
        return images
    side = int(images.shape[1] ** 0.5)
    if side * side != images.shape[1]:
        raise ConfigError(
            "groups of clients see the same images turned by 0, 90, 180 and 270 degrees, which "
            f"rows of {images.shape[1]:,} values are not: take digits or MNIST"
        )
    turned = np.rot90(images.reshape(-1, side, side), quarters, axes=(1, 2))
    return np.ascontiguousarray(turned).reshape(images.shape)
