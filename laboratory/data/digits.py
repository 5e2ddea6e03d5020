"""scikit-learn's 8x8 digits, which need no files: 1,797 handwritten digits in 17 grey levels."""

from pathlib import Path

import numpy as np

from securemedian.laboratory.data.base import Dataset, Source
from securemedian.mpc.errors import ConfigError

# training images; the others are the test set
_TRAINING = 1500


def _digits(_: Path) -> Dataset:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ConfigError(
            "scikit-learn's digits need the extra: pip install 'securemedian[train]'. "
            "Or name a directory with MNIST"
        ) from error
    bunch = load_digits()
    images, labels = (bunch.data / 16).astype(np.float32), bunch.target.astype(np.int64)
    # the bundled images go writer by writer; this shuffle is the same for everybody
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = order[:_TRAINING], order[_TRAINING:]
    return Dataset("digits", images[train], labels[train], images[test], labels[test])


DIGITS = Source(
    "digits", _digits, files=(), advice="pip install 'securemedian[train]'", model="digits"
)
