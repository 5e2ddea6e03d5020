"""The networks of the verb `train` and the demo, as functions of one flat vector. Only this module imports torch."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.update import flatten, unflatten
from mpc.errors import ConfigError

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ConfigError("training needs PyTorch: pip install 'securemedian[train]'") from error


@dataclass(frozen=True)
class Recipe:
    """A fully connected ReLU network and how a client trains it in a round (SGD)."""

    widths: tuple[int, ...]
    batch: int
    rate: float
    epochs: int


# by the name of the data set; MNIST's is the paper's, with 199,210 parameters
RECIPES = {
    "mnist": Recipe((784, 200, 200, 10), batch=20, rate=0.01, epochs=1),
    "digits": Recipe((64, 32, 10), batch=10, rate=0.1, epochs=2),
}


def use_one_thread() -> None:
    """Sums of several threads differ from run to run; every process that trains calls this once."""
    torch.set_num_threads(1)


def start(recipe: Recipe, seed: int) -> NDArray[np.float32]:
    """PyTorch's usual initialisation as one vector. (The paper's zeros would never train: protocols.md 7.7.)"""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return flatten(_network(recipe).state_dict())[0].astype(np.float32)


def train(
    recipe: Recipe,
    model: NDArray[np.float32],
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    rng: np.random.Generator,
) -> NDArray[np.float32]:
    """The parameters after a client's local epochs from `model`; `rng` shuffles."""
    network = _load(recipe, model)
    optimiser = torch.optim.SGD(network.parameters(), lr=recipe.rate)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    for _ in range(recipe.epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        for first in range(0, len(labels), recipe.batch):
            chosen = order[first : first + recipe.batch]
            optimiser.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(network(inputs[chosen]), targets[chosen]))
            optimiser.step()
    return flatten(network.state_dict())[0].astype(np.float32)


def accuracy(recipe: Recipe, model: NDArray[Any], images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """The fraction of the images that the model labels rightly."""
    with torch.no_grad():
        guesses = _load(recipe, model)(torch.from_numpy(images)).argmax(1)
    return float((guesses.numpy() == labels).mean())


def _network(recipe: Recipe) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(recipe.widths, recipe.widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _load(recipe: Recipe, model: NDArray[Any]) -> Any:
    network = _network(recipe)
    _, spec = flatten(network.state_dict())
    network.load_state_dict(unflatten(model, spec))
    return network
