"""The networks that clients train, as functions of one flat vector of parameters.

A new model is a `Model` in `networks`, and its line in `MODELS`. Only functions import torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from securemedian.clients.update import flatten, unflatten
from securemedian.laboratory.data import Dataset
from securemedian.laboratory.models.networks import MODELS, Model
from securemedian.mpc.arrays import Float32s
from securemedian.mpc.errors import ConfigError

__all__ = ["MODELS", "Model"]

Labels = NDArray[np.int64]
Rng = np.random.Generator

# images at once, so few that the activations of a convolution fit into the caches
_TEST_BATCH = 100


def check_fits(model: Model, data: Dataset) -> None:
    """Raise ConfigError unless the model takes the images of the data set."""
    if (data.images.shape[1], data.classes) != (model.inputs, model.classes):
        raise ConfigError(
            f"{model.name} takes images of {model.inputs:,} values in {model.classes} classes: "
            f"{data.name} has {data.images.shape[1]:,} in {data.classes}; choose another model"
        )


def use_one_thread() -> None:
    """Make PyTorch compute with one thread; every process that trains calls this once.

    With several threads, sums differ from run to run.
    """
    _torch().set_num_threads(1)


def start(model: Model, seed: int) -> Float32s:
    """Return PyTorch's usual initialisation as one vector.

    The paper starts from zeros, which would never train (protocols.md 7.7).
    """
    torch = _torch()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return flatten(model.build().state_dict())[0].astype(np.float32)


def starts(model: Model, seed: int, groups: int) -> Float32s:
    """Return the start model of `seed`, (d,), or those of `groups` seeds from it on as rows."""
    if groups == 1:
        return start(model, seed)
    return np.stack([start(model, seed + group) for group in range(groups)])


def sent(model: Model, keep_local: Sequence[str]) -> NDArray[np.bool_]:
    """Return which values of a network's vector are in no layer of `keep_local`, shape (d,)."""
    state = model.build().state_dict()
    _, every = flatten(state)
    _, chosen = flatten(state, keep_local)
    is_sent = [name in {*chosen.sent} for name in every.sent]
    return np.repeat(is_sent, every.sizes)


def train(
    model: Model, vector: Float32s, images: Float32s, labels: Labels | Float32s, rng: Rng
) -> Float32s:
    """Return the parameters after a client's local epochs from `vector`; `rng` shuffles.

    A network that standardises its columns (`networks`) only measures them in its first round.
    Labels are one class per image, or soft: a probability per image and class.
    """
    torch = _torch()
    network = _network(model, vector)
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    if any(layer.measure(inputs) for layer in network.modules() if hasattr(layer, "measure")):
        return flatten(network.state_dict())[0].astype(np.float32)
    parameters = list(network.parameters())
    # one image alone has no variance to normalise by
    least = 2 if _normalises_batches(network) else 1
    for _ in range(model.epochs):
        order = torch.from_numpy(rng.permutation(len(labels)))
        for chosen in order.split(model.batch):
            if len(chosen) < least:
                continue
            loss = torch.nn.functional.cross_entropy(network(inputs[chosen]), targets[chosen])
            slopes = torch.autograd.grad(loss, parameters)
            # the first torch.optim.SGD of a process takes 4 s; this gives the same bits
            with torch.no_grad():
                for each, slope in zip(parameters, slopes, strict=True):
                    each.add_(slope, alpha=-model.rate)
    return flatten(network.state_dict())[0].astype(np.float32)


def predict(model: Model, vector: NDArray[Any], images: Float32s) -> Float32s:
    """Return the probabilities (images, classes) of the network with these parameters."""
    torch = _torch()
    # in evaluation mode BatchNorm uses the running statistics, which are part of the vector
    network = _network(model, vector).eval()
    with torch.no_grad():
        parts = [network(part).softmax(1) for part in torch.from_numpy(images).split(_TEST_BATCH)]
    return np.asarray(torch.cat(parts).numpy())


def losses(
    model: Model, vector: NDArray[Any], images: Float32s, labels: Labels
) -> NDArray[np.float64]:
    """Return the cross-entropy of each image under the network with these parameters."""
    torch = _torch()
    network = _network(model, vector).eval()
    inputs, targets = torch.from_numpy(images), torch.from_numpy(labels)
    with torch.no_grad():
        parts = [
            torch.nn.functional.cross_entropy(network(part), own, reduction="none")
            for part, own in zip(inputs.split(_TEST_BATCH), targets.split(_TEST_BATCH), strict=True)
        ]
    return np.asarray(torch.cat(parts).double().numpy())


def accuracy(model: Model, vector: NDArray[Any], images: Float32s, labels: Labels) -> float:
    """Return the fraction of the images that the network with these parameters labels correctly."""
    return float((predict(model, vector, images).argmax(1) == labels).mean())


def loss(model: Model, vector: NDArray[Any], images: Float32s, labels: Labels) -> float:
    """Return the mean cross-entropy of the network with these parameters on the images."""
    return float(losses(model, vector, images, labels).mean())


def _network(model: Model, vector: NDArray[Any]) -> Any:
    network = model.build()
    _, spec = flatten(network.state_dict())
    network.load_state_dict(unflatten(vector, spec))
    return network


def measures(model: Model) -> bool:
    """Return whether clients only measure their columns in the first round of this network."""
    return any(hasattr(layer, "measure") for layer in model.build().modules())


def _normalises_batches(network: Any) -> bool:
    nn = _torch().nn
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(layer, kinds) for layer in network.modules())


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            "PyTorch is missing: training needs it; run pip install '.[train]' in a clone"
        ) from error
    return torch
