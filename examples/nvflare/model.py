"""The model, one array of numpy's, and the data of each site."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits

TEST_IMAGES = 297
DIGITS, PIXELS = 10, 64


def start_model() -> NDArray[np.float32]:
    """Return the weights of a softmax regression, shape (65, 10); the last row is the bias."""
    return np.zeros((PIXELS + 1, DIGITS), np.float32)


def load_data(part: int, parts: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return a site's images, with a 1 for the bias, and labels; -1 is the test set."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    test, rest = order[:TEST_IMAGES], order[TEST_IMAGES:]
    chosen = test if part < 0 else rest[part::parts]
    images = np.hstack([digits.data[chosen] / 16, np.ones((len(chosen), 1))])
    return images.astype(np.float32), digits.target[chosen].astype(np.int64)


def train(
    weights: NDArray[np.float32],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    epochs: int,
    rate: float,
) -> NDArray[np.float32]:
    """Return the weights after some epochs of stochastic gradient descent."""
    weights, rng = weights.copy(), np.random.default_rng(len(labels))
    for _ in range(epochs):
        for batch in np.array_split(rng.permutation(len(labels)), max(1, len(labels) // 16)):
            scores = images[batch] @ weights
            powers = np.exp(scores - scores.max(axis=1, keepdims=True))
            # the gradient of the mean cross-entropy
            errors = powers / powers.sum(axis=1, keepdims=True)
            errors[np.arange(len(batch)), labels[batch]] -= 1
            weights -= np.float32(rate / len(batch)) * (images[batch].T @ errors)
    return weights


def accuracy(
    weights: NDArray[np.float32], images: NDArray[np.float32], labels: NDArray[np.int64]
) -> float:
    """Return the fraction of the images that the model labels correctly."""
    return float(((images @ weights).argmax(axis=1) == labels).mean())
