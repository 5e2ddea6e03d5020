"""The model, in numpy alone, and the data of each partition."""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from threadpoolctl import threadpool_limits

Arrays = dict[str, NDArray[np.float32]]

TEST_IMAGES = 297
HIDDEN = 32

# In a simulation Ray forks this process, maybe while another thread measures the model. OpenBLAS
# ends its threads then, and may wait for one of them for ever (OpenMathLib/OpenBLAS, request 3111).
threadpool_limits(1, user_api="blas")


def start_model() -> Arrays:
    """Return a network 64-32-10 with random weights."""
    rng = np.random.default_rng(1)
    return {
        "hidden.weight": rng.normal(0, 0.2, (64, HIDDEN)).astype(np.float32),
        "hidden.bias": np.zeros(HIDDEN, np.float32),
        "output.weight": rng.normal(0, 0.2, (HIDDEN, 10)).astype(np.float32),
        "output.bias": np.zeros(10, np.float32),
    }


def load_data(partition: int, partitions: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the images and labels of one partition; -1 is the test set."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    test, rest = order[:TEST_IMAGES], order[TEST_IMAGES:]
    chosen = test if partition < 0 else rest[partition::partitions]
    return (digits.data[chosen] / 16).astype(np.float32), digits.target[chosen].astype(np.int64)


def probabilities(
    model: Arrays, images: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the hidden layer and the probabilities of the ten digits."""
    hidden = np.maximum(images @ model["hidden.weight"] + model["hidden.bias"], 0)
    scores = hidden @ model["output.weight"] + model["output.bias"]
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, powers / powers.sum(axis=1, keepdims=True)


def train(
    model: Arrays,
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    epochs: int,
    rate: float,
    seed: int,
) -> float:
    """Train the model in place by stochastic gradient descent, and return the last mean loss."""
    rng = np.random.default_rng(seed)
    losses: list[float] = []
    for _ in range(epochs):
        losses = []
        for batch in np.array_split(rng.permutation(len(labels)), max(1, len(labels) // 16)):
            hidden, guess = probabilities(model, images[batch])
            rows = np.arange(len(batch))
            losses.append(float(-np.log(guess[rows, labels[batch]] + 1e-9).mean()))
            # the gradient of the mean cross-entropy
            guess[rows, labels[batch]] -= 1
            guess /= len(batch)
            back = (guess @ model["output.weight"].T) * (hidden > 0)
            model["output.weight"] -= np.float32(rate) * (hidden.T @ guess)
            model["output.bias"] -= np.float32(rate) * guess.sum(axis=0)
            model["hidden.weight"] -= np.float32(rate) * (images[batch].T @ back)
            model["hidden.bias"] -= np.float32(rate) * back.sum(axis=0)
    return float(np.mean(losses))


def accuracy(model: Arrays, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the fraction of the images that the model labels correctly."""
    return float((probabilities(model, images)[1].argmax(axis=1) == labels).mean())
