"""Models of any form to one vector and back."""

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from securemedian.clients.update import flatten, unflatten
from securemedian.mpc.errors import InputError

RNG = np.random.default_rng(1)
FORMS: list[Any] = [
    RNG.normal(size=7),
    RNG.normal(size=(2, 3)).astype(np.float32),
    [
        RNG.normal(size=(2, 3)),
        RNG.normal(size=()).reshape(()),
        RNG.normal(size=5).astype(np.float16),
    ],
    (RNG.normal(size=3).astype(np.float32), np.arange(4), RNG.normal(size=0)),
    {
        "weight": RNG.normal(size=(4, 2)).astype(np.float32),
        "steps": np.array(12),
        "mask": np.array([True, False]),
        "bias": RNG.normal(size=4),
    },
]


def leaves(model: Any) -> list[Any]:
    return (
        list(model.values())
        if isinstance(model, dict)
        else list(model)
        if isinstance(model, list | tuple)
        else [model]
    )


@pytest.mark.parametrize("model", FORMS, ids=lambda model: type(model).__name__)
def test_arrays_come_back_as_they_were(model: Any) -> None:
    vector, spec = flatten(model)
    back = unflatten(vector, spec)
    assert vector.dtype == np.float64
    assert type(back) is type(model)
    assert not isinstance(model, dict) or list(back) == list(model)
    for before, after in zip(leaves(model), leaves(back), strict=True):
        assert (after.dtype, after.shape) == (before.dtype, before.shape)
        assert np.array_equal(after, before)


def test_new_values_go_to_real_entries_and_local_ones_stay() -> None:
    model = {"a": np.zeros((2, 2), np.float32), "count": np.array([3, 4]), "b": np.zeros(1)}
    vector, spec = flatten(model)
    # the caller trains on: what was submitted is what comes back
    model["count"] += 1
    back = unflatten(vector + np.arange(5), spec)
    assert back["a"].tolist() == [[0, 1], [2, 3]]
    assert back["b"].tolist() == [4]
    assert back["count"].tolist() == [3, 4]


def test_state_dict_with_batch_norm() -> None:
    torch = pytest.importorskip("torch")
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4).double(), torch.nn.Linear(4, 1).bfloat16()
    )
    network[1].num_batches_tracked += 5
    state = network.state_dict()
    vector, spec = flatten(state)
    # all but num_batches_tracked
    assert vector.size == sum(t.numel() for t in state.values()) - 1
    back = unflatten(vector + 1.0, spec)
    assert list(back) == list(state)
    for name, before in state.items():
        assert (back[name].dtype, back[name].shape) == (before.dtype, before.shape)
        assert torch.equal(back[name], before if name == "1.num_batches_tracked" else before + 1)
    network.load_state_dict(OrderedDict(back))


def test_parameters_that_require_gradients() -> None:
    torch = pytest.importorskip("torch")
    vector, spec = flatten([torch.nn.Parameter(torch.ones(2)), torch.zeros(1)])
    back = unflatten(vector, spec)
    assert vector.tolist() == [1, 1, 0]
    assert not back[0].requires_grad


@pytest.mark.parametrize(
    "update",
    [
        "text",
        3.5,
        [1.0, 2.0],
        {"a": None},
        np.arange(3),
        [],
        {},
        np.zeros(2, complex),
        np.array(["a"]),
    ],
)
def test_what_is_no_update_is_refused(update: Any) -> None:
    with pytest.raises(InputError):
        flatten(update)


@pytest.mark.parametrize("size", [0, 3, 5])
def test_a_vector_of_another_length_is_refused(size: int) -> None:
    _, spec = flatten(np.zeros((2, 2)))
    with pytest.raises(InputError, match="4 real values"):
        unflatten(np.zeros(size), spec)
